// The block pool: each rule by a small case. Against a reference model:
// block_allocator_random_test.cc.
#include "adapters/pool/block_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/blockstore/store/counting_new.h"
#include "tests/unit/blockstore/store/reported_events.h"

namespace waymark {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

BlockKey Key(std::uint64_t number) {
  return BlockKey::FromInteger(number);
}
const BlockKey kRoot{};

class BlockAllocatorTest : public ::testing::Test {
 protected:
  BlockAllocatorTest() { Make(8); }

  void Make(std::int32_t num_blocks, bool record = true) {
    last_step_ = 0;
    num_blocks_ = num_blocks;
    StoreOptions options;
    options.flight = record ? &reported_ : nullptr;
    options.shape = {.num_layers = 1, .top_k = 2, .num_experts = 16, .page_tokens = 4};
    options.num_blocks = num_blocks;
    options.landing = Landing::kCaller;
    auto made = BlockAllocator::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    pool_ = *std::move(made);
  }
  std::vector<BlockId> Allocate(std::size_t count) {
    std::vector<BlockId> blocks(count);
    EXPECT_TRUE(pool_->Allocate(blocks));
    return blocks;
  }
  // Blocks with keys first_key, first_key + 1, ..., each behind the one before, sealed by the step
  // that is begun next.
  std::vector<BlockId> Sequence(std::size_t count, std::uint64_t first_key,
                                BlockKey parent = kRoot) {
    std::vector<BlockId> blocks = Allocate(count);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(pool_->Seal(blocks[i], Key(first_key + i), parent).ok());
      parent = Key(first_key + i);
    }
    return blocks;
  }
  std::vector<BlockId> Match(std::vector<std::uint64_t> numbers) {
    std::vector<BlockKey> keys;
    for (const std::uint64_t number : numbers)
      keys.push_back(Key(number));
    std::vector<BlockId> blocks(keys.size());
    blocks.resize(pool_->MatchPrefix(keys, blocks));
    return blocks;
  }
  // The block that a one-key prefix hits; its reference is given back.
  BlockId Find(std::uint64_t number) {
    const std::vector<BlockId> hit = Match({number});
    EXPECT_TRUE(pool_->Release(hit).ok());
    return hit.empty() ? BlockId::Invalid() : hit[0];
  }
  // Begins and lands a step without rows.
  void Step(std::uint64_t step) {
    const StepCode code = pool_->store().BeginStep({.step = step});
    ASSERT_TRUE(code.ok()) << code.ToStatus();
    ASSERT_TRUE(pool_->store().Submit(StepId(step), nullptr).ok());
    while (pool_->store().LandOne()) {
    }
    last_step_ = step;
  }
  void Step() { Step(last_step_ + 1); }
  void ExpectCounts(int free, int cached, int used) {
    EXPECT_EQ(pool_->free_blocks(), free);
    EXPECT_EQ(pool_->cached_blocks(), cached);
    EXPECT_EQ(num_blocks_ - pool_->free_blocks() - pool_->cached_blocks(), used);
  }
  // What was reported to the store since the last call.
  std::vector<std::string> Events() {
    std::vector<std::string> text;
    for (const Event& event : reported_.Take())
      text.push_back(DescribeEvent(event));
    return text;
  }

  std::uint64_t last_step_ = 0;
  std::int32_t num_blocks_ = 0;
  ReportedEvents reported_;  // outlives the store
  std::unique_ptr<BlockAllocator> pool_;
};

TEST_F(BlockAllocatorTest, AllocatesAllOrNone) {
  ExpectCounts(8, 0, 0);
  const std::vector<BlockId> blocks = Allocate(6);
  ExpectCounts(2, 0, 6);
  EXPECT_EQ(reported_.events().size(), 6u);
  EXPECT_EQ(reported_.reports(), 1u) << "one call, one report";
  std::vector<BlockId> more(3, BlockId(77));
  EXPECT_FALSE(pool_->Allocate(more));
  EXPECT_THAT(more, ElementsAre(BlockId(77), BlockId(77), BlockId(77)));
  ExpectCounts(2, 0, 6);
  EXPECT_EQ(reported_.events().size(), 6u);
  EXPECT_TRUE(pool_->Allocate(std::span(more).first(2)));
  EXPECT_TRUE(pool_->Allocate({})) << "none of none";
  ExpectCounts(0, 0, 8);
}

TEST_F(BlockAllocatorTest, ReleasedBlocksWithoutAKeyAreFreeAndTakenFirst) {
  const std::vector<BlockId> blocks = Allocate(3);
  EXPECT_TRUE(pool_->Release(blocks).ok());
  ExpectCounts(8, 0, 0);
  EXPECT_EQ(Allocate(1)[0], blocks[0]) << "the front was freed last";
}

TEST_F(BlockAllocatorTest, EventsTellTheStoreEverythingInOrder) {
  const std::vector<BlockId> blocks = Sequence(2, 10);
  EXPECT_TRUE(pool_->Release(blocks).ok());
  EXPECT_EQ(Match({10, 11, 12}), blocks);
  EXPECT_TRUE(pool_->Retain(std::span(blocks).first(1)).ok());
  EXPECT_EQ(reported_.reports(), 6u) << "one per call";
  EXPECT_THAT(
      Events(),
      ElementsAre("Bind(block 7)", "Bind(block 6)", "Seal(block 7, key 0a00000000000000, step 0)",
                  "Seal(block 6, key 0b00000000000000, step 0)", "Release(block 7)",
                  "Release(block 6)", "Retain(block 7)", "Retain(block 6)", "Retain(block 7)"));
}

TEST_F(BlockAllocatorTest, AMatchedBlockIsNotEvicted) {
  const std::vector<BlockId> blocks = Sequence(2, 10);
  EXPECT_TRUE(pool_->Release(blocks).ok());
  ExpectCounts(6, 2, 0);
  EXPECT_EQ(Match({10, 11}), blocks);
  ExpectCounts(6, 0, 2);
  std::vector<BlockId> all(7);
  EXPECT_FALSE(pool_->Allocate(all));
  for (const BlockId block : Allocate(6)) {
    EXPECT_NE(block, blocks[0]);
    EXPECT_NE(block, blocks[1]);
  }
}

TEST_F(BlockAllocatorTest, LeavesGoBeforeTheirParents) {
  const std::vector<BlockId> blocks = Sequence(4, 10);
  // Released one by one, front first: by last use alone the front would go first.
  for (const BlockId block : blocks)
    EXPECT_TRUE(pool_->Release({&block, 1}).ok());
  Allocate(4);
  for (std::uint64_t left = 4; left-- > 0;) {
    EXPECT_EQ(Allocate(1)[0], blocks[left]);
    EXPECT_EQ(Find(10 + left), BlockId::Invalid());
    if (left > 0) {
      EXPECT_EQ(Find(9 + left), blocks[left - 1]);
    }
  }
  EXPECT_EQ(pool_->evictions(), 4u);
}

TEST_F(BlockAllocatorTest, OfLeavesTheLeastRecentlyUsedGoes) {
  const std::vector<BlockId> a = Sequence(1, 10);
  const std::vector<BlockId> b = Sequence(1, 20);
  const std::vector<BlockId> c = Sequence(1, 30);
  for (const auto& blocks : {a, b, c})
    EXPECT_TRUE(pool_->Release(blocks).ok());
  EXPECT_TRUE(pool_->Release(Match({10})).ok());  // used again
  Allocate(5);
  EXPECT_EQ(Allocate(1), b);
  EXPECT_EQ(Allocate(1), c);
  EXPECT_EQ(Allocate(1), a);
}

TEST_F(BlockAllocatorTest, ReleasingTooOftenIsAnErrorAndReleasesNothing) {
  const std::vector<BlockId> blocks = Allocate(2);
  EXPECT_TRUE(pool_->Retain(std::span(blocks).first(1)).ok());
  Events();
  const BlockId thrice[] = {blocks[0], blocks[1], blocks[0], blocks[0]};
  const absl::Status status = pool_->Release(thrice);
  EXPECT_EQ(status.code(), kFailed);
  EXPECT_THAT(std::string(status.message()), HasSubstr("blocks[3]"));
  EXPECT_THAT(Events(), IsEmpty());
  EXPECT_TRUE(pool_->Release(std::span(thrice).first(3)).ok());
  ExpectCounts(8, 0, 0);
  EXPECT_EQ(pool_->Release(blocks).code(), kFailed);
  const BlockId far[] = {BlockId(8)};
  EXPECT_EQ(pool_->Release(far).code(), kInvalid);
  EXPECT_EQ(pool_->Retain(far).code(), kInvalid);
  ExpectCounts(8, 0, 0);
}

TEST_F(BlockAllocatorTest, OnlyBlocksWithContentAreRetained) {
  const std::vector<BlockId> blocks = Sequence(1, 10);
  EXPECT_TRUE(pool_->Release(blocks).ok());
  EXPECT_TRUE(pool_->Retain(blocks).ok()) << "cached";
  ExpectCounts(7, 0, 1);
  const BlockId free[] = {blocks[0], BlockId(1)};
  const absl::Status status = pool_->Retain(free);
  EXPECT_EQ(status.code(), kFailed);
  EXPECT_THAT(std::string(status.message()), HasSubstr("block 1 is free"));
}

TEST_F(BlockAllocatorTest, TheFirstBlockWithAKeyHits) {
  const std::vector<BlockId> first = Sequence(1, 10);
  const std::vector<BlockId> second = Sequence(1, 10);
  EXPECT_EQ(Find(10), first[0]);
  // Unused, the second is worth nothing beside the first.
  EXPECT_TRUE(pool_->Release(second).ok());
  ExpectCounts(7, 0, 1);
  const std::vector<BlockId> third = Sequence(1, 10);
  EXPECT_TRUE(pool_->Release(first).ok());
  EXPECT_EQ(Find(10), first[0]);
  ExpectCounts(6, 1, 1);
  // When its memory is wanted, the one still in use takes its place.
  Allocate(7);
  EXPECT_EQ(Find(10), third[0]);
}

TEST_F(BlockAllocatorTest, MatchesLeadingKeysOnly) {
  Sequence(3, 10);
  EXPECT_EQ(Match({10, 11}).size(), 2u);
  EXPECT_EQ(Match({10, 99, 12}).size(), 1u);
  EXPECT_THAT(Match({99, 10}), IsEmpty());
  EXPECT_THAT(Match({}), IsEmpty());
  const BlockKey keys[] = {Key(10), kRoot, Key(11)};
  BlockId out[3];
  EXPECT_EQ(pool_->MatchPrefix(keys, out), 1u) << "an empty key hits nothing";
}

// A sliding window releases the front of a sequence that goes on.
TEST_F(BlockAllocatorTest, TheFrontOfARunningSequenceIsTheLastResort) {
  const std::vector<BlockId> blocks = Sequence(4, 10);
  const std::vector<BlockId> other = Sequence(1, 50);
  EXPECT_TRUE(pool_->Release(std::span(blocks).first(2)).ok());
  EXPECT_TRUE(pool_->Release(other).ok());
  Allocate(3);
  EXPECT_EQ(Allocate(1), other) << "a leaf goes first, though it was used later";
  ExpectCounts(0, 2, 6);
  EXPECT_EQ(Allocate(1)[0], blocks[1]) << "the less recently used of the two";
  EXPECT_EQ(Match({10, 11, 12}).size(), 1u) << "nothing behind it can be hit";
}

TEST_F(BlockAllocatorTest, SealsAreChecked) {
  const std::vector<BlockId> blocks = Allocate(2);
  Events();
  EXPECT_EQ(pool_->Seal(BlockId(0), Key(1), kRoot).code(), kFailed) << "free";
  EXPECT_EQ(pool_->Seal(BlockId(8), Key(1), kRoot).code(), kInvalid);
  EXPECT_EQ(pool_->Seal(BlockId(-1), Key(1), kRoot).code(), kInvalid);
  BlockKey long_key = Key(1);
  long_key.size = 33;
  EXPECT_EQ(pool_->Seal(blocks[0], long_key, kRoot).code(), kInvalid);
  EXPECT_EQ(pool_->Seal(blocks[0], Key(1), long_key).code(), kInvalid);
  EXPECT_THAT(Events(), IsEmpty());
  EXPECT_EQ(Find(1), BlockId::Invalid());
  EXPECT_TRUE(pool_->Seal(blocks[0], Key(1), kRoot).ok());
  EXPECT_TRUE(pool_->Seal(blocks[0], Key(1), kRoot).ok());
  EXPECT_EQ(Events().size(), 1u) << "sealing again does nothing";
  EXPECT_EQ(pool_->Seal(blocks[0], Key(2), kRoot).code(), kFailed);
  EXPECT_EQ(Find(2), BlockId::Invalid());
}

TEST_F(BlockAllocatorTest, ASealWithoutAKeyOnlyProtects) {
  const std::vector<BlockId> blocks = Allocate(1);
  Events();
  EXPECT_TRUE(pool_->Seal(blocks[0], kRoot, kRoot).ok());
  EXPECT_THAT(Events(), ElementsAre("Seal(block 7, no key, step 0)"));
  EXPECT_TRUE(pool_->Release(blocks).ok());
  ExpectCounts(8, 0, 0);
}

TEST_F(BlockAllocatorTest, CopiesAreChecked) {
  const std::vector<BlockId> blocks = Allocate(3);
  EXPECT_TRUE(pool_->Seal(blocks[2], Key(1), kRoot).ok());
  Events();
  EXPECT_TRUE(pool_->Copy(blocks[0], blocks[1]).ok());
  EXPECT_TRUE(pool_->Copy(blocks[2], blocks[1], 3).ok());
  EXPECT_THAT(Events(), ElementsAre("Copy(block 7 -> 6, all rows)", "Copy(block 5 -> 6, 3 rows)"));
  EXPECT_EQ(pool_->Copy(blocks[0], blocks[0]).code(), kInvalid);
  EXPECT_EQ(pool_->Copy(blocks[0], blocks[1], 5).code(), kInvalid);
  EXPECT_EQ(pool_->Copy(blocks[0], blocks[1], -2).code(), kInvalid);
  EXPECT_EQ(pool_->Copy(BlockId(1), blocks[1]).code(), kFailed) << "a free src";
  EXPECT_EQ(pool_->Copy(blocks[0], BlockId(1)).code(), kFailed) << "a free destination";
  EXPECT_EQ(pool_->Copy(blocks[0], blocks[2]).code(), kFailed) << "a sealed destination";
  EXPECT_TRUE(pool_->Retain(std::span(blocks).subspan(1, 1)).ok());
  EXPECT_EQ(pool_->Copy(blocks[0], blocks[1]).code(), kFailed) << "a shared destination";
  EXPECT_THAT(Events().size(), 1u);
}

TEST_F(BlockAllocatorTest, ResetEmptiesTheIndex) {
  const std::vector<BlockId> kept = Sequence(2, 10);
  const std::vector<BlockId> gone = Sequence(2, 20);
  EXPECT_TRUE(pool_->Release(gone).ok());
  Events();
  pool_->Reset();
  ExpectCounts(6, 0, 2);
  EXPECT_THAT(Events(), IsEmpty()) << "Reset would take the rows of blocks in use";
  EXPECT_THAT(Match({10}), IsEmpty());
  EXPECT_THAT(Match({20}), IsEmpty());
  // What is in use may be sealed again, under the key it had.
  EXPECT_TRUE(pool_->Seal(kept[0], Key(10), kRoot).ok());
  EXPECT_EQ(Match({10}).size(), 1u);
  EXPECT_TRUE(pool_->Release(kept).ok());
  EXPECT_TRUE(pool_->Release(std::span(kept).first(1)).ok());
  Events();
  pool_->Reset();
  ExpectCounts(8, 0, 0);
  EXPECT_THAT(Events(), ElementsAre("Reset"));
}

TEST_F(BlockAllocatorTest, CreateAnswersTheErrorsOfTheStore) {
  EXPECT_EQ(BlockAllocator::Create(StoreOptions{}).status().code(), kInvalid);
  StoreOptions options = pool_->store().options();
  options.null_blocks = {BlockId(0)};
  EXPECT_EQ(BlockAllocator::Create(options).status().code(), kInvalid);
}

TEST_F(BlockAllocatorTest, NothingAllocatesAfterWarmUp) {
  Make(256, /*record=*/false);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 40; ++i)
    keys.push_back(Key(i));
  std::vector<BlockId> blocks(40);
  std::uint64_t before = 0;
  for (int round = 0; round < 300; ++round) {
    if (round == 50) before = AllocationCount();
    const std::uint64_t family = 100 * static_cast<std::uint64_t>(round % 11);
    for (std::uint64_t i = 0; i < 40; ++i)
      keys[i] = Key(family + i);
    const std::size_t hits = pool_->MatchPrefix(keys, blocks);
    ASSERT_TRUE(pool_->Allocate(std::span(blocks).subspan(hits)));
    for (std::size_t i = hits; i < 40; ++i) {
      ASSERT_TRUE(pool_->Seal(blocks[i], keys[i], i > 0 ? keys[i - 1] : kRoot).ok());
    }
    Step();
    ASSERT_TRUE(pool_->Release(blocks).ok());
  }
  EXPECT_GT(pool_->evictions(), 1000u);
  EXPECT_EQ(AllocationCount() - before, 0u);
}

}  // namespace
}  // namespace waymark
