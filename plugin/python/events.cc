// Events of blocks, collected for a step; and batches as bytes.
#include "plugin/python/events.h"

#include <algorithm>
#include <cstring>

#include "plugin/python/module.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

// Keys of `count` blocks, in any form that Python programs have hashes in.
class Keys {
 public:
  Keys(nb::handle keys, std::size_t count) : count_(count) {
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

  [[nodiscard]] bool none() const { return keys_.empty() && count_ != 0; }
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

  std::size_t count_;
  std::vector<Key> keys_;
};

void SameLength(const char* name, std::size_t size, std::size_t blocks) {
  if (size == blocks || size == 1) return;
  Raise(WM_INVALID_ARGUMENT, std::string(name) + ": one, or one per block, got " +
                                 std::to_string(size) + " of " + std::to_string(blocks) +
                                 " blocks");
}

void Bind(Events& events, nb::handle block_ids, nb::handle key_list) {
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  const Keys keys(key_list, blocks.size());
  wm_event* const out = events.Add(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    out[i] = wm_bind(blocks[i], nullptr, 0);
    keys.Set(i, out[i]);
  }
}

template <wm_event (*make)(std::int32_t)>
void Simple(Events& events, nb::handle block_ids) {
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  wm_event* const out = events.Add(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i)
    out[i] = make(blocks[i]);
}

void Seal(Events& events, nb::handle block_ids, nb::handle key_list, std::uint64_t step) {
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  const Keys keys(key_list, blocks.size());
  if (keys.none()) Raise(WM_INVALID_ARGUMENT, "keys: a seal needs a key, got None");
  wm_event* const out = events.Add(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    out[i] = wm_seal(blocks[i], nullptr, 0, step);
    keys.Set(i, out[i]);
  }
}

void Copy(Events& events, nb::handle src_ids, nb::handle dst_ids, nb::handle row_counts) {
  const Integers<std::int32_t> src(src_ids, "src");
  const Integers<std::int32_t> dst(dst_ids, "dst");
  const Integers<std::int32_t> rows(row_counts, "rows");
  SameLength("src", src.size(), dst.size());
  SameLength("rows", rows.size(), dst.size());
  wm_event* const out = events.Add(dst.size());
  for (std::size_t i = 0; i < dst.size(); ++i) {
    out[i] = wm_copy(src[src.size() == 1 ? 0 : i], dst[i], rows[rows.size() == 1 ? 0 : i]);
  }
}

void Move(Events& events, nb::handle src_ids, nb::handle dst_ids) {
  const Integers<std::int32_t> src(src_ids, "src");
  const Integers<std::int32_t> dst(dst_ids, "dst");
  if (src.size() != dst.size()) {
    Raise(WM_INVALID_ARGUMENT, "src: as many as dst, got " + std::to_string(src.size()) + " and " +
                                   std::to_string(dst.size()));
  }
  wm_event* const out = events.Add(src.size());
  for (std::size_t i = 0; i < src.size(); ++i) {
    out[i] = wm_move(src[i], dst[i], i + 1 < src.size());
  }
}

void Truncate(Events& events, nb::handle block_ids, nb::handle row_numbers, std::uint64_t step) {
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  const Integers<std::int32_t> rows(row_numbers, "row");
  SameLength("row", rows.size(), blocks.size());
  wm_event* const out = events.Add(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    out[i] = wm_truncate(blocks[i], rows[rows.size() == 1 ? 0 : i], step);
  }
}

// uint8 [len, 56] over the events' memory, writable; the array keeps it.
nb::object BytesOf(const Events& events) {
  auto* const memory = new std::shared_ptr<wm_event[]>(events.memory);
  const nb::capsule owner(
      memory, [](void* p) noexcept { delete static_cast<std::shared_ptr<wm_event[]>*>(p); });
  auto* const data = reinterpret_cast<std::uint8_t*>(events.memory.get());
  return nb::cast(
      nb::ndarray<nb::numpy, std::uint8_t>(data, {events.size, sizeof(wm_event)}, owner),
      nb::rv_policy::reference);
}

nb::bytes SerializeBatch(std::uint64_t step, std::uint64_t version, nb::handle events,
                         nb::handle slots, bool device_slots) {
  const BatchArgs args(step, version, events, slots, device_slots);
  std::string bytes(Api().batch_size(&args.batch), '\0');
  std::size_t size = 0;
  Message why;
  wm_status status;
  {
    const GilReleased released(bytes.size() >= kReleaseBytes);
    status = Api().batch_serialize(&args.batch, reinterpret_cast<std::uint8_t*>(bytes.data()),
                                   bytes.size(), &size, why.get());
  }
  Check(status, why);
  return nb::bytes(bytes.data(), size);
}

// A batch that was parsed; its arrays keep it.
struct ParsedBatch {
  wm_batch* batch = nullptr;
  wm_step_batch view = {};
  std::size_t used = 0;
  ParsedBatch() = default;
  ~ParsedBatch() { Api().batch_release(batch); }
  ParsedBatch(const ParsedBatch&) = delete;
  ParsedBatch& operator=(const ParsedBatch&) = delete;
};

std::unique_ptr<ParsedBatch> ParseBatch(nb::handle buffer) {
  const Bytes bytes = ReadableBytes(buffer, "buffer");
  auto parsed = std::make_unique<ParsedBatch>();
  Message why;
  wm_status status;
  {
    const GilReleased released(bytes.size >= kReleaseBytes);
    status = Api().batch_parse(bytes.data, bytes.size, &parsed->used, &parsed->batch, why.get());
  }
  Check(status, why);
  parsed->view.struct_size = sizeof(parsed->view);
  const wm_status viewed = Api().batch_view(parsed->batch, &parsed->view);
  if (viewed != WM_OK) Raise(viewed, "batch_view");
  return parsed;
}

}  // namespace

wm_event* Events::Add(std::size_t count) {
  if (size + count > capacity) {
    const std::size_t wanted = std::max({size + count, 2 * capacity, std::size_t{16}});
    std::shared_ptr<wm_event[]> larger(new wm_event[wanted]());
    std::copy_n(memory.get(), size, larger.get());
    memory = std::move(larger);
    capacity = wanted;
  }
  wm_event* const first = memory.get() + size;
  size += count;
  return first;
}

BatchArgs::BatchArgs(std::uint64_t step, std::uint64_t version, nb::handle event_list,
                     nb::handle slot_list, bool device_slots)
    : slots(slot_list, "slots") {
  batch.struct_size = sizeof(batch);
  batch.flags = device_slots ? WM_BATCH_DEVICE_SLOTS : 0;
  batch.step = step;
  batch.version = version;
  batch.slots = slots.data();
  batch.num_slots = slots.size();
  if (event_list.is_none()) return;
  if (const Events* own = nullptr; nb::try_cast(event_list, own, false) && own != nullptr) {
    batch.events = own->memory.get();
    batch.num_events = own->size;
    return;
  }
  keep = nb::module_::import_("waymark._types").attr("event_bytes")(event_list);
  events = ReadableBytes(keep, "events");
  batch.events = reinterpret_cast<const wm_event*>(events.data);
  batch.num_events = events.size / sizeof(wm_event);
}

void BindEvents(nb::module_& module) {
  nb::class_<Events>(
      module, "Events",
      "Builds the events of an engine's blocks for a step, in order.\n\n"
      "Every method takes one block or many: an int, a list, or an integer array of one "
      "dimension (int32 without a copy). Reuse a builder: clear() keeps its memory. One "
      "thread at a time.")
      .def(
          "__init__",
          [](Events* self, std::size_t capacity) {
            new (self) Events;
            self->Add(capacity);
            self->size = 0;
          },
          "capacity"_a = 256, "Reserves memory for `capacity` events; it grows beyond them.")
      .def("bind", &Bind, "blocks"_a, "keys"_a = nb::none(),
           "`blocks` are allocated: new lives. With keys: attach the pages of those keys.\n\n"
           "keys: None; one key or a list of keys, each bytes (1 ... 32) or an int (8 bytes, "
           "little-endian), None for a block without a key; uint8 [blocks, key bytes]; or "
           "uint64 or int64 [blocks].")
      .def("retain", &Simple<wm_retain>, "blocks"_a, "Each block has one user more.")
      .def("release", &Simple<wm_release>, "blocks"_a,
           "Each block has one user less. Below zero: ignored and counted.")
      .def("seal", &Seal, "blocks"_a, "keys"_a.none(), "step"_a,
           "The blocks are full, or will be after `step`, and are found by their keys (as in "
           "bind).")
      .def("copy", &Copy, "src"_a, "dst"_a, "rows"_a = WM_ALL_ROWS,
           "Each block of dst gets rows [0, rows) of its block of src; rows: one count, or one per "
           "block; -1: all.")
      .def("move", &Move, "src"_a, "dst"_a,
           "Each block of dst takes over what its block of src is, all pairs at once: a swap is "
           "move([a, b], [b, a]).")
      .def("truncate", &Truncate, "blocks"_a, "row"_a, "step"_a,
           "Rows >= row of each block that steps <= step wrote are invalid; row: one, or one "
           "per block.")
      .def(
          "reset", [](Events& self) { *self.Add(1) = wm_reset(); },
          "The block table and the key index are emptied.")
      .def(
          "clear", [](Events& self) { self.size = 0; }, "Empties the builder, keeps its memory.")
      .def("__len__", [](const Events& self) { return self.size; })
      .def_prop_ro("_bytes", &BytesOf, nb::sig("def _bytes(self) -> " WAYMARK_ARRAY("uint8")),
                   "uint8 [len, 56], over the builder's own memory.");

  nb::class_<ParsedBatch>(module, "ParsedBatch", "A parsed batch.")
      .def_prop_ro("step", [](const ParsedBatch& self) { return self.view.step; })
      .def_prop_ro("version", [](const ParsedBatch& self) { return self.view.version; })
      .def_prop_ro(
          "device_slots",
          [](const ParsedBatch& self) { return (self.view.flags & WM_BATCH_DEVICE_SLOTS) != 0; })
      .def_prop_ro("used", [](const ParsedBatch& self) { return self.used; })
      .def_prop_ro(
          "events",
          [](nb::handle_t<ParsedBatch> self) {
            const auto& batch = nb::cast<const ParsedBatch&>(self);
            return Lend(reinterpret_cast<const std::uint8_t*>(batch.view.events),
                        {batch.view.num_events, sizeof(wm_event)}, self);
          },
          nb::sig("def events(self) -> " WAYMARK_ARRAY("uint8")))
      .def_prop_ro(
          "slots",
          [](nb::handle_t<ParsedBatch> self) {
            const auto& batch = nb::cast<const ParsedBatch&>(self);
            return Lend(batch.view.slots, {batch.view.num_slots}, self);
          },
          nb::sig("def slots(self) -> " WAYMARK_ARRAY("int64")));

  module.def("serialize_batch", &SerializeBatch, "step"_a, "version"_a, "events"_a = nb::none(),
             "slots"_a = nb::tuple(), "device_slots"_a = false,
             "A step's batch as bytes, for the process of the store.\n\n"
             "InvalidArgumentError for an invalid batch. Any thread.");
  module.def("parse_batch", &ParseBatch, "buffer"_a);
}

}  // namespace waymark_python
