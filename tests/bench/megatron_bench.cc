// The engine's thread of an engine like Megatron: a step of decodes with the arrays of its context,
// the hooks of a block that is taken, and a request that finishes.
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "adapters/megatron/megatron_adapter.h"
#include "plugin/capture/capture_session.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr std::int32_t kBlocks = 2048;
constexpr std::int32_t kTokens = 256;  // of a block
constexpr std::int32_t kRequests = 256;
constexpr std::int32_t kLayers = 58, kTopK = 8;

// kRequests decodes, each in a block of its own; one of them takes a new block in each step.
class MegatronDecodes {
 public:
  MegatronDecodes() {
    StoreOptions options;
    options.shape = {.num_layers = kLayers, .top_k = kTopK, .num_experts = 256, .page_tokens = 16};
    options.num_blocks = kBlocks;
    options.block_tokens = kTokens;
    options.num_pages = 32768;
    options.null_blocks = {BlockId(kBlocks - 1)};
    auto store = RoutingStore::Create(options);
    Demand(store.ok(), "no store was made");
    store_ = *std::move(store);
    auto session = CaptureSession::Create({.store = store_.get(), .max_rows = kRequests});
    Demand(session.ok(), "no session was made");
    session_ = *std::move(session);
    adapter_ = std::make_unique<MegatronAdapter>(
        *MegatronAdapter::Create(store_.get(), BlockId(kBlocks - 1)));
    ids_.resize(std::size_t{kRequests} * kLayers * kTopK);
    for (std::size_t i = 0; i < ids_.size(); ++i)
      ids_[i] = static_cast<std::int16_t>(i % kTopK * 31 + i / kTopK % 31);
    blocks_.resize(kRequests);
    positions_.resize(kRequests);
    for (std::int32_t r = 0; r < kRequests; ++r) {
      blocks_[static_cast<std::size_t>(r)] = r;
      positions_[static_cast<std::size_t>(r)] = r;  // phases differ
      const BlockId block(r);
      Demand(adapter_->Allocate({&block, 1}).ok(), "no block was allocated");
    }
  }
  ~MegatronDecodes() { (void)store_->WaitIdle(std::chrono::seconds(10)); }

  // What the context does between two steps: positions go on, and full blocks are left.
  void Advance() {
    for (std::size_t r = 0; r < kRequests; ++r) {
      if (++positions_[r] < kTokens) continue;
      positions_[r] = 0;
      full_ = static_cast<std::int32_t>(blocks_[r]);
      taken_ = taken_ + 1 < 2 * kRequests ? taken_ + 1 : kRequests;
      blocks_[r] = taken_;
    }
  }
  // The calls of a step: one block is released, one is allocated, and the step itself.
  void Step() {
    const BlockId full(full_), taken(taken_);
    Demand(adapter_->Release({&full, 1}).ok() && adapter_->Allocate({&taken, 1}).ok(),
           "a hook has failed");
    const StepCode begun = session_->BeginIdsStep(
        adapter_->Batch(StepId(++step_), 1, {blocks_.data(), positions_.data(), kRequests}));
    Demand(begun.ok(), "a step was not begun");
    constexpr std::ptrdiff_t kBytes = sizeof(std::int16_t);
    const CaptureCode submitted =
        session_->SubmitIds(StepId(step_), {.data = ids_.data(),
                                            .type = IdType::kInt16,
                                            .rows = kRequests,
                                            .layers = kLayers,
                                            .columns = kTopK,
                                            .row_stride = kBytes * kLayers * kTopK,
                                            .layer_stride = kBytes * kTopK,
                                            .k_stride = kBytes});
    Demand(submitted.ok(), "a step was not submitted");
  }
  // A request of 32,767 rows finishes.
  void Finish() {
    Demand(adapter_->Checkpoint(1, request_, 32767).ok(), "no snapshot was kept");
    Demand(adapter_->Release(request_).ok(), "no block was released");
    Demand(adapter_->Take(1).has_value(), "there is no snapshot");
  }
  void Admit() {
    request_.clear();
    for (std::int32_t i = 0; i < 128; ++i)
      request_.emplace_back(1024 + i);
    Demand(adapter_->Allocate(request_).ok(), "no blocks were allocated");
  }
  void Wait() { Demand(store_->WaitIdle(std::chrono::seconds(10)).ok(), "steps have not ended"); }

 private:
  std::unique_ptr<RoutingStore> store_;
  std::unique_ptr<CaptureSession> session_;
  std::unique_ptr<MegatronAdapter> adapter_;
  std::vector<std::int16_t> ids_;
  std::vector<std::int64_t> blocks_;
  std::vector<std::int32_t> positions_;
  std::vector<BlockId> request_;
  std::int32_t full_ = 0, taken_ = kRequests;
  std::uint64_t step_ = 0;
};

void MegatronStep(benchmark::State& state, Caches caches) {
  MegatronDecodes decodes;
  Times times(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    decodes.Advance();
    decodes.Wait();
    SharedWalk().Make(caches);
    const double took = Time([&] { decodes.Step(); });
    times.Add(took);
    state.SetIterationTime(took / 1e9);
  }
  Report(state, times);
}

void MegatronFinish(benchmark::State& state, Caches caches) {
  MegatronDecodes decodes;
  Times times(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    decodes.Admit();
    decodes.Wait();
    SharedWalk().Make(caches);
    const double took = Time([&] { decodes.Finish(); });
    times.Add(took);
    state.SetIterationTime(took / 1e9);
  }
  Report(state, times);
}

WAYMARK_BENCH(warm, MegatronStep, 4000, Caches::kWarm);
WAYMARK_BENCH(cold_own, MegatronStep, 400, Caches::kColdOwn);
WAYMARK_BENCH(warm, MegatronFinish, 2000, Caches::kWarm);
WAYMARK_BENCH(cold_own, MegatronFinish, 400, Caches::kColdOwn);

}  // namespace
}  // namespace waymark::bench
