// A capture session on a CUDA device: what a step costs the engine's thread, and what capture adds
// to a graph of 58 routed layers.
//
// Session/N: BeginStep and Submit of N decode rows, pack launch and event included, the device
// idle; the landing thread runs. Reported: mean of the host's time. Graph/how/N: a graph of 58
// calls of the routing kernel (DeepSeekV3, 256 experts, 8 of them), which record into the view
// ("writes_view"), or whose ids are handed over, one small launch a layer
// ("hands_over"); beside the same graph without capture, run in turns. Nothing else is in the
// graph: as a part of a forward the overhead is smaller. Counters:
//   us          of the graph that captures, median
//   plain_us    of the one that does not
//   over_plain  their ratio, less one
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "kernels/routing_cuda.h"
#include "plugin/capture/capture_session.h"
#include "plugin/capture/cuda_device.h"
#include "plugin/capture/staged_transport.h"
#include "tests/bench/gpu/gpu_bench.h"

namespace waymark::bench {
namespace {

using kernels::DType;
using kernels::MemoryDevice;
using kernels::Tensor;

constexpr std::int32_t kLayers = 58;
constexpr std::int32_t kTopK = 8;
constexpr std::int32_t kExperts = 256;
constexpr std::int32_t kBlockTokens = 16;
constexpr int kRuns = 50;

enum class How { kWritesView, kHandsOver };

struct Setup {
  std::unique_ptr<RoutingStore> store;
  std::unique_ptr<CaptureSession> session;

  explicit Setup(std::int32_t rows) {
    StoreOptions of_store;
    of_store.shape = {.num_layers = kLayers,
                      .top_k = kTopK,
                      .num_experts = kExperts,
                      .page_tokens = kBlockTokens};
    of_store.num_blocks = rows;
    store = RoutingStore::Create(of_store).value();
    CaptureOptions options;
    options.store = store.get();
    options.max_rows = rows;
    options.transport = StagedTransport::Factory({CudaDevice::Create(0).value(), true});
    session = CaptureSession::Create(options).value();
  }
};

void Session(benchmark::State& state) {
  if (SkipsWithoutDevice(state)) return;
  const auto rows = static_cast<std::int32_t>(state.range(0));
  Setup setup(rows);
  std::vector<std::int64_t> slots;
  for (std::int64_t row = 0; row < rows; ++row)
    slots.push_back(row * kBlockTokens);
  std::vector<Event> events;
  for (std::int32_t row = 0; row < rows; ++row)
    events.push_back(Event::Bind(BlockId(row)));
  std::uint64_t step = 0;
  for (auto _ : state) {
    StepBatch batch{++step,       1,           events.data(), step == 1 ? events.size() : 0,
                    slots.data(), slots.size()};
    const auto begin = std::chrono::steady_clock::now();
    const StepCode begun = setup.session->BeginStep(batch);
    const StepCode submitted = setup.session->Submit(StepId(step));
    const auto end = std::chrono::steady_clock::now();
    state.SetIterationTime(std::chrono::duration<double>(end - begin).count());
    if (!begun.ok() || !submitted.ok()) state.SkipWithError("a step was refused");
    (void)setup.store->WaitIdle(std::chrono::seconds(10));
    // The next decode step is in the next row of each block, until all are full.
    for (std::int64_t& slot : slots)
      slot = slot % kBlockTokens == kBlockTokens - 1 ? slot - kBlockTokens + 1 : slot + 1;
  }
}
BENCHMARK(Session)->Arg(64)->Arg(256)->Arg(1024)->UseManualTime()->Unit(benchmark::kMicrosecond);

void Graph(benchmark::State& state, How how) {
  if (SkipsWithoutDevice(state)) return;
  const auto rows = static_cast<std::int32_t>(state.range(0));
  const auto ids = static_cast<std::size_t>(rows) * kTopK;
  Setup setup(rows);
  cudaStream_t stream = nullptr;
  Demand(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create stream");
  setup.session->SetStream(stream);
  const std::size_t logits_bytes = static_cast<std::size_t>(rows) * kExperts * 4;
  const Memory logits = Allocate(logits_bytes * kLayers);
  Demand(cudaMemset(logits.get(), 0x3f, logits_bytes * kLayers), "logits");
  const Memory topk_ids = Allocate(ids * 4 * kLayers);
  const Memory weights = Allocate(ids * 4 * kLayers);
  const CaptureView view = setup.session->scratch_view();
  const auto record = [&](bool captures) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const auto at = static_cast<std::size_t>(layer);
      const MemoryDevice device = MemoryDevice::Cuda(0);
      kernels::RoutingConfig config;
      config.method = kernels::RoutingMethod::kDeepSeekV3;
      config.top_k = kTopK;
      kernels::RoutingTensors t;
      t.logits =
          Tensor::Matrix(logits.get() + at * logits_bytes, DType::kFloat32, rows, kExperts, device);
      t.topk_ids =
          Tensor::Matrix(topk_ids.get() + at * ids * 4, DType::kInt32, rows, kTopK, device);
      t.topk_weights =
          Tensor::Matrix(weights.get() + at * ids * 4, DType::kFloat32, rows, kTopK, device);
      if (captures && how == How::kWritesView) {
        t.replay_out = Tensor::Matrix(view.layer(layer), DType::kInt16, rows, kTopK, device);
      }
      const kernels::RoutingCode code = RouteOnCuda(config, t, stream);
      if (!code.ok()) {
        std::fprintf(stderr, "%s\n", code.ToString().c_str());
        std::abort();
      }
      if (captures && how == How::kHandsOver) {
        const StepIds tensor = StepIds::OfLayer(t.topk_ids.data, IdType::kInt32, rows, kTopK);
        if (!setup.session->HandOver(view, layer, tensor).ok()) std::abort();
      }
    }
  };
  {
    TimedGraph plain(stream, [&] { record(false); });
    TimedGraph captured(stream, [&] { record(true); });
    for (int run = 0; run < 3; ++run) {
      plain.Run();
      captured.Run();
    }
    plain.Forget();
    captured.Forget();
    for (auto _ : state) {
      for (int run = 0; run < kRuns; ++run) {
        plain.Run();
        captured.Run();
      }
      state.SetIterationTime(captured.Median());
    }
    state.counters["us"] = captured.Median() * 1e6;
    state.counters["plain_us"] = plain.Median() * 1e6;
    state.counters["over_plain"] = captured.Median() / plain.Median() - 1;
  }
  setup.session.reset();
  Demand(cudaStreamDestroy(stream), "destroy stream");
}
BENCHMARK_CAPTURE(Graph, writes_view, How::kWritesView)
    ->Arg(256)
    ->Arg(4096)
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Graph, hands_over, How::kHandsOver)
    ->Arg(256)
    ->Arg(4096)
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace waymark::bench
