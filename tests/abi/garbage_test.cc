// Null and garbage for every argument of every function: a status, never a crash, and no output
// written.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "plugin/waymark.h"

namespace {

constexpr std::int32_t kLow = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kHigh = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kAbsurd = std::size_t{1} << 60;

const wm_api_v1& Api() {
  return *wm_get_api_v1();
}

// Outputs begin as this, and stay so where a call fails.
template <class T>
T* Untouched() {
  return reinterpret_cast<T*>(std::uintptr_t{0x10});
}

class Garbage : public ::testing::Test {
 protected:
  void SetUp() override {
    store_options_.struct_size = sizeof(store_options_);
    store_options_.flags = WM_STORE_DEVICE_SLOTS;
    store_options_.num_layers = 2;
    store_options_.top_k = 2;
    store_options_.num_experts = 8;
    store_options_.num_blocks = 8;
    store_options_.page_tokens = 4;
    store_options_.landing = WM_LANDING_CALLER;
    wm_recorder_options of_recorder = {sizeof(of_recorder), 0, nullptr, 1 << 20};
    ASSERT_EQ(Api().recorder_create(&store_options_, &of_recorder, &recorder_, nullptr), WM_OK);
    ASSERT_EQ(Api().store_create(&store_options_, &store_, nullptr), WM_OK);
    session_options_.struct_size = sizeof(session_options_);
    session_options_.store = store_;
    session_options_.max_rows = 8;
    ASSERT_EQ(Api().session_create(&session_options_, &session_, nullptr), WM_OK);
    binding_.struct_size = sizeof(binding_);
    binding_.module = "gate";
    binding_.capture = WM_CAPTURE_HANDS_OVER;
    batch_args_.struct_size = sizeof(batch_args_);
    batch_args_.step = 1;
    batch_args_.events = &event_;
    batch_args_.num_events = 1;
    batch_args_.slots = slots_;
    batch_args_.num_slots = 4;
    snapshot_args_.struct_size = sizeof(snapshot_args_);
    snapshot_args_.blocks = blocks_;
    snapshot_args_.num_blocks = 2;
    snapshot_args_.last = 8;
    ASSERT_EQ(Api().store_snapshot(store_, &snapshot_args_, &snapshot_, nullptr), WM_OK);
    ASSERT_EQ(Api().snapshot_rows(snapshot_, &rows_, nullptr), WM_OK);
    read_.struct_size = sizeof(read_);
    read_.end = 8;
    read_.id_type = WM_ID_INT16;
    read_.out = out_;
    read_.out_bytes = sizeof(out_);
    read_.infos = infos_;
    read_.num_infos = 8;
    shape_.struct_size = sizeof(shape_);
    ASSERT_EQ(Api().rows_shape(rows_, &shape_), WM_OK);
    view_of_rows_.struct_size = sizeof(view_of_rows_);
    ASSERT_EQ(Api().rows_view(rows_, &view_of_rows_), WM_OK);
    ASSERT_EQ(Api().session_view(session_, 0, &view_), WM_OK);
    ids_.struct_size = sizeof(ids_);
    ids_.type = WM_ID_INT32;
    ids_.data = wide_;
    ids_.rows = 2;
    ids_.columns = 2;
    ids_.row_stride = 16;
    ids_.k_stride = 4;
    ids_.layers = 2;
    ids_.layer_stride = 8;
    collective_.struct_size = sizeof(collective_);
    collective_.ranks = 1;
    collective_.all_gather = [](void*, const void*, void*, std::size_t) -> wm_status {
      return WM_OK;
    };
    wm_schedule_options of_writer = {sizeof(of_writer)};
    of_writer.num_blocks = 8;
    of_writer.block_tokens = 4;
    ASSERT_EQ(Api().schedule_writer_create(&of_writer, &writer_, nullptr), WM_OK);
  }
  void TearDown() override {
    Api().schedule_writer_release(writer_);
    Api().rows_release(rows_);
    Api().snapshot_release(snapshot_);
    Api().session_release(session_);
    Api().store_release(store_);
    Api().recorder_release(recorder_);
  }

  // An object of every other type instead.
  template <class H>
  std::vector<H*> NotA(const H* right) const {
    std::vector<H*> handles = {nullptr};
    for (void* other :
         {static_cast<void*>(store_), static_cast<void*>(session_), static_cast<void*>(snapshot_),
          static_cast<void*>(rows_), static_cast<void*>(recorder_), static_cast<void*>(writer_)}) {
      if (other != static_cast<const void*>(right)) handles.push_back(static_cast<H*>(other));
    }
    return handles;
  }
  // `call` of every handle that is none.
  template <class H, class F>
  void RefusesWrongObjects(const char* name, const H* right, F&& call) {
    SCOPED_TRACE(name);
    for (H* handle : NotA(right))
      EXPECT_EQ(call(handle), WM_INVALID_ARGUMENT) << "handle " << static_cast<void*>(handle);
  }
  // `call` of a copy of `good` that `spoil` has changed.
  template <class T, class F>
  void Refuses(const char* name, const T& good, F&& call,
               const std::vector<std::pair<const char*, std::function<void(T&)>>>& spoils) {
    SCOPED_TRACE(name);
    for (const auto& [what, spoil] : spoils) {
      T bad = good;
      spoil(bad);
      text_[0] = 0;
      EXPECT_EQ(call(&bad), WM_INVALID_ARGUMENT) << what;
    }
  }
  // As Refuses, of a call that says why: the text names what was wrong.
  template <class T, class F>
  void RefusesAndSays(const char* name, const T& good, F&& call,
                      const std::vector<std::pair<const char*, std::function<void(T&)>>>& spoils) {
    SCOPED_TRACE(name);
    for (const auto& [what, spoil] : spoils) {
      T bad = good;
      spoil(bad);
      text_[0] = 0;
      EXPECT_EQ(call(&bad), WM_INVALID_ARGUMENT) << what << ": " << text_;
      EXPECT_NE(std::string(text_).find(what), std::string::npos)
          << "\"" << text_ << "\" names " << what;
    }
  }

  char text_[512] = {};
  wm_message why_ = {text_, sizeof(text_), 0};
  wm_store_options store_options_ = {};
  wm_session_options session_options_ = {};
  wm_layer_binding binding_ = {};
  wm_step_batch batch_args_ = {};
  wm_snapshot_args snapshot_args_ = {};
  wm_read_args read_ = {};
  wm_shape shape_ = {};
  wm_rows_view view_of_rows_ = {};
  wm_view view_ = {};
  wm_ids ids_ = {};
  wm_collective collective_ = {};
  const wm_event event_ = wm_bind(1, nullptr, 0);
  const std::int64_t slots_[4] = {4, 5, 6, 7};
  const std::int32_t blocks_[2] = {1, 2};
  std::int32_t wide_[64] = {};
  std::int16_t out_[8 * 4] = {};
  wm_row_info infos_[8] = {};
  std::uint8_t bytes_[256] = {};

  wm_recorder* recorder_ = nullptr;
  wm_store* store_ = nullptr;
  wm_session* session_ = nullptr;
  wm_snapshot* snapshot_ = nullptr;
  wm_rows* rows_ = nullptr;
  wm_schedule_writer* writer_ = nullptr;
};

TEST_F(Garbage, Handles) {
  const wm_api_v1& api = Api();
  wm_shape shape = {sizeof(shape)};
  wm_store_stats stats = {sizeof(stats)};
  wm_session_stats of_session = {sizeof(of_session)};
  wm_layer_stats of_layer = {sizeof(of_layer)};
  wm_finding finding = {sizeof(finding)};
  wm_rows_view of_rows = {sizeof(of_rows)};
  wm_snapshot* snapshot = Untouched<wm_snapshot>();
  wm_rows* rows = Untouched<wm_rows>();
  std::uint64_t number = 0;
  std::int64_t position = 0;
  std::size_t count = 0;
  wm_view view = {};
  const wm_forward forward = {
      [](void*, const wm_view*, std::int32_t) -> wm_status { return WM_OK; }, nullptr};
  const wm_done done = {nullptr, nullptr};

  RefusesWrongObjects("recorder_dump", recorder_,
                      [&](auto* h) { return api.recorder_dump(h, "/dev/null", &why_); });
  RefusesWrongObjects("recorder_status", recorder_,
                      [&](auto* h) { return api.recorder_status(h, &why_); });
  RefusesWrongObjects("store_shape", store_, [&](auto* h) { return api.store_shape(h, &shape); });
  RefusesWrongObjects("store_snapshot", store_, [&](auto* h) {
    return api.store_snapshot(h, &snapshot_args_, &snapshot, &why_);
  });
  RefusesWrongObjects("store_covered_prefix", store_, [&](auto* h) {
    return api.store_covered_prefix(h, blocks_, 2, 8, &position);
  });
  RefusesWrongObjects("store_wait_idle", store_,
                      [&](auto* h) { return api.store_wait_idle(h, 0, &why_); });
  RefusesWrongObjects("store_land_one", store_, [&](auto* h) { return api.store_land_one(h); });
  RefusesWrongObjects("store_land", store_, [&](auto* h) { return api.store_land(h, 1); });
  RefusesWrongObjects("store_last_step", store_,
                      [&](auto* h) { return api.store_last_step(h, &number); });
  RefusesWrongObjects("store_stats", store_, [&](auto* h) { return api.store_stats(h, &stats); });
  RefusesWrongObjects("store_stats_text", store_,
                      [&](auto* h) { return api.store_stats_text(h, &why_); });
  RefusesWrongObjects("store_next_finding", store_,
                      [&](auto* h) { return api.store_next_finding(h, &finding, &why_); });
  RefusesWrongObjects("snapshot_range", snapshot_,
                      [&](auto* h) { return api.snapshot_range(h, &position, &position); });
  RefusesWrongObjects("snapshot_shape", snapshot_,
                      [&](auto* h) { return api.snapshot_shape(h, &shape); });
  RefusesWrongObjects("snapshot_ready", snapshot_, [&](auto* h) { return api.snapshot_ready(h); });
  RefusesWrongObjects("snapshot_wait", snapshot_,
                      [&](auto* h) { return api.snapshot_wait(h, 0, &why_); });
  RefusesWrongObjects("snapshot_read", snapshot_,
                      [&](auto* h) { return api.snapshot_read(h, &read_, &why_); });
  RefusesWrongObjects("snapshot_coverage", snapshot_,
                      [&](auto* h) { return api.snapshot_coverage(h, nullptr, 0, &count, &why_); });
  RefusesWrongObjects("snapshot_rows", snapshot_,
                      [&](auto* h) { return api.snapshot_rows(h, &rows, &why_); });
  RefusesWrongObjects("rows_shape", rows_, [&](auto* h) { return api.rows_shape(h, &shape); });
  RefusesWrongObjects("rows_view", rows_, [&](auto* h) { return api.rows_view(h, &of_rows); });
  RefusesWrongObjects("rows_write", rows_,
                      [&](auto* h) { return api.rows_write(h, &read_, &why_); });
  RefusesWrongObjects("rows_coverage", rows_,
                      [&](auto* h) { return api.rows_coverage(h, nullptr, 0, &count, &why_); });
  RefusesWrongObjects("rows_reused", rows_,
                      [&](auto* h) { return api.rows_reused(h, 1, nullptr, 0, &why_); });
  RefusesWrongObjects("rows_join", rows_, [&](auto* h) {
    const wm_rows* const reads[] = {rows_, h};
    return api.rows_join(reads, 2, &rows, &why_);
  });
  RefusesWrongObjects("rows_join_layers", rows_, [&](auto* h) {
    const wm_rows* const stages[] = {rows_, h};
    return api.rows_join_layers(stages, 2, &rows, &why_);
  });
  // A null stage is a rank without rows: an invalid argument too, when it has been told.
  RefusesWrongObjects("rows_gather_layers", rows_, [&](auto* h) {
    return api.rows_gather_layers(h, &collective_, &rows, &why_);
  });
  RefusesWrongObjects("rows_gather", rows_,
                      [&](auto* h) { return api.rows_gather(h, &collective_, &rows, &why_); });
  RefusesWrongObjects("store_status", store_, [&](auto* h) { return api.store_status(h, &why_); });
  RefusesWrongObjects("store_report_message", store_,
                      [&](auto* h) { return api.store_report_message(h, bytes_, 9, &why_); });
  RefusesWrongObjects("store_take_tagged", store_,
                      [&](auto* h) { return api.store_take_tagged(h, 1, &snapshot, &why_); });
  RefusesWrongObjects("store_forget_tag", store_,
                      [&](auto* h) { return api.store_forget_tag(h, 1); });
  EXPECT_EQ(api.store_report_message(store_, nullptr, 9, &why_), WM_INVALID_ARGUMENT);
  EXPECT_EQ(api.store_take_tagged(store_, 1, nullptr, &why_), WM_INVALID_ARGUMENT);
  const std::uint8_t* message = nullptr;
  RefusesWrongObjects("schedule_writer_begin", writer_,
                      [&](auto* h) { return api.schedule_writer_begin(h, 1, 1, &why_); });
  RefusesWrongObjects("schedule_writer_report", writer_,
                      [&](auto* h) { return api.schedule_writer_report(h, &event_, 1, &why_); });
  RefusesWrongObjects("schedule_writer_snapshot", writer_, [&](auto* h) {
    return api.schedule_writer_snapshot(h, 1, &snapshot_args_, &why_);
  });
  RefusesWrongObjects("schedule_writer_forget", writer_,
                      [&](auto* h) { return api.schedule_writer_forget(h, 1, &why_); });
  RefusesWrongObjects("schedule_writer_finish", writer_, [&](auto* h) {
    return api.schedule_writer_finish(h, &message, &count, &why_);
  });
  for (wm_schedule_writer* handle : NotA(writer_)) {
    api.schedule_writer_retain(handle);
    api.schedule_writer_release(handle);
  }
  RefusesWrongObjects("session_create", store_, [&](auto* h) {
    wm_session* session = Untouched<wm_session>();
    wm_session_options options = session_options_;
    options.store = h;
    const wm_status status = api.session_create(&options, &session, &why_);
    EXPECT_EQ(session, Untouched<wm_session>());
    return status;
  });
  for (wm_recorder* recorder : NotA(recorder_)) {
    if (recorder == nullptr) continue;  // none
    wm_store* store = Untouched<wm_store>();
    wm_store_options options = store_options_;
    options.recorder = recorder;
    EXPECT_EQ(api.store_create(&options, &store, &why_), WM_INVALID_ARGUMENT);
    EXPECT_EQ(store, Untouched<wm_store>());
  }
  RefusesWrongObjects("session_bind_layer", session_,
                      [&](auto* h) { return api.session_bind_layer(h, &binding_, &why_); });
  RefusesWrongObjects("session_set_stream", session_,
                      [&](auto* h) { return api.session_set_stream(h, nullptr); });
  RefusesWrongObjects("session_view", session_,
                      [&](auto* h) { return api.session_view(h, 1, &view); });
  RefusesWrongObjects("session_discard", session_,
                      [&](auto* h) { return api.session_discard(h, 1); });
  RefusesWrongObjects("session_self_test", session_, [&](auto* h) {
    return api.session_self_test(h, 1, forward, nullptr, 0, &count, &why_);
  });
  RefusesWrongObjects("session_status", session_,
                      [&](auto* h) { return api.session_status(h, &why_); });
  RefusesWrongObjects("session_stats", session_,
                      [&](auto* h) { return api.session_stats(h, &of_session); });
  RefusesWrongObjects("session_layer_stats", session_,
                      [&](auto* h) { return api.session_layer_stats(h, 0, &of_layer); });
  RefusesWrongObjects("session_stats_text", session_,
                      [&](auto* h) { return api.session_stats_text(h, &why_); });
  RefusesWrongObjects("session_silent_batch_sizes", session_, [&](auto* h) {
    return api.session_silent_batch_sizes(h, 0, nullptr, 0, &count);
  });

  // Of the step path the code says which argument it was, and the status is the same without one.
  const auto step_of = [&](const char* name, auto* right, auto&& call) {
    RefusesWrongObjects(name, right, [&](decltype(right) h) {
      wm_code code = {};
      EXPECT_EQ(call(h, nullptr), WM_INVALID_ARGUMENT);
      const wm_status status = call(h, &code);
      EXPECT_EQ(code.code, status);
      EXPECT_EQ(code.rule, WM_RULE_ARGUMENT);
      EXPECT_EQ(code.index, 0u);
      return status;
    });
  };
  step_of("store_schedule", store_,
          [&](auto* h, wm_code* code) { return api.store_schedule(h, 1, 1, code); });
  step_of("store_report", store_,
          [&](auto* h, wm_code* code) { return api.store_report(h, &event_, 1, code); });
  const auto step = [&](const char* name, auto&& call) { step_of(name, session_, call); };
  step("session_begin_step",
       [&](auto* h, wm_code* code) { return api.session_begin_step(h, &batch_args_, 0, code); });
  step("session_hand_over",
       [&](auto* h, wm_code* code) { return api.session_hand_over(h, &view_, 0, &ids_, code); });
  step("session_submit", [&](auto* h, wm_code* code) { return api.session_submit(h, 1, 0, code); });
  step("session_submit_device_slots", [&](auto* h, wm_code* code) {
    return api.session_submit_device_slots(h, 1, slots_, 4, 0, code);
  });
  step("session_drop", [&](auto* h, wm_code* code) { return api.session_drop(h, 1, code); });
  step("session_cancel", [&](auto* h, wm_code* code) { return api.session_cancel(h, 1, code); });
  step("session_begin_ids_step",
       [&](auto* h, wm_code* code) { return api.session_begin_ids_step(h, &batch_args_, code); });
  step("session_submit_ids",
       [&](auto* h, wm_code* code) { return api.session_submit_ids(h, 1, &ids_, done, code); });
  std::int32_t landed = 0;
  RefusesWrongObjects("session_landed", session_,
                      [&](auto* h) { return api.session_landed(h, 1, &landed); });
  EXPECT_EQ(api.session_landed(session_, 1, nullptr), WM_INVALID_ARGUMENT);

  for (wm_store* handle : NotA(store_)) {
    api.store_retain(handle);
    api.store_release(handle);
  }
  for (wm_session* handle : NotA(session_)) {
    api.session_retain(handle);
    api.session_release(handle);
  }
  for (wm_snapshot* handle : NotA(snapshot_)) {
    api.snapshot_retain(handle);
    api.snapshot_release(handle);
  }
  for (wm_rows* handle : NotA(rows_)) {
    api.rows_retain(handle);
    api.rows_release(handle);
  }
  for (wm_recorder* handle : NotA(recorder_)) {
    api.recorder_retain(handle);
    api.recorder_release(handle);
  }
  EXPECT_EQ(snapshot, Untouched<wm_snapshot>());
  EXPECT_EQ(rows, Untouched<wm_rows>());
}

TEST_F(Garbage, Pointers) {
  const wm_api_v1& api = Api();
  wm_rows* rows = nullptr;
  std::size_t count = 0;
  std::int64_t position = 0;
  const wm_forward none = {nullptr, nullptr};
  const wm_forward forward = {
      [](void*, const wm_view*, std::int32_t) -> wm_status { return WM_OK; }, nullptr};
  const struct {
    const char* what;
    wm_status status;
  } cases[] = {
      {"describe_code", api.describe_code(nullptr, &why_)},
      {"recorder_create", api.recorder_create(&store_options_, nullptr, nullptr, &why_)},
      {"recorder_dump", api.recorder_dump(recorder_, nullptr, &why_)},
      {"store_create", api.store_create(&store_options_, nullptr, &why_)},
      {"store_snapshot", api.store_snapshot(store_, &snapshot_args_, nullptr, &why_)},
      {"store_covered_prefix, blocks", api.store_covered_prefix(store_, nullptr, 1, 1, &position)},
      {"store_covered_prefix, too many",
       api.store_covered_prefix(store_, blocks_, kAbsurd, 1, &position)},
      {"store_covered_prefix, rows", api.store_covered_prefix(store_, blocks_, 2, -1, &position)},
      {"store_covered_prefix, out", api.store_covered_prefix(store_, blocks_, 2, 8, nullptr)},
      {"store_last_step", api.store_last_step(store_, nullptr)},
      {"snapshot_range, first", api.snapshot_range(snapshot_, nullptr, &position)},
      {"snapshot_range, last", api.snapshot_range(snapshot_, &position, nullptr)},
      {"snapshot_coverage, runs", api.snapshot_coverage(snapshot_, nullptr, 1, &count, &why_)},
      {"snapshot_coverage, count", api.snapshot_coverage(snapshot_, nullptr, 0, nullptr, &why_)},
      {"snapshot_rows", api.snapshot_rows(snapshot_, nullptr, &why_)},
      {"rows_create", api.rows_create(&shape_, &view_of_rows_, nullptr, &why_)},
      {"rows_create, shape", api.rows_create(nullptr, &view_of_rows_, &rows, &why_)},
      {"rows_coverage, runs", api.rows_coverage(rows_, nullptr, 1, &count, &why_)},
      {"rows_coverage, count", api.rows_coverage(rows_, nullptr, 0, nullptr, &why_)},
      {"rows_reused, reused", api.rows_reused(rows_, 1, nullptr, 100, &why_)},
      {"rows_join, reads", api.rows_join(nullptr, 1, &rows, &why_)},
      {"rows_join, none", api.rows_join(nullptr, 0, &rows, &why_)},
      {"rows_join, too many", api.rows_join(nullptr, kAbsurd, &rows, &why_)},
      {"rows_join, out", api.rows_join(&rows, 0, nullptr, &why_)},
      {"rows_join_layers, stages", api.rows_join_layers(nullptr, 1, &rows, &why_)},
      {"rows_join_layers, none", api.rows_join_layers(nullptr, 0, &rows, &why_)},
      {"rows_join_layers, too many", api.rows_join_layers(nullptr, kAbsurd, &rows, &why_)},
      {"rows_join_layers, out", api.rows_join_layers(&rows, 0, nullptr, &why_)},
      {"rows_gather_layers", api.rows_gather_layers(rows_, &collective_, nullptr, &why_)},
      {"rows_gather", api.rows_gather(rows_, &collective_, nullptr, &why_)},
      {"session_create", api.session_create(&session_options_, nullptr, &why_)},
      {"session_view", api.session_view(session_, 1, nullptr)},
      {"session_hand_over", api.session_hand_over(session_, nullptr, 0, &ids_, nullptr)},
      {"session_discard", api.session_discard(session_, -1)},
      {"session_self_test, forward",
       api.session_self_test(session_, 1, none, nullptr, 0, &count, &why_)},
      {"session_self_test, findings",
       api.session_self_test(session_, 1, forward, nullptr, 1, &count, &why_)},
      {"session_self_test, count",
       api.session_self_test(session_, 1, forward, nullptr, 0, nullptr, &why_)},
      {"session_self_test, rows",
       api.session_self_test(session_, 9, forward, nullptr, 0, &count, &why_)},
      {"session_silent_batch_sizes, sizes",
       api.session_silent_batch_sizes(session_, 0, nullptr, 1, &count)},
      {"session_silent_batch_sizes, count",
       api.session_silent_batch_sizes(session_, 0, nullptr, 0, nullptr)},
      {"session_silent_batch_sizes, layer",
       api.session_silent_batch_sizes(session_, 2, nullptr, 0, &count)},
      {"session_silent_batch_sizes, layer",
       api.session_silent_batch_sizes(session_, kLow, nullptr, 0, &count)},
  };
  for (const auto& one : cases)
    EXPECT_EQ(one.status, WM_INVALID_ARGUMENT) << one.what;
  wm_layer_stats of_layer = {sizeof(of_layer)};
  for (const std::int32_t layer : {-1, 2, kLow, kHigh})
    EXPECT_EQ(api.session_layer_stats(session_, layer, &of_layer), WM_INVALID_ARGUMENT);

  // A text that cannot be written is refused before anything is done.
  wm_message nowhere = {nullptr, 9, 77};
  wm_store* store = Untouched<wm_store>();
  EXPECT_EQ(api.store_create(&store_options_, &store, &nowhere), WM_INVALID_ARGUMENT);
  EXPECT_EQ(store, Untouched<wm_store>());
  EXPECT_EQ(nowhere.size, 77u);
  // Cut off where it does not fit; how long it is, is told.
  char small[8] = "1234567";
  wm_message cut = {small, 5, 0};
  EXPECT_EQ(api.snapshot_rows(nullptr, &rows, &cut), WM_INVALID_ARGUMENT);
  EXPECT_STREQ(small, "snap");
  EXPECT_EQ(small[5], '6');
  EXPECT_EQ(cut.size, std::strlen("snapshot: must not be null"));
  wm_message only_size = {nullptr, 0, 0};
  EXPECT_EQ(api.store_stats_text(store_, &only_size), WM_OK);
  EXPECT_GT(only_size.size, 100u);
  EXPECT_EQ(api.store_stats_text(store_, nullptr), WM_OK);
}

TEST_F(Garbage, FieldsOfStructs) {
  const wm_api_v1& api = Api();
  // 17 links; one of an impossible size; one that must be known.
  wm_ext links[17] = {};
  for (int i = 0; i < 17; ++i)
    links[i] = {sizeof(wm_ext), 77, i < 16 ? &links[i + 1] : nullptr};
  wm_ext too_short = {15, 77, nullptr};
  wm_ext in_a_ring = {sizeof(wm_ext), 77, nullptr};
  in_a_ring.next = &in_a_ring;
  wm_ext_log short_log = {{31, WM_EXT_LOG, nullptr}, nullptr, nullptr};
  wm_ext_log second = {{32, WM_EXT_LOG, nullptr}, nullptr, nullptr};
  wm_ext_log twice = {{32, WM_EXT_LOG, &second.head}, nullptr, nullptr};

  const auto create_store = [&](const wm_store_options* of) {
    wm_store* store = Untouched<wm_store>();
    const wm_status status = api.store_create(of, &store, &why_);
    EXPECT_EQ(store, Untouched<wm_store>());
    return status;
  };
  using Store = wm_store_options;
  const std::vector<std::pair<const char*, std::function<void(Store&)>>> store_spoils = {
      {"flags", [](Store& o) { o.flags = 8; }},
      {"flags", [](Store& o) { o.flags = 0xffffffff; }},
      {"ext", [&](Store& o) { o.ext = links; }},
      {"ext", [&](Store& o) { o.ext = &too_short; }},
      {"ext", [&](Store& o) { o.ext = &in_a_ring; }},
      {"ext", [&](Store& o) { o.ext = &short_log.head; }},
      {"ext", [&](Store& o) { o.ext = &twice.head; }},
      {"num_layers", [](Store& o) { o.num_layers = 0; }},
      {"num_layers", [](Store& o) { o.num_layers = kLow; }},
      {"num_layers", [](Store& o) { o.num_layers = kHigh; }},
      {"top_k", [](Store& o) { o.top_k = 65; }},
      {"num_experts", [](Store& o) { o.num_experts = 65536; }},
      {"num_blocks", [](Store& o) { o.num_blocks = 0; }},
      {"num_blocks", [](Store& o) { o.num_blocks = kLow; }},
      {"page_tokens", [](Store& o) { o.page_tokens = -1; }},
      {"block_tokens", [](Store& o) { o.block_tokens = 7; }},
      {"block_tokens", [](Store& o) { o.block_tokens = -4; }},
      {"layer_ids", [](Store& o) { o.num_layer_ids = 2; }},
      {"num_layer_ids", [&](Store& o) { o.layer_ids = blocks_, o.num_layer_ids = 1; }},
      {"layer_ids", [&](Store& o) { o.layer_ids = blocks_, o.num_layer_ids = kAbsurd; }},
      {"layer_ids", [&](Store& o) { o.layer_ids = wide_, o.num_layer_ids = 2; }},
      {"null_blocks", [](Store& o) { o.num_null_blocks = 1; }},
      {"null_blocks", [&](Store& o) { o.null_blocks = blocks_, o.num_null_blocks = kAbsurd; }},
      {"landing_cpus", [](Store& o) { o.num_landing_cpus = 1; }},
      {"landing_cpus", [&](Store& o) { o.landing_cpus = blocks_, o.num_landing_cpus = kAbsurd; }},
      {"landing_cpus",
       [](Store& o) {
         static const int32_t none = -1;
         o.landing_cpus = &none, o.num_landing_cpus = 1;
       }},
      {"max_steps_in_flight", [](Store& o) { o.max_steps_in_flight = 4097; }},
      {"max_step_rows", [](Store& o) { o.max_step_rows = 0xffffffff; }},
      {"landing", [](Store& o) { o.landing = 2; }},
      {"landing", [](Store& o) { o.landing = -1; }},
      {"teardown_timeout_ns", [](Store& o) { o.teardown_timeout_ns = -1; }},
      {"teardown_timeout_ns", [](Store& o) { o.teardown_timeout_ns = INT64_MIN; }},
      {"audit_threshold", [](Store& o) { o.audit_threshold = 1.5; }},
      {"audit_threshold", [](Store& o) { o.audit_threshold = -0.5; }},
      {"audit_threshold",
       [](Store& o) { o.audit_threshold = std::numeric_limits<double>::quiet_NaN(); }},
  };
  RefusesAndSays("store_create", store_options_, create_store, store_spoils);
  // A recorder for other options; one that has a store.
  wm_store_options other = store_options_;
  other.recorder = recorder_;
  other.num_blocks = 9;
  EXPECT_EQ(create_store(&other), WM_INVALID_ARGUMENT);
  wm_recorder_options of_recorder = {sizeof(of_recorder), 0, nullptr, 0};
  const auto create_recorder = [&](const wm_recorder_options* of) {
    wm_recorder* recorder = Untouched<wm_recorder>();
    const wm_status status = api.recorder_create(&store_options_, of, &recorder, &why_);
    EXPECT_EQ(recorder, Untouched<wm_recorder>());
    return status;
  };
  using Recorder = wm_recorder_options;
  RefusesAndSays<Recorder>("recorder_create", of_recorder, create_recorder,
                           {{"flags", [](Recorder& o) { o.flags = 2; }},
                            {"ext", [&](Recorder& o) { o.ext = links; }},
                            {"ring_bytes", [](Recorder& o) { o.ring_bytes = 1; }}});
  of_recorder.ring_bytes = ~std::uint64_t{0};
  EXPECT_EQ(create_recorder(&of_recorder), WM_RESOURCE_EXHAUSTED) << text_;

  using Session = wm_session_options;
  RefusesAndSays<Session>("session_create", session_options_,
                          [&](const Session* of) {
                            wm_session* session = Untouched<wm_session>();
                            const wm_status status = api.session_create(of, &session, &why_);
                            EXPECT_EQ(session, Untouched<wm_session>());
                            return status;
                          },
                          {{"flags", [](Session& o) { o.flags = 2; }},
                           {"ONE_VIEW", [](Session& o) { o.flags = WM_SESSION_ONE_VIEW; }},
                           {"ext", [&](Session& o) { o.ext = links; }},
                           {"max_rows", [](Session& o) { o.max_rows = 0; }},
                           {"max_rows", [](Session& o) { o.max_rows = kHigh; }},
                           {"num_buffers", [](Session& o) { o.num_buffers = -1; }},
                           {"num_ids_steps", [](Session& o) { o.num_ids_steps = kLow; }},
                           {"transport", [](Session& o) { o.transport = 2; }},
                           {"transport", [](Session& o) { o.transport = -1; }},
                           {"reserved", [](Session& o) { o.reserved = 1; }}});
  wm_collective of_rows = collective_;
  wm_session_options gathering = session_options_;
  gathering.row_gather = &of_rows;
  using GatherSpoil = std::pair<const char*, std::function<void(wm_collective&)>>;
  for (const auto& [name, spoil] : std::vector<GatherSpoil>{
           {"row_gather: struct_size", [](wm_collective& o) { o.struct_size = 9; }},
           {"row_gather.ranks", [](wm_collective& o) { o.ranks = 0; }},
           {"row_gather.ranks", [](wm_collective& o) { o.ranks = 4097; }},
           {"row_gather.rank", [](wm_collective& o) { o.rank = 1; }},
           {"row_gather.reserved", [](wm_collective& o) { o.reserved = 1; }},
           {"row_gather.all_gather", [](wm_collective& o) { o.all_gather = nullptr; }}}) {
    of_rows = collective_;
    spoil(of_rows);
    wm_session* session = Untouched<wm_session>();
    EXPECT_EQ(api.session_create(&gathering, &session, &why_), WM_INVALID_ARGUMENT) << name;
    EXPECT_EQ(session, Untouched<wm_session>());
    EXPECT_NE(std::string(text_).find(name), std::string::npos) << text_;
  }

  using Binding = wm_layer_binding;
  RefusesAndSays<Binding>(
      "session_bind_layer", binding_,
      [&](const Binding* of) { return api.session_bind_layer(session_, of, &why_); },
      {{"layer", [](Binding& o) { o.layer = 2; }},
       {"layer", [](Binding& o) { o.layer = kLow; }},
       {"module", [](Binding& o) { o.module = nullptr; }},
       {"module", [](Binding& o) { o.module = ""; }},
       {"capture", [](Binding& o) { o.capture = 3; }},
       {"capture", [](Binding& o) { o.capture = 256; }},  // 0, cut to a byte
       {"reserved", [](Binding& o) { o.reserved = -1; }}});

  using Snapshot = wm_snapshot_args;
  RefusesAndSays<Snapshot>("store_snapshot", snapshot_args_,
                           [&](const Snapshot* of) {
                             wm_snapshot* snapshot = Untouched<wm_snapshot>();
                             const wm_status status =
                                 api.store_snapshot(store_, of, &snapshot, &why_);
                             EXPECT_EQ(snapshot, Untouched<wm_snapshot>());
                             return status;
                           },
                           {{"flags", [](Snapshot& o) { o.flags = 1; }},
                            {"ext", [&](Snapshot& o) { o.ext = links; }},
                            {"blocks", [](Snapshot& o) { o.blocks = nullptr; }},
                            {"blocks", [](Snapshot& o) { o.num_blocks = kAbsurd; }},
                            {"rows [", [](Snapshot& o) { o.first = -1; }},
                            {"rows [", [](Snapshot& o) { o.first = 8, o.last = 7; }},
                            {"rows [", [](Snapshot& o) { o.last = 9; }},
                            {"rows [", [](Snapshot& o) { o.last = INT64_MAX; }},
                            {"rows [", [](Snapshot& o) { o.first = INT64_MIN; }}});

  using Read = wm_read_args;
  const std::vector<std::pair<const char*, std::function<void(Read&)>>> read_spoils = {
      {"flags", [](Read& o) { o.flags = 1; }},
      {"ext", [&](Read& o) { o.ext = links; }},
      {"layout", [](Read& o) { o.layout = 2; }},
      {"layout", [](Read& o) { o.layout = 256; }},
      {"id_type", [](Read& o) { o.id_type = 5; }},
      {"id_type", [](Read& o) { o.id_type = -1; }},
      {"fill", [](Read& o) { o.fill = 3; }},
      {"fill", [](Read& o) { o.fill = kLow; }},
      {"reserved", [](Read& o) { o.reserved = 1; }},
      {"out", [](Read& o) { o.out = nullptr; }},
      {"bytes", [](Read& o) { --o.out_bytes; }},
      {"bytes", [](Read& o) { o.out_bytes = ~std::uint64_t{0}; }},
      {"infos", [](Read& o) { o.infos = nullptr; }},
      {"infos", [](Read& o) { o.num_infos = 7; }},
      {"infos", [](Read& o) { o.num_infos = kAbsurd; }}};
  const auto read_snapshot = [&](const Read* of) {
    return api.snapshot_read(snapshot_, of, &why_);
  };
  const auto write_rows = [&](const Read* of) { return api.rows_write(rows_, of, &why_); };
  RefusesAndSays<Read>("snapshot_read", read_, read_snapshot, read_spoils);
  RefusesAndSays<Read>("rows_write", read_, write_rows, read_spoils);
  for (const auto& [begin, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {-1, 8}, {0, 9}, {5, 4}, {INT64_MIN, INT64_MAX}, {8, INT64_MAX}}) {
    Read bad = read_;
    bad.begin = begin;
    bad.end = end;
    EXPECT_EQ(read_snapshot(&bad), WM_OUT_OF_RANGE) << begin << " " << end;
    EXPECT_EQ(write_rows(&bad), WM_OUT_OF_RANGE) << begin << " " << end;
  }

  using View = wm_rows_view;
  wm_row_info infos[8];
  std::memcpy(infos, view_of_rows_.infos, sizeof(infos));
  std::vector<std::uint8_t> many(8 * 4, 7);
  View good = view_of_rows_;
  good.infos = infos;
  good.ids = many.data();
  const auto create_rows = [&](const View* of) {
    wm_rows* rows = nullptr;
    const wm_status status = api.rows_create(&shape_, of, &rows, &why_);
    EXPECT_EQ(rows != nullptr, status == WM_OK);
    api.rows_release(rows);
    return status;
  };
  ASSERT_EQ(create_rows(&good), WM_OK) << text_;
  wm_row_info bad_infos[8];
  const auto with = [&](auto&& spoil) {
    return [&, spoil](View& o) {
      std::memcpy(bad_infos, infos, sizeof(infos));
      spoil(bad_infos[5]);
      o.infos = bad_infos;
    };
  };
  RefusesAndSays<View>(
      "rows_create, view", good, create_rows,
      {{"flags", [](View& o) { o.flags = 2; }},
       {"first", [](View& o) { o.first = -1; }},
       {"first", [](View& o) { o.first = INT64_MAX; }},
       {"count", [](View& o) { o.count = -1; }},
       {"count", [](View& o) { o.count = INT64_MAX; }},
       {"ids", [](View& o) { o.ids = nullptr; }},
       {"infos", [](View& o) { o.infos = nullptr; }},
       {"infos[5].reason", with([](wm_row_info& info) { info.reason = 7; })},
       {"infos[5].provenance", with([](wm_row_info& info) { info.provenance = 4; })},
       {"infos[5].reserved", with([](wm_row_info& info) { info.reserved[3] = 1; })},
       {"infos[5].step", with([](wm_row_info& info) { info.step = 1; })},
       {"ids", with([&](wm_row_info& info) {
          info.reason = WM_REASON_NONE;
          many[5 * 4 + 2] = 8;
        })}});
  using Shape = wm_shape;
  many[5 * 4 + 2] = 7;
  RefusesAndSays<Shape>("rows_create, shape", shape_,
                        [&](const Shape* of) {
                          wm_rows* rows = nullptr;
                          return api.rows_create(of, &good, &rows, &why_);
                        },
                        {{"num_layers", [](Shape& o) { o.num_layers = kHigh; }},
                         {"num_layers", [](Shape& o) { o.num_layers = -1; }},
                         {"top_k", [](Shape& o) { o.top_k = 9; }},
                         {"num_experts", [](Shape& o) { o.num_experts = kLow; }},
                         {"page_tokens", [](Shape& o) { o.page_tokens = kHigh; }},
                         {"layer_ids", [&](Shape& o) { o.layer_ids = wide_; }}});

  using Collective = wm_collective;
  RefusesAndSays<Collective>("rows_gather_layers", collective_,
                             [&](const Collective* of) {
                               wm_rows* rows = nullptr;
                               return api.rows_gather_layers(rows_, of, &rows, &why_);
                             },
                             {{"ranks", [](Collective& o) { o.ranks = 0; }},
                              {"ranks", [](Collective& o) { o.ranks = kLow; }},
                              {"ranks", [](Collective& o) { o.ranks = 4097; }},
                              {"rank", [](Collective& o) { o.rank = 1; }},
                              {"rank", [](Collective& o) { o.rank = -1; }},
                              {"reserved", [](Collective& o) { o.reserved = 1; }},
                              {"all_gather", [](Collective& o) { o.all_gather = nullptr; }}});

  // A required type that is not known; and where it may not be.
  wm_ext required = {sizeof(required), 77 | WM_EXT_REQUIRED, nullptr};
  wm_ext_log log = {{sizeof(log), WM_EXT_LOG | WM_EXT_REQUIRED, nullptr}, nullptr, nullptr};
  wm_step_batch with_ext = batch_args_;
  for (const wm_ext* ext : {&required, &log.head}) {
    with_ext.ext = ext;
    wm_code code = {};
    EXPECT_EQ(api.session_begin_step(session_, &with_ext, 0, &code), WM_UNIMPLEMENTED);
    EXPECT_EQ(code.rule, WM_RULE_ARGUMENT);
    Snapshot args = snapshot_args_;
    args.ext = ext;
    wm_snapshot* snapshot = nullptr;
    EXPECT_EQ(api.store_snapshot(store_, &args, &snapshot, &why_), WM_UNIMPLEMENTED);
  }
  wm_store_options unknown = store_options_;
  unknown.ext = &required;
  EXPECT_EQ(create_store(&unknown), WM_UNIMPLEMENTED);
  EXPECT_NE(std::string(text_).find("77"), std::string::npos) << text_;
  // One that is not, is passed over.
  links[0].next = &log.head;
  unknown.ext = links;
  wm_store* store = nullptr;
  EXPECT_EQ(api.store_create(&unknown, &store, &why_), WM_OK) << text_;
  api.store_release(store);
}

TEST_F(Garbage, TheStepPath) {
  const wm_api_v1& api = Api();
  wm_ext links[17] = {};
  for (int i = 0; i < 17; ++i)
    links[i] = {sizeof(wm_ext), 77, i < 16 ? &links[i + 1] : nullptr};
  using Batch = wm_step_batch;
  wm_pair_rows of_pairs = {sizeof(of_pairs), 4, blocks_, blocks_, 2, 4}, pairs = {};
  const std::vector<std::pair<const char*, std::function<void(Batch&)>>> spoils = {
      {"flags", [](Batch& o) { o.flags = 4; }},
      {"flags", [](Batch& o) { o.flags = WM_BATCH_DEVICE_SLOTS | WM_BATCH_DERIVE_EVENTS; }},
      {"ext", [&](Batch& o) { o.ext = links; }},
      {"events", [](Batch& o) { o.events = nullptr; }},
      {"events", [](Batch& o) { o.num_events = kAbsurd; }},
      {"slots", [](Batch& o) { o.slots = nullptr; }},
      {"slots", [](Batch& o) { o.num_slots = ~std::size_t{0}; }},
      {"pairs", [&](Batch& o) { pairs.struct_size = 8, o.pairs = &pairs; }},
      {"block_idx",
       [&](Batch& o) { pairs = of_pairs, pairs.block_idx = nullptr, o.pairs = &pairs; }},
      {"local_position",
       [&](Batch& o) { pairs = of_pairs, pairs.local_position = nullptr, o.pairs = &pairs; }},
      {"pairs", [&](Batch& o) { pairs = of_pairs, pairs.num_rows = kAbsurd, o.pairs = &pairs; }}};
  const auto rule_is_argument = [](wm_status status, const wm_code& code) {
    EXPECT_EQ(code.rule, WM_RULE_ARGUMENT);
    EXPECT_EQ(code.index, 1u);
    return status;
  };
  Refuses<Batch>(
      "session_begin_step", batch_args_,
      [&](const Batch* of) {
        wm_code code = {};
        const wm_status status = api.session_begin_step(session_, of, 0, &code);
        return rule_is_argument(status, code);
      },
      spoils);
  Refuses<Batch>(
      "session_begin_ids_step", batch_args_,
      [&](const Batch* of) {
        wm_code code = {};
        const wm_status status = api.session_begin_ids_step(session_, of, &code);
        return rule_is_argument(status, code);
      },
      spoils);
  wm_event event = event_;
  Batch unknown = batch_args_;
  unknown.events = &event;
  event = wm_seal(1, wide_, 200, 1);
  wm_code code = {};
  EXPECT_EQ(api.session_begin_step(session_, &unknown, 0, &code), WM_INVALID_ARGUMENT);
  EXPECT_EQ(code.rule, WM_RULE_KEY_TOO_LONG);
  for (const std::int32_t rows : {-1, 9, kLow, kHigh}) {
    EXPECT_EQ(api.session_begin_step(session_, &batch_args_, rows, &code), WM_INVALID_ARGUMENT);
    EXPECT_EQ(code.rule, WM_RULE_TOO_MANY_ROWS);
  }

  // None of all that has begun a step.
  std::uint64_t last = 77;
  EXPECT_EQ(api.store_last_step(store_, &last), WM_OK);
  EXPECT_EQ(last, 0u);

  ASSERT_EQ(api.session_bind_layer(session_, &binding_, nullptr), WM_OK);
  ASSERT_EQ(api.session_begin_step(session_, &batch_args_, 0, nullptr), WM_OK);
  ASSERT_EQ(api.session_view(session_, 1, &view_), WM_OK);
  using Ids = wm_ids;
  const struct {
    std::int32_t rule;
    std::function<void(Ids&)> spoil;
  } ids_spoils[] = {{WM_RULE_ARGUMENT, [](Ids& o) { o.reserved = 1; }},
                    {WM_RULE_ID_TYPE, [](Ids& o) { o.type = 5; }},
                    {WM_RULE_ID_TYPE, [](Ids& o) { o.type = -1; }},
                    {WM_RULE_ID_TYPE, [](Ids& o) { o.type = 256 + WM_ID_INT32; }},
                    {WM_RULE_NULL_DATA, [](Ids& o) { o.data = nullptr; }},
                    {WM_RULE_TOO_MANY_ROWS, [](Ids& o) { o.rows = kHigh; }},
                    {WM_RULE_TOO_MANY_ROWS, [](Ids& o) { o.rows = kLow; }},
                    {WM_RULE_TOO_FEW_COLUMNS, [](Ids& o) { o.columns = 1; }},
                    {WM_RULE_TOO_FEW_COLUMNS, [](Ids& o) { o.columns = kLow; }}};
  int done = 0;
  const wm_done tell = {[](void* context) { ++*static_cast<int*>(context); }, &done};
  int told = 0;
  for (const auto& [rule, spoil] : ids_spoils) {
    Ids bad = ids_;
    spoil(bad);
    EXPECT_EQ(api.session_hand_over(session_, &view_, 0, &bad, &code), WM_INVALID_ARGUMENT);
    EXPECT_EQ(code.rule, rule);
    EXPECT_EQ(api.session_submit_ids(session_, 1, &bad, tell, &code), WM_INVALID_ARGUMENT);
    EXPECT_EQ(code.rule, rule);
    EXPECT_EQ(done, ++told);
    EXPECT_EQ(api.describe_code(&code, &why_), WM_OK);
    EXPECT_GT(why_.size, 10u);
  }
  EXPECT_EQ(api.session_submit_ids(nullptr, 1, &ids_, tell, nullptr), WM_INVALID_ARGUMENT);
  EXPECT_EQ(api.session_submit_ids(session_, 1, nullptr, tell, nullptr), WM_INVALID_ARGUMENT);
  EXPECT_EQ(done, told + 2);
  wm_view bad_view = view_;
  bad_view.reserved = 1;
  EXPECT_EQ(api.session_hand_over(session_, &bad_view, 0, &ids_, &code), WM_INVALID_ARGUMENT);
  EXPECT_EQ(code.index, 1u);
  bad_view = view_;
  for (const std::int32_t buffer : {-3, -1, 4, kLow, kHigh}) {
    bad_view.buffer = buffer;
    EXPECT_EQ(api.session_hand_over(session_, &bad_view, 0, &ids_, &code), WM_NOT_FOUND) << buffer;
  }
  for (const std::int32_t layer : {-1, 2, kLow, kHigh}) {
    EXPECT_EQ(api.session_hand_over(session_, &view_, layer, &ids_, &code), WM_INVALID_ARGUMENT);
    EXPECT_EQ(code.rule, WM_RULE_LAYER_OUT_OF_RANGE);
  }
  for (const std::int32_t first_row : {-1, 7, 8, kLow, kHigh}) {
    wm_ids slice = ids_;
    slice.first_row = first_row;
    EXPECT_EQ(api.session_hand_over(session_, &view_, 0, &slice, &code), WM_INVALID_ARGUMENT);
    EXPECT_EQ(code.rule, WM_RULE_TOO_MANY_ROWS) << first_row;
  }
  {
    wm_ids slice = ids_;
    slice.first_row = 1;
    EXPECT_EQ(api.session_submit_ids(session_, 1, &slice, tell, &code), WM_INVALID_ARGUMENT);
    EXPECT_EQ(code.index, 2u);
    slice.first_row = 0;
    slice.reserved_2 = 1;
    EXPECT_EQ(api.session_hand_over(session_, &view_, 0, &slice, &code), WM_INVALID_ARGUMENT);
    EXPECT_EQ(code.index, 3u);
  }
  EXPECT_EQ(api.session_hand_over(session_, &view_, 0, &ids_, nullptr), WM_OK);
  for (const std::int32_t rows : {-1, 9, kLow, kHigh})
    EXPECT_EQ(api.session_submit(session_, 1, rows, &code), WM_INVALID_ARGUMENT);
  EXPECT_EQ(api.session_submit_device_slots(session_, 1, slots_, 4, -1, &code),
            WM_INVALID_ARGUMENT);
  EXPECT_EQ(api.session_submit_device_slots(session_, 1, slots_, 4, 0, &code), WM_INVALID_ARGUMENT);
  EXPECT_EQ(code.rule, WM_RULE_DEVICE_SLOTS);
  for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{2}, ~std::uint64_t{0}}) {
    EXPECT_EQ(api.session_submit(session_, step, 0, &code), WM_NOT_FOUND);
    EXPECT_EQ(api.session_drop(session_, step, &code), WM_NOT_FOUND);
    EXPECT_EQ(api.session_cancel(session_, step, &code), WM_NOT_FOUND);
    EXPECT_EQ(api.store_land(store_, step), WM_NOT_FOUND);
  }
  // And the step is still there.
  EXPECT_EQ(api.session_submit(session_, 1, 8, &code), WM_OK);
  EXPECT_EQ(api.store_land(store_, 1), WM_OK);
}

TEST_F(Garbage, Routing) {
  const wm_api_v1& api = Api();
  float logits[2 * 8] = {}, weights[2 * 2] = {};
  std::int32_t ids[2 * 2] = {9, 9, 9, 9};
  const auto tensor = [](void* data, std::int32_t dtype, std::int64_t rows, std::int64_t columns) {
    wm_tensor made = {data, {rows, columns}, {columns, 1}, 2, dtype, WM_DEVICE_HOST, 0};
    return made;
  };
  using Routing = wm_routing;
  Routing good = {};
  good.struct_size = sizeof(good);
  good.method = WM_ROUTING_RENORMALIZE;
  good.top_k = 2;
  good.logits = tensor(logits, WM_DTYPE_FLOAT32, 2, 8);
  good.topk_ids = tensor(ids, WM_DTYPE_INT32, 2, 2);
  good.topk_weights = tensor(weights, WM_DTYPE_FLOAT32, 2, 2);
  wm_ext links[17] = {};
  for (int i = 0; i < 17; ++i)
    links[i] = {sizeof(wm_ext), 77, i < 16 ? &links[i + 1] : nullptr};
  wm_ext required = {sizeof(required), 77 | WM_EXT_REQUIRED, nullptr};

  wm_layer_binding binding = binding_;
  binding.capture = WM_CAPTURE_ROUTING_KERNEL;
  ASSERT_EQ(api.session_bind_layer(session_, &binding, nullptr), WM_OK);
  ASSERT_EQ(api.session_begin_step(session_, &batch_args_, 0, nullptr), WM_OK);
  ASSERT_EQ(api.session_view(session_, 1, &view_), WM_OK);
  wm_code code = {};
  // What is no wm_routing: the argument of the call is named.
  const std::vector<std::pair<const char*, std::function<void(Routing&)>>> structs = {
      {"size", [](Routing& o) { o.struct_size = 0; }},
      {"size", [](Routing& o) { o.struct_size = offsetof(Routing, topk_weights); }},
      {"size", [](Routing& o) { o.struct_size = 65537; }},
      {"flags", [](Routing& o) { o.flags = 2; }},
      {"ext", [&](Routing& o) { o.ext = links; }},
      {"reserved", [](Routing& o) { o.reserved = 1; }},
      {"device_type", [](Routing& o) { o.logits.device_type = 2; }},
      {"device_type", [](Routing& o) { o.topk_weights.device_type = -1; }}};
  Refuses<Routing>(
      "route", good,
      [&](const Routing* of) {
        const wm_status status = api.route(of, nullptr, &code);
        EXPECT_EQ(code.rule, WM_RULE_ARGUMENT);
        EXPECT_EQ(code.index, 0u);
        return status;
      },
      structs);
  Refuses<Routing>(
      "session_route", good,
      [&](const Routing* of) {
        const wm_status status = api.session_route(session_, &view_, 0, of, &code);
        EXPECT_EQ(code.rule, WM_RULE_ARGUMENT);
        EXPECT_EQ(code.index, 3u);
        return status;
      },
      structs);
  EXPECT_EQ(api.route(nullptr, nullptr, nullptr), WM_INVALID_ARGUMENT);
  EXPECT_EQ(api.session_route(session_, &view_, 0, nullptr, nullptr), WM_INVALID_ARGUMENT);
  EXPECT_EQ(api.session_route(session_, nullptr, 0, &good, nullptr), WM_INVALID_ARGUMENT);
  RefusesWrongObjects("session_route", session_,
                      [&](auto* h) { return api.session_route(h, &view_, 0, &good, nullptr); });
  Routing with_ext = good;
  with_ext.ext = &required;
  EXPECT_EQ(api.route(&with_ext, nullptr, nullptr), WM_UNIMPLEMENTED);

  // What breaks a rule of routing: its name, the rule and the value.
  const std::vector<std::pair<const char*, std::function<void(Routing&)>>> rules = {
      {"method must be in [0, 9], got 10", [](Routing& o) { o.method = 10; }},
      {"method must be in [0, 9], got -1", [](Routing& o) { o.method = -1; }},
      {"method must be in [0, 9], got 256", [](Routing& o) { o.method = 256; }},
      {"num_groups", [](Routing& o) { o.num_groups = kHigh; }},
      {"topk_groups", [](Routing& o) { o.topk_groups = kLow; }},
      {"scale", [](Routing& o) { o.scale = 2; }},
      {"normalize", [](Routing& o) { o.flags = WM_ROUTING_NOT_NORMALIZED; }},
      {"logits", [](Routing& o) { o.logits.data = nullptr; }},
      {"logits", [](Routing& o) { o.logits.rank = kHigh; }},
      {"logits", [](Routing& o) { o.logits.dtype = 256; }},
      {"logits", [](Routing& o) { o.logits.dtype = -1; }},
      {"logits", [](Routing& o) { o.logits.dtype = WM_DTYPE_INT32; }},
      {"logits", [](Routing& o) { o.logits.shape[0] = -1; }},
      {"logits", [](Routing& o) { o.logits.shape[1] = INT64_MAX; }},
      {"logits", [](Routing& o) { o.logits.strides[0] = INT64_MIN; }},
      {"topk_ids", [](Routing& o) { o.topk_ids.shape[0] = 1; }},
      {"topk_ids", [](Routing& o) { o.topk_ids.dtype = WM_DTYPE_INT64; }},
      {"topk_ids", [](Routing& o) { o.topk_ids.device_type = WM_DEVICE_CUDA; }},
      {"topk_weights", [](Routing& o) { o.topk_weights = {}; }},
      {"topk_weights", [](Routing& o) { o.topk_weights.shape[1] = 3; }},
      {"bias", [](Routing& o) { o.bias = o.logits; }},
      {"replay_in", [](Routing& o) { o.replay_in = o.logits; }},
      {"routed", [](Routing& o) { o.routed = o.logits; }},
      {"replay_out", [](Routing& o) { o.replay_out = o.logits; }}};
  const auto says = [&](wm_status status) {
    EXPECT_GT(code.rule, WM_RULE_ROUTING);
    EXPECT_EQ(api.describe_code(&code, &why_), WM_OK);
    return status;
  };
  RefusesAndSays<Routing>(
      "route", good, [&](const Routing* of) { return says(api.route(of, nullptr, &code)); }, rules);
  RefusesAndSays<Routing>(
      "session_route", good,
      [&](const Routing* of) { return says(api.session_route(session_, &view_, 0, of, &code)); },
      rules);
  Routing other = good;
  other.top_k = 1;
  EXPECT_EQ(api.session_route(session_, &view_, 0, &other, &code), WM_INVALID_ARGUMENT);
  EXPECT_EQ(api.describe_code(&code, &why_), WM_OK);
  EXPECT_STREQ(text_, "top_k must be the session's, 2, got 1");
  for (const std::int32_t buffer : {-3, -1, 4, kLow, kHigh}) {
    wm_view bad_view = view_;
    bad_view.buffer = buffer;
    EXPECT_EQ(api.session_route(session_, &bad_view, 0, &good, &code), WM_NOT_FOUND) << buffer;
  }
  for (const std::int32_t layer : {-1, 2, kLow, kHigh}) {
    EXPECT_EQ(api.session_route(session_, &view_, layer, &good, &code), WM_INVALID_ARGUMENT);
    EXPECT_EQ(code.rule, WM_RULE_LAYER_OUT_OF_RANGE);
  }
  // None of all that wrote anything.
  for (const std::int32_t id : ids)
    EXPECT_EQ(id, 9);
  EXPECT_EQ(view_.data[0], -1);
  EXPECT_EQ(api.session_route(session_, &view_, 0, &good, nullptr), WM_OK);
  EXPECT_EQ(view_.data[0], 0);
  // A caller of an older header, which ends with the last field that is required.
  good.struct_size = offsetof(Routing, bias);
  std::memset(&good.bias, 0xee, sizeof(good) - offsetof(Routing, bias));
  EXPECT_EQ(api.route(&good, nullptr, nullptr), WM_OK);
}

TEST_F(Garbage, CodesAndNames) {
  const wm_api_v1& api = Api();
  for (const std::int32_t rule : {kLow, -1, 0, 16, 31, 40, 63, 65, 128, 129, 145, 999, kHigh}) {
    const wm_code code = {WM_INVALID_ARGUMENT, rule, 1, 2, 3};
    EXPECT_EQ(api.describe_code(&code, &why_), WM_OK);
    EXPECT_GT(why_.size, 0u);
  }
  const wm_code garbage = {kHigh, 5, ~std::uint64_t{0}, INT64_MIN, INT64_MIN};
  EXPECT_EQ(api.describe_code(&garbage, &why_), WM_OK);
  for (const std::int32_t number : {kLow, -1, 16, 1000, kHigh}) {
    EXPECT_STREQ(api.status_name(number), "unknown");
    EXPECT_STREQ(api.reason_name(number), "unknown");
    EXPECT_STREQ(api.provenance_name(number), "unknown");
  }
  for (int status = WM_OK; status <= WM_DATA_LOSS; ++status)
    EXPECT_STRNE(api.status_name(status), "unknown");
}

// A shape lends layer ids where its store has none; made again from it, rows are as they were:
// pipeline stages without layer ids are numbered through.
TEST_F(Garbage, RowsWithoutLayerIdsComeBackWithoutThem) {
  wm_rows *again = nullptr, *joined = nullptr;
  ASSERT_EQ(Api().rows_create(&shape_, &view_of_rows_, &again, &why_), WM_OK) << text_;
  const wm_rows* const stages[] = {rows_, again};
  ASSERT_EQ(Api().rows_join_layers(stages, 2, &joined, &why_), WM_OK) << text_;
  wm_shape shape = {sizeof(shape)};
  ASSERT_EQ(Api().rows_shape(joined, &shape), WM_OK);
  ASSERT_EQ(shape.num_layers, 4);
  for (std::int32_t layer = 0; layer < 4; ++layer)
    EXPECT_EQ(shape.layer_ids[layer], layer);
  Api().rows_release(joined);
  Api().rows_release(again);
}

// Waits that cannot succeed end when they should, however long they may last.
TEST_F(Garbage, Timeouts) {
  const wm_api_v1& api = Api();
  ASSERT_EQ(api.session_begin_step(session_, &batch_args_, 0, nullptr), WM_OK);
  wm_snapshot* snapshot = nullptr;
  ASSERT_EQ(api.store_snapshot(store_, &snapshot_args_, &snapshot, nullptr), WM_OK);
  EXPECT_EQ(api.snapshot_ready(snapshot), WM_UNAVAILABLE);
  EXPECT_EQ(api.snapshot_read(snapshot, &read_, &why_), WM_FAILED_PRECONDITION);
  for (const std::int64_t timeout : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1000000}}) {
    EXPECT_EQ(api.snapshot_wait(snapshot, timeout, &why_), WM_DEADLINE_EXCEEDED);
    EXPECT_EQ(api.store_wait_idle(store_, timeout, &why_), WM_DEADLINE_EXCEEDED);
  }
  // The caller lands: nobody else could end what it waits for.
  EXPECT_EQ(api.store_wait_idle(store_, -1, &why_), WM_DEADLINE_EXCEEDED);
  EXPECT_EQ(api.store_wait_idle(store_, INT64_MIN, &why_), WM_DEADLINE_EXCEEDED);
  ASSERT_EQ(api.session_drop(session_, 1, nullptr), WM_OK);
  for (const std::int64_t timeout : {INT64_MIN, std::int64_t{-1}, std::int64_t{0}, INT64_MAX}) {
    EXPECT_EQ(api.snapshot_wait(snapshot, timeout, &why_), WM_OK);
    EXPECT_EQ(api.store_wait_idle(store_, timeout, &why_), WM_OK);
  }
  api.snapshot_release(snapshot);
}

}  // namespace
