// MapMemory, AskForHugePages, ResizeForWriting, HugeAllocator, ReservedArray: large memory with few
// page faults. Internal to Waymark: the C ABI and the Python module use it too, but no installed
// header does.
#ifndef WAYMARK_BLOCKSTORE_HUGE_PAGES_H_
#define WAYMARK_BLOCKSTORE_HUGE_PAGES_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

namespace waymark {

// On x86-64, and on arm64 with pages of 4 KiB.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Requests transparent huge pages for the part of [data, data + bytes) into which whole ones fit.
// The memory is from malloc or mmap; it is not touched. A hint, which some systems ignore. Any
// thread.
inline void AskForHugePages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::size_t skipped = (kHugePage - begin % kHugePage) % kHugePage;
  if (bytes < skipped + kHugePage) return;
  (void)madvise(static_cast<char*>(data) + skipped, (bytes - skipped) / kHugePage * kHugePage,
                MADV_HUGEPAGE);
#endif
}

// Maps at least `bytes` of zeroed memory, which is committed when it is touched: aligned to
// kHugePage if a huge page fits into it, so that none is lost at its beginning. Null if the system
// refuses. munmap(memory, bytes) unmaps it. Any thread.
inline void* MapMemory(std::size_t bytes) {
  constexpr std::size_t kSmallPage = 4096;
  const std::size_t whole = (bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
  const std::size_t spare = whole >= kHugePage ? kHugePage : 0;
  void* const memory = mmap(nullptr, whole + spare, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (spare == 0) return memory;
  auto* const begin = static_cast<char*>(memory);
  const std::size_t skipped =
      (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  if (skipped > 0) munmap(begin, skipped);
  if (skipped < spare) munmap(begin + skipped + whole, spare - skipped);
  return begin + skipped;
}

// Resizes `bytes` to `size`, for a caller that overwrites all of them: old content may be lost.
// Existing memory is reused. For new memory huge pages are requested, because faults of small pages
// take longer than writing them.
inline void ResizeForWriting(std::size_t size, std::vector<std::uint8_t>& bytes) {
  if (size > bytes.capacity()) {
    std::vector<std::uint8_t>().swap(bytes);
    bytes.reserve(size);
    AskForHugePages(bytes.data(), size);
  }
  bytes.resize(size);
}

// An allocator for tables with random access, in containers that are allocated once. Stateless: any
// thread, all instances are equal. Memory of half a huge page or more is aligned to one, and
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

// An array whose memory is reserved at once and touched as it grows. Elements do not move. Grow is
// called by one thread at a time; other threads may use elements that they were told of after they
// were added.
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

 private:
  const std::size_t capacity_;
  T* const data_;
  std::size_t size_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_HUGE_PAGES_H_
