// The module waymark._core.
#include "plugin/python/module.h"

#include "adapters/python/module.h"
#include "plugin/python/core.h"

NB_MODULE(_core, module) {
  namespace py = waymark_python;
  using nanobind::literals::operator""_a;
  // At exit, daemon threads and cycles keep what they keep; tests count what is alive.
  nanobind::set_leak_warnings(false);
  module.attr("__doc__") =
      "Waymark's C ABI as classes. Use the package waymark, which derives from them.";
  module.def("version", [] { return py::Api().version(); });
  module.def("build_info", [] { return py::Api().build_info(); });
  module.def(
      "abi", [] { return nanobind::make_tuple(py::Api().abi_major, py::Api().abi_minor); },
      nanobind::sig("def abi() -> tuple[int, int]"));
  module.def(
      "status_name", [](std::int32_t status) { return py::Api().status_name(status); }, "status"_a);
  module.def(
      "reason_name", [](std::int32_t reason) { return py::Api().reason_name(reason); }, "reason"_a);
  module.def(
      "provenance_name",
      [](std::int32_t provenance) { return py::Api().provenance_name(provenance); },
      "provenance"_a);
  py::BindStore(module);
  py::BindScheduleWriter(module);
  py::BindRows(module);
  py::BindSnapshot(module);
  py::BindDocument(module);
  py::BindFetching(module);
  py::BindCallbackSource(module);
  py::BindFormats(module);
  py::BindView(module);
  py::BindSession(module);
  py::BindRouting(module);
  py::BindTrainer(module);
  py::BindVllmScheduler(module);
}
