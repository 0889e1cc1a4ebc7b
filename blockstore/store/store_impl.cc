#include "blockstore/store/store_impl.h"
#include "blockstore/step_path.h"

#include <algorithm>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace waymark {
namespace {

// The index of the first block id that is not below `limit`; blocks.size() if there is none.
WAYMARK_STEP_PATH std::size_t FirstNotBelow(std::span<const BlockId> blocks, std::int32_t limit) {
  bool any = false;
  for (const BlockId block : blocks)
    any |= block.value() >= limit;
  if (!any) return blocks.size();
  const auto at = std::find_if(blocks.begin(), blocks.end(),
                               [&](BlockId block) { return block.value() >= limit; });
  return static_cast<std::size_t>(at - blocks.begin());
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
  if (code.rule == StepRule::kForked) return;
  if (options_.landing == Landing::kCaller) {
    lander_.ApplyLog();
  } else if (options_.landing == Landing::kThread && wake) {
    lander_.WakeForRecords();
  }
}

WAYMARK_STEP_PATH SnapshotState* RoutingStore::Impl::TakeTicket() {
  if (tickets_ == nullptr) {
    tickets_ = core_->free_tickets.exchange(nullptr, std::memory_order_acquire);
  }
  if (tickets_ != nullptr) return std::exchange(tickets_, tickets_->next_free);
  try {
    core_->tickets.push_back(std::make_unique<SnapshotState>());
    return core_->tickets.back().get();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

WAYMARK_STEP_PATH absl::StatusOr<SnapshotState*> RoutingStore::Impl::TakeSnapshot(
    std::span<const BlockId> blocks, std::int64_t first, std::int64_t last) {
  absl::StatusOr<SnapshotState*> state = [&]() -> absl::StatusOr<SnapshotState*> {
    const StoreLog::Turn turn(*log_);
    if (!turn.taken()) return turn.refusal().ToStatus();
    return AppendSnapshot(turn, blocks, first, last);
  }();
  if (state.ok()) Published({}, /*wake=*/true);
  return state;
}

WAYMARK_STEP_PATH absl::StatusOr<SnapshotState*> RoutingStore::Impl::AppendSnapshot(
    const StoreLog::Turn& turn, std::span<const BlockId> blocks, std::int64_t first,
    std::int64_t last) {
  const std::int64_t block_tokens = options_.block_tokens;
  const std::int64_t limit = static_cast<std::int64_t>(blocks.size()) * block_tokens;
  if (first < 0 || first > last || last > limit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TakeSnapshot: rows [", first, ", ", last, ") must satisfy 0 <= first <= last <= ", limit,
        " (", blocks.size(), " blocks of ", block_tokens, " tokens)"));
  }
  const std::int64_t end = (last + block_tokens - 1) / block_tokens;
  const std::int64_t begin = first == last ? end : first / block_tokens;
  const std::span<const BlockId> needed =
      blocks.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  if (const std::size_t bad = FirstNotBelow(needed, options_.num_blocks); bad < needed.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TakeSnapshot: blocks[", begin + static_cast<std::int64_t>(bad),
        "] must be below num_blocks (", options_.num_blocks, "), got ", needed[bad].value()));
  }
  SnapshotState* const state = TakeTicket();
  if (state == nullptr) {
    return absl::ResourceExhaustedError("TakeSnapshot: no memory for one more snapshot");
  }
  state->first = first;
  state->last = last;
  state->lost = false;
  state->ticket.Take();
  if (log_->TakeSnapshot(turn, state, needed, static_cast<std::uint32_t>(begin)).ok()) return state;
  // The log is full: no record will set the rest.
  state->pages.clear();
  state->read_id = 0;
  state->lost = true;
  (void)state->ticket.Apply();
  snapshots_without_room_.fetch_add(1, std::memory_order_relaxed);
  return state;
}

// ---- messages of a scheduler in another process

WAYMARK_STEP_PATH absl::Status RoutingStore::Impl::ReportMessage(
    std::span<const std::uint8_t> message) {
  absl::Status status;
  bool wake = false;
  {
    // Without it the message was not received: its number does not count.
    const StoreLog::Turn turn(*log_);
    if (!turn.taken()) return turn.refusal().ToStatus();
    try {
      status = AppendMessage(turn, message);
    } catch (const std::bad_alloc&) {
      status = absl::ResourceExhaustedError("");
      log_->LoseRecords(turn);
    }
    wake = std::any_of(message_.items.begin(), message_.items.end(), [](const ScheduleItem& item) {
      return item.kind == ScheduleItem::Kind::kSnapshot;
    });
  }
  Published({}, wake);
  return status;
}

WAYMARK_STEP_PATH absl::Status RoutingStore::Impl::AppendMessage(
    const StoreLog::Turn& turn, std::span<const std::uint8_t> message) {
  const auto refuse = [&](const absl::Status& why) {
    log_->LoseRecords(turn);
    return absl::Status(why.code(),
                        absl::StrCat(std::string(why.message()),
                                     "; the message is refused: nothing of it is applied, and all "
                                     "blocks lose their rows (capacity)"));
  };
  const ScheduleLimits limits{options_.num_blocks, options_.block_tokens};
  absl::StatusOr<ScheduleMessage> parsed =
      ParseScheduleMessage(message, limits, std::exchange(message_, {}));
  if (!parsed.ok()) return refuse(parsed.status());
  message_ = *std::move(parsed);
  const MessageVerdict verdict = message_order_.Next(message_.epoch, message_.sequence);
  if (verdict == MessageVerdict::kIgnore) return absl::OkStatus();
  // The sender before it may have used the same tags.
  if (verdict == MessageVerdict::kNewEpoch) tagged_.GiveUpAll();
  if (const absl::Status status = CheckMessage(turn); !status.ok()) {
    // Nobody gets rows under a tag that stands for two snapshots, or for one that was not taken.
    for (const ScheduleItem& item : message_.items) {
      if (item.kind != ScheduleItem::Kind::kEvents) (void)tagged_.Take(item.tag);
    }
    return refuse(status);
  }
  // Before the message, which is applied all the same.
  if (verdict != MessageVerdict::kApply) log_->LoseRecords(turn);
  return AppendItems(turn);
}

WAYMARK_STEP_PATH absl::Status RoutingStore::Impl::CheckMessage(const StoreLog::Turn& turn) {
  // The sender's checks are the log's, but for what only the receiver knows: the last step begun.
  const std::uint64_t step = message_.step.valid() ? message_.step.value() : 0;
  if (const StepCode code = log_->Check(turn, step, message_.events); !code.ok()) {
    return code.ToStatus("message.events");
  }
  std::unordered_map<std::uint64_t, bool> used;  // as far as the message says, by tag
  for (const ScheduleItem& item : message_.items) {
    if (item.kind == ScheduleItem::Kind::kEvents) continue;
    const bool takes = item.kind == ScheduleItem::Kind::kSnapshot;
    const auto [at, first] = used.try_emplace(item.tag, false);
    if (takes && (first ? tagged_.Has(item.tag) : at->second)) {
      return absl::AlreadyExistsError(
          absl::StrCat("message: a snapshot with tag ", item.tag, " waits already"));
    }
    at->second = takes;
  }
  return absl::OkStatus();
}

WAYMARK_STEP_PATH absl::Status RoutingStore::Impl::AppendItems(const StoreLog::Turn& turn) {
  absl::Status status;
  const auto append = [&](const StepCode& code) { status.Update(code.ToStatus()); };
  if (message_.step.valid()) append(log_->Schedule(turn, message_.step.value(), message_.version));
  for (const ScheduleItem& item : message_.items) {
    switch (item.kind) {
      case ScheduleItem::Kind::kEvents:
        append(log_->Report(turn, message_.EventsOf(item)));
        break;
      case ScheduleItem::Kind::kSnapshot: {
        absl::StatusOr<SnapshotState*> state =
            AppendSnapshot(turn, message_.BlocksOf(item), item.first, item.last);
        if (state.ok()) {
          tagged_.Add(item.tag, Snapshot(core_, *state));
        } else {
          status.Update(state.status());
          log_->LoseRecords(turn);
        }
        break;
      }
      case ScheduleItem::Kind::kForget:
        (void)tagged_.Take(item.tag);
        break;
    }
  }
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
    stats.pages_snapshots_only = pages_.pool().snapshots_only();
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
  stats.copied_out_bytes = core_->copied_bytes.load(std::memory_order_relaxed);
  stats.exceptions = core_->exceptions.load(std::memory_order_relaxed);
  try {
    stats.failure = core_->failure.text();
  } catch (const std::bad_alloc&) {  // then without them
  }
  return stats;
}

}  // namespace waymark
