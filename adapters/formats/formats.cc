#include "adapters/formats/formats.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "adapters/formats/json_value.h"
#include "adapters/formats/payloads.h"
#include "blockstore/invalid.h"

namespace waymark::formats {
namespace {

constexpr std::array<Dtype, 6> kAnyDtype = {Dtype::kUint8, Dtype::kUint16, Dtype::kInt16,
                                            Dtype::kInt32, Dtype::kInt64,  Dtype::kInt8};
constexpr std::array<Dtype, 3> kVllmDtypes = {Dtype::kUint8, Dtype::kUint16, Dtype::kInt32};
constexpr std::array<Dtype, 3> kSglangDtypes = {Dtype::kInt32, Dtype::kUint16, Dtype::kUint8};
constexpr std::array<Dtype, 2> kListDtypes = {Dtype::kInt16, Dtype::kInt32};
constexpr std::array<Dtype, 3> kNemoRlDtypes = {Dtype::kInt16, Dtype::kInt32, Dtype::kInt8};

constexpr Conventions kMoe = {};
constexpr Conventions kAll = {.layers = LayerAxis::kAllLayers};
constexpr Conventions kTrainer = {.rows = RowCount::kTokens, .sentinel = Sentinel::kMinusOne};

// In the order of Format.
const std::array<FormatInfo, kNumFormats>& Infos() {
  static const std::array<FormatInfo, kNumFormats> kInfos = {{
      {Format::kNpy, "npy", "an .npy array", kMoe, kAnyDtype},
      {Format::kVllm, "vllm", "base64 of an .npy array", kAll, kVllmDtypes},
      {Format::kVllmLists, "vllm-lists", "nested JSON lists", kMoe, kListDtypes},
      {Format::kSglang, "sglang", "base64 of the ids alone", kAll, kSglangDtypes},
      {Format::kMegatron, "megatron", "nested JSON lists", kMoe, kListDtypes},
      {Format::kMegatronNdarray, "megatron-ndarray", "nested JSON lists with a dtype", kMoe,
       kListDtypes},
      {Format::kNemoRl, "nemo-rl", "a string nrlre1:<dtype>:<SxLxK>:<base64>", kTrainer,
       kNemoRlDtypes},
      {Format::kSkyRl, "skyrl", "an object of data, shape and dtype", kAll, {}},
      {Format::kPrimeRl, "prime-rl", "an object of data, shape, start and dtype", kAll, {}},
      {Format::kLmdeploy, "lmdeploy", "nested JSON lists", kAll, {}},
  }};
  return kInfos;
}

bool IsSpace(std::uint8_t c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

std::span<const std::uint8_t> Trimmed(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty() && IsSpace(bytes.front()))
    bytes = bytes.subspan(1);
  while (!bytes.empty() && IsSpace(bytes.back()))
    bytes = bytes.first(bytes.size() - 1);
  return bytes;
}

// The value of the array in a JSON text, and the object that contains it, if any.
struct Location {
  const Json* value = nullptr;
  const Json* around = nullptr;
  std::string_view key;  // its key; empty if it is the whole text
};

absl::StatusOr<Location> Locate(const Json& root, const std::string& field) {
  Location location;
  if (!field.empty()) {
    const absl::StatusOr<const Json*> value = AtPointer(root, field, location.around);
    if (!value.ok()) return value.status();
    location.value = *value;
    location.key = std::string_view(field).substr(field.rfind('/') + 1);
    return location;
  }
  location.value = &root;
  if (!root.is_object() || root.contains("data")) return location;
  int found = 0;
  for (const Json* const object : {&root, Find(&root, "meta_info")}) {
    for (const std::string_view key : {"routed_experts", "moe_topk_indices", "routing_indices"}) {
      const Json* const value = Find(object, key);
      if (value == nullptr) continue;
      location = {value, object, key};
      ++found;
    }
  }
  if (found == 1) return location;
  return absl::NotFoundError(
      absl::StrCat("the object must have exactly one of routed_experts, moe_topk_indices and "
                   "routing_indices; it has ",
                   found, ": name the field"));
}

absl::StatusOr<Format> FormatOf(const Location& location) {
  const Json& value = *location.value;
  if (const std::string* const text = String(&value)) {
    if (text->starts_with(kEnvelopeStart)) return Format::kNemoRl;
    return text->starts_with(kNpyTextStart) ? Format::kVllm : Format::kSglang;
  }
  if (value.is_array()) {
    if (value.size() == 2 && value[0].is_string()) return Format::kMegatronNdarray;
    return location.key == "routed_experts" ? Format::kVllmLists : Format::kMegatron;
  }
  if (value.is_object()) return value.contains("start") ? Format::kPrimeRl : Format::kSkyRl;
  return absl::NotFoundError(
      absl::StrCat("the field must be an array of routing; it is ", std::string(KindName(value))));
}

absl::StatusOr<RoutingArray> ReadSglang(const std::string& text, const Location& location,
                                        const ReadRowsOptions& options) {
  const bool moe = !options.moe_layers.empty() &&
                   options.layers.value_or(LayerAxis::kAllLayers) == LayerAxis::kMoeLayers;
  const std::int32_t columns =
      moe ? static_cast<std::int32_t>(std::min<std::size_t>(options.moe_layers.size(), INT32_MAX))
          : options.num_layers;
  const std::pair<const char*, std::int32_t> required[] = {
      {"num_layers", columns}, {"top_k", options.top_k}, {"num_experts", options.num_experts}};
  for (const auto& [name, value] : required) {
    if (value == 0) {
      return Invalid(name, " is required: base64 of ids alone does not contain it");
    }
  }
  std::optional<Dtype> dtype = options.dtype;
  if (const Json* const beside = Find(location.around, "routed_experts_dtype")) {
    const std::string* const name = String(beside);
    const std::optional<Dtype> said = name == nullptr ? std::nullopt : DtypeNamed(*name);
    if (!said.has_value()) return Invalid("routed_experts_dtype must be a dtype, e.g. int32");
    if (dtype.value_or(*said) != *said) {
      return Invalid("dtype must be that of routed_experts_dtype, ", *name, "; it is ",
                     DtypeName(*dtype));
    }
    dtype = said;
  }
  if (!dtype.has_value()) {
    return Invalid("dtype is required: there is no routed_experts_dtype beside the ids");
  }
  return ReadRawText(text, *dtype, columns, options.top_k, options.limits);
}

absl::StatusOr<RoutingArray> ReadNpyText(const std::string& text, const Limits& limits) {
  std::vector<std::uint8_t> bytes;
  if (absl::Status status = DecodeBase64(text, limits, bytes); !status.ok()) return status;
  return ReadNpy(bytes, limits);
}

absl::StatusOr<RoutingArray> ReadAt(Format format, const Location& location,
                                    const ReadRowsOptions& options) {
  const Json& value = *location.value;
  const std::string* const text = String(&value);
  switch (format) {
    case Format::kNpy:
      return Invalid("npy: must be an .npy file; it is text");
    case Format::kVllm:
    case Format::kSglang:
    case Format::kNemoRl:
      if (text == nullptr) {
        return Invalid(InfoOf(format).name, ": must be a string; it is ", KindName(value));
      }
      if (format == Format::kSglang) return ReadSglang(*text, location, options);
      return format == Format::kVllm ? ReadNpyText(*text, options.limits)
                                     : ReadEnvelope(*text, options.limits);
    case Format::kVllmLists:
    case Format::kMegatron:
    case Format::kLmdeploy:
      return ReadLists(value, Dtype::kInt32, options.limits);
    case Format::kMegatronNdarray:
      return ReadNdarray(value, options.limits);
    case Format::kSkyRl:
    case Format::kPrimeRl:
      return ReadObject(value, format == Format::kPrimeRl, options.limits);
  }
  return Invalid("format: unknown");
}

// Refuses options that contradict the array. Nested lists have no dtype.
absl::Status CheckAgainstArray(const ReadRowsOptions& options, const ReadResult& result) {
  const RoutingArray& array = result.array;
  if (options.top_k != 0 && options.top_k != array.top_k) {
    return Invalid("top_k must be the array's, ", array.top_k, "; it is ", options.top_k);
  }
  const bool lists = result.format == Format::kVllmLists || result.format == Format::kMegatron ||
                     result.format == Format::kLmdeploy;
  if (options.dtype.has_value() && *options.dtype != array.dtype && !lists &&
      !options.skip_options_that_do_not_fit) {
    return Invalid("dtype must be the array's, ", DtypeName(array.dtype), "; it is ",
                   DtypeName(*options.dtype));
  }
  return absl::OkStatus();
}

// Sets array.first from a field beside the array. Engines have two names for it.
absl::Status ReadStart(const Location& location, RoutingArray& array) {
  for (const std::string key : {"routed_experts_start_len", "routed_experts_prompt_start"}) {
    const Json* const value = Find(location.around, key);
    if (value == nullptr) continue;
    const std::optional<std::int64_t> start = Integer(value);
    if (!start.has_value()) {
      return Invalid(key, " must be a whole number; it is ", KindName(*value));
    }
    if (array.first.value_or(*start) != *start) {
      return Invalid(key, " must be the start found before, ", *array.first, "; it is ", *start);
    }
    array.first = start;
  }
  return absl::OkStatus();
}

}  // namespace

const FormatInfo& InfoOf(Format format) {
  return Infos()[static_cast<std::size_t>(format)];
}

std::span<const std::string_view> TrainerArrays() {
  static constexpr std::string_view kNames[] = {"megatron", "verl",     "nemo-rl", "skyrl", "slime",
                                                "miles",    "prime-rl", "roll",    "areal"};
  return kNames;
}

absl::StatusOr<ReadResult> ReadArray(std::span<const std::uint8_t> bytes,
                                     const ReadRowsOptions& options) {
  ReadResult result;
  if (bytes.size() >= sizeof(kNpyMagic) &&
      std::equal(std::begin(kNpyMagic), std::end(kNpyMagic), bytes.begin())) {
    if (options.format.has_value() && *options.format != Format::kNpy) {
      return Invalid(InfoOf(*options.format).name, ": must be text; it is an .npy file");
    }
    if (!options.field.empty()) return Invalid("field is for JSON texts; this is an .npy file");
    absl::StatusOr<RoutingArray> array = ReadNpy(bytes, options.limits);
    if (!array.ok()) return array.status();
    result.array = *std::move(array);
    if (absl::Status status = CheckAgainstArray(options, result); !status.ok()) return status;
    return result;
  }
  const std::span<const std::uint8_t> text = Trimmed(bytes);
  if (text.empty()) return absl::NotFoundError("the file has no bytes");
  Json root;
  if (text[0] == '{' || text[0] == '[' || text[0] == '"') {
    absl::StatusOr<Json> parsed = ParseJson(text, options.limits);
    if (!parsed.ok()) return parsed.status();
    root = *std::move(parsed);
  } else {
    const std::string_view all(reinterpret_cast<const char*>(text.data()), text.size());
    if (!options.format.has_value() && !all.starts_with(kEnvelopeStart) &&
        !all.starts_with(kNpyTextStart)) {
      return absl::NotFoundError(
          "the bytes have no format of routing; base64 of ids alone needs the format to be given");
    }
    if (text.size() > options.limits.max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the text has ", text.size(), " bytes; the limit is ", options.limits.max_bytes));
    }
    root = std::string(text.begin(), text.end());
  }
  const absl::StatusOr<Location> location = Locate(root, options.field);
  if (!location.ok()) return location.status();
  if (options.format.has_value()) {
    result.format = *options.format;
  } else {
    const absl::StatusOr<Format> format = FormatOf(*location);
    if (!format.ok()) return format.status();
    result.format = *format;
  }
  absl::StatusOr<RoutingArray> array = ReadAt(result.format, *location, options);
  if (!array.ok()) return array.status();
  result.array = *std::move(array);
  if (absl::Status status = CheckAgainstArray(options, result); !status.ok()) return status;
  if (absl::Status status = ReadStart(*location, result.array); !status.ok()) return status;
  return result;
}

bool FormatKeepsStart(Format format) {
  return format == Format::kVllm || format == Format::kSglang || format == Format::kPrimeRl;
}

absl::StatusOr<std::string> WriteArray(Format format, const RoutingArray& array) {
  const FormatInfo& info = InfoOf(format);
  if (info.dtypes.empty()) {
    return Invalid(info.name, " cannot be written");
  }
  if (std::find(info.dtypes.begin(), info.dtypes.end(), array.dtype) == info.dtypes.end()) {
    std::string names;
    for (const Dtype dtype : info.dtypes)
      absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(DtypeName(dtype)));
    return Invalid("dtype must be one of ", info.name, "'s, ", names, "; it is ",
                   DtypeName(array.dtype));
  }
  std::string text;
  switch (format) {
    case Format::kNpy: {
      const std::vector<std::uint8_t> bytes = WriteNpy(array);
      text.assign(bytes.begin(), bytes.end());
      break;
    }
    case Format::kVllm:
      text = R"({"routed_experts":")";
      AppendBase64(WriteNpy(array), text);
      text += '"';
      if (array.first.value_or(0) != 0) {
        absl::StrAppend(&text, R"(,"routed_experts_prompt_start":)", *array.first);
      }
      text += '}';
      break;
    case Format::kVllmLists:
      text = R"({"routed_experts":)";
      AppendLists(array, text);
      text += '}';
      break;
    case Format::kSglang:
      text = R"({"routed_experts":")";
      AppendBase64(array.ids, text);
      absl::StrAppend(&text, R"(","routed_experts_dtype":")", std::string(DtypeName(array.dtype)),
                      R"(","routed_experts_start_len":)", array.first.value_or(0), "}");
      break;
    case Format::kMegatron:
      AppendLists(array, text);
      break;
    case Format::kMegatronNdarray:
      AppendNdarray(array, text);
      break;
    case Format::kNemoRl:
      AppendEnvelope(array, text);
      break;
    case Format::kSkyRl:
    case Format::kPrimeRl:
    case Format::kLmdeploy:
      break;
  }
  return text;
}

}  // namespace waymark::formats
