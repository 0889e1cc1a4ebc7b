#include "blockstore/store/steps.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/unit/blockstore/store/store_parts.h"

namespace waymark {
namespace {

TEST(Steps, ClaimsItsRowsAndPinsTheirPages) {
  StoreParts store;
  StepRecord* const record = store.Begin(10, {}, {0, 1, kPaddingSlot, 9});
  ASSERT_NE(record, nullptr);
  EXPECT_TRUE(store.StampOf(0, 0).pending_for(record->relative));
  EXPECT_TRUE(store.StampOf(0, 1).pending_for(record->relative));
  EXPECT_FALSE(store.StampOf(0, 2).live());
  EXPECT_EQ(record->claims[2].page, kNoPage) << "padding";
  EXPECT_EQ(record->claims[3].page, store.PageOf(2));
  EXPECT_EQ(store.pages.pool().hot(store.PageOf(0)).pins, 1u) << "one pin per run of rows";
  EXPECT_EQ(store.core.oldest_in_flight.load(), 10u);
  store.steps.Retire(*record);
  EXPECT_EQ(store.pages.pool().hot(store.PageOf(0)).pins, 0u);
  EXPECT_EQ(store.core.oldest_in_flight.load(), StoreCore::kNoStep);
}

TEST(Steps, OfTwoRowsWithOneSlotTheFirstIsUsed) {
  StoreParts store;
  const StepRecord* const record = store.Begin(10, {}, {5, 5});
  EXPECT_EQ(record->claims[0].page, store.PageOf(1));
  EXPECT_EQ(record->claims[1].page, kNoPage);
  EXPECT_EQ(store.stats.rows_ignored, 1u);
}

TEST(Steps, NoMoreThanTheMaximumAreInFlight) {
  StoreParts store;
  StepRecord* const first = store.Begin(10, {}, {});
  EXPECT_NE(store.Begin(11, {}, {}), nullptr);
  EXPECT_EQ(store.Begin(12, {}, {0}), nullptr);
  EXPECT_EQ(store.StampOf(0, 0), Stamp::Absent(Reason::kCapacity)) << "a dropped step claims";
  EXPECT_EQ(store.steps.Find(10), first);
  EXPECT_EQ(store.steps.Find(12), nullptr);
  store.steps.Retire(*first);
  EXPECT_NE(store.Begin(13, {}, {}), nullptr);
}

TEST(Steps, ASealProtectsLiveRowsOfTheSameVersion) {
  StoreParts store;
  store.Land(store.Begin(10, {Event::Seal(BlockId(0), {}, StepId(10))}, {0}));
  const Stamp kept = store.StampOf(0, 0);
  StepRecord* const same = store.Begin(11, {}, {0, 1});
  EXPECT_EQ(same->claims[0].page, kNoPage);
  EXPECT_EQ(same->ignored.size(), 1u) << "for the audit";
  EXPECT_EQ(store.StampOf(0, 0), kept.WithHow(Provenance::kKept));
  EXPECT_TRUE(store.StampOf(0, 1).pending_for(same->relative)) << "there was no row";
  store.Land(same);
  StepRecord* const other = store.Begin(12, {}, {0}, false, 2);
  EXPECT_TRUE(store.StampOf(0, 0).pending_for(other->relative)) << "rewritten by other weights";
}

TEST(Steps, DropAndCancelGiveTheReasonOfRowsStillHeld) {
  for (const StepEnd how : {StepEnd::kDrop, StepEnd::kCancel}) {
    StoreParts store;
    StepRecord* const record = store.Begin(10, {}, {0, 4});
    store.pages.stamp(store.PageOf(1), 0).Store(Stamp::Absent(Reason::kAudit));
    store.steps.Revoke(*record, how);
    EXPECT_EQ(store.StampOf(0, 0).reason(),
              how == StepEnd::kDrop ? Reason::kCapacity : Reason::kNeverWritten);
    EXPECT_EQ(store.StampOf(1, 0).reason(), Reason::kAudit) << "no longer held";
  }
}

TEST(Steps, APendingRowLandsInTheCopyOfItsPageToo) {
  StoreParts store;
  StepRecord* const first = store.Begin(10, {}, {0, 1});
  StepRecord* const second = store.Begin(11, {Event::Copy(BlockId(0), BlockId(3))}, {12});
  ASSERT_NE(store.PageOf(0), store.PageOf(3));
  EXPECT_TRUE(store.StampOf(3, 1).pending_for(first->relative));
  EXPECT_TRUE(store.StampOf(3, 0).pending_for(second->relative)) << "claimed after the copy";
  ASSERT_EQ(first->copies.size(), 2u);
  EXPECT_EQ(first->copies[1].step_row, 1u);
  EXPECT_EQ(first->copies[1].page, store.PageOf(3));
  EXPECT_EQ(first->copies[1].row, 1u);
}

TEST(Steps, SubmittedStepsLandInAnyOrderButDeviceSteps) {
  StoreParts store;
  StepRecord* const host = store.Begin(10, {}, {});
  StepRecord* const device = store.Begin(11, {}, {}, /*device=*/true);
  std::vector<StepRecord*> listed;
  const auto list = [&](std::uint64_t only_step) {
    store.steps.ListSubmitted(only_step, listed);
    return listed;
  };
  store.steps.Submit(*device, nullptr, 1);
  EXPECT_TRUE(list(0).empty()) << "step 10 is before it";
  store.steps.Submit(*host, nullptr, 1);
  EXPECT_TRUE(list(11).empty());
  EXPECT_EQ(list(0), std::vector<StepRecord*>{host});
  store.steps.TakeSubmitted(*host);
  store.steps.Retire(*host);
  EXPECT_EQ(list(0), std::vector<StepRecord*>{device});
}

TEST(Steps, StampsThatWrapNeedANewBaseAndNothingInFlight) {
  StoreParts store;
  StepRecord* const record = store.Begin(10, {}, {0});
  const std::uint64_t far = 10 + std::uint64_t{kMaxRelStep};
  EXPECT_FALSE(store.steps.MakeRoomFor(far, 1));
  store.Land(record);
  EXPECT_TRUE(store.steps.MakeRoomFor(far, 1));
  EXPECT_EQ(store.stats.rebases, 1u);
  EXPECT_TRUE(store.steps.NeedsSpareBase());
  EXPECT_EQ(store.ReasonOf(0), Reason::kCapacity);
  EXPECT_FALSE(store.steps.MakeRoomFor(far + kMaxRelStep, 1)) << "no spare base";
}

TEST(DeviceSteps, ClaimsItsRangeAndLeavesTheStamps) {
  StoreParts store;
  store.Land(store.Begin(10, {}, {0, 1}));
  const StepRecord* const record = store.Begin(11, {}, {2, 1, 1, NotAsked(3)}, /*device=*/true);
  EXPECT_EQ(record->num_rows, 3u) << "each slot once";
  const PageIndex page = store.PageOf(0);
  const DeviceSteps& device = store.steps.device();
  EXPECT_TRUE(store.StampOf(0, 1).valid());
  EXPECT_FALSE(store.StampOf(0, 2).live());
  EXPECT_FALSE(device.MayWrite(page, 0));
  EXPECT_TRUE(device.MayWrite(page, 1));
  EXPECT_FALSE(device.MayWrite(page, 3)) << "not asked for";
  EXPECT_TRUE(device.Claimed(page, 3, kMaxRelStep));
  EXPECT_FALSE(device.Claimed(page, 1, record->relative - 1)) << "a later step";
  EXPECT_TRUE(device.OtherVersionMayWrite(page, 2));
  EXPECT_FALSE(device.OtherVersionMayWrite(page, 1));
}

TEST(DeviceSteps, RevokedAndEndedClaimsDoNotCount) {
  StoreParts store;
  StepRecord* const record = store.Begin(10, {}, {0, 1}, /*device=*/true);
  DeviceSteps& device = store.steps.device();
  const PageIndex page = store.PageOf(0);
  device.Revoke(page, 0, record->relative);
  EXPECT_FALSE(device.MayWrite(page, 0));
  EXPECT_TRUE(device.MayWrite(page));
  store.steps.Retire(*record);
  EXPECT_FALSE(device.MayWrite(page));
  EXPECT_FALSE(device.any());
}

TEST(DeviceSteps, ACopyOfThePageIsClaimedToo) {
  StoreParts store;
  store.Begin(10, {}, {0, 1}, /*device=*/true);
  store.Begin(11, {Event::Copy(BlockId(0), BlockId(3), 1)}, {});
  EXPECT_TRUE(store.steps.MayWrite(store.PageOf(3), 0));
  EXPECT_FALSE(store.steps.MayWrite(store.PageOf(3), 1)) << "only one row was copied";
}

TEST(DeviceSteps, ADroppedStepMakesTheRowsOfItsRangeMissing) {
  StoreParts store;
  store.Land(store.Begin(10, {}, {0, 1}));
  StepRecord* const record = store.Begin(11, {}, {1, 2}, /*device=*/true);
  store.steps.Revoke(*record, StepEnd::kDrop);
  EXPECT_TRUE(store.StampOf(0, 0).valid());
  EXPECT_EQ(store.StampOf(0, 1).reason(), Reason::kCapacity);
}

// The slots that a device wrote, and no ids.
struct WrittenSlots final : StepRows {
  explicit WrittenSlots(std::vector<std::int64_t> given) : slots(std::move(given)) {}
  void Land(std::uint32_t, std::span<std::uint8_t* const>, std::span<Reason>) override {}
  void Done() override {}
  std::optional<std::span<const std::int64_t>> Slots() override { return slots; }
  std::vector<std::int64_t> slots;
};

TEST(DeviceSteps, RowsThatWereWrittenBecomePending) {
  StoreParts store;
  StepRecord* const record = store.Begin(10, {}, {0, 1, 2}, /*device=*/true);
  WrittenSlots rows({1, kPaddingSlot, 1, 7, 2});
  store.steps.Submit(*record, &rows, 1);
  EXPECT_TRUE(DeviceSteps::StartLanding(*record));
  std::array<const Claim*, 5> claims;
  store.steps.device().Resolve(*record, 0, claims);
  EXPECT_FALSE(store.StampOf(0, 0).live()) << "not written";
  EXPECT_TRUE(store.StampOf(0, 1).pending_for(record->relative));
  ASSERT_NE(claims[0], nullptr);
  EXPECT_EQ(claims[0]->row, 1u);
  EXPECT_EQ(claims[1], nullptr) << "padding";
  EXPECT_EQ(claims[2], nullptr) << "the second row of a slot";
  EXPECT_EQ(claims[3], nullptr) << "outside of its range";
  EXPECT_NE(claims[4], nullptr);
  EXPECT_EQ(store.stats.rows_outside, 1u);
  EXPECT_EQ(store.stats.rows_ignored, 1u);
}

}  // namespace
}  // namespace waymark
