// The store of the C ABI.
#include <memory>
#include <string>
#include <vector>

#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

static_assert(static_cast<int>(LogLevel::kInfo) == WM_LOG_INFO &&
              static_cast<int>(LogLevel::kWarning) == WM_LOG_WARNING &&
              static_cast<int>(LogLevel::kError) == WM_LOG_ERROR);

wm_status StoreCreate(const wm_store_options* given, wm_store** out, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_store_options args = {};
    wm_ext_log log = {};
    StoreOptions options;
    if (absl::Status status = TakeStoreOptions(given, args, log, options); !status.ok()) {
      return status;
    }
    Arguments check;
    check.Pointer(out, "out");
    if (args.recorder != nullptr) check.Object(args.recorder, "options.recorder");
    if (!check.ok()) return check.status();
    auto object = std::make_unique<wm_store>(args.recorder);
    if (wm_recorder* const recorder = args.recorder; recorder != nullptr) {
      FlightInfo info = FlightInfo::Of(options);
      // Without a seed of its own, the store gets that of the recorder.
      if (options.key_seed == 0) info.key_seed = recorder->info.key_seed;
      check.That(info == recorder->info, "options.recorder", "must be made for the same options");
      check.That(!check.ok() || !recorder->has_store.exchange(true), "options.recorder",
                 "must be of one store; it has one");
      if (!check.ok()) return check.status();
      options.flight = recorder->recorder->sink();
    }
    options.log = LogOf(*object, log);
    absl::StatusOr<std::unique_ptr<Capture>> capture = Capture::Create({.store = options});
    if (!capture.ok()) {
      if (args.recorder != nullptr) args.recorder->has_store = false;
      return capture.status();
    }
    object->capture = *std::move(capture);
    object->store = &object->capture->store();
    const StoreOptions& made = object->store->options();
    object->shape =
        std::make_shared<const LentShape>(made.shape, made.block_tokens, made.num_blocks);
    *out = object.release();
    return absl::OkStatus();
  });
}

// Fails in a forked child, where the functions of RoutingStore that return no status return
// nothing.
absl::Status OfThisProcess(const wm_store* store) {
  return store->store->forked() ? store->store->status() : absl::OkStatus();
}

wm_status StoreShape(const wm_store* store, wm_shape* out) noexcept {
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Object(store, "store").OutStruct(out, "out");
    if (check.ok()) CopyOut(store->shape->View(), out);
    return check.status();
  });
}

wm_status StoreSchedule(wm_store* store, std::uint64_t step, std::uint64_t version,
                        wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    if (!IsA(store)) return BadArgument(0);
    return ToCode(store->store->Schedule(StepId(step), version));
  });
}

wm_status StoreReport(wm_store* store, const wm_event* events, std::size_t num_events,
                      wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    if (!IsA(store)) return BadArgument(0);
    std::span<const Event> taken;
    if (const wm_code bad = TakeEvents(events, num_events, 1, taken); bad.code != WM_OK) return bad;
    return ToCode(store->store->Report(taken));
  });
}

wm_status StoreSnapshot(wm_store* store, const wm_snapshot_args* given, wm_snapshot** out,
                        wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(store, "store").Pointer(out, "out");
    if (!check.ok()) return check.status();
    wm_snapshot_args args = {};
    if (absl::Status status = TakeSnapshotArgs(given, args); !status.ok()) return status;
    absl::StatusOr<Snapshot> snapshot =
        store->store->TakeSnapshot(BlocksOf(args), args.first, args.last);
    if (!snapshot.ok()) return snapshot.status();
    *out = new wm_snapshot(*store, *std::move(snapshot));
    return absl::OkStatus();
  });
}

wm_status StoreReportMessage(wm_store* store, const std::uint8_t* bytes, std::size_t size,
                             wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(store, "store").Array(bytes, size, "bytes");
    return check.ok() ? store->store->ReportMessage({bytes, size}) : check.status();
  });
}

wm_status StoreTakeTagged(wm_store* store, std::uint64_t tag, wm_snapshot** out,
                          wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(store, "store").Pointer(out, "out");
    if (!check.ok()) return check.status();
    absl::StatusOr<Snapshot> snapshot = store->store->TakeTagged(tag);
    if (!snapshot.ok()) return snapshot.status();
    *out = new wm_snapshot(*store, *std::move(snapshot));
    return absl::OkStatus();
  });
}

wm_status StoreForgetTag(wm_store* store, std::uint64_t tag) noexcept {
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Object(store, "store");
    if (!check.ok()) return check.status();
    store->store->ForgetTag(tag);
    return OfThisProcess(store);
  });
}

wm_status StoreCoveredPrefix(const wm_store* store, const std::int32_t* blocks,
                             std::size_t num_blocks, std::int64_t rows,
                             std::int64_t* covered) noexcept {
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Object(store, "store").Array(blocks, num_blocks, "blocks");
    check.InRange(rows, 0, INT64_MAX, "rows").Pointer(covered, "covered");
    if (!check.ok()) return check.status();
    *covered =
        store->store->CoveredPrefix({reinterpret_cast<const BlockId*>(blocks), num_blocks}, rows);
    return OfThisProcess(store);
  });
}

wm_status StoreWaitIdle(wm_store* store, std::int64_t timeout_ns, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(store, "store");
    if (!check.ok()) return check.status();
    const auto wait = [store](std::int64_t piece) {
      return store->store->WaitIdle(std::chrono::nanoseconds(piece));
    };
    // The caller lands, so waiting for steps that it has not submitted would deadlock.
    if (store->store->options().landing == Landing::kCaller) return wait(0);
    return WaitFor(timeout_ns, wait);
  });
}

// `land` returns whether a step was landed. Polled: makes no text.
template <class F>
wm_status LandBy(wm_store* store, F&& land) noexcept {
  return GuardStep(nullptr, [&]() -> wm_code {
    if (!IsA(store)) return BadArgument(0);
    if (store->store->options().landing != Landing::kCaller) return {WM_FAILED_PRECONDITION};
    if (store->store->forked()) return {WM_FAILED_PRECONDITION};
    return {land() ? WM_OK : WM_NOT_FOUND};
  });
}
wm_status StoreLandOne(wm_store* store) noexcept {
  return LandBy(store, [store] { return store->store->LandOne(); });
}
wm_status StoreLand(wm_store* store, std::uint64_t step) noexcept {
  return LandBy(store, [store, step] { return store->store->Land(StepId(step)); });
}

wm_status StoreLastStep(const wm_store* store, std::uint64_t* step) noexcept {
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Object(store, "store").Pointer(step, "step");
    if (!check.ok()) return check.status();
    *step = store->store->last_step().value();
    return OfThisProcess(store);
  });
}

wm_status StoreStats(const wm_store* store, wm_store_stats* out) noexcept {
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Object(store, "store").OutStruct(out, "out");
    if (!check.ok()) return check.status();
    const Stats stats = store->store->GetStats();
    wm_store_stats to = {};
    to.steps_begun = stats.steps_begun;
    to.steps_landed = stats.steps_landed;
    to.steps_dropped = stats.steps_dropped;
    to.steps_cancelled = stats.steps_cancelled;
    to.steps_refused_ring = stats.steps_refused_ring;
    to.steps_ahead = stats.steps_ahead;
    to.rows_landed = stats.rows_landed;
    static_assert(sizeof(to.rows_missing) >= sizeof(stats.rows_missing));
    std::copy(stats.rows_missing.begin(), stats.rows_missing.end(), to.rows_missing);
    to.rows_ignored = stats.rows_ignored;
    to.rows_not_asked = stats.rows_not_asked;
    to.rows_padding = stats.rows_padding;
    to.rows_outside = stats.rows_outside;
    to.events = stats.events;
    to.events_on_null_blocks = stats.events_on_null_blocks;
    to.releases_below_zero = stats.releases_below_zero;
    to.hits_by_key = stats.hits_by_key;
    to.second_seals = stats.second_seals;
    to.pages = stats.pages;
    to.pages_in_use = stats.pages_in_use;
    to.pages_in_use_peak = stats.pages_in_use_peak;
    to.spare_pages = stats.spare_pages;
    to.pages_detached = stats.pages_detached;
    to.pages_detached_peak = stats.pages_detached_peak;
    to.rows_without_page = stats.rows_without_page;
    to.evictions = stats.evictions;
    to.copies_on_write = stats.copies_on_write;
    to.no_page = stats.no_page;
    to.bytes = stats.bytes;
    to.bytes_touched_peak = stats.bytes_touched_peak;
    to.audited_rows = stats.audited_rows;
    to.audit_disagreements = stats.audit_disagreements;
    to.audit_voided_pages = stats.audit_voided_pages;
    to.audit_voided_rows = stats.audit_voided_rows;
    to.audit_agreement_sum = stats.audit_agreement_sum;
    to.snapshots_taken = stats.snapshots_taken;
    to.snapshots_live = stats.snapshots_live;
    to.landing_lag_count = stats.landing_lag.count();
    to.landing_lag_p50_ns = stats.landing_lag.Quantile(0.5);
    to.landing_lag_p99_ns = stats.landing_lag.Quantile(0.99);
    to.log_records = stats.log_records;
    to.log_losses = stats.log_losses;
    to.snapshots_lost = stats.snapshots_lost;
    to.snapshots_given_up = stats.snapshots_given_up;
    to.log_lag_count = stats.log_lag.count();
    to.log_lag_p50_ns = stats.log_lag.Quantile(0.5);
    to.log_lag_p99_ns = stats.log_lag.Quantile(0.99);
    to.exceptions = stats.exceptions;
    to.steps_overdue = stats.steps_overdue;
    CopyOut(to, out);
    return OfThisProcess(store);
  });
}

wm_status StoreStatsText(const wm_store* store, wm_message* text) noexcept {
  return Guard(text, [&]() -> absl::Status {
    Arguments check;
    check.Object(store, "store");
    if (!check.ok()) return check.status();
    if (absl::Status status = OfThisProcess(store); !status.ok()) return status;
    WriteText(store->store->GetStats().ToString(), text);
    return absl::OkStatus();
  });
}

wm_status StoreStatus(const wm_store* store, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(store, "store");
    return check.ok() ? store->store->status() : check.status();
  });
}

wm_status StoreNextFinding(wm_store* store, wm_finding* out, wm_message* text) noexcept {
  return Guard(text, [&]() -> absl::Status {
    Arguments check;
    check.Object(store, "store").OutStruct(out, "out");
    if (!check.ok()) return check.status();
    if (absl::Status status = OfThisProcess(store); !status.ok()) return status;
    const std::lock_guard<std::mutex> lock(store->findings_mutex);
    if (store->findings.empty()) {
      const std::vector<AuditFinding> taken = store->store->TakeFindings();
      store->findings.assign(taken.begin(), taken.end());
    }
    if (store->findings.empty()) return absl::NotFoundError("every finding was returned");
    const AuditFinding& finding = store->findings.front();
    wm_finding to = {};
    to.block = finding.block;
    to.step = finding.step;
    to.kept_step = finding.kept_step;
    to.sealed_step = finding.sealed_step;
    to.rows = finding.rows;
    to.voided = finding.voided ? 1 : 0;
    to.agreement = finding.agreement;
    to.two_pages = finding.two_pages ? 1 : 0;
    to.pages = finding.pages;
    to.last_step = finding.last_step;
    WriteText(finding.ToString(), text);
    CopyOut(to, out);
    store->findings.pop_front();
    return absl::OkStatus();
  });
}

}  // namespace

LentShape::LentShape(const RoutingShape& shape, std::int32_t block_tokens, std::int32_t num_blocks)
    : layer_ids_([&shape] {
        std::vector<std::int32_t> ids;
        for (std::int32_t layer = 0; layer < shape.num_layers; ++layer)
          ids.push_back(shape.layer_id(layer));
        return ids;
      }()) {
  shape_.num_layers = shape.num_layers;
  shape_.top_k = shape.top_k;
  shape_.num_experts = shape.num_experts;
  shape_.page_tokens = shape.page_tokens;
  shape_.block_tokens = block_tokens;
  shape_.num_blocks = num_blocks;
  shape_.id_bytes = static_cast<std::uint32_t>(shape.id_bytes());
  shape_.row_bytes = shape.row_bytes();
}

wm_shape LentShape::View() const {
  wm_shape shape = shape_;
  shape.layer_ids = layer_ids_.data();
  return shape;
}

LogCallback LogTo(wm_ext_log& log) {
  if (log.function == nullptr) return {};
  return {[](void* context, LogLevel level, const char* text, std::size_t size) {
            const auto& to = *static_cast<const wm_ext_log*>(context);
            to.function(to.context, static_cast<std::int32_t>(level), text, size);
          },
          &log};
}

LogCallback LogOf(wm_store& store, const wm_ext_log& log) {
  if (log.function == nullptr) return {};
  const std::lock_guard<std::mutex> lock(store.logs_mutex);
  store.logs.push_back(log);
  return LogTo(store.logs.back());
}

absl::Status TakeStoreOptions(const wm_store_options* given, wm_store_options& args,
                              wm_ext_log& log, StoreOptions& to) {
  Arguments check;
  check.Struct(given, args, "options");
  check.Flags(args.flags, WM_STORE_DEVICE_SLOTS | WM_STORE_NO_AUDIT, "options.flags");
  check.Zero(args.reserved, "options.reserved").Chain(args.ext, "options.ext", &log);
  check.Array(args.layer_ids, args.num_layer_ids, "options.layer_ids");
  check.Array(args.null_blocks, args.num_null_blocks, "options.null_blocks");
  check.Array(args.landing_cpus, args.num_landing_cpus, "options.landing_cpus");
  check.InRange(args.landing, WM_LANDING_THREAD, WM_LANDING_CALLER, "options.landing");
  check.InRange(args.teardown_timeout_ns, 0, INT64_MAX, "options.teardown_timeout_ns");
  if (check.ok() && args.num_layer_ids != 0) {
    check.InRange(static_cast<std::int64_t>(args.num_layer_ids), args.num_layers, args.num_layers,
                  "options.num_layer_ids");
  }
  if (!check.ok()) return check.status();
  to.shape.num_layers = args.num_layers;
  to.shape.top_k = args.top_k;
  to.shape.num_experts = args.num_experts;
  if (args.page_tokens != 0) to.shape.page_tokens = args.page_tokens;
  to.shape.layer_ids.assign(args.layer_ids, args.layer_ids + args.num_layer_ids);
  to.num_blocks = args.num_blocks;
  to.block_tokens = args.block_tokens;
  to.num_pages = args.num_pages;
  if (args.spare_pages != 0) {
    to.spare_pages = args.spare_pages == WM_NO_SPARE_PAGES ? 0 : args.spare_pages;
  }
  for (std::size_t i = 0; i < args.num_null_blocks; ++i)
    to.null_blocks.emplace_back(args.null_blocks[i]);
  if (args.max_steps_in_flight != 0) to.max_steps_in_flight = args.max_steps_in_flight;
  if (args.max_step_rows != 0) to.max_step_rows = args.max_step_rows;
  to.device_slots = (args.flags & WM_STORE_DEVICE_SLOTS) != 0;
  to.landing = args.landing == WM_LANDING_CALLER ? Landing::kCaller : Landing::kThread;
  if (args.num_landing_cpus != 0) {
    to.landing_cpus.assign(args.landing_cpus, args.landing_cpus + args.num_landing_cpus);
  }
  to.log_bytes = args.log_bytes;
  if (args.max_tagged_snapshots != 0) to.max_tagged_snapshots = args.max_tagged_snapshots;
  to.audit = (args.flags & WM_STORE_NO_AUDIT) == 0;
  if (args.audit_threshold != 0) to.audit_threshold = args.audit_threshold;
  if (args.teardown_timeout_ns != 0) {
    to.teardown_timeout = std::chrono::nanoseconds(args.teardown_timeout_ns);
  }
  if (args.overdue_after_ns != 0) {
    to.overdue_after = std::chrono::nanoseconds(std::max<std::int64_t>(args.overdue_after_ns, 0));
  }
  if (args.ids_timeout_ns != 0) {
    to.ids_timeout = std::chrono::nanoseconds(std::max<std::int64_t>(args.ids_timeout_ns, 0));
  }
  if (args.ahead_bytes != 0) {
    to.ahead_bytes = args.ahead_bytes == WM_NO_FETCH_AHEAD ? 0 : args.ahead_bytes;
  }
  to.key_seed = args.key_seed;
  return absl::OkStatus();
}

void FillStore(wm_api_v1& api) {
  api.store_create = &StoreCreate;
  api.store_retain = &Retain<wm_store>;
  api.store_release = &Release<wm_store>;
  api.store_shape = &StoreShape;
  api.store_schedule = &StoreSchedule;
  api.store_report = &StoreReport;
  api.store_snapshot = &StoreSnapshot;
  api.store_report_message = &StoreReportMessage;
  api.store_take_tagged = &StoreTakeTagged;
  api.store_forget_tag = &StoreForgetTag;
  api.store_covered_prefix = &StoreCoveredPrefix;
  api.store_wait_idle = &StoreWaitIdle;
  api.store_land_one = &StoreLandOne;
  api.store_land = &StoreLand;
  api.store_last_step = &StoreLastStep;
  api.store_stats = &StoreStats;
  api.store_stats_text = &StoreStatsText;
  api.store_next_finding = &StoreNextFinding;
  api.store_status = &StoreStatus;
}

}  // namespace waymark::abi
