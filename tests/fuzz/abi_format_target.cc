// The formats of others in the C ABI: rows_from_format, rows_to_format. The first bytes of an
// input choose what is said of the data, which is the rest, and how the rows of it are written.
// What was written without a loss is read again, and is the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugin/formats/conversion.h"
#include "plugin/waymark_wire.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/routing_samples.h"
#include "tests/support/wire_samples.h"

namespace waymark::fuzz {
namespace {

constexpr std::uint64_t kMaxBytes = 1 << 20;
// Of what was written within kMaxBytes: its text is longer, and its numbers take more room.
constexpr std::uint64_t kMaxBytesAgain = 1 << 26;
constexpr std::size_t kMostText = 600;

const wm_api_v1& Api() {
  return *wm_get_api_v1();
}

// What a byte chooses, by its place. 0, and an input that ends before, is what is usual.
enum Choice : std::size_t {
  kFormat,
  kField,
  kRowCount,
  kLayers,
  kSentinel,
  kDtype,
  kMoeLayers,
  kFirst,
  kNumLayers,
  kTopK,
  kNumExperts,
  kFlags,
  kMaxBytesOf,
  kStructSize,
  kOdd,
  kWhy,
  kCrcRight,  // not 0: the crc of a document's header is made right
  kWriteFormat,
  kWriteRowCount,
  kWriteLayers,
  kWriteSentinel,
  kWriteDtype,
  kWriteNumLayers,
  kWriteMaxBytes,
  kWriteStructSize,
  kWriteOdd,
  kWriteWhy,
  kAgain,
  kFieldText,
  kChoices = kFieldText + 8
};

// Odd calls, one oddity at a time.
enum Odd : std::uint8_t {
  kUsual,
  kLinkPassedOver,
  kNoNotes,
  kFewOddities,  // those above are legal, those below are refused
  kLinkRequired = kFewOddities,
  kReserved,
  kUnknownFlag,
  kNullData,
  kNullOut,
  kNullOptions,
  kNullList,
  kOddities
};

class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) {
    const std::size_t chosen = std::min<std::size_t>(bytes.size(), kChoices);
    std::copy_n(bytes.begin(), chosen, choices_);
    data_.assign(bytes.begin() + static_cast<std::ptrdiff_t>(chosen), bytes.end());
    if (choices_[kCrcRight] != 0) wire_samples::MakeDocumentCrcRight(data_);
    // A text of its own, ended by the 0 behind it.
    std::copy_n(choices_ + kFieldText, kChoices - kFieldText, field_);
  }
  std::uint8_t operator[](Choice choice) const { return choices_[choice]; }
  [[nodiscard]] const std::vector<std::uint8_t>& data() const { return data_; }
  // Bytes that may be a document claim what they like.
  [[nodiscard]] bool MayBeDocument() const { return formats::BeginsAsDocument(data_); }

  // The first of `words` is the usual one; a wrong one now and then.
  const char* Word(Choice choice, std::initializer_list<const char*> words) const {
    static const std::string kLong(300, 'x');
    static const char* const kWrong[] = {"", "no such word", "-2", "\xff\n", kLong.c_str()};
    const std::uint8_t byte = choices_[choice];
    if (byte >= 240) return kWrong[byte % std::size(kWrong)];
    return words.begin()[byte % words.size()];
  }
  const char* Field() const {
    static const std::string kLong = "/" + std::string(300, 'x');
    static const char* const kFields[] = {
        nullptr, "",  "/routed_experts", "/meta_info/routed_experts", "/0", "/1/data", "routed",
        "/~0~1", "/~"};
    const std::uint8_t byte = choices_[kField];
    if (byte >= 240) return kLong.c_str();
    if (byte >= 128) return field_;
    return kFields[byte % std::size(kFields)];
  }
  std::int32_t Number(Choice choice) const {
    static constexpr std::int32_t kEdges[] = {300,  256,   255,   1024,      1025,      4096, 4097,
                                              4095, 65535, 65536, INT32_MAX, INT32_MIN, -1,   512};
    const std::uint8_t byte = choices_[choice];
    return byte < 200 ? byte : kEdges[byte % std::size(kEdges)];
  }
  // Never the default, which is 2^32.
  std::uint64_t MaxBytes(Choice choice) const {
    return choices_[choice] == 0 ? kMaxBytes : std::uint64_t{choices_[choice]} << 3;
  }
  // What it says is there is there, and it ends behind a whole field.
  std::uint32_t Size(Choice choice) const {
    static constexpr std::uint32_t kGarbage[] = {0, 7, 65537, ~0u};
    const std::uint8_t byte = choices_[choice];
    if (byte >= 248) return kGarbage[byte % std::size(kGarbage)];
    if (byte < 128 || MayBeDocument()) return sizeof(wm_format_options);
    return 8 * (1 + byte % (sizeof(wm_format_options) / 8));
  }
  Odd Oddity(Choice choice) const {
    return static_cast<Odd>(choices_[choice] < 16 ? choices_[choice] % kOddities : kUsual);
  }

 private:
  std::uint8_t choices_[kChoices] = {};
  char field_[kChoices - kFieldText + 1] = {};
  std::vector<std::uint8_t> data_;
};

bool IsLine(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<std::uint8_t>(c) < ' ' || c == '\x7f'; });
}

// Where a call says why.
class Why {
 public:
  explicit Why(std::uint8_t choice) {
    message_.text = choice == 255 ? nullptr : text_;
    message_.capacity = choice == 0 ? sizeof(text_) : message_.text == nullptr ? 0 : choice % 64;
    message_.size = 77;
    given_ = choice != 254;
  }
  wm_message* get() { return given_ ? &message_ : nullptr; }

  void Check(wm_status status) const {
    Require(status >= WM_OK && status <= WM_DATA_LOSS, "a status is one");
    Require(status != WM_INTERNAL, "nothing is a defect of the library");
    if (!given_) return;
    Require((message_.size > 0) == (status != WM_OK), "a refusal says why, and nothing else does");
    Require(message_.size < kMostText, "in a text that can be read");
    if (message_.capacity == 0) return;
    const std::size_t size = std::strlen(text_);
    Require(size == std::min(message_.size, message_.capacity - 1), "of which what fits is there");
    Require(IsLine({text_, size}), "and is one line");
  }

 private:
  char text_[1024] = {};
  wm_message message_ = {};
  bool given_ = true;
};

// What an output is before the call: one that is not written stays so.
char untouched;
template <class H>
H* Untouched() {
  return reinterpret_cast<H*>(&untouched);
}

// The lines of `notes`.
int Lines(const wm_bytes* notes) {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  Require(Api().wire->bytes_view(notes, &data, &size) == WM_OK, "notes are bytes");
  std::string_view text(reinterpret_cast<const char*>(data), size);
  int lines = 0;
  for (; !text.empty(); ++lines) {
    const std::size_t end = text.find('\n');
    Require(end != std::string_view::npos && end > 0, "notes are lines, each with its end");
    Require(end < kMostText && IsLine(text.substr(0, end)), "and can be read");
    text.remove_prefix(end + 1);
  }
  return lines;
}

// What can be seen of rows, which have to be as rows are.
struct Seen {
  explicit Seen(const wm_rows* rows) {
    shape.struct_size = sizeof(shape);
    view.struct_size = sizeof(view);
    Require(Api().rows_shape(rows, &shape) == WM_OK && Api().rows_view(rows, &view) == WM_OK,
            "rows can be looked at");
    Require(shape.id_bytes == (shape.num_experts <= 256 ? 1u : 2u), "ids take what E needs");
    Require(shape.row_bytes == row_ids() * shape.id_bytes, "a row takes what its ids take");
    Require(view.first >= 0 && view.count >= 0 && view.first + view.count <= INT32_MAX,
            "rows are in their bounds");
    for (std::int64_t row = 0; row < view.count; ++row)
      LookAt(row);
  }

  [[nodiscard]] std::size_t row_ids() const {
    return static_cast<std::size_t>(shape.num_layers) * static_cast<std::size_t>(shape.top_k);
  }
  [[nodiscard]] bool valid(std::int64_t row) const {
    return view.infos[row].reason == WM_REASON_NONE;
  }
  [[nodiscard]] const std::uint8_t* ids(std::int64_t row) const {
    return view.ids + static_cast<std::size_t>(row) * shape.row_bytes;
  }

  wm_shape shape = {};
  wm_rows_view view = {};
  std::int64_t missing = 0;
  bool distinct = true;     // no id is twice in a layer
  bool only_ids = true;     // nothing more is known of a row
  bool of_an_array = true;  // reasons are those that an array can have

 private:
  void LookAt(std::int64_t row) {
    const wm_row_info& info = view.infos[row];
    only_ids = only_ids && (!valid(row) || (info.step == 0 && info.version == 0 &&
                                            info.provenance == WM_PROVENANCE_HERE));
    of_an_array = of_an_array && info.step == 0 && info.version == 0 &&
                  info.provenance == WM_PROVENANCE_HERE &&
                  (valid(row) || info.reason == WM_REASON_NEVER_WRITTEN ||
                   info.reason == WM_REASON_NOT_CAPTURED || info.reason == WM_REASON_INVALID_ID);
    Require(info.reason <= WM_REASON_AUDIT, "a reason is one");
    const std::uint8_t* bytes = ids(row);
    if (!valid(row)) {
      ++missing;
      Require(
          info.step == 0 && info.version == 0 &&
              std::all_of(bytes, bytes + shape.row_bytes, [](std::uint8_t b) { return b == 0; }),
          "a missing row is empty");
      return;
    }
    const auto top_k = static_cast<std::size_t>(shape.top_k);
    std::vector<std::int32_t> layer(top_k);
    for (std::size_t at = 0; at < row_ids(); at += top_k) {
      for (std::size_t k = 0; k < top_k; ++k) {
        layer[k] = shape.id_bytes == 1 ? bytes[at + k]
                                       : bytes[2 * (at + k)] | bytes[2 * (at + k) + 1] << 8;
      }
      std::sort(layer.begin(), layer.end());
      Require(layer.back() < shape.num_experts, "an id is below E");
      distinct &= std::adjacent_find(layer.begin(), layer.end()) == layer.end();
    }
  }
};

// The fields that the library has been given.
wm_format_options Given(const wm_format_options& options) {
  wm_format_options given = {};
  std::memcpy(&given, &options, std::min<std::size_t>(options.struct_size, sizeof(given)));
  return given;
}

// What was said of the bytes is so of their rows.
void CheckAsSaid(const Input& input, const wm_format_options& said, const Seen& seen) {
  const std::string_view format = said.format == nullptr ? "" : said.format;
  if (format == formats::kDocumentName || (format.empty() && input.MayBeDocument())) {
    Require(said.num_experts == 0 || said.num_experts == seen.shape.num_experts, "E is as said");
    Require(said.top_k == 0 || said.top_k == seen.shape.top_k, "K is as said");
    Require((said.flags & WM_FORMAT_FIRST) == 0 || said.first == seen.view.first,
            "the first row is the one that was said");
    return;
  }
  Require(seen.of_an_array && seen.distinct, "rows of an array are ids, each once in a layer");
  Require((seen.view.flags & WM_ROWS_SORTED) == 0, "in the order of the array");
  Require(said.num_experts == seen.shape.num_experts, "E is as said");
  Require(said.top_k == 0 || said.top_k == seen.shape.top_k, "K is as said");
  if ((said.flags & WM_FORMAT_FIRST) != 0) {
    Require(said.first == seen.view.first, "the first row is the one that was said");
  }
  if (said.num_moe_layers != 0) {
    Require(std::equal(said.moe_layers, said.moe_layers + said.num_moe_layers, seen.shape.layer_ids,
                       seen.shape.layer_ids + seen.shape.num_layers),
            "the layers are those that were said");
  }
}

// REQUIRES: there is a format of that name.
const formats::FormatInfo& InfoNamed(const char* name) {
  std::optional<formats::Format> format;
  Require(formats::SetFormat("", name, format).ok() && format.has_value(), "a format has its name");
  return formats::InfoOf(*format);
}

// Reads what was written of `seen` as `written` says, and requires the same rows.
void ReadAgain(const Input& input, const Seen& seen, const wm_format_options& written,
               const wm_bytes* bytes) {
  const formats::FormatInfo& info = InfoNamed(written.format);
  std::optional<formats::RowCount> row_count = info.conventions.rows;
  std::optional<formats::LayerAxis> layers = info.conventions.layers;
  std::optional<formats::Sentinel> sentinel = info.conventions.sentinel;
  const auto word = [](const char* text) { return std::string_view(text == nullptr ? "" : text); };
  Require(formats::SetRowCount("", word(written.row_count), row_count).ok() &&
              formats::SetLayerAxis("", word(written.layers), layers).ok() &&
              formats::SetSentinel("", word(written.sentinel), sentinel).ok(),
          "what was written was written as said");
  const bool placeholder = *row_count == formats::RowCount::kTokens;
  Require(*sentinel != formats::Sentinel::kNone || (seen.missing == 0 && !placeholder),
          "rows that are not there have a place");
  // Every reader takes such rows for routes, or refuses the sentinel.
  const wm_shape& shape = seen.shape;
  if (*sentinel == formats::Sentinel::kArange ||
      (*sentinel == formats::Sentinel::kZeros && shape.top_k == 1) ||
      (*sentinel == formats::Sentinel::k255 && shape.top_k == 1 && shape.num_experts > 255)) {
    return;
  }
  // No array has such rows.
  if (!seen.distinct) return;
  // Lists of nothing have no shape.
  const bool lists = info.format == formats::Format::kVllmLists ||
                     info.format == formats::Format::kMegatron ||
                     info.format == formats::Format::kMegatronNdarray;
  if (lists && seen.view.count == 0 && !placeholder) return;

  wm_format_options options = {};
  options.struct_size = sizeof(options);
  // Bare ids could be anything.
  const bool told = (input[kAgain] & 1) != 0 && info.format != formats::Format::kSglang;
  options.format = told ? nullptr : written.format;
  options.row_count = written.row_count;
  options.layers = written.layers;
  options.sentinel = written.sentinel;
  options.moe_layers = shape.layer_ids;
  options.num_moe_layers = static_cast<std::uint64_t>(shape.num_layers);
  options.num_layers =
      *layers == formats::LayerAxis::kAllLayers ? written.num_layers : shape.num_layers;
  options.top_k = shape.top_k;
  options.num_experts = shape.num_experts;
  options.max_bytes = kMaxBytesAgain;
  if ((input[kAgain] & 2) != 0 || !formats::FormatKeepsStart(info.format)) {
    options.flags = WM_FORMAT_FIRST;
    options.first = seen.view.first;
  }
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  Require(Api().wire->bytes_view(bytes, &data, &size) == WM_OK, "what was written are bytes");
  wm_rows* rows = nullptr;
  Why why(0);
  const wm_status status =
      Api().wire->rows_from_format(data, size, &options, &rows, nullptr, why.get());
  why.Check(status);
  if (status != WM_OK) std::fprintf(stderr, "%s\n", why.get()->text);
  Require(status == WM_OK, "what was written is read");
  const Seen again(rows);
  Require(again.view.first == seen.view.first && again.view.count == seen.view.count,
          "it has the same rows");
  Require(again.shape.top_k == shape.top_k && again.shape.num_experts == shape.num_experts &&
              std::equal(shape.layer_ids, shape.layer_ids + shape.num_layers, again.shape.layer_ids,
                         again.shape.layer_ids + again.shape.num_layers),
          "in the same shape");
  for (std::int64_t row = 0; row < seen.view.count; ++row) {
    Require(seen.valid(row) == again.valid(row), "as many rows are there");
    Require(std::equal(seen.ids(row), seen.ids(row) + shape.row_bytes, again.ids(row)),
            "ids stay as they were");
  }
  Api().rows_release(rows);
}

// What is not in the bytes that were written: each is told.
int Losses(const Seen& seen, const wm_format_options& written) {
  const formats::FormatInfo& info = InfoNamed(written.format);
  std::optional<formats::Sentinel> sentinel = info.conventions.sentinel;
  if (written.sentinel != nullptr) (void)formats::SetSentinel("", written.sentinel, sentinel);
  const wm_shape& shape = seen.shape;
  const bool route =
      *sentinel == formats::Sentinel::kArange ||
      (*sentinel == formats::Sentinel::kZeros && shape.top_k == 1) ||
      (*sentinel == formats::Sentinel::k255 && shape.top_k == 1 && shape.num_experts > 255);
  return (seen.missing > 0 ? 1 + route : 0) + !seen.only_ids +
         ((seen.view.flags & WM_ROWS_SORTED) != 0) +
         (seen.view.first != 0 && !formats::FormatKeepsStart(info.format));
}

void Write(const Input& input, const wm_rows* rows) {
  const Seen seen(rows);
  wm_ext link = {sizeof(link), 1234, nullptr};
  wm_format_options options = {};
  options.struct_size = input.Size(kWriteStructSize);
  options.format = input.Word(
      kWriteFormat, {"npy", "vllm", "vllm-lists", "sglang", "megatron", "megatron-ndarray",
                     "nemo-rl", "skyrl", "prime-rl", "lmdeploy", "waymark", nullptr});
  options.row_count = input.Word(kWriteRowCount, {nullptr, "tokens-1", "tokens"});
  options.layers = input.Word(kWriteLayers, {nullptr, "moe", "all"});
  options.sentinel =
      input.Word(kWriteSentinel, {nullptr, "-1", "zeros", "255", "65535", "arange", "none"});
  options.dtype =
      input.Word(kWriteDtype, {nullptr, "int8", "uint8", "int16", "uint16", "int32", "int64"});
  // Enough of them, as a rule.
  options.num_layers = input[kWriteNumLayers] < 4
                           ? std::min(seen.shape.layer_ids[seen.shape.num_layers - 1], 8192) + 1 +
                                 input[kWriteNumLayers]
                           : input.Number(kWriteNumLayers);
  options.max_bytes = input.MaxBytes(kWriteMaxBytes);
  const Odd odd = input.Oddity(kWriteOdd);
  if (odd == kLinkRequired) link.type |= WM_EXT_REQUIRED;
  if (odd == kLinkRequired || odd == kLinkPassedOver) options.ext = &link;
  if (odd == kReserved) options.reserved = 1;
  if (odd == kUnknownFlag) options.flags = WM_FORMAT_FIRST;
  if (odd == kNullList) options.num_moe_layers = 1;
  const wm_format_options given = Given(options);

  wm_bytes* bytes = Untouched<wm_bytes>();
  wm_bytes* notes = Untouched<wm_bytes>();
  Why why(input[kWriteWhy]);
  const wm_status status = Api().wire->rows_to_format(
      odd == kNullData ? nullptr : rows, odd == kNullOptions ? nullptr : &options,
      odd == kNullOut ? nullptr : &bytes, odd == kNoNotes ? nullptr : &notes, why.get());
  why.Check(status);
  Require((bytes != Untouched<wm_bytes>()) == (status == WM_OK), "bytes come with OK");
  Require((notes != Untouched<wm_bytes>()) == (status == WM_OK && odd != kNoNotes),
          "notes come with OK");
  if (status != WM_OK) return;
  // What lies behind struct_size is not seen.
  Require(odd < kFewOddities || options.struct_size < sizeof(options), "what is wrong is refused");
  if (odd != kNoNotes) {
    Require(Lines(notes) == Losses(seen, given), "every loss is told, and nothing else");
    Api().wire->bytes_release(notes);
  }
  ReadAgain(input, seen, given, bytes);
  Api().wire->bytes_release(bytes);
}

}  // namespace

void RunOne(std::span<const std::uint8_t> bytes) {
  const Input input(bytes);
  std::int32_t moe_layers[64];
  wm_ext link = {sizeof(link), 1234, nullptr};
  wm_format_options options = {};
  options.struct_size = input.Size(kStructSize);
  options.format = input.Word(
      kFormat, {nullptr, "npy", "vllm", "vllm-lists", "sglang", "megatron", "megatron-ndarray",
                "nemo-rl", "skyrl", "prime-rl", "lmdeploy", "waymark"});
  options.field = input.Field();
  options.row_count = input.Word(kRowCount, {nullptr, "tokens-1", "tokens"});
  options.layers = input.Word(kLayers, {nullptr, "moe", "all"});
  options.sentinel =
      input.Word(kSentinel, {nullptr, "-1", "zeros", "255", "65535", "arange", "none"});
  options.dtype =
      input.Word(kDtype, {nullptr, "int8", "uint8", "int16", "uint16", "int32", "int64"});
  // The low bits say how many, the high ones which.
  const std::uint8_t list = input[kMoeLayers];
  for (std::size_t i = 0; i < std::size(moe_layers); ++i)
    moe_layers[i] = static_cast<std::int32_t>(i * (list >> 7 & 1 ? 3 : 1) + (list >> 6 & 1));
  if (list == 254) std::reverse(std::begin(moe_layers), std::end(moe_layers));
  if (list == 253) moe_layers[2] = INT32_MIN;
  if (list == 252) moe_layers[2] = INT32_MAX;
  options.num_moe_layers = list == 255 ? 4097 : list == 251 ? std::uint64_t{1} << 40 : list & 63;
  options.moe_layers = options.num_moe_layers == 0 ? nullptr : moe_layers;
  static constexpr std::int64_t kFirsts[] = {INT64_MIN, INT64_MAX, -1,
                                             INT32_MAX, 1ll << 31, INT32_MAX - 5};
  options.first = input[kFirst] < 128 ? input[kFirst] : kFirsts[input[kFirst] % std::size(kFirsts)];
  options.num_layers = input.Number(kNumLayers);
  options.top_k = input.Number(kTopK);
  options.num_experts = input.Number(kNumExperts);
  options.flags = input[kFlags] < 240 ? input[kFlags] & 3 : 0;
  // Said without its flag it is refused.
  if ((options.flags & WM_FORMAT_FIRST) == 0 && input[kFirst] != 200) options.first = 0;
  options.max_bytes = input.MaxBytes(kMaxBytesOf);
  const Odd odd = input.Oddity(kOdd);
  if (odd == kLinkRequired) link.type |= WM_EXT_REQUIRED;
  if (odd == kLinkRequired || odd == kLinkPassedOver) options.ext = &link;
  if (odd == kReserved) options.reserved = 1;
  if (odd == kUnknownFlag) options.flags |= 4;
  if (odd == kNullList) {
    options.moe_layers = nullptr;
    options.num_moe_layers = 1;
  }
  const wm_format_options given = Given(options);

  const std::vector<std::uint8_t>& data = input.data();
  // Without options a document's room is the default's.
  const bool no_options = odd == kNullOptions && !input.MayBeDocument();
  wm_rows* rows = Untouched<wm_rows>();
  wm_bytes* notes = Untouched<wm_bytes>();
  Why why(input[kWhy]);
  const wm_status status = Api().wire->rows_from_format(
      odd == kNullData ? nullptr : data.data(), data.size(), no_options ? nullptr : &options,
      odd == kNullOut ? nullptr : &rows, odd == kNoNotes ? nullptr : &notes, why.get());
  why.Check(status);
  Require((rows != Untouched<wm_rows>()) == (status == WM_OK), "rows come with OK");
  Require((notes != Untouched<wm_bytes>()) == (status == WM_OK && odd != kNoNotes),
          "notes come with OK");
  if (status != WM_OK) return;
  Require(odd < kFewOddities || odd == kNullOptions || options.struct_size < sizeof(options),
          "what is wrong is refused");
  if (odd != kNoNotes) {
    (void)Lines(notes);
    Api().wire->bytes_release(notes);
  }
  CheckAsSaid(input, given, Seen(rows));
  Write(input, rows);
  Api().rows_release(rows);
}

namespace {

std::string InputOf(std::initializer_list<std::pair<Choice, int>> choices,
                    const std::string& data) {
  std::string input(kChoices, '\0');
  for (const auto& [choice, byte] : choices)
    input[choice] = static_cast<char>(byte);
  return input + data;
}

// Five rows, of which one is missing.
std::string DocumentOf(std::int32_t codec) {
  const std::int32_t layer_ids[] = {1, 2, 3};
  wm_shape shape = {};
  shape.struct_size = sizeof(shape);
  shape.num_layers = 3;
  shape.top_k = 2;
  shape.num_experts = 16;
  shape.layer_ids = layer_ids;
  std::vector<std::uint8_t> ids(5 * 3 * 2);
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::uint8_t>(i * 7 % 16);
  std::fill_n(ids.begin() + 2 * 6, 6, std::uint8_t{0});
  std::vector<wm_row_info> infos(5, wm_row_info{7, 1, WM_REASON_NONE, WM_PROVENANCE_HERE, {}});
  infos[2] = {0, 0, WM_REASON_CAPACITY, WM_PROVENANCE_HERE, {}};
  const wm_rows_view view = {sizeof(view), 0, 2, 5, ids.data(), infos.data()};
  wm_chunk_code code = {};
  code.struct_size = sizeof(code);
  code.codec = codec;
  const wm_document_options options = {sizeof(options), 0, nullptr, &code};
  wm_rows* rows = nullptr;
  wm_bytes* document = nullptr;
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  Require(Api().rows_create(&shape, &view, &rows, nullptr) == WM_OK &&
              Api().wire->rows_document(rows, &options, &document, nullptr) == WM_OK &&
              Api().wire->bytes_view(document, &data, &size) == WM_OK,
          "a document can be made");
  std::string bytes(data, data + size);
  Api().wire->bytes_release(document);
  Api().rows_release(rows);
  return bytes;
}

}  // namespace

std::vector<std::string> Corpus() {
  constexpr int k300 = 210, kSglang = 4, kToAll = 2, kToMinusOne = 1, kThreeFromOne = 64 | 3;
  std::vector<std::string> corpus;
  int to = 0;  // each of the formats in turn
  const auto next = [&to] { return to++ % 7; };
  for (const std::string& sample : RoutingSamples({".npy", ".json", ".txt"})) {
    corpus.push_back(InputOf(
        {{kNumExperts, k300}, {kFlags, WM_FORMAT_ALL_MOE}, {kWriteFormat, next()}}, sample));
    corpus.push_back(InputOf({{kNumExperts, k300},
                              {kLayers, 1},
                              {kMoeLayers, kThreeFromOne},
                              {kWriteFormat, next()},
                              {kWriteLayers, kToAll},
                              {kWriteSentinel, kToMinusOne},
                              {kWriteDtype, 5},
                              {kAgain, 3}},
                             sample));
    corpus.push_back(InputOf({{kNumExperts, k300},
                              {kFormat, kSglang},
                              {kTopK, 2},
                              {kNumLayers, 3},
                              {kFlags, WM_FORMAT_ALL_MOE},
                              {kWriteFormat, next()}},
                             sample));
    corpus.push_back(InputOf({{kNumExperts, k300},
                              {kNumLayers, 5},
                              {kLayers, 2},
                              {kMoeLayers, kThreeFromOne},
                              {kWriteFormat, next()}},
                             sample));
  }
  // An id that is E, and every odd call of rows that could else be read and written.
  const std::string array = RoutingSamples({".npy"}).front();
  corpus.push_back(InputOf({{kNumExperts, 15}, {kFlags, WM_FORMAT_ALL_MOE}}, array));
  for (int odd = kUsual; odd < kOddities; ++odd) {
    corpus.push_back(InputOf({{kNumExperts, k300}, {kOdd, odd}}, array));
    corpus.push_back(InputOf({{kNumExperts, k300}, {kWriteOdd, odd}}, array));
  }
  // Structs of every size.
  for (std::size_t i = 0; i < sizeof(wm_format_options) / 8; ++i) {
    const int size = static_cast<int>(128 + i);
    corpus.push_back(InputOf({{kNumExperts, k300}, {kStructSize, size}}, array));
    corpus.push_back(InputOf({{kNumExperts, k300},
                              {kWriteRowCount, 2},
                              {kWriteSentinel, kToMinusOne},
                              {kWriteStructSize, size}},
                             array));
  }
  // One more than the greatest number of a layer was an overflow.
  corpus.push_back(InputOf({{kNumExperts, k300}, {kMoeLayers, 252}}, array));
  // Was shown as it is, in a refusal of several lines.
  corpus.push_back(InputOf({{kField, 128}, {kFieldText, '\n'}}, "{}"));
  // A document says it itself.
  for (const auto& said :
       {std::pair{kNumExperts, 16}, {kTopK, 2}, {kMoeLayers, kThreeFromOne}, {kFlags, 1}}) {
    corpus.push_back(InputOf({said, {kWriteSentinel, kToMinusOne}}, DocumentOf(WM_CODEC_RAW)));
  }
  for (const std::int32_t codec : {WM_CODEC_RAW, WM_CODEC_SET}) {
    for (int format = 0; format < 7; ++format) {
      corpus.push_back(InputOf({{kWriteFormat, format},
                                {kWriteSentinel, kToMinusOne},
                                {kWriteDtype, format == 1 || format == 3 ? 5 : 0},
                                {kCrcRight, format % 2}},
                               DocumentOf(codec)));
    }
  }
  return corpus;
}

}  // namespace waymark::fuzz
