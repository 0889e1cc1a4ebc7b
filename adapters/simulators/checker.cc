#include "adapters/simulators/checker.h"

#include <cstring>
#include <utility>

namespace waymark::sim {
namespace {

constexpr std::size_t kMaxFindings = 20;

// Why a row did not come by key.
bool IsOfTier(Cause cause) {
  return cause == Cause::kAbsent || cause == Cause::kUnnamed || cause == Cause::kDamaged ||
         cause == Cause::kRefused || cause == Cause::kTimeout || cause == Cause::kUnreachable;
}

}  // namespace

Checker::Checker(const RouteOracle* oracle, const ExcuseBook* excuses, std::int32_t block_tokens,
                 std::int32_t page_tokens, bool collect_digests, std::function<bool()> scarce)
    : oracle_(oracle),
      excuses_(excuses),
      block_tokens_(block_tokens),
      page_tokens_(page_tokens),
      collect_digests_(collect_digests),
      scarce_(std::move(scarce)),
      expected_(oracle->row_bytes()) {}

bool Checker::Ready(const ReadJob& job) {
  for (const auto& read : job.reads) {
    if (!read->Ready()) return false;
  }
  return true;
}

void Checker::Fail(std::string what) {
  ++counts_.wrong;
  if (counts_.findings.size() < kMaxFindings) counts_.findings.push_back(std::move(what));
}

void Checker::FinishRead(Read& read) {
  if (!read.rows.empty()) return;
  if (read.lost) {
    read.stages.clear();
    Rows missing;
    missing.shape = oracle_->WholeShape(page_tokens_);
    missing.infos.resize(static_cast<std::size_t>(read.limit));
    for (RowInfo& info : missing.infos) {
      info.reason = Reason::kCapacity;
      info.cause = Cause::kLogFull;
    }
    missing.ids.resize(missing.infos.size() * oracle_->row_bytes());
    read.rows.push_back(std::move(missing));
    return;
  }
  std::vector<Rows> stages;
  for (Snapshot& snapshot : read.stages) {
    absl::StatusOr<Rows> rows = snapshot.ReadRows();
    if (!rows.ok()) {
      Fail("ReadRows: " + std::string(rows.status().message()));
      read.rows.resize(1);
      read.stages.clear();
      return;
    }
    stages.push_back(*std::move(rows));
    if (read.by_key == nullptr) continue;
    by_key_->Fill(stages.size() - 1, snapshot, *read.by_key, !*records_lost_, stages.back(),
                  [this](std::string what) { Fail(std::move(what)); });
  }
  read.stages.clear();
  if (stages.size() == 1) {
    read.rows.push_back(std::move(stages[0]));
    if (read.by_key != nullptr) by_key_->Localize(read.rows[0]);
    return;
  }
  std::vector<const Rows*> pointers;
  for (const Rows& rows : stages)
    pointers.push_back(&rows);
  absl::StatusOr<Rows> joined = JoinLayers(pointers);
  if (!joined.ok()) Fail("JoinLayers: " + std::string(joined.status().message()));
  read.rows.push_back(joined.ok() ? *std::move(joined) : Rows());
  if (read.by_key != nullptr) by_key_->Localize(read.rows[0]);
}

void Checker::Check(ReadJob& job) {
  digest_ = 0;
  counts_.requests += job.finished;
  std::vector<const Rows*> lives;
  for (const auto& read : job.reads) {
    FinishRead(*read);
    Rows& rows = read->rows[0];
    if (rows.size() > read->limit) {
      rows.infos.resize(static_cast<std::size_t>(read->limit));
      rows.ids.resize(rows.infos.size() * oracle_->row_bytes());
    }
    lives.push_back(&rows);
  }
  absl::StatusOr<Rows> joined = Rows();
  if (lives.size() > 1) joined = Join(lives);
  if (!joined.ok()) {
    Fail("Join: " + std::string(joined.status().message()));
    joined = Rows();
  }
  const Rows& merged = lives.size() == 1 ? *lives[0] : *joined;
  for (std::int64_t position = 0; position < job.rows; ++position) {
    if (position < merged.size()) {
      CheckRow(job, position, merged.infos[static_cast<std::size_t>(position)],
               merged.row(position).data());
    } else {
      CheckRow(job, position, RowInfo(), nullptr);
    }
  }
  if (collect_digests_ && job.finished) counts_.digests.push_back({job.request->id, digest_});
}

void Checker::CheckRow(const ReadJob& job, std::int64_t position, const RowInfo& info,
                       const std::uint8_t* row) {
  ++counts_.rows;
  if (job.seen.At(position).empty()) {
    Report("the engine never attended to", job, position, info);
    ++counts_.wrong;
    return;
  }
  if (!info.valid()) {
    CheckMissing(job, position, info);
    return;
  }
  if (collect_digests_) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < oracle_->row_bytes(); ++i)
      bytes = bytes * 131 + row[i];
    digest_ += Mix(Mix(static_cast<std::uint64_t>(position), info.step), Mix(info.version, bytes));
  }
  CheckValid(job, position, info, row);
}

void Checker::CheckValid(const ReadJob& job, std::int64_t position, const RowInfo& info,
                         const std::uint8_t* row) {
  const PrefixHash& prefix = job.prefix[static_cast<std::size_t>(position) + 1];
  const PrefixHash& start =
      job.prefix[static_cast<std::size_t>(position / block_tokens_ * block_tokens_)];
  // The ids must be those of this prefix in the step and version that the row names.
  oracle_->Row(prefix, info.version, info.step, expected_.data());
  if (std::memcmp(row, expected_.data(), expected_.size()) == 0) {
    for (const SeenCell& cell : job.seen.At(position)) {
      if (cell.pass.step == info.step && cell.pass.version == info.version) {
        ++counts_.exact;
        return;
      }
      if (info.provenance != Provenance::kHere && cell.pass.version == info.version) {
        ++(info.provenance == Provenance::kKept ? counts_.kept : counts_.by_key);
        return;
      }
      // Of two pages with one key the one with more rows is attached, which need not have this row.
      const bool poorer =
          cell.excuse == Excuse::kByKey && excuses_->HasGap(cell.pass.version, start);
      if (Why(cell, prefix, start).empty() && !poorer &&
          excuses_->OfKey(cell.pass.version, prefix).empty() && !scarce_()) {
        break;
      }
    }
  }
  ++counts_.wrong;
  Report("wrong", job, position, info);
}

void Checker::CheckMissing(const ReadJob& job, std::int64_t position, const RowInfo& info) {
  ++counts_.missing[static_cast<std::size_t>(info.reason)];
  const PrefixHash& prefix = job.prefix[static_cast<std::size_t>(position) + 1];
  const PrefixHash& start =
      job.prefix[static_cast<std::size_t>(position / block_tokens_ * block_tokens_)];
  const std::span<const SeenCell> cells = job.seen.At(position);
  bool explained = true;
  bool by_key = false;
  bool excused = false;
  ReasonSet reasons = 0;
  const bool scarce = scarce_();
  for (const SeenCell& cell : cells) {
    const ExcuseSet why = Why(cell, prefix, start);
    const ExcuseSet of_key = excuses_->OfKey(cell.pass.version, prefix);
    by_key |= cell.excuse == Excuse::kByKey;
    excused |= !why.empty() || !of_key.empty();
    reasons |= why.Reasons();
    const bool unequal_stages =
        oracle_->stages() > 1 && (scarce || !excuses_->OfBlock(cell.pass.version, start).empty());
    // The row of another pass was kept or attached, and that row was destroyed.
    const bool stands_in = info.provenance != Provenance::kHere || cells.size() > 1;
    // Or the attached page is of another pass, which never had this row.
    const bool poorer =
        info.provenance == Provenance::kByKey && excuses_->HasGap(cell.pass.version, start);
    // Another pass may have written a row that was not asked for.
    if (stands_in || why.Has(Excuse::kNotAsked)) reasons |= of_key.Reasons();
    // A page of another pass was attached, which is without the row for a reason of its own: rows
    // of it were lost, or came with a key that had no page, or were not there yet.
    if (info.provenance == Provenance::kByKey) {
      reasons |= excuses_->OfBlock(cell.pass.version, start).Reasons() |
                 SetOf(Reason::kExternalKv) | SetOf(Reason::kNeverWritten);
      if (excuses_->HasGap(cell.pass.version, start)) reasons |= SetOf(Reason::kNotCaptured);
    }
    // Stages without one of its rows may have gone on with different passes over the block.
    if (unequal_stages) reasons |= SetOf(Reason::kNotCaptured);
    if (why.empty() && !poorer && !(stands_in && !of_key.empty())) explained = false;
  }
  if (scarce) {
    reasons |= SetOf(Reason::kCapacity);
    if (by_key) reasons |= SetOf(Reason::kExternalKv);  // the page of the key was evicted
    // Rows of evicted pages are missing (capacity). With several cells the first reason stays: one
    // cell is excused, the pages of the others may be evicted. The page under a key may have been
    // evicted and replaced by one with fewer rows.
    explained |= info.reason == Reason::kCapacity || by_key || (excused && cells.size() > 1) ||
                 (info.reason == Reason::kNotCaptured && oracle_->stages() > 1);
  }
  bool evicted = scarce;
  for (const auto& read : job.reads) {
    const auto at = static_cast<std::size_t>(position);
    if (at >= read->released.size()) continue;
    // Nothing keeps the pages of blocks without users.
    evicted = true;
    explained |= read->released[at] || info.cause == Cause::kEvicted;
    reasons |= SetOf(Reason::kCapacity);
    if (!read->released[at]) continue;
    reasons |= SetOf(Reason::kReleased) | SetOf(Reason::kNeverWritten);
    reasons |= SetOf(Reason::kNotCaptured);
  }
  // RowsByKey has compared the cause. Stages may have got rows of different passes.
  if (by_key_ != nullptr && IsOfTier(info.cause)) reasons |= SetOf(Reason::kCapacity);
  if (by_key_ != nullptr && oracle_->stages() > 1) reasons |= SetOf(Reason::kNotCaptured);
  if (!explained) {
    ++counts_.unexplained;
    Report("unexplained", job, position, info);
  } else if (!CauseFits(info, scarce, evicted)) {
    ++counts_.unexplained;
    Report("false cause", job, position, info);
  } else if ((reasons & SetOf(info.reason)) == 0) {
    ++counts_.unexplained;
    Report("false reason", job, position, info);
  }
}

// Scarce: a store lost rows of which it need not say more here.
bool Checker::CauseFits(const RowInfo& info, bool scarce, bool evicted) {
  if (info.reason != Reason::kCapacity) return info.cause == Cause::kNone;
  switch (info.cause) {
    case Cause::kNoBuffer:
    case Cause::kStepDropped:
      return true;
    case Cause::kReset:
    case Cause::kLogFull:
    case Cause::kEventsLost:
    case Cause::kNoPage:
    case Cause::kHeldByReaders:
    case Cause::kNoMemory:
    case Cause::kStoreFailed:
      return scarce;
    case Cause::kEvicted:
      return evicted;
    default:
      return IsOfTier(info.cause);
  }
}

ExcuseSet Checker::Why(const SeenCell& cell, const PrefixHash& prefix,
                       const PrefixHash& block_start) const {
  const bool stages = oracle_->stages() > 1;
  ExcuseSet why(cell.excuse);
  why |= excuses_->OfPass(cell.pass, prefix);
  // A stage lost a row of this block, so the stages may have rows of different passes.
  if (stages) why |= excuses_->OfBlock(cell.pass.version, block_start);
  // The row of another pass with this key was attached (on some stages), and was destroyed.
  if (cell.excuse == Excuse::kByKey || stages) why |= excuses_->OfKey(cell.pass.version, prefix);
  if (cell.excuse != Excuse::kNone && excuses_->IsKeyless(cell.pass, prefix)) {
    why |= ExcuseSet(Excuse::kNoPage);
  }
  return why;
}

void Checker::Report(const char* what, const ReadJob& job, std::int64_t position,
                     const RowInfo& info) {
  if (counts_.findings.size() >= kMaxFindings) return;
  std::string text = std::string(what) + ": request " + std::to_string(job.request->id) + " row " +
                     std::to_string(position) + (job.finished ? "" : " (while it ran)") + ": ";
  text += info.valid()
              ? "step " + std::to_string(info.step) + " version " + std::to_string(info.version)
              : "missing (" + WhyMissing(info.reason, info.cause) + ")";
  text += ", " + std::string(ProvenanceName(info.provenance)) + "; attended to";
  for (const SeenCell& cell : job.seen.At(position)) {
    const PrefixHash& prefix = job.prefix[static_cast<std::size_t>(position) + 1];
    text += " {request " + std::to_string(cell.pass.request) + " step " +
            std::to_string(cell.pass.step) + " version " + std::to_string(cell.pass.version) +
            " excuse " + std::to_string(static_cast<int>(cell.excuse)) + "/" +
            std::to_string(excuses_->OfPass(cell.pass, prefix).bits()) + "}";
  }
  counts_.findings.push_back(std::move(text));
}

}  // namespace waymark::sim
