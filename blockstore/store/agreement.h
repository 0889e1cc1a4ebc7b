// Agreement: the similarity of two rows, which the audit compares with its threshold.
#ifndef WAYMARK_BLOCKSTORE_STORE_AGREEMENT_H_
#define WAYMARK_BLOCKSTORE_STORE_AGREEMENT_H_

#include <cstdint>

#include "blockstore/shape.h"

namespace waymark {

// Mean over the layers of |ids of a AND ids of b| / K, as sets: order within a layer does not
// matter. In [0, 1]. `a` and `b` are stored rows (shape.row_bytes() each) of valid, distinct ids.
// Any thread.
[[nodiscard]] double Agreement(const RoutingShape& shape, const std::uint8_t* a,
                               const std::uint8_t* b);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_AGREEMENT_H_
