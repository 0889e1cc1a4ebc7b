// The scheduler's thread of an engine like vLLM: a schedule of decodes, and a request that
// finishes.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "adapters/vllm/vllm_scheduler.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr std::int32_t kBlocks = 1 << 20;
constexpr std::uint64_t kRequests = 256;
constexpr std::uint64_t kAppends = 16;  // requests of a schedule that get a block and fill one
constexpr std::int64_t kBlocksOfRequest = 64;
constexpr std::int32_t kTokens = 16;

// A scheduler with kRequests decodes of kBlocksOfRequest blocks.
class Decodes {
 public:
  Decodes()
      : scheduler_(
            *VllmScheduler::Create({.limits = {.num_blocks = kBlocks, .block_tokens = kTokens}})) {
    Demand(scheduler_.Begin(StepId(++step_), 1).ok(), "no message was begun");
    for (std::uint64_t request = 0; request < kRequests; ++request)
      Admit(request);
    Demand(scheduler_.FinishMessage().ok(), "no message was finished");
  }

  void Begin() { Demand(scheduler_.Begin(StepId(++step_), 1).ok(), "no message was begun"); }
  void Finish() { bytes_ = scheduler_.FinishMessage()->size(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  // The calls of a schedule in which kAppends requests get a block, and fill the one before it.
  void Schedule() {
    for (std::uint64_t i = 0; i < kAppends; ++i) {
      const std::uint64_t request = next_++ % kRequests;
      const BlockId block = NextBlock();
      const std::int64_t sealed = sealed_[request]++;
      key_.bytes[0] = static_cast<std::uint8_t>(sealed);
      Demand(scheduler_
                 .Append(request, {&block, 1}, (sealed + 1) * kTokens + 1,
                         {.first = sealed, .keys = {&key_, 1}})
                 .ok(),
             "nothing was appended");
    }
  }
  // A request finishes, of kBlocksOfRequest blocks.
  void FinishRequest() {
    Demand(scheduler_.Finish(kRequests, kBlocksOfRequest * kTokens - 3, ++tag_).ok(),
           "no request has finished");
  }
  void Admit(std::uint64_t request) {
    std::vector<BlockId> blocks;
    for (std::int64_t i = 0; i < kBlocksOfRequest; ++i)
      blocks.push_back(NextBlock());
    Demand(scheduler_.New(request, blocks, {}, {}).ok(), "no request was admitted");
    if (request >= kRequests) return;
    std::vector<BlockKey> keys(kBlocksOfRequest - 1, key_);
    Demand(scheduler_.Append(request, {}, (kBlocksOfRequest - 1) * kTokens, {0, keys}).ok(),
           "nothing was sealed");
    sealed_[request] = kBlocksOfRequest - 1;
  }

 private:
  BlockId NextBlock() { return BlockId(1 + block_++ % (kBlocks - 1)); }

  VllmScheduler scheduler_;
  BlockKey key_{{1, 2, 3}, 32};
  std::array<std::int64_t, kRequests> sealed_{};
  std::uint64_t step_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t tag_ = 0;
  std::int32_t block_ = 0;
  std::size_t bytes_ = 0;
};

void VllmSchedule(benchmark::State& state, Caches caches) {
  Decodes decodes;
  Times times(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    SharedWalk().Make(caches);
    const double took = Time([&] {
      decodes.Begin();
      decodes.Schedule();
      decodes.Finish();
    });
    times.Add(took);
    state.SetIterationTime(took / 1e9);
  }
  Report(state, times);
  state.counters["message_bytes"] = static_cast<double>(decodes.bytes());
}

// The call of the finish, and what it adds to the message.
void VllmFinish(benchmark::State& state, Caches caches) {
  Decodes decodes;
  Times times(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    decodes.Begin();
    decodes.Admit(kRequests);
    decodes.Finish();
    SharedWalk().Make(caches);
    const double took = Time([&] {
      decodes.FinishRequest();
      decodes.Begin();
      decodes.Finish();
    });
    times.Add(took);
    state.SetIterationTime(took / 1e9);
  }
  Report(state, times);
  state.counters["message_bytes"] = static_cast<double>(decodes.bytes());
}

#define WAYMARK_BENCH(name, function, count, ...) \
  BENCHMARK_CAPTURE(function, name, __VA_ARGS__)->UseManualTime()->Iterations(count)

WAYMARK_BENCH(warm, VllmSchedule, 4000, Caches::kWarm);
WAYMARK_BENCH(cold_own, VllmSchedule, 400, Caches::kColdOwn);
WAYMARK_BENCH(warm, VllmFinish, 4000, Caches::kWarm);
WAYMARK_BENCH(cold_own, VllmFinish, 400, Caches::kColdOwn);

}  // namespace
}  // namespace waymark::bench
