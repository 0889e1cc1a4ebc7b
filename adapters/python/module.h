// The adapters' parts of the module waymark._core, each defined by python.cc of its adapter.
#ifndef WAYMARK_ADAPTERS_PYTHON_MODULE_H_
#define WAYMARK_ADAPTERS_PYTHON_MODULE_H_

#include <nanobind/nanobind.h>

namespace waymark_python {

void BindFormats(nanobind::module_& module);
void BindTrainer(nanobind::module_& module);

}  // namespace waymark_python

#endif  // WAYMARK_ADAPTERS_PYTHON_MODULE_H_
