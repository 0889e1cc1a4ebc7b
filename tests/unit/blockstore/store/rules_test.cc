// The rules of the store, one small case each.

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>

#include "blockstore/store/agreement.h"
#include "gmock/gmock.h"
#include "tests/support/in_child.h"
#include "tests/support/log_lines.h"
#include "tests/support/sanitizers.h"
#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

StoreOptions Audited() {
  return StoreDriver::With([](StoreOptions& o) { o.audit = true; });
}

// ---- rules 2 to 5: steps and their rows

TEST(Step, RowsComeBackFromTheStepThatWroteThem) {
  StoreDriver d;
  d.Step(1, {Bind(3), Bind(5)}, d.Slots({3, 5}, 0, 6), {10, 11, 12, 13, 14, 15});
  EXPECT_EQ(d.Read({3, 5}, 0, 8), "10@1 11@1 12@1 13@1 14@1 15@1 n n");
  EXPECT_EQ(d.Read({3, 5}, 3, 6), "13@1 14@1 15@1");
}

TEST(Step, BindStartsANewLife) {
  StoreDriver d;
  d.Step(1, {Bind(3)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {Bind(3)}, d.Slots({3}, 0, 1), {20});
  EXPECT_EQ(d.Read({3}, 0, 4), "20@2 n n n");
}

TEST(Step, FirstRowOfASlotWins) {
  StoreDriver d;
  d.Step(1, {Bind(3)}, {12, 12, 13}, {10, 11, 12});
  EXPECT_EQ(d.Read({3}, 0, 2), "~10@1 12@1");
  EXPECT_EQ(d.store().GetStats().rows_ignored, 1u);
}

TEST(Step, ARowThatDidNotAskIsNotCapturedAndOneThatAskedBeatsIt) {
  StoreDriver d;
  d.Step(1, {Bind(3)}, {12, NotAsked(13), NotAsked(12)}, {10, 11, 12});
  EXPECT_EQ(d.Read({3}, 0, 3), "~10@1 N n");
  // Without a page a row that did not ask makes none.
  d.Step(2, {Bind(4)}, {NotAsked(16)}, {10});
  EXPECT_EQ(d.Read({4}, 0, 2), "N n");
  EXPECT_EQ(d.store().GetStats().pages_in_use, 1u);
  d.Step(3, {Bind(5)}, {NotAsked(20), 21, 20}, {1, 2, 3});
  EXPECT_EQ(d.Read({5}, 0, 2), "3@3 2@3");
  // It runs again for somebody who asks.
  d.Step(4, {}, {13, NotAsked(13)}, {41, 0});
  EXPECT_EQ(d.Read({3}, 0, 2), "~10@1 ~41@4");
}

TEST(Step, PaddingAndNullBlocksWriteNothing) {
  StoreDriver d(StoreDriver::With([](StoreOptions& o) { o.null_blocks = {BlockId(0)}; }));
  d.Step(1, {Bind(0), Bind(3), Retain(-1), Release(-5), Seal(0, 7, 1), Copy(0, 2)},
         {kPaddingSlot, 1, 12, kPaddingSlot}, {10, 11, 12, 13});
  EXPECT_EQ(d.Read({0, -1, 2, 3}, 0, 13), "n n n n n n n n n n n n 12@1");
  EXPECT_GE(d.store().GetStats().events_on_null_blocks, 4u);
  EXPECT_EQ(d.store().GetStats().rows_padding, 3u);
}

// A step behind one whose ids are not there waits with it, and so does a snapshot.
TEST(Step, IsAppliedInTheOrderTold) {
  StoreDriver d;
  d.Begin(1, {Bind(3)}, d.Slots({3}, 0, 2));
  const Snapshot between = d.Take({3}, 0, 3);
  d.Begin(2, {Truncate(3, 1, 1)}, d.Slots({3}, 1, 3));
  d.Submit(2, {20, 21});
  EXPECT_FALSE(d.store().Land(StepId(2)));
  const Snapshot late = d.Take({3}, 0, 3);
  d.Land(1, {10, 11});
  EXPECT_EQ(d.Show(between), "10@1 11@1 n");
  EXPECT_FALSE(late.Ready());
  EXPECT_TRUE(d.store().Land(StepId(2)));
  EXPECT_EQ(d.Show(late), "10@1 20@2 21@2");
}

TEST(Step, ThatIsLostIsMissingAndThatDidNotRunHasNoEffect) {
  StoreDriver d;
  d.Step(1, {Bind(3)}, d.Slots({3}, 0, 3), {10, 11, 12});
  d.Begin(2, {}, d.Slots({3}, 1, 2));
  EXPECT_TRUE(d.store().Drop(StepId(2)).ok());
  d.Begin(3, {}, d.Slots({3}, 2, 3));
  EXPECT_TRUE(d.store().Cancel(StepId(3)).ok());
  EXPECT_EQ(d.Read({3}, 0, 3), "10@1 c 12@1");
}

// Once a number of open steps, with those that were submitted, was all that a store could take.
TEST(Step, AnyNumberOfSubmittedStepsMayWait) {
  StoreDriver d(StoreDriver::With([](StoreOptions& o) { o.max_steps_in_flight = 2; }));
  d.Begin(1, {Bind(3)}, d.Slots({3}, 0, 1));
  for (std::uint64_t step = 2; step <= 20; ++step) {
    d.Begin(step, {}, d.Slots({3}, 1, 2));
    d.Submit(step, {static_cast<int>(step)});
  }
  d.Land(1, {10});
  while (d.store().LandOne()) {
  }
  EXPECT_EQ(d.Read({3}, 0, 2), "10@1 20@20");
  EXPECT_EQ(d.store().GetStats().steps_dropped, 0u);
}

TEST(Step, BeyondTheOpenOnesIsDropped) {
  StoreDriver d(StoreDriver::With([](StoreOptions& o) { o.max_steps_in_flight = 1; }));
  d.Begin(1, {Bind(3)}, d.Slots({3}, 0, 1));
  const StepCode code = d.TryBegin(2, {Bind(4)}, d.Slots({4}, 0, 1));
  EXPECT_TRUE(code.dropped());
  EXPECT_EQ(code.rule, StepRule::kRingFull);
  EXPECT_FALSE(d.store().Submit(StepId(2), nullptr).ok());
  d.Land(1, {10});
  EXPECT_EQ(d.Read({3, 4}, 0, 5), "10@1 n n n c");
  EXPECT_EQ(d.store().GetStats().steps_without_room, 1u);
}

TEST(Step, SilentLayerIsNotCaptured) {
  StoreDriver d;
  d.Step(1, {Bind(3)}, d.Slots({3}, 0, 3), {10, -1, 12});
  EXPECT_EQ(d.Read({3}, 0, 3), "10@1 N 12@1");
}

TEST(Step, StepWithoutRows) {
  StoreDriver d;
  d.Begin(1, {Bind(3)}, {});
  const Snapshot early = d.Take({3}, 0, 1);
  EXPECT_FALSE(early.Ready());
  EXPECT_TRUE(d.store().Submit(StepId(1), nullptr).ok());
  EXPECT_TRUE(d.store().LandOne());
  EXPECT_EQ(d.Show(early), "n");
  EXPECT_EQ(d.store().GetStats().steps_landed, 1u);
}

// ---- rules 5 and 6: protected rows, seals

TEST(Seal, ProtectsFromTheNextStepOn) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {}, d.Slots({3}, 2, 4), {20, 21});
  EXPECT_EQ(d.Read({3}, 0, 4), "10@1 11@1 ~12@1 ~13@1");
}

TEST(Seal, AnnouncedBeforeItsForwardItCoversRejectedDrafts) {
  StoreDriver d;
  d.Step(1, {Bind(3)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});  // 12, 13: rejected drafts
  d.Step(2, {Seal(3, 77, 2)}, d.Slots({3}, 2, 4), {20, 21});
  EXPECT_EQ(d.Read({3}, 0, 4), "10@1 11@1 20@2 21@2");
}

TEST(Seal, AnotherVersionWritesTheRow) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13}, 1);
  d.Step(2, {}, d.Slots({3}, 3, 4), {20}, 2);
  EXPECT_EQ(d.Read({3}, 0, 4), "10@1 11@1 12@1 20@2");
}

// The seal of a forward that did not run would protect the drafts that it was to write over.
TEST(Seal, OfAForwardThatDidNotRunIsDiscarded) {
  for (const bool another_schedule : {false, true}) {
    StoreDriver d;
    d.Step(1, {Bind(3)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});  // 12, 13: rejected drafts
    ASSERT_TRUE(d.store().Schedule(StepId(2), 1).ok());
    d.Report({Seal(3, 77, 2)});
    if (another_schedule) {
      ASSERT_TRUE(d.store().Schedule(StepId(3), 1).ok());
    } else {
      d.Begin(2, {}, d.Slots({3}, 2, 4));
      ASSERT_TRUE(d.store().Cancel(StepId(2)).ok());
    }
    d.Step(4, {Bind(5, 77)}, d.Slots({3}, 2, 4), {40, 41});
    EXPECT_EQ(d.Read({3}, 0, 4), "10@1 11@1 40@4 41@4");
    EXPECT_EQ(d.Read({5}, 0, 1), "x") << "and its key finds nothing";
  }
}

TEST(Seal, OutlivesAnEvictedPage) {
  StoreDriver d(StoreDriver::WithPages(1));
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {Release(3), Bind(4)}, d.Slots({4}, 0, 1), {20});
  EXPECT_EQ(d.Read({3, 4}, 0, 5), "c c c c 20@2");
  d.Step(3, {Release(4), Retain(3)}, d.Slots({3}, 0, 2), {30, 31});
  d.Step(4, {}, d.Slots({3}, 1, 2), {40});
  EXPECT_EQ(d.Read({3}, 0, 4), "30@3 ~31@3 c c");
}

// ---- the owner of a snapshot

// Bug: the rows of the block's next owner were returned as those of the request.
TEST(Owner, ABlockWithoutUsersHasNoRowsOfTheRequest) {
  StoreDriver d;
  d.Step(1, {Bind(3), Bind(4)}, d.Slots({3, 4}, 0, 6), {10, 11, 12, 13, 14, 15});
  d.Report({Release(3)});
  EXPECT_EQ(d.Read({3, 4}, 0, 6, {}), "r r r r 14@1 15@1");
  EXPECT_EQ(d.store().GetStats().blocks_without_users, 1u);
  d.Report({Retain(3)});
  EXPECT_EQ(d.Read({3, 4}, 0, 6, {}), "10@1 11@1 12@1 13@1 14@1 15@1");
  EXPECT_EQ(d.store().GetStats().blocks_without_users, 1u);
}

TEST(Owner, RowsOfLaterStepsAndLivesAreAnothers) {
  StoreDriver d;
  d.Step(1, {Bind(3), Bind(4), Bind(5)}, d.Slots({3, 4, 5}, 0, 9),
         {10, 11, 12, 13, 14, 15, 16, 17, 18});
  d.Report({Release(3), Release(4), Release(5)});
  EXPECT_EQ(d.Read({3}, 0, 4, {.last_step = 1}), "10@1 11@1 12@1 13@1") << "not used again";
  d.Step(2, {Bind(4), Bind(5)}, d.Slots({4}, 0, 2), {20, 21});
  EXPECT_EQ(d.Read({3, 4, 5}, 0, 9, {.last_step = 1}), "10@1 11@1 12@1 13@1 r r r r r");
  EXPECT_EQ(d.Read({4}, 0, 4, {.last_step = 2}), "20@2 21@2 n n") << "the next owner's";
  // In one life, as after a Retain: the rows of the request stay, and only they.
  d.Step(3, {Retain(3)}, d.Slots({3}, 2, 4), {32, 33});
  EXPECT_EQ(d.Read({3}, 0, 4, {.last_step = 1}), "10@1 11@1 r r");
  EXPECT_EQ(d.store().GetStats().blocks_without_users, 0u);
}

TEST(Owner, ABlockUnderAnotherKeyIsAnothers) {
  StoreDriver d;
  const BlockKey keys[] = {Key(70), Key(71)};
  d.Step(1, {Bind(3), Bind(4), Seal(3, 70, 1), Seal(4, 71, 1)}, d.Slots({3, 4}, 0, 8),
         {10, 11, 12, 13, 14, 15, 16, 17});
  EXPECT_EQ(d.Read({3, 4}, 3, 6, {1, keys}), "13@1 14@1 15@1");
  d.Step(2, {Release(3), Bind(3), Release(4), Bind(4)}, d.Slots({3, 4}, 0, 8),
         {20, 21, 22, 23, 24, 25, 26, 27});
  EXPECT_EQ(d.Read({3, 4}, 3, 6, {1, keys}), "r r r");
  EXPECT_EQ(d.Read({3, 4}, 3, 6, {2, keys}), "23@2 24@2 25@2") << "not sealed yet";
  d.Report({Seal(3, 70, 2), Seal(4, 99, 2)});
  EXPECT_EQ(d.Read({3, 4}, 3, 6, {2, keys}), "23@2 r r");
  EXPECT_EQ(d.Read({3, 4}, 3, 6, {2, std::span(keys).first(1)}), "23@2 24@2 25@2");
  // Of a range that begins behind the first block; and a block that was found by its key.
  EXPECT_EQ(d.Read({4, 3}, 4, 6, {2, std::span(keys).first(1)}), "20@2 21@2");
  d.Step(3, {Bind(6, 70)}, {}, {});
  EXPECT_EQ(d.Read({6}, 0, 2, {3, keys}), "#10@1 #11@1") << "the page of the first life";
}

// Regression: keys alone said nothing of the last block, which is not full and has none; its next
// owner's rows were given as the request's.
TEST(Owner, KeysAloneDoNotSayWhoseABlockIs) {
  StoreDriver d;
  const BlockKey key = Key(70);
  d.Step(1, {Bind(3), Bind(4), Seal(3, 70, 1)}, d.Slots({3, 4}, 0, 6), {10, 11, 12, 13, 14, 15});
  d.Step(2, {Release(3), Release(4), Bind(4)}, d.Slots({4}, 0, 3), {20, 21, 22});
  for (const std::int64_t first : {0, 4}) {
    const std::vector<BlockId> blocks = {BlockId(3), BlockId(4)};
    const absl::Status refused =
        d.store().TakeSnapshot(blocks, first, 6, {.keys = {&key, 1}}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.message().substr(0, 5), "keys:") << refused;
    EXPECT_EQ(d.Read({3, 4}, first, 6, {1, {&key, 1}}),
              first == 0 ? "10@1 11@1 12@1 13@1 r r" : "r r");
  }
}

// ---- rule 5: visible rows

TEST(SeenByOthers, AppendUnderASnapshotCopiesThePage) {
  StoreDriver d;
  d.Step(1, {Bind(3)}, d.Slots({3}, 0, 3), {10, 11, 12});
  const Snapshot seen = d.Take({3}, 0, 2);
  d.Step(2, {}, d.Slots({3}, 3, 4), {20});  // above the high-water mark: in place
  EXPECT_EQ(d.store().GetStats().copies_on_write, 0u);
  d.Step(3, {}, d.Slots({3}, 1, 2), {30});
  EXPECT_EQ(d.store().GetStats().copies_on_write, 1u);
  EXPECT_EQ(d.Show(seen), "10@1 11@1");
  EXPECT_EQ(d.Read({3}, 0, 4), "10@1 30@3 12@1 20@2");
}

TEST(SeenByOthers, ForkSharesThePageUntilOneWrites) {
  StoreDriver d;
  d.Step(1, {Bind(3)}, d.Slots({3}, 0, 2), {10, 11});
  d.Step(2, {Bind(4), Copy(3, 4)}, d.Slots({4}, 2, 3), {20});
  EXPECT_EQ(d.Read({3}, 0, 3), "10@1 11@1 n");
  EXPECT_EQ(d.Read({4}, 0, 3), "10@1 11@1 20@2");
}

// A page that is copied in the middle of a step has the rows that the step has written so far.
TEST(SeenByOthers, ACopiedPageHasTheRowsThatTheStepHasWritten) {
  StoreDriver d;
  d.Step(1, {Bind(3), Bind(4)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  const Snapshot seen = d.Take({3}, 0, 2);
  const std::int64_t row = d.Slots({3}, 0, 1)[0];
  const std::int64_t other = d.Slots({4}, 0, 1)[0];
  d.Step(2, {}, {row + 3, row + 1, other, other + 1}, {23, 21, 30, 31});
  EXPECT_EQ(d.Read({3}, 0, 4), "10@1 21@2 12@1 23@2");
}

TEST(SeenByOthers, WithoutAPageTheBlockLosesItsRows) {
  StoreDriver d(StoreDriver::WithPages(1, 0));
  d.Step(1, {Bind(3)}, d.Slots({3}, 0, 2), {10, 11});
  const Snapshot seen = d.Take({3}, 0, 2);
  d.Step(2, {}, d.Slots({3}, 0, 1), {20});
  EXPECT_EQ(d.Read({3}, 0, 2), "c c");
  EXPECT_EQ(d.Show(seen), "10@1 11@1");
  EXPECT_EQ(d.store().GetStats().rows_without_page, 3u) << "two of the page, and the row";
}

// ---- the log

// A store whose steps the caller lands has a small log, and refused every batch of more than about
// 10,000 events: its rows were lost, although nobody was late.
TEST(Log, TakesABatchOfManyEventsWhereTheCallerLands) {
  constexpr int kBlocks = 1 << 17;
  StoreDriver d(StoreDriver::With([](StoreOptions& o) { o.num_blocks = kBlocks; }));
  std::vector<Event> events;
  for (int block = 0; block < kBlocks; ++block)
    events.push_back(Bind(block));
  EXPECT_TRUE(d.store().Report(events).ok());
  d.Step(1, events, d.Slots({3}, 0, 1), {10});
  EXPECT_EQ(d.Read({3}, 0, 1), "10@1");
}

// ---- rule 7: truncate

TEST(Truncate, KnowsTheStep) {
  StoreDriver d;
  d.Step(1, {Bind(3)}, d.Slots({3}, 0, 3), {10, 11, 12});
  d.Step(2, {}, d.Slots({3}, 1, 2), {20});
  d.Step(3, {Truncate(3, 1, 1)}, {}, {});
  EXPECT_EQ(d.Read({3}, 0, 3), "10@1 20@2 n");
}

TEST(Truncate, KnowsTheLife) {
  StoreDriver d;
  d.Step(1, {Bind(3), Bind(4)}, d.Slots({3}, 0, 2), {10, 11});
  d.Step(2, {Move(3, 5)}, {}, {});
  d.Step(3, {Truncate(5, 1, 1)}, {}, {});  // meant the life before the move
  EXPECT_EQ(d.Read({5}, 0, 2), "10@1 11@1");
}

TEST(Truncate, MeansTheRowsThatMovedInItsSchedule) {
  StoreDriver d;
  d.Step(1, {Bind(3), Bind(4)}, d.Slots({3}, 0, 3), {10, 11, 12});
  d.Step(2, {}, d.Slots({4}, 0, 1), {20});
  // The drafts 11 and 12 of step 1 were rejected, in the block to which they have moved.
  d.Step(3, {Move(3, 5), Truncate(5, 1, 1)}, {}, {});
  EXPECT_EQ(d.Read({5}, 0, 3), "10@1 n n");
  // Moved twice, over a block of an earlier life; but not what moved before the last begin.
  d.Step(4, {Move(4, 6), Move(6, 5), Truncate(5, 0, 2)}, {}, {});
  EXPECT_EQ(d.Read({5}, 0, 1), "n");
  d.Step(5, {Bind(7)}, d.Slots({7}, 0, 2), {50, 51});
  d.Step(6, {Move(7, 5)}, {}, {});
  d.Step(7, {Truncate(5, 0, 5)}, {}, {});
  EXPECT_EQ(d.Read({5}, 0, 2), "50@5 51@5");
}

TEST(Truncate, SparesABlockThatWasBoundInItsSchedule) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {Bind(4, 77), Truncate(4, 0, 1)}, {}, {});
  EXPECT_EQ(d.Read({4}, 0, 2), "#10@1 #11@1");
  d.Step(3, {Bind(5, 77), Move(5, 6), Truncate(6, 0, 1)}, {}, {});
  EXPECT_EQ(d.Read({6}, 0, 2), "#10@1 #11@1");
}

TEST(Truncate, RewindLeavesTheSealedPage) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {Truncate(3, 2, 1)}, d.Slots({3}, 2, 4), {20, 21});
  d.Step(3, {Bind(6, 77)}, {}, {});
  EXPECT_EQ(d.Read({3}, 0, 4), "10@1 11@1 20@2 21@2");
  EXPECT_EQ(d.Read({6}, 0, 4), "#10@1 #11@1 #12@1 #13@1");
}

// A rewound block whose page had been evicted came up under its old key with the rows of other
// tokens.
TEST(Truncate, RewindUnsealsABlockWhosePageWasEvicted) {
  StoreDriver d(StoreDriver::WithPages(1));
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {Release(3), Bind(4)}, d.Slots({4}, 0, 1), {20});
  d.Step(3, {Release(4), Retain(3), Truncate(3, 0, 2)}, d.Slots({3}, 0, 4), {30, 31, 32, 33});
  d.Step(4, {Bind(5, 77)}, {}, {});
  EXPECT_EQ(d.Read({5}, 0, 1), "x");
}

// A step's own seal comes after the rows, and reached a block that was bound again in the same
// batch.
TEST(Seal, StaysWithTheLifeThatItWasAnnouncedFor) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 77, 1), Release(3), Bind(3)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {Bind(5, 77)}, {}, {});
  EXPECT_EQ(d.Read({5}, 0, 1), "x");
  EXPECT_EQ(d.Read({3}, 0, 1), "10@1");
}

// ---- keys

TEST(Keys, BindByKeyAttachesAndSaysSo) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {Bind(3), Bind(4, 77), Bind(5, 78)}, {}, {});
  EXPECT_EQ(d.Read({3, 4, 5}, 0, 12), "n n n n #10@1 #11@1 #12@1 #13@1 x x x x");
}

TEST(Keys, AnotherVersionHasAnotherIndex) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13}, 1);
  d.Step(2, {Bind(4, 77)}, {}, {}, 2);
  EXPECT_EQ(d.Read({4}, 0, 1), "x");
}

TEST(Keys, TheFullerPageStays) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 3), {10, 11, 12});
  d.Step(2, {Bind(4), Seal(4, 77, 2)}, d.Slots({4}, 0, 4), {10, 11, 12, 13});
  d.Step(3, {Bind(5, 77)}, {}, {});
  EXPECT_EQ(d.Read({5}, 0, 4), "#10@2 #11@2 #12@2 #13@2");
}

// Rule 10: what became of the ids does not count, since another stage may not have lost them.
TEST(Keys, RowsThatWereAskedForCountAlsoIfTheyAreMissing) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, -1, 12, 13});
  d.Step(2, {Bind(4), Seal(4, 77, 2)}, d.Slots({4}, 0, 4), {10, 11, 12, 13});
  d.Step(3, {Bind(5, 77)}, {}, {});
  EXPECT_EQ(d.Read({5}, 0, 4), "#10@1 #N #12@1 #13@1");
}

// A page that held its place of old weights never took that of the new ones; and it kept the old
// place, where rows of the new weights would have come up.
TEST(Keys, APageComputedAgainUnderOtherWeightsChangesItsPlace) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13}, 1);
  d.Step(2, {Seal(3, 77, 2)}, d.Slots({3}, 0, 2), {20, 21}, 2);
  d.Step(3, {}, d.Slots({3}, 2, 4), {22, 23}, 2);
  d.Step(4, {Bind(5, 77)}, {}, {}, 2);
  EXPECT_EQ(d.Read({5}, 0, 4), "#20@2 #21@2 #22@3 #23@3");
  d.Step(5, {Bind(6, 77)}, {}, {}, 1);
  EXPECT_EQ(d.Read({6}, 0, 1), "x");
}

TEST(Keys, ABlockOfSeveralPages) {
  StoreDriver d(StoreDriver::Options(2, 4));
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {Bind(4, 77)}, {}, {});
  EXPECT_EQ(d.Read({4}, 0, 4), "#10@1 #11@1 #12@1 #13@1");
}

// ---- moves and reset

TEST(Move, IsSimultaneous) {
  StoreDriver d;
  d.Step(1, {Bind(3), Bind(4)}, d.Slots({3, 4}, 0, 8), {10, 11, 12, 13, 14, 15, 16, 17});
  d.Step(2, {Move(3, 4, true), Move(4, 3)}, {}, {});
  EXPECT_EQ(d.Read({3, 4}, 3, 5), "17@1 10@1");
}

TEST(Reset, EmptiesTableAndIndexButNotSnapshots) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  const Snapshot seen = d.Take({3}, 0, 4);
  d.Step(2, {Event::Reset(), Bind(4, 77)}, {}, {});
  EXPECT_EQ(d.Read({3, 4}, 3, 5), "c x");
  EXPECT_EQ(d.Show(seen), "10@1 11@1 12@1 13@1");
}

// ---- reading

TEST(Reading, CoveredPrefixCountsTheRowsThatHaveLanded) {
  StoreDriver d;
  d.Begin(1, {Bind(3), Bind(4)}, d.Slots({3, 4}, 0, 6));
  const std::vector<BlockId> blocks = {BlockId(3), BlockId(4)};
  EXPECT_EQ(d.store().CoveredPrefix(blocks, 8), 0);
  d.Land(1, {10, 11, 12, 13, 14, -1});
  EXPECT_EQ(d.store().CoveredPrefix(blocks, 8), 5);
  EXPECT_EQ(d.store().CoveredPrefix(blocks, 3), 3);
}

TEST(Reading, NotBeforeTheStepsBegunHaveLanded) {
  StoreDriver d;
  d.Begin(1, {Bind(3)}, d.Slots({3}, 0, 1));
  const Snapshot early = d.Take({3}, 0, 1);
  EXPECT_FALSE(early.Ready());
  EXPECT_EQ(early.ReadRows().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(early.Wait(std::chrono::milliseconds(1)).code(), absl::StatusCode::kDeadlineExceeded);
  d.Land(1, {10});
  EXPECT_EQ(d.Show(early), "10@1");
}

TEST(Reading, ASnapshotOutlivesItsStore) {
  Snapshot seen;
  {
    StoreDriver d;
    d.Step(1, {Bind(3)}, d.Slots({3}, 0, 2), {10, 11});
    seen = d.Take({3}, 0, 2);
    d.Begin(2, {}, d.Slots({3}, 2, 3));  // in flight at the end
  }
  ASSERT_TRUE(seen.Ready());
  const auto rows = seen.ReadRows().value();
  EXPECT_TRUE(rows.infos[0].valid() && rows.infos[1].valid());
}

// ---- eviction

TEST(Eviction, UnreferencedPagesGoFirstLeastRecentlyUsed) {
  StoreDriver d(StoreDriver::WithPages(3));
  d.Step(1, {Bind(1), Bind(2), Bind(3)}, {4, 8, 12}, {1, 2, 3});
  d.Step(2, {Release(2), Release(1), Bind(4)}, {16}, {4});
  EXPECT_EQ(d.Read({1, 2, 3, 4}, 0, 13), "1@1 n n n c n n n 3@1 n n n 4@2");
  d.Step(3, {Bind(5)}, {20}, {5});
  d.Step(4, {Bind(6)}, {24}, {6});  // nothing left to evict
  EXPECT_EQ(d.Read({1, 3, 5, 6}, 0, 13), "c n n n 3@1 n n n 5@3 n n n c");
  EXPECT_EQ(d.store().GetStats().evictions, 2u);
  EXPECT_EQ(d.store().GetStats().no_page, 1u);
}

TEST(Eviction, PagesThatOnlyTheIndexHoldsGoBeforeThoseOfCachedBlocks) {
  StoreDriver d(StoreDriver::WithPages(3));
  d.Step(1, {Bind(1), Seal(1, 71, 1), Bind(2), Seal(2, 72, 1), Release(1), Release(2)},
         d.Slots({1, 2}, 0, 8), {1, 2, 3, 4, 5, 6, 7, 8});
  // Block 2 is bound again: the page of key 72 is held by the index alone, and used last.
  d.Step(2, {Bind(2)}, {8}, {20});
  d.Step(3, {Bind(3)}, {12}, {30});
  EXPECT_EQ(d.Read({1}, 0, 4), "1@1 2@1 3@1 4@1");
  d.Step(4, {Bind(4, 71), Bind(5, 72)}, {}, {});
  EXPECT_EQ(d.Read({4, 5}, 3, 5), "#4@1 x");
}

// A life that begins with a copy has a user, as one that begins with a bind: the child of a fork is
// not evicted while it runs, and its release is no release too many.
TEST(Eviction, ACopyOntoABlockWithoutUsersGivesItOne) {
  for (const int rows : {Event::kAllRows, 2}) {
    for (const bool bound : {false, true}) {
      SCOPED_TRACE(absl::StrCat(rows, bound ? " rows, bound first" : " rows, a copy alone"));
      StoreDriver d(StoreDriver::WithPages(3, 0));
      d.Step(1, {Bind(0), Bind(1)}, d.Slots({0}, 0, 2), {10, 11});
      d.Step(2, {Release(1)}, {}, {});
      std::vector<Event> fork;
      if (bound) fork.push_back(Bind(1));
      fork.push_back(Copy(0, 1, rows));
      d.Step(3, fork, d.Slots({1}, 2, 3), {30});
      d.Step(4, {Bind(2), Bind(3)}, d.Slots({2, 3}, 0, 8), {1, 2, 3, 4, 5, 6, 7, 8});
      EXPECT_EQ(d.Read({1}, 0, 3), "10@1 11@1 30@3") << "it is in use";
      d.Step(5, {Release(1)}, {}, {});
      EXPECT_EQ(d.store().GetStats().releases_below_zero, 0u);
      d.Step(6, {Bind(4)}, d.Slots({4}, 0, 1), {40});
      EXPECT_EQ(d.Read({1}, 0, 1), "c") << "nobody uses it";
      EXPECT_EQ(d.Read({0}, 0, 1), "10@1");
    }
  }
}

// Regression: pages that the rows of a step had evicted again were put into the key index behind
// them. The index then had more pages than it has room for, and a search in it did not end.
TEST(Eviction, APageThatItsOwnStepEvictedIsNotIndexed) {
  StoreDriver d(StoreDriver::WithPages(1, 16));
  std::vector<Event> events;
  std::vector<std::int64_t> slots;
  for (int block = 0; block < 8; ++block) {
    const auto key = static_cast<std::uint64_t>(100 + block);
    events.insert(events.end(), {Bind(block), Seal(block, key, 1), Release(block)});
    slots.push_back(4 * block);
  }
  d.Step(1, events, {}, {});
  d.Step(2, {}, slots, {10, 11, 12, 13, 14, 15, 16, 17});
  const Stats stats = d.store().GetStats();
  EXPECT_EQ(stats.pages_in_use - stats.pages_detached, 1u);
  d.Step(3, {Bind(20, 500), Bind(21, 103), Bind(22, 107)}, {}, {});
  EXPECT_EQ(d.Read({20, 21, 22}, 0, 12), "x x x x x x x x #17@2 #n #n #n");
}

// No request can hit a block that is not sealed: of blocks without users, those go first, however
// old the sealed ones are.
TEST(Eviction, UnsealedPagesGoBeforeSealedOnes) {
  StoreDriver d(StoreDriver::WithPages(20));
  std::vector<Event> events;
  std::vector<std::int64_t> slots;
  std::vector<int> numbers;
  for (int block = 0; block < 20; ++block) {
    events.push_back(Bind(block));
    slots.push_back(4 * block);
    numbers.push_back(block);
  }
  d.Step(1, events, slots, numbers);
  events.clear();
  for (int block = 0; block < 4; ++block)
    events.push_back(Seal(block, static_cast<std::uint64_t>(block + 1), 1));
  for (int block = 0; block < 20; ++block)
    events.push_back(Release(block));
  events.push_back(Seal(6, 99, 1));  // late: it is free already
  events.push_back(Seal(7, 98, 1));
  events.push_back(Truncate(7, 0, 1));  // and this one is taken back
  d.Step(2, events, {}, {});
  for (int turn = 0; turn < 10; ++turn) {
    const int block = 20 + turn;
    d.Step(static_cast<std::uint64_t>(3 + turn), {Bind(block)}, {4 * block}, {block});
  }
  EXPECT_EQ(d.store().GetStats().evictions, 10u + 1u) << "and one for the copy of block 7";
  std::string sealed;
  for (const int block : {0, 1, 2, 3, 6})
    sealed += d.Read({block}, 0, 1) + " ";
  EXPECT_EQ(sealed, "0@1 1@1 2@1 3@1 6@1 ");
  EXPECT_EQ(d.Read({4}, 0, 1), "c") << "the least recently released one";
  EXPECT_EQ(d.Read({19}, 0, 1), "19@1");
}

// A copy onto a block that is in use keeps its users.
TEST(Eviction, ACopyKeepsTheUsersOfItsDestination) {
  StoreDriver d;
  d.Step(1, {Bind(0), Bind(1), Retain(1), Copy(0, 1)}, d.Slots({0}, 0, 2), {10, 11});
  d.Step(2, {Release(1), Release(1)}, {}, {});
  EXPECT_EQ(d.store().GetStats().releases_below_zero, 0u);
  d.Step(3, {Release(1)}, {}, {});
  EXPECT_EQ(d.store().GetStats().releases_below_zero, 1u);
}

// ---- readers that are late

// It was counted nowhere but in rows_without_page, and so no log line said what to do.
TEST(SlowReader, ATruncationThatFindsNoPageIsCounted) {
  StoreDriver d(StoreDriver::WithPages(1, 0));
  d.Step(1, {Bind(1)}, {4, 5, 6}, {1, 2, 3});
  const Snapshot held = d.Take({1}, 0, 3);
  d.Step(2, {Truncate(1, 2, 1)}, {}, {});
  EXPECT_EQ(d.Show(held), "1@1 2@1 3@1");
  EXPECT_EQ(d.Read({1}, 0, 3), "c c c");
  const Stats stats = d.store().GetStats();
  EXPECT_EQ(stats.no_page, 1u);
  EXPECT_EQ(stats.rows_without_page, 3u);
}

TEST(SlowReader, CostsMemoryAndNoRowUntilTheSparePagesAreUsed) {
  StoreDriver d(StoreDriver::WithPages(3, 6));
  // Each turn binds every block again. Nobody has read the turns before.
  std::vector<Snapshot> held;
  const auto turn = [&](std::uint64_t step) {
    const int id = static_cast<int>(step);
    d.Step(step, {Bind(1), Bind(2), Bind(3)}, {4, 8, 12}, {id, id, id});
    held.push_back(d.Take({1, 2, 3}, 0, 9));
  };
  const auto text = [](const std::string& row) { return row + " n n n " + row + " n n n " + row; };
  for (std::uint64_t step = 1; step <= 3; ++step)
    turn(step);
  EXPECT_EQ(d.Show(held[0]), text("1@1"));
  EXPECT_EQ(d.Show(held[2]), text("3@3"));
  Stats stats = d.store().GetStats();
  EXPECT_EQ(stats.pages_detached, 6u);
  EXPECT_EQ(stats.pages_in_use, 9u);
  EXPECT_EQ(stats.no_page, 0u);

  turn(4);
  EXPECT_EQ(d.Show(held[3]), "c n n n c n n n c");
  EXPECT_EQ(d.Show(held[0]), text("1@1"));
  EXPECT_EQ(d.Show(held[2]), text("3@3"));
  stats = d.store().GetStats();
  EXPECT_EQ(stats.pages_detached, 9u);
  EXPECT_EQ(stats.rows_without_page, 3u);
  EXPECT_EQ(stats.evictions, 0u);

  held.erase(held.begin());
  turn(5);
  EXPECT_EQ(d.Show(held.back()), text("5@5"));
  held.clear();
  turn(6);
  stats = d.store().GetStats();
  EXPECT_EQ(stats.rows_without_page, 3u);
  EXPECT_EQ(stats.pages_detached, 0u);
  EXPECT_EQ(stats.pages_detached_peak, 9u);
  EXPECT_EQ(stats.pages, 3u);
  EXPECT_EQ(stats.spare_pages, 6u);
}

TEST(SlowReader, AsManySparePagesAsPagesByDefault) {
  StoreDriver d(StoreDriver::WithPages(3));
  EXPECT_EQ(d.store().options().spare_pages, 3u);
  const std::uint64_t before = d.store().GetStats().bytes_touched_peak;
  d.Step(1, {Bind(1)}, {4}, {1});
  const Stats stats = d.store().GetStats();
  const std::uint64_t page = d.shape().page_bytes();
  EXPECT_EQ(stats.bytes_touched_peak, before + page) << "records and stamps of pages are touched";
  EXPECT_EQ(stats.bytes - stats.bytes_touched_peak, 5 * page + 3 * (80 + 4 * 8))
      << "and those of spare pages are not";
}

// ---- steps and versions

TEST(Versions, AreNotForgottenHoweverManyThereAre) {
  StoreDriver d;
  d.Step(1, {Bind(4)}, d.Slots({4}, 0, 1), {7}, 77);
  std::uint64_t step = 1;
  for (std::uint64_t version = 1; version <= 5000; ++version) {
    d.Step(++step, {Bind(3)}, d.Slots({3}, 0, 1), {7}, version);
  }
  EXPECT_EQ(d.Read({3}, 0, 1), "7@5001");
  EXPECT_EQ(d.Take({3}, 0, 1).ReadRows()->infos[0].version, 5000u);
  EXPECT_EQ(d.Take({4}, 0, 1).ReadRows()->infos[0].version, 77u);
}

TEST(Versions, StepsUpToTheLargestOne) {
  StoreDriver d;
  const std::uint64_t last = (std::uint64_t{1} << 56) - 1;
  d.Step(last - 1, {Bind(3)}, d.Slots({3}, 0, 1), {10});
  d.Step(last, {Truncate(3, 1, last - 1)}, d.Slots({3}, 1, 2), {11});
  EXPECT_EQ(d.Read({3}, 0, 2), absl::StrCat("10@", last - 1, " 11@", last));
  EXPECT_EQ(d.TryBegin(last + 1, {}, {}).rule, StepRule::kStepNotIncreasing);
}

// ---- audit

TEST(Audit, AnIgnoredWriteThatDisagreesVoidsThePage) {
  StoreDriver d(Audited());
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  const Snapshot seen = d.Take({3}, 0, 4);
  d.Step(2, {}, d.Slots({3}, 0, 2), {20, 21});  // the Bind of block 3 was missed
  EXPECT_EQ(d.Show(seen), "~a ~a a a");
  const std::vector<AuditFinding> findings = d.store().TakeFindings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].block, 3);
  EXPECT_EQ(findings[0].step, 2u);
  EXPECT_EQ(findings[0].kept_step, 1u);
  EXPECT_EQ(findings[0].sealed_step, 1u);
  EXPECT_EQ(d.store().GetStats().audit_voided_rows, 4u);
}

TEST(Audit, ARowOfOtherIdsIsVoidedAloneIfItsPageAgrees) {
  StoreDriver d(Audited());
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {}, d.Slots({3}, 0, 4), {10, 11, 12, 23});
  EXPECT_EQ(d.Read({3}, 0, 4), "~10@1 ~11@1 ~12@1 ~a");
  const std::vector<AuditFinding> findings = d.store().TakeFindings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].block, 3);
  EXPECT_EQ(findings[0].step, 2u);
  EXPECT_EQ(findings[0].rows, 1u);
  EXPECT_LT(findings[0].agreement, 0.5);
  EXPECT_TRUE(findings[0].voided);
  EXPECT_EQ(d.store().GetStats().audit_voided_rows, 1u);
  EXPECT_EQ(d.store().GetStats().audit_voided_pages, 0u);
  // Of two pages with one key, too.
  d.Step(3, {Bind(4), Seal(4, 78, 3)}, d.Slots({4}, 0, 4), {30, 31, 32, 33});
  d.Step(4, {Bind(5), Seal(5, 78, 4)}, d.Slots({5}, 0, 4), {30, 41, 32, 33});
  EXPECT_EQ(d.Read({4, 5}, 0, 8), "30@3 a 32@3 33@3 30@4 a 32@4 33@4");
}

// Regression: a diffusion model writes the same positions in pass after pass. Where 60 % of the
// layers chose as before, each page agreed, and all rows were given with the ids of the first pass.
TEST(Audit, TiesExchangeOneIdOfALayer) {
  const auto explained = [](int layers, int top_k, int others, int differ) {
    const RoutingShape shape = {.num_layers = layers, .top_k = top_k, .num_experts = 128};
    std::vector<std::uint8_t> kept(shape.row_bytes());
    for (std::size_t i = 0; i < kept.size(); ++i)
      kept[i] = static_cast<std::uint8_t>(i % static_cast<std::size_t>(top_k));
    std::vector<std::uint8_t> row = kept;
    for (int i = 0; i < others * differ; ++i)
      row[static_cast<std::size_t>(i / differ * top_k + i % differ)] += 64;
    return TiesExplain(shape, kept.data(), row.data());
  };
  EXPECT_TRUE(explained(30, 8, 30, 1));
  EXPECT_TRUE(explained(30, 8, 3, 8));
  EXPECT_FALSE(explained(30, 8, 4, 2));
  EXPECT_FALSE(explained(30, 8, 12, 8)) << "the agreement is 0.6";
  EXPECT_TRUE(explained(4, 2, 1, 2));
  EXPECT_FALSE(explained(4, 2, 2, 2));
  EXPECT_TRUE(explained(30, 1, 30, 1)) << "each may be a tie";
}

TEST(Audit, TheThresholdIsAboveWhatChanceGives) {
  StoreOptions options = StoreDriver::Options();
  options.shape.top_k = 4;
  options.shape.num_experts = 6;
  auto store = RoutingStore::Create(options).value();
  EXPECT_DOUBLE_EQ(*store->options().audit_threshold, 5.0 / 6);
  for (const double refused : {0.5, 4.0 / 6, 1.01, -0.1, std::nan("")}) {
    options.audit_threshold = refused;
    EXPECT_EQ(RoutingStore::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
  for (const double taken : {0.0, 0.67, 1.0}) {
    options.audit_threshold = taken;
    EXPECT_TRUE(RoutingStore::Create(options).ok()) << taken;
  }
  options.shape.num_experts = 4;  // every token has every expert: there is nothing to find
  EXPECT_TRUE(RoutingStore::Create(options).ok());
}

// More than are kept for each page are counted.
TEST(Audit, ManyFindingsOfOneCauseAreOne) {
  StoreDriver d(StoreDriver::With([](StoreOptions& o) { o.audit = true, o.num_blocks = 300; }));
  for (const bool each : {true, false}) {
    for (int block = 0; block < 300; ++block) {
      const std::uint64_t step = 2 * static_cast<std::uint64_t>(block) + (each ? 1 : 601);
      d.Step(step, {Bind(block), Seal(block, 1000 + block, step)}, d.Slots({block}, 0, 1), {10});
      d.Step(step + 1, {}, d.Slots({block}, 0, 1), {20});
    }
    const std::vector<AuditFinding> findings =
        each ? d.store().TakeEachFinding() : d.store().TakeFindings();
    ASSERT_EQ(findings.size(), each ? 256u : 1u);
    EXPECT_EQ(findings[0].block, 0);
    EXPECT_EQ(findings[0].pages, each ? 1u : 300u);
    EXPECT_EQ(findings.back().pages, each ? 45u : 300u);
    EXPECT_EQ(findings.back().last_step, each ? 600u : 1200u);
    EXPECT_TRUE(d.store().TakeFindings().empty());
  }
}

TEST(Audit, AnIgnoredWriteThatAgreesIsOnlyCounted) {
  StoreDriver d(Audited());
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {}, d.Slots({3}, 2, 4), {12, 13});
  EXPECT_EQ(d.Read({3}, 0, 4), "10@1 11@1 ~12@1 ~13@1");
  EXPECT_EQ(d.store().GetStats().audited_rows, 2u);
  EXPECT_EQ(d.store().GetStats().audit_disagreements, 0u);
}

// The audit compared an ignored write with a row that was written again since, under other weights.
TEST(Audit, ComparesWithTheRowThatWasThere) {
  StoreDriver d(Audited());
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13}, 1);
  d.Begin(2, {}, d.Slots({3}, 3, 4), 1);  // ignored, of the same token
  d.Begin(3, {}, d.Slots({3}, 3, 4), 2);  // written: the weights have changed
  d.Submit(3, {30});
  d.Land(2, {13});
  ASSERT_TRUE(d.store().Land(StepId(3)));
  EXPECT_EQ(d.Read({3}, 0, 4), "10@1 11@1 12@1 30@3");
  EXPECT_EQ(d.store().GetStats().audited_rows, 1u);
  EXPECT_EQ(d.store().GetStats().audit_disagreements, 0u);
}

TEST(Audit, SecondSealsAreCompared) {
  StoreDriver d(Audited());
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {Bind(4), Seal(4, 77, 2)}, d.Slots({4}, 0, 4), {20, 21, 22, 23});
  EXPECT_EQ(d.Read({3, 4}, 3, 5), "a a");
}

TEST(Audit, EachFindingThatVoidedIsTold) {
  LogLines logged;
  StoreDriver d(
      StoreDriver::With([&](StoreOptions& o) { o.audit = true, o.log = logged.callback(); }));
  logged.meanwhile = [&] { (void)d.store().GetStats(); };  // no lock is held
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(2, {}, d.Slots({3}, 2, 4), {12, 13});  // agrees: counted only
  EXPECT_EQ(logged.lines().size(), 0u);
  d.Step(3, {}, d.Slots({3}, 0, 2), {20, 21});
  d.Step(4, {Bind(5), Seal(5, 78, 4)}, d.Slots({5}, 0, 4), {30, 31, 32, 33});
  EXPECT_EQ(logged.lines().size(), 1u);
  d.Step(5, {Bind(6), Seal(6, 78, 5)}, d.Slots({6}, 0, 4), {40, 41, 42, 43});
  const std::vector<AuditFinding> findings = d.store().TakeFindings();
  const std::vector<LogLines::Line> lines = logged.lines();
  ASSERT_EQ(findings.size(), 2u);
  ASSERT_EQ(lines.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(lines[i].level, LogLevel::kWarning);
    EXPECT_EQ(lines[i].text, findings[i].ToString());
  }
  EXPECT_EQ(lines[0].text.rfind("block 3: step 3 wrote rows", 0), 0u) << lines[0].text;
}

TEST(Audit, FindingsAreToldOnTheLandingThread) {
  LogLines logged;
  {
    StoreDriver d(StoreDriver::With([&](StoreOptions& o) {
      o.audit = true, o.landing = Landing::kThread;
      o.log = logged.callback();
    }));
    d.Begin(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4));
    d.Submit(1, {10, 11, 12, 13});
    d.Begin(2, {}, d.Slots({3}, 0, 2));
    d.Submit(2, {20, 21});
    ASSERT_TRUE(d.store().WaitIdle(std::chrono::seconds(20)).ok());
  }  // the line is written after the step has ended
  const std::vector<LogLines::Line> lines = logged.lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].thread, std::this_thread::get_id());
}

// ---- bad input: nothing is done, and the error names argument, rule and value

TEST(BadInput, NothingOfAnInvalidBatchIsDone) {
  StoreDriver d;
  d.Step(5, {Bind(3)}, d.Slots({3}, 0, 1), {10});
  const auto refused = [&](std::uint64_t step, std::vector<Event> events,
                           std::vector<std::int64_t> slots, StepRule rule, std::int64_t value) {
    events.insert(events.begin(), Bind(3));
    const StepCode code = d.TryBegin(step, events, slots);
    EXPECT_EQ(code.rule, rule);
    EXPECT_EQ(code.value, value);
    EXPECT_EQ(code.code, static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_NE(std::string(code.ToStatus().message()).find(absl::StrCat(value)), std::string::npos)
        << code.ToStatus();
    EXPECT_EQ(d.Read({3}, 0, 1), "10@5");
  };
  refused(5, {}, {}, StepRule::kStepNotIncreasing, 5);
  refused(6, {}, {32 * 4}, StepRule::kSlotOutOfRange, 128);
  refused(6, {}, {NotAsked(32 * 4)}, StepRule::kSlotOutOfRange, -130);
  refused(6, {Bind(32)}, {}, StepRule::kBlockOutOfRange, 32);
  refused(6, {Copy(99, 1)}, {}, StepRule::kSrcOutOfRange, 99);
  refused(6, {Copy(2, 2)}, {}, StepRule::kSelfCopy, 2);
  refused(6, {Copy(1, 2, 5)}, {}, StepRule::kRowsOutOfRange, 5);
  refused(6, {Truncate(1, -1, 1)}, {}, StepRule::kRowsOutOfRange, -1);
  refused(6, {Seal(1, 1, 7)}, {}, StepRule::kSealStep, 7);
  refused(6, {Move(1, 2, true), Move(3, 2)}, {}, StepRule::kDuplicateMove, 2);
  refused(6, {Move(1, 2, true)}, {}, StepRule::kUnfinishedMove, 1);
  refused(6, {}, std::vector<std::int64_t>(9000, kPaddingSlot), StepRule::kTooManyRows, 9000);
  Event unknown;
  unknown.type = static_cast<EventType>(77);
  refused(6, {unknown}, {}, StepRule::kUnknownEvent, 77);
}

TEST(BadInput, EndsOfStepsThatAreNotInFlight) {
  StoreDriver d;
  NumberedRows rows(d.shape(), {});
  EXPECT_EQ(d.store().Submit(StepId(3), &rows).rule, StepRule::kStepNotInFlight);
  EXPECT_EQ(rows.done, 1);
  // Step 0 is no step: it used to be taken for one that had been submitted, and kept its rows.
  EXPECT_EQ(d.store().Submit(StepId(0), &rows).rule, StepRule::kStepNotInFlight);
  EXPECT_EQ(rows.done, 2);
  EXPECT_FALSE(d.store().Drop(StepId(3)).ok());
  d.Step(3, {}, {}, {});
  EXPECT_FALSE(d.store().Cancel(StepId(3)).ok());
}

TEST(BadInput, SnapshotsOutsideTheBlocks) {
  StoreDriver d;
  const std::vector<BlockId> blocks = {BlockId(3)};
  EXPECT_FALSE(d.store().TakeSnapshot(blocks, -1, 1).ok());
  EXPECT_FALSE(d.store().TakeSnapshot(blocks, 2, 1).ok());
  EXPECT_FALSE(d.store().TakeSnapshot(blocks, 0, 5).ok());
  const std::vector<BlockId> unknown = {BlockId(32)};
  EXPECT_FALSE(d.store().TakeSnapshot(unknown, 0, 1).ok());
}

TEST(BadInput, OptionsNameTheFieldAndTheValue) {
  const std::pair<StoreOptions, const char*> cases[] = {
      {StoreDriver::Options(4, 6), "block_tokens"},
      {StoreDriver::Options(4, 6), "got 6"},
      {StoreDriver::WithPages(3, ~0u - 3), "spare_pages"}};  // with the pages they are too many
  for (const auto& [options, says] : cases) {
    const absl::Status status = RoutingStore::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), ::testing::HasSubstr(says));
  }
}

// Regression: of pages that are sealed before their rows only 65,536 were offered.
TEST(EarlySeals, EveryPageIsOfferedWhenItIsComplete) {
  struct Sink final : SealSink {
    void OnSealed(const SealedPage& page) noexcept override {
      ++offered;
      right += page.key == BlockKey::FromInteger(page.steps[3] / 2 - 2) && page.version == 1;
    }
    int offered = 0, right = 0;
  } sink;
  constexpr int kBlocks = 66000;
  StoreDriver d(StoreDriver::With([&](StoreOptions& o) {
    o.shape.num_layers = 1, o.num_blocks = kBlocks, o.seal_sink = {std::shared_ptr<void>(), &sink};
  }));
  for (int block = 0; block < kBlocks; ++block) {
    const Event events[] = {
        Bind(block), Event::Seal(BlockId(block), BlockKey::FromInteger(std::uint64_t(block)))};
    ASSERT_TRUE(d.store().Report(events).ok());
  }
  d.Step(1, {}, {}, {});
  EXPECT_EQ(sink.offered, 0);
  for (int block = 0; block < kBlocks; ++block) {
    const auto step = static_cast<std::uint64_t>(block) + 2;
    d.Step(2 * step - 1, {}, d.Slots({block}, 0, 3), {1, 2, 3});
    d.Step(2 * step, {}, d.Slots({block}, 3, 4), {4});
  }
  EXPECT_EQ(sink.offered, kBlocks);
  EXPECT_EQ(sink.right, kBlocks);
}

// Once the tables were touched before what is behind them was refused: half a minute for 2^26
// blocks, and no end for 2^31.
TEST(BadInput, BlocksBeyondTheAddressSpaceAreRefusedBeforeAnythingIsTouched) {
  if (PlainOr(false, true)) GTEST_SKIP() << "a sanitizer takes more address space than that";
  const std::string found = InChild([] {
    const auto resident = [] {
      rusage usage = {};
      (void)getrusage(RUSAGE_SELF, &usage);
      return usage.ru_maxrss;  // KiB
    };
    const rlimit limit = {.rlim_cur = rlim_t{3} << 29, .rlim_max = rlim_t{3} << 29};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return std::string("no limit");
    StoreOptions options = StoreDriver::Options(1, 1);
    options.num_blocks = 1 << 24;  // the table has room, the seals have not
    options.num_pages = 4;
    options.spare_pages = 0;
    const long before = resident();
    const absl::Status status = RoutingStore::Create(options).status();
    return absl::StrCat(resident() - before < 64 << 10 ? "" : "touched; ", status.ToString());
  });
  EXPECT_THAT(found, ::testing::StartsWith("RESOURCE_EXHAUSTED: num_blocks: 16777216 "
                                           "blocks, with num_pages 4"));
  EXPECT_THAT(found, ::testing::HasSubstr("1610612736 bytes (RLIMIT_AS)"));
}

// Regression: tables that the machine had room for were made, for a minute, though their pages
// could never have been used.
TEST(BadInput, StoresBeyondTheMemoryOfTheMachineAreRefused) {
  const std::uint64_t memory = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                               static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  for (const bool tables : {false, true}) {
    StoreOptions options = StoreDriver::Options(4096, 4096);
    if (tables) options.shape.num_layers = options.shape.top_k = 1;
    options.num_pages = static_cast<std::uint32_t>(memory / 4096);  // 16 KiB of stamps each
    if (!tables) options.shape.num_layers = 256, options.num_pages /= 1000;  // 4 MiB of rows each
    options.spare_pages = 0;
    const absl::Status status = RoutingStore::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << tables;
    EXPECT_THAT(status.message(),
                ::testing::HasSubstr(absl::StrCat("num_blocks: 32 blocks, with num_pages ",
                                                  options.num_pages, " ")));
    EXPECT_THAT(std::string(status.message()),
                ::testing::ContainsRegex("need [0-9]+ bytes, .* here, [0-9]+ bytes"));
  }
}

}  // namespace
}  // namespace waymark
