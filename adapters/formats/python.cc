// Formats of engines and trainers for Python: rows from their bytes, and to them.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "adapters/formats/formats.h"
#include "adapters/python/module.h"
#include "plugin/python/core.h"
#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

namespace formats = waymark::formats;
using nb::literals::operator""_a;

nb::list Lines(const std::vector<std::string>& notes) {
  nb::list lines;
  for (const std::string& line : notes)
    lines.append(nb::str(line.data(), line.size()));
  return lines;
}

std::int32_t InRange(std::int32_t value, const char* name, std::int32_t most) {
  return IntegerOf<std::int32_t>(nb::int_(value), name, 0, most);
}

// The arguments that reading and writing share.
template <class Options>
void TakeConventions(const std::string& row_count, const std::string& layers,
                     const std::string& sentinel, const std::string& dtype, std::int32_t num_layers,
                     std::uint64_t max_bytes, Options& options) {
  Check(formats::SetNamed("row_count", row_count, options.row_count));
  Check(formats::SetNamed("layers", layers, options.layers));
  Check(formats::SetNamed("sentinel", sentinel, options.sentinel));
  Check(formats::SetNamed("dtype", dtype, options.dtype));
  options.num_layers = InRange(num_layers, "num_layers", formats::kMostColumns);
  options.limits.max_bytes = max_bytes;
}

nb::tuple FromFormat(nb::handle data, const std::string& format, const std::string& row_count,
                     const std::string& layers, const std::string& sentinel,
                     const std::string& dtype, std::int32_t num_layers, std::uint64_t max_bytes,
                     const std::string& field, nb::handle first, nb::handle moe_layers,
                     bool all_moe, std::int32_t top_k, std::int32_t num_experts) {
  const Bytes bytes = ReadableBytes(data, "source");
  const Integers<std::int32_t> layer_ids(moe_layers, "moe_layers");
  if (layer_ids.size() > formats::kMostColumns) {
    RaiseInvalid("moe_layers: at most 4096, as many as a model has layers, got " +
                 std::to_string(layer_ids.size()));
  }
  formats::ReadRowsOptions options;
  options.document = format == formats::kDocumentName;
  if (!options.document) Check(formats::SetNamed("format", format, options.format));
  TakeConventions(row_count, layers, sentinel, dtype, num_layers, max_bytes, options);
  options.field = field;
  if (!first.is_none()) options.first = nb::cast<std::int64_t>(first);
  options.moe_layers.assign(layer_ids.data(), layer_ids.data() + layer_ids.size());
  options.all_moe = all_moe;
  options.top_k = InRange(top_k, "top_k", formats::kMostColumns);
  options.num_experts = InRange(num_experts, "num_experts", 65535);
  absl::StatusOr<formats::ReadRowsResult> result;
  {
    const GilReleased released;
    result = formats::ReadRows({bytes.data, bytes.size}, options);
  }
  formats::ReadRowsResult read = Value(std::move(result));
  if (!read.layers_known) {
    RaiseInvalid("moe_layers is required: no array contains the model's numbers of its " +
                 std::to_string(read.array_shape[1]) + " layers; 'all' if every layer has experts");
  }
  auto rows = std::make_unique<Rows>(std::move(read.rows));
  return nb::make_tuple(std::move(rows), Lines(read.notes));
}

nb::tuple ToFormat(const Rows& rows, const std::string& format, const std::string& row_count,
                   const std::string& layers, const std::string& sentinel, const std::string& dtype,
                   std::int32_t num_layers, std::uint64_t max_bytes) {
  formats::WriteRowsOptions options;
  std::optional<formats::Format> named;
  Check(formats::SetNamed("format", format, named));
  if (!named.has_value()) RaiseInvalid("format: must name a format; it is empty");
  options.format = *named;
  TakeConventions(row_count, layers, sentinel, dtype, num_layers, max_bytes, options);
  absl::StatusOr<formats::WriteRowsResult> result;
  {
    const GilReleased released;
    result = formats::WriteRows(*rows.rows, options);
  }
  const formats::WriteRowsResult written = Value(std::move(result));
  return nb::make_tuple(nb::bytes(written.bytes.data(), written.bytes.size()),
                        Lines(written.notes));
}

}  // namespace

void BindFormats(nb::module_& module) {
  module.def(
      "format_names",
      [] {
        nb::list files;
        nb::list arrays;
        for (int i = 0; i < formats::kNumFormats; ++i)
          files.append(std::string(formats::InfoOf(static_cast<formats::Format>(i)).name));
        for (const std::string_view name : formats::TrainerArrays())
          arrays.append(std::string(name));
        return nb::make_tuple(nb::tuple(files), nb::tuple(arrays));
      },
      nb::sig("def format_names() -> tuple[tuple[str, ...], tuple[str, ...]]"),
      "Those of bytes, and those of the arrays of trainers.");
  module.def("from_format", &FromFormat, "data"_a, "format"_a, "row_count"_a, "layers"_a,
             "sentinel"_a, "dtype"_a, "num_layers"_a, "max_bytes"_a, "field"_a, "first"_a.none(),
             "moe_layers"_a, "all_moe"_a, "top_k"_a, "num_experts"_a,
             nb::sig("def from_format(data: object, format: str, row_count: str, layers: str, "
                     "sentinel: str, dtype: str, num_layers: int, max_bytes: int, field: str, "
                     "first: int | None, moe_layers: object, all_moe: bool, top_k: int, "
                     "num_experts: int) -> tuple[Rows, list[str]]"));
  module.def("to_format", &ToFormat, "rows"_a, "format"_a, "row_count"_a, "layers"_a, "sentinel"_a,
             "dtype"_a, "num_layers"_a, "max_bytes"_a,
             nb::sig("def to_format(rows: Rows, format: str, row_count: str, layers: str, "
                     "sentinel: str, dtype: str, num_layers: int, max_bytes: int) -> "
                     "tuple[bytes, list[str]]"));
}

}  // namespace waymark_python
