// The landing thread, the only one that writes pages. It copies queued pages and submitted rows,
// publishes stamps, audits ignored writes, takes back released snapshots and commits memory ahead.

#include <algorithm>
#include <chrono>
#include <cstring>

#include "blockstore/store/agreement.h"
#include "blockstore/store/store_impl.h"
#include "blockstore/thread.h"

namespace waymark {
namespace {

constexpr int kSpins = 2000;                           // checks for work before napping
constexpr auto kNap = std::chrono::microseconds(500);  // naps add at most this to the lag
constexpr std::uint32_t kNaps = 200;                   // naps without work before sleeping
constexpr auto kDoze = std::chrono::milliseconds(100);
constexpr std::size_t kMaxFindings = 256;
constexpr std::size_t kFaultStep = std::size_t{1} << 20;
constexpr std::size_t kFaultAhead = std::size_t{32} << 20;
constexpr std::size_t kReclaim = 4;  // snapshots reclaimed per hold of the lock

std::uint64_t Now() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// ---- the thread

void RoutingStore::Impl::StartLanding() {
  thread_ = StartThread("wm-landing", options_.landing_cpus, [this] { LandingLoop(); });
}

void RoutingStore::Impl::StopLanding() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_seq_cst);
  Wake();
  thread_.join();
}

void RoutingStore::Impl::Wake() {
  work_.fetch_add(1, std::memory_order_seq_cst);
  if (!sleeping_.load(std::memory_order_seq_cst)) return;
  const std::lock_guard<std::mutex> lock(wake_mutex_);
  wake_cv_.notify_one();
}

// To wake a sleeping thread costs the engine's thread 10 us or more, and a forward takes
// milliseconds. So the landing thread naps for a while before it sleeps: a nap ends by itself.
void RoutingStore::Impl::SleepUntilWork(std::uint32_t seen) {
  const auto idle = [&] { return work_.load(std::memory_order_seq_cst) == seen; };
  for (int spin = 0; spin < kSpins && !dozing_; ++spin) {
    if (!idle()) return;
    Pause();
  }
  for (std::uint32_t nap = 0; nap < kNaps && !dozing_; ++nap) {
    std::this_thread::sleep_for(kNap);
    if (!idle()) return;
  }
  std::unique_lock<std::mutex> lock(wake_mutex_);
  sleeping_.store(true, std::memory_order_seq_cst);
  // Wakes up now and then for snapshots that are released while the engine is idle.
  dozing_ = !wake_cv_.wait_for(lock, kDoze, [&] { return !idle(); });
  sleeping_.store(false, std::memory_order_seq_cst);
}

void RoutingStore::Impl::LandingLoop() {
  while (!stop_.load(std::memory_order_seq_cst)) {
    const std::uint32_t seen = work_.load(std::memory_order_seq_cst);
    bool worked = false;
    while (LandNext())
      worked = true;
    worked |= RunCopies();
    Housekeeping();
    const std::size_t used = std::size_t{pool_.pages_touched()} * core_->shape.page_bytes();
    if (core_->memory.Prefault(used + kFaultAhead, kFaultStep)) worked = true;
    if (!worked) SleepUntilWork(seen);
  }
}

void RoutingStore::Impl::Housekeeping() {
  for (bool more = true; more;) {
    const MutexLock lock(mutex_);
    more = ReclaimSnapshots(kReclaim);
  }
  AuditSecondSeals();
  bool want_base = false;
  {
    const MutexLock lock(mutex_);
    want_base = spare_base_ == nullptr;
  }
  if (!want_base) return;
  auto base = std::make_shared<StepBase>();
  const MutexLock lock(mutex_);
  spare_base_ = std::move(base);
}

// ---- one step

bool RoutingStore::Impl::LandNext(std::uint64_t only_step) {
  StepRecord* record = nullptr;
  {
    const MutexLock lock(mutex_);
    // Device steps land in step order, because the rows that each wrote are only known then.
    const auto at = std::find_if(submitted_.begin(), submitted_.end(), [&](StepRecord* r) {
      return (only_step == 0 || r->step == only_step) && (!r->device || r == active_.front());
    });
    if (at == submitted_.end()) return false;
    record = *at;
    submitted_.erase(at);
  }
  LandStep(*record);
  if (!thread_.joinable()) Housekeeping();
  return true;
}

void RoutingStore::Impl::LandStep(StepRecord& record) {
  RunCopies();
  StepRows* const rows = record.rows;
  tally_ = {};
  if (rows != nullptr) {
    if (record.device) slots_ = rows->Slots();
    if (record.device) {
      LandDeviceRows(record);
      RunCopies();  // the audit may read a page that was copied meanwhile
    } else {
      LandRows(record);
    }
    AuditIgnored(record);
    if (core_->flight != nullptr) RecordRows(record);
  }
  // The engine may have copied pages with pending rows meanwhile. These rows land in the copies
  // too, after the copied bytes. The check that none is left and the end of the step are under one
  // lock.
  for (std::size_t landed = 0;;) {
    {
      const MutexLock lock(mutex_);
      if (landed == record.copies.size()) {
        ++stats_.steps_landed;
        stats_.rows_landed += tally_.landed;
        stats_.rows_without_claim += tally_.late;
        for (int i = 0; i < kNumReasons; ++i)
          stats_.rows_missing[i] += tally_.missing[i];
        if (core_->flight != nullptr) core_->flight->OnLanded(record.step);
        if (record.submitted_at != 0) stats_.landing_lag.Add(Now() - record.submitted_at);
        Unpin(record);
        Retire(record);
        break;
      }
      side_scratch_.assign(record.copies.begin() + static_cast<std::ptrdiff_t>(landed),
                           record.copies.end());
    }
    landed += side_scratch_.size();
    RunCopies();
    LandSides(record, side_scratch_);
  }
  core_->NotifyProgress();
  if (rows != nullptr) rows->Done();
}

void RoutingStore::Impl::LandRows(StepRecord& record) {
  for (std::uint32_t first = 0; first < record.num_rows; first += kLandingChunk) {
    const std::size_t n = std::min<std::size_t>(kLandingChunk, record.num_rows - first);
    const std::span<std::uint8_t*> destinations(destinations_.data(), n);
    const std::span<Reason> verdicts(verdicts_.data(), n);
    bool wanted = false;
    for (std::size_t i = 0; i < n; ++i) {
      const Claim& claim = record.claims[first + i];
      destinations[i] = nullptr;
      if (claim.page == kNoPage) continue;
      if (!core_->stamp(claim.page, claim.row).Load().pending_for(record.relative)) {
        ++tally_.late;
        continue;
      }
      destinations[i] = core_->row(claim.page, claim.row);
      wanted = true;
    }
    if (!wanted) continue;
    record.rows->Land(first, destinations, verdicts);
    for (std::size_t i = 0; i < n; ++i) {
      if (destinations[i] == nullptr) continue;
      const Claim& claim = record.claims[first + i];
      Publish(claim.page, claim.row, record.relative, verdicts[i]);
      if (verdicts[i] != Reason::kNone) destinations[i] = nullptr;
    }
    if (options_.count_experts) CountExperts(record, destinations);
  }
}

void RoutingStore::Impl::LandSides(StepRecord& record, std::span<const SideRow> sides) {
  if (record.rows == nullptr) return;
  for (const SideRow& side : sides) {
    if (!core_->stamp(side.page, side.row).Load().pending_for(record.relative)) {
      ++tally_.late;
      continue;
    }
    std::uint8_t* const destination = core_->row(side.page, side.row);
    Reason verdict = Reason::kNone;
    const std::uint32_t row = record.device ? record.step_row[side.step_row] : side.step_row;
    record.rows->Land(row, {&destination, 1}, {&verdict, 1});
    Publish(side.page, side.row, record.relative, verdict);
  }
}

// Compare-and-exchange, because the engine's thread may claim, truncate or invalidate the row at
// any time.
void RoutingStore::Impl::Publish(PageIndex page, std::uint32_t row, RelStep step, Reason verdict) {
  StampCell& cell = core_->stamp(page, row);
  for (;;) {
    const Stamp stamp = cell.Load();
    if (!stamp.pending_for(step)) {
      ++tally_.late;
      return;
    }
    const Stamp landed = verdict == Reason::kNone ? stamp.Landed() : stamp.Missing(verdict);
    if (!cell.Exchange(stamp, landed)) continue;
    if (verdict == Reason::kNone) {
      ++tally_.landed;
    } else {
      ++tally_.missing[static_cast<std::size_t>(verdict)];
    }
    return;
  }
}

bool RoutingStore::Impl::RunCopies() {
  {
    const MutexLock lock(mutex_);
    if (page_copies_.empty()) return false;
    page_copies_.swap(running_copies_);
  }
  for (const PageCopy& copy : running_copies_) {
    std::memcpy(core_->row(copy.to, 0), core_->row(copy.from, 0), copy.rows * core_->row_bytes);
  }
  {
    const MutexLock lock(mutex_);
    for (const PageCopy& copy : running_copies_) {
      UnpinPage(copy.from);
      UnpinPage(copy.to);
    }
  }
  core_->copies_done.fetch_add(running_copies_.size(), std::memory_order_seq_cst);
  running_copies_.clear();
  core_->NotifyProgress();
  return true;
}

// ---- audit

std::uint32_t RoutingStore::Impl::VoidPage(PageIndex page) {
  std::uint32_t voided = 0;
  for (std::uint32_t row = 0; row < page_tokens_; ++row) {
    StampCell& cell = core_->stamp(page, row);
    for (Stamp stamp = cell.Load(); stamp.valid(); stamp = cell.Load()) {
      if (!cell.Exchange(stamp, stamp.Missing(Reason::kAudit))) continue;
      ++voided;
      break;
    }
  }
  return voided;
}

void RoutingStore::Impl::RecordFinding(const AuditFinding& finding, double agreement_sum,
                                       std::uint64_t disagreements) {
  {
    const MutexLock lock(mutex_);
    stats_.audited_rows += finding.rows;
    stats_.audit_agreement_sum += agreement_sum;
    stats_.audit_disagreements += disagreements;
    if (!finding.voided) return;
    ++stats_.audit_voided_pages;
    if (findings_.size() == kMaxFindings) findings_.pop_front();
    findings_.push_back(finding);
  }
  if (options_.log) options_.log(LogLevel::kWarning, finding.ToString());
}

// Compares every write that rule 3 ignored with the row that was kept, page by page.
void RoutingStore::Impl::AuditIgnored(StepRecord& record) {
  const std::vector<SideRow>& ignored = record.ignored;
  for (std::size_t begin = 0, end = 0; begin < ignored.size(); begin = end) {
    const PageIndex page = ignored[begin].page;
    AuditFinding finding;
    finding.step = record.step;
    finding.block = static_cast<std::int32_t>(ignored[begin].entry / pages_per_block_);
    double sum = 0;
    std::uint64_t disagreements = 0;
    RelStep kept = 0;
    for (end = begin; end < ignored.size() && ignored[end].page == page; ++end) {
      const Stamp stamp = core_->stamp(page, ignored[end].row).Load();
      // Claimed again meanwhile, for another version or token: there is no row to compare with.
      if (!stamp.valid() || stamp.step() >= record.relative) continue;
      std::uint8_t* const scratch = row_scratch_.data();
      Reason verdict = Reason::kNone;
      record.rows->Land(ignored[end].step_row, {&scratch, 1}, {&verdict, 1});
      if (verdict != Reason::kNone) continue;
      const double agreement = Agreement(core_->shape, core_->row(page, ignored[end].row), scratch);
      sum += agreement;
      ++finding.rows;
      disagreements += agreement < 1.0 ? 1 : 0;
      kept = stamp.step();
    }
    if (finding.rows == 0) continue;
    finding.agreement = sum / finding.rows;
    finding.voided = finding.agreement < options_.audit_threshold;
    std::uint32_t voided = 0;
    if (finding.voided) voided = VoidPage(page);
    {
      const MutexLock lock(mutex_);
      finding.kept_step = base_->base + kept;
      finding.sealed_step = base_->base + pool_.hot(page).sealed;
      stats_.audit_voided_rows += voided;
      stats_.rows_missing[static_cast<std::size_t>(Reason::kAudit)] += voided;
    }
    RecordFinding(finding, sum, disagreements);
  }
}

// Two pages sealed with one key have the same tokens and version, so rows that both have must
// agree. If they do not, neither page can be trusted.
void RoutingStore::Impl::AuditSecondSeals() {
  for (;;) {
    PageCopy pair;
    std::shared_ptr<const StepBase> base;
    {
      const MutexLock lock(mutex_);
      if (second_seals_.empty()) return;
      pair = second_seals_.back();
      // A device step may still write rows of which the page has older ones.
      for (const StepRecord* record : active_) {
        if (record->device &&
            (HasDeviceClaims(*record, pair.from) || HasDeviceClaims(*record, pair.to))) {
          return;
        }
      }
      second_seals_.pop_back();
      base = base_;
    }
    RunCopies();  // one of the two may be a copy whose bytes are still queued
    AuditFinding finding;
    double sum = 0;
    std::uint64_t disagreements = 0;
    RelStep kept = 0;
    RelStep wrote = 0;
    for (std::uint32_t row = 0; row < page_tokens_; ++row) {
      const Stamp a = core_->stamp(pair.from, row).Load();
      const Stamp b = core_->stamp(pair.to, row).Load();
      if (!a.valid() || !b.valid()) continue;
      // One of them may have been written again by another version.
      if (base->VersionOf(a.step()) != base->VersionOf(b.step())) continue;
      const double agreement =
          Agreement(core_->shape, core_->row(pair.from, row), core_->row(pair.to, row));
      sum += agreement;
      ++finding.rows;
      disagreements += agreement < 1.0 ? 1 : 0;
      kept = a.step();
      wrote = b.step();
    }
    std::uint32_t voided = 0;
    if (finding.rows > 0) {
      finding.agreement = sum / finding.rows;
      finding.voided = finding.agreement < options_.audit_threshold;
      if (finding.voided) voided = VoidPage(pair.from) + VoidPage(pair.to);
    }
    {
      const MutexLock lock(mutex_);
      const EntryIndex e = pool_.hot(pair.to).first_binding;
      if (pool_.hot(pair.to).bindings > 0) {
        finding.block = static_cast<std::int32_t>(e / pages_per_block_);
      }
      finding.step = base_->base + wrote;
      finding.kept_step = base_->base + kept;
      finding.sealed_step = base_->base + pool_.hot(pair.from).sealed;
      stats_.audit_voided_rows += voided;
      stats_.rows_missing[static_cast<std::size_t>(Reason::kAudit)] += voided;
      UnpinPage(pair.from);
      UnpinPage(pair.to);
    }
    if (finding.rows > 0) RecordFinding(finding, sum, disagreements);
  }
}

// ---- optional: flight recording, counts of experts

void RoutingStore::Impl::RecordRows(StepRecord& record) {
  const std::size_t rows = record.device ? slots_.size() : record.num_rows;
  flight_ids_.assign(rows * core_->row_bytes, 0);
  flight_verdicts_.assign(rows, Reason::kNone);
  for (std::size_t first = 0; first < rows; first += kLandingChunk) {
    const std::size_t n = std::min(kLandingChunk, rows - first);
    for (std::size_t i = 0; i < n; ++i) {
      destinations_[i] = flight_ids_.data() + (first + i) * core_->row_bytes;
    }
    record.rows->Land(static_cast<std::uint32_t>(first), {destinations_.data(), n},
                      std::span<Reason>(flight_verdicts_).subspan(first, n));
  }
  core_->flight->OnRows(record.step, flight_ids_, flight_verdicts_,
                        record.device ? slots_ : std::span<const std::int64_t>());
}

void RoutingStore::Impl::CountExperts(const StepRecord& record,
                                      std::span<std::uint8_t* const> rows) {
  const RoutingShape& shape = core_->shape;
  const auto experts = static_cast<std::size_t>(shape.num_experts);
  const auto k = static_cast<std::size_t>(shape.top_k);
  const MutexLock lock(experts_mutex_);
  auto counts = std::find_if(experts_.begin(), experts_.end(),
                             [&](const ExpertCounts& c) { return c.version == record.version; });
  if (counts == experts_.end()) {
    experts_.push_back({record.version, std::vector<std::uint64_t>(
                                            static_cast<std::size_t>(shape.num_layers) * experts)});
    counts = experts_.end() - 1;
  }
  for (const std::uint8_t* row : rows) {
    if (row == nullptr) continue;
    for (std::size_t i = 0; i < shape.row_ids(); ++i) {
      std::size_t id = row[i];
      if (shape.id_bytes() == 2) id = row[2 * i] | static_cast<std::size_t>(row[2 * i + 1]) << 8;
      ++counts->counts[i / k * experts + id];
    }
  }
}

}  // namespace waymark
