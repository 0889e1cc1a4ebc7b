#include "blockstore/store/agreement.h"

#include <cstddef>
#include <cstring>

namespace waymark {
namespace {

template <class Id>
std::size_t Common(const RoutingShape& shape, const std::uint8_t* a, const std::uint8_t* b) {
  const auto k = static_cast<std::size_t>(shape.top_k);
  std::size_t common = 0;
  for (std::size_t at = 0; at < shape.row_ids(); at += k) {
    for (std::size_t i = 0; i < k; ++i) {
      Id x;
      std::memcpy(&x, a + (at + i) * sizeof(Id), sizeof(Id));
      for (std::size_t j = 0; j < k; ++j) {
        Id y;
        std::memcpy(&y, b + (at + j) * sizeof(Id), sizeof(Id));
        common += x == y ? 1 : 0;
      }
    }
  }
  return common;
}

}  // namespace

double Agreement(const RoutingShape& shape, const std::uint8_t* a, const std::uint8_t* b) {
  const std::size_t common = shape.id_bytes() == 1 ? Common<std::uint8_t>(shape, a, b)
                                                   : Common<std::uint16_t>(shape, a, b);
  return static_cast<double>(common) / static_cast<double>(shape.row_ids());
}

}  // namespace waymark
