// RouteOracle: computes the right row of every token, as a hash of its prefix, the layer and the
// weights version.
//
// The last layer of every pipeline stage depends on the step, too, as batch-variant arithmetic
// does, so that another pass over the same prefix has another row. Takes about 100 ns per row at L
// = 4, K = 8. The K ids of a layer are distinct: [0, E) is cut into K strata, and the k-th id comes
// from the k-th.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_ORACLE_H_
#define WAYMARK_ADAPTERS_SIMULATORS_ORACLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "adapters/simulators/hash.h"
#include "blockstore/shape.h"

namespace waymark::sim {

// Immutable: const access from any thread.
class RouteOracle {
 public:
  // Each of `stages` pipeline stages has a run of consecutive layers; the lengths differ by at most
  // one. REQUIRES: 1 <= stages <= num_layers, 1 <= top_k <= num_experts <= 65535.
  RouteOracle(std::int32_t num_layers, std::int32_t top_k, std::int32_t num_experts,
              std::int32_t stages = 1);

  [[nodiscard]] std::int32_t stages() const {
    return static_cast<std::int32_t>(first_layer_.size()) - 1;
  }
  // The shape of the rows of one stage, with the model's layer numbers.
  [[nodiscard]] RoutingShape StageShape(std::int32_t stage, std::int32_t page_tokens) const;
  // The shape of rows with all layers, as JoinLayers returns it.
  [[nodiscard]] RoutingShape WholeShape(std::int32_t page_tokens) const;
  // Bytes of a row with all layers.
  [[nodiscard]] std::size_t row_bytes() const;

  // Writes the row of one stage, as the store keeps rows, to `out` (StageShape().row_bytes()).
  void StageRow(std::int32_t stage, const PrefixHash& prefix, std::uint64_t version,
                std::uint64_t step, std::uint8_t* out) const;
  // Writes the row with all layers to `out` (row_bytes()).
  void Row(const PrefixHash& prefix, std::uint64_t version, std::uint64_t step,
           std::uint8_t* out) const;

 private:
  template <class Id>
  void Layers(std::int32_t first, std::int32_t last, const PrefixHash& prefix,
              std::uint64_t version, std::uint64_t step, std::uint8_t* out) const;

  std::int32_t top_k_;
  std::int32_t num_experts_;
  std::vector<std::int32_t> first_layer_;  // first layer of each stage, then num_layers
  std::vector<std::uint32_t> base_;        // first id of stratum k
  std::vector<std::uint32_t> width_;       // ids in stratum k
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_ORACLE_H_
