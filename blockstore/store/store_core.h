// StoreCore: the state that a store shares with its snapshots, so that a snapshot can outlive the
// store. Internal to blockstore.
//
// Readers use it without the store's lock: everything that changes is atomic or written by one
// thread only.
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

#include "blockstore/fork_guard.h"
#include "blockstore/huge_pages.h"
#include "blockstore/shape.h"
#include "blockstore/store/block_table.h"
#include "blockstore/store/flight_sink.h"
#include "blockstore/store/page_memory.h"
#include "blockstore/store/page_pool.h"
#include "blockstore/store/stamp.h"
#include "blockstore/store/step_rows.h"
#include "blockstore/store/store_failure.h"
#include "blockstore/store/ticket_state.h"
#include "blockstore/store/versions.h"
#include "blockstore/timeout.h"
#include "concurrentqueue.h"

namespace waymark {

// One page of a snapshot's range.
struct SnapshotPage {
  PageIndex page = kNoPage;
  Why why;  // if there is no page: these three as in Entry
  bool by_key : 1 = false;
  std::uint16_t reason_rows = Entry::kAllRows;
  LostRows lost = {};
};
static_assert(sizeof(SnapshotPage) == 12);

// The ticket of one snapshot. The engine's thread takes it and sets the range; the thread that
// applies the snapshot's record sets the rest. That is then constant until the snapshot is released
// and the store reuses it.
struct SnapshotState {
  TicketState ticket;
  SnapshotState* next_free = nullptr;  // of StoreCore::free_tickets
  std::int64_t first = 0;              // rows [first, last) of the sequence
  std::int64_t last = 0;
  std::vector<SnapshotPage> pages;  // pages[0] begins at row first / page_tokens * page_tokens
  // With StoreOptions::seal_sink: the birth of the KV behind each page. Its step is kSinceLastStep
  // if the last step before the snapshot is older, and for null blocks.
  std::vector<Birth> births;
  static constexpr std::uint64_t kSinceLastStep = ~std::uint64_t{0} >> 1;
  std::uint64_t last_step = 0;     // SnapshotOwner::last_step
  std::uint64_t read_id = 0;       // number of the snapshot in a flight, from 1; 0: no record of
                                   // it was applied, and it holds no page
  Cause lost = Cause::kNone;       // why it has no pages, if that is why its rows are missing
  SnapshotState* older = nullptr;  // of the live ones, from its application to its return
  SnapshotState* newer = nullptr;
};

// Owned by the store and every live snapshot.
struct StoreCore {
  // `page_memory` has room for `pages` pages of this shape and `spare` more. All rows are never
  // written. The stamps of spare pages are not touched.
  StoreCore(const RoutingShape& routing_shape, PageMemory page_memory, std::uint32_t pages,
            std::uint32_t spare = 0)
      : shape(routing_shape),
        page_tokens(static_cast<std::uint32_t>(routing_shape.page_tokens)),
        row_bytes(routing_shape.row_bytes()),
        memory(std::move(page_memory)),
        stamps((std::size_t{pages} + spare) * page_tokens) {
    stamps.Grow(std::size_t{pages} * page_tokens);
  }

  const RoutingShape shape;
  const std::uint32_t page_tokens;
  const std::size_t row_bytes;
  PageMemory memory;
  mutable ReservedArray<StampCell> stamps;
  Versions versions;

  // Stamp and bytes of one row. REQUIRES (not checked): a page of the pool, row < page_tokens.
  [[nodiscard]] StampCell& stamp(PageIndex page, std::uint32_t row) const {
    return stamps[std::size_t{page} * page_tokens + row];
  }
  [[nodiscard]] std::uint8_t* row(PageIndex page, std::uint32_t row) const {
    return memory.data() + (std::size_t{page} * page_tokens + row) * row_bytes;
  }

  // Number of waiting readers; they are woken only if there are any. Changed and looked at by
  // read-modify-writes: of two the later one sees what was before the other, so either the waiting
  // thread sees the progress, or the thread that makes it sees the waiting one.
  std::mutex wait_mutex;
  std::condition_variable wait_cv;
  std::atomic<int> waiters{0};
  // Called after records were applied. Takes a lock only if a reader waits.
  void NotifyProgress() {
    if (waiters.fetch_add(0, std::memory_order_acq_rel) == 0) return;
    const std::lock_guard<std::mutex> lock(wait_mutex);
    wait_cv.notify_all();
  }
  // Waits until `done()`, which depends on what was applied; false after `timeout`. Reader threads.
  template <class Done>
  bool WaitUntil(const Done& done, std::chrono::nanoseconds timeout) {
    if (done()) return true;
    waiters.fetch_add(1, std::memory_order_acq_rel);
    std::unique_lock<std::mutex> lock(wait_mutex);
    const bool reached = wait_cv.wait_for(lock, Clamped(timeout), done);
    waiters.fetch_sub(1, std::memory_order_relaxed);
    return reached;
  }

  // Snapshots that were released after they had been applied. `tickets` owns all of them; the
  // engine's thread extends it.
  moodycamel::ConcurrentQueue<SnapshotState*> released;
  std::vector<std::unique_ptr<SnapshotState>> tickets;
  // A stack of tickets that can be taken again. The thread that holds the store's lock pushes; the
  // engine's thread takes all of them at once, so that no ticket is popped while another thread
  // looks at it.
  std::atomic<SnapshotState*> free_tickets{nullptr};
  void FreeTicket(SnapshotState* state) {
    state->next_free = free_tickets.load(std::memory_order_relaxed);
    while (!free_tickets.compare_exchange_weak(state->next_free, state, std::memory_order_release,
                                               std::memory_order_relaxed)) {
    }
  }

  std::shared_ptr<FlightSink> flight;  // StoreOptions::flight
  const std::shared_ptr<WaitingStep> waiting_step = std::make_shared<WaitingStep>();

  // Whether this is a forked child: the store's threads, and who held its locks, are in the parent.
  ForkGuard guard;
  StoreFailure failure;
  std::atomic<std::uint64_t> exceptions{0};  // Stats::exceptions
  // Calls Done(), whose exception is counted.
  void CallDone(StepRows* rows) noexcept {
    if (rows == nullptr) return;
    try {
      rows->Done();
    } catch (...) {
      exceptions.fetch_add(1, std::memory_order_relaxed);
    }
  }
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STORE_CORE_H_
