#include "adapters/bench/wire_workload.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "blockstore/wire/document.h"
#include "blockstore/wire/fetcher.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/publisher.h"

namespace waymark::bench {
namespace {

constexpr std::int32_t kPage = 16;
constexpr int kTurnCount = 100;

// Copies token-major rows without a look at them.
class BytesSource final : public StepRows {
 public:
  BytesSource(const std::uint8_t* rows, std::size_t row_bytes)
      : rows_(rows), row_bytes_(row_bytes) {}
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

}  // namespace

// ---- documents

Rows DocumentRows() {
  Rows rows;
  rows.shape = Shape(kPage);
  rows.ids = TokenMajorBytes(kLongRows - 1, 5);
  rows.infos.resize(static_cast<std::size_t>(kLongRows) - 1);
  for (std::size_t i = 0; i < rows.infos.size(); ++i) {
    rows.infos[i] = {i < 24576 ? 1 + i / 8192 : 4 + (i - 24576), 1, Reason::kNone,
                     i < 8192 ? Provenance::kByKey : Provenance::kHere};
  }
  return rows;
}

DocumentTurns::DocumentTurns(const wire::DocumentOptions& options, Clock clock)
    : options_(options),
      clock_(clock),
      rows_(DocumentRows()),
      again_(rows_),
      copied_(rows_.ids.size(), 1) {
  auto bytes = wire::WriteDocument(rows_, options_);
  Demand(bytes.ok(), "no document");
  bytes_ = *std::move(bytes);
  RoundTrip();
  Demand(again_.infos == rows_.infos && (!options_.code.ordered || again_.ids == rows_.ids),
         "other rows came back");
}

double DocumentTurns::RoundTrip() {
  bool ok = false;
  const double nanoseconds = Time(
      [&] {
        const auto writer = wire::DocumentWriter::Create(rows_, options_);
        ok = writer.ok() && writer->WriteTo(bytes_).ok();
        const auto received = wire::Document::Open(bytes_);
        ok = ok && received.ok() && received->ReadRows(received->All(), again_).ok();
        KeepAlive(again_.ids.data());
      },
      clock_);
  Demand(ok, "a document failed");
  return nanoseconds;
}

double DocumentTurns::Copy() {
  return Time(
      [&] {
        bench::Copy(copied_.data(), rows_.ids.data(), copied_.size());
        KeepAlive(copied_.data());
      },
      clock_);
}

// ---- conversations

SequenceStore::SequenceStore(std::int64_t rows) {
  StoreOptions options;
  options.shape = shape();
  options.num_blocks = static_cast<std::int32_t>(rows / kPage);
  options.landing = Landing::kCaller;
  options.max_step_rows = kPrefillRows;
  auto made = RoutingStore::Create(options);
  Demand(made.ok(), "no store");
  store_ = *std::move(made);
  const std::vector<std::uint8_t> bytes = TokenMajorBytes(rows, 77);
  std::vector<std::int64_t> slots(kPrefillRows);
  std::uint64_t step = 0;
  for (std::int64_t at = 0; at < rows; at += kPrefillRows) {
    for (std::size_t i = 0; i < slots.size(); ++i)
      slots[i] = at + static_cast<std::int64_t>(i);
    BytesSource source(bytes.data() + static_cast<std::size_t>(at) * options.shape.row_bytes(),
                       options.shape.row_bytes());
    Demand(store_->BeginStep({++step, 1, nullptr, 0, slots.data(), slots.size()}).ok(), "begin");
    Demand(store_->Submit(StepId(step), &source).ok(), "submit");
    Demand(store_->LandOne(), "land");
  }
}

Snapshot SequenceStore::Take(std::span<const BlockId> blocks, std::int64_t first,
                             std::int64_t last) {
  auto snapshot = store_->TakeSnapshot(blocks, first, last);
  Demand(snapshot.ok(), "no snapshot");
  return *std::move(snapshot);
}

std::vector<BlockId> SequenceStore::BlocksOf(std::int64_t begin, std::int64_t end) {
  std::vector<BlockId> blocks;
  for (std::int64_t row = begin; row < end; row += kPage)
    blocks.emplace_back(static_cast<std::int32_t>(row / kPage));
  return blocks;
}

std::vector<RowRequest> ConversationTurns() {
  std::vector<RowRequest> requests;
  std::int64_t first = 0;
  for (int turn = 1; turn <= kTurnCount; ++turn) {
    const std::int64_t last = kLongRows * turn / kTurnCount - 1;
    requests.push_back({SequenceStore::BlocksOf(0, kLongRows), first, last});
    first = last;
  }
  return requests;
}

Moved MoveByHandle(SequenceStore& store, std::span<const RowRequest> requests,
                   const wire::ChunkCode& code, bool new_rows_only) {
  wire::MemorySource source(std::size_t{1} << 30);
  const wire::WireShape shape{SequenceStore::shape(), code};
  auto publisher = wire::Publisher::Create(&source, {.shape = shape, .store = "bench"});
  Demand(publisher.ok(), "no publisher");
  wire::Fetcher fetcher(&source);
  Moved moved;
  for (const RowRequest& request : requests) {
    Snapshot snapshot = store.Take(request.blocks, 0, request.last);
    absl::StatusOr<std::vector<std::uint8_t>> handle;
    moved.sending += Time([&] {
      const auto published = (*publisher)->Publish("", std::move(snapshot)).get();
      Demand(published.ok(), "not published");
      handle = wire::EncodeHandle(*published);
    });
    Demand(handle.ok(), "no handle");
    moved.receiving += Time([&] {
      const auto parsed = wire::ParseHandle(*handle);
      Demand(parsed.ok(), "no handle");
      wire::FetchReport report;
      const auto rows =
          fetcher.Fetch(*parsed, {new_rows_only ? request.first : 0, request.last, 0, kLayers},
                        wire::After(std::chrono::seconds(60)), &report);
      Demand(rows.ok() && rows->infos.back().valid() && report.counts.absent == 0, "rows");
    });
    moved.bytes += handle->size();
  }
  moved.bytes += fetcher.GetCounts().fetched_bytes;
  moved.pages_encoded = (*publisher)->GetStats().pages_encoded;
  return moved;
}

}  // namespace waymark::bench
