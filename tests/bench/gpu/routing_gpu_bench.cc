// Routing on a CUDA device, beside the least that it could take.
//
// What is timed is a graph of many calls, each with buffers of its own, after a write of four times
// the L2 cache: every call finds its logits in memory, as a router does whose logits a large model
// has just computed elsewhere, and what a call costs includes the launch of a kernel in a graph.
// The reported time is that of one call, the median of kRuns graphs.
//
// Names: method/E/K/groups kept of groups/type of the logits/what is done with the ids/N. Counters:
//   us         of one call
//   floor_us   the greater of: what as many bytes take at the bandwidth of a large copy; an empty
//              kernel in such a graph. Both measured here
//   of_floor   floor_us / us: 1 is the best that can be
//   of_plain   with recording or replay: us by that of the plain call, timed in turns
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/routing_cuda.h"
#include "kernels/routing_math.h"
#include "tests/bench/gpu/empty_kernel.h"
#include "tests/bench/gpu/gpu_bench.h"
#include "tests/support/routing_method_name.h"

namespace waymark::bench {
namespace {

using kernels::DType;
using kernels::MemoryDevice;
using kernels::RoutingConfig;
using kernels::RoutingMethod;
using kernels::RoutingTensors;
using kernels::Tensor;

constexpr std::size_t kRingBytes = std::size_t{512} << 20;
constexpr int kMinCalls = 4;
constexpr int kMaxCalls = 64;
constexpr int kRuns = 25;
constexpr std::int64_t kMostRows = 32768;

enum class Ids { kPlain, kRecorded, kReplayed };

struct Cell {
  RoutingMethod method;
  std::int32_t experts;
  std::int32_t top_k;
  std::int32_t groups = 1;
  std::int32_t kept = 1;
};
constexpr Cell kCells[] = {
    {RoutingMethod::kRenormalize, 128, 8},   {RoutingMethod::kDefault, 128, 8},
    {RoutingMethod::kRenormalize, 256, 8},   {RoutingMethod::kDefault, 256, 8},
    {RoutingMethod::kDeepSeekV3, 256, 8},    {RoutingMethod::kDeepSeekV3, 256, 8, 8, 4},
    {RoutingMethod::kSigmoidRenorm, 256, 8}, {RoutingMethod::kDeepSeekV3, 384, 8},
    {RoutingMethod::kRenormalize, 512, 10},  {RoutingMethod::kDeepSeekV3, 512, 22},
};

template <class T>
T* As(const Memory& memory, std::size_t at = 0) {
  return reinterpret_cast<T*>(memory.get()) + at;
}

// Writes over what the L2 cache holds.
class L2Flush {
 public:
  static L2Flush& Get() {
    static auto* const flush = new L2Flush();
    return *flush;
  }
  void Run(cudaStream_t stream) {
    Demand(cudaMemsetAsync(memory_.get(), ++byte_ & 0xff, bytes_, stream), "flush");
  }

 private:
  L2Flush() {
    int l2 = 0;
    Demand(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0), "L2 size");
    bytes_ = 4 * std::max(static_cast<std::size_t>(l2), std::size_t{32} << 20);
    memory_ = Allocate(bytes_);
  }
  std::size_t bytes_ = 0;
  int byte_ = 0;
  Memory memory_;
};

struct Floor {
  double launch_seconds = 0;
  double bytes_per_second = 0;  // read and written

  // Of the device, measured once.
  static const Floor& Get(cudaStream_t stream) {
    static const Floor floor = [&] {
      Floor f;
      constexpr int kCalls = 64;
      TimedGraph empty(stream, [&] {
        for (int i = 0; i < kCalls; ++i)
          Demand(LaunchEmptyKernel(stream), "empty kernel");
      });
      constexpr std::size_t kHalf = std::size_t{1} << 30;
      const Memory from = Allocate(kHalf), to = Allocate(kHalf);
      TimedGraph copy(stream, [&] {
        Demand(cudaMemcpyAsync(to.get(), from.get(), kHalf, cudaMemcpyDeviceToDevice, stream),
               "copy");
      });
      for (int run = 0; run < kRuns + 3; ++run) {
        empty.Run();
        copy.Run();
        if (run == 2) {
          empty.Forget();
          copy.Forget();
        }
      }
      f.launch_seconds = empty.Median() / kCalls;
      f.bytes_per_second = 2.0 * static_cast<double>(kHalf) / copy.Median();
      std::fprintf(stderr, "empty kernel %.2f us, copy %.0f GB/s\n", f.launch_seconds * 1e6,
                   f.bytes_per_second / 1e9);
      return f;
    }();
    return floor;
  }
};

// Logits of all calls, one after the other, and outputs of each.
class Ring {
 public:
  Ring(const Cell& cell, DType type, std::int64_t rows, cudaStream_t stream)
      : cell_(cell), type_(type), rows_(rows) {
    call_bytes_ = Elements() * kernels::DTypeBytes(type);
    calls_ =
        static_cast<int>(std::clamp<std::size_t>(kRingBytes / call_bytes_, kMinCalls, kMaxCalls));
    const auto calls = static_cast<std::size_t>(calls_);
    logits_ = Allocate(call_bytes_ * calls);
    FillLogits(stream);
    std::vector<float> bias(static_cast<std::size_t>(cell.experts));
    std::mt19937 random(2);
    std::normal_distribution<float> normal(0.0f, 0.01f);
    for (float& b : bias)
      b = normal(random);
    bias_ = Allocate(bias.size() * 4);
    Demand(cudaMemcpy(bias_.get(), bias.data(), bias.size() * 4, cudaMemcpyHostToDevice), "bias");
    ids_ = Allocate(Outputs() * calls * 4);
    weights_ = Allocate(Outputs() * calls * 4);
    recorded_ = Allocate(Outputs() * calls * 2);
    routed_ = Allocate(static_cast<std::size_t>(rows) * calls);
  }

  [[nodiscard]] int calls() const { return calls_; }

  void Route(int call, Ids what, cudaStream_t stream) const {
    const auto at = static_cast<std::size_t>(call);
    const MemoryDevice device = MemoryDevice::Cuda(0);
    RoutingConfig config;
    config.method = cell_.method;
    config.top_k = cell_.top_k;
    config.num_groups = cell_.groups;
    config.topk_groups = cell_.kept;
    RoutingTensors t;
    t.logits =
        Tensor::Matrix(logits_.get() + at * call_bytes_, type_, rows_, cell_.experts, device);
    if (TakesBias()) {
      t.bias = Tensor::Vector(bias_.get(), DType::kFloat32, cell_.experts, device);
    }
    t.topk_ids = Tensor::Matrix(As<std::int32_t>(ids_, at * Outputs()), DType::kInt32, rows_,
                                cell_.top_k, device);
    t.topk_weights = Tensor::Matrix(As<float>(weights_, at * Outputs()), DType::kFloat32, rows_,
                                    cell_.top_k, device);
    const Tensor replay = Tensor::Matrix(As<std::int16_t>(recorded_, at * Outputs()), DType::kInt16,
                                         rows_, cell_.top_k, device);
    if (what == Ids::kRecorded) t.replay_out = replay;
    if (what == Ids::kReplayed) {
      t.replay_in = replay;
      t.routed = Tensor::Vector(routed_.get() + at * static_cast<std::size_t>(rows_), DType::kUint8,
                                rows_, device);
    }
    const kernels::RoutingCode code = RouteOnCuda(config, t, stream);
    if (!code.ok()) {
      std::fprintf(stderr, "%s\n", code.ToString().c_str());
      std::abort();
    }
  }

  // Of one call, read and written. A replayed row reads a sector for each of its logits, at most.
  [[nodiscard]] std::size_t Bytes(Ids what) const {
    const auto rows = static_cast<std::size_t>(rows_);
    std::size_t logits = call_bytes_;
    std::size_t others =
        Outputs() * 8 + (TakesBias() ? static_cast<std::size_t>(cell_.experts) * 4 : 0);
    if (what != Ids::kPlain) others += Outputs() * 2;
    if (what == Ids::kReplayed) {
      others += rows;
      if (cell_.method != RoutingMethod::kDefault) logits = std::min(logits, Outputs() * 32);
    }
    return logits + others;
  }

 private:
  [[nodiscard]] bool TakesBias() const { return cell_.method == RoutingMethod::kDeepSeekV3; }
  [[nodiscard]] std::size_t Elements() const {
    return static_cast<std::size_t>(rows_) * static_cast<std::size_t>(cell_.experts);
  }
  [[nodiscard]] std::size_t Outputs() const {
    return static_cast<std::size_t>(rows_) * static_cast<std::size_t>(cell_.top_k);
  }

  // The same numbers over and over, in a period that no row has.
  void FillLogits(cudaStream_t stream) {
    constexpr std::size_t kPeriod = (std::size_t{1} << 20) + 7;
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    std::vector<float> wide(kPeriod);
    std::vector<std::uint16_t> narrow(kPeriod);
    for (std::size_t i = 0; i < kPeriod; ++i) {
      wide[i] = normal(random);
      narrow[i] = kernels::routing::ToBfloat16(wide[i]);
    }
    const void* const source =
        type_ == DType::kFloat32 ? static_cast<const void*>(wide.data()) : narrow.data();
    const std::size_t period = kPeriod * kernels::DTypeBytes(type_);
    const Memory once = Allocate(period);
    Demand(cudaMemcpy(once.get(), source, period, cudaMemcpyHostToDevice), "logits");
    const std::size_t all = call_bytes_ * static_cast<std::size_t>(calls_);
    for (std::size_t at = 0; at < all; at += period) {
      Demand(cudaMemcpyAsync(logits_.get() + at, once.get(), std::min(period, all - at),
                             cudaMemcpyDeviceToDevice, stream),
             "logits");
    }
    Demand(cudaStreamSynchronize(stream), "logits");
  }

  Cell cell_;
  DType type_;
  std::int64_t rows_;
  std::size_t call_bytes_ = 0;
  int calls_ = 0;
  Memory logits_, bias_, ids_, weights_, recorded_, routed_;
};

void Route(benchmark::State& state, const Cell& cell, DType type, Ids what) {
  if (SkipsWithoutDevice(state)) return;
  cudaStream_t stream = nullptr;
  Demand(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create stream");
  {
    const Floor& floor = Floor::Get(stream);
    const Ring ring(cell, type, state.range(0), stream);
    const auto graph_of = [&](Ids ids) {
      return [&ring, ids, stream] {
        for (int call = 0; call < ring.calls(); ++call)
          ring.Route(call, ids, stream);
      };
    };
    // The first run records what the others replay.
    TimedGraph recording(stream, graph_of(Ids::kRecorded));
    recording.Run();
    TimedGraph plain(stream, graph_of(Ids::kPlain));
    std::optional<TimedGraph> other;
    if (what != Ids::kPlain) other.emplace(stream, graph_of(what));
    const auto run = [&](TimedGraph& graph) {
      L2Flush::Get().Run(stream);
      return graph.Run() / ring.calls();
    };
    TimedGraph& timed = other.has_value() ? *other : plain;
    for (int warm = 0; warm < 3; ++warm) {
      run(plain);
      if (other.has_value()) run(*other);
    }
    plain.Forget();
    timed.Forget();
    for (auto _ : state) {
      if (other.has_value()) run(plain);
      state.SetIterationTime(run(timed));
    }
    const double seconds = timed.Median() / ring.calls();
    const double least = std::max(floor.launch_seconds,
                                  static_cast<double>(ring.Bytes(what)) / floor.bytes_per_second);
    state.counters["us"] = seconds * 1e6;
    state.counters["floor_us"] = least * 1e6;
    state.counters["of_floor"] = least / seconds;
    if (other.has_value()) state.counters["of_plain"] = timed.Median() / plain.Median();
  }
  Demand(cudaStreamDestroy(stream), "destroy stream");
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const Cell& cell : kCells) {
    for (const DType type : {DType::kFloat32, DType::kBfloat16}) {
      for (const Ids what : {Ids::kPlain, Ids::kRecorded, Ids::kReplayed}) {
        constexpr const char* kIds[] = {"plain", "recorded", "replayed"};
        const std::string name = std::string("Route/") + RoutingMethodName(cell.method) + "/E" +
                                 std::to_string(cell.experts) + "/K" + std::to_string(cell.top_k) +
                                 "/" + std::to_string(cell.kept) + "of" +
                                 std::to_string(cell.groups) + "/" + DTypeName(type) + "/" +
                                 kIds[static_cast<int>(what)];
        benchmark::RegisterBenchmark(
            name.c_str(), [=](benchmark::State& state) { Route(state, cell, type, what); })
            ->ArgName("N")
            ->RangeMultiplier(2)
            ->Range(1, kMostRows)
            ->UseManualTime()
            ->Iterations(kRuns)
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace waymark::bench
