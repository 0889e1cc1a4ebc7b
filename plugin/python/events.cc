// Events of blocks, as the arguments of a call give them.
#include "plugin/python/events.h"

#include <cstring>
#include <optional>

namespace waymark_python {
namespace {

using waymark::BlockId;
using waymark::BlockKey;
using waymark::Event;
using waymark::StepId;

// Keys of `count` blocks, in any form that Python programs have hashes in.
class Keys {
 public:
  Keys(nb::handle keys, std::size_t count) {
    if (keys.is_none()) return;
    PyObject* const o = keys.ptr();
    if (PyBytes_Check(o) || PyLong_Check(o)) {
      Add(keys);
    } else if (PyList_Check(o) || PyTuple_Check(o)) {
      const nb::object items = nb::steal(PySequence_Tuple(o));
      if (!items.is_valid()) throw nb::python_error();
      const Py_ssize_t size = PyTuple_Size(items.ptr());
      for (Py_ssize_t i = 0; i < size; ++i)
        Add(PyTuple_GetItem(items.ptr(), i));
    } else {
      AddArray(keys);
    }
    if (keys_.size() != count) {
      RaiseInvalid("keys: as many as blocks, got " + std::to_string(keys_.size()) + " keys of " +
                   std::to_string(count) + " blocks");
    }
  }

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
      Add(bytes.data, bytes.size);
    }
  }

  void AddArray(nb::handle keys) {
    const Array array = ArrayOf(keys, "keys");
    const bool hashes = array.dims == 1 && array.item_bytes == 8;
    const bool rows = array.dims == 2 && array.item_bytes == 1 && array.kind == 'u';
    if (!array.on_host || (array.kind != 'i' && array.kind != 'u') || (!hashes && !rows)) {
      RaiseInvalid(
          "keys: bytes, integers, an array of uint8 [blocks, key bytes] or one of uint64 "
          "[blocks], in host memory");
    }
    const auto* at = static_cast<const std::uint8_t*>(array.data);
    const std::int64_t width = hashes ? 1 : array.shape[1];
    if (rows && (width < 1 || width > std::int64_t{BlockKey::kMaxBytes})) {
      RaiseInvalid("keys: 1 ... 32 bytes, got " + std::to_string(width));
    }
    for (std::int64_t i = 0; i < array.shape[0]; ++i, at += array.strides[0]) {
      if (hashes) {
        Add(at, 8);
        continue;
      }
      std::uint8_t key[BlockKey::kMaxBytes];
      for (std::int64_t j = 0; j < width; ++j)
        key[j] = at[j * array.strides[1]];
      Add(key, static_cast<std::size_t>(width));
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

EventList EventsOf(nb::handle block_ids, Event (*make)(BlockId)) {
  const Blocks blocks(block_ids, "blocks");
  EventList events;
  for (const BlockId block : blocks.ids())
    events.push_back(make(block));
  return events;
}

EventList BindEvents(nb::handle block_ids, nb::handle key_list) {
  const Blocks blocks(block_ids, "blocks");
  const Keys keys(key_list, blocks.size());
  EventList events;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    events.push_back(Event::Bind(blocks.ids()[i], keys[i]));
  return events;
}

EventList SealEvents(nb::handle block_ids, nb::handle key_list, nb::handle step_number) {
  const Blocks blocks(block_ids, "blocks");
  const Keys keys(key_list, blocks.size());
  StepId step;
  if (!step_number.is_none()) step = StepId(IntegerOf<std::uint64_t>(step_number, "step", 1));
  EventList events;
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

EventList TruncateEvents(nb::handle block_ids, nb::handle row_numbers, std::uint64_t step) {
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

}  // namespace waymark_python
