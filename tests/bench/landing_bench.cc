// The landing thread's work, by the caller: 256 rows to their pages, against a row-wise memcpy to
// the same pages.
//
// Landing and memcpy take turns, and go to each other's destinations half a round later, so that
// both meet the same caches. `near`: 256 blocks, all of it in the second-level cache. `far`: the
// whole store in turn, so that destinations come from memory.
#include <cstring>

#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

enum class Input { kTokenMajorBytes, kLayerMajorShorts };

void Landing256(benchmark::State& state, Input input, bool far) {
  FilledStore& store = FilledStore::Get(16, Landing::kCaller);
  const std::vector<std::uint8_t> bytes = TokenMajorBytes(kDecodeRows, 5);
  const std::vector<std::int16_t> shorts = LayerMajorShorts(bytes, kDecodeRows);
  const kernels::RowShape shape{kLayers, kTopK, kExperts};
  const std::size_t row_bytes = shape.row_bytes();
  PackSource source(input == Input::kTokenMajorBytes
                        ? kernels::IdsView::TokenMajor(bytes.data(), kernels::IdKind::kUint8, shape)
                        : kernels::IdsView::LayerMajor(shorts.data(), kernels::IdKind::kInt16,
                                                       kDecodeRows, shape));
  // near: one group of blocks, 16 offsets. far: all groups, one offset a round.
  const std::size_t groups = far ? store.shuffled().size() / kDecodeRows : 1;
  const std::size_t round = far ? groups : 16;
  std::vector<std::vector<std::uint8_t*>> landed(round);
  std::vector<std::int64_t> slots(kDecodeRows);
  const auto iterations = static_cast<std::size_t>(state.max_iterations);
  Times times(iterations);
  Times copies(iterations);
  std::size_t at = 0;
  const auto land = [&] {
    const std::size_t group = far ? at % groups : 0;
    const std::size_t offset = (far ? at / groups : at) % 16;
    for (std::size_t i = 0; i < kDecodeRows; ++i) {
      slots[i] = std::int64_t{store.shuffled()[group * kDecodeRows + i].value()} * 16 +
                 static_cast<std::int64_t>(offset);
    }
    store.Run({store.NextStep(), 1, nullptr, 0, slots.data(), slots.size()}, &source);
    const double nanoseconds = Time([&] { store.Settle(); });
    landed[at % round].assign(source.landed().begin(), source.landed().begin() + kDecodeRows);
    return nanoseconds;
  };
  const auto copy = [&] {
    const std::vector<std::uint8_t*>& to = landed[(at + round / 2) % round];
    return Time([&] {
      for (std::size_t i = 0; i < to.size(); ++i)
        std::memcpy(to[i], bytes.data() + i * row_bytes, row_bytes);
      benchmark::ClobberMemory();
    });
  };
  for (; at < 2 * round; ++at)
    (void)land();
  for (auto _ : state) {
    const double landing = land();
    const double copying = copy();
    ++at;
    times.Add(landing);
    copies.Add(copying);
    state.SetIterationTime(landing / 1e9);
  }
  Report(state, times);
  state.counters["memcpy_us"] = copies.Micros(0.5);
  state.counters["ratio"] = times.Micros(0.5) / copies.Micros(0.5);
}

#define WAYMARK_BENCH(name, ...) \
  BENCHMARK_CAPTURE(Landing256, name, __VA_ARGS__)->UseManualTime()->Iterations(4000)

WAYMARK_BENCH(token_major_u8_near, Input::kTokenMajorBytes, false);
WAYMARK_BENCH(token_major_u8_far, Input::kTokenMajorBytes, true);
WAYMARK_BENCH(layer_major_i16_near, Input::kLayerMajorShorts, false);
WAYMARK_BENCH(layer_major_i16_far, Input::kLayerMajorShorts, true);

}  // namespace
}  // namespace waymark::bench
