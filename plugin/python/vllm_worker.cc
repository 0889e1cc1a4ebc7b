// The worker of an engine like vLLM: a whole step in one call. Between two steps the forward empties
// the caches, so that a step costs what it touches for the first time.
#include <waymark_vllm.h>

#include <cstdint>
#include <vector>

#include "plugin/python/batch.h"
#include "plugin/python/module.h"
#include "plugin/python/session.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

struct VllmWorker {
  VllmWorker(const Session& of, nb::handle slot_array, bool derive_decodes, std::int32_t null)
      : session(of.shared), slots(slot_array, "slots"), null_block(null) {
    if (!slots.lent()) {
      Raise(WM_INVALID_ARGUMENT, "slots: a contiguous numpy array of int64, whose memory is kept");
    }
    if (!derive_decodes) return;
    block_tokens = of.open().store->shape.block_tokens;
    events.resize(slots.size());
  }

  std::shared_ptr<SharedSession> session;
  Integers<std::int64_t> slots;
  std::int32_t block_tokens = 0;  // of blocks whose events are derived; 0: of none
  std::int32_t null_block;
  std::vector<wm_event> events;
};

void Make(VllmWorker* self, const Session& session, nb::handle slots, bool derive_decodes,
          Int32<"null_block"> null_block) {
  (void)session.open();
  new (self) VllmWorker(session, slots, derive_decodes, null_block);
}

// The step is checked before anything is done that Python can get wrong.
bool Step(VllmWorker& self, Uint64<"step"> step, Uint64<"version"> version,
          Int64<"rows"> rows, nb::handle ids_array, nb::handle message) {
  SharedSession& session = *self.session;
  session.store->GiveBack();
  if (rows < 0 || rows > static_cast<std::int64_t>(self.slots.size())) {
    Raise(WM_INVALID_ARGUMENT, "rows: in [0, " + std::to_string(self.slots.size()) + "], got " +
                                   std::to_string(rows.value));
  }
  wm_step_batch batch = {};
  batch.struct_size = sizeof(batch);
  batch.step = step;
  batch.version = version;
  batch.slots = self.slots.data();
  batch.num_slots = static_cast<std::size_t>(rows.value);
  if (self.block_tokens > 0) {
    batch.events = self.events.data();
    batch.num_events = wm_get_vllm_api_v1()->decode_events(
        batch.slots, batch.num_slots, self.block_tokens, self.null_block, self.events.data());
  }
  wm_ids ids = {};
  std::unique_ptr<LentIds> lent;
  if (!ids_array.is_none()) lent = Lend(session, ids_array, /*layers_first=*/true, ids);
  wm_code code = {};
  wm_status status;
  {
    const EngineCall call(*session.store);
    if (!message.is_none()) ReportTo(*session.store, message);
    status = Api().session_begin_ids_step(session.session, &batch, &code);
    if (status == WM_OK && lent != nullptr) {
      status = SubmitTo(session, step, ids, std::move(lent), code);
    }
    // Ids that cannot be submitted leave the step open, as no ids do.
    if (status != WM_RESOURCE_EXHAUSTED && (status != WM_OK || ids_array.is_none())) {
      wm_code dropped = {};
      (void)Api().session_drop(session.session, step, &dropped);
    }
  }
  if (status != WM_OK) session.store->GiveBack();
  return NotDropped(status, code) && !ids_array.is_none();
}

}  // namespace

void BindVllmWorker(nb::module_& module) {
  nb::class_<VllmWorker>(
      module, "VllmWorker",
      "Reports the steps of a worker of an engine like vLLM, each in one call after its forward.")
      .def("__init__", &Make, "session"_a, "slots"_a, "derive_decodes"_a, "null_block"_a = 0,
           "session: a CaptureSession, which is kept. slots: int64 numpy array that has the slots of "
           "the forward's rows in front after every forward; it is kept, and read in step. "
           "derive_decodes: blocks that decodes begin and fill are bound and sealed here, by their "
           "slots; the scheduler reports them by VllmScheduler.extend. False: it reports all blocks. "
           "null_block: the block that stands for no block.")
      .def("step", &Step, "step"_a, "version"_a, "rows"_a, "ids"_a.none(),
           "message"_a.none() = nb::none(),
           nb::sig("def step(self, step: int, version: int, rows: int, ids: object | None, "
                   "message: bytes | None = None) -> bool"),
           "Store.report_message, CaptureSession.begin_ids_step and submit_ids(layout=\"LTK\") in one "
           "call. rows: of the forward. ids: [L, rows, >= K]; None: they are lost, and the step is "
           "dropped (capacity). message: of the step's schedule; None: it has none, or it was "
           "reported.\n\n"
           "False: the step was dropped. An exception: the message was refused, and no step begun; or "
           "the step was refused, or dropped since its ids cannot be submitted. Engine's thread.");
}

}  // namespace waymark_python
