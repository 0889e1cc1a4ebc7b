// ReservedArray: an array whose memory is reserved at once and touched as it grows. Internal to
// blockstore.
#ifndef WAYMARK_BLOCKSTORE_RESERVED_ARRAY_H_
#define WAYMARK_BLOCKSTORE_RESERVED_ARRAY_H_

#include <cstddef>
#include <memory>
#include <type_traits>

#include "blockstore/huge_allocator.h"

namespace waymark {

// Elements do not move. Grow is called by one thread at a time; other threads may use elements that
// they were told of after they were added.
template <class T>
class ReservedArray {
 public:
  static_assert(std::is_trivially_destructible_v<T>);

  // An empty array. Throws std::bad_alloc if the address space for `capacity` elements is refused.
  explicit ReservedArray(std::size_t capacity)
      : capacity_(capacity), data_(HugeAllocator<T>().allocate(capacity)) {}
  ~ReservedArray() { HugeAllocator<T>().deallocate(data_, capacity_); }
  ReservedArray(const ReservedArray&) = delete;
  ReservedArray& operator=(const ReservedArray&) = delete;

  // Adds elements with their default value until there are `size`; none if there are as many.
  // REQUIRES: size <= capacity. Does not allocate.
  void Grow(std::size_t size) {
    if (size <= size_) return;
    std::uninitialized_value_construct(data_ + size_, data_ + size);
    size_ = size;
  }
  [[nodiscard]] std::size_t size() const { return size_; }
  // REQUIRES: i < size().
  [[nodiscard]] T& operator[](std::size_t i) { return data_[i]; }
  [[nodiscard]] const T& operator[](std::size_t i) const { return data_[i]; }
  [[nodiscard]] T* begin() { return data_; }
  [[nodiscard]] T* end() { return data_ + size_; }

 private:
  const std::size_t capacity_;
  T* const data_;
  std::size_t size_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_RESERVED_ARRAY_H_
