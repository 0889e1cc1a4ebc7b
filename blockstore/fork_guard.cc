#include "blockstore/fork_guard.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/huge_pages.h"

namespace waymark {

// The list is locked across a fork, so that the child finds it complete.
struct ForkGuard::Handler {
  static Handler& Get() {
    static Handler handler;
    return handler;
  }
  Handler() {
    pthread_atfork([] { Get().mutex.lock(); }, [] { Get().mutex.unlock(); },
                   [] {
                     for (Page* page = std::exchange(Get().pages, nullptr); page != nullptr;) {
                       Page* const next = page->next;
                       std::memset(static_cast<void*>(page), 0, page->bytes);
                       page = next;
                     }
                     Get().mutex.unlock();
                   });
  }
  void Add(Page* page) {
    const std::lock_guard<std::mutex> lock(mutex);
    page->next = std::exchange(pages, page);
    page->listed = true;
  }
  void Remove(const Page* page) {
    const std::lock_guard<std::mutex> lock(mutex);
    Page** at = &pages;
    while (*at != page)
      at = &(*at)->next;
    *at = page->next;
  }

  std::mutex mutex;
  Page* pages = nullptr;
};

absl::StatusOr<ForkGuard> ForkGuard::Create(std::size_t bytes, bool kernel) {
  const std::size_t all = sizeof(Page) + bytes;
  void* const memory = MapMemory(all);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("fork guard: the system refused a mapping of ", all, " bytes"));
  }
  AskForHugePages(memory, all);
  Page* const page = new (memory) Page;
  page->bytes = all;
#ifdef MADV_WIPEONFORK
  kernel = kernel && madvise(memory, all, MADV_WIPEONFORK) == 0;
#else
  kernel = false;
#endif
  if (!kernel) Handler::Get().Add(page);
  page->alive.store(1, std::memory_order_relaxed);
  return ForkGuard(page);
}

ForkGuard::~ForkGuard() {
  // In a child the size is gone, and the mapping stays.
  if (page_ == nullptr || forked()) return;
  if (page_->listed) Handler::Get().Remove(page_);
  munmap(page_, page_->bytes);
}

}  // namespace waymark
