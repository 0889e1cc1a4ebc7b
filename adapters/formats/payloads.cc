#include "adapters/formats/payloads.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "blockstore/invalid.h"

namespace waymark::formats {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// An array of this shape with the ids in `text`.
absl::StatusOr<RoutingArray> FromBase64(const std::string& what, std::string_view text,
                                        std::span<const std::int64_t> shape, Dtype dtype,
                                        const Limits& limits) {
  RoutingArray array;
  std::size_t needed = 0;
  absl::Status status = SetShape(what, shape, dtype, limits, array, needed);
  if (status.ok()) status = DecodeBase64(text, limits, array.ids);
  if (!status.ok()) return status;
  if (array.ids.size() != needed) {
    return Invalid(what, ": the shape takes ", needed, " bytes; the data has ", array.ids.size());
  }
  return array;
}

absl::StatusOr<Dtype> DtypeOf(const std::string& what, std::string_view name) {
  const std::optional<Dtype> dtype = DtypeNamed(name);
  if (dtype.has_value()) return *dtype;
  return Invalid(what, ": dtype must be int8, uint8, int16, uint16, int32 or int64; it is ",
                 Shown(name));
}

absl::StatusOr<Dtype> DtypeAt(const std::string& what, const Json* name) {
  if (name == nullptr) return Invalid(what, ": dtype is required");
  const std::string* const text = String(name);
  return DtypeOf(what, text == nullptr ? KindName(*name) : std::string_view(*text));
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

bool IsList(const Json& value, std::int64_t size) {
  return value.is_array() && static_cast<std::int64_t>(value.size()) == size;
}

absl::Status NotAsBefore(const std::string& place, const Json& value, std::int64_t size) {
  return Invalid(place, ": must be a list of ", size, ", as those before it; it is ",
                 KindName(value),
                 value.is_array() ? absl::StrCat(" of ", value.size()) : std::string());
}

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

// A Python dictionary of a string, a truth value and a tuple of numbers is JSON but for these.
absl::StatusOr<Header> ParseHeader(const std::string& text) {
  const std::string json = absl::StrReplaceAll(text, {{"'", "\""},
                                                      {"(", "["},
                                                      {")", "]"},
                                                      {", )", "]"},
                                                      {",)", "]"},
                                                      {", }", "}"},
                                                      {",}", "}"},
                                                      {"True", "true"},
                                                      {"False", "false"}});
  const auto malformed = [&](const std::string& why) {
    return Invalid(".npy: the header is not a dictionary of descr, fortran_order and shape", why);
  };
  const absl::StatusOr<Json> parsed =
      ParseJson({reinterpret_cast<const std::uint8_t*>(json.data()), json.size()}, {});
  if (!parsed.ok()) return malformed(absl::StrCat("; as ", parsed.status().message()));
  const std::string* const descr = String(Find(&*parsed, "descr"));
  const Json* const fortran_order = Find(&*parsed, "fortran_order");
  const std::optional<std::vector<std::int64_t>> shape = Integers(Find(&*parsed, "shape"));
  if (descr == nullptr || fortran_order == nullptr || !fortran_order->is_boolean() ||
      !shape.has_value() || parsed->size() != 3) {
    return malformed(absl::StrCat(": ", Shown(text)));
  }
  return Header{*descr, fortran_order->get<bool>(), *shape};
}

constexpr std::array<std::pair<std::string_view, Dtype>, 8> kCodes = {{{"|i1", Dtype::kInt8},
                                                                       {"|u1", Dtype::kUint8},
                                                                       {"<i2", Dtype::kInt16},
                                                                       {"<u2", Dtype::kUint16},
                                                                       {"<i4", Dtype::kInt32},
                                                                       {"<i8", Dtype::kInt64},
                                                                       {"<i1", Dtype::kInt8},
                                                                       {"<u1", Dtype::kUint8}}};

// Copies `from`, in Fortran order (the first axis runs fastest), to C order.
void ToCOrder(std::span<const std::uint8_t> from, RoutingArray& array) {
  if (array.ids.empty()) return;  // data() may be null
  const std::size_t width = DtypeBytes(array.dtype);
  const std::size_t rows = static_cast<std::size_t>(array.rows);
  const std::size_t layers = static_cast<std::size_t>(array.layers);
  const std::size_t top_k = static_cast<std::size_t>(array.top_k);
  for (std::size_t k = 0; k < top_k; ++k) {
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::uint8_t* column = from.data() + (k * layers + layer) * rows * width;
      std::uint8_t* to = array.ids.data() + (layer * top_k + k) * width;
      for (std::size_t row = 0; row < rows; ++row) {
        std::memcpy(to + row * layers * top_k * width, column + row * width, width);
      }
    }
  }
}

constexpr std::size_t kMostHeader = 4096;
constexpr std::size_t kAlignment = 64;

}  // namespace

void AppendBase64(std::span<const std::uint8_t> bytes, std::string& text) {
  text += absl::Base64Escape({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::size_t BytesOfBase64(std::string_view text) {
  return text.size() / 4 * 3 - (text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0);
}

absl::Status DecodeBase64(std::string_view text, const Limits& limits,
                          std::vector<std::uint8_t>& bytes) {
  if (text.size() % 4 != 0) {
    return Invalid("base64: the length must be a multiple of 4; it is ", text.size());
  }
  if (text.size() / 4 * 3 > limits.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("base64: it has ", text.size() / 4 * 3,
                                                     " bytes; the limit is ", limits.max_bytes));
  }
  // Abseil passes over white space, and takes other paddings and ends: then the number of bytes is
  // another one, or the last of them are written in another way.
  std::string decoded;
  const absl::string_view given(text.data(), text.size());
  bool good = absl::Base64Unescape(given, &decoded) && decoded.size() == BytesOfBase64(text);
  if (good && !text.empty()) {
    const std::size_t last = (decoded.size() - 1) / 3 * 3;
    good = absl::Base64Escape(decoded.substr(last)) == given.substr(text.size() - 4);
  }
  if (!good) {
    const std::size_t odd = text.find_first_not_of(kAlphabet);
    const std::string_view rest = text.substr(odd);
    const bool bits = rest == "=" || rest == "==";  // of the character before the padding
    return Invalid("base64: character ", bits ? odd - 1 : odd, " is invalid");
  }
  bytes.assign(decoded.begin(), decoded.end());
  return absl::OkStatus();
}

absl::StatusOr<RoutingArray> ReadNpy(std::span<const std::uint8_t> bytes, const Limits& limits) {
  if (bytes.size() < 10 || !std::equal(std::begin(kNpyMagic), std::end(kNpyMagic), bytes.begin())) {
    return Invalid(".npy: it does not begin with the magic bytes of an .npy file");
  }
  const int version = bytes[6];
  if (version < 1 || version > 3 || bytes[7] != 0) {
    return Invalid(".npy: the version must be 1.0, 2.0 or 3.0; it is ", version, ".",
                   int{bytes[7]});
  }
  const std::size_t head = version == 1 ? 10 : 12;
  if (bytes.size() < head) return Invalid(".npy: it ends inside its header");
  std::size_t length = bytes[8] | (std::size_t{bytes[9]} << 8);
  if (version > 1) length |= (std::size_t{bytes[10]} << 16) | (std::size_t{bytes[11]} << 24);
  if (length > kMostHeader) {
    return Invalid(".npy: the header must have at most ", kMostHeader, " bytes; it has ", length);
  }
  if (length > bytes.size() - head) return Invalid(".npy: it ends inside its header");
  const std::string text(bytes.begin() + static_cast<std::ptrdiff_t>(head),
                         bytes.begin() + static_cast<std::ptrdiff_t>(head + length));
  const absl::StatusOr<Header> header = ParseHeader(text);
  if (!header.ok()) return header.status();
  const auto* const code = std::find_if(kCodes.begin(), kCodes.end(),
                                        [&](const auto& of) { return of.first == header->descr; });
  if (code == kCodes.end()) {
    return Invalid(".npy: descr must be |u1, |i1, <u2, <i2, <i4 or <i8 (little-endian); it is ",
                   Shown(header->descr));
  }
  const std::span<const std::uint8_t> data = bytes.subspan(head + length);
  RoutingArray array;
  std::size_t needed = 0;
  absl::Status status = SetShape(".npy", header->shape, code->second, limits, array, needed);
  if (!status.ok()) return status;
  if (needed != data.size()) {
    return Invalid(".npy: the shape takes ", needed, " bytes; the data has ", data.size());
  }
  array.ids.assign(data.begin(), data.end());
  if (header->fortran_order) ToCOrder(data, array);
  return array;
}

std::vector<std::uint8_t> WriteNpy(const RoutingArray& array) {
  const auto* const code = std::find_if(kCodes.begin(), kCodes.end(),
                                        [&](const auto& of) { return of.second == array.dtype; });
  std::string header =
      absl::StrCat("{'descr': '", std::string(code->first), "', 'fortran_order': False, 'shape': (",
                   array.rows, ", ", array.layers, ", ", array.top_k, "), }");
  // Padding that numpy leaves so that the first axis can grow in place.
  constexpr std::size_t kGrowthDigits = 21;
  header.append(kGrowthDigits - std::to_string(array.rows).size(), ' ');
  constexpr std::size_t kHead = 10;
  const std::size_t unpadded = kHead + header.size() + 1;
  header.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  header += '\n';

  std::vector<std::uint8_t> bytes(std::begin(kNpyMagic), std::end(kNpyMagic));
  bytes.reserve(kHead + header.size() + array.ids.size());
  bytes.insert(bytes.end(), {1, 0, static_cast<std::uint8_t>(header.size() & 0xff),
                             static_cast<std::uint8_t>(header.size() >> 8)});
  bytes.insert(bytes.end(), header.begin(), header.end());
  bytes.insert(bytes.end(), array.ids.begin(), array.ids.end());
  return bytes;
}

absl::StatusOr<RoutingArray> ReadLists(const Json& lists, Dtype dtype, const Limits& limits) {
  std::vector<std::int64_t> shape;
  for (const Json* first = &lists; first != nullptr && first->is_array();
       first = first->empty() ? nullptr : &first->front())
    shape.push_back(static_cast<std::int64_t>(first->size()));
  if (shape.empty()) {
    return Invalid("lists: must be [rows][layers][top_k] whole numbers; it is ", KindName(lists));
  }
  RoutingArray array;
  if (absl::Status status = MakeArray("lists", shape, dtype, limits, array); !status.ok()) {
    return status;
  }
  std::vector<std::int64_t> ids(array.row_ids());
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const std::string row = absl::StrCat("lists[", i, "]");
    if (!IsList(lists[i], array.layers)) return NotAsBefore(row, lists[i], array.layers);
    std::size_t n = 0;
    for (std::size_t l = 0; l < lists[i].size(); ++l) {
      const Json& layer = lists[i][l];
      if (!IsList(layer, array.top_k)) {
        return NotAsBefore(absl::StrCat(row, "[", l, "]"), layer, array.top_k);
      }
      for (std::size_t k = 0; k < layer.size(); ++k, ++n) {
        const std::optional<std::int64_t> id = Integer(&layer[k]);
        if (!id.has_value() || !Holds(dtype, *id)) {
          return Invalid(row, "[", l, "][", k, "]: must be a number that ", DtypeName(dtype),
                         " has; it is ", id ? absl::StrCat(*id) : std::string(KindName(layer[k])));
        }
        ids[n] = *id;
      }
    }
    StoreRow(array, static_cast<std::int64_t>(i), ids);
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
  RoutingArray row;
  std::size_t row_bytes = 0;
  absl::Status status = SetShape("base64 of ids", shape, dtype, limits, row, row_bytes);
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

absl::StatusOr<RoutingArray> ReadObject(const Json& object, bool with_start, const Limits& limits) {
  const std::string what = "object";
  const std::string* const data = String(Find(&object, "data"));
  const std::optional<std::vector<std::int64_t>> shape = Integers(Find(&object, "shape"));
  if (data == nullptr || !shape.has_value()) {
    return Invalid(what, ": must have data, a string, and shape, a list of numbers");
  }
  const Json* const start = Find(&object, "start");
  if ((start != nullptr) != with_start) {
    return Invalid(what,
                   with_start ? ": start is required" : ": start is not a member of this format");
  }
  const absl::StatusOr<Dtype> dtype = DtypeAt(what, Find(&object, "dtype"));
  if (!dtype.ok()) return dtype.status();
  absl::StatusOr<RoutingArray> array = FromBase64(what, *data, *shape, *dtype, limits);
  if (!array.ok() || !with_start) return array;
  array->first = Integer(start);
  if (array->first.has_value()) return array;
  return Invalid(what, ": start must be a whole number; it is ", KindName(*start));
}

absl::StatusOr<RoutingArray> ReadNdarray(const Json& pair, const Limits& limits) {
  const std::string what = "ndarray";
  if (!IsList(pair, 2) || pair[0] != "ndarray") {
    return Invalid(what, ": must be [\"ndarray\", {data, dtype}]; it is ", KindName(pair));
  }
  const Json* const data = Find(&pair[1], "data");
  if (data == nullptr) return Invalid(what, ": data is required");
  const absl::StatusOr<Dtype> dtype = DtypeAt(what, Find(&pair[1], "dtype"));
  if (!dtype.ok()) return dtype.status();
  return ReadLists(*data, *dtype, limits);
}

void AppendNdarray(const RoutingArray& array, std::string& text) {
  text += R"(["ndarray",{"data":)";
  AppendLists(array, text);
  absl::StrAppend(&text, R"(,"dtype":")", std::string(DtypeName(array.dtype)), R"("}])");
}

}  // namespace waymark::formats
