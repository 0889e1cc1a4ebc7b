// PageMemory: one anonymous mapping for the rows of all pages. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_PAGE_MEMORY_H_
#define WAYMARK_BLOCKSTORE_STORE_PAGE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace waymark {

// Private, zero-filled, reserved when made and committed as it is touched. Transparent huge pages
// are asked for where the mapping is large enough to use them.
class PageMemory {
 public:
  // `bytes` > 0. ResourceExhausted naming them when the system refuses. Address space, not memory:
  // that is spent when a page is first written.
  [[nodiscard]] static absl::StatusOr<PageMemory> Map(std::size_t bytes);
  ~PageMemory();  // unmaps
  PageMemory(PageMemory&& other) noexcept;
  PageMemory& operator=(PageMemory&& other) noexcept;

  // Begins at a system page; stays where it is when the object moves. Who may write which bytes is
  // the store's rule (docs/architecture.md, Threads and the lock).
  [[nodiscard]] std::uint8_t* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }

  // Commits bytes [0, end) that are not committed yet, at most `step` bytes a call, so that landing
  // does not fault; true when it did something. The landing thread only.
  bool Prefault(std::size_t end, std::size_t step);

 private:
  PageMemory(std::uint8_t* data, std::size_t bytes) : data_(data), bytes_(bytes) {}

  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t faulted_ = 0;  // bytes committed by Prefault, from the front
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_PAGE_MEMORY_H_
