// StageLayers: the layers of a pipeline stage, by the model's numbers.
#ifndef WAYMARK_ADAPTERS_TRAINER_STAGE_LAYERS_H_
#define WAYMARK_ADAPTERS_TRAINER_STAGE_LAYERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace waymark {

// How a pipeline cuts the decoder layers of a model.
struct PipelineLayout {
  std::int32_t num_layers = 0;     // decoder layers of the model, dense ones included
  std::int32_t pipeline_size = 1;  // stages
  std::int32_t pipeline_rank = 0;  // in [0, pipeline_size)
  // Interleaved (virtual) pipeline: model chunks of each stage, and the one that is meant.
  std::int32_t virtual_size = 1;
  std::int32_t virtual_rank = 0;  // in [0, virtual_size)
  // Layers of the first and the last stage, all of their chunks together; 0: as the others.
  std::int32_t first_stage_layers = 0;
  std::int32_t last_stage_layers = 0;
};

// The layers [first, first + count) of a model chunk, counted from 0: a router's layer_number in
// Megatron-Core, minus 1. Chunk v of all stages comes before chunk v + 1 of any.
struct StageLayers {
  std::int32_t first = 0;
  std::int32_t count = 0;
};

// InvalidArgument, naming the field, the rule and the value, unless the layers can be cut so. A
// layout that is given as a text, or that counts the embedding or the loss as a layer, has other
// rules: take the numbers from the model's routers.
[[nodiscard]] absl::StatusOr<StageLayers> LayersOfStage(const PipelineLayout& layout);

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_TRAINER_STAGE_LAYERS_H_
