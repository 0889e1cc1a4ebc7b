#include "blockstore/row_info.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace waymark {

std::string_view ReasonName(Reason reason) {
  static constexpr std::string_view kNames[] = {"valid",       "never written", "not captured",
                                                "external KV", "capacity",      "invalid id",
                                                "audit",       "unknown reason"};
  static_assert(std::size(kNames) == kNumReasons + 1);
  return kNames[std::min<std::size_t>(static_cast<std::size_t>(reason), kNumReasons)];
}

std::string_view ProvenanceName(Provenance provenance) {
  static constexpr std::string_view kNames[] = {"here", "kept", "by key", "unknown provenance"};
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
        runs.back().provenance == info.provenance) {
      runs.back().end = position + 1;
    } else {
      runs.push_back({position, position + 1, info.reason, version, info.provenance});
    }
  }
  return runs;
}

}  // namespace waymark
