// MapMemory, AskForHugePages, ResizeForWriting: large memory with few page faults. Internal to
// Waymark: the C ABI and the Python module use it too, but no installed header does.
#ifndef WAYMARK_BLOCKSTORE_HUGE_PAGES_H_
#define WAYMARK_BLOCKSTORE_HUGE_PAGES_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
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

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_HUGE_PAGES_H_
