// CopiedPage: the rows of a page in memory of their own, so that a snapshot that is released late
// keeps no page. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_COPIED_PAGE_H_
#define WAYMARK_BLOCKSTORE_STORE_COPIED_PAGE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "blockstore/store/stamp.h"

namespace waymark {

// Constant once it is made. The snapshots that had the page share it.
struct CopiedPage {
  // Adds its bytes to `bytes_of_all` as long as it exists. Throws std::bad_alloc.
  CopiedPage(std::vector<Stamp> row_stamps, std::vector<std::uint8_t> row_ids,
             std::atomic<std::uint64_t>& bytes_of_all)
      : stamps(std::move(row_stamps)), ids(std::move(row_ids)), total(bytes_of_all) {
    total.fetch_add(bytes(), std::memory_order_relaxed);
  }
  ~CopiedPage() { total.fetch_sub(bytes(), std::memory_order_relaxed); }
  CopiedPage(const CopiedPage&) = delete;
  CopiedPage& operator=(const CopiedPage&) = delete;

  [[nodiscard]] std::size_t bytes() const {
    return sizeof(*this) + stamps.capacity() * sizeof(Stamp) + ids.capacity();
  }
  // The ids of a row, or where they would be if it were valid. REQUIRES: row <= stamps.size().
  [[nodiscard]] const std::uint8_t* row(std::size_t row, std::size_t row_bytes) const {
    const auto before = std::count_if(stamps.begin(), stamps.begin() + static_cast<long>(row),
                                      [](Stamp stamp) { return stamp.valid(); });
    return ids.data() + static_cast<std::size_t>(before) * row_bytes;
  }

  const std::vector<Stamp> stamps;      // of rows [0, stamps.size()): those that snapshots see
  const std::vector<std::uint8_t> ids;  // of the valid ones of them, one after the other
  std::atomic<std::uint64_t>& total;
};

// The copies of a snapshot's pages, one for each page. Set by the landing thread under the store's
// mutex, while readers look.
class CopiedPages {
 public:
  explicit CopiedPages(std::size_t pages) : pages_(pages) {}

  // The copy of page `i`; null if it has none yet. Readers that
  // SnapshotState::readers counts.
  [[nodiscard]] const CopiedPage* Find(std::size_t i) const {
    return pages_[i].visible.load(std::memory_order_seq_cst);
  }
  // From now on readers find the copy. REQUIRES: page `i` has none.
  void Publish(std::size_t i, std::shared_ptr<const CopiedPage> copy) {
    pages_[i].owned = std::move(copy);
    pages_[i].visible.store(pages_[i].owned.get(), std::memory_order_seq_cst);
  }
  // Whether the snapshot has given the page back to the store.
  [[nodiscard]] bool returned(std::size_t i) const { return pages_[i].returned; }
  void SetReturned(std::size_t i) { pages_[i].returned = true; }

 private:
  struct Page {
    std::atomic<const CopiedPage*> visible{nullptr};
    std::shared_ptr<const CopiedPage> owned;
    bool returned = false;  // guarded by the store's mutex
  };
  std::vector<Page> pages_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_COPIED_PAGE_H_
