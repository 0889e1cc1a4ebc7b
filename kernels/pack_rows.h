// PackRows: strided ids to packed rows at scattered addresses, checked on the way.
//
// The host twin of the device's pack: same input, same rows, same verdicts. Reentrant; any thread.
#ifndef WAYMARK_KERNELS_PACK_ROWS_H_
#define WAYMARK_KERNELS_PACK_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ids_view.h"
#include "kernels/isa.h"

namespace waymark::kernels {

// What is to be said of one row.
enum class RowVerdict : std::uint8_t {
  kOk = 0,
  kNotWritten,  // the first layer with a fault has an id of -1 in it: nothing, or not all, was
                // written
  kInvalidId,   // the first layer with a fault has an id outside [0, E), or one id twice
};

// Faults, layer by layer; both arrays have num_layers elements, are the caller's, and are added to.
struct LayerFaults {
  std::uint64_t* silent = nullptr;  // rows in which the layer has an id of -1
  std::uint64_t* invalid =
      nullptr;  // other rows in which it has an id out of range, or one id twice
};

// Packs row i of `ids` to destinations[i], shape.row_bytes() each, for every i whose destination is
// not null, and sets verdicts[i]; elements of null destinations are left alone. A row with a fault
// has unspecified bytes at its destination. "-1" is all bits set in the signed types and in uint16;
// uint8 has none. Returns the number of rows with a fault.
//   first_layers: null, or num elements: the first layer with a fault, where there is one.
//   faults: null arrays, or where faults are added up.
// REQUIRES: verdicts as many as destinations; source and destinations do not overlap; `isa` is
// supported.
std::size_t PackRows(const RowShape& shape, const IdsView& ids,
                     std::span<std::uint8_t* const> destinations, std::span<RowVerdict> verdicts,
                     std::int32_t* first_layers, LayerFaults faults, Isa isa);
// With the best instruction set.
std::size_t PackRows(const RowShape& shape, const IdsView& ids,
                     std::span<std::uint8_t* const> destinations, std::span<RowVerdict> verdicts,
                     std::int32_t* first_layers = nullptr, LayerFaults faults = {});

// What one layer of one row has: the definition that PackRows applies layer by layer.
[[nodiscard]] RowVerdict CheckLayer(const RowShape& shape, const IdsView& ids, std::ptrdiff_t row,
                                    std::int32_t layer);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_PACK_ROWS_H_
