#include "plugin/capture/self_test.h"

#include <array>
#include <cstddef>
#include <iterator>
#include <vector>

namespace waymark {
namespace {

// Rows that show one fault.
struct Tally {
  std::int32_t rows = 0;
  std::int32_t first_row = 0;

  void Add(std::int32_t row) {
    if (rows++ == 0) first_row = row;
  }
};

constexpr std::string_view kFaultNames[] = {"silent", "all zero", "out of range", "repeating"};
using LayerTally = std::array<Tally, std::size(kFaultNames)>;  // by LayerFault

// A row may show several faults, and each is counted: a person wants to see all of them.
void TallyRow(const std::int16_t* ids, const RoutingShape& shape, std::int32_t row,
              LayerTally& tally) {
  std::array<bool, std::size(kFaultNames)> shows = {};
  auto& [silent, zero, out_of_range, repeating] = shows;
  silent = zero = true;
  for (std::int32_t k = 0; k < shape.top_k; ++k) {
    silent &= ids[k] == -1;
    zero &= ids[k] == 0;
    out_of_range |= ids[k] < 0 || ids[k] >= shape.num_experts;
    for (std::int32_t other = 0; other < k; ++other) {
      repeating |= ids[k] == ids[other] && ids[k] >= 0;
    }
  }
  out_of_range &= !silent;
  for (std::size_t fault = 0; fault < shows.size(); ++fault) {
    if (shows[fault]) tally[fault].Add(row);
  }
}

}  // namespace

std::string_view LayerFaultName(LayerFault fault) {
  const auto at = static_cast<std::size_t>(fault);
  return at < std::size(kFaultNames) ? kFaultNames[at] : "unknown fault";
}

std::string SelfTestReport::ToString() const {
  if (ok()) {
    return "self-test of " + std::to_string(rows) + " rows: all " + std::to_string(layers) +
           " layers captured";
  }
  std::string text;
  for (const LayerFinding& finding : findings) {
    if (!text.empty()) text += "\n";
    text +=
        "layer " + std::to_string(finding.layer) + " (model layer " +
        std::to_string(finding.layer_id) + (finding.module.empty() ? "" : ", " + finding.module) +
        "): " + std::string(LayerFaultName(finding.fault)) + " in " + std::to_string(finding.rows) +
        " of " + std::to_string(rows) + " rows, first row " + std::to_string(finding.first_row);
  }
  return text;
}

absl::StatusOr<SelfTestReport> RunSelfTest(
    CaptureSession& session, std::int32_t rows,
    const std::function<absl::Status(const CaptureView& view, std::int32_t rows)>& forward) {
  if (rows < 1 || rows > session.max_rows()) {
    return absl::InvalidArgumentError("rows: must be in [1, " + std::to_string(session.max_rows()) +
                                      "]; it is " + std::to_string(rows));
  }
  const RoutingShape& shape = session.shape();
  const std::size_t layer_ids =
      static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape.top_k);
  std::vector<std::int16_t> ids(layer_ids * static_cast<std::size_t>(shape.num_layers));

  // A warm-up that was not discarded must not pass for this forward.
  session.Discard(session.max_rows());
  absl::Status status = forward(session.scratch_view(), rows);
  if (status.ok()) status = session.transport().ReadBack(kScratchBuffer, rows, ids.data());
  session.Discard(session.max_rows());
  if (!status.ok()) return status;

  SelfTestReport report;
  report.rows = rows;
  report.layers = shape.num_layers;
  for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
    LayerTally tally;
    for (std::int32_t row = 0; row < rows; ++row) {
      TallyRow(ids.data() + static_cast<std::size_t>(layer) * layer_ids +
                   static_cast<std::size_t>(row) * static_cast<std::size_t>(shape.top_k),
               shape, row, tally);
    }
    constexpr auto kZero = static_cast<std::size_t>(LayerFault::kAllZero);
    const bool zero_means_something = shape.num_experts > 1 && (rows > 1 || shape.top_k > 1);
    const bool all_zero = tally[kZero].rows == rows && zero_means_something;
    for (std::size_t fault = 0; fault < tally.size(); ++fault) {
      if (tally[fault].rows == 0 || (fault == kZero) != all_zero) continue;
      report.findings.push_back(
          {layer, shape.layer_id(layer), session.modules()[static_cast<std::size_t>(layer)],
           static_cast<LayerFault>(fault), tally[fault].rows, tally[fault].first_row});
    }
  }
  return report;
}

}  // namespace waymark
