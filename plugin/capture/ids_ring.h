// IdsRing: the rows of the steps of SubmitIds that have not been read, each read from a tensor that
// the engine owns; the only copy is the one into the page. Included by this folder only.
//
// The rows of a step must live until the store calls Done, which may be after the session was
// destroyed. So the ring owns all entries from the start (SubmitIds allocates nothing), and every
// entry in use holds a reference to the ring.
#ifndef WAYMARK_PLUGIN_CAPTURE_IDS_RING_H_
#define WAYMARK_PLUGIN_CAPTURE_IDS_RING_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "blockstore/ids.h"
#include "blockstore/store/step_rows.h"
#include "plugin/capture/ids_kind.h"
#include "plugin/capture/ids_tensor.h"
#include "plugin/capture/row_lander.h"

namespace waymark {

// The engine's thread takes an entry; the entry's Done, called on the landing thread or on the
// engine's, frees it. The ring lives until the last entry is free. Made by std::make_shared.
class IdsRing : public std::enable_shared_from_this<IdsRing> {
 public:
  // `max_rows`: the most rows of one StepIds. `num_steps`: the most entries in use at once, 1 or
  // more. `counters` may be null; all entries share them.
  IdsRing(const RoutingShape& shape, std::int32_t max_rows, std::int32_t num_steps,
          const std::shared_ptr<LayerCounters>& counters) {
    for (std::int32_t i = 0; i < num_steps; ++i) {
      entries_.push_back(std::make_unique<Entry>(shape, max_rows, counters));
    }
  }

  // Returns an entry set to `ids` of `step`, or null if none is free; then `done` is never
  // called. Tries the entry that was taken longest ago first. Engine's thread. The ring owns the
  // result: pass it to RoutingStore::Submit, which calls its Done in any case. The memory of `ids`
  // stays the caller's and unchanged until `done` is called (HostRows::Watch). REQUIRES:
  // ids.layers == L, ids.columns >= K, 0 <= ids.rows <= max_rows.
  [[nodiscard]] StepRows* Take(StepId step, const StepIds& ids, DoneCallback done) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      Entry& entry = *entries_[next_];
      next_ = next_ + 1 == entries_.size() ? 0 : next_ + 1;
      if (entry.TryTake(shared_from_this(), step, ids, done)) return &entry;
    }
    return nullptr;
  }
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(entries_.size()); }

 private:
  // Packs rows with the same checks as rows from a capture buffer; rows at or beyond ids.rows are
  // not captured. `taken_` passes it between the two threads: the engine's thread reads false
  // (acquire) and then sees all that the landing thread did before it stored false (release).
  class Entry final : public HostRows {
   public:
    Entry(const RoutingShape& shape, std::int32_t max_rows, std::shared_ptr<LayerCounters> counters)
        : HostRows(shape, max_rows, std::move(counters)) {}

    // False if it is in use.
    bool TryTake(std::shared_ptr<IdsRing> owner, StepId step, const StepIds& ids,
                 DoneCallback done) {
      if (taken_.load(std::memory_order_acquire)) return false;
      taken_.store(true, std::memory_order_relaxed);  // only the engine's thread takes
      owner_ = std::move(owner);
      SetIds({ids.data, ToKind(ids.type), ids.row_stride, ids.layer_stride, ids.k_stride});
      SetRows(ids.rows, ids.rows);
      Watch(step);
      done_ = done;
      return true;
    }
    void Done() override {
      // If the session is gone, this is the last reference to the ring, which owns *this.
      const std::shared_ptr<IdsRing> owner = std::move(owner_);
      Reset();
      done_();
      taken_.store(false, std::memory_order_release);
    }

   private:
    DoneCallback done_;
    std::atomic<bool> taken_{false};
    std::shared_ptr<IdsRing> owner_;  // while taken
  };

  std::vector<std::unique_ptr<Entry>> entries_;
  std::size_t next_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_IDS_RING_H_
