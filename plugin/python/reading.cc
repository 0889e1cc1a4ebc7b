#include "plugin/python/reading.h"

#include <sys/mman.h>

namespace waymark_python {

nb::list RunList(const std::vector<waymark::CoverageRun>& runs) {
  nb::list out;
  for (const waymark::CoverageRun& run : runs) {
    out.append(nb::make_tuple(run.begin, run.end, static_cast<int>(run.reason), run.version,
                              static_cast<int>(run.provenance), static_cast<int>(run.cause)));
  }
  return out;
}

waymark::wire::ChunkCode CodeOf(const nb::tuple& given, const waymark::RoutingShape& shape) {
  using waymark::wire::ChunkCode;
  ChunkCode code;
  if (nb::cast<int>(given[0]) == static_cast<int>(waymark::wire::Codec::kSetCode)) {
    code = ChunkCode::SetCodeFor(shape);
  } else {
    code.ordered = !nb::cast<bool>(given[1]);
  }
  code.crc_layers = nb::cast<std::int32_t>(given[2]);
  Check(waymark::wire::WireShape{shape, code}.Validate());
  return code;
}

waymark::wire::DigestKey KeyOf(nb::handle given) {
  const Bytes key = ReadableBytes(given, "key");
  if (key.size == 0) return {};
  return Value(waymark::wire::DigestKey::Create("key", {key.data, key.size}));
}

nb::bytes NewBytes(std::size_t size) {
  PyObject* const bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (bytes == nullptr) throw nb::python_error();
#ifdef MADV_HUGEPAGE
  // One page fault for each small page would cost more than writing the bytes.
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(PyBytes_AsString(bytes));
  const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t last = (begin + size) / kHugePage * kHugePage;
  if (first < last) (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
  return nb::steal<nb::bytes>(bytes);
}

}  // namespace waymark_python
