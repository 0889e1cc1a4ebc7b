// Runs the tool as a person does: what it says, where it says it, and what it exits with.
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "blockstore/flight/reader.h"
#include "blockstore/flight/writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/tool_test.h"
#include "tests/support/token_rows.h"

namespace waymark {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Cli : public ToolTest {
 protected:
  // A trace of requests that share their first 512 tokens.
  static constexpr int kRequests = 16;
  std::string SmallTrace() {
    const std::string path = Path("trace.jsonl");
    std::string lines;
    for (int i = 0; i < kRequests; ++i) {
      lines += "{\"timestamp\": " + std::to_string(i) +
               ", \"input_length\": " + std::to_string(600 + 10 * i) +
               ", \"output_length\": 20, \"hash_ids\": [1, " + std::to_string(10 + i) + "]}\n";
    }
    Write(path, lines);
    return path;
  }

  std::vector<std::string> TraceArguments(const std::string& engine) {
    return {"trace",       SmallTrace(), "--engine", engine, "--layers",  "4",
            "--kv-tokens", "2048",       "--top-k",  "4",    "--experts", "64"};
  }

  // The flight of a small run, with many blocks used again and again.
  std::string SmallFlight() {
    const std::string path = Path("small.flight");
    std::vector<std::string> arguments = TraceArguments("vllm");
    arguments.insert(arguments.end(), {"--record", path});
    const Outcome outcome = RunTo(0, arguments);
    return path;
  }
};

TEST_F(Cli, HelpAndVersion) {
  Outcome outcome = RunTo(0, {"--version"});
  EXPECT_THAT(outcome.out, HasSubstr("waymark "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("unknown")));
  outcome = RunTo(0, {"--help"});
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("demo"), HasSubstr("trace"), HasSubstr("check"),
                                 HasSubstr("inspect"), HasSubstr("diff"), HasSubstr("convert"),
                                 HasSubstr("bench"), HasSubstr("Exit codes")));
  const std::string help = outcome.out;
  for (const std::string command :
       {"demo", "trace", "check", "inspect", "diff", "convert", "bench"}) {
    EXPECT_THAT(help, ContainsRegex("\n  " + command + " +[A-Z]"));
    outcome = RunTo(0, {command, "--help"});
    EXPECT_THAT(outcome.out, HasSubstr("Usage")) << command;
  }
}

TEST_F(Cli, EveryUsageErrorExitsWithTwo) {
  const std::string trace = SmallTrace();
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "a command is required"},
      {{"nope"}, "'nope'"},
      {{"--nope"}, "nope"},
      {{"check"}, "FILE"},
      {{"check", "a", "one_too_many"}, "one_too_many"},
      {{"check", "a", "--max-memory-mb", "0"}, "--max-memory-mb"},
      {{"check", "a", "--max-memory-mb", "x"}, "--max-memory-mb"},
      {{"trace"}, "FILE"},
      {{"trace", trace}, "--engine"},
      {{"trace", trace, "--engine", "sglang"}, "sglang"},
      {{"trace", trace, "--engine", "vllm", "--layers", "many"}, "--layers"},
      {{"trace", trace, "--engine", "vllm", "--nope"}, "--nope"},
  };
  for (const auto& [arguments, word] : cases) {
    const Outcome outcome = RunTo(2, arguments);
    EXPECT_THAT(outcome.err, HasSubstr(word));
    EXPECT_EQ(outcome.out, "") << word;
    const bool command = !arguments.empty() && (arguments[0] == "check" || arguments[0] == "trace");
    EXPECT_EQ(outcome.err.find(command ? "waymark " + arguments[0] + ": " : "waymark: "), 0u)
        << word;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << word;  // one line
  }
}

TEST_F(Cli, ImpossibleOptionsOfTraceExitWithTwoAndNameTheOption) {
  const std::string trace = SmallTrace();
  const std::vector<std::pair<std::string, std::string>> options = {
      {"--layers", "0"},         {"--experts", "0"},      {"--block-tokens", "0"},
      {"--kv-tokens", "0"},      {"--spec-tokens", "-1"}, {"--preempt-rate", "1.5"},
      {"--preempt-rate", "nan"}, {"--drop-rate", "2"},    {"--max-batched-tokens", "0"},
  };
  for (const auto& [option, value] : options) {
    const Outcome outcome =
        RunTo(2, {"trace", trace, "--engine", "vllm", "--requests", "1", option + "=" + value});
    EXPECT_EQ(outcome.out, "");
    EXPECT_FALSE(outcome.err.empty());
    // The library's wording has underscores, the command line's has hyphens.
    std::string name = option.substr(2);
    std::string with_underscores = name;
    for (char& c : with_underscores)
      c = c == '-' ? '_' : c;
    EXPECT_THAT(outcome.err, ::testing::AnyOf(HasSubstr(name), HasSubstr(with_underscores)));
  }
}

TEST_F(Cli, MissingAndMalformedTracesExitWithTwo) {
  Outcome outcome = RunTo(2, {"trace", "/nonexistent.jsonl", "--engine", "vllm"});
  EXPECT_THAT(outcome.err, HasSubstr("'/nonexistent.jsonl' cannot be read: No such file"));
  for (const char* line :
       {"hello", "[1, 2]", "{\"timestamp\": 0}",
        "{\"timestamp\": 0, \"input_length\": -5, \"output_length\": 1, \"hash_ids\": []}",
        "{\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 1, \"hash_ids\": [1]}",
        "{\"timestamp\": 0, \"input_length\": 10, \"output_length\": 1, \"hash_ids\": [\"a\"]}",
        "{\"timestamp\": 0, \"input_length\": 10, \"output_length\": 1, \"hash_ids\": [1]"}) {
    const std::string path = Path("bad.jsonl");
    Write(path, std::string(line) + "\n");
    const std::string record = Path("never.flight");
    outcome = RunTo(2, {"trace", path, "--engine", "megatron", "--record", record});
    EXPECT_THAT(outcome.err, HasSubstr("line 1")) << line;
    EXPECT_EQ(outcome.out, "") << line;
    EXPECT_NE(access(record.c_str(), F_OK), 0) << "a recording was begun for: " << line;
  }
  outcome =
      RunTo(2, {"trace", SmallTrace(), "--engine", "vllm", "--record", "/nonexistent/x.flight"});
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/x.flight"));
  const std::string trace = SmallTrace();
  const std::string before = Slurp(trace);
  outcome = RunTo(2, {"trace", trace, "--engine", "vllm", "--record", trace});
  EXPECT_THAT(outcome.err, HasSubstr("--record must be another file"));
  EXPECT_EQ(Slurp(trace), before);
}

TEST_F(Cli, TraceThatChecksNoRowExitsWithTwo) {
  for (const std::string format : {"", "--json"}) {
    std::vector<std::string> arguments = {"trace", SmallTrace(), "--engine", "vllm"};
    arguments.insert(arguments.end(), {"--kv-tokens", "100"});
    if (!format.empty()) arguments.push_back(format);
    const Outcome outcome = RunTo(2, arguments);
    EXPECT_THAT(outcome.err, HasSubstr("no row was checked: 0 requests finished, and 16 never"));
    EXPECT_THAT(outcome.out, Not(HasSubstr("No row is wrong")));
  }
}

TEST_F(Cli, TraceGivesOneJsonObjectWithEverythingPromised) {
  for (const char* engine : {"vllm", "megatron"}) {
    std::vector<std::string> arguments = TraceArguments(engine);
    arguments.push_back("--json");
    const Outcome outcome = RunTo(0, arguments);
    EXPECT_EQ(outcome.err, "");  // no progress where nobody looks
    const Json json = Json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(json.is_object()) << outcome.out;
    for (const char* key :
         {"requests_finished", "requests_skipped", "rows_checked", "rows_wrong", "rows_unexplained",
          "rows_missing", "prefix_hit_tokens", "computed_tokens", "preemptions", "evictions",
          "steps", "store_bytes_peak", "seconds"}) {
      EXPECT_TRUE(json.contains(key)) << key;
    }
    EXPECT_EQ(json["requests_finished"], kRequests);
    EXPECT_EQ(json["rows_wrong"], 0);
    EXPECT_EQ(json["rows_unexplained"], 0);
    EXPECT_GT(json["rows_checked"], 3000);
    EXPECT_GT(json["prefix_hit_tokens"], 0);
    EXPECT_TRUE(json["rows_missing"].is_object());
  }
}

TEST_F(Cli, TraceTableSaysWhatAPersonWantsToKnow) {
  const Outcome outcome = RunTo(0, TraceArguments("vllm"));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("requests finished"), HasSubstr("wrong"),
                                 HasSubstr("No row is wrong")));
}

TEST_F(Cli, CheckOfAGoodFlight) {
  const std::string flight = SmallFlight();
  const Outcome outcome = RunTo(0, {"check", flight});
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("The store is right: each read gave what was recorded."),
                                 HasSubstr("This does not prove\nthe integration")));
  const Json json = RunJson({"check", flight});
  EXPECT_EQ(json["right"], true);
  EXPECT_GT(json["rows_read"], 3000);
  EXPECT_EQ(json["rows_valid_as_recorded"], json["rows_read"]);
}

TEST_F(Cli, CheckThatChecksNothingExitsWithTwo) {
  const std::string flight = Path("dropped.flight");
  std::vector<std::string> arguments = TraceArguments("vllm");
  arguments.insert(arguments.end(), {"--drop-rate", "1", "--record", flight});
  Outcome outcome = RunTo(0, arguments);
  EXPECT_THAT(outcome.out, ContainsRegex("recording bytes +[0-9,]+\n"));
  outcome = RunTo(2, {"check", flight});
  EXPECT_THAT(outcome.err, HasSubstr("nothing was checked: no valid row was read"));
  EXPECT_THAT(outcome.out, AllOf(ContainsRegex("rows valid as recorded +0\n"),
                                 ContainsRegex("    capacity +[1-9]"), Not(HasSubstr("is right"))));
}

TEST_F(Cli, CheckOfWhatIsNoFlightExitsWithTwo) {
  Outcome outcome = RunTo(2, {"check", "/nonexistent.flight"});
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent.flight"));
  outcome = RunTo(2, {"check", SmallTrace()});
  EXPECT_THAT(outcome.err, HasSubstr("not a flight"));
  const std::string empty = Path("empty.flight");
  Write(empty, "");
  EXPECT_EQ(Run({"check", empty}).code, 2);
  EXPECT_EQ(Run({"check", "/"}).code, 2);
}

TEST_F(Cli, CheckOfADamagedFlightExitsWithTwoAndSaysWhere) {
  const std::string good = Slurp(SmallFlight());
  const std::string path = Path("damaged.flight");
  for (int i = 1; i <= 12; ++i) {
    std::string bad = good;
    const std::size_t at = good.size() * static_cast<std::size_t>(i) / 13;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    Write(path, bad);
    const Outcome outcome = RunTo(2, {"check", path});
    EXPECT_THAT(outcome.err, HasSubstr("damaged at byte"));
    EXPECT_EQ(outcome.out, "");
  }
  // Cut off: what is there is judged, and the cut is told.
  Write(path, good.substr(0, good.size() * 2 / 3));
  const Outcome outcome = RunTo(2, {"check", path});
  EXPECT_THAT(outcome.err, HasSubstr("it is cut off"));
  EXPECT_THAT(outcome.out, ContainsRegex("rows valid as recorded +[1-9]"));
}

// ---- a flight of an engine that forgets a Bind

TEST_F(Cli, CheckFindsAMissingBindAndAWrongKeyAndNamesBlockStepAndEvent) {
  const std::string path = Path("forgot.flight");
  StoreOptions options = TokenRowsOptions();
  options.block_tokens = 8;  // two pages
  options.audit = false;     // so that the recorded reads are wrong, and the store did not know
  auto writer = FlightWriter::Open(path, FlightInfo::Of(options)).value();
  options.flight = writer->sink();
  {
    auto store = RoutingStore::Create(options).value();
    LandTokens(
        *store, 70,
        {Event::Bind(BlockId(5)), Event::Seal(BlockId(5), BlockKey::FromInteger(1), StepId(70))},
        {40, 41, 42, 43, 44, 45, 46, 47}, {1, 2, 3, 4, 5, 6, 7, 8});
    LandTokens(*store, 71, {Event::Release(BlockId(5))}, {}, {});
    LandTokens(*store, 72, {}, {40, 41, 44}, {11, 12, 15});  // without Bind(block 5)
    const auto key = BlockKey::FromInteger(2);               // of two blocks that one step writes
    LandTokens(*store, 73,
               {Event::Bind(BlockId(1)), Event::Bind(BlockId(2)),
                Event::Seal(BlockId(1), key, StepId(73)), Event::Seal(BlockId(2), key, StepId(73))},
               {8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23},
               {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
    const std::vector<BlockId> blocks = {BlockId(5)};
    auto snapshot = store->TakeSnapshot(blocks, 0, 2);
    ASSERT_TRUE(snapshot.ok() && snapshot->ReadRows().ok());
  }
  ASSERT_TRUE(writer->Close().ok());

  const Outcome outcome = RunTo(1, {"check", path});
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("finding: block 5, step 72: Bind(block 5) is missing at one of the "
                              "steps 71 to 72, a key is wrong, or rows were written to wrong slots "
                              "or in another order than the batch: "),
                    HasSubstr("finding: block 2, step 73: Bind(block 2) is missing at step 73 or "
                              "before, a key is wrong")));
  const Json json = RunJson({"check", path}, 1);
  EXPECT_EQ(json["right"], false);
  ASSERT_EQ(json["findings"].size(), 2u);  // one for a block, not for a page
  EXPECT_EQ(json["findings"][0]["block"], 5);
  EXPECT_EQ(json["findings"][0]["step"], 72);
  EXPECT_EQ(json["findings"][0]["after_step"], 70);
  EXPECT_EQ(json["findings"][0]["event"], "Bind(block 5)");
}

TEST_F(Cli, DemoProvesEveryRow) {
  Outcome outcome = RunTo(0, {"demo", "--groups", "1", "--samples", "2", "--turns", "2"});
  EXPECT_THAT(outcome.out, AllOf(ContainsRegex("requests +4\n"), ContainsRegex("  wrong +0\n"),
                                 HasSubstr("rows are the same.")));
  outcome = RunTo(2, {"demo", "--groups", "1", "--blocks", "10"});
  EXPECT_THAT(outcome.err, HasSubstr("--blocks must be at least"));
}

}  // namespace
}  // namespace waymark
