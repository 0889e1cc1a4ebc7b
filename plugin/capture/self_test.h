// The capture self-test: one forward, then every layer that did not capture as it should is named.
#ifndef WAYMARK_PLUGIN_CAPTURE_SELF_TEST_H_
#define WAYMARK_PLUGIN_CAPTURE_SELF_TEST_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugin/capture/capture_session.h"

namespace waymark {

// What can be wrong with a layer, worst last.
enum class LayerFault : std::uint8_t {
  kSilent,      // rows in which nothing was written, or not every id
  kAllZero,     // every id of every row is 0, in a layer with more than one expert
  kOutOfRange,  // rows with an id that is no expert
  kRepeating,   // rows in which an expert is chosen twice
};
// "silent", "all zero", "out of range", "repeating". Static storage.
[[nodiscard]] std::string_view LayerFaultName(LayerFault fault);

struct LayerFinding {
  std::int32_t layer = -1;    // captured layer
  std::int32_t layer_id = 0;  // the model's layer number
  std::string module;         // empty when the layer is not bound
  LayerFault fault = LayerFault::kSilent;
  std::int32_t rows = 0;       // rows that show it
  std::int32_t first_row = 0;  // the first of them
};

struct SelfTestReport {
  std::int32_t rows = 0;    // rows of the forward
  std::int32_t layers = 0;  // layers looked at: all
  // By layer; a layer may have several faults, but an all-zero one has no other.
  std::vector<LayerFinding> findings;

  [[nodiscard]] bool ok() const { return findings.empty(); }
  // A line a finding, for people; one line when there is none.
  [[nodiscard]] std::string ToString() const;
};

// Runs `forward` once on the scratch view, all -1 before, and looks at rows [0, rows) of every
// layer; the scratch view is -1 again afterwards, also when `forward` fails. Off the step path:
// allocates, and waits where the transport must. Engine's thread. Call it at every batch size that
// has a kernel variant of its own. Two rows or more make kAllZero mean something (with one row and
// K = 1, expert 0 may just have been chosen: not reported). InvalidArgument: rows not in [1,
// max_rows]. Otherwise what `forward` or the transport answered.
[[nodiscard]] absl::StatusOr<SelfTestReport> RunSelfTest(
    CaptureSession& session, std::int32_t rows,
    const std::function<absl::Status(const CaptureView& view, std::int32_t rows)>& forward);

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_SELF_TEST_H_
