// LayerCounters: the captured layers: their names, and the faults that landing finds in their rows.
#ifndef WAYMARK_PLUGIN_CAPTURE_LAYER_COUNTERS_H_
#define WAYMARK_PLUGIN_CAPTURE_LAYER_COUNTERS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "blockstore/ids.h"
#include "blockstore/log.h"
#include "blockstore/shape.h"

namespace waymark {

// Counts, for each layer, the rows in which it was silent (every id is -1: it wrote none) and those
// in which it was invalid (an id out of range or repeated, or a part of them -1). Memory is
// allocated by the constructor alone.
//
// The Add functions are called on the landing thread. Any thread may read: each number is exact,
// but numbers read one after the other need not belong to the same moment. REQUIRES of every
// function: 0 <= layer < num_layers.
class LayerCounters {
 public:
  // `log` is called on the landing thread when a layer is silent, or invalid, for the first time.
  explicit LayerCounters(const RoutingShape& shape, LogCallback log = {});

  // Sets the name of the module that routes a layer, for reports: once for each, before the first
  // step that can land.
  void SetModule(std::int32_t layer, std::string module);
  // The module of each layer, in order; empty where none was set.
  [[nodiscard]] const std::vector<std::string>& modules() const { return modules_; }

  // Counts `rows` rows in which `layer` was silent, of a forward of `batch_rows` rows (padding
  // included), which the log names.
  void AddSilent(std::int32_t layer, std::int32_t batch_rows, std::uint64_t rows = 1);
  // Counts `rows` rows in which `layer` had an id out of range or an id twice. `ids`: of the first
  // of them, for the log; empty: not known.
  void AddInvalid(std::int32_t layer, std::uint64_t rows = 1,
                  std::span<const std::int64_t> ids = {});

  // The ids of `step` changed before they were read: logs the first time.
  void AddRewritten(StepId step);

  // The rows counted so far.
  [[nodiscard]] std::uint64_t silent_rows(std::int32_t layer) const;
  [[nodiscard]] std::uint64_t invalid_rows(std::int32_t layer) const;

 private:
  struct Counts {
    std::atomic<std::uint64_t> silent{0};
    std::atomic<std::uint64_t> invalid{0};
  };

  void Log(std::int32_t layer, const std::string& what, const char* reason) const;

  const RoutingShape shape_;
  const LogCallback log_;
  std::vector<std::string> modules_;  // [num_layers]
  std::unique_ptr<Counts[]> counts_;
  bool rewritten_ = false;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_LAYER_COUNTERS_H_
