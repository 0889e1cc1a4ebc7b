// What the bindings of rows share: the Python classes of rows, documents and fetchers, and the
// arguments and results of reads.
#ifndef WAYMARK_PLUGIN_PYTHON_READING_H_
#define WAYMARK_PLUGIN_PYTHON_READING_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "blockstore/rows.h"
#include "blockstore/wire/digest_key.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/fetcher.h"
#include "blockstore/wire/file_source.h"
#include "blockstore/wire/page_source.h"
#include "blockstore/wire/shape_block.h"
#include "plugin/python/arrays.h"
#include "plugin/python/core.h"

namespace waymark_python {

#define WAYMARK_RUNS "list[tuple[int, int, int, int, int]]"
#define WAYMARK_CODE "tuple[int, bool, int]"

// The Python class of rows that were read. Any thread.
struct Rows {
  explicit Rows(std::shared_ptr<const waymark::Rows> of) : rows(std::move(of)) {}
  explicit Rows(waymark::Rows of) : Rows(std::make_shared<const waymark::Rows>(std::move(of))) {}
  const std::shared_ptr<const waymark::Rows> rows;
};

// The Python class of a document. Any thread.
struct Document {
  Bytes bytes;  // of the caller's buffer, or
  std::shared_ptr<const waymark::wire::FileBytes> file;
  waymark::wire::Document document;
};

// The Python class of a page source.
struct Source {
  std::shared_ptr<waymark::wire::PageSource> source;
  bool waits = false;  // for another process, or for Python
};

// The Python class of a fetcher. Any thread.
struct Fetcher {
  std::shared_ptr<waymark::wire::PageSource> source;
  std::shared_ptr<waymark::wire::Fetcher> fetcher;  // a fetch on a thread of its own has it, too
  // As Source::waits: a fetch runs on a thread of its own, so that Ctrl-C can end the call.
  bool waits = false;
};

// The ReadSpec of numbers that the package checked (waymark/_types.py).
inline waymark::ReadSpec SpecOf(int layout, int id_type, int fill) {
  return {static_cast<waymark::Layout>(layout), static_cast<waymark::IdType>(id_type),
          static_cast<waymark::Fill>(fill)};
}
inline std::span<std::uint8_t> SpanOf(const Bytes& bytes) {
  return {bytes.data, static_cast<std::size_t>(bytes.size)};
}
inline std::span<waymark::RowInfo> InfosOf(const Bytes& bytes) {
  return {reinterpret_cast<waymark::RowInfo*>(bytes.data), bytes.size / sizeof(waymark::RowInfo)};
}

// WAYMARK_RUNS: [(begin, end, reason, version, provenance, cause)], all of them numbers.
nb::list RunList(const std::vector<waymark::CoverageRun>& runs);

// How ids of `shape` are written, of the tuple that the package passes: (codec, sorted,
// crc_layers). InvalidArgumentError for what the shape does not allow.
waymark::wire::ChunkCode CodeOf(const nb::tuple& given, const waymark::RoutingShape& shape);
waymark::wire::DigestKey KeyOf(nb::handle given);
// The tuple that waymark.Tier makes, or None: no tier.
waymark::wire::TierOptions TierOptionsOf(nb::handle given);

// New bytes of `size`, to be written before anything else sees them. In huge pages where they can
// be: page faults cost more than the writing. MemoryError.
nb::bytes NewBytes(std::size_t size);
inline nb::bytes BytesOf(std::span<const std::uint8_t> bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

// A counter of a struct `Stats`, in an X macro of its counters.
template <class Stats>
struct CounterOf {
  const char* name;
  const char* meaning;
  std::uint64_t Stats::*counter;
};
#define WAYMARK_COUNTER_OF(name, meaning) {#name, meaning, &Stats::name},

// Defines the class of a struct of counters.
template <class Stats>
nb::class_<Stats> BindCounters(nb::module_& module, const char* name, const char* meaning,
                               std::vector<CounterOf<Stats>> counters) {
  nb::class_<Stats> stats(module, name, meaning);
  for (const CounterOf<Stats>& one : counters)
    stats.def_ro(one.name, one.counter, one.meaning);
  stats.def(
      "as_dict",
      [counters](const Stats& self) {
        nb::dict out;
        for (const CounterOf<Stats>& one : counters)
          out[one.name] = self.*one.counter;
        return out;
      },
      nb::sig("def as_dict(self) -> dict[str, int]"), "The counters by name.");
  return stats;
}

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_READING_H_
