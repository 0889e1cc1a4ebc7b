#include "tests/conformance/session_feed.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/conformance/schedules.h"

namespace waymark::conformance {

SessionFeed::SessionFeed(RoutingStore& store, std::unique_ptr<ForwardDevice> device,
                         std::int32_t num_buffers)
    : store_(store), device_(std::move(device)) {
  CaptureOptions options;
  options.store = &store;
  options.max_rows = static_cast<std::int32_t>(store.options().max_step_rows);
  options.num_buffers = num_buffers;
  options.transport = device_->Transport();
  session_ = CaptureSession::Create(options).value();
}

StepCode SessionFeed::Begin(const StepBatch& batch) {
  const StepCode code = session_->BeginStep(batch);
  if (code.ok()) rows_.push_back({batch.step, NumRows(batch)});
  return code;
}

StepCode SessionFeed::Submit(StepId step, sim::OracleRows* step_rows) {
  std::size_t rows = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].first != step.value()) continue;
    rows = rows_[i].second;
    rows_.erase(rows_.begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  const CaptureView view = session_->view(step);
  EXPECT_EQ(view.step, step.value());
  device_->Write(view, IdsOf(step_rows, rows), rows);
  step_rows->Done();
  return session_->Submit(step);
}

std::vector<std::int16_t> SessionFeed::IdsOf(sim::OracleRows* step_rows, std::size_t rows) const {
  const RoutingShape& shape = store_.options().shape;
  const auto layers = static_cast<std::size_t>(shape.num_layers);
  const auto top_k = static_cast<std::size_t>(shape.top_k);
  std::vector<std::uint8_t> bytes(rows * shape.row_bytes());
  std::vector<std::uint8_t*> destinations;
  for (std::size_t row = 0; row < rows; ++row)
    destinations.push_back(bytes.data() + row * shape.row_bytes());
  std::vector<Reason> verdicts(rows);
  step_rows->Land(0, destinations, verdicts);
  // The other layers of a row with a fault are right.
  std::vector<std::uint8_t> written(layers);
  for (std::size_t row = 0; row < rows; ++row) {
    if (verdicts[row] == Reason::kNone) continue;
    (void)step_rows->LandLayers(static_cast<std::uint32_t>(row), destinations[row], written);
  }

  std::vector<std::int16_t> ids(layers * rows * top_k);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t layer = i / (rows * top_k);
    const std::size_t row = i / top_k % rows;
    const std::size_t k = i % top_k;
    if (verdicts[row] == Reason::kNone || layer != row % layers) {
      const std::size_t at = (row * layers + layer) * top_k + k;
      std::uint16_t id = bytes[at * shape.id_bytes()];
      if (shape.id_bytes() == 2) id = static_cast<std::uint16_t>(id | bytes[at * 2 + 1] << 8);
      ids[i] = static_cast<std::int16_t>(id);
    } else {
      ids[i] =
          static_cast<std::int16_t>(verdicts[row] == Reason::kNotCaptured ? -1 : shape.num_experts);
    }
  }
  return ids;
}

void RunSchedulesThroughSessions(
    std::uint64_t first, std::uint64_t count,
    const std::function<std::unique_ptr<ForwardDevice>(std::uint64_t seed)>& make) {
  Totals totals;
  for (std::uint64_t seed = first; seed < first + count && totals.failed < 5; ++seed) {
    Schedule schedule = DrawSchedule(seed);
    const std::int32_t buffers = seed % 5 == 0 ? 3 : 16;
    schedule.options.feed = [&](RoutingStore& store) {
      return std::make_unique<SessionFeed>(store, make(seed), buffers);
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

}  // namespace waymark::conformance
