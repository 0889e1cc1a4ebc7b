// Placeholder for the extension module: enough of it to build, package and load the wheel.
#include <nanobind/nanobind.h>

#include "plugin/waymark.h"

NB_MODULE(_core, module) {
  module.def("version", [] { return WAYMARK_VERSION; });
  module.def("abi", [] {
    const wm_api_v1* api = wm_get_api_v1();
    return nanobind::make_tuple(api->abi_major, api->abi_minor);
  });
}
