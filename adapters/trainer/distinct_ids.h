// DistinctIds: whether the K ids of every layer of a row are in range and distinct.
#ifndef WAYMARK_ADAPTERS_TRAINER_DISTINCT_IDS_H_
#define WAYMARK_ADAPTERS_TRAINER_DISTINCT_IDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockstore/shape.h"

namespace waymark {

// Checks stored rows of one K and E. Not for several threads at a time: it has scratch memory.
class DistinctIds {
 public:
  DistinctIds(std::int32_t top_k, std::int32_t num_experts);

  // The first of `layers` layers, [layers][K] stored ids at `ids`, that has an id out of range or
  // one twice; -1: there is none.
  [[nodiscard]] std::int32_t FirstBad(const std::uint8_t* ids, std::int32_t layers);

 private:
  template <class Id>
  [[nodiscard]] std::int32_t FirstBadOf(const std::uint8_t* ids, std::int32_t layers);

  const std::int32_t top_k_;
  const std::int32_t num_experts_;
  // Whether all layers are choices, of at least 32 bytes; null: no such code for K, E, or machine.
  bool (*all_good_)(const std::uint8_t* ids, std::size_t bytes,
                    std::uint32_t num_experts) = nullptr;
  std::vector<std::uint32_t> seen_;  // [E]: the turn in which an id was seen last
  std::uint32_t turn_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_TRAINER_DISTINCT_IDS_H_
