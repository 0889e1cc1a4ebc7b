// What must not change what is read: when ids come, when results are seen, when rows land; and what
// a drop, a silent layer or a late end may take away: its own rows and no others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/direct.h"
#include "tests/conformance/schedules.h"
#include "tests/support/sanitizers.h"

namespace waymark::conformance {
namespace {

using testing::ElementsAre;

// Digests of the valid rows (bytes, steps, versions) of every request of a run, by request.
std::vector<std::uint64_t> RowsOf(bool megatron, std::uint64_t seed, const std::string& timing) {
  Schedule schedule;
  schedule.options.megatron = megatron;
  schedule.options.seed = seed;
  schedule.options.collect_digests = true;
  EXPECT_TRUE(SetOptions(schedule.options,
                         "draft=.5 preempt=.05 abort=.02 fork=.05 partial=.3 swap=.3 stream=.1 "
                         "full_hit=.4 bump=.02 pad=.3"));
  EXPECT_TRUE(SetOptions(schedule.options, timing)) << timing;
  schedule.steps = 300;
  schedule.features = timing;
  const Outcome outcome = RunSchedule(schedule);
  EXPECT_TRUE(outcome.clean(schedule)) << outcome.Describe(schedule);
  std::vector<sim::CheckCounts::Digest> digests = outcome.checks.digests;
  std::sort(digests.begin(), digests.end(),
            [](const auto& a, const auto& b) { return a.request < b.request; });
  std::vector<std::uint64_t> rows;
  for (const auto& digest : digests)
    rows.push_back(digest.rows);
  EXPECT_GT(rows.size(), 20u);
  return rows;
}

class Timing : public testing::TestWithParam<const char*> {};

TEST_P(Timing, GivesTheSameValidRows) {
  for (const bool megatron : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const auto right = RowsOf(megatron, seed, "land_at_once=1");
      EXPECT_EQ(RowsOf(megatron, seed, GetParam()), right)
          << (megatron ? "megatron" : "vllm") << " seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Metamorphic, Timing,
    testing::Values("behind=1", "behind=3", "behind=3 shuffle=1", "behind=3 land_at_once=1",
                    "thread=1", "thread=1 behind=3 shuffle=1", "land_at_once=1 completion_seal=1",
                    "behind=3 shuffle=1 completion_seal=1", "land_at_once=1 truncate_delay=3",
                    "behind=3 shuffle=1 truncate_delay=3", "manual=1 lag=3 land_at_once=1",
                    "manual=1 lag=30 behind=3 shuffle=1", "manual=1 lag=1000 behind=3 ring=1024",
                    "report=1 land_at_once=1", "report=5 behind=3 shuffle=1",
                    "report=3 thread=1 behind=3", "report=2 manual=1 lag=30 behind=3 shuffle=1",
                    "report=4 thread=1 behind=2"));

// Requests that leave and are forked in the middle of a schedule.
TEST(Metamorphic, TheMiddleOfAScheduleGivesTheSameValidRows) {
  const std::string middle = "mid=.6 abort=.05 preempt=.1 fork=.15 tier=.5 ";
  for (const bool megatron : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const auto right = RowsOf(megatron, seed, middle + "land_at_once=1");
      for (const char* timing :
           {"report=1 land_at_once=1", "report=3 behind=1", "report=4 thread=1 behind=2",
            "report=2 manual=1 lag=50 behind=3 shuffle=1"}) {
        EXPECT_EQ(RowsOf(megatron, seed, middle + timing), right)
            << (megatron ? "megatron" : "vllm") << " seed " << seed << " " << timing;
      }
    }
  }
}

// Seals that come up to three steps after the step that filled the block, with its number. (A
// megatron-like engine recomputes shared blocks, and may not before it has announced them full.)
TEST(Metamorphic, LateCompletionSealsGiveTheSameValidRows) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    EXPECT_EQ(RowsOf(false, seed, "completion_seal=1 seal_delay=3 behind=2 shuffle=1"),
              RowsOf(false, seed, "land_at_once=1"))
        << "seed " << seed;
  }
}

// Which page a key finds is decided by what was asked for, and not by the ids: else two pipeline
// stages could find different passes of a prefix, whose rows cannot be joined.
TEST(Metamorphic, PagesUnderAKeyGiveTheSameValidRows) {
  const std::string stages = "stages=2 page_tokens=2 tier=.7 preempt=.1 ";
  for (std::uint64_t seed = 1; seed <= PlainOr(60u, 8u); ++seed) {
    const auto right = RowsOf(false, seed, stages + "land_at_once=1");
    for (const char* timing : {"behind=3", "behind=3 thread=1"}) {
      EXPECT_EQ(RowsOf(false, seed, stages + timing), right) << "seed " << seed << " " << timing;
    }
  }
}

// A request of 12 rows in steps of 3, one of which is dropped.
TEST(Metamorphic, DropAtEachStepInTurn) {
  for (std::uint64_t dropped = 0; dropped <= 4; ++dropped) {
    Direct direct;
    std::vector<int> expected;
    for (std::uint64_t step = 1; step <= 4; ++step) {
      std::vector<std::int64_t> slots;
      std::vector<int> tags;
      for (std::int64_t i = 0; i < 3; ++i) {
        const auto row = static_cast<std::int64_t>(step - 1) * 3 + i;
        slots.push_back(S(static_cast<std::int32_t>(row / kDirectBlock), row % kDirectBlock));
        tags.push_back(static_cast<int>(100 + row));
        expected.push_back(step == dropped ? -1 : tags.back());
      }
      std::vector<Event> events;
      if (step <= 3) events.push_back(Event::Bind(B(static_cast<std::int32_t>(step) - 1)));
      ASSERT_TRUE(direct.Begin(step, events, slots).ok());
      if (step == dropped) {
        ASSERT_TRUE(direct.store().Drop(StepId(step)).ok());
      } else {
        ASSERT_TRUE(direct.Submit(step, tags).ok());
      }
    }
    direct.LandAll();
    const std::vector<Seen> rows = direct.Read({0, 1, 2}, 12);
    EXPECT_EQ(Direct::TagsOf(rows), expected) << "dropped step " << dropped;
    for (const Seen& row : rows) {
      EXPECT_EQ(row.info.reason, row.tag < 0 ? Reason::kCapacity : Reason::kNone);
    }
  }
}

TEST(Metamorphic, SameSlotTwice) {
  for (const bool swapped : {false, true}) {
    Direct direct;
    ASSERT_TRUE(direct.Begin(1, {Event::Bind(B(0))}, {S(0, 1), S(0, 0), S(0, 1)}).ok());
    ASSERT_TRUE(direct.Submit(1, {11, 10, swapped ? -1 : 91}).ok());
    direct.LandAll();
    EXPECT_THAT(direct.Tags({0}, 2), ElementsAre(10, 11));
  }
}

TEST(Metamorphic, PartialCopyAndDrop) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(0))}, {S(0, 0), S(0, 1), S(0, 2)}, {10, 11, 12});
  // The step that copied is dropped: its copy stands, its rows do not.
  ASSERT_TRUE(direct.Begin(2, {Event::Bind(B(1)), Event::Copy(B(0), B(1), 2)}, {S(1, 2)}).ok());
  ASSERT_TRUE(direct.store().Drop(StepId(2)).ok());
  direct.Step(3, {Event::Release(B(0)), Event::Bind(B(0))}, {S(0, 0), S(1, 3)}, {90, 33});
  const std::vector<Seen> rows = direct.Read({1}, 4);
  EXPECT_THAT(Direct::TagsOf(rows), ElementsAre(10, 11, -1, 33));
  EXPECT_EQ(rows[2].info.reason, Reason::kCapacity);
}

TEST(Metamorphic, NullIdsChangeNothing) {
  for (const bool nulls : {false, true}) {
    Direct direct(Direct::With([](StoreOptions& o) { o.null_blocks = {B(9)}; }));
    std::vector<Event> events = {Event::Bind(B(0))};
    std::vector<std::int64_t> slots = {S(0, 0), S(0, 1)};
    std::vector<int> tags = {10, 11};
    if (nulls) {
      events = {Event::Bind(B(9)),
                Event::Move(B(9), B(9)),
                Event::Bind(B(0)),
                Event::Retain(B(-5)),
                Event::Truncate(B(9), 0, StepId(1)),
                Event::Copy(B(0), B(9))};
      slots = {S(9, 0), S(0, 0), kPaddingSlot, S(0, 1), NotAsked(S(9, 3))};
      tags = {90, 10, 91, 11, 92};
    }
    direct.Step(1, events, slots, tags);
    EXPECT_THAT(direct.Tags({0}, 3), ElementsAre(10, 11, -1));
  }
}

TEST(Metamorphic, IndexWhoseFirstWriterHasHoles) {
  for (const bool first_has_hole : {false, true}) {
    Direct direct;
    const BlockKey key = BlockKey::FromInteger(1);
    for (std::int32_t block = 0; block < 2; ++block) {
      const bool hole = (block == 0) == first_has_hole;
      const auto step = static_cast<std::uint64_t>(block) + 1;
      direct.Step(step, {Event::Bind(B(block)), Event::Seal(B(block), key, StepId(step))},
                  {S(block, 0), S(block, 1), S(block, 2), S(block, 3)},
                  {10, hole ? -1 : 11, 12, 13});
    }
    direct.Step(3, {Event::Bind(B(5), key)}, {}, {});
    // What became of the ids does not decide: another stage may not have lost them (rule 10).
    EXPECT_THAT(direct.Tags({5}, 4), ElementsAre(10, first_has_hole ? -1 : 11, 12, 13));
  }
}

// A layer whose kernel does not write at one batch size: those rows are missing, and only those.
TEST(Metamorphic, LayerSilentAtOneBatchSize) {
  Direct direct;
  std::vector<int> expected;
  std::vector<std::int32_t> blocks;
  std::int64_t row = 0;
  for (std::uint64_t step = 1; step <= 6; ++step) {
    const auto size = static_cast<std::int64_t>(step % 3 + 1);
    std::vector<Event> events;
    std::vector<std::int64_t> slots;
    std::vector<int> tags;
    for (std::int64_t i = 0; i < size; ++i, ++row) {
      if (row % kDirectBlock == 0) {
        blocks.push_back(static_cast<std::int32_t>(blocks.size()));
        events.push_back(Event::Bind(B(blocks.back())));
      }
      slots.push_back(S(blocks.back(), row % kDirectBlock));
      tags.push_back(size == 2 ? -1 : static_cast<int>(row));
      expected.push_back(tags.back());
    }
    direct.Step(step, events, slots, tags);
  }
  const std::vector<Seen> rows = direct.Read(blocks, row);
  EXPECT_EQ(Direct::TagsOf(rows), expected);
  EXPECT_EQ(std::count_if(rows.begin(), rows.end(),
                          [](const Seen& r) { return r.info.reason == Reason::kNotCaptured; }),
            4);
}

TEST(Metamorphic, OverlappingMicroBatches) {
  std::vector<std::uint64_t> order = {1, 2, 3, 4};
  do {
    Direct direct;
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const auto block = static_cast<std::int32_t>(step % 2);
      std::vector<Event> events;
      if (step <= 2) events.push_back(Event::Bind(B(block)));
      const std::int64_t first = step <= 2 ? 0 : 2;
      ASSERT_TRUE(direct.Begin(step, events, {S(block, first), S(block, first + 1)}).ok());
    }
    for (const std::uint64_t step : order) {
      const int tag = static_cast<int>(10 * step);
      ASSERT_TRUE(direct.Submit(step, {tag, tag + 1}).ok());
      if (step % 2 == 0) direct.LandAll();
    }
    direct.LandAll();
    EXPECT_THAT(direct.Tags({1, 0}, 8), ElementsAre(10, 11, 30, 31, 20, 21, 40, 41));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Metamorphic, TeardownWithWaitingSteps) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    StoreOptions options = Direct::Options();
    options.landing = landing;
    TagRows first({10});
    TagRows second({20});
    Snapshot snapshot;
    {
      auto store = RoutingStore::Create(options).value();
      const auto begin = [&](std::uint64_t step, const std::vector<Event>& events,
                             std::int64_t slot) {
        return store->BeginStep({step, 1, events.data(), events.size(), &slot, 1});
      };
      ASSERT_TRUE(begin(1, {Event::Bind(B(0))}, S(0, 0)).ok());
      ASSERT_TRUE(store->Submit(StepId(1), &first).ok());
      if (landing == Landing::kCaller) {
        ASSERT_TRUE(store->LandOne());
      } else {
        ASSERT_TRUE(store->WaitIdle(std::chrono::seconds(60)).ok());
      }
      auto taken = store->TakeSnapshot(std::vector<BlockId>{B(0)}, 0, 1);
      ASSERT_TRUE(taken.ok());
      snapshot = *std::move(taken);
      ASSERT_TRUE(begin(2, {}, S(0, 1)).ok());
      ASSERT_TRUE(store->Submit(StepId(2), &second).ok());
      ASSERT_TRUE(begin(3, {}, S(0, 2)).ok());
    }
    EXPECT_TRUE(second.done) << "submitted rows were not given back";
    EXPECT_THAT(Direct::TagsOf(Direct::Read(snapshot)), ElementsAre(10));
  }
}

// Two capture sessions (say, of two models that take turns on one KV pool) feed one store: their
// steps are numbered together, their rows are their own.
TEST(Metamorphic, TwoSessionsOnOneStore) {
  Direct direct;
  for (std::uint64_t step = 1; step <= 8; ++step) {
    const auto block = static_cast<std::int32_t>(step % 2);
    std::vector<Event> events;
    if (step <= 2) events.push_back(Event::Bind(B(block)));
    ASSERT_TRUE(
        direct.Begin(step, events, {S(block, static_cast<std::int64_t>(step - 1) / 2)}).ok());
  }
  // The second session is behind with all of its steps.
  for (const std::uint64_t step : {1, 3, 5, 7, 2, 4, 6, 8}) {
    ASSERT_TRUE(direct.Submit(step, {static_cast<int>(step)}).ok());
  }
  direct.LandAll();
  EXPECT_THAT(direct.Tags({1, 0}, 8), ElementsAre(1, 3, 5, 7, 2, 4, 6, 8));
}

}  // namespace
}  // namespace waymark::conformance
