// Routing in the formats of others, in the C ABI.
#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugin/abi/fill.h"
#include "plugin/formats/conversion.h"

namespace waymark::abi {
namespace {

std::string_view TextOf(const char* text) {
  return text == nullptr ? std::string_view() : std::string_view(text);
}

// The fields that reading and writing share.
template <class Options>
absl::Status TakeConventions(const wm_format_options& args, Options& options) {
  for (const absl::Status& status :
       {formats::SetRowCount("options.row_count", TextOf(args.row_count), options.row_count),
        formats::SetLayerAxis("options.layers", TextOf(args.layers), options.layers),
        formats::SetSentinel("options.sentinel", TextOf(args.sentinel), options.sentinel),
        formats::SetDtype("options.dtype", TextOf(args.dtype), options.dtype)}) {
    if (!status.ok()) return status;
  }
  options.num_layers = args.num_layers;
  if (args.max_bytes != 0) options.limits.max_bytes = args.max_bytes;
  return absl::OkStatus();
}

absl::StatusOr<formats::ReadRowsOptions> TakeReading(const wm_format_options* given) {
  formats::ReadRowsOptions options;
  if (given == nullptr) return options;
  wm_format_options args = {};
  Arguments check;
  check.Struct(given, args, "options")
      .Flags(args.flags, WM_FORMAT_FIRST | WM_FORMAT_ALL_MOE, "options.flags")
      .Chain(args.ext, "options.ext")
      .Array(args.moe_layers, args.num_moe_layers, "options.moe_layers")
      .InRange(args.num_layers, 0, formats::kMostColumns, "options.num_layers")
      .InRange(args.top_k, 0, formats::kMostColumns, "options.top_k")
      .InRange(args.num_experts, 0, 65535, "options.num_experts")
      .Zero(static_cast<std::uint32_t>(args.reserved), "options.reserved");
  check.That((args.flags & WM_FORMAT_FIRST) != 0 || args.first == 0, "options.first",
             "must be 0 without WM_FORMAT_FIRST");
  check.That(args.num_moe_layers <= formats::kMostColumns, "options.num_moe_layers",
             "must be at most 4096, as many as a model has layers");
  if (!check.ok()) return check.status();
  const std::string_view format = TextOf(args.format);
  options.document = format == formats::kDocumentName;
  if (!options.document) {
    if (absl::Status status = formats::SetFormat("options.format", format, options.format);
        !status.ok()) {
      return status;
    }
  }
  options.field = TextOf(args.field);
  if (absl::Status status = TakeConventions(args, options); !status.ok()) return status;
  if ((args.flags & WM_FORMAT_FIRST) != 0) options.first = args.first;
  options.all_moe = (args.flags & WM_FORMAT_ALL_MOE) != 0;
  if (args.num_moe_layers != 0) {
    options.moe_layers.assign(args.moe_layers, args.moe_layers + args.num_moe_layers);
  }
  options.top_k = args.top_k;
  options.num_experts = args.num_experts;
  return options;
}

absl::StatusOr<formats::WriteRowsOptions> TakeWriting(const wm_format_options* given) {
  wm_format_options args = {};
  Arguments check;
  check.Struct(given, args, "options")
      .Flags(args.flags, 0, "options.flags")
      .Chain(args.ext, "options.ext")
      .Pointer(args.format, "options.format")
      .InRange(args.num_layers, 0, formats::kMostColumns, "options.num_layers")
      .Zero(static_cast<std::uint32_t>(args.reserved), "options.reserved");
  const std::pair<const char*, bool> of_reading[] = {
      {"options.field", !TextOf(args.field).empty()},
      {"options.first", args.first != 0},
      {"options.moe_layers", args.moe_layers != nullptr || args.num_moe_layers != 0},
      {"options.top_k", args.top_k != 0},
      {"options.num_experts", args.num_experts != 0}};
  for (const auto& [name, is_given] : of_reading)
    check.That(!is_given, name, "is for reading only: the rows contain it");
  if (!check.ok()) return check.status();
  formats::WriteRowsOptions options;
  std::optional<formats::Format> format;
  if (absl::Status status = formats::SetFormat("options.format", args.format, format);
      !status.ok()) {
    return status;
  }
  if (!format.has_value()) {
    return absl::InvalidArgumentError("options.format: must name a format; it is empty");
  }
  options.format = *format;
  if (absl::Status status = TakeConventions(args, options); !status.ok()) return status;
  return options;
}

// `lines`, each with its end.
wm_bytes* NewNotes(const std::vector<std::string>& lines) {
  std::vector<std::uint8_t> text;
  for (const std::string& line : lines) {
    std::copy(line.begin(), line.end(), std::back_inserter(text));
    text.push_back('\n');
  }
  return new wm_bytes(std::move(text));
}

wm_status RowsFromFormat(const std::uint8_t* data, std::size_t size, const wm_format_options* given,
                         wm_rows** out, wm_bytes** notes, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.That(data != nullptr || size == 0, "data", "must not be null with a size");
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    const absl::StatusOr<formats::ReadRowsOptions> options = TakeReading(given);
    if (!options.ok()) return options.status();
    absl::StatusOr<formats::ReadRowsResult> result = formats::ReadRows({data, size}, *options);
    if (!result.ok()) return result.status();
    auto rows = std::make_unique<wm_rows>(std::move(result->rows));
    if (notes != nullptr) *notes = NewNotes(result->notes);
    *out = rows.release();
    return absl::OkStatus();
  });
}

wm_status RowsToFormat(const wm_rows* rows, const wm_format_options* given, wm_bytes** out,
                       wm_bytes** notes, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(rows, "rows").Pointer(out, "out");
    if (!check.ok()) return check.status();
    const absl::StatusOr<formats::WriteRowsOptions> options = TakeWriting(given);
    if (!options.ok()) return options.status();
    const absl::StatusOr<formats::WriteRowsResult> result =
        formats::WriteRows(rows->rows, *options);
    if (!result.ok()) return result.status();
    auto bytes = std::make_unique<wm_bytes>(
        std::vector<std::uint8_t>(result->bytes.begin(), result->bytes.end()));
    if (notes != nullptr) *notes = NewNotes(result->notes);
    *out = bytes.release();
    return absl::OkStatus();
  });
}

}  // namespace

void FillFormats(wm_wire_api_v1& wire) {
  wire.rows_from_format = &RowsFromFormat;
  wire.rows_to_format = &RowsToFormat;
}

}  // namespace waymark::abi
