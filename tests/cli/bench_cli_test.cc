// `waymark bench`: every budget is there, in the table and as JSON, and no budget that is missed
// changes the exit code. Nothing here depends on how long anything took.
#include <map>
#include <sstream>
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
using Json = nlohmann::json;

const std::vector<std::string> kTimed = {"step-warm",       "step-cold-core", "step-cold",
                                         "prefill",         "landing-u8",     "landing-i16",
                                         "landing-prefill", "snapshot-warm",  "snapshot-cold-core",
                                         "snapshot-cold",   "read-16",        "read-64",
                                         "read-256",        "wire",           "set-code"};
const std::vector<std::string> kAll = {
    "step-warm",     "step-cold-core", "step-cold",       "prefill",       "vllm-step",
    "landing-u8",    "landing-i16",    "landing-prefill", "snapshot-warm", "snapshot-cold-core",
    "snapshot-cold", "read-16",        "read-64",         "read-256",      "wire",
    "wire-bytes",    "set-code",       "set-code-bytes",  "turns",         "gpu-launches",
    "gpu-pack"};

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
  EXPECT_GT(report["machine"]["memory_bytes"], 0);
  EXPECT_EQ(report["store_rows"], 65536);

  std::vector<std::string> names;
  std::map<std::string, Json> budgets;
  for (const Json& budget : report["budgets"]) {
    names.push_back(budget["name"]);
    budgets[names.back()] = budget;
    EXPECT_NE(budget["what"], "") << names.back();
    EXPECT_NE(budget["budget"], "") << names.back();
  }
  EXPECT_THAT(names, ElementsAreArray(kAll));

  for (const std::string& name : kTimed) {
    const Json& budget = budgets[name];
    EXPECT_GE(budget["turns"], 3) << name;
    EXPECT_GT(budget["time"]["lower_decile_us"], 0) << name;
    EXPECT_GE(budget["time"]["median_us"], budget["time"]["lower_decile_us"]) << name;
    EXPECT_TRUE(budget["met"].is_boolean()) << name;
    // A ratio is there where there is a baseline, and is of the two times in their own run.
    EXPECT_EQ(budget["ratio"].is_number(), budget["baseline"] != "") << name;
    if (budget["baseline"] == "") continue;
    const std::string judged = budget["judged_by"].get<std::string>() + "_us";
    const double time = budget["time"][judged];
    const double baseline = budget["baseline_time"][judged];
    const double ratio = budget["ratio"];
    EXPECT_NEAR(name.rfind("read-", 0) == 0 ? baseline / time : time / baseline, ratio,
                1e-6 * ratio)
        << name;
  }
  for (const char* name : {"vllm-step", "gpu-launches", "gpu-pack"}) {
    EXPECT_TRUE(budgets[name]["met"].is_null()) << name;
    EXPECT_EQ(budgets[name]["verdict"], "owed: needs a GPU") << name;
  }
}

TEST_F(Bench, BytesAreWithinTheirBudgets) {
  for (const char* name : {"wire-bytes", "set-code-bytes", "turns"}) {
    const Outcome outcome = Short({"--json", "--only", name});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json report = Json::parse(outcome.out);
    ASSERT_EQ(report["budgets"].size(), 1u) << name;
    EXPECT_GT(report["budgets"][0]["bytes"], 12'000'000) << name;
    EXPECT_EQ(report["budgets"][0]["met"], true) << name;
  }
}

TEST_F(Bench, TableHasALineForEachBudgetThatIsAskedFor) {
  const Outcome outcome = Short({"--only", "snapshot"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::vector<std::string> names;
  std::istringstream lines(outcome.out);
  bool table = false;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (table && name.empty()) break;
    if (table) {
      names.push_back(name);
      EXPECT_TRUE(line.ends_with("  met") || line.ends_with("  NOT MET")) << line;
      EXPECT_THAT(line, HasSubstr(" us "));
    }
    table = table || name == "name";
  }
  EXPECT_THAT(names, ElementsAreArray({"snapshot-warm", "snapshot-cold-core", "snapshot-cold"}));
  for (const char* word : {"processor", "cores", "memory", "instruction sets", "kernel", "CUDA"})
    EXPECT_THAT(outcome.out, HasSubstr(word));
}

TEST_F(Bench, ImpossibleOptionsExitWithTwo) {
  const std::vector<std::pair<std::string, std::string>> options = {
      {"--only", "nope"},        {"--only", "step-warm-not"}, {"--seconds", "0"},
      {"--seconds", "many"},     {"--store-rows", "65537"},   {"--store-rows", "8192"},
      {"--store-rows", "-65536"}};
  for (const auto& [option, value] : options) {
    const Outcome outcome = Run({"bench", option + "=" + value});
    EXPECT_EQ(outcome.code, 2) << option << " " << value;
    EXPECT_THAT(outcome.err, HasSubstr(option));
    EXPECT_EQ(outcome.out, "") << option << " " << value;
  }
  const Outcome outcome = Run({"bench", "--only", "nope"});
  EXPECT_THAT(outcome.err, HasSubstr("set-code-bytes"));
}

}  // namespace
}  // namespace waymark
