// Rows: rows that were read.
#include <cstring>

#include "blockstore/distinct_ids.h"
#include "plugin/python/collective.h"
#include "plugin/python/module.h"
#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

void MakeRows(Rows* self, Int32<"num_layers"> num_layers, Int32<"top_k"> top_k,
              Int32<"num_experts"> num_experts, Int32<"page_tokens"> page_tokens,
              nb::handle layer_ids, Int64<"first"> first, nb::handle ids, nb::handle infos,
              bool ordered) {
  const Integers<std::int32_t> layers(layer_ids, "layer_ids");
  const Bytes id_bytes = ReadableBytes(ids, "ids");
  const Bytes info_bytes = ReadableBytes(infos, "infos");
  if (layers.size() != 0 && layers.size() != static_cast<std::size_t>(num_layers)) {
    Raise(WM_INVALID_ARGUMENT, "layer_ids: as many as layers, got " +
                                   std::to_string(layers.size()) + " of " +
                                   std::to_string(num_layers));
  }
  wm_shape shape = {};
  shape.struct_size = sizeof(shape);
  shape.num_layers = num_layers;
  shape.top_k = top_k;
  shape.num_experts = num_experts;
  shape.page_tokens = page_tokens;
  shape.layer_ids = layers.size() != 0 ? layers.data() : nullptr;
  wm_rows_view view = {};
  view.struct_size = sizeof(view);
  view.flags = ordered ? 0 : WM_ROWS_SORTED;
  view.first = first;
  view.count = static_cast<std::int64_t>(info_bytes.size / sizeof(wm_row_info));
  view.ids = id_bytes.data;
  view.infos = reinterpret_cast<const wm_row_info*>(info_bytes.data);
  const std::uint64_t row_bytes = std::uint64_t{1} * static_cast<std::uint32_t>(num_layers) *
                                  static_cast<std::uint32_t>(top_k) * (num_experts <= 256 ? 1 : 2);
  if (id_bytes.size != static_cast<std::uint64_t>(view.count) * row_bytes) {
    Raise(WM_INVALID_ARGUMENT, "ids: " + std::to_string(row_bytes) + " bytes a row, got " +
                                   std::to_string(id_bytes.size) + " for " +
                                   std::to_string(view.count) + " rows");
  }
  wm_rows* rows = nullptr;
  Message why;
  wm_status status;
  {
    const GilReleased released(id_bytes.size >= kReleaseBytes);
    status = Api().rows_create(&shape, &view, &rows, why.get());
  }
  Check(status, why);
  new (self) Rows(rows);
}

wm_rows_view ViewOf(const Rows& rows) {
  wm_rows_view view = {};
  view.struct_size = sizeof(view);
  const wm_status status = Api().rows_view(rows.rows, &view);
  if (status != WM_OK) Raise(status, "rows_view");
  return view;
}

wm_shape ShapeOf(const Rows& rows) {
  wm_shape shape = {};
  shape.struct_size = sizeof(shape);
  const wm_status status = Api().rows_shape(rows.rows, &shape);
  if (status != WM_OK) Raise(status, "rows_shape");
  return shape;
}

// uint8 or uint16 [rows, L, K]; the array keeps the rows.
nb::object Ids(nb::handle_t<Rows> self) {
  const auto& rows = nb::cast<const Rows&>(self);
  const wm_rows_view view = ViewOf(rows);
  const wm_shape shape = ShapeOf(rows);
  const auto count = static_cast<std::size_t>(view.count);
  const auto layers = static_cast<std::size_t>(shape.num_layers);
  const auto k = static_cast<std::size_t>(shape.top_k);
  if (shape.id_bytes == 1) return Lend(view.ids, {count, layers, k}, self);
  return Lend(reinterpret_cast<const std::uint16_t*>(view.ids), {count, layers, k}, self);
}

nb::object Infos(nb::handle_t<Rows> self) {
  const wm_rows_view view = ViewOf(nb::cast<const Rows&>(self));
  return Lend(reinterpret_cast<const std::uint8_t*>(view.infos),
              {static_cast<std::size_t>(view.count), sizeof(wm_row_info)}, self);
}

void Write(const Rows& self, std::int32_t layout, std::int32_t id_type, std::int32_t fill,
           nb::handle out) {
  const wm_rows_view view = ViewOf(self);
  const ReadArgs read(view.first, view.first + view.count, layout, id_type, fill, out, nb::none());
  Message why;
  wm_status status;
  {
    const GilReleased released(read.args.out_bytes >= kReleaseBytes);
    status = Api().rows_write(self.rows, &read.args, why.get());
  }
  Check(status, why);
}

void Reused(const Rows& self, std::uint64_t first_step, nb::handle out) {
  const Bytes reused = WritableBytes(out, "out");
  Message why;
  Check(Api().rows_reused(self.rows, first_step, reused.data, reused.size, why.get()), why);
}

std::unique_ptr<Rows> Join(const nb::list& list) {
  std::vector<const wm_rows*> reads;
  for (nb::handle read : list)
    reads.push_back(nb::cast<const Rows&>(read).rows);
  wm_rows* joined = nullptr;
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = Api().rows_join(reads.data(), reads.size(), &joined, why.get());
  }
  Check(status, why);
  return std::make_unique<Rows>(joined);
}

std::unique_ptr<Rows> JoinLayers(const nb::list& list) {
  std::vector<const wm_rows*> stages;
  for (nb::handle stage : list)
    stages.push_back(nb::cast<const Rows&>(stage).rows);
  wm_rows* joined = nullptr;
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = Api().rows_join_layers(stages.data(), stages.size(), &joined, why.get());
  }
  Check(status, why);
  return std::make_unique<Rows>(joined);
}

// What a document is to be written with.
struct DocumentArgs {
  DocumentArgs(const Code& given, bool steps, bool nodes) : code(given.code) {
    options.struct_size = sizeof(options);
    options.flags = (steps ? 0 : WM_DOCUMENT_WITHOUT_STEPS) | (nodes ? WM_DOCUMENT_WITH_NODES : 0);
    options.code = &code;
  }
  DocumentArgs(const DocumentArgs&) = delete;
  DocumentArgs& operator=(const DocumentArgs&) = delete;
  const wm_chunk_code code;
  wm_document_options options = {};
};

nb::bytes ToDocument(const Rows& self, const nb::tuple& code, bool steps, bool nodes) {
  const DocumentArgs args(Code(code), steps, nodes);
  if (nodes) {  // which are made by writing everything: not twice, to know the size
    return TakeBytes([&](wm_bytes** out, wm_message* why) {
      return Api().wire->rows_document(self.rows, &args.options, out, why);
    });
  }
  std::size_t size = 0;
  Message why;
  const auto write = [&](char* out, std::size_t capacity) {
    const GilReleased released;
    return Api().wire->rows_document_into(
        self.rows, &args.options, reinterpret_cast<std::uint8_t*>(out), capacity, &size, why.get());
  };
  if (const wm_status status = write(nullptr, 0); status != WM_OUT_OF_RANGE) Check(status, why);
  nb::bytes bytes = NewBytes(size);
  Check(write(PyBytes_AsString(bytes.ptr()), size), why);
  return bytes;
}

void WriteDocument(const Rows& self, const std::string& path, const nb::tuple& code, bool steps,
                   bool nodes) {
  const DocumentArgs args(Code(code), steps, nodes);
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = Api().wire->rows_write_document(self.rows, &args.options, path.c_str(), why.get());
  }
  Check(status, why);
}

nb::bytes ToHandle(const Rows& self, const nb::tuple& given, const std::string& store) {
  const Code code(given);
  return TakeBytes([&](wm_bytes** out, wm_message* why) {
    return Api().wire->rows_handle(self.rows, &code.code, store.c_str(), out, why);
  });
}

// `gather` (rows_gather_layers or rows_gather) across ranks.
template <auto gather>
std::unique_ptr<Rows> Gather(const Rows& mine, nb::object all_gather, Int32<"rank"> rank,
                             Int32<"ranks"> ranks) {
  Collective collective(std::move(all_gather), rank, ranks);
  wm_rows* gathered = nullptr;
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = (Api().*gather)(mine.rows, collective.get(), &gathered, why.get());
  }
  if (const nb::object raised = collective.TakeRaised(); raised.is_valid()) {
    Api().rows_release(gathered);
    PyErr_SetObject(raised.type().ptr(), raised.ptr());
    throw nb::python_error();
  }
  Check(status, why);
  return std::make_unique<Rows>(gathered);
}

// InvalidArgument for a valid row with an id out of range, or one twice in a layer.
void CheckIds(const nb::tuple& of, nb::handle ids_array, nb::handle info_array) {
  const Integers<std::int32_t> layer_ids(of[6], "layer_ids");
  waymark::RoutingShape shape;
  shape.num_layers = nb::cast<std::int32_t>(of[0]);
  shape.top_k = nb::cast<std::int32_t>(of[1]);
  shape.num_experts = nb::cast<std::int32_t>(of[2]);
  shape.layer_ids.assign(layer_ids.data(), layer_ids.data() + layer_ids.size());
  Check(shape.Validate());
  const Bytes ids = ReadableBytes(ids_array, "ids");
  const Bytes infos = ReadableBytes(info_array, "infos");
  const std::size_t rows = infos.size / sizeof(wm_row_info);
  if (ids.size != rows * shape.row_bytes()) {
    Raise(WM_INVALID_ARGUMENT, "ids: [T, L, K] in C order, and an info each");
  }
  const auto* const info = reinterpret_cast<const wm_row_info*>(infos.data);
  const waymark::DistinctIds distinct(shape.top_k, shape.num_experts);
  std::size_t row = 0;
  std::int32_t bad = -1;
  {
    const GilReleased released(ids.size > kReleaseBytes);
    for (; row < rows; ++row) {
      if (info[row].reason != WM_REASON_NONE) continue;
      bad = distinct.FirstBad(ids.data + row * shape.row_bytes(), shape.num_layers);
      if (bad >= 0) break;
    }
  }
  if (bad < 0) return;
  Raise(WM_INVALID_ARGUMENT, "ids: must be in [0, " + std::to_string(shape.num_experts) +
                                 ") and distinct in every layer of a valid row; row " +
                                 std::to_string(row) + ", layer " +
                                 std::to_string(shape.layer_id(bad)) + " has others");
}

}  // namespace

void BindRows(nb::module_& module) {
  module.def(
      "check_ids", &CheckIds, "shape"_a, "ids"_a, "infos"_a,
      nb::sig("def check_ids(shape: " WAYMARK_SHAPE ", ids: object, infos: object) -> None"));
  nb::class_<Rows>(module, "Rows")
      .def("__init__", &MakeRows, "num_layers"_a, "top_k"_a, "num_experts"_a, "page_tokens"_a,
           "layer_ids"_a, "first"_a, "ids"_a, "infos"_a, "ordered"_a)
      .def_prop_ro("first", [](const Rows& self) { return ViewOf(self).first; })
      .def_prop_ro("ordered",
                   [](const Rows& self) { return (ViewOf(self).flags & WM_ROWS_SORTED) == 0; })
      .def_prop_ro(
          "shape", [](const Rows& self) { return ShapeTuple(ShapeOf(self)); },
          nb::sig("def shape(self) -> " WAYMARK_SHAPE))
      .def_prop_ro("ids", &Ids, nb::sig("def ids(self) -> numpy.typing.NDArray[typing.Any]"))
      .def_prop_ro("infos", &Infos, nb::sig("def infos(self) -> " WAYMARK_ARRAY("uint8")))
      .def("document", &ToDocument, "code"_a, "steps"_a, "nodes"_a,
           nb::sig("def document(self, code: " WAYMARK_CODE ", steps: bool, nodes: bool) -> bytes"))
      .def("write_document", &WriteDocument, "path"_a, "code"_a, "steps"_a, "nodes"_a,
           nb::sig("def write_document(self, path: str, code: " WAYMARK_CODE
                   ", steps: bool, nodes: bool) -> None"))
      .def("handle", &ToHandle, "code"_a, "store"_a,
           nb::sig("def handle(self, code: " WAYMARK_CODE ", store: str) -> bytes"))
      .def("write", &Write, "layout"_a, "id_type"_a, "fill"_a, "out"_a)
      .def(
          "coverage",
          [](const Rows& self) {
            std::vector<wm_coverage_run> runs;
            Message why;
            wm_status status;
            {
              const GilReleased released;
              status = Runs(runs, [&](auto... args) {
                return Api().rows_coverage(self.rows, args..., why.get());
              });
            }
            Check(status, why);
            return RunList(runs);
          },
          nb::sig("def coverage(self) -> " WAYMARK_RUNS))
      .def("reused", &Reused, "first_step"_a, "out"_a)
      .def_static("join", &Join, "reads"_a, nb::sig("def join(reads: list[Rows]) -> Rows"))
      .def_static("join_layers", &JoinLayers, "stages"_a,
                  nb::sig("def join_layers(stages: list[Rows]) -> Rows"))
      .def("gather_layers", &Gather<&wm_api_v1::rows_gather_layers>, "all_gather"_a, "rank"_a,
           "ranks"_a)
      .def("gather", &Gather<&wm_api_v1::rows_gather>, "all_gather"_a, "rank"_a, "ranks"_a);
}

}  // namespace waymark_python
