// RoutingShape: what one row is made of, and how many bytes it takes.
#ifndef WAYMARK_BLOCKSTORE_SHAPE_H_
#define WAYMARK_BLOCKSTORE_SHAPE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace waymark {

// The shape of every row of a store: `num_layers` x `top_k` expert ids, token-major, i.e. one row
// is
// `[num_layers][top_k]` in C order. Immutable once a store is made from it.
struct RoutingShape {
  // Captured MoE layers (L). Dense and draft layers are not counted. 1 ... 1024.
  std::int32_t num_layers = 0;
  // Experts chosen per token and layer (K), shared experts not counted. 1 ... 64, <= num_experts.
  std::int32_t top_k = 0;
  // Logical experts per layer (E). 1 ... 65535. Ids are in [0, E).
  std::int32_t num_experts = 0;
  // Rows of one page (B). 1 ... 4096. Divides the engine's block size and its hash-block size.
  std::int32_t page_tokens = 16;
  // The model's layer number behind each captured layer: >= 0, strictly increasing, `num_layers` of
  // them. Empty means 0, 1, ..., num_layers - 1.
  std::vector<std::int32_t> layer_ids;

  // Bytes of one stored id: 1 when E <= 256, else 2 (little-endian uint16).
  [[nodiscard]] std::size_t id_bytes() const { return num_experts <= 256 ? 1 : 2; }
  // Ids of one row: L * K.
  [[nodiscard]] std::size_t row_ids() const {
    return static_cast<std::size_t>(num_layers) * static_cast<std::size_t>(top_k);
  }
  // Bytes of one stored row: L * K * id_bytes().
  [[nodiscard]] std::size_t row_bytes() const { return row_ids() * id_bytes(); }
  // Bytes of the rows of one page: B * row_bytes().
  [[nodiscard]] std::size_t page_bytes() const {
    return static_cast<std::size_t>(page_tokens) * row_bytes();
  }
  // The model's layer number of captured layer `layer`. REQUIRES: 0 <= layer < num_layers.
  [[nodiscard]] std::int32_t layer_id(std::int32_t layer) const {
    return layer_ids.empty() ? layer : layer_ids[static_cast<std::size_t>(layer)];
  }

  // InvalidArgument naming the field, the rule and the value, unless every rule above holds.
  [[nodiscard]] absl::Status Validate() const;

  friend bool operator==(const RoutingShape&, const RoutingShape&) = default;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_SHAPE_H_
