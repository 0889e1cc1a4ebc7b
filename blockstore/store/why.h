// Why: the reason of missing rows and the cause of *capacity*, as one number of five bits. Internal
// to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_WHY_H_
#define WAYMARK_BLOCKSTORE_STORE_WHY_H_

#include <cstdint>

#include "blockstore/row_info.h"

namespace waymark {

// 0 ... 6: reasons 1 ... 7; 7: no reason, the row is valid; 7 + c: capacity, cause c. Converts from
// a reason, and from a cause of capacity: Detach(e, Cause::kEvicted). A value of one byte, plain
// data: stamps, table entries and pinned pages hold it, and checkpoints as it is in memory. Any
// thread.
class Why {
 public:
  static constexpr std::uint8_t kValid = 7;
  static constexpr std::uint8_t kCodes = kValid + kNumCauses;  // codes below it have a meaning

  constexpr Why() = default;  // never written
  // REQUIRES: reason < kNumStoreReasons. *Capacity* has no cause then.
  constexpr Why(Reason reason)  // NOLINT(google-explicit-constructor)
      : code_(reason == Reason::kNone ? kValid : static_cast<std::uint8_t>(reason) - 1) {}
  // *Capacity*. REQUIRES: cause < kNumCauses.
  constexpr Why(Cause cause)  // NOLINT(google-explicit-constructor)
      : code_(cause == Cause::kNone ? Why(Reason::kCapacity).code()
                                    : kValid + static_cast<std::uint8_t>(cause)) {}
  // Of any five bits; those from outside have a meaning if they are below kCodes.
  static constexpr Why FromCode(std::uint8_t code) {
    Why why;
    why.code_ = code;
    return why;
  }

  // The five bits.
  [[nodiscard]] constexpr std::uint8_t code() const { return code_; }
  // Whether the row is valid.
  [[nodiscard]] constexpr bool valid() const { return code_ == kValid; }
  // kNone if the row is valid.
  [[nodiscard]] constexpr Reason reason() const {
    if (valid()) return Reason::kNone;
    return code_ > kValid ? Reason::kCapacity : static_cast<Reason>(code_ + 1);
  }
  // kNone if the reason is another one than *capacity*, or has no cause.
  [[nodiscard]] constexpr Cause cause() const {
    return code_ > kValid ? static_cast<Cause>(code_ - kValid) : Cause::kNone;
  }
  friend constexpr bool operator==(Why, Why) = default;

 private:
  std::uint8_t code_ = 0;
};
static_assert(sizeof(Why) == 1 && Why::kCodes <= 32 && kNumStoreReasons == 8);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_WHY_H_
