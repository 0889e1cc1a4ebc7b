#include "blockstore/store/told_steps.h"

#include "blockstore/store/slot_code.h"

namespace waymark {

bool ToldSteps::FetchAhead() {
  const StoreLog::Mark end = log_.LoadEnd();
  if (told_.empty()) ahead_ = log_.LookAhead();
  while (told_.size() < kMostTold) {
    StoreLog::Ahead next = ahead_;
    RecordHeader* const record = log_.Next(next, end);
    if (record == nullptr) break;
    if (record->kind == RecordKind::kStep) {
      told_.push_back({reinterpret_cast<StepRecord*>(record), nullptr});
    }
    ahead_ = next;  // behind what may have thrown
  }
  waiting_ = false;
  bool any = false;
  for (std::size_t i = 1; i < told_.size(); ++i) {
    if (told_[i].fetched == nullptr || !told_[i].fetched->read()) any |= Fetch(told_[i]);
  }
  return any;
}

bool ToldSteps::Fetch(Told& told) {
  const StepRecord& record = *told.record;
  const bool ready = record.verdict.load(std::memory_order_acquire) == Verdict::kReady;
  if (!ready || record.rows == nullptr) return false;
  StepIds ids(record.rows);
  if (!ids.Poll()) {
    waiting_ = true;
    return false;
  }
  const bool device_slots = (record.header.flags & kStepDeviceSlots) != 0;
  slots_.resize(NumEncodedRows(record.slots()));
  DecodeSlots(record.slots(), slots_.data());
  if (told.fetched == nullptr) told.fetched = std::make_unique<FetchedRows>(core_.shape);
  const std::size_t before = told.fetched->bytes();
  const bool read = told.fetched->Read(ids, slots_, device_slots, ahead_bytes_ - used_);
  used_ += told.fetched->bytes() - before;
  if (!read) {
    waiting_ = true;
    return false;
  }
  fetched_.fetch_add(1, std::memory_order_relaxed);
  if (ids.threw()) core_.exceptions.fetch_add(1, std::memory_order_relaxed);
  core_.CallDone(record.rows);
  return true;
}

void ToldSteps::ReturnAbandoned(bool all) {
  std::erase_if(abandoned_, [&](StepRows* rows) {
    StepIds ids(rows);
    const bool come = ids.Poll();
    if (!come && !all) return false;
    if (!come) ids.GiveUp();
    core_.CallDone(rows);
    return true;
  });
}

}  // namespace waymark
