// StoreCore: what a store and its snapshots share, so that a snapshot may outlive the store.
// Internal to blockstore.
//
// Readers use it without the store's lock: what changes here is atomic, or written by one thread
// only.
#ifndef WAYMARK_BLOCKSTORE_STORE_STORE_CORE_H_
#define WAYMARK_BLOCKSTORE_STORE_STORE_CORE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "blockstore/huge_allocator.h"
#include "blockstore/shape.h"
#include "blockstore/store/flight_sink.h"
#include "blockstore/store/page_memory.h"
#include "blockstore/store/page_pool.h"
#include "blockstore/store/stamp.h"
#include "concurrentqueue.h"

namespace waymark {

// One page of a snapshot's range.
struct SnapshotPart {
  PageIndex page = kNoPage;
  Reason reason = Reason::kNeverWritten;  // of its rows, where there is no page
  bool by_key = false;
  bool copied = false;  // rows of the page came from another page
};

// The pinned pages of one snapshot. Taken from and given back to the store; written by the engine's
// thread before the snapshot is handed out, constant until it is given back.
struct SnapshotState {
  std::shared_ptr<const StepBase> base;
  std::int64_t first = 0;  // rows [first, last) of the sequence
  std::int64_t last = 0;
  std::vector<SnapshotPart> parts;  // parts[0] holds row first / page_tokens * page_tokens
  std::uint64_t upto = 0;           // readable when every step <= upto has ended
  std::uint64_t copies = 0;         // and this many page copies are done
  std::uint64_t read_id = 0;        // of this snapshot in a recorded flight; counts up from 1
};

// Held by the store and by every live snapshot.
struct StoreCore {
  // For `pages` pages of this shape, whose bytes are `page_memory`. All stamps: never written.
  StoreCore(const RoutingShape& routing_shape, PageMemory page_memory, std::uint32_t pages)
      : id(NextId()),
        shape(routing_shape),
        page_tokens(static_cast<std::uint32_t>(routing_shape.page_tokens)),
        row_bytes(routing_shape.row_bytes()),
        memory(std::move(page_memory)),
        stamps(std::size_t{pages} * page_tokens) {}

  // 1, 2, ...: no two stores of a process have the same.
  static std::uint64_t NextId() {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  const std::uint64_t id;
  const RoutingShape shape;
  const std::uint32_t page_tokens;
  const std::size_t row_bytes;
  PageMemory memory;
  mutable std::vector<StampCell, HugeAllocator<StampCell>> stamps;

  // Word and bytes of one row. REQUIRES: a page of the pool, row < page_tokens. Neither is checked.
  [[nodiscard]] StampCell& stamp(PageIndex page, std::uint32_t row) const {
    return stamps[std::size_t{page} * page_tokens + row];
  }
  [[nodiscard]] std::uint8_t* row(PageIndex page, std::uint32_t row) const {
    return memory.data() + (std::size_t{page} * page_tokens + row) * row_bytes;
  }

  // No step has this number, so that it can say that none is in flight.
  static constexpr std::uint64_t kNoStep = ~std::uint64_t{0};
  // Progress that snapshots wait for: the oldest step in flight (kNoStep: none), page copies done.
  // Sequentially consistent together with `waiters`: either the waiter sees the progress or the
  // progress sees the waiter.
  std::atomic<std::uint64_t> oldest_in_flight{kNoStep};
  std::atomic<std::uint64_t> copies_done{0};
  // Whether every step <= upto has ended and so many copies are done. Any thread.
  [[nodiscard]] bool Reached(std::uint64_t upto, std::uint64_t copies) const {
    return oldest_in_flight.load(std::memory_order_seq_cst) > upto &&
           copies_done.load(std::memory_order_seq_cst) >= copies;
  }

  // Readers that wait; progress wakes them only when there are some.
  std::mutex wait_mutex;
  std::condition_variable wait_cv;
  std::atomic<int> waiters{0};
  // After every change of the progress above. Takes a lock only when somebody waits.
  void NotifyProgress() {
    if (waiters.load(std::memory_order_seq_cst) == 0) return;
    const std::lock_guard<std::mutex> lock(wait_mutex);
    wait_cv.notify_all();
  }
  // Waits until Reached; false when `timeout` has passed first. Reader threads.
  bool WaitReached(std::uint64_t upto, std::uint64_t copies, std::chrono::nanoseconds timeout) {
    if (Reached(upto, copies)) return true;
    waiters.fetch_add(1, std::memory_order_seq_cst);
    std::unique_lock<std::mutex> lock(wait_mutex);
    const bool reached = wait_cv.wait_for(lock, timeout, [&] { return Reached(upto, copies); });
    waiters.fetch_sub(1, std::memory_order_relaxed);
    return reached;
  }

  // Snapshots on their way back. The states are owned by `states`, which the engine's thread
  // extends.
  moodycamel::ConcurrentQueue<SnapshotState*> given_back;
  std::vector<std::unique_ptr<SnapshotState>> states;

  FlightSink* flight = nullptr;  // records the store; the engine's. Null: nobody does.
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STORE_CORE_H_
