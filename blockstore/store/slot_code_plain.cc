// SlotCode for every processor, and for stores of wide slots.
#include "blockstore/store/slot_code_ops.h"

namespace waymark::internal {
namespace {

template <class T>
bool FromSlots(const SlotPlan& plan, const std::uint8_t* slots, std::size_t rows,
               std::uint8_t* codes) {
  bool outside = false;
  for (std::size_t i = 0; i < rows; ++i) {
    const auto slot = LoadAt<std::int64_t>(slots, i);
    outside |= (slot >= plan.num_slots) | (slot < -1 - plan.num_slots);
    StoreAt(codes, i, static_cast<T>(slot));
  }
  return !outside;
}

// The code of the row at `offset` in `block`. Adds to `outside` if there is no such slot.
template <class T>
T Code(const SlotPlan& plan, std::int64_t block, std::int64_t offset, bool asked, bool* outside) {
  if (block < 0) return kPaddingSlot;
  if (block >= plan.num_blocks || offset < 0 || offset >= plan.tokens) {
    *outside = true;
    return kPaddingSlot;
  }
  const std::int64_t slot = block * plan.tokens + offset;
  return static_cast<T>(asked ? slot : NotAsked(slot));
}

template <class T, class Block, class Position>
bool FromPairsOf(const SlotPlan& plan, const PairRows& pairs, std::size_t first, std::size_t rows,
                 std::uint8_t* codes) {
  bool outside = false;
  for (std::size_t i = 0; i < rows; ++i) {
    const std::size_t row = first + i;
    StoreAt(codes, i,
            Code<T>(plan, LoadAt<Block>(pairs.block_idx, row),
                    LoadAt<Position>(pairs.local_position, row),
                    pairs.asked == nullptr || pairs.asked[row] != 0, &outside));
  }
  return !outside;
}

template <class T>
bool FromPairs(const SlotPlan& plan, const PairRows& pairs, std::size_t first, std::size_t rows,
               std::uint8_t* codes) {
  return WithPairTypes(pairs, [&]<class Block, class Position>() {
    return FromPairsOf<T, Block, Position>(plan, pairs, first, rows, codes);
  });
}

template <class T>
bool FromRequests(const SlotPlan& plan, const TableRows& table, std::uint8_t* codes) {
  bool outside = false;
  const auto tokens = static_cast<std::uint32_t>(plan.tokens);
  for (std::size_t r = 0; r < table.num_requests; ++r) {
    const auto position = LoadAt<std::uint32_t>(table.num_computed_tokens, r);
    const std::size_t entry = r * table.table_stride + position / tokens;
    StoreAt(codes, r,
            Code<T>(plan, LoadAt<std::int32_t>(table.block_table, entry), position % tokens,
                    table.asked == nullptr || table.asked[r] != 0, &outside));
  }
  return !outside;
}

bool SumRequests(const SlotPlan& plan, const TableRows& table, TableSums* sums) {
  bool outside = false;
  for (std::size_t r = 0; r < table.num_requests; ++r) {
    const std::int64_t first = LoadAt<std::int32_t>(table.num_computed_tokens, r);
    const std::int64_t rows = LoadAt<std::int32_t>(table.num_scheduled_tokens, r);
    outside |= (rows < 0) | ((rows > 0) & ((first < 0) | (first + rows > plan.table_end)));
    sums->rows += static_cast<std::uint64_t>(rows);
    sums->one_each &= rows == 1;
  }
  return !outside;
}

template <class T>
std::size_t FindRuns(const std::uint8_t* codes, std::size_t rows, T before, std::uint64_t* starts) {
  std::size_t runs = 0;
  for (std::size_t i = 0; i < rows; i += 64) {
    std::uint64_t word = 0;
    for (std::size_t bit = 0; bit < 64 && i + bit < rows; ++bit) {
      const T code = LoadAt<T>(codes, i + bit);
      const bool start = code != NextCode(before);
      word |= std::uint64_t{start} << bit;
      runs += start;
      before = code;
    }
    *starts++ = word;
  }
  return runs;
}

}  // namespace

const SlotOps<std::int32_t> kSlotOpsPlain = {
    "plain",      &FromSlots<std::int32_t>, &FromPairs<std::int32_t>, &FromRequests<std::int32_t>,
    &SumRequests, &FindRuns<std::int32_t>};
const SlotOps<std::int64_t> kSlotOpsWide = {
    "wide",       &FromSlots<std::int64_t>, &FromPairs<std::int64_t>, &FromRequests<std::int64_t>,
    &SumRequests, &FindRuns<std::int64_t>};

}  // namespace waymark::internal
