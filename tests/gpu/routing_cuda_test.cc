// What only a device shows of routing: memory that lies elsewhere, graphs, streams, sizes.
#include "kernels/routing_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/routing_math.h"
#include "tests/gpu/cuda_support.h"
#include "tests/support/routing_method_name.h"

namespace waymark::kernels {
namespace {

constexpr std::int32_t kTopK = 8;
constexpr std::int32_t kExperts = 256;
constexpr int kUntouched = 0x5a;  // a byte

std::vector<float> Logits(std::int64_t rows, std::uint64_t seed, std::int32_t experts = kExperts) {
  std::mt19937_64 random(seed);
  std::vector<float> logits(static_cast<std::size_t>(rows * experts));
  for (float& logit : logits)
    logit = static_cast<float>(static_cast<std::int32_t>(random() % 4096) - 2048) / 256;
  return logits;
}

RoutingConfig Config(RoutingMethod method) {
  RoutingConfig config;
  config.method = method;
  config.top_k = method == RoutingMethod::kLlama4 ? 1 : kTopK;
  if (method == RoutingMethod::kDeepSeekV3) {
    config.num_groups = 8;
    config.topk_groups = 4;
    config.scale = 2.5f;
  }
  return config;
}

// A call's buffers, `capacity` rows of each.
struct Buffers {
  Buffers(std::int64_t capacity, std::int32_t k)
      : top_k(k),
        logits(static_cast<std::size_t>(capacity * kExperts)),
        ids(static_cast<std::size_t>(capacity * k)),
        weights(static_cast<std::size_t>(capacity * k)),
        recorded(static_cast<std::size_t>(capacity * k)) {
    Clear();
  }
  void Clear() {
    ids.Fill(kUntouched);
    weights.Fill(kUntouched);
    recorded.Fill(kUntouched);
  }
  // Outputs say that they have `capacity` rows.
  [[nodiscard]] RoutingTensors Tensors(std::int64_t rows, std::int64_t capacity) const {
    RoutingTensors t;
    const MemoryDevice device = MemoryDevice::Cuda(0);
    t.logits = Tensor::Matrix(logits.data(), DType::kFloat32, rows, kExperts, device);
    t.topk_ids = Tensor::Matrix(ids.data(), DType::kInt32, capacity, top_k, device);
    t.topk_weights = Tensor::Matrix(weights.data(), DType::kFloat32, capacity, top_k, device);
    t.replay_out = Tensor::Matrix(recorded.data(), DType::kInt16, capacity, top_k, device);
    return t;
  }

  std::int32_t top_k;
  DeviceArray<float> logits;
  DeviceArray<std::int32_t> ids;
  DeviceArray<float> weights;
  DeviceArray<std::int16_t> recorded;
};

struct Results {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::vector<std::int16_t> recorded;
};

Results OnHost(const RoutingConfig& config, const std::vector<float>& logits) {
  const auto rows = static_cast<std::int64_t>(logits.size()) / kExperts;
  const auto count = static_cast<std::size_t>(rows * config.top_k);
  Results r{std::vector<std::int32_t>(count), std::vector<float>(count),
            std::vector<std::int16_t>(count)};
  RoutingTensors t;
  t.logits = Tensor::Matrix(logits.data(), DType::kFloat32, rows, kExperts);
  t.topk_ids = Tensor::Matrix(r.ids.data(), DType::kInt32, rows, config.top_k);
  t.topk_weights = Tensor::Matrix(r.weights.data(), DType::kFloat32, rows, config.top_k);
  t.replay_out = Tensor::Matrix(r.recorded.data(), DType::kInt16, rows, config.top_k);
  EXPECT_EQ(RouteOnHost(config, t).ToString(), "ok");
  return r;
}

// The first rows of the buffers are `wanted`, bit for bit, and the others were not touched.
void ExpectResults(const Results& wanted, const Buffers& buffers) {
  const auto check = [](const auto& expected, const auto& device, const char* what) {
    const auto got = device.Get();
    const std::size_t bytes = expected.size() * sizeof(expected[0]);
    ASSERT_LE(expected.size(), got.size());
    EXPECT_EQ(std::memcmp(expected.data(), got.data(), bytes), 0) << what;
    const auto* const all = reinterpret_cast<const std::uint8_t*>(got.data());
    EXPECT_TRUE(std::all_of(all + bytes, all + got.size() * sizeof(got[0]),
                            [](std::uint8_t byte) { return byte == kUntouched; }))
        << what << " beyond N";
  };
  check(wanted.ids, buffers.ids, "ids");
  check(wanted.weights, buffers.weights, "weights");
  check(wanted.recorded, buffers.recorded, "recorded");
}

class RoutingCuda : public CudaTest {};

TEST_F(RoutingCuda, EveryMethodAndBlockSizeGivesWhatTheHostGives) {
  int multiprocessors = 0;
  ExpectCuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "SMs");
  const CudaStream stream;
  for (std::int32_t m = 0; m < kNumRoutingMethods; ++m) {
    const RoutingConfig config = Config(static_cast<RoutingMethod>(m));
    // Where blocks grow, and one row more than whole blocks.
    for (const std::int64_t rows : {1, 4 * multiprocessors, 4 * multiprocessors + 1, 4099, 70000}) {
      SCOPED_TRACE(std::string(RoutingMethodName(config.method)) + " N=" + std::to_string(rows));
      const std::vector<float> logits = Logits(rows, static_cast<std::uint64_t>(rows));
      Buffers buffers(rows + 3, config.top_k);
      buffers.logits.Set(logits);
      EXPECT_EQ(RouteOnCuda(config, buffers.Tensors(rows, rows + 3), stream.get()).ToString(),
                "ok");
      ExpectResults(OnHost(config, logits), buffers);
    }
  }
}

TEST_F(RoutingCuda, OutputsAreTheSameWithAndWithoutRecording) {
  const CudaStream stream;
  constexpr std::int64_t kRows = 5000;
  for (std::int32_t m = 0; m < kNumRoutingMethods; ++m) {
    const RoutingConfig config = Config(static_cast<RoutingMethod>(m));
    SCOPED_TRACE(RoutingMethodName(config.method));
    Buffers recording(kRows, config.top_k), plain(kRows, config.top_k);
    recording.logits.Set(Logits(kRows, 1));
    plain.logits.Set(Logits(kRows, 1));
    EXPECT_TRUE(RouteOnCuda(config, recording.Tensors(kRows, kRows), stream.get()).ok());
    RoutingTensors tensors = plain.Tensors(kRows, kRows);
    tensors.replay_out = {};
    EXPECT_TRUE(RouteOnCuda(config, tensors, stream.get()).ok());
    EXPECT_EQ(recording.ids.Get(), plain.ids.Get());
    EXPECT_EQ(recording.weights.Get(), plain.weights.Get());
    // What was recorded gives the same again, and no row of it is missing.
    Buffers again(kRows, config.top_k);
    again.logits.Set(Logits(kRows, 1));
    DeviceArray<std::uint8_t> routed(kRows);
    routed.Fill(kUntouched);
    tensors = again.Tensors(kRows, kRows);
    tensors.replay_in = recording.Tensors(kRows, kRows).replay_out;
    tensors.routed = Tensor::Vector(routed.data(), DType::kUint8, kRows, MemoryDevice::Cuda(0));
    EXPECT_TRUE(RouteOnCuda(config, tensors, stream.get()).ok());
    EXPECT_EQ(recording.ids.Get(), again.ids.Get());
    EXPECT_EQ(recording.weights.Get(), again.weights.Get());
    EXPECT_EQ(recording.recorded.Get(), again.recorded.Get());
    EXPECT_EQ(routed.Get(), std::vector<std::uint8_t>(kRows, 0));
  }
}

struct Slot {
  const char* name;
  RoutingArgument argument;
  std::function<Tensor&(RoutingTensors&)> tensor;
};
std::vector<Slot> Slots() {
  return {
      {"logits", RoutingArgument::kLogits, [](RoutingTensors& t) -> Tensor& { return t.logits; }},
      {"bias", RoutingArgument::kBias, [](RoutingTensors& t) -> Tensor& { return t.bias; }},
      {"ids", RoutingArgument::kTopKIds, [](RoutingTensors& t) -> Tensor& { return t.topk_ids; }},
      {"weights", RoutingArgument::kTopKWeights,
       [](RoutingTensors& t) -> Tensor& { return t.topk_weights; }},
      {"replay_out", RoutingArgument::kReplayOut,
       [](RoutingTensors& t) -> Tensor& { return t.replay_out; }},
      {"replay_in", RoutingArgument::kReplayIn,
       [](RoutingTensors& t) -> Tensor& { return t.replay_in; }},
      {"routed", RoutingArgument::kRouted, [](RoutingTensors& t) -> Tensor& { return t.routed; }},
  };
}

TEST_F(RoutingCuda, MemoryThatLiesElsewhereIsNamedAndNothingIsLaunched) {
  constexpr std::int64_t kRows = 4;
  const CudaStream stream;
  const RoutingConfig config = Config(RoutingMethod::kDeepSeekV3);
  const Buffers buffers(kRows, kTopK);
  const DeviceArray<float> bias(kExperts);
  const DeviceArray<std::int16_t> replay(kRows * kTopK);
  const DeviceArray<std::uint8_t> routed(kRows);
  std::vector<float> pageable(kRows * kExperts);
  void* pinned = nullptr;
  void* managed = nullptr;
  ExpectCuda(cudaMallocHost(&pinned, kRows * kExperts * 4 + 16), "cudaMallocHost");
  ExpectCuda(cudaMallocManaged(&managed, kRows * kExperts * 4), "cudaMallocManaged");
  int devices = 0;
  ExpectCuda(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  void* elsewhere = nullptr;
  if (devices > 1) {
    ExpectCuda(cudaSetDevice(1), "cudaSetDevice");
    ExpectCuda(cudaMalloc(&elsewhere, kRows * kExperts * 4), "cudaMalloc");
    ExpectCuda(cudaSetDevice(0), "cudaSetDevice");
  }
  for (const Slot& slot : Slots()) {
    SCOPED_TRACE(slot.name);
    RoutingTensors tensors = buffers.Tensors(kRows, kRows);
    tensors.bias = Tensor::Vector(bias.data(), DType::kFloat32, kExperts, MemoryDevice::Cuda(0));
    tensors.replay_in =
        Tensor::Matrix(replay.data(), DType::kInt16, kRows, kTopK, MemoryDevice::Cuda(0));
    tensors.routed = Tensor::Vector(routed.data(), DType::kUint8, kRows, MemoryDevice::Cuda(0));
    Tensor& tensor = slot.tensor(tensors);
    const auto call = [&](void* data, MemoryDevice says) {
      tensor.data = data;
      tensor.device = says;
      CudaGraph graph;
      graph.Begin(stream);
      const RoutingCode code = RouteOnCuda(config, tensors, stream.get());
      EXPECT_EQ(graph.End(stream), code.ok() ? 1u : 0u);
      return code;
    };
    const auto expect_refused = [&](const RoutingCode& code, std::int64_t ordinal) {
      EXPECT_EQ(code.argument, slot.argument) << code.ToString();
      EXPECT_EQ(code.rule, RoutingRule::kNotOnDevice) << code.ToString();
      EXPECT_EQ(code.value, ordinal);
      EXPECT_EQ(code.bound, 0);
    };
    void* const right = tensor.data;
    EXPECT_TRUE(call(right, MemoryDevice::Cuda(0)).ok());
    EXPECT_TRUE(call(managed, MemoryDevice::Cuda(0)).ok());
    expect_refused(call(right, MemoryDevice::Host()), -1);             // says so
    expect_refused(call(right, MemoryDevice::Cuda(1)), 1);             // says so
    expect_refused(call(pageable.data(), MemoryDevice::Cuda(0)), -1);  // is so
    // Not at its begin, where memory of the device was before, which is remembered.
    expect_refused(call(static_cast<char*>(pinned) + 16, MemoryDevice::Cuda(0)), -1);
    if (elsewhere != nullptr) expect_refused(call(elsewhere, MemoryDevice::Cuda(0)), 1);
  }
  ExpectCuda(cudaFreeHost(pinned), "cudaFreeHost");
  ExpectCuda(cudaFree(managed), "cudaFree");
  if (elsewhere != nullptr) ExpectCuda(cudaFree(elsewhere), "cudaFree");
}

TEST_F(RoutingCuda, NoRowsLaunchNothing) {
  const CudaStream stream;
  const Buffers buffers(4, kTopK);
  const RoutingConfig config = Config(RoutingMethod::kRenormalize);
  RoutingTensors none;
  none.logits = Tensor::Matrix(nullptr, DType::kFloat32, 0, kExperts, MemoryDevice::Cuda(0));
  for (const RoutingTensors& tensors : {buffers.Tensors(0, 4), none}) {
    CudaGraph graph;
    graph.Begin(stream);
    EXPECT_EQ(RouteOnCuda(config, tensors, stream.get()).ToString(), "ok");
    EXPECT_EQ(graph.End(stream), 0u);
  }
  ExpectResults({}, buffers);
}

TEST_F(RoutingCuda, GraphsOnOversizedBuffersRunAgainOnNewLogits) {
  constexpr std::int64_t kCapacity = 2048;
  const CudaStream stream;
  for (const RoutingMethod method : {RoutingMethod::kDefault, RoutingMethod::kDeepSeekV3}) {
    const RoutingConfig config = Config(method);
    Buffers buffers(kCapacity, config.top_k);
    // One graph for each N, as an engine has them, all on the same buffers.
    constexpr std::int64_t kRows[] = {1, 7, 64, 1000, kCapacity};
    CudaGraph graphs[std::size(kRows)];
    for (std::size_t i = 0; i < std::size(kRows); ++i) {
      graphs[i].Begin(stream);
      EXPECT_EQ(RouteOnCuda(config, buffers.Tensors(kRows[i], kCapacity), stream.get()).ToString(),
                "ok");
      EXPECT_EQ(graphs[i].End(stream), 1u);
    }
    for (const std::size_t i : {4u, 0u, 2u, 1u, 3u, 0u}) {
      buffers.Clear();
      std::vector<float> logits = Logits(kCapacity, 10 + i);
      buffers.logits.Set(logits);
      graphs[i].Launch(stream);
      stream.Synchronize();
      logits.resize(static_cast<std::size_t>(kRows[i] * kExperts));
      ExpectResults(OnHost(config, logits), buffers);
    }
  }
}

TEST_F(RoutingCuda, TwoStreamsAtOnce) {
  constexpr std::int64_t kRows = 3000;
  const CudaStream streams[2];
  const RoutingConfig configs[2] = {Config(RoutingMethod::kRenormalize),
                                    Config(RoutingMethod::kDeepSeekV3)};
  Buffers first(kRows, kTopK), second(kRows, kTopK);
  Buffers* const buffers[2] = {&first, &second};
  const std::vector<float> logits[2] = {Logits(kRows, 1), Logits(kRows, 2)};
  for (int s = 0; s < 2; ++s)
    buffers[s]->logits.Set(logits[s]);
  for (int round = 0; round < 50; ++round) {
    for (int s = 0; s < 2; ++s) {
      ASSERT_TRUE(
          RouteOnCuda(configs[s], buffers[s]->Tensors(kRows, kRows), streams[s].get()).ok());
    }
  }
  for (int s = 0; s < 2; ++s) {
    streams[s].Synchronize();
    ExpectResults(OnHost(configs[s], logits[s]), *buffers[s]);
  }
}

TEST_F(RoutingCuda, TheDefaultStreamWillDo) {
  constexpr std::int64_t kRows = 10;
  const RoutingConfig config = Config(RoutingMethod::kSigmoidRenorm);
  Buffers buffers(kRows, kTopK);
  const std::vector<float> logits = Logits(kRows, 3);
  buffers.logits.Set(logits);
  EXPECT_EQ(RouteOnCuda(config, buffers.Tensors(kRows, kRows), nullptr).ToString(), "ok");
  ExpectResults(OnHost(config, logits), buffers);
}

// N x E, and N x the stride of an output, past 2^32 elements. Hazard k: 32-bit products.
TEST_F(RoutingCuda, RowsBeyondFourGigaElements) {
  constexpr std::int64_t kWide = 1024;
  constexpr std::int64_t kRows = (std::int64_t{1} << 22) + 8;
  constexpr std::size_t kElements = static_cast<std::size_t>(kRows * kWide);
  std::size_t free = 0, total = 0;
  ExpectCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const std::size_t needed = 2 * 2 * kElements + (std::size_t{1} << 30);
  if (free < needed) GTEST_SKIP() << "needs " << (needed >> 30) << " GiB of device memory";
  const CudaStream stream;
  DeviceArray<std::uint16_t> logits(kElements);
  DeviceArray<std::int16_t> recorded(kElements);
  DeviceArray<std::int32_t> ids(static_cast<std::size_t>(kRows) * 2);
  DeviceArray<float> weights(static_cast<std::size_t>(kRows) * 2);
  logits.Fill(0);
  recorded.Fill(kUntouched);
  ids.Fill(kUntouched);
  // All logits are 0 but two in each of the rows that are looked at.
  constexpr std::int64_t kLooked[] = {0, (std::int64_t{1} << 21) + 1, kRows - 3, kRows - 1};
  for (const std::int64_t row : kLooked) {
    std::vector<std::uint16_t> wide(kWide, 0);
    wide[static_cast<std::size_t>(row % 1000 + 20)] = routing::ToBfloat16(2.0f);
    wide[static_cast<std::size_t>(row % 1000)] = routing::ToBfloat16(1.0f);
    logits.Set(wide, static_cast<std::size_t>(row * kWide));
  }
  RoutingConfig config = Config(RoutingMethod::kTopK);
  config.top_k = 2;
  const MemoryDevice device = MemoryDevice::Cuda(0);
  RoutingTensors t;
  t.logits = Tensor::Matrix(logits.data(), DType::kBfloat16, kRows, kWide, device);
  t.topk_ids = Tensor::Matrix(ids.data(), DType::kInt32, kRows, 2, device);
  t.topk_weights = Tensor::Matrix(weights.data(), DType::kFloat32, kRows, 2, device);
  t.replay_out = Tensor::Matrix(recorded.data(), DType::kInt16, kRows, 2, device, kWide);
  EXPECT_EQ(RouteOnCuda(config, t, stream.get()).ToString(), "ok");
  for (const std::int64_t row : kLooked) {
    const auto first = static_cast<std::int32_t>(row % 1000 + 20);
    const auto second = static_cast<std::int32_t>(row % 1000);
    EXPECT_EQ(ids.Get(static_cast<std::size_t>(row * 2), 2),
              (std::vector<std::int32_t>{first, second}));
    EXPECT_EQ(recorded.Get(static_cast<std::size_t>(row * kWide), 3),
              (std::vector<std::int16_t>{static_cast<std::int16_t>(first),
                                         static_cast<std::int16_t>(second), 0x5a5a}));
  }
}

}  // namespace
}  // namespace waymark::kernels
