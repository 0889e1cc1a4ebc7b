// The random schedules through capture sessions over the staged transport, on an emulated device:
// what the engines' forwards write goes through views, slots and copies that run when the device
// pleases.
//
// WAYMARK_STAGED_SCHEDULES (default 1000) schedules from seed WAYMARK_SEED (default 1) on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "plugin/capture_session.h"
#include "plugin/staged_transport.h"
#include "tests/conformance/schedules.h"
#include "tests/support/emulated_device.h"

namespace waymark::conformance {
namespace {

// A capture session between engine and store. The forward is enqueued when the engine ends the
// step: views of other steps are open meanwhile.
class SessionFeed final : public sim::StepFeed {
 public:
  SessionFeed(RoutingStore& store, std::uint64_t seed, std::int32_t num_buffers)
      : store_(store), device_(std::make_shared<EmulatedDevice>(seed)) {
    CaptureOptions options;
    options.store = &store;
    options.max_rows = static_cast<std::int32_t>(store.options().max_step_rows);
    options.num_buffers = num_buffers;
    options.transport = StagedTransport::Factory({device_});
    session_ = CaptureSession::Create(options).value();
  }

  StepCode Begin(const StepBatch& batch) override {
    device_steps_ = batch.device_slots;
    const StepCode code = session_->BeginStep(batch);
    if (code.ok() && !batch.device_slots) rows_.push_back({batch.step, batch.num_slots});
    return code;
  }
  StepCode Submit(StepId step, sim::StepSource* source) override {
    // The slots of a device step lie on the device, and are gone soon after.
    const auto slots =
        std::make_shared<std::vector<std::int64_t>>(source->Slots().begin(), source->Slots().end());
    const bool device_step = device_steps_;
    Forward(step, source, slots->size());
    source->Done();
    if (!device_step) return session_->Submit(step);
    const StepCode code =
        session_->SubmitDeviceSlots(step, slots->data(), static_cast<std::int32_t>(slots->size()));
    device_->Enqueue(nullptr, [slots] { std::fill(slots->begin(), slots->end(), 0); });
    return code;
  }
  StepCode Drop(StepId step) override { return session_->Drop(step); }
  StepCode Cancel(StepId step) override { return session_->Cancel(step); }

 private:
  void Forward(StepId step, sim::StepSource* source, std::size_t rows) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].first != step.value()) continue;
      rows = rows_[i].second;
      rows_.erase(rows_.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    const RoutingShape& shape = store_.options().shape;
    std::vector<std::uint8_t> bytes(rows * shape.row_bytes());
    std::vector<std::uint8_t*> destinations;
    for (std::size_t row = 0; row < rows; ++row)
      destinations.push_back(bytes.data() + row * shape.row_bytes());
    std::vector<Reason> verdicts(rows);
    source->Land(0, destinations, verdicts);
    const CaptureView view = session_->view(step);
    ASSERT_EQ(view.step, step.value());
    // A layer, chosen by the row, fails where the row is to be missing.
    device_->Enqueue(nullptr, [=, bytes = std::move(bytes), verdicts = std::move(verdicts)] {
      const auto top_k = static_cast<std::size_t>(view.top_k);
      for (std::size_t row = 0; row < verdicts.size(); ++row) {
        for (std::int32_t layer = 0; layer < view.num_layers; ++layer) {
          const bool fails =
              verdicts[row] != Reason::kNone &&
              static_cast<std::size_t>(layer) == row % static_cast<std::size_t>(view.num_layers);
          if (fails && verdicts[row] == Reason::kNotCaptured) continue;
          for (std::size_t k = 0; k < top_k; ++k) {
            const std::size_t at =
                row * shape.row_ids() + static_cast<std::size_t>(layer) * top_k + k;
            std::uint16_t id = bytes[at * shape.id_bytes()];
            if (shape.id_bytes() == 2) {
              id = static_cast<std::uint16_t>(id | bytes[at * 2 + 1] << 8);
            }
            view.layer(layer)[row * top_k + k] =
                static_cast<std::int16_t>(fails                            ? shape.num_experts
                                          : verdicts[row] == Reason::kNone ? id
                                                                           : k);
          }
        }
      }
    });
  }

  RoutingStore& store_;
  const std::shared_ptr<EmulatedDevice> device_;
  std::unique_ptr<CaptureSession> session_;
  std::vector<std::pair<std::uint64_t, std::size_t>> rows_;  // of the steps that are open
  bool device_steps_ = false;                                // of an engine all steps are, or none
};

TEST(StagedSchedules, NothingWrongNothingUnexplained) {
  const std::uint64_t count = FromEnvironment("WAYMARK_STAGED_SCHEDULES", 1000);
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  Totals totals;
  for (std::uint64_t seed = first; seed < first + count && totals.failed < 5; ++seed) {
    Schedule schedule = DrawSchedule(seed);
    // Buffers for what is on its way, or, now and then, too few: then steps are dropped.
    const std::int32_t buffers = seed % 5 == 0 ? 3 : 16;
    schedule.options.feed = [&](RoutingStore& store) {
      return std::make_unique<SessionFeed>(store, seed, buffers);
    };
    const Outcome outcome = RunSchedule(schedule);
    totals.Add(outcome);
    if (outcome.clean(schedule)) continue;
    ++totals.failed;
    ADD_FAILURE() << buffers << " buffers, " << outcome.Describe(schedule);
  }
  std::printf("seeds %llu ... %llu: %s\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1), totals.ToString().c_str());
  EXPECT_GT(totals.checks.exact, 0);
}

}  // namespace
}  // namespace waymark::conformance
