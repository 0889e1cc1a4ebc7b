// Null and garbage for every argument of every function: a status, never a crash, and no output
// written. One line for each argument.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/waymark_graph.h"
#include "plugin/waymark_wire.h"

namespace {

constexpr std::int32_t kLow = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kHigh = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kAbsurd = std::size_t{1} << 60;
constexpr int kRows = 10;

template <class T>
constexpr T Sized() {
  T made = {};
  made.struct_size = sizeof(T);
  return made;
}

void Never(void*) {
  ADD_FAILURE() << "it was never done";
}

class Garbage : public ::testing::Test {
 protected:
  // A step of ten rows, and of everything that the tables make an object.
  void SetUp() override {
    options_.num_layers = 2;
    options_.top_k = 2;
    options_.num_experts = 8;
    options_.num_blocks = 8;
    options_.page_tokens = 4;
    options_.options = &option_;
    options_.num_options = 1;
    ASSERT_EQ(api_.capture_create(&options_, &capture_, &why_), WM_OK) << text_;
    of_session_.capture = capture_;
    of_session_.max_rows = 16;
    ASSERT_EQ(graph_.session_create(&of_session_, &session_, &why_), WM_OK) << text_;
    for (int i = 0; i < kRows * 4; ++i)
      chosen_[i] = i % 8;
    ids_ = wm_token_major(chosen_, WM_ID_INT32, kRows, 2, 2);
    batch_.step = 1;
    batch_.slots = slots_;
    batch_.num_slots = kRows;
    const wm_event binds[] = {wm_bind(1, nullptr, 0), wm_bind(2, nullptr, 0),
                              wm_bind(3, nullptr, 0)};
    ASSERT_EQ(api_.capture_report(capture_, binds, 3, nullptr), WM_OK);
    ASSERT_EQ(api_.capture_step(capture_, &batch_, &ids_, none_, nullptr), WM_OK);
    ASSERT_EQ(api_.capture_take(capture_, blocks_, 3, 0, kRows, &taken_, &why_), WM_OK) << text_;
    ASSERT_EQ(api_.taken_wait(taken_, -1, &why_), WM_OK) << text_;
    ASSERT_EQ(api_.taken_rows(taken_, &rows_, &why_), WM_OK) << text_;
    ASSERT_EQ(api_.rows_shape(rows_, &shape_), WM_OK);
    ASSERT_EQ(api_.rows_view(rows_, &view_of_rows_), WM_OK);
    batch_.step = 2;

    ASSERT_EQ(wire_.rows_document(rows_, nullptr, &bytes_, &why_), WM_OK) << text_;
    ASSERT_EQ(wire_.bytes_view(bytes_, &data_, &size_), WM_OK);
    part_.end = kRows;
    collective_.ranks = 1;
    collective_.all_gather = [](void*, const void*, void*, std::size_t) -> wm_status {
      return WM_OK;
    };
  }
  void TearDown() override {
    wire_.bytes_release(bytes_);
    api_.rows_release(rows_);
    api_.taken_release(taken_);
    graph_.session_release(session_);
    api_.capture_release(capture_);
  }

  // `call` of a `good` that `spoil` has changed is refused, and its text names what was wrong.
  template <class T>
  using Spoils = std::vector<std::pair<const char*, std::function<void(T&)>>>;
  template <class T, class F>
  void Refuses(const char* name, const T& good, F&& call, const Spoils<T>& spoils,
               wm_status with = WM_INVALID_ARGUMENT) {
    SCOPED_TRACE(name);
    for (const auto& [what, spoil] : spoils) {
      T bad = good;
      spoil(bad);
      text_[0] = 0;
      EXPECT_EQ(call(&bad), with) << what << ": " << text_;
      EXPECT_NE(std::string_view(text_).find(what), std::string_view::npos)
          << "\"" << text_ << "\" names " << what;
    }
  }
  // The same of sizes that no struct has; `least` are the bytes that must be there.
  template <class T, class F>
  void RefusesSizes(const char* name, const T& good, std::size_t least, F&& call) {
    SCOPED_TRACE(name);
    EXPECT_EQ(call(static_cast<const T*>(nullptr)), WM_INVALID_ARGUMENT);
    for (const std::size_t size :
         {std::size_t{0}, least - 1, std::size_t{65537}, ~std::size_t{0}}) {
      T bad = good;
      bad.struct_size = static_cast<std::uint32_t>(size);
      EXPECT_EQ(call(&bad), WM_INVALID_ARGUMENT) << size;
    }
  }

  const wm_api_v1& api_ = *wm_get_api_v1();
  const wm_graph_api_v1& graph_ = *api_.graph;
  const wm_wire_api_v1& wire_ = *api_.wire;
  char text_[512] = {};
  wm_message why_ = {text_, sizeof(text_), 0};
  const wm_done none_ = {nullptr, nullptr};
  const wm_option option_ = {"audit", "true"};
  wm_capture_options options_ = Sized<wm_capture_options>();
  wm_session_options of_session_ = Sized<wm_session_options>();
  wm_step_batch batch_ = Sized<wm_step_batch>();
  wm_shape shape_ = Sized<wm_shape>();
  wm_rows_view view_of_rows_ = Sized<wm_rows_view>();
  wm_part part_ = Sized<wm_part>();
  wm_collective collective_ = Sized<wm_collective>();
  wm_ids ids_ = {};
  const wm_event event_ = wm_bind(1, nullptr, 0);
  const std::int64_t slots_[kRows] = {4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
  const std::int32_t blocks_[3] = {1, 2, 3};
  const std::uint8_t keys_[6] = {};
  const wm_owner owner_ = {sizeof(wm_owner), 2, 9, keys_, 3};
  std::int32_t chosen_[kRows * 4] = {};
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;

  wm_capture* capture_ = nullptr;
  wm_session* session_ = nullptr;
  wm_taken* taken_ = nullptr;
  wm_rows* rows_ = nullptr;
  wm_bytes* bytes_ = nullptr;
};

// Null, and an object of every other type.
TEST_F(Garbage, Objects) {
  // What must not be written.
  wm_taken* taken = nullptr;
  wm_rows* rows = nullptr;
  wm_bytes* bytes = nullptr;
  const std::uint8_t* data = nullptr;
  std::size_t count = 77;
  std::uint64_t number = 77;
  std::int64_t position = 77;
  wm_shape shape = Sized<wm_shape>();
  wm_rows_view view = Sized<wm_rows_view>();
  wm_view view_of = {};
  wm_layer_stats layer = Sized<wm_layer_stats>();
  wm_finding finding = Sized<wm_finding>();
  const wm_forward run = {[](void*, const wm_view*, std::int32_t) -> wm_status { return WM_OK; },
                          nullptr};
  const struct {
    const char* name;
    void* right;
    std::function<wm_status(void*)> call;
  } calls[] = {
#define OBJECT(type, right, call)                                                             \
  {                                                                                           \
#call, right, [&](void* any) -> wm_status { auto* h = static_cast<type*>(any); return call; } \
  }
#define IGNORED(type, right, table, release)                                                                         \
  {                                                                                                                  \
#release, right, [&](void* any) -> wm_status { table.release(static_cast<type*>(any)); return WM_INVALID_ARGUMENT; } \
  }
      OBJECT(wm_capture, capture_, api_.capture_report(h, &event_, 1, nullptr)),
      OBJECT(wm_capture, capture_, api_.capture_step(h, &batch_, &ids_, none_, nullptr)),
      OBJECT(wm_capture, capture_, api_.capture_take(h, blocks_, 2, 0, 8, &taken, &why_)),
      OBJECT(wm_capture, capture_,
             api_.capture_take_of(h, &owner_, blocks_, 2, 0, 8, &taken, &why_)),
      OBJECT(wm_capture, capture_, api_.capture_schedule(h, 1, 1, nullptr)),
      OBJECT(wm_capture, capture_, api_.capture_tell(h, &batch_, nullptr)),
      OBJECT(wm_capture, capture_, api_.capture_set_ids(h, 1, &ids_, none_, nullptr)),
      OBJECT(wm_capture, capture_, api_.capture_lose(h, 1, nullptr)),
      OBJECT(wm_capture, capture_, api_.capture_not_run(h, 1, nullptr)),
      OBJECT(wm_capture, capture_, api_.capture_lose_rows(h, nullptr)),
      OBJECT(wm_capture, capture_, api_.capture_shape(h, &shape)),
      OBJECT(wm_capture, capture_, api_.capture_name_layer(h, 0, "gate", &why_)),
      OBJECT(wm_capture, capture_, api_.capture_covered_prefix(h, blocks_, 2, 8, &position)),
      OBJECT(wm_capture, capture_, api_.capture_wait_idle(h, 0, &why_)),
      OBJECT(wm_capture, capture_, api_.capture_last_step(h, &number)),
      OBJECT(wm_capture, capture_, api_.capture_status(h, &why_)),
      OBJECT(wm_capture, capture_, api_.capture_stats(h, nullptr, 0, &count)),
      OBJECT(wm_capture, capture_, api_.capture_layer_stats(h, 0, &layer)),
      OBJECT(wm_capture, capture_, api_.capture_next_finding(h, &finding, &why_)),
      OBJECT(const wm_taken, taken_, api_.taken_done(h)),
      OBJECT(const wm_taken, taken_, api_.taken_wait(h, 0, &why_)),
      OBJECT(const wm_taken, taken_, api_.taken_rows(h, &rows, &why_)),
      OBJECT(wm_taken, taken_, api_.taken_when_done(h, {&Never, nullptr}, &why_)),
      OBJECT(const wm_rows, rows_, api_.rows_shape(h, &shape)),
      OBJECT(const wm_rows, rows_, api_.rows_view(h, &view)),
      OBJECT(const wm_rows, rows_, api_.rows_join(&h, 1, &rows, &why_)),
      OBJECT(const wm_rows, rows_, api_.rows_join_layers(&h, 1, &rows, &why_)),
      OBJECT(wm_capture, capture_, api_.capture_dump(h, "/dev/null", &why_)),
      OBJECT(wm_session, session_, graph_.session_bind_layer(h, 0, "gate", &why_)),
      OBJECT(wm_session, session_, graph_.session_set_stream(h, nullptr)),
      OBJECT(wm_session, session_, graph_.session_begin_step(h, &batch_, 0, nullptr)),
      OBJECT(wm_session, session_, graph_.session_view(h, 1, &view_of)),
      OBJECT(wm_session, session_, graph_.session_hand_over(h, &view_of, 0, &ids_, nullptr)),
      OBJECT(wm_session, session_, graph_.session_submit(h, 1, 0, nullptr)),
      OBJECT(wm_session, session_, graph_.session_drop(h, 1, nullptr)),
      OBJECT(wm_session, session_, graph_.session_lose(h, 1, nullptr)),
      OBJECT(wm_session, session_, graph_.session_cancel(h, 1, nullptr)),
      OBJECT(wm_session, session_, graph_.session_discard(h, 1)),
      OBJECT(wm_session, session_, graph_.session_self_test(h, 1, run, nullptr, 0, &count, &why_)),
      OBJECT(wm_session, session_, graph_.session_status(h, &why_)),
      OBJECT(wm_session, session_, graph_.session_stats(h, nullptr, 0, &count)),
      OBJECT(wm_session, session_, graph_.session_layer_stats(h, 0, &layer)),
      OBJECT(const wm_rows, rows_, wire_.rows_document(h, nullptr, &bytes, &why_)),
      OBJECT(const wm_rows, rows_, wire_.rows_write_document(h, nullptr, "/nowhere/a", &why_)),
      OBJECT(const wm_bytes, bytes_, wire_.bytes_view(h, &data, &count)),
      IGNORED(wm_capture, capture_, api_, capture_release),
      IGNORED(wm_taken, taken_, api_, taken_release),
      IGNORED(wm_rows, rows_, api_, rows_release),
      IGNORED(wm_session, session_, graph_, session_release),
      IGNORED(wm_bytes, bytes_, wire_, bytes_release),
#undef OBJECT
#undef IGNORED
  };
  void* const all[] = {nullptr, capture_, session_, taken_, rows_, bytes_};
  for (const auto& [name, right, call] : calls) {
    for (void* other : all) {
      if (other == right && right != nullptr) continue;
      EXPECT_EQ(call(other), WM_INVALID_ARGUMENT) << name << " of " << other;
    }
  }
  EXPECT_TRUE(taken == nullptr && rows == nullptr && bytes == nullptr);
  EXPECT_TRUE(data == nullptr && count == 77 && number == 77 && position == 77);
}

// Every other pointer, and counts and numbers that no array has.
TEST_F(Garbage, Pointers) {
  wm_rows* rows = nullptr;
  std::size_t count = 0;
  std::int64_t position = 0;
  wm_message nowhere = {nullptr, 9, 77};
  const wm_forward none = {nullptr, nullptr};
  const wm_forward run = {[](void*, const wm_view*, std::int32_t) -> wm_status { return WM_OK; },
                          nullptr};
#define REFUSED(call) EXPECT_EQ(call, WM_INVALID_ARGUMENT)
  REFUSED(api_.capture_create(&options_, nullptr, &why_));
  REFUSED(api_.capture_create(&options_, &capture_, &nowhere));  // before anything is done
  REFUSED(api_.capture_report(capture_, nullptr, 1, nullptr));
  REFUSED(api_.capture_report(capture_, &event_, kAbsurd, nullptr));
  REFUSED(api_.capture_step(capture_, nullptr, &ids_, none_, nullptr));
  REFUSED(api_.capture_set_ids(capture_, 1, nullptr, none_, nullptr));
  REFUSED(api_.capture_take(capture_, nullptr, 1, 0, 1, &taken_, &why_));
  REFUSED(api_.capture_take(capture_, blocks_, kAbsurd, 0, 1, &taken_, &why_));
  REFUSED(api_.capture_take(capture_, blocks_, 3, 0, 1, nullptr, &why_));
  REFUSED(api_.capture_take(capture_, blocks_, 3, -1, 1, &taken_, &why_));
  REFUSED(api_.capture_take(capture_, blocks_, 3, 2, 1, &taken_, &why_));
  REFUSED(api_.capture_take(capture_, blocks_, 3, 0, 13, &taken_, &why_));
  REFUSED(api_.capture_take(capture_, blocks_, 3, INT64_MIN, INT64_MAX, &taken_, &why_));
  REFUSED(api_.capture_take_of(capture_, nullptr, blocks_, 3, 0, 1, &taken_, &why_));
  REFUSED(api_.capture_take_of(capture_, &owner_, nullptr, 1, 0, 1, &taken_, &why_));
  const auto take_of = [&](const wm_owner* owner) {
    return api_.capture_take_of(capture_, owner, blocks_, 3, 0, 1, &taken_, &why_);
  };
  Refuses<wm_owner>("capture_take_of", owner_, take_of,
                    {{"owner", [](wm_owner& o) { o.struct_size = 3; }},
                     {"owner.key_size", [](wm_owner& o) { o.key_size = 33; }},
                     {"owner.key_size", [](wm_owner& o) { o.key_size = 0; }},
                     {"owner.num_keys", [](wm_owner& o) { o.num_keys = 4; }},
                     {"owner.last_step", [](wm_owner& o) { o.last_step = 0; }},
                     {"owner.keys", [](wm_owner& o) { o.keys = nullptr; }}});
  REFUSED(api_.taken_rows(taken_, nullptr, &why_));
  REFUSED(api_.taken_when_done(taken_, none_, &why_));
  REFUSED(api_.capture_name_layer(capture_, 0, nullptr, &why_));
  REFUSED(api_.capture_name_layer(capture_, 2, "gate", &why_));
  REFUSED(api_.capture_covered_prefix(capture_, nullptr, 1, 1, &position));
  REFUSED(api_.capture_covered_prefix(capture_, blocks_, kAbsurd, 1, &position));
  REFUSED(api_.capture_covered_prefix(capture_, blocks_, 2, -1, &position));
  REFUSED(api_.capture_covered_prefix(capture_, blocks_, 2, 8, nullptr));
  REFUSED(api_.capture_last_step(capture_, nullptr));
  REFUSED(api_.capture_stats(capture_, nullptr, 1, &count));
  REFUSED(api_.capture_stats(capture_, nullptr, 0, nullptr));
  REFUSED(api_.rows_create(nullptr, &view_of_rows_, &rows, &why_));
  REFUSED(api_.rows_create(&shape_, &view_of_rows_, nullptr, &why_));
  for (const auto join : {api_.rows_join, api_.rows_join_layers}) {
    REFUSED(join(nullptr, 1, &rows, &why_));
    REFUSED(join(nullptr, 0, &rows, &why_));
    REFUSED(join(nullptr, kAbsurd, &rows, &why_));
    REFUSED(join(&rows_, 1, nullptr, &why_));
  }
  REFUSED(api_.capture_dump(capture_, nullptr, &why_));
  REFUSED(api_.describe_code(nullptr, &why_));
  REFUSED(graph_.session_create(&of_session_, nullptr, &why_));
  REFUSED(graph_.session_bind_layer(session_, 0, nullptr, &why_));
  REFUSED(graph_.session_bind_layer(session_, 0, "", &why_));
  REFUSED(graph_.session_bind_layer(session_, kLow, "gate", &why_));
  REFUSED(graph_.session_begin_step(session_, nullptr, 0, nullptr));
  REFUSED(graph_.session_view(session_, 1, nullptr));
  REFUSED(graph_.session_hand_over(session_, nullptr, 0, &ids_, nullptr));
  REFUSED(graph_.session_discard(session_, -1));
  REFUSED(graph_.session_self_test(session_, 1, none, nullptr, 0, &count, &why_));
  REFUSED(graph_.session_self_test(session_, 1, run, nullptr, 1, &count, &why_));
  REFUSED(graph_.session_self_test(session_, 1, run, nullptr, 0, nullptr, &why_));
  REFUSED(graph_.session_self_test(session_, 17, run, nullptr, 0, &count, &why_));
  REFUSED(graph_.session_stats(session_, nullptr, 1, &count));
  wm_layer_stats layer = Sized<wm_layer_stats>();
  for (const std::int32_t number_of : {-1, 2, kLow, kHigh}) {
    REFUSED(api_.capture_layer_stats(capture_, number_of, &layer));
    REFUSED(graph_.session_layer_stats(session_, number_of, &layer));
  }
  REFUSED(wire_.rows_document(rows_, nullptr, nullptr, &why_));
  REFUSED(wire_.rows_write_document(rows_, nullptr, nullptr, &why_));
  REFUSED(wire_.bytes_view(bytes_, nullptr, &count));
  REFUSED(wire_.bytes_view(bytes_, &data_, nullptr));
  REFUSED(wire_.document_read(nullptr, 9, nullptr, nullptr, &rows, nullptr, &why_));
  REFUSED(wire_.document_read(data_, size_, nullptr, nullptr, nullptr, nullptr, &why_));
  REFUSED(wire_.document_read_file(nullptr, nullptr, nullptr, &rows, nullptr, &why_));
  REFUSED(wire_.document_read_file("/nowhere/a", nullptr, nullptr, nullptr, nullptr, &why_));
#undef REFUSED
  EXPECT_EQ(nowhere.size, 77u);
  EXPECT_EQ(wire_.document_read(nullptr, 0, nullptr, nullptr, &rows, nullptr, &why_), WM_DATA_LOSS);
  EXPECT_EQ(wire_.document_read_file("/nowhere/a", nullptr, nullptr, &rows, nullptr, &why_),
            WM_NOT_FOUND);
  EXPECT_EQ(api_.capture_dump(capture_, "/dev/null", &why_), WM_FAILED_PRECONDITION);
  EXPECT_EQ(wire_.rows_write_document(rows_, nullptr, "/nowhere/a", &why_), WM_UNAVAILABLE);
  EXPECT_TRUE(rows == nullptr);

  // A text is cut off where it does not fit; how long it is, is told.
  char small[8] = "1234567";
  wm_message cut = {small, 5, 0};
  EXPECT_EQ(api_.taken_rows(nullptr, &rows, &cut), WM_INVALID_ARGUMENT);
  EXPECT_STREQ(small, "take");
  EXPECT_EQ(small[5], '6');
  EXPECT_EQ(cut.size, std::strlen("taken: must not be null"));
  wm_message only_size = {nullptr, 0, 0};
  EXPECT_EQ(api_.taken_rows(nullptr, &rows, &only_size), WM_INVALID_ARGUMENT);
  EXPECT_EQ(only_size.size, cut.size);
}

TEST_F(Garbage, Options) {
  wm_recorder_options recorder = Sized<wm_recorder_options>();
  wm_option option = {"num_pages", "9"};
  const auto with = [&option](const char* name, const char* value) {
    return [&option, name, value](wm_capture_options& o) {
      option = {name, value};
      o.options = &option, o.num_options = 1;
    };
  };
  using Recorder = wm_recorder_options;
  const auto with_recorder = [&recorder](auto&& spoil) {
    return [&recorder, spoil](wm_capture_options& o) {
      recorder = Sized<Recorder>();
      spoil(recorder);
      o.recorder = &recorder;
    };
  };
  const auto create = [&](const wm_capture_options* of) {
    wm_capture* capture = nullptr;
    const wm_status status = api_.capture_create(of, &capture, &why_);
    EXPECT_EQ(capture, nullptr);
    return status;
  };
  using Capture = wm_capture_options;
  RefusesSizes("capture_create", options_, offsetof(Capture, page_tokens), create);
  Refuses<Capture>(
      "capture_create", options_, create,
      {{"flags", [](Capture& o) { o.flags = 1; }},
       {"extra_columns", [](Capture& o) { o.extra_columns = -1; }},
       {"num_layers", [](Capture& o) { o.num_layers = kLow; }},
       {"top_k", [](Capture& o) { o.top_k = 65; }},
       {"num_experts", [](Capture& o) { o.num_experts = 65536; }},
       {"num_blocks", [](Capture& o) { o.num_blocks = kLow; }},
       {"page_tokens", [](Capture& o) { o.page_tokens = -1; }},
       {"block_tokens", [](Capture& o) { o.block_tokens = 7; }},
       {"layer_ids", [](Capture& o) { o.num_layer_ids = 2; }},
       {"num_layer_ids", [&](Capture& o) { o.layer_ids = blocks_, o.num_layer_ids = 1; }},
       {"layer_ids", [&](Capture& o) { o.layer_ids = blocks_, o.num_layer_ids = kAbsurd; }},
       {"null_blocks", [](Capture& o) { o.num_null_blocks = 1; }},
       {"landing_cpus", [](Capture& o) { o.num_landing_cpus = 1; }},
       {"landing_cpus",
        [](Capture& o) {
          static const std::int32_t none = -1;
          o.landing_cpus = &none, o.num_landing_cpus = 1;
        }},
       {"options", [](Capture& o) { o.options = nullptr; }},
       {"options", [](Capture& o) { o.num_options = kAbsurd; }},
       {"options[0].name", with(nullptr, "9")},
       {"options[0].value", with("num_pages", nullptr)},
       {"options: one of", with("pages", "9")},
       {"num_pages", with("num_pages", "many")},
       {"max_steps_in_flight", with("max_steps_in_flight", "4097")},
       {"audit_threshold", with("audit_threshold", "nan")},
       {"teardown_timeout", with("teardown_timeout", "-1")},
       {"reserved", [](Capture& o) { o.reserved = 1; }},
       {"recorder.flags", with_recorder([](Recorder& o) { o.flags = 2; })},
       {"struct_size", with_recorder([](Recorder& o) { o.struct_size = 7; })},
       {"recorder.cpus", with_recorder([](Recorder& o) { o.num_cpus = 1; })},
       {"ring_bytes", with_recorder([](Recorder& o) { o.ring_bytes = 1; })}});
  Refuses<wm_collective>(
      "row_gather", collective_,
      [&](const wm_collective* of) {
        wm_session* session = nullptr;
        wm_session_options of_session = of_session_;
        of_session.row_gather = of;
        EXPECT_EQ(graph_.session_create(&of_session, &session, &why_), WM_INVALID_ARGUMENT);
        wm_capture_options options = options_;
        options.row_gather = of;
        return create(&options);
      },
      {{"row_gather: struct_size", [](wm_collective& o) { o.struct_size = 9; }},
       {"row_gather.ranks", [](wm_collective& o) { o.ranks = 0; }},
       {"row_gather.ranks", [](wm_collective& o) { o.ranks = 4097; }},
       {"row_gather.rank", [](wm_collective& o) { o.rank = 1; }},
       {"row_gather.reserved", [](wm_collective& o) { o.reserved = 1; }},
       {"row_gather.all_gather", [](wm_collective& o) { o.all_gather = nullptr; }}});
  using Session = wm_session_options;
  const auto create_session = [&](const Session* of) {
    wm_session* session = nullptr;
    return graph_.session_create(of, &session, &why_);
  };
  RefusesSizes("session_create", of_session_, offsetof(Session, num_buffers), create_session);
  Refuses<Session>(
      "session_create", of_session_, create_session,
      {{"flags", [](Session& o) { o.flags = 2; }},
       {"ONE_VIEW", [](Session& o) { o.flags = WM_SESSION_ONE_VIEW; }},
       {"capture", [&](Session& o) { o.capture = reinterpret_cast<wm_capture*>(rows_); }},
       {"max_rows", [](Session& o) { o.max_rows = kHigh; }},
       {"num_buffers", [](Session& o) { o.num_buffers = -1; }},
       {"transport", [](Session& o) { o.transport = 2; }}});
}

TEST_F(Garbage, Batches) {
  wm_pair_rows pairs = Sized<wm_pair_rows>();
  using Batch = wm_step_batch;
  const auto with = [&](auto&& spoil) {
    return [&pairs, spoil, this](Batch& o) {
      pairs = {sizeof(pairs), 4, blocks_, blocks_, 1, 4, 0, nullptr};
      spoil(pairs);
      o.num_slots = 0, o.pairs = &pairs;
    };
  };
  const std::vector<std::function<void(Batch&)>> spoils = {
      [](Batch& o) { o.struct_size = offsetof(Batch, pairs) - 1; },
      [](Batch& o) { o.struct_size = ~0u; },
      [](Batch& o) { o.flags = 1; },
      [](Batch& o) { o.num_events = 1; },
      [](Batch& o) { o.num_events = kAbsurd; },
      [](Batch& o) { o.slots = nullptr; },
      [](Batch& o) { o.num_slots = kAbsurd; },
      with([](wm_pair_rows& o) { o.struct_size = 8; }),
      with([](wm_pair_rows& o) { o.block_idx = nullptr; }),
      with([](wm_pair_rows& o) { o.local_position = nullptr; }),
      with([](wm_pair_rows& o) { o.num_rows = kAbsurd; })};
  int done = 0;
  const wm_done tell = {[](void* context) { ++*static_cast<int*>(context); }, &done};
  for (std::size_t i = 0; i < spoils.size(); ++i) {
    SCOPED_TRACE(i);
    Batch bad = batch_;
    spoils[i](bad);
    for (const bool by_view : {false, true}) {
      wm_code code = {};
      EXPECT_EQ(by_view ? graph_.session_begin_step(session_, &bad, 0, &code)
                        : api_.capture_step(capture_, &bad, &ids_, tell, &code),
                WM_INVALID_ARGUMENT);
      EXPECT_EQ(code.rule, WM_RULE_ARGUMENT);
      EXPECT_EQ(code.index, 1u);
    }
    EXPECT_EQ(api_.capture_tell(capture_, &bad, nullptr), WM_INVALID_ARGUMENT);
  }
  EXPECT_EQ(done, static_cast<int>(spoils.size()));
  for (const std::int32_t rows : {-1, 17, kLow, kHigh})
    EXPECT_EQ(graph_.session_begin_step(session_, &batch_, rows, nullptr), WM_INVALID_ARGUMENT);
  std::uint64_t last = 0;
  EXPECT_EQ(api_.capture_last_step(capture_, &last), WM_OK);
  EXPECT_EQ(last, 1u) << "none of all that has told a step";
}

// They were stored cut, and nothing said so.
TEST_F(Garbage, IdsOfATypeThatCannotHoldTheExperts) {
  options_.num_experts = 300;
  wm_capture* many = nullptr;
  ASSERT_EQ(api_.capture_create(&options_, &many, &why_), WM_OK) << text_;
  const std::uint8_t chosen[kRows * 4] = {};
  const wm_ids ids = wm_token_major(chosen, WM_ID_UINT8, kRows, 2, 2);
  wm_code code = {};
  EXPECT_EQ(api_.capture_step(many, &batch_, &ids, none_, &code), WM_DATA_LOSS);
  EXPECT_EQ(api_.describe_code(&code, &why_), WM_OK);
  EXPECT_STREQ(text_, "ids: uint8 holds 256 experts, the capture has 300");
  api_.capture_release(many);
}

TEST_F(Garbage, Ids) {
  using Ids = wm_ids;
  const std::vector<std::function<void(Ids&)>> spoils = {
      [](Ids& o) { o.struct_size = offsetof(Ids, layers) - 1; },
      [](Ids& o) { o.reserved = 1; },
      [](Ids& o) { o.reserved_2 = 1; },
      [](Ids& o) { o.type = 5; },
      [](Ids& o) { o.type = 256 + WM_ID_INT32; },
      [](Ids& o) { o.data = nullptr; },
      [](Ids& o) { o.rows = kHigh; },
      [](Ids& o) { o.rows = kLow; },
      [](Ids& o) { o.columns = 1; },
      [](Ids& o) { o.columns = 3; },
      [](Ids& o) { o.columns = kLow; }};
  ASSERT_EQ(graph_.session_bind_layer(session_, 0, "gate", &why_), WM_OK);
  ASSERT_EQ(graph_.session_begin_step(session_, &batch_, 0, nullptr), WM_OK);
  wm_view view = {};
  ASSERT_EQ(graph_.session_view(session_, 2, &view), WM_OK);
  batch_.step = 3;
  ASSERT_EQ(api_.capture_tell(capture_, &batch_, nullptr), WM_OK);
  int done = 0, told = 0;
  const wm_done tell = {[](void* context) { ++*static_cast<int*>(context); }, &done};
  wm_code code = {};
  for (std::size_t i = 0; i < spoils.size(); ++i) {
    SCOPED_TRACE(i);
    Ids bad = ids_;
    spoils[i](bad);
    EXPECT_EQ(graph_.session_hand_over(session_, &view, 0, &bad, &code), WM_INVALID_ARGUMENT);
    EXPECT_GE(code.rule, WM_RULE_IDS);
    EXPECT_EQ(api_.describe_code(&code, &why_), WM_OK);
    EXPECT_GT(why_.size, 10u);
    EXPECT_EQ(api_.capture_set_ids(capture_, 3, &bad, tell, &code), WM_INVALID_ARGUMENT);
    EXPECT_EQ(done, ++told);
    // Of a whole step they are lost, and the step is told.
    ++batch_.step;
    EXPECT_EQ(api_.capture_step(capture_, &batch_, &bad, tell, &code), WM_DATA_LOSS);
    EXPECT_EQ(code.code, WM_DATA_LOSS);
    EXPECT_EQ(done, ++told);
    std::uint64_t last = 0;
    EXPECT_EQ(api_.capture_last_step(capture_, &last), WM_OK);
    EXPECT_EQ(last, batch_.step);
  }
  EXPECT_EQ(api_.capture_step(nullptr, &batch_, &ids_, tell, nullptr), WM_INVALID_ARGUMENT);
  EXPECT_EQ(api_.capture_set_ids(nullptr, 3, &ids_, tell, nullptr), WM_INVALID_ARGUMENT);
  EXPECT_EQ(done, told + 2);
  wm_view bad_view = view;
  bad_view.reserved = 1;
  EXPECT_EQ(graph_.session_hand_over(session_, &bad_view, 0, &ids_, &code), WM_INVALID_ARGUMENT);
  bad_view = view;
  for (const std::int32_t buffer : {-3, -1, 4, kLow, kHigh}) {
    bad_view.buffer = buffer;
    EXPECT_EQ(graph_.session_hand_over(session_, &bad_view, 0, &ids_, &code), WM_NOT_FOUND);
  }
  for (const std::int32_t layer : {-1, 2, kLow, kHigh}) {
    EXPECT_EQ(graph_.session_hand_over(session_, &view, layer, &ids_, &code), WM_INVALID_ARGUMENT);
  }
  for (const std::int32_t first_row : {-1, 7, kLow, kHigh}) {
    Ids slice = ids_;
    slice.first_row = first_row;
    EXPECT_EQ(graph_.session_hand_over(session_, &view, 0, &slice, &code), WM_INVALID_ARGUMENT);
    EXPECT_EQ(api_.capture_set_ids(capture_, 3, &slice, none_, &code), WM_INVALID_ARGUMENT);
  }
  for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{99}, ~std::uint64_t{0}}) {
    EXPECT_EQ(graph_.session_submit(session_, step, 0, nullptr), WM_NOT_FOUND);
    EXPECT_EQ(api_.capture_set_ids(capture_, step, &ids_, none_, nullptr), WM_NOT_FOUND);
    EXPECT_EQ(api_.capture_lose(capture_, step, nullptr), WM_NOT_FOUND);
    EXPECT_EQ(api_.capture_not_run(capture_, step, nullptr), WM_NOT_FOUND);
  }
  // And both steps are still there.
  EXPECT_EQ(graph_.session_submit(session_, 2, 0, nullptr), WM_OK);
  EXPECT_EQ(api_.capture_set_ids(capture_, 3, &ids_, none_, nullptr), WM_OK);
  EXPECT_EQ(api_.capture_wait_idle(capture_, -1, &why_), WM_OK);
}

TEST_F(Garbage, Rows) {
  using View = wm_rows_view;
  std::vector<wm_row_info> infos(view_of_rows_.infos, view_of_rows_.infos + kRows);
  std::vector<std::uint8_t> ids(kRows * 4, 7);
  View good = view_of_rows_;
  good.flags = 0;
  good.infos = infos.data();
  good.ids = ids.data();
  const auto create = [&](const View* of) {
    wm_rows* rows = nullptr;
    return api_.rows_create(&shape_, of, &rows, &why_);
  };
  RefusesSizes("rows_create", good, sizeof(View), create);
  const auto with = [&](auto&& spoil) {
    return [&, spoil](View&) {
      infos[4] = view_of_rows_.infos[4];
      spoil(infos[5] = view_of_rows_.infos[5]);
    };
  };
  Refuses<View>("rows_create, view", good, create,
                {{"flags", [](View& o) { o.flags = 2; }},
                 {"first", [](View& o) { o.first = -1; }},
                 {"first", [](View& o) { o.first = INT64_MAX; }},
                 {"count", [](View& o) { o.count = INT64_MAX; }},
                 {"ids", [](View& o) { o.ids = nullptr; }},
                 {"infos", [](View& o) { o.infos = nullptr; }},
                 {"infos[5].reason", with([](wm_row_info& info) { info.reason = 9; })},
                 {"infos[5].cause", with([](wm_row_info& info) { info.cause = 9; })},
                 {"infos[5].provenance", with([](wm_row_info& info) { info.provenance = 4; })},
                 {"infos[5].reserved", with([](wm_row_info& info) { info.reserved[3] = 1; })},
                 {"ids", with([&](wm_row_info&) { ids[5 * 4 + 2] = 8; })}});
  using Shape = wm_shape;
  Refuses<Shape>("rows_create, shape", shape_,
                 [&](const Shape* of) {
                   wm_rows* rows = nullptr;
                   return api_.rows_create(of, &good, &rows, &why_);
                 },
                 {{"struct_size", [](Shape& o) { o.struct_size = 7; }},
                  {"num_layers", [](Shape& o) { o.num_layers = kHigh; }},
                  {"top_k", [](Shape& o) { o.top_k = 9; }},
                  {"num_experts", [](Shape& o) { o.num_experts = kLow; }},
                  {"page_tokens", [](Shape& o) { o.page_tokens = kHigh; }}});
}

// A shape lends layer ids where there are none; made again from it, rows are as they were: pipeline
// stages without layer ids are numbered through.
TEST_F(Garbage, RowsWithoutLayerIdsComeBackWithoutThem) {
  wm_rows *again = nullptr, *joined = nullptr;
  ASSERT_EQ(api_.rows_create(&shape_, &view_of_rows_, &again, &why_), WM_OK) << text_;
  const wm_rows* const stages[] = {rows_, again};
  ASSERT_EQ(api_.rows_join_layers(stages, 2, &joined, &why_), WM_OK) << text_;
  wm_shape shape = Sized<wm_shape>();
  ASSERT_EQ(api_.rows_shape(joined, &shape), WM_OK);
  ASSERT_EQ(shape.num_layers, 4);
  for (std::int32_t layer = 0; layer < 4; ++layer)
    EXPECT_EQ(shape.layer_ids[layer], layer);
  api_.rows_release(joined);
  api_.rows_release(again);
}

// Structs that the library fills end where the caller's do.
TEST_F(Garbage, StructsThatAreFilled) {
  for (const std::uint32_t size : {0u, 7u, 65537u, ~0u}) {
    wm_shape shape = {size};
    EXPECT_EQ(api_.capture_shape(capture_, &shape), WM_INVALID_ARGUMENT) << size;
    wm_finding finding = {size};
    EXPECT_EQ(api_.capture_next_finding(capture_, &finding, &why_), WM_INVALID_ARGUMENT) << size;
    wm_read_damage damage = {size};
    wm_rows* rows = nullptr;
    EXPECT_EQ(wire_.document_read(data_, size_, nullptr, nullptr, &rows, &damage, &why_),
              WM_INVALID_ARGUMENT);
  }
  for (const std::uint32_t size : {8u, 13u, std::uint32_t{sizeof(wm_shape)}, 65536u}) {
    wm_shape shape;
    std::memset(&shape, 0xee, sizeof(shape));
    shape.struct_size = size;
    std::vector<unsigned char> room(65536, 0xee);
    std::memcpy(room.data(), &shape, sizeof(shape));
    auto* const out = reinterpret_cast<wm_shape*>(room.data());
    ASSERT_EQ(api_.capture_shape(capture_, out), WM_OK);
    const std::uint32_t written = std::min<std::uint32_t>(size, sizeof(shape));
    EXPECT_EQ(out->struct_size, written);
    EXPECT_EQ(out->num_layers, 2);
    EXPECT_EQ(room[written], 0xee);
  }
}

TEST_F(Garbage, WireStructs) {
  wm_bytes* bytes = nullptr;
  wm_rows* rows = nullptr;
  using Options = wm_document_options;
  const auto write = [&](const Options* of) {
    return wire_.rows_document(rows_, of, &bytes, &why_);
  };
  wm_chunk_code code = Sized<wm_chunk_code>();
  const auto with = [&code](auto&& spoil) {
    return [&code, spoil](Options& o) {
      code = Sized<wm_chunk_code>();
      spoil(code);
      o.code = &code;
    };
  };
  using Code = wm_chunk_code;
  Refuses<Options>("rows_document", Sized<Options>(), write,
                   {{"struct_size", [](Options& o) { o.struct_size = 7; }},
                    {"flags", [](Options& o) { o.flags = 4; }},
                    {"flags", with([](Code& o) { o.flags = 4; })},
                    {"codec", with([](Code& o) { o.codec = 65536; })},
                    {"crc_layers", with([](Code& o) { o.crc_layers = 3; })}});
  using Limits = wm_read_limits;
  const auto open = [&](const Limits* of) {
    return wire_.document_read(data_, size_, of, nullptr, &rows, nullptr, &why_);
  };
  Refuses<Limits>("document_read", Sized<Limits>(), open,
                  {{"limits.flags", [](Limits& o) { o.flags = 2; }}});
  Refuses<Limits>("document_read", Sized<Limits>(), open,
                  {{"max_bytes", [](Limits& o) { o.max_bytes = 1; }}}, WM_RESOURCE_EXHAUSTED);
  using Part = wm_part;
  const Spoils<Part> parts = {
      {"rows", [](Part& o) { o.begin = -1; }},
      {"rows", [](Part& o) { o.end = kRows + 1; }},
      {"rows", [](Part& o) { o.begin = INT64_MIN, o.end = INT64_MAX; }},
      {"layers", [](Part& o) { o.layer_begin = 2; }},
      {"layers", [](Part& o) { o.layer_end = kLow; }},
      {"layers", [](Part& o) { o.layer_begin = kLow, o.layer_end = kHigh; }}};
  const auto read = [&](const Part* of) {
    return wire_.document_read(data_, size_, nullptr, of, &rows, nullptr, &why_);
  };
  Refuses<Part>("part", part_, read, parts, WM_OUT_OF_RANGE);
  Refuses<Part>("part", part_, read, {{"reserved", [](Part& o) { o.reserved = 1; }}});
  EXPECT_TRUE(bytes == nullptr && rows == nullptr);
}

TEST_F(Garbage, CodesAndNames) {
  for (const std::int32_t rule : {kLow, -1, 0, 16, 31, 40, 63, 65, 128, 129, 145, 999, kHigh}) {
    const wm_code code = {WM_INVALID_ARGUMENT, rule, 1, 2};
    EXPECT_EQ(api_.describe_code(&code, &why_), WM_OK);
    EXPECT_GT(why_.size, 0u);
  }
  const wm_code garbage = {kHigh, 5, ~std::uint64_t{0}, INT64_MIN};
  EXPECT_EQ(api_.describe_code(&garbage, &why_), WM_OK);
  for (const std::int32_t number : {kLow, -1, 16, 1000, kHigh}) {
    EXPECT_STREQ(api_.status_name(number), "unknown");
    EXPECT_STREQ(api_.reason_name(number), "unknown");
    EXPECT_STREQ(api_.provenance_name(number), "unknown");
    EXPECT_STREQ(api_.cause_name(number == 16 ? 31 : number), "unknown");
  }
  for (int status = WM_OK; status <= WM_DATA_LOSS; ++status)
    EXPECT_STRNE(api_.status_name(status), "unknown");
}

// Waits that cannot succeed end when they should, however long they may last.
TEST_F(Garbage, Timeouts) {
  ASSERT_EQ(api_.capture_tell(capture_, &batch_, nullptr), WM_OK);
  wm_taken* taken = nullptr;
  wm_rows* rows = nullptr;
  ASSERT_EQ(api_.capture_take(capture_, blocks_, 2, 0, 8, &taken, &why_), WM_OK);
  EXPECT_EQ(api_.taken_done(taken), WM_UNAVAILABLE);
  EXPECT_EQ(api_.taken_rows(taken, &rows, &why_), WM_UNAVAILABLE);
  for (const std::int64_t timeout : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1000000}}) {
    EXPECT_EQ(api_.taken_wait(taken, timeout, &why_), WM_DEADLINE_EXCEEDED);
    EXPECT_EQ(api_.capture_wait_idle(capture_, timeout, &why_), WM_DEADLINE_EXCEEDED);
  }
  ASSERT_EQ(api_.capture_lose(capture_, 2, nullptr), WM_OK);
  for (const std::int64_t timeout : {INT64_MIN, std::int64_t{-1}, INT64_MAX}) {
    EXPECT_EQ(api_.taken_wait(taken, timeout, &why_), WM_OK);
    EXPECT_EQ(api_.capture_wait_idle(capture_, timeout, &why_), WM_OK);
  }
  api_.taken_release(taken);
}

}  // namespace
