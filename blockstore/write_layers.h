// WriteLayers: rows to tensors of one layer each, a tile of rows at a time. Internal to Waymark: no
// installed header includes it.
#ifndef WAYMARK_BLOCKSTORE_WRITE_LAYERS_H_
#define WAYMARK_BLOCKSTORE_WRITE_LAYERS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockstore/rows.h"

namespace waymark {

// A tile of stored rows.
struct StoredRows {
  std::span<const std::uint8_t* const> rows;  // where the K ids of layer 0 are; null: missing
  std::size_t layer_bytes = 0;                // from a layer of a row to its next
};

// Where a tile of rows goes in tensors of one layer each.
struct LayerTensors {
  IdType id_type = IdType::kInt64;
  Fill fill = Fill::kArange;
  std::uint8_t* ids = nullptr;  // of layer 0 and the first row
  std::size_t layer_bytes = 0;  // from a layer to the next
  // Past the caches: for tensors that are more than those hold.
  bool streamed = false;
};

// Rows that are more than caches hold are written past them: kStreamedBytes of output and more.
inline constexpr std::size_t kStreamedBytes = std::size_t{4} << 20;

// WriteRows in the order [L, T, K], of some rows of larger tensors: row i of layer l goes to
// out.ids + l * out.layer_bytes + i * K * IdBytes(out.id_type). The rows should fit the L2 cache.
// `next`: rows that will be written next, of the same shape, their layers side by side; they are
// asked for meanwhile, because rows lie anywhere, and would be waited for. Any thread. REQUIRES:
// shape.Validate(); every id fits out.id_type.
void WriteLayers(const RoutingShape& shape, const StoredRows& stored, const LayerTensors& out,
                 std::span<const std::uint8_t* const> next = {});

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_WRITE_LAYERS_H_
