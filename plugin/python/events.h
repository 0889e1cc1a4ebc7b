// Events of blocks as Python gives them: the arguments of a call as Events. Everything here needs
// the GIL.
#ifndef WAYMARK_PLUGIN_PYTHON_EVENTS_H_
#define WAYMARK_PLUGIN_PYTHON_EVENTS_H_

#include <span>
#include <vector>

#include "blockstore/events.h"
#include "plugin/python/arrays.h"

namespace waymark_python {

// The events of a call, in the order in which they are reported: one for each block (each of
// `dst`).
//
// `blocks`, `src`, `dst`, `rows`, `row`: int32, as Integers takes them (one, a list, an array). A
// single `src`, `rows` or `row` is for every block, but a Move needs as many as `dst`. `keys`:
// None, or one for each block, in the forms that `bind` lists below.
//
// InvalidArgumentError for lists of different lengths, and a key of another size than 1 ... 32
// bytes; OutOfRangeError for an integer that does not fit; TypeError for what is none. Whether
// blocks and rows exist is not checked here: the call that reports the events does.
using EventList = std::vector<waymark::Event>;
[[nodiscard]] EventList BindEvents(nb::handle blocks, nb::handle keys);
// Of one block each: `make` is Event::Retain or Event::Release.
template <waymark::Event (*make)(waymark::BlockId)>
[[nodiscard]] EventList EventsOf(nb::handle block_ids) {
  const Blocks blocks(block_ids, "blocks");
  EventList events;
  events.reserve(blocks.size());
  for (const waymark::BlockId block : blocks.ids())
    events.push_back(make(block));
  return events;
}
// `step`: 1 or more, or None for the step that is begun next (0 in the event).
[[nodiscard]] EventList SealEvents(nb::handle blocks, nb::handle keys, nb::handle step);
// The keys of blocks, as many as are given.
[[nodiscard]] std::vector<waymark::BlockKey> KeysOf(nb::handle keys);
[[nodiscard]] EventList CopyEvents(nb::handle src, nb::handle dst, nb::handle rows);
// One group, which takes effect at once: all but the last have `more`.
[[nodiscard]] EventList MoveEvents(nb::handle src, nb::handle dst);
[[nodiscard]] EventList TruncateEvents(nb::handle blocks, nb::handle row, Uint64<"step"> step);

// The caller's own events: an array of event_dtype, or bytes of 56 per event. Where they lie if
// they are contiguous and aligned, else a copy; `events` must outlive the object. TypeError or
// InvalidArgumentError for anything else; the events themselves are checked when they are reported.
class GivenEvents {
 public:
  explicit GivenEvents(nb::handle events);
  [[nodiscard]] std::span<const waymark::Event> events() const { return events_; }

 private:
  std::span<const waymark::Event> events_;
  NumpyMemory memory_;  // of an array that is used where it lies
  nb::object keep_;     // the bytes that copied_ was made of
  EventList copied_;
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_EVENTS_H_
