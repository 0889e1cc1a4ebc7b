// The module waymark._core.
#include "adapters/python/module.h"

#include <string>

#include "plugin/python/core.h"
#include "plugin/sources/redis_source.h"
#include "plugin/waymark.h"

NB_MODULE(_core, module) {
  namespace py = waymark_python;
  using nanobind::literals::operator""_a;
  // At exit, daemon threads and cycles keep what they keep; tests count what is alive.
  nanobind::set_leak_warnings(false);
  module.attr("__doc__") =
      "Waymark's C++ classes. Use the package waymark, which derives from them.";
  // The table that C programs find in this module, too.
  const wm_api_v1& api = *wm_get_api_v1();
  module.def("version", api.version);
  module.def("build_info", [] {
    return std::string(wm_get_api_v1()->build_info()) + " redis=" + waymark::RedisClient();
  });
  module.def("status_name", api.status_name, "status"_a);
  module.def("reason_name", api.reason_name, "reason"_a);
  module.def("cause_name", api.cause_name, "cause"_a);
  module.def("provenance_name", api.provenance_name, "provenance"_a);
  py::BindLog(module);
  py::BindCapture(module);
  py::BindRows(module);
  py::BindDocument(module);
  py::BindFetching(module);
  py::BindCallbackSource(module);
  py::BindFormats(module);
  py::BindTrainer(module);
}
