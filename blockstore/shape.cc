#include "blockstore/shape.h"

#include <cstdint>

#include "blockstore/invalid.h"

namespace waymark {
namespace {

absl::Status OutOfBounds(const char* field, std::int64_t low, std::int64_t high,
                         std::int64_t value) {
  return Invalid(field, " must be in [", low, ", ", high, "]; it is ", value);
}

}  // namespace

absl::Status RoutingShape::Validate() const {
  if (num_layers < 1 || num_layers > 1024) return OutOfBounds("num_layers", 1, 1024, num_layers);
  if (num_experts < 1 || num_experts > 65535) {
    return OutOfBounds("num_experts", 1, 65535, num_experts);
  }
  if (top_k < 1 || top_k > 64) return OutOfBounds("top_k", 1, 64, top_k);
  if (top_k > num_experts) {
    return Invalid("top_k must be <= num_experts (", num_experts, "); it is ", top_k);
  }
  if (page_tokens < 1 || page_tokens > 4096) {
    return OutOfBounds("page_tokens", 1, 4096, page_tokens);
  }
  if (layer_ids.empty()) return absl::OkStatus();
  if (layer_ids.size() != static_cast<std::size_t>(num_layers)) {
    return Invalid("layer_ids must be empty or hold one id per layer (", num_layers, "); it holds ",
                   layer_ids.size());
  }
  for (std::size_t i = 0; i < layer_ids.size(); ++i) {
    if (layer_ids[i] < 0) {
      return Invalid("layer_ids[", i, "] must not be negative; it is ", layer_ids[i]);
    }
    if (i > 0 && layer_ids[i] <= layer_ids[i - 1]) {
      return Invalid("layer_ids[", i, "] must be greater than the id before it (", layer_ids[i - 1],
                     "); it is ", layer_ids[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace waymark
