#include "blockstore/store/store_impl.h"
#include "blockstore/step_path.h"

#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace waymark {
namespace {

ScheduleLimits LimitsOf(const StoreOptions& options) {
  return {options.num_blocks, options.block_tokens};
}

// The tag of a snapshot that is taken or forgotten; nullopt: of another record.
std::optional<std::uint64_t> TagOf(const RecordHeader& record) {
  if (record.kind == RecordKind::kForget && record.bytes >= sizeof(ForgetRecord)) {
    return reinterpret_cast<const ForgetRecord&>(record).tag;
  }
  if (record.kind == RecordKind::kSnapshot && record.bytes >= sizeof(SnapshotRecord)) {
    return reinterpret_cast<const SnapshotRecord&>(record).tag;
  }
  return std::nullopt;
}

}  // namespace

RoutingStore::Impl::Impl(const StoreOptions& store_options, std::shared_ptr<StoreCore> shared,
                         StoreLog::Pointer log)
    : options_(store_options),
      core_(std::move(shared)),
      log_(std::move(log)),
      tagged_(options_.max_tagged_snapshots),
      pages_(options_, *core_, stats_),
      events_(options_, pages_, stats_),
      applier_(options_, *core_, *log_, pages_, events_, stats_),
      lander_(options_, *core_, mutex_, pages_, stats_, *log_, applier_) {}

RoutingStore::Impl::~Impl() {
  lander_.Stop();
  lander_.Finish();
  (void)log_->SettleLoss();  // there is room now
  lander_.Finish();
}

// ---- what appends a record

WAYMARK_STEP_PATH void RoutingStore::Impl::Published(const StepCode& code, bool wake) {
  if (!code.ok() && !code.dropped()) return;  // nothing was appended, or lost
  if (options_.landing == Landing::kCaller) {
    // A second thread, whose call comes between, does not apply beside this one.
    const StoreLog::Turn turn(*log_);
    if (turn.taken()) lander_.ApplyLog();
  } else if (options_.landing == Landing::kThread && wake) {
    lander_.WakeForRecords();
  }
}

WAYMARK_STEP_PATH SnapshotState* RoutingStore::Impl::TakeTicket(std::int64_t first,
                                                                std::int64_t last) try {
  if (tickets_ == nullptr) {
    tickets_ = core_->free_tickets.exchange(nullptr, std::memory_order_acquire);
  }
  if (tickets_ == nullptr) {
    core_->tickets.push_back(std::make_unique<SnapshotState>());
    tickets_ = core_->tickets.back().get();
  }
  SnapshotState* const state = std::exchange(tickets_, tickets_->next_free);
  state->first = first;
  state->last = last;
  state->lost = false;
  state->ticket.Take();
  return state;
} catch (const std::bad_alloc&) {
  return nullptr;
}

WAYMARK_STEP_PATH absl::StatusOr<SnapshotState*> RoutingStore::Impl::TakeSnapshot(
    std::span<const BlockId> blocks, std::int64_t first, std::int64_t last) {
  SnapshotRecord record{.first = first, .last = last};
  const auto needed = BlocksOfRows(blocks, first, last, LimitsOf(options_), &record.skipped);
  if (!needed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("TakeSnapshot: ", needed.status().message()));
  }
  {
    const StoreLog::Turn turn(*log_);
    if (!turn.taken()) return turn.refusal().ToStatus();
    record.state = TakeTicket(first, last);
    if (record.state == nullptr) {
      return absl::ResourceExhaustedError("TakeSnapshot: no memory for one more snapshot");
    }
    if (!log_->TakeSnapshot(turn, record, *needed).ok()) LoseSnapshot(record.state);
  }
  Published({}, /*wake=*/true);
  return record.state;
}

void RoutingStore::Impl::LoseSnapshot(SnapshotState* state) {
  state->pages.clear();
  state->read_id = 0;
  state->lost = true;
  if (state->ticket.Apply()) core_->FreeTicket(state);
  snapshots_without_room_.fetch_add(1, std::memory_order_relaxed);
}

// ---- messages of a scheduler in another process

WAYMARK_STEP_PATH absl::Status RoutingStore::Impl::ReportMessage(
    std::span<const std::uint8_t> message, std::vector<std::uint64_t>* tags) {
  absl::Status status;
  std::vector<std::uint64_t> taken;
  {
    // Without it the message was not received: its number does not count.
    const StoreLog::Turn turn(*log_);
    if (!turn.taken()) return turn.refusal().ToStatus();
    try {
      status = AppendMessage(turn, message, taken);
    } catch (const std::bad_alloc&) {
      status = absl::ResourceExhaustedError("");
      log_->LoseRecords(turn);
    }
  }
  Published({}, /*wake=*/!taken.empty());
  if (status.ok() && tags != nullptr) *tags = std::move(taken);
  return status;
}

WAYMARK_STEP_PATH absl::Status RoutingStore::Impl::AppendMessage(
    const StoreLog::Turn& turn, std::span<const std::uint8_t> message,
    std::vector<std::uint64_t>& tags) {
  const auto refuse = [&](const absl::Status& why) {
    log_->LoseRecords(turn);
    return absl::Status(why.code(),
                        absl::StrCat(why.message(),
                                     "; the message is refused: nothing of it is applied, and all "
                                     "blocks lose their rows (capacity)"));
  };
  const ScheduleLimits limits = LimitsOf(options_);
  ScheduleFrame frame;
  if (const absl::Status status = ParseScheduleFrame(message, limits, frame); !status.ok()) {
    return refuse(status);
  }
  const MessageVerdict verdict = message_order_.Next(frame.epoch, frame.sequence);
  if (verdict == MessageVerdict::kIgnore) return absl::OkStatus();
  // The sender before it may have used the same tags.
  if (verdict == MessageVerdict::kNewEpoch) tagged_.GiveUpAll();
  // Before the message, which is applied all the same.
  if (verdict != MessageVerdict::kApply) log_->LoseRecords(turn);

  absl::Status refusal;
  std::span<std::uint8_t> prepared;
  const auto prepare = [&](std::span<std::uint8_t> records) {
    refusal = CheckScheduleRecords(records, limits, log_->last_seal(turn), scratch_);
    if (refusal.ok()) refusal = CheckMessage(turn, records);
    if (!refusal.ok()) {
      // Nobody gets rows under a tag that stands for two snapshots, or for one that was not taken.
      ForEachRecord(records, [this](const RecordHeader& record) {
        if (const auto tag = TagOf(record)) (void)tagged_.Take(*tag);
      });
      return refusal;
    }
    prepared = records;
    return TakeTickets(records, tags);
  };
  absl::Status status;
  try {
    status = log_->Append(turn, frame.records, prepare);
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("ReportMessage: no memory for its snapshots");
  }
  if (!refusal.ok()) return refuse(refusal);
  if (status.ok()) return status;
  // First, because the record of the loss is written where they lie.
  ForEachRecord(prepared, [this](RecordHeader& record) {
    if (record.kind != RecordKind::kSnapshot) return;
    SnapshotState* const state = reinterpret_cast<SnapshotRecord&>(record).state;
    if (state != nullptr) LoseSnapshot(state);
  });
  log_->LoseRecords(turn);
  return status;
}

WAYMARK_STEP_PATH absl::Status RoutingStore::Impl::CheckMessage(const StoreLog::Turn& turn,
                                                                std::span<std::uint8_t> records) {
  absl::Status status;
  std::unordered_map<std::uint64_t, bool> used;  // as far as the message says, by tag
  ForEachRecord(records, [&](const RecordHeader& record) {
    if (record.kind == RecordKind::kSchedule) {
      const auto& schedule = reinterpret_cast<const ScheduleRecord&>(record);
      status.Update(log_->CheckSchedule(turn, schedule.step).ToStatus());
    }
    const std::optional<std::uint64_t> tag = TagOf(record);
    if (!tag.has_value()) return;
    const bool takes = record.kind == RecordKind::kSnapshot;
    const auto [at, first] = used.try_emplace(*tag, false);
    if (takes && (first ? tagged_.Has(*tag) : at->second)) {
      status.Update(absl::AlreadyExistsError(
          absl::StrCat("message: a snapshot with tag ", *tag, " waits already")));
    }
    at->second = takes;
  });
  return status;
}

WAYMARK_STEP_PATH absl::Status RoutingStore::Impl::TakeTickets(std::span<std::uint8_t> records,
                                                               std::vector<std::uint64_t>& tags) {
  absl::Status status;
  ForEachRecord(records, [&](RecordHeader& record) {
    if (record.kind == RecordKind::kForget) (void)tagged_.Take(*TagOf(record));
    if (record.kind != RecordKind::kSnapshot || !status.ok()) return;
    auto& snapshot = reinterpret_cast<SnapshotRecord&>(record);
    snapshot.state = TakeTicket(snapshot.first, snapshot.last);
    if (snapshot.state == nullptr) {
      status = absl::ResourceExhaustedError("ReportMessage: no memory for its snapshots");
      return;
    }
    tags.push_back(snapshot.tag);
    tagged_.Add(snapshot.tag, Snapshot(core_, snapshot.state));
  });
  return status;
}

// ---- the state, as far as the log was applied

std::int64_t RoutingStore::Impl::CoveredPrefix(std::span<const BlockId> blocks, std::int64_t rows) {
  const MutexLock lock(mutex_);
  std::int64_t covered = 0;
  if (core_->failure.failed()) return covered;
  for (const BlockId block : blocks) {
    if (block.value() >= options_.num_blocks) return covered;
    const EntryIndex first = pages_.FirstEntry(block.value());
    if (first == kNoEntry) return covered;
    for (EntryIndex e = first; e < first + pages_.pages_per_block(); ++e) {
      const Entry& entry = pages_.table().hot(e);
      if (!entry.exists || entry.page == kNoPage) return covered;
      for (std::uint32_t row = 0; row < pages_.page_tokens(); ++row) {
        if (covered == rows || !pages_.stamp(entry.page, row).Load().valid()) return covered;
        ++covered;
      }
    }
  }
  return covered;
}

absl::Status RoutingStore::Impl::WaitIdle(std::chrono::nanoseconds timeout) {
  const auto empty = [&] { return !log_->HasRecords(); };
  bool idle = false;
  if (lander_.has_thread()) {
    lander_.Wake();  // events alone do not
    idle = core_->WaitUntil(empty, timeout);
  } else {
    const auto deadline = std::chrono::steady_clock::now() + Clamped(timeout);
    idle = lander_.ApplyAll(deadline);
    if (idle && log_->SettleLoss()) idle = lander_.ApplyAll(deadline);  // there is room now
  }
  if (core_->failure.failed()) return core_->failure.status();
  if (idle) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("WaitIdle: the log was not empty after ", timeout.count(),
                   " ns: a step waits for its Submit, Drop or Cancel, or for its ids"));
}

Stats RoutingStore::Impl::GetStats() noexcept {
  Stats stats;
  std::uint64_t entries = 0;
  {
    const MutexLock lock(mutex_);
    stats = stats_;
    entries = pages_.table().size();
    stats.pages = pages_.pool().pages();
    stats.spare_pages = pages_.pool().size() - pages_.pool().pages();
    stats.pages_in_use = pages_.pool().in_use();
    stats.pages_in_use_peak = pages_.pool().in_use_peak();
    stats.pages_detached = pages_.pool().detached();
    stats.pages_detached_peak = pages_.pool().detached_peak();
    stats.snapshots_taken = pages_.snapshots_taken();
    stats.snapshots_live = pages_.snapshots_live();
  }
  const std::uint64_t page_bytes = core_->shape.page_bytes();
  const std::uint64_t records =
      sizeof(PageHot) + sizeof(PageCold) + sizeof(StampCell) * std::uint64_t{core_->page_tokens};
  const std::uint64_t pages = stats.pages + stats.spare_pages;
  stats.bytes =
      pages * (page_bytes + records) + stats.pages * 7 + entries * BlockTable::kEntryBytes;
  stats.bytes_touched_peak = stats.bytes - (pages - stats.pages_in_use_peak) * page_bytes -
                             (pages - std::max(stats.pages, stats.pages_in_use_peak)) * records;
  stats.snapshots_lost += snapshots_without_room_.load(std::memory_order_relaxed);
  stats.snapshots_given_up = tagged_.given_up();
  stats.steps_ahead = lander_.told().fetched();
  stats.exceptions = core_->exceptions.load(std::memory_order_relaxed);
  try {
    stats.failure = core_->failure.text();
  } catch (const std::bad_alloc&) {  // then without them
  }
  return stats;
}

}  // namespace waymark
