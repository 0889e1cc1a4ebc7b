// Publisher: writes the rows of sequences as objects to a page source and makes a handle for each
// sequence, on a thread of its own. MakeTrajectory: the nodes and the handle of rows without one.
//
// Sequences that share pages share objects: a page is put into the page source once, however many
// sequences contain it, as long as the source still has it.
#ifndef WAYMARK_BLOCKSTORE_WIRE_PUBLISHER_H_
#define WAYMARK_BLOCKSTORE_WIRE_PUBLISHER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/log.h"
#include "blockstore/rows.h"
#include "blockstore/wire/digest_key.h"
#include "blockstore/wire/handle.h"
#include "blockstore/wire/page_source.h"
#include "blockstore/wire/shape_block.h"

namespace waymark::wire {

struct PublisherOptions {
  WireShape shape;    // the shape of all rows that are published, and their encoding
  std::string store;  // the name of the page source in handles: UTF-8, fewer than 2^16 bytes
  // Names the objects and authenticates the handles: only fetchers with the same key accept them.
  // Empty: digests without a key, which find damage and no forgery.
  DigestKey key;
  // How many Publish calls may wait for the publisher's thread; one more is dropped. >= 1.
  std::size_t max_waiting = 256;
  // How many sequences are remembered so that later rows can extend them, one byte per row and a
  // few kB each. The sequence that was published least recently is evicted. 0: none.
  std::size_t max_sequences = 1024;
  // For each Publish: how long all calls of the page source may take together, from the first one.
  std::chrono::nanoseconds source_timeout = std::chrono::seconds(10);
  // CPUs that the publisher's thread ("wm-publish") may run on; empty: as
  // StoreOptions::landing_cpus.
  std::vector<std::int32_t> cpus;
  // Receives, on the publisher's thread and once each: at the first publication that the page
  // source cannot be used (PageSource::Check, warning), its first failure (warning), and the first
  // publication that an exception ended (error).
  LogCallback log = {};
  // Released when the source and the log are not called any more. Null: the caller sees to it.
  std::shared_ptr<void> owner = {};
};

// Every counter of a publisher, once: X(name, what it counts). C and Python have them by these
// names.
#define WAYMARK_PUBLISHER_COUNTERS(X)                                                   \
  X(published, "publications that made a handle")                                       \
  X(incomplete, "of these: a put of their sequence failed, so that readers miss rows")  \
  X(dropped, "publications refused because max_waiting were waiting")                   \
  X(failed, "publications that were accepted and made no handle")                       \
  X(pages, "complete pages that were published")                                        \
  X(objects_held, "objects that the page source already had")                           \
  X(objects_put, "objects put into the page source")                                    \
  X(bytes_put, "bytes of the objects put")                                              \
  X(puts_failed, "failed calls of put and holds: after a failed put readers miss rows") \
  X(exceptions, "caught: of the page source, and those that ended a publication")

// Counters since the publisher was made.
struct PublisherStats {
#define WAYMARK_COUNTER(name, meaning) std::uint64_t name = 0;
  WAYMARK_PUBLISHER_COUNTERS(WAYMARK_COUNTER)
#undef WAYMARK_COUNTER
};

// What Publish makes.
struct Published {
  Handle handle;
  // Not OK: the first put of the sequence that failed, since it was last published from row 0. The
  // handle is right, and its readers miss rows.
  absl::Status put;
};

// Owns one thread, and two more while more than a little is put, of whose memory it keeps up to 48
// MiB. They put the objects of what was published while the next publications are encoded, of
// several in one call if publications wait. All calls may come from any thread.
class Publisher {
 public:
  // `source` must outlive the publisher, or belong to options.owner. Starts the thread.
  // InvalidArgument for a source that is read_only, and naming the option, the rule and the value;
  // errors as WireShape::Validate; ResourceExhausted if there is no memory, or no thread. Does not
  // throw.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Publisher>> Create(
      PageSource* source, const PublisherOptions& options);
  // Waits for the publications in progress, at most 2 * source_timeout. The results of waiting
  // calls become Cancelled. On a thread of its own (in a call of the source, or of the log) it does
  // not wait: the publisher ends when that has returned. In a forked child it does nothing.
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  using Result = std::future<absl::StatusOr<Published>>;

  // Queues rows of a sequence for publication. The result is the handle of rows [0, last()) of the
  // sequence, the earlier rows included. Does not block on the page source or the publisher's
  // thread.
  //
  // `sequence` is a name that the caller chooses. Rows that begin at row 0 replace those that the
  // publisher remembers under it. Other rows must begin where the rows last published under the
  // name ended, and one request must have had the name since the publisher
  // remembers it: if rows from row 0 were fewer than before, or of other steps, it is not
  // known whose rows continue it, and only whole sequences can be published under it. Nothing is
  // remembered under the name "".
  //
  // The result is ready when the objects have been put, or could not be (Published::put). Errors:
  // ResourceExhausted, at once, if max_waiting calls are waiting; InvalidArgument for rows of
  // another shape, ids that the code cannot encode, or rows out of the router's order under an
  // ordered code;
  // FailedPrecondition if the rows do not begin where the sequence ends, or the sequence is no
  // longer remembered, or two requests had its name: publish it from row 0; Cancelled if the
  // publisher was destroyed first; ResourceExhausted or Internal if an exception ended the
  // publication (PublisherStats::exceptions), after which the thread goes on. After an error the
  // sequence is forgotten, except after a ResourceExhausted at once and for a name of two requests.
  // Throws std::bad_alloc, and publishes nothing, if there is no memory for the result itself.
  //
  // In a forked child: FailedPrecondition at once. Results that were not ready before the fork
  // never become ready there.
  //
  // The rows must not change, and must not be null.
  [[nodiscard]] Result Publish(std::string sequence, std::shared_ptr<const Rows> rows);
  [[nodiscard]] Result Publish(std::string sequence, Rows rows) {
    return Publish(std::move(sequence), std::make_shared<const Rows>(std::move(rows)));
  }

  // Forgets what is remembered of `sequence`, a request that ended: the name can go to another
  // request, and no memory is kept for it. It takes its turn after the Publish calls before it,
  // which still continue the sequence; rows that are published after it must begin at row 0.
  // Handles and objects stay as they are. Nothing happens if nothing is remembered under the name.
  // Never refused because calls are waiting; does not block. ResourceExhausted if there is no
  // memory; FailedPrecondition in a forked child. Does not throw.
  [[nodiscard]] absl::Status Forget(std::string sequence);

  // The counters, without the publications in progress. Zeros in a forked child.
  [[nodiscard]] PublisherStats GetStats() const;
  // Whether this process is a forked child of the publisher's.
  [[nodiscard]] bool forked() const;

 private:
  struct Impl;
  explicit Publisher(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// The objects that name rows. A value.
struct Trajectory {
  std::vector<std::vector<std::uint8_t>> nodes;  // the bytes of each node, first to last
  Handle handle;  // equals the handle of a Publisher that was given all rows at once
};

// The trajectory of `rows`, which begin at row 0, without a publisher. A document of the same rows
// and code, written with these nodes and with handle.head as its trajectory (DocumentOptions),
// opens as a FileSource that has every object the handle names. `store` becomes Handle::store. The
// chunks are encoded to compute their digests, and discarded. InvalidArgument unless rows.first is
// 0, CheckRows accepts the rows, and the code can encode them; Unimplemented as
// WireShape::Validate. Any thread.
[[nodiscard]] absl::StatusOr<Trajectory> MakeTrajectory(const Rows& rows, const ChunkCode& code,
                                                        std::string store = {});

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_PUBLISHER_H_
