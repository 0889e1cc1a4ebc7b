// Publisher: turns rows into objects and a handle, on a thread of its own.
//
// What shares pages shares objects: a page is encoded and hashed once, however many sequences have
// it, and put once, as long as the source holds it.
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
#include "blockstore/rows.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/wire/handle.h"
#include "blockstore/wire/page_source.h"
#include "blockstore/wire/shape_block.h"

namespace waymark::wire {

struct PublisherOptions {
  WireShape shape;    // of all rows that are published
  std::string store;  // what handles name: UTF-8, below 2^16 bytes
  // Rows waiting to be published, and with them the pages they pin; one more is dropped. >= 1.
  std::size_t max_waiting = 256;
  // Pages whose digest is remembered, some 100 bytes each.
  std::size_t max_pages = std::size_t{1} << 17;
  // Sequences that are remembered, a byte a row and some kB each; the one that grew least recently
  // is forgotten. Rows that begin behind row 0 need theirs.
  std::size_t max_sequences = 1024;
  // How long a snapshot may take to become readable, and how long the source may take over it.
  std::chrono::nanoseconds landing_timeout = std::chrono::seconds(10);
  std::chrono::nanoseconds source_timeout = std::chrono::seconds(10);
  // CPUs that the publisher's thread ("wm-publish") may run on; empty = it is not pinned.
  std::vector<std::int32_t> cpus;
};

struct PublisherStats {
  std::uint64_t published = 0;      // handles made
  std::uint64_t dropped = 0;        // not taken: too many were waiting
  std::uint64_t failed = 0;         // taken, and no handle was made
  std::uint64_t pages = 0;          // complete pages of what was published
  std::uint64_t pages_encoded = 0;  // of them: encoded and hashed; the rest was remembered
  std::uint64_t objects_held = 0;   // objects that the source had already
  std::uint64_t objects_put = 0;
  std::uint64_t bytes_put = 0;
  std::uint64_t puts_failed = 0;  // calls of the source, Holds included: readers will miss rows
};

class Publisher {
 public:
  // `source` is the caller's and outlives the publisher. InvalidArgument naming the option; errors
  // as WireShape::Validate.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Publisher>> Create(
      PageSource* source, const PublisherOptions& options);
  // What still waits is Cancelled. Waits for what is being published.
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  using Result = std::future<absl::StatusOr<Handle>>;

  // Publishes rows of a sequence and gives its handle, when it is asked for it: of rows [0,
  // last()). Rows that begin at row 0 are the whole sequence, whatever was known of it; others go
  // on where those of the same `sequence` ended (a Cursor). "" is remembered by nobody. Any thread;
  // never waits for the source, the rows or the publisher's thread.
  //
  // The result is there when the objects have been put. That the source failed is no error: the
  // handle is right, and who fetches misses rows. Errors: ResourceExhausted at once when too many
  // are waiting (counted); DeadlineExceeded when a snapshot was not readable in time;
  // InvalidArgument for another shape, ids that the code does not have, or rows that lost the
  // router's order under an ordered code; FailedPrecondition when the rows do not go on where the
  // sequence ended, or it is remembered no more: publish from row 0; Cancelled. A sequence of which
  // rows failed is forgotten.
  [[nodiscard]] Result Publish(std::string sequence, Snapshot snapshot);
  [[nodiscard]] Result Publish(std::string sequence, Rows rows);

  // Any thread.
  [[nodiscard]] PublisherStats GetStats() const;

 private:
  class Impl;
  explicit Publisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_PUBLISHER_H_
