// The engine's thread: BeginStep and Submit of decode and prefill steps, events, CoveredPrefix.
#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

// Which blocks the steps use.
enum class Blocks {
  kSame,      // the same 256, step after step
  kOthers,    // 256 others every step
  kTurnover,  // requests at all offsets: of 256 blocks, 16 are sealed and 16 bound by every step
};

// Decode steps of 256 requests: row i of every step goes to the next slot of request i.
class DecodeSteps {
 public:
  explicit DecodeSteps(FilledStore& store) : store_(store), slots_(kDecodeRows) {}

  // Slots of the next step, all of it on the same 256 blocks.
  void SameBlocks() { Fill(0); }
  // 256 blocks that no step has had for a long time.
  void OtherBlocks() {
    group_ = (group_ + 1) % (store_.shuffled().size() / kDecodeRows);
    Fill(group_ * kDecodeRows);
  }
  // Requests are at all offsets: 16 of 256 are at the end of a block, which is sealed by this step,
  // and 16 at the beginning of one, which is bound by it.
  void Turnover() {
    events_.clear();
    if (current_.empty()) {
      const auto all = store_.shuffled();
      current_.assign(all.begin(), all.begin() + kDecodeRows);
      next_block_ = kDecodeRows;
    }
    const std::size_t page = static_cast<std::size_t>(store_.page_tokens());
    const std::uint64_t step = step_no_++;
    for (std::size_t i = 0; i < kDecodeRows; ++i) {
      const std::size_t offset = (step + i) % page;
      if (offset == 0) {
        current_[i] = store_.shuffled()[next_block_];
        next_block_ = (next_block_ + 1) % store_.shuffled().size();
        events_.push_back(Event::Bind(current_[i]));
      }
      slots_[i] = std::int64_t{current_[i].value()} * store_.page_tokens() +
                  static_cast<std::int64_t>(offset);
    }
  }
  [[nodiscard]] StepBatch Batch() {
    const std::uint64_t step = store_.NextStep();
    const std::size_t page = static_cast<std::size_t>(store_.page_tokens());
    if (!current_.empty()) {
      for (std::size_t i = 0; i < kDecodeRows; ++i) {
        if (static_cast<std::size_t>(slots_[i]) % page != page - 1) continue;
        events_.push_back(Event::Seal(current_[i], BlockKey::FromInteger(++key_), StepId(step)));
      }
    }
    return {step, 1, events_.data(), events_.size(), slots_.data(), slots_.size()};
  }

 private:
  void Fill(std::size_t first) {
    const std::int64_t page = store_.page_tokens();
    const std::int64_t offset = static_cast<std::int64_t>(step_no_++) % page;
    for (std::size_t i = 0; i < kDecodeRows; ++i) {
      slots_[i] = std::int64_t{store_.shuffled()[first + i].value()} * page + offset;
    }
  }

  FilledStore& store_;
  std::vector<std::int64_t> slots_;
  std::vector<Event> events_;
  std::vector<BlockId> current_;
  std::size_t next_block_ = 0;
  std::size_t group_ = 0;
  std::uint64_t step_no_ = 0;
  std::uint64_t key_ = 0;
};

// Rows as a capture buffer has them: int16, [L, rows, K].
struct LayerMajorSource {
  explicit LayerMajorSource(std::int64_t rows)
      : ids(LayerMajorShorts(TokenMajorBytes(rows, 2), rows)),
        source(kernels::IdsView::LayerMajor(ids.data(), kernels::IdKind::kInt16, rows,
                                            {kLayers, kTopK, kExperts})) {}

  std::vector<std::int16_t> ids;
  PackSource source;
};

void DecodeStep(benchmark::State& state, Landing landing, Blocks blocks, Caches caches) {
  FilledStore& store = FilledStore::Get(16, landing);
  DecodeSteps steps(store);
  LayerMajorSource source(kDecodeRows);
  CacheWalk& walk = CacheWalk::Get();
  const auto iterations = static_cast<std::size_t>(state.max_iterations);
  Times times(iterations);
  Times landed(iterations);
  std::size_t events = 0;
  // The first steps of a run still meet the blocks of the one before.
  int warm_up = 64;
  const auto one = [&] {
    walk.Make(caches);
    // The arrays of the batch are warm always: the engine has just written them.
    if (blocks == Blocks::kTurnover) {
      steps.Turnover();
    } else if (blocks == Blocks::kSame) {
      steps.SameBlocks();
    } else {
      steps.OtherBlocks();
    }
    const StepBatch batch = steps.Batch();
    events = batch.num_events;
    const double engine = store.Run(batch, &source.source);
    const double landing_time = Time([&] { store.Settle(); });
    if (warm_up > 0) return engine;
    times.Add(engine);
    landed.Add(engine + landing_time);
    return engine;
  };
  if (caches == Caches::kCold) warm_up = 2;
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
  FilledStore& store = FilledStore::Get(16, Landing::kThread);
  DecodeSteps steps(store);
  LayerMajorSource source(kDecodeRows);
  Times times(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    steps.SameBlocks();
    const StepBatch batch = steps.Batch();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const double engine = store.Run(batch, &source.source);
    store.Settle();
    times.Add(engine);
    state.SetIterationTime(engine / 1e9);
  }
  Report(state, times);
}

// 8192 rows of one prompt into 512 blocks, every one bound and sealed by the step.
void PrefillStep(benchmark::State& state, Landing landing) {
  FilledStore& store = FilledStore::Get(16, landing);
  LayerMajorSource source(kPrefillRows);
  constexpr std::size_t kBlocks = kPrefillRows / 16;
  std::vector<std::int64_t> slots;
  std::vector<Event> events;
  Times times(static_cast<std::size_t>(state.max_iterations));
  Times landed(static_cast<std::size_t>(state.max_iterations));
  std::size_t next = 0;
  std::uint64_t key = std::uint64_t{1} << 40;
  for (auto _ : state) {
    const std::uint64_t step = store.NextStep();
    slots.clear();
    events.clear();
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const BlockId block = store.shuffled()[next];
      next = (next + 1) % store.shuffled().size();
      events.push_back(Event::Bind(block));
      events.push_back(Event::Seal(block, BlockKey::FromInteger(++key), StepId(step)));
      for (std::int64_t row = 0; row < 16; ++row)
        slots.push_back(std::int64_t{block.value()} * 16 + row);
    }
    const double engine = store.Run(
        {step, 1, events.data(), events.size(), slots.data(), slots.size()}, &source.source);
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
  FilledStore& store = FilledStore::Get(16, Landing::kCaller);
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
  FilledStore& store = FilledStore::Get(16, Landing::kThread);
  CacheWalk& walk = CacheWalk::Get();
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

#define WAYMARK_BENCH(name, function, count, ...) \
  BENCHMARK_CAPTURE(function, name, __VA_ARGS__)->UseManualTime()->Iterations(count)

WAYMARK_BENCH(warm, DecodeStep, kMany, Landing::kCaller, Blocks::kSame, Caches::kWarm);
WAYMARK_BENCH(other_blocks, DecodeStep, kMany, Landing::kCaller, Blocks::kOthers, Caches::kWarm);
WAYMARK_BENCH(cold_own, DecodeStep, 400, Landing::kCaller, Blocks::kOthers, Caches::kColdOwn);
WAYMARK_BENCH(cold, DecodeStep, kFew, Landing::kCaller, Blocks::kOthers, Caches::kCold);
WAYMARK_BENCH(thread_warm, DecodeStep, kMany, Landing::kThread, Blocks::kSame, Caches::kWarm);
WAYMARK_BENCH(thread_others, DecodeStep, kMany, Landing::kThread, Blocks::kOthers, Caches::kWarm);
BENCHMARK(DecodeStepApart)->UseManualTime()->Iterations(400);
// The store's own pages turn over from here on.
WAYMARK_BENCH(turnover, DecodeStep, kMany, Landing::kCaller, Blocks::kTurnover, Caches::kWarm);
WAYMARK_BENCH(turnover_cold, DecodeStep, kFew, Landing::kCaller, Blocks::kTurnover, Caches::kCold);
WAYMARK_BENCH(thread_turnover, DecodeStep, kMany, Landing::kThread, Blocks::kTurnover,
              Caches::kWarm);
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
