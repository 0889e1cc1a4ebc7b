// A conversation of 100 turns that ends with 32k rows, and a group of 16 samples of one prompt of
// 8k rows with 512 of their own: bytes and time from pages to a reader's rows, by handle through a
// source in memory, against sending everything again and against sending what is new.
//
// Budget: the turns fetch at most 1.05 times the bytes of the final array.
#include <span>
#include <vector>

#include "adapters/bench/wire_workload.h"
#include "blockstore/wire/document.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr int kSamples = 16;
constexpr std::int64_t kPromptRows = 8192;
constexpr std::int64_t kOwnRows = 512;

// The conversation's rows, then those of the group.
SequenceStore& Sequences() {
  static SequenceStore store(kLongRows + kPromptRows + kSamples * kOwnRows);
  return store;
}

enum class Work { kTurns, kGroup };
std::vector<RowRequest> Requests(Work work) {
  if (work == Work::kTurns) return ConversationTurns();
  std::vector<RowRequest> requests;
  for (int sample = 0; sample < kSamples; ++sample) {
    // The prompt's blocks, then its own.
    std::vector<BlockId> blocks = SequenceStore::BlocksOf(kLongRows, kLongRows + kPromptRows);
    const std::int64_t own = kLongRows + kPromptRows + sample * kOwnRows;
    for (const BlockId block : SequenceStore::BlocksOf(own, own + kOwnRows))
      blocks.push_back(block);
    requests.push_back({blocks, sample == 0 ? 0 : kPromptRows, kPromptRows + kOwnRows});
  }
  return requests;
}

enum class Way {
  kHandle,     // published whole, fetched by handle: the reader has all rows of every request
  kHandleNew,  // the same, and the reader decodes the new rows only
  kAll,        // a document of all rows, every time
  kNew,        // a document of the new rows
};

// A document for each request: of all its rows, or of the new ones.
Moved MoveDocuments(std::span<const RowRequest> requests, const wire::ChunkCode& code,
                    bool new_rows_only) {
  Moved moved;
  for (const RowRequest& request : requests) {
    const Snapshot snapshot =
        Sequences().Take(request.blocks, new_rows_only ? request.first : 0, request.last);
    absl::StatusOr<std::vector<std::uint8_t>> bytes;
    moved.sending += Time([&] { bytes = wire::WriteDocument(snapshot, {.code = code}); });
    Demand(bytes.ok(), "no document");
    moved.receiving += Time([&] {
      const auto document = wire::Document::Open(*bytes);
      Demand(document.ok(), "no document");
      const auto rows = document->ReadRows(document->All());
      Demand(rows.ok() && rows->infos.back().valid(), "rows");
    });
    moved.bytes += bytes->size();
  }
  return moved;
}

void Move(benchmark::State& state, Work work, Way way, bool sets) {
  const wire::ChunkCode code =
      sets ? wire::ChunkCode::SetCodeFor(SequenceStore::shape()) : wire::ChunkCode{};
  const std::vector<RowRequest> requests = Requests(work);
  std::int64_t unique = 0;
  for (const RowRequest& request : requests)
    unique += request.last - request.first;
  const double unique_bytes = static_cast<double>(unique) * kLayers * kTopK;
  Times times(static_cast<std::size_t>(state.max_iterations));
  Times sending(static_cast<std::size_t>(state.max_iterations));
  Moved moved;
  for (auto _ : state) {
    const bool new_rows_only = way == Way::kHandleNew || way == Way::kNew;
    moved = way == Way::kHandle || way == Way::kHandleNew
                ? MoveByHandle(Sequences(), requests, code, new_rows_only)
                : MoveDocuments(requests, code, new_rows_only);
    times.Add(moved.sending + moved.receiving);
    sending.Add(moved.sending);
    state.SetIterationTime((moved.sending + moved.receiving) / 1e9);
  }
  const double bytes = static_cast<double>(moved.bytes);
  state.counters["MB"] = bytes / 1e6;
  state.counters["of_unique"] = bytes / unique_bytes;
  state.counters["ms"] = times.Micros(0.1) / 1e3;
  state.counters["send_ms"] = sending.Micros(0.1) / 1e3;
  state.counters["encoded"] = static_cast<double>(moved.pages_encoded);
  if (work == Work::kTurns && way == Way::kHandle && !sets) {
    Demand(bytes <= 1.05 * unique_bytes, "the turns take more than 1.05 times the final array");
  }
}

#define WAYMARK_MOVE(name, ...) \
  BENCHMARK_CAPTURE(Move, name, __VA_ARGS__)->UseManualTime()->Iterations(5)

WAYMARK_MOVE(turns_handle, Work::kTurns, Way::kHandle, false);
WAYMARK_MOVE(turns_handle_new, Work::kTurns, Way::kHandleNew, false);
WAYMARK_MOVE(turns_all, Work::kTurns, Way::kAll, false);
WAYMARK_MOVE(turns_new, Work::kTurns, Way::kNew, false);
WAYMARK_MOVE(turns_handle_new_sets, Work::kTurns, Way::kHandleNew, true);
WAYMARK_MOVE(group_handle, Work::kGroup, Way::kHandle, false);
WAYMARK_MOVE(group_handle_new, Work::kGroup, Way::kHandleNew, false);
WAYMARK_MOVE(group_all, Work::kGroup, Way::kAll, false);
WAYMARK_MOVE(group_new, Work::kGroup, Way::kNew, false);

}  // namespace
}  // namespace waymark::bench
