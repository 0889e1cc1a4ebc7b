// IdsRing: the IdsRowSources of a session, one for each step of SubmitIds on its way.
// Included by this folder only.
//
// A step's source must live until the store calls Done, which may be after the session is gone. So
// a source that is out holds the ring alive, and the ring owns every source: all memory is there
// from the start, and SubmitIds allocates nothing.
#ifndef WAYMARK_PLUGIN_CAPTURE_IDS_RING_H_
#define WAYMARK_PLUGIN_CAPTURE_IDS_RING_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "blockstore/store/row_source.h"
#include "plugin/capture/ids_row_source.h"

namespace waymark {

// The engine's thread takes a source; it comes back by itself when it is done, on the landing
// thread or on the engine's. Lives until the last source has come back. Made by std::make_shared.
class IdsRing : public std::enable_shared_from_this<IdsRing> {
 public:
  // `max_rows`: the most rows that one StepIds has. `num_sources`: the most steps on their way at
  // once, >= 1. `counters` may be null, and is shared by all sources.
  IdsRing(const RoutingShape& shape, std::int32_t max_rows, std::int32_t num_sources,
          const std::shared_ptr<LayerCounters>& counters) {
    for (std::int32_t i = 0; i < num_sources; ++i) {
      slots_.push_back(std::make_unique<Slot>(shape, max_rows, counters));
    }
  }

  // A source set to `ids`; null when none is free, and then `done` was not called and never will
  // be. Looks first at the source that was given out longest ago. Engine's thread. The result is
  // the ring's; hand it to Submit, or call its Done when the step is refused. REQUIRES: what
  // IdsRowSource::Set requires of `ids`, whose memory stays the caller's until `done` is called.
  [[nodiscard]] RowSource* Take(const StepIds& ids, DoneCallback done) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = *slots_[next_];
      next_ = next_ + 1 == slots_.size() ? 0 : next_ + 1;
      if (slot.TryTake(shared_from_this(), ids, done)) return &slot;
    }
    return nullptr;
  }
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(slots_.size()); }

 private:
  // A source and whether it is out. `taken_` passes it between the two threads: whoever reads it
  // as false (acquire) sees all that the landing thread did before it stored that (release).
  class Slot : public RowSource {
   public:
    Slot(const RoutingShape& shape, std::int32_t max_rows,
         const std::shared_ptr<LayerCounters>& counters)
        : source_(shape, max_rows, counters) {}

    // False when it is out.
    bool TryTake(std::shared_ptr<IdsRing> owner, const StepIds& ids, DoneCallback done) {
      if (taken_.load(std::memory_order_acquire)) return false;
      taken_.store(true, std::memory_order_relaxed);  // only the engine's thread takes
      owner_ = std::move(owner);
      source_.Set(ids, done);
      return true;
    }
    void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
              std::span<Reason> verdicts) override {
      source_.Land(first, destinations, verdicts);
    }
    void Done() override {
      // The session may be gone: then this was the last that kept the ring, and *this, alive.
      const std::shared_ptr<IdsRing> owner = std::move(owner_);
      source_.Done();
      taken_.store(false, std::memory_order_release);
    }

   private:
    std::atomic<bool> taken_{false};
    std::shared_ptr<IdsRing> owner_;  // while taken
    IdsRowSource source_;
  };

  std::vector<std::unique_ptr<Slot>> slots_;
  std::size_t next_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_IDS_RING_H_
