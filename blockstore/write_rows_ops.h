// The inner loops of layers-first output: one table of functions per instruction set
// (write_rows.cc, write_rows_avx2.cc). Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_WRITE_ROWS_OPS_H_
#define WAYMARK_BLOCKSTORE_WRITE_ROWS_OPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockstore/rows.h"
#include "blockstore/write_layers.h"

namespace waymark::internal {

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
  // Writes the layer to `to`, [rows][K]. Of stored ids only those of the layer are read.
  using Widen = void (*)(const LayerRows& layer, std::uint8_t* to);
  // The function for stored ids of 1 or 2 bytes and written ids of 1 (if the stored ones are), 2,
  // 4 or 8 bytes; null: these instructions are no help. The portable set has all.
  Widen (*find)(std::size_t from_bytes, std::size_t to_bytes, std::size_t top_k);
  // Copies whole cache lines past the caches. REQUIRES: `to` is at a line; bytes are whole lines.
  void (*stream)(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes);
};

#if defined(__x86_64__)
extern const LayerOps kLayerOpsAvx2;
#endif

// Those that this machine can run, the portable one first and the best last. Static storage; any
// thread.
[[nodiscard]] std::span<const LayerOps* const> SupportedLayerOps();

// WriteLayers by these functions.
void WriteLayers(const LayerOps& ops, const RoutingShape& shape, const StoredRows& stored,
                 const LayerTensors& out, std::span<const std::uint8_t* const> next);

}  // namespace waymark::internal

#endif  // WAYMARK_BLOCKSTORE_WRITE_ROWS_OPS_H_
