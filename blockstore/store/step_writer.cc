#include "blockstore/store/step_writer.h"

#include <algorithm>
#include <cstring>

namespace waymark {
namespace {

constexpr std::size_t kMaxIgnored = 16384;  // compared in a step

// The slot of a row, whether or not its request asked. REQUIRES: not padding.
std::int64_t KnownSlot(std::int64_t slot) {
  return slot >= 0 ? slot : NotAsked(slot);
}

}  // namespace

StepWriter::StepWriter(const StoreOptions& options, StoreCore& core, Mutex& mutex, Pages& pages,
                       Audit& audit, Stats& stats)
    : options_(options), core_(core), mutex_(mutex), pages_(pages), audit_(audit), stats_(stats) {
  const std::size_t rows = options.max_step_rows;
  if (options.audit) ignored_.reserve(std::min(std::max<std::size_t>(256, rows / 4), kMaxIgnored));
}

void StepWriter::Write(const StepToWrite& step, StepIds& ids) {
  const std::span<const std::int64_t> slots = step.slots;
  const bool there = ids.there();
  const bool recorded = there && core_.flight != nullptr;
  if (recorded) {
    flight_ids_.resize(slots.size() * core_.row_bytes);
    flight_verdicts_.resize(slots.size());
  }
  for (std::size_t first = 0, chunk = 0;;) {
    {
      const MutexLock lock(mutex_);
      Publish(step, chunk);
      first += chunk;
      if (first == slots.size()) break;
      chunk = LookUp(step, first, there);
    }
    if (!there) continue;
    const std::span<std::uint8_t*> destinations(destinations_.data(), chunk);
    if (recorded) SendRestToFlight(first, destinations);
    ids.Land(static_cast<std::uint32_t>(first), destinations, {verdicts_.data(), chunk});
    if (recorded) CopyToFlight(first, destinations);
  }
  if (there) {
    audit_.CompareIgnored(step.step, ids, ignored_);
    if (recorded) core_.flight->OnRows(step.step, flight_ids_, flight_verdicts_);
  }
  const MutexLock lock(mutex_);
  for (const IgnoredRow& row : ignored_)
    pages_.UnpinPage(row.page);
  ignored_.clear();
}

// Table entries, page records and stamps are not in the cache: three passes, which prefetch for one
// another. Rows that follow each other on one page, as those of a prefill do, are a run.
std::size_t StepWriter::LookUp(const StepToWrite& step, std::size_t first, bool ids) {
  const auto chunk = step.slots.subspan(first, std::min(kChunk, step.slots.size() - first));
  std::array<EntryIndex, kChunk> entries;
  const auto begins_run = [&](std::size_t i) { return i == 0 || entries[i] != entries[i - 1]; };
  for (std::size_t i = 0; i < chunk.size(); ++i) {
    destinations_[i] = nullptr;
    targets_[i] = {};
    entries[i] = kNoEntry;
    if (chunk[i] == kPaddingSlot) continue;
    entries[i] = pages_.EntryOf(static_cast<std::uint64_t>(KnownSlot(chunk[i])));
    if (begins_run(i)) pages_.table().Prefetch(entries[i]);
  }
  for (std::size_t i = 0; i < chunk.size(); ++i) {
    if (entries[i] == kNoEntry || !begins_run(i)) continue;
    const PageIndex page = pages_.table().hot(entries[i]).page;
    if (page == kNoPage) continue;
    __builtin_prefetch(&pages_.pool().hot(page), 1);
    const auto slot = static_cast<std::uint64_t>(KnownSlot(chunk[i]));
    __builtin_prefetch(&pages_.stamp(page, pages_.RowOf(slot, entries[i])), 1);
  }
  for (std::size_t i = 0; i < chunk.size();) {
    const EntryIndex e = entries[i];
    const bool padding = e == kNoEntry || pages_.table().hot(e).null;
    if (!padding) {
      pages_.EnsureEntry(e, step.step);
      pages_.NoteVersion(e, step.version);
    }
    do {
      if (padding) {
        ++stats_.rows_padding;
      } else if (!LookUpRow(step, first, i, chunk[i], e, ids)) {
        return i;
      }
    } while (++i < chunk.size() && !begins_run(i));
  }
  return chunk.size();
}

bool StepWriter::LookUpRow(const StepToWrite& step, std::size_t first, std::size_t at,
                           std::int64_t slot, EntryIndex e, bool ids) {
  const bool asked = slot >= 0;
  targets_[at].asked = asked;
  const std::uint32_t row = pages_.RowOf(static_cast<std::uint64_t>(KnownSlot(slot)), e);
  PageIndex page = pages_.table().hot(e).page;
  if (page != kNoPage) {
    const PageHot& hot = pages_.pool().hot(page);
    StampCell& cell = pages_.stamp(page, row);
    const Stamp stamp = cell.Load();
    // Of the rows of one slot the first that asked counts; the first, if none did.
    const bool again = stamp.step() == step.step && (stamp.asked() || !asked);
    if (again || pages_.Kept(hot.seal.set(), stamp, step.version)) {
      // What came by key stays so: readers decide whether the block has the page or a copy.
      if (stamp.how() == Provenance::kHere) cell.Store(stamp.WithHow(Provenance::kKept));
      ++stats_.rows_ignored;
      stats_.rows_not_asked += asked ? 0 : 1;
      if (!again && ids && ignored_.size() < ignored_.capacity()) {
        ignored_.push_back({static_cast<std::uint32_t>(first + at), page, e,
                            static_cast<std::uint16_t>(row), asked});
        pages_.PinPage(page);
      }
      return true;
    }
    const bool by_key = pages_.table().hot(e).by_key;
    if (Pages::SeenByOthers(hot, row) || (by_key && hot.snapshots > 0)) {
      if (InChunk(page, at)) return false;
      page = pages_.CopyOnWrite(e);
    } else if (by_key) {
      pages_.MarkByKey(e);
    }
  } else if (asked || !pages_.NoteNotAsked(e, row)) {
    page = pages_.NewPage(e);
  } else {
    ++stats_.rows_not_asked;
    return true;
  }
  stats_.rows_not_asked += asked ? 0 : 1;
  if (page == kNoPage) {
    pages_.table().hot(e).lost.Add(row, pages_.NoPageCause());
    ++stats_.no_page;
    stats_.rows_without_page += asked ? 1 : 0;
    return true;
  }
  // If the ids are there, what the row is until its bytes have been copied.
  const Why why = asked && !ids ? step.lost : Why(Reason::kNotCaptured);
  pages_.stamp(page, row).Store(Stamp::Missing(why, step.step, asked));
  pages_.Written(page, step.version);
  if (row + 1 == pages_.page_tokens()) pages_.WrittenToEnd(e);
  if (asked && ids) {
    destinations_[at] = core_.row(page, row);
    const bool pins = at == 0 || targets_[at - 1].page != page;
    targets_[at] = {page, static_cast<std::uint16_t>(row), pins, asked};
    if (pins) pages_.PinPage(page);
  } else if (asked) {
    ++stats_.rows_missing[static_cast<std::size_t>(why.reason())];
  }
  return true;
}

bool StepWriter::InChunk(PageIndex page, std::size_t rows) const {
  return std::any_of(targets_.begin(), targets_.begin() + static_cast<std::ptrdiff_t>(rows),
                     [page](const Target& target) { return target.page == page; });
}

void StepWriter::Publish(const StepToWrite& step, std::size_t rows) {
  for (std::size_t i = 0; i < rows; ++i) {
    const Target& target = targets_[i];
    if (target.page == kNoPage) continue;
    StampCell& cell = pages_.stamp(target.page, target.row);
    const Stamp stamp = cell.Load();
    if (verdicts_[i] == Reason::kNone) {
      cell.Store(Stamp::Valid(step.step).WithHow(stamp.how()));
      ++stats_.rows_landed;
    } else {
      const bool other = verdicts_[i] == Reason::kCapacity;
      cell.Store(stamp.WithReason(other ? Why(Cause::kOtherRank) : Why(verdicts_[i])));
      ++stats_.rows_missing[static_cast<std::size_t>(verdicts_[i])];
    }
    if (target.pinned) pages_.UnpinPage(target.page);
  }
}

// ---- optional: flight recording

void StepWriter::SendRestToFlight(std::size_t first, std::span<std::uint8_t*> destinations) {
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    if (targets_[i].asked && destinations[i] == nullptr) destinations[i] = FlightRow(first + i);
  }
}

void StepWriter::CopyToFlight(std::size_t first, std::span<std::uint8_t*> destinations) {
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    flight_verdicts_[first + i] = targets_[i].asked ? verdicts_[i] : Reason::kNotCaptured;
    if (targets_[i].page != kNoPage) {
      std::memcpy(FlightRow(first + i), destinations[i], core_.row_bytes);
    } else {
      destinations[i] = nullptr;
    }
  }
}

}  // namespace waymark
