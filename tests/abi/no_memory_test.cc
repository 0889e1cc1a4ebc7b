// The C ABI without memory: no call ends the process, returns a wrong row or waits for ever.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "plugin/waymark_wire.h"
#include "tests/support/failing_new.h"

namespace {

constexpr int kLayers = 2, kTopK = 2, kRows = 6, kPage = 4;
constexpr std::int64_t kTimeout = 20'000'000'000;

std::int16_t IdOf(std::uint64_t step, int row, int layer, int k) {
  return static_cast<std::int16_t>((step * 3 + static_cast<unsigned>(row * 5 + layer * 2 + k)) % 8);
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

// Two steps of an engine with a recorder, a snapshot, its publication, and rows by handle.
class Engine {
 public:
  ~Engine() {
    wm_->wire->fetcher_release(fetcher_);
    wm_->wire->ticket_release(ticket_);
    wm_->wire->publisher_release(publisher_);
    wm_->wire->source_release(source_);
    wm_->snapshot_release(snapshot_);
    wm_->session_release(session_);
    wm_->store_release(store_);
    wm_->recorder_release(recorder_);
  }
  // Rows that were read as valid, and those that were fetched by handle.
  int Run() {
    wm_store_options options = {};
    options.struct_size = sizeof options;
    options.num_layers = kLayers, options.top_k = kTopK, options.num_experts = 8;
    options.num_blocks = 16, options.page_tokens = kPage;
    wm_recorder_options ring = {};
    ring.struct_size = sizeof ring, ring.ring_bytes = 64 * 1024;
    if (wm_->recorder_create(&options, &ring, &recorder_, nullptr) == WM_OK) {
      options.recorder = recorder_;
    }
    if (wm_->store_create(&options, &store_, nullptr) != WM_OK) return 0;
    wm_session_options capture = {};
    capture.struct_size = sizeof capture, capture.store = store_, capture.max_rows = kRows;
    if (wm_->session_create(&capture, &session_, nullptr) != WM_OK) return 0;
    const wm_event binds[] = {wm_bind(1, nullptr, 0), wm_bind(2, nullptr, 0)};
    (void)wm_->store_report(store_, binds, 2, nullptr);
    for (std::uint64_t step = 1; step <= 2; ++step)
      Step(step);
    (void)Waited(wm_->store_wait_idle(store_, kTimeout, nullptr));
    wm_store_stats stats = {};
    stats.struct_size = sizeof stats;
    (void)wm_->store_stats(store_, &stats);
    const std::int32_t blocks[] = {1, 2};
    wm_snapshot_args range = {};
    range.struct_size = sizeof range;
    range.blocks = blocks, range.num_blocks = 2, range.last = kRows;
    if (wm_->store_snapshot(store_, &range, &snapshot_, nullptr) != WM_OK) return 0;
    if (!Waited(wm_->snapshot_wait(snapshot_, kTimeout, nullptr))) return 0;
    const int valid = Read();
    return valid + Publish();
  }
  // Waits that ended without a result.
  [[nodiscard]] int timeouts() const { return timeouts_; }

 private:
  bool Waited(wm_status status) {
    timeouts_ += status == WM_DEADLINE_EXCEEDED ? 1 : 0;
    return status == WM_OK;
  }
  void Step(std::uint64_t step) {
    const std::int64_t slots[kRows] = {4, 5, 6, 7, 8, 9};
    wm_step_batch batch = {};
    batch.struct_size = sizeof batch, batch.step = step, batch.version = 1;
    batch.slots = slots, batch.num_slots = kRows;
    if (wm_->session_begin_step(session_, &batch, 0, nullptr) != WM_OK) return;
    wm_view view;
    if (wm_->session_view(session_, step, &view) == WM_OK) {
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int row = 0; row < kRows; ++row) {
          for (int k = 0; k < kTopK; ++k)
            view.data[layer * view.layer_stride + row * kTopK + k] = IdOf(step, row, layer, k);
        }
      }
    }
    if (wm_->session_submit(session_, step, 0, nullptr) != WM_OK) {
      (void)wm_->session_drop(session_, step, nullptr);
    }
  }
  int Read() {
    std::uint8_t ids[kRows][kLayers * kTopK];
    wm_row_info infos[kRows];
    wm_read_args read = {};
    read.struct_size = sizeof read, read.end = kRows, read.layout = WM_LAYOUT_TLK;
    read.id_type = WM_ID_UINT8, read.out = ids, read.out_bytes = sizeof ids;
    read.infos = infos, read.num_infos = kRows;
    if (wm_->snapshot_read(snapshot_, &read, nullptr) != WM_OK) return 0;
    int valid = 0;
    for (int row = 0; row < kRows; ++row) {
      if (infos[row].reason != WM_REASON_NONE) continue;
      ++valid;
      for (int i = 0; i < kLayers * kTopK; ++i)
        EXPECT_EQ(ids[row][i], IdOf(infos[row].step, row, i / kTopK, i % kTopK)) << "row " << row;
    }
    return valid;
  }
  // How many rows are there by handle.
  int Publish() {
    if (wm_->wire->source_memory_create(1 << 20, &source_, nullptr) != WM_OK) return 0;
    wm_shape shape = {};
    shape.struct_size = sizeof shape;
    shape.num_layers = kLayers, shape.top_k = kTopK, shape.num_experts = 8;
    shape.page_tokens = kPage;
    wm_publisher_options publish = {};
    publish.struct_size = sizeof publish, publish.source = source_, publish.shape = &shape;
    if (wm_->wire->publisher_create(&publish, &publisher_, nullptr) != WM_OK) return 0;
    if (wm_->wire->publisher_publish_snapshot(publisher_, "a", snapshot_, &ticket_, nullptr) !=
        WM_OK) {
      return 0;
    }
    wm_bytes* handle = nullptr;
    if (!Waited(wm_->wire->ticket_wait(ticket_, kTimeout, &handle, nullptr))) return 0;
    wm_fetcher_options fetch = {};
    fetch.struct_size = sizeof fetch, fetch.source = source_;
    const std::uint8_t* bytes = nullptr;
    std::size_t size = 0;
    wm_rows* rows = nullptr;
    if (wm_->wire->fetcher_create(&fetch, &fetcher_, nullptr) == WM_OK &&
        wm_->wire->bytes_view(handle, &bytes, &size) == WM_OK) {
      (void)wm_->wire->fetcher_fetch(fetcher_, bytes, size, nullptr, kTimeout, &rows, nullptr,
                                     nullptr);
    }
    wm_->wire->bytes_release(handle);
    const bool fetched = rows != nullptr;
    wm_->rows_release(rows);
    return fetched ? kRows : 0;
  }

  const wm_api_v1* const wm_ = wm_get_api_v1();
  wm_recorder* recorder_ = nullptr;
  wm_store* store_ = nullptr;
  wm_session* session_ = nullptr;
  wm_snapshot* snapshot_ = nullptr;
  wm_source* source_ = nullptr;
  wm_publisher* publisher_ = nullptr;
  wm_ticket* ticket_ = nullptr;
  wm_fetcher* fetcher_ = nullptr;
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
    for (std::uint64_t n = 1; n <= allocations + 5 && !HasFailure(); ++n) {
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
// made behind it. The collective is released once, whatever becomes of the session.
TEST(NoMemory, LeavesNoThreadOfASessionThatWasNotMade) {
  const wm_api_v1* const wm = wm_get_api_v1();
  wm_store_options options = {};
  options.struct_size = sizeof options;
  options.num_layers = kLayers, options.top_k = kTopK, options.num_experts = 8;
  options.num_blocks = 16, options.page_tokens = kPage;
  wm_store* store = nullptr;
  ASSERT_EQ(wm->store_create(&options, &store, nullptr), WM_OK);
  wm_collective ranks = {};
  ranks.struct_size = sizeof ranks, ranks.ranks = 2;
  ranks.all_gather = [](void*, const void*, void*, std::size_t) -> wm_status {
    return WM_UNAVAILABLE;
  };
  std::uint64_t released = 0;
  ranks.context = &released;
  ranks.release = [](void* context) { ++*static_cast<std::uint64_t*>(context); };
  wm_session_options capture = {};
  capture.struct_size = sizeof capture, capture.store = store, capture.max_rows = kRows;
  capture.row_gather = &ranks;
  std::uint64_t failed = 0;
  for (wm_session* session = nullptr; session == nullptr; ++failed) {
    waymark::FailAllocation(failed + 1);
    const wm_status status = wm->session_create(&capture, &session, nullptr);
    waymark::FailAllocation(0);
    EXPECT_EQ(status == WM_OK, session != nullptr);
    EXPECT_EQ(ThreadsNamed("wm-gather"), session != nullptr ? 1 : 0) << "allocation " << failed + 1;
    EXPECT_EQ(released, session != nullptr ? failed : failed + 1);
    wm->session_release(session);
  }
  EXPECT_EQ(released, failed);
  EXPECT_GT(failed, 20u);
  wm->store_release(store);
}

}  // namespace
