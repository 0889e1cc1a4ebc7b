// StepFeed: how the steps of a simulated engine come to its store. The engine's own calls straight
// to the store, unless EngineOptions::feed says otherwise.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_STEP_FEED_H_
#define WAYMARK_ADAPTERS_SIMULATORS_STEP_FEED_H_

#include "adapters/simulators/step_source.h"
#include "blockstore/store/store.h"

namespace waymark::sim {

// One a store; the engine's thread. Answers what the store answers.
class StepFeed {
 public:
  virtual ~StepFeed() = default;
  [[nodiscard]] virtual StepCode Begin(const StepBatch& batch) = 0;
  // `source` has the rows of the step's forward; Done() is called on it once, at any time.
  [[nodiscard]] virtual StepCode Submit(StepId step, StepSource* source) = 0;
  [[nodiscard]] virtual StepCode Drop(StepId step) = 0;
  [[nodiscard]] virtual StepCode Cancel(StepId step) = 0;
};

class DirectFeed final : public StepFeed {
 public:
  // The store outlives this.
  explicit DirectFeed(RoutingStore& store) : store_(store) {}
  StepCode Begin(const StepBatch& batch) override { return store_.BeginStep(batch); }
  StepCode Submit(StepId step, StepSource* source) override { return store_.Submit(step, source); }
  StepCode Drop(StepId step) override { return store_.Drop(step); }
  StepCode Cancel(StepId step) override { return store_.Cancel(step); }

 private:
  RoutingStore& store_;
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_STEP_FEED_H_
