#include "blockstore/row_info.h"

#include <cstddef>

namespace waymark {

std::string_view ReasonName(Reason reason) {
  switch (reason) {
    case Reason::kNone:
      return "valid";
    case Reason::kNeverWritten:
      return "never written";
    case Reason::kNotCaptured:
      return "not captured";
    case Reason::kExternalKv:
      return "external KV";
    case Reason::kCapacity:
      return "capacity";
    case Reason::kInvalidId:
      return "invalid id";
    case Reason::kAudit:
      return "audit";
  }
  return "unknown reason";
}

std::string_view ProvenanceName(Provenance provenance) {
  switch (provenance) {
    case Provenance::kHere:
      return "here";
    case Provenance::kKept:
      return "kept";
    case Provenance::kByKey:
      return "by key";
  }
  return "unknown provenance";
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
