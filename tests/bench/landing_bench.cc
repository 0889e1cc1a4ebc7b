// The landing thread's work, by the caller: 256 rows to their pages, against a row-wise memcpy to
// the same pages. `near`: 256 blocks, all of it in the second-level cache. `far`: the whole store
// in turn, so that destinations come from memory. LandingPrefill: 8192 rows, against memcpy page by
// page.
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

enum class Input { kTokenMajorBytes, kLayerMajorShorts, kLayerMajorInts };

PackedRows& RowsOf(BenchRows& rows, Input input) {
  if (input == Input::kTokenMajorBytes) return rows.token_major;
  return input == Input::kLayerMajorShorts ? rows.layer_major : rows.layer_major_ints;
}

template <class Steps>
void Land(benchmark::State& state, Input input, std::int64_t rows_of_step, FilledStore& store,
          Steps steps) {
  BenchRows rows(rows_of_step);
  LandingTurns turns(store, RowsOf(rows, input), rows.bytes, steps.period(), Clock::kWall);
  const auto iterations = static_cast<std::size_t>(state.max_iterations);
  Times times(iterations);
  Times copies(iterations);
  for (std::size_t i = 0; i < 2 * steps.period(); ++i)
    (void)turns.Turn(steps.Next());
  for (auto _ : state) {
    const LandingTurns::Nanoseconds turn = turns.Turn(steps.Next());
    times.Add(turn.landing);
    copies.Add(turn.copying);
    state.SetIterationTime(turn.landing / 1e9);
  }
  Report(state, times);
  state.counters["memcpy_us"] = copies.Micros(0.5);
  state.counters["memcpy_p10_us"] = copies.Micros(0.1);
  state.counters["ratio"] = times.Micros(0.5) / copies.Micros(0.5);
}

void Landing256(benchmark::State& state, Input input, Blocks blocks) {
  FilledStore& store = SharedStore(16, Landing::kCaller);
  Land(state, input, kDecodeRows, store, DecodeSteps(store, blocks));
}

// In a store of its own: pages turn over.
void LandingPrefill(benchmark::State& state, Input input) {
  FilledStore store(kStoreRows, 16, Landing::kCaller);
  Land(state, input, kPrefillRows, store, PrefillSteps(store));
}

WAYMARK_BENCH(token_major_u8_near, Landing256, 4000, Input::kTokenMajorBytes, Blocks::kSame);
WAYMARK_BENCH(token_major_u8_far, Landing256, 4000, Input::kTokenMajorBytes, Blocks::kOthers);
WAYMARK_BENCH(layer_major_i16_near, Landing256, 4000, Input::kLayerMajorShorts, Blocks::kSame);
WAYMARK_BENCH(layer_major_i16_far, Landing256, 4000, Input::kLayerMajorShorts, Blocks::kOthers);
WAYMARK_BENCH(layer_major_i32_near, Landing256, 4000, Input::kLayerMajorInts, Blocks::kSame);
WAYMARK_BENCH(layer_major_i32_far, Landing256, 4000, Input::kLayerMajorInts, Blocks::kOthers);
WAYMARK_BENCH(token_major_u8, LandingPrefill, 200, Input::kTokenMajorBytes);
WAYMARK_BENCH(layer_major_i16, LandingPrefill, 200, Input::kLayerMajorShorts);

}  // namespace
}  // namespace waymark::bench
