// Reading 32k rows whose pages lie anywhere in a store of a million rows: Snapshot on the engine's
// thread, Read on a reader's against one memcpy of as many bytes.
#include <utility>

#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

// `other_blocks`: another sequence every time, so that the tables come from the last-level cache.
void TakeSnapshot(benchmark::State& state, std::int32_t page_tokens, bool other_blocks,
                  Caches caches) {
  SnapshotTurns turns(SharedStore(page_tokens, Landing::kManual), other_blocks);
  Times times(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    const double nanoseconds = turns.Turn(SharedWalk(), caches);
    times.Add(nanoseconds);
    state.SetIterationTime(nanoseconds / 1e9);
  }
  Report(state, times);
}

void Read(benchmark::State& state, std::int32_t page_tokens, ReadSpec spec, bool infos) {
  ReadTurns turns(SharedStore(page_tokens, Landing::kCaller), spec, infos, Clock::kWall);
  Times times(static_cast<std::size_t>(state.max_iterations));
  Times copies(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    const double reading = turns.Read();
    times.Add(reading);
    copies.Add(turns.Copy());
    state.SetIterationTime(reading / 1e9);
  }
  Report(state, times);
  state.counters["memcpy_us"] = copies.Micros(0.1);
  state.counters["of_memcpy"] = copies.Micros(0.1) / times.Micros(0.1);
}

// What a finished request costs: the snapshot on the engine's thread, then rows and coverage.
void Finish(benchmark::State& state) {
  FilledStore& store = SharedStore(16, Landing::kCaller);
  Times engine(static_cast<std::size_t>(state.max_iterations));
  Times times(static_cast<std::size_t>(state.max_iterations));
  std::vector<std::uint8_t> out(static_cast<std::size_t>(kLongRows) * kLayers * kTopK);
  std::vector<RowInfo> infos(static_cast<std::size_t>(kLongRows));
  const ReadSpec spec{Layout::kTokensLayersK, IdType::kUint8, Fill::kZeros};
  std::size_t runs = 0;
  for (auto _ : state) {
    Snapshot snapshot;
    const double taking = Time([&] {
      auto taken = store.store().TakeSnapshot(LongSequence(store, 0), 0, kLongRows);
      Demand(taken.ok(), "no snapshot");
      snapshot = *std::move(taken);
    });
    const double reading = Time([&] {
      Demand(snapshot.Read(0, kLongRows, spec, out, infos).ok(), "a read failed");
      runs = CoverageOf(infos, 0).size();
      snapshot.Release();
    });
    const std::uint64_t step = store.NextStep();
    store.Run({step, 1, nullptr, 0, nullptr, 0}, nullptr);
    store.Settle();
    engine.Add(taking);
    times.Add(taking + reading);
    state.SetIterationTime((taking + reading) / 1e9);
  }
  Demand(runs > 0, "no coverage");
  Report(state, times);
  state.counters["engine_us"] = engine.Micros(0.5);
  state.counters["engine_p10_us"] = engine.Micros(0.1);
}

constexpr ReadSpec kTlkU8{Layout::kTokensLayersK, IdType::kUint8, Fill::kZeros};
constexpr ReadSpec kTlkI16{Layout::kTokensLayersK, IdType::kInt16, Fill::kMinusOne};
constexpr ReadSpec kLtkI16{Layout::kLayersTokensK, IdType::kInt16, Fill::kMinusOne};
constexpr ReadSpec kLtkI64{Layout::kLayersTokensK, IdType::kInt64, Fill::kMinusOne};

WAYMARK_BENCH(warm, TakeSnapshot, 1000, 16, false, Caches::kWarm);
WAYMARK_BENCH(other_blocks, TakeSnapshot, 1000, 16, true, Caches::kWarm);
WAYMARK_BENCH(cold_own, TakeSnapshot, 400, 16, true, Caches::kColdOwn);
WAYMARK_BENCH(cold, TakeSnapshot, 40, 16, true, Caches::kCold);
WAYMARK_BENCH(tlk_u8_B16, Read, 150, 16, kTlkU8, false);
WAYMARK_BENCH(tlk_u8_B16_infos, Read, 150, 16, kTlkU8, true);
WAYMARK_BENCH(tlk_u8_B64, Read, 150, 64, kTlkU8, false);
WAYMARK_BENCH(tlk_u8_B256, Read, 150, 256, kTlkU8, false);
WAYMARK_BENCH(tlk_i16_B16, Read, 100, 16, kTlkI16, false);
WAYMARK_BENCH(ltk_i16_B16, Read, 100, 16, kLtkI16, false);
WAYMARK_BENCH(ltk_i64_B16, Read, 50, 16, kLtkI64, false);
BENCHMARK(Finish)->UseManualTime()->Iterations(150);

}  // namespace
}  // namespace waymark::bench
