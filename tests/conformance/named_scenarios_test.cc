// What engines do to a store, one test a name: the order of events that each of them brings, by
// hand. What is one rule of the store alone is in tests/unit/blockstore/store/rules_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/direct.h"

namespace waymark::conformance {
namespace {

using testing::ElementsAre;

BlockKey Key(std::uint64_t hash) {
  return BlockKey::FromInteger(hash);
}
std::vector<std::int64_t> Whole(std::int32_t block) {
  return {S(block, 0), S(block, 1), S(block, 2), S(block, 3)};
}

TEST(Named, ChunkedPrefill) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(3))}, {S(3, 0), S(3, 1), S(3, 2)}, {10, 11, 12});
  direct.Step(2, {Event::Bind(B(1))}, {S(3, 3), S(1, 0), S(1, 1)}, {13, 14, 15});
  direct.Step(3, {}, {S(1, 2)}, {16});
  EXPECT_THAT(direct.Tags({3, 1}, 7), ElementsAre(10, 11, 12, 13, 14, 15, 16));
}

TEST(Named, PrefixHit) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(0)), Event::Seal(B(0), Key(1), StepId(1))}, Whole(0),
              {10, 11, 12, 13});
  EXPECT_EQ(direct.store().CoveredPrefix(std::vector<BlockId>{B(0)}, 4), 4);
  direct.Step(2, {Event::Retain(B(0)), Event::Bind(B(1))}, {S(1, 0)}, {20});
  EXPECT_THAT(direct.Tags({0, 1}, 5), ElementsAre(10, 11, 12, 13, 20));
}

TEST(Named, PartialHit) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(0)), Event::Seal(B(0), Key(1), StepId(1))}, Whole(0),
              {10, 11, 12, 13});
  // Two of its rows hold for another prompt too, which goes on by itself.
  direct.Step(2, {Event::Bind(B(1)), Event::Copy(B(0), B(1), 2)}, {S(1, 2)}, {30});
  EXPECT_THAT(direct.Tags({1}, 4), ElementsAre(10, 11, 30, -1));
  EXPECT_THAT(direct.Tags({0}, 4), ElementsAre(10, 11, 12, 13));
}

TEST(Named, FullHitKeepsTheRoutesOfTheFirstPass) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(0)), Event::Seal(B(0), Key(1), StepId(1))}, Whole(0),
              {10, 11, 12, 13});
  direct.Step(2, {Event::Retain(B(0))}, Whole(0), {20, 21, 22, 23});
  const std::vector<Seen> rows = direct.Read({0}, 4);
  EXPECT_THAT(Direct::TagsOf(rows), ElementsAre(10, 11, 12, 13));
  for (const Seen& row : rows)
    EXPECT_EQ(row.info.provenance, Provenance::kKept);
}

TEST(Named, SharedBlockComputedByTwoRequestsInOneBatch) {
  Direct direct;
  std::vector<std::int64_t> slots = Whole(0);
  slots.insert(slots.end(), {S(0, 2), S(0, 3)});
  direct.Step(1, {Event::Bind(B(0)), Event::Retain(B(0)), Event::Seal(B(0), Key(1), StepId(1))},
              slots, {10, 11, 12, 13, 22, 23});
  EXPECT_THAT(direct.Tags({0}, 4), ElementsAre(10, 11, 12, 13));
}

// Ids are kept, not rows: in the step in which a request completes, its blocks are released and
// popped again from the top of the bag by requests that cross a block boundary. In a plain store of
// per-block arrays that loses up to 61 % of completions.
TEST(Named, MegatronRaceOfCompletionAndReuse) {
  constexpr std::int32_t kRequests = 64;
  StoreOptions options = Direct::Options();
  options.num_blocks = 32 * kRequests;
  options.max_step_rows = kRequests;
  Direct direct(options);
  std::vector<std::int32_t> bag;
  for (std::int32_t block = 32 * kRequests; block-- > kRequests;)
    bag.push_back(block);
  struct Sequence {
    std::vector<std::int32_t> blocks;
    std::vector<int> tags;
  };
  std::vector<Sequence> running(kRequests);
  std::vector<Event> events;
  for (std::int32_t i = 0; i < kRequests; ++i) {
    running[static_cast<std::size_t>(i)].blocks = {i};
    // Boundaries are crossed at different times.
    running[static_cast<std::size_t>(i)].tags.assign(static_cast<std::size_t>(i % 4), -1);
    events.push_back(Event::Bind(B(i)));
  }
  std::vector<std::pair<Snapshot, std::vector<int>>> finished;
  int reused = 0;
  for (std::uint64_t step = 1; step <= 200; ++step) {
    std::vector<std::int64_t> slots;
    std::vector<int> tags;
    for (Sequence& sequence : running) {
      const auto row = static_cast<std::int64_t>(sequence.tags.size());
      slots.push_back(
          S(sequence.blocks[static_cast<std::size_t>(row / kDirectBlock)], row % kDirectBlock));
      tags.push_back(static_cast<int>((step * 7 + slots.size() * 3) % 250));
      sequence.tags.push_back(tags.back());
    }
    direct.Step(step, events, slots, tags);
    events.clear();
    // One completes; its blocks go on top of the bag, and whoever crosses a boundary takes them.
    Sequence& done = running[static_cast<std::size_t>(step * 11 % kRequests)];
    finished.emplace_back(direct.Take(done.blocks, static_cast<std::int64_t>(done.tags.size())),
                          done.tags);
    std::vector<std::int32_t> released = done.blocks;
    for (const std::int32_t block : released) {
      events.push_back(Event::Release(B(block)));
      bag.push_back(block);
    }
    done = {};
    bool taken = false;
    for (Sequence& sequence : running) {
      if (sequence.tags.size() % kDirectBlock != 0 || bag.empty()) continue;
      const std::int32_t block = bag.back();
      bag.pop_back();
      taken |= std::find(released.begin(), released.end(), block) != released.end();
      events.push_back(Event::Bind(B(block)));
      sequence.blocks.push_back(block);
    }
    reused += taken;
    if (finished.size() > 8) finished.erase(finished.begin());
    if (step % 8 == 0) {
      for (const auto& [snapshot, expected] : finished) {
        EXPECT_EQ(Direct::TagsOf(Direct::Read(snapshot)), expected) << "step " << step;
      }
    }
  }
  EXPECT_GT(reused, 120) << "the race did not happen often enough to tell anything";
}

TEST(Named, AsyncSchedulingWithLateRejections) {
  Direct direct;
  // Two drafts, both rejected; the next step is begun before that is known.
  direct.Step(1, {Event::Bind(B(0))}, {S(0, 0), S(0, 1), S(0, 2)}, {10, 11, 12});
  ASSERT_TRUE(direct.Begin(2, {}, {S(0, 1)}).ok());
  ASSERT_TRUE(direct.Begin(3, {Event::Truncate(B(0), 1, StepId(1))}, {}).ok());
  ASSERT_TRUE(direct.Submit(3, {}).ok());
  ASSERT_TRUE(direct.Submit(2, {21}).ok());
  direct.LandAll();
  EXPECT_THAT(direct.Tags({0}, 3), ElementsAre(10, 21, -1));
}

TEST(Named, LateNewsOfAnEarlierLife) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(0))}, {S(0, 0), S(0, 1)}, {10, 11});
  direct.Step(2, {Event::Release(B(0)), Event::Bind(B(0))}, {S(0, 0), S(0, 1)}, {20, 21});
  direct.Step(3, {Event::Truncate(B(0), 0, StepId(1))}, {}, {});
  EXPECT_THAT(direct.Tags({0}, 2), ElementsAre(20, 21));
}

TEST(Named, PreemptionAndResumeWithOtherBlocks) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(0))}, {S(0, 0), S(0, 1), S(0, 2)}, {10, 11, 12});
  auto first = direct.Take({0}, 3).ReadRows();
  direct.Step(2, {Event::Release(B(0)), Event::Bind(B(0))}, {S(0, 0)}, {90});
  direct.Step(3, {Event::Bind(B(5))}, Whole(5), {20, 21, 22, 23});
  auto second = direct.Take({5}, 4).ReadRows();
  ASSERT_TRUE(first.ok() && second.ok());
  const Rows* const reads[] = {&*first, &*second};
  auto joined = Join(reads).value();
  std::vector<int> tags;
  for (std::int64_t i = 0; i < joined.size(); ++i)
    tags.push_back(joined.row(i)[0]);
  EXPECT_THAT(tags, ElementsAre(10, 11, 12, 23));
}

TEST(Named, SpeculativeRejectionsAcrossBlocks) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(0)), Event::Bind(B(1))}, {S(0, 2), S(0, 3), S(1, 0), S(1, 1)},
              {12, 13, 14, 15});
  direct.Step(2, {Event::Truncate(B(0), 3, StepId(1)), Event::Truncate(B(1), 0, StepId(1))},
              {S(0, 3)}, {23});
  EXPECT_THAT(direct.Tags({0, 1}, 6), ElementsAre(-1, -1, 12, 23, -1, -1));
}

TEST(Named, Fork) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(0))}, {S(0, 0), S(0, 1)}, {10, 11});
  direct.Step(2, {Event::Bind(B(1)), Event::Copy(B(0), B(1))}, {S(0, 2), S(1, 2)}, {12, 22});
  EXPECT_THAT(direct.Tags({0}, 3), ElementsAre(10, 11, 12));
  EXPECT_THAT(direct.Tags({1}, 3), ElementsAre(10, 11, 22));
}

TEST(Named, ForkBeforeTheIdsAreThere) {
  Direct direct;
  ASSERT_TRUE(direct.Begin(1, {Event::Bind(B(0))}, {S(0, 0), S(0, 1)}).ok());
  ASSERT_TRUE(direct.Begin(2, {Event::Bind(B(1)), Event::Copy(B(0), B(1))}, {S(1, 2)}).ok());
  ASSERT_TRUE(direct.Submit(2, {22}).ok());
  ASSERT_TRUE(direct.Submit(1, {10, 11}).ok());
  direct.LandAll();
  EXPECT_THAT(direct.Tags({0}, 3), ElementsAre(10, 11, -1));
  EXPECT_THAT(direct.Tags({1}, 3), ElementsAre(10, 11, 22));
}

TEST(Named, Abort) {
  Direct direct;
  ASSERT_TRUE(direct.Begin(1, {Event::Bind(B(0))}, {S(0, 0)}).ok());
  // Aborted while its rows are on their way; the block has another owner when they land.
  ASSERT_TRUE(direct.Begin(2, {Event::Release(B(0)), Event::Bind(B(0))}, {S(0, 1)}).ok());
  ASSERT_TRUE(direct.Submit(1, {10}).ok());
  ASSERT_TRUE(direct.Submit(2, {21}).ok());
  direct.LandAll();
  EXPECT_THAT(direct.Tags({0}, 2), ElementsAre(-1, 21));
}

TEST(Named, WeightUpdateWithALiveCache) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(0)), Event::Seal(B(0), Key(1), StepId(1))}, Whole(0),
              {10, 11, 12, 13}, 1);
  const Snapshot old = direct.Take({0}, 4);
  direct.Step(2, {}, {S(0, 0), S(0, 1)}, {20, 21}, 2);
  const std::vector<Seen> rows = direct.Read({0}, 4);
  EXPECT_THAT(Direct::TagsOf(rows), ElementsAre(20, 21, 12, 13));
  EXPECT_EQ(rows[0].info.version, 2u);
  EXPECT_EQ(rows[2].info.version, 1u);
  EXPECT_THAT(Direct::TagsOf(Direct::Read(old)), ElementsAre(10, 11, 12, 13));
}

TEST(Named, VersionBumpInsideABlock) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(0))}, {S(0, 0), S(0, 1)}, {10, 11}, 1);
  direct.Step(2, {Event::Seal(B(0), Key(1), StepId(2))}, {S(0, 2), S(0, 3)}, {22, 23}, 2);
  EXPECT_THAT(direct.Tags({0}, 4), ElementsAre(10, 11, 22, 23));
  // A page of two versions answers to no key.
  direct.Step(3, {Event::Bind(B(1), Key(1))}, {}, {}, 2);
  EXPECT_EQ(direct.Read({1}, 1)[0].info.reason, Reason::kExternalKv);
}

TEST(Named, OffloadAndRestoreIntoAnotherBlock) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(0)), Event::Seal(B(0), Key(1), StepId(1))}, Whole(0),
              {10, 11, 12, 13});
  direct.Step(2, {Event::Release(B(0)), Event::Move(B(0), B(8)), Event::Bind(B(0))}, {S(0, 0)},
              {50});
  direct.Step(3, {Event::Move(B(8), B(3)), Event::Retain(B(3))}, {}, {});
  EXPECT_THAT(direct.Tags({3}, 4), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(direct.Tags({0}, 1), ElementsAre(50));
  // A tier without block ids: by key, and marked.
  direct.Step(4, {Event::Bind(B(4), Key(1))}, {}, {});
  const std::vector<Seen> rows = direct.Read({4}, 4);
  EXPECT_THAT(Direct::TagsOf(rows), ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(rows[0].info.provenance, Provenance::kByKey);
}

TEST(Named, SlidingWindow) {
  Direct direct;
  direct.Step(1, {Event::Bind(B(0))}, Whole(0), {10, 11, 12, 13});
  direct.Step(2, {Event::Bind(B(1))}, Whole(1), {14, 15, 16, 17});
  // The first block leaves the window; what leaves is read first.
  auto leaving = direct.Take({0, 1}, 4).ReadRows();
  direct.Step(3, {Event::Release(B(0)), Event::Bind(B(0))}, {S(0, 0)}, {18});
  auto rest = direct.Take({-1, 1, 0}, 9).ReadRows();
  ASSERT_TRUE(leaving.ok() && rest.ok());
  EXPECT_EQ(rest->infos[0].reason, Reason::kNeverWritten);
  const Rows* const reads[] = {&*leaving, &*rest};
  auto joined = Join(reads).value();
  for (std::int64_t i = 0; i < 9; ++i)
    EXPECT_EQ(joined.row(i)[0], 10 + i);
}

TEST(Named, BlockOfSeveralPages) {
  Direct direct(Direct::With([](StoreOptions& o) { o.shape.page_tokens = 2; }));
  direct.Step(1, {Event::Bind(B(0)), Event::Seal(B(0), Key(1), StepId(1))}, Whole(0),
              {10, 11, 12, 13});
  direct.Step(2, {Event::Bind(B(1)), Event::Copy(B(0), B(1), 3)}, {S(1, 3)}, {23});
  EXPECT_THAT(direct.Tags({0, 1}, 8), ElementsAre(10, 11, 12, 13, 10, 11, 12, 23));
  direct.Step(3, {Event::Bind(B(2), Key(1)), Event::Truncate(B(1), 1, StepId(2))}, {}, {});
  EXPECT_THAT(direct.Tags({2}, 4), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(direct.Tags({1}, 4), ElementsAre(10, -1, -1, -1));
}

// A request is preempted in the middle of a schedule, and another one gets its block at once.
TEST(Named, SnapshotInTheMiddleOfASchedule) {
  for (const Landing landing : {Landing::kCaller, Landing::kManual}) {
    Direct direct(Direct::With([&](StoreOptions& o) { o.landing = landing; }));
    ASSERT_TRUE(direct.Begin(1, {Event::Bind(B(0))}, {S(0, 0), S(0, 1)}).ok());
    ASSERT_TRUE(direct.Submit(1, {10, 11}).ok());
    ASSERT_TRUE(direct.store().Schedule(StepId(2), 1).ok());
    const Event freed[] = {Event::Release(B(0)), Event::Bind(B(1))};
    ASSERT_TRUE(direct.store().Report(freed).ok());
    const Snapshot before = direct.Take({0}, 2);
    const Event bound[] = {Event::Bind(B(0)), Event::Copy(B(0), B(1), 1)};
    ASSERT_TRUE(direct.store().Report(bound).ok());
    const Snapshot after = direct.Take({0}, 2);
    ASSERT_TRUE(direct.Begin(2, {}, {S(0, 0), S(1, 1)}).ok());
    ASSERT_TRUE(direct.Submit(2, {20, 21}).ok());
    const Snapshot last = direct.Take({1, 0}, 5);
    direct.LandAll();
    EXPECT_THAT(Direct::TagsOf(Direct::Read(before)), ElementsAre(10, 11));
    EXPECT_THAT(Direct::TagsOf(Direct::Read(after)), ElementsAre(-1, -1));
    EXPECT_THAT(Direct::TagsOf(Direct::Read(last)), ElementsAre(-1, 21, -1, -1, 20));
  }
}

}  // namespace
}  // namespace waymark::conformance
