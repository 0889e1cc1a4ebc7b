// Steps whose slots only the device knows, against the same steps with slots: requests that decode
// with three drafts each, two steps in flight, rejections announced before their step has landed.
#include <algorithm>
#include <deque>
#include <utility>

#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr std::int64_t kPage = 16;
constexpr std::int64_t kDrafts = 3;
constexpr std::size_t kInFlight = 2;
constexpr std::size_t kRequestBlocks = 8;  // of each request; the oldest is bound again

// Rows of nothing in particular: what is timed is the store.
class DraftRows final : public StepRows {
 public:
  std::optional<std::span<const std::int64_t>> Slots() override { return slots; }
  void Land(std::uint32_t, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      destinations[i][0] = 1;
      verdicts[i] = Reason::kNone;
    }
  }
  void Done() override {}

  std::vector<std::int64_t> slots;  // what the step wrote
};

class DraftSteps {
 public:
  DraftSteps(std::size_t requests, bool device)
      : device_(device), lengths_(requests), step_rows_(kInFlight + 1), rejected_(kInFlight) {
    StoreOptions options;
    options.shape = Shape(kPage);
    options.num_blocks = static_cast<std::int32_t>(requests * kRequestBlocks);
    options.block_tokens = kPage;
    options.max_step_rows = static_cast<std::uint32_t>(requests) * 8;
    options.landing = Landing::kCaller;
    options.device_slots = true;
    auto store = RoutingStore::Create(options);
    Demand(store.ok(), "the store cannot be made");
    store_ = *std::move(store);
  }
  ~DraftSteps() {
    while (store_->LandOne()) {
    }
  }

  // Begins and submits a step, and lands the one before the last. Nanoseconds of BeginStep and
  // Submit, and of the landing.
  std::pair<double, double> One() {
    ++step_;
    events_.clear();
    range_.clear();
    DraftRows& step_rows = step_rows_[step_ % step_rows_.size()];
    step_rows.slots.clear();
    // The place of what this step will reject has the rejections of the older step in flight.
    std::vector<std::pair<BlockId, std::int32_t>>& rejected = rejected_[step_ % rejected_.size()];
    for (const auto& [block, row] : rejected)
      events_.push_back(Event::Truncate(block, row, StepId(step_ - rejected_.size())));
    rejected.clear();
    for (std::size_t r = 0; r < lengths_.size(); ++r) {
      std::int64_t& length = lengths_[r];
      // What the step before accepted is known on the device only: one row fewer, two more.
      const std::int64_t first = std::max<std::int64_t>(0, length - 1);
      const std::int64_t last = length + kDrafts + 3;
      for (std::int64_t p = first; p < last; ++p) {
        if (p % kPage == 0 && p >= bound_[r]) {
          events_.push_back(Event::Bind(Block(r, p)));
          bound_[r] = p + kPage;
        }
        range_.push_back(Slot(r, p));
      }
      for (std::int64_t p = length; p <= length + kDrafts; ++p)
        step_rows.slots.push_back(Slot(r, p));
      random_ = random_ * 6364136223846793005u + 1442695040888963407u;
      const auto accepted = static_cast<std::int64_t>((random_ >> 33) % (kDrafts + 1));
      length += 1 + accepted;
      if (accepted < kDrafts) {
        rejected.emplace_back(Block(r, length), static_cast<std::int32_t>(length % kPage));
      }
    }
    const std::vector<std::int64_t>& slots = device_ ? range_ : step_rows.slots;
    StepBatch batch{step_, 1, events_.data(), events_.size(), slots.data(), slots.size()};
    batch.device_slots = device_;
    bool good = true;
    const double begun = Time([&] {
      good &= store_->BeginStep(batch).ok();
      good &= store_->Submit(StepId(step_), &step_rows).ok();
    });
    const double landed =
        step_ > kInFlight ? Time([&] { good &= store_->Land(StepId(step_ - kInFlight)); }) : 0;
    Demand(good, "a step was refused");
    return {begun, landed};
  }

 private:
  [[nodiscard]] BlockId Block(std::size_t request, std::int64_t position) const {
    const auto block = static_cast<std::size_t>(position / kPage) % kRequestBlocks;
    return BlockId(static_cast<std::int32_t>(request * kRequestBlocks + block));
  }
  [[nodiscard]] std::int64_t Slot(std::size_t request, std::int64_t position) const {
    return std::int64_t{Block(request, position).value()} * kPage + position % kPage;
  }

  const bool device_;
  std::vector<std::int64_t> lengths_;  // tokens of each request
  std::vector<std::int64_t> bound_ =
      std::vector<std::int64_t>(lengths_.size());  // ... with a block
  std::vector<DraftRows> step_rows_;
  std::vector<std::vector<std::pair<BlockId, std::int32_t>>> rejected_;  // block and first row
  std::vector<Event> events_;
  std::vector<std::int64_t> range_;
  std::uint64_t step_ = 0;
  std::uint64_t random_ = 1;
  std::unique_ptr<RoutingStore> store_;
};

void DraftStep(benchmark::State& state, bool device) {
  DraftSteps steps(static_cast<std::size_t>(state.range(0)), device);
  Times times(static_cast<std::size_t>(state.max_iterations));
  Times landings(static_cast<std::size_t>(state.max_iterations));
  for (int warm_up = 0; warm_up < 64; ++warm_up)
    (void)steps.One();
  for (auto _ : state) {
    const auto [begun, landed] = steps.One();
    times.Add(begun);
    landings.Add(landed);
    state.SetIterationTime(begun / 1e9);
  }
  Report(state, times);
  state.counters["landing_us"] = landings.Micros(0.5);
}

BENCHMARK_CAPTURE(DraftStep, slots, false)->UseManualTime()->Iterations(400)->Arg(256)->Arg(1024);
BENCHMARK_CAPTURE(DraftStep, device, true)->UseManualTime()->Iterations(400)->Arg(256)->Arg(1024);

}  // namespace
}  // namespace waymark::bench
