// Tensor: a pointer with its type, shape, strides and device. Plain data, no ownership.
//
// A framework's tensor, a DLPack tensor or a raw pointer is described as a Tensor before a kernel
// is called. Kernels compute with raw pointers; the Check function of each kernel looks at the
// Tensors first, so that a wrong argument is an error with a name and never a write to wrong
// memory.
#ifndef WAYMARK_KERNELS_TENSOR_H_
#define WAYMARK_KERNELS_TENSOR_H_

#include <cstddef>
#include <cstdint>

namespace waymark::kernels {

// Element types. Little-endian; bfloat16 is the upper half of a float32.
enum class DType : std::uint8_t {
  kFloat32,
  kBfloat16,
  kFloat16,
  kUint8,
  kInt16,
  kInt32,
  kInt64,
};
// Bytes of one element.
[[nodiscard]] constexpr std::size_t DTypeBytes(DType type) {
  switch (type) {
    case DType::kUint8:
      return 1;
    case DType::kBfloat16:
    case DType::kFloat16:
    case DType::kInt16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kInt64:
      return 8;
  }
  return 0;
}
// "float32", "bfloat16", ...; "unknown type" for a number that is no type. Static storage.
[[nodiscard]] const char* DTypeName(DType type);

// Where memory lies.
struct MemoryDevice {
  enum class Kind : std::uint8_t { kHost, kCuda };
  Kind kind = Kind::kHost;
  std::int32_t ordinal = 0;  // CUDA's number of the device; 0 for the host

  [[nodiscard]] static constexpr MemoryDevice Host() { return {}; }
  [[nodiscard]] static constexpr MemoryDevice Cuda(std::int32_t ordinal) {
    return {Kind::kCuda, ordinal};
  }
  friend constexpr bool operator==(MemoryDevice a, MemoryDevice b) {
    return a.kind == b.kind && a.ordinal == b.ordinal;
  }
};

// Element (i, j) lies at data + (i * stride[0] + j * stride[1]) elements; in a tensor of rank 1,
// element i lies at data + i * stride[0]. A Tensor with null data is an argument that is not given.
struct Tensor {
  void* data = nullptr;             // address of element (0, 0); memory of the caller
  DType dtype = DType::kFloat32;    // type of an element
  std::int32_t rank = 0;            // 1 or 2 axes
  std::int64_t shape[2] = {0, 0};   // elements along each axis
  std::int64_t stride[2] = {0, 0};  // in elements, not bytes
  MemoryDevice device;

  [[nodiscard]] bool given() const { return data != nullptr; }

  // [rows, columns] with adjacent columns; `row_stride` elements from a row to the next, 0:
  // `columns`.
  [[nodiscard]] static Tensor Matrix(const void* data, DType dtype, std::int64_t rows,
                                     std::int64_t columns,
                                     MemoryDevice device = MemoryDevice::Host(),
                                     std::int64_t row_stride = 0) {
    return {const_cast<void*>(data),
            dtype,
            2,
            {rows, columns},
            {row_stride == 0 ? columns : row_stride, 1},
            device};
  }
  // [size], with adjacent elements.
  [[nodiscard]] static Tensor Vector(const void* data, DType dtype, std::int64_t size,
                                     MemoryDevice device = MemoryDevice::Host()) {
    return {const_cast<void*>(data), dtype, 1, {size, 0}, {1, 0}, device};
  }
};

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_TENSOR_H_
