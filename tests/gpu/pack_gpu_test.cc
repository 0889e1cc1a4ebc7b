// Capture, pack and gather on a CUDA device: the suite that emulated blocks pass, and what
// only a device can show: graphs, streams, addresses beyond four gigabytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/capture_ids.h"
#include "kernels/pack_cuda.h"
#include "tests/gpu/cuda_support.h"
#include "tests/unit/kernels/rows_backend.h"

namespace waymark::kernels {
namespace {

class CudaRowsBackend final : public RowsBackend {
 public:
  [[nodiscard]] std::string name() const override { return "cuda"; }

  std::uint8_t* Bring(std::uint8_t* host, std::size_t bytes) override {
    Copy copy;
    copy.host = host;
    copy.bytes = bytes;
    copy.before = kGuard + reinterpret_cast<std::uintptr_t>(host) % kGuard;
    std::vector<std::uint8_t> image(copy.before + bytes + kGuard, kGuardByte);
    if (bytes != 0) std::memcpy(image.data() + copy.before, host, bytes);
    copy.device = std::make_unique<DeviceArray<std::uint8_t>>(image);
    copies_.push_back(std::move(copy));
    return copies_.back().device->data() + copies_.back().before;
  }
  void TakeBack() override {
    stream_.Synchronize();
    for (const Copy& copy : copies_) {
      const std::vector<std::uint8_t> after = copy.device->Get();
      const auto begin = after.begin() + static_cast<std::ptrdiff_t>(copy.before);
      const auto end = begin + static_cast<std::ptrdiff_t>(copy.bytes);
      const auto is_guard = [](std::uint8_t byte) { return byte == kGuardByte; };
      EXPECT_TRUE(std::all_of(after.begin(), begin, is_guard)) << "written before memory";
      EXPECT_TRUE(std::all_of(end, after.end(), is_guard)) << "written behind memory";
      std::copy(begin, end, copy.host);
    }
    copies_.clear();
  }

  int CaptureIds(const IdsView& ids, std::int64_t rows, std::int32_t top_k, std::int16_t* view,
                 std::mt19937_64& /*random*/) override {
    return CaptureIdsOnCuda(ids, rows, top_k, view, stream_.get());
  }
  int PackRows(const PackLaunch& pack, std::mt19937_64& /*random*/) override {
    return PackRowsOnCuda(pack, stream_.get());
  }
  int GatherRows(const CudaGather& gather, std::mt19937_64& /*random*/) override {
    return GatherRowsOnCuda(gather, stream_.get());
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr std::uint8_t kGuardByte = 0xc7;
  struct Copy {
    std::uint8_t* host = nullptr;
    std::size_t bytes = 0;
    std::size_t before = 0;  // guard bytes before the copy
    std::unique_ptr<DeviceArray<std::uint8_t>> device;
  };

  CudaStream stream_;
  std::vector<Copy> copies_;
};

constexpr RowShape kShape{58, 8, 256};
constexpr std::int32_t kMaxRows = 512;
constexpr std::uint8_t kUntouched = 0xa5;

// topk_ids [kMaxRows, 9] of int32 a layer: those of every row valid, the ninth column junk.
std::vector<std::int32_t> RandomTopkIds(std::mt19937_64& random) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(kMaxRows) * 9);
  for (std::size_t row = 0; row < kMaxRows; ++row) {
    const auto first = static_cast<std::int32_t>(random() % 256);
    for (std::int32_t k = 0; k < 8; ++k)
      ids[row * 9 + static_cast<std::size_t>(k)] = (first + 7 * k) % 256;
    ids[row * 9 + 8] = 256;
  }
  return ids;
}

// What a rank has on the device, and one step of it: a graph that captures every layer, then,
// outside of it, the pack of `rows` of them.
class Step {
 public:
  explicit Step(std::uint64_t seed) : random_(seed) {
    for (std::int32_t layer = 0; layer < kShape.num_layers; ++layer) {
      inputs_.push_back(
          std::make_unique<DeviceArray<std::int32_t>>(std::vector<std::int32_t>(kMaxRows * 9)));
    }
    view_.Fill(0xff);
  }

  // Launches the capture of rows [0, rows) of every layer but `silent`.
  void Capture(const CudaStream& stream, std::int32_t rows, std::int32_t silent = -1) {
    for (std::int32_t layer = 0; layer < kShape.num_layers; ++layer) {
      if (layer == silent) continue;
      const IdsView ids{inputs_[static_cast<std::size_t>(layer)]->data(), IdKind::kInt32, 36, 0, 4};
      EXPECT_EQ(CaptureIdsOnCuda(ids, rows, kShape.top_k, view_.data() + layer * kLayerStride,
                                 stream.get()),
                0);
    }
  }
  void Pack(const CudaStream& stream, std::int32_t rows, std::int32_t written_rows) {
    PackLaunch pack;
    pack.shape = kShape;
    pack.view = view_.data();
    pack.layer_stride = kLayerStride;
    pack.rows = rows;
    pack.written_rows = written_rows;
    pack.packed = packed_.data();
    pack.verdicts = reinterpret_cast<RowVerdict*>(verdicts_.data());
    pack.silent = counts_.data();
    pack.invalid = counts_.data() + kShape.num_layers;
    EXPECT_EQ(PackRowsOnCuda(pack, stream.get()), 0);
  }
  // New ids for the next replay; old results gone.
  void Renew() {
    ids_.clear();
    for (auto& input : inputs_) {
      ids_.push_back(RandomTopkIds(random_));
      input->Set(ids_.back());
    }
    packed_.Fill(kUntouched);
    verdicts_.Fill(kUntouched);
    counts_.Fill(0);
  }
  // Rows [0, rows) are there, nothing behind them is, and the view is all -1.
  void Expect(std::int32_t rows) const {
    const std::vector<std::uint8_t> packed = packed_.Get();
    const std::vector<std::uint8_t> verdicts = verdicts_.Get();
    std::vector<std::uint8_t> expected(packed.size(), kUntouched);
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      for (std::size_t layer = 0; layer < 58; ++layer) {
        for (std::size_t k = 0; k < 8; ++k) {
          expected[(row * 58 + layer) * 8 + k] =
              static_cast<std::uint8_t>(ids_[layer][row * 9 + k]);
        }
      }
    }
    EXPECT_TRUE(packed == expected);
    for (std::int32_t row = 0; row < kMaxRows; ++row)
      ASSERT_EQ(verdicts[static_cast<std::size_t>(row)], row < rows ? 0 : kUntouched) << row;
    ExpectPoisoned();
    for (const std::uint32_t count : counts_.Get())
      ASSERT_EQ(count, 0u);
  }
  void ExpectPoisoned() const {
    const std::vector<std::int16_t> view = view_.Get();
    EXPECT_EQ(std::count(view.begin(), view.end(), -1), static_cast<std::ptrdiff_t>(view.size()));
  }
  void ExpectSilent(std::int32_t layer, std::int32_t rows) const {
    const std::vector<std::uint8_t> verdicts = verdicts_.Get();
    for (std::int32_t row = 0; row < rows; ++row) {
      ASSERT_EQ(static_cast<RowVerdict>(verdicts[static_cast<std::size_t>(row)]),
                RowVerdict::kNotWritten);
    }
    std::vector<std::uint32_t> expected(2 * 58);
    expected[static_cast<std::size_t>(layer)] = static_cast<std::uint32_t>(rows);
    EXPECT_EQ(counts_.Get(), expected);
  }

 private:
  static constexpr std::ptrdiff_t kLayerStride = std::ptrdiff_t{kMaxRows} * 8 + 32;

  std::mt19937_64 random_;
  std::vector<std::vector<std::int32_t>> ids_;
  std::vector<std::unique_ptr<DeviceArray<std::int32_t>>> inputs_;
  DeviceArray<std::int16_t> view_{static_cast<std::size_t>(kLayerStride) * 58};
  DeviceArray<std::uint8_t> packed_{kMaxRows * 464};
  DeviceArray<std::uint8_t> verdicts_{kMaxRows};
  DeviceArray<std::uint32_t> counts_{2 * 58};
};

class RowsOnCuda : public CudaTest {};

// The graph has fixed addresses and 512 rows; of the replay's rows, as many as the step has are
// valid. A layer that is silent afterwards finds nothing of theirs.
TEST_F(RowsOnCuda, AGraphOnOversizedBuffersServesEverySize) {
  const CudaStream stream;
  Step step(1);
  CudaGraph graph;
  graph.Begin(stream);
  step.Capture(stream, kMaxRows);
  EXPECT_EQ(graph.End(stream), 58u);
  for (const std::int32_t rows : {512, 300, 1, 17, 511, 0, 256}) {
    SCOPED_TRACE(rows);
    step.Renew();
    graph.Launch(stream);
    step.Pack(stream, rows, kMaxRows);
    stream.Synchronize();
    step.Expect(rows);

    step.Renew();
    step.Capture(stream, 400, 31);
    step.Pack(stream, 400, 400);
    stream.Synchronize();
    step.ExpectSilent(31, 400);
    step.ExpectPoisoned();
  }
}

// Everything can be recorded, and is one node each; nothing to do is none.
TEST_F(RowsOnCuda, AWholeStepCanBeRecorded) {
  const CudaStream stream;
  Step step(2);
  CudaGraph graph;
  graph.Begin(stream);
  step.Capture(stream, 300);
  step.Pack(stream, 300, 300);
  step.Capture(stream, 0);
  step.Pack(stream, 0, 0);
  EXPECT_EQ(graph.End(stream), 59u);
  for (int replay = 0; replay < 3; ++replay) {
    step.Renew();
    graph.Launch(stream);
    stream.Synchronize();
    step.Expect(300);
  }
}

// A graph that has been instantiated takes another number of rows by an update: the same kernels,
// other arguments.
TEST_F(RowsOnCuda, AnExecutableGraphTakesAnotherNumberOfRows) {
  const CudaStream stream;
  Step step(3);
  CudaGraph graph;
  for (const std::int32_t rows : {512, 300, 64, 100}) {
    SCOPED_TRACE(rows);
    graph.Begin(stream);
    step.Capture(stream, rows);
    step.Pack(stream, rows, rows);
    EXPECT_EQ(graph.End(stream), 59u);
    step.Renew();
    graph.Launch(stream);
    stream.Synchronize();
    step.Expect(rows);
  }
}

TEST_F(RowsOnCuda, TwoStreamsAtOnce) {
  const CudaStream streams[2];
  Step first(4);
  Step second(5);
  for (int round = 0; round < 10; ++round) {
    first.Renew();
    second.Renew();
    for (int again = 0; again < 5; ++again) {
      first.Capture(streams[0], 512);
      second.Capture(streams[1], 200);
      first.Pack(streams[0], 512, 512);
      second.Pack(streams[1], 200, 200);
    }
    streams[0].Synchronize();
    streams[1].Synchronize();
    first.Expect(512);
    second.Expect(200);
  }
}

// Layers that lie 4.5 GiB apart; and packed rows of which the last lie as far in.
TEST_F(RowsOnCuda, AddressesBeyondFourGigabytes) {
  constexpr std::size_t kFar = std::size_t{9} << 29;
  constexpr std::size_t kBytes = kFar + (std::size_t{1} << 20);
  std::size_t free = 0;
  std::size_t total = 0;
  ExpectCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (free < 3 * kBytes) GTEST_SKIP() << "needs 15 GiB of device memory";
  constexpr std::int64_t kRows = 40;
  std::vector<std::int16_t> ids(kRows * 8);
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int16_t>(i % 256);
  const std::vector<std::int16_t> ones(ids.size(), -1);
  const std::vector<std::uint8_t> expected(ids.begin(), ids.end());
  DeviceArray<std::int16_t> view(kBytes / 2);
  const CudaStream stream;

  PackLaunch pack;
  pack.view = view.data();
  {
    DeviceArray<std::uint8_t> verdicts(kRows);
    DeviceArray<std::uint8_t> packed(kRows * 16);
    view.Set(ids);
    view.Set(ids, kFar / 2);
    pack.shape = {2, 8, 256};
    pack.layer_stride = kFar / 2;
    pack.rows = kRows;
    pack.written_rows = kRows;
    pack.packed = packed.data();
    pack.verdicts = reinterpret_cast<RowVerdict*>(verdicts.data());
    EXPECT_EQ(PackRowsOnCuda(pack, stream.get()), 0);
    const std::vector<std::uint8_t> rows = packed.Get();
    for (std::size_t i = 0; i < rows.size(); ++i)
      ASSERT_EQ(rows[i], expected[i / 16 * 8 + i % 8]) << i;
    EXPECT_EQ(view.Get(kFar / 2, ids.size()), ones);
  }
  // One layer, of which rows from 301,989,888 on are looked at: two bytes an id both ways.
  constexpr std::int64_t kFarRows = kFar / 16 + kRows;
  DeviceArray<std::uint8_t> verdicts(kFarRows);
  DeviceArray<std::int16_t> packed(kBytes / 2);
  view.Set(ids, kFar / 2);
  pack.shape = {1, 8, 257};
  pack.layer_stride = 0;
  pack.rows = kFarRows;
  pack.written_rows = kFarRows;
  pack.packed = reinterpret_cast<std::uint8_t*>(packed.data());
  pack.verdicts = reinterpret_cast<RowVerdict*>(verdicts.data());
  EXPECT_EQ(PackRowsOnCuda(pack, stream.get()), 0);
  EXPECT_EQ(packed.Get(kFar / 2, ids.size()), ids);
  EXPECT_EQ(view.Get(kFar / 2, ids.size()), ones);
  // Back into the view.
  CudaGather gather;
  gather.shape = pack.shape;
  gather.packed = pack.packed;
  gather.rows = kFarRows;
  gather.out = view.data();
  EXPECT_EQ(GatherRowsOnCuda(gather, stream.get()), 0);
  EXPECT_EQ(view.Get(kFar / 2, ids.size()), ids);
}

}  // namespace

RowsBackend* TheRowsBackend(std::string* why_none) {
  *why_none = NoCuda();
  if (!why_none->empty()) return nullptr;
  static auto* const backend = new CudaRowsBackend();
  return backend;
}

}  // namespace waymark::kernels
