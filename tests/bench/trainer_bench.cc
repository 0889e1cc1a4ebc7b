// Filling the router tensors of a step: micro-batches of sequences of 8192 tokens, cut between two
// ranks, from snapshots whose pages lie anywhere in a store of a million rows, from rows and from
// documents; against a memcpy of as many bytes as the tensors have. Of few layers there are more
// micro-batches, so that the tensors of a step are always more than the caches hold.
#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "adapters/trainer/expand.h"
#include "adapters/trainer/fill.h"
#include "blockstore/wire/document_writer.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr std::int64_t kTokens = 8192;
constexpr std::size_t kTensorBytes = std::size_t{60} << 20;  // about; twice the last-level cache
constexpr std::size_t kMostSequences = 60;
constexpr std::size_t kMicroBatch = 4;  // sequences

enum class From { kSnapshots, kRows, kDocuments };

// Sources of one kind; those of the last kind that was asked for are kept.
struct Sequences {
  explicit Sequences(From from) {
    FilledStore& store = SharedStore(16, Landing::kCaller);
    for (std::size_t i = 0; i < kMostSequences; ++i) {
      auto taken = store.store().TakeSnapshot(
          store.shuffled().subspan(i * kTokens / 16, kTokens / 16), 0, kTokens);
      Demand(taken.ok(), "no snapshot");
      store.ApplyLog();
      snapshots.push_back(*std::move(taken));
      if (from == From::kSnapshots) {
        sources.emplace_back(&snapshots.back());
        continue;
      }
      rows.push_back(snapshots.back().ReadRows().value());
      snapshots.clear();
      if (from == From::kRows) {
        sources.emplace_back(ViewOf(rows.back()));
        continue;
      }
      bytes.push_back(wire::WriteDocument(rows.back()).value());
      rows.clear();
      documents.push_back(wire::Document::Open(bytes.back()).value());
      sources.emplace_back(&documents.back());
    }
  }
  static std::span<const RowSource> Get(From from, std::size_t count) {
    static std::unique_ptr<Sequences> last;
    static From last_from;
    if (last == nullptr || last_from != from) {
      last.reset();
      last = std::make_unique<Sequences>(from);
      last_from = from;
    }
    return std::span(last->sources).first(count);
  }

  std::deque<Snapshot> snapshots;
  std::deque<Rows> rows;
  std::deque<std::vector<std::uint8_t>> bytes;
  std::deque<wire::Document> documents;
  std::vector<RowSource> sources;
};

// packed: rows of stored ids, for a device; as many bytes as they have are copied.
void FillTensors(benchmark::State& state, From from, TrainerLayout layout, IdType id_type,
                 std::int32_t num_layers, bool packed = false) {
  const std::size_t row_bytes = static_cast<std::size_t>(num_layers) * kTopK * IdBytes(id_type);
  const std::size_t batches = std::clamp<std::size_t>(
      2 * kTensorBytes / row_bytes / kTokens / kMicroBatch, 1, kMostSequences / kMicroBatch);
  const std::span<const RowSource> sources = Sequences::Get(from, batches * kMicroBatch);
  const std::vector<std::int64_t> lengths(kMicroBatch, kTokens);
  const RowPlan plan = RowPlan::Make(layout, lengths).value();
  std::vector<std::int32_t> layers(static_cast<std::size_t>(num_layers));
  std::iota(layers.begin(), layers.end(), kLayers - num_layers);
  const auto batch_rows = static_cast<std::size_t>(plan.rows());
  const std::size_t size = batches * batch_rows * row_bytes;
  std::vector<std::uint8_t> ids(size);
  std::vector<std::uint8_t> mask(batches * batch_rows);
  std::vector<std::uint8_t> copy_from(size, 1);
  std::vector<std::uint8_t> copy_to(size);
  std::vector<RouterTensors> tensors(batches);
  for (std::size_t i = 0; i < batches; ++i) {
    tensors[i].id_type = id_type;
    tensors[i].packed = packed;
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

// Packed rows to tensors, on the host.
void Expand(benchmark::State& state, IdType id_type, std::int32_t num_layers) {
  const std::size_t stored_bytes = static_cast<std::size_t>(num_layers) * kTopK;
  const std::size_t row_bytes = stored_bytes * IdBytes(id_type);
  const std::size_t rows = kTensorBytes / row_bytes;
  std::vector<std::uint8_t> packed(rows * stored_bytes, 7);
  std::vector<std::uint8_t> ids(rows * row_bytes);
  const std::vector<std::uint8_t> mask(rows, 1);
  std::vector<std::uint8_t> copy_from(ids.size(), 1);
  std::vector<std::uint8_t> copy_to(ids.size());
  const PackedTensors tensors = {num_layers,   kTopK, kExperts, static_cast<std::int64_t>(rows),
                                 packed,       mask,  ids,      id_type,
                                 Fill::kArange};
  Demand(CheckExpand(tensors).ok(), "arguments");
  Times times(static_cast<std::size_t>(state.max_iterations));
  Times copies(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    const double expanding = Time(
        [&] {
          ExpandOnHost(tensors);
          KeepAlive(ids.data());
        },
        Clock::kProcessor);
    times.Add(expanding);
    copies.Add(Time(
        [&] {
          Copy(copy_to.data(), copy_from.data(), ids.size());
          KeepAlive(copy_to.data());
        },
        Clock::kProcessor));
    state.SetIterationTime(expanding / 1e9);
  }
  Demand(ids[0] == 7 && ids[ids.size() - IdBytes(id_type)] == 7, "an id is missing");
  Report(state, times);
  state.counters["memcpys"] = times.Micros(0.1) / copies.Micros(0.1);
}

constexpr TrainerLayout kZigzag{.context_size = 2};
constexpr TrainerLayout kInterleaved{.order = TokenOrder::kSequenceMajor,
                                     .tensor_size = 2,
                                     .tensor_rank = 1,
                                     .sequence_parallel = true};

// All layers; those of the last of four pipeline stages; few.
#define WAYMARK_FILL(name, from, layout)                                                   \
  BENCHMARK_CAPTURE(FillTensors, name##_i64, from, layout, IdType::kInt64, kLayers)        \
      ->UseManualTime()                                                                    \
      ->Iterations(30);                                                                    \
  BENCHMARK_CAPTURE(FillTensors, name##_i32, from, layout, IdType::kInt32, kLayers)        \
      ->UseManualTime()                                                                    \
      ->Iterations(30);                                                                    \
  BENCHMARK_CAPTURE(FillTensors, name##_i64_stage_of_14, from, layout, IdType::kInt64, 14) \
      ->UseManualTime()                                                                    \
      ->Iterations(30);                                                                    \
  BENCHMARK_CAPTURE(FillTensors, name##_i32_stage_of_14, from, layout, IdType::kInt32, 14) \
      ->UseManualTime()                                                                    \
      ->Iterations(30);                                                                    \
  BENCHMARK_CAPTURE(FillTensors, name##_i64_stage_of_8, from, layout, IdType::kInt64, 8)   \
      ->UseManualTime()                                                                    \
      ->Iterations(30);                                                                    \
  BENCHMARK_CAPTURE(FillTensors, name##_i32_stage_of_8, from, layout, IdType::kInt32, 8)   \
      ->UseManualTime()                                                                    \
      ->Iterations(30)

WAYMARK_FILL(snapshots_zigzag, From::kSnapshots, kZigzag);
WAYMARK_FILL(snapshots_interleaved, From::kSnapshots, kInterleaved);
WAYMARK_FILL(rows_zigzag, From::kRows, kZigzag);
WAYMARK_FILL(rows_interleaved, From::kRows, kInterleaved);
WAYMARK_FILL(documents_zigzag, From::kDocuments, kZigzag);
WAYMARK_FILL(documents_interleaved, From::kDocuments, kInterleaved);

#define WAYMARK_PACKED(name, from)                                                             \
  BENCHMARK_CAPTURE(FillTensors, name##_packed, from, kZigzag, IdType::kUint8, kLayers, true)  \
      ->UseManualTime()                                                                        \
      ->Iterations(30);                                                                        \
  BENCHMARK_CAPTURE(FillTensors, name##_packed_stage_of_14, from, kZigzag, IdType::kUint8, 14, \
                    true)                                                                      \
      ->UseManualTime()                                                                        \
      ->Iterations(30)

WAYMARK_PACKED(snapshots, From::kSnapshots);
WAYMARK_PACKED(rows, From::kRows);
WAYMARK_PACKED(documents, From::kDocuments);

BENCHMARK_CAPTURE(Expand, i64, IdType::kInt64, kLayers)->UseManualTime()->Iterations(30);
BENCHMARK_CAPTURE(Expand, i32, IdType::kInt32, kLayers)->UseManualTime()->Iterations(30);
BENCHMARK_CAPTURE(Expand, i64_stage_of_14, IdType::kInt64, 14)->UseManualTime()->Iterations(30);
BENCHMARK_CAPTURE(Expand, i32_stage_of_14, IdType::kInt32, 14)->UseManualTime()->Iterations(30);

}  // namespace
}  // namespace waymark::bench
