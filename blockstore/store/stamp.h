// Stamp: one 64-bit word a row, the whole state of the row. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_STAMP_H_
#define WAYMARK_BLOCKSTORE_STORE_STAMP_H_

#include <atomic>
#include <cstdint>

#include "blockstore/row_info.h"
#include "blockstore/store/why.h"

namespace waymark {

// Bits of a step's number; steps are below 2^56.
inline constexpr int kStepBits = 56;

// Bits 0-55: the step that wrote the row; 0: none. Bits 56-60: why it is missing, or that it is
// valid. Bits 61-62: provenance. Bit 63: its request asked for routing. The value 0 means never
// written.
class Stamp {
 public:
  constexpr Stamp() = default;
  constexpr explicit Stamp(std::uint64_t bits) : bits_(bits) {}
  // `step` wrote the row, for a request that asked, and its bytes can be read.
  static constexpr Stamp Valid(std::uint64_t step) {
    return Missing(Why(Reason::kNone), step, true);
  }
  // The row is missing. `step`: that wrote it; 0: none did. `asked`: its request did.
  static constexpr Stamp Missing(Why why, std::uint64_t step = 0, bool asked = false) {
    return Stamp(step | std::uint64_t{why.code()} << kWhyShift | (asked ? kAskedBit : 0));
  }

  // The word, as a StampCell and a checkpoint hold it.
  [[nodiscard]] constexpr std::uint64_t bits() const { return bits_; }
  // The row's bytes can be read.
  [[nodiscard]] constexpr bool valid() const { return why().valid(); }
  // The step that wrote the row, whether or not it is missing; 0: none.
  [[nodiscard]] constexpr std::uint64_t step() const { return bits_ & kStepMask; }
  // Why the row is missing, or that it is valid.
  [[nodiscard]] constexpr Why why() const { return Why::FromCode((bits_ >> kWhyShift) & 31); }
  // It was written for a request that asked for routing, whatever its ids said.
  [[nodiscard]] constexpr bool asked() const { return (bits_ & kAskedBit) != 0; }
  // How the page got the row. Kept when the row becomes missing.
  [[nodiscard]] constexpr Provenance how() const {
    return static_cast<Provenance>((bits_ >> kHowShift) & 3);
  }
  [[nodiscard]] constexpr Stamp WithHow(Provenance how) const {
    return Stamp((bits_ & ~kHowMask) | (static_cast<std::uint64_t>(how) << kHowShift));
  }
  // The stamp of the same row when it is missing.
  [[nodiscard]] constexpr Stamp WithReason(Why why) const {
    return Missing(why, step(), asked()).WithHow(how());
  }
  // Whether bits from outside are a stamp.
  [[nodiscard]] constexpr bool well_formed() const {
    return valid() ? asked() && step() != 0 : why().code() < Why::kCodes;
  }

  friend constexpr bool operator==(Stamp, Stamp) = default;

 private:
  static constexpr std::uint64_t kStepMask = (std::uint64_t{1} << kStepBits) - 1;
  static constexpr int kWhyShift = kStepBits;
  static constexpr int kHowShift = kWhyShift + 5;
  static constexpr std::uint64_t kHowMask = std::uint64_t{3} << kHowShift;
  static constexpr std::uint64_t kAskedBit = std::uint64_t{1} << (kHowShift + 2);

  std::uint64_t bits_ = 0;
};

// Holds a stamp. Written by the thread that applies the log; read by any thread.
class StampCell {
 public:
  // Acquire: if the stamp is valid, the row's bytes can be read.
  [[nodiscard]] Stamp Load() const { return Stamp(bits_.load(std::memory_order_acquire)); }
  // Release: behind the row's bytes.
  void Store(Stamp stamp) { bits_.store(stamp.bits(), std::memory_order_release); }

 private:
  std::atomic<std::uint64_t> bits_{0};
};
static_assert(sizeof(StampCell) == 8);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STAMP_H_
