// Strong ids: integers that do not mix.
//
// A BlockId cannot be passed where a PageId is wanted, nor be made from a bare integer by accident.
// Ids are values: copy them freely, use them from any thread. Inside plain C-layout structs
// (events, step batches) ids travel as bare integers of the same width; `value()` and the explicit
// constructor are the two doors.
#ifndef WAYMARK_BLOCKSTORE_IDS_H_
#define WAYMARK_BLOCKSTORE_IDS_H_

#include <compare>
#include <cstdint>
#include <utility>

namespace waymark {

// An integer of type T that belongs to the name space `Tag`. A default-made id is `kInvalid`.
template <class Tag, class T, T kInvalidValue>
class StrongId {
 public:
  using ValueType = T;
  // The id that names nothing.
  static constexpr StrongId Invalid() { return StrongId(); }

  constexpr StrongId() = default;
  constexpr explicit StrongId(T value) : value_(value) {}

  [[nodiscard]] constexpr T value() const { return value_; }
  [[nodiscard]] constexpr bool valid() const { return value_ != kInvalidValue; }

  friend constexpr bool operator==(StrongId, StrongId) = default;
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

  // Lets Abseil's hash containers take the id as a key.
  template <class H>
  friend H AbslHashValue(H state, StrongId id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  T value_ = kInvalidValue;
};

// The engine's KV block, by its physical number. Negative: a null block, legal in every list.
using BlockId = StrongId<struct BlockTag, std::int32_t, -1>;

// The store's memory for `page_tokens` rows of one block. Never leaves the store, except in
// reports.
using PageId = StrongId<struct PageTag, std::uint32_t, 0xffffffffu>;

// One forward pass, numbered by the engine: increasing, the same on every rank and stage; 0 is no
// step.
using StepId = StrongId<struct StepTag, std::uint64_t, 0>;

// The number of the weights that produced a row. Any value is legal.
using Version = StrongId<struct VersionTag, std::uint64_t, ~std::uint64_t{0}>;

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_IDS_H_
