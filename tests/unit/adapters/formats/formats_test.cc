// Whole files: golden ones that numpy and the standard library of Python wrote, real routing, and
// files that are refused.
#include "adapters/formats/formats.h"

#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace waymark::formats {
namespace {

using ::testing::HasSubstr;

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string Golden(const std::string& name) {
  const std::string bytes = Slurp(std::string(WAYMARK_FORMATS_DATA) + "/" + name);
  EXPECT_FALSE(bytes.empty()) << name;
  return bytes;
}

absl::StatusOr<ReadResult> Read(const std::string& bytes, const ReadRowsOptions& options = {}) {
  return ReadArray({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, options);
}

std::string ErrorOf(const std::string& bytes, const ReadRowsOptions& options = {}) {
  const auto result = Read(bytes, options);
  return result.ok() ? "" : std::string(result.status().message());
}

const ReadRowsOptions kRaw = {
    .format = Format::kSglang, .num_layers = 3, .top_k = 2, .num_experts = 300};

struct GoldenFile {
  const char* name;
  Format format;
  Dtype dtype;
  bool wide;           // 300 experts
  std::int64_t first;  // row of the array's first
  std::int64_t rows;
  bool written;  // WriteArray gives these very bytes
};

const GoldenFile kGolden[] = {
    {"v1_u1.npy", Format::kNpy, Dtype::kUint8, false, 0, 5, true},
    {"v2_u2.npy", Format::kNpy, Dtype::kUint16, true, 0, 5, false},
    {"v3_i4.npy", Format::kNpy, Dtype::kInt32, true, 0, 5, false},
    {"v1_i8.npy", Format::kNpy, Dtype::kInt64, true, 0, 5, true},
    {"fortran_i2.npy", Format::kNpy, Dtype::kInt16, false, 0, 5, false},
    {"vllm.json", Format::kVllm, Dtype::kUint8, false, 0, 5, true},
    {"vllm.txt", Format::kVllm, Dtype::kUint8, false, 0, 5, false},
    {"vllm_lists.json", Format::kVllmLists, Dtype::kInt32, false, 0, 5, true},
    {"sglang_i4.json", Format::kSglang, Dtype::kInt32, true, 0, 5, true},
    {"sglang_u2.json", Format::kSglang, Dtype::kUint16, true, 2, 3, false},
    {"megatron.json", Format::kMegatron, Dtype::kInt32, false, 0, 5, true},
    {"megatron_ndarray.json", Format::kMegatronNdarray, Dtype::kInt16, false, 0, 5, true},
    {"nemo_rl.txt", Format::kNemoRl, Dtype::kInt16, false, 0, 5, true},
    {"skyrl.json", Format::kSkyRl, Dtype::kUint8, false, 0, 5, false},
    {"prime_rl.json", Format::kPrimeRl, Dtype::kInt16, false, 2, 3, false},
    {"lmdeploy.json", Format::kVllmLists, Dtype::kInt32, true, 0, 5, false},
};

TEST(Formats, GoldenFilesReadAsWhatTheyHold) {
  for (const GoldenFile& golden : kGolden) {
    SCOPED_TRACE(golden.name);
    ReadRowsOptions options;
    if (golden.format == Format::kSglang) options = kRaw;
    const std::string bytes = Golden(golden.name);
    const auto result = Read(bytes, options).value();
    EXPECT_EQ(result.format, golden.format);
    EXPECT_EQ(result.array.dtype, golden.dtype);
    EXPECT_EQ(result.array.layers, 3);
    EXPECT_EQ(result.array.top_k, 2);
    EXPECT_EQ(result.array.first.value_or(0), golden.first);
    const bool placeholder = golden.format == Format::kNemoRl;
    ASSERT_EQ(result.array.rows, golden.rows + (placeholder ? 1 : 0));
    std::vector<std::int64_t> ids(6);
    for (std::int64_t row = 0; row < result.array.rows; ++row) {
      LoadRow(result.array, row, ids);
      for (std::int64_t n = 0; n < 6; ++n) {
        std::int64_t id = 3 * (row + golden.first) + 5 * (n / 2) + 7 * (n % 2);
        id = golden.wide ? 17 * id % 300 : id % 16;
        EXPECT_EQ(ids[static_cast<std::size_t>(n)], row == golden.rows ? -1 : id) << row;
      }
    }
    if (!golden.written) continue;
    const auto written = WriteArray(golden.format, result.array).value();
    EXPECT_EQ(written, bytes);
  }
}

// tests/python/test_formats.py reads the rows of all golden files.
TEST(Formats, ColumnsOfAllLayersComeBack) {
  const auto all = Read(Golden("vllm_all_layers.json")).value();
  EXPECT_EQ(all.array.layers, 5);
  const auto small = Read(Golden("v1_u1.npy"));
  const Model model = {.num_experts = 16, .moe_layers = {1, 2, 3}, .num_layers = 5};
  const auto rows = ToRows(all.array, InfoOf(Format::kVllm).conventions, model, 0);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->rows.ids, small->array.ids);
  const auto back =
      FromRows(rows->rows, InfoOf(Format::kVllm).conventions, model, Dtype::kUint8).value();
  EXPECT_EQ(*WriteArray(Format::kVllm, back.array), Golden("vllm_all_layers.json"));
}

TEST(Formats, NamesAreTheirOwn) {
  for (int i = 0; i < kNumFormats; ++i) {
    const FormatInfo& info = InfoOf(static_cast<Format>(i));
    EXPECT_EQ(static_cast<int>(info.format), i);
    std::optional<Format> named;
    EXPECT_TRUE(SetNamed("format", info.name, named).ok());
    EXPECT_EQ(named, info.format);
  }
  std::optional<Format> named;
  EXPECT_THAT(SetNamed("format", "nope", named).message(), HasSubstr("format must be npy, vllm, "));
  EXPECT_FALSE(named.has_value());
}

TEST(Formats, BareIdsAreNeverGuessedAt) {
  const std::string bytes = Golden("sglang_i4.json");
  const auto without = [&](auto change) {
    ReadRowsOptions options = kRaw;
    change(options);
    return ErrorOf(bytes, options);
  };
  EXPECT_THAT(without([](ReadRowsOptions& o) { o.num_layers = 0; }),
              HasSubstr("num_layers is required"));
  EXPECT_THAT(without([](ReadRowsOptions& o) { o.top_k = 0; }), HasSubstr("top_k is required"));
  EXPECT_THAT(without([](ReadRowsOptions& o) { o.num_experts = 0; }), HasSubstr("num_experts"));
  EXPECT_THAT(without([](ReadRowsOptions& o) { o.dtype = Dtype::kUint8; }), HasSubstr("int32"));
  EXPECT_THAT(without([](ReadRowsOptions& o) { o.num_layers = 4; }), HasSubstr("multiple of 32"));
  EXPECT_THAT(without([](ReadRowsOptions& o) { o.num_layers = 5000; }),
              HasSubstr("layers must be in"));
  EXPECT_THAT(without([](ReadRowsOptions& o) { o.num_layers = -1; }),
              HasSubstr("layers must be in"));
  // No dtype beside the ids.
  EXPECT_THAT(ErrorOf(R"({"routed_experts": "AAAA"})", kRaw), HasSubstr("dtype is required"));
  ReadRowsOptions bare = kRaw;
  bare.dtype = Dtype::kUint8;
  EXPECT_TRUE(Read("AAAAAAAA", bare).ok());
  bare.format = std::nullopt;
  EXPECT_THAT(ErrorOf("AAAAAAAA", bare), HasSubstr("needs the format to be given"));
}

TEST(Formats, FieldsBesideTheArrayMustMakeSense) {
  EXPECT_THAT(ErrorOf(R"({"routed_experts": [[[1]]], "routed_experts_start_len": "2"})"),
              HasSubstr("routed_experts_start_len must be a whole number"));
  EXPECT_THAT(ErrorOf(R"({"routed_experts": [[[1]]], "routed_experts_start_len": 2,
                          "routed_experts_prompt_start": 3})"),
              HasSubstr("found before, 2; it is 3"));
  EXPECT_THAT(ErrorOf(R"({"routed_experts": [[[1]]], "moe_topk_indices": [[[1]]]})"),
              HasSubstr("it has 2: name the field"));
  EXPECT_THAT(ErrorOf(R"({"choices": []})"), HasSubstr("it has 0"));
  ReadRowsOptions pointed;
  pointed.field = "/choices/1/moe_topk_indices";
  const auto result =
      Read(R"({"choices": [{}, {"moe_topk_indices": [[[1, 2]]]}]})", pointed).value();
  EXPECT_EQ(result.format, Format::kMegatron);
  pointed.field = "/choices/2";
  EXPECT_THAT(ErrorOf(R"({"choices": [{}, {}]})", pointed), HasSubstr("'/choices/2'"));
}

TEST(Formats, WhatIsSaidMustBeWhatTheBytesSay) {
  for (const char* name : {"v1_u1.npy", "vllm.json", "skyrl.json"}) {
    EXPECT_THAT(ErrorOf(Golden(name), {.top_k = 3}), HasSubstr("the array's, 2; it is 3"));
    EXPECT_THAT(ErrorOf(Golden(name), {.dtype = Dtype::kInt32}), HasSubstr("the array's, uint8"));
    EXPECT_EQ(ErrorOf(Golden(name), {.dtype = Dtype::kUint8, .top_k = 2}), "");
  }
  EXPECT_EQ(ErrorOf(Golden("megatron.json"), {.dtype = Dtype::kInt16}), "");
}

TEST(Formats, TextsBeyondTheLimitAreNotTakenApart) {
  for (const GoldenFile& golden : kGolden) {
    ReadRowsOptions options = golden.format == Format::kSglang ? kRaw : ReadRowsOptions();
    options.limits.max_bytes = 20;
    const auto result = Read(Golden(golden.name), options);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << golden.name;
  }
}

TEST(Formats, TheWrongNameIsRefused) {
  for (const GoldenFile& golden : kGolden) {
    for (int i = 0; i < kNumFormats; ++i) {
      ReadRowsOptions options = kRaw;
      options.format = static_cast<Format>(i);
      const std::string bytes = Golden(golden.name);
      const bool lists = std::string(golden.name) == "megatron.json" || bytes.find(":[[[") == 17;
      const bool reads_lists = *options.format == Format::kVllmLists ||
                               *options.format == Format::kMegatron ||
                               *options.format == Format::kLmdeploy;
      if (*options.format == golden.format || (lists && reads_lists)) continue;
      EXPECT_NE(ErrorOf(bytes, options), "")
          << golden.name << " as " << InfoOf(*options.format).name;
    }
  }
}

TEST(Formats, MalformedTextsAreRefusedByName) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("no bytes"));
  EXPECT_THAT(ErrorOf(" \n"), HasSubstr("no bytes"));
  EXPECT_THAT(ErrorOf("hello"), HasSubstr("no format"));
  EXPECT_THAT(ErrorOf("42"), HasSubstr("no format"));
  EXPECT_THAT(ErrorOf("nrlre1:int16:1x2x3"), HasSubstr("nrlre1:<dtype>:<SxLxK>:<base64>"));
  EXPECT_THAT(ErrorOf("nrlre1:float:1x2x3:"), HasSubstr("'float'"));
  EXPECT_THAT(ErrorOf("nrlre1:int16:1x2:"), HasSubstr("three axes"));
  EXPECT_THAT(ErrorOf("nrlre1:int16:1x2x3x4:"), HasSubstr("'1x2x3x4'"));
  EXPECT_THAT(ErrorOf("nrlre1:int16:1x2x-3:"), HasSubstr("'1x2x-3'"));
  EXPECT_THAT(ErrorOf("nrlre1:int16:1x2x99999999999:"), HasSubstr("'1x2x99999999999'"));
  EXPECT_THAT(ErrorOf("nrlre1:int8:1x1x1:AAAA"), HasSubstr("takes 1 bytes; the data has 3"));
  EXPECT_THAT(ErrorOf(R"({"data": "AAAA", "shape": [1, 1, 3]})"), HasSubstr("dtype is required"));
  EXPECT_THAT(ErrorOf(R"({"data": "AAAA", "shape": [[1]], "dtype": "int8"})"),
              HasSubstr("shape, a list"));
  EXPECT_THAT(ErrorOf(R"({"data": "AAAA", "shape": [1, 1, 3], "dtype": "int8", "start": 1.5})"),
              HasSubstr("start must be a whole number; it is a number"));
  EXPECT_THAT(ErrorOf(R"(["ndarray", {"data": [[[1]]]}])"), HasSubstr("dtype is required"));
  EXPECT_THAT(ErrorOf(R"(["ndarray", {"data": [[[300]]], "dtype": "uint8"}])"), HasSubstr("uint8"));
  EXPECT_THAT(ErrorOf(R"(["other", {}])"), HasSubstr("ndarray"));
  EXPECT_THAT(ErrorOf(R"({"routed_experts": null})"), HasSubstr("it is null"));
}

TEST(Formats, WritersSayWhatTheyCannotHold) {
  RoutingArray array;
  const std::int64_t shape[3] = {1, 1, 1};
  ASSERT_TRUE(MakeArray("test", shape, Dtype::kInt64, {}, array).ok());
  EXPECT_THAT(WriteArray(Format::kNemoRl, array).status().message(),
              HasSubstr("nemo-rl's, int16, int32, int8; it is int64"));
  EXPECT_THAT(WriteArray(Format::kSkyRl, array).status().message(), HasSubstr("cannot be written"));
  array.dtype = Dtype::kUint8;
  array.ids.resize(1);
  array.first = 7;
  EXPECT_THAT(*WriteArray(Format::kVllm, array), HasSubstr(R"("routed_experts_prompt_start":7)"));
  EXPECT_EQ(Read(*WriteArray(Format::kVllm, array))->array.first, 7);
}

}  // namespace
}  // namespace waymark::formats
