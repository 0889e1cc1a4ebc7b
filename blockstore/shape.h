// RoutingShape: the dimensions of a row of routing, and the bytes that it takes.
#ifndef WAYMARK_BLOCKSTORE_SHAPE_H_
#define WAYMARK_BLOCKSTORE_SHAPE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"

namespace waymark {

// The shape of every row of a store. One row belongs to one token and is `[num_layers][top_k]`
// expert ids in C order. A store keeps the shape that it was created with.
struct RoutingShape {
  // Captured MoE layers (L), without dense and draft layers. 1 ... 1024.
  std::int32_t num_layers = 0;
  // Experts chosen per token and layer (K), without shared experts. 1 ... 64, <= num_experts.
  std::int32_t top_k = 0;
  // Logical experts per layer (E). 1 ... 65535. Ids are in [0, E).
  std::int32_t num_experts = 0;
  // Rows per page (B). 1 ... 4096. Must divide the engine's block size and its hash-block size.
  std::int32_t page_tokens = 16;
  // The model's layer number of each captured layer: num_layers numbers >= 0, strictly increasing.
  // Empty: 0, 1, ..., num_layers - 1.
  std::vector<std::int32_t> layer_ids;

  // Bytes of one stored id: 1 (uint8) if E <= 256, otherwise 2 (little-endian uint16).
  [[nodiscard]] std::size_t id_bytes() const { return num_experts <= 256 ? 1 : 2; }
  // Ids of one row: L * K.
  [[nodiscard]] std::size_t row_ids() const {
    return static_cast<std::size_t>(num_layers) * static_cast<std::size_t>(top_k);
  }
  // Bytes of one stored row: L * K * id_bytes().
  [[nodiscard]] std::size_t row_bytes() const { return row_ids() * id_bytes(); }
  // Bytes of one page: B * row_bytes().
  [[nodiscard]] std::size_t page_bytes() const {
    return static_cast<std::size_t>(page_tokens) * row_bytes();
  }
  // Id `n` of a stored row. REQUIRES: n < row_ids().
  [[nodiscard]] std::uint16_t id_at(const std::uint8_t* row, std::size_t n) const {
    if (id_bytes() == 1) return row[n];
    std::uint16_t id;
    std::memcpy(&id, row + 2 * n, sizeof id);
    return id;
  }
  // The model's layer number of captured layer `layer`. REQUIRES: 0 <= layer < num_layers.
  [[nodiscard]] std::int32_t layer_id(std::int32_t layer) const {
    return layer_ids.empty() ? layer : layer_ids[static_cast<std::size_t>(layer)];
  }

  // OK if every field is in the range stated above; otherwise InvalidArgument naming the field, the
  // rule and the value.
  [[nodiscard]] absl::Status Validate() const;

  // The layer ids 0, 1, ..., num_layers - 1 become empty, so that equal shapes compare equal.
  // REQUIRES: Validate().
  void Normalize() {
    if (!layer_ids.empty() && layer_ids.back() == num_layers - 1) layer_ids.clear();
  }

  friend bool operator==(const RoutingShape&, const RoutingShape&) = default;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_SHAPE_H_
