// What the parts of waymark._core that read and publish rows share.
#ifndef WAYMARK_PLUGIN_PYTHON_READING_H_
#define WAYMARK_PLUGIN_PYTHON_READING_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "plugin/python/core.h"

namespace waymark_python {

// One thread at a time uses a wm_snapshot; others wait here, without the GIL.
struct Snapshot {
  wm_snapshot* snapshot = nullptr;
  std::int64_t first = 0;
  std::int64_t last = 0;
  wm_shape shape = {};
  std::atomic<bool> ready = false;
  std::mutex mutex;

  Snapshot() = default;
  ~Snapshot() { Api().snapshot_release(snapshot); }
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;
};

// A waymark.Snapshot of a snapshot that it then owns.
nb::object SnapshotObject(wm_snapshot* owned);

// Calls `call(wm_snapshot*)` when no other thread uses the snapshot, without the GIL if that is
// `long_call`, or if it has to wait.
template <typename Call>
void Use(Snapshot& self, bool long_call, Call call) {
  std::unique_lock lock(self.mutex, std::try_to_lock);
  const GilReleased released(long_call || !lock.owns_lock());
  if (!lock.owns_lock()) lock.lock();
  call(self.snapshot);
  lock.unlock();  // before the GIL is back
}

// Any thread.
struct Document {
  wm_document* document = nullptr;
  wm_document_info info = {};
  Bytes bytes;  // of the caller's buffer; kept as long as the document

  Document() = default;
  ~Document() { Api().wire->document_release(document); }
  Document(const Document&) = delete;
  Document& operator=(const Document&) = delete;
};

// Any thread. `waits`: its source may be slow, so that a fetch releases the GIL.
struct Fetcher {
  wm_fetcher* fetcher = nullptr;
  bool waits = false;

  Fetcher() = default;
  ~Fetcher() { Api().wire->fetcher_release(fetcher); }
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;
};

[[noreturn]] inline void RaiseReleased() {
  Raise(WM_FAILED_PRECONDITION, "the snapshot has been released");
}

// wm_read_args of a call's arguments, which it keeps.
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

// `write` is snapshot_coverage or rows_coverage. Needs no GIL.
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

// [(begin, end, reason, version, provenance)].
inline nb::list RunList(const std::vector<wm_coverage_run>& runs) {
  nb::list out;
  for (const wm_coverage_run& run : runs) {
    out.append(nb::make_tuple(run.begin, run.end, static_cast<int>(run.reason), run.version,
                              static_cast<int>(run.provenance)));
  }
  return out;
}

// How ids are written, of (codec, flags, low_bits, high_bits, crc_layers).
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

// New bytes of `size`, to be written before anything else sees them.
nb::bytes NewBytes(std::size_t size);
// A copy of bytes that the library made, which are released.
nb::bytes BytesOf(wm_bytes* owned);
// `make(wm_bytes** out, wm_message* why)`, without the GIL, as bytes.
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

// Rows and layers of a call's arguments.
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
