// SlotCode: random batches in all forms, as engines have them and spoiled.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/support/test_seed.h"
#include "tests/unit/blockstore/store/slot_code_reference.h"

namespace waymark {
namespace {

class RandomRows {
 public:
  explicit RandomRows(std::uint64_t seed) : random_(seed) {}

  SlotLimits Limits() {
    constexpr std::int32_t kTokens[] = {1, 4, 12, 16, 64, 784};
    SlotLimits limits;
    limits.block_tokens = kTokens[Below(std::size(kTokens))];
    limits.num_blocks = 1 + static_cast<std::int32_t>(Below(4000));
    if (Below(8) == 0) limits.num_blocks = INT32_MAX / limits.block_tokens - 1;
    if (Below(8) == 0) limits.num_blocks = INT32_MAX - static_cast<std::int32_t>(Below(9));
    limits.max_step_rows = Below(16) == 0 ? static_cast<std::uint32_t>(Below(200)) : 4096;
    return limits;
  }

  Rows Make(const SlotLimits& limits) {
    limits_ = limits;
    rows_ = Rows();
    rows_.form = static_cast<Rows::Form>(Below(2));
    // A divisor of the store's: kernel blocks.
    rows_.block_tokens = limits.block_tokens;
    while (Below(3) == 0 && rows_.block_tokens % 2 == 0)
      rows_.block_tokens /= 2;
    MakeSlots();
    if (rows_.form == Rows::Form::kPairs) MakePairs();
    if (Below(2) == 0) Spoil();
    return rows_;
  }

 private:
  std::uint64_t Below(std::uint64_t limit) { return random_() % limit; }
  std::int64_t Block() {
    return static_cast<std::int64_t>(
        Below(static_cast<std::uint64_t>(limits_.num_slots() / rows_.block_tokens)));
  }

  // Pieces of runs of all kinds; their mean length differs from batch to batch.
  void MakeSlots() {
    const std::size_t size = Below(3) == 0 ? Below(40) : Below(1500);
    const std::uint64_t longest = std::uint64_t{1} << Below(9);
    while (rows_.slots.size() < size) {
      const std::uint64_t kind = Below(8);
      auto slot = static_cast<std::int64_t>(Below(static_cast<std::uint64_t>(limits_.num_slots())));
      for (std::uint64_t n = 1 + Below(longest); n > 0 && rows_.slots.size() < size; --n) {
        if (slot == limits_.num_slots()) slot = 0;
        rows_.slots.push_back(kind == 0 ? kPaddingSlot : kind < 3 ? NotAsked(slot) : slot);
        ++slot;
      }
    }
  }

  void MakePairs() {
    rows_.index_bytes = Below(2) == 0 ? 4 : 8;
    rows_.position_bytes = Below(2) == 0 ? 0 : Below(2) == 0 ? 4 : 8;
    const bool flags = Below(2) == 0;
    for (const std::int64_t slot : rows_.slots) {
      const std::int64_t of = slot < -1 ? NotAsked(slot) : slot;
      const bool padding = slot == kPaddingSlot;
      const std::int64_t block = padding ? Negative() : of / rows_.block_tokens;
      // In int32 the blocks of a wide store do not fit, kernel blocks above all.
      rows_.block_idx.push_back(rows_.index_bytes == 4 ? static_cast<std::int32_t>(block) : block);
      const std::int64_t position = padding ? Negative() : of % rows_.block_tokens;
      rows_.local_position.push_back(NarrowPositions() ? static_cast<std::int32_t>(position)
                                                       : position);
      if (flags) rows_.asked.push_back(slot < -1 ? 0 : static_cast<std::uint8_t>(1 + Below(255)));
    }
    rows_.slots.clear();
  }
  [[nodiscard]] bool NarrowPositions() const {
    return rows_.position_bytes == 4 || (rows_.position_bytes == 0 && rows_.index_bytes == 4);
  }
  std::int64_t Negative() {
    return rows_.index_bytes == 8 && Below(4) == 0 ? INT64_MIN + static_cast<std::int64_t>(Below(9))
                                                   : -1 - static_cast<std::int64_t>(Below(3));
  }

  // Puts one or two numbers out of range, as far as the form allows it.
  void Spoil() {
    for (std::uint64_t times = 1 + Below(2); times > 0; --times) {
      const std::int64_t slots = limits_.num_slots();
      if (!rows_.slots.empty()) {
        const std::int64_t bad[] = {slots,
                                    -2 - slots,
                                    INT64_MAX,
                                    INT64_MIN,
                                    slots | std::int64_t{1} << 40,
                                    std::int64_t{1} << 32};
        rows_.slots[Below(rows_.slots.size())] = bad[Below(std::size(bad))];
      }
      if (!rows_.block_idx.empty()) {
        std::vector<std::int64_t>& values = Below(2) == 0 ? rows_.block_idx : rows_.local_position;
        const std::int64_t bad[] = {slots / rows_.block_tokens, rows_.block_tokens, INT32_MAX, -1,
                                    std::int64_t{1} << 32,      INT64_MAX};
        const bool narrow =
            &values == &rows_.block_idx ? rows_.index_bytes == 4 : NarrowPositions();
        values[Below(values.size())] = bad[Below(narrow ? 4 : std::size(bad))];
        if (narrow) {
          for (std::int64_t& value : values)
            value = static_cast<std::int32_t>(value);
        }
      }
    }
  }

  std::mt19937_64 random_;
  SlotLimits limits_;
  Rows rows_;
};

TEST(SlotCodeRandom, DoesAsTheReferenceDoes) {
  const std::uint64_t seed = TestSeed();
  SCOPED_TRACE("WAYMARK_SEED=" + std::to_string(seed));
  RandomRows random(seed);
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < 6000; ++i) {
    const SlotLimits limits = random.Limits();
    const Rows rows = random.Make(limits);
    ASSERT_NO_FATAL_FAILURE(CheckRows(rows, limits)) << "batch " << i;
    ++(Reference(rows, limits).code.ok() ? accepted : refused);
  }
  // Both kinds were tried.
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace waymark
