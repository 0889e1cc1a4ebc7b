#include "blockstore/store/told_steps.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "blockstore/events.h"
#include "blockstore/store/slot_code.h"

namespace waymark {
namespace {

constexpr std::size_t kLandedRows = 64;  // rows per call of StepRows::Land

}  // namespace

bool FetchedRows::Read(StepIds& ids, std::span<const std::int64_t> slots, std::size_t room) {
  const std::size_t rows = slots.size();
  if (rows * (row_bytes_ + 1 + layers_) > room) return false;
  ids_.resize(rows * row_bytes_);
  verdicts_.assign(rows, Reason::kNotCaptured);
  std::uint8_t* destinations[kLandedRows];
  for (std::size_t first = 0; first < rows; first += kLandedRows) {
    const std::size_t n = std::min(kLandedRows, rows - first);
    for (std::size_t i = 0; i < n; ++i) {
      // The faults of rows that did not ask, and of padding, are not counted.
      const bool asked = slots[first + i] >= 0;
      destinations[i] = asked ? ids_.data() + (first + i) * row_bytes_ : nullptr;
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
  return true;
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
    if (told_[i].fetched == nullptr) any |= Fetch(told_[i]);
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
  slots_.resize(NumEncodedRows(record.slots()));
  DecodeSlots(record.slots(), slots_.data());
  const auto in_null_block = [this](std::int64_t slot) {
    const std::int64_t known = slot < kPaddingSlot ? NotAsked(slot) : slot;
    return std::binary_search(null_blocks_.begin(), null_blocks_.end(), known / block_tokens_);
  };
  if (!null_blocks_.empty()) {
    std::replace_if(slots_.begin(), slots_.end(), in_null_block, kPaddingSlot);
  }
  auto fetched = std::make_unique<FetchedRows>(core_.shape);
  if (!fetched->Read(ids, slots_, ahead_bytes_ - used_)) {
    waiting_ = true;
    return false;
  }
  used_ += fetched->bytes();
  told.fetched = std::move(fetched);
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
