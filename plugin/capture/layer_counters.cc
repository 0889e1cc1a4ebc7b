#include "plugin/capture/layer_counters.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "blockstore/row_info.h"

namespace waymark {

LayerCounters::LayerCounters(std::int32_t num_layers, std::int32_t max_rows, LogCallback log)
    : num_layers_(num_layers),
      max_rows_(max_rows),
      log_(log),
      names_(static_cast<std::size_t>(num_layers)),
      words_(static_cast<std::size_t>(max_rows) / 64 + 1),
      counts_(std::make_unique<Counts[]>(static_cast<std::size_t>(num_layers))),
      silent_at_(std::make_unique<std::atomic<std::uint64_t>[]>(
          words_ * static_cast<std::size_t>(num_layers))) {
  for (std::size_t layer = 0; layer < names_.size(); ++layer)
    names_[layer] = "layer " + std::to_string(layer);
}

void LayerCounters::SetName(std::int32_t layer, std::string name) {
  names_[static_cast<std::size_t>(layer)] = std::move(name);
}

void LayerCounters::AddSilent(std::int32_t layer, std::int32_t batch_rows, std::uint64_t rows) {
  const std::uint64_t before =
      counts_[static_cast<std::size_t>(layer)].silent.fetch_add(rows, std::memory_order_relaxed);
  const auto size = static_cast<std::size_t>(std::clamp(batch_rows, 0, max_rows_));
  const std::uint64_t bit = std::uint64_t{1} << (size % 64);
  silent_at_[static_cast<std::size_t>(layer) * words_ + size / 64].fetch_or(
      bit, std::memory_order_relaxed);
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

std::vector<std::int32_t> LayerCounters::SilentBatchSizes(std::int32_t layer) const {
  std::vector<std::int32_t> sizes;
  for (std::size_t word = 0; word < words_; ++word) {
    const std::uint64_t bits =
        silent_at_[static_cast<std::size_t>(layer) * words_ + word].load(std::memory_order_relaxed);
    for (std::size_t bit = 0; bit < 64; ++bit) {
      if ((bits >> bit & 1) != 0) sizes.push_back(static_cast<std::int32_t>(word * 64 + bit));
    }
  }
  return sizes;
}

}  // namespace waymark
