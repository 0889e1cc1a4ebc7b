// StepFeed: the interface through which a simulated engine calls its store for a step. DirectFeed,
// the default, calls the store; EngineOptions::feed can replace it, e.g. by a capture session.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_STEP_FEED_H_
#define WAYMARK_ADAPTERS_SIMULATORS_STEP_FEED_H_

#include "adapters/simulators/oracle_rows.h"
#include "blockstore/store/store.h"

namespace waymark::sim {

// One per store; called on the engine's thread. Returns what RoutingStore's calls return.
class StepFeed {
 public:
  virtual ~StepFeed() = default;
  [[nodiscard]] virtual StepCode Begin(const StepBatch& batch) = 0;
  // `rows` has the rows of the step's forward. rows->Done() is called exactly once, in this call or
  // later.
  [[nodiscard]] virtual StepCode Submit(StepId step, OracleRows* rows) = 0;
  [[nodiscard]] virtual StepCode Drop(StepId step) = 0;
  [[nodiscard]] virtual StepCode Cancel(StepId step) = 0;
};

class DirectFeed final : public StepFeed {
 public:
  // `store` is not owned and must outlive the feed.
  explicit DirectFeed(RoutingStore& store) : store_(store) {}
  StepCode Begin(const StepBatch& batch) override { return store_.BeginStep(batch); }
  StepCode Submit(StepId step, OracleRows* rows) override { return store_.Submit(step, rows); }
  StepCode Drop(StepId step) override { return store_.Drop(step); }
  StepCode Cancel(StepId step) override { return store_.Cancel(step); }

 private:
  RoutingStore& store_;
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_STEP_FEED_H_
