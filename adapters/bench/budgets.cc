#include "adapters/bench/budgets.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "adapters/bench/measure.h"
#include "adapters/bench/workload.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/document_writer.h"
#include "blockstore/wire/fetcher.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/publisher.h"

namespace waymark::bench {
namespace {

constexpr std::int64_t kLongRows = 32768;
constexpr std::size_t kRowBytes = std::size_t{kLayers} * kTopK;

constexpr Budget kBudgets[] = {
    {"step-warm", "begin + submit, 256 decode rows, warm", Limit::kMicros, 1},
    {"step-cold-core", "  the core's own caches cold", Limit::kMicros, 1.5},
    {"step-cold", "  everything cold", Limit::kMicros, 3},
    {"events-warm", "  with 32 events, warm", Limit::kMicros, 2},
    {"events-cold", "  with 32 events, everything cold", Limit::kMicros, 3.5},
    {"prefill", "begin + submit, prefill of 8,192 rows", Limit::kMicros, 12},
    {"landing-u8", "landing 256 rows, token-major uint8", Limit::kTimes, 1.2, "row-wise memcpy"},
    {"landing-i16", "landing 256 rows, layer-major int16", Limit::kTimes, 2.5, "row-wise memcpy"},
    {"landing-prefill", "landing 8,192 rows, layer-major int16", Limit::kTimes, 2.5,
     "page-wise memcpy", true},
    {"snapshot-warm", "snapshot of 32k rows, engine's thread, warm", Limit::kMicros, 2},
    {"snapshot-cold-core", "  the core's own caches cold", Limit::kMicros, 4},
    {"snapshot-cold", "  everything cold", Limit::kMicros, 4},
    {"read-16", "read 32k rows [T, L, K], 16 tokens per page", Limit::kSpeed, 0.45, "memcpy", true},
    {"read-64", "  64 tokens per page", Limit::kSpeed, 0.7, "memcpy", true},
    {"read-256", "  256 tokens per page", Limit::kSpeed, 0.9, "memcpy", true},
    {"wire", "raw document of 32k rows, written and read", Limit::kMillis, 12, "memcpy", true},
    {"wire-bytes", "  its bytes", Limit::kMegabytes, 15.2},
    {"set-code", "set code document of 32k rows, written and read", Limit::kMillis, 30, "memcpy",
     true},
    {"set-code-bytes", "  its bytes", Limit::kMegabytes, 12.2},
    {"turns", "100 turns of one conversation, bytes", Limit::kTimesBytes, 1.05, "final array"},
};

bool Timed(const Budget& budget) {
  return budget.limit != Limit::kMegabytes && budget.limit != Limit::kTimesBytes;
}

// Nanoseconds of one call and of its baseline.
struct Turn {
  double time = 0;
  double baseline = 0;
};

// A copy of bytes, as a baseline.
class CopyTurns {
 public:
  explicit CopyTurns(std::size_t bytes) : from_(bytes, 1), to_(bytes) {}
  double Copy() {
    return Time(
        [&] {
          bench::Copy(to_.data(), from_.data(), to_.size());
          KeepAlive(to_.data());
        },
        Clock::kProcessor);
  }

 private:
  std::vector<std::uint8_t> from_, to_;
};

// Landing in turns with memcpy to pages of the same store: one call for each run of rows that lie
// next to each other there, so row by row for decode steps and page by page for a prefill. It goes
// where rows were landed half a period earlier, so that both meet the same caches.
class LandingTurns {
 public:
  // The ids of `rows` are those of `bytes`, whose copy is the baseline; both outlive this.
  // `period`: steps until the same slots come again.
  LandingTurns(FilledStore& store, PackedRows& rows, std::span<const std::uint8_t> bytes,
               std::size_t period, Clock clock)
      : store_(store), rows_(rows), bytes_(bytes), clock_(clock), landed_(period) {}

  // Lands the step, then copies, but not before the first period has ended.
  Turn Take(const StepBatch& batch) {
    Turn turn;
    const std::size_t period = landed_.size();
    store_.Run(batch, &rows_);
    store_.ApplyLog();
    turn.time = Time([&] { store_.Settle(); }, clock_);
    std::vector<Run>& runs = landed_[turns_ % period];
    runs.clear();
    for (std::uint8_t* const row : rows_.landed().first(batch.num_slots)) {
      if (runs.empty() || runs.back().to + runs.back().bytes != row) runs.push_back({row, 0});
      runs.back().bytes += kRowBytes;
    }
    const std::vector<Run>& copied = landed_[(turns_ + period / 2) % period];
    if (++turns_ <= period) return turn;
    turn.baseline = Time([&] { CopyTo(copied); }, clock_);
    return turn;
  }

 private:
  struct Run {
    std::uint8_t* to;
    std::size_t bytes;
  };
  void CopyTo(const std::vector<Run>& runs) const {
    const std::uint8_t* from = bytes_.data();
    for (const Run& run : runs) {
      Copy(run.to, from, run.bytes);
      from += run.bytes;
    }
    KeepAlive(runs.data());
  }

  FilledStore& store_;
  PackedRows& rows_;
  const std::span<const std::uint8_t> bytes_;
  const Clock clock_;
  std::vector<std::vector<Run>> landed_;  // of the steps of one period
  std::size_t turns_ = 0;
};

// The blocks of sequence number `which`, of 32k rows; sequences share no block.
std::span<const BlockId> LongSequence(const FilledStore& store, std::size_t which) {
  const auto blocks = static_cast<std::size_t>(kLongRows / store.page_tokens());
  return store.shuffled().subspan(which * blocks, blocks);
}

// 32,767 rows: a prompt in chunks of 8192 rows, then one row a step. All pages but the last are
// complete.
Rows LongRows() {
  Rows rows;
  rows.shape = Shape(16);
  rows.ids = TokenMajorBytes(kLongRows - 1, 5);
  rows.infos.resize(static_cast<std::size_t>(kLongRows) - 1);
  for (std::size_t i = 0; i < rows.infos.size(); ++i) {
    rows.infos[i] = {i < 24576 ? 1 + i / 8192 : 4 + (i - 24576), 1, Reason::kNone,
                     i < 8192 ? Provenance::kByKey : Provenance::kHere};
  }
  return rows;
}

Rows Prefix(const Rows& rows, std::int64_t count) {
  const auto size = static_cast<std::ptrdiff_t>(count);
  Rows prefix;
  prefix.shape = rows.shape;
  prefix.ids.assign(rows.ids.begin(),
                    rows.ids.begin() + size * static_cast<std::ptrdiff_t>(kRowBytes));
  prefix.infos.assign(rows.infos.begin(), rows.infos.begin() + size);
  return prefix;
}

// The bytes of handles, nodes and chunks of a conversation of 100 turns that ends with `all`: each
// turn is published whole and fetched by handle through a page source in memory. 327 or 328 rows a
// turn, and no turn ends with a page. The last row of a sequence has no routing.
std::uint64_t ConversationBytes(const Rows& all) {
  wire::MemorySource source(std::size_t{1} << 30);
  const wire::WireShape shape{all.shape, {}};
  auto publisher = wire::Publisher::Create(&source, {.shape = shape, .store = "bench"});
  Demand(publisher.ok(), "no publisher");
  wire::Fetcher fetcher(&source);
  std::uint64_t bytes = 0;
  constexpr int kTurns = 100;
  for (int turn = 1; turn <= kTurns; ++turn) {
    const std::int64_t last = kLongRows * turn / kTurns - 1;
    const auto published = (*publisher)->Publish("", Prefix(all, last)).get();
    Demand(published.ok(), "not published");
    const auto handle = wire::EncodeHandle(published->handle);
    Demand(handle.ok(), "no handle");
    bytes += handle->size();
    wire::FetchReport report;
    const auto rows = fetcher.Fetch(published->handle, {0, last, 0, kLayers},
                                    wire::After(std::chrono::seconds(60)), &report);
    Demand(rows.ok() && rows->infos.back().valid() && report.counts.absent == 0, "rows");
  }
  return bytes + fetcher.GetCounts().fetched_bytes;
}

class Measuring {
 public:
  Measuring(const BudgetOptions& options,
            const std::function<void(std::size_t, std::size_t, std::string_view)>& progress)
      : options_(options), progress_(progress) {
    for (const Budget& budget : kBudgets) {
      if (!budget.name.starts_with(options.only)) continue;
      results_.push_back({.budget = budget});
      timed_ += Timed(budget) ? 1 : 0;
    }
  }

  std::vector<BudgetResult> All() {
    if (Wants("step") || Wants("events") || Wants("landing") || Wants("snapshot") ||
        Wants("read-16") || Wants("prefill")) {
      // The engine's thread appends records; they are applied outside the timed calls.
      FilledStore store(options_.store_rows, 16, Landing::kManual);
      DecodeStep("step-warm", store, Blocks::kSame, Caches::kWarm);
      DecodeStep("step-cold-core", store, Blocks::kOthers, Caches::kColdOwn);
      DecodeStep("step-cold", store, Blocks::kOthers, Caches::kCold);
      TakeSnapshot("snapshot-warm", store, Caches::kWarm);
      TakeSnapshot("snapshot-cold-core", store, Caches::kColdOwn);
      TakeSnapshot("snapshot-cold", store, Caches::kCold);
      Read("read-16", store);
      Landing256("landing-u8", store, true);
      Landing256("landing-i16", store, false);
      // From here on the pages of the store turn over.
      DecodeStep("events-warm", store, Blocks::kTurnover, Caches::kWarm);
      DecodeStep("events-cold", store, Blocks::kTurnover, Caches::kCold);
      Prefill(store);
    }
    for (const std::int32_t page_tokens : {64, 256}) {
      const std::string name = "read-" + std::to_string(page_tokens);
      if (!Wants(name)) continue;
      FilledStore store(options_.store_rows, page_tokens, Landing::kCaller);
      Read(name, store);
    }
    Document("wire", {});
    Document("set-code", wire::ChunkCode::SetCodeFor(Shape(16)));
    if (BudgetResult* const result = Find("turns"); result != nullptr) {
      const Rows rows = LongRows();
      result->bytes = ConversationBytes(rows);
      result->ratio = static_cast<double>(result->bytes) / static_cast<double>(rows.ids.size());
      result->met = result->ratio <= result->budget.value;
    }
    return std::move(results_);
  }

 private:
  // Is a budget measured whose name begins with `group`?
  [[nodiscard]] bool Wants(std::string_view group) const {
    return std::any_of(results_.begin(), results_.end(), [&](const BudgetResult& result) {
      return result.budget.name.starts_with(group);
    });
  }
  [[nodiscard]] BudgetResult* Find(std::string_view name) {
    const auto found = std::find_if(results_.begin(), results_.end(),
                                    [&](const auto& result) { return result.budget.name == name; });
    return found == results_.end() ? nullptr : &*found;
  }

  // Takes turns until the budget's share of the time is over; does nothing for one that is not
  // wanted. The first `warm_up` turns are not counted.
  template <class TakeTurn>
  void Measure(std::string_view name, std::size_t warm_up, TakeTurn&& take_turn) {
    BudgetResult* const result = Find(name);
    if (result == nullptr) return;
    progress_(done_++, timed_, name);
    for (std::size_t i = 0; i < warm_up; ++i)
      (void)take_turn();
    // Few turns make a bad median, so a slow row may take three times its share.
    constexpr std::size_t kLeast = 3;
    constexpr std::size_t kEnough = 15;
    const double share = options_.seconds * 1e9 / static_cast<double>(timed_);
    Times times, baseline;
    const double begin = Now(Clock::kWall);
    for (double spent = 0;
         times.size() < kLeast || spent < (times.size() < kEnough ? 3 * share : share);) {
      const Turn turn = take_turn();
      times.Add(turn.time);
      baseline.Add(turn.baseline);
      spent = Now(Clock::kWall) - begin;
    }
    result->turns = times.size();
    result->median_us = times.Micros(0.5);
    result->decile_us = times.Micros(0.1);
    result->baseline_us = baseline.Micros(result->budget.slow ? 0.1 : 0.5);
    JudgeTime(*result);
  }

  static void JudgeTime(BudgetResult& result) {
    const Budget& budget = result.budget;
    const double micros = budget.slow ? result.decile_us : result.median_us;
    const bool speed = budget.limit == Limit::kSpeed;
    if (!budget.baseline.empty()) {
      result.ratio = speed ? result.baseline_us / micros : micros / result.baseline_us;
    }
    const double judged = budget.limit == Limit::kMicros   ? micros
                          : budget.limit == Limit::kMillis ? micros / 1000
                                                           : result.ratio;
    result.met = speed ? judged >= budget.value : judged <= budget.value;
  }

  void DecodeStep(std::string_view name, FilledStore& store, Blocks blocks, Caches caches) {
    if (Find(name) == nullptr) return;
    BenchRows rows(kDecodeRows);
    DecodeSteps steps(store, blocks);
    Measure(name, caches == Caches::kCold ? 2 : 64, [&] {
      walk_.Make(caches);
      const double time = store.Run(steps.Next(), &rows.layer_major);
      store.Settle();
      return Turn{time, 0};
    });
  }

  // The step between two snapshots takes the last one back, as in an engine. With cold caches it is
  // another sequence every time.
  void TakeSnapshot(std::string_view name, FilledStore& store, Caches caches) {
    const std::size_t sequences = store.shuffled().size() / LongSequence(store, 0).size();
    std::size_t which = 0;
    std::vector<BlockId> blocks;
    Measure(name, 2, [&] {
      store.Run({store.NextStep(), 1, nullptr, 0, nullptr, 0}, nullptr);
      store.Settle();
      if (caches != Caches::kWarm) which = (which + 1) % sequences;
      walk_.Make(caches);
      const auto sequence = LongSequence(store, which);
      blocks.assign(sequence.begin(), sequence.end());
      absl::StatusOr<Snapshot> snapshot;
      const double time =
          Time([&] { snapshot = store.store().TakeSnapshot(blocks, 0, kLongRows); });
      Demand(snapshot.ok() && snapshot->size() == kLongRows, "no snapshot");
      return Turn{time, 0};
    });
  }

  void Read(std::string_view name, FilledStore& store) {
    if (Find(name) == nullptr) return;
    const auto snapshot = store.store().TakeSnapshot(LongSequence(store, 0), 0, kLongRows);
    Demand(snapshot.ok(), "no snapshot");
    store.ApplyLog();
    std::vector<std::uint8_t> out(static_cast<std::size_t>(kLongRows) * kRowBytes);
    CopyTurns copies(out.size());
    const ReadSpec spec{Layout::kTokensLayersK, IdType::kUint8, Fill::kZeros};
    Measure(name, 1, [&] {
      bool ok = false;
      const double time = Time(
          [&] {
            ok = snapshot->Read(0, kLongRows, spec, out, {}).ok();
            KeepAlive(out.data());
          },
          Clock::kProcessor);
      Demand(ok, "a read failed");
      return Turn{time, copies.Copy()};
    });
  }

  void Landing256(std::string_view name, FilledStore& store, bool token_major) {
    if (Find(name) == nullptr) return;
    BenchRows rows(kDecodeRows);
    DecodeSteps steps(store, Blocks::kSame);
    LandingTurns turns(store, token_major ? rows.token_major : rows.layer_major, rows.bytes,
                       steps.period(), Clock::kWall);
    Measure(name, steps.period(), [&] { return turns.Take(steps.Next()); });
  }

  void Prefill(FilledStore& store) {
    if (!Wants("prefill") && !Wants("landing-prefill")) return;
    BenchRows rows(kPrefillRows);
    PrefillSteps steps(store);
    Measure("prefill", 1, [&] {
      const double time = store.Run(steps.Next(), &rows.layer_major);
      store.Settle();
      return Turn{time, 0};
    });
    LandingTurns turns(store, rows.layer_major, rows.bytes, steps.period(), Clock::kProcessor);
    Measure("landing-prefill", steps.period(), [&] { return turns.Take(steps.Next()); });
  }

  // Rows to bytes to Rows in memory that was used before.
  void Document(const std::string& name, const wire::ChunkCode& code) {
    if (!Wants(name)) return;
    const wire::DocumentOptions options{.code = code};
    const Rows rows = LongRows();
    Rows again = rows;
    auto bytes = wire::WriteDocument(rows, options);
    Demand(bytes.ok(), "no document");
    const auto round_trip = [&] {
      const auto writer = wire::DocumentWriter::Create(rows, options);
      bool ok = writer.ok() && writer->WriteTo(*bytes).ok();
      const auto received = wire::Document::Open(*bytes);
      ok = ok && received.ok() && received->ReadRows(received->All(), again).ok();
      KeepAlive(again.ids.data());
      Demand(ok, "a document failed");
    };
    round_trip();
    // A set code returns ids in its own order.
    Demand(again.infos == rows.infos && (!code.ordered || again.ids == rows.ids),
           "other rows came back");
    CopyTurns copies(rows.ids.size());
    Measure(name, 1, [&] {
      const double time = Time(round_trip, Clock::kProcessor);
      return Turn{time, copies.Copy()};
    });
    BudgetResult* const result = Find(name + "-bytes");
    if (result == nullptr) return;
    result->bytes = bytes->size();
    // To the tenth of a megabyte that the budget is stated in: raw ids alone are 15.204 MB.
    const double megabytes = static_cast<double>(result->bytes) / 1e6;
    result->met = std::round(megabytes * 10) / 10 <= result->budget.value;
  }

  const BudgetOptions& options_;
  const std::function<void(std::size_t, std::size_t, std::string_view)>& progress_;
  CacheWalk walk_;
  std::vector<BudgetResult> results_;
  std::size_t timed_ = 0;
  std::size_t done_ = 0;
};

}  // namespace

std::span<const Budget> Budgets() {
  return kBudgets;
}

std::vector<BudgetResult> MeasureBudgets(
    const BudgetOptions& options,
    const std::function<void(std::size_t, std::size_t, std::string_view)>& progress) {
  return Measuring(options, progress).All();
}

}  // namespace waymark::bench
