// What snapshots cost that are held: all running requests at a weight change, and readers that are
// late for ever.
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

// A snapshot of each of 256 running requests of 8,192 tokens: the time of the engine's thread for
// all of them. They are released before the next weight change.
void WeightChange(benchmark::State& state) {
  constexpr std::int32_t kRequests = 256;
  constexpr std::int32_t kTokens = 8192;
  constexpr std::int32_t kBlocks = kTokens / 16;
  StoreOptions options;
  options.shape = {.num_layers = 58, .top_k = 8, .num_experts = 256, .page_tokens = 16};
  options.num_blocks = kRequests * kBlocks;
  auto store = RoutingStore::Create(options).value();
  // Each block gets a page; no row lands, so that the pages take no memory.
  std::vector<std::int64_t> slots(kTokens / 16);
  for (std::int32_t request = 0; request < kRequests; ++request) {
    for (std::int32_t block = 0; block < kBlocks; ++block)
      slots[static_cast<std::size_t>(block)] = 16 * (std::int64_t{request} * kBlocks + block);
    const StepId step(static_cast<std::uint64_t>(request) + 1);
    StepBatch batch{.step = step.value(), .version = 1};
    batch.slots = slots.data(), batch.num_slots = slots.size();
    (void)store->BeginStep(batch);
    (void)store->Drop(step);
    (void)store->WaitIdle(std::chrono::seconds(10));
  }
  // The blocks of a request are not next to each other.
  std::vector<std::vector<BlockId>> blocks(kRequests);
  for (std::int32_t request = 0; request < kRequests; ++request) {
    for (std::int32_t block = 0; block < kBlocks; ++block)
      blocks[static_cast<std::size_t>(request)].emplace_back(block * kRequests + request);
  }
  Times times;
  for (auto _ : state) {
    std::vector<Snapshot> snapshots;
    snapshots.reserve(kRequests);
    const double ns = Time([&] {
      for (const std::vector<BlockId>& of : blocks)
        snapshots.push_back(store->TakeSnapshot(of, 0, kTokens).value());
    });
    times.Add(ns);
    state.SetIterationTime(ns / 1e9);
    (void)snapshots.back().Wait(std::chrono::seconds(10));
  }
  Report(state, times);
}
BENCHMARK(WeightChange)->UseManualTime();

class SameRows final : public StepRows {
 public:
  explicit SameRows(std::size_t bytes) : row_(bytes, 1) {}
  void Land(std::uint32_t, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] != nullptr) std::memcpy(destinations[i], row_.data(), row_.size());
      verdicts[i] = Reason::kNone;
    }
  }
  void Done() override {}

 private:
  const std::vector<std::uint8_t> row_;
};

// Turns in which 64 blocks are bound again, filled with 1,024 rows and held by a snapshot, with
// everything that the store does on the caller's thread. Argument: how many snapshots are held.
void HeldTurns(benchmark::State& state) {
  const auto held = static_cast<std::size_t>(state.range(0));
  StoreOptions options;
  options.shape = {.num_layers = 58, .top_k = 8, .num_experts = 256, .page_tokens = 16};
  options.num_blocks = 64;
  options.spare_pages = 8192;
  options.landing = Landing::kCaller;
  auto store = RoutingStore::Create(options).value();
  SameRows rows(options.shape.row_bytes());
  std::vector<Event> binds;
  std::vector<BlockId> blocks;
  std::vector<std::int64_t> slots;
  for (std::int32_t block = 0; block < 64; ++block) {
    binds.push_back(Event::Bind(BlockId(block)));
    blocks.emplace_back(block);
    for (std::int64_t row = 0; row < 16; ++row)
      slots.push_back(16 * block + row);
  }
  std::deque<Snapshot> snapshots;
  std::uint64_t step = 0;
  for (auto _ : state) {
    StepBatch batch{
        .step = ++step, .version = 1, .events = binds.data(), .num_events = binds.size()};
    batch.slots = slots.data(), batch.num_slots = slots.size();
    (void)store->BeginStep(batch);
    (void)store->Submit(StepId(step), &rows);
    (void)store->LandOne();
    snapshots.push_back(store->TakeSnapshot(blocks, 0, 1024).value());
    if (snapshots.size() > held) snapshots.pop_front();
  }
  const Stats stats = store->GetStats();
  state.counters["no_page"] = static_cast<double>(stats.no_page);
}
BENCHMARK(HeldTurns)->Arg(0)->Arg(2)->Arg(100)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace waymark::bench
