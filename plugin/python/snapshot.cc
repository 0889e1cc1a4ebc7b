// Snapshot: rows of a sequence, pinned.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/python/module.h"
#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

void Make(Snapshot* self, wm_snapshot* taken) {
  new (self) Snapshot;
  self->snapshot = taken;
  Api().snapshot_range(taken, &self->first, &self->last);
  self->shape.struct_size = sizeof(self->shape);
  Api().snapshot_shape(taken, &self->shape);
}

void Take(Snapshot* self, const Store& of, nb::handle block_ids, Int64<"first"> first,
          Int64<"last"> last) {
  SharedStore& store = of.open();
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  wm_snapshot_args args = {};
  args.struct_size = sizeof(args);
  args.blocks = blocks.data();
  args.num_blocks = blocks.size();
  args.first = first;
  args.last = last;
  wm_snapshot* taken = nullptr;
  Message why;
  {
    const EngineCall call(store);
    Check(Api().store_snapshot(store.store, &args, &taken, why.get()), why);
  }
  Make(self, taken);
}

void TakeTagged(Snapshot* self, const Store& of, Uint64<"tag"> tag) {
  wm_snapshot* taken = nullptr;
  Message why;
  Check(Api().store_take_tagged(of.open().store, tag, &taken, why.get()), why);
  Make(self, taken);
}

bool Ready(Snapshot& self) {
  if (self.ready.load(std::memory_order_acquire)) return true;
  const std::unique_lock lock(self.mutex, std::try_to_lock);
  // The thread that holds it waits for the snapshot, or has seen it ready.
  if (!lock.owns_lock()) return self.ready.load(std::memory_order_acquire);
  if (self.snapshot == nullptr) RaiseReleased();
  const bool ready = Api().snapshot_ready(self.snapshot) == WM_OK;
  if (ready) self.ready.store(true, std::memory_order_release);
  return ready;
}

void Wait(Snapshot& self, nb::handle timeout) {
  const std::int64_t ns = Nanoseconds(timeout);
  if (Ready(self)) return;
  Message why;
  bool released = false;
  const wm_status status = WaitInSlices(ns, [&](std::int64_t slice) {
    const std::lock_guard lock(self.mutex);
    released = self.snapshot == nullptr;
    if (released) return wm_status{WM_FAILED_PRECONDITION};
    const wm_status waited = Api().snapshot_wait(self.snapshot, slice, why.get());
    if (waited == WM_OK) self.ready.store(true, std::memory_order_release);
    return waited;
  });
  if (released) RaiseReleased();
  if (status == WM_DEADLINE_EXCEEDED) RaiseDeadline("the snapshot is not ready", timeout);
  Check(status, why);
}

void Read(Snapshot& self, Int64<"begin"> begin, Int64<"end"> end, std::int32_t layout,
          std::int32_t id_type, std::int32_t fill, nb::handle out, nb::handle infos) {
  const ReadArgs read(begin, end, layout, id_type, fill, out, infos);
  Message why;
  wm_status status = WM_OK;
  bool released = false;
  Use(self, read.args.out_bytes >= kReleaseBytes, [&](wm_snapshot* snapshot) {
    released = snapshot == nullptr;
    if (!released) status = Api().snapshot_read(snapshot, &read.args, why.get());
  });
  if (released) RaiseReleased();
  Check(status, why);
  self.ready.store(true, std::memory_order_release);
}

nb::list Coverage(Snapshot& self) {
  std::vector<wm_coverage_run> runs;
  Message why;
  wm_status status = WM_OK;
  bool released = false;
  Use(self, true, [&](wm_snapshot* snapshot) {
    released = snapshot == nullptr;
    if (released) return;
    status = Runs(
        runs, [&](auto... args) { return Api().snapshot_coverage(snapshot, args..., why.get()); });
  });
  if (released) RaiseReleased();
  Check(status, why);
  return RunList(runs);
}

std::unique_ptr<Rows> RowsOf(Snapshot& self) {
  wm_rows* rows = nullptr;
  Message why;
  wm_status status = WM_OK;
  bool released = false;
  Use(self, true, [&](wm_snapshot* snapshot) {
    released = snapshot == nullptr;
    if (!released) status = Api().snapshot_rows(snapshot, &rows, why.get());
  });
  if (released) RaiseReleased();
  Check(status, why);
  self.ready.store(true, std::memory_order_release);
  return std::make_unique<Rows>(rows);
}

void Release(Snapshot& self) {
  Use(self, false, [&](wm_snapshot* snapshot) {
    Api().snapshot_release(snapshot);
    self.snapshot = nullptr;
  });
}

}  // namespace

nb::object SnapshotObject(wm_snapshot* owned) {
  static PyObject* const type =
      nb::object(nb::module_::import_("waymark").attr("Snapshot")).release().ptr();
  nb::object object = nb::inst_alloc(type);
  Make(nb::inst_ptr<Snapshot>(object), owned);
  nb::inst_mark_ready(object);
  return object;
}

void BindSnapshot(nb::module_& module) {
  nb::class_<Snapshot>(module, "Snapshot")
      .def("__init__", &Take, "store"_a, "blocks"_a, "first"_a, "last"_a)
      .def("__init__", &TakeTagged, "store"_a, "tag"_a)
      .def_prop_ro(
          "first", [](const Snapshot& self) { return self.first; },
          "The first row, counted from the first of the sequence.")
      .def_prop_ro(
          "last", [](const Snapshot& self) { return self.last; }, "One past the last row.")
      .def("__len__", [](const Snapshot& self) { return self.last - self.first; })
      .def("ready", &Ready,
           "Whether it can be read: every step begun before it has ended. Never waits.")
      .def("wait", &Wait, "timeout"_a = nb::none(),
           nb::sig("def wait(self, timeout: float | None = None) -> None"),
           "Waits until it is ready, without the GIL. `timeout`: seconds, or None; "
           "DeadlineExceededError after it.")
      .def("release", &Release, "Unpins the pages now. A second call does nothing.")
      .def_prop_ro(
          "released", [](const Snapshot& self) { return self.snapshot == nullptr; },
          "Whether release() was called.")
      .def_prop_ro(
          "_row_shape",
          [](const Snapshot& self) {
            return nb::make_tuple(self.shape.num_layers, self.shape.top_k, self.shape.num_experts);
          },
          nb::sig("def _row_shape(self) -> tuple[int, int, int]"))
      .def("_read", &Read, "begin"_a, "end"_a, "layout"_a, "id_type"_a, "fill"_a, "out"_a,
           "infos"_a.none())
      .def("_coverage", &Coverage, nb::sig("def _coverage(self) -> " WAYMARK_RUNS))
      .def("_rows", &RowsOf);
}

}  // namespace waymark_python
