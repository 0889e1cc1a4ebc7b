// HugeAllocator: an allocator for tables with random access. Internal to blockstore.
//
// For std::vector and other containers. Stateless: any thread, all instances are equal.
#ifndef WAYMARK_BLOCKSTORE_HUGE_ALLOCATOR_H_
#define WAYMARK_BLOCKSTORE_HUGE_ALLOCATOR_H_

#include <cstddef>
#include <new>

#include "blockstore/huge_pages.h"

namespace waymark {

// For containers that are allocated once. Memory of half a huge page or more is aligned to one, and
// transparent huge pages are requested: with cold caches a step would otherwise spend most of its
// time on address translation. Throws std::bad_alloc, as containers expect.
template <class T>
class HugeAllocator {
 public:
  using value_type = T;

  HugeAllocator() = default;
  template <class U>
  HugeAllocator(const HugeAllocator<U>&) {}  // NOLINT: containers rebind

  // Memory for `count` objects, not constructed. Aligned to 64 bytes; from 1 MiB on to 2 MiB.
  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > (~std::size_t{0} - kHugePage) / sizeof(T)) throw std::bad_alloc();
    const std::size_t bytes = Bytes(count);
    void* const data = ::operator new (bytes, std::align_val_t{AlignOf(bytes)});
    AskForHugePages(data, bytes);
    return static_cast<T*>(data);
  }
  // `count`: as passed to allocate.
  void deallocate(T* data, std::size_t count) {
    ::operator delete (data, std::align_val_t{AlignOf(Bytes(count))});
  }

  template <class U>
  bool operator==(const HugeAllocator<U>&) const {
    return true;
  }

 private:
  // Rounded up to whole huge pages, from half of one on, so that the end is on a huge page too.
  static std::size_t Bytes(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    return bytes < kHugePage / 2 ? bytes : (bytes + kHugePage - 1) / kHugePage * kHugePage;
  }
  static std::size_t AlignOf(std::size_t bytes) { return bytes >= kHugePage ? kHugePage : 64; }
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_HUGE_ALLOCATOR_H_
