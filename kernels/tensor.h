// Tensor: a pointer with its type, shape, strides and device. Plain data, no ownership.
//
// A framework's tensor, a DLPack tensor or a raw pointer is described as a Tensor before a kernel
// is called. Kernels compute with raw pointers; the Check function of each kernel checks the
// Tensors first, so that a wrong argument is an error with a name and never a write to wrong
// memory. It can check what a Tensor contains, not whether `data` has that many elements: the
// caller guarantees this.
//
// Nothing here allocates or throws; any thread may make and copy Tensors.
#ifndef WAYMARK_KERNELS_TENSOR_H_
#define WAYMARK_KERNELS_TENSOR_H_

#include <cstddef>
#include <cstdint>

namespace waymark::kernels {

// The type of the elements of a tensor. Little-endian. The C ABI has the same numbers, which do
// not change.
enum class DType : std::uint8_t {
  kFloat32,   // IEEE binary32
  kBfloat16,  // the upper 16 bits of a float32
  kFloat16,   // IEEE binary16
  kUint8,     // flags (RoutingTensors::routed)
  kInt16,     // recorded expert ids; -1: not written
  kInt32,     // expert ids that the engine uses
  kInt64,     // accepted by no routing tensor
};
// Bytes of one element: 1, 2, 4 or 8; 0 for a number that is no type.
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

// The device whose memory holds a tensor. A value.
struct MemoryDevice {
  // kHost: memory that the CPU reads, pinned or not. kCuda: memory of a CUDA device.
  enum class Kind : std::uint8_t { kHost, kCuda };
  Kind kind = Kind::kHost;   // host memory by default
  std::int32_t ordinal = 0;  // CUDA's number of the device; 0 for the host

  // Host memory.
  [[nodiscard]] static constexpr MemoryDevice Host() { return {}; }
  // The CUDA device with this number, which is not checked here.
  [[nodiscard]] static constexpr MemoryDevice Cuda(std::int32_t ordinal) {
    return {Kind::kCuda, ordinal};
  }
  // Equal if both are the host, or both are the same CUDA device.
  friend constexpr bool operator==(MemoryDevice a, MemoryDevice b) {
    return a.kind == b.kind && a.ordinal == b.ordinal;
  }
};

// Element (i, j) lies at data + (i * stride[0] + j * stride[1]) elements; in a tensor of rank 1,
// element i lies at data + i * stride[0]. A Tensor with null data is an argument that is not given.
// A kernel may allow fewer layouts: routing needs adjacent elements in a row, and rows that do not
// overlap (RoutingRule::kNotContiguous, kRowStride).
//
// The caller keeps the memory valid during the call, and on a device until the launch has run.
struct Tensor {
  void* data = nullptr;             // address of element (0, 0); memory of the caller
  DType dtype = DType::kFloat32;    // type of an element
  std::int32_t rank = 0;            // 1 or 2 axes
  std::int64_t shape[2] = {0, 0};   // elements along each axis
  std::int64_t stride[2] = {0, 0};  // in elements, not bytes
  MemoryDevice device;              // which device `data` points to

  // Whether the argument is given.
  [[nodiscard]] bool given() const { return data != nullptr; }

  // A matrix [rows, columns] with adjacent columns. `row_stride`: elements from one row to the
  // next; 0 stands for `columns`, a matrix without gaps. `data` is const so that inputs can be
  // passed; kernels write to outputs only.
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
  // A vector [size] with adjacent elements; `data` as for Matrix.
  [[nodiscard]] static Tensor Vector(const void* data, DType dtype, std::int64_t size,
                                     MemoryDevice device = MemoryDevice::Host()) {
    return {const_cast<void*>(data), dtype, 1, {size, 0}, {1, 0}, device};
  }
};

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_TENSOR_H_
