// TierWriter: puts sealed pages into a tier's page source, on a thread. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_WIRE_TIER_WRITER_H_
#define WAYMARK_BLOCKSTORE_WIRE_TIER_WRITER_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "blockstore/mutex.h"
#include "blockstore/store/seal_sink.h"
#include "blockstore/wire/tier.h"
#include "blockstore/wire/tier_entry.h"
#include "blockstore/wire/tier_parts.h"

namespace waymark::wire {

// Two threads: the one that applies the log gives it pages, and the tier's own puts them. Sealed
// pages wait in a queue of options.max_waiting; what does not fit, is beyond max_bytes, or comes
// while the source is skipped is dropped and counted. A failure of the source is counted, and costs
// other engines rows.
class TierWriter {
 public:
  // The references must outlive the object.
  TierWriter(const TierOptions& options, const TierCodec& codec, WeightNames& names);

  // Copies the page into the queue, or drops it; ignores one with a short key. The thread that
  // applies the log. Throws std::bad_alloc.
  void Add(const SealedPage& page);
  // The thread. Returns after Stop, when the queue is empty.
  void Run();
  // Any thread, once.
  void Stop();
  // Waits until no page waits or is being put. False after `timeout`. Any thread.
  [[nodiscard]] bool WaitPut(std::chrono::nanoseconds timeout) const;
  // Adds its counters to `stats`.
  void AddTo(TierStats& stats) const;

 private:
  struct Sealed {
    TierPage page;
    std::uint64_t version;
    std::vector<std::uint64_t> steps;
    std::vector<std::uint8_t> ids;
  };
  void PutPages();
  // Puts what the source does not have; its status.
  [[nodiscard]] absl::Status PutMissing(std::vector<NamedObject>& entries, TierStats& counted);
  // Whether so many bytes more are within max_bytes; they count then.
  [[nodiscard]] bool TakeBytes(std::size_t bytes);

  const TierOptions& options_;
  const TierCodec& codec_;
  WeightNames& names_;
  SourceGate gate_;
  std::uint64_t publisher_ = 0;

  // Of the thread: what it puts, with room for it; and when bytes that were put count no more.
  std::vector<Sealed> pages_;
  std::deque<std::pair<Deadline, std::size_t>> put_;
  std::uint64_t bytes_ = 0;

  mutable Mutex mutex_;
  mutable std::condition_variable_any changed_;
  std::deque<Sealed> waiting_ ABSL_GUARDED_BY(mutex_);
  std::size_t putting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  TierStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_TIER_WRITER_H_
