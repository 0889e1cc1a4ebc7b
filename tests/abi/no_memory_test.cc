// The C ABI without memory: no call ends the process, returns a wrong row or waits for ever.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "plugin/waymark_graph.h"
#include "plugin/waymark_wire.h"
#include "tests/support/failing_new.h"
#include "tests/support/sanitizers.h"

namespace {

constexpr int kLayers = 2, kTopK = 2, kRows = 6, kPage = 4;
constexpr std::int64_t kTimeout = 20'000'000'000;

std::int16_t IdOf(std::uint64_t step, int row, int layer, int k) {
  return static_cast<std::int16_t>((step * 3 + static_cast<unsigned>(row * 5 + layer * 2 + k)) % 8);
}

wm_capture_options CaptureOptions() {
  wm_capture_options options = {};
  options.struct_size = sizeof options;
  options.num_layers = kLayers, options.top_k = kTopK, options.num_experts = 8;
  options.num_blocks = 16, options.page_tokens = kPage;
  return options;
}

// Of this process.
int ThreadsNamed(const std::string& name) {
  int found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string line;
    std::getline(std::ifstream(task.path() / "comm"), line);
    found += line == name ? 1 : 0;
  }
  return found;
}

// Two steps of an engine with a recorder, its rows, and these as a document.
class Engine {
 public:
  ~Engine() {
    wm_->wire->bytes_release(bytes_);
    wm_->rows_release(rows_);
    wm_->taken_release(taken_);
    wm_->graph->session_release(session_);
    wm_->capture_release(capture_);
  }
  // Rows that were read as valid, and those that were read of a document.
  int Run() {
    wm_capture_options options = CaptureOptions();
    wm_recorder_options ring = {};
    ring.struct_size = sizeof ring, ring.ring_bytes = 64 * 1024;
    options.recorder = &ring;
    if (wm_->capture_create(&options, &capture_, nullptr) != WM_OK) return 0;
    wm_session_options of_session = {};
    of_session.struct_size = sizeof of_session;
    of_session.capture = capture_, of_session.max_rows = kRows;
    if (wm_->graph->session_create(&of_session, &session_, nullptr) != WM_OK) return 0;
    const wm_event binds[] = {wm_bind(1, nullptr, 0), wm_bind(2, nullptr, 0)};
    (void)wm_->capture_report(capture_, binds, 2, nullptr);
    Step(1);
    StepByView(2);
    (void)Waited(wm_->capture_wait_idle(capture_, kTimeout, nullptr));
    wm_counter counters[100];
    std::size_t count = 0;
    (void)wm_->capture_stats(capture_, counters, 100, &count);
    const std::int32_t blocks[] = {1, 2};
    if (wm_->capture_take(capture_, blocks, 2, 0, kRows, &taken_, nullptr) != WM_OK) return 0;
    if (!Waited(wm_->taken_wait(taken_, kTimeout, nullptr))) return 0;
    if (wm_->taken_rows(taken_, &rows_, nullptr) != WM_OK) return 0;
    const int valid = Read();
    return valid + Document();
  }
  // Waits that ended without a result.
  [[nodiscard]] int timeouts() const { return timeouts_; }

 private:
  bool Waited(wm_status status) {
    timeouts_ += status == WM_DEADLINE_EXCEEDED ? 1 : 0;
    return status == WM_OK;
  }
  static wm_step_batch BatchOf(std::uint64_t step) {
    static constexpr std::int64_t kSlots[kRows] = {4, 5, 6, 7, 8, 9};
    wm_step_batch batch = {};
    batch.struct_size = sizeof batch, batch.step = step, batch.version = 1;
    batch.slots = kSlots, batch.num_slots = kRows;
    return batch;
  }
  void Step(std::uint64_t step) {
    for (int i = 0; i < kRows * kLayers * kTopK; ++i)
      ids_[i] = IdOf(step, i / (kLayers * kTopK), i / kTopK % kLayers, i % kTopK);
    const wm_ids ids = wm_token_major(ids_, WM_ID_INT16, kRows, kLayers, kTopK);
    const wm_step_batch batch = BatchOf(step);
    (void)wm_->capture_step(capture_, &batch, &ids, {nullptr, nullptr}, nullptr);
  }
  void StepByView(std::uint64_t step) {
    const wm_graph_api_v1& graph = *wm_->graph;
    const wm_step_batch batch = BatchOf(step);
    if (graph.session_begin_step(session_, &batch, 0, nullptr) != WM_OK) return;
    wm_view view;
    if (graph.session_view(session_, step, &view) == WM_OK) {
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int i = 0; i < kRows * kTopK; ++i)
          view.data[layer * view.layer_stride + i] = IdOf(step, i / kTopK, layer, i % kTopK);
      }
    }
    if (graph.session_submit(session_, step, 0, nullptr) != WM_OK) {
      (void)graph.session_drop(session_, step, nullptr);
    }
  }
  int Read() {
    wm_rows_view view = {};
    view.struct_size = sizeof view;
    if (wm_->rows_view(rows_, &view) != WM_OK) return 0;
    int valid = 0;
    for (int row = 0; row < kRows; ++row) {
      if (view.infos[row].reason != WM_REASON_NONE) continue;
      ++valid;
      for (int i = 0; i < kLayers * kTopK; ++i)
        EXPECT_EQ(view.ids[row * kLayers * kTopK + i],
                  IdOf(view.infos[row].step, row, i / kTopK, i % kTopK))
            << "row " << row;
    }
    return valid;
  }
  // How many rows a document of them has.
  int Document() {
    const wm_wire_api_v1& wire = *wm_->wire;
    if (wire.rows_document(rows_, nullptr, &bytes_, nullptr) != WM_OK) return 0;
    const std::uint8_t* data = nullptr;
    std::size_t size = 0;
    wm_rows* rows = nullptr;
    if (wire.bytes_view(bytes_, &data, &size) == WM_OK) {
      (void)wire.document_read(data, size, nullptr, nullptr, &rows, nullptr, nullptr);
    }
    const bool read = rows != nullptr;
    wm_->rows_release(rows);
    return read ? kRows : 0;
  }

  const wm_api_v1* const wm_ = wm_get_api_v1();
  std::int16_t ids_[kRows * kLayers * kTopK] = {};
  wm_capture* capture_ = nullptr;
  wm_session* session_ = nullptr;
  wm_taken* taken_ = nullptr;
  wm_rows* rows_ = nullptr;
  wm_bytes* bytes_ = nullptr;
  int timeouts_ = 0;
};

TEST(NoMemory, EndsNoProcessThroughTheCAbi) {
  std::uint64_t allocations = 0;
  {
    waymark::FailAllocation(0);
    Engine engine;
    EXPECT_EQ(engine.Run(), 2 * kRows);
    allocations = waymark::AllocationsSeen();
  }
  EXPECT_GT(allocations, 100u);
  int without = 0;
  for (const bool and_all_after : {false, true}) {
    for (std::uint64_t n = 1; n <= allocations + 5 && !HasFailure(); n += waymark::PlainOr(1, 3)) {
      SCOPED_TRACE(std::to_string(n) + (and_all_after ? " and all after" : ""));
      Engine engine;
      waymark::FailAllocation(n, and_all_after);
      without += engine.Run() < 2 * kRows ? 1 : 0;
      waymark::FailAllocation(0);
      EXPECT_EQ(engine.timeouts(), 0);
    }
  }
  EXPECT_GT(without, 50);
}

// The thread that exchanges the rows of ranks was left, for ever, when the session could not be
// made behind it. The collective is released once, whatever becomes of the capture.
TEST(NoMemory, LeavesNoThreadOfASessionThatWasNotMade) {
  const wm_api_v1* const wm = wm_get_api_v1();
  wm_capture_options options = CaptureOptions();
  wm_collective ranks = {};
  ranks.struct_size = sizeof ranks, ranks.ranks = 2;
  ranks.all_gather = [](void*, const void*, void*, std::size_t) -> wm_status {
    return WM_UNAVAILABLE;
  };
  std::uint64_t released = 0;
  ranks.context = &released;
  ranks.release = [](void* context) { ++*static_cast<std::uint64_t*>(context); };
  options.row_gather = &ranks;
  std::uint64_t failed = 0;
  for (wm_capture* capture = nullptr; capture == nullptr; ++failed) {
    waymark::FailAllocation(failed + 1);
    const wm_status status = wm->capture_create(&options, &capture, nullptr);
    waymark::FailAllocation(0);
    EXPECT_EQ(status == WM_OK, capture != nullptr);
    EXPECT_EQ(ThreadsNamed("wm-gather"), capture != nullptr ? 1 : 0) << "allocation " << failed + 1;
    EXPECT_EQ(released, capture != nullptr ? failed : failed + 1);
    wm->capture_release(capture);
  }
  EXPECT_EQ(released, failed);
  EXPECT_GT(failed, 20u);
}

}  // namespace
