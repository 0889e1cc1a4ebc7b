// Stamp: one 32-bit word per row, the whole state of the row. StepBase: the step that stamps are
// relative to, and the version of each step. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_STAMP_H_
#define WAYMARK_BLOCKSTORE_STORE_STAMP_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "blockstore/row_info.h"

// Bits of a relative step. Tests build the store with 12 so that stamps wrap all the time.
#ifndef WAYMARK_STAMP_STEP_BITS
#define WAYMARK_STAMP_STEP_BITS 28
#endif

namespace waymark {

// A step relative to the store's base. 0: no step. 1 (kBeforeBase): a step before the base's
// window.
using RelStep = std::uint32_t;
inline constexpr RelStep kBeforeBase = 1;
inline constexpr RelStep kMaxRelStep = (RelStep{1} << WAYMARK_STAMP_STEP_BITS) - 1;

// Bits 31-30: absent, pending or valid. Bits 29-28: provenance. The others: the step, or the
// reason. The value 0 means never written.
class Stamp {
 public:
  constexpr Stamp() = default;
  constexpr explicit Stamp(std::uint32_t bits) : bits_(bits) {}
  // The row is missing, for `reason`.
  static constexpr Stamp Absent(Reason reason, Provenance how = Provenance::kHere) {
    return Stamp((static_cast<std::uint32_t>(how) << kHowShift) |
                 (static_cast<std::uint32_t>(reason) - 1));
  }
  // `step` has claimed the row; its bytes have not landed yet.
  static constexpr Stamp Pending(RelStep step) { return Stamp(kPendingBit | step); }

  // The word, as a StampCell and a checkpoint hold it.
  [[nodiscard]] constexpr std::uint32_t bits() const { return bits_; }
  // The row's bytes can be read.
  [[nodiscard]] constexpr bool valid() const { return (bits_ & kValidBit) != 0; }
  [[nodiscard]] constexpr bool pending() const { return (bits_ & kPendingBit) != 0; }
  // Valid or pending.
  [[nodiscard]] constexpr bool live() const { return (bits_ & (kValidBit | kPendingBit)) != 0; }
  // Pending and claimed by `step`. Landing checks it before it writes.
  [[nodiscard]] constexpr bool pending_for(RelStep step) const {
    return (bits_ & ~kHowMask) == (kPendingBit | step);
  }
  // REQUIRES: live().
  [[nodiscard]] constexpr RelStep step() const { return bits_ & kMaxRelStep; }
  // REQUIRES: !live().
  [[nodiscard]] constexpr Reason reason() const { return static_cast<Reason>((bits_ & 0xff) + 1); }
  // How the page got the row. Kept when the row becomes missing.
  [[nodiscard]] constexpr Provenance how() const {
    return static_cast<Provenance>((bits_ & kHowMask) >> kHowShift);
  }
  [[nodiscard]] constexpr Stamp WithHow(Provenance how) const {
    return Stamp((bits_ & ~kHowMask) | (static_cast<std::uint32_t>(how) << kHowShift));
  }
  // The stamp of the same row after it landed. REQUIRES: pending().
  [[nodiscard]] constexpr Stamp Landed() const { return Stamp(bits_ ^ (kPendingBit | kValidBit)); }
  // The stamp of the same row when it is missing.
  [[nodiscard]] constexpr Stamp Missing(Reason reason) const { return Absent(reason, how()); }

  friend constexpr bool operator==(Stamp, Stamp) = default;

 private:
  static constexpr std::uint32_t kValidBit = 1u << 31;
  static constexpr std::uint32_t kPendingBit = 1u << 30;
  static constexpr int kHowShift = 28;
  static constexpr std::uint32_t kHowMask = 3u << kHowShift;
  static_assert(WAYMARK_STAMP_STEP_BITS <= kHowShift && WAYMARK_STAMP_STEP_BITS >= 10);

  std::uint32_t bits_ = 0;
};

// Holds a stamp. Written by the engine's thread and the landing thread; read by any thread.
class StampCell {
 public:
  // Acquire: if the stamp is valid, the row's bytes can be read.
  [[nodiscard]] Stamp Load() const { return Stamp(bits_.load(std::memory_order_acquire)); }
  // Engine's thread, for rows that landing cannot be publishing. Release.
  void Store(Stamp stamp) { bits_.store(stamp.bits(), std::memory_order_release); }
  // Replaces `from` by `to`. Returns false and does nothing if the stamp has changed.
  bool Exchange(Stamp from, Stamp to) {
    std::uint32_t expected = from.bits();
    return bits_.compare_exchange_strong(expected, to.bits(), std::memory_order_acq_rel);
  }
  // Sets the provenance, also if the stamp changes meanwhile.
  void MarkHow(Provenance how) {
    Stamp old = Load();
    while (!Exchange(old, old.WithHow(how)))
      old = Load();
  }

 private:
  std::atomic<std::uint32_t> bits_{0};
};
static_assert(sizeof(StampCell) == 4);

// The base of stamps until they wrap; shared with the snapshots that were taken under it. The
// engine's thread appends the run of a version before it claims rows of it; readers look up the
// steps of stamps that they have read.
struct StepBase {
  static constexpr std::uint32_t kMaxRuns = 4096;
  // Steps before the first one of the base that keep their numbers, because late events name them.
  static constexpr RelStep kWindow = 256;
  // Consecutive steps with the same weights.
  struct Run {
    RelStep first;          // first step of the run
    std::uint64_t version;  // of all its steps
  };

  std::uint64_t base =
      std::uint64_t{0} - kWindow - kBeforeBase;  // step = base + relative step, modulo 2^64
  // runs[0, num_runs) are constant; the count is published after the run (release, acquire).
  std::atomic<std::uint32_t> num_runs{0};
  std::unique_ptr<Run[]> runs{new Run[kMaxRuns]};

  // The base in which `step` is the first step after the window.
  [[nodiscard]] static constexpr std::uint64_t Under(std::uint64_t step) {
    return step - kWindow - kBeforeBase - 1;
  }
  // The relative number of a step: kBeforeBase if it is too old, kMaxRelStep if it is too new.
  [[nodiscard]] RelStep Relative(std::uint64_t step) const {
    const auto relative = static_cast<std::int64_t>(step - base);
    if (relative <= std::int64_t{kBeforeBase}) return kBeforeBase;
    return relative > std::int64_t{kMaxRelStep} ? kMaxRelStep : static_cast<RelStep>(relative);
  }
  // The version of a step: tries the last run, then a binary search. REQUIRES: the step was begun
  // under this base.
  [[nodiscard]] std::uint64_t VersionOf(RelStep step) const {
    std::uint32_t high = num_runs.load(std::memory_order_acquire);
    if (high == 0) return 0;
    if (runs[high - 1].first <= step) return runs[high - 1].version;
    std::uint32_t low = 0;
    while (high - low > 1) {
      const std::uint32_t middle = (low + high) / 2;
      (runs[middle].first <= step ? low : high) = middle;
    }
    return runs[low].version;
  }
  // Records that steps from `first` on have `version`. False if there is no room for another run;
  // a new base is then needed. Engine's thread.
  bool Append(RelStep first, std::uint64_t version) {
    const std::uint32_t n = num_runs.load(std::memory_order_relaxed);
    if (n > 0 && runs[n - 1].version == version) return true;
    if (n == kMaxRuns) return false;
    runs[n] = {first, version};
    num_runs.store(n + 1, std::memory_order_release);
    return true;
  }
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STAMP_H_
