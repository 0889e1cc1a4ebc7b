#include "adapters/simulators/trace.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <utility>

#include "adapters/simulators/engine.h"

namespace waymark::sim {
namespace {

constexpr std::int64_t kTokensPerHash = 512;
constexpr std::int32_t kMaxRunning = 256;

// The requests of a trace, in the order of the file. A prompt token is a function of its hash id
// and its position in the 512 tokens; generated tokens are unique to the request.
class TraceArrivals final : public Arrivals {
 public:
  explicit TraceArrivals(std::vector<TraceRequest> requests) : requests_(std::move(requests)) {}

  bool Next(Rng&, std::int64_t spare, Request& request) override {
    if (next_ == requests_.size()) return false;
    const TraceRequest& trace = requests_[next_++];
    request.known = trace.input_tokens;
    request.goal = trace.input_tokens + trace.output_tokens;
    request.stream.reserve(static_cast<std::size_t>(request.goal + spare));
    for (std::int64_t i = 0; i < trace.input_tokens; ++i) {
      const auto id =
          static_cast<std::uint64_t>(trace.hash_ids[static_cast<std::size_t>(i / kTokensPerHash)]);
      request.stream.push_back(id << 10 | static_cast<std::uint64_t>(i % kTokensPerHash));
    }
    for (std::int64_t i = trace.input_tokens; i < request.goal + spare; ++i) {
      request.stream.push_back(std::uint64_t{1} << 62 | static_cast<std::uint64_t>(next_) << 31 |
                               static_cast<std::uint64_t>(i));
    }
    return true;
  }

 private:
  std::vector<TraceRequest> requests_;
  std::size_t next_ = 0;
};

absl::Status CheckRange(const char* option, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  const auto number = [](double x) {
    const auto whole = static_cast<std::int64_t>(x);
    return static_cast<double>(whole) == x ? std::to_string(whole) : std::to_string(x);
  };
  return absl::InvalidArgumentError(std::string(option) + " must be in [" + number(low) + ", " +
                                    number(high) + "], is " + number(value));
}

EngineOptions EngineOptionsOf(const TraceOptions& options) {
  EngineOptions engine;
  engine.megatron = options.engine == EngineKind::kMegatron;
  engine.seed = options.seed;
  engine.block_tokens = options.block_tokens;
  // At most 64 rows per page, because the rows that a request leaves unfilled are wasted.
  engine.page_tokens = options.block_tokens;
  for (std::int32_t page = std::min(options.block_tokens, 64); page > 0; --page) {
    if (options.block_tokens % page == 0) {
      engine.page_tokens = page;
      break;
    }
  }
  if (engine.page_tokens < 16) engine.page_tokens = options.block_tokens;
  engine.blocks = static_cast<std::int32_t>(options.kv_tokens / options.block_tokens);
  engine.layers = options.layers;
  engine.top_k = options.top_k;
  engine.experts = options.experts;
  engine.max_running = kMaxRunning;
  engine.max_waiting = 16;
  engine.max_batched_tokens = options.max_batched_tokens;
  engine.spec_tokens = options.spec_tokens;
  engine.host_blocks = 0;
  engine.features.late = options.async;
  engine.features.preempt_one = options.preempt_rate;
  engine.features.drop_all = options.drop_rate;
  if (options.engine == EngineKind::kMegatron) engine.features.full_hit = 1;
  if (options.offload) {
    engine.features.swap = .5;
    engine.features.tier = .5;
    engine.host_blocks = engine.blocks;
    engine.tier_keys = 2 * engine.blocks;
  }
  engine.timing.land_at_once = true;
  engine.timing.behind = options.async ? 1 : 0;
  engine.max_steps_in_flight = 16;
  // With fewer layers the agreement of two rows is too random for the audit.
  engine.audit = options.layers >= 4;
  if (options.flight != nullptr) engine.flights = {options.flight};
  return engine;
}

LatencyQuantiles Quantiles(const LatencyHistogram& histogram) {
  return {static_cast<double>(histogram.Quantile(.5)) / 1000,
          static_cast<double>(histogram.Quantile(.99)) / 1000};
}

TraceResult ResultOf(const Engine& engine, double seconds) {
  TraceResult result;
  const CheckCounts& checks = engine.checks();
  const EngineCounts& counts = engine.counts();
  const Stats stats = engine.StoreStats(0);
  result.requests_finished = checks.requests;
  result.requests_skipped = counts.requests_skipped;
  result.rows_checked = checks.rows;
  result.rows_wrong = checks.wrong;
  result.rows_unexplained = checks.unexplained;
  result.rows_missing = checks.missing;
  result.rows_kept = checks.kept;
  result.rows_by_key = checks.by_key;
  result.prefix_hit_tokens = counts.prefix_hit_tokens;
  result.computed_tokens = counts.computed_tokens;
  result.preemptions = counts.preemptions;
  result.evictions = counts.evictions;
  result.page_evictions = static_cast<std::int64_t>(stats.evictions);
  result.steps = counts.steps;
  result.steps_dropped = counts.steps_dropped;
  result.step_us = Quantiles(counts.step);
  result.land_us = Quantiles(counts.land);
  result.snapshot_us = Quantiles(counts.snapshot);
  result.store_bytes_peak = static_cast<std::int64_t>(stats.bytes_touched_peak);
  result.store_bytes_reserved = static_cast<std::int64_t>(stats.bytes);
  result.seconds = seconds;
  result.findings = checks.findings;
  return result;
}

}  // namespace

std::int64_t TraceResult::rows_missing_total() const {
  return std::accumulate(rows_missing.begin(), rows_missing.end(), std::int64_t{0});
}

absl::Status ValidateTraceOptions(const TraceOptions& options) {
  absl::Status status = CheckRange("requests", static_cast<double>(options.requests), 0, 1e12);
  if (status.ok()) status = CheckRange("block-tokens", options.block_tokens, 1, 4096);
  if (status.ok()) {
    status = CheckRange("kv-tokens", static_cast<double>(options.kv_tokens),
                        2.0 * options.block_tokens, double{1 << 30});
  }
  if (status.ok()) status = CheckRange("spec-tokens", options.spec_tokens, 0, 16);
  if (status.ok()) {
    status = CheckRange("max-batched-tokens", options.max_batched_tokens, 1 + options.spec_tokens,
                        1 << 20);
  }
  if (status.ok()) status = CheckRange("layers", options.layers, 1, 1024);
  if (status.ok()) status = CheckRange("experts", options.experts, 1, 65535);
  if (status.ok()) {
    status = CheckRange("top-k", options.top_k, 1, std::min(64, options.experts));
  }
  if (status.ok()) status = CheckRange("preempt-rate", options.preempt_rate, 0, 1);
  if (status.ok()) status = CheckRange("drop-rate", options.drop_rate, 0, 1);
  return status;
}

StoreOptions TraceStoreOptions(const TraceOptions& options) {
  return StoreOptionsOf(EngineOptionsOf(options), 0);
}

absl::StatusOr<TraceResult> RunTrace(const TraceOptions& options) {
  const absl::Status valid = ValidateTraceOptions(options);
  if (!valid.ok()) return valid;
  absl::StatusOr<std::vector<TraceRequest>> requests =
      ReadTraceFile(options.file, options.requests);
  if (!requests.ok()) return requests.status();
  const auto total = static_cast<std::int64_t>(requests->size());
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(
      EngineOptionsOf(options), std::make_unique<TraceArrivals>(*std::move(requests)));
  if (!engine.ok()) return engine.status();

  const auto start = std::chrono::steady_clock::now();
  auto told = start;
  const auto seconds = [&start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto tell = [&] {
    if (!options.progress) return;
    const CheckCounts& checks = (*engine)->checks();
    options.progress({checks.requests + (*engine)->counts().requests_skipped, total, checks.rows,
                      checks.wrong, (*engine)->counts().steps, seconds()});
  };
  while (!(*engine)->Idle()) {
    (*engine)->Step();
    const auto now = std::chrono::steady_clock::now();
    if (now - told < std::chrono::milliseconds(500)) continue;
    told = now;
    tell();
  }
  (*engine)->Finish();
  tell();
  return ResultOf(**engine, seconds());
}

}  // namespace waymark::sim
