// Document: rows read where their bytes lie.
#include <string>
#include <utility>

#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;
using waymark::RowsAndLayers;
namespace wire = waymark::wire;

#define WAYMARK_DAMAGE "tuple[int, int, int]"

// `source`: the path of a file (str), or a buffer.
void Open(Document* self, nb::handle source, Int64<"max_rows"> max_rows,
          Uint64<"max_bytes"> max_bytes, bool memory_map) {
  const wire::ReadLimits limits = {max_rows, max_bytes};
  const auto open = [&](std::span<const std::uint8_t> bytes) {
    return Value(Unlocked([&] { return wire::Document::Open(bytes, limits); }));
  };
  if (!PyUnicode_Check(source.ptr())) {
    Bytes bytes = ReadableBytes(source, "buffer");
    wire::Document document = open(SpanOf(bytes));
    new (self) Document{std::move(bytes), nullptr, std::move(document)};
    return;
  }
  const auto path = nb::cast<std::string>(source);
  const auto access = memory_map ? wire::FileAccess::kMap : wire::FileAccess::kRead;
  auto file =
      Value(Unlocked([&] { return wire::FileBytes::Open(path, access, limits.max_bytes); }));
  wire::Document document = open(file->bytes());
  new (self) Document{{}, std::move(file), std::move(document)};
}

nb::tuple CodeOfDocument(const Document& self) {
  const wire::WireShape& shape = self.document.shape();
  return nb::make_tuple(static_cast<int>(shape.code.codec), !shape.code.ordered,
                        shape.crc_layers());
}

nb::tuple DamageTuple(const wire::ReadDamage& damage) {
  return nb::make_tuple(damage.damaged_chunks, damage.absent_chunks, damage.invalid_rows);
}

nb::tuple ReadRows(const Document& self, std::int64_t begin, std::int64_t end,
                   std::int32_t layer_begin, std::int32_t layer_end) {
  wire::ReadDamage damage;
  waymark::Rows rows = Value(Unlocked([&] {
    return self.document.ReadRows(RowsAndLayers{begin, end, layer_begin, layer_end}, &damage);
  }));
  return nb::make_tuple(std::make_unique<Rows>(std::move(rows)), DamageTuple(damage));
}

}  // namespace

void BindDocument(nb::module_& module) {
  nb::class_<Document>(module, "Document")
      .def("__init__", &Open, "source"_a, "max_rows"_a, "max_bytes"_a, "memory_map"_a)
      .def_prop_ro(
          "first", [](const Document& self) { return self.document.first(); },
          "The first row, counted from the first of the sequence.")
      .def_prop_ro(
          "last", [](const Document& self) { return self.document.last(); },
          "One past the last row.")
      .def("__len__", [](const Document& self) { return self.document.size(); })
      .def_prop_ro(
          "nbytes", [](const Document& self) { return self.document.bytes(); },
          "Size of the whole document in bytes.")
      .def_prop_ro(
          "has_steps", [](const Document& self) { return self.document.has_steps(); },
          "Whether it has steps; else every step is 0.")
      .def_prop_ro(
          "truncated", [](const Document& self) { return self.document.truncated(); },
          "Whether bytes are missing at its end: their rows are missing (not captured).")
      .def_prop_ro(
          "num_nodes", [](const Document& self) { return self.document.nodes().size(); },
          "Above 0: FileSource can open it.")
      .def_prop_ro(
          "_shape", [](const Document& self) { return ShapeTuple(self.document.shape().rows); },
          nb::sig("def _shape(self) -> " WAYMARK_SHAPE))
      .def_prop_ro(
          "_code", [](const Document& self) { return CodeOfDocument(self); },
          nb::sig("def _code(self) -> " WAYMARK_CODE))
      .def("_rows", &ReadRows, "begin"_a, "end"_a, "layer_begin"_a, "layer_end"_a,
           nb::sig("def _rows(self, begin: int, end: int, layer_begin: int, layer_end: int) -> "
                   "tuple[Rows, " WAYMARK_DAMAGE "]"))
      .def(
          "_coverage",
          [](const Document& self) {
            return RunList(Unlocked([&] { return self.document.Coverage(); }));
          },
          nb::sig("def _coverage(self) -> " WAYMARK_RUNS));
}

}  // namespace waymark_python
