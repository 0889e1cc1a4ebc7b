// What of landing depends on the instruction set: PackRows of 256 rows, against a row-wise memcpy
// to the same destinations, which are as far apart as decode rows on pages of 16 rows; all of it in
// the second-level cache.
#include <cstring>
#include <string>

#include "kernels/pack_rows.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr std::size_t kRows = 256;
constexpr std::size_t kPageRows = 16;
constexpr int kTurns = 4000;

constexpr kernels::RowShape kRowShape{kLayers, kTopK, kExperts};

void Pack(benchmark::State& state, kernels::Isa isa, bool layer_major) {
  const BenchRows rows(kRows);
  const kernels::IdsView ids =
      layer_major
          ? kernels::IdsView::LayerMajor(rows.shorts.data(), kernels::IdKind::kInt16, kRows,
                                         kRowShape)
          : kernels::IdsView::TokenMajor(rows.bytes.data(), kernels::IdKind::kUint8, kRowShape);
  const std::size_t row_bytes = kRowShape.row_bytes();
  std::vector<std::uint8_t> pages(kRows * kPageRows * row_bytes);
  std::vector<std::uint8_t*> destinations;
  for (std::size_t row = 0; row < kRows; ++row)
    destinations.push_back(pages.data() + (row * kPageRows + row % kPageRows) * row_bytes);
  std::vector<kernels::RowVerdict> verdicts(kRows);
  void* (*volatile copy)(void*, const void*, std::size_t) = &std::memcpy;  // the C library's
  Times times(kTurns), copies(kTurns);
  std::size_t faulty = 0;
  for (auto _ : state) {
    copies.Add(Time([&] {
      for (std::size_t row = 0; row < kRows; ++row)
        copy(destinations[row], rows.bytes.data() + row * row_bytes, row_bytes);
    }));
    const double time = Time([&] {
      faulty += kernels::PackRows(kRowShape, ids, destinations, verdicts, nullptr, {}, isa);
    });
    times.Add(time);
    state.SetIterationTime(time / 1e9);
  }
  Demand(faulty == 0, "PackRows has found faults");
  Report(state, times);
  state.counters["memcpy_us"] = copies.Micros(0.5);
  state.counters["ratio"] = times.Micros(0.5) / copies.Micros(0.5);
}

const int registered = [] {
  for (const kernels::Isa isa : kernels::SupportedIsas()) {
    for (const bool layer_major : {false, true}) {
      const std::string name = std::string("PackRows/") + kernels::IsaName(isa) +
                               (layer_major ? "/layer_major_i16" : "/token_major_u8");
      benchmark::RegisterBenchmark(name.c_str(), Pack, isa, layer_major)
          ->UseManualTime()
          ->Iterations(kTurns);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace waymark::bench
