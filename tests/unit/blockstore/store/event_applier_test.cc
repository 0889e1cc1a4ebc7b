#include "blockstore/store/event_applier.h"

#include <gtest/gtest.h>

#include "tests/unit/blockstore/store/store_parts.h"

namespace waymark {
namespace {

Event SealOf(std::int32_t block, std::uint8_t key, std::uint64_t step) {
  return Event::Seal(BlockId(block), Key(key), StepId(step));
}

TEST(EventApplier, OfSeveralOwnSealsTheLastIsApplied) {
  StoreParts store;
  store.Step(10, {SealOf(0, 7, 10), SealOf(0, 8, 10)}, {0});
  EXPECT_EQ(store.pages.FindKey(1, 0, Key(7)), kNoPage);
  EXPECT_EQ(store.pages.FindKey(1, 0, Key(8)), store.PageOf(0));
}

// The seal that waited for block 1 ended with its life. It must not come back for the rows of block
// 0 when they move there: a later bind with its key would find them.
TEST(EventApplier, AnOwnSealOfAnEarlierLifeDoesNotComeBackWithAMove) {
  for (const bool again : {false, true}) {
    StoreParts store;
    const Event ends = again ? SealOf(1, 10, 10) : Event::Bind(BlockId(1));
    store.Step(10, {SealOf(0, 7, 10), SealOf(1, 9, 10), ends, Event::Move(BlockId(0), BlockId(1))},
               {4});
    EXPECT_EQ(store.pages.FindKey(1, 0, Key(7)), store.PageOf(1));
    EXPECT_EQ(store.pages.FindKey(1, 0, Key(9)), kNoPage);
    EXPECT_EQ(store.pages.FindKey(1, 0, Key(10)), kNoPage);
  }
}

// A swap exchanges the seals that wait, and a block that moves on takes its seal along.
TEST(EventApplier, OwnSealsMoveAsOftenAsTheirBlocks) {
  StoreParts store;
  store.Step(10,
             {SealOf(0, 7, 10), SealOf(1, 8, 10), Event::Move(BlockId(0), BlockId(1), true),
              Event::Move(BlockId(1), BlockId(0)), Event::Move(BlockId(1), BlockId(2)),
              Event::Move(BlockId(0), BlockId(3)), SealOf(0, 9, 10)},
             {0, 8, 12});
  EXPECT_EQ(store.pages.FindKey(1, 0, Key(7)), store.PageOf(2));
  EXPECT_EQ(store.pages.FindKey(1, 0, Key(8)), store.PageOf(3));
  EXPECT_EQ(store.pages.FindKey(1, 0, Key(9)), store.PageOf(0));
}

// No step comes for a long time: the lists of what waits for it stay as long as the table, and
// nothing of them is lost.
TEST(EventApplier, WhatWaitsForAStepDoesNotGrowWithTheEvents) {
  StoreParts store;
  store.Step(10, {SealOf(0, 7, 10)}, {0, 1, 2, 3});
  const auto apply = [&](const Event& event) { store.events.Apply({&event, 1}, 10, 11); };
  const std::size_t seals = store.events.own_seals().capacity();
  const std::size_t binds = store.events.keyed_binds().capacity();
  for (int turn = 0; turn < 1000; ++turn) {
    for (std::int32_t block = 1; block < 8; ++block) {
      apply(Event::Bind(BlockId(block), Key(7)));
      apply(Event::Seal(BlockId(block), Key(static_cast<std::uint8_t>(20 + block))));
      apply(Event::Seal(BlockId(block), Key(static_cast<std::uint8_t>(10 + block))));
    }
  }
  EXPECT_EQ(store.events.own_seals().capacity(), seals);
  EXPECT_EQ(store.events.keyed_binds().capacity(), binds);
  apply(Event::Copy(BlockId(7), BlockId(6)));
  store.Step(11, {}, {}, 2);  // of other weights than the pages that the keys found
  for (std::int32_t block = 1; block < 8; ++block) {
    EXPECT_EQ(store.PageOf(block), kNoPage);
    EXPECT_EQ(store.WhyOf(block), Reason::kExternalKv);
    EXPECT_EQ(store.pages.table().hot(static_cast<EntryIndex>(block)).seal.has_key, block != 6);
  }
}

TEST(EventApplier, RetainAndReleaseCountUsers) {
  StoreParts store;
  store.Step(10, {}, {0});
  const PageHot& hot = store.pages.pool().hot(store.PageOf(0));
  const Event release = Event::Release(BlockId(0));
  EXPECT_FALSE(hot.in_lru);
  store.Step(11, {release, release}, {});
  EXPECT_TRUE(hot.in_lru);
  EXPECT_EQ(store.stats.releases_below_zero, 1u);
  store.Step(12, {Event::Retain(BlockId(0))}, {});
  EXPECT_FALSE(hot.in_lru);
}

// Two blocks shared a page, and the other one was sealed first. A late truncation took the seal of
// this block, and its page was evicted before others, although requests could still hit it.
TEST(EventApplier, ATruncationOfBeforeTheSealLeavesItOnASharedPage) {
  StoreParts store;
  store.Step(10, {}, {0, 1});
  store.Step(11, {Event::Copy(BlockId(0), BlockId(3)), SealOf(0, 7, 11)}, {});
  store.Step(12, {SealOf(3, 8, 12)}, {});
  ASSERT_EQ(store.PageOf(3), store.PageOf(0));
  store.Step(13, {Event::Truncate(BlockId(3), 1, StepId(9))}, {});
  store.Step(14, {Event::Truncate(BlockId(3), 2, StepId(11))}, {});
  EXPECT_EQ(store.PageOf(3), store.PageOf(0));
  EXPECT_TRUE(store.pages.table().hot(3).seal.set());
  EXPECT_TRUE(store.pages.pool().hot(store.PageOf(3)).seal.set());
  store.Step(15, {Event::Truncate(BlockId(3), 2, StepId(12))}, {});
  EXPECT_FALSE(store.pages.table().hot(3).seal.set());
  EXPECT_NE(store.PageOf(3), store.PageOf(0));
  EXPECT_FALSE(store.pages.pool().hot(store.PageOf(3)).seal.set());
}

}  // namespace
}  // namespace waymark
