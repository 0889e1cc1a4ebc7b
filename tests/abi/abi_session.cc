#include "tests/abi/abi_session.h"

#include <algorithm>
#include <string_view>

namespace waymark::abi_test {
namespace {

wm_step_batch ToC(const StepBatch& batch) {
  wm_step_batch to = {};
  to.struct_size = sizeof(to);
  to.step = batch.step;
  to.version = batch.version;
  to.events = reinterpret_cast<const wm_event*>(batch.events);
  to.num_events = batch.num_events;
  to.slots = batch.slots;
  to.num_slots = batch.num_slots;
  return to;
}

// A view of the other kind.
template <class To, class From>
To Converted(const From& view) {
  To to = {};
  to.data = view.data;
  to.layer_stride = view.layer_stride;
  to.num_layers = view.num_layers;
  to.max_rows = view.max_rows;
  to.top_k = view.top_k;
  to.buffer = view.buffer;
  to.step = view.step;
  return to;
}

// The code of a step's call.
template <class Call>
StepCode CodeOf(Call call) {
  wm_code code = {};
  const wm_status status = call(&code);
  // The two say the same.
  const std::int32_t number = code.code == status ? status : -1;
  return {number, static_cast<StepRule>(code.rule), code.index, code.value};
}

}  // namespace

absl::StatusOr<std::unique_ptr<AbiStore>> AbiStore::Create(const StoreOptions& options) {
  auto made = Capture::Create({.store = options});
  if (!made.ok()) return made.status();
  auto object = std::make_unique<wm_capture>();
  object->capture = *std::move(made);
  return std::unique_ptr<AbiStore>(new AbiStore(object.release()));
}

absl::StatusOr<std::unique_ptr<AbiSession>> AbiSession::Create(AbiStore& store,
                                                               const CaptureOptions& of) {
  wm_session_options options = {};
  options.struct_size = sizeof(options);
  options.capture = store.handle();
  options.max_rows = of.max_rows;
  options.num_buffers = of.num_buffers;
  Why why;
  wm_session* handle = nullptr;
  if (const wm_status code = Graph().session_create(&options, &handle, why.get()); code != WM_OK) {
    return why.Status(code);
  }
  return std::unique_ptr<AbiSession>(new AbiSession(handle));
}

absl::Status AbiSession::BindLayer(std::int32_t layer, const std::string& module) {
  Why why;
  return why.Status(Graph().session_bind_layer(object_, layer, module.c_str(), why.get()));
}

StepCode AbiSession::BeginStep(const StepBatch& batch, std::int32_t written_rows) {
  const wm_step_batch of = ToC(batch);
  return CodeOf(
      [&](wm_code* code) { return Graph().session_begin_step(object_, &of, written_rows, code); });
}

CaptureView AbiSession::view(StepId step) {
  wm_view view = {};
  (void)Graph().session_view(object_, step.value(), &view);
  return Converted<CaptureView>(view);
}

StepCode AbiSession::HandOver(const CaptureView& view, std::int32_t layer, const StepIds& ids) {
  const auto of = Converted<wm_view>(view);
  wm_ids tensor = {};
  tensor.struct_size = sizeof(tensor);
  tensor.type = static_cast<std::int32_t>(ids.type);
  tensor.data = ids.data;
  tensor.rows = ids.rows;
  tensor.columns = ids.columns;
  tensor.row_stride = ids.row_stride;
  tensor.k_stride = ids.k_stride;
  return CodeOf(
      [&](wm_code* code) { return Graph().session_hand_over(object_, &of, layer, &tensor, code); });
}

StepCode AbiSession::Submit(StepId step, std::int32_t written_rows) {
  return CodeOf([&](wm_code* code) {
    return Graph().session_submit(object_, step.value(), written_rows, code);
  });
}
StepCode AbiSession::Drop(StepId step) {
  return CodeOf([&](wm_code* code) { return Graph().session_drop(object_, step.value(), code); });
}
StepCode AbiSession::Cancel(StepId step) {
  return CodeOf([&](wm_code* code) { return Graph().session_cancel(object_, step.value(), code); });
}
void AbiSession::Discard(std::int32_t written_rows) {
  (void)Graph().session_discard(object_, written_rows);
}
CaptureStats AbiSession::GetStats() const {
  std::size_t count = 0;
  (void)Graph().session_stats(object_, nullptr, 0, &count);
  std::vector<wm_counter> counters(count);
  (void)Graph().session_stats(object_, counters.data(), count, &count);
  CaptureStats stats;
#define WAYMARK_COUNTER(field, meaning)                        \
  for (const wm_counter& counter : counters) {                 \
    if (std::string_view(counter.name) == #field)              \
      stats.field = static_cast<std::uint64_t>(counter.value); \
  }
  WAYMARK_SESSION_COUNTERS(WAYMARK_COUNTER)
#undef WAYMARK_COUNTER
  for (std::int32_t layer = 0; layer < shape().num_layers; ++layer) {
    wm_layer_stats one = {sizeof(one)};
    if (Graph().session_layer_stats(object_, layer, &one) != WM_OK) return {};
    stats.layers.push_back({one.module, one.layer_id, one.rows_silent, one.rows_invalid});
  }
  return stats;
}

absl::StatusOr<SelfTestReport> RunSelfTest(
    AbiSession& session, std::int32_t rows,
    const std::function<absl::Status(const CaptureView& view, std::int32_t rows)>& forward) {
  using Forward = std::function<absl::Status(const CaptureView& view, std::int32_t rows)>;
  Forward of = forward;
  const wm_forward through = {
      [](void* context, const wm_view* view, std::int32_t view_rows) -> wm_status {
        const absl::Status status =
            (*static_cast<Forward*>(context))(Converted<CaptureView>(*view), view_rows);
        return static_cast<wm_status>(status.code());
      },
      &of};
  wm_layer_finding findings[64];
  std::size_t count = 0;
  Why text;
  const wm_status code = Graph().session_self_test(session.handle(), rows, through, findings,
                                                   std::size(findings), &count, text.get());
  if (code != WM_OK) return text.Status(code);
  SelfTestReport report;
  report.rows = rows;
  report.layers = session.shape().num_layers;
  const CaptureStats stats = session.GetStats();
  for (std::size_t i = 0; i < std::min(count, std::size(findings)); ++i) {
    const wm_layer_finding& finding = findings[i];
    report.findings.push_back({finding.layer, finding.layer_id,
                               stats.layers[static_cast<std::size_t>(finding.layer)].module,
                               static_cast<LayerFault>(finding.fault), finding.rows,
                               finding.first_row});
  }
  // Made here of what came through; what came as text must be the same.
  if (report.ToString() != text.text()) return absl::InternalError("text: " + text.text());
  return report;
}

}  // namespace waymark::abi_test
