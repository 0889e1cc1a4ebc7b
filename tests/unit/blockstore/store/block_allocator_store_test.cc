// The block pool and its store together: what hits has its rows, and a hit can be clipped to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "blockstore/store/block_allocator.h"

namespace waymark {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
  // A step that computes all rows of `blocks`; not landed when `step_rows` is null.
  void Step(std::uint64_t step, const std::vector<BlockId>& blocks, CountingRows* step_rows) {
    std::vector<std::int64_t> slots;
    for (const BlockId block : blocks) {
      for (std::int64_t i = 0; i < kTokens; ++i) {
        slots.push_back(std::int64_t{block.value()} * kTokens + i);
      }
    }
    StepBatch batch;
    batch.step = step;
    batch.events = pool_->pending_events().data();
    batch.num_events = pool_->pending_events().size();
    batch.slots = slots.data();
    batch.num_slots = slots.size();
    const StepCode code = pool_->store().BeginStep(batch);
    ASSERT_TRUE(code.ok()) << code.ToStatus();
    pool_->ClearEvents();
    if (step_rows == nullptr) return;
    ASSERT_TRUE(pool_->store().Submit(StepId(step), step_rows).ok());
    ASSERT_TRUE(pool_->store().LandOne());
  }
  std::vector<BlockId> Request(std::uint64_t step) {
    std::vector<BlockId> blocks(2);
    EXPECT_TRUE(pool_->Allocate(blocks));
    EXPECT_TRUE(pool_->Seal(blocks[0], Key(1), {}, StepId(step)).ok());
    EXPECT_TRUE(pool_->Seal(blocks[1], Key(2), Key(1), StepId(step)).ok());
    return blocks;
  }
  std::vector<BlockId> Match(BlockAllocator::Clip clip) {
    const BlockKey keys[] = {Key(1), Key(2), Key(3)};
    std::vector<BlockId> out(3);
    out.resize(pool_->MatchPrefix(keys, out, clip));
    return out;
  }

  std::unique_ptr<BlockAllocator> pool_;
};

TEST_F(BlockAllocatorStoreTest, AHitHasTheRowsOfTheRequestThatComputedIt) {
  CountingRows step_rows(10);
  const std::vector<BlockId> blocks = Request(1);
  Step(1, blocks, &step_rows);
  EXPECT_TRUE(pool_->Release(blocks).ok());
  CountingRows other(100);
  std::vector<BlockId> neighbour(1);
  ASSERT_TRUE(pool_->Allocate(neighbour));
  Step(2, neighbour, &other);

  const std::vector<BlockId> hit = Match(BlockAllocator::Clip::kToCovered);
  ASSERT_EQ(hit, blocks);
  Step(3, {}, &other);
  const auto snapshot = pool_->store().TakeSnapshot(hit, 0, 2 * kTokens);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  const auto rows = snapshot->ReadRows();
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (std::int64_t i = 0; i < rows->size(); ++i) {
    EXPECT_TRUE(rows->infos[static_cast<std::size_t>(i)].valid());
    EXPECT_EQ(rows->row(i)[0], 10 + i);
  }
}

TEST_F(BlockAllocatorStoreTest, EvictedMemoryDoesNotShowItsOldRows) {
  CountingRows step_rows(10);
  const std::vector<BlockId> blocks = Request(1);
  Step(1, blocks, &step_rows);
  EXPECT_TRUE(pool_->Release(blocks).ok());
  std::vector<BlockId> all(4);
  ASSERT_TRUE(pool_->Allocate(all));
  EXPECT_EQ(pool_->evictions(), 2u);
  Step(2, {}, &step_rows);
  EXPECT_EQ(pool_->store().CoveredPrefix(all, 4 * kTokens), 0);
  const auto rows = pool_->store().TakeSnapshot(all, 0, 4 * kTokens)->ReadRows();
  ASSERT_TRUE(rows.ok());
  for (const RowInfo& info : rows->infos)
    EXPECT_EQ(info.reason, Reason::kNeverWritten);
}

TEST_F(BlockAllocatorStoreTest, HitsAreClippedToRowsThatTheStoreHas) {
  const std::vector<BlockId> blocks = Request(1);
  // Bound in this very step: the store has not heard of it.
  EXPECT_THAT(Match(BlockAllocator::Clip::kToCovered), IsEmpty());
  Step(1, blocks, nullptr);
  EXPECT_EQ(Match(BlockAllocator::Clip::kToCovered), blocks) << "pending rows count";
  // One row of the second block is lost: the first block hits, the second has KV only.
  EXPECT_TRUE(pool_->Release(blocks).ok());
  EXPECT_TRUE(pool_->Release(blocks).ok());
  EXPECT_TRUE(pool_->store().Drop(StepId(1)).ok());
  EXPECT_THAT(Match(BlockAllocator::Clip::kToCovered), IsEmpty());
  EXPECT_EQ(Match(BlockAllocator::Clip::kNo), blocks);
  CountingRows step_rows(10);
  Step(2, {blocks[0]}, &step_rows);
  EXPECT_THAT(Match(BlockAllocator::Clip::kToCovered), ElementsAre(blocks[0]));
}

// A block id that is bound again in the coming step still has its old rows in the store.
TEST_F(BlockAllocatorStoreTest, RowsOfABlocksFormerLifeDoNotCount) {
  CountingRows step_rows(10);
  std::vector<BlockId> blocks(2);
  ASSERT_TRUE(pool_->Allocate(blocks));
  Step(1, blocks, &step_rows);
  EXPECT_TRUE(pool_->Release(blocks).ok());
  const std::vector<BlockId> again = Request(2);
  EXPECT_THAT(again, ::testing::UnorderedElementsAreArray(blocks));
  EXPECT_THAT(Match(BlockAllocator::Clip::kToCovered), IsEmpty());
  EXPECT_EQ(Match(BlockAllocator::Clip::kNo), again);
}

}  // namespace
}  // namespace waymark
