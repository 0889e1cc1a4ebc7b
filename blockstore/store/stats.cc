#include "blockstore/store/stats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace waymark {
namespace {

// kBounds[k] = ceil(2^(63 + k/8)): the lower bounds of the buckets of an octave, for durations that
// are shifted so that bit 63 is their highest bit.
constexpr std::uint64_t kBounds[8] = {0x8000000000000000, 0x8b95c1e3ea8bd6e7, 0x9837f0518db8a970,
                                      0xa5fed6a9b15138eb, 0xb504f333f9de6485, 0xc5672a115506dade,
                                      0xd744fccad69d6af5, 0xeac0c6e7dd24392f};

double Milliseconds(std::uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-6;
}

}  // namespace

void LatencyHistogram::Add(std::uint64_t nanoseconds) {
  const std::uint64_t duration = std::max<std::uint64_t>(nanoseconds, 1);
  const int octave = 63 - std::countl_zero(duration);
  const std::uint64_t shifted = duration << (63 - octave);
  int part = 0;
  for (int k = 1; k < 8; ++k)
    part += shifted >= kBounds[k] ? 1 : 0;
  ++buckets_[static_cast<std::size_t>(std::min(octave * 8 + part, kBuckets - 1))];
  ++count_;
}

std::uint64_t LatencyHistogram::Quantile(double q) const {
  if (count_ == 0) return 0;
  const double clamped = q > 0 ? std::min(q, 1.0) : 0.0;  // NaN: 0
  const auto rank = std::clamp<std::uint64_t>(
      static_cast<std::uint64_t>(std::ceil(clamped * static_cast<double>(count_))), 1, count_);
  std::uint64_t seen = 0;
  int bucket = 0;
  for (; bucket < kBuckets - 1; ++bucket) {
    seen += buckets_[static_cast<std::size_t>(bucket)];
    if (seen >= rank) break;
  }
  const int octave = bucket / 8;
  const int part = bucket % 8;
  const std::uint64_t last = part == 7 ? ~std::uint64_t{0} : kBounds[part + 1] - 1;
  return last >> (63 - octave);
}

std::string Stats::ToString() const {
  std::string out;
  if (!failure.empty()) absl::StrAppend(&out, failure, "\n");
  const auto line = [&out](absl::string_view name, std::uint64_t value) {
    if (value != 0) absl::StrAppendFormat(&out, "%-24s %d\n", name, value);
  };
#define WAYMARK_LINE(name, meaning) line(#name, name);
  WAYMARK_STORE_COUNTERS(WAYMARK_LINE)
#undef WAYMARK_LINE
  for (int i = 1; i < kNumStoreReasons; ++i) {
    line("rows missing, " + std::string(ReasonName(static_cast<Reason>(i))),
         rows_missing[static_cast<std::size_t>(i)]);
  }
  if (audited_rows != 0)
    absl::StrAppendFormat(&out, "%-24s %.4f\n", "agreement", audit_agreement());
  if (landing_lag.count() > 0) {
    absl::StrAppendFormat(&out, "%-24s p50 %.3f ms, p99 %.3f ms\n", "landing lag",
                          Milliseconds(landing_lag.Quantile(0.5)),
                          Milliseconds(landing_lag.Quantile(0.99)));
  }
  return out;
}

std::string AuditFinding::ToString() const {
  // Not StrFormat, which ends the process where there is no memory.
  std::array<char, 32> share;
  std::snprintf(share.data(), share.size(), "%.3f", agreement);
  std::string out;
  if (two_pages) {
    absl::StrAppend(&out, "two pages sealed with one key agree in ", share.data(),
                    " of their ids over ", rows, " rows: one was written by step ", kept_step,
                    ", the other by step ", step);
    if (block >= 0) absl::StrAppend(&out, "; block ", block, " has the second");
  } else {
    absl::StrAppend(&out, "block ", block, ": step ", step, " wrote rows that agree in ",
                    share.data(), " of their ids over ", rows, " rows with those kept since step ",
                    kept_step, " (sealed with step ", sealed_step, ")");
  }
  if (!voided) {
    out += "; counted only";
    return out;
  }
  if (two_pages) {
    out +=
        "; voided: a Seal named the wrong key, the key leaves out something that the KV depends "
        "on, a Bind was missed before one of the Seals";
  } else {
    absl::StrAppend(&out, "; voided: a Bind of block ", block, " after step ", sealed_step,
                    " was missed (or a Truncate, if the block has the same owner still), a key is "
                    "wrong");
  }
  out +=
      ", or rows were written to wrong slots or in another order than the batch; or ids were "
      "overwritten before their step was done, or the weights changed and the version did not";
  if (pages > 1) {
    absl::StrAppend(&out, "; so were ", pages - 1, " more, the last after step ", last_step);
  }
  return out;
}

std::vector<AuditFinding> MergeCauses(const std::vector<AuditFinding>& findings) {
  std::vector<AuditFinding> causes;
  for (const AuditFinding& finding : findings) {
    const auto same = std::find_if(
        causes.begin(), causes.end(),
        [&finding](const AuditFinding& cause) { return cause.two_pages == finding.two_pages; });
    if (same == causes.end()) {
      causes.push_back(finding);
    } else {
      same->Add(finding);
    }
  }
  return causes;
}

}  // namespace waymark
