#include "adapters/cli/routing_input.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "adapters/cli/console.h"
#include "blockstore/wire/document.h"

namespace waymark::cli {
namespace {

using formats::Conventions;
using formats::Dtype;
using formats::Format;
using formats::LayerAxis;
using formats::RowCount;
using formats::Sentinel;

constexpr int kMostLayers = 4096;
// What every document begins with.
constexpr std::uint8_t kDocumentStart[4] = {0x89, 'W', 'M', 'K'};

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(what);
}

// Everything that `path` gives, be it a file or a pipe.
absl::StatusOr<std::vector<std::uint8_t>> Slurp(const std::string& path, std::size_t limit) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::vector<std::uint8_t> bytes;
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size <= limit) bytes.reserve(static_cast<std::size_t>(size) + kPiece);
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError("it cannot be read");
  std::size_t got = 0;
  do {
    const std::size_t end = bytes.size();
    bytes.resize(end + kPiece);
    got = std::fread(bytes.data() + end, 1, kPiece, file);
    bytes.resize(end + got);
  } while (got > 0 && bytes.size() <= limit);
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return absl::NotFoundError("it cannot be read");
  if (bytes.size() > limit) {
    return absl::ResourceExhaustedError("it has more bytes than --max-memory-mb allows");
  }
  return bytes;
}

absl::StatusOr<RoutingFile> LoadDocument(std::span<const std::uint8_t> bytes,
                                         const InputOptions& options, std::size_t limit) {
  const std::pair<const char*, bool> given[] = {
      {"--field", !options.field.empty()},   {"--rows", !options.rows.empty()},
      {"--layers", !options.layers.empty()}, {"--sentinel", !options.sentinel.empty()},
      {"--start", options.start >= 0},       {"--moe-layers", !options.moe_layers.empty()},
      {"--experts", options.experts != 0},   {"--top-k", options.top_k != 0},
      {"--dtype", !options.dtype.empty()}};
  for (const auto& [name, is_given] : given) {
    if (is_given) return Bad(absl::StrCat(name, " is for arrays; this is a Waymark document"));
  }
  wire::ReadLimits limits;
  limits.max_bytes = limit;
  const absl::StatusOr<wire::Document> document = wire::Document::Open(bytes, limits);
  if (!document.ok()) return document.status();
  wire::ReadDamage damage;
  absl::StatusOr<Rows> rows = document->ReadRows(document->All(), &damage);
  if (!rows.ok()) return rows.status();
  RoutingFile file;
  file.format = std::string(kDocumentName);
  file.rows = *std::move(rows);
  file.what = absl::StrCat("a Waymark document of ", file.rows.size(), " rows");
  if (!file.rows.ordered) {
    file.notes.emplace_back("the ids of a layer are ascending: the router's order is not kept");
  }
  if (document->truncated()) file.notes.emplace_back("the file is cut off");
  if (damage.any()) {
    file.notes.push_back(absl::StrCat(damage.damaged_chunks, " chunks are damaged, ",
                                      damage.absent_chunks, " are absent, and ",
                                      damage.invalid_rows, " rows have ids that cannot be"));
  }
  return file;
}

absl::StatusOr<RoutingFile> LoadArray(std::span<const std::uint8_t> bytes,
                                      const InputOptions& options, bool columns_may_be_layers,
                                      std::size_t limit) {
  formats::ReadOptions read;
  read.limits.max_bytes = limit;
  read.field = options.field;
  read.top_k = options.top_k;
  read.num_experts = options.experts;
  if (!options.format.empty()) {
    read.format = formats::FormatNamed(options.format);
    if (!read.format.has_value()) return Bad("--format: there is no '" + options.format + "'");
  }
  if (!options.dtype.empty()) {
    read.dtype = formats::DtypeNamed(options.dtype);
    if (!read.dtype.has_value()) return Bad("--dtype: there is no '" + options.dtype + "'");
  }
  formats::Model model;
  model.num_experts = options.experts;
  model.num_layers = options.num_layers;
  // Bare ids do not say how many columns they have; the model does.
  Conventions conventions;
  if (read.format.has_value()) conventions = formats::InfoOf(*read.format).conventions;
  if (absl::Status status = SetLayerAxis("--layers", options.layers, conventions); !status.ok()) {
    return status;
  }
  read.layers = options.num_layers;
  if (conventions.layers == LayerAxis::kMoeLayers && !options.moe_layers.empty() &&
      options.moe_layers != "all") {
    const auto layers = ParseLayers(options.moe_layers, options.num_layers);
    if (!layers.ok()) return layers.status();
    read.layers = static_cast<std::int32_t>(layers->size());
  }
  absl::StatusOr<formats::ReadResult> result = formats::ReadArray(bytes, read);
  if (!result.ok()) return result.status();
  const formats::RoutingArray& array = result->array;
  const formats::FormatInfo& info = formats::InfoOf(result->format);

  conventions = info.conventions;
  for (const absl::Status& status : {SetRowCount("--rows", options.rows, conventions),
                                     SetLayerAxis("--layers", options.layers, conventions),
                                     SetSentinel("--sentinel", options.sentinel, conventions)}) {
    if (!status.ok()) return status;
  }
  if (!options.moe_layers.empty()) {
    auto layers = ParseLayers(options.moe_layers, array.layers);
    if (!layers.ok()) return layers.status();
    model.moe_layers = *std::move(layers);
  } else if (columns_may_be_layers && conventions.layers == LayerAxis::kAllLayers) {
    conventions.layers = LayerAxis::kMoeLayers;
  }
  RoutingFile file;
  if (model.num_experts == 0) {
    file.experts_known = false;
    model.num_experts = formats::LeastExperts(array, conventions, model);
  }
  std::int64_t first = array.first.value_or(0);
  if (options.start >= 0) {
    if (array.first.has_value() && *array.first != options.start) {
      return Bad(absl::StrCat("--start must be what the file says, ", *array.first, "; it is ",
                              options.start));
    }
    first = options.start;
  }
  formats::Limits limits;
  limits.max_bytes = limit;
  absl::StatusOr<formats::Interpretation> rows =
      formats::ToRows(array, conventions, model, first, limits);
  if (!rows.ok()) return rows.status();
  file.format = std::string(info.name);
  file.what =
      absl::StrCat(std::string(info.summary), ", ", std::string(formats::DtypeName(array.dtype)),
                   " [", array.rows, ", ", array.layers, ", ", array.top_k, "]");
  file.rows = std::move(rows->rows);
  file.notes = std::move(rows->notes);
  file.dtype = array.dtype;
  return file;
}

}  // namespace

void AddInputOptions(CLI::App& app, const std::string& format_option, InputOptions& options) {
  app.add_option(format_option, options.format,
                 "The format, where the bytes do not tell it: waymark, npy, vllm, vllm-lists, "
                 "sglang, megatron, megatron-ndarray, nemo-rl, skyrl, prime-rl, lmdeploy")
      ->type_name("FORMAT");
  app.add_option("--field", options.field,
                 "Where the array is in a JSON text: a pointer, e.g. /choices/0/routed_experts")
      ->type_name("POINTER");
  app.add_option("--experts", options.experts, "Experts of a layer")
      ->type_name("E")
      ->check(CLI::Range(1, 65535));
  app.add_option("--top-k", options.top_k, "Experts a row and layer, where the bytes do not say it")
      ->type_name("K")
      ->check(CLI::Range(1, 64));
  app.add_option("--layers", options.layers, "Which layers have a column: moe or all")
      ->check(CLI::IsMember({"moe", "all"}));
  app.add_option("--moe-layers", options.moe_layers,
                 "Numbers of the MoE layers: 3-60, or 0,2,4, or all")
      ->type_name("LIST");
  app.add_option("--num-layers", options.num_layers, "Layers of the model, dense ones included")
      ->type_name("N")
      ->check(CLI::Range(1, kMostLayers));
  app.add_option("--rows", options.rows,
                 "Whether the last token has a row (a placeholder): tokens, or tokens-1")
      ->check(CLI::IsMember({"tokens", "tokens-1"}));
  app.add_option("--sentinel", options.sentinel,
                 "What stands where there is no row: none, -1, 255, 65535, zeros, arange")
      ->check(CLI::IsMember({"none", "-1", "255", "65535", "zeros", "arange"}));
  app.add_option("--start", options.start, "Position of the first row")
      ->type_name("ROW")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{0x7fffffff}));
  app.add_option("--dtype", options.dtype, "Type of bare ids where no field says it, e.g. int32")
      ->type_name("DTYPE");
  app.add_option("--max-memory-mb", options.max_memory_mb, "Memory that a file may take")
      ->type_name("MB")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
}

absl::StatusOr<RoutingFile> LoadRouting(const std::string& path, const InputOptions& options,
                                        bool columns_may_be_layers) {
  const std::size_t limit = static_cast<std::size_t>(options.max_memory_mb) << 20;
  const auto load = [&]() -> absl::StatusOr<RoutingFile> {
    const absl::StatusOr<std::vector<std::uint8_t>> bytes = Slurp(path, limit);
    if (!bytes.ok()) return bytes.status();
    Progress progress("reading");
    progress.Show(bytes->size(), 0, "bytes of '" + path + "'");
    const bool document =
        bytes->size() >= sizeof(kDocumentStart) &&
        std::equal(std::begin(kDocumentStart), std::end(kDocumentStart), bytes->begin());
    const bool document_wanted = options.format == kDocumentName;
    if (document_wanted || (document && options.format.empty())) {
      return LoadDocument(*bytes, options, limit);
    }
    return LoadArray(*bytes, options, columns_may_be_layers, limit);
  };
  absl::StatusOr<RoutingFile> file = load();
  if (file.ok()) return file;
  return absl::Status(file.status().code(),
                      absl::StrCat("'", path, "': ", std::string(file.status().message())));
}

absl::Status SetRowCount(const std::string& option, const std::string& text,
                         Conventions& conventions) {
  if (text.empty()) return absl::OkStatus();
  if (text != "tokens" && text != "tokens-1") {
    return Bad(option + " must be tokens or tokens-1; it is " + text);
  }
  conventions.rows = text == "tokens" ? RowCount::kTokens : RowCount::kTokensMinusOne;
  return absl::OkStatus();
}

absl::Status SetLayerAxis(const std::string& option, const std::string& text,
                          Conventions& conventions) {
  if (text.empty()) return absl::OkStatus();
  if (text != "moe" && text != "all") {
    return Bad(option + " must be moe or all; it is " + text);
  }
  conventions.layers = text == "all" ? LayerAxis::kAllLayers : LayerAxis::kMoeLayers;
  return absl::OkStatus();
}

absl::Status SetSentinel(const std::string& option, const std::string& text,
                         Conventions& conventions) {
  if (text.empty()) return absl::OkStatus();
  for (int i = 0; i <= static_cast<int>(Sentinel::kArange); ++i) {
    if (formats::SentinelName(static_cast<Sentinel>(i)) != text) continue;
    conventions.sentinel = static_cast<Sentinel>(i);
    return absl::OkStatus();
  }
  return Bad(option + " must be none, -1, 255, 65535, zeros or arange; it is " + text);
}

absl::StatusOr<std::vector<std::int32_t>> ParseLayers(const std::string& text,
                                                      std::int32_t num_layers) {
  std::vector<std::int32_t> layers;
  if (text == "all") {
    for (std::int32_t layer = 0; layer < num_layers; ++layer)
      layers.push_back(layer);
    return layers;
  }
  const auto malformed = [&] {
    return Bad(absl::StrCat("--moe-layers must be increasing numbers below ", kMostLayers,
                            ", e.g. 3-60 or 0,2,4, or all; it is '", text, "'"));
  };
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at != end) {
    std::int32_t from = 0;
    auto parsed = std::from_chars(at, end, from);
    if (parsed.ec != std::errc() || from < 0 || from >= kMostLayers) return malformed();
    std::int32_t to = from;
    if (parsed.ptr != end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, to);
      if (parsed.ec != std::errc() || to < from || to >= kMostLayers) return malformed();
    }
    if (!layers.empty() && from <= layers.back()) return malformed();
    for (std::int32_t layer = from; layer <= to; ++layer)
      layers.push_back(layer);
    at = parsed.ptr;
    if (at == end) break;
    if (*at++ != ',' || at == end) return malformed();
  }
  return layers;
}

absl::Status WriteWholeFile(const std::string& path, std::string_view bytes) {
  const std::string partial = path + ".partial";
  std::FILE* file = std::fopen(partial.c_str(), "wb");
  bool written = file != nullptr;
  if (written) written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (file != nullptr) written = (std::fclose(file) == 0) && written;
  if (written) written = std::rename(partial.c_str(), path.c_str()) == 0;
  if (written) return absl::OkStatus();
  const std::string error = std::strerror(errno);
  if (file != nullptr) std::remove(partial.c_str());
  return absl::UnavailableError(absl::StrCat("'", path, "' cannot be written: ", error));
}

}  // namespace waymark::cli
