// Agreement: the similarity of two rows, and the threshold below which the audit takes them for
// rows of two tokens.
#ifndef WAYMARK_BLOCKSTORE_STORE_AGREEMENT_H_
#define WAYMARK_BLOCKSTORE_STORE_AGREEMENT_H_

#include <cstdint>
#include <span>

#include "blockstore/shape.h"

namespace waymark {

// Mean of |ids of a AND ids of b| / K, as sets: order within a layer does not matter. In [0, 1].
// `a` and `b` are stored rows (shape.row_bytes() each) of valid, distinct ids. Over the layers with
// written[layer] != 0, of which there is one at least; over all, if `written` is empty. Any thread.
[[nodiscard]] double Agreement(const RoutingShape& shape, const std::uint8_t* a,
                               const std::uint8_t* b, std::span<const std::uint8_t> written = {});

// Whether near ties explain that the rows differ. A tie exchanges one id of a layer: so not if two
// or more differ in more than an eighth of the layers, and in more than one. Arguments as above;
// K = 1: always.
[[nodiscard]] bool TiesExplain(const RoutingShape& shape, const std::uint8_t* a,
                               const std::uint8_t* b, std::span<const std::uint8_t> written = {});

// The agreement that chance gives two tokens: K / E on average, if each layer chooses K of E
// experts evenly.
[[nodiscard]] double ChanceAgreement(const RoutingShape& shape);
// Halfway between that and 1.
[[nodiscard]] double DefaultAuditThreshold(const RoutingShape& shape);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_AGREEMENT_H_
