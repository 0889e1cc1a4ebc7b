#include "blockstore/store/event_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/support/describe_event.h"
#include "tests/support/test_seed.h"

namespace waymark {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

using Bytes = std::vector<std::uint8_t>;

constexpr EventLimits kLimits = {.num_blocks = 8, .block_tokens = 4, .last_seal = 10};
constexpr std::int32_t kMaxBlock = std::numeric_limits<std::int32_t>::max() - 1;
constexpr std::uint64_t kMaxStep = std::numeric_limits<std::uint64_t>::max();
constexpr EventLimits kWide = {
    .num_blocks = kMaxBlock + 1, .block_tokens = kMaxBlock, .last_seal = kMaxStep};

StepCode Check(const std::vector<Event>& events, const EventLimits& limits = kLimits) {
  std::vector<BlockId> scratch = {BlockId(1), BlockId(1)};
  const StepCode code = CheckEvents(events, limits, scratch);
  EXPECT_THAT(scratch, ElementsAre(BlockId(1), BlockId(1))) << "is left as it was";
  return code;
}

StepRule RuleOf(const Event& event, const EventLimits& limits = kLimits) {
  return Check({event}, limits).rule;
}

// The events as they are encoded, at an address that is a multiple of 8, plus `offset`. Memory
// behind the room for them is not written.
Bytes Encoded(const std::vector<Event>& events, const EventLimits& limits = kWide,
              std::size_t offset = 0) {
  constexpr std::uint8_t kUntouched = 0xa5;
  const std::size_t room = events.size() * kMaxEventBytes;
  Bytes memory(offset + room + 64, kUntouched);
  std::vector<BlockId> scratch;
  std::size_t bytes = 0;
  const StepCode code = EncodeEvents(events, limits, scratch, memory.data() + offset, &bytes);
  EXPECT_TRUE(code.ok()) << code.ToStatus();
  const auto begin = memory.begin() + static_cast<std::ptrdiff_t>(offset);
  EXPECT_TRUE(std::all_of(memory.begin(), begin, [](auto byte) { return byte == kUntouched; }));
  EXPECT_TRUE(std::all_of(begin + static_cast<std::ptrdiff_t>(room), memory.end(),
                          [](auto byte) { return byte == kUntouched; }));
  return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
}

// EncodeEvents refuses them with the same code.
void ExpectNotEncoded(const std::vector<Event>& events, const StepCode& code) {
  Bytes room(events.size() * kMaxEventBytes);
  std::vector<BlockId> scratch;
  std::size_t bytes = 77;
  const StepCode same = EncodeEvents(events, kLimits, scratch, room.data(), &bytes);
  ASSERT_EQ(same.ToStatus(), code.ToStatus());
  ASSERT_EQ(bytes, 77u) << "is unchanged";
}

// Reads encoded events at an address that is a multiple of 8, plus `offset`.
std::vector<Event> Decoded(const Bytes& bytes, std::size_t offset = 0) {
  Bytes memory(offset, 0);
  memory.insert(memory.end(), bytes.begin(), bytes.end());
  EventReader reader({memory.data() + offset, bytes.size()});
  std::vector<Event> events;
  std::vector<Event> piece = {Event::Reset()};
  while (reader.Next(piece))
    events.insert(events.end(), piece.begin(), piece.end());
  EXPECT_TRUE(piece.empty());
  return events;
}

BlockKey KeyOf(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::uint8_t>(i + 1);
  return BlockKey::FromBytes(bytes);
}

// ---- the rules

TEST(CheckEvents, NamesTheRuleThatAnEventBreaks) {
  EXPECT_EQ(RuleOf(Event::Bind(BlockId(7))), StepRule::kNone);
  EXPECT_EQ(RuleOf(Event::Bind(BlockId(-3))), StepRule::kNone) << "a null block";
  EXPECT_EQ(RuleOf(Event::Bind(BlockId(8))), StepRule::kBlockOutOfRange);
  EXPECT_EQ(RuleOf(Event::Retain(BlockId(8))), StepRule::kBlockOutOfRange);
  EXPECT_EQ(RuleOf(Event::Release(BlockId(8))), StepRule::kBlockOutOfRange);
  EXPECT_EQ(RuleOf(Event::Seal(BlockId(8), {})), StepRule::kBlockOutOfRange);
  EXPECT_EQ(RuleOf(Event::Move(BlockId(1), BlockId(8))), StepRule::kBlockOutOfRange);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(8), BlockId(0))), StepRule::kSrcOutOfRange);
  EXPECT_EQ(RuleOf(Event::Move(BlockId(8), BlockId(0))), StepRule::kSrcOutOfRange);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(1), BlockId(1))), StepRule::kSelfCopy);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(-1), BlockId(-1))), StepRule::kNone);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(1), BlockId(2), 4)), StepRule::kNone);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(1), BlockId(2), 5)), StepRule::kRowsOutOfRange);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(1), BlockId(2), -2)), StepRule::kRowsOutOfRange);
  EXPECT_EQ(RuleOf(Event::Truncate(BlockId(1), 4, StepId(99))), StepRule::kNone);
  EXPECT_EQ(RuleOf(Event::Truncate(BlockId(1), 5, StepId(1))), StepRule::kRowsOutOfRange);
  EXPECT_EQ(RuleOf(Event::Truncate(BlockId(1), Event::kAllRows, StepId(1))),
            StepRule::kRowsOutOfRange);
  EXPECT_EQ(RuleOf(Event::Seal(BlockId(1), {}, StepId(10))), StepRule::kNone);
  EXPECT_EQ(RuleOf(Event::Seal(BlockId(1), {})), StepRule::kNone) << "the step that is begun next";
  EXPECT_EQ(RuleOf(Event::Seal(BlockId(1), {}, StepId(11))), StepRule::kSealStep);
  for (int type = 0; type < 1 << 16; ++type) {
    Event event;
    event.type = static_cast<EventType>(type);
    if (type >= 1 && type <= 8) {
      event.key_size = BlockKey::kMaxBytes + 1;
      event.src = 1;
      event.block = 2;
      EXPECT_EQ(RuleOf(event),
                event.type == EventType::kReset ? StepRule::kNone : StepRule::kKeyTooLong);
    } else {
      ASSERT_EQ(RuleOf(event), StepRule::kUnknownEvent) << type;
    }
  }
}

TEST(CheckEvents, NamesTheEventAndTheValue) {
  const auto move = [](int src, int dst, bool more) {
    return Event::Move(BlockId(src), BlockId(dst), more);
  };
  const Event good = Event::Bind(BlockId(0));
  struct Broken {
    std::vector<Event> events;
    StepRule rule;
    std::uint64_t index;
    std::int64_t value;
  };
  const Broken cases[] = {
      {{good, good, Event::Seal(BlockId(1), {}, StepId(12)), Event::Bind(BlockId(9))},
       StepRule::kSealStep,
       2,
       12},
      {{good, move(1, 2, true), move(3, 2, false)}, StepRule::kDuplicateMove, 1, 2},
      {{good, move(5, 2, true), move(4, 1, true), move(5, 3, false)},
       StepRule::kDuplicateMove,
       1,
       5},
      {{good, move(1, 2, true), move(9, 3, true), move(1, 2, false)},
       StepRule::kSrcOutOfRange,
       2,
       9},
      {{move(1, 2, true), move(2, 1, false), Event::Bind(BlockId(9))},
       StepRule::kBlockOutOfRange,
       2,
       9},
      {{good, move(1, 2, true)}, StepRule::kUnfinishedMove, 1, 1},
      {{move(1, 2, true), move(2, 1, true), good}, StepRule::kUnfinishedMove, 1, 1},
  };
  for (const Broken& broken : cases) {
    const StepCode code = Check(broken.events);
    EXPECT_EQ(code.code, static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(code.rule, broken.rule) << code.ToStatus();
    EXPECT_EQ(code.index, broken.index) << code.ToStatus();
    EXPECT_EQ(code.value, broken.value) << code.ToStatus();

    ExpectNotEncoded(broken.events, code);
  }
  EXPECT_TRUE(Check({move(1, 2, false), move(3, 2, false)}).ok()) << "two groups";
  EXPECT_TRUE(
      Check({move(-1, 2, true), move(-1, 3, true), move(4, -1, true), move(5, -1, false)}).ok())
      << "null blocks";
  EXPECT_TRUE(Check({}).ok());
}

// ---- the bytes

TEST(EncodeEvents, TheBytesArePinned) {
  EXPECT_THAT(Encoded({Event::Retain(BlockId(3))}), ElementsAre(2, 0, 0, 0, 3, 0, 0, 0));
  EXPECT_THAT(Encoded({Event::Bind(BlockId(0x0102), KeyOf(2))}),
              ElementsAre(1, 2, 0, 0, 2, 1, 0, 0, 1, 2));
  EXPECT_THAT(Encoded({Event::Seal(BlockId(3), KeyOf(1), StepId(4)), Event::Release(BlockId(-1))}),
              ElementsAre(4, 1, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1,  //
                          3, 0, 0, 0, 255, 255, 255, 255));
  EXPECT_THAT(Encoded({Event::Copy(BlockId(3), BlockId(4), 2)}),
              ElementsAre(5, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0));
  EXPECT_THAT(
      Encoded({Event::Move(BlockId(5), BlockId(6), true), Event::Move(BlockId(6), BlockId(5))}),
      ElementsAre(6, 1, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0,  //
                  6, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0));
  EXPECT_THAT(Encoded({Event::Truncate(BlockId(7), 1, StepId(8))}),
              ElementsAre(7, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(Encoded({Event::Reset()}), ElementsAre(8, 0, 0, 0));
}

TEST(EncodeEvents, FieldsThatAKindDoesNotHaveAreNotWritten) {
  for (int type = 1; type <= 8; ++type) {
    Event plain;
    plain.type = static_cast<EventType>(type);
    plain.block = 1;
    plain.src = 2;
    plain.rows = 3;
    plain.step = 4;
    Event spoilt = plain;
    const bool copy = plain.type == EventType::kCopy, move = plain.type == EventType::kMove;
    const bool truncate = plain.type == EventType::kTruncate, seal = plain.type == EventType::kSeal;
    if (!move) spoilt.more = 9;
    if (!copy && !move) spoilt.src = 99;
    if (!copy && !truncate) spoilt.rows = 99;
    if (!seal && !truncate) spoilt.step = 99;
    if (!seal && plain.type != EventType::kBind) spoilt.key_size = 32;
    spoilt.key[31] = 1;
    EXPECT_EQ(Encoded({spoilt}), Encoded({plain})) << DescribeEvent(plain);
  }
  Event move = Event::Move(BlockId(1), BlockId(2));
  move.more = 200;
  EXPECT_EQ(Encoded({move, Event::Move(BlockId(2), BlockId(1))})[1], 1) << "joined is joined";
}

TEST(EncodeEvents, EveryFieldComesBackAtItsLimits) {
  std::vector<Event> events;
  for (const std::int32_t block :
       {std::numeric_limits<std::int32_t>::min(), -1, 0, 1, 255, 256, kMaxBlock}) {
    const std::int32_t other = block == 0 ? 1 : 0;
    for (std::size_t size = 0; size <= BlockKey::kMaxBytes; ++size) {
      events.push_back(Event::Bind(BlockId(block), KeyOf(size)));
      for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1}, kMaxStep})
        events.push_back(Event::Seal(BlockId(block), KeyOf(size), StepId(step)));
    }
    events.push_back(Event::Retain(BlockId(block)));
    events.push_back(Event::Release(BlockId(block)));
    for (const std::int32_t rows : {0, 1, kMaxBlock}) {
      events.push_back(Event::Copy(BlockId(block), BlockId(other), rows));
      events.push_back(Event::Copy(BlockId(other), BlockId(block), rows));
      for (const std::uint64_t step : {std::uint64_t{0}, kMaxStep})
        events.push_back(Event::Truncate(BlockId(block), rows, StepId(step)));
    }
    events.push_back(Event::Copy(BlockId(block), BlockId(other)));
    events.push_back(Event::Move(BlockId(block), BlockId(other), true));
    events.push_back(Event::Move(BlockId(other), BlockId(block)));
  }
  events.push_back(Event::Reset());
  for (std::size_t offset = 0; offset < 8; ++offset) {
    const Bytes bytes = Encoded(events, kWide, offset);
    EXPECT_EQ(Decoded(bytes, 7 - offset), events);
  }
  for (const Event& event : events) {
    if (event.type == EventType::kMove) continue;
    const Bytes bytes = Encoded({event});
    // Every head but its own, and every size, is refused or read to its end.
    for (std::size_t size = 1; size < bytes.size(); ++size)
      EXPECT_FALSE(CheckEventBytes(std::span(bytes).first(size), "events").ok()) << size;
    EXPECT_TRUE(CheckEventBytes(bytes, "events").ok()) << DescribeEvent(event);
  }
}

TEST(CheckEventBytes, TheDetailIsTheSizeOfAKeyOrJoinsAMove) {
  for (int kind = 0; kind < 256; ++kind) {
    const auto type = static_cast<EventType>(kind);
    const bool has_key = type == EventType::kBind || type == EventType::kSeal;
    const int most = has_key ? 32 : type == EventType::kMove ? 1 : 0;
    for (int detail = 0; detail < 256; ++detail) {
      const Bytes head = {static_cast<std::uint8_t>(kind), static_cast<std::uint8_t>(detail), 0, 0};
      std::size_t right = 0;  // sizes of an event with this head
      for (std::size_t size = 4; size <= kMaxEventBytes; ++size) {
        Bytes bytes(size);
        std::copy(head.begin(), head.end(), bytes.begin());
        right += CheckEventBytes(bytes, "events").ok() ? 1 : 0;
      }
      const bool known = kind >= 1 && kind <= 8 && detail <= most;
      EXPECT_EQ(right, known ? 1u : 0u) << kind << " " << detail;
    }
  }
}

TEST(EventReader, AGroupOfMovesIsInOnePiece) {
  std::vector<Event> events(EventReader::kPiece - 1, Event::Retain(BlockId(1)));
  for (int i = 0; i < 300; ++i)
    events.push_back(Event::Move(BlockId(i), BlockId(i + 1), /*more=*/i < 299));
  events.push_back(Event::Reset());
  const Bytes bytes = Encoded(events);
  EventReader reader(bytes);
  std::vector<Event> piece;
  ASSERT_TRUE(reader.Next(piece));
  EXPECT_THAT(piece, ElementsAreArray(events.begin(), events.end() - 1));
  ASSERT_TRUE(reader.Next(piece));
  EXPECT_THAT(piece, ElementsAre(Event::Reset()));
  EXPECT_FALSE(reader.Next(piece));
}

// Random events, near the limits and beyond: EncodeEvents refuses what CheckEvents refuses, and all
// else comes back.
TEST(EncodeEvents, RandomEventsComeBack) {
  TestRandom random;
  const auto number = [&random](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  int accepted = 0, refused = 0;
  for (int run = 0; run < 20000; ++run) {
    std::vector<Event> events(random() % 20);
    const bool spoil = random() % 2 == 0;
    for (std::size_t i = 0; i < events.size(); ++i) {
      const BlockId block(number(-1, 7)), low(number(-1, 3)), high(number(4, 7));
      const bool more = i + 1 < events.size() && random() % 2 == 0;
      const StepId step(static_cast<std::uint64_t>(number(0, 10)));
      const Event kinds[] = {Event::Bind(block, KeyOf(random() % 33)),
                             Event::Retain(block),
                             Event::Release(block),
                             Event::Seal(block, KeyOf(random() % 33), step),
                             Event::Copy(low, high, number(-1, 4)),
                             Event::Move(low, high, more),
                             Event::Truncate(block, number(0, 4), StepId(random())),
                             Event::Reset()};
      events[i] = kinds[random() % std::size(kinds)];
      if (events[i].more != 0)
        events[++i] = Event::Move(BlockId(number(4, 7)), BlockId(number(-1, 3)));
      if (spoil && random() % 64 == 0) events[i].block = 8;
      if (spoil && random() % 64 == 0) events[i].step = 11;
      if (spoil && random() % 64 == 0) events[i].type = static_cast<EventType>(number(0, 9));
    }
    const StepCode code = Check(events);
    if (!code.ok()) {
      ++refused;
      ExpectNotEncoded(events, code);
      continue;
    }
    ++accepted;
    const std::vector<Event> back = Decoded(Encoded(events, kLimits, random() % 8), random() % 8);
    ASSERT_EQ(back.size(), events.size());
    // Equal in what their kinds have.
    ASSERT_EQ(Encoded(back, kLimits), Encoded(events, kLimits));
    if (!spoil) {
      ASSERT_EQ(back, events);
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace waymark
