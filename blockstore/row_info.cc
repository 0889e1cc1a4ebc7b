#include "blockstore/row_info.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace waymark {

std::string_view ReasonName(Reason reason) {
  static constexpr std::string_view kNames[] = {
      "valid",      "never written", "not captured", "external KV", "capacity",
      "invalid id", "audit",         "released",     "not told",    "unknown reason"};
  static_assert(std::size(kNames) == kNumReasons + 1);
  return kNames[std::min<std::size_t>(static_cast<std::size_t>(reason), kNumReasons)];
}

std::string_view CauseName(Cause cause) {
  static constexpr std::string_view kNames[] = {"",
                                                "no buffer was free",
                                                "the step was dropped",
                                                "another rank dropped the step",
                                                "the log was full",
                                                "events were lost",
                                                "reset",
                                                "no page was free",
                                                "readers hold the pages",
                                                "the page was evicted",
                                                "no memory",
                                                "the store has failed",
                                                "the source cannot be reached",
                                                "the source does not have the object",
                                                "the object is damaged",
                                                "the source did not answer in time",
                                                "the source was skipped",
                                                "the entry is of another key",
                                                "the weights have no name",
                                                "unknown cause"};
  static_assert(std::size(kNames) == kNumCauses + 1);
  return kNames[std::min<std::size_t>(static_cast<std::size_t>(cause), kNumCauses)];
}

std::string WhyMissing(Reason reason, Cause cause) {
  std::string why(ReasonName(reason));
  if (cause != Cause::kNone) (why += ": ") += CauseName(cause);
  return why;
}

std::string_view ProvenanceName(Provenance provenance) {
  static constexpr std::string_view kNames[] = {"here", "kept", "by key", "unknown",
                                                "unknown provenance"};
  static_assert(std::size(kNames) == kNumProvenances + 1);
  return kNames[std::min<std::size_t>(static_cast<std::size_t>(provenance), kNumProvenances)];
}

std::vector<CoverageRun> CoverageOf(std::span<const RowInfo> infos, std::int64_t first) {
  std::vector<CoverageRun> runs;
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const RowInfo& info = infos[i];
    const std::int64_t position = first + static_cast<std::int64_t>(i);
    const std::uint64_t version = info.valid() ? info.version : 0;
    if (!runs.empty() && runs.back().reason == info.reason && runs.back().version == version &&
        runs.back().provenance == info.provenance && runs.back().cause == info.cause) {
      runs.back().end = position + 1;
    } else {
      runs.push_back({position, position + 1, info.reason, version, info.provenance, info.cause});
    }
  }
  return runs;
}

}  // namespace waymark
