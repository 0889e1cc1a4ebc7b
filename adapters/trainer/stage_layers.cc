#include "adapters/trainer/stage_layers.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waymark {
namespace {

absl::Status BrokenRule(const char* field, const std::string& rule, std::int64_t value) {
  return absl::InvalidArgumentError(
      absl::StrCat("pipeline.", field, ": must be ", rule, ", got ", value));
}

}  // namespace

absl::StatusOr<StageLayers> LayersOfStage(const PipelineLayout& layout) {
  const std::int32_t size = layout.pipeline_size;
  const std::int32_t rank = layout.pipeline_rank;
  const std::int32_t chunks = layout.virtual_size;
  if (layout.num_layers < 1) return BrokenRule("num_layers", "at least 1", layout.num_layers);
  if (size < 1) return BrokenRule("pipeline_size", "at least 1", size);
  if (rank < 0 || rank >= size) {
    return BrokenRule("pipeline_rank", absl::StrCat("in [0, ", size, ")"), rank);
  }
  if (chunks < 1) return BrokenRule("virtual_size", "at least 1", chunks);
  if (layout.virtual_rank < 0 || layout.virtual_rank >= chunks) {
    return BrokenRule("virtual_rank", absl::StrCat("in [0, ", chunks, ")"), layout.virtual_rank);
  }
  const std::int32_t first = layout.first_stage_layers;
  const std::int32_t last = layout.last_stage_layers;
  if (first < 0) return BrokenRule("first_stage_layers", "at least 0", first);
  if (last < 0) return BrokenRule("last_stage_layers", "at least 0", last);
  const std::int32_t others = size - (first != 0 ? 1 : 0) - (last != 0 ? 1 : 0);
  if (others < 0)
    return BrokenRule("pipeline_size", "at least 2 with a first and a last stage", size);
  const std::int64_t left = std::int64_t{layout.num_layers} - first - last;
  if (left < 0 || (others == 0 ? left != 0 : left % others != 0)) {
    return BrokenRule("num_layers",
                      absl::StrCat("those of the first and the last stage and as many for each of ",
                                   others, " others"),
                      layout.num_layers);
  }
  const auto middle = static_cast<std::int32_t>(others == 0 ? 0 : left / others);
  for (const std::int32_t layers : {first, last, middle}) {
    if (layers % chunks == 0) continue;
    return BrokenRule("virtual_size",
                      absl::StrCat("a divisor of the ", layers, " layers of a stage"), chunks);
  }
  // Before this stage, in one chunk of every stage.
  const std::int64_t before =
      rank == 0 ? 0 : ((first != 0 ? first : middle) + std::int64_t{rank - 1} * middle) / chunks;
  std::int32_t own = middle;
  if (rank == 0 && first != 0) own = first;
  if (rank == size - 1 && last != 0) own = last;
  return StageLayers{
      layout.virtual_rank * (layout.num_layers / chunks) + static_cast<std::int32_t>(before),
      own / chunks};
}

}  // namespace waymark
