// What of landing depends on the instruction set and on how the ids lie: PackRows, against a
// row-wise memcpy to the same destinations. 250 and 256 rows lie as far apart as decode rows on pages of 16
// rows, all of it in the second-level cache; 8,192 rows are those of a prefill, page by page. The
// layers of 256 and of 8,192 rows of int16 are a multiple of 4,096 bytes apart.
#include <cstring>
#include <string>

#include "kernels/pack_rows.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr std::size_t kPageRows = 16;

constexpr kernels::RowShape kRowShape{kLayers, kTopK, kExperts};

enum class Input { kTokenMajorBytes, kLayerMajorShorts, kLayerMajorInts };

kernels::IdsView ViewOf(const BenchRows& rows, const std::vector<std::int32_t>& ints, Input input,
                        std::int64_t count) {
  switch (input) {
    case Input::kTokenMajorBytes:
      return kernels::IdsView::TokenMajor(rows.bytes.data(), kernels::IdKind::kUint8, kRowShape);
    case Input::kLayerMajorShorts:
      return kernels::IdsView::LayerMajor(rows.shorts.data(), kernels::IdKind::kInt16, count,
                                          kRowShape);
    case Input::kLayerMajorInts:
      return kernels::IdsView::LayerMajor(ints.data(), kernels::IdKind::kInt32, count, kRowShape);
  }
  return {};
}

void Pack(benchmark::State& state, kernels::Isa isa, Input input, std::size_t count) {
  const BenchRows rows(static_cast<std::int64_t>(count));
  const std::vector<std::int32_t> ints(rows.shorts.begin(), rows.shorts.end());
  const kernels::IdsView ids = ViewOf(rows, ints, input, static_cast<std::int64_t>(count));
  const std::size_t row_bytes = kRowShape.row_bytes();
  const std::size_t apart = count > 256 ? 1 : kPageRows;
  std::vector<std::uint8_t> pages(count * apart * row_bytes);
  std::vector<std::uint8_t*> destinations;
  for (std::size_t row = 0; row < count; ++row)
    destinations.push_back(pages.data() + (row * apart + row % apart) * row_bytes);
  std::vector<kernels::RowVerdict> verdicts(count);
  void* (*volatile copy)(void*, const void*, std::size_t) = &std::memcpy;  // the C library's
  const auto turns = static_cast<std::size_t>(state.max_iterations);
  Times times(turns), copies(turns);
  std::size_t faulty = 0;
  for (auto _ : state) {
    copies.Add(Time([&] {
      for (std::size_t row = 0; row < count; ++row)
        copy(destinations[row], rows.bytes.data() + row * row_bytes, row_bytes);
    }));
    const double time =
        Time([&] { faulty += kernels::PackRows(kRowShape, ids, destinations, verdicts, isa); });
    times.Add(time);
    state.SetIterationTime(time / 1e9);
  }
  Demand(faulty == 0, "PackRows has found faults");
  Report(state, times);
  state.counters["memcpy_us"] = copies.Micros(0.5);
  state.counters["ratio"] = times.Micros(0.5) / copies.Micros(0.5);
}

const int registered = [] {
  constexpr const char* kNames[] = {"token_major_u8", "layer_major_i16", "layer_major_i32"};
  for (const kernels::Isa isa : kernels::SupportedIsas()) {
    for (const Input input :
         {Input::kTokenMajorBytes, Input::kLayerMajorShorts, Input::kLayerMajorInts}) {
      for (const std::size_t count : {250, 256, 8192}) {
        const std::string name = std::string("PackRows/") + kernels::IsaName(isa) + "/" +
                                 kNames[static_cast<int>(input)] + "/" + std::to_string(count);
        benchmark::RegisterBenchmark(name.c_str(), Pack, isa, input, count)
            ->UseManualTime()
            ->Iterations(count > 256 ? 200 : 4000);
      }
    }
  }
  return 0;
}();

}  // namespace
}  // namespace waymark::bench
