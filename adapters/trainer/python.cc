// What a trainer needs, for Python: plans, filling, the replay audit.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "adapters/python/module.h"
#include "adapters/trainer/expand.h"
#include "adapters/trainer/fill.h"
#include "adapters/trainer/layout.h"
#include "adapters/trainer/routing_diff.h"
#include "blockstore/timeout.h"
#include "blockstore/wire/handle.h"
#include "kernels/pack_cuda.h"
#include "plugin/python/core.h"
#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

namespace wire = waymark::wire;
using nb::literals::operator""_a;
using waymark::RowPlan;

// The package passes numbers of enums; they are checked, because casting others is undefined.
template <typename T>
T EnumOf(std::int32_t number, T last, const char* name) {
  return static_cast<T>(
      IntegerOf<std::int32_t>(nb::int_(number), name, 0, static_cast<std::int32_t>(last)));
}
waymark::IdType IdTypeOf(std::int32_t number, const char* name) {
  return EnumOf(number, waymark::IdType::kInt64, name);
}
waymark::Fill FillOf(std::int32_t number) {
  return EnumOf(number, waymark::Fill::kArange, "fill");
}

void Make(RowPlan* self, nb::handle lengths, nb::handle padded_lengths, Int32<"order"> order,
          Int32<"context_cut"> context_cut, Int32<"context_size"> context_size,
          Int32<"context_rank"> context_rank, Int32<"tensor_size"> tensor_size,
          Int32<"tensor_rank"> tensor_rank, bool sequence_parallel,
          Int64<"sequence_multiple"> sequence_multiple, Int64<"total_multiple"> total_multiple,
          Int64<"local_multiple"> local_multiple) {
  const Integers<std::int64_t> tokens(lengths, "lengths");
  std::optional<Integers<std::int64_t>> padded;
  if (!padded_lengths.is_none()) {
    padded.emplace(padded_lengths, "padded_lengths");
    if (padded->size() != tokens.size()) {
      RaiseInvalid("padded_lengths: one for each of " + std::to_string(tokens.size()) +
                   " sequences, got " + std::to_string(padded->size()));
    }
  }
  waymark::TrainerLayout layout;
  layout.order = EnumOf(order, waymark::TokenOrder::kBatchMajor, "order");
  layout.context_cut = EnumOf(context_cut, waymark::ContextCut::kStream, "context_cut");
  layout.context_size = context_size;
  layout.context_rank = context_rank;
  layout.tensor_size = tensor_size;
  layout.tensor_rank = tensor_rank;
  layout.sequence_parallel = sequence_parallel;
  layout.sequence_multiple = sequence_multiple;
  layout.total_multiple = total_multiple;
  layout.local_multiple = local_multiple;
  std::span<const std::int64_t> padded_span;
  if (padded) padded_span = {padded->data(), padded->size()};
  new (self) RowPlan(Value(RowPlan::Make(layout, {tokens.data(), tokens.size()}, padded_span)));
}

// [(sequence, position, count, row, row_stride)].
nb::list Segments(const RowPlan& self) {
  nb::list list;
  for (const waymark::RowSegment& of : self.segments())
    list.append(nb::make_tuple(of.sequence, of.position, of.count, of.row, of.row_stride));
  return list;
}

// Sources of a call, with what they keep.
class Sources {
 public:
  // `item`: a Document, (Fetcher, handle, timeout), or rows in arrays: (shape, first, ids, infos).
  void Add(nb::handle item, std::size_t index) {
    if (nb::isinstance<Document>(item)) {
      sources_.emplace_back(&nb::cast<const Document&>(item).document);
      return;
    }
    const auto parts = nb::cast<nb::tuple>(item);
    if (nb::isinstance<Fetcher>(parts[0])) {
      TakeHandle(parts);
    } else {
      TakeArrays(parts, index);
    }
  }

  [[nodiscard]] std::span<const waymark::RowSource> get() const { return sources_; }

 private:
  void TakeHandle(const nb::tuple& parts) {
    const Bytes bytes = ReadableBytes(parts[1], "handle");
    handles_.push_back(Value(wire::ParseHandle({bytes.data, bytes.size})));
    const std::int64_t ns = Nanoseconds(parts[2]);
    const std::chrono::nanoseconds timeout =
        ns < 0 ? std::chrono::nanoseconds(waymark::kLongestTimeout)
               : waymark::Clamped(std::chrono::nanoseconds(ns));
    sources_.emplace_back(waymark::RowsByHandle{&*nb::cast<const Fetcher&>(parts[0]).fetcher,
                                                &handles_.back(), wire::After(timeout)});
  }

  void TakeArrays(const nb::tuple& parts, std::size_t index) {
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
    sources_.emplace_back(view);
  }

  std::vector<waymark::RowSource> sources_;
  std::deque<wire::Handle> handles_;
  std::deque<Bytes> bytes_;
  std::deque<Array> arrays_;
  std::deque<waymark::RoutingShape> shapes_;
};

// (replayed, padding, no_row, missing by reason, first missing sequence, its position).
nb::tuple FillTensors(const RowPlan& self, const nb::list& given, nb::handle layer_ids,
                      std::int32_t id_type, std::int32_t fill, bool partial, bool packed,
                      nb::handle ids, nb::handle mask) {
  Sources sources;
  for (std::size_t i = 0; i < nb::len(given); ++i)
    sources.Add(given[i], i);
  const Integers<std::int32_t> layers(layer_ids, "layers");
  const Bytes out = WritableBytes(ids, "out");
  const Bytes valid = WritableBytes(mask, "mask");
  const waymark::RouterTensors tensors = {.id_type = IdTypeOf(id_type, "id_type"),
                                          .fill = FillOf(fill),
                                          .ids = {out.data, out.size},
                                          .packed = packed,
                                          .mask = {valid.data, valid.size}};
  const waymark::FillReport report = Value(Unlocked([&] {
    return waymark::FillRouterTensors(self, sources.get(), {layers.data(), layers.size()}, tensors,
                                      {.partial = partial});
  }));
  nb::list missing;
  for (const std::int64_t rows : report.missing)
    missing.append(rows);
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
  static std::span<std::uint8_t> BytesOf(const Array& array) {
    auto size = static_cast<std::size_t>(array.item_bytes);
    for (int i = 0; i < array.dims; ++i)
      size *= static_cast<std::size_t>(array.shape[i]);
    return {static_cast<std::uint8_t*>(const_cast<void*>(array.data)), size};
  }

  Array packed;
  Array mask;
  Array ids;
  bool on_host;
};

absl::Status ExpandOnDevice([[maybe_unused]] const waymark::PackedTensors& tensors,
                            [[maybe_unused]] void* stream) {
#ifdef WAYMARK_HAS_CUDA
  const int error = waymark::kernels::GatherRowsOnCuda(waymark::GatherOf(tensors),
                                                       static_cast<CUstream_st*>(stream));
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError("expand: the launch failed with cudaError_t " +
                                std::to_string(error));
#else
  return absl::UnimplementedError("expand: arrays on a device need a build with CUDA");
#endif
}

void Expand(nb::handle packed_rows, nb::handle row_mask, nb::handle out,
            Int32<"num_experts"> experts, std::int32_t fill, nb::handle stream) {
  const Expansion of(packed_rows, row_mask, out, experts);
  const auto count = [](std::int64_t n) {
    return static_cast<std::int32_t>(std::min<std::int64_t>(n, INT32_MAX));
  };
  const waymark::PackedTensors tensors = {
      .num_layers = count(of.packed.shape[1]),
      .top_k = count(of.packed.shape[2]),
      .num_experts = experts,
      .rows = of.packed.shape[0],
      .packed = Expansion::BytesOf(of.packed),
      .mask = Expansion::BytesOf(of.mask),
      .ids = Expansion::BytesOf(of.ids),
      .id_type = ItemType(of.ids, "out"),
      .fill = FillOf(fill),
  };
  Check(waymark::CheckExpand(tensors));
  if (tensors.rows == 0) return;
  if (!of.on_host) return Check(ExpandOnDevice(tensors, StreamOf(stream)));
  absl::Status status;
  {
    const GilReleased released;
    status = waymark::CheckExpandIds(tensors);
    if (status.ok()) waymark::ExpandOnHost(tensors);
  }
  Check(status);
}

// [(rows, same_set, same_order, ids, shared_ids)], one a layer.
nb::list Agreement(const Rows& a, const Rows& b) {
  absl::StatusOr<waymark::RoutingDiff> result;
  {
    const GilReleased released;
    result = waymark::Compare(*a.rows, *b.rows, 0);
  }
  nb::list list;
  for (const waymark::PairCounts& of : Value(std::move(result)).all.layers)
    list.append(nb::make_tuple(of.pairs, of.same_set, of.same_order, of.ids, of.shared_ids));
  return list;
}

}  // namespace

void BindTrainer(nb::module_& module) {
  nb::class_<RowPlan>(module, "TrainerPlan")
      .def("__init__", &Make, "lengths"_a, "padded_lengths"_a.none(), "order"_a, "context_cut"_a,
           "context_size"_a, "context_rank"_a, "tensor_size"_a, "tensor_rank"_a,
           "sequence_parallel"_a, "sequence_multiple"_a, "total_multiple"_a, "local_multiple"_a)
      .def_prop_ro("rows", &RowPlan::rows)
      .def("_segments", &Segments,
           nb::sig("def _segments(self) -> list[tuple[int, int, int, int, int]]"))
      .def("_fill", &FillTensors, "sources"_a, "layers"_a, "id_type"_a, "fill"_a, "partial"_a,
           "packed"_a, "ids"_a, "mask"_a,
           nb::sig("def _fill(self, sources: list[typing.Any], layers: object, id_type: int, "
                   "fill: int, partial: bool, packed: bool, ids: object, mask: object) -> "
                   "tuple[int, int, int, "
                   "tuple[int, ...], int, int]"));
  module.def("expand", &Expand, "packed"_a, "mask"_a, "out"_a, "num_experts"_a, "fill"_a,
             "stream"_a.none(), "waymark.trainer.expand is what is for use.");
  module.def("agreement", &Agreement, "a"_a, "b"_a,
             nb::sig("def agreement(a: Rows, b: Rows) -> list[tuple[int, int, int, int, int]]"));
}

}  // namespace waymark_python
