#include "blockstore/store/store_log.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <new>
#include <utility>

#include "blockstore/byte_io.h"
#include "blockstore/step_path.h"
#include "blockstore/store/clock.h"

namespace waymark {
namespace {

constexpr std::int32_t kInvalid = static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument);
constexpr std::int32_t kNotFound = static_cast<std::int32_t>(absl::StatusCode::kNotFound);
constexpr std::int32_t kExhausted = static_cast<std::int32_t>(absl::StatusCode::kResourceExhausted);
constexpr std::int32_t kPrecondition =
    static_cast<std::int32_t>(absl::StatusCode::kFailedPrecondition);

constexpr StepCode kBusy{kPrecondition, StepRule::kBusy, 0, 0};
constexpr StepCode kForked{kPrecondition, StepRule::kForked, 0, 0};

// The most bytes of the record of `events`; none is written if there are none.
std::size_t MaxEventsRecord(std::span<const Event> events) {
  return events.empty() ? 0 : sizeof(EventsRecord) + RoundUpRecord(events.size() * kMaxEventBytes);
}

// Writes a record of a fixed size to `out` and returns its end.
template <class Record>
std::uint8_t* Write(Record record, RecordKind kind, std::uint8_t* out) {
  static_assert(sizeof(Record) % 8 == 0);
  record.header.bytes = sizeof(Record);
  record.header.kind = kind;
  std::memcpy(out, &record, sizeof(Record));
  return out + sizeof(Record);
}

}  // namespace

absl::StatusOr<StoreLog::Pointer> StoreLog::Create(const LogLimits& limits, ForkGuard& guard) {
  auto overflow = PageMemory::Map(limits.overflow_bytes);
  if (!overflow.ok()) return overflow.status();
  static_assert(alignof(StoreLog) <= ForkGuard::kAlignment);
  const std::size_t open_at = sizeof(StoreLog);
  const std::size_t open_bytes = limits.max_steps_in_flight * sizeof(OpenStep);
  const std::size_t ring_at = open_at + (open_bytes + 63) / 64 * 64;
  auto memory = ForkGuard::Create(ring_at + limits.ring_bytes);
  if (!memory.ok()) return memory.status();
  guard = *std::move(memory);
  auto* const begin = static_cast<std::uint8_t*>(guard.memory());
  // Touched, so that the first steps do not fault.
  std::memset(begin + ring_at, 0, limits.ring_bytes);
  return Pointer(new (begin) StoreLog(limits, reinterpret_cast<OpenStep*>(begin + open_at),
                                      {begin + ring_at, limits.ring_bytes}, *std::move(overflow)));
}

StoreLog::StoreLog(const LogLimits& limits, OpenStep* open, std::span<std::uint8_t> ring,
                   PageMemory overflow)
    : limits_(limits),
      open_(open),
      ring_(ring),
      overflow_memory_(std::move(overflow)),
      overflow_({overflow_memory_.data(), overflow_memory_.size()}) {
  move_blocks_.reserve(1024);
}

// ---- room

WAYMARK_STEP_PATH std::uint8_t* StoreLog::Room(std::size_t bytes) {
  if (overflowing_ && overflow_.Drained()) overflowing_ = false;
  if (!overflowing_) {
    target_ = &ring_;
    std::uint8_t* const at = ring_.Reserve(bytes);
    if (at != nullptr) return at;
    // Records of the ring stand before all of the overflow, so this lasts until all are applied.
    overflowing_ = true;
  }
  target_ = &overflow_;
  return overflow_.Reserve(bytes);
}

WAYMARK_STEP_PATH void StoreLog::Append(std::initializer_list<std::size_t> records) {
  for (const std::size_t bytes : records)
    if (bytes != 0) target_->Commit(bytes);
  target_->Publish();
}

StepCode StoreLog::Full() {
  NoteLoss(Cause::kLogFull);
  ++lost_count_;
  return {kExhausted, StepRule::kLogFull, 0, static_cast<std::int64_t>(lost_count_)};
}

void StoreLog::SetSteps(std::uint64_t last, std::uint64_t schedule, std::uint64_t version) {
  last_ = last;
  schedule_ = schedule;
  version_ = version;
}

WAYMARK_STEP_PATH bool StoreLog::SettleLoss() {
  if (loss_ == Cause::kNone) return true;
  std::uint8_t* const at = Room(sizeof(PoisonRecord));
  if (at == nullptr) return false;
  const PoisonRecord poison{{}, last_, version_, static_cast<std::uint64_t>(loss_)};
  Write(poison, RecordKind::kPoison, at);
  Append({sizeof(PoisonRecord)});
  loss_ = Cause::kNone;
  return true;
}

// ---- the engine's thread

StepCode StoreLog::Refused() const {
  return alive_ ? kBusy : kForked;
}

WAYMARK_STEP_PATH StepCode StoreLog::WriteEvents(std::span<const Event> events,
                                                 std::uint64_t last_seal, std::uint8_t* out,
                                                 std::size_t* bytes) try {
  const EventLimits limits = {limits_.slots.num_blocks, limits_.slots.block_tokens, last_seal};
  if (out == nullptr) return CheckEvents(events, limits, move_blocks_);
  if (events.empty()) return {};
  EventsRecord record;
  std::size_t event_bytes = 0;
  const StepCode code =
      EncodeEvents(events, limits, move_blocks_, out + sizeof(record), &event_bytes);
  if (!code.ok()) return code;
  *bytes = sizeof(record) + RoundUpRecord(event_bytes);
  record.header = {static_cast<std::uint32_t>(*bytes), RecordKind::kEvents, 0};
  record.event_bytes = event_bytes;
  std::memcpy(out, &record, sizeof(record));
  return {};
} catch (const std::bad_alloc&) {
  return Full();  // of a group of Moves, which cannot be checked
}

StepCode StoreLog::CheckStep(std::uint64_t step) const {
  const auto value = static_cast<std::int64_t>(step);
  if (step <= last_ || step >= kStepLimit) {
    return {kInvalid, StepRule::kStepNotIncreasing, last_, value};
  }
  if (last_ == 0 || step - last_ <= kMaxStepJump) return {};
  return {kInvalid, StepRule::kStepJump, last_, value};
}

WAYMARK_STEP_PATH StepCode StoreLog::Schedule(std::uint64_t step, std::uint64_t version) {
  const Turn turn(*this);
  if (!turn.taken()) return Refused();
  if (step < schedule_) {
    return {kInvalid, StepRule::kStepNotIncreasing, schedule_, static_cast<std::int64_t>(step)};
  }
  if (const StepCode code = CheckStep(step); !code.ok()) return code;
  schedule_ = step;
  version_ = version;
  if (!SettleLoss()) return Full();
  std::uint8_t* const at = Room(sizeof(ScheduleRecord));
  if (at == nullptr) return Full();
  Write(ScheduleRecord{{}, step, version}, RecordKind::kSchedule, at);
  Append({sizeof(ScheduleRecord)});
  return {};
}

WAYMARK_STEP_PATH StepCode StoreLog::Report(std::span<const Event> events) {
  const Turn turn(*this);
  if (!turn.taken()) return Refused();
  if (events.empty()) return {};
  std::uint8_t* const at = SettleLoss() ? Room(MaxEventsRecord(events)) : nullptr;
  std::size_t bytes = 0;
  const StepCode code = WriteEvents(events, last_seal(), at, &bytes);
  if (!code.ok()) return code;
  if (at == nullptr) return Full();
  Append({bytes});
  return {};
}

StepCode StoreLog::LoseRecords() {
  const Turn turn(*this);
  if (!turn.taken()) return Refused();
  NoteLoss(Cause::kEventsLost);
  (void)SettleLoss();  // now, if there is room: what is appended next is not lost
  return {};
}

WAYMARK_STEP_PATH StepCode StoreLog::Begin(const StepBatch& batch) {
  const Turn turn(*this);
  if (!turn.taken()) return Refused();
  if (batch.step - last_ - 1 >= kMaxStepJump || batch.step >= kStepLimit) {
    if (const StepCode code = CheckStep(batch.step); !code.ok()) return code;
  }
  if (batch.step < schedule_) {
    return {kPrecondition, StepRule::kScheduleAhead, 0, static_cast<std::int64_t>(schedule_)};
  }
  const std::size_t rows = std::min<std::size_t>(NumRows(batch), limits_.slots.max_step_rows);

  // One room for all of it, so that events and slots are validated while they are written.
  const std::span<const Event> events = batch.event_span();
  const std::size_t schedule_bytes = events.empty() ? 0 : sizeof(ScheduleRecord);
  const std::size_t bytes = schedule_bytes + MaxEventsRecord(events) + sizeof(StepRecord) +
                            RoundUpRecord(MaxEncodedBytes(rows, limits_.slots));
  const bool settled = SettleLoss();
  std::uint8_t* const room = settled ? Room(bytes) : nullptr;
  std::uint8_t* at = room;
  if (room != nullptr && !events.empty()) {
    at = Write(ScheduleRecord{{}, batch.step, batch.version}, RecordKind::kSchedule, at);
  }
  std::size_t event_bytes = 0;
  const StepCode code = WriteEvents(events, batch.step, at, &event_bytes);
  if (!code.ok()) return code;
  if (room == nullptr) {
    last_ = batch.step;
    version_ = batch.version;
    if (batch.step >= schedule_) schedule_ = 0;
    return Full();
  }
  at += event_bytes;
  std::size_t slot_bytes = 0;
  const StepCode slots = EncodeSlots(batch, limits_.slots, at + sizeof(StepRecord), &slot_bytes);
  if (!slots.ok()) return slots;

  StepCode answer;
  auto* const record = new (at) StepRecord;
  const bool full = num_open_ >= limits_.max_steps_in_flight;
  if (full || batch.drop) {
    record->header.flags |= full ? kStepFull | kStepNoBuffer : kStepNoBuffer;
    record->verdict.store(Verdict::kLost, std::memory_order_relaxed);
    answer = {kExhausted, StepRule::kRingFull, 0, static_cast<std::int64_t>(num_open_)};
  } else {
    open_[num_open_++] = {batch.step, record};
  }
  record->header.kind = RecordKind::kStep;
  const std::size_t record_bytes = sizeof(StepRecord) + RoundUpRecord(slot_bytes);
  record->step = batch.step;
  record->version = batch.version;
  record->told_at = TicksNow();
  record->slot_bytes = slot_bytes;
  Append({schedule_bytes, event_bytes, record_bytes});
  last_ = batch.step;
  version_ = batch.version;
  schedule_ = 0;
  return answer;
}

WAYMARK_STEP_PATH StepCode StoreLog::Decide(std::uint64_t step, Verdict verdict, StepRows* rows,
                                            std::uint16_t flags) {
  const Turn turn(*this);
  if (!turn.taken()) return Refused();
  OpenStep* const at = std::find_if(open_, open_ + num_open_,
                                    [step](const OpenStep& open) { return open.step == step; });
  if (at == open_ + num_open_) {
    return {kNotFound, StepRule::kStepNotInFlight, 0, static_cast<std::int64_t>(step)};
  }
  StepRecord& record = *at->record;
  *at = open_[--num_open_];
  record.rows = rows;
  record.header.flags |= flags;
  record.decided_at = TicksNow();
  record.verdict.store(verdict, std::memory_order_release);
  verdicts_.store(verdicts_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  return {};
}

WAYMARK_STEP_PATH StepCode StoreLog::Submit(std::uint64_t step, StepRows* rows) {
  return Decide(step, Verdict::kReady, rows);
}

WAYMARK_STEP_PATH StepCode StoreLog::End(std::uint64_t step, StepEnd how, bool no_room) {
  return Decide(step, how == StepEnd::kDrop ? Verdict::kLost : Verdict::kNotRun, nullptr,
                no_room ? kStepFull | kStepNoBuffer : 0);
}

WAYMARK_STEP_PATH StepCode StoreLog::TakeSnapshot(const Turn& /*turn*/, SnapshotRecord record,
                                                  std::span<const BlockId> blocks,
                                                  const SnapshotOwner& owner) {
  std::span<const BlockKey> keys = owner.keys;
  keys = keys.subspan(std::min<std::size_t>(record.skipped, keys.size()));
  keys = keys.first(std::min(blocks.size(), keys.size()));
  const std::size_t block_bytes = RoundUpRecord(blocks.size_bytes());
  const std::size_t owner_bytes =
      owner.given() ? sizeof(SnapshotOwnerRecord) + RoundUpRecord(keys.size_bytes()) : 0;
  const std::size_t bytes = sizeof(record) + block_bytes + owner_bytes;
  std::uint8_t* const at = SettleLoss() ? Room(bytes) : nullptr;
  if (at == nullptr) return {kExhausted, StepRule::kLogFull, 0, 0};
  const std::uint16_t flags = owner.given() ? kSnapshotOwner : 0;
  record.header = {static_cast<std::uint32_t>(bytes), RecordKind::kSnapshot, flags};
  record.num_blocks = static_cast<std::uint32_t>(blocks.size());
  RawWriter writer(at);
  writer.Put(record);
  writer.PutBytes(blocks.data(), blocks.size_bytes());
  if (owner.given()) {
    RawWriter behind(at + sizeof(record) + block_bytes);
    behind.Put(SnapshotOwnerRecord{owner.last_step, keys.size()});
    behind.PutBytes(keys.data(), keys.size_bytes());
  }
  Append({bytes});
  return {};
}

// ---- the thread that holds the store's lock

StoreLog::Mark StoreLog::LoadEnd() const {
  // The overflow first: its records stand behind those of the ring that were published before.
  Mark end;
  end.overflow = overflow_.LoadTail();
  end.ring = ring_.LoadTail();
  return end;
}

namespace {

// The ring is read by one thread, which may change what it reads.
RecordHeader* Record(const std::uint8_t* at) {
  return reinterpret_cast<RecordHeader*>(const_cast<std::uint8_t*>(at));
}

}  // namespace

RecordHeader* StoreLog::Front(const Mark& end) {
  front_ = &ring_;
  const std::uint8_t* record = ring_.Front(end.ring);
  if (record == nullptr) {
    front_ = &overflow_;
    record = overflow_.Front(end.overflow);
  }
  return Record(record);
}

RecordHeader* StoreLog::Next(Ahead& ahead, const Mark& end) const {
  const std::uint8_t* record = ring_.Next(ahead.ring, end.ring);
  if (record == nullptr) record = overflow_.Next(ahead.overflow, end.overflow);
  return Record(record);
}

void StoreLog::Pop() {
  front_->Pop();
}

void StoreLog::Retire() {
  ring_.Retire();
  overflow_.Retire();
}

bool StoreLog::HasRecords() const {
  return !overflow_.Empty() || !ring_.Empty();
}

}  // namespace waymark
