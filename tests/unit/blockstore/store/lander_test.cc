#include "blockstore/store/lander.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/blockstore/store/store_parts.h"

namespace waymark {
namespace {

// Rows whose two ids are both `id`.
struct ConstantRows final : StepRows {
  explicit ConstantRows(std::uint8_t given) : id(given) {}
  void Land(std::uint32_t, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      std::memset(destinations[i], id, 2);
      verdicts[i] = verdict;
    }
  }
  void Done() override { ++done; }

  std::uint8_t id;
  Reason verdict = Reason::kNone;
  int done = 0;
};

struct LanderTest : testing::Test {
  // Begins a step as StoreParts does, submits it and lands it.
  void Run(std::uint64_t step, std::initializer_list<Event> events,
           std::initializer_list<std::int64_t> slots, ConstantRows& rows) {
    store.steps.Submit(*store.Begin(step, events, slots), &rows, 1);
    EXPECT_TRUE(lander.LandNext());
  }
  std::uint8_t IdOf(std::int32_t block, std::uint32_t row) {
    return *store.core.row(store.PageOf(block), row);
  }

  StoreParts store;
  Mutex mutex;
  Lander lander{store.options, store.core, mutex, store.pages, store.steps, store.stats};
};

TEST_F(LanderTest, LandsTheRowsThatTheStepStillHolds) {
  ConstantRows rows(3);
  StepRecord* const record = store.Begin(10, {}, {0, 1});
  store.pages.stamp(store.PageOf(0), 1).Store(Stamp::Absent(Reason::kNeverWritten));
  store.steps.Submit(*record, &rows, 1);
  EXPECT_FALSE(lander.LandNext(11)) << "another step";
  EXPECT_TRUE(lander.LandNext());
  EXPECT_FALSE(lander.LandNext());
  EXPECT_TRUE(store.StampOf(0, 0).valid());
  EXPECT_EQ(IdOf(0, 0), 3);
  EXPECT_FALSE(store.StampOf(0, 1).live());
  EXPECT_EQ(rows.done, 1);
  EXPECT_EQ(store.stats.rows_landed, 1u);
  EXPECT_EQ(store.stats.rows_without_claim, 1u);
}

TEST_F(LanderTest, ARowWithAVerdictIsMissing) {
  ConstantRows rows(3);
  rows.verdict = Reason::kInvalidId;
  Run(10, {}, {0}, rows);
  EXPECT_EQ(store.StampOf(0, 0).reason(), Reason::kInvalidId);
  EXPECT_EQ(store.stats.rows_missing[static_cast<std::size_t>(Reason::kInvalidId)], 1u);
}

TEST_F(LanderTest, CopiesBytesBeforeTheRowsOfTheNextStep) {
  ConstantRows old_rows(3);
  ConstantRows new_rows(4);
  Run(10, {}, {0, 1}, old_rows);
  Run(11, {Event::Copy(BlockId(0), BlockId(3))}, {13}, new_rows);
  EXPECT_EQ(IdOf(3, 0), 3) << "copied";
  EXPECT_EQ(IdOf(3, 1), 4) << "landed over the copy";
  EXPECT_EQ(IdOf(0, 1), 3);
  EXPECT_EQ(store.core.copies_done.load(), 1u);
}

TEST_F(LanderTest, ARowLandsInTheCopyThatWasMadeMeanwhile) {
  ConstantRows rows(3);
  store.steps.Submit(*store.Begin(10, {}, {0}), &rows, 1);
  store.Begin(11, {Event::Copy(BlockId(0), BlockId(3), 1)}, {});
  EXPECT_TRUE(lander.LandNext());
  EXPECT_TRUE(store.StampOf(3, 0).valid());
  EXPECT_EQ(IdOf(3, 0), 3);
}

TEST_F(LanderTest, TheAuditVoidsAPageWhoseIgnoredWritesDisagree) {
  ConstantRows kept(3);
  ConstantRows same(3);
  ConstantRows other(4);
  Run(10, {Event::Seal(BlockId(0), {}, StepId(10))}, {0, 1}, kept);
  Run(11, {}, {0}, same);
  EXPECT_TRUE(store.StampOf(0, 0).valid());
  EXPECT_TRUE(lander.audit().TakeFindings().empty());
  Run(12, {}, {0}, other);
  EXPECT_EQ(store.StampOf(0, 1).reason(), Reason::kAudit) << "every row of the page";
  const std::vector<AuditFinding> findings = lander.audit().TakeFindings();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].block, 0);
  EXPECT_EQ(findings[0].step, 12u);
  EXPECT_EQ(findings[0].kept_step, 10u);
  EXPECT_EQ(findings[0].sealed_step, 10u);
  EXPECT_EQ(store.stats.audited_rows, 2u);
  EXPECT_TRUE(lander.audit().TakeFindings().empty()) << "each is returned once";
}

TEST_F(LanderTest, TheAuditVoidsTwoPagesOfOneKeyThatDisagree) {
  ConstantRows first(3);
  ConstantRows second(4);
  Run(10, {Event::Seal(BlockId(0), Key(7), StepId(10))}, {0}, first);
  Run(11, {Event::Seal(BlockId(1), Key(7), StepId(11))}, {4}, second);
  EXPECT_EQ(store.StampOf(0, 0).reason(), Reason::kAudit);
  EXPECT_EQ(store.StampOf(1, 0).reason(), Reason::kAudit);
  EXPECT_EQ(store.stats.audit_voided_pages, 1u);
  EXPECT_EQ(store.pages.pool().hot(store.PageOf(0)).pins, 0u);
}

}  // namespace
}  // namespace waymark
