#include "adapters/vllm/vllm_scheduler.h"
#include "tests/support/schedule_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace waymark {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int32_t kBlocks = 64;
constexpr std::int32_t kTokens = 4;  // of a block

std::vector<BlockId> Blocks(std::initializer_list<std::int32_t> ids) {
  return {ids.begin(), ids.end()};
}

// The key of hash block i of the sequence with this name: its name, and i.
BlockKey Key(char name, std::int64_t i) {
  return BlockKey::FromInteger(static_cast<std::uint64_t>(name) * 1000 +
                               static_cast<std::uint64_t>(i));
}
std::vector<BlockKey> Keys(char name, std::int64_t count, std::int64_t first = 0) {
  std::vector<BlockKey> keys;
  for (std::int64_t i = first; i < count; ++i)
    keys.push_back(Key(name, i));
  return keys;
}

// A parsed message as text, one entry an item: "Bind(block 7)", "snapshot 5: [0, 9) of 1 2 3".
std::vector<std::string> Describe(const ScheduleMessage& message) {
  std::vector<std::string> out;
  for (const ScheduleItem& item : message.items) {
    switch (item.kind) {
      case ScheduleItem::Kind::kEvents:
        for (const Event& event : message.EventsOf(item))
          out.push_back(DescribeEvent(event));
        break;
      case ScheduleItem::Kind::kSnapshot: {
        std::string text = "snapshot " + std::to_string(item.tag) + ": [" +
                           std::to_string(item.first) + ", " + std::to_string(item.last) + ") of";
        for (const BlockId block : message.BlocksOf(item))
          text += " " + std::to_string(block.value());
        out.push_back(text);
        break;
      }
      case ScheduleItem::Kind::kForget:
        ADD_FAILURE() << "the scheduler forgets nothing";
        break;
    }
  }
  return out;
}

std::string Bind(std::int32_t block, const BlockKey& key = {}) {
  return DescribeEvent(Event::Bind(BlockId(block), key));
}
std::string Retain(std::int32_t block) {
  return DescribeEvent(Event::Retain(BlockId(block)));
}
std::string Release(std::int32_t block) {
  return DescribeEvent(Event::Release(BlockId(block)));
}
std::string Seal(std::int32_t block, const BlockKey& key = {}) {
  return DescribeEvent(Event::Seal(BlockId(block), key));
}
std::string Copy(std::int32_t src, std::int32_t dst, std::int32_t rows = Event::kAllRows) {
  return DescribeEvent(Event::Copy(BlockId(src), BlockId(dst), rows));
}

class VllmSchedulerTest : public ::testing::Test {
 protected:
  VllmSchedulerTest() { Make({.limits = {.num_blocks = kBlocks, .block_tokens = kTokens}}); }

  void Make(const VllmSchedulerOptions& options) {
    absl::StatusOr<VllmScheduler> made = VllmScheduler::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    scheduler_.emplace(*std::move(made));
  }
  VllmScheduler& scheduler() { return *scheduler_; }
  // Opens the message of the next step.
  void Begin() { ASSERT_EQ(scheduler().Begin(StepId(++step_), 3), absl::OkStatus()); }
  // Closes the message, and returns what it contains.
  std::vector<std::string> End() {
    const auto bytes = scheduler().FinishMessage();
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    if (!bytes.ok()) return {};
    const auto message = ParseScheduleMessage(*bytes, scheduler().options().limits);
    EXPECT_TRUE(message.ok()) << message.status();
    if (!message.ok()) return {};
    parsed_ = *message;
    return Describe(*message);
  }
  // Closes all messages of the schedule, and returns what they contain.
  std::vector<std::string> EndAll(std::size_t* messages = nullptr) {
    std::vector<std::string> items;
    do {
      for (std::string& item : End())
        items.push_back(std::move(item));
      if (messages != nullptr) ++*messages;
    } while (!HasFailure() && scheduler().more());
    return items;
  }
  // A request that holds blocks, reported in a message of its own.
  void Admit(std::uint64_t request, std::initializer_list<std::int32_t> blocks) {
    Begin();
    ASSERT_EQ(scheduler().New(request, Blocks(blocks), {}, {}), absl::OkStatus());
    (void)End();
  }
  // What a call that is refused returns; the next message must then be empty.
  void ExpectRefused(const absl::Status& status, absl::StatusCode code,
                     std::initializer_list<const char*> words) {
    EXPECT_EQ(status.code(), code) << status;
    for (const char* word : words)
      EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }

  std::optional<VllmScheduler> scheduler_;
  std::uint64_t step_ = 0;
  ScheduleMessage parsed_;
};

// ---- requests that are scheduled

TEST_F(VllmSchedulerTest, ANewRequestBindsItsBlocks) {
  Begin();
  ASSERT_EQ(scheduler().New(1, Blocks({5, 6, 7}), {}, {}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(5), Bind(6), Bind(7)));
  EXPECT_EQ(parsed_.step, StepId(1));
  EXPECT_EQ(parsed_.version, 3u);
  EXPECT_EQ(parsed_.sequence, 1u);
}

TEST_F(VllmSchedulerTest, BlocksOfDecodesHaveNoEventsAndAreReadAndReleased) {
  Admit(1, {5});
  ASSERT_EQ(scheduler().Extend(1, Blocks({9, 7})), absl::OkStatus());  // without an open message
  ASSERT_EQ(scheduler().Finish(1, 10, 21), absl::OkStatus());
  Begin();
  EXPECT_THAT(End(),
              ElementsAre("snapshot 21: [0, 10) of 5 9 7", Release(7), Release(9), Release(5)));
}

TEST_F(VllmSchedulerTest, OnlyBlocksOfARequestThatHasBlocksAreExtended) {
  Admit(1, {5});
  ExpectRefused(scheduler().Extend(2, Blocks({9})), absl::StatusCode::kInvalidArgument,
                {"request", "it is 2"});
  ExpectRefused(scheduler().Extend(1, Blocks({9, kBlocks})), absl::StatusCode::kInvalidArgument,
                {"blocks[1]", "64"});
  ASSERT_EQ(scheduler().Preempt(1, 0, std::nullopt), absl::OkStatus());
  ExpectRefused(scheduler().Extend(1, Blocks({9})), absl::StatusCode::kFailedPrecondition,
                {"preempted"});
  Begin();
  EXPECT_THAT(End(), ElementsAre(Release(5)));
}

TEST_F(VllmSchedulerTest, HitsAreRetainedAndNotSealedAgain) {
  Begin();
  const auto keys = Keys('a', 3);
  ASSERT_EQ(scheduler().New(1, Blocks({5, 6, 7}), {.local_tokens = 8}, {0, keys}),
            absl::OkStatus());
  ASSERT_EQ(scheduler().Append(1, {}, 12, {0, keys}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(7), Retain(5), Retain(6), Seal(7, Key('a', 2))));
}

TEST_F(VllmSchedulerTest, AHitOfABlockThatIsFilledInTheSameStepComesAfterItsBind) {
  const auto keys = Keys('a', 2);
  // Whichever of the two is reported first.
  for (const std::uint64_t filler : {1u, 2u}) {
    Make({.limits = {.num_blocks = kBlocks, .block_tokens = kTokens}});
    ASSERT_EQ(scheduler().Begin(StepId(1), 0), absl::OkStatus());
    for (const std::uint64_t request : {1u, 2u}) {
      if (request == filler) {
        ASSERT_EQ(scheduler().New(request, Blocks({5, 6}), {}, {}), absl::OkStatus());
        ASSERT_EQ(scheduler().Append(request, {}, 8, {0, keys}), absl::OkStatus());
      } else {
        ASSERT_EQ(scheduler().New(request, Blocks({5, 9}), {.local_tokens = 4}, {0, keys}),
                  absl::OkStatus());
      }
    }
    const auto described = End();
    const auto at = [&](const std::string& text) {
      return std::find(described.begin(), described.end(), text) - described.begin();
    };
    EXPECT_EQ(described.size(), 6u);
    EXPECT_LT(at(Bind(5)), at(Retain(5)));
    EXPECT_LT(at(Retain(5)), at(Seal(5, Key('a', 0))));
    EXPECT_LT(at(Bind(9)), 6);
    EXPECT_LT(at(Seal(6, Key('a', 1))), 6);
  }
}

TEST_F(VllmSchedulerTest, BlocksOfALoadAreBoundAndSealedWithTheirKeys) {
  Begin();
  const auto keys = Keys('a', 4);
  ASSERT_EQ(scheduler().New(1, Blocks({5, 6, 7, 8}), {4, 8}, {0, keys}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(6, Key('a', 1)), Bind(7, Key('a', 2)), Bind(8), Retain(5),
                                 Seal(6, Key('a', 1)), Seal(7, Key('a', 2))));
  EXPECT_EQ(*scheduler().Sealed(1), 3);
}

TEST_F(VllmSchedulerTest, ABlockInWhichALoadEndsIsBoundWithItsKeyAndSealedWhenItIsFull) {
  Begin();
  const auto keys = Keys('a', 2);
  ASSERT_EQ(scheduler().New(1, Blocks({5, 6}), {0, 7}, {0, keys}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(5, Key('a', 0)), Bind(6, Key('a', 1)), Seal(5, Key('a', 0))));
  Begin();
  ASSERT_EQ(scheduler().Append(1, {}, 8, {0, keys}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Seal(6, Key('a', 1))));
}

TEST_F(VllmSchedulerTest, ABlockIsSealedOnceWhenItIsFull) {
  Admit(1, {5});
  const auto keys = Keys('a', 2);
  Begin();
  ASSERT_EQ(scheduler().Append(1, {}, 3, {0, keys}), absl::OkStatus());
  EXPECT_THAT(End(), IsEmpty());
  Begin();
  ASSERT_EQ(scheduler().Append(1, Blocks({6}), 5, {0, keys}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(6), Seal(5, Key('a', 0))));
  Begin();
  ASSERT_EQ(scheduler().Append(1, {}, 7, {0, keys}), absl::OkStatus());
  ASSERT_EQ(scheduler().Append(1, {}, 8, {0, keys}), absl::OkStatus());
  ASSERT_EQ(scheduler().Append(1, {}, 8, {0, keys}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Seal(6, Key('a', 1))));
  EXPECT_EQ(*scheduler().Sealed(1), 2);
}

TEST_F(VllmSchedulerTest, TheLastFullBlockIsSealedBeforeItsRequestLeaves) {
  Admit(1, {5, 6});
  const auto keys = Keys('a', 2);
  ASSERT_EQ(scheduler().Append(1, {}, 8, {0, keys}), absl::OkStatus());
  ASSERT_EQ(scheduler().Finish(1, 8, 9), absl::OkStatus());
  Begin();
  EXPECT_THAT(End(), ElementsAre(Seal(5, Key('a', 0)), Seal(6, Key('a', 1)),
                                 "snapshot 9: [0, 8) of 5 6", Release(6), Release(5)));
}

TEST_F(VllmSchedulerTest, ARequestThatWasNotPreemptedGoesOnWithItsBlocks) {
  Admit(1, {5, 6});
  Begin();
  ASSERT_EQ(scheduler().Resume(1, Blocks({5, 6, 7}), {.local_tokens = 6}, {}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(7)));
  Begin();
  ExpectRefused(scheduler().Resume(1, Blocks({5, 6}), {}, {}),
                absl::StatusCode::kFailedPrecondition, {"preempted", "its 3 blocks"});
  ExpectRefused(scheduler().Resume(1, Blocks({5, 8, 7, 9}), {}, {}),
                absl::StatusCode::kFailedPrecondition, {"its 3 blocks", "is 1"});
  ASSERT_EQ(scheduler().Resume(1, Blocks({5, 6, 7}), {}, {}), absl::OkStatus());
  EXPECT_THAT(End(), IsEmpty());
}

TEST_F(VllmSchedulerTest, ABlockHasTheLastOfItsHashes) {
  Make({.limits = {.num_blocks = kBlocks, .block_tokens = kTokens}, .hash_block_tokens = 2});
  Begin();
  ASSERT_EQ(scheduler().New(1, Blocks({5, 6, 7}), {0, 4}, {0, Keys('a', 5)}), absl::OkStatus());
  ASSERT_EQ(scheduler().Append(1, {}, 11, {0, Keys('a', 5)}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(5, Key('a', 1)), Bind(6), Bind(7), Seal(5, Key('a', 1)),
                                 Seal(6, Key('a', 3))));
  // Only those of the blocks that are sealed need be given.
  Begin();
  ASSERT_EQ(scheduler().Append(1, {}, 12, {5, Keys('a', 6, 5)}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Seal(7, Key('a', 5))));
}

TEST_F(VllmSchedulerTest, WithoutHashesBlocksAreSealedWithoutKeys) {
  Begin();
  ASSERT_EQ(scheduler().New(1, Blocks({5}), {}, {}), absl::OkStatus());
  ASSERT_EQ(scheduler().Append(1, {}, 4, {}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(5), Seal(5)));
}

TEST_F(VllmSchedulerTest, TheNullBlockHasNoEventsButAPlaceInSnapshots) {
  Begin();
  const auto keys = Keys('a', 4);
  ASSERT_EQ(scheduler().New(1, Blocks({0, 6, 7}), {.local_tokens = 8}, {0, keys}),
            absl::OkStatus());
  ASSERT_EQ(scheduler().Append(1, Blocks({0, -1}), 16, {0, keys}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(7), Retain(6), Seal(7, Key('a', 2))));
  ASSERT_EQ(scheduler().Finish(1, 18, 9), absl::OkStatus());
  Begin();
  EXPECT_THAT(End(), ElementsAre("snapshot 9: [0, 18) of 0 6 7 0 -1", Release(7), Release(6)));
}

TEST_F(VllmSchedulerTest, AnotherBlockMayBeTheNullBlock) {
  Make({.limits = {.num_blocks = kBlocks, .block_tokens = kTokens}, .null_block = BlockId(9)});
  Begin();
  ASSERT_EQ(scheduler().New(1, Blocks({0, 9}), {}, {}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(0)));
}

// ---- copies on write

TEST_F(VllmSchedulerTest, AHitThatEndsInsideABlockCopiesItsRows) {
  ASSERT_EQ(scheduler().Copy(BlockId(4), BlockId(6)), absl::OkStatus());
  Begin();
  const auto keys = Keys('a', 2);
  ASSERT_EQ(scheduler().New(1, Blocks({5, 6}), {.local_tokens = 7}, {0, keys}), absl::OkStatus());
  ASSERT_EQ(scheduler().Append(1, {}, 8, {0, keys}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(6), Retain(5), Retain(4), Copy(4, 6, 3), Release(4),
                                 Seal(6, Key('a', 1))));
}

TEST_F(VllmSchedulerTest, ACopyOntoAnAppendedBlockCopiesAllRows) {
  Admit(1, {5});
  Begin();
  ASSERT_EQ(scheduler().Copy(BlockId(4), BlockId(6)), absl::OkStatus());
  ASSERT_EQ(scheduler().Append(1, Blocks({6}), 8, {}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(6), Retain(4), Copy(4, 6), Release(4), Seal(5), Seal(6)));
}

TEST_F(VllmSchedulerTest, CopiesAreInTheOrderOfTheEngine) {
  ASSERT_EQ(scheduler().Copy(BlockId(4), BlockId(5)), absl::OkStatus());
  ASSERT_EQ(scheduler().Copy(BlockId(5), BlockId(6)), absl::OkStatus());
  Begin();
  ASSERT_EQ(scheduler().New(1, Blocks({6}), {.local_tokens = 2}, {}), absl::OkStatus());
  ASSERT_EQ(scheduler().New(2, Blocks({5}), {.local_tokens = 3}, {}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(6), Bind(5), Retain(4), Retain(5), Copy(4, 5, 3),
                                 Copy(5, 6, 2), Release(4), Release(5)));
}

TEST_F(VllmSchedulerTest, ACopyOntoABlockThatNoRequestGetsIsIgnored) {
  ASSERT_EQ(scheduler().Copy(BlockId(4), BlockId(5)), absl::OkStatus());
  Begin();
  EXPECT_THAT(End(), IsEmpty());
  // Later the block is another one.
  Begin();
  ASSERT_EQ(scheduler().New(1, Blocks({5}), {}, {}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(5)));
}

// ---- requests that leave

TEST_F(VllmSchedulerTest, AFinishIsReadBeforeItsBlocksAreBoundAgain) {
  Admit(1, {5, 6});
  ASSERT_EQ(scheduler().Finish(1, 7, 11), absl::OkStatus());
  Begin();
  ASSERT_EQ(scheduler().New(2, Blocks({6, 5}), {}, {}), absl::OkStatus());
  EXPECT_THAT(End(),
              ElementsAre("snapshot 11: [0, 7) of 5 6", Release(6), Release(5), Bind(6), Bind(5)));
  EXPECT_EQ(scheduler().num_requests(), 1u);
}

TEST_F(VllmSchedulerTest, ARequestThatDidNotAskHasNoSnapshot) {
  Admit(1, {5});
  ASSERT_EQ(scheduler().Finish(1, 1000, std::nullopt), absl::OkStatus());
  Begin();
  EXPECT_THAT(End(), ElementsAre(Release(5)));
}

TEST_F(VllmSchedulerTest, APreemptedRequestIsResumedWithOtherBlocks) {
  const auto keys = Keys('a', 2);
  Admit(1, {5, 6});
  Begin();
  ASSERT_EQ(scheduler().Append(1, {}, 6, {0, keys}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Seal(5, Key('a', 0))));
  ASSERT_EQ(scheduler().Preempt(1, 6, 11), absl::OkStatus());
  EXPECT_EQ(*scheduler().Sealed(1), 0);
  Begin();
  ASSERT_EQ(scheduler().Resume(1, Blocks({5, 8}), {.local_tokens = 4}, {0, keys}),
            absl::OkStatus());
  ASSERT_EQ(scheduler().Append(1, {}, 8, {0, keys}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre("snapshot 11: [0, 6) of 5 6", Release(6), Release(5), Bind(8),
                                 Retain(5), Seal(8, Key('a', 1))));
  ASSERT_EQ(scheduler().Finish(1, 7, 12), absl::OkStatus());
  Begin();
  EXPECT_THAT(End(), ElementsAre("snapshot 12: [0, 7) of 5 8", Release(8), Release(5)));
}

TEST_F(VllmSchedulerTest, ARequestMayEndWhileItIsPreempted) {
  Admit(1, {5});
  ASSERT_EQ(scheduler().Preempt(1, 4, 11), absl::OkStatus());
  ASSERT_EQ(scheduler().Finish(1, 0, std::nullopt), absl::OkStatus());
  Begin();
  EXPECT_THAT(End(), ElementsAre("snapshot 11: [0, 4) of 5", Release(5)));
  EXPECT_EQ(scheduler().num_requests(), 0u);
}

TEST_F(VllmSchedulerTest, WithAnOpenMessageTheOrderIsThatOfTheCalls) {
  Admit(1, {5});
  Begin();
  ASSERT_EQ(scheduler().Append(1, Blocks({6}), 4, {}), absl::OkStatus());
  ASSERT_EQ(scheduler().Finish(1, 8, 11), absl::OkStatus());
  ASSERT_EQ(scheduler().New(2, Blocks({6}), {}, {}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(6), Seal(5), "snapshot 11: [0, 8) of 5 6", Release(6),
                                 Release(5), Bind(6)));
  Begin();
  ASSERT_EQ(scheduler().Append(2, Blocks({7}), 4, {}), absl::OkStatus());
  ASSERT_EQ(scheduler().Preempt(2, 4, 12), absl::OkStatus());
  ASSERT_EQ(scheduler().Reset(), absl::OkStatus());
  ASSERT_EQ(scheduler().New(3, Blocks({9}), {}, {}), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre(Bind(7), Seal(6), "snapshot 12: [0, 4) of 6", Release(7),
                                 Release(6), "Reset", Bind(9)));
}

// ---- resets

TEST_F(VllmSchedulerTest, AResetComesAfterTheReleasesBeforeIt) {
  Admit(1, {5});
  ASSERT_EQ(scheduler().Preempt(1, 4, std::nullopt), absl::OkStatus());
  ASSERT_EQ(scheduler().Reset(), absl::OkStatus());
  Begin();
  EXPECT_THAT(End(), ElementsAre(Release(5), "Reset"));
}

TEST_F(VllmSchedulerTest, AMessageWithoutAStep) {
  Admit(1, {5});
  ASSERT_EQ(scheduler().Finish(1, 4, 11), absl::OkStatus());
  ASSERT_EQ(scheduler().Begin(StepId(), 0), absl::OkStatus());
  EXPECT_THAT(End(), ElementsAre("snapshot 11: [0, 4) of 5", Release(5)));
  EXPECT_FALSE(parsed_.step.valid());
  EXPECT_EQ(parsed_.sequence, 2u);
}

// ---- wrong arguments

using absl::StatusCode;

TEST_F(VllmSchedulerTest, WrongOptionsAreNamed) {
  const auto refused = [](const VllmSchedulerOptions& options) {
    return std::string(VllmScheduler::Create(options).status().message());
  };
  EXPECT_THAT(refused({.limits = {.num_blocks = 0, .block_tokens = 4}}), HasSubstr("num_blocks"));
  EXPECT_THAT(refused({.limits = {.num_blocks = 8, .block_tokens = 4}, .hash_block_tokens = 3}),
              AllOf(HasSubstr("hash_block_tokens"), HasSubstr("divisor"), HasSubstr("it is 3")));
  EXPECT_THAT(refused({.limits = {.num_blocks = 8, .block_tokens = 4}, .hash_block_tokens = -2}),
              HasSubstr("it is -2"));
}

TEST_F(VllmSchedulerTest, ARefusedCallChangesNothing) {
  Admit(1, {5, 6});
  Admit(2, {7});
  ASSERT_EQ(scheduler().Preempt(2, 0, std::nullopt), absl::OkStatus());
  Begin();
  (void)End();
  const auto bad = StatusCode::kInvalidArgument;
  const auto keys = Keys('a', 2);
  Begin();
  const auto many = Blocks({8, kBlocks});
  ExpectRefused(scheduler().New(1, Blocks({8}), {}, {}), bad, {"request", "new", "it is 1"});
  ExpectRefused(scheduler().New(3, many, {}, {}), bad, {"blocks[1]", "num_blocks, 64", "it is 64"});
  ExpectRefused(scheduler().New(3, Blocks({8}), {.local_tokens = 5}, {}), bad,
                {"local_tokens", "[0, 4]", "it is 5"});
  ExpectRefused(scheduler().New(3, Blocks({8}), {.local_tokens = -1}, {}), bad, {"it is -1"});
  ExpectRefused(scheduler().New(3, Blocks({8, 9}), {4, 5}, {}), bad,
                {"external_tokens", "[0, 4]", "it is 5"});
  ExpectRefused(scheduler().New(3, Blocks({8, 9, 10}), {0, 12}, {0, keys}), bad,
                {"hashes", "at least 3", "it is 2"});
  ExpectRefused(scheduler().Append(9, {}, 0, {}), bad, {"request", "New", "it is 9"});
  ExpectRefused(scheduler().Append(1, many, 0, {}), bad, {"blocks[1]"});
  ExpectRefused(scheduler().Append(1, Blocks({8}), 13, {}), bad,
                {"full_tokens", "[0, 12]", "3 blocks of 4 tokens", "it is 13"});
  ExpectRefused(scheduler().Append(1, {}, -1, {}), bad, {"full_tokens", "it is -1"});
  ExpectRefused(scheduler().Append(1, {}, 8, {0, Keys('a', 1)}), bad,
                {"hashes", "at least 2", "it is 1"});
  ExpectRefused(scheduler().Append(1, {}, 8, {1, keys}), bad, {"hashes.first", "[0, 0]", "is 1"});
  ExpectRefused(scheduler().Append(2, {}, 0, {}), absl::StatusCode::kFailedPrecondition,
                {"preempted", "it is 2"});
  ExpectRefused(scheduler().Resume(1, Blocks({8}), {}, {}), absl::StatusCode::kFailedPrecondition,
                {"preempted", "is 1"});
  ExpectRefused(scheduler().Resume(9, Blocks({8}), {}, {}), bad, {"it is 9"});
  ExpectRefused(scheduler().Resume(2, Blocks({8}), {.local_tokens = 5}, {}), bad, {"local_tokens"});
  ExpectRefused(scheduler().Preempt(9, 0, {}), bad, {"it is 9"});
  ExpectRefused(scheduler().Preempt(1, 9, 5), bad, {"rows", "[0, 8]", "it is 9"});
  ExpectRefused(scheduler().Preempt(2, 0, 5), StatusCode::kFailedPrecondition, {"preempted"});
  ExpectRefused(scheduler().Finish(1, -1, 5), bad, {"rows", "it is -1"});
  ExpectRefused(scheduler().Finish(2, 1, 5), bad, {"rows", "[0, 0]", "it is 1"});
  ExpectRefused(scheduler().Finish(9, 0, {}), bad, {"it is 9"});
  ExpectRefused(scheduler().Copy(BlockId(5), BlockId(5)), bad, {"dst", "src", "it is 5"});
  ExpectRefused(scheduler().Copy(BlockId(5), BlockId(0)), bad, {"dst", "it is 0"});
  ExpectRefused(scheduler().Copy(BlockId(64), BlockId(5)), bad, {"src", "it is 64"});
  ExpectRefused(scheduler().Begin(StepId(9), 0), StatusCode::kFailedPrecondition, {"finished"});
  ExpectRefused(scheduler().Sealed(9).status(), bad, {"it is 9"});
  EXPECT_THAT(End(), IsEmpty());
  EXPECT_EQ(scheduler().num_requests(), 2u);
  // What was there is unchanged.
  ASSERT_EQ(scheduler().Finish(1, 8, 11), absl::OkStatus());
  ASSERT_EQ(scheduler().Finish(2, 0, {}), absl::OkStatus());
  Begin();
  EXPECT_THAT(End(), ElementsAre("snapshot 11: [0, 8) of 5 6", Release(6), Release(5)));
}

TEST_F(VllmSchedulerTest, SchedulesNeedAnOpenMessage) {
  Admit(1, {5});
  const auto closed = StatusCode::kFailedPrecondition;
  ExpectRefused(scheduler().New(2, Blocks({8}), {}, {}), closed, {"Begin"});
  ExpectRefused(scheduler().Append(1, Blocks({8}), 0, {}), closed, {"Begin"});
  ExpectRefused(scheduler().FinishMessage().status(), closed, {"Begin"});
  ASSERT_EQ(scheduler().Preempt(1, 0, {}), absl::OkStatus());
  ExpectRefused(scheduler().Resume(1, Blocks({8}), {}, {}), closed, {"Begin"});
  ExpectRefused(scheduler().Begin(StepId(), 3), StatusCode::kInvalidArgument, {"version"});
}

TEST_F(VllmSchedulerTest, ASnapshotThatNoMessageHoldsIsNotTakenButItsBlocksAreReleased) {
  Make({.limits = {.num_blocks = 4096, .block_tokens = kTokens, .max_bytes = 1024}});
  std::vector<BlockId> blocks;
  for (std::int32_t block = 1; block <= 300; ++block)
    blocks.push_back(BlockId(block));
  for (std::uint64_t request = 1; request <= 2; ++request) {
    Begin();
    ASSERT_EQ(scheduler().New(request, blocks, {}, {}), absl::OkStatus());
    EXPECT_EQ(EndAll().size(), 300u);
  }
  ExpectRefused(scheduler().Finish(1, 4, 12), StatusCode::kResourceExhausted, {"1024"});
  ExpectRefused(scheduler().Preempt(2, 4, 13), StatusCode::kResourceExhausted, {"1024"});
  EXPECT_EQ(scheduler().num_requests(), 1u);
  Begin();
  EXPECT_EQ(EndAll().size(), 600u);  // releases
}

// One schedule of 280 requests that share a long prompt was refused for its size, which ended the
// capture of the engine.
TEST_F(VllmSchedulerTest, AScheduleOfAnySizeIsSeveralMessages) {
  const VllmSchedulerOptions large{.limits = {.num_blocks = 4096, .block_tokens = kTokens}};
  VllmSchedulerOptions small = large;
  small.limits.max_bytes = 512;
  small.limits.max_snapshots = 3;
  std::vector<std::string> items[2];
  std::size_t messages[2] = {};
  for (const int which : {0, 1}) {
    Make(which == 0 ? large : small);
    step_ = 0;
    Begin();
    const std::vector<BlockId> shared = Blocks({1, 2, 3, 4, 5, 6, 7, 8});
    for (std::uint64_t request = 1; request <= 40; ++request) {
      std::vector<BlockId> blocks = shared;
      blocks.push_back(BlockId(static_cast<std::int32_t>(100 + request)));
      ASSERT_EQ(scheduler().New(request, blocks, {.local_tokens = 8 * kTokens}, {}),
                absl::OkStatus());
    }
    items[which] = EndAll(&messages[which]);
    for (std::uint64_t request = 1; request <= 40; ++request)
      ASSERT_EQ(scheduler().Finish(request, 8 * kTokens, request), absl::OkStatus());
    ASSERT_EQ(scheduler().Reset(), absl::OkStatus());
    Begin();
    for (const std::string& item : EndAll(&messages[which]))
      items[which].push_back(item);
  }
  EXPECT_EQ(messages[0], 2u);
  EXPECT_GT(messages[1], 20u);
  EXPECT_EQ(items[1], items[0]);
  EXPECT_EQ(items[0].size(), 40u * 9 + 40u * 10 + 1);
}

TEST_F(VllmSchedulerTest, AScheduleIsOpenUntilItsLastMessage) {
  Make({.limits = {.num_blocks = 4096, .block_tokens = kTokens, .max_bytes = 256}});
  Begin();
  std::vector<BlockId> blocks;
  for (std::int32_t block = 1; block <= 100; ++block)
    blocks.push_back(BlockId(block));
  ASSERT_EQ(scheduler().New(1, blocks, {}, {}), absl::OkStatus());
  (void)End();
  ASSERT_TRUE(scheduler().more());
  const std::uint64_t sequence = parsed_.sequence;
  ExpectRefused(scheduler().Begin(StepId(step_ + 1), 3), StatusCode::kFailedPrecondition,
                {"FinishMessage"});
  (void)End();
  EXPECT_EQ(parsed_.sequence, sequence + 1);
  EXPECT_EQ(parsed_.step, StepId(step_));
  EXPECT_EQ(parsed_.version, 3u);
  (void)EndAll();
  EXPECT_FALSE(scheduler().more());
  ExpectRefused(scheduler().FinishMessage().status(), StatusCode::kFailedPrecondition, {"Begin"});
}

TEST_F(VllmSchedulerTest, AnEventThatNoMessageHoldsLeavesAGap) {
  Make({.limits = {.num_blocks = kBlocks, .block_tokens = kTokens, .max_bytes = 64}});
  Begin();
  ASSERT_EQ(scheduler().New(1, Blocks({5}), {}, {}), absl::OkStatus());
  ExpectRefused(scheduler().FinishMessage().status(), StatusCode::kResourceExhausted, {"64"});
  Begin();
  EXPECT_THAT(End(), IsEmpty());
  EXPECT_EQ(parsed_.sequence, 2u);
}

}  // namespace
}  // namespace waymark
