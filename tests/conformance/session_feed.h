// SessionFeed: a capture session between a simulated engine and its store, over a transport of any
// device.
#ifndef WAYMARK_TESTS_CONFORMANCE_SESSION_FEED_H_
#define WAYMARK_TESTS_CONFORMANCE_SESSION_FEED_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "adapters/simulators/oracle.h"
#include "plugin/capture/capture_session.h"

namespace waymark::conformance {

// What a forward does on a device, in order with everything else on the engine's stream.
class ForwardDevice {
 public:
  virtual ~ForwardDevice() = default;
  [[nodiscard]] virtual TransportFactory Transport() = 0;
  // Writes `ids`, [L, rows, K], to rows [0, rows) of the view.
  virtual void Write(const CaptureView& view, const std::vector<std::int16_t>& ids,
                     std::size_t rows) = 0;
};

// The forward of a step is issued when the engine ends it: views of other steps are open meanwhile.
class SessionFeed final : public sim::StepFeed {
 public:
  SessionFeed(RoutingStore& store, std::unique_ptr<ForwardDevice> device, std::int32_t num_buffers);

  StepCode Begin(const StepBatch& batch) override;
  StepCode Submit(StepId step, sim::OracleRows* step_rows) override;
  StepCode Drop(StepId step) override { return session_->Drop(step); }
  StepCode Cancel(StepId step) override { return session_->Cancel(step); }

 private:
  // [L, rows, K] of what the rows have. A layer, chosen by the row, fails where one is to be
  // missing: it writes nothing, or an id that is no expert.
  std::vector<std::int16_t> IdsOf(sim::OracleRows* step_rows, std::size_t rows) const;

  RoutingStore& store_;
  const std::unique_ptr<ForwardDevice> device_;
  std::unique_ptr<CaptureSession> session_;
  std::vector<std::pair<std::uint64_t, std::size_t>> rows_;  // of the steps that are open
};

// Runs `count` of the random schedules from seed `first` on, each store through a session over a
// device that `make` makes, with enough buffers or, now and then, too few. Fails the running test
// for each schedule that is not clean, and prints what there was.
void RunSchedulesThroughSessions(
    std::uint64_t first, std::uint64_t count,
    const std::function<std::unique_ptr<ForwardDevice>(std::uint64_t seed)>& make);

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_SESSION_FEED_H_
