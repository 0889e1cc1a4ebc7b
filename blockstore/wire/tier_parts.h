// The parts of a tier that its two halves share. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_WIRE_TIER_PARTS_H_
#define WAYMARK_BLOCKSTORE_WIRE_TIER_PARTS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "blockstore/digest.h"
#include "blockstore/log.h"
#include "blockstore/mutex.h"
#include "blockstore/wire/page_source.h"
#include "blockstore/wire/tier.h"
#include "blockstore/wire/tier_entry.h"

namespace waymark::wire {

// The names of weights by version, and the spaces of pages that follow from them. Any thread.
class WeightNames {
 public:
  struct Space {
    Digest128 digest;
    bool named = false;  // other processes may know the weights by this name
  };

  // Both must outlive the object.
  WeightNames(const TierCodec& codec, const LogCallback& log) : codec_(codec), log_(log) {}

  // FailedPrecondition if the version has another name. Throws std::bad_alloc.
  absl::Status Name(std::uint64_t version, std::string_view name) {
    const Space space{codec_.Space("named " + std::string(name)), true};
    const MutexLock lock(mutex_);
    Space& known = spaces_[version];
    if (known.named && known.digest != space.digest) {
      return absl::FailedPreconditionError(absl::StrCat("the weights of version ", version,
                                                        " have another name already: pages that "
                                                        "were sealed under it may not be put yet"));
    }
    known = space;
    return absl::OkStatus();
  }
  // Of a version without a name: a space of this process alone, which a warning says once. Keeps an
  // entry for each version. Throws std::bad_alloc.
  [[nodiscard]] Space Of(std::uint64_t version) {
    Space space{codec_.Space(absl::StrCat("of process ", own_, ", ", version))};
    {
      const MutexLock lock(mutex_);
      const auto [known, added] = spaces_.try_emplace(version, space);
      if (!added) return known->second;
    }
    LogOnce(log_, logged_, LogLevel::kWarning, "rows by key are for this process alone",
            absl::NotFoundError(absl::StrCat("the weights of version ", version, " have no name")));
    return space;
  }

 private:
  const TierCodec& codec_;
  const LogCallback& log_;
  const std::string own_ = absl::StrCat(DrawSeed(), " ", DrawSeed());
  std::atomic<bool> logged_{false};
  Mutex mutex_;
  std::map<std::uint64_t, Space> spaces_ ABSL_GUARDED_BY(mutex_);
};

// Adds each counter to `sum`.
inline void AddTo(TierStats& sum, const TierStats& counted) {
#define WAYMARK_ADD(name, meaning) sum.name += counted.name;
  WAYMARK_TIER_COUNTERS(WAYMARK_ADD)
#undef WAYMARK_ADD
}

// Whether a source is called: not for some time after it has failed several times in a row. Of one
// direction; any thread.
class SourceGate {
 public:
  // `options` and `what`, the warning's text, must outlive the object.
  SourceGate(const TierOptions& options, const char* what) : options_(options), what_(what) {}

  [[nodiscard]] bool open() const { return Clock::now() >= opens_.load(); }
  // Of a call of the source: how it ended.
  void Succeeded() { failures_ = 0; }
  // True if this failure closes it.
  bool Failed(const absl::Status& status) {
    if (++failures_ < options_.failures_to_skip || !open()) return false;
    failures_ = 0;
    opens_ = After(options_.skip);
    std::atomic<bool> logged{false};
    LogOnce(options_.log, logged, LogLevel::kWarning, what_, status);
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const TierOptions& options_;
  const char* const what_;
  std::atomic<int> failures_{0};
  std::atomic<Clock::time_point> opens_{Clock::time_point()};
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_TIER_PARTS_H_
