// The examples in the comments of public headers, each run with what its words say it is given.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blockstore/flight/writer.h"
#include "blockstore/store/store.h"
#include "kernels/routing.h"
#include "plugin/capture/capture.h"
#include "plugin/capture/capture_session.h"
#include "plugin/waymark.h"

namespace waymark {
namespace {

// Rows of a store with uint8 ids, each of which holds `first_id + row` everywhere.
class SameIds final : public StepRows {
 public:
  SameIds(std::size_t row_bytes, int first_id) : row_bytes_(row_bytes), first_id_(first_id) {}
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      std::memset(destinations[i], first_id_ + static_cast<int>(first + i), row_bytes_);
      verdicts[i] = Reason::kNone;
    }
  }
  void Done() override {}

 private:
  const std::size_t row_bytes_;
  const int first_id_;
};

TEST(Examples, Capture) {
  const RoutingShape shape = {.num_layers = 2, .top_k = 1, .num_experts = 64, .page_tokens = 16};
  const std::int32_t ids[] = {1, 2, 3, 4};
  const auto run = [&]() -> absl::Status {
#include "plugin/capture/capture.h.example"
    EXPECT_EQ(rows->ids, (std::vector<std::uint8_t>{1, 2, 3, 4}));
    return absl::OkStatus();
  };
  const absl::Status status = run();
  EXPECT_TRUE(status.ok()) << status;
}

absl::Status StoreExample(SameIds& ids, Rows& out) {
#include "blockstore/store/store.h.example"
  if (rows.ok()) out = *rows;
  return rows.status();
}

TEST(Example, OfTheStore) {
  SameIds ids(58 * 8, 100);
  Rows rows;
  const absl::Status status = StoreExample(ids, rows);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(rows.ids.size(), std::size_t{2 * 58 * 8});
  ASSERT_EQ(rows.infos.size(), 2u);
  for (std::size_t row = 0; row < 2; ++row) {
    EXPECT_TRUE(rows.infos[row].valid());
    EXPECT_EQ(rows.infos[row].step, 7u);
    EXPECT_EQ(rows.ids[row * 58 * 8 + 17], 100 + row);
  }
}

absl::Status WriterExample(StoreOptions options) {
#include "blockstore/flight/writer.h.example"
  return status;
}

TEST(Example, OfTheFlightWriter) {
  std::remove("run.flight");
  const RoutingShape shape = {.num_layers = 1, .top_k = 1, .num_experts = 8, .page_tokens = 4};
  const absl::Status status = WriterExample({.shape = shape, .num_blocks = 4});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(std::remove("run.flight"), 0);
}

template <class Route>
absl::Status SessionExample(RoutingStore* store, const StepBatch& batch, std::int32_t padded_rows,
                            const Route& route) {
#include "plugin/capture/capture_session.h.example"
  return code.ToStatus();
}

TEST(Example, OfTheCaptureSession) {
  const RoutingShape shape = {.num_layers = 1, .top_k = 1, .num_experts = 8, .page_tokens = 4};
  const auto store = RoutingStore::Create({.shape = shape, .num_blocks = 4}).value();
  const std::int64_t slots[] = {0, 1};
  const StepBatch batch = {.step = 1, .slots = slots, .num_slots = 2};
  const absl::Status status = SessionExample(store.get(), batch, 4, [](const CaptureView& view) {
    for (int row = 0; row < 2; ++row)
      view.layer(0)[row] = static_cast<std::int16_t>(3 + row);
  });
  ASSERT_TRUE(status.ok()) << status;
  const BlockId blocks[] = {BlockId(0)};
  const Snapshot snapshot = store->TakeSnapshot(blocks, 0, 2).value();
  ASSERT_TRUE(snapshot.Wait(std::chrono::seconds(10)).ok());
  EXPECT_EQ(snapshot.ReadRows().value().ids, (std::vector<std::uint8_t>{3, 4}));
}

// The code of pages. It looks for an installed library, which need not be there.
[[maybe_unused]] const wm_api_v1* AbiPage() {
#include "docs/abi.md.example"
  return wm;
}

absl::Status ViewsPage(const RoutingShape& shape, std::int32_t num_blocks,
                       std::span<const std::string> names) {
  absl::Status status;
#include "docs/views.md.example"
  return status;
}

TEST(Example, OfTheViews) {
  const RoutingShape shape = {.num_layers = 2, .top_k = 1, .num_experts = 8, .page_tokens = 4};
  EXPECT_TRUE(ViewsPage(shape, 4, std::vector<std::string>{"gate 0", "gate 1"}).ok());
}

TEST(Example, OfTheKernels) {
  using namespace kernels;  // NOLINT: as a page does
  const RoutingShape shape = {.num_layers = 4, .top_k = 2, .num_experts = 8, .page_tokens = 4};
  const auto store = RoutingStore::Create({.shape = shape, .num_blocks = 4}).value();
  const auto session =
      CaptureSession::Create({.store = store.get(), .max_rows = 4, .num_buffers = 2}).value();
  const std::int64_t slots[] = {0};
  const StepBatch batch = {.step = 1, .version = 1, .slots = slots, .num_slots = 1};
  const std::int32_t batch_rows = 1;
  const float logits[] = {0, 1, 2, 7, 3, 6, 4, 5};
  std::int32_t ids[2] = {};
  float weights[2] = {};
  RoutingConfig config;
  config.top_k = 2;
  RoutingTensors tensors;
  tensors.logits = Tensor::Matrix(logits, DType::kFloat32, 1, 8);
  tensors.topk_ids = Tensor::Matrix(ids, DType::kInt32, 1, 2);
  tensors.topk_weights = Tensor::Matrix(weights, DType::kFloat32, 1, 2);
  const MemoryDevice device = MemoryDevice::Host();
  absl::Status status;
  StepCode code;
  RoutingCode routed;
#include "docs/internals/kernels.md.example"
  ASSERT_TRUE(status.ok() && code.ok() && routed.ok());
  EXPECT_EQ(view.layer(3)[0], 3);
  EXPECT_EQ(view.layer(3)[1], 5);
  EXPECT_TRUE(session->Drop(StepId(1)).ok());
}

}  // namespace
}  // namespace waymark
