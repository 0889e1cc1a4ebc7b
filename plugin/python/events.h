// Events of blocks as Python gives them: the arguments of a call as Events, and the methods that
// report them, which Capture and ScheduleWriter both have. Everything here needs the GIL.
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

// Defines the methods of a class that has Report(std::span<const Event>), which reports events in
// order. Their texts are what Python's help() shows.
template <typename T>
void DefineEvents(nb::class_<T>& of) {
  using nb::literals::operator""_a;
  const auto none = nb::none();
  // Reports what `make` makes of the arguments.
  const auto reported = []<typename... Args>(EventList (*make)(Args...)) {
    return [make](T& self, Args... args) { self.Report(make(args...)); };
  };
  of.def("bind", reported(&BindEvents), "blocks"_a, "keys"_a = none,
         "`blocks` are allocated: new lives. With keys: attaches the pages of those keys.\n\n"
         "keys: None; one key, or one for each block, in a list or an array of numpy: bytes "
         "(1 ... 32), an int (8 bytes, little-endian), or None for a block without a key.")
      .def("retain", reported(&EventsOf<&waymark::Event::Retain>), "blocks"_a,
           "Each block has one user more.")
      .def("release", reported(&EventsOf<&waymark::Event::Release>), "blocks"_a,
           "Each block has one user less. Below zero: ignored and counted.")
      .def("seal", reported(&SealEvents), "blocks"_a, "keys"_a.none(), "step"_a = none,
           nb::sig("def seal(self, blocks: object, keys: object, step: int | None = None) -> None"),
           "`step` fills the blocks, whose rows are then protected, and found by their keys (as in "
           "bind; a block without a key is not found). step None: the step that is begun next.")
      .def("copy", reported(&CopyEvents), "src"_a, "dst"_a, "rows"_a = waymark::Event::kAllRows,
           "Each block of dst gets rows [0, rows) of its block of src; rows: one count, or one per "
           "block; -1: all.")
      .def("move", reported(&MoveEvents), "src"_a, "dst"_a,
           "Each block of dst takes over what its block of src is, all pairs at once: a swap is "
           "move([a, b], [b, a]).")
      .def("truncate", reported(&TruncateEvents), "blocks"_a, "row"_a, "step"_a,
           "Rows >= row of each block that steps <= step wrote are removed; row: one, or one per "
           "block.")
      .def(
          "reset", [](T& self) { self.Report(EventList{waymark::Event::Reset()}); },
          "The block table and the key index are emptied.")
      .def(
          "report", [](T& self, nb::handle given) { self.Report(GivenEvents(given).events()); },
          "events"_a,
          "Reports events in order: an array of event_dtype, or bytes of 56 per event. An invalid "
          "event: InvalidArgumentError, and none is reported.");
}

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_EVENTS_H_
