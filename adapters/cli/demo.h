// The demo: rollouts on the embedded engine, and the proof that every row is right. `waymark demo`
// and the program waymark_demo run it.
#ifndef WAYMARK_ADAPTERS_CLI_DEMO_H_
#define WAYMARK_ADAPTERS_CLI_DEMO_H_

#include <array>
#include <cstdint>
#include <numeric>

#include "absl/status/statusor.h"
#include "adapters/reference/engine.h"
#include "blockstore/row_info.h"
#include "blockstore/store/stats.h"

namespace waymark::cli {

inline constexpr int kDemoBlockTokens = 16;

struct DemoOptions {
  int groups = 8;     // of samples that share a prompt
  int samples = 4;    // in each group
  int turns = 3;      // of each conversation
  uint64_t seed = 1;  // of the weights and of the sampling
  int blocks = 448;   // KV blocks of kDemoBlockTokens tokens
};

// What came of it. Rows: of all finished requests, each turn for itself.
struct DemoResult {
  uint64_t requests = 0;
  uint64_t tokens = 0;
  uint64_t rows = 0;         // tokens - 1 per request
  uint64_t rows_reused = 0;  // of them: found in the cache when the request came
  uint64_t rows_wrong = 0;
  uint64_t rows_unexplained = 0;
  std::array<uint64_t, kNumReasons> missing{};
  uint64_t row_bytes = 0;  // the rows that are new in each turn, as the store keeps them
  double rollout_seconds = 0;
  double check_seconds = 0;
  int threads = 1;
  reference::EngineStats engine;
  Stats store;

  uint64_t rows_missing() const {
    return std::accumulate(missing.begin(), missing.end(), uint64_t{0});
  }
  // No row is wrong, and none is missing without an explanation.
  bool proved() const { return rows_wrong + rows_unexplained == 0; }
};

// Groups of samples share a prompt and go on for several turns; the routes of all their tokens are
// captured, then every finished sequence is computed again from scratch and compared row by row.
// Fails for options with fewer blocks than the longest conversation needs.
[[nodiscard]] absl::StatusOr<DemoResult> RunDemo(const DemoOptions& options);

// The result as a table, on stdout.
void PrintDemo(const DemoOptions& options, const DemoResult& result);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_DEMO_H_
