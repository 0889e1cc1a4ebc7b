#include "adapters/megatron/megatron_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "blockstore/rows.h"
#include "tests/support/failing_new.h"
#include "tests/unit/blockstore/store/reported_events.h"
#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int32_t kDummy = 31;  // of 32 blocks of 4 tokens

std::vector<BlockId> Ids(const std::vector<int>& blocks) {
  return {blocks.begin(), blocks.end()};
}

class MegatronAdapterTest : public ::testing::Test {
 protected:
  MegatronAdapterTest() : driver_(Options()), adapter_(Made()) {}

  StoreOptions Options() {
    StoreOptions options = StoreDriver::Options();
    options.null_blocks = {BlockId(kDummy)};
    options.flight = &reported_;
    return options;
  }
  MegatronAdapter Made() {
    return MegatronAdapter::Create(&driver_.store(), BlockId(kDummy)).value();
  }

  // The calls, where they must succeed.
  void Allocate(const std::vector<int>& blocks) { Expect(adapter_.Allocate(Ids(blocks))); }
  void Match(const std::vector<int>& blocks) { Expect(adapter_.Match(Ids(blocks))); }
  void Release(const std::vector<int>& blocks) { Expect(adapter_.Release(Ids(blocks))); }
  void Register(const std::vector<int>& blocks, const std::vector<std::int64_t>& hashes) {
    ASSERT_EQ(blocks.size(), hashes.size());
    Expect(adapter_.Register(Ids(blocks), hashes.data()));
  }
  void Checkpoint(std::uint64_t request, const std::vector<int>& blocks, std::int64_t rows) {
    const absl::Status status = adapter_.Checkpoint(request, Ids(blocks), rows);
    ASSERT_TRUE(status.ok()) << status;
  }
  static void Expect(const StepCode& code) { ASSERT_TRUE(code.ok()) << code.ToStatus(); }
  // A step of tokens [from, to) of a sequence in `blocks`, whose rows get numbers from `number` on.
  void Step(const std::vector<int>& blocks, int from, int to, int number,
            std::uint64_t version = 1) {
    blocks_.clear();
    positions_.clear();
    for (int at = from; at < to; ++at) {
      blocks_.push_back(blocks[static_cast<std::size_t>(at / 4)]);
      positions_.push_back(at % 4);
    }
    Land(number, version);
  }
  void Land(int number, std::uint64_t version = 1) {
    ++step_;
    Expect(driver_.store().BeginStep(adapter_.Batch(
        StepId(step_), version, {blocks_.data(), positions_.data(), blocks_.size()})));
    std::vector<int> numbers(blocks_.size());
    std::iota(numbers.begin(), numbers.end(), number);
    driver_.Land(step_, numbers);
  }
  // The rows of the snapshots that are kept of a request, joined.
  std::string Taken(std::uint64_t request, std::size_t snapshots = 1) {
    std::vector<Rows> rows;
    while (std::optional<Snapshot> snapshot = adapter_.Take(request))
      rows.push_back(snapshot->ReadRows().value());
    EXPECT_EQ(rows.size(), snapshots);
    std::vector<const Rows*> reads;
    for (const Rows& one : rows)
      reads.push_back(&one);
    if (reads.empty()) return "";
    return driver_.Show(Join(reads).value());
  }

  ReportedEvents reported_;
  StoreDriver driver_;
  MegatronAdapter adapter_;
  std::uint64_t step_ = 0;
  std::vector<std::int64_t> blocks_;  // of the tokens of a step
  std::vector<std::int32_t> positions_;
};

// ---- hooks

TEST_F(MegatronAdapterTest, EveryHookIsReportedAtOnceAndInOrder) {
  Allocate({5, 6});
  Match({3, 4});
  Register({5}, {-7});
  Release({5, 6, 6});
  Expect(adapter_.Reset());
  EXPECT_THAT(
      reported_.Take(),
      ElementsAre(Bind(5), Bind(6), Retain(3), Retain(4),
                  Event::Seal(BlockId(5), BlockKey::FromInteger(~std::uint64_t{6})),
                  waymark::Release(5), waymark::Release(6), waymark::Release(6), Event::Reset()));
}

TEST_F(MegatronAdapterTest, OtherEventsGoToTheStoreInTheirPlace) {
  Allocate({5});
  const Event copy = Copy(4, 5, 3);
  Expect(driver_.store().Report({&copy, 1}));
  Release({5});
  EXPECT_THAT(reported_.Take(), ElementsAre(Bind(5), copy, waymark::Release(5)));
}

TEST_F(MegatronAdapterTest, NoBlocksAreNothing) {
  Allocate({});
  Match({});
  Release({});
  Register({}, {});
  EXPECT_THAT(reported_.Take(), IsEmpty());
}

TEST_F(MegatronAdapterTest, ManyBlocksGoInSeveralRecords) {
  std::vector<int> blocks;
  for (int i = 0; i < 200; ++i)
    blocks.push_back(i % 30);
  Match(blocks);
  EXPECT_GT(reported_.reports(), 1u);
  const std::vector<Event> events = reported_.Take();
  ASSERT_EQ(events.size(), blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i)
    EXPECT_EQ(events[i], Retain(blocks[i]));
}

TEST_F(MegatronAdapterTest, ARefusedCallReportsNothing) {
  std::vector<int> blocks(150, 1);
  blocks[149] = 32;
  for (const StepCode& code : {adapter_.Allocate(Ids(blocks)), adapter_.Match(Ids(blocks)),
                               adapter_.Release(Ids(blocks))}) {
    EXPECT_EQ(code.rule, StepRule::kBlockOutOfRange);
    EXPECT_EQ(code.index, 149u);
    EXPECT_EQ(code.value, 32);
  }
  const std::vector<std::int64_t> hashes(150, 9);
  EXPECT_EQ(adapter_.Register(Ids(blocks), hashes.data()).index, 149u);
  EXPECT_THAT(reported_.Take(), IsEmpty());
}

TEST_F(MegatronAdapterTest, TheDummyBlockIsANullBlockOfTheStore) {
  EXPECT_THAT(
      std::string(MegatronAdapter::Create(&driver_.store(), BlockId(30)).status().message()),
      HasSubstr("null_blocks; it is 30"));
  EXPECT_FALSE(MegatronAdapter::Create(nullptr, BlockId(kDummy)).ok());
}

// ---- steps

TEST_F(MegatronAdapterTest, AStepTakesTheArraysAsTheyAre) {
  Allocate({5, 6});
  blocks_ = {5, kDummy, 6, -1, 5};
  positions_ = {0, 3, 1, 77, 2};
  Land(10);
  EXPECT_EQ(driver_.Read({5, 6}, 0, 8), "10@1 n 14@1 n n 12@1 n n");
  EXPECT_EQ(driver_.store().GetStats().rows_padding, 2u);
}

TEST_F(MegatronAdapterTest, TokensOfRequestsThatDidNotAskAreNotCaptured) {
  Allocate({5});
  const std::int64_t blocks[] = {5, 5};
  const std::int32_t positions[] = {0, 1};
  const std::uint8_t asked[] = {1, 0};
  Expect(driver_.store().BeginStep(adapter_.Batch(StepId(1), 1, {blocks, positions, 2, asked})));
  driver_.Land(1, {10, 11});
  EXPECT_EQ(driver_.Read({5}, 0, 2), "10@1 N");
}

TEST_F(MegatronAdapterTest, WhatIsWrongWithTheArraysTheBeginSays) {
  const std::int64_t blocks[] = {5, 32};
  const std::int32_t positions[] = {0, 4};
  StepCode code = driver_.store().BeginStep(adapter_.Batch(StepId(1), 1, {blocks, positions, 2}));
  EXPECT_EQ(code.rule, StepRule::kRowBlock);
  code = driver_.store().BeginStep(adapter_.Batch(StepId(1), 1, {blocks, positions + 1, 1}));
  EXPECT_EQ(code.rule, StepRule::kRowOffset);
}

TEST_F(MegatronAdapterTest, AnEmptyStepHasNoRows) {
  Expect(driver_.store().BeginStep(adapter_.Batch(StepId(1), 1, {})));
  driver_.Land(1, {});
  EXPECT_EQ(driver_.store().GetStats().rows_landed, 0u);
}

// ---- sharing

// Registered at admission, before the forwards that fill it: in chunks, over several steps.
TEST_F(MegatronAdapterTest, AChunkedPromptIsProtectedWhenItIsWritten) {
  Allocate({5, 6});
  Register({5, 6}, {50, 60});
  Step({5, 6}, 0, 3, 10);
  Step({5, 6}, 3, 8, 13);
  // A prompt that is fully cached computes its last block once more: the rows stay.
  Match({5, 6});
  Step({5, 6}, 4, 8, 90);
  EXPECT_EQ(driver_.Read({5, 6}, 0, 8), "10@1 11@1 12@1 13@2 ~14@2 ~15@2 ~16@2 ~17@2");
}

TEST_F(MegatronAdapterTest, WithoutItsHashASharedBlockIsWrittenOver) {
  Allocate({5});
  Step({5}, 0, 4, 10);
  Step({5}, 0, 4, 90);
  EXPECT_EQ(driver_.Read({5}, 0, 4), "90@2 91@2 92@2 93@2");
}

TEST_F(MegatronAdapterTest, ABlockThatIsRegisteredTwiceStaysProtectedFromItsFirstStepOn) {
  Allocate({5});
  Register({5}, {50});
  Step({5}, 0, 4, 10);
  Match({5});
  Register({5}, {50});
  Step({5}, 0, 4, 90);
  EXPECT_EQ(driver_.Read({5}, 0, 4), "~10@1 ~11@1 ~12@1 ~13@1");
}

TEST_F(MegatronAdapterTest, SeveralOwnersReleaseABlockInOneCall) {
  Allocate({5});
  Match({5});
  Match({5});
  Release({5, 5, 5});
  EXPECT_EQ(driver_.store().GetStats().releases_below_zero, 0u);
  Release({5});
  EXPECT_EQ(driver_.store().GetStats().releases_below_zero, 1u);
}

// ---- requests

// One block: the request finishes in the step in which another one takes it.
TEST_F(MegatronAdapterTest, ABlockThatIsTakenAgainInTheSameStepIsReadFirst) {
  Allocate({5});
  Step({5}, 0, 3, 10);
  Checkpoint(1, {5, -1, 99}, 3);  // entries behind the rows may be anything
  Release({5});
  Allocate({5});
  Step({5}, 0, 2, 90);
  EXPECT_EQ(Taken(1), "10@1 11@1 12@1");
  EXPECT_EQ(driver_.Read({5}, 0, 3), "90@2 91@2 n");
}

TEST_F(MegatronAdapterTest, RowsBeforeAnEvictionAreInFrontOfThoseBehindIt) {
  Allocate({5, 6});
  Step({5, 6}, 0, 6, 10);
  Checkpoint(1, {5, 6}, 6);
  Release({5, 6});
  // The same tokens once more, routed otherwise, and two more.
  Allocate({8, 9});
  Step({8, 9}, 0, 8, 20);
  Checkpoint(1, {8, 9}, 8);
  Release({8, 9});
  EXPECT_EQ(adapter_.num_requests(), 1u);
  EXPECT_EQ(Taken(1, 2), "10@1 11@1 12@1 13@1 14@1 15@1 26@2 27@2");
  EXPECT_EQ(adapter_.num_requests(), 0u);
  EXPECT_FALSE(adapter_.Take(1).has_value());
}

TEST_F(MegatronAdapterTest, RowsOfOlderWeightsStayWhatTheyWere) {
  Allocate({5});
  Register({5}, {50});
  Step({5}, 0, 4, 10);
  Checkpoint(1, {5}, 4);  // the weights change
  Step({5}, 0, 4, 90, /*version=*/2);
  Checkpoint(1, {5}, 4);
  EXPECT_EQ(driver_.Read({5}, 0, 4), "90@2 91@2 92@2 93@2");
  EXPECT_EQ(Taken(1, 2), "10@1 11@1 12@1 13@1");
}

TEST_F(MegatronAdapterTest, SnapshotsOutliveAReset) {
  Allocate({5});
  Step({5}, 0, 3, 10);
  Checkpoint(1, {5}, 3);
  Expect(adapter_.Reset());
  EXPECT_EQ(driver_.Read({5}, 0, 3), "c c c");
  EXPECT_EQ(Taken(1), "10@1 11@1 12@1");
}

TEST_F(MegatronAdapterTest, ARequestThatIsForgottenHasNoSnapshots) {
  Allocate({5});
  Step({5}, 0, 3, 10);
  Checkpoint(1, {5}, 3);
  Checkpoint(2, {5}, 2);
  adapter_.Forget(1);
  adapter_.Forget(7);
  EXPECT_FALSE(adapter_.Take(1).has_value());
  EXPECT_EQ(Taken(2), "10@1 11@1");
}

TEST_F(MegatronAdapterTest, ACheckpointOutOfRangeIsRefusedAndKeepsNothing) {
  const auto refused = [&](const std::vector<int>& blocks, std::int64_t rows) {
    const absl::Status status = adapter_.Checkpoint(1, Ids(blocks), rows);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(adapter_.num_requests(), 0u);
  };
  refused({5}, 5);
  refused({5}, -1);
  refused({5}, INT64_MIN);
  refused({5}, INT64_MAX);
  refused({32}, 4);
  Checkpoint(1, {}, 0);  // an empty request
  EXPECT_EQ(adapter_.Take(1)->last(), 0);
}

// ---- memory

// A store whose log is applied later, so that what allocates is the adapter.
class MegatronMemoryTest : public MegatronAdapterTest {
 protected:
  MegatronMemoryTest() {
    StoreOptions options = Options();
    options.flight = nullptr;
    options.landing = Landing::kManual;
    store_ = RoutingStore::Create(options).value();
    adapter_ = MegatronAdapter::Create(store_.get(), BlockId(kDummy)).value();
  }
  ~MegatronMemoryTest() override { adapter_ = Made(); }  // no snapshot of store_ is left

  std::unique_ptr<RoutingStore> store_;
};

TEST_F(MegatronMemoryTest, HooksAndStepsAllocateNothing) {
  const std::vector<BlockId> blocks = Ids({1, 2, 3});
  const std::vector<std::int64_t> hashes = {1, 2, 3};
  const std::int64_t rows[] = {1, 2};
  const std::int32_t positions[] = {0, 1};
  const auto once = [&] {
    bool ok = adapter_.Allocate(blocks).ok() && adapter_.Match(blocks).ok() &&
              adapter_.Register(blocks, hashes.data()).ok();
    const StepBatch batch = adapter_.Batch(StepId(++step_), 1, {rows, positions, 2});
    ok = ok && batch.pairs != nullptr && adapter_.Release(blocks).ok();
    return ok && adapter_.Reset().ok();
  };
  ASSERT_TRUE(once());
  FailAllocation(0);
  ASSERT_TRUE(once());
  EXPECT_EQ(AllocationsSeen(), 0u);
}

// Regression test: absl::flat_hash_map is not what it was when its growth finds no memory.
TEST_F(MegatronMemoryTest, WithoutMemoryACheckpointIsRefusedAndOthersStay) {
  constexpr std::uint64_t kRequests = 200;  // containers grow several times
  const std::vector<BlockId> blocks = Ids({5});
  for (std::uint64_t request = 0; request < kRequests; ++request) {
    for (std::uint64_t n = 1;; ++n) {
      FailAllocation(n);
      const absl::Status status = adapter_.Checkpoint(request / 2, blocks, 1 + request % 2);
      FailAllocation(0);
      if (status.ok()) break;
      ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
      ASSERT_EQ(adapter_.num_requests(), (request + 1) / 2);
      ASSERT_LT(n, 20u);
    }
    while (store_->Apply(100) > 0) {
    }
  }
  for (std::uint64_t request = 0; request < kRequests / 2; ++request) {
    for (std::int64_t last = 1; last <= 2; ++last) {
      const std::optional<Snapshot> snapshot = adapter_.Take(request);
      ASSERT_TRUE(snapshot.has_value()) << request;
      EXPECT_EQ(snapshot->last(), last) << request;
    }
    EXPECT_FALSE(adapter_.Take(request).has_value());
  }
}

}  // namespace
}  // namespace waymark
