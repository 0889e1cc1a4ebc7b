// What a trainer needs, for Python: filling the tensors of its routers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "adapters/python/module.h"
#include "adapters/trainer/fill.h"
#include "kernels/pack_cuda.h"
#include "plugin/python/core.h"
#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

// Sources of a call, with what they keep.
class Sources {
 public:
  // `parts`: (shape, first, ids, infos).
  void Add(const nb::tuple& parts, std::size_t index) {
    const auto of = nb::cast<nb::tuple>(parts[0]);
    waymark::RoutingShape& shape = shapes_.emplace_back(ShapeOf(of));
    const Array& ids = arrays_.emplace_back(ArrayOf(parts[2], "ids"));
    const auto item = static_cast<std::int64_t>(shape.id_bytes());
    const bool none = ids.dims == 3 && ids.shape[0] == 0;  // strides of nothing mean nothing
    const bool in_order = ids.dims == 3 && ids.item_bytes == item && ids.on_host &&
                          ids.shape[1] == shape.num_layers && ids.shape[2] == shape.top_k &&
                          (none || ((ids.shape[2] == 1 || ids.strides[2] == item) &&
                                    (ids.shape[1] == 1 || ids.strides[1] == shape.top_k * item)));
    const Bytes& infos = bytes_.emplace_back(ReadableBytes(parts[3], "infos"));
    if (!in_order ||
        infos.size != static_cast<std::uint64_t>(ids.shape[0]) * sizeof(waymark::RowInfo)) {
      RaiseInvalid("sources[" + std::to_string(index) +
                   "]: ids [T, L, K] with rows in C order, and an info each");
    }
    waymark::RowsView view;
    view.shape = &shape;
    view.first = IntegerOf<std::int64_t>(parts[1], "first", 0, INT32_MAX);
    view.count = ids.shape[0];
    view.ids = static_cast<const std::uint8_t*>(ids.data);
    view.row_stride = static_cast<std::ptrdiff_t>(ids.strides[0]);
    view.reasons = infos.data + offsetof(waymark::RowInfo, reason);
    view.reason_stride = sizeof(waymark::RowInfo);
    sources_.push_back(view);
  }

  [[nodiscard]] std::span<const waymark::RowsView> get() const { return sources_; }

 private:
  std::vector<waymark::RowsView> sources_;
  std::deque<Bytes> bytes_;
  std::deque<Array> arrays_;
  std::deque<waymark::RoutingShape> shapes_;
};

// A plan of segments of five numbers each: sequence, position, count, row, row_stride. Returns
// (replayed, padding, no_row, missing by reason, first missing sequence, its position).
nb::tuple FillTensors(std::int64_t rows, nb::handle lengths, nb::handle segments,
                      const nb::list& given, nb::handle layer_ids, std::int32_t id_type,
                      std::int32_t fill, bool partial, bool packed, nb::handle ids,
                      nb::handle mask) {
  const Integers<std::int64_t> tokens(lengths, "lengths");
  const Integers<std::int64_t> numbers(segments, "segments");
  waymark::RowPlan plan = {rows, {tokens.data(), tokens.data() + tokens.size()}, {}};
  for (std::size_t i = 0; i + 5 <= numbers.size(); i += 5) {
    const std::int64_t* const of = numbers.data() + i;
    plan.segments.push_back({static_cast<std::int32_t>(of[0]), of[1], of[2], of[3], of[4]});
  }
  Sources sources;
  for (std::size_t i = 0; i < nb::len(given); ++i)
    sources.Add(nb::cast<nb::tuple>(given[i]), i);
  const Integers<std::int32_t> layers(layer_ids, "layers");
  const Bytes out = WritableBytes(ids, "out");
  const Bytes valid = WritableBytes(mask, "mask");
  const waymark::RouterTensors tensors = {.id_type = SpecOf(0, id_type, 0).id_type,
                                          .fill = static_cast<waymark::RouteFill>(fill),
                                          .ids = {out.data, out.size},
                                          .packed = packed,
                                          .mask = {valid.data, valid.size}};
  const waymark::FillReport report = Value(Unlocked([&] {
    return waymark::FillRouterTensors(plan, sources.get(), {layers.data(), layers.size()}, tensors,
                                      {.partial = partial});
  }));
  nb::list missing;
  for (const std::int64_t of_reason : report.missing)
    missing.append(of_reason);
  return nb::make_tuple(report.replayed, report.padding, report.no_row, nb::tuple(missing),
                        report.first_missing.sequence, report.first_missing.position);
}

// What an expansion reads and writes: arrays that lie all in host memory, or all on a device.
struct Expansion {
  Expansion(nb::handle packed_rows, nb::handle row_mask, nb::handle out, std::int32_t num_experts)
      : packed(Take(packed_rows, "packed", 3)),
        mask(Take(row_mask, "mask", 1)),
        ids(Take(out, "out", 3)),
        on_host(packed.on_host && mask.on_host && ids.on_host) {
    if (on_host) (void)WritableBytes(out, "out");
    if (!on_host && !(packed.on_device && mask.on_device && ids.on_device)) {
      RaiseInvalid("packed, mask, out: all in host memory, or all on one device");
    }
    if (packed.kind != 'u' || packed.item_bytes != (num_experts <= 256 ? 1 : 2)) {
      RaiseInvalid("packed: uint8 up to 256 experts, else uint16");
    }
    if (mask.item_bytes != 1 || mask.shape[0] != packed.shape[0]) {
      RaiseInvalid("mask: bool or uint8, one for each of " + std::to_string(packed.shape[0]) +
                   " rows, got " + std::to_string(mask.shape[0]));
    }
    if (ids.shape[0] != packed.shape[1] || ids.shape[1] != packed.shape[0] ||
        ids.shape[2] != packed.shape[2]) {
      RaiseInvalid("out: [layers, rows, K] of packed [" + std::to_string(packed.shape[0]) + ", " +
                   std::to_string(packed.shape[1]) + ", " + std::to_string(packed.shape[2]) + "]");
    }
  }
  static Array Take(nb::handle object, const char* name, int dims) {
    Array array = ArrayOf(object, name);
    if (array.dims != dims || !array.contiguous()) {
      RaiseInvalid(std::string(name) + ": " + std::to_string(dims) +
                   " dimensions in C order, got " + std::to_string(array.dims));
    }
    return array;
  }

  Array packed;
  Array mask;
  Array ids;
  bool on_host;
};

absl::Status ExpandOnDevice([[maybe_unused]] const waymark::kernels::CudaGather& gather,
                            [[maybe_unused]] void* stream) {
#ifdef WAYMARK_HAS_CUDA
  const int error = waymark::kernels::GatherRowsOnCuda(gather, static_cast<CUstream_st*>(stream));
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError("expand: the launch failed with cudaError_t " +
                                std::to_string(error));
#else
  return absl::UnimplementedError("expand: arrays on a device need a build with CUDA");
#endif
}

// Whether it was done: not for arrays in host memory, which are only checked.
bool Expand(nb::handle packed_rows, nb::handle row_mask, nb::handle out,
            Int32<"num_experts"> experts, std::int32_t fill, nb::handle stream) {
  const Expansion of(packed_rows, row_mask, out, experts);
  const auto count = [](std::int64_t n) {
    return static_cast<std::int32_t>(std::min<std::int64_t>(n, INT32_MAX));
  };
  waymark::RoutingShape shape;
  shape.num_layers = count(of.packed.shape[1]);
  shape.top_k = count(of.packed.shape[2]);
  shape.num_experts = experts;
  const waymark::kernels::CudaGather gather = Value(waymark::GatherOf(
      shape, of.packed.shape[0], of.packed.data, of.mask.data, const_cast<void*>(of.ids.data),
      ItemType(of.ids, "out"), static_cast<waymark::RouteFill>(fill)));
  if (of.on_host) return false;
  if (gather.rows != 0) Check(ExpandOnDevice(gather, StreamOf(stream)));
  return true;
}

}  // namespace

void BindTrainer(nb::module_& module) {
  module.def("fill_tensors", &FillTensors, "rows"_a, "lengths"_a, "segments"_a, "sources"_a,
             "layers"_a, "id_type"_a, "fill"_a, "partial"_a, "packed"_a, "ids"_a, "mask"_a,
             nb::sig("def fill_tensors(rows: int, lengths: object, segments: object, sources: "
                     "list[typing.Any], layers: object, id_type: int, fill: int, partial: bool, "
                     "packed: bool, ids: object, mask: object) -> "
                     "tuple[int, int, int, tuple[int, ...], int, int]"));
  module.def("expand", &Expand, "packed"_a, "mask"_a, "out"_a, "num_experts"_a, "fill"_a,
             "stream"_a.none(), "waymark.trainer.expand is what is for use.");
}

}  // namespace waymark_python
