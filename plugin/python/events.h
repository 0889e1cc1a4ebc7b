// Events: an array of wm_event that grows, and that numpy can look at.
#ifndef WAYMARK_PLUGIN_PYTHON_EVENTS_H_
#define WAYMARK_PLUGIN_PYTHON_EVENTS_H_

#include "plugin/python/core.h"

namespace waymark_python {

class Events {
 public:
  // Room for `count` more, to be filled by the caller. An array that looks at the memory from
  // before a growth keeps that memory.
  wm_event* Add(std::size_t count);

  std::shared_ptr<wm_event[]> memory;
  std::size_t size = 0;
  std::size_t capacity = 0;
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_EVENTS_H_
