#include "blockstore/store/page_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "blockstore/huge_pages.h"

namespace waymark {
namespace {
constexpr std::size_t kSmallPage = 4096;
}  // namespace

std::uint64_t MemoryHere() {
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  std::uint64_t bytes = ~std::uint64_t{0}, limit = 0;
  if (pages > 0 && page_bytes > 0)
    bytes = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
  for (const char* const file :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (std::ifstream(file) >> limit) bytes = std::min(bytes, limit);
  }
  return bytes;
}

absl::StatusOr<PageMemory> PageMemory::Map(std::size_t bytes) {
  void* const data = MapMemory(bytes);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("page memory: the system refused a mapping of ", bytes, " bytes"));
  }
  if (bytes >= 4 * kHugePage) AskForHugePages(data, bytes);
  return PageMemory(static_cast<std::uint8_t*>(data), bytes);
}

void PageMemory::Unmap::operator()(std::uint8_t* data) const {
  munmap(data, bytes);
}

bool PageMemory::Prefault(std::size_t end, std::size_t step) {
  end = std::min((end + kSmallPage - 1) / kSmallPage * kSmallPage, size());
  if (faulted_ >= end) return false;
  const std::size_t begin = faulted_;
  faulted_ = std::min((begin + step + kSmallPage - 1) / kSmallPage * kSmallPage, end);
#ifdef MADV_POPULATE_WRITE
  if (madvise(data() + begin, faulted_ - begin, MADV_POPULATE_WRITE) == 0) return true;
#endif
  // Older kernels have no such call: touches each page by writing back the byte that is there. Only
  // the landing thread writes pages, and no thread reads pages that were never used.
  for (std::size_t at = begin; at < faulted_; at += kSmallPage) {
    volatile std::uint8_t* byte = data() + at;
    *byte = *byte;
  }
  return true;
}

}  // namespace waymark
