// Events: an array of wm_event that grows, and that numpy can read. BatchArgs: a step's batch.
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

// A wm_step_batch of a call's arguments, which it keeps.
struct BatchArgs {
  // `events`: None, an Events, or a numpy array of EVENT_DTYPE.
  BatchArgs(std::uint64_t step, std::uint64_t version, nb::handle events, nb::handle slots,
            bool device_slots);
  wm_step_batch batch = {};
  Integers<std::int64_t> slots;
  Bytes events;
  nb::object keep;
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_EVENTS_H_
