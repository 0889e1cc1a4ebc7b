// Fetcher: rows by handle. It fetches from a page source only the objects that it has not cached.
//
// What digests protect against: every object is named by the digest of its content, and the fetcher
// compares that digest (for a range of a chunk: the chunk's crc32c) before it uses bytes. Without a
// key that finds damage, truncation, and, except for ranges, an object stored under another's name,
// but no malicious writer: neither hash is cryptographic, so a process that can write to a shared
// store can make bytes that match. With a key, which the publisher has too, such a process can
// remove rows and can present an earlier handle again; it cannot make or change rows.
#ifndef WAYMARK_BLOCKSTORE_WIRE_FETCHER_H_
#define WAYMARK_BLOCKSTORE_WIRE_FETCHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/log.h"
#include "blockstore/rows.h"
#include "blockstore/wire/digest_key.h"
#include "blockstore/wire/handle.h"
#include "blockstore/wire/page_source.h"
#include "blockstore/wire/set_code.h"
#include "blockstore/wire/tier.h"

namespace waymark::wire {

struct FetcherOptions {
  // The key of the publishers. A fetcher with a key refuses handles and objects without it, or with
  // another; a fetcher without refuses keyed handles.
  DigestKey key;
  // Bytes of the cache, about 128 per object for its entry included. The least recently used
  // objects are evicted. 0 caches nothing.
  std::size_t cache_bytes = std::size_t{1} << 28;
  // Bytes of chunks that one call of the page source asks for, at least one chunk. If it is not
  // smaller than max_bytes, no fetch makes more than four calls, whatever its length.
  std::size_t batch_bytes = std::size_t{1} << 28;
  // False: if only some layers of a page are read, only those bytes of its chunk are fetched, as a
  // range, with all crcs of the chunk: they check it, and 32 bits of the chunk's digest check them.
  // True, or with a key: chunks are always fetched whole, and all of their digests are checked.
  bool whole_chunks = false;
  // Bounds on one call: the rows that it may ask for, and the bytes of the rows that it returns. A
  // handle of 4 KiB can name 2^31 rows.
  std::int64_t max_rows = std::int64_t{1} << 24;
  std::size_t max_bytes = std::size_t{1} << 28;
  // Where rows are whose pages a handle has by name (TierOptions::look_up): `key` is that of the
  // engines' tiers; nothing is put. Without `tier.get` they stay missing as they were.
  TierOptions tier = {};
  // Receives, once each: at the first Fetch that the page source cannot be used
  // (PageSource::Check, warning), and the first Fetch in which it failed (warning).
  LogCallback log = {};
};

// Counts of what was fetched. Chunks, nodes and tail segments are objects; so are ranges of chunks.
struct FetchCounts {
  std::uint64_t fetched = 0;        // objects that the page source returned; node lists are none
  std::uint64_t fetched_bytes = 0;  // their bytes
  std::uint64_t hits = 0;           // objects found in the cache
  std::uint64_t absent = 0;         // objects that the page source did not return
  std::uint64_t damaged = 0;        // objects whose bytes do not match their digest, or that do not
                                    // fit the handle; treated as absent
};

// Why rows are missing, for one call of Fetch.
struct FetchReport {
  FetchCounts counts;
  absl::Status source;  // the first status of the page source that is not OK; OK if there is none
};

// Any thread. Threads share the cache; two threads that need the same object at the same time may
// both fetch it.
class Fetcher {
 public:
  // `source` is not owned and must outlive the fetcher. The options are copied. Does not call the
  // source. Throws std::bad_alloc.
  explicit Fetcher(PageSource* source, const FetcherOptions& options = {});
  // REQUIRES: no call is in progress.
  ~Fetcher();
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  // The rows and layers of `part`, in a shape that has only those layers. Rows are numbered by
  // their position in the sequence. Blocks on the page source until `deadline` at the latest, then
  // returns what has arrived: call it off the engine's step path. Calls the source up to four
  // times: for the last node and the tail; for the node before and the node list; for the other
  // nodes; for chunks. Without a list, once per node; beyond batch_bytes, once per batch. Memory
  // for rows is allocated when the nodes are there.
  //
  // With a tier, pages that the handle has by name are asked for then, until `deadline` and at most
  // for tier.timeout: their rows are valid (by key), or missing (capacity) with the cause.
  //
  // Rows whose objects could not be fetched (lost, evicted, damaged, or not in time) are missing
  // (capacity); if a node is one of them, so are all rows of complete pages up to the last row of
  // that node, because nodes are found by walking back from the last one. That is not an error:
  // `report`, if not null, is set to the reasons.
  //
  // OutOfRange unless `part` lies in the handle's rows and layers and has at least one layer;
  // InvalidArgument naming what is wrong with the handle; DataLoss for a handle without the
  // fetcher's key, FailedPrecondition for a keyed one without a key; ResourceExhausted beyond
  // max_rows or max_bytes, and if there is no memory, or no thread for the tier;
  // FailedPrecondition in a forked child; errors of Tier::Create. Does not throw; an exception of
  // the page source is its failure (Internal, in `report`).
  [[nodiscard]] absl::StatusOr<Rows> Fetch(const Handle& handle, const RowsAndLayers& part,
                                           Deadline deadline, FetchReport* report = nullptr);
  // The same for all rows and layers of the handle.
  [[nodiscard]] absl::StatusOr<Rows> Fetch(const Handle& handle, Deadline deadline,
                                           FetchReport* report = nullptr);

  // The counts of all calls that returned rows, added up. Zeros in a forked child.
  [[nodiscard]] FetchCounts GetCounts() const;

 private:
  struct State;
  struct Call;
  [[nodiscard]] absl::StatusOr<Rows> Run(const Handle& handle, const RowsAndLayers& part,
                                         Deadline deadline, FetchReport& report);
  std::unique_ptr<State> state_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_FETCHER_H_
