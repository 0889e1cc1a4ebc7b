#include "blockstore/store/log_applier.h"

#include <algorithm>
#include <span>

#include "blockstore/store/clock.h"
#include "blockstore/store/event_code.h"
#include "blockstore/store/slot_code.h"

namespace waymark {
namespace {

constexpr std::size_t kRecordsPerRetire = 16;

// `record` as the struct of its kind.
template <class Record>
const Record& As(const RecordHeader& record) {
  return reinterpret_cast<const Record&>(record);
}

}  // namespace

LogApplier::LogApplier(const StoreOptions& options, StoreCore& core, StoreLog& log, Pages& pages,
                       EventApplier& events, Stats& stats)
    : core_(core),
      log_(log),
      pages_(pages),
      events_(events),
      stats_(stats),
      caller_lands_(options.landing != Landing::kThread),
      slots_(options.max_step_rows) {
  piece_.reserve(EventReader::kPiece);
}

std::size_t LogApplier::Apply(std::size_t records) noexcept {
  const StoreLog::Mark end = log_.LoadEnd();
  std::size_t applied = 0;
  for (front_ = nullptr;; ++applied) {
    RecordHeader* const record = log_.Front(end);
    if (record == nullptr) break;
    if (record->kind == RecordKind::kStep) {
      front_ = reinterpret_cast<StepRecord*>(record);
      break;
    }
    if (applied == records) break;
    if (!TryApply(*record)) Discard(*record);
    log_.Pop();
    // Pairs pin their pages: they are compared before the next record.
    if (!pages_.second_seals().empty()) records = applied + 1;
    // The engine's thread may be short of room.
    if (applied % kRecordsPerRetire == kRecordsPerRetire - 1) log_.Retire();
  }
  log_.Retire();
  stats_.log_records += applied;
  return applied;
}

void LogApplier::PopFront() noexcept {
  front_ = nullptr;
  log_.Pop();
  log_.Retire();
  ++stats_.log_records;
}

bool LogApplier::TryApply(const RecordHeader& record) noexcept {
  if (core_.failure.failed()) return false;
  try {
    ApplyOne(record);
    return true;
  } catch (...) {
    core_.failure.Catch("applying the log");
    return false;
  }
}

// Of a store that has failed.
void LogApplier::Discard(const RecordHeader& record) noexcept {
  if (record.kind != RecordKind::kSnapshot) return;
  SnapshotState& state = *As<SnapshotRecord>(record).state;
  state.lost = Cause::kStoreFailed;
  state.read_id = 0;
  if (state.ticket.Apply()) core_.FreeTicket(&state);
}

// ---- records

void LogApplier::ApplyOne(const RecordHeader& record) {
  switch (record.kind) {
    case RecordKind::kSchedule: {
      const auto& schedule = As<ScheduleRecord>(record);
      RecordSchedule(schedule.step, schedule.version);
      return OpenSchedule(schedule.step, schedule.version);
    }
    case RecordKind::kEvents:
      return ApplyEvents(As<EventsRecord>(record));
    case RecordKind::kSnapshot:
      return ApplySnapshot(As<SnapshotRecord>(record));
    case RecordKind::kPoison: {
      const auto& poison = As<PoisonRecord>(record);
      return Poison(poison.last, poison.version, static_cast<Cause>(poison.cause));
    }
    case RecordKind::kStep:  // front()
      return;
  }
}

void LogApplier::RecordSchedule(std::uint64_t step, std::uint64_t version) {
  if (core_.flight == nullptr) return;
  core_.flight->On({.kind = FlightRecordKind::kSchedule, .step = step, .version = version});
}

void LogApplier::OpenSchedule(std::uint64_t step, std::uint64_t version) {
  // Rule 6: no step was told in the schedule before.
  if (schedule_ != 0 && schedule_ != step) events_.DiscardOwnSeals();
  schedule_ = step;
  events_.SetVersion(version);
}

void LogApplier::ApplyEvents(const EventsRecord& record) {
  EventReader reader(record.events());
  while (reader.Next(piece_)) {
    pages_.ReclaimFor(piece_.size() * pages_.pages_per_block());
    if (core_.flight != nullptr) {
      core_.flight->On({.kind = FlightRecordKind::kEvents, .events = piece_});
    }
    // A life that begins between two steps is not of the one before it.
    events_.Apply(piece_, last_, schedule_ != 0 ? schedule_ : last_ + 1);
  }
}

// ---- the step whose turn it is

StepToWrite LogApplier::Begin(Verdict verdict) {
  const StepRecord& record = *front_;
  stats_.log_lag.Add(ticks_.NanosecondsSince(record.told_at));
  DecodeSlots(record.slots(), slots_.data());
  const std::span<const std::int64_t> slots(slots_.data(), NumEncodedRows(record.slots()));

  OpenSchedule(record.step, record.version);
  const bool runs = verdict != Verdict::kNotRun;
  pages_.ReclaimFor(slots.size());
  if (caller_lands_) pages_.ReclaimSnapshots(2);
  // What was told since the step before is of this step's version, whatever its number.
  core_.versions.Append(last_ + 1, record.version);
  if (runs) events_.ForgetKeyedBinds();
  last_ = record.step;
  schedule_ = 0;

  ++stats_.steps_begun;
  stats_.steps_without_room += (record.header.flags & kStepFull) != 0 ? 1 : 0;
  stats_.steps_dropped += verdict == Verdict::kLost ? 1 : 0;
  stats_.steps_cancelled += runs ? 0 : 1;
  if (core_.flight != nullptr) {
    const StepEnd end = verdict == Verdict::kReady ? StepEnd::kSubmit
                        : runs                     ? StepEnd::kDrop
                                                   : StepEnd::kCancel;
    core_.flight->On({.kind = FlightRecordKind::kStep,
                      .step = record.step,
                      .version = record.version,
                      .end = end,
                      .slots = slots});
  }
  Why lost = Reason::kNotCaptured;
  if (verdict == Verdict::kLost) {
    const bool no_buffer = (record.header.flags & kStepNoBuffer) != 0;
    lost = no_buffer ? Cause::kNoBuffer : Cause::kStepDropped;
  }
  return {record.step, record.version, slots, lost};
}

void LogApplier::End(const StepToWrite& step, Verdict verdict) {
  if (verdict == Verdict::kNotRun) return events_.DiscardOwnSeals();
  events_.ApplyOwnSeals(step.step);
  pages_.ContendWritten(step.version);
  if (verdict != Verdict::kReady) return;
  ++stats_.steps_landed;
  if (core_.flight != nullptr) {
    core_.flight->On({.kind = FlightRecordKind::kLanded, .step = step.step});
  }
  if (front_->rows != nullptr) stats_.landing_lag.Add(ticks_.NanosecondsSince(front_->decided_at));
}

// ---- snapshots

void LogApplier::ApplySnapshot(const SnapshotRecord& snapshot) {
  SnapshotState& state = *snapshot.state;
  const SnapshotOwner owner = snapshot.owner();
  pages_.PinSnapshot(state, snapshot.blocks(), owner, last_);
  if (core_.flight != nullptr) {
    // Blocks before the range are not in the record, and no row of them is read.
    blocks_.assign(snapshot.skipped, BlockId::Invalid());
    blocks_.insert(blocks_.end(), snapshot.blocks().begin(), snapshot.blocks().end());
    keys_.assign(owner.keys.empty() ? 0 : snapshot.skipped, BlockKey{});
    keys_.insert(keys_.end(), owner.keys.begin(), owner.keys.end());
    core_.flight->On({.kind = FlightRecordKind::kSnapshot,
                      .read_id = state.read_id,
                      .first = state.first,
                      .last = state.last,
                      .last_step = owner.last_step,
                      .blocks = blocks_,
                      .keys = keys_});
  }
  if (state.ticket.Apply()) pages_.ReclaimSnapshot(state);
}

// ---- lost records

// What was lost may have bound, freed or rewritten any block, so no row of the table is known to
// belong to its block any more. Live snapshots saw what was appended before them.
void LogApplier::Poison(std::uint64_t last, std::uint64_t version, Cause cause) {
  ++stats_.log_losses;
  if (core_.flight != nullptr) {
    core_.flight->On({.kind = FlightRecordKind::kPoison, .step = last, .version = version});
  }
  // A late event may name the last step, although its record was lost.
  if (last > last_) core_.versions.Append(last, version);
  last_ = std::max(last, last_);
  schedule_ = 0;
  events_.Forget(version);
  pages_.ForgetBlocks(cause);
}

}  // namespace waymark
