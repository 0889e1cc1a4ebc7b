#include "plugin/capture/layer_counters.h"

#include <cstddef>
#include <utility>

#include "blockstore/row_info.h"

namespace waymark {

LayerCounters::LayerCounters(std::int32_t num_layers, LogCallback log)
    : num_layers_(num_layers),
      log_(log),
      names_(static_cast<std::size_t>(num_layers)),
      counts_(std::make_unique<Counts[]>(static_cast<std::size_t>(num_layers))) {
  for (std::size_t layer = 0; layer < names_.size(); ++layer)
    names_[layer] = "layer " + std::to_string(layer);
}

void LayerCounters::SetName(std::int32_t layer, std::string name) {
  names_[static_cast<std::size_t>(layer)] = std::move(name);
}

void LayerCounters::AddSilent(std::int32_t layer, std::int32_t batch_rows, std::uint64_t rows) {
  const std::uint64_t before =
      counts_[static_cast<std::size_t>(layer)].silent.fetch_add(rows, std::memory_order_relaxed);
  if (before == 0 && log_) {
    log_(LogLevel::kWarning, names_[static_cast<std::size_t>(layer)] +
                                 ": silent for the first time, at batch size " +
                                 std::to_string(batch_rows) + "; its rows are missing (" +
                                 std::string(ReasonName(Reason::kNotCaptured)) + ")");
  }
}

void LayerCounters::AddInvalid(std::int32_t layer, std::uint64_t rows) {
  counts_[static_cast<std::size_t>(layer)].invalid.fetch_add(rows, std::memory_order_relaxed);
}

std::uint64_t LayerCounters::silent_rows(std::int32_t layer) const {
  return counts_[static_cast<std::size_t>(layer)].silent.load(std::memory_order_relaxed);
}

std::uint64_t LayerCounters::invalid_rows(std::int32_t layer) const {
  return counts_[static_cast<std::size_t>(layer)].invalid.load(std::memory_order_relaxed);
}

}  // namespace waymark
