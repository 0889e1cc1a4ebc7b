// LayerCounters: what landing finds wrong with captured rows, layer by layer.
#ifndef WAYMARK_PLUGIN_CAPTURE_LAYER_COUNTERS_H_
#define WAYMARK_PLUGIN_CAPTURE_LAYER_COUNTERS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blockstore/log.h"

namespace waymark {

// Counts rows in which a layer was silent (an id of -1: nothing was written there) or invalid (an
// id out of range, or repeated), and remembers at which batch sizes each layer was silent. Fixed
// size. Adding: the landing thread. Reading: any thread; each number is exact, a set of them is not
// a cut. The first silence of each layer is told to `log` when it is counted.
class LayerCounters {
 public:
  // Batch sizes above `max_rows` count as `max_rows`.
  LayerCounters(std::int32_t num_layers, std::int32_t max_rows, LogCallback log = {});

  // What the log calls a layer; "layer N" otherwise. Before the first step that may land.
  void SetName(std::int32_t layer, std::string name);

  // `rows` rows of a forward of `batch_rows` rows (padding included) in which `layer` was silent.
  void AddSilent(std::int32_t layer, std::int32_t batch_rows, std::uint64_t rows = 1);
  // `rows` rows in which `layer` had an id out of range, or one id twice.
  void AddInvalid(std::int32_t layer, std::uint64_t rows = 1);

  [[nodiscard]] std::uint64_t silent_rows(std::int32_t layer) const;
  [[nodiscard]] std::uint64_t invalid_rows(std::int32_t layer) const;
  // Batch sizes at which `layer` was silent in a row or more, ascending. Allocates.
  [[nodiscard]] std::vector<std::int32_t> SilentBatchSizes(std::int32_t layer) const;
  [[nodiscard]] std::int32_t num_layers() const { return num_layers_; }

 private:
  struct Counts {
    std::atomic<std::uint64_t> silent{0};
    std::atomic<std::uint64_t> invalid{0};
  };

  const std::int32_t num_layers_;
  const std::int32_t max_rows_;
  const LogCallback log_;
  std::vector<std::string> names_;  // [num_layers_]
  const std::size_t words_;         // of the bitmap of one layer: bit n = silent at batch size n
  std::unique_ptr<Counts[]> counts_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> silent_at_;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_LAYER_COUNTERS_H_
