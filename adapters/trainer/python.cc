// What a trainer needs, over the adapter's table: plans, filling, the replay audit.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "adapters/python/module.h"
#include "adapters/trainer/waymark_trainer.h"
#include "plugin/python/core.h"
#include "plugin/python/reading.h"
#include "plugin/python/session.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

const wm_trainer_api_v1& Table() {
  return *wm_get_trainer_api_v1();
}

struct TrainerPlan {
  explicit TrainerPlan(wm_trainer_plan* owned) : plan(owned) {}
  ~TrainerPlan() { Table().plan_release(plan); }
  TrainerPlan(const TrainerPlan&) = delete;
  TrainerPlan& operator=(const TrainerPlan&) = delete;
  wm_trainer_plan* plan;
};

void Make(TrainerPlan* self, nb::handle lengths, nb::handle padded_lengths, Int32<"order"> order,
          Int32<"context_cut"> context_cut, Int32<"context_size"> context_size,
          Int32<"context_rank"> context_rank, Int32<"tensor_size"> tensor_size,
          Int32<"tensor_rank"> tensor_rank, bool sequence_parallel,
          Int64<"sequence_multiple"> sequence_multiple, Int64<"total_multiple"> total_multiple,
          Int64<"local_multiple"> local_multiple) {
  const Integers<std::int64_t> tokens(lengths, "lengths");
  std::unique_ptr<Integers<std::int64_t>> padded;
  if (!padded_lengths.is_none()) {
    padded = std::make_unique<Integers<std::int64_t>>(padded_lengths, "padded_lengths");
    if (padded->size() != tokens.size()) {
      Raise(WM_INVALID_ARGUMENT, "padded_lengths: one for each of " +
                                     std::to_string(tokens.size()) + " sequences, got " +
                                     std::to_string(padded->size()));
    }
  }
  wm_trainer_layout layout = {};
  layout.struct_size = sizeof(layout);
  layout.flags = sequence_parallel ? WM_TRAINER_SEQUENCE_PARALLEL : 0;
  layout.order = order;
  layout.context_cut = context_cut;
  layout.context_size = context_size;
  layout.context_rank = context_rank;
  layout.tensor_size = tensor_size;
  layout.tensor_rank = tensor_rank;
  layout.sequence_multiple = sequence_multiple;
  layout.total_multiple = total_multiple;
  layout.local_multiple = local_multiple;
  wm_trainer_plan* plan = nullptr;
  Message why;
  Check(Table().plan_create(&layout, tokens.data(), padded == nullptr ? nullptr : padded->data(),
                            tokens.size(), &plan, why.get()),
        why);
  new (self) TrainerPlan(plan);
}

// [(sequence, position, count, row, row_stride)].
nb::list Segments(const TrainerPlan& self) {
  std::vector<wm_trainer_segment> segments;
  std::size_t count = 0;
  Message why;
  Check(Table().plan_segments(self.plan, nullptr, 0, &count, why.get()), why);
  segments.resize(count);
  Check(Table().plan_segments(self.plan, segments.data(), count, &count, why.get()), why);
  nb::list list;
  for (const wm_trainer_segment& of : segments)
    list.append(nb::make_tuple(of.sequence, of.position, of.count, of.row, of.row_stride));
  return list;
}

// Sources of a call, with what they keep.
class Sources {
 public:
  // `item`: a Snapshot, a Document, (Fetcher, handle, timeout), or rows in arrays: (shape, first,
  // ids, infos).
  void Add(nb::handle item, std::size_t index) {
    wm_trainer_source source = {};
    source.struct_size = sizeof(source);
    if (nb::isinstance<Snapshot>(item)) {
      auto& snapshot = nb::cast<Snapshot&>(item);
      snapshots_.push_back(&snapshot);
      sources_.push_back(source);
      of_snapshot_.push_back(&snapshot);
      return;
    }
    of_snapshot_.push_back(nullptr);
    if (nb::isinstance<Document>(item)) {
      source.document = nb::cast<const Document&>(item).document;
    } else {
      const auto parts = nb::cast<nb::tuple>(item);
      if (nb::isinstance<Fetcher>(parts[0])) {
        source.fetcher = nb::cast<const Fetcher&>(parts[0]).fetcher;
        bytes_.push_back(ReadableBytes(parts[1], "handle"));
        source.handle = bytes_.back().data;
        source.handle_bytes = bytes_.back().size;
        source.timeout_ns = Nanoseconds(parts[2]);
      } else {
        TakeArrays(parts, index, source);
      }
    }
    sources_.push_back(source);
  }

  // Calls `call(const wm_trainer_source* const*, count)` without the GIL, and as the only one that
  // uses the snapshots.
  template <typename Call>
  void Use(Call call) {
    // Each once, and in the same order in every call: threads may share them.
    std::sort(snapshots_.begin(), snapshots_.end());
    snapshots_.erase(std::unique(snapshots_.begin(), snapshots_.end()), snapshots_.end());
    bool gone = false;
    {
      const GilReleased released;
      std::vector<std::unique_lock<std::mutex>> locks;
      for (Snapshot* const snapshot : snapshots_)
        locks.emplace_back(snapshot->mutex);
      std::vector<const wm_trainer_source*> pointers;
      for (std::size_t i = 0; i < sources_.size(); ++i) {
        if (of_snapshot_[i] != nullptr) {
          sources_[i].snapshot = of_snapshot_[i]->snapshot;
          gone = gone || sources_[i].snapshot == nullptr;
        }
        pointers.push_back(&sources_[i]);
      }
      if (!gone) call(pointers.data(), pointers.size());
    }
    if (gone) RaiseReleased();
  }

 private:
  void TakeArrays(const nb::tuple& parts, std::size_t index, wm_trainer_source& source) {
    const auto of = nb::cast<nb::tuple>(parts[0]);
    layers_.emplace_back(of[6], "layer_ids");
    wm_shape& shape = shapes_.emplace_back();
    shape.struct_size = sizeof(shape);
    shape.num_layers = nb::cast<std::int32_t>(of[0]);
    shape.top_k = nb::cast<std::int32_t>(of[1]);
    shape.num_experts = nb::cast<std::int32_t>(of[2]);
    if (layers_.back().size() == static_cast<std::size_t>(shape.num_layers)) {
      shape.layer_ids = layers_.back().data();
    }
    arrays_.push_back(ArrayOf(parts[2], "ids"));
    const Array& ids = arrays_.back();
    const std::int64_t item = shape.num_experts <= 256 ? 1 : 2;
    const bool none = ids.dims == 3 && ids.shape[0] == 0;  // strides of nothing mean nothing
    const bool in_order = ids.dims == 3 && ids.item_bytes == item && ids.on_host &&
                          ids.shape[1] == shape.num_layers && ids.shape[2] == shape.top_k &&
                          (none || ((ids.shape[2] == 1 || ids.strides[2] == item) &&
                                    (ids.shape[1] == 1 || ids.strides[1] == shape.top_k * item)));
    bytes_.push_back(ReadableBytes(parts[3], "infos"));
    const Bytes& infos = bytes_.back();
    if (!in_order || infos.size != static_cast<std::uint64_t>(ids.shape[0]) * sizeof(wm_row_info)) {
      Raise(WM_INVALID_ARGUMENT, "sources[" + std::to_string(index) +
                                     "]: ids [T, L, K] with rows in C order, and an info each");
    }
    source.shape = &shape;
    source.first = nb::cast<std::int64_t>(parts[1]);
    source.count = ids.shape[0];
    source.ids = static_cast<const std::uint8_t*>(ids.data);
    source.row_stride = ids.strides[0];
    source.reasons = infos.data + offsetof(wm_row_info, reason);
    source.reason_stride = sizeof(wm_row_info);
  }

  std::vector<wm_trainer_source> sources_;
  std::vector<Snapshot*> of_snapshot_;  // [sources]
  std::vector<Snapshot*> snapshots_;
  std::deque<Bytes> bytes_;
  std::deque<Array> arrays_;
  std::deque<wm_shape> shapes_;
  std::deque<Integers<std::int32_t>> layers_;
};

// (replayed, padding, no_row, missing by reason, first missing sequence, its position).
nb::tuple Fill(const TrainerPlan& self, const nb::list& given, nb::handle layer_ids,
               std::int32_t id_type, std::int32_t fill, bool partial, bool packed, nb::handle ids,
               nb::handle mask) {
  Sources sources;
  for (std::size_t i = 0; i < nb::len(given); ++i)
    sources.Add(given[i], i);
  const Integers<std::int32_t> layers(layer_ids, "layers");
  const Bytes out = WritableBytes(ids, "out");
  const Bytes valid = WritableBytes(mask, "mask");
  wm_trainer_fill_args args = {};
  args.struct_size = sizeof(args);
  args.flags = (partial ? WM_TRAINER_PARTIAL : 0u) | (packed ? WM_TRAINER_PACKED_ROWS : 0u);
  args.plan = self.plan;
  args.layers = layers.data();
  args.num_layers = layers.size();
  args.id_type = id_type;
  args.fill = fill;
  args.ids = out.data;
  args.ids_bytes = out.size;
  args.mask = valid.data;
  args.mask_bytes = valid.size;
  wm_trainer_report report = {};
  report.struct_size = sizeof(report);
  Message why;
  wm_status status = WM_OK;
  sources.Use([&](const wm_trainer_source* const* all, std::size_t count) {
    args.sources = all;
    args.num_sources = count;
    status = Table().fill(&args, &report, why.get());
  });
  Check(status, why);
  nb::list missing;
  for (const std::int64_t rows : report.missing)
    missing.append(rows);
  return nb::make_tuple(report.replayed, report.padding, report.no_row, nb::tuple(missing),
                        report.first_missing_sequence, report.first_missing_position);
}

// Arrays that lie all in host memory, or all on a device.
void Expand(nb::handle packed_rows, nb::handle row_mask, nb::handle out,
            Int32<"num_experts"> experts, std::int32_t fill, nb::handle stream) {
  const Array packed = ArrayOf(packed_rows, "packed");
  const Array mask = ArrayOf(row_mask, "mask");
  const Array ids = ArrayOf(out, "out");
  const auto check = [](const Array& array, const char* name, int dims) {
    if (array.dims != dims || !array.contiguous()) {
      Raise(WM_INVALID_ARGUMENT, std::string(name) + ": " + std::to_string(dims) +
                                     " dimensions in C order, got " + std::to_string(array.dims));
    }
  };
  check(packed, "packed", 3);
  check(mask, "mask", 1);
  check(ids, "out", 3);
  const bool on_host = packed.on_host && mask.on_host && ids.on_host;
  if (on_host) (void)WritableBytes(out, "out");
  if (!on_host && !(packed.on_device && mask.on_device && ids.on_device)) {
    Raise(WM_INVALID_ARGUMENT, "packed, mask, out: all in host memory, or all on one device");
  }
  if (packed.kind != 'u' || packed.item_bytes != (experts <= 256 ? 1 : 2)) {
    Raise(WM_INVALID_ARGUMENT, "packed: uint8 up to 256 experts, else uint16");
  }
  if (mask.item_bytes != 1 || mask.shape[0] != packed.shape[0]) {
    Raise(WM_INVALID_ARGUMENT, "mask: bool or uint8, one for each of " +
                                   std::to_string(packed.shape[0]) + " rows, got " +
                                   std::to_string(mask.shape[0]));
  }
  if (ids.shape[0] != packed.shape[1] || ids.shape[1] != packed.shape[0] ||
      ids.shape[2] != packed.shape[2]) {
    Raise(WM_INVALID_ARGUMENT,
          "out: [layers, rows, K] of packed [" + std::to_string(packed.shape[0]) + ", " +
              std::to_string(packed.shape[1]) + ", " + std::to_string(packed.shape[2]) + "]");
  }
  const auto bytes = [](const Array& array) {
    std::uint64_t size = static_cast<std::uint64_t>(array.item_bytes);
    for (int i = 0; i < array.dims; ++i)
      size *= static_cast<std::uint64_t>(array.shape[i]);
    return size;
  };
  wm_trainer_expand_args args = {};
  args.struct_size = sizeof(args);
  args.flags = on_host ? 0 : WM_TRAINER_ON_DEVICE;
  const auto count = [](std::int64_t n) {
    return static_cast<std::int32_t>(std::min<std::int64_t>(n, INT32_MAX));
  };
  args.num_layers = count(packed.shape[1]);
  args.top_k = count(packed.shape[2]);
  args.num_experts = experts;
  args.id_type = IdType(ids, "out");
  args.fill = fill;
  args.rows = packed.shape[0];
  args.packed = packed.data;
  args.packed_bytes = bytes(packed);
  args.mask = static_cast<const std::uint8_t*>(mask.data);
  args.mask_bytes = bytes(mask);
  args.ids = const_cast<void*>(ids.data);
  args.ids_bytes = bytes(ids);
  args.stream = on_host ? nullptr : StreamOf(stream);
  Message why;
  wm_status status;
  {
    const GilReleased released(on_host);
    status = Table().expand(&args, why.get());
  }
  Check(status, why);
}

void CheckIds(nb::handle rows) {
  Sources sources;
  sources.Add(rows, 0);
  Message why;
  wm_status status = WM_OK;
  sources.Use([&](const wm_trainer_source* const* all, std::size_t) {
    status = Table().check_ids(all[0], why.get());
  });
  Check(status, why);
}

// (agreement, chance, rows, [(error, sequence, layer, by, count, agreement, explained, text)]).
nb::tuple Audit(const TrainerPlan& self, Int32<"num_layers"> num_layers, Int32<"top_k"> top_k,
                Int32<"num_experts"> num_experts, std::int32_t given_type, nb::handle given,
                nb::handle mask, std::int32_t own_type, nb::handle own, nb::handle row_list,
                double least_agreement, Int64<"max_rows"> max_rows, nb::handle layers,
                nb::handle positions, nb::handle sequences) {
  const Bytes given_bytes = ReadableBytes(given, "given");
  const Bytes mask_bytes = ReadableBytes(mask, "mask");
  const Bytes own_bytes = ReadableBytes(own, "own");
  const Integers<std::int64_t> rows(row_list, "rows");
  const Bytes by_layer = WritableBytes(layers, "layers");
  const Bytes by_row = WritableBytes(positions, "positions");
  const Bytes by_sequence = WritableBytes(sequences, "sequences");
  wm_trainer_audit_args args = {};
  args.struct_size = sizeof(args);
  args.plan = self.plan;
  args.num_layers = num_layers;
  args.top_k = top_k;
  args.num_experts = num_experts;
  args.given_type = given_type;
  args.given = given_bytes.data;
  args.given_bytes = given_bytes.size;
  args.mask = mask_bytes.data;
  args.mask_bytes = mask_bytes.size;
  args.own_type = own_type;
  args.own = own_bytes.data;
  args.own_bytes = own_bytes.size;
  args.rows = rows.data();
  args.num_rows = rows.size();
  args.least_agreement = least_agreement;
  args.max_rows = max_rows;
  args.layers = reinterpret_cast<double*>(by_layer.data);
  args.num_layers_out = by_layer.size / sizeof(double);
  args.positions = reinterpret_cast<double*>(by_row.data);
  args.num_positions = by_row.size / sizeof(double);
  args.sequences = reinterpret_cast<double*>(by_sequence.data);
  args.num_sequences = by_sequence.size / sizeof(double);
  wm_trainer_audit audit = {};
  audit.struct_size = sizeof(audit);
  std::vector<wm_trainer_alarm> alarms(64 + 1024);  // layers, and kinds of errors of sequences
  std::size_t count = 0;
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = Table().audit(&args, &audit, alarms.data(), alarms.size(), &count, why.get());
  }
  Check(status, why);
  alarms.resize(std::min(count, alarms.size()));
  nb::list list;
  for (const wm_trainer_alarm& alarm : alarms) {
    list.append(nb::make_tuple(
        alarm.error, alarm.sequence, alarm.layer, alarm.by, alarm.count, alarm.agreement,
        alarm.explained, Text([&](wm_message* text) { return Table().alarm_text(&alarm, text); })));
  }
  return nb::make_tuple(audit.agreement, audit.chance, audit.rows, list);
}

// [(rows, same_set, same_order, ids, shared_ids)], one a layer.
nb::list Agreement(const Rows& a, const Rows& b) {
  std::vector<wm_trainer_agreement> layers(1024);  // as many as a shape may have
  std::size_t count = 0;
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = Table().agreement(a.rows, b.rows, layers.data(), layers.size(), &count, why.get());
  }
  Check(status, why);
  nb::list list;
  for (std::size_t i = 0; i < count; ++i) {
    const wm_trainer_agreement& of = layers[i];
    list.append(nb::make_tuple(of.rows, of.same_set, of.same_order, of.ids, of.shared_ids));
  }
  return list;
}

nb::tuple StageLayers(Int32<"num_layers"> num_layers, Int32<"pipeline_size"> pipeline_size,
                      Int32<"pipeline_rank"> pipeline_rank, Int32<"virtual_size"> virtual_size,
                      Int32<"virtual_rank"> virtual_rank,
                      Int32<"first_stage_layers"> first_stage_layers,
                      Int32<"last_stage_layers"> last_stage_layers) {
  wm_trainer_pipeline pipeline = {};
  pipeline.struct_size = sizeof(pipeline);
  pipeline.num_layers = num_layers;
  pipeline.pipeline_size = pipeline_size;
  pipeline.pipeline_rank = pipeline_rank;
  pipeline.virtual_size = virtual_size;
  pipeline.virtual_rank = virtual_rank;
  pipeline.first_stage_layers = first_stage_layers;
  pipeline.last_stage_layers = last_stage_layers;
  std::int32_t first = 0;
  std::int32_t count = 0;
  Message why;
  Check(Table().stage_layers(&pipeline, &first, &count, why.get()), why);
  return nb::make_tuple(first, count);
}

}  // namespace

void BindTrainer(nb::module_& module) {
  nb::class_<TrainerPlan>(module, "TrainerPlan")
      .def("__init__", &Make, "lengths"_a, "padded_lengths"_a.none(), "order"_a, "context_cut"_a,
           "context_size"_a, "context_rank"_a, "tensor_size"_a, "tensor_rank"_a,
           "sequence_parallel"_a, "sequence_multiple"_a, "total_multiple"_a, "local_multiple"_a)
      .def_prop_ro("rows", [](const TrainerPlan& self) { return Table().plan_rows(self.plan); })
      .def("_segments", &Segments,
           nb::sig("def _segments(self) -> list[tuple[int, int, int, int, int]]"))
      .def("_fill", &Fill, "sources"_a, "layers"_a, "id_type"_a, "fill"_a, "partial"_a, "packed"_a,
           "ids"_a, "mask"_a,
           nb::sig("def _fill(self, sources: list[typing.Any], layers: object, id_type: int, "
                   "fill: int, partial: bool, packed: bool, ids: object, mask: object) -> "
                   "tuple[int, int, int, "
                   "tuple[int, ...], int, int]"))
      .def("_audit", &Audit, "num_layers"_a, "top_k"_a, "num_experts"_a, "given_type"_a, "given"_a,
           "mask"_a, "own_type"_a, "own"_a, "rows"_a, "least_agreement"_a, "max_rows"_a, "layers"_a,
           "positions"_a, "sequences"_a,
           nb::sig("def _audit(self, num_layers: int, top_k: int, num_experts: int, given_type: "
                   "int, given: object, mask: object, own_type: int, own: object, rows: object, "
                   "least_agreement: float, max_rows: int, layers: object, positions: object, "
                   "sequences: object) -> tuple[float, float, int, list[tuple[int, int, int, int, "
                   "int, float, float, str]]]"));
  module.def("expand", &Expand, "packed"_a, "mask"_a, "out"_a, "num_experts"_a, "fill"_a,
             "stream"_a.none(), "waymark.trainer.expand is what is for use.");
  module.def("check_ids", &CheckIds, "rows"_a,
             nb::sig("def check_ids(rows: tuple[typing.Any, ...]) -> None"));
  module.def("agreement", &Agreement, "a"_a, "b"_a,
             nb::sig("def agreement(a: Rows, b: Rows) -> list[tuple[int, int, int, int, int]]"));
  module.def("stage_layers", &StageLayers, "num_layers"_a, "pipeline_size"_a, "pipeline_rank"_a,
             "virtual_size"_a, "virtual_rank"_a, "first_stage_layers"_a, "last_stage_layers"_a,
             nb::sig("def stage_layers(num_layers: int, pipeline_size: int, pipeline_rank: int, "
                     "virtual_size: int, virtual_rank: int, first_stage_layers: int, "
                     "last_stage_layers: int) -> tuple[int, int]"));
}

}  // namespace waymark_python
