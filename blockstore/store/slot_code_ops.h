// The inner loops of SlotEncoder: one table of functions per instruction set (slot_code_plain.cc,
// slot_code_avx2.cc). Internal to blockstore.
//
// A *code* is a slot, NotAsked of a slot, or kPaddingSlot, as T: int32 in most stores, int64 in a
// store of wide slots. Pointers to bytes may be unaligned.
#ifndef WAYMARK_BLOCKSTORE_STORE_SLOT_CODE_OPS_H_
#define WAYMARK_BLOCKSTORE_STORE_SLOT_CODE_OPS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "blockstore/events.h"

namespace waymark::internal {

// Element i of the array of T at `array`.
template <class T>
T LoadAt(const void* array, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::uint8_t*>(array) + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void StoreAt(void* array, std::size_t i, T value) {
  std::memcpy(static_cast<std::uint8_t*>(array) + i * sizeof(T), &value, sizeof(T));
}

// Calls body.operator()<Block, Position>() with the types of the entries of `pairs`. REQUIRES: both
// have 4 or 8 bytes.
template <class Body>
auto WithPairTypes(const PairRows& pairs, const Body& body) {
  const bool narrow = pairs.BytesOfPosition() == sizeof(std::int32_t);
  if (pairs.index_bytes == sizeof(std::int32_t)) {
    return narrow ? body.template operator()<std::int32_t, std::int32_t>()
                  : body.template operator()<std::int32_t, std::int64_t>();
  }
  return narrow ? body.template operator()<std::int64_t, std::int32_t>()
                : body.template operator()<std::int64_t, std::int64_t>();
}

// What the rows of one batch are validated against. blocks * tokens <= num_slots.
struct SlotPlan {
  std::int64_t num_slots = 0;
  std::int64_t num_blocks = 0;  // of `tokens` tokens each
  std::int32_t tokens = 0;      // block_tokens of the pairs or table
  std::int32_t table_end = 0;   // positions of a request's row of the table are below
};

// What the requests of a table add up to.
struct TableSums {
  std::uint64_t rows = 0;  // without padding
  bool one_each = true;    // every request has exactly one row
};

// The codes that can follow `code` in its run: the only one.
template <class T>
T NextCode(T code) {
  using U = std::make_unsigned_t<T>;  // the codes at the ends of T's range are followed by none
  return static_cast<T>(static_cast<U>(code) + U{code >= 0} - U{code < -1});
}
// A predecessor that no code follows.
template <class T>
inline constexpr T kNoCode = std::numeric_limits<T>::min();

template <class T>
struct SlotOps {
  // Rows in the tiles that `find_runs` takes.
  static constexpr std::size_t kTileRows = 256;

  const char* name;  // "plain", "avx2"
  // Writes the codes of `rows` rows to `codes`. Returns false if a row is out of range; the codes
  // are then unspecified. From slots, which are int64:
  bool (*from_slots)(const SlotPlan& plan, const std::uint8_t* slots, std::size_t rows,
                     std::uint8_t* codes);
  // From rows [first, first + rows) of pairs:
  bool (*from_pairs)(const SlotPlan& plan, const PairRows& pairs, std::size_t first,
                     std::size_t rows, std::uint8_t* codes);
  // From the requests of a table that has one row each, whose positions are in range:
  bool (*from_requests)(const SlotPlan& plan, const TableRows& table, std::uint8_t* codes);
  // Adds up the requests of a table. Returns false if one has a negative number of rows or a
  // position out of range.
  bool (*sum_requests)(const SlotPlan& plan, const TableRows& table, TableSums* sums);
  // Sets bit i % 64 of starts[i / 64] where code i does not follow the one before it, and clears
  // it where it does; the code before code 0 is `before`. Returns the number of bits set. At most
  // kTileRows codes.
  std::size_t (*find_runs)(const std::uint8_t* codes, std::size_t rows, T before,
                           std::uint64_t* starts);
};

extern const SlotOps<std::int32_t> kSlotOpsPlain;
extern const SlotOps<std::int64_t> kSlotOpsWide;
#if defined(__x86_64__)
extern const SlotOps<std::int32_t> kSlotOpsAvx2;
#endif

// Those that this machine can run, the slowest first. Static storage; any thread.
[[nodiscard]] std::span<const SlotOps<std::int32_t>* const> SupportedSlotOps();

}  // namespace waymark::internal

#endif  // WAYMARK_BLOCKSTORE_STORE_SLOT_CODE_OPS_H_
