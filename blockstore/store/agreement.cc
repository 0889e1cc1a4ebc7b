#include "blockstore/store/agreement.h"

#include <algorithm>
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

// Calls visit(common ids) for each layer that was written.
template <class Visit>
void VisitLayers(const RoutingShape& shape, const std::uint8_t* a, const std::uint8_t* b,
                 std::span<const std::uint8_t> written, const Visit& visit) {
  const auto k = static_cast<std::size_t>(shape.top_k);
  const std::size_t bytes = k * shape.id_bytes();
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(shape.num_layers); ++layer) {
    if (!written.empty() && written[layer] == 0) continue;
    const std::uint8_t* const x = a + layer * bytes;
    const std::uint8_t* const y = b + layer * bytes;
    visit(shape.id_bytes() == 1 ? Common<std::uint8_t>(k, x, y) : Common<std::uint16_t>(k, x, y));
  }
}

}  // namespace

double Agreement(const RoutingShape& shape, const std::uint8_t* a, const std::uint8_t* b,
                 std::span<const std::uint8_t> written) {
  std::size_t common = 0;
  std::size_t ids = 0;
  VisitLayers(shape, a, b, written, [&](std::size_t of_layer) {
    common += of_layer;
    ids += static_cast<std::size_t>(shape.top_k);
  });
  return static_cast<double>(common) / static_cast<double>(ids);
}

bool TiesExplain(const RoutingShape& shape, const std::uint8_t* a, const std::uint8_t* b,
                 std::span<const std::uint8_t> written) {
  std::size_t layers = 0;
  std::size_t others = 0;
  VisitLayers(shape, a, b, written, [&](std::size_t of_layer) {
    ++layers;
    others += of_layer + 1 < static_cast<std::size_t>(shape.top_k) ? 1 : 0;
  });
  return others <= std::max<std::size_t>(1, layers / 8);
}

double ChanceAgreement(const RoutingShape& shape) {
  return static_cast<double>(shape.top_k) / shape.num_experts;
}

double DefaultAuditThreshold(const RoutingShape& shape) {
  return (1 + ChanceAgreement(shape)) / 2;
}

}  // namespace waymark
