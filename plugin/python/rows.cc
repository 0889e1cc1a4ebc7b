// Rows: rows that were read.
#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "blockstore/distinct_ids.h"
#include "blockstore/wire/document_writer.h"
#include "blockstore/wire/publisher.h"
#include "kernels/pack_rows.h"
#include "plugin/capture/ids_kind.h"
#include "plugin/python/arrays.h"
#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;
namespace wire = waymark::wire;

void MakeRows(Rows* self, const nb::tuple& shape, Int64<"first"> first, nb::handle ids,
              nb::handle infos, bool ordered, const nb::bytes& names) {
  const waymark::RoutingShape of = ShapeOf(shape);
  const Bytes id_bytes = ReadableBytes(ids, "ids");
  const Bytes info_bytes = ReadableBytes(infos, "infos");
  auto rows = Unlocked(
      [&] { return waymark::CopyRows(of, first, ordered, SpanOf(id_bytes), InfosOf(info_bytes)); },
      id_bytes.size >= kReleaseBytes);
  waymark::Rows made = Value(std::move(rows));
  made.names.resize(names.size() / sizeof(waymark::PageName));
  if (!made.names.empty())
    std::memcpy(made.names.data(), names.data(), made.names.size() * sizeof(waymark::PageName));
  new (self) Rows(std::move(made));
}

// uint8 or uint16 [rows, L, K]; the array keeps the rows.
nb::object Ids(nb::handle_t<Rows> self) {
  const waymark::Rows& rows = *nb::cast<const Rows&>(self).rows;
  const auto count = static_cast<std::size_t>(rows.size());
  const auto layers = static_cast<std::size_t>(rows.shape.num_layers);
  const auto k = static_cast<std::size_t>(rows.shape.top_k);
  if (rows.shape.id_bytes() == 1) return Lend(rows.ids.data(), {count, layers, k}, self);
  return Lend(reinterpret_cast<const std::uint16_t*>(rows.ids.data()), {count, layers, k}, self);
}

nb::object Infos(nb::handle_t<Rows> self) {
  const waymark::Rows& rows = *nb::cast<const Rows&>(self).rows;
  return Lend(reinterpret_cast<const std::uint8_t*>(rows.infos.data()),
              {rows.infos.size(), sizeof(waymark::RowInfo)}, self);
}

// Only MakeRows reads them.
nb::bytes Names(const Rows& self) {
  const auto& names = self.rows->names;
  static_assert(std::is_trivially_copyable_v<waymark::PageName>);
  return nb::bytes(names.data(), names.size() * sizeof(waymark::PageName));
}

void Write(const Rows& self, int layout, int id_type, int fill, nb::handle out) {
  const Bytes to = WritableBytes(out, "out");
  Check(Unlocked([&] { return self.rows->Write(SpecOf(layout, id_type, fill), SpanOf(to)); },
                 to.size >= kReleaseBytes));
}

void Reused(const Rows& self, std::uint64_t first_step, nb::handle out) {
  const Bytes reused = WritableBytes(out, "out");
  if (reused.size != self.rows->infos.size()) RaiseInvalid("out: one for each row");
  std::transform(self.rows->infos.begin(), self.rows->infos.end(), reused.data,
                 [&](const waymark::RowInfo& info) {
                   return static_cast<std::uint8_t>(waymark::IsReused(info, first_step));
                 });
}

// `join` is Join or JoinLayers.
template <auto join>
std::unique_ptr<Rows> Joined(const nb::list& list) {
  std::vector<const waymark::Rows*> reads;
  for (nb::handle read : list)
    reads.push_back(nb::cast<const Rows&>(read).rows.get());
  return std::make_unique<Rows>(Value(Unlocked([&] { return join(reads); })));
}

// Calls `write(const wire::DocumentWriter&)`, without the GIL.
template <typename F>
void WithWriter(const Rows& self, const nb::tuple& code, bool steps, bool nodes, F write) {
  const waymark::Rows& rows = *self.rows;
  wire::DocumentOptions options;
  options.code = CodeOf(code, rows.shape);
  options.steps = steps;
  Check(Unlocked([&]() -> absl::Status {
    wire::Trajectory trajectory;
    if (nodes) {
      absl::StatusOr<wire::Trajectory> made = wire::MakeTrajectory(rows, options.code);
      if (!made.ok()) return made.status();
      trajectory = *std::move(made);
      options.trajectory = trajectory.handle.head;
      options.nodes = trajectory.nodes;
    }
    const absl::StatusOr<wire::DocumentWriter> writer = wire::DocumentWriter::Create(rows, options);
    return writer.ok() ? write(*writer) : writer.status();
  }));
}

nb::bytes ToDocument(const Rows& self, const nb::tuple& code, bool steps, bool nodes) {
  nb::object bytes;
  WithWriter(self, code, steps, nodes, [&](const wire::DocumentWriter& writer) {
    std::uint8_t* to = nullptr;
    {
      const GilTaken gil;
      bytes = NewBytes(writer.bytes());
      to = reinterpret_cast<std::uint8_t*>(PyBytes_AsString(bytes.ptr()));
    }
    return writer.WriteTo({to, writer.bytes()});
  });
  return nb::borrow<nb::bytes>(bytes);
}

void WriteDocument(const Rows& self, const std::string& path, const nb::tuple& code, bool steps,
                   bool nodes) {
  WithWriter(self, code, steps, nodes,
             [&](const wire::DocumentWriter& writer) { return writer.WriteFile(path); });
}

nb::bytes ToHandle(const Rows& self, const nb::tuple& given, const std::string& store) {
  const wire::ChunkCode code = CodeOf(given, self.rows->shape);
  return BytesOf(Value(Unlocked([&]() -> absl::StatusOr<std::vector<std::uint8_t>> {
    const auto trajectory = wire::MakeTrajectory(*self.rows, code, store);
    if (!trajectory.ok()) return trajectory.status();
    return wire::EncodeHandle(trajectory->handle);
  })));
}

void CheckArrays(const nb::tuple& shape, Int64<"first"> first, nb::handle ids, nb::handle infos) {
  const waymark::RoutingShape of = ShapeOf(shape);
  const Bytes id_bytes = ReadableBytes(ids, "ids");
  const Bytes info_bytes = ReadableBytes(infos, "infos");
  Check(Unlocked(
      [&] { return waymark::CheckRowArrays(of, first, SpanOf(id_bytes), InfosOf(info_bytes)); },
      id_bytes.size >= kReleaseBytes));
}

// InvalidArgument for a valid row with an id out of range, or one twice in a layer.
void CheckIds(const nb::tuple& of, nb::handle ids_array, nb::handle info_array) {
  const waymark::RoutingShape shape = ShapeOf(of);
  const Bytes ids = ReadableBytes(ids_array, "ids");
  const Bytes infos = ReadableBytes(info_array, "infos");
  const std::span<const waymark::RowInfo> rows = InfosOf(infos);
  if (ids.size != rows.size() * shape.row_bytes()) {
    RaiseInvalid("ids: [T, L, K] in C order, and an info each");
  }
  const waymark::DistinctIds distinct(shape.top_k, shape.num_experts);
  std::size_t row = 0;
  std::int32_t bad = -1;
  {
    const GilReleased released(ids.size > kReleaseBytes);
    for (; row < rows.size(); ++row) {
      if (!rows[row].valid()) continue;
      bad = distinct.FirstBad(ids.data + row * shape.row_bytes(), shape.num_layers);
      if (bad >= 0) break;
    }
  }
  if (bad < 0) return;
  RaiseInvalid("ids: must be in [0, " + std::to_string(shape.num_experts) +
               ") and distinct in every layer of a valid row; row " + std::to_string(row) +
               ", layer " + std::to_string(shape.layer_id(bad)) + " has others");
}

// Writes ids [N, L, K] to `out` as the store has them, and what is wrong with each row to
// `reasons`; returns how many rows are wrong.
std::size_t PackIds(nb::handle ids, Int64<"num_experts"> num_experts, nb::handle out,
                    nb::handle reasons) {
  const Array array = ArrayOf(ids, "ids");
  if (array.dims != 3 || !array.on_host) RaiseInvalid("ids: [N, L, K] in host memory");
  const waymark::IdType type = ItemType(array, "ids");
  const waymark::RoutingShape shape{.num_layers = static_cast<std::int32_t>(array.shape[1]),
                                    .top_k = static_cast<std::int32_t>(array.shape[2]),
                                    .num_experts = static_cast<std::int32_t>(num_experts)};
  Check(shape.Validate());
  const Bytes to = WritableBytes(out, "out");
  const Bytes why = WritableBytes(reasons, "reasons");
  const auto rows = static_cast<std::size_t>(array.shape[0]);
  if (to.size != rows * shape.row_bytes() || why.size != rows)
    RaiseInvalid("out: [N, L, K] of the stored type; reasons: uint8 [N]");
  std::vector<std::uint8_t*> rows_of(rows);
  for (std::size_t i = 0; i < rows; ++i)
    rows_of[i] = to.data + i * shape.row_bytes();
  std::vector<waymark::kernels::RowVerdict> verdicts(rows);
  const GilReleased released(to.size > kReleaseBytes);
  const std::size_t wrong = waymark::kernels::PackRows(
      waymark::ToRowShape(shape),
      {array.data, waymark::ToKind(type), array.strides[0], array.strides[1], array.strides[2]},
      rows_of, verdicts);
  for (std::size_t i = 0; i < rows; ++i)
    why.data[i] = static_cast<std::uint8_t>(waymark::ToReason(verdicts[i]));
  return wrong;
}

}  // namespace

void BindRows(nb::module_& module) {
  module.def("pack_ids", &PackIds, "ids"_a, "num_experts"_a, "out"_a, "reasons"_a,
             nb::sig("def pack_ids(ids: object, num_experts: int, out: object, reasons: object) "
                     "-> int"));
  module.def(
      "experts_held",
      [](std::size_t bytes, bool is_signed) {
        return nb::make_tuple(waymark::ExpertsHeld(bytes, is_signed),
                              waymark::ExpertsHeldText(bytes, is_signed));
      },
      nb::sig("def experts_held(bytes: int, is_signed: bool, /) -> tuple[int, str]"));
  module.def("check_arrays", &CheckArrays, "shape"_a, "first"_a, "ids"_a, "infos"_a,
             nb::sig("def check_arrays(shape: " WAYMARK_SHAPE
                     ", first: int, ids: object, infos: object) -> None"));
  module.def(
      "check_ids", &CheckIds, "shape"_a, "ids"_a, "infos"_a,
      nb::sig("def check_ids(shape: " WAYMARK_SHAPE ", ids: object, infos: object) -> None"));
  nb::class_<Rows>(module, "Rows")
      .def("__init__", &MakeRows, "shape"_a, "first"_a, "ids"_a, "infos"_a, "ordered"_a,
           "names"_a = nb::bytes("", 0),
           nb::sig("def __init__(self, shape: " WAYMARK_SHAPE
                   ", first: int, ids: object, infos: object, ordered: bool, names: bytes = b'') "
                   "-> None"))
      .def_prop_ro("first", [](const Rows& self) { return self.rows->first; })
      .def_prop_ro("ordered", [](const Rows& self) { return self.rows->ordered; })
      .def_prop_ro(
          "shape", [](const Rows& self) { return ShapeTuple(self.rows->shape); },
          nb::sig("def shape(self) -> " WAYMARK_SHAPE))
      .def_prop_ro("ids", &Ids, nb::sig("def ids(self) -> numpy.typing.NDArray[typing.Any]"))
      .def_prop_ro("infos", &Infos, nb::sig("def infos(self) -> " WAYMARK_ARRAY("uint8")))
      .def_prop_ro("names", &Names)
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
          [](const Rows& self) { return RunList(Unlocked([&] { return self.rows->Coverage(); })); },
          nb::sig("def coverage(self) -> " WAYMARK_RUNS))
      .def("reused", &Reused, "first_step"_a, "out"_a)
      .def_static("join", &Joined<&waymark::Join>, "reads"_a,
                  nb::sig("def join(reads: list[Rows]) -> Rows"))
      .def_static("join_layers", &Joined<&waymark::JoinLayers>, "stages"_a,
                  nb::sig("def join_layers(stages: list[Rows]) -> Rows"));
}

}  // namespace waymark_python
