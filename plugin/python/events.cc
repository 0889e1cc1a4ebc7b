// Events of blocks, as the arguments of a call give them.
#include "plugin/python/events.h"

#include <cstring>
#include <optional>

namespace waymark_python {
namespace {

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
      Raise(WM_INVALID_ARGUMENT, "keys: as many as blocks, got " + std::to_string(keys_.size()) +
                                     " keys of " + std::to_string(count) + " blocks");
    }
  }

  // Fills the key of `event`, the i-th.
  void Set(std::size_t i, wm_event& event) const {
    if (keys_.empty() || keys_[i].size == 0) return;
    event.key_size = keys_[i].size;
    std::memcpy(event.key, keys_[i].bytes, keys_[i].size);
  }

 private:
  struct Key {
    std::uint8_t size;
    std::uint8_t bytes[WM_KEY_BYTES];
  };

  void Add(const void* bytes, std::size_t size) {
    if (size < 1 || size > WM_KEY_BYTES) {
      Raise(WM_INVALID_ARGUMENT, "keys: 1 ... 32 bytes, got " + std::to_string(size));
    }
    Key key = {};
    key.size = static_cast<std::uint8_t>(size);
    std::memcpy(key.bytes, bytes, size);
    keys_.push_back(key);
  }

  void Add(nb::handle item) {
    PyObject* const o = item.ptr();
    if (item.is_none()) {
      keys_.push_back(Key{});
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
          Raise(WM_OUT_OF_RANGE,
                "keys: an integer key has 64 bits, got " + nb::cast<std::string>(nb::str(index)));
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
      Raise(WM_INVALID_ARGUMENT,
            "keys: bytes, integers, an array of uint8 [blocks, key bytes] or one of uint64 "
            "[blocks], in host memory");
    }
    const auto* at = static_cast<const std::uint8_t*>(array.data);
    const std::int64_t width = hashes ? 1 : array.shape[1];
    if (rows && (width < 1 || width > WM_KEY_BYTES)) {
      Raise(WM_INVALID_ARGUMENT, "keys: 1 ... 32 bytes, got " + std::to_string(width));
    }
    for (std::int64_t i = 0; i < array.shape[0]; ++i, at += array.strides[0]) {
      if (hashes) {
        Add(at, 8);
        continue;
      }
      std::uint8_t key[WM_KEY_BYTES];
      for (std::int64_t j = 0; j < width; ++j)
        key[j] = at[j * array.strides[1]];
      Add(key, static_cast<std::size_t>(width));
    }
  }

  std::vector<Key> keys_;
};

void SameLength(const char* name, std::size_t size, std::size_t blocks) {
  if (size == blocks || size == 1) return;
  Raise(WM_INVALID_ARGUMENT, std::string(name) + ": one, or one per block, got " +
                                 std::to_string(size) + " of " + std::to_string(blocks) +
                                 " blocks");
}

EventList Simple(nb::handle block_ids, wm_event (*make)(std::int32_t)) {
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  EventList events(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i)
    events[i] = make(blocks[i]);
  return events;
}

}  // namespace

EventList BindEvents(nb::handle block_ids, nb::handle key_list) {
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  const Keys keys(key_list, blocks.size());
  EventList events(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    events[i] = wm_bind(blocks[i], nullptr, 0);
    keys.Set(i, events[i]);
  }
  return events;
}

EventList RetainEvents(nb::handle blocks) {
  return Simple(blocks, &wm_retain);
}
EventList ReleaseEvents(nb::handle blocks) {
  return Simple(blocks, &wm_release);
}

EventList SealEvents(nb::handle block_ids, nb::handle key_list, nb::handle step_number) {
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  const Keys keys(key_list, blocks.size());
  std::uint64_t step = 0;
  if (!step_number.is_none()) step = IntegerOf<std::uint64_t>(step_number, "step", 1);
  EventList events(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    events[i] = wm_seal(blocks[i], nullptr, 0, step);
    keys.Set(i, events[i]);
  }
  return events;
}

EventList CopyEvents(nb::handle src_ids, nb::handle dst_ids, nb::handle row_counts) {
  const Integers<std::int32_t> src(src_ids, "src");
  const Integers<std::int32_t> dst(dst_ids, "dst");
  const Integers<std::int32_t> rows(row_counts, "rows");
  SameLength("src", src.size(), dst.size());
  SameLength("rows", rows.size(), dst.size());
  EventList events(dst.size());
  for (std::size_t i = 0; i < dst.size(); ++i) {
    events[i] = wm_copy(src[src.size() == 1 ? 0 : i], dst[i], rows[rows.size() == 1 ? 0 : i]);
  }
  return events;
}

EventList MoveEvents(nb::handle src_ids, nb::handle dst_ids) {
  const Integers<std::int32_t> src(src_ids, "src");
  const Integers<std::int32_t> dst(dst_ids, "dst");
  if (src.size() != dst.size()) {
    Raise(WM_INVALID_ARGUMENT, "src: as many as dst, got " + std::to_string(src.size()) + " and " +
                                   std::to_string(dst.size()));
  }
  EventList events(src.size());
  for (std::size_t i = 0; i < src.size(); ++i) {
    events[i] = wm_move(src[i], dst[i], i + 1 < src.size());
  }
  return events;
}

EventList TruncateEvents(nb::handle block_ids, nb::handle row_numbers, std::uint64_t step) {
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  const Integers<std::int32_t> rows(row_numbers, "row");
  SameLength("row", rows.size(), blocks.size());
  EventList events(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    events[i] = wm_truncate(blocks[i], rows[rows.size() == 1 ? 0 : i], step);
  }
  return events;
}

EventList ResetEvents() {
  return {wm_reset()};
}

GivenEvents::GivenEvents(nb::handle events) {
  static PyObject* const event_dtype =
      nb::object(nb::module_::import_("waymark._types").attr("event_dtype")).release().ptr();
  if (memory_.Take(events, event_dtype, 1)) {
    data_ = static_cast<const wm_event*>(memory_.data());
    size_ = memory_.shape(0);
    return;
  }
  if (PyBytes_Check(events.ptr())) {
    const char* const data = PyBytes_AsString(events.ptr());
    const auto bytes = static_cast<std::size_t>(PyBytes_Size(events.ptr()));
    if (bytes % sizeof(wm_event) == 0 &&
        reinterpret_cast<std::uintptr_t>(data) % alignof(wm_event) == 0) {
      data_ = reinterpret_cast<const wm_event*>(data);
      size_ = bytes / sizeof(wm_event);
      return;
    }
  }
  // Other bytes, and arrays that are not in order.
  keep_ = nb::module_::import_("waymark._types").attr("event_bytes")(events);
  const Bytes bytes = ReadableBytes(keep_, "events");
  copied_.resize(bytes.size / sizeof(wm_event));
  std::memcpy(copied_.data(), bytes.data, copied_.size() * sizeof(wm_event));
  data_ = copied_.data();
  size_ = copied_.size();
}

}  // namespace waymark_python
