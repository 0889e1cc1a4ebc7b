// Session: captures an engine's forwards into a store.
#include "plugin/python/session.h"

#include "plugin/python/batch.h"
#include "plugin/python/module.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

// `array` must lie where the session's transport can read it.
void CheckMemory(const SharedSession& session, const Array& array, const char* name) {
  if (array.data == nullptr) return;
  if (session.transport == WM_TRANSPORT_HOST && !array.on_host) {
    Raise(WM_INVALID_ARGUMENT,
          std::string(name) + ": host memory, since the transport is host; got device memory");
  }
  if (session.transport == WM_TRANSPORT_CUDA) {
    if (!array.on_device) {
      Raise(WM_INVALID_ARGUMENT,
            std::string(name) + ": device memory, since the transport is cuda; got host memory");
    }
    if (!array.on_host && array.device >= 0 && array.device != session.device) {
      Raise(WM_INVALID_ARGUMENT, std::string(name) + ": memory of device " +
                                     std::to_string(session.device) + ", got device " +
                                     std::to_string(array.device));
    }
  }
}

std::int32_t Count(std::int64_t size, const char* name) {
  if (size > INT32_MAX) {
    Raise(WM_OUT_OF_RANGE, std::string(name) + ": below 2^31, got " + std::to_string(size));
  }
  return static_cast<std::int32_t>(size);
}

void Make(Session* self, const Store& of, Int32<"max_rows"> max_rows,
          Int32<"num_buffers"> num_buffers, Int32<"num_ids_steps"> num_ids_steps,
          std::int32_t transport, Int32<"device"> device, bool one_view, nb::object all_gather,
          Int32<"rank"> rank, Int32<"ranks"> ranks) {
  of.open();
  auto shared = std::make_shared<SharedSession>();
  shared->store = of.shared;
  shared->transport = transport;
  shared->device = device;
  if (!all_gather.is_none()) shared->ranks = ranks;
  wm_ext_log log = {};
  log.head.struct_size = sizeof(log);
  log.head.type = WM_EXT_LOG;
  log.function = &LogLines::Log;
  log.context = shared->store->log.get();
  wm_session_options options = {};
  options.struct_size = sizeof(options);
  options.flags = one_view ? WM_SESSION_ONE_VIEW : 0;
  options.ext = &log.head;
  options.store = shared->store->store;
  options.max_rows = max_rows;
  options.num_buffers = num_buffers;
  options.num_ids_steps = num_ids_steps;
  options.transport = transport;
  options.device_ordinal = device;
  if (!all_gather.is_none()) {
    options.row_gather = Collective::Lent(std::move(all_gather), rank, ranks, shared->store->log);
  }
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = Api().session_create(&options, &shared->session, why.get());
  }
  Check(status, why);
  new (self) Session{std::move(shared)};
}

void BindLayer(const Session& self, Int32<"layer"> layer, const char* module,
               Int32<"capture"> capture) {
  SharedSession& session = self.open();
  wm_layer_binding binding = {};
  binding.struct_size = sizeof(binding);
  binding.layer = layer;
  binding.module = module;
  binding.capture = capture;
  const EngineCall call(*session.store);
  Message why;
  Check(Api().session_bind_layer(session.session, &binding, why.get()), why);
}

void SetStream(const Session& self, nb::handle stream) {
  SharedSession& session = self.open();
  void* const handle = StreamOf(stream);
  const EngineCall call(*session.store);
  const wm_status status = Api().session_set_stream(session.session, handle);
  if (status != WM_OK) Raise(status, "set_stream");
}

bool BeginStep(const Session& self, Uint64<"step"> step, Uint64<"version"> version,
               nb::handle slots, nb::handle events, nb::handle pairs, nb::handle asked,
               nb::handle block_tokens, Int32<"written_rows"> written_rows, bool device_slots,
               bool derive_events) {
  SharedSession& session = self.open();
  const BatchArgs args(step, version,
                       {slots, pairs, asked, block_tokens, session.store->shape.block_tokens},
                       events, BatchFlags(device_slots, derive_events));
  const EngineCall call(*session.store);
  wm_code code = {};
  const wm_status status =
      Api().session_begin_step(session.session, &args.batch, written_rows, &code);
  if (status == WM_OK && !device_slots) session.Begun(step, args.rows());
  return NotDropped(status, code);
}

bool BeginIdsStep(const Session& self, Uint64<"step"> step, Uint64<"version"> version,
                  nb::handle slots, nb::handle events, nb::handle pairs, nb::handle asked,
                  nb::handle block_tokens, bool derive_events) {
  SharedSession& session = self.open();
  const BatchArgs args(step, version,
                       {slots, pairs, asked, block_tokens, session.store->shape.block_tokens},
                       events, BatchFlags(false, derive_events));
  const EngineCall call(*session.store);
  wm_code code = {};
  const wm_status status = Api().session_begin_ids_step(session.session, &args.batch, &code);
  if (status == WM_OK) session.Begun(step, args.rows());
  return NotDropped(status, code);
}

std::unique_ptr<View> ViewOf(const Session& self, Uint64<"step"> step) {
  SharedSession& session = self.open();
  auto view = std::make_unique<View>();
  view->session = self.shared;
  const EngineCall call(*session.store);
  const wm_status status = Api().session_view(session.session, step, &view->view);
  if (status != WM_OK) Raise(status, "view");
  return view;
}

void HandOver(const Session& self, nb::handle view_or_step, Int32<"layer"> layer,
              nb::handle ids_array, Int32<"first_row"> first_row) {
  SharedSession& session = self.open();
  const Array array = ArrayOf(ids_array, "ids");
  if (array.dims != 2) {
    Raise(WM_INVALID_ARGUMENT,
          "ids: [rows, columns], got " + std::to_string(array.dims) + " dimensions");
  }
  CheckMemory(session, array, "ids");
  wm_ids ids = {};
  ids.struct_size = sizeof(ids);
  ids.type = IdType(array, "ids");
  ids.data = array.data;
  ids.rows = Count(array.shape[0], "ids rows");
  ids.columns = Count(array.shape[1], "ids columns");
  ids.row_stride = array.strides[0];
  ids.k_stride = array.strides[1];
  ids.first_row = first_row;
  const EngineCall call(*session.store);
  wm_view view = {};
  if (const View* given = nullptr; nb::try_cast(view_or_step, given, false) && given != nullptr) {
    if (given->session.get() != &session) {
      Raise(WM_INVALID_ARGUMENT, "view: of this session, got one of another");
    }
    view = given->view;
  } else {
    const auto step = IntegerOf<std::uint64_t>(view_or_step, "view, or step");
    const wm_status viewed = Api().session_view(session.session, step, &view);
    if (viewed != WM_OK) Raise(viewed, "view");
  }
  wm_code code = {};
  wm_status status;
  {
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(ids.rows) * static_cast<std::uint64_t>(view.top_k) * 2;
    const GilReleased released(bytes >= kReleaseBytes);
    status = Api().session_hand_over(session.session, &view, layer, &ids, &code);
  }
  Check(code, status);
}

void Submit(const Session& self, Uint64<"step"> step, Int32<"written_rows"> written_rows) {
  SharedSession& session = self.open();
  const EngineCall call(*session.store);
  wm_code code = {};
  const wm_status status = Api().session_submit(session.session, step, written_rows, &code);
  CheckAppended(code, status);
  session.Ended(step);
}

void SubmitDeviceSlots(const Session& self, Uint64<"step"> step, nb::handle slots, nb::handle rows,
                       Int32<"written_rows"> written_rows) {
  SharedSession& session = self.open();
  const Array array = ArrayOf(slots, "slots");
  if (array.dims != 1 || array.kind != 'i' || array.item_bytes != 8 || !array.contiguous()) {
    Raise(WM_INVALID_ARGUMENT, "slots: int64 [rows], contiguous");
  }
  CheckMemory(session, array, "slots");
  std::int64_t count = array.shape[0];
  if (!rows.is_none()) count = IntegerOf<std::int64_t>(rows, "rows", 0, array.shape[0]);
  const EngineCall call(*session.store);
  wm_code code = {};
  const wm_status status = Api().session_submit_device_slots(
      session.session, step, static_cast<const std::int64_t*>(array.data), Count(count, "rows"),
      written_rows, &code);
  CheckAppended(code, status);
}

// wm_done's function; on the landing thread, without the GIL.
void Done(void* context) {
  auto* const ids = static_cast<LentIds*>(context);
  ids->next = ids->done->load(std::memory_order_relaxed);
  while (!ids->done->compare_exchange_weak(ids->next, ids, std::memory_order_release,
                                           std::memory_order_relaxed)) {
  }
}

// True: the step has been submitted; False: it was dropped here and now.
bool SubmitIds(const Session& self, Uint64<"step"> step, nb::handle ids_array, bool layers_first) {
  SharedSession& session = self.open();
  GivenIds ids(ids_array, layers_first);
  wm_code code = {};
  wm_status status;
  {
    const EngineCall call(*session.store);
    for (const auto& [open, rows] : session.open) {
      if (open != step || rows == ids.rows()) continue;
      Raise(WM_INVALID_ARGUMENT, "ids: " + std::to_string(rows) + " rows, as many as step " +
                                     std::to_string(step) + " has here; got " +
                                     std::to_string(ids.rows()));
    }
    status = ids.Submit(session, step, &code);
    if (status == WM_OK || status == WM_RESOURCE_EXHAUSTED) session.Ended(step);
  }
  if (status != WM_OK) session.store->GiveBack();
  return NotDropped(status, code);
}

bool Landed(const Session& self, Uint64<"step"> step) {
  SharedSession& session = self.open();
  const EngineCall call(*session.store);
  std::int32_t landed = 0;
  const wm_status status = Api().session_landed(session.session, step, &landed);
  if (status != WM_OK) Raise(status, "landed");
  return landed != 0;
}

template <wm_status (*wm_api_v1::*end)(wm_session*, std::uint64_t, wm_code*)>
void End(const Session& self, Uint64<"step"> step) {
  SharedSession& session = self.open();
  const EngineCall call(*session.store);
  wm_code code = {};
  const wm_status status = (Api().*end)(session.session, step, &code);
  CheckAppended(code, status);
  session.Ended(step);
}

void Discard(const Session& self, Int32<"written_rows"> written_rows) {
  SharedSession& session = self.open();
  const EngineCall call(*session.store);
  const wm_status status = Api().session_discard(session.session, written_rows);
  if (status != WM_OK) {
    Raise(status, "written_rows: 0 ... max_rows, got " + std::to_string(written_rows));
  }
}

// A Python forward, called on the thread that tests.
struct Forward {
  nb::object function;
  std::shared_ptr<SharedSession> session;
  nb::object raised;
};

wm_status RunForward(void* context, const wm_view* view, std::int32_t rows) {
  const GilTaken gil;
  auto& self = *static_cast<Forward*>(context);
  try {
    self.function(nb::cast(View{self.session, *view}), rows);
    return WM_OK;
  } catch (nb::python_error& error) {
    self.raised = nb::borrow(error.value());
  } catch (...) {
  }
  return WM_UNKNOWN;
}

// ([(layer, layer_id, fault, rows, first_row)], text).
nb::tuple SelfTest(const Session& self, Int32<"rows"> rows, nb::object function) {
  SharedSession& session = self.open();
  Forward forward{std::move(function), self.shared, {}};
  const auto max_findings = static_cast<std::size_t>(session.store->shape.num_layers) * 4;
  std::vector<wm_layer_finding> findings(max_findings);
  std::size_t count = 0;
  std::string text(256 + 160 * max_findings, '\0');
  wm_message message = {text.data(), text.size(), 0};
  wm_status status;
  {
    const EngineCall call(*session.store);
    const GilReleased released;
    status = Api().session_self_test(session.session, rows, {&RunForward, &forward},
                                     findings.data(), findings.size(), &count, &message);
  }
  if (forward.raised.is_valid()) {
    PyErr_SetObject(forward.raised.type().ptr(), forward.raised.ptr());
    throw nb::python_error();
  }
  if (status != WM_OK) Raise(status, text.c_str());
  nb::list out;
  for (std::size_t i = 0; i < count && i < findings.size(); ++i) {
    const wm_layer_finding& finding = findings[i];
    out.append(nb::make_tuple(finding.layer, finding.layer_id, finding.fault, finding.rows,
                              finding.first_row));
  }
  return nb::make_tuple(out, text.c_str());
}

void CheckStatus(const Session& self) {
  SharedSession& session = self.open();
  Message why;
  Check(Api().session_status(session.session, why.get()), why);
}

nb::dict Stats(const Session& self) {
  wm_session_stats stats = {};
  stats.struct_size = sizeof(stats);
  const wm_status status = Api().session_stats(self.open().session, &stats);
  if (status != WM_OK) Raise(status, "stats");
  nb::dict out;
  out["steps_begun"] = stats.steps_begun;
  out["steps_submitted"] = stats.steps_submitted;
  out["steps_dropped"] = stats.steps_dropped;
  out["steps_cancelled"] = stats.steps_cancelled;
  out["ring_overflows"] = stats.ring_overflows;
  out["discards"] = stats.discards;
  out["rows_handed_over"] = stats.rows_handed_over;
  out["gathers"] = stats.gathers;
  out["gathers_failed"] = stats.gathers_failed;
  out["parts_missing"] = stats.parts_missing;
  return out;
}

// (layer_id, module, capture, rows_silent, rows_invalid).
nb::tuple LayerStats(const Session& self, Int32<"layer"> layer) {
  wm_layer_stats stats = {};
  stats.struct_size = sizeof(stats);
  SharedSession& session = self.open();
  const wm_status status = Api().session_layer_stats(session.session, layer, &stats);
  if (status != WM_OK) {
    Raise(status, "layer: in [0, " + std::to_string(session.store->shape.num_layers) + "), got " +
                      std::to_string(layer));
  }
  return nb::make_tuple(stats.layer_id, stats.module, stats.capture, stats.rows_silent,
                        stats.rows_invalid);
}

nb::list SilentBatchSizes(const Session& self, Int32<"layer"> layer) {
  SharedSession& session = self.open();
  std::vector<std::int32_t> sizes(256);
  std::size_t count = 0;
  for (;;) {
    const wm_status status = Api().session_silent_batch_sizes(session.session, layer, sizes.data(),
                                                              sizes.size(), &count);
    if (status != WM_OK) {
      Raise(status, "layer: in [0, " + std::to_string(session.store->shape.num_layers) + "), got " +
                        std::to_string(layer));
    }
    if (count <= sizes.size()) break;
    sizes.resize(count);
  }
  nb::list out;
  for (std::size_t i = 0; i < count; ++i)
    out.append(sizes[i]);
  return out;
}

}  // namespace

GivenIds::GivenIds(nb::handle given, bool layers_first) : lent_(std::make_unique<LentIds>()) {
  lent_->array = ArrayOf(given, "ids");
  const Array& array = lent_->array;
  if (array.dims != 3) {
    Raise(WM_INVALID_ARGUMENT, std::string("ids: [rows, layers, columns] or, with layout=\"LTK\", "
                                           "[layers, rows, columns]; got ") +
                                   std::to_string(array.dims) + " dimensions");
  }
  if (!array.on_host) Raise(WM_INVALID_ARGUMENT, "ids: host memory, got device memory");
  const int row_axis = layers_first ? 1 : 0;
  const int layer_axis = layers_first ? 0 : 1;
  ids_.struct_size = sizeof(ids_);
  ids_.type = IdType(array, "ids");
  ids_.data = array.data;
  ids_.rows = Count(array.shape[row_axis], "ids rows");
  ids_.layers = Count(array.shape[layer_axis], "ids layers");
  ids_.columns = Count(array.shape[2], "ids columns");
  ids_.row_stride = array.strides[row_axis];
  ids_.layer_stride = array.strides[layer_axis];
  ids_.k_stride = array.strides[2];
}

wm_status GivenIds::Submit(SharedSession& session, std::uint64_t step, wm_code* code) {
  lent_->done = &session.store->done;
  return Api().session_submit_ids(session.session, step, &ids_, {&Done, lent_.release()}, code);
}

std::int32_t IdType(const Array& array, const char* name) {
  switch (array.item_bytes * (array.kind == 'u' ? -1 : array.kind == 'i' ? 1 : 0)) {
    case -1:
      return WM_ID_UINT8;
    case -2:
      return WM_ID_UINT16;
    case 2:
      return WM_ID_INT16;
    case 4:
      return WM_ID_INT32;
    case 8:
      return WM_ID_INT64;
    default:
      break;
  }
  const std::string text = std::string(name) + " must be uint8, uint16, int16, int32 or int64, " +
                           "got kind '" + array.kind + "' of " + std::to_string(array.item_bytes) +
                           " bytes";
  PyErr_SetString(PyExc_TypeError, text.c_str());
  throw nb::python_error();
}

bool NotDropped(wm_status status, const wm_code& code) {
  if (status == WM_RESOURCE_EXHAUSTED) return false;
  Check(code, status);
  return true;
}

void BindSession(nb::module_& module) {
  nb::class_<Session>(module, "CaptureSession")
      .def("__init__", &Make, "store"_a, "max_rows"_a, "num_buffers"_a, "num_ids_steps"_a,
           "transport"_a, "device"_a, "one_view"_a, "all_gather"_a.none(), "rank"_a, "ranks"_a)
      .def("_bind_layer", &BindLayer, "layer"_a, "module"_a, "capture"_a)
      .def("set_stream", &SetStream, "stream"_a.none(),
           "The CUDA stream of the forwards from here on: an int (cudaStream_t), an object with "
           "cuda_stream or __cuda_stream__(), or None (the default stream). It is valid until the "
           "call that replaces it has returned. Engine's thread.")
      .def(
          "begin_step", &BeginStep, "step"_a, "version"_a, "slots"_a = nb::none(), nb::kw_only(),
          "events"_a = nb::none(), "pairs"_a = nb::none(), "asked"_a = nb::none(),
          "block_tokens"_a = nb::none(), "written_rows"_a = 0, "device_slots"_a = false,
          "derive_events"_a = false,
          nb::sig("def begin_step(self, step: int, version: int, slots: object | None = None, *, "
                  "events: object | None = None, "
                  "pairs: tuple[object, object] | None = None, "
                  "asked: object | None = None, "
                  "block_tokens: int | None = None, written_rows: int = 0, "
                  "device_slots: bool = False, derive_events: bool = False) -> bool"),
          "Begins a step and takes a buffer for its forward. Engine's thread; keeps the "
          "GIL.\n\n"
          "step: above every earlier step. version: of the weights. events: an array of "
          "event_dtype, or bytes of 56 per event; reported before the step begins.\n\n"
          "The rows of the forward, in its order, are given in one form, numpy arrays of the named "
          "types without a copy. slots: int64 [rows]: block * block_tokens + offset, -1 (padding), "
          "or NOT_ASKED(slot). pairs: (block_idx, local_position), both int32 or int64 [rows]; a "
          "negative block is padding. asked, with pairs: bool or uint8 [rows], 0: the row's "
          "request did not ask for routing. block_tokens: of the blocks of pairs; None: the "
          "store's, "
          "else a divisor of it (kernel blocks).\n\n"
          "written_rows: rows that the forward writes, graph padding included; 0: the number "
          "of rows. device_slots: the rows are all that the step may write, in any order. "
          "derive_events: a Bind of each block of which the step writes the first row and no "
          "other, and a Seal of each whose last row it writes, follow from the rows and are "
          "applied behind `events`; not with drafts or keys, nor where requests share a block that "
          "is not full; refused with device_slots and with blocks of one token.\n\n"
          "False: the step was dropped (capacity) and has ended; its forward runs as usual. "
          "InvalidArgumentError: nothing was done.")
      .def("begin_ids_step", &BeginIdsStep, "step"_a, "version"_a, "slots"_a = nb::none(),
           nb::kw_only(), "events"_a = nb::none(), "pairs"_a = nb::none(), "asked"_a = nb::none(),
           "block_tokens"_a = nb::none(), "derive_events"_a = false,
           nb::sig("def begin_ids_step(self, step: int, version: int, "
                   "slots: object | None = None, *, events: object | None = None, "
                   "pairs: tuple[object, object] | None = None, "
                   "asked: object | None = None, "
                   "block_tokens: int | None = None, derive_events: bool = False) -> bool"),
           "Like begin_step, for ids of all layers in one array (submit_ids); takes no buffer.")
      .def("view", &ViewOf, "step"_a,
           "The view of the forward of `step`; the scratch view for a step without a buffer. "
           "Engine's thread.")
      .def(
          "scratch_view", [](const Session& self) { return ViewOf(self, {0}); },
          "The view of forwards outside any step. Nothing in it lands. Engine's thread.")
      .def("hand_over", &HandOver, "view"_a, "layer"_a, "ids"_a, nb::kw_only(), "first_row"_a = 0,
           "Copies the first K columns of `ids` into the len(ids) rows of a layer from first_row "
           "on: micro-batches of one step hand over their rows one after the other.\n\n"
           "view: a View of this session, or the step. layer: bound as \"hands_over\", or not "
           "bound. ids: int16, int32 or int64 [rows, >= K], "
           "any strides, in the transport's memory; on a device in stream order, without "
           "synchronisation, and allowed during graph capture. NotFoundError: the step of the view "
           "has ended, or was not begun. Engine's thread.")
      .def("submit", &Submit, "step"_a, "written_rows"_a = 0,
           "The forward of `step` has written its view (host), or has been launched (device). "
           "NotFoundError: the step has no buffer here. Engine's thread; keeps the GIL.")
      .def("submit_device_slots", &SubmitDeviceSlots, "step"_a, "slots"_a, "rows"_a = nb::none(),
           "written_rows"_a = 0,
           "Submits a step with device_slots: row i has slot slots[i]. slots: int64 [>= rows], "
           "contiguous, in the transport's memory, read in stream order. Engine's thread.")
      .def("_submit_ids", &SubmitIds, "step"_a, "ids"_a, "layers_first"_a)
      .def("landed", &Landed, "step"_a,
           "Whether the array that submit_ids was given for `step` may be written again: it has "
           "been "
           "read, or there is none. Steps may land in another order than they were submitted. "
           "Engine's thread.")
      .def("drop", &End<&wm_api_v1::session_drop>, "step"_a,
           "The ids of `step` are lost: its rows are missing (capacity). Engine's thread.")
      .def("cancel", &End<&wm_api_v1::session_cancel>, "step"_a,
           "`step` did not run: no kernel that writes KV was issued. It has no effect, and its "
           "seals have none: report them again with the step that runs. Engine's thread.")
      .def("discard", &Discard, "written_rows"_a,
           "A forward outside any step has written rows [0, written_rows) of the scratch view. "
           "Engine's thread.")
      .def("_self_test", &SelfTest, "rows"_a, "forward"_a,
           nb::sig("def _self_test(self, rows: int, forward: object) -> "
                   "tuple[list[tuple[int, int, int, int, int]], str]"))
      .def("check", &CheckStatus,
           "Raises the reason if the transport has failed permanently, or row_gather is not called "
           "any more (4096 steps waited for it); every step is then "
           "dropped when it begins. Any thread.")
      .def(
          "stats_text",
          [](const Session& self) {
            SharedSession& session = self.open();
            return Text(
                [&](wm_message* text) { return Api().session_stats_text(session.session, text); });
          },
          "The counters, and one line per layer with a silent or invalid row, as text. Any "
          "thread.")
      .def("silent_batch_sizes", &SilentBatchSizes, "layer"_a,
           nb::sig("def silent_batch_sizes(self, layer: int) -> list[int]"),
           "Rows, padding included, of the forwards in which `layer` was silent; ascending. Any "
           "thread.")
      .def(
          "close",
          [](Session& self) { const std::shared_ptr<SharedSession> last = std::move(self.shared); },
          "Drops the steps that have a buffer here and have not ended; submitted steps land. "
          "Remaining views keep the session. Engine's thread.")
      .def_prop_ro(
          "closed", [](const Session& self) { return self.shared == nullptr; },
          "Whether close() was called.")
      .def("_stats", &Stats, nb::sig("def _stats(self) -> dict[str, int]"))
      .def("_layer_stats", &LayerStats, "layer"_a,
           nb::sig("def _layer_stats(self, layer: int) -> tuple[int, str, int, int, int]"));
}

}  // namespace waymark_python
