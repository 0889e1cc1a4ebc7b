#include "blockstore/store/told_steps.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "blockstore/events.h"
#include "blockstore/store/slot_code.h"

namespace waymark {
namespace {

constexpr std::size_t kLandedRows = 64;  // rows per call of StepRows::Land

}  // namespace

bool FetchedRows::Read(StepIds& ids, std::span<const std::int64_t> batch, bool device_slots,
                       std::size_t room) {
  if (device_slots && !has_slots_) {
    slots_ = ids.Slots();
    has_slots_ = true;
  }
  const std::size_t rows = !device_slots ? batch.size() : slots_.has_value() ? slots_->size() : 0;
  const std::size_t slot_bytes = slots_.has_value() ? sizeof(std::int64_t) : 0;
  if (rows * (row_bytes_ + 1 + layers_ + slot_bytes) > room) return false;
  if (slots_.has_value()) {
    kept_slots_.assign(slots_->begin(), slots_->end());
    slots_ = kept_slots_;
  }
  ids_.resize(rows * row_bytes_);
  verdicts_.assign(rows, Reason::kNotCaptured);
  const std::vector<bool> asked = AskedOf(batch, device_slots);
  std::uint8_t* destinations[kLandedRows];
  for (std::size_t first = 0; first < rows; first += kLandedRows) {
    const std::size_t n = std::min(kLandedRows, rows - first);
    for (std::size_t i = 0; i < n; ++i) {
      const bool wanted = asked.empty() || asked[first + i];
      destinations[i] = wanted ? ids_.data() + (first + i) * row_bytes_ : nullptr;
    }
    ids.Land(static_cast<std::uint32_t>(first), {destinations, n},
             std::span(verdicts_).subspan(first, n));
  }
  // What the audit compares of the others.
  for (std::size_t row = 0; row < rows; ++row) {
    if (verdicts_[row] == Reason::kNone) continue;
    if (written_.empty()) written_.resize(rows * layers_);
    (void)ids.LandLayers(static_cast<std::uint32_t>(row), ids_.data() + row * row_bytes_,
                         std::span(written_).subspan(row * layers_, layers_));
  }
  read_ = true;
  return true;
}

std::vector<bool> FetchedRows::AskedOf(std::span<const std::int64_t> batch,
                                       bool device_slots) const {
  const auto asks = [](std::int64_t slot) { return slot >= 0; };
  if (!device_slots) {
    if (std::all_of(batch.begin(), batch.end(), asks)) return {};
    std::vector<bool> asked(batch.size());
    std::transform(batch.begin(), batch.end(), asked.begin(), asks);
    return asked;
  }
  std::vector<std::int64_t> of_range;
  std::copy_if(batch.begin(), batch.end(), std::back_inserter(of_range), asks);
  std::sort(of_range.begin(), of_range.end());
  std::vector<bool> asked;
  for (std::size_t i = 0; slots_.has_value() && i < slots_->size(); ++i) {
    const std::int64_t slot = (*slots_)[i];
    asked.push_back(std::binary_search(of_range.begin(), of_range.end(),
                                       slot < kPaddingSlot ? NotAsked(slot) : slot));
  }
  return asked;
}

void FetchedRows::Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
                       std::span<Reason> verdicts) {
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    if (destinations[i] == nullptr) continue;
    verdicts[i] = verdicts_[first + i];
    if (verdicts[i] != Reason::kNone) continue;
    std::memcpy(destinations[i], ids_.data() + (first + i) * row_bytes_, row_bytes_);
  }
}

bool FetchedRows::LandLayers(std::uint32_t row, std::uint8_t* destination,
                             std::span<std::uint8_t> written) {
  if (verdicts_[row] == Reason::kNone) {
    std::fill(written.begin(), written.end(), std::uint8_t{1});
  } else if (written_.empty()) {
    std::fill(written.begin(), written.end(), std::uint8_t{0});
  } else {
    const auto layers = std::span(written_).subspan(row * layers_, layers_);
    std::copy(layers.begin(), layers.end(), written.begin());
  }
  std::memcpy(destination, ids_.data() + row * row_bytes_, row_bytes_);
  return std::any_of(written.begin(), written.end(), [](std::uint8_t layer) { return layer != 0; });
}

ToldSteps::ToldSteps(const StoreOptions& options, StoreCore& core, StoreLog& log)
    : core_(core),
      log_(log),
      ahead_bytes_(options.ahead_bytes),
      block_tokens_(options.block_tokens) {
  for (const BlockId block : options.null_blocks)
    null_blocks_.push_back(block.value());
  std::sort(null_blocks_.begin(), null_blocks_.end());
}

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
  const auto in_null_block = [this](std::int64_t slot) {
    const std::int64_t known = slot < kPaddingSlot ? NotAsked(slot) : slot;
    return std::binary_search(null_blocks_.begin(), null_blocks_.end(), known / block_tokens_);
  };
  if (!null_blocks_.empty()) {
    std::replace_if(slots_.begin(), slots_.end(), in_null_block, kPaddingSlot);
  }
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
