// PageMemory: one anonymous mapping for the rows of all pages. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_PAGE_MEMORY_H_
#define WAYMARK_BLOCKSTORE_STORE_PAGE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace waymark {

// Bytes of memory that this process can have: the machine's, or less if its container has a limit.
// Any thread.
[[nodiscard]] std::uint64_t MemoryHere();

// Zero-filled. Address space is reserved at once; memory is committed when it is touched. Requests
// transparent huge pages if the mapping is large enough for them.
class PageMemory {
 public:
  // Reserves `bytes` > 0. ResourceExhausted naming the number of bytes if the system refuses.
  [[nodiscard]] static absl::StatusOr<PageMemory> Map(std::size_t bytes);

  // Aligned to a system page; does not change when the object is moved. For the threads that may
  // write see docs/internals/architecture.md, "Threads and the mutex".
  [[nodiscard]] std::uint8_t* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return data_.get_deleter().bytes; }

  // Commits up to `step` more bytes of [0, end), in whole pages of the system, so that landing does
  // not fault. Returns whether there were any. Landing thread only.
  bool Prefault(std::size_t end, std::size_t step);

 private:
  struct Unmap {
    void operator()(std::uint8_t* data) const;
    std::size_t bytes = 0;
  };
  PageMemory(std::uint8_t* data, std::size_t bytes) : data_(data, Unmap{bytes}) {}

  std::unique_ptr<std::uint8_t, Unmap> data_;
  std::size_t faulted_ = 0;  // bytes committed by Prefault, from the front
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_PAGE_MEMORY_H_
