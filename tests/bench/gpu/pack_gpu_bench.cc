// Pack and gather on a CUDA device beside a device-to-device copy that moves as many bytes.
//
// What is timed is a graph of as many calls as it takes to go through kRingBytes of memory, each
// call with buffers of its own: so none finds its input in the L2 cache, as after a real forward,
// and what a launch costs is divided by their number. Views are filled anew before each run, since
// a pack leaves -1 behind. The copy is a graph too, timed in turns with the pack. Counters:
//   GB_s         bytes read and written a second (median run); a pack's: the ids read, the rows
//                and verdicts written, and the -1 written over the ids
//   copy_GB_s    the same of the copy
//   of_copy      the first by the second: the budget is 0.7 from 4096 rows on
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "kernels/pack_cuda.h"
#include "tests/bench/gpu/gpu_bench.h"

namespace waymark::bench {
namespace {

using kernels::CudaGather;
using kernels::IdKind;
using kernels::IdKindBytes;
using kernels::PackLaunch;
using kernels::RowShape;
using kernels::RowVerdict;

constexpr std::size_t kRingBytes = std::size_t{512} << 20;
constexpr int kMaxCalls = 128;
constexpr int kRuns = 25;

// Times `call(i)`, i < calls, each of which moves `bytes` (read and written), beside copies.
// `prepare` brings the inputs back before each run.
void TimeBesideCopy(benchmark::State& state, cudaStream_t stream, int calls, std::size_t bytes,
                    const std::function<void(int)>& call, const std::function<void()>& prepare) {
  const std::size_t half = bytes / 2;
  const std::size_t stride = (half + 255) / 256 * 256;
  const Memory from = Allocate(stride * static_cast<std::size_t>(calls));
  const Memory to = Allocate(stride * static_cast<std::size_t>(calls));
  const auto each = [calls](const std::function<void(int)>& body) {
    return [calls, body] {
      for (int i = 0; i < calls; ++i)
        body(i);
    };
  };
  TimedGraph timed(stream, each(call));
  TimedGraph copy(stream, each([&](int i) {
                    const std::size_t at = stride * static_cast<std::size_t>(i);
                    Demand(cudaMemcpyAsync(to.get() + at, from.get() + at, half,
                                           cudaMemcpyDeviceToDevice, stream),
                           "copy");
                  }));
  for (int warm = 0; warm < 3; ++warm) {
    prepare();
    timed.Run();
    copy.Run();
  }
  timed.Forget();
  copy.Forget();
  for (auto _ : state) {
    prepare();
    state.SetIterationTime(timed.Run() / calls);
    copy.Run();
  }
  const double moved = static_cast<double>(bytes) * calls / 1e9;
  state.counters["GB_s"] = moved / timed.Median();
  state.counters["copy_GB_s"] = moved / copy.Median();
  state.counters["of_copy"] = copy.Median() / timed.Median();
}

int CallsFor(std::size_t bytes) {
  return std::clamp(static_cast<int>(kRingBytes / bytes), 2, kMaxCalls);
}

// Layer-major int16 ids [L][rows][K], every layer of every row with K distinct experts.
std::vector<std::int16_t> ViewOf(const RowShape& shape, std::int64_t rows) {
  std::mt19937 random(1);
  std::vector<std::int16_t> ids(shape.row_ids() * static_cast<std::size_t>(rows));
  for (std::size_t at = 0; at < ids.size(); at += static_cast<std::size_t>(shape.top_k)) {
    const auto first = static_cast<std::int32_t>(random() % 65536);
    for (std::int32_t k = 0; k < shape.top_k; ++k) {
      ids[at + static_cast<std::size_t>(k)] =
          static_cast<std::int16_t>((first + 29 * k) % shape.num_experts);
    }
  }
  return ids;
}

void BM_Pack(benchmark::State& state) {
  if (SkipsWithoutDevice(state)) return;
  const RowShape shape{static_cast<std::int32_t>(state.range(0)),
                       static_cast<std::int32_t>(state.range(1)),
                       static_cast<std::int32_t>(state.range(2))};
  const std::int64_t rows = state.range(3);
  const auto count = static_cast<std::size_t>(rows);
  const std::vector<std::int16_t> ids = ViewOf(shape, rows);
  const std::size_t view_bytes = ids.size() * sizeof(std::int16_t);
  const std::size_t packed_bytes = count * shape.row_bytes();
  const std::size_t bytes = 2 * view_bytes + packed_bytes + count;
  const int calls = CallsFor(bytes);

  cudaStream_t stream = nullptr;
  Demand(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create stream");
  const Memory master = Allocate(view_bytes);
  Demand(cudaMemcpy(master.get(), ids.data(), view_bytes, cudaMemcpyHostToDevice), "copy");
  const auto ring = static_cast<std::size_t>(calls);
  const Memory views = Allocate(view_bytes * ring);
  const Memory packed = Allocate(packed_bytes * ring);
  const Memory verdicts = Allocate(count * ring);
  const std::size_t counts_bytes =
      2 * sizeof(std::uint32_t) * static_cast<std::size_t>(shape.num_layers);
  const Memory counts = Allocate(counts_bytes);
  Demand(cudaMemset(counts.get(), 0, counts_bytes), "clear");
  const auto pack_with = [&](int i) {
    const auto at = static_cast<std::size_t>(i);
    PackLaunch pack;
    pack.shape = shape;
    pack.view = reinterpret_cast<std::int16_t*>(views.get() + at * view_bytes);
    pack.layer_stride = rows * shape.top_k;
    pack.rows = rows;
    pack.written_rows = rows;
    pack.packed = packed.get() + at * packed_bytes;
    pack.verdicts = reinterpret_cast<RowVerdict*>(verdicts.get() + at * count);
    pack.silent = reinterpret_cast<std::uint32_t*>(counts.get());
    pack.invalid = pack.silent + shape.num_layers;
    Demand(PackRowsOnCuda(pack, stream), "pack");
  };
  const auto prepare = [&] {
    for (std::size_t i = 0; i < ring; ++i) {
      Demand(cudaMemcpyAsync(views.get() + i * view_bytes, master.get(), view_bytes,
                             cudaMemcpyDeviceToDevice, stream),
             "copy");
    }
  };
  TimeBesideCopy(state, stream, calls, bytes, pack_with, prepare);
  // A benchmark that measures failures measures nothing.
  std::vector<std::uint32_t> faults(counts_bytes / sizeof(std::uint32_t));
  Demand(cudaMemcpy(faults.data(), counts.get(), counts_bytes, cudaMemcpyDeviceToHost), "copy");
  if (std::any_of(faults.begin(), faults.end(), [](std::uint32_t fault) { return fault != 0; })) {
    state.SkipWithError("rows with faults");
  }
  Demand(cudaStreamDestroy(stream), "destroy stream");
}

void BM_Gather(benchmark::State& state) {
  if (SkipsWithoutDevice(state)) return;
  const RowShape shape{static_cast<std::int32_t>(state.range(0)),
                       static_cast<std::int32_t>(state.range(1)),
                       static_cast<std::int32_t>(state.range(2))};
  const std::int64_t rows = state.range(3);
  const auto kind = static_cast<IdKind>(state.range(4));
  const auto count = static_cast<std::size_t>(rows);
  const std::size_t packed_bytes = count * shape.row_bytes();
  const std::size_t out_bytes = count * shape.row_ids() * IdKindBytes(kind);
  const std::size_t bytes = packed_bytes + out_bytes + count;
  const int calls = CallsFor(bytes);
  const auto ring = static_cast<std::size_t>(calls);

  cudaStream_t stream = nullptr;
  Demand(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create stream");
  const Memory packed = Allocate(packed_bytes * ring);
  Demand(cudaMemset(packed.get(), 1, packed_bytes * ring), "fill");
  const Memory valid = Allocate(count * ring);
  Demand(cudaMemset(valid.get(), 1, count * ring), "fill");
  const Memory out = Allocate(out_bytes * ring);
  const auto gather_with = [&](int i) {
    const auto at = static_cast<std::size_t>(i);
    CudaGather gather;
    gather.shape = shape;
    gather.packed = packed.get() + at * packed_bytes;
    gather.valid = valid.get() + at * count;
    gather.rows = rows;
    gather.out = out.get() + at * out_bytes;
    gather.kind = kind;
    Demand(GatherRowsOnCuda(gather, stream), "gather");
  };
  TimeBesideCopy(state, stream, calls, bytes, gather_with, [] {});
  Demand(cudaStreamDestroy(stream), "destroy stream");
}

constexpr std::int64_t kModels[][3] = {{58, 8, 256}, {92, 8, 384}};
constexpr std::int64_t kRows[] = {256, 1024, 4096, 8192};

void PackCases(benchmark::internal::Benchmark* cases) {
  cases->ArgNames({"L", "K", "E", "N"})->UseManualTime()->Iterations(kRuns);
  for (const auto& model : kModels) {
    for (const std::int64_t rows : kRows)
      cases->Args({model[0], model[1], model[2], rows});
  }
}
BENCHMARK(BM_Pack)->Apply(PackCases);

void GatherCases(benchmark::internal::Benchmark* cases) {
  cases->ArgNames({"L", "K", "E", "N", "kind"})->UseManualTime()->Iterations(kRuns);
  for (const auto& model : kModels) {
    for (const std::int64_t rows : kRows) {
      for (const IdKind kind : {IdKind::kInt16, IdKind::kInt32, IdKind::kInt64}) {
        cases->Args({model[0], model[1], model[2], rows, static_cast<std::int64_t>(kind)});
      }
    }
  }
}
BENCHMARK(BM_Gather)->Apply(GatherCases);

}  // namespace
}  // namespace waymark::bench
