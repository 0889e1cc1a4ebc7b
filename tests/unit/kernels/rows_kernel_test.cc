// The input of the kernels of pack_cuda.h, run on the host by emulated blocks; and what they
// reckon with.
#include <gtest/gtest.h>

#include "tests/support/emulated_rows.h"
#include "tests/unit/kernels/rows_backend.h"

namespace waymark::kernels {
namespace {

class EmulatedRowsBackend final : public RowsBackend {
 public:
  [[nodiscard]] std::string name() const override { return "emulated"; }
  std::uint8_t* Bring(std::uint8_t* host, std::size_t /*bytes*/) override { return host; }
  void TakeBack() override {}

  int CaptureIds(const IdsView& ids, std::int64_t rows, std::int32_t top_k, std::int16_t* view,
                 std::mt19937_64& random) override {
    if (!device::CheckCapture(ids, rows, top_k, view)) return 1;
    RunEmulated(device::PlanCapture(ids, rows, top_k, view), random);
    return 0;
  }
  int PackRows(const PackLaunch& pack, std::mt19937_64& random) override {
    if (!device::CheckPack(pack)) return 1;
    // A large device makes small tiles of everything; one without SMs none.
    RunEmulated(device::PlanPack(pack, random() % 2 == 0 ? 0 : 1 << 20), random);
    return 0;
  }
  int GatherRows(const CudaGather& gather, std::mt19937_64& random) override {
    if (!device::CheckGather(gather)) return 1;
    RunEmulated(device::PlanGather(gather), random);
    return 0;
  }
};

// What every device gives a block without being asked.
constexpr unsigned kSharedBytes = 48 * 1024;

TEST(TileShape, ChunksFitAndCoverAllLayers) {
  for (std::int32_t layers = 1; layers <= 600; layers += layers < 130 ? 1 : 47) {
    for (std::int32_t top_k = 1; top_k <= device::kMaxTopK; top_k += top_k < 70 ? 1 : 31) {
      for (const std::int32_t experts : {256, 65535}) {
        const RowShape shape{layers, top_k, experts};
        const auto tile = device::TileShape::Of(shape);
        SCOPED_TRACE(std::to_string(layers) + " " + std::to_string(top_k));
        ASSERT_GE(tile.chunk_layers, 1u);
        ASSERT_EQ(tile.pitch % 32, 16u);  // odd: rows do not begin in the same bank
        ASSERT_LE(tile.pitch, device::kMaxPitch);
        // A segment of a row with whatever it is misaligned by.
        ASSERT_LE(tile.chunk_layers * tile.top_k * tile.id_bytes + 15, tile.pitch);
        unsigned covered = 0;
        while (covered < tile.num_layers)
          covered += tile.ChunkAt(covered);
        ASSERT_EQ(covered, tile.num_layers);
        PackLaunch pack;
        pack.shape = shape;
        ASSERT_LE(device::PlanPack(pack, 132).shared_bytes, kSharedBytes);
      }
    }
  }
}

TEST(Divider, IsExactWherePromised) {
  for (std::uint32_t divisor = 1; divisor <= static_cast<std::uint32_t>(device::kMaxTopK);
       ++divisor) {
    const auto by = device::Divider::Of(divisor);
    const std::uint32_t most = std::max(2100u, device::kCaptureRows * divisor);
    for (std::uint32_t n = 0; n < most; ++n)
      ASSERT_EQ(by.Quotient(n), n / divisor) << n << " / " << divisor;
  }
  for (const std::uint32_t divisor : {1u, 2u, 3u, 7u, 8u, 65535u}) {
    const std::uint32_t last = static_cast<std::uint32_t>((std::uint64_t{1} << 32) / divisor - 1);
    for (std::uint32_t n = last; n > last - 100 && n > 0; --n)
      ASSERT_EQ(device::Divider::Of(divisor).Quotient(n), n / divisor) << n << " / " << divisor;
  }
}

}  // namespace

RowsBackend* TheRowsBackend(std::string* /*why_none*/) {
  static EmulatedRowsBackend backend;
  return &backend;
}

}  // namespace waymark::kernels
