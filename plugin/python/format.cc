// Formats of engines and trainers: rows from their bytes, and to them.
#include "plugin/python/module.h"
#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

// A text that C ends at its first 0.
const std::string& Whole(const std::string& text, const char* name) {
  if (text.find('\0') != std::string::npos) {
    Raise(WM_INVALID_ARGUMENT, std::string(name) + ": must have no NUL character");
  }
  return text;
}

// The lines of a text that the library made, which is released.
nb::list TakeLines(wm_bytes* owned) {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  Api().wire->bytes_view(owned, &data, &size);
  const std::string text(reinterpret_cast<const char*>(data), size);
  Api().wire->bytes_release(owned);
  nb::list lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.append(nb::str(text.data() + at, end - at));
    at = end + 1;
  }
  return lines;
}

// The wm_format_options that reading and writing share; the texts are the caller's.
wm_format_options OptionsOf(const std::string& format, const std::string& row_count,
                            const std::string& layers, const std::string& sentinel,
                            const std::string& dtype, std::int32_t num_layers,
                            std::uint64_t max_bytes) {
  wm_format_options options = {};
  options.struct_size = sizeof(options);
  options.format = Whole(format, "format").c_str();
  options.row_count = Whole(row_count, "row_count").c_str();
  options.layers = Whole(layers, "layers").c_str();
  options.sentinel = Whole(sentinel, "sentinel").c_str();
  options.dtype = Whole(dtype, "dtype").c_str();
  options.num_layers = num_layers;
  options.max_bytes = max_bytes;
  return options;
}

nb::tuple FromFormat(nb::handle data, const std::string& format, const std::string& row_count,
                     const std::string& layers, const std::string& sentinel,
                     const std::string& dtype, std::int32_t num_layers, std::uint64_t max_bytes,
                     const std::string& field, nb::handle first, nb::handle moe_layers,
                     bool all_moe, std::int32_t top_k, std::int32_t num_experts) {
  const Bytes bytes = ReadableBytes(data, "source");
  wm_format_options options =
      OptionsOf(format, row_count, layers, sentinel, dtype, num_layers, max_bytes);
  const Integers<std::int32_t> layer_ids(moe_layers, "moe_layers");
  options.flags = all_moe ? WM_FORMAT_ALL_MOE : 0;
  options.field = Whole(field, "field").c_str();
  if (!first.is_none()) {
    options.flags |= WM_FORMAT_FIRST;
    options.first = nb::cast<std::int64_t>(first);
  }
  options.moe_layers = layer_ids.data();
  options.num_moe_layers = layer_ids.size();
  options.top_k = top_k;
  options.num_experts = num_experts;
  wm_rows* rows = nullptr;
  wm_bytes* notes = nullptr;
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status =
        Api().wire->rows_from_format(bytes.data, bytes.size, &options, &rows, &notes, why.get());
  }
  Check(status, why);
  auto made = std::make_unique<Rows>(rows);
  return nb::make_tuple(std::move(made), TakeLines(notes));
}

nb::tuple ToFormat(const Rows& rows, const std::string& format, const std::string& row_count,
                   const std::string& layers, const std::string& sentinel, const std::string& dtype,
                   std::int32_t num_layers, std::uint64_t max_bytes) {
  const wm_format_options options =
      OptionsOf(format, row_count, layers, sentinel, dtype, num_layers, max_bytes);
  wm_bytes* notes = nullptr;
  nb::bytes bytes = TakeBytes([&](wm_bytes** out, wm_message* why) {
    return Api().wire->rows_to_format(rows.rows, &options, out, &notes, why);
  });
  return nb::make_tuple(std::move(bytes), TakeLines(notes));
}

}  // namespace

void BindFormats(nb::module_& module) {
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
