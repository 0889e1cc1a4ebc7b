#include "plugin/capture/layer_counters.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace waymark {

LayerCounters::LayerCounters(const RoutingShape& shape, LogCallback log)
    : shape_(shape),
      log_(log),
      modules_(static_cast<std::size_t>(shape.num_layers)),
      counts_(std::make_unique<Counts[]>(modules_.size())) {}

void LayerCounters::SetModule(std::int32_t layer, std::string module) {
  modules_[static_cast<std::size_t>(layer)] = std::move(module);
}

void LayerCounters::AddSilent(std::int32_t layer, std::int32_t batch_rows, std::uint64_t rows) {
  const std::uint64_t before =
      counts_[static_cast<std::size_t>(layer)].silent.fetch_add(rows, std::memory_order_relaxed);
  if (before == 0)
    Log(layer, absl::StrCat("silent for the first time, at batch size ", batch_rows),
        "not captured");
}

void LayerCounters::AddInvalid(std::int32_t layer, std::uint64_t rows,
                               std::span<const std::int64_t> ids) {
  const std::uint64_t before =
      counts_[static_cast<std::size_t>(layer)].invalid.fetch_add(rows, std::memory_order_relaxed);
  if (before != 0) return;
  std::string seen;
  if (!ids.empty()) {
    seen = absl::StrCat(" (", absl::StrJoin(ids, " "), ", of ", shape_.num_experts, " experts)");
  }
  Log(layer, absl::StrCat("an id is out of range or twice in a row", seen, ", for the first time"),
      "invalid id");
}

void LayerCounters::AddRewritten(StepId step) {
  if (std::exchange(rewritten_, true) || !log_) return;
  log_(LogLevel::kWarning,
       absl::StrCat("step ", step.value(),
                    ": its ids were written again before they were read, so "
                    "that its rows are missing (not captured), for the first time"));
}

void LayerCounters::Log(std::int32_t layer, const std::string& what, const char* reason) const {
  if (!log_) return;
  const std::string& module = modules_[static_cast<std::size_t>(layer)];
  log_(LogLevel::kWarning,
       absl::StrCat("layer ", layer, " (",
                    module.empty() ? absl::StrCat("model layer ", shape_.layer_id(layer)) : module,
                    "): ", what, "; its rows are missing (", reason, ")"));
}

std::uint64_t LayerCounters::silent_rows(std::int32_t layer) const {
  return counts_[static_cast<std::size_t>(layer)].silent.load(std::memory_order_relaxed);
}

std::uint64_t LayerCounters::invalid_rows(std::int32_t layer) const {
  return counts_[static_cast<std::size_t>(layer)].invalid.load(std::memory_order_relaxed);
}

}  // namespace waymark
