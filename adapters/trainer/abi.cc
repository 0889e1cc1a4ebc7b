// The table of waymark_trainer.h.
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "adapters/trainer/expand.h"
#include "adapters/trainer/fill.h"
#include "adapters/trainer/layout.h"
#include "adapters/trainer/replay_audit.h"
#include "adapters/trainer/routing_diff.h"
#include "adapters/trainer/stage_layers.h"
#include "adapters/trainer/waymark_trainer.h"
#include "blockstore/distinct_ids.h"
#include "plugin/abi/arguments.h"
#include "plugin/abi/fill.h"

struct wm_trainer_plan : waymark::abi::RefCounted<0x776d20747261696e> {  // "wm train"
  explicit wm_trainer_plan(waymark::RowPlan of) : plan(std::move(of)) {}

  const waymark::RowPlan plan;
};

namespace waymark::abi {

#define WM_LAST_REQUIRED(type, field) \
  template <>                         \
  inline constexpr std::uint32_t kLeastBytes<type> = offsetof(type, field) + sizeof(type::field)
WM_LAST_REQUIRED(wm_trainer_pipeline, num_layers);
WM_LAST_REQUIRED(wm_trainer_fill_args, ids_bytes);
WM_LAST_REQUIRED(wm_trainer_expand_args, ids_bytes);
WM_LAST_REQUIRED(wm_trainer_audit_args, own_bytes);
#undef WM_LAST_REQUIRED

namespace {

static_assert(static_cast<int>(TokenOrder::kSequenceMajor) == WM_TRAINER_SEQUENCE_MAJOR &&
              static_cast<int>(TokenOrder::kBatchMajor) == WM_TRAINER_BATCH_MAJOR &&
              static_cast<int>(ContextCut::kContiguous) == WM_TRAINER_CONTIGUOUS &&
              static_cast<int>(ContextCut::kStream) == WM_TRAINER_STREAM);
static_assert(static_cast<int>(ReplayError::kShifted) == WM_REPLAY_SHIFTED &&
              static_cast<int>(ReplayError::kLayers) == WM_REPLAY_LAYERS &&
              static_cast<int>(ReplayError::kOtherSequence) == WM_REPLAY_OTHER_SEQUENCE &&
              static_cast<int>(ReplayError::kBatchMajor) == WM_REPLAY_BATCH_MAJOR &&
              static_cast<int>(ReplayError::kSequenceMajor) == WM_REPLAY_SEQUENCE_MAJOR &&
              static_cast<int>(ReplayError::kStaleWeights) == WM_REPLAY_STALE_WEIGHTS);
static_assert(sizeof(wm_trainer_segment) == 40 && sizeof(wm_trainer_alarm) == 48);

// 0 is the default of every field.
template <class T>
T OrOne(T value) {
  return value == 0 ? 1 : value;
}

// ---- plans ----

wm_status PlanCreate(const wm_trainer_layout* given, const std::int64_t* lengths,
                     const std::int64_t* padded, std::size_t count, wm_trainer_plan** out,
                     wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_trainer_layout args = {};
    Arguments check;
    check.Struct(given, args, "layout");
    check.Flags(args.flags, WM_TRAINER_SEQUENCE_PARALLEL, "layout.flags");
    check.Chain(args.ext, "layout.ext").Array(lengths, count, "lengths").Pointer(out, "out");
    check.InRange(args.order, WM_TRAINER_PACKED, WM_TRAINER_BATCH_MAJOR, "layout.order");
    check.InRange(args.context_cut, WM_TRAINER_ZIGZAG, WM_TRAINER_STREAM, "layout.context_cut");
    if (!check.ok()) return check.status();
    const TrainerLayout layout = {
        .order = static_cast<TokenOrder>(args.order),
        .context_cut = static_cast<ContextCut>(args.context_cut),
        .context_size = OrOne(args.context_size),
        .context_rank = args.context_rank,
        .tensor_size = OrOne(args.tensor_size),
        .tensor_rank = args.tensor_rank,
        .sequence_parallel = (args.flags & WM_TRAINER_SEQUENCE_PARALLEL) != 0,
        .sequence_multiple = OrOne(args.sequence_multiple),
        .total_multiple = OrOne(args.total_multiple),
        .local_multiple = OrOne(args.local_multiple),
    };
    absl::StatusOr<RowPlan> plan = RowPlan::Make(
        layout, {lengths, count}, {padded, padded == nullptr ? std::size_t{0} : count});
    if (!plan.ok()) return plan.status();
    *out = new wm_trainer_plan(*std::move(plan));
    return absl::OkStatus();
  });
}

std::int64_t PlanRows(const wm_trainer_plan* plan) noexcept {
  return IsA(plan) ? plan->plan.rows() : -1;
}

wm_status PlanSegments(const wm_trainer_plan* plan, wm_trainer_segment* segments,
                       std::size_t capacity, std::size_t* count, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(plan, "plan").Array(segments, capacity, "segments").Pointer(count, "count");
    if (!check.ok()) return check.status();
    const std::span<const RowSegment> all = plan->plan.segments();
    for (std::size_t i = 0; i < std::min(capacity, all.size()); ++i) {
      const RowSegment& of = all[i];
      segments[i] = {of.sequence, 0, of.position, of.count, of.row, of.row_stride};
    }
    *count = all.size();
    return absl::OkStatus();
  });
}

wm_status LayersOf(const wm_trainer_pipeline* given, std::int32_t* first, std::int32_t* count,
                   wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_trainer_pipeline args = {};
    Arguments check;
    check.Struct(given, args, "pipeline").Flags(args.flags, 0, "pipeline.flags");
    check.Chain(args.ext, "pipeline.ext").Pointer(first, "first").Pointer(count, "count");
    if (!check.ok()) return check.status();
    const absl::StatusOr<StageLayers> layers =
        LayersOfStage({.num_layers = args.num_layers,
                       .pipeline_size = OrOne(args.pipeline_size),
                       .pipeline_rank = args.pipeline_rank,
                       .virtual_size = OrOne(args.virtual_size),
                       .virtual_rank = args.virtual_rank,
                       .first_stage_layers = args.first_stage_layers,
                       .last_stage_layers = args.last_stage_layers});
    if (!layers.ok()) return layers.status();
    *first = layers->first;
    *count = layers->count;
    return absl::OkStatus();
  });
}

// ---- filling ----

// Sources of a call, and what they point to.
class Sources {
 public:
  absl::Status Take(const wm_trainer_source* given, const std::string& name) {
    wm_trainer_source args = {};
    Arguments check;
    check.Struct(given, args, name.c_str()).Flags(args.flags, 0, "source.flags");
    check.Chain(args.ext, "source.ext");
    const int kinds = (args.rows != nullptr) + (args.snapshot != nullptr) +
                      (args.document != nullptr) + (args.fetcher != nullptr) +
                      (args.shape != nullptr);
    check.That(kinds == 1, name.c_str(),
               "must have exactly one of rows, snapshot, document, fetcher and shape");
    if (!check.ok()) return check.status();
    if (args.rows != nullptr) {
      check.Object(args.rows, "source.rows");
      if (check.ok()) sources_.emplace_back(ViewOf(args.rows->rows));
    } else if (args.snapshot != nullptr) {
      check.Object(args.snapshot, "source.snapshot");
      if (check.ok()) sources_.emplace_back(&args.snapshot->snapshot);
    } else if (args.document != nullptr) {
      check.Object(args.document, "source.document");
      if (check.ok()) sources_.emplace_back(&args.document->document);
    } else if (args.fetcher != nullptr) {
      check.Object(args.fetcher, "source.fetcher");
      check.Array(args.handle, args.handle_bytes, "source.handle");
      if (!check.ok()) return check.status();
      absl::StatusOr<wire::Handle> handle = wire::ParseHandle({args.handle, args.handle_bytes});
      if (!handle.ok()) return handle.status();
      handles_.push_back(*std::move(handle));
      sources_.emplace_back(RowsByHandle{&args.fetcher->fetcher, &handles_.back(),
                                         wire::After(Bounded(args.timeout_ns))});
    } else {
      return TakeView(args, check);
    }
    return check.status();
  }
  [[nodiscard]] std::span<const RowSource> all() const { return sources_; }

 private:
  absl::Status TakeView(const wm_trainer_source& args, Arguments& check) {
    check.InRange(args.first, 0, static_cast<std::int64_t>(kMostElements), "source.first");
    check.InRange(args.count, 0, static_cast<std::int64_t>(kMostElements), "source.count");
    if (!check.ok()) return check.status();
    check.Array(args.ids, static_cast<std::uint64_t>(args.count), "source.ids");
    if (!check.ok()) return check.status();
    absl::StatusOr<RoutingShape> shape = TakeShape(args.shape);
    if (!shape.ok()) return shape.status();
    shapes_.push_back(*std::move(shape));
    static constexpr std::uint8_t kValid = 0;
    RowsView view;
    view.shape = &shapes_.back();
    view.first = args.first;
    view.count = args.count;
    view.ids = args.ids;
    view.row_stride = args.row_stride != 0
                          ? static_cast<std::ptrdiff_t>(args.row_stride)
                          : static_cast<std::ptrdiff_t>(shapes_.back().row_bytes());
    view.reasons = args.reasons != nullptr ? args.reasons : &kValid;
    view.reason_stride = args.reasons == nullptr ? 0
                         : args.reason_stride == 0
                             ? 1
                             : static_cast<std::ptrdiff_t>(args.reason_stride);
    sources_.emplace_back(view);
    return absl::OkStatus();
  }

  std::vector<RowSource> sources_;
  std::deque<wire::Handle> handles_;
  std::deque<RoutingShape> shapes_;
};

void GiveReport(const FillReport& from, wm_trainer_report* to) {
  wm_trainer_report report = {};
  report.replayed = from.replayed;
  report.padding = from.padding;
  report.no_row = from.no_row;
  static_assert(kNumReasons <= 8);
  std::copy(from.missing.begin(), from.missing.end(), report.missing);
  report.first_missing_position = from.first_missing.position;
  report.first_missing_sequence = from.first_missing.sequence;
  CopyOut(report, to);
}

wm_status FillTensors(const wm_trainer_fill_args* given, wm_trainer_report* report,
                      wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_trainer_fill_args args = {};
    Arguments check;
    check.Struct(given, args, "args")
        .Flags(args.flags, WM_TRAINER_PARTIAL | WM_TRAINER_PACKED_ROWS, "args.flags");
    check.Chain(args.ext, "args.ext").Object(args.plan, "args.plan");
    check.Array(args.sources, args.num_sources, "args.sources");
    check.Array(args.layers, args.num_layers, "args.layers");
    check.InRange(args.id_type, WM_ID_UINT8, WM_ID_INT64, "args.id_type");
    check.InRange(args.fill, WM_FILL_MINUS_ONE, WM_FILL_ARANGE, "args.fill");
    check.That(args.ids != nullptr || args.ids_bytes == 0, "args.ids",
               "must not be null with ids_bytes above 0");
    check.Array(args.mask, args.mask_bytes, "args.mask");
    if (report != nullptr) check.OutStruct(report, "report");
    if (!check.ok()) return check.status();
    Sources sources;
    for (std::size_t i = 0; i < args.num_sources; ++i) {
      const std::string name = "args.sources[" + std::to_string(i) + "]";
      if (absl::Status status = sources.Take(args.sources[i], name); !status.ok()) return status;
    }
    const RouterTensors out = {
        .id_type = static_cast<IdType>(args.id_type),
        .fill = static_cast<Fill>(args.fill),
        .ids = {static_cast<std::uint8_t*>(args.ids), static_cast<std::size_t>(args.ids_bytes)},
        .packed = (args.flags & WM_TRAINER_PACKED_ROWS) != 0,
        .mask = {args.mask, args.mask_bytes},
    };
    const absl::StatusOr<FillReport> filled =
        FillRouterTensors(args.plan->plan, sources.all(), {args.layers, args.num_layers}, out,
                          {.partial = (args.flags & WM_TRAINER_PARTIAL) != 0});
    if (!filled.ok()) return filled.status();
    if (report != nullptr) GiveReport(*filled, report);
    return absl::OkStatus();
  });
}

#ifdef WAYMARK_HAS_CUDA
absl::Status ExpandOnDevice(const PackedTensors& tensors, void* stream) {
  const int error = kernels::GatherRowsOnCuda(GatherOf(tensors), static_cast<CUstream_st*>(stream));
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError("expand: the launch failed with cudaError_t " +
                                std::to_string(error));
}
#else
absl::Status ExpandOnDevice(const PackedTensors&, void*) {
  return absl::UnimplementedError(
      "args.flags: WM_TRAINER_ON_DEVICE needs a library that was built with CUDA");
}
#endif

wm_status Expand(const wm_trainer_expand_args* given, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_trainer_expand_args args = {};
    Arguments check;
    check.Struct(given, args, "args").Flags(args.flags, WM_TRAINER_ON_DEVICE, "args.flags");
    check.Chain(args.ext, "args.ext");
    check.InRange(args.id_type, WM_ID_UINT8, WM_ID_INT64, "args.id_type");
    check.InRange(args.fill, WM_FILL_MINUS_ONE, WM_FILL_ARANGE, "args.fill");
    check.Zero(static_cast<std::uint32_t>(args.reserved), "args.reserved");
    check.That(args.packed != nullptr || args.packed_bytes == 0, "args.packed", "must not be null");
    check.That(args.ids != nullptr || args.ids_bytes == 0, "args.ids", "must not be null");
    check.Array(args.mask, args.mask_bytes, "args.mask");
    if (!check.ok()) return check.status();
    const PackedTensors tensors = {
        .num_layers = args.num_layers,
        .top_k = args.top_k,
        .num_experts = args.num_experts,
        .rows = args.rows,
        .packed = {static_cast<const std::uint8_t*>(args.packed),
                   static_cast<std::size_t>(args.packed_bytes)},
        .mask = {args.mask, args.mask_bytes},
        .ids = {static_cast<std::uint8_t*>(args.ids), static_cast<std::size_t>(args.ids_bytes)},
        .id_type = static_cast<IdType>(args.id_type),
        .fill = static_cast<Fill>(args.fill),
    };
    if (absl::Status status = CheckExpand(tensors); !status.ok()) return status;
    if (tensors.rows == 0) return absl::OkStatus();
    if ((args.flags & WM_TRAINER_ON_DEVICE) != 0) return ExpandOnDevice(tensors, args.stream);
    if (absl::Status status = CheckExpandIds(tensors); !status.ok()) return status;
    ExpandOnHost(tensors);
    return absl::OkStatus();
  });
}

wm_status CheckIds(const wm_trainer_source* given, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Sources sources;
    if (absl::Status status = sources.Take(given, "source"); !status.ok()) return status;
    const auto* const view = std::get_if<RowsView>(&sources.all().front());
    if (view == nullptr) return absl::InvalidArgumentError("source: must have rows, or ids");
    const RoutingShape& shape = *view->shape;
    DistinctIds distinct(shape.top_k, shape.num_experts);
    for (std::int64_t i = 0; i < view->count; ++i) {
      if (view->reasons[i * view->reason_stride] != WM_REASON_NONE) continue;
      const std::int32_t layer =
          distinct.FirstBad(view->ids + i * view->row_stride, shape.num_layers);
      if (layer < 0) continue;
      return absl::InvalidArgumentError("ids: must be in [0, " + std::to_string(shape.num_experts) +
                                        ") and distinct in every layer of a valid row; row " +
                                        std::to_string(i) + ", layer " +
                                        std::to_string(shape.layer_id(layer)) + " has others");
    }
    return absl::OkStatus();
  });
}

// ---- the replay audit ----

ReplayAlarm AlarmOf(const wm_trainer_alarm& alarm) {
  return {.error = static_cast<ReplayError>(alarm.error),
          .sequence = alarm.sequence,
          .layer = alarm.layer,
          .by = alarm.by,
          .count = alarm.count,
          .agreement = alarm.agreement,
          .explained = alarm.explained};
}

wm_status AuditIds(const wm_trainer_audit_args* given, wm_trainer_audit* out,
                   wm_trainer_alarm* alarms, std::size_t capacity, std::size_t* num_alarms,
                   wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_trainer_audit_args args = {};
    Arguments check;
    check.Struct(given, args, "args").Flags(args.flags, 0, "args.flags");
    check.Chain(args.ext, "args.ext").Object(args.plan, "args.plan");
    check.InRange(args.given_type, WM_ID_UINT8, WM_ID_INT64, "args.given_type");
    check.InRange(args.own_type, WM_ID_UINT8, WM_ID_INT64, "args.own_type");
    check.Zero(static_cast<std::uint32_t>(args.reserved), "args.reserved");
    check.That(args.given != nullptr || args.given_bytes == 0, "args.given", "must not be null");
    check.That(args.own != nullptr || args.own_bytes == 0, "args.own", "must not be null");
    check.Array(args.mask, args.mask_bytes, "args.mask");
    check.Array(args.rows, args.num_rows, "args.rows");
    check.Array(args.layers, args.num_layers_out, "args.layers");
    check.Array(args.positions, args.num_positions, "args.positions");
    check.Array(args.sequences, args.num_sequences, "args.sequences");
    check.Array(alarms, capacity, "alarms").Pointer(num_alarms, "num_alarms");
    if (out != nullptr) check.OutStruct(out, "audit");
    if (!check.ok()) return check.status();
    const RowPlan& plan = args.plan->plan;
    const auto fits = [&](std::size_t size, std::int64_t wanted, const char* name) {
      check.That(size == 0 || size == static_cast<std::size_t>(wanted), name,
                 "must be 0 or the size of the array");
    };
    fits(args.num_layers_out, args.num_layers, "args.num_layers_out");
    fits(args.num_positions, plan.rows(), "args.num_positions");
    fits(args.num_sequences, plan.sequences(), "args.num_sequences");
    if (!check.ok()) return check.status();
    const ReplayedIds ids = {
        .plan = &plan,
        .num_layers = args.num_layers,
        .top_k = args.top_k,
        .num_experts = args.num_experts,
        .given_type = static_cast<IdType>(args.given_type),
        .given = {static_cast<const std::uint8_t*>(args.given),
                  static_cast<std::size_t>(args.given_bytes)},
        .mask = {args.mask, args.mask_bytes},
        .own_type = static_cast<IdType>(args.own_type),
        .own = {static_cast<const std::uint8_t*>(args.own),
                static_cast<std::size_t>(args.own_bytes)},
        .rows = {args.rows, args.num_rows},
    };
    ReplayAuditOptions options;
    if (args.least_agreement != 0) options.least_agreement = args.least_agreement;
    if (args.max_rows != 0) options.max_rows = args.max_rows;
    const absl::StatusOr<ReplayAudit> audit = AuditReplay(ids, options);
    if (!audit.ok()) return audit.status();
    for (std::size_t i = 0; i < std::min(capacity, audit->alarms.size()); ++i) {
      const ReplayAlarm& of = audit->alarms[i];
      alarms[i] = {static_cast<std::int32_t>(of.error),
                   of.sequence,
                   of.layer,
                   0,
                   of.by,
                   of.count,
                   of.agreement,
                   of.explained};
    }
    *num_alarms = audit->alarms.size();
    std::copy_n(audit->layers.begin(), args.num_layers_out, args.layers);
    std::copy_n(audit->positions.begin(), args.num_positions, args.positions);
    std::copy_n(audit->sequences.begin(), args.num_sequences, args.sequences);
    if (out != nullptr) {
      wm_trainer_audit result = {};
      result.agreement = audit->agreement;
      result.chance = audit->chance;
      result.rows = audit->rows;
      CopyOut(result, out);
    }
    return absl::OkStatus();
  });
}

wm_status AlarmText(const wm_trainer_alarm* alarm, wm_message* text) noexcept {
  return Guard(text, [&]() -> absl::Status {
    Arguments check;
    check.Pointer(alarm, "alarm");
    if (check.ok()) check.InRange(alarm->error, 0, kNumReplayErrors - 1, "alarm.error");
    if (!check.ok()) return check.status();
    WriteText(AlarmOf(*alarm).Describe(), text);
    return absl::OkStatus();
  });
}

wm_status Agreement(const wm_rows* a, const wm_rows* b, wm_trainer_agreement* layers,
                    std::size_t capacity, std::size_t* count, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(a, "a").Object(b, "b").Array(layers, capacity, "layers").Pointer(count, "count");
    if (!check.ok()) return check.status();
    const absl::StatusOr<RoutingDiff> diff = Compare(a->rows, b->rows, 0);
    if (!diff.ok()) return diff.status();
    for (std::size_t i = 0; i < std::min(capacity, diff->all.layers.size()); ++i) {
      const PairCounts& of = diff->all.layers[i];
      layers[i] = {of.pairs, of.same_set, of.same_order, of.ids, of.shared_ids};
    }
    *count = diff->all.layers.size();
    return absl::OkStatus();
  });
}

wm_trainer_api_v1 MakeTrainerTable() {
  wm_trainer_api_v1 api = {};
  api.struct_size = sizeof(api);
  api.plan_create = &PlanCreate;
  api.plan_retain = &Retain<wm_trainer_plan>;
  api.plan_release = &Release<wm_trainer_plan>;
  api.plan_rows = &PlanRows;
  api.plan_segments = &PlanSegments;
  api.stage_layers = &LayersOf;
  api.fill = &FillTensors;
  api.expand = &Expand;
  api.check_ids = &CheckIds;
  api.audit = &AuditIds;
  api.alarm_text = &AlarmText;
  api.agreement = &Agreement;
  return api;
}

}  // namespace
}  // namespace waymark::abi

extern "C" const wm_trainer_api_v1* wm_get_trainer_api_v1(void) {
  static const wm_trainer_api_v1 table = waymark::abi::MakeTrainerTable();
  return &table;
}
