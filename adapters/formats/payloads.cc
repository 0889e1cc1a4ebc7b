#include "adapters/formats/payloads.h"

#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "adapters/formats/base64.h"
#include "adapters/formats/nested_lists.h"
#include "adapters/formats/npy.h"

namespace waymark::formats {
namespace {

constexpr std::size_t kShown = 24;

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(what);
}

std::string Shown(std::string_view text) {
  std::string shown = "'";
  for (const char c : text.substr(0, kShown))
    shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + (text.size() > kShown ? "...'" : "'");
}

// Decodes the ids of an array of this shape and dtype.
absl::StatusOr<RoutingArray> FromBase64(const std::string& what, std::string_view text,
                                        std::span<const std::int64_t> shape, Dtype dtype,
                                        const Limits& limits) {
  std::size_t needed = 0;
  if (absl::Status status = CheckShape(what, shape, dtype, limits, needed); !status.ok()) {
    return status;
  }
  absl::StatusOr<std::vector<std::uint8_t>> ids = DecodeBase64(text, limits);
  if (!ids.ok()) return ids.status();
  if (ids->size() != needed) {
    return Bad(
        absl::StrCat(what, ": the shape takes ", needed, " bytes; the data has ", ids->size()));
  }
  RoutingArray array;
  array.dtype = dtype;
  array.rows = shape[0];
  array.layers = static_cast<std::int32_t>(shape[1]);
  array.top_k = static_cast<std::int32_t>(shape[2]);
  array.ids = *std::move(ids);
  return array;
}

absl::StatusOr<Dtype> DtypeOf(const std::string& what, std::string_view name) {
  const std::optional<Dtype> dtype = DtypeNamed(name);
  if (dtype.has_value()) return *dtype;
  return Bad(absl::StrCat(
      what, ": dtype must be int8, uint8, int16, uint16, int32 or int64; it is ", Shown(name)));
}

absl::StatusOr<Dtype> DtypeAt(const std::string& what, const JsonValue* name) {
  if (name == nullptr) return Bad(absl::StrCat(what, ": dtype is required"));
  const auto* text = name->As<std::string>();
  return DtypeOf(what, text == nullptr ? name->KindName() : std::string_view(*text));
}

// Parses "12x3x4"; nullopt if it is malformed or a number has more digits than a row number can
// have.
std::optional<std::vector<std::int64_t>> ShapeOf(std::string_view text) {
  std::vector<std::int64_t> shape;
  for (;;) {
    const std::string_view axis = text.substr(0, text.find('x'));
    std::int64_t value = 0;
    const auto parsed = std::from_chars(axis.data(), axis.data() + axis.size(), value);
    if (parsed.ec != std::errc() || parsed.ptr != axis.data() + axis.size() || axis.size() > 10 ||
        value < 0 || shape.size() == 3) {
      return std::nullopt;
    }
    shape.push_back(value);
    if (axis.size() == text.size()) return shape;
    text.remove_prefix(axis.size() + 1);
  }
}

}  // namespace

absl::StatusOr<RoutingArray> ReadNpyText(std::string_view text, const Limits& limits) {
  absl::StatusOr<std::vector<std::uint8_t>> bytes = DecodeBase64(text, limits);
  if (!bytes.ok()) return bytes.status();
  return ReadNpy(*bytes, limits);
}

void AppendNpyText(const RoutingArray& array, std::string& text) {
  AppendBase64(WriteNpy(array), text);
}

absl::StatusOr<RoutingArray> ReadRawText(std::string_view text, Dtype dtype, std::int32_t layers,
                                         std::int32_t top_k, const Limits& limits) {
  // The size of a row is checked before anything is decoded.
  const std::int64_t one_row[3] = {1, layers, top_k};
  std::size_t row_bytes = 0;
  if (absl::Status status = CheckShape("base64 of ids", one_row, dtype, limits, row_bytes);
      !status.ok()) {
    return status;
  }
  absl::StatusOr<std::vector<std::uint8_t>> ids = DecodeBase64(text, limits);
  if (!ids.ok()) return ids.status();
  if (ids->size() % row_bytes != 0) {
    return Bad(absl::StrCat("base64 of ids: its size must be a multiple of ", row_bytes,
                            ", a row of ", layers, " layers x ", top_k, " ids of ",
                            std::string(DtypeName(dtype)), "; it is ", ids->size()));
  }
  const std::int64_t shape[3] = {static_cast<std::int64_t>(ids->size() / row_bytes), layers, top_k};
  std::size_t needed = 0;
  if (absl::Status status = CheckShape("base64 of ids", shape, dtype, limits, needed);
      !status.ok()) {
    return status;
  }
  RoutingArray array;
  array.dtype = dtype;
  array.rows = shape[0];
  array.layers = layers;
  array.top_k = top_k;
  array.ids = *std::move(ids);
  return array;
}

void AppendRawText(const RoutingArray& array, std::string& text) {
  AppendBase64(array.ids, text);
}

absl::StatusOr<RoutingArray> ReadEnvelope(std::string_view text, const Limits& limits) {
  const std::string what = "envelope";
  if (text.substr(0, kEnvelopeStart.size()) != kEnvelopeStart) {
    return Bad(absl::StrCat(what, ": must begin with '", std::string(kEnvelopeStart), "'; it is ",
                            Shown(text)));
  }
  text.remove_prefix(kEnvelopeStart.size());
  std::array<std::string_view, 2> parts;
  for (std::string_view& part : parts) {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) {
      return Bad(absl::StrCat(what, ": must be nrlre1:<dtype>:<SxLxK>:<base64>"));
    }
    part = text.substr(0, colon);
    text.remove_prefix(colon + 1);
  }
  const absl::StatusOr<Dtype> dtype = DtypeOf(what, parts[0]);
  if (!dtype.ok()) return dtype.status();
  const std::optional<std::vector<std::int64_t>> shape = ShapeOf(parts[1]);
  if (!shape.has_value()) {
    return Bad(
        absl::StrCat(what, ": the shape must be <rows>x<layers>x<top_k>; it is ", Shown(parts[1])));
  }
  return FromBase64(what, text, *shape, *dtype, limits);
}

void AppendEnvelope(const RoutingArray& array, std::string& text) {
  absl::StrAppend(&text, std::string(kEnvelopeStart), std::string(DtypeName(array.dtype)), ":",
                  array.rows, "x", array.layers, "x", array.top_k, ":");
  AppendBase64(array.ids, text);
}

absl::StatusOr<RoutingArray> ReadObject(const JsonValue& object, bool with_start,
                                        const Limits& limits) {
  const std::string what = "object";
  const JsonValue* data = object.Find("data");
  const JsonValue* shape = object.Find("shape");
  const JsonValue* start = object.Find("start");
  if (data == nullptr || data->As<std::string>() == nullptr || shape == nullptr ||
      shape->As<JsonGrid>() == nullptr || shape->As<JsonGrid>()->shape.size() != 1) {
    return Bad(absl::StrCat(what, ": must have data, a string, and shape, a list of numbers"));
  }
  if ((start != nullptr) != with_start) {
    return Bad(absl::StrCat(
        what, with_start ? ": start is required" : ": start is not a member of this format"));
  }
  const absl::StatusOr<Dtype> dtype = DtypeAt(what, object.Find("dtype"));
  if (!dtype.ok()) return dtype.status();
  const JsonGrid& axes = *shape->As<JsonGrid>();
  const std::vector<std::int64_t> shape_axes(axes.numbers.begin(), axes.numbers.end());
  absl::StatusOr<RoutingArray> array =
      FromBase64(what, *data->As<std::string>(), shape_axes, *dtype, limits);
  if (!array.ok() || !with_start) return array;
  const auto* first = start->As<std::int64_t>();
  if (first == nullptr) {
    return Bad(absl::StrCat(what, ": start must be a whole number; it is ",
                            std::string(start->KindName())));
  }
  array->first = *first;
  return array;
}

absl::StatusOr<RoutingArray> ReadNdarray(const JsonValue& pair, const Limits& limits) {
  const std::string what = "ndarray";
  const auto* list = pair.As<JsonValue::List>();
  const auto* tag = list == nullptr || list->size() != 2 ? nullptr : (*list)[0].As<std::string>();
  if (tag == nullptr || *tag != "ndarray") {
    return Bad(absl::StrCat(what, ": must be [\"ndarray\", {data, dtype}]; it is ",
                            std::string(pair.KindName())));
  }
  const JsonValue* data = (*list)[1].Find("data");
  if (data == nullptr) return Bad(absl::StrCat(what, ": data is required"));
  const absl::StatusOr<Dtype> dtype = DtypeAt(what, (*list)[1].Find("dtype"));
  if (!dtype.ok()) return dtype.status();
  return ReadLists(*data, *dtype, limits);
}

void AppendNdarray(const RoutingArray& array, std::string& text) {
  text += R"(["ndarray",{"data":)";
  AppendLists(array, text);
  absl::StrAppend(&text, R"(,"dtype":")", std::string(DtypeName(array.dtype)), R"("}])");
}

}  // namespace waymark::formats
