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

namespace waymark {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

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
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return path;
  }
};

TEST_F(Cli, HelpAndVersion) {
  Outcome outcome = Run({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("waymark "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("unknown")));
  outcome = Run({"--help"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("demo"), HasSubstr("trace"), HasSubstr("check"),
                    HasSubstr("selftest"), HasSubstr("inspect"), HasSubstr("diff"),
                    HasSubstr("convert"), HasSubstr("bench"), HasSubstr("Exit codes")));
  for (const char* command :
       {"demo", "trace", "check", "inspect", "diff", "convert", "selftest", "bench"}) {
    outcome = Run({command, "--help"});
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_THAT(outcome.out, HasSubstr("Usage")) << command;
  }
}

TEST_F(Cli, EveryUsageErrorExitsWithTwo) {
  const std::string trace = SmallTrace();
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "subcommand"},
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
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 2) << word;
    EXPECT_THAT(outcome.err, HasSubstr(word));
    EXPECT_EQ(outcome.out, "") << word;
  }
}

TEST_F(Cli, ImpossibleOptionsOfTraceExitWithTwoAndNameTheOption) {
  const std::string trace = SmallTrace();
  const std::vector<std::pair<std::string, std::string>> options = {
      {"--layers", "0"},
      {"--top-k", "0"},
      {"--top-k", "65"},
      {"--experts", "0"},
      {"--experts", "100000"},
      {"--block-tokens", "0"},
      {"--block-tokens", "-16"},
      {"--kv-tokens", "0"},
      {"--kv-tokens", "-1"},
      {"--requests", "-1"},
      {"--spec-tokens", "-1"},
      {"--spec-tokens", "1000"},
      {"--preempt-rate", "1.5"},
      {"--preempt-rate", "-0.1"},
      {"--preempt-rate", "nan"},
      {"--drop-rate", "2"},
      {"--max-batched-tokens", "0"},
  };
  for (const auto& [option, value] : options) {
    const Outcome outcome =
        Run({"trace", trace, "--engine", "vllm", "--requests", "1", option + "=" + value});
    EXPECT_EQ(outcome.code, 2) << option << " " << value << ": " << outcome.out;
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
  Outcome outcome = Run({"trace", "/nonexistent.jsonl", "--engine", "vllm"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent.jsonl"));
  for (const char* line :
       {"hello", "[1, 2]", "{\"timestamp\": 0}",
        "{\"timestamp\": 0, \"input_length\": -5, \"output_length\": 1, \"hash_ids\": []}",
        "{\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 1, \"hash_ids\": [1]}",
        "{\"timestamp\": 0, \"input_length\": 10, \"output_length\": 1, \"hash_ids\": [\"a\"]}",
        "{\"timestamp\": 0, \"input_length\": 10, \"output_length\": 1, \"hash_ids\": [1]"}) {
    const std::string path = Path("bad.jsonl");
    Write(path, std::string(line) + "\n");
    const std::string record = Path("never.flight");
    outcome = Run({"trace", path, "--engine", "megatron", "--record", record});
    EXPECT_EQ(outcome.code, 2) << line;
    EXPECT_THAT(outcome.err, HasSubstr("line 1")) << line;
    EXPECT_EQ(outcome.out, "") << line;
    EXPECT_NE(access(record.c_str(), F_OK), 0) << "a recording was begun for: " << line;
  }
  outcome = Run({"trace", SmallTrace(), "--engine", "vllm", "--record", "/nonexistent/x.flight"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/x.flight"));
}

TEST_F(Cli, TraceGivesOneJsonObjectWithEverythingPromised) {
  for (const char* engine : {"vllm", "megatron"}) {
    std::vector<std::string> arguments = TraceArguments(engine);
    arguments.push_back("--json");
    const Outcome outcome = Run(arguments);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
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
  const Outcome outcome = Run(TraceArguments("vllm"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("requests finished"), HasSubstr("wrong"),
                                 HasSubstr("No row is wrong")));
}

TEST_F(Cli, CheckOfAGoodFlight) {
  const std::string flight = SmallFlight();
  Outcome outcome = Run({"check", flight});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("Every read was right"));
  outcome = Run({"check", flight, "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << outcome.out;
  EXPECT_EQ(json["right"], true);
  EXPECT_GT(json["rows_read"], 3000);
  EXPECT_EQ(json["rows_right"], json["rows_read"]);
}

TEST_F(Cli, CheckOfWhatIsNoFlightExitsWithTwo) {
  Outcome outcome = Run({"check", "/nonexistent.flight"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent.flight"));
  outcome = Run({"check", SmallTrace()});
  EXPECT_EQ(outcome.code, 2);
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
    const Outcome outcome = Run({"check", path});
    EXPECT_EQ(outcome.code, 2) << at;
    EXPECT_THAT(outcome.err, HasSubstr("damaged at byte"));
    EXPECT_EQ(outcome.out, "");
  }
  // Cut off: what is there is judged, and the cut is told.
  Write(path, good.substr(0, good.size() * 2 / 3));
  const Outcome outcome = Run({"check", path});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("cut off"));
}

// ---- a flight of an engine that forgets a Bind

// Rows of one token each, far from each other.
class TokenRows final : public StepRows {
 public:
  TokenRows(const RoutingShape& shape, std::vector<std::uint32_t> tokens)
      : shape_(shape), tokens_(std::move(tokens)) {}
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      verdicts[i] = Reason::kNone;
      for (int layer = 0; layer < shape_.num_layers; ++layer) {
        const std::uint32_t start =
            (tokens_[first + i] * 2654435761u + static_cast<std::uint32_t>(layer) * 40503u) >> 11;
        for (int k = 0; k < shape_.top_k; ++k) {
          destinations[i][layer * shape_.top_k + k] =
              static_cast<std::uint8_t>((start + static_cast<std::uint32_t>(k)) % 64);
        }
      }
    }
  }
  void Done() override {}

 private:
  const RoutingShape shape_;
  const std::vector<std::uint32_t> tokens_;
};

TEST_F(Cli, CheckIndictsAMissingBindAndNamesBlockStepAndEvent) {
  const std::string path = Path("forgot.flight");
  StoreOptions options;
  options.shape = {
      .num_layers = 6, .top_k = 4, .num_experts = 64, .page_tokens = 4, .layer_ids = {}};
  options.num_blocks = 8;
  options.landing = Landing::kCaller;
  options.audit = false;  // so that the recorded reads are wrong, and the store did not know
  auto writer = FlightWriter::Open(path, FlightInfo::Of(options));
  ASSERT_TRUE(writer.ok()) << writer.status();
  options.flight = (*writer)->sink();
  {
    auto store = RoutingStore::Create(options);
    ASSERT_TRUE(store.ok()) << store.status();
    const auto step = [&](std::uint64_t number, std::vector<Event> events,
                          std::vector<std::int64_t> slots, std::vector<std::uint32_t> tokens) {
      TokenRows step_rows(options.shape, std::move(tokens));
      ASSERT_TRUE(
          (*store)
              ->BeginStep({number, 1, events.data(), events.size(), slots.data(), slots.size()})
              .ok());
      ASSERT_TRUE((*store)->Submit(StepId(number), &step_rows).ok());
      ASSERT_TRUE((*store)->Land(StepId(number)));
    };
    step(70,
         {Event::Bind(BlockId(5)), Event::Seal(BlockId(5), BlockKey::FromInteger(1), StepId(70))},
         {20, 21, 22, 23}, {1, 2, 3, 4});
    step(71, {Event::Release(BlockId(5))}, {}, {});
    step(72, {}, {20, 21}, {11, 12});  // without Bind(block 5)
    const std::vector<BlockId> blocks = {BlockId(5)};
    auto snapshot = (*store)->TakeSnapshot(blocks, 0, 2);
    ASSERT_TRUE(snapshot.ok() && snapshot->ReadRows().ok());
  }
  ASSERT_TRUE((*writer)->Close().ok());

  Outcome outcome = Run({"check", path});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("missed event: block 5, step 72: Bind(block 5) is missing"));
  outcome = Run({"check", path, "--json"});
  EXPECT_EQ(outcome.code, 1);
  const Json json = Json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << outcome.out;
  EXPECT_EQ(json["right"], false);
  ASSERT_EQ(json["missed_events"].size(), 1u);
  EXPECT_EQ(json["missed_events"][0]["block"], 5);
  EXPECT_EQ(json["missed_events"][0]["step"], 72);
  EXPECT_EQ(json["missed_events"][0]["after_step"], 70);
  EXPECT_EQ(json["missed_events"][0]["event"], "Bind(block 5)");
}

TEST_F(Cli, DemoProvesEveryRow) {
  Outcome outcome = Run({"demo", "--groups", "1", "--samples", "2", "--turns", "2"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(ContainsRegex("requests +4\n"), ContainsRegex("  wrong +0\n"),
                                 HasSubstr("rows are the same.")));
  outcome = Run({"demo", "--groups", "1", "--blocks", "10"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--blocks must be at least"));
}

TEST_F(Cli, SelftestNamesTheSilentLayer) {
  Outcome outcome = Run({"selftest"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("all 5 layers captured"),
                    HasSubstr("layer 2 (model layer 3, layers.3.moe.router): silent in "
                              "32 of 32 rows")));
  outcome = Run({"selftest", "--silent-layer", "4"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\nlayer 4 ("));
}

}  // namespace
}  // namespace waymark
