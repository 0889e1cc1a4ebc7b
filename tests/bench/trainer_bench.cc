// Filling the router tensors of a step: micro-batches of sequences of 8192 tokens, cut between two
// ranks; against a memcpy of as many bytes as the tensors have. Of few layers there are more
// micro-batches, so that the tensors of a step are always more than the caches hold.
#include <algorithm>
#include <deque>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "adapters/trainer/fill.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr std::int64_t kTokens = 8192;
constexpr std::size_t kTensorBytes = std::size_t{60} << 20;  // about; twice the last-level cache
constexpr std::size_t kMostSequences = 60;
constexpr std::size_t kMicroBatch = 4;  // sequences

struct Sequences {
  Sequences() {
    FilledStore& store = SharedStore(16, Landing::kCaller);
    for (std::size_t i = 0; i < kMostSequences; ++i) {
      auto taken = store.store().TakeSnapshot(
          store.shuffled().subspan(i * kTokens / 16, kTokens / 16), 0, kTokens);
      Demand(taken.ok(), "no snapshot");
      store.ApplyLog();
      rows.push_back(taken->ReadRows().value());
      taken->Release();
      sources.push_back(ViewOf(rows.back()));
    }
  }

  std::deque<Rows> rows;
  std::vector<RowsView> sources;
};

// A rank's half of the tokens of a micro-batch: the first and the last quarter of each sequence, one
// sequence after the other, or the second half of all, interleaved.
RowPlan PlanOf(bool interleaved) {
  RowPlan plan;
  plan.lengths.assign(kMicroBatch, kTokens);
  plan.rows = kMicroBatch * kTokens / 2;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(kMicroBatch); ++i) {
    if (interleaved) {
      plan.segments.push_back({i, kTokens / 2, kTokens / 2, i, kMicroBatch});
      continue;
    }
    const std::int64_t row = i * kTokens / 2;
    plan.segments.push_back({i, 0, kTokens / 4, row});
    plan.segments.push_back({i, kTokens - kTokens / 4, kTokens / 4, row + kTokens / 4});
  }
  return plan;
}

void FillTensors(benchmark::State& state, bool interleaved, IdType id_type,
                 std::int32_t num_layers) {
  const std::size_t row_bytes = static_cast<std::size_t>(num_layers) * kTopK * IdBytes(id_type);
  const std::size_t batches = std::clamp<std::size_t>(
      2 * kTensorBytes / row_bytes / kTokens / kMicroBatch, 1, kMostSequences / kMicroBatch);
  static const Sequences sequences;
  const std::span<const RowsView> sources(sequences.sources);
  const RowPlan plan = PlanOf(interleaved);
  std::vector<std::int32_t> layers(static_cast<std::size_t>(num_layers));
  std::iota(layers.begin(), layers.end(), kLayers - num_layers);
  const auto batch_rows = static_cast<std::size_t>(plan.rows);
  const std::size_t size = batches * batch_rows * row_bytes;
  std::vector<std::uint8_t> ids(size);
  std::vector<std::uint8_t> mask(batches * batch_rows);
  std::vector<std::uint8_t> copy_from(size, 1);
  std::vector<std::uint8_t> copy_to(size);
  std::vector<RouterTensors> tensors(batches);
  for (std::size_t i = 0; i < batches; ++i) {
    tensors[i].id_type = id_type;
    tensors[i].ids = std::span(ids).subspan(i * batch_rows * row_bytes, batch_rows * row_bytes);
    tensors[i].mask = std::span(mask).subspan(i * batch_rows, batch_rows);
  }
  Times times(static_cast<std::size_t>(state.max_iterations));
  Times copies(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    std::size_t replayed = 0;
    const double filling = Time(
        [&] {
          for (std::size_t i = 0; i < batches; ++i) {
            const auto report = FillRouterTensors(
                plan, sources.subspan(i * kMicroBatch, kMicroBatch), layers, tensors[i]);
            if (report.ok()) replayed += static_cast<std::size_t>(report->replayed);
          }
          KeepAlive(ids.data());
        },
        Clock::kProcessor);
    Demand(replayed == mask.size(), "a row is missing");
    times.Add(filling);
    copies.Add(Time(
        [&] {
          for (std::size_t i = 0; i < size; i += size / batches)
            Copy(copy_to.data() + i, copy_from.data() + i, size / batches);
          KeepAlive(copy_to.data());
        },
        Clock::kProcessor));
    state.SetIterationTime(filling / 1e9);
  }
  Report(state, times);
  state.counters["rows"] = static_cast<double>(mask.size());
  state.counters["memcpy_us"] = copies.Micros(0.1);
  state.counters["memcpys"] = times.Micros(0.1) / copies.Micros(0.1);
}

// Layers: all; those of the last of four pipeline stages; few.
[[maybe_unused]] const bool kRegistered = [] {
  for (const bool interleaved : {false, true}) {
    for (const std::int32_t layers : {kLayers, 14, 8}) {
      for (const IdType id_type : {IdType::kInt64, IdType::kInt32}) {
        const std::string name =
            std::string("FillTensors/rows") + (interleaved ? "_interleaved" : "_zigzag") +
            (id_type == IdType::kInt64 ? "_i64/" : "_i32/") + std::to_string(layers);
        benchmark::RegisterBenchmark(name.c_str(), FillTensors, interleaved, id_type, layers)
            ->UseManualTime()
            ->Iterations(30);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace waymark::bench
