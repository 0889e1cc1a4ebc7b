// Arguments that are arrays of the caller, of any library.
#ifndef WAYMARK_PLUGIN_PYTHON_ARRAYS_H_
#define WAYMARK_PLUGIN_PYTHON_ARRAYS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/ids.h"
#include "blockstore/rows.h"
#include "plugin/python/core.h"

namespace waymark_python {

// An array of the caller: numpy, anything with the buffer protocol, DLPack (both kinds of
// capsules), or a tensor with data_ptr(), shape, stride() and dtype. Never copied; `owner` and
// `lent` keep it.
struct Array {
  static constexpr int kMaxDims = 4;
  const void* data = nullptr;
  int dims = 0;
  std::int64_t shape[kMaxDims] = {};
  std::int64_t strides[kMaxDims] = {};  // bytes
  char kind = 'i';  // 'i', 'u', 'f', 'B' (bfloat16), or another letter for other types
  int item_bytes = 0;
  bool on_host = true;     // the host can read it
  bool on_device = false;  // a CUDA device can
  int device = 0;
  nb::object owner;
  nb::ndarray<nb::ro> lent;

  [[nodiscard]] bool contiguous() const;  // C order
};
// TypeError naming `name` when `object` is none of those.
Array ArrayOf(nb::handle object, const char* name);

// The memory of a numpy array of exactly one type in C order: the cheapest way to it.
class NumpyMemory {
 public:
  NumpyMemory() = default;
  ~NumpyMemory() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  NumpyMemory(const NumpyMemory&) = delete;
  NumpyMemory& operator=(const NumpyMemory&) = delete;
  // Takes the memory of `object` and returns true, if it has `dtype`, `dims` dimensions, C order
  // and aligned items. May be called until it has returned true.
  [[nodiscard]] bool Take(nb::handle object, nb::handle dtype, int dims);
  [[nodiscard]] const void* data() const { return view_.buf; }
  [[nodiscard]] std::size_t shape(int i) const { return static_cast<std::size_t>(view_.shape[i]); }

 private:
  Py_buffer view_ = {};
};
// numpy's dtype of that name; never released.
nb::handle NumpyType(const char* name);
// The numpy dtypes of arguments that are taken without a copy.
struct NumpyTypes {
  nb::handle int32 = NumpyType("int32");
  nb::handle int64 = NumpyType("int64");
  nb::handle uint8 = NumpyType("uint8");
  nb::handle boolean = NumpyType("bool");
  static const NumpyTypes& Get();
};

// Integers as a C array of T: a contiguous numpy array of T as it is, everything else (lists,
// tuples, other integer types, one integer) converted. OutOfRange for what does not fit.
template <typename T>
class Integers {
 public:
  Integers(nb::handle object, const char* name);
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const T& operator[](std::size_t i) const { return data_[i]; }
  // Whether data() is the numpy array's own memory, and changes with it.
  [[nodiscard]] bool lent() const { return memory_.data() != nullptr; }

 private:
  const T* data_ = nullptr;
  std::size_t size_ = 0;
  NumpyMemory memory_;
  Array array_;
  std::vector<T> converted_;
};
extern template class Integers<std::int32_t>;
// Ids of blocks.
class Blocks : public Integers<std::int32_t> {
 public:
  using Integers::Integers;
  [[nodiscard]] std::span<const waymark::BlockId> ids() const {
    static_assert(sizeof(waymark::BlockId) == sizeof(std::int32_t));
    return {reinterpret_cast<const waymark::BlockId*>(data()), size()};
  }
};
extern template class Integers<std::int64_t>;

// C-order bytes of a writable or read-only array, of any type and shape.
struct Bytes {
  std::uint8_t* data = nullptr;
  std::uint64_t size = 0;
  nb::ndarray<> writable;
  Array array;
};
Bytes WritableBytes(nb::handle object, const char* name);
Bytes ReadableBytes(nb::handle object, const char* name);

// The cudaStream_t of an int, None (the default stream), or an object with cuda_stream or
// __cuda_stream__(). TypeError for anything else.
void* StreamOf(nb::handle stream);

// The type of an array's items as ids; TypeError naming `name` if they cannot be ids.
waymark::IdType ItemType(const Array& array, const char* name);

// A read-only numpy array of T over memory that `owner` keeps.
template <typename T>
nb::object Lend(const T* data, std::initializer_list<std::size_t> shape, nb::handle owner) {
  static const T kNothing = {};
  return nb::cast(nb::ndarray<nb::numpy, const T>(data != nullptr ? data : &kNothing, shape, owner),
                  nb::rv_policy::reference);
}

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_ARRAYS_H_
