#include "blockstore/store/stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/support/test_seed.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LatencyHistogram, EmptyAnswersZero) {
  EXPECT_EQ(LatencyHistogram().Quantile(0.5), 0u);
}

TEST(LatencyHistogram, TheExtremesStayInside) {
  LatencyHistogram histogram;
  histogram.Add(0);
  EXPECT_LE(histogram.Quantile(1.0), 1u);
  histogram.Add(std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(histogram.count(), 2u);
  EXPECT_GT(histogram.Quantile(1.0), 1000000000u);
  EXPECT_LE(histogram.Quantile(0.0), 1u);
  EXPECT_LE(histogram.Quantile(-1.0), 1u);
  EXPECT_LE(histogram.Quantile(std::numeric_limits<double>::quiet_NaN()), 1u);
  EXPECT_EQ(histogram.Quantile(7.0), histogram.Quantile(1.0));
}

TEST(LatencyHistogram, EveryDurationIsWithinNinePercentOfItsBound) {
  TestRandom random;
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t duration = 1 + (random() >> (25 + random() % 38));
    LatencyHistogram histogram;
    histogram.Add(duration);
    const std::uint64_t bound = histogram.Quantile(0.5);
    ASSERT_GE(bound, duration);
    ASSERT_LE(static_cast<double>(bound), 1.0906 * static_cast<double>(duration)) << duration;
  }
}

TEST(LatencyHistogram, QuantilesOfManyAreThoseOfTheSortedList) {
  TestRandom random;
  LatencyHistogram histogram;
  std::vector<std::uint64_t> durations(1000);
  for (std::uint64_t& duration : durations) {
    duration = 1 + random() % 1000000;
    histogram.Add(duration);
  }
  std::sort(durations.begin(), durations.end());
  for (const double q : {0.001, 0.25, 0.5, 0.9, 0.99, 1.0}) {
    const std::uint64_t exact = durations[static_cast<std::size_t>(q * 1000) - 1];
    EXPECT_GE(histogram.Quantile(q), exact) << q;
    EXPECT_LE(static_cast<double>(histogram.Quantile(q)), 1.0906 * static_cast<double>(exact)) << q;
  }
}

TEST(Stats, NamesReasonsOnlyWhereRowsAreMissing) {
  Stats stats;
  stats.rows_landed = 12345;
  stats.rows_missing[static_cast<std::size_t>(Reason::kCapacity)] = 17;
  const std::string text = stats.ToString();
  EXPECT_THAT(text, HasSubstr("12345"));
  EXPECT_THAT(text, HasSubstr("rows missing, capacity"));
  EXPECT_THAT(text, Not(HasSubstr("rows missing, audit")));
  EXPECT_THAT(text, Not(HasSubstr("mean agreement")));
  stats.audited_rows = 4;
  stats.audit_agreement_sum = 3;
  EXPECT_THAT(stats.ToString(), HasSubstr("0.7500"));
}

TEST(AuditFinding, NamesTheMissedEvent) {
  AuditFinding finding;
  finding.block = 7;
  finding.step = 40;
  finding.kept_step = 12;
  finding.sealed_step = 13;
  finding.rows = 16;
  finding.agreement = 0.125;
  EXPECT_THAT(finding.ToString(), HasSubstr("counted only"));
  finding.voided = true;
  EXPECT_THAT(finding.ToString(), HasSubstr("a Bind of block 7 after step 13 was missed"));
  EXPECT_THAT(finding.ToString(), HasSubstr("a key is wrong, or rows were written to wrong slots"));
  EXPECT_THAT(finding.ToString(), HasSubstr("0.125"));
  EXPECT_THAT(finding.ToString(), Not(HasSubstr("more")));
  AuditFinding other = finding;
  other.block = 9;
  other.last_step = 50;
  finding.Add(other);
  EXPECT_THAT(finding.ToString(), HasSubstr("block 7"));
  EXPECT_THAT(finding.ToString(), HasSubstr("so were 1 more, the last after step 50"));
  finding.two_pages = true;
  EXPECT_THAT(finding.ToString(), HasSubstr("wrong key"));
  EXPECT_THAT(finding.ToString(), HasSubstr("block 7 has the second"));
  finding.block = -1;
  EXPECT_THAT(finding.ToString(), Not(HasSubstr("block -1")));
}

TEST(AuditFinding, OneStandsForACause) {
  std::vector<AuditFinding> findings(5);
  for (std::size_t i = 0; i < findings.size(); ++i) {
    findings[i].two_pages = i == 1 || i == 3;
    findings[i].step = findings[i].last_step = i + 10;
  }
  findings[4].pages = 7;  // stands for others already
  const std::vector<AuditFinding> causes = MergeCauses(findings);
  ASSERT_EQ(causes.size(), 2u);
  EXPECT_FALSE(causes[0].two_pages);
  EXPECT_EQ(causes[0].pages, 9u);
  EXPECT_EQ(causes[0].step, 10u);
  EXPECT_EQ(causes[0].last_step, 14u);
  EXPECT_TRUE(causes[1].two_pages);
  EXPECT_EQ(causes[1].pages, 2u);
  EXPECT_EQ(causes[1].last_step, 13u);
  EXPECT_TRUE(MergeCauses({}).empty());
}

}  // namespace
}  // namespace waymark
