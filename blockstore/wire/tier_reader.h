// TierReader: asks a tier's page source for the rows of reads. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_WIRE_TIER_READER_H_
#define WAYMARK_BLOCKSTORE_WIRE_TIER_READER_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <list>
#include <memory>
#include <vector>

#include "blockstore/mutex.h"
#include "blockstore/rows.h"
#include "blockstore/wire/tier.h"
#include "blockstore/wire/tier_entry.h"
#include "blockstore/wire/tier_parts.h"

namespace waymark::wire {

class TierReader {
 public:
  // The references must outlive the object.
  TierReader(const TierOptions& options, const TierCodec& codec, WeightNames& names);

  // Sets rows.names.
  void NamePages(Rows& rows, const TierKeys& keys) const;
  void Resolve(std::shared_ptr<Rows> rows, std::shared_ptr<const TierCodec> codec,
               std::int32_t first_layer, Deadline deadline, Tier::Done done);
  // The thread that calls the source, and the one that ends what is late: at Stop all that waits.
  // Both then return.
  void RunGets();
  void RunLate();
  void Stop();
  // Adds its counters to `stats`.
  void AddTo(TierStats& stats) const;

 private:
  // A page of which rows are missing.
  struct Wanted {
    PageName page;
    bool found = false;
    bool ended = false;  // it is not asked for again
    int asks = 0;
    Cause cause = Cause::kSkipped;  // what the last call said; this one: none has
  };
  // The rows of one Resolve.
  struct Reading {
    std::shared_ptr<Rows> rows;
    std::shared_ptr<const TierCodec> codec;
    std::int32_t first_layer = 0;
    Tier::Done done;
    std::vector<Wanted> wanted;
    std::size_t left = 0;  // of them: not ended
    Deadline deadline;
    Deadline next;  // when they are asked for again
    std::chrono::nanoseconds pause = std::chrono::nanoseconds::zero();
    bool finished = false;  // nothing may change its rows any more
  };
  using Readings = std::list<std::shared_ptr<Reading>>;
  // A page that is being asked for.
  struct Asked {
    std::shared_ptr<Reading> reading;
    std::size_t wanted = 0;
  };

  // `lost`: PageName::lost.
  [[nodiscard]] static bool IsAskedFor(const RowInfo& info, bool lost);
  // Whether one of rows [begin, end) is, by position.
  [[nodiscard]] static bool AsksForRows(const Rows& rows, std::int64_t begin, std::int64_t end,
                                        bool lost);
  // One turn of RunGets and of RunLate. False: there is no more. Throw std::bad_alloc.
  [[nodiscard]] bool GetOnce();
  [[nodiscard]] bool EndLate();
  // Calls the source for pages of readings, without the lock.
  void Get(const std::vector<Asked>& asked, Deadline deadline);
  // What came for a page.
  void Take(Reading& reading, Wanted& wanted, const Object& object, const absl::Status& status);
  void FillRows(Reading& reading, const PageName& page, std::span<const std::uint64_t> steps,
                std::span<const std::uint8_t> ids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the rows that did not come their causes, and all rows to those who wait for them. The
  // reading is in no list any more.
  void Finish(Reading& reading);

  const TierOptions& options_;
  const TierCodec& codec_;  // of the pages that are named
  WeightNames& names_;
  SourceGate gate_;

  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  Readings readings_ ABSL_GUARDED_BY(mutex_);
  Deadline call_ends_ ABSL_GUARDED_BY(mutex_) = Deadline::max();  // of the call in progress
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  TierStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_TIER_READER_H_
