// PackRows: copies strided ids to packed rows at scattered addresses, and checks every id.
//
// The host twin of PackRowsOnCuda: the same rows and verdicts for the same input. Any thread; calls
// on different rows may run at the same time. No allocation.
#ifndef WAYMARK_KERNELS_PACK_ROWS_H_
#define WAYMARK_KERNELS_PACK_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ids_view.h"
#include "kernels/isa.h"

namespace waymark::kernels {

// Whether the ids of a row are right; if not, the fault of its first layer with a fault.
enum class RowVerdict : std::uint8_t {
  kOk = 0,
  // In the first layer with a fault every id is -1: it was not written.
  kNotWritten,
  // The first layer with a fault has an id outside [0, E), a part of its ids -1 included, or the
  // same id twice.
  kInvalidId,
};

// Packs row i of `ids` to destinations[i], which has shape.row_bytes() bytes, and sets verdicts[i],
// for every i whose destination is not null; verdicts of null destinations are not written. The
// destination of a row with a fault has unspecified bytes. "-1" is all bits set in the signed types
// and in uint16; uint8 has no such id. Returns the number of rows with a fault.
// REQUIRES: as many verdicts as destinations; input and destinations do not overlap; `isa` is one
// of SupportedIsas().
std::size_t PackRows(const RowShape& shape, const IdsView& ids,
                     std::span<std::uint8_t* const> destinations, std::span<RowVerdict> verdicts,
                     Isa isa = SupportedIsas().back());

// The id at (row, layer, k) as a signed number; -1 where nothing was written.
[[nodiscard]] std::int64_t IdAt(const IdsView& ids, std::ptrdiff_t row, std::int32_t layer,
                                std::int32_t k);

// The verdict of one layer of one row. The verdict of a row is the first of them that is not kOk.
[[nodiscard]] RowVerdict CheckLayer(const RowShape& shape, const IdsView& ids, std::ptrdiff_t row,
                                    std::int32_t layer);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_PACK_ROWS_H_
