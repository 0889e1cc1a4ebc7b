#include "adapters/formats/npy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "adapters/formats/json_value.h"
#include "blockstore/invalid.h"

namespace waymark::formats {
namespace {

constexpr std::size_t kMostHeader = 4096;
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kShown = 64;

// The beginning of a text from outside, for an error message.
std::string Shown(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, kShown))
    shown += c >= ' ' && c <= '~' ? c : '?';
  return shown;
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
  const absl::StatusOr<JsonText> parsed =
      ParseJson({reinterpret_cast<const std::uint8_t*>(json.data()), json.size()}, {});
  if (!parsed.ok()) return malformed(absl::StrCat("; as ", parsed.status().message()));
  const JsonValue root(*parsed);
  const std::string* const descr = root.Find("descr").String();
  const std::optional<bool> fortran_order = root.Find("fortran_order").Truth();
  const std::optional<std::vector<std::int64_t>> shape = root.Find("shape").Integers();
  if (descr == nullptr || !fortran_order.has_value() || !shape.has_value() || root.size() != 3) {
    return malformed(absl::StrCat(": '", Shown(text), "'"));
  }
  return Header{*descr, *fortran_order, *shape};
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

}  // namespace

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
    return Invalid(".npy: descr must be |u1, |i1, <u2, <i2, <i4 or <i8 (little-endian); it is '",
                   Shown(header->descr), "'");
  }
  const std::span<const std::uint8_t> data = bytes.subspan(head + length);
  std::size_t needed = 0;
  absl::Status status = CheckShape(".npy", header->shape, code->second, limits, needed);
  if (!status.ok()) return status;
  if (needed != data.size()) {
    return Invalid(".npy: the shape takes ", needed, " bytes; the data has ", data.size());
  }
  RoutingArray array;
  status = MakeArray(".npy", header->shape, code->second, limits, array);
  if (!status.ok()) return status;
  if (header->fortran_order) {
    ToCOrder(data, array);
  } else {
    std::copy(data.begin(), data.end(), array.ids.begin());
  }
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

}  // namespace waymark::formats
