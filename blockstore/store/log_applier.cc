#include "blockstore/store/log_applier.h"

#include <algorithm>

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
                       Steps& steps, EventApplier& events, Stats& stats)
    : core_(core),
      log_(log),
      pages_(pages),
      steps_(steps),
      events_(events),
      stats_(stats),
      caller_lands_(options.landing != Landing::kThread),
      derived_(options.num_blocks, options.block_tokens, options.max_step_rows),
      slots_(options.max_step_rows) {
  refused_.reserve(options.max_steps_in_flight);
  piece_.reserve(std::max(EventReader::kPiece, DerivedEvents::kPiece));
}

std::size_t LogApplier::Apply(std::size_t records, std::size_t bytes) noexcept {
  const StoreLog::Mark end = log_.LoadEnd();
  std::size_t applied = 0;
  for (std::size_t freed = 0; applied < records && freed < bytes; ++applied) {
    const RecordHeader* const record = log_.Front(end);
    if (record == nullptr) break;
    freed += record->bytes;
    if (!TryApply(*record)) Discard(*record);
    log_.Pop();
    // The engine's thread may be short of room.
    if (applied % kRecordsPerRetire == kRecordsPerRetire - 1) log_.Retire();
  }
  log_.Retire();
  stats_.log_records += applied;
  return applied;
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

// ---- a store that has failed

void LogApplier::Discard(const RecordHeader& record) noexcept {
  if (record.kind == RecordKind::kSubmit) {
    Refuse(As<SubmitRecord>(record).rows);
  } else if (record.kind == RecordKind::kSnapshot) {
    SnapshotState& state = *As<SnapshotRecord>(record).state;
    state.lost = true;
    state.upto = state.copies = state.read_id = 0;
    if (state.ticket.Apply()) core_.FreeTicket(&state);
  }
}

void LogApplier::GiveUpSubmitted() noexcept {
  while (const StepRecord* const record = steps_.TakeAnySubmitted())
    Refuse(record->rows);
}

void LogApplier::Drop(StepRecord& record) noexcept {
  try {
    End(record, StepEnd::kDrop);
  } catch (...) {
    core_.failure.Catch("dropping a step");
  }
}

// ---- rows that will not land

void LogApplier::Refuse(StepRows* rows) {
  if (rows == nullptr) return core_.CountEnded();
  refused_.push_back(rows);
}

StepRows* LogApplier::TakeRefused() {
  if (refused_.empty()) return nullptr;
  StepRows* const rows = refused_.back();
  refused_.pop_back();
  core_.CountEnded();
  return rows;
}

// ---- records

void LogApplier::ApplyOne(const RecordHeader& record) {
  switch (record.kind) {
    case RecordKind::kSchedule:
      return ApplySchedule(As<ScheduleRecord>(record).step, As<ScheduleRecord>(record).version);
    case RecordKind::kEvents:
      return ApplyEvents(As<EventsRecord>(record));
    case RecordKind::kBegin:
      return ApplyBegin(As<BeginRecord>(record));
    case RecordKind::kSubmit:
      return ApplySubmit(As<SubmitRecord>(record));
    case RecordKind::kDrop:
      return ApplyEnd(As<EndRecord>(record).step, StepEnd::kDrop);
    case RecordKind::kCancel:
      return ApplyEnd(As<EndRecord>(record).step, StepEnd::kCancel);
    case RecordKind::kSnapshot:
      return ApplySnapshot(As<SnapshotRecord>(record));
    case RecordKind::kPoison:
      return Poison(As<PoisonRecord>(record).open(), As<PoisonRecord>(record).last,
                    As<PoisonRecord>(record).version);
  }
}

void LogApplier::ApplySchedule(std::uint64_t step, std::uint64_t version) {
  if (core_.flight != nullptr) core_.flight->OnSchedule(step, version);
  schedule_ = step;
  events_.SetVersion(version);
}

void LogApplier::ApplyEvents(const EventsRecord& record) {
  EventReader reader(record.events());
  while (reader.Next(piece_))
    ApplyPiece();
}

void LogApplier::ApplyPiece() {
  pages_.ReclaimFor(piece_.size() * pages_.pages_per_block());
  if (core_.flight != nullptr) core_.flight->OnEvents(piece_);
  events_.Apply(piece_, last_);
}

void LogApplier::ApplyDerivedEvents(const StepBatch& batch) {
  derived_.Start(batch.slot_span());
  bool any = false;
  while (derived_.Next(piece_)) {
    if (!any) ApplySchedule(batch.step, batch.version);
    any = true;
    ApplyPiece();
  }
}

// ---- steps

void LogApplier::ApplyBegin(const BeginRecord& begin) {
  stats_.log_lag.Add(ticks_.NanosecondsSince(begin.reported_at));
  const EncodedSlots coded(begin.slots());
  coded.Decode(slots_.data());
  const StepBatch batch{
      .step = begin.step,
      .version = begin.version,
      .slots = slots_.data(),
      .num_slots = coded.num_rows(),
      .device_slots = (begin.header.flags & kBeginDeviceSlots) != 0,
  };
  if ((begin.header.flags & kBeginDerives) != 0) ApplyDerivedEvents(batch);
  pages_.ReclaimFor(batch.num_slots);
  events_.Begin(begin.version);
  last_ = begin.step;
  schedule_ = 0;
  ++stats_.steps_begun;
  stats_.steps_refused_ring += (begin.header.flags & kBeginFull) != 0 ? 1 : 0;
  if (caller_lands_) pages_.ReclaimSnapshots(2);

  StepRecord* record = nullptr;
  const bool dropped = (begin.header.flags & kBeginDropped) != 0;
  if (!steps_.MakeRoomFor(begin.step, begin.version)) {
    ++stats_.steps_while_wrapping;
    // The engine's thread could not know, and will end the step.
    if (!dropped) (void)steps_.BeginWithoutClaims(batch);
  } else if (!dropped) {
    record = steps_.Begin(batch);
  }
  if (record == nullptr) ++stats_.steps_dropped;
  if (core_.flight != nullptr) core_.flight->OnBegin(batch, record == nullptr);

  steps_.ClaimRows(record, batch);
  events_.ApplyOwnSeals(begin.step);
  pages_.ContendClaimed(pages_.base().Relative(begin.step));
}

void LogApplier::ApplySubmit(const SubmitRecord& submit) {
  StepRecord* const record = steps_.Find(submit.step);
  if (record == nullptr || record->state != StepRecord::State::kBegun) {
    return Refuse(submit.rows);
  }
  // First what may throw: a step that is submitted is not refused, too.
  if (core_.flight != nullptr && !record->without_claims) {
    core_.flight->OnEnd(submit.step, StepEnd::kSubmit);
  }
  steps_.Submit(*record, submit.rows, submit.reported_at);
}

void LogApplier::ApplyEnd(std::uint64_t step, StepEnd how) {
  StepRecord* const record = steps_.Find(step);
  if (record != nullptr && record->state == StepRecord::State::kBegun) End(*record, how);
}

void LogApplier::End(StepRecord& record, StepEnd how) {
  if (!record.without_claims) {
    steps_.Revoke(record, how);
    ++(how == StepEnd::kDrop ? stats_.steps_dropped : stats_.steps_cancelled);
    if (core_.flight != nullptr) core_.flight->OnEnd(record.step, how);
  }
  steps_.Retire(record);
}

// ---- snapshots

void LogApplier::ApplySnapshot(const SnapshotRecord& snapshot) {
  SnapshotState& state = *snapshot.state;
  pages_.PinSnapshot(state, snapshot.blocks());
  state.upto = last_;
  state.copies = pages_.copies_queued();
  if (core_.flight != nullptr) {
    // Blocks before the range are not in the record, and no row of them is read.
    blocks_.assign(snapshot.skipped, BlockId::Invalid());
    blocks_.insert(blocks_.end(), snapshot.blocks().begin(), snapshot.blocks().end());
    core_.flight->OnSnapshot(state.read_id, blocks_, state.first, state.last);
  }
  if (state.ticket.Apply()) pages_.ReclaimSnapshot(state);
}

// ---- lost records

// What was lost may have bound, freed or rewritten any block, so no row of the table is known to
// belong to its block any more. Live snapshots saw what was appended before them.
void LogApplier::Poison(std::span<const std::uint64_t> open, std::uint64_t last,
                        std::uint64_t version) {
  ++stats_.log_losses;
  if (core_.flight != nullptr) core_.flight->OnPoison(open, last, version);
  steps_.VoidAll(open);
  // A late event may name the last step, although its begin was lost.
  const RelStep relative = pages_.base().Relative(last);
  if (last > last_ && relative < kMaxRelStep) (void)pages_.base().Append(relative, version);
  last_ = last;
  schedule_ = 0;
  events_.Forget(version);
  pages_.ForgetBlocks();
}

}  // namespace waymark
