#include "blockstore/store/audit.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "blockstore/store/agreement.h"

namespace waymark {
namespace {

constexpr std::size_t kMaxFindings = 256;

}  // namespace

Audit::Audit(const StoreOptions& options, const StoreCore& core, Mutex& mutex, Pages& pages,
             Stats& stats)
    : options_(options),
      core_(core),
      threshold_(options.audit_threshold.value_or(DefaultAuditThreshold(core.shape))),
      pages_per_block_(static_cast<std::uint32_t>(options.block_tokens) / core.page_tokens),
      mutex_(mutex),
      pages_(pages),
      stats_(stats),
      row_(core.row_bytes),
      written_(static_cast<std::size_t>(core.shape.num_layers)) {}

void Audit::CompareIgnored(std::uint64_t step, StepIds& ids, std::span<const IgnoredRow> ignored) {
  for (std::size_t begin = 0, end = 0; begin < ignored.size(); begin = end) {
    const PageIndex page = ignored[begin].page;
    Compared compared;
    std::uint64_t kept = 0;
    for (end = begin; end < ignored.size() && ignored[end].page == page; ++end) {
      const Stamp stamp = core_.stamp(page, ignored[end].row).Load();
      if (!CompareRow(ids, ignored[end], compared)) continue;
      kept = stamp.step();
    }
    if (compared.all.rows == 0) continue;
    AuditFinding finding;
    finding.step = finding.last_step = step;
    finding.kept_step = kept;
    finding.block = static_cast<std::int32_t>(ignored[begin].entry / pages_per_block_);
    Judge(compared, finding);
    judged_.push_back({finding, std::move(compared), page, kNoPage});
  }
}

// A row that did not ask is not landed, as that would count what is wrong with it.
bool Audit::CompareRow(StepIds& ids, const IgnoredRow& ignored, Compared& compared) {
  const std::uint8_t* const kept = core_.row(ignored.page, ignored.row);
  std::uint8_t* const row = row_.data();
  Reason verdict = Reason::kNotCaptured;
  if (ignored.asked) ids.Land(ignored.step_row, {&row, 1}, {&verdict, 1});
  const bool whole = verdict == Reason::kNone;
  if (!whole && !ids.LandLayers(ignored.step_row, row, written_)) return false;
  const std::span<const std::uint8_t> written(written_);
  Compare(kept, row, whole ? written.first(0) : written, ignored.row, compared);
  return true;
}

void Audit::Compare(const std::uint8_t* kept, const std::uint8_t* ids,
                    std::span<const std::uint8_t> written, std::uint32_t row,
                    Compared& compared) const {
  const double agreement = Agreement(core_.shape, kept, ids, written);
  compared.all.Add(agreement);
  if (threshold_ == 0 || TiesExplain(core_.shape, kept, ids, written)) return;
  compared.others.Add(agreement);
  compared.rows.push_back(static_cast<std::int32_t>(row));
}

void Audit::Conclude() {
  for (Judged& judged : judged_) {
    judged.finding.sealed_step = pages_.pool().hot(judged.first).seal.step;
    Record(judged);
  }
}

void Audit::LogFindings() {
  for (const Judged& judged : judged_)
    Log(judged.finding);
  judged_.clear();
}

bool Audit::ComparePairs() {
  for (bool any = false;; any = true) {
    SecondSeal pair;
    {
      const MutexLock lock(mutex_);
      if (pages_.second_seals().empty()) return any;
      pair = pages_.second_seals().back();
      pages_.second_seals().pop_back();
    }
    ComparePair(pair);
  }
}

// The two pages have the same tokens and version, so rows that both have must agree. If they do
// not, neither page can be trusted.
void Audit::ComparePair(const SecondSeal& pair) {
  const auto [first, second] = pair;
  Compared compared;
  std::uint64_t older = 0;
  std::uint64_t newer = 0;
  for (std::uint32_t row = 0; row < core_.page_tokens; ++row) {
    const Stamp a = core_.stamp(first, row).Load();
    const Stamp b = core_.stamp(second, row).Load();
    if (!a.valid() || !b.valid()) continue;
    // One of them may have been written again by another version.
    if (core_.versions.Of(a.step()) != core_.versions.Of(b.step())) continue;
    Compare(core_.row(first, row), core_.row(second, row), {}, row, compared);
    older = std::min(a.step(), b.step());
    newer = std::max(a.step(), b.step());
  }
  AuditFinding finding;
  finding.two_pages = true;
  const bool any = compared.all.rows > 0;
  if (any) Judge(compared, finding);
  {
    const MutexLock lock(mutex_);
    const PageHot& hot = pages_.pool().hot(second);
    if (hot.bindings > 0) {
      finding.block = static_cast<std::int32_t>(hot.first_binding / pages_per_block_);
    }
    finding.step = finding.last_step = newer;
    finding.kept_step = older;
    finding.sealed_step = pages_.pool().hot(first).seal.step;
    if (any) Record({finding, std::move(compared), first, second});
    pages_.UnpinPage(first);
    pages_.UnpinPage(second);
  }
  Log(finding);
}

std::vector<AuditFinding> Audit::TakeFindings() {
  const MutexLock lock(mutex_);
  return std::exchange(findings_, {});
}

void Audit::Sums::Add(double row_agreement) {
  ++rows;
  agreement += row_agreement;
  disagreements += row_agreement < 1.0 ? 1 : 0;
}

void Audit::Judge(Compared& compared, AuditFinding& finding) const {
  if (compared.all.agreement / compared.all.rows < threshold_) compared.rows = {-1};
  const bool rows = !compared.rows.empty() && compared.rows[0] >= 0;
  const Sums& sums = rows ? compared.others : compared.all;
  finding.rows = sums.rows;
  finding.agreement = sums.agreement / sums.rows;
  finding.voided = !compared.rows.empty();
}

std::uint32_t Audit::VoidRows(PageIndex page, std::int32_t of) {
  std::uint32_t voided = 0;
  for (std::uint32_t row = 0; row < core_.page_tokens; ++row) {
    if (of >= 0 && row != static_cast<std::uint32_t>(of)) continue;
    StampCell& cell = core_.stamp(page, row);
    const Stamp stamp = cell.Load();
    if (!stamp.valid()) continue;
    cell.Store(stamp.WithReason(Reason::kAudit));
    ++voided;
  }
  return voided;
}

void Audit::Void(PageIndex page, std::span<const std::int32_t> rows) {
  if (page == kNoPage || !voids_) return;
  for (const std::int32_t row : rows) {
    const std::uint32_t voided = VoidRows(page, row);
    stats_.audit_voided_rows += voided;
    stats_.rows_missing[static_cast<std::size_t>(Reason::kAudit)] += voided;
  }
  if (core_.flight == nullptr) return;
  std::optional<VoidedPage> name = pages_.NameOf(page);
  for (std::size_t i = 0; name.has_value() && i < rows.size(); ++i) {
    name->row = rows[i];
    core_.flight->On({.kind = FlightRecordKind::kVoided, .voided = *name});
  }
}

void Audit::Record(const Judged& judged) {
  const Compared& compared = judged.compared;
  stats_.audited_rows += compared.all.rows;
  stats_.audit_agreement_sum += compared.all.agreement;
  stats_.audit_disagreements += compared.all.disagreements;
  if (!judged.finding.voided) return;
  stats_.audit_voided_pages += compared.rows[0] < 0 ? 1 : 0;
  if (findings_.size() < kMaxFindings) {
    findings_.push_back(judged.finding);
  } else {
    const auto same = std::find_if(findings_.rbegin(), findings_.rend(), [&](const auto& other) {
      return other.two_pages == judged.finding.two_pages;
    });
    (same == findings_.rend() ? findings_.back() : *same).Add(judged.finding);
  }
  Void(judged.first, compared.rows);
  Void(judged.second, compared.rows);
}

// A missing Bind is found in every block of a request, and in every request: the first line names
// it, and the others count.
void Audit::Log(const AuditFinding& finding) {
  if (!finding.voided || !options_.log) return;
  const std::uint64_t count = ++logged_[finding.two_pages ? 1 : 0];
  std::uint64_t round = 1;
  while (round < count)
    round *= 10;
  if (round != count) return;
  std::string line = finding.ToString();
  if (count > 1) absl::StrAppend(&line, "; found ", count, " times by now");
  options_.log(LogLevel::kWarning, line);
}

}  // namespace waymark
