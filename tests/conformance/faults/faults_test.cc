// Every seeded fault of the store is noticed, and nothing is noticed without it.
#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "tests/conformance/faults/fault_on.h"
#include "tests/conformance/faults/faults.h"
#include "tests/conformance/schedules.h"

namespace waymark::conformance {
namespace {

constexpr std::uint64_t kSeeds = 60;  // at most, until one notices
constexpr std::int64_t kSteps = 400;

std::vector<Fault> Faults(bool of_engines_only = false) {
  std::vector<Fault> faults;
  for (const auto& table : {BlockFaults(), StepFaults(), WaitFaults(), LogFaults(), TierFaults()}) {
    for (const Fault& fault : table) {
      if (!of_engines_only || fault.engine != nullptr) faults.push_back(fault);
    }
  }
  return faults;
}

class SeededFault : public testing::TestWithParam<Fault> {
 protected:
  ~SeededFault() override { SelectedFault().clear(); }

  static Schedule ScheduleOf(const Fault& fault, std::uint64_t seed) {
    Schedule schedule;
    schedule.options.seed = seed;
    schedule.options.megatron = std::string_view(fault.engine) == "megatron";
    EXPECT_TRUE(SetOptions(schedule.options, fault.features)) << fault.features;
    schedule.steps = kSteps;
    schedule.features = fault.features;
    return schedule;
  }
};

TEST_P(SeededFault, IsNoticed) {
  const Fault& fault = GetParam();
  EXPECT_EQ(fault.probe(), "") << "without the fault";
  SelectedFault() = fault.name;
  const std::string notice = fault.probe();
  EXPECT_NE(notice, "") << "with the fault";
  RecordProperty("notice", notice);
}

using FaultOfAnEngine = SeededFault;

TEST_P(FaultOfAnEngine, IsNoticed) {
  const Fault& fault = GetParam();
  bool noticed = false;
  std::string finding;
  for (std::uint64_t seed = 0; seed < kSeeds && !noticed; ++seed) {
    const Schedule schedule = ScheduleOf(fault, seed);
    SelectedFault().clear();
    const Outcome right = RunSchedule(schedule);
    ASSERT_EQ(right.checks.wrong + right.checks.unexplained, 0)
        << "without the fault: " << right.Describe(schedule);
    SelectedFault() = fault.name;
    const Outcome wrong = RunSchedule(schedule);
    if (!wrong.checks.findings.empty()) finding = wrong.checks.findings.front();
    noticed = wrong.checks.wrong + wrong.checks.unexplained > 0;
  }
  RecordProperty("finding", finding);
  EXPECT_TRUE(noticed) << kSeeds << " schedules of \"" << fault.features
                       << "\" went by without a wrong or unexplained row";
}

std::string NameOf(const testing::TestParamInfo<Fault>& fault) {
  return fault.param.name;
}
INSTANTIATE_TEST_SUITE_P(Faults, SeededFault, testing::ValuesIn(Faults()), NameOf);
INSTANTIATE_TEST_SUITE_P(Faults, FaultOfAnEngine,
                         testing::ValuesIn(Faults(/*of_engines_only=*/true)), NameOf);

// The names in faults.txt, in its order.
constexpr const char* kSubstituted[] = {
#include "fault_names.inc"
};

TEST(SeededFaults, AreThoseOfTheList) {
  std::set<std::string> names;
  for (const Fault& fault : Faults())
    EXPECT_TRUE(names.insert(fault.name).second) << fault.name << " is there twice";
  EXPECT_EQ(names, std::set<std::string>(std::begin(kSubstituted), std::end(kSubstituted)));
}

}  // namespace
}  // namespace waymark::conformance
