// How a simulated engine feeds its stores: verdicts, ids and reads, in an order that the timing's
// seed draws.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "adapters/simulators/engine.h"

namespace waymark::sim {

void Engine::Feed() {
  const Timing& timing = options_.timing;
  for (std::size_t i = timing.shuffle ? endings_.size() : 0; i > 1; --i) {
    std::swap(endings_[i - 1],
              endings_[static_cast<std::size_t>(worker_.Below(static_cast<std::int64_t>(i)))]);
  }
  const auto hold =
      static_cast<std::size_t>(timing.behind > 0 ? worker_.Below(timing.behind + 1) : 0) *
      stores_.size();
  const auto kept = endings_.end() - static_cast<std::ptrdiff_t>(std::min(hold, endings_.size()));
  std::for_each(endings_.begin(), kept, [this](const Ending& ending) { End(ending); });
  endings_.erase(endings_.begin(), kept);
  if (timing.landing == Landing::kThread) {
    WaitForLanding();
  } else {
    LandSome();
  }
  if (Big()) {
    // What is read needs no pages any more.
    const auto finish = [this](const RequestPtr& r) {
      for (const std::shared_ptr<Read>& read : r->reads)
        if (read->Ready()) checker_->FinishRead(*read);
    };
    std::ranges::for_each(running_, finish);
    std::ranges::for_each(waiting_, finish);
  }
  CheckReads(false);
}

void Engine::End(const Ending& ending) {
  StepFeed& feed = *feeds_[ending.stage];
  const StepCode code = ending.step_rows != nullptr ? feed.Submit(ending.step, ending.step_rows)
                        : ending.run                ? feed.Drop(ending.step)
                                                    : feed.Cancel(ending.step);
  Expect(code, "end of a step");
  ApplySome(ending.stage);
}

void Engine::Expect(const StepCode& code, const char* call) {
  if (code.ok()) return;
  if (code.rule == StepRule::kLogFull && MayLoseRecords()) {
    records_lost_ = true;
  } else {
    checker_->Fail(std::string(call) + ": " + std::string(code.ToStatus().message()));
  }
}

void Engine::Announce(const Event& event) {
  events_.push_back(event);
  if (options_.timing.report == 0 || event.more != 0 || events_.size() < report_at_) return;
  ReportEvents();
  report_at_ = static_cast<std::size_t>(timing_.Between(1, options_.timing.report + 1));
}

void Engine::ReportEvents() {
  if (options_.timing.report == 0 || events_.empty()) return;
  OpenSchedule();
  const bool lost = worker_.Chance(options_.timing.lost);
  records_lost_ = records_lost_ || lost;
  for (std::size_t stage = 0; stage < stores_.size(); ++stage) {
    RoutingStore& store = *stores_[stage];
    Expect(Failing([&] { return lost ? store.LoseRows() : store.Report(events_); }), "Report");
    ApplySome(stage);
  }
  events_.clear();
}

void Engine::OpenSchedule() {
  if (begun_ == now_) return;  // events between two schedules
  const bool other_version = reported_version_ != version_;
  const bool need = std::any_of(events_.begin(), events_.end(), [&](const Event& event) {
    return event.type == EventType::kSeal ? event.step == now_ && opened_ != now_
                                          : event.key_size != 0 && other_version;
  });
  if (!need && !timing_.Chance(opened_ != now_ ? .3 : .05)) return;
  for (std::size_t stage = 0; stage < stores_.size(); ++stage) {
    Expect(stores_[stage]->Schedule(StepId(now_), version_), "Schedule");
    ApplySome(stage);
  }
  opened_ = now_;
  reported_version_ = version_;
}

StepId Engine::OwnStep() {
  return options_.timing.report > 0 && timing_.Chance(.5) ? StepId() : StepId(now_);
}

void Engine::ApplySome(std::size_t stage) {
  if (options_.timing.landing != Landing::kManual) return;
  std::int64_t& left = calls_without_apply_[stage];
  if (left > 0) {
    --left;
    return;
  }
  const std::int64_t most = worker_.Chance(.3) ? 1000000 : 1 + worker_.Below(4);
  (void)Failing([&] { return stores_[stage]->Apply(static_cast<std::size_t>(most)); });
  if (worker_.Chance(.5)) left = worker_.Below(options_.timing.lag + 1);
}

void Engine::WaitForLanding() {
  // A forward takes milliseconds, a simulated one takes none. So an engine with many steps in
  // flight waits for the landing thread here. Small rings may overflow.
  constexpr std::uint32_t kLead = 32;
  if (options_.max_steps_in_flight < 2 * kLead) return;
  while (step_rows_.out() > static_cast<std::int64_t>(kLead + endings_.size())) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// The ids of a step are there when it is landed.
void Engine::LandSome() {
  for (std::size_t stage = 0; stage < stores_.size(); ++stage) {
    std::int64_t most = options_.max_steps_in_flight;
    if (!options_.timing.land_at_once && worker_.Chance(.9)) most = worker_.Below(3);
    while (most > 0 && Failing([&] { return stores_[stage]->LandOne(); }))
      --most;
  }
}

void Engine::CheckReads(bool all) {
  std::vector<ReadJob> waiting;
  const std::int64_t slow =
      all || options_.timing.slow == 0 ? 0 : worker_.Below(std::int64_t{options_.timing.slow} + 1);
  std::int64_t left = std::ranges::count(reads_, true, &ReadJob::finished);
  for (ReadJob& job : reads_) {
    const bool waits = job.finished ? --left < slow : !all && job.due > now_;
    if (!waits && Checker::Ready(job)) {
      checker_->Check(job);
    } else {
      waiting.push_back(std::move(job));
    }
  }
  reads_.swap(waiting);
}

void Engine::Finish() {
  TakeLateReads(/*all=*/true);
  for (const Ending& ending : endings_)
    End(ending);
  endings_.clear();
  for (std::size_t stage = 0; stage < stores_.size(); ++stage) {
    const absl::Status idle = stores_[stage]->WaitIdle(std::chrono::seconds(60));
    if (!idle.ok() && !StoreFailed(stage))
      checker_->Fail("WaitIdle: " + std::string(idle.message()));
  }
  CheckReads(true);
  if (!reads_.empty()) {
    checker_->Fail(std::to_string(reads_.size()) +
                   " snapshots are not ready though all steps have ended");
  }
  // A step has ended before its rows are returned to the pool.
  for (int wait = 0; step_rows_.out() != 0 && wait < 100000; ++wait) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (step_rows_.out() != 0) {
    checker_->Fail(std::to_string(step_rows_.out()) + " steps' rows were not given back");
  }
  if (step_rows_.returned_twice() != 0) {
    checker_->Fail(std::to_string(step_rows_.returned_twice()) + " steps' rows came back twice");
  }
}

}  // namespace waymark::sim
