// The two merges of reads: Join (first valid row wins) and JoinLayers (equal steps or missing).
#include "blockstore/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/support/test_seed.h"

namespace waymark {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RoutingShape Shape(std::int32_t layers = 2) {
  return {.num_layers = layers, .top_k = 2, .num_experts = 64, .page_tokens = 4};
}

// Rows whose ids tell position and tag.
Rows Make(std::int64_t first, const std::vector<RowInfo>& infos, std::uint8_t tag,
          const RoutingShape& shape = Shape()) {
  Rows rows;
  rows.shape = shape;
  rows.first = first;
  rows.infos = infos;
  rows.ids.resize(infos.size() * shape.row_bytes());
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (!infos[i].valid()) continue;
    for (std::size_t j = 0; j < shape.row_bytes(); ++j) {
      rows.ids[i * shape.row_bytes() + j] =
          static_cast<std::uint8_t>(tag * 16 + (static_cast<std::size_t>(first) + i + j) % 16);
    }
  }
  return rows;
}

RowInfo Valid(std::uint64_t step, Provenance provenance = Provenance::kHere) {
  return {step, 1, Reason::kNone, provenance};
}
RowInfo Missing(Reason reason, Provenance provenance = Provenance::kHere) {
  return {0, 0, reason, provenance};
}
const RowInfo kNever = Missing(Reason::kNeverWritten);

bool Same(const Rows& a, const Rows& b) {
  return a.first == b.first && a.infos == b.infos && a.ids == b.ids && a.shape == b.shape;
}

absl::StatusOr<Rows> Join(const Rows& a, const Rows& b) {
  const Rows* const reads[] = {&a, &b};
  return Join(reads);
}

TEST(Join, TheFirstValidRowWins) {
  const Rows a = Make(0, {Valid(1), Missing(Reason::kCapacity), Valid(3)}, 1);
  const Rows b = Make(0, {Valid(9), Valid(9, Provenance::kByKey), Valid(9)}, 2);
  const auto joined = Join(a, b).value();
  EXPECT_THAT(joined.infos, ElementsAre(Valid(1), Valid(9, Provenance::kByKey), Valid(3)));
  EXPECT_EQ(joined.row(0)[0], 16);
  EXPECT_EQ(joined.row(1)[0], 32 + 1);
  EXPECT_EQ(joined.row(2)[0], 16 + 2);
}

TEST(Join, WhereNeitherIsValidTheFirstTellingReasonStays) {
  const Rows a = Make(0, {kNever, Missing(Reason::kCapacity), Missing(Reason::kAudit), kNever}, 1);
  const Rows b =
      Make(0, {Missing(Reason::kExternalKv), kNever, Missing(Reason::kNotCaptured), kNever}, 2);
  const auto joined = Join(a, b).value();
  EXPECT_THAT(joined.infos, ElementsAre(Missing(Reason::kExternalKv), Missing(Reason::kCapacity),
                                        Missing(Reason::kAudit), kNever));
}

TEST(Join, CoversBothRangesAndTheGapBetween) {
  const Rows a = Make(10, {Valid(1), Valid(2)}, 1);
  const Rows b = Make(14, {Valid(3)}, 2);
  for (const auto& joined : {Join(a, b), Join(b, a)}) {
    ASSERT_TRUE(joined.ok());
    EXPECT_EQ(joined->first, 10);
    EXPECT_THAT(joined->infos, ElementsAre(Valid(1), Valid(2), kNever, kNever, Valid(3)));
    EXPECT_EQ(joined->row(2)[0], 0) << "missing rows are zero";
    EXPECT_EQ(joined->row(4)[0], 32 + 14);
  }
}

// An empty read has no place of its own: it must not stretch the range to where it starts.
TEST(Join, WithNothingChangesNothing) {
  const Rows a = Make(10, {Valid(1)}, 1);
  const Rows nothing = Make(1000, {}, 2);
  EXPECT_TRUE(Same(*Join(a, nothing), a));
  EXPECT_TRUE(Same(*Join(nothing, a), a));
}

// A request that was preempted twice: each life has the rows that it computed before it ended.
TEST(Join, TheEarliestLifeComesFirst) {
  const Rows first = Make(0, {Valid(1), Valid(2), Missing(Reason::kCapacity)}, 1);
  const Rows second = Make(0, {Valid(5), kNever, Missing(Reason::kAudit), Valid(6)}, 2);
  Rows third = Make(2, {Valid(7), Valid(7), Valid(8)}, 3);
  third.ordered = false;
  const Rows nothing = Make(1000, {}, 4);
  const Rows* const lives[] = {&first, &second, &nothing, &third};
  const auto joined = Join(lives).value();
  EXPECT_THAT(joined.infos, ElementsAre(Valid(1), Valid(2), Valid(7), Valid(6), Valid(8)));
  EXPECT_EQ(joined.row(2)[0], 48 + 2);
  EXPECT_EQ(joined.row(3)[0], 32 + 3);
  EXPECT_FALSE(joined.ordered);
  EXPECT_TRUE(Same(*Join(std::span(lives).first(1)), first));
  EXPECT_TRUE(Same(*Join(std::span(lives).subspan(2, 1)), nothing));
}

TEST(Join, RefusesNoReadsAndNone) {
  const Rows a = Make(0, {Valid(1)}, 1);
  const Rows* const reads[] = {&a, &a, nullptr};
  EXPECT_EQ(Join(std::span(reads).first(0)).status().message(), "reads must not be empty");
  EXPECT_EQ(Join(reads).status().message(), "reads[2] must not be null");
}

TEST(Join, RefusesRowsOfAnotherModel) {
  const Rows a = Make(0, {Valid(1)}, 1);
  RoutingShape shape = Shape();
  shape.num_experts = 65;
  EXPECT_THAT(Join(a, Make(0, {Valid(1)}, 1, shape)).status().message(),
              HasSubstr("reads[1].shape.num_experts must be 64; it is 65"));
  EXPECT_THAT(Join(a, Make(0, {Valid(1)}, 1, Shape(3))).status().message(),
              HasSubstr("reads[1].shape.num_layers must be 2; it is 3"));
  shape = Shape();
  shape.layer_ids = {1, 2};
  EXPECT_FALSE(Join(a, Make(0, {Valid(1)}, 1, shape)).ok());
  // Where the rows were kept does not matter, nor how the default layer ids are spelt.
  shape.layer_ids = {0, 1};
  shape.page_tokens = 64;
  const auto joined = Join(a, Make(1, {Valid(1)}, 1, shape)).value();
  EXPECT_EQ(joined.shape, Shape());
}

TEST(Join, RefusesRowsThatDoNotHoldWhatTheySay) {
  const Rows a = Make(0, {Valid(1)}, 1);
  Rows short_ids = a;
  short_ids.ids.pop_back();
  EXPECT_THAT(Join(a, short_ids).status().message(),
              HasSubstr("reads[1].ids must hold 4 bytes for its 1 infos; it holds 3"));
  Rows far = a;
  far.first = std::int64_t{1} << 40;
  EXPECT_EQ(Join(a, far).status().code(), absl::StatusCode::kInvalidArgument)
      << "a gap of 2^40 rows would be allocated";
  far.first = -1;
  EXPECT_FALSE(Join(far, a).ok());
}

Rows RandomRows(std::mt19937_64& random, std::uint8_t tag) {
  std::vector<RowInfo> infos(random() % 8);
  for (RowInfo& info : infos) {
    const auto reason = static_cast<Reason>(random() % kNumReasons);
    const auto provenance = static_cast<Provenance>(random() % kNumProvenances);
    info = random() % 2 ? Valid(1 + random() % 4, provenance)
                        : Missing(reason == Reason::kNone ? Reason::kNeverWritten : reason);
  }
  return Make(static_cast<std::int64_t>(random() % 12), infos, tag);
}

TEST(Join, IsAssociativeAndIdempotent) {
  TestRandom random;
  for (int i = 0; i < 3000; ++i) {
    const Rows a = RandomRows(random, 1);
    const Rows b = RandomRows(random, 2);
    const Rows c = RandomRows(random, 3);
    ASSERT_TRUE(Same(*Join(a, a), a));
    const Rows left = *Join(*Join(a, b), c);
    const Rows right = *Join(a, *Join(b, c));
    ASSERT_TRUE(Same(left, right)) << i;
    const Rows* const reads[] = {&a, &b, &c};
    const auto all = Join(reads);
    ASSERT_TRUE(all.ok() && Same(*all, left)) << i;
    // A valid row of either side is a valid row of the join, and it is one of theirs.
    const Rows ab = *Join(a, b);
    for (std::int64_t k = 0; k < ab.size(); ++k) {
      const std::int64_t position = ab.first + k;
      const auto valid_in = [position](const Rows& rows) {
        return position >= rows.first && position < rows.last() &&
               rows.infos[static_cast<std::size_t>(position - rows.first)].valid();
      };
      const RowInfo& info = ab.infos[static_cast<std::size_t>(k)];
      ASSERT_EQ(info.valid(), valid_in(a) || valid_in(b));
      if (!info.valid()) continue;
      const Rows& from = valid_in(a) ? a : b;
      const auto row = from.row(position - from.first);
      ASSERT_TRUE(std::equal(row.begin(), row.end(), ab.row(k).begin()));
    }
  }
}

TEST(JoinAndJoinLayers, OneThatIsNotOrderedMakesAllNotOrdered) {
  const Rows a = Make(0, {Valid(1)}, 1);
  Rows b = Make(0, {Valid(1)}, 2);
  const Rows* const stages[] = {&a, &b};
  EXPECT_TRUE(Join(a, b)->ordered);
  EXPECT_TRUE(JoinLayers(stages)->ordered);
  b.ordered = false;
  EXPECT_FALSE(Join(a, b)->ordered);
  EXPECT_FALSE(Join(b, a)->ordered);
  EXPECT_FALSE(JoinLayers(stages)->ordered);
}

TEST(JoinLayers, PutsTheStagesSideBySide) {
  const Rows a = Make(4, {Valid(1), Valid(2)}, 1, Shape(2));
  const Rows b = Make(4, {Valid(1), Valid(2, Provenance::kKept)}, 2, Shape(1));
  const Rows* const stages[] = {&a, &b};
  const auto joined = JoinLayers(stages).value();
  EXPECT_EQ(joined.shape.num_layers, 3);
  EXPECT_TRUE(joined.shape.layer_ids.empty());
  EXPECT_EQ(joined.first, 4);
  EXPECT_THAT(joined.infos, ElementsAre(Valid(1), Valid(2, Provenance::kKept)));
  EXPECT_THAT(std::vector<int>(joined.row(1).begin(), joined.row(1).end()),
              ElementsAre(16 + 5, 16 + 6, 16 + 7, 16 + 8, 32 + 5, 32 + 6));
}

TEST(JoinLayers, UnequalStepsAreNotCaptured) {
  const Rows a = Make(0, {Valid(1), Valid(2)}, 1);
  const Rows b = Make(0, {Valid(1), Valid(3)}, 2);
  const Rows* const stages[] = {&a, &b};
  const auto joined = JoinLayers(stages).value();
  EXPECT_THAT(joined.infos, ElementsAre(Valid(1), Missing(Reason::kNotCaptured)));
  EXPECT_THAT(std::vector<int>(joined.row(1).begin(), joined.row(1).end()),
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
}

// Two shards whose documents had no steps were joined, although their versions told that they are of
// other steps.
TEST(JoinLayers, RowsWithoutStepsAreOfOneVersion) {
  Rows a = Make(0, {Valid(0), Valid(0), Valid(1)}, 1);
  Rows b = a;
  for (RowInfo& info : a.infos)
    info.version = 7;
  b.infos[0].version = 7;
  b.infos[1].version = 8;
  b.infos[2].version = 7;
  const Rows* const stages[] = {&a, &b};
  const auto joined = JoinLayers(stages).value();
  EXPECT_THAT(joined.infos, ElementsAre(a.infos[0], Missing(Reason::kNotCaptured), a.infos[2]));
}

TEST(JoinLayers, TheFirstStageThatMissesARowSaysWhy) {
  const Rows a = Make(0, {Valid(1), Missing(Reason::kAudit)}, 1);
  const Rows b = Make(0, {Valid(2), Missing(Reason::kCapacity)}, 2);
  const Rows c = Make(0, {Missing(Reason::kInvalidId), Valid(7)}, 3);
  const Rows* const stages[] = {&a, &b, &c};
  const auto joined = JoinLayers(stages).value();
  EXPECT_THAT(joined.infos, ElementsAre(Missing(Reason::kInvalidId), Missing(Reason::kAudit)));
}

TEST(JoinLayers, TheFirstProvenanceThatIsNotHereStays) {
  const Rows a = Make(0, {Valid(1)}, 1);
  const Rows b = Make(0, {Valid(1, Provenance::kByKey)}, 2);
  const Rows c = Make(0, {Valid(1, Provenance::kKept)}, 3);
  const Rows* const stages[] = {&a, &b, &c};
  EXPECT_THAT(JoinLayers(stages)->infos, ElementsAre(Valid(1, Provenance::kByKey)));
}

TEST(JoinLayers, LayerIdsIncreaseFromStageToStage) {
  RoutingShape first = Shape(2);
  first.layer_ids = {1, 3};
  RoutingShape second = Shape(2);
  second.layer_ids = {4, 9};
  const Rows a = Make(0, {Valid(1)}, 1, first);
  const Rows b = Make(0, {Valid(1)}, 2, second);
  const Rows plain = Make(0, {Valid(1)}, 3, Shape(2));
  const Rows* const good[] = {&a, &b, &plain};
  EXPECT_THAT(JoinLayers(good)->shape.layer_ids, ElementsAre(1, 3, 4, 9, 10, 11));
  const Rows* const swapped[] = {&b, &a};
  EXPECT_THAT(JoinLayers(swapped).status().message(),
              HasSubstr("stages[1].shape.layer_ids[0] must be at least 10"));
}

TEST(JoinLayers, RefusesStagesThatDoNotFit) {
  EXPECT_FALSE(JoinLayers({}).ok());
  const Rows a = Make(0, {Valid(1)}, 1);
  const auto error = [&a](const Rows& b) {
    const Rows* const stages[] = {&a, &b};
    return std::string(JoinLayers(stages).status().message());
  };
  EXPECT_THAT(error(Make(1, {Valid(1)}, 1)), HasSubstr("stages[1].first must be 0; it is 1"));
  EXPECT_THAT(error(Make(0, {}, 1)), HasSubstr("stages[1].size() must be 1; it is 0"));
  RoutingShape shape = Shape();
  shape.top_k = 3;
  EXPECT_THAT(error(Make(0, {Valid(1)}, 1, shape)), HasSubstr("top_k must be 2; it is 3"));
  EXPECT_THAT(error(Make(0, {Valid(1)}, 1, Shape(1023))), HasSubstr("at most 1024"));
  const Rows* const null[] = {&a, nullptr};
  EXPECT_FALSE(JoinLayers(null).ok());
}

TEST(Rows, CoverageCountsFromTheSequence) {
  const Rows rows = Make(8, {Valid(1), kNever}, 1);
  EXPECT_THAT(rows.Coverage(),
              ElementsAre(CoverageRun{8, 9, Reason::kNone, 1, Provenance::kHere},
                          CoverageRun{9, 10, Reason::kNeverWritten, 0, Provenance::kHere}));
}

}  // namespace
}  // namespace waymark
