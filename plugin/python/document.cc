// Document: rows read where their bytes lie.
#include "plugin/python/module.h"
#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

#define WAYMARK_DAMAGE "tuple[int, int, int]"

// `source`: the path of a file (str), or a buffer.
void Open(Document* self, nb::handle source, std::uint64_t max_rows, std::uint64_t max_bytes,
          bool memory_map) {
  wm_read_limits limits = {};
  limits.struct_size = sizeof(limits);
  limits.flags = memory_map ? WM_READ_MAP : 0;
  limits.max_rows = max_rows;
  limits.max_bytes = max_bytes;
  wm_document* document = nullptr;
  Message why;
  wm_status status;
  Bytes bytes;
  if (PyUnicode_Check(source.ptr())) {
    const auto path = nb::cast<std::string>(source);
    const GilReleased released;
    status = Api().wire->document_open_file(path.c_str(), &limits, &document, why.get());
  } else {
    bytes = ReadableBytes(source, "buffer");
    const GilReleased released;
    status = Api().wire->document_open(bytes.data, bytes.size, &limits, &document, why.get());
  }
  Check(status, why);
  new (self) Document;
  self->document = document;
  self->bytes = std::move(bytes);
  self->info.struct_size = sizeof(self->info);
  Api().wire->document_info(document, &self->info);
}

wm_shape ShapeOf(const Document& self) {
  wm_shape shape = {};
  shape.struct_size = sizeof(shape);
  const wm_status status = Api().wire->document_shape(self.document, &shape);
  if (status != WM_OK) Raise(status, "document_shape");
  return shape;
}

nb::tuple CodeOf(const Document& self) {
  wm_chunk_code code = {};
  code.struct_size = sizeof(code);
  const wm_status status = Api().wire->document_code(self.document, &code);
  if (status != WM_OK) Raise(status, "document_code");
  return nb::make_tuple(code.codec, code.flags, code.low_bits, code.high_bits, code.crc_layers);
}

nb::tuple DamageTuple(const wm_read_damage& damage) {
  return nb::make_tuple(damage.damaged_chunks, damage.absent_chunks, damage.invalid_rows);
}

nb::tuple Read(const Document& self, std::int64_t begin, std::int64_t end, std::int32_t layer_begin,
               std::int32_t layer_end, std::int32_t layout, std::int32_t id_type, std::int32_t fill,
               nb::handle out, nb::handle infos) {
  const ReadArgs read(begin, end, layout, id_type, fill, out, infos);
  wm_read_damage damage = {};
  damage.struct_size = sizeof(damage);
  Message why;
  wm_status status;
  {
    const GilReleased released(read.args.out_bytes >= kReleaseBytes);
    status = Api().wire->document_read(self.document, &read.args, layer_begin, layer_end, &damage,
                                       why.get());
  }
  Check(status, why);
  return DamageTuple(damage);
}

nb::tuple ReadRows(const Document& self, std::int64_t begin, std::int64_t end,
                   std::int32_t layer_begin, std::int32_t layer_end) {
  const wm_part part = PartOf(begin, end, layer_begin, layer_end);
  wm_read_damage damage = {};
  damage.struct_size = sizeof(damage);
  wm_rows* rows = nullptr;
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = Api().wire->document_rows(self.document, &part, &rows, &damage, why.get());
  }
  Check(status, why);
  return nb::make_tuple(std::make_unique<Rows>(rows), DamageTuple(damage));
}

nb::list Coverage(const Document& self) {
  std::vector<wm_coverage_run> runs;
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = Runs(runs, [&](auto... args) {
      return Api().wire->document_coverage(self.document, args..., why.get());
    });
  }
  Check(status, why);
  return RunList(runs);
}

// (first, uint8 [L, rows, bytes of a row and layer]): 16-bit ids may lie at odd addresses.
nb::tuple Chunk(nb::handle_t<Document> self, std::int64_t row) {
  const auto& document = nb::cast<const Document&>(self);
  wm_chunk_view view = {};
  view.struct_size = sizeof(view);
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = Api().wire->document_chunk(document.document, row, &view, why.get());
  }
  Check(status, why);
  const auto rows = static_cast<std::size_t>(view.count);
  const auto layers = static_cast<std::size_t>(ShapeOf(document).num_layers);
  return nb::make_tuple(view.first,
                        Lend(view.layers, {layers, rows, view.layer_bytes / rows}, self));
}

}  // namespace

void BindDocument(nb::module_& module) {
  nb::class_<Document>(module, "Document")
      .def("__init__", &Open, "source"_a, "max_rows"_a, "max_bytes"_a, "memory_map"_a)
      .def_prop_ro(
          "first", [](const Document& self) { return self.info.first; },
          "The first row, counted from the first of the sequence.")
      .def_prop_ro(
          "last", [](const Document& self) { return self.info.first + self.info.count; },
          "One past the last row.")
      .def("__len__", [](const Document& self) { return self.info.count; })
      .def_prop_ro(
          "nbytes", [](const Document& self) { return self.info.bytes; },
          "Size of the whole document in bytes.")
      .def_prop_ro(
          "has_steps",
          [](const Document& self) { return (self.info.flags & WM_DOCUMENT_HAS_STEPS) != 0; },
          "Whether it has steps; else every step is 0.")
      .def_prop_ro(
          "has_places",
          [](const Document& self) { return (self.info.flags & WM_DOCUMENT_HAS_PLACES) != 0; },
          "Whether a chunk in the place of another is found, and reads as damaged. False for "
          "documents "
          "of version 1.0: rows can be wrong if whole chunks of them were lost, repeated or "
          "swapped.")
      .def_prop_ro(
          "truncated",
          [](const Document& self) { return (self.info.flags & WM_DOCUMENT_TRUNCATED) != 0; },
          "Whether bytes are missing at its end: their rows are missing (not captured).")
      .def_prop_ro(
          "num_nodes", [](const Document& self) { return self.info.num_nodes; },
          "Above 0: FileSource can open it.")
      .def_prop_ro(
          "_shape", [](const Document& self) { return ShapeTuple(ShapeOf(self)); },
          nb::sig("def _shape(self) -> " WAYMARK_SHAPE))
      .def_prop_ro("_code", &CodeOf, nb::sig("def _code(self) -> " WAYMARK_CODE))
      .def("_read", &Read, "begin"_a, "end"_a, "layer_begin"_a, "layer_end"_a, "layout"_a,
           "id_type"_a, "fill"_a, "out"_a, "infos"_a.none(),
           nb::sig("def _read(self, begin: int, end: int, layer_begin: int, layer_end: int, "
                   "layout: int, id_type: int, fill: int, out: object, infos: object | None) "
                   "-> " WAYMARK_DAMAGE))
      .def("_rows", &ReadRows, "begin"_a, "end"_a, "layer_begin"_a, "layer_end"_a,
           nb::sig("def _rows(self, begin: int, end: int, layer_begin: int, layer_end: int) -> "
                   "tuple[Rows, " WAYMARK_DAMAGE "]"))
      .def("_coverage", &Coverage, nb::sig("def _coverage(self) -> " WAYMARK_RUNS))
      .def("_chunk", &Chunk, "row"_a,
           nb::sig("def _chunk(self, row: int) -> tuple[int, " WAYMARK_ARRAY("uint8") "]"));
}

}  // namespace waymark_python
