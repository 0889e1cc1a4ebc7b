#include "adapters/cli/budgets.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "adapters/bench/measure.h"
#include "adapters/bench/wire_workload.h"
#include "adapters/bench/workload.h"

namespace waymark::cli {
namespace {

using bench::Caches;
using bench::Clock;
using bench::Times;

constexpr std::string_view kRowCopy = "row-wise memcpy";
constexpr std::string_view kPageCopy = "page-wise memcpy";
constexpr std::string_view kCopy = "memcpy";

constexpr Budget kBudgets[] = {
    {"step-warm", "begin + submit, 256 decode rows, warm", Limit::kMicros, 1, Judge::kMedian},
    {"step-cold-core", "  the core's own caches cold", Limit::kMicros, 1.5, Judge::kMedian},
    {"step-cold", "  everything cold", Limit::kMicros, 3, Judge::kMedian},
    {"prefill", "begin + submit, prefill of 8,192 rows", Limit::kMicros, 12, Judge::kMedian},
    {"vllm-step", "in vLLM, 256 decode rows, all of its threads", Limit::kOwed, 0, Judge::kMedian,
     "", "<= 25 us, ids <= 6 us per layer"},
    {"landing-u8", "landing 256 rows, token-major uint8", Limit::kTimes, 1.2, Judge::kMedian,
     kRowCopy},
    {"landing-i16", "landing 256 rows, layer-major int16", Limit::kTimes, 2.5, Judge::kMedian,
     kRowCopy},
    {"landing-prefill", "landing 8,192 rows, layer-major int16", Limit::kTimes, 2.5,
     Judge::kLowerDecile, kPageCopy},
    {"snapshot-warm", "snapshot of 32k rows, engine's thread, warm", Limit::kMicros, 2,
     Judge::kMedian},
    {"snapshot-cold-core", "  the core's own caches cold", Limit::kMicros, 4, Judge::kMedian},
    {"snapshot-cold", "  everything cold", Limit::kMicros, 4, Judge::kMedian},
    {"read-16", "read 32k rows [T, L, K], 16 tokens per page", Limit::kSpeed, 0.45,
     Judge::kLowerDecile, kCopy},
    {"read-64", "  64 tokens per page", Limit::kSpeed, 0.7, Judge::kLowerDecile, kCopy},
    {"read-256", "  256 tokens per page", Limit::kSpeed, 0.9, Judge::kLowerDecile, kCopy},
    {"wire", "raw document of 32k rows, written and read", Limit::kMillis, 12, Judge::kLowerDecile,
     kCopy},
    {"wire-bytes", "  its bytes", Limit::kMegabytes, 15.2, Judge::kMedian},
    {"set-code", "set code document of 32k rows, written and read", Limit::kMillis, 30,
     Judge::kLowerDecile, kCopy},
    {"set-code-bytes", "  its bytes", Limit::kMegabytes, 12.2, Judge::kMedian},
    {"turns", "100 turns of one conversation, bytes", Limit::kTimesBytes, 1.05, Judge::kMedian,
     "final array"},
    {"gpu-launches", "launches per step outside the graph", Limit::kOwed, 0, Judge::kMedian, "",
     "1, no host synchronisation"},
    {"gpu-pack", "pack on the GPU, 4,096 rows and more", Limit::kOwed, 0, Judge::kMedian, "",
     ">= 0.7x of a copy"},
};

bool Timed(const Budget& budget) {
  return budget.limit == Limit::kMicros || budget.limit == Limit::kMillis ||
         budget.limit == Limit::kTimes || budget.limit == Limit::kSpeed;
}

Quantiles QuantilesOf(const Times& times) {
  return {times.Micros(0.5), times.Micros(0.1)};
}

// Nanoseconds of one call and of its baseline.
struct Turn {
  double time = 0;
  double baseline = 0;
};

class Measuring {
 public:
  Measuring(const BudgetOptions& options,
            const std::function<void(std::size_t, std::size_t, std::string_view)>& progress)
      : options_(options), progress_(progress) {
    for (const Budget& budget : kBudgets) {
      if (budget.name.substr(0, options.only.size()) != options.only) continue;
      results_.push_back({budget, 0, {}, {}, {}, {}, {}});
      if (Timed(budget)) ++timed_;
    }
  }

  std::vector<BudgetResult> All() {
    if (Wants("step") || Wants("landing") || Wants("snapshot") || Wants("read-16") ||
        Wants("prefill")) {
      // The engine's thread appends records; they are applied outside the timed calls.
      bench::FilledStore store(options_.store_rows, 16, Landing::kManual);
      Steps(store);
      Snapshots(store);
      Read("read-16", store);
      Landing256("landing-u8", store, true);
      Landing256("landing-i16", store, false);
      // From here on the pages of the store turn over.
      Prefill(store);
    }
    for (const std::int32_t page_tokens : {64, 256}) {
      const std::string name = "read-" + std::to_string(page_tokens);
      if (!Wants(name)) continue;
      bench::FilledStore store(options_.store_rows, page_tokens, Landing::kCaller);
      Read(name, store);
    }
    Document("wire", {});
    Document("set-code", wire::ChunkCode::SetCodeFor(bench::Shape(16)));
    Conversation();
    return std::move(results_);
  }

 private:
  // Is a budget measured whose name begins with `group`?
  [[nodiscard]] bool Wants(std::string_view group) const {
    return std::any_of(results_.begin(), results_.end(), [&](const BudgetResult& result) {
      return result.budget.name.substr(0, group.size()) == group;
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
    const double begin = bench::Now(Clock::kWall);
    for (double spent = 0;
         times.size() < kLeast || spent < (times.size() < kEnough ? 3 * share : share);) {
      const Turn turn = take_turn();
      times.Add(turn.time);
      baseline.Add(turn.baseline);
      spent = bench::Now(Clock::kWall) - begin;
    }
    result->turns = times.size();
    result->time = QuantilesOf(times);
    if (!result->budget.baseline.empty()) result->baseline = QuantilesOf(baseline);
    JudgeTime(*result);
  }

  static void JudgeTime(BudgetResult& result) {
    const auto judged = [&](const Quantiles& times) {
      return result.budget.judge == Judge::kMedian ? times.median : times.lower_decile;
    };
    const double micros = judged(*result.time);
    if (result.baseline) {
      const double baseline = judged(*result.baseline);
      result.ratio = result.budget.limit == Limit::kSpeed ? baseline / micros : micros / baseline;
    }
    switch (result.budget.limit) {
      case Limit::kMicros:
        result.met = micros <= result.budget.value;
        break;
      case Limit::kMillis:
        result.met = micros <= result.budget.value * 1000;
        break;
      case Limit::kTimes:
        result.met = *result.ratio <= result.budget.value;
        break;
      case Limit::kSpeed:
        result.met = *result.ratio >= result.budget.value;
        break;
      default:
        break;
    }
  }

  void Steps(bench::FilledStore& store) {
    if (!Wants("step")) return;
    bench::BenchRows rows(bench::kDecodeRows);
    bench::CacheWalk walk;
    const auto step = [&](std::string_view name, bench::Blocks blocks, Caches caches,
                          std::size_t warm_up) {
      bench::DecodeSteps steps(store, blocks);
      Measure(name, warm_up, [&] {
        walk.Make(caches);
        const double time = store.Run(steps.Next(), &rows.layer_major);
        store.Settle();
        return Turn{time, 0};
      });
    };
    step("step-warm", bench::Blocks::kSame, Caches::kWarm, 64);
    step("step-cold-core", bench::Blocks::kOthers, Caches::kColdOwn, 64);
    step("step-cold", bench::Blocks::kOthers, Caches::kCold, 2);
  }

  void Snapshots(bench::FilledStore& store) {
    if (!Wants("snapshot")) return;
    bench::CacheWalk walk;
    const auto snapshot = [&](std::string_view name, bool other_blocks, Caches caches) {
      bench::SnapshotTurns turns(store, other_blocks);
      Measure(name, 2, [&] { return Turn{turns.Turn(walk, caches), 0}; });
    };
    snapshot("snapshot-warm", false, Caches::kWarm);
    snapshot("snapshot-cold-core", true, Caches::kColdOwn);
    snapshot("snapshot-cold", true, Caches::kCold);
  }

  void Read(std::string_view name, bench::FilledStore& store) {
    if (!Wants(name)) return;
    bench::ReadTurns turns(store, {Layout::kTokensLayersK, IdType::kUint8, Fill::kZeros}, false,
                           Clock::kProcessor);
    Measure(name, 1, [&] {
      const double reading = turns.Read();
      return Turn{reading, turns.Copy()};
    });
  }

  void Landing256(std::string_view name, bench::FilledStore& store, bool token_major) {
    if (!Wants(name)) return;
    bench::BenchRows rows(bench::kDecodeRows);
    bench::DecodeSteps steps(store, bench::Blocks::kSame);
    bench::LandingTurns turns(store, token_major ? rows.token_major : rows.layer_major, rows.bytes,
                              steps.period(), Clock::kWall);
    Measure(name, steps.period(), [&] {
      const bench::LandingTurns::Nanoseconds turn = turns.Turn(steps.Next());
      return Turn{turn.landing, turn.copying};
    });
  }

  void Prefill(bench::FilledStore& store) {
    if (!Wants("prefill") && !Wants("landing-prefill")) return;
    bench::BenchRows rows(bench::kPrefillRows);
    bench::PrefillSteps steps(store);
    Measure("prefill", 1, [&] {
      const double time = store.Run(steps.Next(), &rows.layer_major);
      store.Settle();
      return Turn{time, 0};
    });
    bench::LandingTurns turns(store, rows.layer_major, rows.bytes, steps.period(),
                              Clock::kProcessor);
    Measure("landing-prefill", steps.period(), [&] {
      const bench::LandingTurns::Nanoseconds turn = turns.Turn(steps.Next());
      return Turn{turn.landing, turn.copying};
    });
  }

  void Document(const std::string& name, const wire::ChunkCode& code) {
    if (!Wants(name)) return;
    wire::DocumentOptions options;
    options.code = code;
    bench::DocumentTurns turns(options, Clock::kProcessor);
    Measure(name, 1, [&] {
      const double time = turns.RoundTrip();
      return Turn{time, turns.Copy()};
    });
    BudgetResult* const result = Find(name + "-bytes");
    if (result == nullptr) return;
    result->bytes = turns.bytes().size();
    // To the tenth of a megabyte that the budget is stated in: raw ids alone are 15.204 MB.
    const double megabytes = static_cast<double>(*result->bytes) / 1e6;
    result->met = std::round(megabytes * 10) / 10 <= result->budget.value;
  }

  void Conversation() {
    BudgetResult* const result = Find("turns");
    if (result == nullptr) return;
    bench::SequenceStore store(bench::kLongRows);
    const std::vector<bench::RowRequest> requests = bench::ConversationTurns();
    const bench::Moved moved = bench::MoveByHandle(store, requests, {}, false);
    const auto final_bytes =
        static_cast<double>(requests.back().last) * bench::kLayers * bench::kTopK;
    result->bytes = moved.bytes;
    result->ratio = static_cast<double>(moved.bytes) / final_bytes;
    result->met = *result->ratio <= result->budget.value;
  }

  const BudgetOptions& options_;
  const std::function<void(std::size_t, std::size_t, std::string_view)>& progress_;
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

}  // namespace waymark::cli
