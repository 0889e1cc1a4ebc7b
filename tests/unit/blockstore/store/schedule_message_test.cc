#include "blockstore/store/schedule_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "blockstore/store/store.h"
#include "tests/support/schedule_messages.h"
#include "tests/unit/blockstore/store/counting_new.h"
#include "tests/unit/blockstore/test_seed.h"

namespace waymark {
namespace {

using schedule_messages::Correct;
using schedule_messages::WithinLimits;
using schedule_messages::Written;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Bytes = std::vector<std::uint8_t>;
using Kind = ScheduleItem::Kind;

constexpr ScheduleLimits kLimits = {
    .num_blocks = 8, .block_tokens = 4, .max_bytes = 4096, .max_snapshots = 3};
constexpr std::uint64_t kEpoch = 0x1122334455667788;
constexpr std::size_t kHeaderBytes = 56;
constexpr std::size_t kCheckBytes = 8;

ScheduleWriter NewWriter(const ScheduleLimits& limits = kLimits) {
  return ScheduleWriter::Create(limits, kEpoch).value();
}

BlockKey LongKey() {
  Bytes bytes(32);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i + 1);
  return BlockKey::FromBytes(bytes);
}

std::vector<Event> OneOfEach() {
  return {Event::Bind(BlockId(1)),
          Event::Bind(BlockId(2), BlockKey::FromInteger(77)),
          Event::Bind(BlockId(-3)),
          Event::Retain(BlockId(3)),
          Event::Release(BlockId(4)),
          Event::Seal(BlockId(5), LongKey(), StepId(11)),
          Event::Seal(BlockId(6), BlockKey::FromInteger(78), StepId()),
          Event::Copy(BlockId(6), BlockId(7)),
          Event::Copy(BlockId(6), BlockId(0), 4),
          Event::Move(BlockId(1), BlockId(2), true),
          Event::Move(BlockId(2), BlockId(1)),
          Event::Move(BlockId(-1), BlockId(3)),
          Event::Truncate(BlockId(3), 0, StepId(10)),
          Event::Reset()};
}

const std::vector<BlockId> kBlocks = {BlockId(3), BlockId(-1), BlockId(7)};

// A message with every kind of item.
Bytes Sample() {
  ScheduleWriter writer = NewWriter();
  const std::vector<Event> events = OneOfEach();
  EXPECT_TRUE(writer.Begin(StepId(12), 3).ok());
  EXPECT_TRUE(writer.Report(std::span(events).first(2)).ok());
  EXPECT_TRUE(writer.Snapshot(900, kBlocks, 2, 12).ok());
  EXPECT_TRUE(writer.Snapshot(0, {}, 0, 0).ok());
  EXPECT_TRUE(writer.Report(std::span(events).subspan(2)).ok());
  EXPECT_TRUE(writer.Forget(~std::uint64_t{0}).ok());
  const std::span<const std::uint8_t> bytes = writer.Finish();
  return {bytes.begin(), bytes.end()};
}

// A message with these events alone.
Bytes WithEvents(const std::vector<Event>& events, const ScheduleLimits& limits = kLimits) {
  ScheduleWriter writer = NewWriter(limits);
  EXPECT_TRUE(writer.Begin(StepId(12), 3).ok());
  EXPECT_TRUE(writer.Report(events).ok());
  const std::span<const std::uint8_t> bytes = writer.Finish();
  return {bytes.begin(), bytes.end()};
}

Bytes WithSnapshot(std::span<const BlockId> blocks, std::int64_t first, std::int64_t last,
                   const ScheduleLimits& limits = kLimits) {
  ScheduleWriter writer = NewWriter(limits);
  EXPECT_TRUE(writer.Begin(StepId(), 0).ok());
  EXPECT_TRUE(writer.Snapshot(5, blocks, first, last).ok());
  const std::span<const std::uint8_t> bytes = writer.Finish();
  return {bytes.begin(), bytes.end()};
}

template <class T>
Bytes Changed(Bytes bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  Correct(bytes);
  return bytes;
}

void ExpectRefused(const Bytes& bytes, const std::string& message,
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument,
                   const ScheduleLimits& limits = kLimits) {
  const auto parsed = ParseScheduleMessage(bytes, limits);
  ASSERT_FALSE(parsed.ok()) << message;
  EXPECT_EQ(parsed.status().code(), code) << message;
  EXPECT_EQ(std::string(parsed.status().message()), message);
}

// ---- round trips

TEST(ScheduleMessage, EveryKindOfItemComesBackInTheOrderReported) {
  const auto message = ParseScheduleMessage(Sample(), kLimits);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->epoch, kEpoch);
  EXPECT_EQ(message->sequence, 1u);
  EXPECT_EQ(message->step, StepId(12));
  EXPECT_EQ(message->version, 3u);
  EXPECT_EQ(message->events, OneOfEach());
  EXPECT_EQ(message->blocks, kBlocks);
  ASSERT_EQ(message->items.size(), 5u);
  EXPECT_EQ(message->items[0], (ScheduleItem{.begin = 0, .end = 2}));
  EXPECT_EQ(
      message->items[1],
      (ScheduleItem{
          .kind = Kind::kSnapshot, .tag = 900, .first = 2, .last = 12, .begin = 0, .end = 3}));
  EXPECT_EQ(message->items[2], (ScheduleItem{.kind = Kind::kSnapshot, .begin = 3, .end = 3}));
  EXPECT_EQ(message->items[3], (ScheduleItem{.begin = 2, .end = 14}));
  EXPECT_EQ(message->items[4], (ScheduleItem{.kind = Kind::kForget, .tag = ~std::uint64_t{0}}));
  EXPECT_EQ(message->EventsOf(message->items[3]).front(), Event::Bind(BlockId(-3)));
  EXPECT_EQ(message->BlocksOf(message->items[1]).back(), BlockId(7));
  EXPECT_TRUE(WithinLimits(*message, kLimits));
  EXPECT_EQ(Written(*message, kLimits), Sample());
}

TEST(ScheduleMessage, EachEventComesBack) {
  for (const Event& event : OneOfEach()) {
    if (event.more != 0) continue;
    const auto message = ParseScheduleMessage(WithEvents({event}), kLimits);
    ASSERT_TRUE(message.ok()) << DescribeEvent(event) << ": " << message.status();
    EXPECT_EQ(message->events, std::vector<Event>{event});
  }
}

TEST(ScheduleMessage, TheBytesArePinned) {
  ScheduleWriter writer = NewWriter();
  ASSERT_TRUE(writer.Begin(StepId(0x0102), 5).ok());
  const Event events[] = {Event::Bind(BlockId(1)),
                          Event::Seal(BlockId(2), BlockKey::FromBytes(Bytes{9, 8, 7}), StepId(4)),
                          Event::Copy(BlockId(3), BlockId(4), 2),
                          Event::Move(BlockId(5), BlockId(6)),
                          Event::Truncate(BlockId(7), 1, StepId(8)),
                          Event::Reset()};
  ASSERT_TRUE(writer.Report(events).ok());
  ASSERT_TRUE(writer.Snapshot(0x0a0b, kBlocks, 1, 12).ok());
  ASSERT_TRUE(writer.Forget(0x0c).ok());
  // clang-format off
  const Bytes expected = {
      'W', 'M', 'S', '1',  199, 0, 0, 0,
      0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  1, 0, 0, 0, 0, 0, 0, 0,
      2, 1, 0, 0, 0, 0, 0, 0,  5, 0, 0, 0, 0, 0, 0, 0,
      6, 0, 0, 0,  1, 0, 0, 0,  1, 0, 0, 0,  3, 0, 0, 0,
      1, 0, 0, 0,  1, 0, 0, 0,
      4, 3, 0, 0,  2, 0, 0, 0,  4, 0, 0, 0, 0, 0, 0, 0,  9, 8, 7,
      5, 0, 0, 0,  4, 0, 0, 0,  3, 0, 0, 0,  2, 0, 0, 0,
      6, 0, 0, 0,  6, 0, 0, 0,  5, 0, 0, 0,
      7, 0, 0, 0,  7, 0, 0, 0,  1, 0, 0, 0,  8, 0, 0, 0, 0, 0, 0, 0,
      8, 0, 0, 0,
      9, 0, 0, 0,  3, 0, 0, 0,  0x0b, 0x0a, 0, 0, 0, 0, 0, 0,
      1, 0, 0, 0, 0, 0, 0, 0,  12, 0, 0, 0, 0, 0, 0, 0,
      3, 0, 0, 0,  0xff, 0xff, 0xff, 0xff,  7, 0, 0, 0,
      10, 0, 0, 0,  0x0c, 0, 0, 0, 0, 0, 0, 0,
  };
  // clang-format on
  const std::span<const std::uint8_t> bytes = writer.Finish();
  EXPECT_THAT(bytes.first(bytes.size() - kCheckBytes), ElementsAreArray(expected));
  std::uint64_t check = 0;
  std::memcpy(&check, bytes.data() + bytes.size() - kCheckBytes, sizeof(check));
  EXPECT_EQ(check, 17302155853384398078u) << "XXH3-64 of the bytes above";
}

TEST(ScheduleMessage, AMessageWithoutAStepCarriesEventsSnapshotsAndForgets) {
  ScheduleWriter writer = NewWriter();
  ASSERT_TRUE(writer.Begin(StepId(), 0).ok());
  const Event events[] = {Event::Release(BlockId(2)),
                          Event::Seal(BlockId(1), LongKey(), StepId(1000))};
  ASSERT_TRUE(writer.Snapshot(4, kBlocks, 0, 9).ok());
  ASSERT_TRUE(writer.Report(events).ok());
  ASSERT_TRUE(writer.Forget(3).ok());
  const auto message = ParseScheduleMessage(writer.Finish(), kLimits);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_FALSE(message->step.valid());
  EXPECT_EQ(message->items.size(), 3u);
}

TEST(ScheduleMessage, AMessageMayHaveNoItems) {
  ScheduleWriter writer = NewWriter();
  ASSERT_TRUE(writer.Begin(StepId(7), 1).ok());
  ASSERT_TRUE(writer.Report({}).ok());
  const std::span<const std::uint8_t> bytes = writer.Finish();
  EXPECT_EQ(bytes.size(), kHeaderBytes + kCheckBytes);
  const auto message = ParseScheduleMessage(bytes, kLimits);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_TRUE(message->items.empty());
}

// Fields that mean nothing in an event are not sent.
TEST(ScheduleMessage, MeaninglessFieldsAreLeftOut) {
  std::vector<Event> spoilt = OneOfEach();
  for (Event& event : spoilt) {
    if (event.type != EventType::kMove) event.more = 7;
    if (event.type == EventType::kMove && event.more != 0) event.more = 200;
    if (event.type == EventType::kBind || event.type == EventType::kReset) {
      event.src = 99, event.rows = 99, event.step = 99;
    }
    if (event.type == EventType::kReset) event.block = 99, event.key_size = 99;
    if (event.type == EventType::kMove) event.key_size = 5;
    if (event.key_size < 32) event.key[31] = 1;
  }
  EXPECT_EQ(WithEvents(spoilt), WithEvents(OneOfEach()));
}

TEST(ScheduleMessage, MemoryOfAnOldMessageDoesNotShow) {
  auto message = ParseScheduleMessage(Sample(), kLimits);
  ASSERT_TRUE(message.ok());
  const Bytes other = WithEvents({Event::Reset()});
  auto reused = ParseScheduleMessage(other, kLimits, *std::move(message));
  ASSERT_TRUE(reused.ok());
  EXPECT_EQ(*reused, *ParseScheduleMessage(other, kLimits));
}

// ---- the writer

TEST(ScheduleWriter, MessagesAreNumberedFromOne) {
  ScheduleWriter writer = NewWriter();
  EXPECT_EQ(writer.epoch(), kEpoch);
  for (std::uint64_t number = 1; number <= 3; ++number) {
    EXPECT_EQ(writer.next_sequence(), number);
    ASSERT_TRUE(writer.Begin(StepId(40), 2).ok());
    const auto message = ParseScheduleMessage(writer.Finish(), kLimits);
    EXPECT_EQ(message->sequence, number);
    EXPECT_EQ(message->epoch, kEpoch);
    EXPECT_EQ(message->step, StepId(40)) << "several messages may be of one step";
  }
}

TEST(ScheduleWriter, EverySenderHasItsOwnEpoch) {
  std::set<std::uint64_t> epochs;
  for (int i = 0; i < 100; ++i)
    epochs.insert(ScheduleWriter::Create(kLimits)->epoch());
  EXPECT_EQ(epochs.size(), 100u);
  EXPECT_EQ(epochs.count(0), 0u);
}

TEST(ScheduleWriter, AnEpochAndANumberCanBeGiven) {
  auto writer = ScheduleWriter::Create(kLimits, 5, 17);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->Begin(StepId(), 0).ok());
  const auto message = ParseScheduleMessage(writer->Finish(), kLimits);
  EXPECT_EQ(message->epoch, 5u);
  EXPECT_EQ(message->sequence, 17u);
}

TEST(ScheduleWriter, BadLimitsAreRefused) {
  const auto refused = [](ScheduleLimits limits, const std::string& message) {
    EXPECT_EQ(ScheduleWriter::Create(limits).status().message(), message);
    EXPECT_EQ(ParseScheduleMessage(Sample(), limits).status().message(), message);
    EXPECT_EQ(limits.Validate().code(), absl::StatusCode::kInvalidArgument);
  };
  refused({.num_blocks = 0, .block_tokens = 4},
          "ScheduleLimits.num_blocks must be at least 1; it is 0");
  refused({.num_blocks = 8, .block_tokens = -1},
          "ScheduleLimits.block_tokens must be at least 1; it is -1");
  refused({.num_blocks = 8, .block_tokens = 4, .max_bytes = 63},
          "ScheduleLimits.max_bytes must be in [64, 2^30]; it is 63");
  refused({.num_blocks = 8, .block_tokens = 4, .max_bytes = (1u << 30) + 1},
          "ScheduleLimits.max_bytes must be in [64, 2^30]; it is 1073741825");
}

TEST(ScheduleWriter, OneMessageIsOpenAtATime) {
  ScheduleWriter writer = NewWriter();
  const Event event = Event::Reset();
  for (const absl::Status& status :
       {writer.Report({&event, 1}), writer.Snapshot(1, kBlocks, 0, 1), writer.Forget(1)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(), "a message must be begun first: call Begin");
  }
  EXPECT_TRUE(writer.Finish().empty());
  EXPECT_EQ(writer.next_sequence(), 1u);
  ASSERT_TRUE(writer.Begin(StepId(1), 0).ok());
  const absl::Status twice = writer.Begin(StepId(2), 0);
  EXPECT_EQ(twice.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(twice.message(), "Begin: message 1 must be finished before another one is begun");
  EXPECT_EQ(ParseScheduleMessage(writer.Finish(), kLimits)->step, StepId(1));
  EXPECT_TRUE(writer.Finish().empty());
}

TEST(ScheduleWriter, StepsDoNotGoBack) {
  ScheduleWriter writer = NewWriter();
  ASSERT_TRUE(writer.Begin(StepId(7), 0).ok());
  EXPECT_FALSE(writer.Finish().empty());
  EXPECT_EQ(writer.Begin(StepId(6), 0).message(),
            "step must not be before the step of an earlier message, 7; it is 6");
  EXPECT_EQ(writer.Begin(StepId(~std::uint64_t{0}), 0).message(),
            "step must be below 2^64 - 1; it is 18446744073709551615");
  EXPECT_EQ(writer.Begin(StepId(), 4).message(), "version must be 0 without a step; it is 4");
  ASSERT_TRUE(writer.Begin(StepId(), 0).ok());
  EXPECT_FALSE(writer.Finish().empty());
  EXPECT_FALSE(writer.Begin(StepId(6), 0).ok());
  EXPECT_TRUE(writer.Begin(StepId(7), 0).ok());
}

struct Refusal {
  std::vector<Event> events;
  std::string message;  // behind "events" or "items"
};

// Events that Report refuses.
std::vector<Refusal> Refusals() {
  const Event good = Event::Bind(BlockId(1));
  const auto with = [&good](auto change) {
    Event event = good;
    change(event);
    return event;
  };
  return {
      {{good, with([](Event& e) { e.type = static_cast<EventType>(0); })},
       "[1].type must be the number of an event, in [1, 8]; it is 0"},
      {{with([](Event& e) { e.type = static_cast<EventType>(9); })},
       "[0].type must be the number of an event, in [1, 8]; it is 9"},
      {{good, good, Event::Release(BlockId(8))},
       "[2].block must be negative (null) or less than num_blocks; it is 8; num_blocks is 8"},
      {{with([](Event& e) { e.key_size = 33; })}, "[0].key_size must be at most 32; it is 33"},
      {{Event::Copy(BlockId(9), BlockId(1))},
       "[0].src must be negative (null) or less than num_blocks; it is 9; num_blocks is 8"},
      {{Event::Move(BlockId(10), BlockId(1))},
       "[0].src must be negative (null) or less than num_blocks; it is 10; num_blocks is 8"},
      {{Event::Copy(BlockId(3), BlockId(3), 1)},
       "[0].src must be another block than the destination; it is 3"},
      {{Event::Copy(BlockId(3), BlockId(4), 5)},
       "[0].rows must be in [0, block_tokens] (Copy: or kAllRows); it is 5; block_tokens is 4"},
      {{Event::Copy(BlockId(3), BlockId(4), -2)},
       "[0].rows must be in [0, block_tokens] (Copy: or kAllRows); it is -2; block_tokens is 4"},
      {{Event::Truncate(BlockId(3), 5, StepId(1))},
       "[0].rows must be in [0, block_tokens] (Copy: or kAllRows); it is 5; block_tokens is 4"},
      {{Event::Truncate(BlockId(3), -1, StepId(1))},
       "[0].rows must be in [0, block_tokens] (Copy: or kAllRows); it is -1; block_tokens is 4"},
      {{Event::Seal(BlockId(3), LongKey(), StepId(13))},
       "[0].step of a Seal must be 0 (the step that is begun next), or not be later than that "
       "step; "
       "it is 13; the latest step is 12"},
      {{good, Event::Move(BlockId(1), BlockId(2), true)},
       "[1].more must be 0 in the last Move of a group, which is reported as a whole; it is 1"},
      {{Event::Move(BlockId(1), BlockId(2), true), good},
       "[0].more must be 0 in the last Move of a group, which is reported as a whole; it is 1"},
      {{good, Event::Move(BlockId(1), BlockId(2), true), Event::Move(BlockId(3), BlockId(2))},
       "[1]: no block may be twice the source, or twice the destination, of the Moves of a group; "
       "block 2 is"},
      {{Event::Move(BlockId(1), BlockId(2), true), Event::Move(BlockId(4), BlockId(5), true),
        Event::Move(BlockId(1), BlockId(3))},
       "[0]: no block may be twice the source, or twice the destination, of the Moves of a group; "
       "block 1 is"},
  };
}

TEST(ScheduleWriter, EventsThatBreakARuleAreRefusedWhole) {
  ScheduleWriter writer = NewWriter();
  ASSERT_TRUE(writer.Begin(StepId(12), 3).ok());
  ASSERT_TRUE(writer.Report(OneOfEach()).ok());
  for (const Refusal& refusal : Refusals()) {
    const absl::Status status = writer.Report(refusal.events);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), "events" + refusal.message);
  }
  EXPECT_THAT(writer.Finish(), ElementsAreArray(WithEvents(OneOfEach())));
}

TEST(ScheduleWriter, TwoGroupsOfMovesMayNameABlockEach) {
  const std::vector<Event> events = {
      Event::Move(BlockId(1), BlockId(2), true),  Event::Move(BlockId(2), BlockId(1)),
      Event::Move(BlockId(1), BlockId(2), true),  Event::Move(BlockId(2), BlockId(1)),
      Event::Move(BlockId(1), BlockId(3)),        Event::Move(BlockId(1), BlockId(3)),
      Event::Move(BlockId(-1), BlockId(4), true), Event::Move(BlockId(-1), BlockId(5))};
  EXPECT_EQ(ParseScheduleMessage(WithEvents(events), kLimits)->events, events);
}

TEST(ScheduleWriter, WithoutAStepASealMayNameAnyStep) {
  ScheduleWriter writer = NewWriter();
  ASSERT_TRUE(writer.Begin(StepId(), 0).ok());
  const Event last = Event::Seal(BlockId(1), LongKey(), StepId(~std::uint64_t{0} - 1));
  const Event none = Event::Seal(BlockId(1), LongKey(), StepId(~std::uint64_t{0}));
  EXPECT_TRUE(writer.Report({&last, 1}).ok());
  EXPECT_FALSE(writer.Report({&none, 1}).ok());
}

TEST(ScheduleWriter, SnapshotsThatBreakARuleAreRefused) {
  ScheduleWriter writer = NewWriter();
  ASSERT_TRUE(writer.Begin(StepId(), 0).ok());
  const std::vector<BlockId> outside = {BlockId(1), BlockId(8)};
  EXPECT_EQ(writer.Snapshot(5, outside, 0, 1).message(),
            "blocks[1] must be negative (null) or less than num_blocks, 8; it is 8");
  const auto rows = [&writer](std::int64_t first, std::int64_t last) {
    return std::string(writer.Snapshot(5, kBlocks, first, last).message());
  };
  const std::string rule =
      "rows [first, last) must satisfy 0 <= first <= last <= 12 (3 blocks of 4 tokens); they are ";
  EXPECT_EQ(rows(-1, 2), rule + "[-1, 2)");
  EXPECT_EQ(rows(3, 2), rule + "[3, 2)");
  EXPECT_EQ(rows(0, 13), rule + "[0, 13)");
  EXPECT_EQ(writer.Finish().size(), kHeaderBytes + kCheckBytes);
}

TEST(ScheduleWriter, AMessageThatIsFullIsSentAndAnotherBegun) {
  ScheduleWriter writer = NewWriter(
      {.num_blocks = 8, .block_tokens = 4, .max_bytes = 64 + 8 + 12 + 44, .max_snapshots = 1});
  const Event bind = Event::Bind(BlockId(1));
  const Event copy = Event::Copy(BlockId(1), BlockId(2));
  ASSERT_TRUE(writer.Begin(StepId(3), 0).ok());
  ASSERT_TRUE(writer.Snapshot(1, kBlocks, 0, 1).ok());
  const absl::Status second = writer.Snapshot(2, {}, 0, 0);
  EXPECT_EQ(second.code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(writer.Report({&bind, 1}).ok());
  const absl::Status full = writer.Report({&copy, 1});
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(),
            "schedule message: its bytes must be at most max_bytes, 128; it has 132");
  ASSERT_TRUE(writer.Forget(9).ok());
  EXPECT_EQ(writer.Forget(9).code(), absl::StatusCode::kResourceExhausted);
  const auto message = ParseScheduleMessage(writer.Finish(), kLimits);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->items.size(), 3u);
  ASSERT_TRUE(writer.Begin(StepId(3), 0).ok());
  EXPECT_TRUE(writer.Report({&copy, 1}).ok());
  EXPECT_TRUE(writer.Snapshot(2, {}, 0, 0).ok());
  ScheduleWriter other = NewWriter();
  ASSERT_TRUE(other.Begin(StepId(3), 0).ok());
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(other.Snapshot(2, {}, 0, 0).ok());
  EXPECT_EQ(other.Snapshot(2, {}, 0, 0).message(),
            "schedule message: its snapshots must be at most max_snapshots, 3; it has 4");
}

// The same events are valid for a message and for a store.
TEST(ScheduleWriter, AcceptsWhatAStoreAccepts) {
  SCOPED_TRACE(::testing::Message() << "WAYMARK_SEED=" << TestSeed());
  std::mt19937_64 random(TestSeed());
  StoreOptions options;
  options.shape = {.num_layers = 2, .top_k = 2, .num_experts = 8, .page_tokens = 2};
  options.num_blocks = kLimits.num_blocks;
  options.block_tokens = kLimits.block_tokens;
  options.landing = Landing::kCaller;
  auto store = RoutingStore::Create(options).value();
  const auto number = [&random](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  ScheduleWriter writer = NewWriter();
  int accepted = 0;
  constexpr std::uint64_t kRuns = 20000;
  for (std::uint64_t step = 1; step <= kRuns; ++step) {
    std::vector<Event> events(1 + random() % 4);
    const bool moves = random() % 2 == 0;
    for (Event& event : events) {
      event.type = moves ? EventType::kMove : static_cast<EventType>(number(0, 9));
      event.block = number(-1, random() % 8 == 0 ? 8 : 7);
      event.src = number(-1, random() % 8 == 0 ? 8 : 7);
      event.rows = number(random() % 4 == 0 ? -2 : 0, random() % 4 == 0 ? 5 : 4);
      event.key_size = static_cast<std::uint8_t>(random() % 8 == 0 ? number(30, 34) : number(0, 3));
      event.step = std::max<std::uint64_t>(1, step - 1 + random() % 3);
      event.more = event.type == EventType::kMove && &event != &events.back();
    }
    for (std::size_t i = 0; i + 1 < events.size(); ++i)
      events[i].more &= static_cast<std::uint8_t>(events[i + 1].type == EventType::kMove);
    StepBatch batch{.step = step, .events = events.data(), .num_events = events.size()};
    const bool store_accepts = store->BeginStep(batch).ok();
    if (store_accepts) {
      ASSERT_TRUE(store->Cancel(StepId(step)).ok());
    }
    ASSERT_TRUE(writer.Begin(StepId(step), 0).ok());
    const absl::Status status = writer.Report(events);
    EXPECT_EQ(status.ok(), store_accepts) << status;
    const auto message = ParseScheduleMessage(writer.Finish(), kLimits);
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(message->events.size(), status.ok() ? events.size() : 0);
    accepted += status.ok() ? 1 : 0;
  }
  EXPECT_GT(accepted, kRuns / 10);
  EXPECT_LT(accepted, kRuns * 9 / 10);
}

TEST(ScheduleWriter, DoesNotAllocateWhenWarm) {
  ScheduleWriter writer = NewWriter();
  ScheduleMessage message;
  const std::vector<Event> events = OneOfEach();
  std::uint64_t before = 0;
  for (int i = 0; i < 5; ++i) {
    if (i == 3) before = AllocationCount();
    const bool written = writer.Begin(StepId(12), 1).ok() && writer.Report(events).ok() &&
                         writer.Snapshot(3, kBlocks, 0, 3).ok() && writer.Report(events).ok() &&
                         writer.Forget(3).ok();
    if (!written) FAIL();
    auto parsed = ParseScheduleMessage(writer.Finish(), kLimits, std::move(message));
    if (!parsed.ok()) FAIL();
    message = *std::move(parsed);
  }
  EXPECT_EQ(AllocationCount(), before);
  EXPECT_EQ(message.events.size(), 2 * events.size());
}

// ---- the parser

TEST(ParseScheduleMessage, TheHeaderIsChecked) {
  const Bytes good = Sample();
  ExpectRefused({}, "schedule message: it must have at least 64 bytes; it has 0");
  ExpectRefused(Bytes(63), "schedule message: it must have at least 64 bytes; it has 63");
  ExpectRefused(Changed(good, 3, '2'),
                "schedule message: it must begin with WMS1; it begins with 87 77 83 50");
  Bytes longer = good;
  longer.push_back(0);
  ExpectRefused(longer, "schedule message: bytes must be their number, " +
                            std::to_string(longer.size()) + "; it is " +
                            std::to_string(good.size()));
  Bytes damaged = good;
  damaged[60] ^= 1;
  EXPECT_THAT(std::string(ParseScheduleMessage(damaged, kLimits).status().message()),
              HasSubstr("schedule message: it is damaged: check must be "));
  ExpectRefused(Changed(good, 8, std::uint64_t{0}),
                "schedule message: epoch must not be 0; it is 0");
  ExpectRefused(Changed(good, 16, std::uint64_t{0}),
                "schedule message: sequence must be at least 1; it is 0");
  ExpectRefused(Changed(good, 24, ~std::uint64_t{0}),
                "schedule message: step must be below 2^64 - 1; it is 18446744073709551615");
  ExpectRefused(Changed(good, 24, std::uint64_t{0}),
                "schedule message: version must be 0 without a step; it is 3");
  ScheduleLimits small = kLimits;
  small.max_bytes = 100;
  ExpectRefused(good,
                "schedule message: its bytes must be at most max_bytes, 100; it has " +
                    std::to_string(good.size()),
                absl::StatusCode::kResourceExhausted, small);
  small = kLimits;
  small.max_snapshots = 1;
  ExpectRefused(good, "schedule message: its snapshots must be at most max_snapshots, 1; it has 2",
                absl::StatusCode::kResourceExhausted, small);
}

TEST(ParseScheduleMessage, TheCountsAreThoseOfTheItems) {
  const Bytes good = Sample();
  ExpectRefused(Changed(good, 40, std::uint32_t{13}),
                "schedule message: num_events must be the number in its items, which is 14 or "
                "more; it is 13");
  ExpectRefused(Changed(good, 40, std::uint32_t{15}),
                "schedule message: num_events must be the number in its items, which is 14; it is "
                "15");
  ExpectRefused(Changed(good, 44, std::uint32_t{1}),
                "schedule message: num_snapshots must be the number in its items, which is 2 or "
                "more; it is 1");
  ExpectRefused(Changed(good, 44, std::uint32_t{3}),
                "schedule message: num_snapshots must be the number in its items, which is 2; it "
                "is 3");
  ExpectRefused(Changed(good, 48, std::uint32_t{0}),
                "schedule message: num_forgets must be the number in its items, which is 1 or "
                "more; it is 0");
  ExpectRefused(Changed(good, 48, std::uint32_t{2}),
                "schedule message: num_forgets must be the number in its items, which is 1; it is "
                "2");
  ExpectRefused(Changed(good, 52, std::uint32_t{2}),
                "schedule message: num_blocks must be the number in its items, which is 3 or "
                "more; it is 2");
  ExpectRefused(Changed(good, 52, std::uint32_t{4}),
                "schedule message: num_blocks must be the number in its items, which is 3; it is "
                "4");
}

// Before a vector is sized from them.
TEST(ParseScheduleMessage, CountsThatDoNotFitTheBytesAreRefusedAtOnce) {
  const Bytes good = WithEvents({Event::Reset()});
  constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();
  ExpectRefused(Changed(good, 40, std::uint32_t{2}),
                "schedule message: its counts must fit the 4 bytes of its items; 2 events, 0 "
                "snapshots, 0 forgets and 0 blocks take at least 8");
  for (const std::size_t at : {40, 44, 48, 52}) {
    ScheduleLimits limits = kLimits;
    limits.max_snapshots = kMost;
    const auto parsed = ParseScheduleMessage(Changed(good, at, kMost), limits);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("its counts must fit the 4"));
  }
  // The list of a snapshot: 2^32 - 1 blocks.
  ExpectRefused(Changed(WithSnapshot(kBlocks, 0, 3), kHeaderBytes + 4, kMost),
                "schedule message: items[0] must be complete; it is cut off");
}

TEST(ParseScheduleMessage, MemoryIsBoundedByTheBytes) {
  ScheduleLimits limits = kLimits;
  limits.max_bytes = 1 << 16;
  ScheduleWriter forgets = NewWriter(limits);
  ASSERT_TRUE(forgets.Begin(StepId(), 0).ok());
  const Event reset = Event::Reset();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(forgets.Forget(1).ok());
    ASSERT_TRUE(forgets.Report({&reset, 1}).ok());
  }
  const std::span<const std::uint8_t> bytes = forgets.Finish();
  for (const Bytes& message : {Sample(), Bytes(bytes.begin(), bytes.end()),
                               WithEvents(std::vector<Event>(1000, reset), limits),
                               WithSnapshot(kBlocks, 0, 3), WithEvents({})}) {
    const auto parsed = ParseScheduleMessage(message, limits);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_LE(parsed->items.capacity() * sizeof(ScheduleItem) +
                  parsed->events.capacity() * sizeof(Event) +
                  parsed->blocks.capacity() * sizeof(BlockId),
              16 * message.size());
  }
}

TEST(ParseScheduleMessage, TheHeadOfAnItemIsChecked) {
  const Bytes bind = WithEvents({Event::Bind(BlockId(1), BlockKey::FromInteger(1))});
  const Bytes retain = WithEvents({Event::Retain(BlockId(1))});
  const Bytes move = WithEvents({Event::Move(BlockId(1), BlockId(2))});
  const Bytes snapshot = WithSnapshot(kBlocks, 0, 3);
  constexpr std::size_t kItem = kHeaderBytes;
  ExpectRefused(Changed(bind, kItem + 2, std::uint8_t{1}),
                "schedule message: items[0].zero must be 0; it is 1");
  ExpectRefused(Changed(bind, kItem + 3, std::uint8_t{1}),
                "schedule message: items[0].zero must be 0; it is 256");
  ExpectRefused(Changed(bind, kItem + 1, std::uint8_t{33}),
                "schedule message: items[0].detail must be at most 32 in an item of kind 1; it is "
                "33");
  ExpectRefused(Changed(move, kItem + 1, std::uint8_t{2}),
                "schedule message: items[0].detail must be at most 1 in an item of kind 6; it is "
                "2");
  ExpectRefused(Changed(retain, kItem + 1, std::uint8_t{1}),
                "schedule message: items[0].detail must be at most 0 in an item of kind 2; it is "
                "1");
  ExpectRefused(Changed(snapshot, kItem + 1, std::uint8_t{1}),
                "schedule message: items[0].detail must be at most 0 in an item of kind 9; it is "
                "1");
  for (const int kind : {0, 11, 12, 255}) {
    ExpectRefused(
        Changed(retain, kItem, static_cast<std::uint8_t>(kind)),
        "schedule message: items[0].kind must be in [1, 10]; it is " + std::to_string(kind));
  }
}

// Records of a log inside a process (begin, submit, ...) have no number here.
TEST(ParseScheduleMessage, ThereAreTenKindsOfItems) {
  const Bytes retain = WithEvents({Event::Retain(BlockId(1))});
  int known = 0;
  for (int kind = 0; kind < 256; ++kind) {
    const auto parsed = ParseScheduleMessage(
        Changed(retain, kHeaderBytes, static_cast<std::uint8_t>(kind)), kLimits);
    const std::string message(parsed.ok() ? "" : parsed.status().message());
    known += message.find(".kind must be") == std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(known, 10);
}

TEST(ParseScheduleMessage, EventsThatBreakARuleAreRefused) {
  // Written within wide limits; what these refuse as well is changed afterwards.
  ScheduleLimits wide = kLimits;
  wide.num_blocks = 100;
  wide.block_tokens = 100;
  int compared = 0;
  for (const Refusal& refusal : Refusals()) {
    ScheduleWriter writer = NewWriter(wide);
    ASSERT_TRUE(writer.Begin(StepId(12), 3).ok());
    if (!writer.Report(refusal.events).ok()) continue;
    const std::span<const std::uint8_t> bytes = writer.Finish();
    ExpectRefused({bytes.begin(), bytes.end()}, "schedule message: items" + refusal.message);
    ++compared;
  }
  EXPECT_EQ(compared, 5);
  constexpr std::size_t kItem = kHeaderBytes;
  ExpectRefused(Changed(WithEvents({Event::Copy(BlockId(3), BlockId(4))}), kItem + 8, 4),
                "schedule message: items[0].src must be another block than the destination; it is "
                "4");
  ExpectRefused(
      Changed(WithEvents({Event::Copy(BlockId(3), BlockId(4))}), kItem + 12, -2),
      "schedule message: items[0].rows must be in [0, block_tokens] (Copy: or kAllRows); it is -2; "
      "block_tokens is 4");
  ExpectRefused(
      Changed(WithEvents({Event::Truncate(BlockId(3), 1, StepId(1))}), kItem + 8, -1),
      "schedule message: items[0].rows must be in [0, block_tokens] (Copy: or kAllRows); it is -1; "
      "block_tokens is 4");
  ExpectRefused(
      Changed(WithEvents({Event::Seal(BlockId(3), LongKey(), StepId(1))}), kItem + 8,
              std::uint64_t{13}),
      "schedule message: items[0].step of a Seal must be 0 (the step that is begun next), "
      "or not be later than that step; it is 13; the latest step is 12");
  const Event move = Event::Move(BlockId(1), BlockId(2));
  const std::string not_whole =
      ".more must be 0 in the last Move of a group, which is reported as a whole; it is 1";
  const std::string twice =
      ": no block may be twice the source, or twice the destination, of the Moves of a group; "
      "block "
      "1 is";
  ExpectRefused(Changed(WithEvents({move}), kItem + 1, std::uint8_t{1}),
                "schedule message: items[0]" + not_whole);
  ExpectRefused(Changed(WithEvents({move, Event::Reset()}), kItem + 1, std::uint8_t{1}),
                "schedule message: items[0]" + not_whole);
  ExpectRefused(Changed(WithEvents({Event::Reset(), Event::Move(BlockId(1), BlockId(2)),
                                    Event::Move(BlockId(1), BlockId(3))}),
                        kItem + 5, std::uint8_t{1}),
                "schedule message: items[1]" + twice);
  ExpectRefused(Changed(WithEvents({move, move}), kItem + 1, std::uint8_t{1}),
                "schedule message: items[0]" + twice);
}

// A snapshot between two Moves ends their group: the items keep their numbers.
TEST(ParseScheduleMessage, AGroupOfMovesIsNotInterrupted) {
  ScheduleWriter writer = NewWriter();
  const Event move = Event::Move(BlockId(1), BlockId(2));
  ASSERT_TRUE(writer.Begin(StepId(12), 3).ok());
  ASSERT_TRUE(writer.Forget(1).ok());
  ASSERT_TRUE(writer.Report({&move, 1}).ok());
  ASSERT_TRUE(writer.Forget(1).ok());
  ASSERT_TRUE(writer.Report({&move, 1}).ok());
  const std::span<const std::uint8_t> bytes = writer.Finish();
  ExpectRefused(
      Changed({bytes.begin(), bytes.end()}, kHeaderBytes + 12 + 1, std::uint8_t{1}),
      "schedule message: items[1].more must be 0 in the last Move of a group, which is reported "
      "as a whole; it is 1");
}

TEST(ParseScheduleMessage, SnapshotsThatBreakARuleAreRefused) {
  ScheduleLimits wide = kLimits;
  wide.num_blocks = 9;
  const std::vector<BlockId> outside = {BlockId(1), BlockId(8)};
  ExpectRefused(WithSnapshot(outside, 0, 1, wide),
                "schedule message: items[0].blocks[1] must be negative (null) or less than "
                "num_blocks, 8; it is 8");
  const std::string rule =
      "schedule message: items[0].rows [first, last) must satisfy 0 <= first <= last <= 12 (3 "
      "blocks of 4 tokens); they are ";
  const Bytes good = WithSnapshot(kBlocks, 1, 2);
  constexpr std::size_t kFirst = kHeaderBytes + 16;
  ExpectRefused(Changed(good, kFirst, std::int64_t{-1}), rule + "[-1, 2)");
  ExpectRefused(Changed(good, kFirst, std::int64_t{3}), rule + "[3, 2)");
  ExpectRefused(Changed(good, kFirst + 8, std::int64_t{13}), rule + "[1, 13)");
}

TEST(ParseScheduleMessage, WhatIsCutOffOrTooLongIsRefused) {
  const Bytes good = Sample();
  for (std::size_t size = 0; size < good.size(); ++size) {
    Bytes bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(ParseScheduleMessage(bytes, kLimits).ok()) << size;
    Correct(bytes);
    EXPECT_FALSE(ParseScheduleMessage(bytes, kLimits).ok()) << size << ", check corrected";
  }
  for (const std::size_t cut : {1, 3, 5, 11}) {  // of the 12 bytes of the forget at the end
    Bytes bytes = good;
    bytes.erase(bytes.end() - kCheckBytes - static_cast<std::ptrdiff_t>(cut),
                bytes.end() - kCheckBytes);
    Correct(bytes);
    ExpectRefused(bytes, "schedule message: items[16] must be complete; it is cut off");
  }
  for (const std::size_t more : {1, 3, 4, 8, 12, 100}) {
    Bytes bytes = good;
    bytes.insert(bytes.end() - kCheckBytes, more, 0);
    Correct(bytes);
    EXPECT_FALSE(ParseScheduleMessage(bytes, kLimits).ok()) << more;
  }
}

TEST(ParseScheduleMessage, EveryChangedByteIsFound) {
  const Bytes good = Sample();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes bytes = good;
      bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ (1 << bit));
      EXPECT_FALSE(ParseScheduleMessage(bytes, kLimits).ok()) << at;
    }
  }
}

// Behind a right check: refused, or within the limits and written as the same bytes again.
void ExpectSafe(const Bytes& bytes, int& accepted) {
  const auto parsed = ParseScheduleMessage(bytes, kLimits);
  if (!parsed.ok()) {
    ASSERT_FALSE(parsed.status().message().empty());
    return;
  }
  ++accepted;
  ASSERT_TRUE(WithinLimits(*parsed, kLimits));
  ASSERT_EQ(Written(*parsed, kLimits), bytes);
}

TEST(ParseScheduleMessage, EveryByteMayHaveAnyValue) {
  const Bytes good = Sample();
  int accepted = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte)
      ExpectSafe(Changed(good, at, static_cast<std::uint8_t>(byte)), accepted);
  }
  EXPECT_GT(accepted, 1000);
}

TEST(ParseScheduleMessage, RandomChangesAreSafe) {
  SCOPED_TRACE(::testing::Message() << "WAYMARK_SEED=" << TestSeed());
  std::mt19937_64 random(TestSeed());
  const Bytes good = Sample();
  int accepted = 0;
  for (int run = 0; run < 50000; ++run) {
    Bytes bytes = good;
    for (std::size_t changes = 1 + random() % 4; changes > 0; --changes) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<std::uint8_t>(random());
          break;
        case 1:
          bytes[at] = static_cast<std::uint8_t>(random() % 16);
          break;
        case 2:
          bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
          break;
        default:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), 1 + random() % 8, 0);
          break;
      }
    }
    if (random() % 8 != 0) Correct(bytes);
    ExpectSafe(bytes, accepted);
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace waymark
