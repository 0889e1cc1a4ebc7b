#include "adapters/formats/npy.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waymark::formats {
namespace {

constexpr std::size_t kMostHeader = 4096;
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kShown = 16;

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(".npy: ", what));
}

// The beginning of a text from outside, for an error message.
std::string Shown(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, kShown))
    shown += c >= ' ' && c <= '~' ? c : '?';
  return shown;
}

// The header: a Python dictionary of three known keys.
struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

// Reads the subset of Python that the header uses. Every method advances behind what it read.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool Take(char c) {
    SkipSpaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool TakeWord(std::string_view word) {
    SkipSpaces();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  std::optional<std::string> TakeString() {
    SkipSpaces();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return std::nullopt;
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return std::nullopt;
    std::string value(text_.substr(at_ + 1, end - at_ - 1));
    if (value.find('\\') != std::string::npos) return std::nullopt;
    at_ = end + 1;
    return value;
  }
  // nullopt above 2^53; the bounds of axes are far below.
  std::optional<std::int64_t> TakeNumber() {
    SkipSpaces();
    const std::size_t begin = at_;
    std::int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = value * 10 + (text_[at_] - '0');
      if (value > std::int64_t{1} << 53) return std::nullopt;
    }
    if (at_ == begin) return std::nullopt;
    return value;
  }
  bool AtEnd() {
    SkipSpaces();
    return at_ == text_.size();
  }
  [[nodiscard]] std::string_view rest() const { return text_.substr(at_); }

 private:
  void SkipSpaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n'))
      ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

std::optional<std::vector<std::int64_t>> TakeShape(Scanner& scanner) {
  if (!scanner.Take('(')) return std::nullopt;
  std::vector<std::int64_t> shape;
  while (!scanner.Take(')')) {
    const std::optional<std::int64_t> axis = scanner.TakeNumber();
    if (!axis.has_value()) return std::nullopt;
    shape.push_back(*axis);
    if (scanner.Take(',')) continue;
    if (!scanner.Take(')')) return std::nullopt;
    break;
  }
  return shape;
}

absl::Status ParseHeader(std::string_view text, Header& header) {
  Scanner scanner(text);
  const auto malformed = [&] {
    return Bad(absl::StrCat("the header is not a dictionary of descr, fortran_order and shape: '",
                            Shown(scanner.rest()), "'"));
  };
  if (!scanner.Take('{')) return malformed();
  while (!scanner.Take('}')) {
    const std::optional<std::string> key = scanner.TakeString();
    if (!key.has_value() || !scanner.Take(':')) return malformed();
    bool fresh = false;
    if (*key == "descr") {
      fresh = !header.descr.has_value();
      header.descr = scanner.TakeString();
      if (!header.descr.has_value()) return malformed();
    } else if (*key == "fortran_order") {
      fresh = !header.fortran_order.has_value();
      if (scanner.TakeWord("True")) {
        header.fortran_order = true;
      } else if (scanner.TakeWord("False")) {
        header.fortran_order = false;
      } else {
        return malformed();
      }
    } else if (*key == "shape") {
      fresh = !header.shape.has_value();
      header.shape = TakeShape(scanner);
      if (!header.shape.has_value()) return malformed();
    }
    if (!fresh)
      return Bad(absl::StrCat("header key '", Shown(*key), "' is unknown or occurs twice"));
    if (scanner.Take(',')) continue;
    if (!scanner.Take('}')) return malformed();
    break;
  }
  if (!scanner.AtEnd()) return malformed();
  if (!header.descr || !header.fortran_order || !header.shape) {
    return Bad("the header must have descr, fortran_order and shape");
  }
  return absl::OkStatus();
}

std::optional<Dtype> DtypeOf(const std::string& descr) {
  static constexpr std::pair<std::string_view, Dtype> kCodes[] = {
      {"|i1", Dtype::kInt8},  {"|u1", Dtype::kUint8}, {"<i1", Dtype::kInt8},
      {"<u1", Dtype::kUint8}, {"<i2", Dtype::kInt16}, {"<u2", Dtype::kUint16},
      {"<i4", Dtype::kInt32}, {"<i8", Dtype::kInt64}};
  for (const auto& [code, dtype] : kCodes) {
    if (descr == code) return dtype;
  }
  return std::nullopt;
}

std::string_view CodeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kInt8:
      return "|i1";
    case Dtype::kUint8:
      return "|u1";
    case Dtype::kInt16:
      return "<i2";
    case Dtype::kUint16:
      return "<u2";
    case Dtype::kInt32:
      return "<i4";
    case Dtype::kInt64:
      return "<i8";
  }
  return "";
}

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
    return Bad("it does not begin with the magic bytes of an .npy file");
  }
  const int version = bytes[6];
  if (version < 1 || version > 3 || bytes[7] != 0) {
    return Bad(
        absl::StrCat("the version must be 1.0, 2.0 or 3.0; it is ", version, ".", int{bytes[7]}));
  }
  const std::size_t head = version == 1 ? 10 : 12;
  if (bytes.size() < head) return Bad("it ends inside its header");
  std::size_t length = bytes[8] | (std::size_t{bytes[9]} << 8);
  if (version > 1) length |= (std::size_t{bytes[10]} << 16) | (std::size_t{bytes[11]} << 24);
  if (length > kMostHeader) {
    return Bad(
        absl::StrCat("the header must have at most ", kMostHeader, " bytes; it has ", length));
  }
  if (length > bytes.size() - head) return Bad("it ends inside its header");
  Header header;
  const std::string text(bytes.begin() + static_cast<std::ptrdiff_t>(head),
                         bytes.begin() + static_cast<std::ptrdiff_t>(head + length));
  if (absl::Status status = ParseHeader(text, header); !status.ok()) return status;
  const std::optional<Dtype> dtype = DtypeOf(*header.descr);
  if (!dtype.has_value()) {
    return Bad(absl::StrCat("descr must be |u1, |i1, <u2, <i2, <i4 or <i8 (little-endian); it is '",
                            Shown(*header.descr), "'"));
  }
  const std::span<const std::uint8_t> data = bytes.subspan(head + length);
  std::size_t needed = 0;
  if (absl::Status status = CheckShape(".npy", *header.shape, *dtype, limits, needed);
      !status.ok()) {
    return status;
  }
  if (needed != data.size()) {
    return Bad(absl::StrCat("the shape takes ", needed, " bytes; the data has ", data.size()));
  }
  RoutingArray array;
  if (absl::Status status = MakeArray(".npy", *header.shape, *dtype, limits, array); !status.ok()) {
    return status;
  }
  if (*header.fortran_order) {
    ToCOrder(data, array);
  } else {
    std::copy(data.begin(), data.end(), array.ids.begin());
  }
  return array;
}

std::vector<std::uint8_t> WriteNpy(const RoutingArray& array) {
  std::string header = absl::StrCat("{'descr': '", std::string(CodeOf(array.dtype)),
                                    "', 'fortran_order': False, 'shape': (", array.rows, ", ",
                                    array.layers, ", ", array.top_k, "), }");
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
