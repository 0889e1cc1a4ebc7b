// The engine's thread beside the store's own: BeginStep and Submit while a landing thread runs, and
// how late that thread is. `waymark bench` measures both calls without one.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

// `apart`: steps some milliseconds apart, as in an engine, so that the landing thread sleeps
// between them and is woken by Submit.
template <class Steps>
void StepBesideThread(benchmark::State& state, std::int64_t rows_of_step,
                      std::chrono::milliseconds apart, Steps steps) {
  FilledStore& store = SharedStore(16, Landing::kThread);
  BenchRows rows(rows_of_step);
  Times times(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    const StepBatch batch = steps.Next();
    std::this_thread::sleep_for(apart);
    const double engine = store.Run(batch, &rows.layer_major);
    store.Settle();
    times.Add(engine);
    state.SetIterationTime(engine / 1e9);
  }
  Report(state, times);
}

void DecodeStep(benchmark::State& state, Blocks blocks, int milliseconds_apart) {
  StepBesideThread(state, kDecodeRows, std::chrono::milliseconds(milliseconds_apart),
                   DecodeSteps(SharedStore(16, Landing::kThread), blocks));
}

void PrefillStep(benchmark::State& state) {
  StepBesideThread(state, kPrefillRows, std::chrono::milliseconds(0),
                   PrefillSteps(SharedStore(16, Landing::kThread)));
}

// How late the landing thread is: steps 2 ms apart, beside `range(0)` threads that do nothing but
// use a core each.
void Lag(benchmark::State& state) {
  FilledStore store(kPrefillRows, 16, Landing::kThread);
  DecodeSteps steps(store, Blocks::kSame);
  BenchRows rows(kDecodeRows);
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    others.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
      }
    });
  }
  std::int64_t dropped = 0;
  for (auto _ : state) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const StepBatch batch = steps.Next();
    if (store.store().BeginStep(batch).ok()) {
      rows.layer_major.Submitted();
      Demand(store.store().Submit(StepId(batch.step), &rows.layer_major).ok(), "no step ended");
    } else {
      ++dropped;
    }
  }
  store.Settle();
  stop.store(true);
  for (std::thread& other : others)
    other.join();
  const Stats stats = store.store().GetStats();
  const auto micros = [](const LatencyHistogram& lag, double part) {
    return static_cast<double>(lag.Quantile(part)) / 1000;
  };
  state.counters["applied_p50_us"] = micros(stats.log_lag, 0.5);
  state.counters["applied_p99_us"] = micros(stats.log_lag, 0.99);
  state.counters["landed_p50_us"] = micros(stats.landing_lag, 0.5);
  state.counters["landed_p99_us"] = micros(stats.landing_lag, 0.99);
  state.counters["dropped"] = static_cast<double>(dropped);
}

WAYMARK_BENCH(thread_warm, DecodeStep, 4000, Blocks::kSame, 0);
WAYMARK_BENCH(thread_apart, DecodeStep, 400, Blocks::kSame, 2);
BENCHMARK(Lag)->Arg(0)->Arg(2)->Iterations(2000);
// The store's own pages turn over from here on.
WAYMARK_BENCH(thread_turnover, DecodeStep, 4000, Blocks::kTurnover, 0);
BENCHMARK(PrefillStep)->UseManualTime()->Iterations(200);

}  // namespace
}  // namespace waymark::bench
