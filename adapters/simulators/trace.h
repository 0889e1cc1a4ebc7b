// RunTrace: schedules a real block trace through an engine simulator with a real store, and checks
// every row.
//
// The file is JSON lines of {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids":
// [...]}. Each hash id stands for 512 prompt tokens; equal ids stand for equal tokens. Requests
// queue in the order of the file, timestamps are ignored, at most 256 requests run at once. Every
// request that finishes is read from the store and compared row by row with the oracle
// (adapters/simulators/oracle.h). checker.h defines wrong, missing and unexplained rows.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_TRACE_H_
#define WAYMARK_ADAPTERS_SIMULATORS_TRACE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/row_info.h"
#include "blockstore/store/flight_sink.h"
#include "blockstore/store/store.h"

namespace waymark::sim {

enum class EngineKind : std::uint8_t { kVllm, kMegatron };

// One request of a trace file.
struct TraceRequest {
  std::int64_t input_tokens = 0;       // >= 1
  std::int64_t output_tokens = 0;      // >= 1
  std::vector<std::int64_t> hash_ids;  // ceil(input_tokens / 512) of them
};

// Reads the first `limit` requests of the file at `path` (0 = all). NotFound if it cannot be
// opened; InvalidArgument naming line number, field, rule and value if it is not such a file.
[[nodiscard]] absl::StatusOr<std::vector<TraceRequest>> ReadTraceFile(const std::string& path,
                                                                      std::int64_t limit);
// Reads the same from a stream, which errors call `name`. Any bytes are safe.
[[nodiscard]] absl::StatusOr<std::vector<TraceRequest>> ReadTrace(std::istream& in,
                                                                  const std::string& name,
                                                                  std::int64_t limit);

// The progress of a run; see TraceOptions::progress.
struct TraceProgress {
  std::int64_t requests_done = 0;  // finished or skipped
  std::int64_t requests_total = 0;
  std::int64_t rows_checked = 0;
  std::int64_t rows_wrong = 0;
  std::int64_t steps = 0;
  double seconds = 0;
};

struct TraceOptions {
  std::string file;
  EngineKind engine = EngineKind::kVllm;
  std::int64_t requests = 0;               // only this many, from the first; 0 = all
  std::int64_t kv_tokens = 1048576;        // size of the KV pool; at least 2 blocks
  std::int32_t block_tokens = 16;          // 1 ... 4096
  std::int32_t max_batched_tokens = 8192;  // tokens of one step; >= 1 + spec_tokens
  std::int32_t layers = 58;
  std::int32_t top_k = 8;
  std::int32_t experts = 256;
  std::int32_t spec_tokens = 0;  // drafts per decode step; 0 ... 16; 60 % of them are right
  bool async = false;            // results (and so rejections, finishes) are seen a step late
  double preempt_rate = 0;       // probability per step that one running request is preempted
  double drop_rate = 0;          // probability per step that its rows are dropped
  bool offload = false;          // evicted blocks go to host tiers: by block id, and by key
  std::uint64_t seed = 1;        // of all random numbers
  // Records the run; must be made for TraceStoreOptions of these options. Null = none. Not owned.
  FlightSink* flight = nullptr;
  // Called about twice per second on the calling thread; may be empty.
  std::function<void(const TraceProgress&)> progress;
};

struct LatencyQuantiles {
  double p50 = 0;  // microseconds
  double p99 = 0;
};

struct TraceResult {
  std::int64_t requests_finished = 0;
  std::int64_t requests_skipped = 0;  // requests that could never fit the pool
  std::int64_t rows_checked = 0;
  std::int64_t rows_wrong = 0;
  std::int64_t rows_unexplained = 0;  // missing, although the engine did not destroy the row
  std::array<std::int64_t, kNumReasons> rows_missing{};  // explained or not, by reason
  std::int64_t rows_kept = 0;                            // valid, a later write was ignored
  std::int64_t rows_by_key = 0;                          // valid, attached through the key index
  std::int64_t prefix_hit_tokens = 0;
  std::int64_t computed_tokens = 0;  // rows that ran through a forward, drafts included
  std::int64_t preemptions = 0;
  std::int64_t evictions = 0;       // cached KV blocks that the engine evicted
  std::int64_t page_evictions = 0;  // pages that the store evicted
  std::int64_t steps = 0;
  std::int64_t steps_dropped = 0;
  LatencyQuantiles step_us;      // BeginStep + Submit of one step and its message, engine's thread
  LatencyQuantiles land_us;      // landing of one step, the oracle's computing of ids included
  LatencyQuantiles snapshot_us;  // TakeSnapshot, or TakeTagged, of one request
  std::int64_t store_bytes_peak = 0;      // the most pages in use at one time, times their bytes
  std::int64_t store_bytes_reserved = 0;  // pages, stamps and tables
  double seconds = 0;
  std::vector<std::string> findings;  // the first wrong or unexplained rows, one line each

  [[nodiscard]] std::int64_t rows_missing_total() const;
  // Whether no row was wrong or unexplained.
  [[nodiscard]] bool clean() const { return rows_wrong == 0 && rows_unexplained == 0; }
};

// InvalidArgument naming the option, the rule and the value, unless every option is in the range
// above.
[[nodiscard]] absl::Status ValidateTraceOptions(const TraceOptions& options);
// The options of the store that RunTrace makes, `flight` included. A recorder must be made for
// these. REQUIRES: valid options.
[[nodiscard]] StoreOptions TraceStoreOptions(const TraceOptions& options);
// Runs the whole trace. Errors: those of ValidateTraceOptions, ReadTraceFile and
// RoutingStore::Create. Wrong or unexplained rows are a result, not an error.
[[nodiscard]] absl::StatusOr<TraceResult> RunTrace(const TraceOptions& options);

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_TRACE_H_
