#include "plugin/capture/self_test.h"

#include <cstddef>
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

struct LayerTally {
  Tally silent, zero, out_of_range, repeating;
};

// A row may show several faults, and each is counted: a person wants to see all of them.
void TallyRow(const std::int16_t* ids, const RoutingShape& shape, std::int32_t row,
              LayerTally& tally) {
  bool silent = false;
  bool zero = true;
  bool out_of_range = false;
  bool repeating = false;
  for (std::int32_t k = 0; k < shape.top_k; ++k) {
    silent |= ids[k] == -1;
    zero &= ids[k] == 0;
    out_of_range |= ids[k] != -1 && (ids[k] < 0 || ids[k] >= shape.num_experts);
    for (std::int32_t other = 0; other < k; ++other) {
      repeating |= ids[k] == ids[other] && ids[k] >= 0;
    }
  }
  if (silent) tally.silent.Add(row);
  if (zero) tally.zero.Add(row);
  if (out_of_range) tally.out_of_range.Add(row);
  if (repeating) tally.repeating.Add(row);
}

}  // namespace

std::string_view LayerFaultName(LayerFault fault) {
  switch (fault) {
    case LayerFault::kSilent:
      return "silent";
    case LayerFault::kAllZero:
      return "all zero";
    case LayerFault::kOutOfRange:
      return "out of range";
    case LayerFault::kRepeating:
      return "repeating";
  }
  return "unknown fault";
}

std::string SelfTestReport::ToString() const {
  if (ok()) {
    return "self-test of " + std::to_string(rows) + " rows: all " + std::to_string(layers) +
           " layers captured";
  }
  std::string text;
  for (const LayerFinding& finding : findings) {
    if (!text.empty()) text += "\n";
    text += "layer " + std::to_string(finding.layer) + " (model layer " +
            std::to_string(finding.layer_id) + ", " +
            (finding.module.empty() ? "unbound" : finding.module) +
            "): " + std::string(LayerFaultName(finding.fault)) + " in " +
            std::to_string(finding.rows) + " of " + std::to_string(rows) + " rows, first row " +
            std::to_string(finding.first_row);
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
    const auto report_fault = [&](LayerFault fault, const Tally& rows_with) {
      if (rows_with.rows == 0) return;
      report.findings.push_back({layer, shape.layer_id(layer),
                                 session.bindings()[static_cast<std::size_t>(layer)].module, fault,
                                 rows_with.rows, rows_with.first_row});
    };
    const bool zero_means_something = shape.num_experts > 1 && (rows > 1 || shape.top_k > 1);
    if (tally.zero.rows == rows && zero_means_something) {
      report_fault(LayerFault::kAllZero, tally.zero);
      continue;
    }
    report_fault(LayerFault::kSilent, tally.silent);
    report_fault(LayerFault::kOutOfRange, tally.out_of_range);
    report_fault(LayerFault::kRepeating, tally.repeating);
  }
  return report;
}

}  // namespace waymark
