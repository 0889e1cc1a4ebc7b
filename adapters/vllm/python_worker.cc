// The worker of an engine like vLLM: a whole step in one call. Between two steps the forward
// empties the caches, so that a step costs what it touches: slots and ids lie at known places, and
// no object is made or looked into.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "adapters/python/module.h"
#include "plugin/python/batch.h"
#include "plugin/python/session.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

struct VllmWorker {
  VllmWorker(const Session& of, nb::handle slot_array, bool derive_events)
      : session(of.shared), slots(slot_array, "slots") {
    if (!slots.lent()) {
      Raise(WM_INVALID_ARGUMENT, "slots: a contiguous numpy array of int64, whose memory is kept");
    }
    batch.struct_size = sizeof(batch);
    batch.flags = derive_events ? WM_BATCH_DERIVE_EVENTS : 0;
    batch.slots = slots.data();
  }

  std::shared_ptr<SharedSession> session;
  Integers<std::int64_t> slots;
  wm_step_batch batch = {};
  std::vector<IdsBuffer*> buffers;  // the store's
};

void Make(VllmWorker* self, const Session& session, nb::handle slots, bool derive_events) {
  (void)session.open();
  new (self) VllmWorker(session, slots, derive_events);
}

std::size_t AddBuffer(VllmWorker& self, nb::handle array, Int32<"columns"> columns) {
  SharedStore& store = *self.session->store;
  auto buffer = std::make_unique<IdsBuffer>();
  buffer->array = ArrayOf(array, "buffer");
  const Array& memory = buffer->array;
  if (memory.dims != 1 || !memory.on_host || !memory.contiguous()) {
    Raise(WM_INVALID_ARGUMENT, "buffer: one dimension, contiguous, in host memory");
  }
  if (columns < store.shape.top_k) {
    Raise(WM_INVALID_ARGUMENT, "columns: at least K, " + std::to_string(store.shape.top_k) +
                                   ", got " + std::to_string(columns.value));
  }
  wm_ids& ids = buffer->ids;
  ids.struct_size = sizeof(ids);
  ids.type = IdType(memory, "buffer");
  ids.data = memory.data;
  ids.layers = store.shape.num_layers;
  ids.columns = columns;
  ids.k_stride = memory.item_bytes;
  ids.row_stride = ids.k_stride * columns;
  self.buffers.push_back(buffer.get());
  store.buffers.push_back(std::move(buffer));
  return self.buffers.size() - 1;
}

// wm_done's function; on the landing thread.
void Done(void* context) {
  static_cast<IdsBuffer*>(context)->lent.store(false, std::memory_order_release);
}

// Lays out [L, rows of the forward, columns] in a buffer that is free.
IdsBuffer& Fill(const VllmWorker& self, std::int64_t index, std::int64_t rows,
                std::int64_t forward_rows) {
  if (index >= static_cast<std::int64_t>(self.buffers.size())) {
    Raise(WM_INVALID_ARGUMENT, "buffer: below " + std::to_string(self.buffers.size()) + ", got " +
                                   std::to_string(index));
  }
  IdsBuffer& buffer = *self.buffers[static_cast<std::size_t>(index)];
  const std::int64_t row_items = std::int64_t{buffer.ids.layers} * buffer.ids.columns;
  const std::int64_t most = buffer.array.shape[0] / row_items;
  if (forward_rows < rows || forward_rows > most) {
    Raise(WM_INVALID_ARGUMENT, "forward_rows: in [" + std::to_string(rows) + ", " +
                                   std::to_string(most) + "], got " + std::to_string(forward_rows));
  }
  if (buffer.lent.load(std::memory_order_acquire)) {
    Raise(WM_FAILED_PRECONDITION, "buffer: one that is free, got " + std::to_string(index));
  }
  buffer.ids.rows = static_cast<std::int32_t>(rows);
  buffer.ids.layer_stride = forward_rows * buffer.ids.row_stride;
  return buffer;
}

// Returns a buffer that is free, or -1.
std::int64_t Step(VllmWorker& self, Uint64<"step"> step, Uint64<"version"> version,
                  Int64<"rows"> rows, Int64<"buffer"> index, Int64<"forward_rows"> forward_rows,
                  nb::handle message) {
  SharedSession& session = *self.session;
  if (rows < 0 || rows > static_cast<std::int64_t>(self.slots.size())) {
    Raise(WM_INVALID_ARGUMENT, "rows: in [0, " + std::to_string(self.slots.size()) + "], got " +
                                   std::to_string(rows.value));
  }
  IdsBuffer* const buffer = index < 0 ? nullptr : &Fill(self, index, rows, forward_rows);
  self.batch.step = step;
  self.batch.version = version;
  self.batch.num_slots = static_cast<std::size_t>(rows.value);
  wm_code code = {};
  wm_status status;
  {
    const EngineCall call(*session.store);
    if (!message.is_none()) ReportTo(*session.store, message);
    status = Api().session_begin_ids_step(session.session, &self.batch, &code);
    if (status == WM_OK && buffer != nullptr) {
      buffer->lent.store(true, std::memory_order_relaxed);
      status =
          Api().session_submit_ids(session.session, step, &buffer->ids, {&Done, buffer}, &code);
    }
    // Ids that cannot be submitted leave the step open, as no ids do.
    if (status != WM_RESOURCE_EXHAUSTED && (status != WM_OK || buffer == nullptr)) {
      wm_code dropped = {};
      (void)Api().session_drop(session.session, step, &dropped);
    }
  }
  (void)NotDropped(status, code);
  for (std::size_t i = 0; i < self.buffers.size(); ++i)
    if (!self.buffers[i]->lent.load(std::memory_order_acquire)) return static_cast<std::int64_t>(i);
  return -1;
}

}  // namespace

void BindVllmWorker(nb::module_& module) {
  nb::class_<VllmWorker>(
      module, "VllmWorker",
      "Reports the steps of a worker of an engine like vLLM, each in one call after its forward. "
      "Engine's thread.")
      .def("__init__", &Make, "session"_a, "slots"_a, "derive_events"_a,
           "session: a CaptureSession. slots: int64 numpy array whose front has the slots of the "
           "rows after every forward; it is kept, and read in step. derive_events: as in "
           "CaptureSession.begin_step; blocks that decodes begin are then reported by "
           "VllmScheduler.extend alone, and none is sealed. False: the scheduler reports all.")
      .def("add_buffer", &AddBuffer, "array"_a, "columns"_a,
           "Adds memory for the ids of a step, and returns its number. array: integers in host "
           "memory, one dimension, contiguous; kept as long as the store. columns: ids of a row in "
           "it, at least K.")
      .def("step", &Step, "step"_a, "version"_a, "rows"_a, "buffer"_a, "forward_rows"_a,
           "message"_a.none() = nb::none(),
           nb::sig("def step(self, step: int, version: int, rows: int, buffer: int, "
                   "forward_rows: int, message: bytes | None = None) -> int"),
           "Store.report_message, CaptureSession.begin_ids_step and submit_ids in one call; "
           "returns a buffer that may be written now, or -1.\n\n"
           "rows: those of the step. buffer: has [L, forward_rows, columns] ids in front, of which "
           "`rows` of each layer are read; below 0: the ids are lost, and the step is dropped "
           "(capacity). message: of the step's schedule; None: it has none, or it was reported.\n\n"
           "An exception: the message was refused, and no step begun; or the step was refused, or "
           "dropped since its ids cannot be submitted.");
}

}  // namespace waymark_python
