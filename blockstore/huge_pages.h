// AskForHugePages, ResizeForWriting: big memory in few page faults. Internal to Waymark: the C ABI
// and the Python module use it too, no installed header does.
#ifndef WAYMARK_BLOCKSTORE_HUGE_PAGES_H_
#define WAYMARK_BLOCKSTORE_HUGE_PAGES_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace waymark {

// Of x86-64, and of arm64 with pages of 4 KiB.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Asks for transparent huge pages wherever whole ones fit into [data, data + bytes), of memory that
// malloc or mmap gave. A hint: it touches nothing, and systems without them ignore it. Any thread.
inline void AskForHugePages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::size_t skipped = (kHugePage - begin % kHugePage) % kHugePage;
  if (bytes < skipped + kHugePage) return;
  (void)madvise(static_cast<char*>(data) + skipped, (bytes - skipped) / kHugePage * kHugePage,
                MADV_HUGEPAGE);
#endif
}

// Makes `bytes` `size` long, for bytes that are going to be written: what an empty vector gets is
// zeros, what another one held may be lost. Memory that is there is used again; new memory asks for
// huge pages, since a fault for each small one costs more, together, than writing all of them.
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
