// The checker of the simulators: what it excuses of two pages under one key, and what it does not.
#include "adapters/simulators/checker.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace waymark::sim {
namespace {

constexpr std::int32_t kRows = 4;  // of a block and of a page

// One position of a block: what the request attended to there, and what the store gives.
struct Position {
  SeenCell cell;
  RowInfo info;
  bool dropped = false;  // the step of the attended pass
};

// The row of another request's page, which came back from a tier; its key has another page by now.
Position FromTier(bool given, bool dropped = false) {
  Position position;
  position.cell = {{51, 102, 3}, Excuse::kByKey};
  position.info = {0, 0, Reason::kNotCaptured, Provenance::kByKey};
  if (given) position.info = {88, 3, Reason::kNone, Provenance::kByKey};
  position.dropped = dropped;
  return position;
}

// A row that the request, number 75, computed itself.
Position Own(bool asked = true) {
  Position position;
  position.cell = {{75, 166, 4}, asked ? Excuse::kNone : Excuse::kNotAsked};
  position.info = {0, 0, Reason::kNotCaptured, Provenance::kHere};
  if (asked) position.info = {166, 4, Reason::kNone, Provenance::kHere};
  return position;
}

// `gap`: the page that was attended to had lost a row that the request did not take.
CheckCounts Check(const std::vector<Position>& positions, bool gap = false) {
  const RouteOracle oracle(4, 2, 16);
  ExcuseBook excuses;
  ReadJob job;
  job.request = std::make_shared<Request>();
  job.request->stream = {1, 2, 3, 4};
  job.request->HashFrom(0);
  job.prefix = job.request->prefix;
  job.rows = kRows;
  if (gap) excuses.AddGap(3, job.prefix[0]);
  Rows rows;
  rows.shape = oracle.StageShape(0, kRows);
  rows.ids.resize(positions.size() * oracle.row_bytes());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const Position& position = positions[i];
    job.seen.Add(static_cast<std::int64_t>(i), position.cell);
    if (position.dropped) {
      excuses.Add(position.cell.pass, job.prefix[i + 1], job.prefix[0], Excuse::kDrop);
    }
    rows.infos.push_back(position.info);
    if (!position.info.valid()) continue;
    oracle.Row(job.prefix[i + 1], position.info.version, position.info.step,
               &rows.ids[i * oracle.row_bytes()]);
  }
  auto read = std::make_shared<Read>();
  read->limit = kRows;
  read->rows.push_back(std::move(rows));
  job.reads.push_back(std::move(read));
  Checker checker(&oracle, &excuses, kRows, kRows, false, [] { return false; });
  checker.Check(job);
  EXPECT_EQ(checker.counts().wrong, 0);
  return checker.counts();
}

TEST(Checker, APageThatHasAsManyRowsStandsIn) {
  EXPECT_EQ(
      Check({FromTier(false), FromTier(true), FromTier(true, true), FromTier(true)}).unexplained,
      0);
}

TEST(Checker, AMissingRowOfAFullPageIsUnexplained) {
  EXPECT_EQ(Check({FromTier(false), FromTier(true), FromTier(true), FromTier(true)}).unexplained,
            1);
}

// Rows behind a partial copy counted as rows of the page that had been attended to, which so seemed
// fuller than the one that stood in for it.
TEST(Checker, OwnRowsBehindAPartialCopyAreOfNeitherPage) {
  EXPECT_EQ(Check({FromTier(false), FromTier(true), Own(), Own()}, true).unexplained, 0);
  EXPECT_EQ(Check({FromTier(false), FromTier(true), Own(false), Own(false)}, true).unexplained, 0);
}

// Every missing row here is one that may be missing; the reasons are of something else.
TEST(Checker, AReasonOfSomethingElseIsFalse) {
  Position not_asked = Own(false);
  EXPECT_EQ(Check({not_asked, Own(), Own(), Own()}).unexplained, 0);
  not_asked.info.reason = Reason::kNeverWritten;
  EXPECT_EQ(Check({not_asked, Own(), Own(), Own()}).unexplained, 1);
  not_asked.info.reason = Reason::kCapacity;
  EXPECT_EQ(Check({not_asked, Own(), Own(), Own()}).unexplained, 1);
  Position dropped = Own(false);
  dropped.cell.excuse = Excuse::kNone;
  dropped.dropped = true;
  dropped.info.reason = Reason::kCapacity;
  dropped.info.cause = Cause::kStepDropped;
  EXPECT_EQ(Check({dropped, Own(), Own(), Own()}).unexplained, 0);
  dropped.info.reason = Reason::kNotCaptured;
  EXPECT_EQ(Check({dropped, Own(), Own(), Own()}).unexplained, 1);
}

}  // namespace
}  // namespace waymark::sim
