// SpreadIds: the experts of rows without a route, so that padding loads them all alike.
//
// A trainer dispatches padding, last tokens and missing rows to experts as any other row. With the
// same K experts in each, one rank of experts gets them all. So they get the ids of one endless
// order of the experts, K after K: any P assignments that follow each other go to P ranks of
// adjacent experts, for every power of two P that divides E; for other P that divide it, the ranks
// differ by a few.
#ifndef WAYMARK_ADAPTERS_TRAINER_SPREAD_H_
#define WAYMARK_ADAPTERS_TRAINER_SPREAD_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockstore/shape.h"

namespace waymark {

// Immutable.
class SpreadIds {
 public:
  // For rows of `tensors` tensors of K ids of E experts, as `shape` stores them. REQUIRES:
  // shape.Validate().
  SpreadIds(const RoutingShape& shape, std::size_t tensors);

  // The K ids in a tensor of the n-th row without a route, as stored; behind them are those in the
  // next tensors. They are distinct. The next tensor begins where this row ends, so that few rows
  // load other experts in each layer.
  [[nodiscard]] const std::uint8_t* Row(std::size_t number, std::size_t tensor) const {
    return ids_.data() + (number + tensor) * top_k_ % num_experts_ * id_bytes_;
  }

 private:
  std::size_t top_k_;
  std::size_t num_experts_;
  std::size_t id_bytes_;
  std::vector<std::uint8_t> ids_;  // the order, until every tensor of a row has ids
};

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_TRAINER_SPREAD_H_
