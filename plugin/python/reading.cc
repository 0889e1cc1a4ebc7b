#include "plugin/python/reading.h"

#include <sys/mman.h>

#include <cstring>

namespace waymark_python {

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

nb::bytes BytesOf(wm_bytes* owned) {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  Api().wire->bytes_view(owned, &data, &size);
  try {
    nb::bytes bytes = NewBytes(size);
    if (size != 0) std::memcpy(PyBytes_AsString(bytes.ptr()), data, size);
    Api().wire->bytes_release(owned);
    return bytes;
  } catch (...) {
    Api().wire->bytes_release(owned);
    throw;
  }
}

}  // namespace waymark_python
