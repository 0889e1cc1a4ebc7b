#include "blockstore/store/agreement.h"

#include <cstddef>
#include <cstring>

namespace waymark {
namespace {

// Ids that the K of `a` and the K of `b` have in common.
template <class Id>
std::size_t Common(std::size_t k, const std::uint8_t* a, const std::uint8_t* b) {
  std::size_t common = 0;
  for (std::size_t i = 0; i < k; ++i) {
    Id x;
    std::memcpy(&x, a + i * sizeof(Id), sizeof(Id));
    for (std::size_t j = 0; j < k; ++j) {
      Id y;
      std::memcpy(&y, b + j * sizeof(Id), sizeof(Id));
      common += x == y ? 1 : 0;
    }
  }
  return common;
}

}  // namespace

double Agreement(const RoutingShape& shape, const std::uint8_t* a, const std::uint8_t* b,
                 std::span<const std::uint8_t> written) {
  const auto k = static_cast<std::size_t>(shape.top_k);
  const std::size_t bytes = k * shape.id_bytes();
  std::size_t common = 0;
  std::size_t ids = 0;
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(shape.num_layers); ++layer) {
    if (!written.empty() && written[layer] == 0) continue;
    const std::uint8_t* const x = a + layer * bytes;
    const std::uint8_t* const y = b + layer * bytes;
    common +=
        shape.id_bytes() == 1 ? Common<std::uint8_t>(k, x, y) : Common<std::uint16_t>(k, x, y);
    ids += k;
  }
  return static_cast<double>(common) / static_cast<double>(ids);
}

double ChanceAgreement(const RoutingShape& shape) {
  return static_cast<double>(shape.top_k) / shape.num_experts;
}

double DefaultAuditThreshold(const RoutingShape& shape) {
  return (1 + ChanceAgreement(shape)) / 2;
}

}  // namespace waymark
