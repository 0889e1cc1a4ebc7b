// RunSelfTest: the capture self-test. It runs one forward and names every layer that was not
// captured correctly.
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

// A fault of a layer.
enum class LayerFault : std::uint8_t {
  kSilent,      // rows with an id that was not written (-1)
  kAllZero,     // every id of every row is 0, although there are several experts
  kOutOfRange,  // rows with an id that is not in [0, E)
  kRepeating,   // rows with the same expert twice
};
// "silent", "all zero", "out of range", "repeating". Static storage.
[[nodiscard]] std::string_view LayerFaultName(LayerFault fault);

struct LayerFinding {
  std::int32_t layer = -1;    // index among the captured layers
  std::int32_t layer_id = 0;  // the model's layer number
  std::string module;         // the module's name; empty if the layer is not bound
  LayerFault fault = LayerFault::kSilent;
  std::int32_t rows = 0;       // how many rows show the fault
  std::int32_t first_row = 0;  // the first of those rows
};

struct SelfTestReport {
  std::int32_t rows = 0;    // rows of the forward
  std::int32_t layers = 0;  // L: every captured layer is checked
  // In order of layer. A layer may have several faults; an all-zero layer has no other.
  std::vector<LayerFinding> findings;

  [[nodiscard]] bool ok() const { return findings.empty(); }
  // Text for people: one line per finding, or one line if there is none.
  [[nodiscard]] std::string ToString() const;
};

// Runs `forward(view, rows)` once on the scratch view, in which every id is -1, and checks rows
// [0, rows) of every layer. Then the scratch view is -1 again, also if `forward` fails.
//
// Engine's thread, off the step path: allocates, and a device transport blocks until the forward is
// done. Call it once for each batch size for which the engine has a kernel or graph of its own. Use
// two rows or more: with one row and K = 1 the router may have chosen expert 0, so kAllZero is then
// not reported. InvalidArgument unless `rows` is in [1, max_rows]; errors of `forward` and of the
// transport are returned as they are.
[[nodiscard]] absl::StatusOr<SelfTestReport> RunSelfTest(
    CaptureSession& session, std::int32_t rows,
    const std::function<absl::Status(const CaptureView& view, std::int32_t rows)>& forward);

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_SELF_TEST_H_
