// Work under the store's mutex that must cost as much per item, however many there are: the counter
// per_item must not grow with the argument.
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

StoreOptions TinyRows(std::int32_t blocks) {
  StoreOptions options;
  options.shape = {.num_layers = 1, .top_k = 1, .num_experts = 64, .page_tokens = 16};
  options.num_blocks = blocks;
  options.landing = Landing::kCaller;
  options.log_bytes = std::size_t{64} << 20;
  return options;
}

class ZeroRows final : public StepRows {
 public:
  explicit ZeroRows(std::vector<std::int64_t> slots = {}) : slots_(std::move(slots)) {}
  void Land(std::uint32_t, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] != nullptr) *destinations[i] = 0;
      verdicts[i] = Reason::kNone;
    }
  }
  std::optional<std::span<const std::int64_t>> Slots() override { return slots_; }
  void Done() override {}

 private:
  std::vector<std::int64_t> slots_;
};

void PerItem(benchmark::State& state, std::int64_t items) {
  state.counters["per_item"] =
      benchmark::Counter(static_cast<double>(items), benchmark::Counter::kIsIterationInvariantRate |
                                                         benchmark::Counter::kInvert);
}

// Argument: blocks that share one page and are bound again, oldest first.
void RebindShared(benchmark::State& state) {
  const auto count = static_cast<std::int32_t>(state.range(0));
  StoreOptions options = TinyRows(count + 1);
  options.num_pages = 16;
  auto store = RoutingStore::Create(options).value();
  std::vector<Event> copies, binds;
  for (std::int32_t block = 1; block <= count; ++block) {
    copies.push_back(Event::Copy(BlockId(0), BlockId(block)));
    binds.push_back(Event::Bind(BlockId(block)));
  }
  // Block 0 has a page, without rows: its step is dropped.
  const std::int64_t slot = 0;
  StepBatch batch{.step = 1, .version = 1, .slots = &slot, .num_slots = 1};
  (void)store->BeginStep(batch);
  (void)store->Drop(StepId(1));
  for (auto _ : state) {
    if (!store->Report(copies).ok()) state.SkipWithError("the copies were refused");
    const double ns = Time([&] { (void)store->Report(binds); });
    state.SetIterationTime(ns / 1e9);
  }
  PerItem(state, count);
}
BENCHMARK(RebindShared)->UseManualTime()->Arg(1000)->Arg(4000)->Arg(16000)->Arg(64000);

// Argument: blocks that are moved one by one while their seals wait for the next begin.
void MoveSealed(benchmark::State& state) {
  const auto count = static_cast<std::int32_t>(state.range(0));
  auto store = RoutingStore::Create(TinyRows(2 * count)).value();
  std::vector<Event> seals, moves;
  for (std::int32_t block = 0; block < count; ++block) {
    seals.push_back(Event::Seal(BlockId(block), BlockKey::FromInteger(1)));
    moves.push_back(Event::Move(BlockId(block), BlockId(count + block)));
  }
  for (auto _ : state) {
    if (!store->Report(seals).ok()) state.SkipWithError("the seals were refused");
    const double ns = Time([&] { (void)store->Report(moves); });
    state.SetIterationTime(ns / 1e9);
    const Event reset = Event::Reset();
    (void)store->Report({&reset, 1});
  }
  PerItem(state, count);
}
BENCHMARK(MoveSealed)->UseManualTime()->Arg(1000)->Arg(4000)->Arg(16000);

// Argument: partial copies of a block of which a prefill of 8,192 rows has yet to land.
void CopyPending(benchmark::State& state) {
  const auto count = static_cast<std::int32_t>(state.range(0));
  constexpr std::int32_t kRows = 8192;
  auto store = RoutingStore::Create(TinyRows(kRows / 16 + count)).value();
  std::vector<std::int64_t> slots;
  for (std::int64_t slot = 0; slot < kRows; ++slot)
    slots.push_back(slot);
  std::vector<Event> copies;
  for (std::int32_t i = 0; i < count; ++i)
    copies.push_back(Event::Copy(BlockId(kRows / 16 - 1), BlockId(kRows / 16 + i), 8));
  std::uint64_t step = 0;
  for (auto _ : state) {
    StepBatch batch{.step = ++step, .version = 1, .slots = slots.data(), .num_slots = slots.size()};
    if (!store->BeginStep(batch).ok()) state.SkipWithError("the step was refused");
    const double ns = Time([&] { (void)store->Report(copies); });
    state.SetIterationTime(ns / 1e9);
    (void)store->Drop(StepId(step));
  }
  PerItem(state, count);
}
BENCHMARK(CopyPending)->UseManualTime()->Arg(1)->Arg(16)->Arg(64)->Arg(256);

// Argument: forks of a block that a device step of 4,096 rows may write; the time is that of
// landing the step, per row of it.
void LandForkedDeviceStep(benchmark::State& state) {
  const auto count = static_cast<std::int32_t>(state.range(0));
  constexpr std::int32_t kRows = 4096;
  StoreOptions options = TinyRows(kRows / 16 + count);
  options.device_slots = true;
  auto store = RoutingStore::Create(options).value();
  std::vector<std::int64_t> slots;
  for (std::int64_t slot = 0; slot < kRows; ++slot)
    slots.push_back(slot);
  ZeroRows rows(slots);
  std::vector<Event> copies;
  for (std::int32_t i = 0; i < count; ++i)
    copies.push_back(Event::Copy(BlockId(i % (kRows / 16)), BlockId(kRows / 16 + i), 8));
  std::uint64_t step = 0;
  for (auto _ : state) {
    StepBatch batch{.step = ++step, .version = 1, .slots = slots.data(), .num_slots = slots.size()};
    batch.device_slots = true;
    if (!store->BeginStep(batch).ok()) state.SkipWithError("the step was refused");
    if (count > 0) (void)store->Report(copies);
    (void)store->Submit(StepId(step), &rows);
    const double ns = Time([&] { (void)store->LandOne(); });
    state.SetIterationTime(ns / 1e9);
  }
  PerItem(state, kRows + 8 * count);
}
BENCHMARK(LandForkedDeviceStep)->UseManualTime()->Arg(1)->Arg(16)->Arg(64)->Arg(250);

}  // namespace
}  // namespace waymark::bench
