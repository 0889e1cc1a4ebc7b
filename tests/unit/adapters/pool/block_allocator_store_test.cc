// The block pool and its store together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "adapters/pool/block_allocator.h"

namespace waymark {
namespace {

constexpr std::int32_t kTokens = 4;
BlockKey Key(std::uint64_t number) {
  return BlockKey::FromInteger(number);
}

// Row i of a step: ids first + i and first + i + 1.
class CountingRows final : public StepRows {
 public:
  explicit CountingRows(int first) : first_(first) {}
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      const int id = first_ + static_cast<int>(first + i);
      destinations[i][0] = static_cast<std::uint8_t>(id);
      destinations[i][1] = static_cast<std::uint8_t>(id + 1);
      verdicts[i] = Reason::kNone;
    }
  }
  void Done() override {}

 private:
  int first_;
};

class BlockAllocatorStoreTest : public ::testing::Test {
 protected:
  BlockAllocatorStoreTest() {
    StoreOptions options;
    options.shape = {.num_layers = 1, .top_k = 2, .num_experts = 200, .page_tokens = kTokens};
    options.num_blocks = 4;
    options.landing = Landing::kCaller;
    pool_ = *BlockAllocator::Create(options);
  }
  // A step that computes all rows of `blocks`.
  void Step(std::uint64_t step, const std::vector<BlockId>& blocks, CountingRows* step_rows) {
    std::vector<std::int64_t> slots;
    for (const BlockId block : blocks) {
      for (std::int64_t i = 0; i < kTokens; ++i) {
        slots.push_back(std::int64_t{block.value()} * kTokens + i);
      }
    }
    const StepCode code =
        pool_->store().BeginStep({.step = step, .slots = slots.data(), .num_slots = slots.size()});
    ASSERT_TRUE(code.ok()) << code.ToStatus();
    ASSERT_TRUE(pool_->store().Submit(StepId(step), step_rows).ok());
    ASSERT_TRUE(pool_->store().LandOne());
  }
  // Two blocks with keys 1 and 2, which the step that is begun next fills.
  std::vector<BlockId> Request() {
    std::vector<BlockId> blocks(2);
    EXPECT_TRUE(pool_->Allocate(blocks));
    EXPECT_TRUE(pool_->Seal(blocks[0], Key(1), {}).ok());
    EXPECT_TRUE(pool_->Seal(blocks[1], Key(2), Key(1)).ok());
    return blocks;
  }
  Rows Read(const std::vector<BlockId>& blocks, std::int64_t last) {
    auto rows = pool_->store().TakeSnapshot(blocks, 0, last)->ReadRows();
    EXPECT_TRUE(rows.ok()) << rows.status();
    return *std::move(rows);
  }
  std::vector<BlockId> Match() {
    const BlockKey keys[] = {Key(1), Key(2)};
    std::vector<BlockId> out(2);
    out.resize(pool_->MatchPrefix(keys, out));
    return out;
  }

  std::unique_ptr<BlockAllocator> pool_;
};

TEST_F(BlockAllocatorStoreTest, ASnapshotInTheMiddleOfSchedulingHasNoRowsOfTheLastOwner) {
  CountingRows step_rows(10);
  std::vector<BlockId> blocks(2);
  ASSERT_TRUE(pool_->Allocate(blocks));
  Step(1, blocks, &step_rows);
  const auto finished = pool_->store().TakeSnapshot(blocks, 0, 2 * kTokens);
  ASSERT_TRUE(finished.ok()) << finished.status();
  EXPECT_TRUE(pool_->Release(blocks).ok());
  std::vector<BlockId> again(2);
  ASSERT_TRUE(pool_->Allocate(again));
  ASSERT_THAT(again, ::testing::UnorderedElementsAreArray(blocks));
  for (const RowInfo& info : Read(again, 2 * kTokens).infos)
    EXPECT_EQ(info.reason, Reason::kNeverWritten);
  // The snapshot of the last owner was taken before.
  const auto rows = finished->ReadRows();
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (std::int64_t i = 0; i < rows->size(); ++i)
    EXPECT_EQ(rows->row(i)[0], 10 + i);
}

// More events than the log holds: they are lost, the call takes effect, and no row is wrong.
TEST_F(BlockAllocatorStoreTest, LostEventsLoseRowsAndNothingElse) {
  StoreOptions options = pool_->store().options();
  options.max_step_rows = 2 * kTokens;
  options.log_bytes = 64;
  pool_ = *BlockAllocator::Create(options);
  CountingRows step_rows(10);
  const std::vector<BlockId> blocks = Request();
  Step(1, blocks, &step_rows);
  ASSERT_EQ(pool_->store().CoveredPrefix(blocks, 2 * kTokens), 2 * kTokens);
  const std::vector<BlockId> often(5000, blocks[0]);
  EXPECT_TRUE(pool_->Retain(often).ok());
  EXPECT_EQ(Match(), blocks);
  EXPECT_EQ(pool_->store().CoveredPrefix(blocks, 2 * kTokens), 0);
  for (const RowInfo& info : Read(blocks, 2 * kTokens).infos)
    EXPECT_EQ(info.reason, Reason::kCapacity);
  EXPECT_EQ(pool_->store().GetStats().log_losses, 1u);
  // Rows that are computed again are stored again.
  Step(2, blocks, &step_rows);
  EXPECT_EQ(pool_->store().CoveredPrefix(blocks, 2 * kTokens), 2 * kTokens);
}

}  // namespace
}  // namespace waymark
