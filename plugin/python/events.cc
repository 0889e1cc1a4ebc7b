// Events of blocks, as the arguments of a call give them.
#include "plugin/python/events.h"

#include <cstring>

#include "plugin/python/capture.h"

namespace waymark_python {
namespace {

using waymark::BlockKey;
using waymark::Event;
using waymark::StepId;

constexpr char kKeyTypes[] =
    "keys: bytes, integers, or an array of numpy: uint8 [blocks, key bytes], or one of 64 bits "
    "[blocks]";

// Keys of `count` blocks, in any form that Python programs have hashes in.
class Keys {
 public:
  explicit Keys(nb::handle keys) {
    if (keys.is_none()) return;
    PyObject* const o = keys.ptr();
    // torch's tensors have __index__ and are no sequences, whatever their shape.
    const bool integer = PyIndex_Check(o) && !PySequence_Check(o) && !nb::hasattr(keys, "data_ptr");
    if (integer || PyBytes_Check(o) || PyByteArray_Check(o)) {
      Add(keys);
    } else {  // a list, or an array of numpy, whose items are keys
      if (PyUnicode_Check(o)) RaiseType(kKeyTypes);
      if (!PyList_Check(o) && !PyTuple_Check(o)) {
        const Array array = ArrayOf(keys, "keys");
        if (array.dims != 2 && array.item_bytes != 8) {
          RaiseInvalid(kKeyTypes);
        }
      }
      const nb::object items = nb::steal(PySequence_Tuple(o));
      if (!items.is_valid()) throw nb::python_error();
      const Py_ssize_t size = PyTuple_Size(items.ptr());
      for (Py_ssize_t i = 0; i < size; ++i)
        Add(PyTuple_GetItem(items.ptr(), i));
    }
  }
  Keys(nb::handle keys, std::size_t count) : Keys(keys) {
    if (!keys.is_none() && keys_.size() != count) {
      RaiseInvalid("keys: as many as blocks, got " + std::to_string(keys_.size()) + " keys of " +
                   std::to_string(count) + " blocks");
    }
  }

  [[nodiscard]] const std::vector<BlockKey>& all() const { return keys_; }
  // Of the i-th block; empty without keys.
  [[nodiscard]] BlockKey operator[](std::size_t i) const {
    return keys_.empty() ? BlockKey() : keys_[i];
  }

 private:
  void Add(const void* bytes, std::size_t size) {
    if (size < 1 || size > BlockKey::kMaxBytes) {
      RaiseInvalid("keys: 1 ... 32 bytes, got " + std::to_string(size));
    }
    keys_.push_back(BlockKey::FromBytes({static_cast<const std::uint8_t*>(bytes), size}));
  }

  void Add(nb::handle item) {
    PyObject* const o = item.ptr();
    if (item.is_none()) {
      keys_.emplace_back();
    } else if (PyBytes_Check(o)) {
      Add(PyBytes_AsString(o), static_cast<std::size_t>(PyBytes_Size(o)));
    } else if (PyIndex_Check(o) && !PySequence_Check(o)) {
      const nb::object index = nb::steal(PyNumber_Index(o));
      if (!index.is_valid()) throw nb::python_error();
      std::uint64_t hash = PyLong_AsUnsignedLongLong(index.ptr());
      if (PyErr_Occurred() != nullptr) {  // hash() is signed
        PyErr_Clear();
        hash = static_cast<std::uint64_t>(PyLong_AsLongLong(index.ptr()));
        if (PyErr_Occurred() != nullptr) {
          PyErr_Clear();
          Raise(absl::OutOfRangeError("keys: an integer key has 64 bits, got " +
                                      nb::cast<std::string>(nb::str(index))));
        }
      }
      Add(&hash, sizeof(hash));
    } else {
      const Bytes bytes = ReadableBytes(item, "keys");
      if (bytes.array.kind != 'u' || bytes.array.item_bytes != 1) {
        RaiseInvalid("keys: bytes and integers, got " +
                     nb::cast<std::string>(nb::repr(item.type())));
      }
      Add(bytes.data, bytes.size);
    }
  }

  std::vector<BlockKey> keys_;
};

void SameLength(const char* name, std::size_t size, std::size_t blocks) {
  if (size == blocks || size == 1) return;
  RaiseInvalid(std::string(name) + ": one, or one per block, got " + std::to_string(size) + " of " +
               std::to_string(blocks) + " blocks");
}

}  // namespace

EventList BindEvents(nb::handle block_ids, nb::handle key_list) {
  const Blocks blocks(block_ids, "blocks");
  const Keys keys(key_list, blocks.size());
  EventList events;
  events.reserve(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i)
    events.push_back(Event::Bind(blocks.ids()[i], keys[i]));
  return events;
}

std::vector<BlockKey> KeysOf(nb::handle keys) {
  return Keys(keys).all();
}

EventList SealEvents(nb::handle block_ids, nb::handle key_list, nb::handle step_number) {
  const Blocks blocks(block_ids, "blocks");
  const Keys keys(key_list, blocks.size());
  StepId step;
  if (!step_number.is_none()) step = StepId(IntegerOf<std::uint64_t>(step_number, "step", 1));
  EventList events;
  events.reserve(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i)
    events.push_back(Event::Seal(blocks.ids()[i], keys[i], step));
  return events;
}

EventList CopyEvents(nb::handle src_ids, nb::handle dst_ids, nb::handle row_counts) {
  const Blocks src(src_ids, "src");
  const Blocks dst(dst_ids, "dst");
  const Integers<std::int32_t> rows(row_counts, "rows");
  SameLength("src", src.size(), dst.size());
  SameLength("rows", rows.size(), dst.size());
  EventList events;
  for (std::size_t i = 0; i < dst.size(); ++i) {
    events.push_back(Event::Copy(src.ids()[src.size() == 1 ? 0 : i], dst.ids()[i],
                                 rows[rows.size() == 1 ? 0 : i]));
  }
  return events;
}

EventList MoveEvents(nb::handle src_ids, nb::handle dst_ids) {
  const Blocks src(src_ids, "src");
  const Blocks dst(dst_ids, "dst");
  if (src.size() != dst.size()) {
    RaiseInvalid("src: as many as dst, got " + std::to_string(src.size()) + " and " +
                 std::to_string(dst.size()));
  }
  EventList events;
  for (std::size_t i = 0; i < src.size(); ++i)
    events.push_back(Event::Move(src.ids()[i], dst.ids()[i], i + 1 < src.size()));
  return events;
}

EventList TruncateEvents(nb::handle block_ids, nb::handle row_numbers, Uint64<"step"> step) {
  const Blocks blocks(block_ids, "blocks");
  const Integers<std::int32_t> rows(row_numbers, "row");
  SameLength("row", rows.size(), blocks.size());
  EventList events;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    events.push_back(
        Event::Truncate(blocks.ids()[i], rows[rows.size() == 1 ? 0 : i], StepId(step)));
  }
  return events;
}

GivenEvents::GivenEvents(nb::handle events) {
  static PyObject* const event_dtype =
      nb::object(nb::module_::import_("waymark._types").attr("event_dtype")).release().ptr();
  if (memory_.Take(events, event_dtype, 1)) {
    events_ = {static_cast<const Event*>(memory_.data()), memory_.shape(0)};
    return;
  }
  // Bytes, and arrays that are not in order.
  keep_ = nb::module_::import_("waymark._types").attr("event_bytes")(events);
  const Bytes bytes = ReadableBytes(keep_, "events");
  copied_.resize(bytes.size / sizeof(Event));
  if (!copied_.empty())  // No bytes have no address.
    std::memcpy(static_cast<void*>(copied_.data()), bytes.data, bytes.size);
  events_ = copied_;
}

void DefineEvents(nb::class_<Capture>& of) {
  using nb::literals::operator""_a;
  const auto none = nb::none();
  // Reports what `make` makes of the arguments.
  const auto reported = []<typename... Args>(EventList (*make)(Args...)) {
    return [make](const Capture& self, Args... args) { self.Report(make(args...)); };
  };
  of.def("bind", reported(&BindEvents), "blocks"_a, "keys"_a = none,
         "`blocks` are allocated: new lives. With keys: attaches the pages of those keys.\n\n"
         "keys: None; one key, or one for each block, in a list or an array of numpy: bytes "
         "(1 ... 32), an int (8 bytes, little-endian), or None for a block without a key.")
      .def("retain", reported(&EventsOf<&Event::Retain>), "blocks"_a,
           "Each block has one user more.")
      .def("release", reported(&EventsOf<&Event::Release>), "blocks"_a,
           "Each block has one user less. Below zero: ignored and counted.")
      .def("seal", reported(&SealEvents), "blocks"_a, "keys"_a.none(), "step"_a = none,
           nb::sig("def seal(self, blocks: object, keys: object, step: int | None = None) -> None"),
           "`step` fills the blocks, whose rows are then protected, and found by their keys (as in "
           "bind; a block without a key is not found). step None: the step that is begun next.")
      .def("copy", reported(&CopyEvents), "src"_a, "dst"_a, "rows"_a = Event::kAllRows,
           "Each block of dst gets rows [0, rows) of its block of src; rows: one count, or one per "
           "block; -1: all.")
      .def("move", reported(&MoveEvents), "src"_a, "dst"_a,
           "Each block of dst takes over what its block of src is, all pairs at once: a swap is "
           "move([a, b], [b, a]).")
      .def("truncate", reported(&TruncateEvents), "blocks"_a, "row"_a, "step"_a,
           "Rows >= row of each block that steps <= step wrote are removed; row: one, or one per "
           "block.")
      .def(
          "reset", [](const Capture& self) { self.Report(EventList{Event::Reset()}); },
          "The block table and the key index are emptied.")
      .def(
          "report",
          [](const Capture& self, nb::handle given) { self.Report(GivenEvents(given).events()); },
          "events"_a,
          "Reports events in order: an array of event_dtype, or bytes of 56 per event. An invalid "
          "event: InvalidArgumentError, and none is reported.");
}

}  // namespace waymark_python
