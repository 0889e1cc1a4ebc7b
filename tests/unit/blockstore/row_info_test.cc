#include "blockstore/row_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace waymark {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RowInfo Valid(std::uint64_t step, std::uint64_t version,
              Provenance provenance = Provenance::kHere) {
  return {step, version, Reason::kNone, provenance};
}
RowInfo Missing(Reason reason, Cause cause = Cause::kNone) {
  return {0, 0, reason, Provenance::kHere, cause};
}

TEST(RowInfo, EveryReasonAndProvenanceHasItsOwnName) {
  std::set<std::string> names;
  for (int i = 0; i < kNumReasons; ++i)
    names.emplace(ReasonName(static_cast<Reason>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kNumReasons));
  EXPECT_EQ(names.count("unknown reason"), 0u);
  EXPECT_EQ(ReasonName(Reason::kExternalKv), "external KV");
  EXPECT_EQ(ReasonName(static_cast<Reason>(200)), "unknown reason");
  names.clear();
  for (int i = 0; i < kNumCauses; ++i)
    names.emplace(CauseName(static_cast<Cause>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kNumCauses));
  EXPECT_EQ(CauseName(static_cast<Cause>(31)), "unknown cause");
  EXPECT_EQ(WhyMissing(Reason::kCapacity, Cause::kEvicted), "capacity: the page was evicted");
  EXPECT_EQ(WhyMissing(Reason::kAudit, Cause::kNone), "audit");
  names.clear();
  for (int i = 0; i < kNumProvenances; ++i) {
    names.emplace(ProvenanceName(static_cast<Provenance>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kNumProvenances));
  EXPECT_EQ(ProvenanceName(Provenance::kByKey), "by key");
  EXPECT_EQ(ProvenanceName(static_cast<Provenance>(99)), "unknown provenance");
}

TEST(RowInfo, IsReusedIfItsStepIsEarlierThanTheRequest) {
  RowInfo row{6, 1, Reason::kNone, {}};
  EXPECT_TRUE(IsReused(row, 7));
  EXPECT_FALSE(IsReused(row, 6)) << "the request's own first step";
  EXPECT_FALSE(IsReused(row, 5));
  row.step = 0;
  EXPECT_FALSE(IsReused(row, 7)) << "the step is not known";
  row = {6, 1, Reason::kCapacity, {}};
  EXPECT_FALSE(IsReused(row, 7)) << "there is no row";
}

TEST(Coverage, OfNothingIsNothing) {
  EXPECT_THAT(CoverageOf({}, 7), IsEmpty());
}

TEST(Coverage, RunsAreMaximalAndCountFromTheSequence) {
  const std::vector<RowInfo> infos = {Valid(1, 5),
                                      Valid(2, 5),
                                      Valid(2, 6),
                                      Valid(3, 6, Provenance::kKept),
                                      Missing(Reason::kCapacity, Cause::kEvicted),
                                      Missing(Reason::kCapacity, Cause::kEvicted),
                                      Missing(Reason::kCapacity, Cause::kNoBuffer),
                                      Missing(Reason::kAudit)};
  EXPECT_THAT(CoverageOf(infos, 100),
              ElementsAre(CoverageRun{100, 102, Reason::kNone, 5, Provenance::kHere},
                          CoverageRun{102, 103, Reason::kNone, 6, Provenance::kHere},
                          CoverageRun{103, 104, Reason::kNone, 6, Provenance::kKept},
                          CoverageRun{104, 106, Reason::kCapacity, 0, {}, Cause::kEvicted},
                          CoverageRun{106, 107, Reason::kCapacity, 0, {}, Cause::kNoBuffer},
                          CoverageRun{107, 108, Reason::kAudit, 0, Provenance::kHere}));
}

// Steps differ from row to row of one run; a run does not name one.
TEST(Coverage, StepsDoNotSplitRuns) {
  std::vector<RowInfo> infos;
  for (std::uint64_t step = 1; step <= 50; ++step)
    infos.push_back(Valid(step, 1));
  EXPECT_EQ(CoverageOf(infos, 0).size(), 1u);
}

}  // namespace
}  // namespace waymark
