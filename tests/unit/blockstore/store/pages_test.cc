#include "blockstore/store/pages.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/support/test_seed.h"
#include "tests/unit/blockstore/store/store_parts.h"

namespace waymark {
namespace {

class PagesTest : public testing::Test {
 protected:
  explicit PagesTest(std::uint32_t num_pages = 4, std::uint32_t spare_pages = 0)
      : options_(SmallOptions(num_pages, spare_pages)),
        core_(options_.shape,
              PageMemory::Map((std::size_t{num_pages} + spare_pages) * options_.shape.page_bytes())
                  .value(),
              num_pages, spare_pages),
        pages_(options_, core_, stats_) {
    core_.versions.Append(kStep, kVersion);
  }

  // Gives the block a page with its first `rows` rows valid; kNoPage if there is none.
  PageIndex Fill(EntryIndex e, std::uint32_t rows, std::uint64_t step = kStep) {
    pages_.EnsureEntry(e, step);
    const PageIndex page = pages_.NewPage(e);
    for (std::uint32_t row = 0; row < rows && page != kNoPage; ++row)
      core_.stamp(page, row).Store(Stamp::Valid(step));
    return page;
  }
  // The same, sealed with a key.
  PageIndex FillSealed(EntryIndex e, std::uint32_t rows, std::uint8_t key = 7) {
    const PageIndex page = Fill(e, rows);
    pages_.pool().SetSeal(page, pages_.MakeSeal(kStep, kVersion, 0, Key(key)));
    pages_.ContendForKey(page, kVersion);
    return page;
  }
  // Takes the only user from the block.
  void Release(EntryIndex e) {
    pages_.table().hot(e).refs = 0;
    --pages_.pool().hot(pages_.table().hot(e).page).referenced;
    pages_.UpdateEvictability(pages_.table().hot(e).page);
  }
  // A snapshot of the first `rows` rows of one block.
  SnapshotState* Hold(std::int32_t block, std::int64_t rows = 4) {
    SnapshotState* const state = core_.tickets.emplace_back(new SnapshotState).get();
    state->last = rows;
    const BlockId blocks[] = {BlockId(block)};
    pages_.PinSnapshot(*state, blocks);
    return state;
  }
  PageIndex Found(std::uint8_t key = 7) { return pages_.FindKey(kVersion, 0, Key(key)); }

  static constexpr std::uint64_t kStep = 300;
  static constexpr std::uint64_t kVersion = 5;
  const StoreOptions options_;
  StoreCore core_;
  Stats stats_;
  Pages pages_;
};

TEST_F(PagesTest, ANewPageHasTheReasonAndTheSealOfItsBlock) {
  Entry& entry = pages_.EnsureEntry(2, kStep);
  entry.why = Reason::kExternalKv;
  pages_.table().SetSeal(2, pages_.MakeSeal(kStep, kVersion, 0, Key(7)));
  const PageIndex page = pages_.NewPage(2);
  ASSERT_NE(page, kNoPage);
  EXPECT_EQ(core_.stamp(page, 3).Load(), Stamp::Missing(Reason::kExternalKv));
  EXPECT_EQ(pages_.pool().hot(page).seal.step, kStep);
  EXPECT_EQ(pages_.pool().cold(page).seal.key, pages_.table().cold(2).key);
  EXPECT_EQ(pages_.pool().cold(page).seal.version, kVersion);
}

TEST_F(PagesTest, APageIsFreeWhenNothingHoldsIt) {
  const PageIndex page = Fill(0, 1);
  pages_.PinPage(page);
  pages_.Detach(0, Reason::kNeverWritten);
  EXPECT_FALSE(pages_.pool().hot(page).free);
  pages_.UnpinPage(page);
  EXPECT_TRUE(pages_.pool().hot(page).free);
}

TEST_F(PagesTest, EvictsThePageThatWasReleasedFirstUnlessItIsPinned) {
  for (EntryIndex e = 0; e < 4; ++e)
    Fill(e, 1);
  EXPECT_EQ(Fill(4, 1), kNoPage) << "every block has a user";
  Release(2);
  Release(1);
  Release(0);
  pages_.PinPage(pages_.table().hot(2).page);
  EXPECT_NE(Fill(4, 1), kNoPage);
  EXPECT_NE(pages_.table().hot(2).page, kNoPage) << "pinned";
  EXPECT_EQ(pages_.table().hot(1).page, kNoPage);
  EXPECT_EQ(pages_.table().hot(1).WhyOf(0), Cause::kEvicted);
  EXPECT_NE(pages_.table().hot(0).page, kNoPage) << "released last";
  EXPECT_EQ(stats_.evictions, 1u);
}

// Four pages and two spare ones.
class SparePagesTest : public PagesTest {
 protected:
  SparePagesTest() : PagesTest(4, 2) {}

  [[nodiscard]] bool HasPage(EntryIndex e) { return pages_.table().hot(e).page != kNoPage; }
};

TEST_F(SparePagesTest, APageThatOnlyASnapshotHoldsTakesNoneFromTheBlocks) {
  for (EntryIndex e = 0; e < 4; ++e)
    Fill(e, 1);
  Hold(0);
  EXPECT_EQ(Fill(4, 1), kNoPage) << "every block has a user";
  pages_.Detach(0, Reason::kNeverWritten);
  EXPECT_EQ(pages_.pool().detached(), 1u);
  EXPECT_NE(Fill(0, 1), kNoPage);
  EXPECT_EQ(Fill(4, 1), kNoPage);
  Hold(1);
  Hold(2);
  pages_.Detach(1, Reason::kNeverWritten);
  pages_.Detach(2, Reason::kNeverWritten);
  EXPECT_NE(Fill(1, 1), kNoPage);
  EXPECT_EQ(Fill(2, 1), kNoPage) << "three pages are detached, and two are spare";
  EXPECT_EQ(pages_.pool().detached_peak(), 3u);
}

TEST_F(SparePagesTest, WhatIsEvictedDoesNotDependOnSnapshots) {
  for (EntryIndex e = 0; e < 4; ++e)
    Fill(e, 1);
  Hold(1);
  Release(1);
  Release(0);
  EXPECT_NE(Fill(4, 1), kNoPage);
  EXPECT_FALSE(HasPage(1)) << "released first, although a snapshot has it";
  EXPECT_TRUE(HasPage(0));
  EXPECT_EQ(pages_.pool().detached(), 1u);
}

TEST_F(SparePagesTest, WithoutASparePageTheSnapshotsPagesAreEvictedLast) {
  for (EntryIndex e = 0; e < 4; ++e)
    Fill(e, 1);
  std::vector<SnapshotState*> held;
  for (const std::int32_t block : {0, 1}) {
    held.push_back(Hold(block));
    pages_.Detach(static_cast<EntryIndex>(block), Reason::kNeverWritten);
    Fill(static_cast<EntryIndex>(block), 1);
  }
  Hold(2);
  Release(2);
  Release(3);
  ASSERT_EQ(pages_.pool().free(), 0u);
  EXPECT_NE(Fill(4, 1), kNoPage);
  EXPECT_TRUE(HasPage(2)) << "its page would stay taken";
  EXPECT_FALSE(HasPage(3));
  EXPECT_EQ(Fill(5, 1), kNoPage);
  // Another snapshot is released: now there is a spare page for that of block 2.
  core_.released.enqueue(held[0]);
  pages_.ReclaimFor(1);
  EXPECT_NE(Fill(5, 1), kNoPage);
  EXPECT_FALSE(HasPage(2));
}

TEST_F(PagesTest, CopyOnWriteCopiesBytesStampsAndSeal) {
  const PageIndex old = FillSealed(0, 3);
  *core_.row(old, 1) = 9;
  pages_.EnsureEntry(1, kStep);
  pages_.Attach(1, old);
  ASSERT_TRUE(Pages::SeenByOthers(pages_.pool().hot(old), 0));
  const PageIndex copy = pages_.CopyOnWrite(1);
  ASSERT_NE(copy, kNoPage);
  EXPECT_EQ(pages_.table().hot(0).page, old);
  EXPECT_EQ(pages_.table().hot(1).page, copy);
  EXPECT_FALSE(Pages::SeenByOthers(pages_.pool().hot(old), 0));
  for (std::uint32_t row = 0; row < 4; ++row)
    EXPECT_EQ(core_.stamp(copy, row).Load(), core_.stamp(old, row).Load());
  EXPECT_EQ(pages_.pool().hot(copy).seal.step, kStep);
  EXPECT_EQ(pages_.pool().cold(copy).seal.key, pages_.pool().cold(old).seal.key);
  EXPECT_EQ(*core_.row(copy, 1), 9);
  EXPECT_EQ(pages_.pool().hot(old).pins, 0u);
}

// The page of the source may be evicted, its block has no user: it would lose its rows for a copy
// of them (with few pages and a spare one, evicting it makes room).
TEST_F(SparePagesTest, TheSourceOfACopyIsNotEvictedForIt) {
  for (EntryIndex e = 0; e < 4; ++e)
    Fill(e, 1);
  Release(2);
  const PageIndex source = pages_.table().hot(2).page;
  pages_.EnsureEntry(5, kStep);
  pages_.BeginCopy(source);
  EXPECT_EQ(pages_.NewPage(5), kNoPage);
  pages_.EndCopy();
  EXPECT_EQ(pages_.table().hot(2).page, source);
  EXPECT_NE(pages_.NewPage(5), kNoPage) << "for another one it is";
  EXPECT_EQ(pages_.table().hot(2).page, kNoPage);
}

TEST_F(PagesTest, ASnapshotHoldsItsPageAndSeesRowsBelowTheHighWaterMark) {
  const PageIndex page = Fill(0, 4);
  const BlockId blocks[] = {BlockId(0)};
  SnapshotState* const state = Hold(0, 2);
  EXPECT_TRUE(Pages::SeenByOthers(pages_.pool().hot(page), 1));
  EXPECT_FALSE(Pages::SeenByOthers(pages_.pool().hot(page), 2));
  core_.released.enqueue(state);
  EXPECT_TRUE(pages_.ReclaimSnapshots(8));
  EXPECT_FALSE(Pages::SeenByOthers(pages_.pool().hot(page), 1));

  pages_.PinSnapshot(*state, blocks);
  pages_.Detach(0, Reason::kNeverWritten);
  EXPECT_FALSE(pages_.pool().hot(page).free);
  core_.released.enqueue(state);
  EXPECT_EQ(pages_.snapshots_live(), 1u);
  EXPECT_TRUE(pages_.ReclaimSnapshots(8));
  EXPECT_TRUE(pages_.pool().hot(page).free);
  EXPECT_EQ(pages_.snapshots_live(), 0u);
  EXPECT_EQ(core_.free_tickets.load(), state);
}

TEST_F(PagesTest, ATicketThatWasReleasedPinsNothing) {
  const PageIndex page = Fill(0, 4);
  const BlockId blocks[] = {BlockId(0)};
  SnapshotState state;
  state.last = 4;
  state.ticket.Take();
  EXPECT_FALSE(state.ticket.Release()) << "not applied yet";
  pages_.PinSnapshot(state, blocks);
  EXPECT_TRUE(state.ticket.Apply()) << "the second one recycles";
  EXPECT_EQ(pages_.pool().hot(page).snapshots, 0u);
}

TEST_F(PagesTest, APageOfTwoVersionsHasNoKey) {
  const PageIndex page = Fill(0, 2, kStep);
  core_.versions.Append(kStep + 1, kVersion + 1);
  pages_.pool().SetSeal(page, pages_.MakeSeal(kStep + 1, kVersion + 1, 0, Key(7)));
  pages_.ContendForKey(page, kVersion + 1);
  EXPECT_FALSE(pages_.pool().hot(page).indexed) << "its rows are of the version before";
}

TEST_F(PagesTest, ARowOfAnotherVersionTakesThePageOutOfTheIndex) {
  const PageIndex page = FillSealed(0, 2);
  pages_.Written(page, kVersion);
  EXPECT_EQ(Found(), page);
  pages_.Written(page, kVersion + 1);
  EXPECT_EQ(Found(), kNoPage);
  pages_.ContendWritten(kVersion);
  EXPECT_EQ(Found(), page) << "its rows are still of the seal's version";
  pages_.ClearIndex();
  pages_.ContendWritten(kVersion);
  EXPECT_EQ(Found(), kNoPage) << "nothing was written since";
}

// Blocks that share pages leave them in any order: the list of each page stays whole.
TEST_F(PagesTest, BlocksLeaveASharedPageInAnyOrder) {
  TestRandom random;
  constexpr EntryIndex kEntries = 8;
  const PageIndex pages[] = {Fill(0, 4), Fill(1, 4)};
  pages_.PinPage(pages[0]);
  pages_.PinPage(pages[1]);
  std::array<std::vector<EntryIndex>, 2> bound = {std::vector<EntryIndex>{0},
                                                  std::vector<EntryIndex>{1}};  // newest first
  for (EntryIndex e = 2; e < kEntries; ++e)
    pages_.EnsureEntry(e, kStep);
  for (int i = 0; i < 20000; ++i) {
    const auto e = static_cast<EntryIndex>(random() % kEntries);
    const PageIndex of = pages_.table().hot(e).page;
    if (of == kNoPage) {
      const std::size_t to = random() % 2;
      pages_.Attach(e, pages[to]);
      bound[to].insert(bound[to].begin(), e);
    } else {
      pages_.Detach(e, Reason::kNeverWritten);
      std::erase(bound[of == pages[0] ? 0 : 1], e);
    }
    for (std::size_t page = 0; page < 2; ++page) {
      const PageHot& hot = pages_.pool().hot(pages[page]);
      ASSERT_EQ(hot.bindings, bound[page].size());
      EntryIndex at = hot.first_binding;
      for (const EntryIndex expected : bound[page]) {
        ASSERT_EQ(at, expected) << "change " << i;
        at = pages_.table().hot(at).next_binding;
      }
      ASSERT_EQ(at, kNoEntry);
    }
  }
}

TEST(Seal, ALaterSealKeepsTheFirstStepAndRenewsTheKey) {
  const Seal later = {{9, true}, {Digest128{{1, 2, 3, 4}}, 6}};
  const Seal seal = later.After({7, false});
  EXPECT_EQ(seal.hot.step, 7u);
  EXPECT_TRUE(seal.hot.has_key);
  EXPECT_EQ(seal.cold.key, later.cold.key);
  EXPECT_EQ(later.After({}).hot.step, 9u);
}

}  // namespace
}  // namespace waymark
