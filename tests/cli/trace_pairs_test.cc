// `waymark trace` with every pair of the options that change what the engine does, on both engines:
// no row is wrong, and only rows of dropped steps and of offloaded blocks are missing. A trace with
// `--async --spec-tokens 2` once had rows that were wrong or missing, though each option alone was
// right.
//
// On a trace that is generated here, and on a part of the real one where WAYMARK_DATA names it.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/tool_test.h"
#include "tests/support/sanitizers.h"

namespace waymark {
namespace {

using Json = nlohmann::json;

struct TraceOption {
  std::string flag;
  std::string value;  // empty: a switch
};
// `tokens`: the size of a small KV pool for the trace.
std::vector<TraceOption> Options(std::int64_t tokens) {
  return {{"--async", ""},         {"--spec-tokens", "2"}, {"--preempt-rate", "0.05"},
          {"--drop-rate", "0.03"}, {"--offload", ""},      {"--kv-tokens", std::to_string(tokens)},
          {"--block-tokens", "32"}};
}

class TracePairs : public ToolTest, public testing::WithParamInterface<const char*> {
 protected:
  struct Trace {
    std::string file;
    std::int64_t requests;         // of its first ones
    std::int64_t small_kv_tokens;  // a pool in which few requests run; each of them fits
  };

  // Sessions of three turns, in turns: each prompt is the one before and 512 new tokens or more.
  // All begin with the same 512 tokens. Where a turn comes, most blocks of the one before have been
  // evicted.
  Trace Generated() {
    constexpr int kSessions = 24;
    std::string lines;
    for (int turn = 0; turn < 3; ++turn) {
      for (int session = 0; session < kSessions; ++session) {
        Json hashes = {1};
        for (int i = 0; i <= turn; ++i)
          hashes.push_back(100 * session + 2 + i);
        const Json request = {{"timestamp", turn * kSessions + session},
                              {"input_length", 512 * (turn + 1) + 1 + 37 * session % 512},
                              {"output_length", 20 + 11 * session % 50},
                              {"hash_ids", hashes}};
        lines += request.dump() + "\n";
      }
    }
    const std::string file = Path("sessions.jsonl");
    Write(file, lines);
    return {file, 0, 4096};
  }

  Json RunTrace(const Trace& trace, const std::vector<TraceOption>& options) {
    std::vector<std::string> arguments = {"trace",    trace.file,   "--engine",
                                          GetParam(), "--layers",   "4",
                                          "--top-k",  "4",          "--experts",
                                          "64",       "--requests", std::to_string(trace.requests)};
    // Without the option the pool is larger, and still too small for all requests.
    std::string pool = std::to_string(trace.small_kv_tokens * 3 / 2);
    for (const TraceOption& option : options) {
      if (option.flag == "--kv-tokens") {
        pool = option.value;
        continue;
      }
      arguments.push_back(option.flag);
      if (!option.value.empty()) arguments.push_back(option.value);
    }
    arguments.insert(arguments.end(), {"--kv-tokens", pool});
    return RunJson(arguments);
  }

  void RunPairs(const Trace& trace) {
    const std::vector<TraceOption> options = Options(trace.small_kv_tokens);
    for (std::size_t i = 0; i < options.size(); ++i) {
      for (std::size_t j = i + 1; j < options.size(); ++j) {
        const std::string pair = options[i].flag + " " + options[j].flag;
        SCOPED_TRACE(std::string(GetParam()) + " " + pair);
        const Json json = RunTrace(trace, {options[i], options[j]});
        if (HasFatalFailure() || json.empty()) continue;
        EXPECT_EQ(json["rows_wrong"], 0) << json["findings"];
        EXPECT_EQ(json["rows_unexplained"], 0) << json["findings"];
        EXPECT_EQ(json["requests_skipped"], 0);
        EXPECT_GT(json["rows_checked"], 10000);
        if (pair.find("--drop-rate") != std::string::npos) {
          EXPECT_GT(json["steps_dropped"], 0);
        } else if (pair.find("--offload") == std::string::npos) {
          for (const auto& [reason, rows] : json["rows_missing"].items())
            EXPECT_EQ(rows, 0) << reason;
        }
      }
    }
  }
};

TEST_P(TracePairs, OfAGeneratedTraceAreRight) {
  RunPairs(Generated());
}

TEST_P(TracePairs, OfAPartOfARealTraceAreRight) {
  const char* data = std::getenv("WAYMARK_DATA");
  if (data == nullptr) GTEST_SKIP() << "WAYMARK_DATA is not set";
  // The largest of these requests has 87,169 prompt tokens.
  RunPairs(
      {std::string(data) + "/mooncake_traces/conversation_trace.jsonl", PlainOr(40, 20), 100000});
}

// No option is accepted and then left out of what this engine does.
TEST_P(TracePairs, EachOptionChangesWhatTheEngineDoes) {
  const Trace trace = Generated();
  const auto counts = [&](const std::vector<TraceOption>& options) {
    const Json json = RunTrace(trace, options);
    std::vector<std::int64_t> values;
    for (const char* name : {"steps", "steps_dropped", "computed_tokens", "prefix_hit_tokens",
                             "preemptions", "evictions", "rows_by_key"}) {
      values.push_back(json.value(name, std::int64_t{-1}));
    }
    return values;
  };
  const std::vector<std::int64_t> plain = counts({});
  EXPECT_GT(plain[5], 0) << "no block was evicted";
  for (const TraceOption& option : Options(trace.small_kv_tokens))
    EXPECT_NE(counts({option}), plain) << option.flag;
}

INSTANTIATE_TEST_SUITE_P(Engines, TracePairs, testing::Values("vllm", "megatron"),
                         [](const auto& engine) { return std::string(engine.param); });

}  // namespace
}  // namespace waymark
