// Fetcher: rows by handle, fetching from a source only what was not fetched before.
#ifndef WAYMARK_BLOCKSTORE_WIRE_FETCHER_H_
#define WAYMARK_BLOCKSTORE_WIRE_FETCHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/rows.h"
#include "blockstore/wire/handle.h"
#include "blockstore/wire/page_source.h"
#include "blockstore/wire/set_code.h"

namespace waymark::wire {

struct FetcherOptions {
  // Objects that are kept, some 128 bytes each included; the least recently used go first.
  std::size_t cache_bytes = std::size_t{1} << 28;
  // Bytes of chunks that are asked of the source at a time.
  std::size_t batch_bytes = std::size_t{1} << 22;
  // Some layers of a page are fetched as a range of its bytes, which its crcs vouch for: damage is
  // found, but a source that gives one object under another's name is not. True: chunks are fetched
  // whole, and their digests vouch.
  bool whole_chunks = false;
  // Rows of one call, and the bytes of what it gives: 4 KiB of handle may name any.
  std::int64_t max_rows = std::int64_t{1} << 24;
  std::size_t max_bytes = std::size_t{1} << 32;
};

// What fetching took. Objects include ranges of them.
struct FetchCounts {
  std::uint64_t fetched = 0;        // objects that the source gave
  std::uint64_t fetched_bytes = 0;  // of them
  std::uint64_t hits = 0;           // objects that had been fetched before
  std::uint64_t absent = 0;         // objects that the source did not give
  std::uint64_t damaged = 0;  // objects that are not what they are named by: as good as absent
};

// Where rows could not be had, beside the rows: why.
struct FetchReport {
  FetchCounts counts;
  absl::Status source;  // the first status other than ok that the source gave
};

// Any thread; threads share what they fetched. Two that want an object at the same moment may both
// fetch it.
class Fetcher {
 public:
  // `source` is the caller's and outlives the fetcher.
  explicit Fetcher(PageSource* source, const FetcherOptions& options = {});
  ~Fetcher();
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  // The rows and layers of `part`, in a shape that has those layers; rows are numbered by their
  // position. Waits for the source until `deadline`, and then gives what there is. Rows whose
  // objects could not be had (lost, evicted, damaged, not in time) are missing: capacity; so are
  // all rows before a node that could not be had. `report`, if not null, is set. OutOfRange unless
  // the part lies in the handle's rows and has a layer; InvalidArgument naming what is wrong with
  // the handle; ResourceExhausted for more than max_rows rows, or max_bytes of rows.
  [[nodiscard]] absl::StatusOr<Rows> Fetch(const Handle& handle, const RowsAndLayers& part,
                                           Deadline deadline, FetchReport* report = nullptr);
  // All rows and layers.
  [[nodiscard]] absl::StatusOr<Rows> Fetch(const Handle& handle, Deadline deadline,
                                           FetchReport* report = nullptr);

  // Of all calls.
  [[nodiscard]] FetchCounts GetCounts() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_FETCHER_H_
