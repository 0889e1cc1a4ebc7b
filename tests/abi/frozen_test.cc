// Callers of other ages. This program is compiled with waymark.h as it was in version 1.0, frozen,
// and runs with the current library: with structs of that size, cut behind their required fields as an
// older caller's, and with garbage behind them as a newer caller's. frozen_wire_test.cc is the same
// for waymark_wire.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/abi/frozen/waymark.h"
#include "tests/abi/frozen/waymark_wire.h"
#include "tests/abi/sized.h"

namespace {

using abi_test::ExpectFills;
using abi_test::Sized;

const wm_api_v1& Api() {
  return *wm_get_api_v1();
}

// What ends a struct's required fields in version 1.0. Never to be changed.
template <class T>
constexpr std::uint32_t kLeast = 0;
template <>
constexpr std::uint32_t kLeast<wm_step_batch> = 64;
template <>
constexpr std::uint32_t kLeast<wm_pair_rows> = 36;
template <>
constexpr std::uint32_t kLeast<wm_table_rows> = 48;
template <>
constexpr std::uint32_t kLeast<wm_schedule_options> = 24;
template <>
constexpr std::uint32_t kLeast<wm_recorder_options> = 8;
template <>
constexpr std::uint32_t kLeast<wm_store_options> = 32;
template <>
constexpr std::uint32_t kLeast<wm_shape> = 8;
template <>
constexpr std::uint32_t kLeast<wm_snapshot_args> = 48;
template <>
constexpr std::uint32_t kLeast<wm_read_args> = 64;
template <>
constexpr std::uint32_t kLeast<wm_rows_view> = 40;
template <>
constexpr std::uint32_t kLeast<wm_collective> = 24;
template <>
constexpr std::uint32_t kLeast<wm_session_options> = 28;
template <>
constexpr std::uint32_t kLeast<wm_layer_binding> = 20;
template <>
constexpr std::uint32_t kLeast<wm_ids> = 40;

enum class Age { kOlder, kSame, kNewer };

class Caller : public ::testing::TestWithParam<Age> {
 protected:
  template <class T>
  std::uint32_t SizeOf() const {
    if (GetParam() == Age::kOlder) return kLeast<T>;
    return static_cast<std::uint32_t>(sizeof(T)) + (GetParam() == Age::kNewer ? 72 : 0);
  }
  template <class T>
  Sized<T> Of(const T& value) const {
    return Sized<T>(value, SizeOf<T>());
  }
};

constexpr int kLayers = 2, kTopK = 2, kRows = 16;

wm_store_options OfStore() {
  wm_store_options options = {};
  options.num_layers = kLayers;
  options.top_k = kTopK;
  options.num_experts = 300;
  options.num_blocks = 8;
  return options;
}

// Gives every function that takes a struct one of the caller's age, and reads back what was
// written.
TEST_P(Caller, RunsAsEver) {
  char text[512] = {};
  wm_message why = {text, sizeof(text), 0};
  wm_recorder* recorder = nullptr;
  ASSERT_EQ(
      Api().recorder_create(Of(OfStore()).get(), Of(wm_recorder_options{}).get(), &recorder, &why),
      WM_OK)
      << text;
  Api().recorder_release(recorder);
  wm_store* store = nullptr;
  ASSERT_EQ(Api().store_create(Of(OfStore()).get(), &store, &why), WM_OK) << text;
  wm_session_options of_session = {};
  of_session.store = store;
  of_session.max_rows = kRows;
  wm_session* session = nullptr;
  ASSERT_EQ(Api().session_create(Of(of_session).get(), &session, &why), WM_OK) << text;
  Api().store_release(store);  // the session keeps it; the handle stays good
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string module = "layer" + std::to_string(layer);
    wm_layer_binding binding = {};
    binding.layer = layer;
    binding.module = module.c_str();
    binding.capture = WM_CAPTURE_HANDS_OVER;
    ASSERT_EQ(Api().session_bind_layer(session, Of(binding).get(), &why), WM_OK) << text;
  }

  const wm_event bind = wm_bind(1, nullptr, 0);
  std::vector<std::int64_t> slots;
  for (int row = 0; row < kRows; ++row)
    slots.push_back(16 + row);
  wm_step_batch batch = {};
  batch.step = 5;
  batch.version = 9;
  batch.events = &bind;
  batch.num_events = 1;
  batch.slots = slots.data();
  batch.num_slots = slots.size();
  EXPECT_EQ(Api().batch_size(Of(batch).get()), 36u + 56 + 8 * kRows);
  std::vector<std::uint8_t> bytes(1024);
  std::size_t size = 0;
  EXPECT_EQ(Api().batch_serialize(Of(batch).get(), bytes.data(), bytes.size(), &size, &why), WM_OK);
  // The same rows as pairs and as a table: the same bytes.
  const std::vector<std::uint8_t> as_slots(bytes.begin(), bytes.begin() + static_cast<long>(size));
  const auto expect_same_bytes = [&](const wm_step_batch& of) {
    // The least size has no field for these forms.
    if (GetParam() == Age::kOlder) return;
    std::fill(bytes.begin(), bytes.end(), std::uint8_t{0});
    ASSERT_EQ(Api().batch_serialize(Of(of).get(), bytes.data(), bytes.size(), &size, &why), WM_OK);
    ASSERT_EQ(size, as_slots.size());
    ASSERT_TRUE(std::equal(as_slots.begin(), as_slots.end(), bytes.begin()));
  };
  const std::vector<std::int32_t> block_idx(kRows, 1);
  std::vector<std::int32_t> local_position;
  for (int row = 0; row < kRows; ++row)
    local_position.push_back(row);
  wm_pair_rows pairs = {};
  pairs.index_bytes = 4;
  pairs.block_idx = block_idx.data();
  pairs.local_position = local_position.data();
  pairs.num_rows = kRows;
  pairs.block_tokens = 16;
  Sized<wm_pair_rows> given_pairs = Of(pairs);
  wm_step_batch in_pairs = batch;
  in_pairs.num_slots = 0;
  in_pairs.pairs = given_pairs.get();
  expect_same_bytes(in_pairs);
  const std::int32_t block_table[] = {1}, computed[] = {0}, scheduled[] = {kRows};
  wm_table_rows table = {};
  table.block_tokens = 16;
  table.block_table = block_table;
  table.table_stride = 1;
  table.num_requests = 1;
  table.num_computed_tokens = computed;
  table.num_scheduled_tokens = scheduled;
  Sized<wm_table_rows> given_table = Of(table);
  wm_step_batch in_table = batch;
  in_table.num_slots = 0;
  in_table.table = given_table.get();
  expect_same_bytes(in_table);
  wm_schedule_options of_writer = {};
  of_writer.num_blocks = 8;
  of_writer.block_tokens = 16;
  wm_schedule_writer* writer = nullptr;
  ASSERT_EQ(Api().schedule_writer_create(Of(of_writer).get(), &writer, &why), WM_OK) << text;
  ASSERT_EQ(Api().schedule_writer_begin(writer, 5, 9, &why), WM_OK) << text;
  ASSERT_EQ(Api().schedule_writer_report(writer, &bind, 1, &why), WM_OK) << text;
  Api().schedule_writer_release(writer);
  wm_code code = {};
  ASSERT_EQ(Api().session_begin_step(session, Of(batch).get(), 0, &code), WM_OK) << code.rule;
  wm_view view = {};
  ASSERT_EQ(Api().session_view(session, 5, &view), WM_OK);
  std::vector<std::int32_t> layer_ids[kLayers];
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int i = 0; i < kRows * kTopK; ++i)
      layer_ids[layer].push_back((i * 7 + layer) % 300);
    wm_ids ids = {};
    ids.type = WM_ID_INT32;
    ids.data = layer_ids[layer].data();
    ids.rows = kRows;
    ids.columns = kTopK;
    ids.row_stride = kTopK * 4;
    ids.k_stride = 4;
    ASSERT_EQ(Api().session_hand_over(session, &view, layer, Of(ids).get(), &code), WM_OK);
  }
  ASSERT_EQ(Api().session_submit(session, 5, 0, &code), WM_OK);
  ASSERT_EQ(Api().store_wait_idle(store, -1, &why), WM_OK);

  const std::int32_t blocks[] = {1};
  wm_snapshot_args args = {};
  args.blocks = blocks;
  args.num_blocks = 1;
  args.last = kRows;
  wm_snapshot* snapshot = nullptr;
  ASSERT_EQ(Api().store_snapshot(store, Of(args).get(), &snapshot, &why), WM_OK) << text;
  std::vector<std::int32_t> out(kRows * kLayers * kTopK);
  wm_read_args read = {};
  read.end = kRows;
  read.id_type = WM_ID_INT32;
  read.out = out.data();
  read.out_bytes = out.size() * 4;
  const auto expect_rows = [&] {
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kLayers * kTopK; ++i) {
        ASSERT_EQ(out[static_cast<std::size_t>(row * kLayers * kTopK + i)],
                  layer_ids[i / kTopK][static_cast<std::size_t>(row * kTopK + i % kTopK)]);
      }
    }
    std::fill(out.begin(), out.end(), -7);
  };
  ASSERT_EQ(Api().snapshot_wait(snapshot, -1, &why), WM_OK) << text;
  ASSERT_EQ(Api().snapshot_read(snapshot, Of(read).get(), &why), WM_OK) << text;
  expect_rows();
  wm_rows* rows = nullptr;
  ASSERT_EQ(Api().snapshot_rows(snapshot, &rows, &why), WM_OK);
  wm_shape shape = {sizeof(shape)};
  wm_rows_view lent = {sizeof(lent)};
  ASSERT_EQ(Api().rows_shape(rows, &shape), WM_OK);
  ASSERT_EQ(Api().rows_view(rows, &lent), WM_OK);
  wm_rows* again = nullptr;
  const wm_status made = Api().rows_create(Of(shape).get(), Of(lent).get(), &again, &why);
  if (GetParam() == Age::kOlder) {
    // One field is all that the least size holds; what is missing reads as 0.
    EXPECT_EQ(made, WM_INVALID_ARGUMENT) << text;
  } else {
    ASSERT_EQ(made, WM_OK) << text;
    ASSERT_EQ(Api().rows_write(again, Of(read).get(), &why), WM_OK) << text;
    expect_rows();
  }
  wm_collective alone = {};
  alone.ranks = 1;
  alone.all_gather = [](void*, const void*, void*, std::size_t) -> wm_status {
    return WM_INTERNAL;  // with one rank nobody asks
  };
  wm_rows* gathered = nullptr;
  ASSERT_EQ(Api().rows_gather_layers(rows, Of(alone).get(), &gathered, &why), WM_OK) << text;
  Api().rows_release(gathered);
  Api().rows_release(again);
  Api().rows_release(rows);
  Api().snapshot_release(snapshot);
  Api().session_release(session);
}

INSTANTIATE_TEST_SUITE_P(Ages, Caller, ::testing::Values(Age::kOlder, Age::kSame, Age::kNewer),
                         [](const auto& of_age) {
                           return of_age.param == Age::kOlder  ? "Older"
                                  : of_age.param == Age::kSame ? "Same"
                                                               : "Newer";
                         });

// One of everything, to be asked and to be given wrong sizes.
class Sizes : public ::testing::Test {
 protected:
  void SetUp() override {
    wm_store_options options = OfStore();
    options.struct_size = sizeof(options);
    options.landing = WM_LANDING_CALLER;
    ASSERT_EQ(Api().store_create(&options, &store_, nullptr), WM_OK);
    wm_session_options of_session = {};
    of_session.struct_size = sizeof(of_session);
    of_session.store = store_;
    of_session.max_rows = kRows;
    ASSERT_EQ(Api().session_create(&of_session, &session_, nullptr), WM_OK);
    const std::int32_t blocks[] = {1};
    wm_snapshot_args args = {};
    args.struct_size = sizeof(args);
    args.blocks = blocks;
    args.num_blocks = 1;
    args.last = 4;
    ASSERT_EQ(Api().store_snapshot(store_, &args, &snapshot_, nullptr), WM_OK);
    ASSERT_EQ(Api().snapshot_rows(snapshot_, &rows_, nullptr), WM_OK);
    std::uint8_t bytes[36] = {'W', 'M', 'B', '1', 1};
    ASSERT_EQ(Api().batch_parse(bytes, sizeof(bytes), nullptr, &batch_, nullptr), WM_OK);
  }
  void TearDown() override {
    Api().batch_release(batch_);
    Api().rows_release(rows_);
    Api().snapshot_release(snapshot_);
    Api().session_release(session_);
    Api().store_release(store_);
  }

  template <class T, class F>
  void ExpectRefuses(const char* name, F&& call) {
    abi_test::ExpectRefuses<T>(name, kLeast<T>, call);
  }

  wm_store* store_ = nullptr;
  wm_session* session_ = nullptr;
  wm_snapshot* snapshot_ = nullptr;
  wm_rows* rows_ = nullptr;
  wm_batch* batch_ = nullptr;
};

TEST_F(Sizes, WhatIsFilledIsCutToTheCallersSize) {
  ExpectFills<wm_shape>("store_shape",
                        [&](wm_shape* out) { return Api().store_shape(store_, out); });
  ExpectFills<wm_shape>("snapshot_shape",
                        [&](wm_shape* out) { return Api().snapshot_shape(snapshot_, out); });
  ExpectFills<wm_shape>("rows_shape", [&](wm_shape* out) { return Api().rows_shape(rows_, out); });
  ExpectFills<wm_store_stats>("store_stats",
                              [&](wm_store_stats* out) { return Api().store_stats(store_, out); });
  ExpectFills<wm_rows_view>("rows_view",
                            [&](wm_rows_view* out) { return Api().rows_view(rows_, out); });
  ExpectFills<wm_step_batch>("batch_view",
                             [&](wm_step_batch* out) { return Api().batch_view(batch_, out); });
  ExpectFills<wm_session_stats>(
      "session_stats", [&](wm_session_stats* out) { return Api().session_stats(session_, out); });
  ExpectFills<wm_layer_stats>("session_layer_stats", [&](wm_layer_stats* out) {
    return Api().session_layer_stats(session_, 1, out);
  });
}

TEST_F(Sizes, StructsThatAreTooShortAreRefused) {
  wm_store* store = nullptr;
  wm_session* session = nullptr;
  wm_recorder* recorder = nullptr;
  wm_snapshot* snapshot = nullptr;
  wm_rows* rows = nullptr;
  wm_shape shape = {sizeof(shape), 1, 1, 1};
  wm_store_options of_store = OfStore();
  of_store.struct_size = sizeof(of_store);
  std::size_t size = 0;
  ExpectRefuses<wm_store_options>("store_create", [&](const wm_store_options* of) {
    return Api().store_create(of, &store, nullptr);
  });
  ExpectRefuses<wm_store_options>("recorder_create, of the store", [&](const wm_store_options* of) {
    return Api().recorder_create(of, nullptr, &recorder, nullptr);
  });
  // Null is the defaults here.
  for (const std::uint32_t bytes : {4u, 7u}) {
    EXPECT_EQ(Api().recorder_create(&of_store, Sized<wm_recorder_options>({}, bytes).get(),
                                    &recorder, nullptr),
              WM_INVALID_ARGUMENT);
  }
  ExpectRefuses<wm_session_options>("session_create", [&](const wm_session_options* of) {
    return Api().session_create(of, &session, nullptr);
  });
  ExpectRefuses<wm_layer_binding>("session_bind_layer", [&](const wm_layer_binding* of) {
    return Api().session_bind_layer(session_, of, nullptr);
  });
  ExpectRefuses<wm_snapshot_args>("store_snapshot", [&](const wm_snapshot_args* of) {
    return Api().store_snapshot(store_, of, &snapshot, nullptr);
  });
  ExpectRefuses<wm_read_args>("snapshot_read", [&](const wm_read_args* of) {
    return Api().snapshot_read(snapshot_, of, nullptr);
  });
  ExpectRefuses<wm_read_args>(
      "rows_write", [&](const wm_read_args* of) { return Api().rows_write(rows_, of, nullptr); });
  ExpectRefuses<wm_rows_view>("rows_create", [&](const wm_rows_view* of) {
    return Api().rows_create(&shape, of, &rows, nullptr);
  });
  ExpectRefuses<wm_collective>("rows_gather_layers", [&](const wm_collective* of) {
    return Api().rows_gather_layers(rows_, of, &rows, nullptr);
  });
  ExpectRefuses<wm_step_batch>("batch_serialize", [&](const wm_step_batch* of) {
    return Api().batch_serialize(of, nullptr, 0, &size, nullptr);
  });
  ExpectRefuses<wm_step_batch>("batch_size", [&](const wm_step_batch* of) {
    return Api().batch_size(of) == 0 ? WM_INVALID_ARGUMENT : WM_OK;
  });
  ExpectRefuses<wm_step_batch>("session_begin_step", [&](const wm_step_batch* of) {
    wm_code code = {};
    const wm_status status = Api().session_begin_step(session_, of, 0, &code);
    EXPECT_EQ(code.rule, WM_RULE_ARGUMENT);
    EXPECT_EQ(code.index, 1u);
    return status;
  });
  wm_step_batch with_rows = {};
  with_rows.struct_size = sizeof(with_rows);
  with_rows.step = 1;
  const auto begin_with_rows = [&] {
    wm_code code = {};
    const wm_status status = Api().session_begin_step(session_, &with_rows, 0, &code);
    EXPECT_EQ(code.rule, WM_RULE_ARGUMENT);
    with_rows.pairs = nullptr;
    with_rows.table = nullptr;
    return status;
  };
  ExpectRefuses<wm_pair_rows>("session_begin_step, pairs", [&](const wm_pair_rows* of) {
    with_rows.pairs = of;
    return of != nullptr ? begin_with_rows() : WM_INVALID_ARGUMENT;
  });
  ExpectRefuses<wm_table_rows>("session_begin_step, table", [&](const wm_table_rows* of) {
    with_rows.table = of;
    return of != nullptr ? begin_with_rows() : WM_INVALID_ARGUMENT;
  });
  wm_schedule_writer* writer = nullptr;
  ExpectRefuses<wm_schedule_options>("schedule_writer_create", [&](const wm_schedule_options* of) {
    char text[64] = {};
    wm_message why = {text, sizeof(text), 0};
    const wm_status status = Api().schedule_writer_create(of, &writer, &why);
    EXPECT_TRUE(of == nullptr || std::string(text).find("struct_size") != std::string::npos)
        << text;
    return status;
  });
  EXPECT_EQ(writer, nullptr);
  ExpectRefuses<wm_step_batch>("session_begin_ids_step", [&](const wm_step_batch* of) {
    return Api().session_begin_ids_step(session_, of, nullptr);
  });
  wm_view view = {};
  ASSERT_EQ(Api().session_view(session_, 0, &view), WM_OK);
  ExpectRefuses<wm_ids>("session_hand_over", [&](const wm_ids* of) {
    return Api().session_hand_over(session_, &view, 0, of, nullptr);
  });
  ExpectRefuses<wm_ids>("session_submit_ids", [&](const wm_ids* of) {
    int done = 0;
    const wm_status status = Api().session_submit_ids(
        session_, 1, of, {[](void* context) { ++*static_cast<int*>(context); }, &done}, nullptr);
    EXPECT_EQ(done, 1);
    return status;
  });
  EXPECT_TRUE(store == nullptr && session == nullptr && recorder == nullptr &&
              snapshot == nullptr && rows == nullptr);
}

// A caller of a later version has longer tables, and reads their sizes to know what is there.
template <class T>
void ExpectFunctions(const T& table, std::size_t first) {
  ASSERT_GE(table.struct_size, sizeof(T));
  for (std::size_t at = first; at < sizeof(T); at += sizeof(void*)) {
    void* function = nullptr;
    std::memcpy(&function, reinterpret_cast<const char*>(&table) + at, sizeof(function));
    EXPECT_NE(function, nullptr) << at;
  }
}

TEST(Table, FunctionsOfVersionOneAreThere) {
  ASSERT_EQ(Api().abi_major, 1);
  ExpectFunctions(Api(), offsetof(wm_api_v1, wire));
  ExpectFunctions(*Api().wire, sizeof(std::size_t));
}

}  // namespace
