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

  void Make(std::int32_t num_blocks, std::vector<BlockId> null_blocks = {}, bool record = true) {
    last_step_ = 0;
    StoreOptions options;
    options.flight = record ? &reported_ : nullptr;
    options.shape = {.num_layers = 1, .top_k = 2, .num_experts = 16, .page_tokens = 4};
    options.num_blocks = num_blocks;
    options.null_blocks = std::move(null_blocks);
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
  std::vector<BlockId> Match(std::vector<std::uint64_t> numbers,
                             BlockAllocator::Clip clip = BlockAllocator::Clip::kNo) {
    std::vector<BlockKey> keys;
    for (const std::uint64_t number : numbers)
      keys.push_back(Key(number));
    std::vector<BlockId> blocks(keys.size());
    blocks.resize(pool_->MatchPrefix(keys, blocks, clip));
    return blocks;
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
    EXPECT_EQ(pool_->used_blocks(), used);
  }
  // What was reported to the store since the last call.
  std::vector<std::string> Events() {
    std::vector<std::string> text;
    for (const Event& event : reported_.Take())
      text.push_back(DescribeEvent(event));
    return text;
  }

  std::uint64_t last_step_ = 0;
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

TEST_F(BlockAllocatorTest, NullBlocksAreNeverHandedOutAndLegalInEveryList) {
  Make(4, {BlockId(0), BlockId(3)});
  ExpectCounts(2, 0, 0);
  const std::vector<BlockId> blocks = Allocate(2);
  EXPECT_THAT(blocks, ::testing::UnorderedElementsAre(BlockId(1), BlockId(2)));
  Events();
  const BlockId nulls[] = {BlockId(0), BlockId(-1), BlockId(3)};
  EXPECT_TRUE(pool_->Retain(nulls).ok());
  EXPECT_TRUE(pool_->Release(nulls).ok());
  EXPECT_TRUE(pool_->Seal(BlockId(0), Key(1), kRoot).ok());
  EXPECT_TRUE(pool_->Truncate(BlockId(-5), 0, StepId(1)).ok());
  EXPECT_TRUE(pool_->Copy(blocks[0], BlockId(3)).ok());
  EXPECT_THAT(Events(), IsEmpty());
  EXPECT_THAT(Match({1}), IsEmpty());
  // A null `src` is content too: nothing.
  EXPECT_TRUE(pool_->Copy(BlockId(0), blocks[1]).ok());
  EXPECT_THAT(Events(), ElementsAre("Copy(block 0 -> 2, all rows)"));
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
      ElementsAre("Bind(block 0)", "Bind(block 1)", "Seal(block 0, key 0a00000000000000, step 0)",
                  "Seal(block 1, key 0b00000000000000, step 0)", "Release(block 0)",
                  "Release(block 1)", "Retain(block 0)", "Retain(block 1)", "Retain(block 0)"));
}

TEST_F(BlockAllocatorTest, MatchesLeadingKeysOnly) {
  Sequence(3, 10);
  EXPECT_EQ(Match({10, 11}).size(), 2u);
  EXPECT_EQ(Match({10, 99, 12}).size(), 1u);
  EXPECT_THAT(Match({99, 10}), IsEmpty());
  EXPECT_THAT(Match({}), IsEmpty());
  // Not a prefix: 11 lies behind 10, not at the start, nor behind itself.
  EXPECT_THAT(Match({11, 12}), IsEmpty());
  EXPECT_EQ(Match({10, 12}).size(), 1u);
  const BlockKey keys[] = {Key(10), kRoot, Key(11)};
  BlockId out[3];
  EXPECT_EQ(pool_->MatchPrefix(keys, out), 1u) << "an empty key hits nothing";
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
    EXPECT_EQ(pool_->Find(Key(10 + left)), BlockId::Invalid());
    if (left > 0) {
      EXPECT_EQ(pool_->Find(Key(9 + left)), blocks[left - 1]);
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

// A sliding window releases the front of a sequence that goes on: its memory must not be lost until
// the sequence ends, though the blocks behind it are in use.
TEST_F(BlockAllocatorTest, TheFrontOfARunningSequenceIsTheLastResort) {
  const std::vector<BlockId> blocks = Sequence(4, 10);
  const std::vector<BlockId> other = Sequence(1, 50);
  EXPECT_TRUE(pool_->Release(std::span(blocks).first(2)).ok());
  EXPECT_TRUE(pool_->Release(other).ok());
  Allocate(3);
  EXPECT_EQ(Allocate(1), other) << "a leaf goes first, though it was used later";
  EXPECT_EQ(pool_->Find(Key(13)), blocks[3]);
  ExpectCounts(0, 2, 6);
  Allocate(2);
  ExpectCounts(0, 0, 8);
  for (std::uint64_t key = 10; key < 14; ++key) {
    EXPECT_EQ(pool_->Find(Key(key)), BlockId::Invalid()) << "nobody could hit it any more";
  }
  EXPECT_EQ(pool_->references(blocks[3]), 1);
  EXPECT_TRUE(pool_->Release(std::span(blocks).subspan(2)).ok());
  ExpectCounts(2, 0, 6);
}

TEST_F(BlockAllocatorTest, ReleasingTooOftenIsAnErrorAndReleasesNothing) {
  const std::vector<BlockId> blocks = Allocate(2);
  EXPECT_TRUE(pool_->Retain(std::span(blocks).first(1)).ok());
  Events();
  const BlockId thrice[] = {blocks[0], blocks[1], blocks[0], blocks[0]};
  const absl::Status status = pool_->Release(thrice);
  EXPECT_EQ(status.code(), kFailed);
  EXPECT_THAT(std::string(status.message()), HasSubstr("blocks[3]"));
  EXPECT_EQ(pool_->references(blocks[0]), 2);
  EXPECT_EQ(pool_->references(blocks[1]), 1);
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
  const BlockId free[] = {blocks[0], BlockId(5)};
  const absl::Status status = pool_->Retain(free);
  EXPECT_EQ(status.code(), kFailed);
  EXPECT_THAT(std::string(status.message()), HasSubstr("block 5 is free"));
  EXPECT_EQ(pool_->references(blocks[0]), 1);
}

TEST_F(BlockAllocatorTest, TheFirstBlockWithAKeyHits) {
  const std::vector<BlockId> first = Sequence(1, 10);
  const std::vector<BlockId> second = Sequence(1, 10);
  EXPECT_EQ(pool_->Find(Key(10)), first[0]);
  // Unused, the second is worth nothing beside the first.
  EXPECT_TRUE(pool_->Release(second).ok());
  ExpectCounts(7, 0, 1);
  const std::vector<BlockId> third = Sequence(1, 10);
  EXPECT_TRUE(pool_->Release(first).ok());
  EXPECT_EQ(pool_->Find(Key(10)), first[0]);
  ExpectCounts(6, 1, 1);
  // When its memory is wanted, the one still in use takes its place.
  Allocate(7);
  EXPECT_EQ(pool_->Find(Key(10)), third[0]);
}

// The twin of a cached block keeps the blocks behind it within reach, so it may go before them.
TEST_F(BlockAllocatorTest, ABlockWithATwinInUseIsALeaf) {
  const std::vector<BlockId> first = Sequence(2, 10);
  const std::vector<BlockId> twin = Sequence(1, 10);
  EXPECT_TRUE(pool_->Release(first).ok());
  Allocate(5);
  EXPECT_EQ(Allocate(1)[0], first[1]) << "released with the front, and its end";
  EXPECT_EQ(Allocate(1)[0], first[0]);
  EXPECT_EQ(pool_->Find(Key(10)), twin[0]);

  Make(8);
  const std::vector<BlockId> again = Sequence(2, 10);
  const std::vector<BlockId> again_twin = Sequence(1, 10);
  for (const BlockId block : again)
    EXPECT_TRUE(pool_->Release({&block, 1}).ok());
  Allocate(5);
  EXPECT_EQ(Allocate(1)[0], again[0]) << "older, and its twin is in use";
  EXPECT_EQ(pool_->Find(Key(11)), again[1]);
  EXPECT_THAT(Match({10, 11}), ElementsAre(again_twin[0], again[1]));
}

TEST_F(BlockAllocatorTest, SealsAreChecked) {
  Step(1);
  const std::vector<BlockId> blocks = Allocate(2);
  Events();
  EXPECT_EQ(pool_->Seal(BlockId(5), Key(1), kRoot).code(), kFailed) << "free";
  EXPECT_EQ(pool_->Seal(BlockId(8), Key(1), kRoot).code(), kInvalid);
  BlockKey long_key = Key(1);
  long_key.size = 33;
  EXPECT_EQ(pool_->Seal(blocks[0], long_key, kRoot).code(), kInvalid);
  EXPECT_EQ(pool_->Seal(blocks[0], Key(1), long_key).code(), kInvalid);
  const absl::Status ahead = pool_->Seal(blocks[0], Key(1), kRoot, StepId(2));
  EXPECT_EQ(ahead.code(), kInvalid);
  EXPECT_THAT(std::string(ahead.message()), HasSubstr("last step begun (1)"));
  EXPECT_THAT(std::string(ahead.message()), HasSubstr("it is 2"));
  EXPECT_THAT(Events(), IsEmpty());
  EXPECT_EQ(pool_->Find(Key(1)), BlockId::Invalid());
  EXPECT_TRUE(pool_->Seal(blocks[0], Key(1), kRoot, StepId(1)).ok()) << "a step that was begun";
  EXPECT_TRUE(pool_->Seal(blocks[0], Key(1), kRoot).ok());
  EXPECT_THAT(Events(), ElementsAre("Seal(block 0, key 0100000000000000, step 1)"))
      << "sealing again does nothing";
  EXPECT_EQ(pool_->Seal(blocks[0], Key(2), kRoot).code(), kFailed);
  EXPECT_EQ(pool_->Find(Key(2)), BlockId::Invalid());
}

TEST_F(BlockAllocatorTest, ASealWithoutAKeyOnlyProtects) {
  const std::vector<BlockId> blocks = Allocate(1);
  Events();
  EXPECT_TRUE(pool_->Seal(blocks[0], kRoot, kRoot).ok());
  EXPECT_TRUE(pool_->Seal(blocks[0], kRoot, kRoot).ok());
  EXPECT_THAT(Events(), ElementsAre("Seal(block 0, no key, step 0)"));
  EXPECT_TRUE(pool_->Release(blocks).ok());
  ExpectCounts(8, 0, 0);
}

// Its key would take memory in the cache that no prefix could ever reach.
TEST_F(BlockAllocatorTest, ABlockBehindNothingIsProtectedButDoesNotHit) {
  const std::vector<BlockId> blocks = Allocate(2);
  Events();
  EXPECT_TRUE(pool_->Seal(blocks[1], Key(11), Key(10)).ok());
  EXPECT_THAT(Events().size(), 1u);
  EXPECT_EQ(pool_->Find(Key(11)), BlockId::Invalid());
  EXPECT_TRUE(pool_->Seal(blocks[0], Key(10), kRoot).ok());
  EXPECT_TRUE(pool_->Seal(blocks[1], Key(11), Key(10)).ok()) << "now it can";
  EXPECT_EQ(Match({10, 11}), blocks);
}

TEST_F(BlockAllocatorTest, ATruncatedBlockDoesNotHitNorDoThoseBehindIt) {
  const std::vector<BlockId> blocks = Sequence(3, 10);
  Step(1);
  EXPECT_TRUE(pool_->Truncate(blocks[1], 2, StepId(1)).ok());
  EXPECT_EQ(pool_->Find(Key(10)), blocks[0]);
  EXPECT_EQ(pool_->Find(Key(11)), BlockId::Invalid());
  EXPECT_EQ(pool_->Find(Key(12)), BlockId::Invalid());
  ExpectCounts(5, 0, 3);
  // Filled again, with other tokens.
  EXPECT_TRUE(pool_->Seal(blocks[1], Key(21), Key(10)).ok());
  EXPECT_EQ(Match({10, 21}).size(), 2u);
}

TEST_F(BlockAllocatorTest, TruncationThatTakesNoRowTakesNoSeal) {
  const std::vector<BlockId> blocks = Sequence(1, 10);
  Step(1);
  Events();
  EXPECT_TRUE(pool_->Truncate(blocks[0], 4, StepId(1)).ok());
  EXPECT_THAT(Events(), IsEmpty());
  EXPECT_EQ(pool_->Find(Key(10)), blocks[0]);
  EXPECT_EQ(pool_->Truncate(blocks[0], 5, StepId(1)).code(), kInvalid);
  EXPECT_EQ(pool_->Truncate(blocks[0], -1, StepId(1)).code(), kInvalid);
  EXPECT_EQ(pool_->Truncate(blocks[0], 0, StepId()).code(), kInvalid);
}

// News of a rejection that comes after the block was filled again by a later step.
TEST_F(BlockAllocatorTest, ALaterSealOutlivesLateNews) {
  Step(1);
  const std::vector<BlockId> blocks = Allocate(1);
  Step(3);
  EXPECT_TRUE(pool_->Seal(blocks[0], Key(10), kRoot).ok());
  EXPECT_TRUE(pool_->Truncate(blocks[0], 2, StepId(3)).ok());
  EXPECT_EQ(pool_->Find(Key(10)), blocks[0]);
  EXPECT_TRUE(pool_->Truncate(blocks[0], 2, StepId(7)).ok()) << "the step to come, whatever number";
  EXPECT_EQ(pool_->Find(Key(10)), blocks[0]) << "it fills the block";
  Step(7);
  EXPECT_TRUE(pool_->Truncate(blocks[0], 2, StepId(3)).ok());
  EXPECT_EQ(pool_->Find(Key(10)), blocks[0]);
  EXPECT_TRUE(pool_->Truncate(blocks[0], 2, StepId(7)).ok());
  EXPECT_EQ(pool_->Find(Key(10)), BlockId::Invalid());
}

// A seal that is reported late is that of its step.
TEST_F(BlockAllocatorTest, ASealOfABegunStepIsTruncatedWithThatStep) {
  const std::vector<BlockId> blocks = Allocate(2);
  Step(2);
  Step(3);
  EXPECT_TRUE(pool_->Seal(blocks[0], Key(10), kRoot, StepId(2)).ok());
  EXPECT_TRUE(pool_->Seal(blocks[1], Key(20), kRoot, StepId(3)).ok());
  EXPECT_TRUE(pool_->Truncate(blocks[0], 2, StepId(2)).ok());
  EXPECT_TRUE(pool_->Truncate(blocks[1], 2, StepId(2)).ok());
  EXPECT_EQ(pool_->Find(Key(10)), BlockId::Invalid());
  EXPECT_EQ(pool_->Find(Key(20)), blocks[1]);
}

// News of a rejection that comes after the block has another owner must not take that one's seal.
TEST_F(BlockAllocatorTest, LateNewsDoesNotHarmALaterOwner) {
  Make(1);
  EXPECT_TRUE(pool_->Release(Allocate(1)).ok());
  Step(5);
  const std::vector<BlockId> blocks = Allocate(1);
  EXPECT_TRUE(pool_->Seal(blocks[0], Key(10), kRoot, StepId(5)).ok());
  Step(6);
  Events();
  EXPECT_TRUE(pool_->Truncate(blocks[0], 0, StepId(5)).ok());
  EXPECT_EQ(pool_->Find(Key(10)), blocks[0]);
  EXPECT_THAT(Events(), ElementsAre("Truncate(block 0, from row 0, step 5)"))
      << "the store judges for itself";
}

TEST_F(BlockAllocatorTest, ASharedBlockIsNotTruncated) {
  const std::vector<BlockId> blocks = Sequence(1, 10);
  Step(1);
  EXPECT_EQ(Match({10}).size(), 1u);
  Events();
  const absl::Status status = pool_->Truncate(blocks[0], 1, StepId(1));
  EXPECT_EQ(status.code(), kFailed);
  EXPECT_THAT(std::string(status.message()), HasSubstr("block 0 has 2"));
  EXPECT_THAT(Events(), IsEmpty());
  EXPECT_EQ(pool_->Find(Key(10)), blocks[0]);
}

TEST_F(BlockAllocatorTest, ATruncatedCachedBlockIsFree) {
  const std::vector<BlockId> blocks = Sequence(2, 10);
  EXPECT_TRUE(pool_->Release(blocks).ok());
  Step(1);
  EXPECT_TRUE(pool_->Truncate(blocks[0], 1, StepId(1)).ok());
  ExpectCounts(8, 0, 0);
  EXPECT_THAT(Match({10, 11}), IsEmpty());
}

TEST_F(BlockAllocatorTest, CopiesAreChecked) {
  const std::vector<BlockId> blocks = Allocate(3);
  EXPECT_TRUE(pool_->Seal(blocks[2], Key(1), kRoot).ok());
  Events();
  EXPECT_TRUE(pool_->Copy(blocks[0], blocks[1]).ok());
  EXPECT_TRUE(pool_->Copy(blocks[2], blocks[1], 3).ok());
  EXPECT_THAT(Events(), ElementsAre("Copy(block 0 -> 1, all rows)", "Copy(block 2 -> 1, 3 rows)"));
  EXPECT_EQ(pool_->Copy(blocks[0], blocks[0]).code(), kInvalid);
  EXPECT_EQ(pool_->Copy(blocks[0], blocks[1], 5).code(), kInvalid);
  EXPECT_EQ(pool_->Copy(blocks[0], blocks[1], -2).code(), kInvalid);
  EXPECT_EQ(pool_->Copy(BlockId(7), blocks[1]).code(), kFailed) << "a free src";
  EXPECT_EQ(pool_->Copy(blocks[0], BlockId(7)).code(), kFailed) << "a free destination";
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
}

TEST_F(BlockAllocatorTest, NothingAllocatesAfterWarmUp) {
  Make(256, {}, /*record=*/false);
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
    if (round % 7 == 0) {
      ASSERT_TRUE(pool_->Truncate(blocks[30], 1, StepId(last_step_)).ok());
    }
    ASSERT_TRUE(pool_->Release(blocks).ok());
  }
  EXPECT_GT(pool_->evictions(), 1000u);
  EXPECT_EQ(AllocationCount() - before, 0u);
}

}  // namespace
}  // namespace waymark
