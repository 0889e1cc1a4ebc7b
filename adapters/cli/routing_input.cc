#include "adapters/cli/routing_input.h"

#include <charconv>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "adapters/cli/console.h"
#include "adapters/formats/formats.h"
#include "blockstore/invalid.h"
#include "blockstore/whole_file.h"

namespace waymark::cli {
namespace {

// The names of arguments in the library's errors, and the options that set them.
constexpr std::pair<std::string_view, std::string_view> kOptionOf[] = {
    {"field", "--field"},           {"row_count", "--rows"},        {"layers", "--layers"},
    {"sentinel", "--sentinel"},     {"dtype", "--dtype"},           {"first", "--start"},
    {"moe_layers", "--moe-layers"}, {"num_layers", "--num-layers"}, {"top_k", "--top-k"},
    {"num_experts", "--experts"}};

// The text of an error with the name of the option instead of that of the argument.
std::string WithOptionNames(absl::string_view message) {
  std::string text(message);
  for (const auto& [argument, option] : kOptionOf) {
    if (text.compare(0, argument.size(), argument) != 0) continue;
    const char next = argument.size() < text.size() ? text[argument.size()] : ' ';
    if (next != ' ' && next != '[') continue;
    return std::string(option) + text.substr(argument.size());
  }
  return text;
}

// The layer numbers of "3-60" or "0,2,4".
absl::StatusOr<std::vector<std::int32_t>> ParseLayers(const std::string& text) {
  std::vector<std::int32_t> layers;
  const auto malformed = [&] {
    return Invalid("--moe-layers must be increasing numbers below ", formats::kMostColumns,
                   ", e.g. 3-60 or 0,2,4, or all; it is '", text, "'");
  };
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at != end) {
    std::int32_t from = 0;
    auto parsed = std::from_chars(at, end, from);
    if (parsed.ec != std::errc() || from < 0 || from >= formats::kMostColumns) return malformed();
    std::int32_t to = from;
    if (parsed.ptr != end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, to);
      if (parsed.ec != std::errc() || to < from || to >= formats::kMostColumns) return malformed();
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

absl::Status AddTo(formats::ReadRowsOptions& read, const InputOptions& options) {
  read.document = options.format == formats::kDocumentName;
  read.field = options.field;
  for (const absl::Status& status :
       {read.document ? absl::OkStatus()
                      : formats::SetNamed("--format", options.format, read.format),
        formats::SetNamed("--rows", options.rows, read.row_count),
        formats::SetNamed("--layers", options.layers, read.layers),
        formats::SetNamed("--sentinel", options.sentinel, read.sentinel),
        formats::SetNamed("--dtype", options.dtype, read.dtype)}) {
    if (!status.ok()) return status;
  }
  if (options.start >= 0) read.first = options.start;
  read.all_moe = options.moe_layers == "all";
  if (!read.all_moe && !options.moe_layers.empty()) {
    absl::StatusOr<std::vector<std::int32_t>> layers = ParseLayers(options.moe_layers);
    if (!layers.ok()) return layers.status();
    read.moe_layers = *std::move(layers);
  }
  read.num_layers = options.num_layers;
  read.top_k = options.top_k;
  read.num_experts = options.experts;
  read.limits.max_bytes = static_cast<std::size_t>(options.max_memory_mb) << 20;
  return absl::OkStatus();
}

RoutingFile FileOf(formats::ReadRowsResult result) {
  RoutingFile file = {std::move(result), std::string(formats::kDocumentName), ""};
  file.what = absl::StrCat("a Waymark document of ", file.rows.size(), " rows");
  if (file.format.has_value()) {
    const formats::FormatInfo& info = formats::InfoOf(*file.format);
    const auto& [rows, layers, top_k] = file.array_shape;
    file.name = info.name;
    file.what =
        absl::StrCat(std::string(info.summary), ", ", std::string(formats::DtypeName(file.dtype)),
                     " [", rows, ", ", layers, ", ", top_k, "]");
  }
  return file;
}

}  // namespace

void AddInputOptions(CLI::App& app, const std::string& format_option, InputOptions& options) {
  app.add_option(format_option, options.format,
                 "The format, if the bytes do not show it: waymark, npy, vllm, vllm-lists, "
                 "sglang, megatron, megatron-ndarray, nemo-rl, skyrl, prime-rl, lmdeploy")
      ->type_name("FORMAT");
  app.add_option("--field", options.field,
                 "JSON pointer to the array in a JSON text, e.g. /choices/0/routed_experts")
      ->type_name("POINTER");
  app.add_option("--experts", options.experts, "Experts per layer")
      ->type_name("E")
      ->check(CLI::Range(1, 65535));
  app.add_option("--top-k", options.top_k,
                 "Experts per row and layer, if the bytes do not contain it")
      ->type_name("K")
      ->check(CLI::Range(1, 64));
  app.add_option("--layers", options.layers, "Which layers have a column: moe or all")
      ->check(CLI::IsMember({"moe", "all"}));
  app.add_option("--moe-layers", options.moe_layers,
                 "Numbers of the MoE layers: 3-60, or 0,2,4, or all")
      ->type_name("LIST");
  app.add_option("--num-layers", options.num_layers, "Layers of the model, dense ones included")
      ->type_name("N")
      ->check(CLI::Range(1, formats::kMostColumns));
  app.add_option("--rows", options.rows,
                 "Whether the last token has a row (a placeholder): tokens, or tokens-1")
      ->check(CLI::IsMember({"tokens", "tokens-1"}));
  app.add_option("--sentinel", options.sentinel,
                 "The ids of a missing row: none, -1, 255, 65535, zeros, arange")
      ->check(CLI::IsMember({"none", "-1", "255", "65535", "zeros", "arange"}));
  app.add_option("--start", options.start, "Position of the first row")
      ->type_name("ROW")
      ->check(CLI::Range(0, 0x7fffffff));
  app.add_option("--dtype", options.dtype, "Type of ids without one (sglang), e.g. int32")
      ->type_name("DTYPE");
  app.add_option("--max-memory-mb", options.max_memory_mb, "The most memory that the file may take")
      ->type_name("MB")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
}

absl::StatusOr<RoutingFile> LoadRouting(const std::string& path, const InputOptions& options,
                                        formats::ReadRowsOptions read) {
  if (absl::Status status = AddTo(read, options); !status.ok()) return status;
  const absl::StatusOr<std::string> bytes = ReadWholeFile(path, read.limits.max_bytes);
  if (absl::IsResourceExhausted(bytes.status())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("'", path, "' has more bytes than --max-memory-mb allows"));
  }
  if (!bytes.ok()) return bytes.status();
  if (bytes->starts_with("WMFLIGHT")) {
    return Invalid("'", path, "' is a recording, not routing: `waymark check` replays it");
  }
  Progress progress("reading");
  progress.Show(bytes->size(), 0, "bytes of '" + path + "'");
  absl::StatusOr<formats::ReadRowsResult> result = formats::ReadRows(
      {reinterpret_cast<const std::uint8_t*>(bytes->data()), bytes->size()}, read);
  if (result.ok()) return FileOf(*std::move(result));
  return absl::Status(result.status().code(),
                      absl::StrCat("'", path, "': ", WithOptionNames(result.status().message())));
}

}  // namespace waymark::cli
