#include "blockstore/store/step_writer.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/unit/blockstore/store/store_parts.h"

namespace waymark {
namespace {

std::uint8_t IdOf(StoreParts& store, std::int32_t block, std::uint32_t row) {
  return *store.core.row(store.PageOf(block), row);
}

TEST(StepWriter, ARowIsMissingForTheVerdictOfItsIdsOrAsTheyWereLost) {
  StoreParts store;
  ConstantRows rows(3);
  rows.verdict = Reason::kInvalidId;
  store.Step(10, {}, {0, NotAsked(1)}, &rows);
  store.Step(11, {}, {4, NotAsked(5)}, nullptr);
  EXPECT_EQ(store.StampOf(0, 0), Stamp::Missing(Reason::kInvalidId, 10, true));
  EXPECT_EQ(store.StampOf(0, 1), Stamp::Missing(Reason::kNotCaptured, 10));
  EXPECT_EQ(store.StampOf(1, 0), Stamp::Missing(Cause::kNoBuffer, 11, true));
  EXPECT_EQ(store.StampOf(1, 1), Stamp::Missing(Reason::kNotCaptured, 11));
  EXPECT_EQ(store.stats.rows_missing[static_cast<std::size_t>(Reason::kInvalidId)], 1u);
  EXPECT_EQ(store.stats.rows_missing[static_cast<std::size_t>(Reason::kCapacity)], 1u);
}

// Regression: each step looked at all pages that were sealed and not complete: 165 us of 65,535.
TEST(StepWriter, OfPagesThatWereSealedEarlyAStepLooksAtThoseThatItCompletes) {
  struct Sink final : SealSink {
    void OnSealed(const SealedPage& page) noexcept override { steps.push_back(page.steps[3]); }
    std::vector<std::uint64_t> steps;
  } sink;
  StoreOptions options = SmallOptions();
  options.seal_sink = {std::shared_ptr<void>(), &sink};  // borrowed
  StoreParts store(options);
  for (std::int32_t block = 0; block < 6; ++block) {
    const BlockId id(block);
    store.Step(10 + static_cast<std::uint64_t>(block),
               {Event::Bind(id), Event::Seal(id, Key(static_cast<std::uint8_t>(block)))},
               {4 * block});
  }
  store.Step(20, {}, {28, 5, 6});
  EXPECT_EQ(store.looked_at, 0u);
  store.Step(21, {},
             {7, 11});  // the last rows of block 1, and of block 2, whose others have not come
  EXPECT_EQ(store.looked_at, 2u);
  EXPECT_EQ(sink.steps, std::vector<std::uint64_t>{21});
  store.Step(22, {}, {9, 10, 13});
  EXPECT_EQ(store.looked_at, 0u) << "what was not complete then is not offered";
  // Another life has no seal, and what moves is not offered.
  store.Step(23, {Event::Bind(BlockId(3)), Event::Move(BlockId(4), BlockId(6))}, {});
  store.Step(24, {}, {12, 13, 14, 15});
  store.Step(25, {}, {25, 26, 27});
  EXPECT_EQ(sink.steps.size(), 1u);
}

TEST(StepWriter, WithoutRoomItIsTheOtherRankThatHadNone) {
  StoreParts store;
  ConstantRows rows(3);
  rows.verdict = Reason::kCapacity;
  store.Step(10, {}, {0}, &rows);
  EXPECT_EQ(store.StampOf(0, 0), Stamp::Missing(Cause::kOtherRank, 10, true));
}

// Also where the first one is missing: the stamp of a missing row has its step, too.
TEST(StepWriter, OfTwoRowsWithOneSlotTheFirstIsUsed) {
  struct FirstIsSilent final : StepRows {
    void Land(std::uint32_t, std::span<std::uint8_t* const>, std::span<Reason> verdicts) override {
      verdicts[0] = Reason::kNotCaptured;
    }
    void Done() override {}
  } rows;
  StoreParts store;
  store.Step(10, {}, {5, 5}, &rows);
  EXPECT_EQ(store.StampOf(1, 1),
            Stamp::Missing(Reason::kNotCaptured, 10, true).WithHow(Provenance::kKept));
  EXPECT_EQ(store.stats.rows_ignored, 1u);
}

// Rows above what a snapshot sees and rows below it are of one chunk: the page that is copied must
// have the bytes of the former.
TEST(StepWriter, AChunkEndsBeforeAPageOfItIsCopied) {
  StoreParts store;
  store.Step(10, {}, {0, 1});
  SnapshotState* const state = store.core.tickets.emplace_back(new SnapshotState).get();
  state->last = 2;
  const BlockId blocks[] = {BlockId(0)};
  store.pages.PinSnapshot(*state, blocks);
  const PageIndex seen = store.PageOf(0);
  ConstantRows rows(4);
  store.Step(11, {}, {3, 1}, &rows);
  ASSERT_NE(store.PageOf(0), seen);
  EXPECT_EQ(store.StampOf(0, 3), Stamp::Valid(11));
  EXPECT_EQ(IdOf(store, 0, 3), 4);
  EXPECT_EQ(IdOf(store, 0, 1), 4);
  EXPECT_EQ(IdOf(store, 0, 0), 3) << "copied";
  EXPECT_EQ(store.core.stamp(seen, 1).Load(), Stamp::Valid(10)) << "as the snapshot saw it";
}

// Pages of blocks without users may be evicted, but not while a row of the chunk goes there.
TEST(StepWriter, APageIsNotGivenAwayInTheChunkThatWritesIt) {
  StoreParts store(SmallOptions(1));
  const Event release = Event::Release(BlockId(0));
  store.Step(10, {Event::Bind(BlockId(0)), release}, {0, 4});
  EXPECT_EQ(store.StampOf(0, 0), Stamp::Valid(10));
  EXPECT_EQ(store.PageOf(1), kNoPage);
  EXPECT_EQ(store.WhyOf(1), Cause::kNoPage);
  store.Step(11, {}, {5});
  EXPECT_EQ(store.PageOf(0), kNoPage) << "later it may";
}

TEST(StepWriter, IdsThatThrowAreNotCaptured) {
  struct Throws final : StepRows {
    void Land(std::uint32_t, std::span<std::uint8_t* const>, std::span<Reason>) override {
      throw std::runtime_error("");
    }
    void Done() override {}
  } rows;
  StoreParts store;
  store.Step(10, {}, {0}, &rows);
  EXPECT_EQ(store.StampOf(0, 0), Stamp::Missing(Reason::kNotCaptured, 10, true));
}

TEST(Versions, AreThoseOfTheRunOfAStepAlsoAtTheBordersOfChunks) {
  Versions versions;
  EXPECT_EQ(versions.Of(7), 0u);
  constexpr std::uint64_t kRuns = 2000;  // 256, 512, 1,024 of them a chunk
  for (std::uint64_t run = 0; run < kRuns; ++run) {
    versions.Append(10 + 3 * run, 100 + run);
    versions.Append(11 + 3 * run, 100 + run);  // the same weights
  }
  EXPECT_EQ(versions.size(), kRuns);
  EXPECT_EQ(versions.Of(1), 100u) << "before the first";
  for (std::uint64_t run = 0; run < kRuns; ++run) {
    ASSERT_EQ(versions.Of(10 + 3 * run), 100 + run);
    ASSERT_EQ(versions.Of(12 + 3 * run), 100 + run);
  }
}

}  // namespace
}  // namespace waymark
