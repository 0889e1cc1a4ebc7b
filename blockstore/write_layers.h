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
  Fill fill = Fill::kMinusOne;
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

namespace internal {

// The inner loops (write_rows.cc), by instruction set.

// Bytes behind what a function writes that it may overwrite, and behind what it reads of `missing`.
inline constexpr std::size_t kSlack = 64;

// One layer of rows.
struct LayerRows {
  std::span<const std::uint8_t* const> rows;  // null: missing
  std::size_t offset = 0;                     // of the layer's K ids in a row, in bytes
  std::size_t top_k = 0;
  const std::uint8_t* missing = nullptr;  // what is written for a missing row: K ids, then kSlack
};

struct LayerOps {
  const char* name;  // "portable", "avx2"
  // Writes the layer to `to`, [rows][K]. Of stored ids only the layer's are read.
  using Widen = void (*)(const LayerRows& layer, std::uint8_t* to);
  // The function for stored ids of 1 or 2 bytes and written ids of 1 (if the stored ones are), 2,
  // 4 or 8 bytes; null: these instructions are no help. The portable set has all.
  Widen (*find)(std::size_t from_bytes, std::size_t to_bytes, std::size_t top_k);
  // Copies whole cache lines past the caches. REQUIRES: `to` is at a line; bytes are whole lines.
  void (*stream)(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes);
};

// Those that this machine can run, the portable one first and the best last. Static storage; any
// thread.
[[nodiscard]] std::span<const LayerOps> SupportedLayerOps();

// WriteLayers by these functions.
void WriteLayers(const LayerOps& ops, const RoutingShape& shape, const StoredRows& stored,
                 const LayerTensors& out, std::span<const std::uint8_t* const> next);

}  // namespace internal

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_WRITE_LAYERS_H_
