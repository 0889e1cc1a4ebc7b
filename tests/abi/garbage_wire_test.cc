// Null and garbage for waymark_wire.h, as garbage_test.cc does it for waymark.h; and what damaged
// bytes return.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "plugin/waymark_wire.h"

namespace {

constexpr std::int32_t kLow = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kHigh = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kAbsurd = std::size_t{1} << 60;
constexpr int kLayers = 2, kTopK = 2, kRows = 10;

const wm_api_v1& Api() {
  return *wm_get_api_v1();
}

template <class T>
T* Untouched() {
  return reinterpret_cast<T*>(std::uintptr_t{0x10});
}

class GarbageWire : public ::testing::Test {
 protected:
  void SetUp() override {
    const wm_api_v1& api = Api();
    shape_ = {sizeof(shape_), kLayers, kTopK, 8, 4};
    for (std::size_t i = 0; i < sizeof(ids_); ++i)
      ids_[i] = static_cast<std::uint8_t>(i % 8);
    wm_rows_view view = {sizeof(view)};
    view.count = kRows;
    view.ids = ids_;
    view.infos = infos_;
    ASSERT_EQ(api.rows_create(&shape_, &view, &rows_, nullptr), WM_OK);
    ASSERT_EQ(api.wire->rows_document(rows_, nullptr, &bytes_, nullptr), WM_OK);
    ASSERT_EQ(api.wire->bytes_view(bytes_, &data_, &size_), WM_OK);
    ASSERT_EQ(api.wire->document_open(data_, size_, nullptr, &document_, nullptr), WM_OK);
    ASSERT_EQ(api.wire->source_memory_create(1 << 20, &source_, nullptr), WM_OK);
    of_publisher_.struct_size = sizeof(of_publisher_);
    of_publisher_.source = source_;
    of_publisher_.shape = &shape_;
    ASSERT_EQ(api.wire->publisher_create(&of_publisher_, &publisher_, nullptr), WM_OK);
    ASSERT_EQ(api.wire->publisher_publish_rows(publisher_, "a", rows_, &ticket_, nullptr), WM_OK);
    ASSERT_EQ(api.wire->ticket_wait(ticket_, -1, &handle_, nullptr), WM_OK);
    ASSERT_EQ(api.wire->bytes_view(handle_, &named_, &named_size_), WM_OK);
    of_fetcher_.struct_size = sizeof(of_fetcher_);
    of_fetcher_.source = source_;
    ASSERT_EQ(api.wire->fetcher_create(&of_fetcher_, &fetcher_, nullptr), WM_OK);
    read_.struct_size = sizeof(read_);
    read_.end = kRows;
    read_.id_type = WM_ID_INT16;
    read_.out = out_;
    read_.out_bytes = sizeof(out_);
    part_.struct_size = sizeof(part_);
    part_.end = kRows;
  }
  void TearDown() override {
    const wm_api_v1& api = Api();
    api.wire->fetcher_release(fetcher_);
    api.wire->bytes_release(handle_);
    api.wire->ticket_release(ticket_);
    api.wire->publisher_release(publisher_);
    api.wire->source_release(source_);
    api.wire->document_release(document_);
    api.wire->bytes_release(bytes_);
    api.rows_release(rows_);
  }

  // Null, and an object of every other type.
  template <class H, class F>
  void RefusesWrongObjects(const char* name, const H* right, F&& call) {
    SCOPED_TRACE(name);
    void* const all[] = {rows_, bytes_, document_, source_, publisher_, ticket_, fetcher_};
    EXPECT_EQ(call(static_cast<H*>(nullptr)), WM_INVALID_ARGUMENT);
    for (void* other : all) {
      // A handle of bytes is a wm_bytes, too.
      if (other == static_cast<const void*>(right)) continue;
      EXPECT_EQ(call(static_cast<H*>(other)), WM_INVALID_ARGUMENT) << other;
    }
  }
  template <class H>
  void Survives(const H* right, void (*retain)(H*), void (*release)(H*)) {
    RefusesWrongObjects("retain, release", right, [&](H* handle) {
      retain(handle);
      release(handle);
      return wm_status{WM_INVALID_ARGUMENT};
    });
  }
  template <class T, class F>
  void RefusesAndSays(const char* name, const T& good, F&& call,
                      const std::vector<std::pair<const char*, std::function<void(T&)>>>& spoils,
                      wm_status with = WM_INVALID_ARGUMENT) {
    SCOPED_TRACE(name);
    for (const auto& [what, spoil] : spoils) {
      T bad = good;
      spoil(bad);
      text_[0] = 0;
      EXPECT_EQ(call(&bad), with) << what << ": " << text_;
      EXPECT_NE(std::string(text_).find(what), std::string::npos)
          << "\"" << text_ << "\" names " << what;
    }
  }

  char text_[512] = {};
  wm_message why_ = {text_, sizeof(text_), 0};
  wm_shape shape_ = {};
  std::uint8_t ids_[kRows * kLayers * kTopK] = {};
  wm_row_info infos_[kRows] = {};
  std::int16_t out_[kRows * kLayers * kTopK] = {};
  wm_read_args read_ = {};
  wm_part part_ = {};
  wm_publisher_options of_publisher_ = {};
  wm_fetcher_options of_fetcher_ = {};
  const std::uint8_t *data_ = nullptr, *named_ = nullptr;
  std::size_t size_ = 0, named_size_ = 0;

  wm_rows* rows_ = nullptr;
  wm_bytes* bytes_ = nullptr;
  wm_document* document_ = nullptr;
  wm_source* source_ = nullptr;
  wm_publisher* publisher_ = nullptr;
  wm_ticket* ticket_ = nullptr;
  wm_bytes* handle_ = nullptr;
  wm_fetcher* fetcher_ = nullptr;
};

TEST_F(GarbageWire, Handles) {
  const wm_api_v1& api = Api();
  wm_bytes* bytes = Untouched<wm_bytes>();
  wm_rows* rows = Untouched<wm_rows>();
  wm_ticket* ticket = Untouched<wm_ticket>();
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  wm_document_info info = {sizeof(info)};
  wm_shape shape = {sizeof(shape)};
  wm_chunk_code code = {sizeof(code)};
  wm_chunk_view chunk = {sizeof(chunk)};
  wm_publisher_stats stats = {sizeof(stats)};
  wm_fetch_report report = {sizeof(report)};
  RefusesWrongObjects("rows_document", rows_,
                      [&](auto* h) { return api.wire->rows_document(h, nullptr, &bytes, &why_); });
  RefusesWrongObjects("rows_document_into", rows_, [&](auto* h) {
    return api.wire->rows_document_into(h, nullptr, nullptr, 0, &size, &why_);
  });
  RefusesWrongObjects("rows_write_document", rows_, [&](auto* h) {
    return api.wire->rows_write_document(h, nullptr, "/nowhere/a", &why_);
  });
  RefusesWrongObjects("rows_handle", rows_, [&](auto* h) {
    return api.wire->rows_handle(h, nullptr, nullptr, &bytes, &why_);
  });
  RefusesWrongObjects("bytes_view", bytes_,
                      [&](auto* h) { return api.wire->bytes_view(h, &data, &size); });
  RefusesWrongObjects("document_info", document_,
                      [&](auto* h) { return api.wire->document_info(h, &info); });
  RefusesWrongObjects("document_shape", document_,
                      [&](auto* h) { return api.wire->document_shape(h, &shape); });
  RefusesWrongObjects("document_code", document_,
                      [&](auto* h) { return api.wire->document_code(h, &code); });
  RefusesWrongObjects("document_coverage", document_, [&](auto* h) {
    return api.wire->document_coverage(h, nullptr, 0, &size, &why_);
  });
  RefusesWrongObjects("document_read", document_, [&](auto* h) {
    return api.wire->document_read(h, &read_, 0, 0, nullptr, &why_);
  });
  RefusesWrongObjects("document_rows", document_, [&](auto* h) {
    return api.wire->document_rows(h, nullptr, &rows, nullptr, &why_);
  });
  RefusesWrongObjects("document_chunk", document_,
                      [&](auto* h) { return api.wire->document_chunk(h, 0, &chunk, &why_); });
  RefusesWrongObjects("publisher_create", source_, [&](auto* h) {
    wm_publisher_options options = of_publisher_;
    options.source = h;
    wm_publisher* publisher = Untouched<wm_publisher>();
    const wm_status status = api.wire->publisher_create(&options, &publisher, &why_);
    EXPECT_EQ(publisher, Untouched<wm_publisher>());
    return status;
  });
  RefusesWrongObjects("fetcher_create", source_, [&](auto* h) {
    wm_fetcher_options options = of_fetcher_;
    options.source = h;
    wm_fetcher* fetcher = Untouched<wm_fetcher>();
    const wm_status status = api.wire->fetcher_create(&options, &fetcher, &why_);
    EXPECT_EQ(fetcher, Untouched<wm_fetcher>());
    return status;
  });
  RefusesWrongObjects("publisher_publish_rows", publisher_, [&](auto* h) {
    return api.wire->publisher_publish_rows(h, "a", rows_, &ticket, &why_);
  });
  RefusesWrongObjects("publisher_publish_rows, rows", rows_, [&](auto* h) {
    return api.wire->publisher_publish_rows(publisher_, "a", h, &ticket, &why_);
  });
  RefusesWrongObjects(
      "publisher_publish_snapshot", static_cast<const wm_snapshot*>(nullptr), [&](wm_snapshot* h) {
        return api.wire->publisher_publish_snapshot(publisher_, "a", h, &ticket, &why_);
      });
  RefusesWrongObjects("publisher_forget", publisher_,
                      [&](auto* h) { return api.wire->publisher_forget(h, "a", &why_); });
  RefusesWrongObjects("publisher_stats", publisher_,
                      [&](auto* h) { return api.wire->publisher_stats(h, &stats); });
  RefusesWrongObjects("ticket_ready", ticket_, [&](auto* h) { return api.wire->ticket_ready(h); });
  RefusesWrongObjects("ticket_wait", ticket_,
                      [&](auto* h) { return api.wire->ticket_wait(h, 0, &bytes, &why_); });
  RefusesWrongObjects("fetcher_fetch", fetcher_, [&](auto* h) {
    return api.wire->fetcher_fetch(h, named_, named_size_, nullptr, 0, &rows, &report, &why_);
  });
  RefusesWrongObjects("fetcher_counts", fetcher_,
                      [&](auto* h) { return api.wire->fetcher_counts(h, &report); });
  Survives(bytes_, api.wire->bytes_retain, api.wire->bytes_release);
  Survives(document_, api.wire->document_retain, api.wire->document_release);
  Survives(source_, api.wire->source_retain, api.wire->source_release);
  Survives(publisher_, api.wire->publisher_retain, api.wire->publisher_release);
  Survives(ticket_, api.wire->ticket_retain, api.wire->ticket_release);
  Survives(fetcher_, api.wire->fetcher_retain, api.wire->fetcher_release);
  EXPECT_EQ(bytes, Untouched<wm_bytes>());
  EXPECT_EQ(rows, Untouched<wm_rows>());
  EXPECT_EQ(ticket, Untouched<wm_ticket>());
  EXPECT_EQ(report.fetched, 0u);
}

TEST_F(GarbageWire, Pointers) {
  const wm_api_v1& api = Api();
  wm_bytes* bytes = nullptr;
  wm_document* document = nullptr;
  wm_source* source = nullptr;
  wm_rows* rows = nullptr;
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  wm_handle_info info = {sizeof(info)};
  wm_message nowhere = {nullptr, 9, 77};
  wm_source_callbacks own_source = {sizeof(own_source)};
  own_source.get = [](void*, const wm_digest*, std::size_t, std::int64_t, wm_reply*, wm_message*) {
    return wm_status{WM_OK};
  };
  const struct {
    const char* what;
    wm_status status;
  } cases[] = {
      {"rows_document", api.wire->rows_document(rows_, nullptr, nullptr, &why_)},
      {"rows_document_into, out",
       api.wire->rows_document_into(rows_, nullptr, nullptr, 9, &size, &why_)},
      {"rows_document_into, size",
       api.wire->rows_document_into(rows_, nullptr, nullptr, 0, nullptr, &why_)},
      {"rows_write_document", api.wire->rows_write_document(rows_, nullptr, nullptr, &why_)},
      {"bytes_view, data", api.wire->bytes_view(bytes_, nullptr, &size)},
      {"bytes_view, size", api.wire->bytes_view(bytes_, &data, nullptr)},
      {"document_open, data", api.wire->document_open(nullptr, 9, nullptr, &document, &why_)},
      {"document_open, out", api.wire->document_open(data_, size_, nullptr, nullptr, &why_)},
      {"document_open_file, path",
       api.wire->document_open_file(nullptr, nullptr, &document, &why_)},
      {"document_open_file, out",
       api.wire->document_open_file("/nowhere/a", nullptr, nullptr, &why_)},
      {"document_coverage, runs", api.wire->document_coverage(document_, nullptr, 1, &size, &why_)},
      {"document_coverage, count",
       api.wire->document_coverage(document_, nullptr, 0, nullptr, &why_)},
      {"document_read", api.wire->document_read(document_, nullptr, 0, 0, nullptr, &why_)},
      {"document_rows", api.wire->document_rows(document_, nullptr, nullptr, nullptr, &why_)},
      {"document_chunk", api.wire->document_chunk(document_, 0, nullptr, &why_)},
      {"source_memory_create", api.wire->source_memory_create(9, nullptr, &why_)},
      {"source_file_open, path", api.wire->source_file_open(nullptr, nullptr, &source, &why_)},
      {"source_file_open, out", api.wire->source_file_open("/nowhere/a", nullptr, nullptr, &why_)},
      {"source_redis_create", api.wire->source_redis_create(nullptr, nullptr, &why_)},
      {"source_callbacks_create, callbacks",
       api.wire->source_callbacks_create(nullptr, &source, &why_)},
      {"source_callbacks_create, out",
       api.wire->source_callbacks_create(&own_source, nullptr, &why_)},
      {"reply_object", api.wire->reply_object(nullptr, 0, data_, size_)},
      {"publisher_create", api.wire->publisher_create(&of_publisher_, nullptr, &why_)},
      {"publish_rows", api.wire->publisher_publish_rows(publisher_, "", rows_, nullptr, &why_)},
      {"ticket_wait", api.wire->ticket_wait(ticket_, 0, nullptr, &why_)},
      {"rows_handle", api.wire->rows_handle(rows_, nullptr, nullptr, nullptr, &why_)},
      {"handle_info, handle", api.wire->handle_info(nullptr, 9, &info, nullptr, &why_)},
      {"handle_info, none", api.wire->handle_info(nullptr, 0, &info, nullptr, &why_)},
      {"handle_info, out", api.wire->handle_info(named_, named_size_, nullptr, nullptr, &why_)},
      {"handle_info, store", api.wire->handle_info(named_, named_size_, &info, &nowhere, &why_)},
      {"fetcher_create", api.wire->fetcher_create(&of_fetcher_, nullptr, &why_)},
      {"fetcher_fetch, handle",
       api.wire->fetcher_fetch(fetcher_, nullptr, 9, nullptr, 0, &rows, nullptr, &why_)},
      {"fetcher_fetch, out",
       api.wire->fetcher_fetch(fetcher_, named_, named_size_, nullptr, 0, nullptr, nullptr, &why_)},
  };
  for (const auto& one : cases)
    EXPECT_EQ(one.status, WM_INVALID_ARGUMENT) << one.what;
  EXPECT_EQ(nowhere.size, 77u);
  EXPECT_EQ(bytes, nullptr);
  EXPECT_EQ(api.wire->document_open(nullptr, 0, nullptr, &document, &why_), WM_DATA_LOSS);
  EXPECT_EQ(api.wire->document_open_file("/nowhere/a", nullptr, &document, &why_), WM_NOT_FOUND);
  EXPECT_EQ(api.wire->source_file_open("/nowhere/a", nullptr, &source, &why_), WM_NOT_FOUND);
  EXPECT_EQ(api.wire->rows_write_document(rows_, nullptr, "/nowhere/a", &why_), WM_UNAVAILABLE);
  EXPECT_TRUE(document == nullptr && source == nullptr && rows == nullptr);
}

TEST_F(GarbageWire, FieldsOfStructs) {
  const wm_api_v1& api = Api();
  wm_ext links[17] = {};
  for (int i = 0; i < 17; ++i)
    links[i] = {sizeof(wm_ext), 77, i < 16 ? &links[i + 1] : nullptr};
  wm_bytes* bytes = nullptr;
  wm_rows* rows = nullptr;

  using Options = wm_document_options;
  const Options options = {sizeof(options), 0, nullptr, nullptr};
  RefusesAndSays<Options>(
      "rows_document", options,
      [&](const Options* of) { return api.wire->rows_document(rows_, of, &bytes, &why_); },
      {{"flags", [](Options& o) { o.flags = 4; }}, {"ext", [&](Options& o) { o.ext = links; }}});
  // One byte too few: nothing is written, and it says how many it takes.
  std::vector<std::uint8_t> room(size_, 0xee);
  std::size_t wanted = 0;
  EXPECT_EQ(api.wire->rows_document_into(rows_, nullptr, room.data(), size_ - 1, &wanted, &why_),
            WM_OUT_OF_RANGE);
  EXPECT_NE(std::string(text_).find(std::to_string(size_)), std::string::npos) << text_;
  EXPECT_EQ(wanted, size_);
  EXPECT_EQ(room, std::vector<std::uint8_t>(size_, 0xee));
  room.push_back(0xee);
  EXPECT_EQ(api.wire->rows_document_into(rows_, nullptr, room.data(), size_ + 1, &wanted, &why_),
            WM_OK);
  EXPECT_EQ(wanted, size_);
  EXPECT_EQ(std::memcmp(room.data(), data_, size_), 0);
  EXPECT_EQ(room.back(), 0xee);

  using Code = wm_chunk_code;
  const std::vector<std::pair<const char*, std::function<void(Code&)>>> code_spoils = {
      {"flags", [](Code& o) { o.flags = 4; }},
      {"codec", [](Code& o) { o.codec = 2; }},
      {"codec", [](Code& o) { o.codec = kLow; }},
      {"codec", [](Code& o) { o.codec = 65536; }},
      {"low_bits", [](Code& o) { o.low_bits = 1; }},
      {"high_bits", [](Code& o) { o.high_bits = 1; }},
      {"high_bits", [](Code& o) { o.flags = WM_CHUNK_PARAMETERS, o.high_bits = 256; }},
      {"low_bits", [](Code& o) { o.flags = WM_CHUNK_PARAMETERS, o.codec = 1, o.low_bits = 17; }},
      {"low_bits", [](Code& o) { o.flags = WM_CHUNK_PARAMETERS, o.low_bits = 1; }},
      {"crc_layers", [](Code& o) { o.crc_layers = -1; }},
      {"crc_layers", [](Code& o) { o.crc_layers = kLayers + 1; }}};
  const Code code = {sizeof(code), 0, 0, 0, 0, 0};
  RefusesAndSays<Code>(
      "rows_document, code", code,
      [&](const Code* of) {
        Options with = options;
        with.code = of;
        return api.wire->rows_document(rows_, &with, &bytes, &why_);
      },
      code_spoils);
  RefusesAndSays<Code>(
      "rows_handle, code", code,
      [&](const Code* of) { return api.wire->rows_handle(rows_, of, "", &bytes, &why_); },
      code_spoils);
  EXPECT_EQ(bytes, nullptr);

  using Limits = wm_read_limits;
  const Limits limits = {sizeof(limits), 0, 0, 0};
  wm_document* document = nullptr;
  const auto open = [&](const Limits* of) {
    return api.wire->document_open(data_, size_, of, &document, &why_);
  };
  RefusesAndSays<Limits>("document_open", limits, open,
                         {{"limits.flags", [](Limits& o) { o.flags = 2; }}});
  RefusesAndSays<Limits>("document_open", limits, open,
                         {{"max_bytes", [](Limits& o) { o.max_bytes = 1; }}},
                         WM_RESOURCE_EXHAUSTED);
  Limits few = limits;
  few.max_rows = 3;
  ASSERT_EQ(open(&few), WM_OK) << text_;
  EXPECT_EQ(api.wire->document_rows(document, nullptr, &rows, nullptr, &why_),
            WM_RESOURCE_EXHAUSTED);
  api.wire->document_release(document);
  few.max_rows = few.max_bytes = ~std::uint64_t{0};
  ASSERT_EQ(open(&few), WM_OK) << text_;
  api.wire->document_release(document);

  using Part = wm_part;
  wm_fetch_report report = {sizeof(report)};
  const auto by_document = [&](const Part* of) {
    return api.wire->document_rows(document_, of, &rows, nullptr, &why_);
  };
  const auto by_handle = [&](const Part* of) {
    return api.wire->fetcher_fetch(fetcher_, named_, named_size_, of, 0, &rows, &report, &why_);
  };
  const std::vector<std::pair<const char*, std::function<void(Part&)>>> part_spoils = {
      {"rows", [](Part& o) { o.begin = -1; }},
      {"rows", [](Part& o) { o.end = kRows + 1; }},
      {"rows", [](Part& o) { o.begin = 5, o.end = 4; }},
      {"rows", [](Part& o) { o.begin = INT64_MIN, o.end = INT64_MAX; }},
      {"layers", [](Part& o) { o.layer_begin = kLayers; }},
      {"layers", [](Part& o) { o.layer_begin = -1; }},
      {"layers", [](Part& o) { o.layer_end = kLayers + 1; }},
      {"layers", [](Part& o) { o.layer_end = kLow; }},
      {"layers", [](Part& o) { o.layer_begin = 1, o.layer_end = 1; }},
      {"layers", [](Part& o) { o.layer_begin = kLow, o.layer_end = kHigh; }}};
  RefusesAndSays<Part>("document_rows", part_, by_document, part_spoils, WM_OUT_OF_RANGE);
  RefusesAndSays<Part>("fetcher_fetch", part_, by_handle, part_spoils, WM_OUT_OF_RANGE);
  for (const auto& call : {std::function<wm_status(const Part*)>(by_document),
                           std::function<wm_status(const Part*)>(by_handle)}) {
    RefusesAndSays<Part>("part", part_, call, {{"reserved", [](Part& o) { o.reserved = 1; }}});
  }
  EXPECT_EQ(rows, nullptr);
  for (const std::int32_t layer : {-1, kLayers, kLow, kHigh}) {
    EXPECT_EQ(api.wire->document_read(document_, &read_, layer, 0, nullptr, &why_),
              WM_OUT_OF_RANGE);
  }
  EXPECT_EQ(api.wire->document_read(document_, &read_, 1, 0, nullptr, &why_), WM_INVALID_ARGUMENT);
  using Read = wm_read_args;
  RefusesAndSays<Read>(
      "document_read", read_,
      [&](const Read* of) { return api.wire->document_read(document_, of, 0, 0, nullptr, &why_); },
      {{"flags", [](Read& o) { o.flags = 1; }},
       {"ext", [&](Read& o) { o.ext = links; }},
       {"layout", [](Read& o) { o.layout = 2; }},
       {"id_type", [](Read& o) { o.id_type = 5; }},
       {"fill", [](Read& o) { o.fill = 3; }},
       {"reserved", [](Read& o) { o.reserved = 1; }},
       {"out", [](Read& o) { o.out = nullptr; }},
       {"bytes", [](Read& o) { --o.out_bytes; }},
       {"infos", [](Read& o) { o.num_infos = 7; }}});
  wm_chunk_view chunk = {sizeof(chunk)};
  for (const std::int64_t row : {std::int64_t{-1}, std::int64_t{kRows}, INT64_MIN, INT64_MAX})
    EXPECT_EQ(api.wire->document_chunk(document_, row, &chunk, &why_), WM_OUT_OF_RANGE);

  using Publisher = wm_publisher_options;
  static constexpr std::uint8_t kKey[65] = {};
  const std::string long_name(65536, 'a');
  wm_shape bad_shape = shape_;
  bad_shape.top_k = 9;
  const Code bad_code = {sizeof(bad_code), 0, 0, 5, 0, 0};
  RefusesAndSays<Publisher>(
      "publisher_create", of_publisher_,
      [&](const Publisher* of) {
        wm_publisher* publisher = nullptr;
        const wm_status status = api.wire->publisher_create(of, &publisher, &why_);
        EXPECT_EQ(publisher, nullptr);
        return status;
      },
      {{"flags", [](Publisher& o) { o.flags = 1; }},
       {"ext", [&](Publisher& o) { o.ext = links; }},
       {"shape", [](Publisher& o) { o.shape = nullptr; }},
       {"top_k", [&](Publisher& o) { o.shape = &bad_shape; }},
       {"low_bits", [&](Publisher& o) { o.code = &bad_code; }},
       {"store", [&](Publisher& o) { o.store_name = long_name.c_str(); }},
       {"landing_timeout_ns", [](Publisher& o) { o.landing_timeout_ns = -1; }},
       {"source_timeout_ns", [](Publisher& o) { o.source_timeout_ns = INT64_MIN; }},
       {"options.key", [](Publisher& o) { o.key_size = 16; }},
       {"options.key must have 16 to 64 bytes; it has 15",
        [](Publisher& o) { o.key = kKey, o.key_size = 15; }},
       {"options.key must have 16 to 64 bytes; it has 65",
        [](Publisher& o) { o.key = kKey, o.key_size = 65; }}});
  using Fetcher = wm_fetcher_options;
  RefusesAndSays<Fetcher>("fetcher_create", of_fetcher_,
                          [&](const Fetcher* of) {
                            wm_fetcher* fetcher = nullptr;
                            return api.wire->fetcher_create(of, &fetcher, &why_);
                          },
                          {{"flags", [](Fetcher& o) { o.flags = 2; }},
                           {"ext", [&](Fetcher& o) { o.ext = links; }},
                           {"options.key must have 16 to 64 bytes; it has 15",
                            [](Fetcher& o) { o.key = kKey, o.key_size = 15; }}});

  Fetcher small = of_fetcher_;
  small.max_bytes = 1;
  wm_fetcher* bounded = nullptr;
  ASSERT_EQ(api.wire->fetcher_create(&small, &bounded, &why_), WM_OK);
  EXPECT_EQ(
      api.wire->fetcher_fetch(bounded, named_, named_size_, nullptr, 0, &rows, nullptr, &why_),
      WM_RESOURCE_EXHAUSTED);
  EXPECT_NE(std::string(text_).find("at most max_bytes = 1 bytes; it has"), std::string::npos)
      << text_;
  api.wire->fetcher_release(bounded);

  using Callbacks = wm_source_callbacks;
  Callbacks callbacks = {sizeof(callbacks)};
  int destroyed = 0;
  callbacks.context = &destroyed;
  callbacks.get = [](void*, const wm_digest*, std::size_t, std::int64_t, wm_reply*, wm_message*) {
    return wm_status{WM_OK};
  };
  callbacks.destroy = [](void* context) { ++*static_cast<int*>(context); };
  wm_source* own = nullptr;
  RefusesAndSays<Callbacks>(
      "source_callbacks_create", callbacks,
      [&](const Callbacks* of) { return api.wire->source_callbacks_create(of, &own, &why_); },
      {{"flags", [](Callbacks& o) { o.flags = 1; }},
       {"ext", [&](Callbacks& o) { o.ext = links; }},
       {"get", [](Callbacks& o) { o.get = nullptr; }},
       {"struct_size", [](Callbacks& o) { o.struct_size = 31; }}});
  EXPECT_TRUE(own == nullptr && destroyed == 0);
  ASSERT_EQ(api.wire->source_callbacks_create(&callbacks, &own, &why_), WM_OK);
  api.wire->source_retain(own);
  api.wire->source_release(own);
  EXPECT_EQ(destroyed, 0);
  api.wire->source_release(own);
  EXPECT_EQ(destroyed, 1);

  using Redis = wm_redis_options;
  Redis of_redis = {sizeof(of_redis)};
  of_redis.unix_socket = "/nowhere/redis";
  of_redis.password = "sesame";
  wm_source* source = nullptr;
  RefusesAndSays<Redis>(
      "source_redis_create", of_redis,
      [&](const Redis* of) {
        const wm_status status = api.wire->source_redis_create(of, &source, &why_);
        EXPECT_EQ(std::string(text_).find("sesame"), std::string::npos) << text_;
        EXPECT_EQ(source, nullptr);
        return status;
      },
      {{"flags", [](Redis& o) { o.flags = 2; }},
       {"ext", [&](Redis& o) { o.ext = links; }},
       {"port", [](Redis& o) { o.port = -1; }},
       {"port", [](Redis& o) { o.port = 65536; }},
       {"database", [](Redis& o) { o.database = kLow; }},
       {"time_to_live_s", [](Redis& o) { o.time_to_live_s = -1; }},
       {"connect_timeout_ms", [](Redis& o) { o.connect_timeout_ms = kLow; }},
       {"command_timeout_ms", [](Redis& o) { o.command_timeout_ms = -1; }},
       {"initial_back_off_ms", [](Redis& o) { o.initial_back_off_ms = -1; }},
       {"max_back_off", [](Redis& o) { o.max_back_off_ms = 49; }},
       {"max_back_off_ms", [](Redis& o) { o.max_back_off_ms = -1; }},
       {"presence_cache_ms", [](Redis& o) { o.presence_cache_ms = -2; }},
       {"password", [](Redis& o) { o.user = "sesame", o.password = nullptr; }},
       {"tls", [](Redis& o) { o.tls_ca_file = "a"; }},
       {"tls", [](Redis& o) { o.tls_server_name = "a"; }},
       {"key_file", [](Redis& o) { o.flags = WM_REDIS_TLS, o.tls_certificate_file = "a"; }}});
  // All at their greatest: nothing overflows when it waits for a server that is not there.
  Redis greatest = of_redis;
  greatest.port = 65535;
  greatest.database = greatest.time_to_live_s = greatest.connect_timeout_ms = kHigh;
  greatest.command_timeout_ms = greatest.initial_back_off_ms = greatest.max_back_off_ms = kHigh;
  greatest.presence_cache_ms = kHigh;
  greatest.presence_cache_entries = ~std::uint64_t{0};
  if (api.wire->source_redis_create(&greatest, &source, &why_) == WM_OK) {
    wm_fetcher_options of_fetcher = of_fetcher_;
    of_fetcher.source = source;
    wm_fetcher* fetcher = nullptr;
    ASSERT_EQ(api.wire->fetcher_create(&of_fetcher, &fetcher, &why_), WM_OK);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(api.wire->fetcher_fetch(fetcher, named_, named_size_, nullptr, i - 1, &rows,
                                        &report, &why_),
                WM_OK);
      EXPECT_NE(report.source_status, WM_OK) << i;
      EXPECT_EQ(report.fetched, 0u);
      api.rows_release(rows);
      rows = nullptr;
    }
    api.wire->fetcher_release(fetcher);
    api.wire->source_release(source);
  } else {
    EXPECT_NE(std::string(text_).find("hiredis"), std::string::npos) << text_;
  }

  // A required type that is not known.
  wm_ext required = {sizeof(required), 77 | WM_EXT_REQUIRED, nullptr};
  Publisher with_ext = of_publisher_;
  with_ext.ext = &required;
  wm_publisher* publisher = nullptr;
  EXPECT_EQ(api.wire->publisher_create(&with_ext, &publisher, &why_), WM_UNIMPLEMENTED);
  Options document_ext = options;
  document_ext.ext = &required;
  EXPECT_EQ(api.wire->rows_document(rows_, &document_ext, &bytes, &why_), WM_UNIMPLEMENTED);
  of_redis.ext = &required;
  EXPECT_EQ(api.wire->source_redis_create(&of_redis, &source, &why_), WM_UNIMPLEMENTED);
  EXPECT_NE(std::string(text_).find("ext"), std::string::npos) << text_;
}

// What the objects of `source_` become on their way through callbacks that follow no rule.
struct Unruly {
  enum How { kStatus, kThrows, kGarbage, kShorter, kBeyond, kUnterminated, kOtherHandle };
  How how = kStatus;
  wm_status status = WM_OK;
  wm_rows* rows = nullptr;

  static wm_status Get(void* context, const wm_digest* digests, std::size_t count, std::int64_t,
                       wm_reply* reply, wm_message* why) {
    const Unruly& self = *static_cast<const Unruly*>(context);
    const wm_wire_api_v1& wire = *Api().wire;
    const std::uint8_t garbage[40] = {1, 2, 3};
    switch (self.how) {
      case kThrows:
        throw std::bad_alloc();
      case kGarbage:
        for (std::size_t i = 0; i < count; ++i)
          EXPECT_EQ(wire.reply_object(reply, i, garbage, sizeof(garbage)), WM_OK);
        break;
      case kShorter:
        for (std::size_t i = 0; i < count; ++i)
          EXPECT_EQ(wire.reply_object(reply, i, digests[i].bytes, 0), WM_OK);
        break;
      case kBeyond:
        for (const std::size_t index : {count, kAbsurd, ~std::size_t{0}})
          EXPECT_EQ(wire.reply_object(reply, index, garbage, 1), WM_INVALID_ARGUMENT);
        EXPECT_EQ(wire.reply_object(reply, 0, nullptr, 1), WM_INVALID_ARGUMENT);
        EXPECT_EQ(wire.reply_object(reply, 0, garbage, ~std::uint64_t{0}), WM_RESOURCE_EXHAUSTED);
        break;
      case kUnterminated:
        std::memset(why->text, 'x', why->capacity);
        why->size = ~std::size_t{0};
        break;
      case kOtherHandle:
        EXPECT_EQ(wire.reply_object(reinterpret_cast<wm_reply*>(self.rows), 0, garbage, 1),
                  WM_INVALID_ARGUMENT);
        break;
      case kStatus:
        break;
    }
    return self.status;
  }
};

TEST_F(GarbageWire, Callbacks) {
  const wm_api_v1& api = Api();
  Unruly unruly;
  unruly.rows = rows_;
  wm_source_callbacks callbacks = {sizeof(callbacks)};
  callbacks.context = &unruly;
  callbacks.get = &Unruly::Get;
  wm_source* source = nullptr;
  ASSERT_EQ(api.wire->source_callbacks_create(&callbacks, &source, &why_), WM_OK) << text_;
  wm_fetcher_options of_fetcher = {sizeof(of_fetcher)};
  of_fetcher.source = source;
  const struct {
    Unruly::How how;
    wm_status returned, reported;
  } cases[] = {
      {Unruly::kStatus, WM_OK, WM_OK},
      {Unruly::kStatus, WM_DATA_LOSS, WM_DATA_LOSS},
      {Unruly::kStatus, WM_DATA_LOSS + 1, WM_UNKNOWN},
      {Unruly::kStatus, -1, WM_UNKNOWN},
      {Unruly::kStatus, kLow, WM_UNKNOWN},
      {Unruly::kStatus, kHigh, WM_UNKNOWN},
      {Unruly::kThrows, WM_OK, WM_INTERNAL},
      {Unruly::kGarbage, WM_OK, WM_OK},
      {Unruly::kGarbage, WM_ABORTED, WM_ABORTED},
      {Unruly::kShorter, WM_OK, WM_OK},
      {Unruly::kBeyond, WM_OK, WM_OK},
      {Unruly::kUnterminated, WM_CANCELLED, WM_CANCELLED},
      {Unruly::kOtherHandle, WM_OK, WM_OK},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(testing::Message() << one.how << ", returns " << one.returned);
    unruly.how = one.how;
    unruly.status = one.returned;
    wm_fetcher* fetcher = nullptr;
    ASSERT_EQ(api.wire->fetcher_create(&of_fetcher, &fetcher, &why_), WM_OK);
    wm_rows* rows = nullptr;
    wm_fetch_report report = {sizeof(report)};
    ASSERT_EQ(
        api.wire->fetcher_fetch(fetcher, named_, named_size_, nullptr, -1, &rows, &report, &why_),
        WM_OK)
        << text_;
    EXPECT_EQ(report.source_status, one.reported);
    EXPECT_EQ(report.damaged > 0, one.how == Unruly::kGarbage || one.how == Unruly::kShorter);
    wm_rows_view view = {sizeof(view)};
    ASSERT_EQ(api.rows_view(rows, &view), WM_OK);
    for (int row = 0; row < kRows; ++row)
      EXPECT_EQ(view.infos[row].reason, WM_REASON_CAPACITY);
    api.rows_release(rows);
    api.wire->fetcher_release(fetcher);
  }
  // It cannot be written to: the handle is right, and the objects are nowhere.
  wm_publisher_options of_publisher = of_publisher_;
  of_publisher.source = source;
  wm_publisher* publisher = nullptr;
  ASSERT_EQ(api.wire->publisher_create(&of_publisher, &publisher, &why_), WM_OK);
  wm_ticket* ticket = nullptr;
  wm_bytes* handle = nullptr;
  ASSERT_EQ(api.wire->publisher_publish_rows(publisher, "a", rows_, &ticket, &why_), WM_OK);
  ASSERT_EQ(api.wire->ticket_wait(ticket, -1, &handle, &why_), WM_OK) << text_;
  wm_publisher_stats stats = {sizeof(stats)};
  ASSERT_EQ(api.wire->publisher_stats(publisher, &stats), WM_OK);
  EXPECT_TRUE(stats.objects_put == 0 && stats.puts_failed > 0);
  api.wire->bytes_release(handle);
  api.wire->ticket_release(ticket);
  api.wire->publisher_release(publisher);
  api.wire->source_release(source);
}

// Every bit of a handle counts, and the front of a document; of the rest, what is lost is said.
TEST_F(GarbageWire, DamagedBytes) {
  const wm_api_v1& api = Api();
  wm_rows* rows = nullptr;
  wm_handle_info info = {sizeof(info)};
  for (std::size_t at = 0; at < named_size_; ++at) {
    std::vector<std::uint8_t> bad(named_, named_ + named_size_);
    bad[at] ^= 0x10;
    EXPECT_NE(api.wire->handle_info(bad.data(), bad.size(), &info, nullptr, &why_), WM_OK) << at;
    EXPECT_NE(api.wire->fetcher_fetch(fetcher_, bad.data(), bad.size(), nullptr, 0, &rows, nullptr,
                                      &why_),
              WM_OK)
        << at;
    EXPECT_NE(api.wire->handle_info(named_, at, &info, nullptr, &why_), WM_OK) << at;
  }
  EXPECT_EQ(rows, nullptr);
  std::int64_t lost = 0;
  for (std::size_t at = 0; at < size_; ++at) {
    std::vector<std::uint8_t> bad(data_, data_ + size_);
    bad[at] ^= 0x10;
    wm_document* document = nullptr;
    const wm_status status =
        api.wire->document_open(bad.data(), bad.size(), nullptr, &document, &why_);
    if (status != WM_OK) {
      EXPECT_EQ(document, nullptr);
      continue;
    }
    wm_read_damage damage = {sizeof(damage)};
    std::int16_t out[kRows * kLayers * kTopK];
    wm_row_info infos[kRows];
    wm_read_args read = read_;
    read.out = out;
    read.infos = infos;
    read.num_infos = kRows;
    ASSERT_EQ(api.wire->document_read(document, &read, 0, 0, &damage, &why_), WM_OK) << text_;
    EXPECT_EQ(damage.damaged_chunks, 1u) << at;
    for (int row = 0; row < kRows; ++row) {
      if (infos[row].reason != WM_REASON_NONE) {
        EXPECT_EQ(infos[row].reason, WM_REASON_NOT_CAPTURED);
        ++lost;
        continue;
      }
      for (int i = 0; i < kLayers * kTopK; ++i)
        EXPECT_EQ(out[row * kLayers * kTopK + i], ids_[row * kLayers * kTopK + i]);
    }
    api.wire->document_release(document);
  }
  EXPECT_GT(lost, 0);
}

// A ticket that is not ready, and the end of its publisher.
TEST_F(GarbageWire, Timeouts) {
  const wm_api_v1& api = Api();
  wm_store_options of_store = {sizeof(of_store)};
  of_store.num_layers = kLayers;
  of_store.top_k = kTopK;
  of_store.num_experts = 8;
  of_store.page_tokens = 4;
  of_store.num_blocks = 8;
  of_store.landing = WM_LANDING_CALLER;
  wm_store* store = nullptr;
  ASSERT_EQ(api.store_create(&of_store, &store, &why_), WM_OK) << text_;
  wm_session_options of_session = {sizeof(of_session)};
  of_session.store = store;
  of_session.max_rows = 8;
  wm_session* session = nullptr;
  ASSERT_EQ(api.session_create(&of_session, &session, &why_), WM_OK) << text_;
  const wm_event bind = wm_bind(1, nullptr, 0);
  const std::int64_t slots[] = {4, 5, 6, 7};
  wm_step_batch batch = {sizeof(batch), 0, nullptr, 1, 1, &bind, 1, slots, 4};
  ASSERT_EQ(api.session_begin_step(session, &batch, 0, nullptr), WM_OK);
  const std::int32_t blocks[] = {1};
  wm_snapshot_args args = {sizeof(args), 0, nullptr, blocks, 1, 0, 4};
  wm_ticket* tickets[2] = {};
  for (wm_ticket*& ticket : tickets) {
    wm_snapshot* snapshot = nullptr;
    ASSERT_EQ(api.store_snapshot(store, &args, &snapshot, &why_), WM_OK) << text_;
    ASSERT_EQ(api.wire->publisher_publish_snapshot(publisher_, "b", snapshot, &ticket, &why_),
              WM_OK);
    // What was handed over is empty.
    std::int64_t first = 7, last = 7;
    EXPECT_EQ(api.snapshot_range(snapshot, &first, &last), WM_OK);
    EXPECT_TRUE(first == 0 && last == 0);
    wm_rows* rows = nullptr;
    EXPECT_NE(api.snapshot_ready(snapshot), WM_INVALID_ARGUMENT);
    if (api.snapshot_rows(snapshot, &rows, &why_) == WM_OK) api.rows_release(rows);
    api.snapshot_release(snapshot);
  }
  wm_bytes* bytes = nullptr;
  for (const std::int64_t timeout : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1000000}})
    EXPECT_EQ(api.wire->ticket_wait(tickets[0], timeout, &bytes, &why_), WM_DEADLINE_EXCEEDED);
  EXPECT_EQ(api.wire->ticket_ready(tickets[0]), WM_UNAVAILABLE);
  ASSERT_EQ(api.session_drop(session, 1, nullptr), WM_OK);
  ASSERT_EQ(api.wire->ticket_wait(tickets[0], -1, &bytes, &why_), WM_OK) << text_;
  api.wire->bytes_release(bytes);
  api.session_release(session);
  api.store_release(store);
  for (wm_ticket* ticket : tickets) {
    EXPECT_EQ(api.wire->ticket_wait(ticket, INT64_MAX, &bytes, &why_), WM_OK) << text_;
    api.wire->bytes_release(bytes);
    api.wire->ticket_release(ticket);
  }
  // Rows of another shape.
  wm_shape other = shape_;
  other.num_experts = 9;
  of_publisher_.shape = &other;
  wm_publisher* publisher = nullptr;
  ASSERT_EQ(api.wire->publisher_create(&of_publisher_, &publisher, &why_), WM_OK);
  wm_ticket* ticket = nullptr;
  ASSERT_EQ(api.wire->publisher_publish_rows(publisher, nullptr, rows_, &ticket, &why_), WM_OK);
  EXPECT_EQ(api.wire->ticket_wait(ticket, -1, &bytes, &why_), WM_INVALID_ARGUMENT);
  EXPECT_EQ(api.wire->ticket_ready(ticket), WM_OK);
  api.wire->publisher_release(publisher);
  EXPECT_EQ(api.wire->ticket_wait(ticket, 0, &bytes, &why_), WM_INVALID_ARGUMENT);
  api.wire->ticket_release(ticket);
}

}  // namespace
