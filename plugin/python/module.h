// The core's parts of the module waymark._core, each defined by the file of its name.
#ifndef WAYMARK_PLUGIN_PYTHON_MODULE_H_
#define WAYMARK_PLUGIN_PYTHON_MODULE_H_

#include <nanobind/nanobind.h>

namespace waymark_python {

void BindCapture(nanobind::module_& module);
void BindRows(nanobind::module_& module);
void BindDocument(nanobind::module_& module);
void BindFetching(nanobind::module_& module);
void BindCallbackSource(nanobind::module_& module);
void BindScheduleWriter(nanobind::module_& module);

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_MODULE_H_
