// What the programs of this folder add to adapters/bench/: stores and a cache walk that several
// benchmarks of a process share, and counters.
#ifndef WAYMARK_TESTS_BENCH_BENCH_COMMON_H_
#define WAYMARK_TESTS_BENCH_BENCH_COMMON_H_

#include <benchmark/benchmark.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "adapters/bench/measure.h"
#include "adapters/bench/workload.h"

namespace waymark::bench {

// One store for all benchmarks of this page size and kind, made when first asked for.
inline FilledStore& SharedStore(std::int32_t page_tokens, Landing landing) {
  static std::map<std::pair<std::int32_t, Landing>, std::unique_ptr<FilledStore>> stores;
  std::unique_ptr<FilledStore>& store = stores[{page_tokens, landing}];
  if (store == nullptr) store = std::make_unique<FilledStore>(kStoreRows, page_tokens, landing);
  return *store;
}

inline CacheWalk& SharedWalk() {
  static CacheWalk walk;
  return walk;
}

// Lower decile, median and tail of `times` as counters p10_us, p50_us and p99_us.
inline void Report(benchmark::State& state, const Times& times) {
  state.counters["p10_us"] = times.Micros(0.1);
  state.counters["p50_us"] = times.Micros(0.5);
  state.counters["p99_us"] = times.Micros(0.99);
}

}  // namespace waymark::bench

// Registers function(state, ...) as function/name; it sets the time of each of `count` iterations.
#define WAYMARK_BENCH(name, function, count, ...) \
  BENCHMARK_CAPTURE(function, name, __VA_ARGS__)->UseManualTime()->Iterations(count)

#endif  // WAYMARK_TESTS_BENCH_BENCH_COMMON_H_
