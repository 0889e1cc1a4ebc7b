// Strong ids: integers of different kinds that the compiler keeps apart.
//
// A BlockId cannot be passed as a StepId, and no id is made from an integer implicitly: use the
// explicit constructor and `value()`. Ids are values; any thread may use them. Structs of plain C
// layout (events, step batches) hold ids as integers of the same width.
#ifndef WAYMARK_BLOCKSTORE_IDS_H_
#define WAYMARK_BLOCKSTORE_IDS_H_

#include <compare>
#include <cstdint>
#include <utility>

namespace waymark {

// An integer of type T, distinct by `Tag`. A default-constructed id has the value kInvalidValue.
template <class Tag, class T, T kInvalidValue>
class StrongId {
 public:
  using ValueType = T;
  // The id that names no object.
  static constexpr StrongId Invalid() { return StrongId(); }

  constexpr StrongId() = default;
  constexpr explicit StrongId(T value) : value_(value) {}

  [[nodiscard]] constexpr T value() const { return value_; }
  [[nodiscard]] constexpr bool valid() const { return value_ != kInvalidValue; }

  friend constexpr bool operator==(StrongId, StrongId) = default;
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

  // Makes the id a possible key of Abseil's hash containers.
  template <class H>
  friend H AbslHashValue(H state, StrongId id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  T value_ = kInvalidValue;
};

// A KV block of the engine, by its physical number. A negative id is a null block: allowed wherever
// blocks are listed, and without rows.
using BlockId = StrongId<struct BlockTag, std::int32_t, -1>;

// One forward pass, numbered by the engine. Numbers increase and are the same on every rank and
// pipeline stage. 0 names no step.
using StepId = StrongId<struct StepTag, std::uint64_t, 0>;

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_IDS_H_
