// Filling router tensors: 4 sequences of 8192 tokens, cut between two ranks, from snapshots whose
// pages lie anywhere in a store of a million rows, from rows and from documents; against one memcpy
// of as many bytes as the tensors have.
#include <deque>
#include <numeric>
#include <vector>

#include "adapters/trainer/fill.h"
#include "blockstore/wire/document_writer.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr std::int64_t kTokens = 8192;
constexpr std::int64_t kSequences = 4;

enum class From { kSnapshots, kRows, kDocuments };

// The sources of one kind, made once.
struct Sequences {
  explicit Sequences(From from) {
    FilledStore& store = SharedStore(16, Landing::kCaller);
    for (std::int64_t i = 0; i < kSequences; ++i) {
      auto taken = store.store().TakeSnapshot(
          LongSequence(store, 0).subspan(static_cast<std::size_t>(i * kTokens / 16), kTokens / 16),
          0, kTokens);
      Demand(taken.ok(), "no snapshot");
      store.ApplyLog();
      snapshots.push_back(*std::move(taken));
      if (from == From::kSnapshots) {
        sources.emplace_back(&snapshots.back());
        continue;
      }
      rows.push_back(snapshots.back().ReadRows().value());
      if (from == From::kRows) {
        sources.emplace_back(ViewOf(rows.back()));
        continue;
      }
      bytes.push_back(wire::WriteDocument(rows.back()).value());
      documents.push_back(wire::Document::Open(bytes.back()).value());
      sources.emplace_back(&documents.back());
    }
  }
  std::deque<Snapshot> snapshots;
  std::deque<Rows> rows;
  std::deque<std::vector<std::uint8_t>> bytes;
  std::deque<wire::Document> documents;
  std::vector<RowSource> sources;
};

void FillTensors(benchmark::State& state, From from, TrainerLayout layout, IdType id_type,
                 std::int32_t num_layers) {
  const Sequences sequences(from);
  const std::vector<std::int64_t> lengths(kSequences, kTokens);
  const RowPlan plan = RowPlan::Make(layout, lengths).value();
  std::vector<std::int32_t> layers(static_cast<std::size_t>(num_layers));
  std::iota(layers.begin(), layers.end(), kLayers - num_layers);
  const std::size_t size =
      layers.size() * static_cast<std::size_t>(plan.rows()) * kTopK * IdBytes(id_type);
  std::vector<std::uint8_t> ids(size);
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(plan.rows()));
  std::vector<std::uint8_t> copy_from(size, 1);
  std::vector<std::uint8_t> copy_to(size);
  RouterTensors out;
  out.id_type = id_type;
  out.ids = ids;
  out.mask = mask;
  Times times(static_cast<std::size_t>(state.max_iterations));
  Times copies(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    std::int64_t replayed = 0;
    const double filling = Time(
        [&] {
          const auto report = FillRouterTensors(plan, sequences.sources, layers, out);
          if (report.ok()) replayed = report->replayed;
          KeepAlive(ids.data());
        },
        Clock::kProcessor);
    Demand(replayed == plan.rows(), "a row is missing");
    times.Add(filling);
    copies.Add(Time(
        [&] {
          Copy(copy_to.data(), copy_from.data(), size);
          KeepAlive(copy_to.data());
        },
        Clock::kProcessor));
    state.SetIterationTime(filling / 1e9);
  }
  Report(state, times);
  state.counters["memcpy_us"] = copies.Micros(0.1);
  state.counters["memcpys"] = times.Micros(0.1) / copies.Micros(0.1);
}

constexpr TrainerLayout kZigzag{.context_size = 2};
constexpr TrainerLayout kInterleaved{.order = TokenOrder::kSequenceMajor,
                                     .tensor_size = 2,
                                     .tensor_rank = 1,
                                     .sequence_parallel = true};

#define WAYMARK_BENCH(name, ...) \
  BENCHMARK_CAPTURE(FillTensors, name, __VA_ARGS__)->UseManualTime()->Iterations(40)

WAYMARK_BENCH(snapshots_zigzag_i64, From::kSnapshots, kZigzag, IdType::kInt64, kLayers);
WAYMARK_BENCH(snapshots_zigzag_i32, From::kSnapshots, kZigzag, IdType::kInt32, kLayers);
WAYMARK_BENCH(snapshots_zigzag_i64_stage, From::kSnapshots, kZigzag, IdType::kInt64, 8);
WAYMARK_BENCH(snapshots_interleaved_i64, From::kSnapshots, kInterleaved, IdType::kInt64, kLayers);
WAYMARK_BENCH(snapshots_interleaved_i32, From::kSnapshots, kInterleaved, IdType::kInt32, kLayers);
WAYMARK_BENCH(rows_zigzag_i64, From::kRows, kZigzag, IdType::kInt64, kLayers);
WAYMARK_BENCH(rows_zigzag_i32, From::kRows, kZigzag, IdType::kInt32, kLayers);
WAYMARK_BENCH(rows_interleaved_i64, From::kRows, kInterleaved, IdType::kInt64, kLayers);
WAYMARK_BENCH(documents_zigzag_i64, From::kDocuments, kZigzag, IdType::kInt64, kLayers);

}  // namespace
}  // namespace waymark::bench
