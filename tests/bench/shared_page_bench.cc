// Blocks that share one page and are bound again, oldest first: the time per block must not depend on
// how many there are.
#include <cstdint>
#include <vector>

#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

// Argument: the number of blocks.
void RebindShared(benchmark::State& state) {
  const auto count = static_cast<std::int32_t>(state.range(0));
  StoreOptions options;
  options.shape = {.num_layers = 1, .top_k = 1, .num_experts = 64, .page_tokens = 4};
  options.num_blocks = count + 1;
  options.num_pages = 16;
  options.landing = Landing::kCaller;
  options.log_bytes = std::size_t{64} << 20;
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
  state.counters["per_block"] =
      benchmark::Counter(static_cast<double>(count), benchmark::Counter::kIsIterationInvariantRate |
                                                         benchmark::Counter::kInvert);
}
BENCHMARK(RebindShared)->UseManualTime()->Arg(1000)->Arg(4000)->Arg(16000)->Arg(64000);

}  // namespace
}  // namespace waymark::bench
