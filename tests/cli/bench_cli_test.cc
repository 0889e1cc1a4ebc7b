// `waymark bench`: every budget is there, in the table and as JSON, and no budget that is missed
// changes the exit code. Nothing here depends on how long anything took.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/tool_test.h"

namespace waymark {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

const std::vector<std::string> kAll = {
    "step-warm",       "step-cold-core", "step-cold",          "events-warm",
    "events-cold",     "prefill",        "landing-u8",         "landing-i16",
    "landing-prefill", "snapshot-warm",  "snapshot-cold-core", "snapshot-cold",
    "read-16",         "read-64",        "read-256",           "wire",
    "wire-bytes",      "set-code",       "set-code-bytes",     "turns"};
const std::vector<std::string> kBytes = {"wire-bytes", "set-code-bytes", "turns"};

class Bench : public ToolTest {
 protected:
  // A run of a moment.
  Outcome Short(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"bench", "--seconds", "0.01", "--store-rows", "65536"});
    return Run(arguments);
  }
};

TEST_F(Bench, JsonHasEveryBudgetAndTheMachine) {
  const Outcome outcome = Short({"--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json report = Json::parse(outcome.out);
  EXPECT_NE(report["machine"]["processor"], "");
  EXPECT_NE(report["machine"]["kernels_isa"], "");
  EXPECT_GT(report["machine"]["cores"], 0);
  EXPECT_EQ(report["store_rows"], 65536);

  std::vector<std::string> names;
  for (const Json& budget : report["budgets"]) {
    const std::string name = budget["name"];
    names.push_back(name);
    EXPECT_NE(budget["what"], "") << name;
    EXPECT_NE(budget["budget"], "") << name;
    EXPECT_TRUE(budget["met"].is_boolean()) << name;
    if (std::find(kBytes.begin(), kBytes.end(), name) != kBytes.end()) {
      EXPECT_GT(budget["bytes"], 12'000'000) << name;
      EXPECT_EQ(budget["met"], true) << name;
      continue;
    }
    EXPECT_GE(budget["turns"], 3) << name;
    EXPECT_GT(budget["decile_us"], 0) << name;
    EXPECT_GE(budget["median_us"], budget["decile_us"]) << name;
    // A ratio is there where there is a baseline, and is of the two times in their own run.
    EXPECT_EQ(budget["ratio"] != 0, budget["baseline"] != "") << name;
    if (budget["baseline"] == "") continue;
    const double time = budget[budget["judged_by"].get<std::string>()];
    const double baseline = budget["baseline_us"];
    const double ratio = budget["ratio"];
    EXPECT_NEAR(name.rfind("read-", 0) == 0 ? baseline / time : time / baseline, ratio,
                1e-6 * ratio)
        << name;
  }
  EXPECT_THAT(names, ElementsAreArray(kAll));
}

TEST_F(Bench, TableHasALineForEachBudgetThatIsAskedFor) {
  const Outcome outcome = Short({"--only", "snapshot"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const std::string& name : kAll) {
    EXPECT_EQ(outcome.out.find("\n  " + name + " ") != std::string::npos,
              name.rfind("snapshot", 0) == 0)
        << name << outcome.out;
  }
  for (const char* word : {"processor", "cores", "kernels isa", "baseline", " met\n"})
    EXPECT_THAT(outcome.out, HasSubstr(word));
}

TEST_F(Bench, ImpossibleOptionsExitWithTwo) {
  const std::vector<std::pair<std::string, std::string>> options = {
      {"--only", "nope"},        {"--only", "step-warm-not"}, {"--seconds", "0"},
      {"--seconds", "many"},     {"--store-rows", "65537"},   {"--store-rows", "8192"},
      {"--store-rows", "-65536"}};
  for (const auto& [option, value] : options) {
    const Outcome outcome = RunTo(2, {"bench", option + "=" + value});
    EXPECT_THAT(outcome.err, HasSubstr(option));
    EXPECT_EQ(outcome.out, "") << option << " " << value;
  }
  const Outcome outcome = Run({"bench", "--only", "nope"});
  EXPECT_THAT(outcome.err, HasSubstr("set-code-bytes"));
}

}  // namespace
}  // namespace waymark
