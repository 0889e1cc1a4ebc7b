// The engine's thread: BeginStep and Submit of decode and prefill steps, events, CoveredPrefix.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

void DecodeStep(benchmark::State& state, Landing landing, Blocks blocks, Caches caches) {
  FilledStore& store = SharedStore(16, landing);
  DecodeSteps steps(store, blocks);
  BenchRows rows(kDecodeRows);
  CacheWalk& walk = SharedWalk();
  const auto iterations = static_cast<std::size_t>(state.max_iterations);
  Times times(iterations);
  Times landed(iterations);
  std::size_t events = 0;
  // The first steps of a run still meet the blocks of the one before.
  int warm_up = caches == Caches::kCold ? 2 : 64;
  const auto one = [&] {
    walk.Make(caches);
    const StepBatch batch = steps.Next();
    events = batch.num_events;
    const double engine = store.Run(batch, &rows.layer_major);
    const double landing_time = Time([&] { store.Settle(); });
    if (warm_up > 0) return engine;
    times.Add(engine);
    landed.Add(engine + landing_time);
    return engine;
  };
  for (; warm_up > 0; --warm_up)
    (void)one();
  for (auto _ : state)
    state.SetIterationTime(one() / 1e9);
  Report(state, times);
  state.counters["until_landed_us"] = landed.Micros(0.5);
  state.counters["until_landed_p10_us"] = landed.Micros(0.1);
  state.counters["events"] = static_cast<double>(events);
  if (caches == Caches::kCold) {
    (void)walk.Probe();
    walk.Make(caches);
    state.counters["cold_load_ns"] = walk.Probe();
  }
}

// As it runs in an engine: steps some milliseconds apart, so that the landing thread sleeps between
// them and is woken by Submit.
void DecodeStepApart(benchmark::State& state) {
  FilledStore& store = SharedStore(16, Landing::kThread);
  DecodeSteps steps(store, Blocks::kSame);
  BenchRows rows(kDecodeRows);
  Times times(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    const StepBatch batch = steps.Next();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const double engine = store.Run(batch, &rows.layer_major);
    store.Settle();
    times.Add(engine);
    state.SetIterationTime(engine / 1e9);
  }
  Report(state, times);
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

void PrefillStep(benchmark::State& state, Landing landing) {
  FilledStore& store = SharedStore(16, landing);
  PrefillSteps steps(store);
  BenchRows rows(kPrefillRows);
  Times times(static_cast<std::size_t>(state.max_iterations));
  Times landed(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    const double engine = store.Run(steps.Next(), &rows.layer_major);
    const double rest = Time([&] { store.Settle(); });
    times.Add(engine);
    landed.Add(engine + rest);
    state.SetIterationTime(engine / 1e9);
  }
  Report(state, times);
  state.counters["until_landed_us"] = landed.Micros(0.5);
  state.counters["until_landed_p10_us"] = landed.Micros(0.1);
  state.counters["rows_per_s"] = kPrefillRows / (times.Micros(0.5) * 1e-6);
}

// A step without rows: 1024 events of the given kind, on random blocks.
enum class Kind { kRetainRelease, kBind, kBindSeal, kTruncate, kFork };

void Events(benchmark::State& state, Kind kind) {
  FilledStore& store = SharedStore(16, Landing::kCaller);
  constexpr std::size_t kEvents = 1024;
  std::vector<Event> events;
  Times times(static_cast<std::size_t>(state.max_iterations));
  std::size_t next = 0;
  std::uint64_t key = std::uint64_t{1} << 50;
  const auto block = [&] {
    next = (next + 1) % store.shuffled().size();
    return store.shuffled()[next];
  };
  for (auto _ : state) {
    const std::uint64_t step = store.NextStep();
    events.clear();
    while (events.size() < kEvents) {
      const BlockId one = block();
      switch (kind) {
        case Kind::kRetainRelease:
          events.push_back(Event::Retain(one));
          events.push_back(Event::Release(one));
          break;
        case Kind::kBind:
          events.push_back(Event::Bind(one));
          break;
        case Kind::kBindSeal:
          events.push_back(Event::Bind(one));
          events.push_back(Event::Seal(one, BlockKey::FromInteger(++key), StepId(step)));
          break;
        case Kind::kTruncate:
          events.push_back(Event::Truncate(one, 15, StepId(step - 1)));
          break;
        case Kind::kFork:
          events.push_back(Event::Copy(one, block()));
          break;
      }
    }
    const double engine = store.Run({step, 1, events.data(), events.size(), nullptr, 0}, nullptr);
    store.Settle();
    times.Add(engine);
    state.SetIterationTime(engine / 1e9);
  }
  Report(state, times);
  state.counters["ns_per_event"] = times.Micros(0.5) * 1000 / kEvents;
}

// How much of a prompt of `rows` rows has routing.
void CoveredPrefix(benchmark::State& state, Caches caches) {
  FilledStore& store = SharedStore(16, Landing::kThread);
  CacheWalk& walk = SharedWalk();
  const std::int64_t rows = state.range(0);
  const auto blocks = store.shuffled().first(static_cast<std::size_t>(rows / 16));
  Times times(static_cast<std::size_t>(state.max_iterations));
  std::int64_t covered = 0;
  for (auto _ : state) {
    walk.Make(caches);
    const double nanoseconds = Time([&] { covered = store.store().CoveredPrefix(blocks, rows); });
    times.Add(nanoseconds);
    state.SetIterationTime(nanoseconds / 1e9);
  }
  Demand(covered > 0, "nothing is covered");
  Report(state, times);
  state.counters["rows"] = static_cast<double>(covered);
}

constexpr int kMany = 4000;
constexpr int kFew = 40;  // cold caches: each walk takes long

// Records are appended in the timed calls and applied outside them.
WAYMARK_BENCH(warm, DecodeStep, kMany, Landing::kManual, Blocks::kSame, Caches::kWarm);
WAYMARK_BENCH(other_blocks, DecodeStep, kMany, Landing::kManual, Blocks::kOthers, Caches::kWarm);
WAYMARK_BENCH(cold_own, DecodeStep, 400, Landing::kManual, Blocks::kOthers, Caches::kColdOwn);
WAYMARK_BENCH(cold, DecodeStep, kFew, Landing::kManual, Blocks::kOthers, Caches::kCold);
// Each call applies its records.
WAYMARK_BENCH(caller_warm, DecodeStep, kMany, Landing::kCaller, Blocks::kSame, Caches::kWarm);
WAYMARK_BENCH(caller_cold_own, DecodeStep, 400, Landing::kCaller, Blocks::kOthers,
              Caches::kColdOwn);
WAYMARK_BENCH(thread_warm, DecodeStep, kMany, Landing::kThread, Blocks::kSame, Caches::kWarm);
WAYMARK_BENCH(thread_others, DecodeStep, kMany, Landing::kThread, Blocks::kOthers, Caches::kWarm);
BENCHMARK(DecodeStepApart)->UseManualTime()->Iterations(400);
BENCHMARK(Lag)->Arg(0)->Arg(2)->Iterations(2000);
// The store's own pages turn over from here on.
WAYMARK_BENCH(turnover, DecodeStep, kMany, Landing::kManual, Blocks::kTurnover, Caches::kWarm);
WAYMARK_BENCH(turnover_cold, DecodeStep, kFew, Landing::kManual, Blocks::kTurnover, Caches::kCold);
WAYMARK_BENCH(thread_turnover, DecodeStep, kMany, Landing::kThread, Blocks::kTurnover,
              Caches::kWarm);
WAYMARK_BENCH(append, PrefillStep, 200, Landing::kManual);
WAYMARK_BENCH(caller, PrefillStep, 200, Landing::kCaller);
WAYMARK_BENCH(thread, PrefillStep, 200, Landing::kThread);
WAYMARK_BENCH(retain_release, Events, 400, Kind::kRetainRelease);
WAYMARK_BENCH(bind_seal, Events, 400, Kind::kBindSeal);
WAYMARK_BENCH(truncate, Events, 400, Kind::kTruncate);
WAYMARK_BENCH(bind, Events, 400, Kind::kBind);
WAYMARK_BENCH(fork, Events, 400, Kind::kFork);
WAYMARK_BENCH(warm, CoveredPrefix, 400, Caches::kWarm)->Arg(kLongRows)->Arg(1024);
WAYMARK_BENCH(cold, CoveredPrefix, kFew, Caches::kCold)->Arg(kLongRows);

}  // namespace
}  // namespace waymark::bench
