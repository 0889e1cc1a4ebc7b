// Page sources of waymark._core.
#ifndef WAYMARK_PLUGIN_PYTHON_SOURCE_H_
#define WAYMARK_PLUGIN_PYTHON_SOURCE_H_

#include "plugin/python/core.h"

namespace waymark_python {

struct Source {
  wm_source* source = nullptr;
  bool waits = false;  // for another process, or for Python

  Source() = default;
  ~Source() { Api().wire->source_release(source); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_SOURCE_H_
