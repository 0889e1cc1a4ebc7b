// A conversation of 100 turns that ends with 32k rows, and a group of 16 samples of one prompt of
// 8k rows with 512 of their own: bytes and time from pages to a reader's rows, by handle through a
// source in memory, against sending everything again and against sending what is new.
//
// Budget: the turns fetch at most 1.05 times the bytes of the final array.
#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "blockstore/wire/document.h"
#include "blockstore/wire/document_writer.h"
#include "blockstore/wire/fetcher.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/publisher.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr std::int32_t kPage = 16;
constexpr int kTurnCount = 100;
constexpr int kSamples = 16;
constexpr std::int64_t kPromptRows = 8192;
constexpr std::int64_t kOwnRows = 512;
constexpr std::int64_t kGroupRows = kPromptRows + kSamples * kOwnRows;

// Rows of a sequence, each unlike every other, in blocks of their own.
struct Sequences {
  Sequences() {
    StoreOptions options;
    options.shape = Shape(kPage);
    options.num_blocks = static_cast<std::int32_t>((kLongRows + kGroupRows) / kPage);
    options.landing = Landing::kCaller;
    options.max_step_rows = kPrefillRows;
    auto made = RoutingStore::Create(options);
    Demand(made.ok(), "no store");
    store = *std::move(made);
    const std::int64_t rows = kLongRows + kGroupRows;
    const std::vector<std::uint8_t> bytes = TokenMajorBytes(rows, 77);
    std::vector<std::int64_t> slots(kPrefillRows);
    std::uint64_t step = 0;
    for (std::int64_t at = 0; at < rows; at += kPrefillRows) {
      for (std::size_t i = 0; i < slots.size(); ++i)
        slots[i] = at + static_cast<std::int64_t>(i);
      Bytes source(bytes.data() + static_cast<std::size_t>(at) * options.shape.row_bytes(),
                   options.shape.row_bytes());
      Demand(store->BeginStep({++step, 1, nullptr, 0, slots.data(), slots.size()}).ok(), "begin");
      Demand(store->Submit(StepId(step), &source).ok(), "submit");
      Demand(store->LandOne(), "land");
    }
  }
  static Sequences& Get() {
    static Sequences sequences;
    return sequences;
  }
  Snapshot Take(std::span<const BlockId> blocks, std::int64_t first, std::int64_t last) {
    auto snapshot = store->TakeSnapshot(blocks, first, last);
    Demand(snapshot.ok(), "no snapshot");
    return *std::move(snapshot);
  }
  // The blocks of the conversation, and of a sample: the prompt's, then its own.
  static std::vector<BlockId> Conversation() { return Blocks(0, kLongRows); }
  static std::vector<BlockId> Sample(int sample) {
    std::vector<BlockId> blocks = Blocks(kLongRows, kLongRows + kPromptRows);
    const std::int64_t own = kLongRows + kPromptRows + sample * kOwnRows;
    for (const BlockId block : Blocks(own, own + kOwnRows))
      blocks.push_back(block);
    return blocks;
  }

  std::unique_ptr<RoutingStore> store;

 private:
  class Bytes final : public RowSource {
   public:
    Bytes(const std::uint8_t* rows, std::size_t row_bytes) : rows_(rows), row_bytes_(row_bytes) {}
    void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
              std::span<Reason> verdicts) override {
      for (std::size_t i = 0; i < destinations.size(); ++i) {
        if (destinations[i] == nullptr) continue;
        std::copy_n(rows_ + (first + i) * row_bytes_, row_bytes_, destinations[i]);
        verdicts[i] = Reason::kNone;
      }
    }
    void Done() override {}

   private:
    const std::uint8_t* const rows_;
    const std::size_t row_bytes_;
  };
  static std::vector<BlockId> Blocks(std::int64_t begin, std::int64_t end) {
    std::vector<BlockId> blocks;
    for (std::int64_t row = begin; row < end; row += kPage)
      blocks.emplace_back(static_cast<std::int32_t>(row / kPage));
    return blocks;
  }
};

// What is asked for, one after the other: rows [first, last) are new to the reader.
struct Request {
  std::vector<BlockId> blocks;
  std::int64_t first = 0;
  std::int64_t last = 0;
};
enum class Work { kTurns, kGroup };
std::vector<Request> Requests(Work work) {
  std::vector<Request> requests;
  if (work == Work::kGroup) {
    for (int sample = 0; sample < kSamples; ++sample) {
      requests.push_back(
          {Sequences::Sample(sample), sample == 0 ? 0 : kPromptRows, kPromptRows + kOwnRows});
    }
    return requests;
  }
  // The last row of a sequence is none: 327 or 328 rows a turn, and no turn ends with a page.
  std::int64_t first = 0;
  for (int turn = 1; turn <= kTurnCount; ++turn) {
    const std::int64_t last = kLongRows * turn / kTurnCount - 1;
    requests.push_back({Sequences::Conversation(), first, last});
    first = last;
  }
  return requests;
}

enum class Way {
  kHandle,     // published whole, fetched by handle: the reader has all rows of every request
  kHandleNew,  // the same, and the reader decodes the new rows only
  kAll,        // a document of all rows, every time
  kNew,        // a document of the new rows
};

void Move(benchmark::State& state, Work work, Way way, bool sets) {
  Sequences& sequences = Sequences::Get();
  const wire::WireShape shape{Shape(kPage),
                              sets ? wire::ChunkCode::SetCodeFor(Shape(kPage)) : wire::ChunkCode{}};
  const std::vector<Request> requests = Requests(work);
  std::int64_t unique = 0;
  for (const Request& request : requests)
    unique += request.last - request.first;
  const double unique_bytes = static_cast<double>(unique) * kLayers * kTopK;
  Times times(static_cast<std::size_t>(state.max_iterations));
  Times sending(static_cast<std::size_t>(state.max_iterations));
  double moved = 0;
  std::uint64_t encoded = 0;
  for (auto _ : state) {
    wire::MemorySource source(std::size_t{1} << 30);
    auto publisher = wire::Publisher::Create(&source, {.shape = shape, .store = "bench"});
    Demand(publisher.ok(), "no publisher");
    wire::Fetcher fetcher(&source);
    moved = 0;
    double sent = 0;
    double received = 0;
    for (const Request& request : requests) {
      const bool by_handle = way == Way::kHandle || way == Way::kHandleNew;
      Snapshot snapshot =
          sequences.Take(request.blocks, way == Way::kNew ? request.first : 0, request.last);
      if (by_handle) {
        absl::StatusOr<std::vector<std::uint8_t>> handle;
        sent += Time([&] {
          const auto published = (*publisher)->Publish("s", std::move(snapshot)).get();
          Demand(published.ok(), "not published");
          handle = wire::EncodeHandle(*published);
        });
        received += Time([&] {
          const auto parsed = wire::ParseHandle(*handle);
          Demand(parsed.ok(), "no handle");
          const std::int64_t first = way == Way::kHandle ? 0 : request.first;
          wire::FetchReport report;
          const auto rows = fetcher.Fetch(*parsed, {first, request.last, 0, kLayers},
                                          wire::After(std::chrono::seconds(60)), &report);
          Demand(rows.ok() && rows->infos.back().valid() && report.counts.absent == 0, "rows");
        });
        moved += static_cast<double>(handle->size());
      } else {
        absl::StatusOr<std::vector<std::uint8_t>> bytes;
        sent += Time([&] { bytes = wire::WriteDocument(snapshot, {.code = shape.code}); });
        Demand(bytes.ok(), "no document");
        received += Time([&] {
          const auto document = wire::Document::Open(*bytes);
          Demand(document.ok(), "no document");
          const auto rows = document->ReadRows(document->All());
          Demand(rows.ok() && rows->infos.back().valid(), "rows");
        });
        moved += static_cast<double>(bytes->size());
      }
    }
    moved += static_cast<double>(fetcher.GetCounts().fetched_bytes);
    encoded = (*publisher)->GetStats().pages_encoded;
    times.Add(sent + received);
    sending.Add(sent);
    state.SetIterationTime((sent + received) / 1e9);
  }
  state.counters["MB"] = moved / 1e6;
  state.counters["of_unique"] = moved / unique_bytes;
  state.counters["ms"] = times.Micros(0.1) / 1e3;
  state.counters["send_ms"] = sending.Micros(0.1) / 1e3;
  state.counters["encoded"] = static_cast<double>(encoded);
  if (work == Work::kTurns && way == Way::kHandle && !sets) {
    Demand(moved <= 1.05 * unique_bytes, "the turns take more than 1.05 times the final array");
  }
}

#define WAYMARK_BENCH(name, ...) \
  BENCHMARK_CAPTURE(Move, name, __VA_ARGS__)->UseManualTime()->Iterations(5)

WAYMARK_BENCH(turns_handle, Work::kTurns, Way::kHandle, false);
WAYMARK_BENCH(turns_handle_new, Work::kTurns, Way::kHandleNew, false);
WAYMARK_BENCH(turns_all, Work::kTurns, Way::kAll, false);
WAYMARK_BENCH(turns_new, Work::kTurns, Way::kNew, false);
WAYMARK_BENCH(turns_handle_new_sets, Work::kTurns, Way::kHandleNew, true);
WAYMARK_BENCH(group_handle, Work::kGroup, Way::kHandle, false);
WAYMARK_BENCH(group_handle_new, Work::kGroup, Way::kHandleNew, false);
WAYMARK_BENCH(group_all, Work::kGroup, Way::kAll, false);
WAYMARK_BENCH(group_new, Work::kGroup, Way::kNew, false);

}  // namespace
}  // namespace waymark::bench
