// A simulated engine whose scheduler and worker are two processes: what the scheduler reports goes
// into messages, and the worker passes them to the stores.
#include <utility>

#include "adapters/simulators/engine.h"

namespace waymark::sim {

void Engine::Reported(const absl::Status& status, const char* call) {
  if (!status.ok()) checker_->Fail(std::string(call) + ": " + std::string(status.message()));
}

void Engine::OpenMessage() {
  if (message_open_) {
    // Keyed Binds are looked up under the message's version, and seals name its step.
    const bool fits = begun_ == now_ || (message_step_ == now_ && message_version_ == version_);
    if (fits) return;
    CloseMessage();
  }
  if (!writer_.has_value() || timing_.Chance(options_.timing.restart)) {
    const StoreOptions& store = stores_[0]->options();
    absl::StatusOr<ScheduleWriter> writer = ScheduleWriter::Create(
        {.num_blocks = store.num_blocks, .block_tokens = store.block_tokens});
    if (!writer.ok()) return checker_->Fail(std::string(writer.status().message()));
    if (writer_.has_value()) records_lost_ = true;
    writer_.emplace(*std::move(writer));
  }
  // After the begin of a step the next one may be unknown.
  const bool idle = begun_ == now_ && timing_.Chance(.5);
  message_step_ = idle ? 0 : begun_ + 1;
  message_version_ = idle ? 0 : version_;
  Reported(writer_->Begin(StepId(message_step_), message_version_), "Begin");
  message_open_ = true;
  message_ = {};
  for (const std::uint64_t tag : to_forget_)
    Reported(writer_->Forget(tag), "Forget");
  message_.forgotten = std::exchange(to_forget_, {});
}

void Engine::WriteEvents() {
  if (events_.empty()) return;
  OpenMessage();
  Reported(writer_->Report(events_), "Report");
  events_.clear();
}

void Engine::WriteSnapshot(std::span<const BlockId> blocks, std::int64_t rows,
                           const std::shared_ptr<Read>& read) {
  WriteEvents();
  OpenMessage();
  const std::uint64_t tag = ++last_tag_;
  Reported(writer_->Snapshot(tag, blocks, 0, rows), "Snapshot");
  if (read != nullptr) read->waits = true;
  message_.reads.push_back({tag, read});
}

void Engine::CloseMessage() {
  if (!message_open_) return;
  message_open_ = false;
  SendMessage(writer_->Finish());
}

void Engine::SendMessage(std::span<const std::uint8_t> bytes) {
  if (options_.channel) {
    message_.bytes = options_.channel(bytes);
  } else {
    message_.bytes.assign(bytes.begin(), bytes.end());
  }
  for (const Tagged& tagged : message_.reads)
    if (tagged.read == nullptr) to_forget_.push_back(tagged.tag);
  messages_.push_back(std::exchange(message_, {}));
}

void Engine::Deliver() {
  const Timing& timing = options_.timing;
  for (const Message& message : std::exchange(messages_, {})) {
    const bool lost = worker_.Chance(timing.lost) || message.bytes.empty();
    const bool cut = worker_.Chance(timing.lost > 0 ? .5 : 0) && !message.bytes.empty();
    const bool twice = worker_.Chance(timing.doubled);
    std::span<const std::uint8_t> bytes = message.bytes;
    if (lost) {
      records_lost_ = true;
      checker_->AllowAudit();
      // If the sender restarts, too, before any message arrived, then nothing shows the loss.
      if (!message_arrived_) checker_->AllowNeverWritten();
      bytes = bytes.first(cut ? bytes.size() - 1 : 0);
    }
    message_arrived_ = message_arrived_ || !bytes.empty();
    const bool refused = !bytes.empty() && !DeliverOne(bytes, lost);
    if (twice && !lost) (void)DeliverOne(bytes, lost);
    for (const Tagged& tagged : message.reads) {
      if (tagged.read == nullptr) continue;
      tagged.read->waits = false;
      for (const auto& store : stores_) {
        absl::StatusOr<Snapshot> taken = store->TakeTagged(tagged.tag);
        const bool gone = absl::IsNotFound(taken.status()) && (lost || MayLoseRecords());
        AddTaken(*tagged.read, std::move(taken), gone, "TakeTagged");
      }
    }
    for (const std::uint64_t tag : message.forgotten) {
      for (const auto& store : stores_) {
        if (lost || refused) store->ForgetTag(tag);
        if (store->TakeTagged(tag).ok()) checker_->Fail("TakeTagged: the tag was forgotten");
      }
    }
  }
}

bool Engine::DeliverOne(std::span<const std::uint8_t> bytes, bool lost) {
  bool accepted = true;
  for (std::size_t stage = 0; stage < stores_.size(); ++stage) {
    const auto report = [&] { return stores_[stage]->ReportMessage(bytes); };
    const absl::Status status = Failing(report);
    ApplySome(stage);
    accepted = accepted && status.ok();
    if (status.ok() != lost) continue;
    if (absl::IsResourceExhausted(status) && MayLoseRecords()) {
      records_lost_ = true;
    } else {
      checker_->Fail("ReportMessage: " + (lost ? "a message that was cut off was accepted"
                                               : std::string(status.message())));
    }
  }
  return accepted;
}

}  // namespace waymark::sim
