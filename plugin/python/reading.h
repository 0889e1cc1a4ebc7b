// What the parts of waymark._core that read and publish rows share: the Python classes of
// snapshots, documents and fetchers, and the arguments and results of reads.
#ifndef WAYMARK_PLUGIN_PYTHON_READING_H_
#define WAYMARK_PLUGIN_PYTHON_READING_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "plugin/python/core.h"

namespace waymark_python {

// The Python class of a snapshot. One thread at a time uses a wm_snapshot; others wait here,
// without the GIL.
struct Snapshot {
  wm_snapshot* snapshot = nullptr;  // one reference; null: released, or its rows were published
  std::int64_t first = 0;           // the range [first, last) stays when it is released;
  std::int64_t last = 0;
  wm_shape shape = {};              // so does the shape, but layer_ids may dangle then
  std::atomic<bool> ready = false;  // has been seen ready, which does not change any more
  std::mutex mutex;                 // held by the thread that uses or clears `snapshot`

  Snapshot() = default;
  ~Snapshot() { Api().snapshot_release(snapshot); }
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;
};

// A waymark.Snapshot (the package's class, not this module's) that owns the reference `owned`.
nb::object SnapshotObject(wm_snapshot* owned);

// Calls `call(wm_snapshot*)` when no other thread uses the snapshot, without the GIL if that is
// `long_call`, or if it has to wait. So `call` touches no Python object, raises nothing, and must
// expect null: the snapshot may be released while it waits (RaiseReleased afterwards).
template <typename Call>
void Use(Snapshot& self, bool long_call, Call call) {
  std::unique_lock lock(self.mutex, std::try_to_lock);
  const GilReleased released(long_call || !lock.owns_lock());
  if (!lock.owns_lock()) lock.lock();
  call(self.snapshot);
  lock.unlock();  // before the GIL is back
}

// The Python class of a document. Any thread.
struct Document {
  wm_document* document = nullptr;  // one reference
  wm_document_info info = {};       // of when it was opened; it does not change
  Bytes bytes;  // of the caller's buffer; kept as long as the document. Empty for a file.

  Document() = default;
  ~Document() { Api().wire->document_release(document); }
  Document(const Document&) = delete;
  Document& operator=(const Document&) = delete;
};

// The Python class of a fetcher. Any thread.
struct Fetcher {
  wm_fetcher* fetcher = nullptr;  // one reference; a fetch on a thread of its own has another
  // As Source::waits: a fetch runs on a thread of its own, so that Ctrl-C can end the call.
  bool waits = false;

  Fetcher() = default;
  ~Fetcher() { Api().wire->fetcher_release(fetcher); }
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;
};

[[noreturn]] inline void RaiseReleased() {
  Raise(WM_FAILED_PRECONDITION, "the snapshot has been released");
}

// wm_read_args of a call's arguments: rows [begin, end) of the sequence, and the numbers
// WM_LAYOUT_*, WM_ID_* and WM_FILL_*, which the library checks. `out_array` and `info_array` (None:
// no infos) are writable arrays in C order and host memory, of any type; they are written where
// they lie, and kept by this object. TypeError or InvalidArgumentError for other arrays. The infos
// are as many as whole wm_row_info fit.
struct ReadArgs {
  ReadArgs(std::int64_t begin, std::int64_t end, std::int32_t layout, std::int32_t id_type,
           std::int32_t fill, nb::handle out_array, nb::handle info_array)
      : out(WritableBytes(out_array, "out")) {
    args.struct_size = sizeof(args);
    args.begin = begin;
    args.end = end;
    args.layout = layout;
    args.id_type = id_type;
    args.fill = fill;
    args.out = out.data;
    args.out_bytes = out.size;
    if (info_array.is_none()) return;
    infos = WritableBytes(info_array, "infos");
    args.infos = reinterpret_cast<wm_row_info*>(infos.data);
    args.num_infos = infos.size / sizeof(wm_row_info);
  }
  wm_read_args args = {};
  Bytes out;
  Bytes infos;
};

// Sets `runs` to all runs. `write(runs, capacity, &count)` is snapshot_coverage, rows_coverage or
// document_coverage; it is called again while there is not room for all. Returns its status; `runs`
// is empty on an error. Needs no GIL.
template <typename Write>
wm_status Runs(std::vector<wm_coverage_run>& runs, Write write) {
  runs.resize(64);
  for (;;) {
    std::size_t count = 0;
    const wm_status status = write(runs.data(), runs.size(), &count);
    const bool all = status != WM_OK || count <= runs.size();
    runs.resize(count);
    if (all) return status;
  }
}

// WAYMARK_RUNS: [(begin, end, reason, version, provenance)], reason and provenance as numbers.
inline nb::list RunList(const std::vector<wm_coverage_run>& runs) {
  nb::list out;
  for (const wm_coverage_run& run : runs) {
    out.append(nb::make_tuple(run.begin, run.end, static_cast<int>(run.reason), run.version,
                              static_cast<int>(run.provenance)));
  }
  return out;
}

// The wm_chunk_code (how ids are written) of the tuple that the package passes: (codec, flags,
// low_bits, high_bits, crc_layers). The library checks the values.
#define WAYMARK_CODE "tuple[int, int, int, int, int]"
struct Code {
  explicit Code(const nb::tuple& given) {
    code.struct_size = sizeof(code);
    code.codec = nb::cast<std::int32_t>(given[0]);
    code.flags = nb::cast<std::uint32_t>(given[1]);
    code.low_bits = nb::cast<std::int32_t>(given[2]);
    code.high_bits = nb::cast<std::int32_t>(given[3]);
    code.crc_layers = nb::cast<std::int32_t>(given[4]);
  }
  wm_chunk_code code = {};
};

// New bytes of `size`, to be written before anything else sees them. In huge pages where they can
// be: page faults cost more than the writing. MemoryError.
nb::bytes NewBytes(std::size_t size);
// A copy of bytes that the library made, which are released.
nb::bytes BytesOf(wm_bytes* owned);
// The bytes that `make(wm_bytes** out, wm_message* why)`, called without the GIL, returns. Raises
// its error.
template <typename Make>
nb::bytes TakeBytes(Make make) {
  wm_bytes* made = nullptr;
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = make(&made, why.get());
  }
  Check(status, why);
  return BytesOf(made);
}

// The wm_part of rows [begin, end) of the sequence and captured layers [layer_begin, layer_end);
// layer_end 0: all from layer_begin on.
inline wm_part PartOf(std::int64_t begin, std::int64_t end, std::int32_t layer_begin,
                      std::int32_t layer_end) {
  wm_part part = {};
  part.struct_size = sizeof(part);
  part.begin = begin;
  part.end = end;
  part.layer_begin = layer_begin;
  part.layer_end = layer_end;
  return part;
}

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_READING_H_
