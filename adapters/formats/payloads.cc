#include "adapters/formats/payloads.h"

#include <array>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "adapters/formats/base64.h"
#include "blockstore/invalid.h"

namespace waymark::formats {
namespace {

std::string Shown(std::string_view text) {
  constexpr std::size_t kShown = 24;
  std::string shown = "'";
  for (const char c : text.substr(0, kShown))
    shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + (text.size() > kShown ? "...'" : "'");
}

// An array of this shape with the ids in `text`.
absl::StatusOr<RoutingArray> FromBase64(const std::string& what, std::string_view text,
                                        std::span<const std::int64_t> shape, Dtype dtype,
                                        const Limits& limits) {
  RoutingArray array;
  std::size_t needed = 0;
  absl::Status status = CheckShape(what, shape, dtype, limits, needed);
  if (status.ok()) status = DecodeBase64(text, limits, array.ids);
  if (!status.ok()) return status;
  if (array.ids.size() != needed) {
    return Invalid(what, ": the shape takes ", needed, " bytes; the data has ", array.ids.size());
  }
  array.dtype = dtype;
  array.rows = shape[0];
  array.layers = static_cast<std::int32_t>(shape[1]);
  array.top_k = static_cast<std::int32_t>(shape[2]);
  return array;
}

absl::StatusOr<Dtype> DtypeOf(const std::string& what, std::string_view name) {
  const std::optional<Dtype> dtype = DtypeNamed(name);
  if (dtype.has_value()) return *dtype;
  return Invalid(what, ": dtype must be int8, uint8, int16, uint16, int32 or int64; it is ",
                 Shown(name));
}

absl::StatusOr<Dtype> DtypeAt(const std::string& what, JsonValue name) {
  if (!name) return Invalid(what, ": dtype is required");
  const std::string* const text = name.String();
  return DtypeOf(what, text == nullptr ? name.KindName() : std::string_view(*text));
}

// "12x3x4" as numbers of at most ten digits, as many as a row number can have; empty: it is
// something else.
std::vector<std::int64_t> ShapeOf(std::string_view text) {
  std::vector<std::int64_t> shape;
  for (const std::string& axis :
       std::vector<std::string>(absl::StrSplit(std::string(text), absl::MaxSplits('x', 3)))) {
    const bool digits = axis.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || axis.empty() || axis.size() > 10 || shape.size() == 3) return {};
    shape.push_back(std::stoll(axis));
  }
  return shape;
}

bool IsList(JsonValue value, std::int64_t size) {
  return value.kind() == JsonKind::kList && value.size() == size;
}

absl::Status NotAsBefore(const std::string& place, JsonValue value, std::int64_t size) {
  return Invalid(
      place, ": must be a list of ", size, ", as those before it; it is ", value.KindName(),
      value.kind() == JsonKind::kList ? absl::StrCat(" of ", value.size()) : std::string());
}

}  // namespace

absl::StatusOr<RoutingArray> ReadLists(JsonValue lists, Dtype dtype, const Limits& limits) {
  std::vector<std::int64_t> shape;
  for (JsonValue first = lists; first && first.kind() == JsonKind::kList; first = first.At(0))
    shape.push_back(first.size());
  if (shape.empty()) {
    return Invalid("lists: must be [rows][layers][top_k] whole numbers; it is ", lists.KindName());
  }
  RoutingArray array;
  if (absl::Status status = MakeArray("lists", shape, dtype, limits, array); !status.ok()) {
    return status;
  }
  std::vector<std::int64_t> ids(array.row_ids());
  JsonValue value = lists;
  for (std::int64_t i = 0; i < array.rows; ++i) {
    const std::string row = absl::StrCat("lists[", i, "]");
    value = value.Following();
    if (!IsList(value, array.layers)) return NotAsBefore(row, value, array.layers);
    std::size_t n = 0;
    for (std::int32_t l = 0; l < array.layers; ++l) {
      value = value.Following();
      if (!IsList(value, array.top_k)) {
        return NotAsBefore(absl::StrCat(row, "[", l, "]"), value, array.top_k);
      }
      for (std::int32_t k = 0; k < array.top_k; ++k, ++n) {
        value = value.Following();
        const std::optional<std::int64_t> id = value.Integer();
        if (!id.has_value() || !Holds(dtype, *id)) {
          return Invalid(row, "[", l, "][", k, "]: must be a number that ", DtypeName(dtype),
                         " has; it is ", id ? absl::StrCat(*id) : std::string(value.KindName()));
        }
        ids[n] = *id;
      }
    }
    StoreRow(array, i, ids);
  }
  return array;
}

void AppendLists(const RoutingArray& array, std::string& text) {
  const std::size_t top_k = static_cast<std::size_t>(array.top_k);
  std::vector<std::int64_t> row(array.row_ids());
  std::array<char, 24> digits;
  text += '[';
  for (std::int64_t i = 0; i < array.rows; ++i) {
    LoadRow(array, i, row);
    text += i == 0 ? "[" : ",[";
    for (std::size_t n = 0; n < row.size(); ++n) {
      text += n == 0 ? "[" : n % top_k == 0 ? ",[" : ",";
      const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), row[n]).ptr;
      text.append(digits.data(), end);
      if (n % top_k == top_k - 1) text += ']';
    }
    text += ']';
  }
  text += ']';
}

absl::StatusOr<RoutingArray> ReadRawText(std::string_view text, Dtype dtype, std::int32_t layers,
                                         std::int32_t top_k, const Limits& limits) {
  // The size of a row is checked before anything is decoded.
  std::int64_t shape[3] = {1, layers, top_k};
  std::size_t row_bytes = 0;
  absl::Status status = CheckShape("base64 of ids", shape, dtype, limits, row_bytes);
  if (!status.ok()) return status;
  const std::size_t bytes = BytesOfBase64(text);
  if (bytes % row_bytes != 0) {
    return Invalid("base64 of ids: its size must be a multiple of ", row_bytes, ", a row of ",
                   layers, " layers x ", top_k, " ids of ", DtypeName(dtype), "; it is ", bytes);
  }
  shape[0] = static_cast<std::int64_t>(bytes / row_bytes);
  return FromBase64("base64 of ids", text, shape, dtype, limits);
}

absl::StatusOr<RoutingArray> ReadEnvelope(std::string_view text, const Limits& limits) {
  const std::string what = "envelope";
  if (text.substr(0, kEnvelopeStart.size()) != kEnvelopeStart) {
    return Invalid(what, ": must begin with '", kEnvelopeStart, "'; it is ", Shown(text));
  }
  text.remove_prefix(kEnvelopeStart.size());
  std::array<std::string_view, 2> parts;
  for (std::string_view& part : parts) {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) {
      return Invalid(what, ": must be nrlre1:<dtype>:<SxLxK>:<base64>");
    }
    part = text.substr(0, colon);
    text.remove_prefix(colon + 1);
  }
  const absl::StatusOr<Dtype> dtype = DtypeOf(what, parts[0]);
  if (!dtype.ok()) return dtype.status();
  const std::vector<std::int64_t> shape = ShapeOf(parts[1]);
  if (shape.empty()) {
    return Invalid(what, ": the shape must be <rows>x<layers>x<top_k>; it is ", Shown(parts[1]));
  }
  return FromBase64(what, text, shape, *dtype, limits);
}

void AppendEnvelope(const RoutingArray& array, std::string& text) {
  absl::StrAppend(&text, std::string(kEnvelopeStart), std::string(DtypeName(array.dtype)), ":",
                  array.rows, "x", array.layers, "x", array.top_k, ":");
  AppendBase64(array.ids, text);
}

absl::StatusOr<RoutingArray> ReadObject(JsonValue object, bool with_start, const Limits& limits) {
  const std::string what = "object";
  const std::string* const data = object.Find("data").String();
  const std::optional<std::vector<std::int64_t>> shape = object.Find("shape").Integers();
  if (data == nullptr || !shape.has_value()) {
    return Invalid(what, ": must have data, a string, and shape, a list of numbers");
  }
  const JsonValue start = object.Find("start");
  if (static_cast<bool>(start) != with_start) {
    return Invalid(what,
                   with_start ? ": start is required" : ": start is not a member of this format");
  }
  const absl::StatusOr<Dtype> dtype = DtypeAt(what, object.Find("dtype"));
  if (!dtype.ok()) return dtype.status();
  absl::StatusOr<RoutingArray> array = FromBase64(what, *data, *shape, *dtype, limits);
  if (!array.ok() || !with_start) return array;
  array->first = start.Integer();
  if (array->first.has_value()) return array;
  return Invalid(what, ": start must be a whole number; it is ", start.KindName());
}

absl::StatusOr<RoutingArray> ReadNdarray(JsonValue pair, const Limits& limits) {
  const std::string what = "ndarray";
  const std::string* const tag = pair.At(0).String();
  if (tag == nullptr || *tag != "ndarray" || pair.size() != 2) {
    return Invalid(what, ": must be [\"ndarray\", {data, dtype}]; it is ", pair.KindName());
  }
  const JsonValue data = pair.At(1).Find("data");
  if (!data) return Invalid(what, ": data is required");
  const absl::StatusOr<Dtype> dtype = DtypeAt(what, pair.At(1).Find("dtype"));
  if (!dtype.ok()) return dtype.status();
  return ReadLists(data, *dtype, limits);
}

void AppendNdarray(const RoutingArray& array, std::string& text) {
  text += R"(["ndarray",{"data":)";
  AppendLists(array, text);
  absl::StrAppend(&text, R"(,"dtype":")", std::string(DtypeName(array.dtype)), R"("}])");
}

}  // namespace waymark::formats
