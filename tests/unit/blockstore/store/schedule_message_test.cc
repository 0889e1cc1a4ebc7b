#include "blockstore/store/schedule_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "blockstore/store/store.h"
#include "tests/support/failing_new.h"
#include "tests/support/schedule_messages.h"
#include "tests/support/test_seed.h"

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
constexpr std::size_t kHeaderBytes = 24;
constexpr std::size_t kScheduleBytes = 24;  // its record
// The first event of the record behind that of the schedule.
constexpr std::size_t kFirstEvent = kHeaderBytes + kScheduleBytes + 16;
constexpr std::size_t kCheckBytes = 8;

ScheduleWriter NewWriter(const ScheduleLimits& limits = kLimits) {
  return ScheduleWriter::Create(limits, kEpoch).value();
}
// With an open message: of step 0, none.
ScheduleWriter OpenWriter(std::uint64_t step, const ScheduleLimits& limits = kLimits) {
  ScheduleWriter writer = NewWriter(limits);
  EXPECT_TRUE(writer.Begin(StepId(step), step == 0 ? 0 : 3).ok());
  return writer;
}

Bytes Finished(ScheduleWriter& writer) {
  const std::span<const std::uint8_t> bytes = writer.Finish();
  return {bytes.begin(), bytes.end()};
}

// The message, which must be right.
ScheduleMessage Parsed(std::span<const std::uint8_t> bytes) {
  return ParseScheduleMessage(bytes, kLimits).value();
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
  const std::vector<Event> events = OneOfEach();
  ScheduleWriter writer = OpenWriter(12);
  EXPECT_TRUE(writer.Report(std::span(events).first(2)).ok());
  EXPECT_TRUE(writer.Snapshot(900, kBlocks, 2, 12).ok());
  EXPECT_TRUE(writer.Snapshot(0, {}, 0, 0).ok());
  EXPECT_TRUE(writer.Report(std::span(events).subspan(2)).ok());
  EXPECT_TRUE(writer.Forget(~std::uint64_t{0}).ok());
  return Finished(writer);
}

// A message with these events alone.
Bytes WithEvents(const std::vector<Event>& events, const ScheduleLimits& limits = kLimits) {
  ScheduleWriter writer = OpenWriter(12, limits);
  EXPECT_TRUE(writer.Report(events).ok());
  return Finished(writer);
}

Bytes WithSnapshot(std::span<const BlockId> blocks, std::int64_t first, std::int64_t last,
                   const ScheduleLimits& limits = kLimits) {
  ScheduleWriter writer = OpenWriter(0, limits);
  EXPECT_TRUE(writer.Snapshot(5, blocks, first, last).ok());
  return Finished(writer);
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
  const ScheduleMessage message = Parsed(Sample());
  EXPECT_EQ(message.epoch, kEpoch);
  EXPECT_EQ(message.sequence, 1u);
  EXPECT_EQ(message.step, StepId(12));
  EXPECT_EQ(message.version, 3u);
  EXPECT_EQ(message.events, OneOfEach());
  EXPECT_EQ(message.blocks, kBlocks);
  ASSERT_EQ(message.items.size(), 5u);
  EXPECT_EQ(message.items[0], (ScheduleItem{.begin = 0, .end = 2}));
  EXPECT_EQ(
      message.items[1],
      (ScheduleItem{
          .kind = Kind::kSnapshot, .tag = 900, .first = 2, .last = 12, .begin = 0, .end = 3}));
  EXPECT_EQ(message.items[2], (ScheduleItem{.kind = Kind::kSnapshot, .begin = 3, .end = 3}));
  EXPECT_EQ(message.items[3], (ScheduleItem{.begin = 2, .end = 14}));
  EXPECT_EQ(message.items[4], (ScheduleItem{.kind = Kind::kForget, .tag = ~std::uint64_t{0}}));
  EXPECT_EQ(message.EventsOf(message.items[3]).front(), Event::Bind(BlockId(-3)));
  EXPECT_EQ(message.BlocksOf(message.items[1]).back(), BlockId(7));
  EXPECT_TRUE(WithinLimits(message, kLimits));
  EXPECT_EQ(Written(message, kLimits), Sample());
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
  ASSERT_TRUE(writer.Snapshot(0x0a0b, kBlocks, 5, 12).ok());
  ASSERT_TRUE(writer.Forget(0x0c).ok());
  // clang-format off
  const Bytes expected = {
      'W', 'M', 'S', '2',  224, 0, 0, 0,
      0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  1, 0, 0, 0, 0, 0, 0, 0,
      24, 0, 0, 0, 1, 0, 0, 0,  2, 1, 0, 0, 0, 0, 0, 0,  5, 0, 0, 0, 0, 0, 0, 0,
      96, 0, 0, 0, 2, 0, 0, 0,  79, 0, 0, 0, 0, 0, 0, 0,
      1, 0, 0, 0,  1, 0, 0, 0,
      4, 3, 0, 0,  2, 0, 0, 0,  4, 0, 0, 0, 0, 0, 0, 0,  9, 8, 7,
      5, 0, 0, 0,  4, 0, 0, 0,  3, 0, 0, 0,  2, 0, 0, 0,
      6, 0, 0, 0,  6, 0, 0, 0,  5, 0, 0, 0,
      7, 0, 0, 0,  7, 0, 0, 0,  1, 0, 0, 0,  8, 0, 0, 0, 0, 0, 0, 0,
      8, 0, 0, 0,
      0,
      56, 0, 0, 0, 4, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,  0x0b, 0x0a, 0, 0, 0, 0, 0, 0,
      5, 0, 0, 0, 0, 0, 0, 0,  12, 0, 0, 0, 0, 0, 0, 0,  2, 0, 0, 0,  1, 0, 0, 0,
      0xff, 0xff, 0xff, 0xff,  7, 0, 0, 0,
      16, 0, 0, 0, 6, 0, 0, 0,  0x0c, 0, 0, 0, 0, 0, 0, 0,
  };
  // clang-format on
  const std::span<const std::uint8_t> bytes = writer.Finish();
  EXPECT_THAT(bytes.first(bytes.size() - kCheckBytes), ElementsAreArray(expected));
  std::uint64_t check = 0;
  std::memcpy(&check, bytes.data() + bytes.size() - kCheckBytes, sizeof(check));
  EXPECT_EQ(check, 7201324030261833007u) << "XXH3-64 of the bytes above";
}

TEST(ScheduleMessage, AMessageWithoutAStepCarriesEventsSnapshotsAndForgets) {
  ScheduleWriter writer = OpenWriter(0);
  const Event events[] = {Event::Release(BlockId(2)),
                          Event::Seal(BlockId(1), LongKey(), StepId(1000))};
  ASSERT_TRUE(writer.Snapshot(4, kBlocks, 0, 9).ok());
  ASSERT_TRUE(writer.Report(events).ok());
  ASSERT_TRUE(writer.Forget(3).ok());
  const ScheduleMessage message = Parsed(writer.Finish());
  EXPECT_FALSE(message.step.valid());
  EXPECT_EQ(message.items.size(), 3u);
}

TEST(ScheduleMessage, AMessageMayHaveNoItems) {
  ScheduleWriter writer = NewWriter();
  ASSERT_TRUE(writer.Begin(StepId(7), 1).ok());
  ASSERT_TRUE(writer.Report({}).ok());
  const std::span<const std::uint8_t> bytes = writer.Finish();
  EXPECT_EQ(bytes.size(), kHeaderBytes + kScheduleBytes + kCheckBytes);
  const ScheduleMessage message = Parsed(bytes);
  EXPECT_TRUE(message.items.empty());
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

// ---- the writer

TEST(ScheduleWriter, MessagesAreNumberedFromOne) {
  ScheduleWriter writer = NewWriter();
  EXPECT_EQ(writer.epoch(), kEpoch);
  for (std::uint64_t number = 1; number <= 3; ++number) {
    ASSERT_TRUE(writer.Begin(StepId(40), 2).ok());
    const ScheduleMessage message = Parsed(writer.Finish());
    EXPECT_EQ(message.sequence, number);
    EXPECT_EQ(message.epoch, kEpoch);
    EXPECT_EQ(message.step, StepId(40)) << "several messages may be of one step";
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
  auto writer = ScheduleWriter::Create(kLimits, 5, 17).value();
  ASSERT_TRUE(writer.Begin(StepId(), 0).ok());
  const auto message = ParseScheduleMessage(writer.Finish(), kLimits);
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
      {{Event::Truncate(BlockId(3), 5, StepId(1))},
       "[0].rows must be in [0, block_tokens] (Copy: or kAllRows); it is 5; block_tokens is 4"},
      {{Event::Seal(BlockId(3), LongKey(), StepId(13))},
       "[0].step of a Seal must be 0 (the step that is begun next), or not be later than that "
       "step; "
       "it is 13; the latest step is 12"},
      {{good, Event::Move(BlockId(1), BlockId(2), true)},
       "[1].more must be 0 in the last Move of a group, which is reported as a whole; it is 1"},
      {{good, Event::Move(BlockId(1), BlockId(2), true), Event::Move(BlockId(3), BlockId(2))},
       "[1]: no block may be twice the source, or twice the destination, of the Moves of a group; "
       "block 2 is"},
  };
}

TEST(ScheduleWriter, EventsThatBreakARuleAreRefusedWhole) {
  ScheduleWriter writer = OpenWriter(12);
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
  ScheduleWriter writer = OpenWriter(0);
  const Event last = Event::Seal(BlockId(1), LongKey(), StepId(~std::uint64_t{0} - 1));
  const Event none = Event::Seal(BlockId(1), LongKey(), StepId(~std::uint64_t{0}));
  EXPECT_TRUE(writer.Report({&last, 1}).ok());
  EXPECT_FALSE(writer.Report({&none, 1}).ok());
}

TEST(ScheduleWriter, SnapshotsThatBreakARuleAreRefused) {
  ScheduleWriter writer = OpenWriter(0);
  const std::vector<BlockId> outside = {BlockId(1), BlockId(8)};
  EXPECT_EQ(writer.Snapshot(5, outside, 0, 5).message(),
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
  ScheduleWriter writer = NewWriter({.num_blocks = 8,
                                     .block_tokens = 4,
                                     .max_bytes = 32 + 24 + 56 + 24 + 16,
                                     .max_snapshots = 1});
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
            "schedule message: its bytes must be at most max_bytes, 152; it has 168");
  ASSERT_TRUE(writer.Forget(9).ok());
  EXPECT_EQ(writer.Forget(9).code(), absl::StatusCode::kResourceExhausted);
  const ScheduleMessage message = Parsed(writer.Finish());
  EXPECT_EQ(message.items.size(), 3u);
  ASSERT_TRUE(writer.Begin(StepId(3), 0).ok());
  EXPECT_TRUE(writer.Report({&copy, 1}).ok());
  EXPECT_TRUE(writer.Snapshot(2, {}, 0, 0).ok());
  ScheduleWriter other = NewWriter();
  ASSERT_TRUE(other.Begin(StepId(3), 0).ok());
  for (std::uint64_t tag = 1; tag <= 3; ++tag)
    ASSERT_TRUE(other.Snapshot(tag, {}, 0, 0).ok());
  EXPECT_EQ(other.Snapshot(4, {}, 0, 0).message(),
            "schedule message: its snapshots must be at most max_snapshots, 3; it has 4");
}

// The same events are valid for a message and for a store.
TEST(ScheduleWriter, AcceptsWhatAStoreAccepts) {
  TestRandom random;
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
    const ScheduleMessage message = Parsed(writer.Finish());
    EXPECT_EQ(message.events.size(), status.ok() ? events.size() : 0);
    accepted += status.ok() ? 1 : 0;
  }
  EXPECT_GT(accepted, kRuns / 10);
  EXPECT_LT(accepted, kRuns * 9 / 10);
}

TEST(ScheduleWriter, DoesNotAllocateWhenWarm) {
  ScheduleWriter writer = NewWriter();
  ScheduleScratch scratch;
  std::vector<std::uint64_t> records(100);
  const std::vector<Event> events = OneOfEach();
  for (int i = 0; i < 5; ++i) {
    if (i == 3) FailAllocation(0);
    const bool written = writer.Begin(StepId(12), 1).ok() && writer.Report(events).ok() &&
                         writer.Snapshot(3, kBlocks, 0, 3).ok() && writer.Report(events).ok() &&
                         writer.Forget(3).ok();
    if (!written) FAIL();
    const std::span<const std::uint8_t> bytes = writer.Finish();
    ScheduleFrame frame;
    if (!ParseScheduleFrame(bytes, kLimits, frame).ok()) FAIL();
    const std::span<std::uint8_t> copy(reinterpret_cast<std::uint8_t*>(records.data()),
                                       frame.records.size());
    std::copy(frame.records.begin(), frame.records.end(), copy.begin());
    if (!CheckScheduleRecords(copy, kLimits, 0, scratch).ok()) FAIL();
  }
  EXPECT_EQ(AllocationsSeen(), 0u);
}

// ---- the parser

TEST(ParseScheduleMessage, TheHeaderIsChecked) {
  const Bytes good = Sample();
  ExpectRefused({}, "schedule message: it must have at least 32 bytes; it has 0");
  ExpectRefused(Bytes(31), "schedule message: it must have at least 32 bytes; it has 31");
  ExpectRefused(Changed(good, 3, '1'),
                "schedule message: it must begin with WMS2; it begins with 87 77 83 49");
  Bytes longer = good;
  longer.push_back(0);
  ExpectRefused(longer, "schedule message: bytes must be their number, " +
                            std::to_string(longer.size()) + "; it is " +
                            std::to_string(good.size()));
  Bytes damaged = good;
  damaged[60] ^= 1;
  EXPECT_THAT(ParseScheduleMessage(damaged, kLimits).status().message(),
              HasSubstr("schedule message: it is damaged: check must be "));
  ExpectRefused(Changed(good, 8, std::uint64_t{0}),
                "schedule message: epoch must not be 0; it is 0");
  ExpectRefused(Changed(good, 16, std::uint64_t{0}),
                "schedule message: sequence must be at least 1; it is 0");
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

TEST(ParseScheduleMessage, TheRecordOfTheScheduleIsChecked) {
  const Bytes good = Sample();
  constexpr std::size_t kStep = kHeaderBytes + 8;
  for (const std::uint64_t step : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    ExpectRefused(Changed(good, kStep, step),
                  "schedule message: records[0].step must be in [1, 2^64 - 2]; it is " +
                      std::to_string(step));
  }
  Bytes twice = good;
  twice.insert(twice.begin() + kHeaderBytes, good.begin() + kHeaderBytes,
               good.begin() + kHeaderBytes + kScheduleBytes);
  Correct(twice);
  ExpectRefused(twice,
                "schedule message: records[1] is of a schedule, which must be the first record");
}

TEST(ParseScheduleMessage, TheHeaderOfARecordIsChecked) {
  const Bytes good = WithEvents({Event::Retain(BlockId(1))});
  constexpr std::size_t kRecord = kHeaderBytes + kScheduleBytes;
  const std::string at = "schedule message: records[1]";
  ExpectRefused(Changed(good, kRecord + 6, std::uint16_t{1}), at + ".flags must be 0; it is 1");
  ExpectRefused(Changed(good, kRecord, std::uint32_t{32}), at + " must be complete; it is cut off");
  for (const std::uint32_t bytes : {0, 1, 7, 8, 15}) {
    ExpectRefused(Changed(good, kRecord, bytes),
                  at + ".bytes must be at least 16; it is " + std::to_string(bytes));
  }
  ExpectRefused(Changed(good, kRecord, std::uint32_t{16}),
                at + ".bytes must be that of its fields, rounded up to a multiple of 8; it is 16");
  ExpectRefused(Changed(good, kRecord + 8, std::uint64_t{0}),
                at + ".bytes must be that of its fields, rounded up to a multiple of 8; it is 24");
  for (const std::uint64_t bytes : {std::uint64_t{9}, ~std::uint64_t{0}, ~std::uint64_t{7}}) {
    ExpectRefused(
        Changed(good, kRecord + 8, bytes),
        at + ".bytes must be that of its fields, rounded up to a multiple of 8; it is 24");
  }
  ExpectRefused(Changed(good, kRecord + 8, std::uint64_t{7}),
                at + ".events[0] must be complete; it is cut off");
  const Bytes reset = WithEvents({Event::Reset()});
  ExpectRefused(Changed(reset, kFirstEvent + 5, std::uint8_t{3}),
                at + " must end with zeros; one is 3");
}

// Records of a log inside a process (steps, poison) are none of a message.
TEST(ParseScheduleMessage, ThereAreFourKindsOfRecords) {
  const Bytes good = WithSnapshot(kBlocks, 0, 3);
  std::set<int> known;
  for (int kind = 0; kind < 300; ++kind) {
    const auto parsed = ParseScheduleMessage(
        Changed(good, kHeaderBytes + 4, static_cast<std::uint16_t>(kind)), kLimits);
    const std::string message(parsed.ok() ? "" : parsed.status().message());
    if (message.find(".kind must be") == std::string::npos) known.insert(kind);
  }
  EXPECT_EQ(known, (std::set<int>{1, 2, 4, 6}));
}

TEST(ParseScheduleMessage, EventsThatBreakARuleAreRefused) {
  // Written within wide limits; what these refuse as well is changed afterwards.
  ScheduleLimits wide = kLimits;
  wide.num_blocks = 100;
  wide.block_tokens = 100;
  int compared = 0;
  for (const Refusal& refusal : Refusals()) {
    ScheduleWriter writer = OpenWriter(12, wide);
    if (!writer.Report(refusal.events).ok()) continue;
    ExpectRefused(Finished(writer), "schedule message: records[1].events" + refusal.message);
    ++compared;
  }
  EXPECT_EQ(compared, 5);
  ExpectRefused(Changed(WithEvents({Event::Copy(BlockId(3), BlockId(4))}), kFirstEvent + 8, 4),
                "schedule message: records[1].events[0].src must be another block than the "
                "destination; it is "
                "4");
  ExpectRefused(Changed(WithEvents({Event::Seal(BlockId(3), LongKey(), StepId(1))}),
                        kFirstEvent + 8, std::uint64_t{13}),
                "schedule message: records[1].events[0].step of a Seal must be 0 (the step that is "
                "begun next), "
                "or not be later than that step; it is 13; the latest step is 12");
  const Event move = Event::Move(BlockId(1), BlockId(2));
  const std::string not_whole =
      ".more must be 0 in the last Move of a group, which is reported as a whole; it is 1";
  const std::string twice =
      ": no block may be twice the source, or twice the destination, of the Moves of a group; "
      "block "
      "1 is";
  ExpectRefused(Changed(WithEvents({move, Event::Reset()}), kFirstEvent + 1, std::uint8_t{1}),
                "schedule message: records[1].events[0]" + not_whole);
  ExpectRefused(Changed(WithEvents({Event::Reset(), Event::Move(BlockId(1), BlockId(2)),
                                    Event::Move(BlockId(1), BlockId(3))}),
                        kFirstEvent + 5, std::uint8_t{1}),
                "schedule message: records[1].events[1]" + twice);
  ExpectRefused(Changed(WithEvents({move, move}), kFirstEvent + 1, std::uint8_t{1}),
                "schedule message: records[1].events[0]" + twice);
}

// The record of its first Move has no other.
TEST(ParseScheduleMessage, AGroupOfMovesIsNotInterrupted) {
  const Event move = Event::Move(BlockId(1), BlockId(2));
  ScheduleWriter writer = OpenWriter(12);
  ASSERT_TRUE(writer.Report({&move, 1}).ok());
  ASSERT_TRUE(writer.Report({&move, 1}).ok());
  ExpectRefused(
      Changed(Finished(writer), kFirstEvent + 1, std::uint8_t{1}),
      "schedule message: records[1].events[0].more must be 0 in the last Move of a group, which is "
      "reported as a whole; it is 1");
}

// The events of a record are read in pieces of 128.
TEST(ParseScheduleMessage, EventsFarBehindAreCounted) {
  ScheduleLimits wide = kLimits;
  wide.num_blocks = 9;
  std::vector<Event> events(300, Event::Retain(BlockId(1)));
  events[290] = Event::Retain(BlockId(8));
  ExpectRefused(WithEvents(events, wide),
                "schedule message: records[1].events[290].block must be negative (null) or less "
                "than num_blocks; it is 8; num_blocks is 8");
}

TEST(ParseScheduleMessage, SnapshotsThatBreakARuleAreRefused) {
  ScheduleLimits wide = kLimits;
  wide.num_blocks = 9;
  const std::string at = "schedule message: records[0]";
  const std::vector<BlockId> outside = {BlockId(1), BlockId(8)};
  ExpectRefused(WithSnapshot(outside, 0, 5, wide),
                at + ".blocks[1] must be negative (null) or less than num_blocks, 8; it is 8");
  const Bytes good = WithSnapshot(kBlocks, 5, 12);  // blocks 1 and 2
  constexpr std::size_t kTicket = kHeaderBytes + 8;
  constexpr std::size_t kFirst = kHeaderBytes + 24;
  ExpectRefused(Changed(good, kTicket, std::uint64_t{8}), at + ".ticket must be 0");
  const auto rows = [&](const char* rest) {
    return at + ": its blocks must be those of its rows; rows " + rest;
  };
  ExpectRefused(Changed(good, kFirst, std::int64_t{-1}), rows("[-1, 12), 2 blocks from block 1"));
  ExpectRefused(Changed(good, kFirst, std::int64_t{3}), rows("[3, 12), 2 blocks from block 1"));
  ExpectRefused(Changed(good, kFirst, std::int64_t{12}), rows("[12, 12), 2 blocks from block 1"));
  ExpectRefused(Changed(good, kFirst, std::int64_t{13}), rows("[13, 12), 2 blocks from block 1"));
  ExpectRefused(Changed(good, kFirst + 8, std::int64_t{13}),
                rows("[5, 13), 2 blocks from block 1"));
  ExpectRefused(Changed(good, kFirst + 8, std::numeric_limits<std::int64_t>::max()),
                rows("[5, 9223372036854775807), 2 blocks from block 1"));
  ExpectRefused(Changed(good, kFirst + 20, std::uint32_t{2}),
                rows("[5, 12), 2 blocks from block 2"));
  // Blocks before the rows take memory where a flight lists them.
  Bytes far = WithSnapshot({}, 0, 0);
  for (const std::size_t field : {kFirst, kFirst + 8})
    far = Changed(far, field, std::int64_t{4 * 1025});
  ExpectRefused(Changed(far, kFirst + 20, std::uint32_t{1025}),
                "schedule message: its bytes must be at most max_bytes, 4096; it has 4100",
                absl::StatusCode::kResourceExhausted);
}

TEST(ScheduleWriter, ASnapshotFarBehindIsRefused) {
  ScheduleWriter writer = OpenWriter(0);
  const std::vector<BlockId> blocks(1025);
  EXPECT_TRUE(writer.Snapshot(1, blocks, 4 * 1023, 4 * 1024).ok());
  EXPECT_EQ(writer.Snapshot(2, blocks, 4 * 1024, 4 * 1025).message(),
            "schedule message: its bytes must be at most max_bytes, 4096; it has 4100");
}

TEST(ParseScheduleMessage, WhatIsCutOffOrTooLongIsRefused) {
  const Bytes good = Sample();
  std::set<std::size_t> ends = {kHeaderBytes};  // of the header and of each record
  for (std::uint32_t bytes = 0; *ends.rbegin() + kCheckBytes < good.size();) {
    std::memcpy(&bytes, good.data() + *ends.rbegin(), sizeof(bytes));
    ends.insert(*ends.rbegin() + bytes);
  }
  EXPECT_EQ(ends.size(), 7u);
  for (std::size_t size = 0; size < good.size(); ++size) {
    Bytes bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(ParseScheduleMessage(bytes, kLimits).ok()) << size;
    // With a right check, fewer records are a message, too.
    Correct(bytes);
    EXPECT_EQ(ParseScheduleMessage(bytes, kLimits).ok(), ends.contains(size - kCheckBytes)) << size;
  }
  for (const std::size_t cut : {1, 3, 5, 11}) {  // of the 16 bytes of the forget at the end
    Bytes bytes = good;
    bytes.erase(bytes.end() - kCheckBytes - static_cast<std::ptrdiff_t>(cut),
                bytes.end() - kCheckBytes);
    Correct(bytes);
    ExpectRefused(bytes, "schedule message: records[5] must be complete; it is cut off");
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

}  // namespace
}  // namespace waymark
