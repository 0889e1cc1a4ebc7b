// Callers of waymark_wire.h as it was in version 1.0: compiled with the frozen header, with structs
// cut behind their required fields, of their own size, and longer. frozen_test.cc is the same for
// waymark.h.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/abi/frozen/waymark_wire.h"
#include "tests/abi/sized.h"

namespace {

using abi_test::ExpectFills;
using abi_test::ExpectRefuses;
using abi_test::Sized;

const wm_api_v1& Api() {
  return *wm_get_api_v1();
}

// What ends a struct's required fields in version 1.0. Never to be changed.
template <class T>
constexpr std::uint32_t kLeast = 8;
template <>
constexpr std::uint32_t kLeast<wm_part> = 24;
template <>
constexpr std::uint32_t kLeast<wm_source_callbacks> = 32;
template <>
constexpr std::uint32_t kLeast<wm_publisher_options> = 32;
template <>
constexpr std::uint32_t kLeast<wm_fetcher_options> = 24;

constexpr int kLayers = 3, kTopK = 2, kRows = 40;

class Wire : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    shape_ = {sizeof(shape_), kLayers, kTopK, 300, 16};
    ids_.resize(kRows * kLayers * kTopK);
    for (std::size_t i = 0; i < ids_.size(); ++i)
      ids_[i] = static_cast<std::uint16_t>(i * 7 % 299 / 2 * 2 + i % 2);
    infos_.resize(kRows);
    for (int row = 0; row < kRows; ++row)
      infos_[static_cast<std::size_t>(row)] = {static_cast<std::uint64_t>(row + 1), 9};
    wm_rows_view view = {sizeof(view)};
    view.count = kRows;
    view.ids = reinterpret_cast<const std::uint8_t*>(ids_.data());
    view.infos = infos_.data();
    ASSERT_EQ(Api().rows_create(&shape_, &view, &rows_, &why_), WM_OK) << text_;
    ASSERT_EQ(Api().wire->rows_document(rows_, nullptr, &bytes_, &why_), WM_OK) << text_;
    ASSERT_EQ(Api().wire->bytes_view(bytes_, &data_, &size_), WM_OK);
    ASSERT_EQ(Api().wire->document_open(data_, size_, nullptr, &document_, &why_), WM_OK) << text_;
    ASSERT_EQ(Api().wire->source_memory_create(1 << 20, &source_, &why_), WM_OK);
    ASSERT_EQ(Api().wire->rows_handle(rows_, nullptr, nullptr, &handle_, &why_), WM_OK) << text_;
    ASSERT_EQ(Api().wire->bytes_view(handle_, &named_, &named_size_), WM_OK);
  }
  void TearDown() override {
    Api().wire->bytes_release(handle_);
    Api().wire->source_release(source_);
    Api().wire->document_release(document_);
    Api().wire->bytes_release(bytes_);
    Api().rows_release(rows_);
  }

  // GetParam(): -1 as old as can be, 0 of its age, else so many bytes newer.
  template <class T>
  Sized<T> Of(const T& value) const {
    return Sized<T>(value, GetParam() < 0 ? kLeast<T>
                                          : static_cast<std::uint32_t>(sizeof(T)) +
                                                static_cast<std::uint32_t>(GetParam()));
  }
  void ExpectRows(const wm_rows* rows, int first, int last, int layer_begin, int layer_end) {
    wm_rows_view view = {sizeof(view)};
    ASSERT_EQ(Api().rows_view(rows, &view), WM_OK);
    ASSERT_EQ(view.first, first);
    ASSERT_EQ(view.count, last - first);
    const std::size_t bytes =
        sizeof(std::uint16_t) * kTopK * static_cast<std::size_t>(layer_end - layer_begin);
    for (int row = first; row < last; ++row) {
      EXPECT_EQ(std::memcmp(view.ids + static_cast<std::size_t>(row - first) * bytes,
                            ids_.data() + (row * kLayers + layer_begin) * kTopK, bytes),
                0)
          << row;
    }
  }

  char text_[512] = {};
  wm_message why_ = {text_, sizeof(text_), 0};
  wm_shape shape_ = {};
  std::vector<std::uint16_t> ids_;
  std::vector<wm_row_info> infos_;
  wm_rows* rows_ = nullptr;
  wm_bytes* bytes_ = nullptr;
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  wm_document* document_ = nullptr;
  wm_source* source_ = nullptr;
  wm_bytes* handle_ = nullptr;
  const std::uint8_t* named_ = nullptr;
  std::size_t named_size_ = 0;
};

TEST_P(Wire, RunsAsEver) {
  const wm_api_v1& api = Api();
  wm_bytes* again = nullptr;
  wm_document_options options = {};
  const wm_chunk_code raw = {};
  Sized<wm_chunk_code> code = Of(raw);
  options.code = code.get();
  ASSERT_EQ(api.wire->rows_document(rows_, Of(options).get(), &again, &why_), WM_OK) << text_;
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  ASSERT_EQ(api.wire->bytes_view(again, &data, &size), WM_OK);
  ASSERT_EQ(size, size_);
  EXPECT_EQ(std::memcmp(data, data_, size), 0);
  wm_document* document = nullptr;
  ASSERT_EQ(api.wire->document_open(data, size, Of(wm_read_limits{}).get(), &document, &why_),
            WM_OK)
      << text_;
  wm_part part = {};
  part.begin = 5;
  part.end = 33;
  wm_rows* rows = nullptr;
  ASSERT_EQ(api.wire->document_rows(document, Of(part).get(), &rows, nullptr, &why_), WM_OK)
      << text_;
  ExpectRows(rows, 5, 33, 0, kLayers);
  api.rows_release(rows);

  ASSERT_EQ(
      api.wire->rows_from_format(data, size, Of(wm_format_options{}).get(), &rows, nullptr, &why_),
      WM_OK)
      << text_;
  ExpectRows(rows, 0, kRows, 0, kLayers);
  api.rows_release(rows);
  if (GetParam() >= 0) {
    wm_format_options array = {};
    array.format = "npy";
    wm_bytes* npy = nullptr;
    ASSERT_EQ(api.wire->rows_to_format(rows_, Of(array).get(), &npy, nullptr, &why_), WM_OK)
        << text_;
    const std::uint8_t* npy_data = nullptr;
    std::size_t npy_size = 0;
    ASSERT_EQ(api.wire->bytes_view(npy, &npy_data, &npy_size), WM_OK);
    array.num_experts = 300;
    ASSERT_EQ(
        api.wire->rows_from_format(npy_data, npy_size, Of(array).get(), &rows, nullptr, &why_),
        WM_OK)
        << text_;
    ExpectRows(rows, 0, kRows, 0, kLayers);
    api.rows_release(rows);
    api.wire->bytes_release(npy);
  }

  // One callback is enough.
  wm_source_callbacks callbacks = {};
  callbacks.get = [](void*, const wm_digest*, std::size_t, std::int64_t, wm_reply*, wm_message*) {
    return wm_status{WM_OK};
  };
  wm_source* own = nullptr;
  ASSERT_EQ(api.wire->source_callbacks_create(Of(callbacks).get(), &own, &why_), WM_OK) << text_;
  api.wire->source_release(own);

  wm_source* redis = nullptr;
  const wm_status made = api.wire->source_redis_create(Of(wm_redis_options{}).get(), &redis, &why_);
  EXPECT_TRUE(made == WM_OK || made == WM_UNIMPLEMENTED) << text_;
  api.wire->source_release(redis);

  wm_publisher_options of_publisher = {};
  of_publisher.source = source_;
  of_publisher.shape = &shape_;
  wm_publisher* publisher = nullptr;
  ASSERT_EQ(api.wire->publisher_create(Of(of_publisher).get(), &publisher, &why_), WM_OK) << text_;
  wm_ticket* ticket = nullptr;
  ASSERT_EQ(api.wire->publisher_publish_rows(publisher, "a", rows_, &ticket, &why_), WM_OK);
  wm_bytes* handle = nullptr;
  ASSERT_EQ(api.wire->ticket_wait(ticket, -1, &handle, &why_), WM_OK) << text_;
  ASSERT_EQ(api.wire->bytes_view(handle, &data, &size), WM_OK);
  ASSERT_EQ(size, named_size_);
  EXPECT_EQ(std::memcmp(data, named_, size), 0);
  wm_fetcher_options of_fetcher = {};
  of_fetcher.source = source_;
  wm_fetcher* fetcher = nullptr;
  ASSERT_EQ(api.wire->fetcher_create(Of(of_fetcher).get(), &fetcher, &why_), WM_OK) << text_;
  ASSERT_EQ(api.wire->fetcher_fetch(fetcher, data, size, Of(part).get(), -1, &rows, nullptr, &why_),
            WM_OK)
      << text_;
  ExpectRows(rows, 5, 33, 0, kLayers);
  api.rows_release(rows);
  api.wire->fetcher_release(fetcher);
  api.wire->bytes_release(handle);
  api.wire->ticket_release(ticket);
  api.wire->publisher_release(publisher);
  api.wire->document_release(document);
  api.wire->bytes_release(again);
}

INSTANTIATE_TEST_SUITE_P(Ages, Wire, ::testing::Values(-1, 0, 72));

using WireSizes = Wire;

TEST_P(WireSizes, WhatIsFilledIsCutToTheCallersSize) {
  const wm_api_v1& api = Api();
  ExpectFills<wm_document_info>("document_info",
                                [&](auto* out) { return api.wire->document_info(document_, out); });
  ExpectFills<wm_shape>("document_shape",
                        [&](auto* out) { return api.wire->document_shape(document_, out); });
  ExpectFills<wm_chunk_code>("document_code",
                             [&](auto* out) { return api.wire->document_code(document_, out); });
  ExpectFills<wm_chunk_view>("document_chunk", [&](auto* out) {
    return api.wire->document_chunk(document_, 17, out, nullptr);
  });
  ExpectFills<wm_handle_info>("handle_info", [&](auto* out) {
    return api.wire->handle_info(named_, named_size_, out, nullptr, nullptr);
  });
  wm_publisher_options of_publisher = {sizeof(of_publisher)};
  of_publisher.source = source_;
  of_publisher.shape = &shape_;
  wm_publisher* publisher = nullptr;
  ASSERT_EQ(api.wire->publisher_create(&of_publisher, &publisher, nullptr), WM_OK);
  ExpectFills<wm_publisher_stats>(
      "publisher_stats", [&](auto* out) { return api.wire->publisher_stats(publisher, out); });
  api.wire->publisher_release(publisher);
  wm_fetcher_options of_fetcher = {sizeof(of_fetcher)};
  of_fetcher.source = source_;
  wm_fetcher* fetcher = nullptr;
  ASSERT_EQ(api.wire->fetcher_create(&of_fetcher, &fetcher, nullptr), WM_OK);
  ExpectFills<wm_fetch_report>("fetcher_counts",
                               [&](auto* out) { return api.wire->fetcher_counts(fetcher, out); });
  // The report and the damage may be null, but not garbage.
  const auto ok_if_null = [](void* out, wm_status status) {
    return out == nullptr && status == WM_OK ? wm_status{WM_INVALID_ARGUMENT} : status;
  };
  std::vector<std::uint16_t> out(kRows * kLayers * kTopK);
  wm_read_args read = {sizeof(read)};
  read.end = kRows;
  read.id_type = WM_ID_UINT16;
  read.out = out.data();
  read.out_bytes = out.size() * 2;
  ExpectFills<wm_read_damage>("document_read", [&](auto* damage) {
    return ok_if_null(damage, api.wire->document_read(document_, &read, 0, 0, damage, nullptr));
  });
  EXPECT_EQ(out, ids_);
  ExpectFills<wm_read_damage>("document_rows", [&](auto* damage) {
    wm_rows* rows = nullptr;
    const wm_status status = api.wire->document_rows(document_, nullptr, &rows, damage, nullptr);
    api.rows_release(rows);
    return ok_if_null(damage, status);
  });
  api.wire->fetcher_release(fetcher);
}

TEST_P(WireSizes, StructsThatAreTooShortAreRefused) {
  const wm_api_v1& api = Api();
  wm_bytes* bytes = nullptr;
  wm_document* document = nullptr;
  wm_rows* rows = nullptr;
  wm_publisher* publisher = nullptr;
  wm_fetcher* fetcher = nullptr;
  wm_source* source = nullptr;
  // Null is the default in most.
  const auto refuses = [](auto type, const char* name, bool may_be_null, auto&& call) {
    using T = decltype(type);
    ExpectRefuses<T>(name, kLeast<T>, [&](const T* of) {
      return may_be_null && of == nullptr ? wm_status{WM_INVALID_ARGUMENT} : call(of);
    });
  };
  refuses(wm_document_options{}, "rows_document", true,
          [&](auto* of) { return api.wire->rows_document(rows_, of, &bytes, nullptr); });
  refuses(wm_document_options{}, "rows_document_into", true, [&](auto* of) {
    return api.wire->rows_document_into(rows_, of, nullptr, 0, &size_, nullptr);
  });
  refuses(wm_document_options{}, "rows_write_document", true, [&](auto* of) {
    return api.wire->rows_write_document(rows_, of, "/nowhere/a", nullptr);
  });
  refuses(wm_chunk_code{}, "rows_document, code", true, [&](auto* of) {
    const wm_document_options options = {sizeof(options), 0, nullptr, of};
    return api.wire->rows_document(rows_, &options, &bytes, nullptr);
  });
  refuses(wm_chunk_code{}, "rows_handle", true,
          [&](auto* of) { return api.wire->rows_handle(rows_, of, "", &bytes, nullptr); });
  refuses(wm_read_limits{}, "document_open", true,
          [&](auto* of) { return api.wire->document_open(data_, size_, of, &document, nullptr); });
  refuses(wm_read_limits{}, "source_file_open", true,
          [&](auto* of) { return api.wire->source_file_open("/nowhere/a", of, &source, nullptr); });
  refuses(wm_source_callbacks{}, "source_callbacks_create", false,
          [&](auto* of) { return api.wire->source_callbacks_create(of, &source, nullptr); });
  refuses(wm_redis_options{}, "source_redis_create", true, [&](auto* of) {
    wm_source* redis = nullptr;
    const wm_status status = api.wire->source_redis_create(of, &redis, nullptr);
    api.wire->source_release(redis);
    return status == WM_UNIMPLEMENTED ? wm_status{WM_OK} : status;  // a build without hiredis
  });
  refuses(wm_format_options{}, "rows_from_format", true, [&](auto* of) {
    return api.wire->rows_from_format(data_, size_, of, &rows, nullptr, nullptr);
  });
  refuses(wm_format_options{}, "rows_to_format", false,
          [&](auto* of) { return api.wire->rows_to_format(rows_, of, &bytes, nullptr, nullptr); });
  refuses(wm_part{}, "document_rows", true, [&](auto* of) {
    return api.wire->document_rows(document_, of, &rows, nullptr, nullptr);
  });
  refuses(wm_publisher_options{}, "publisher_create", false,
          [&](auto* of) { return api.wire->publisher_create(of, &publisher, nullptr); });
  refuses(wm_fetcher_options{}, "fetcher_create", false,
          [&](auto* of) { return api.wire->fetcher_create(of, &fetcher, nullptr); });
  EXPECT_TRUE(bytes == nullptr && document == nullptr && rows == nullptr && publisher == nullptr &&
              fetcher == nullptr && source == nullptr);
}

INSTANTIATE_TEST_SUITE_P(One, WireSizes, ::testing::Values(0));

}  // namespace
