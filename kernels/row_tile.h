// Tiles of rows in shared memory: their geometry, and spans of bytes into and out of them.
// Internal to kernels.
//
// A block of 16 x 16 threads works on 16 rows. A view has rows of one layer side by side (16 rows
// of 8 int16 ids: 256 bytes), a packed row has its layers side by side; so the block is used once
// as [layers][rows] and once, across a barrier, as [rows][bytes of a row], with the tile in shared
// memory between the two. Either way 16 neighbouring threads touch 256 bytes in a run: whole cache
// lines on one side of the transposition, and on the other all but the ends of a row.
//
// Why 16 rows: 4096 rows are 256 blocks then, about two for each SM of a large device, and each
// has up to 16 KiB of loads on their way (kInFlight below). A device of 4.8 TB/s, 132 SMs and some
// 700 ns to memory needs 4.8e12 / 132 * 7e-7 = 25 KiB on its way in each SM; two blocks do.
//
// Banks: rows of a tile are an odd number of vectors apart. 16 threads that store 8 bytes each into
// 16 rows then meet in a bank in pairs; those that store 16 bytes, or copy a row, do not meet.
#ifndef WAYMARK_KERNELS_ROW_TILE_H_
#define WAYMARK_KERNELS_ROW_TILE_H_

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/device_code.h"
#include "kernels/ids_view.h"

namespace waymark::kernels::device {

inline constexpr unsigned kTileRows = 16;
inline constexpr unsigned kLanes = 16;  // threads side by side: of a layer, or of a row
inline constexpr unsigned kThreads = kTileRows * kLanes;
inline constexpr unsigned kVector = 16;    // bytes of the widest load and store
inline constexpr unsigned kInFlight = 64;  // bytes that a thread loads before it looks at any

// Bytes of a tile, at most: six of them fit into an SM, and no kernel needs leave for more shared
// memory than every device gives. Rows that are longer are worked on a chunk of layers at a time.
inline constexpr unsigned kMaxPitch = 2032;
inline constexpr unsigned kMaxChunkLayers = 256;
inline constexpr std::int32_t kMaxTopK = 1000;
static_assert(kMaxPitch % (2 * kVector) == kVector);
static_assert(kMaxTopK * sizeof(std::uint16_t) + kVector - 1 <= kMaxPitch);

// Blocks of a grid, at most; and so rows of a view. Offsets into a row stay below 2^32.
inline constexpr std::uint64_t kMaxBlocks = 0x7fffffff;
inline constexpr auto kMaxRows = static_cast<std::int64_t>(kMaxBlocks * kTileRows);
inline constexpr std::int32_t kMaxLayers = 1 << 20;

// Whether rows of this shape can lie in tiles.
[[nodiscard]] inline bool CheckShape(const RowShape& shape) {
  return shape.num_layers >= 1 && shape.num_layers <= kMaxLayers && shape.top_k >= 1 &&
         shape.top_k <= kMaxTopK && shape.num_experts >= 1 && shape.num_experts <= 65535;
}
// Whether there can be so many rows.
[[nodiscard]] inline bool CheckRows(std::int64_t rows) {
  return rows >= 0 && rows <= kMaxRows;
}

// Quotients by a number that is not known until run time, in one multiplication.
struct Divider {
  std::uint32_t divisor = 1;
  std::uint32_t reciprocal = 0xffffffffu;  // (2^32 - 1) / divisor, rounded down

  static Divider Of(std::uint32_t divisor) { return {divisor, 0xffffffffu / divisor}; }
  // n / divisor. The product falls short of (n + 1) / divisor * 2^32 by at most n + 1, which is
  // less than what n + 1 is beyond a multiple. REQUIRES: (n + 1) * divisor <= 2^32.
  WAYMARK_DEVICE std::uint32_t Quotient(std::uint32_t n) const {
    return static_cast<std::uint32_t>((std::uint64_t{n} + 1) * reciprocal >> 32);
  }
};

// How rows of a shape lie in tiles.
struct TileShape {
  unsigned num_layers = 0;
  unsigned top_k = 0;
  unsigned id_bytes = 0;
  unsigned chunk_layers = 0;  // layers that a tile holds
  unsigned pitch = 0;         // bytes from row to row of a tile: an odd number of vectors
  std::uint64_t row_bytes = 0;

  // REQUIRES: CheckShape(shape).
  static TileShape Of(const RowShape& shape) {
    TileShape tile;
    tile.num_layers = static_cast<unsigned>(shape.num_layers);
    tile.top_k = static_cast<unsigned>(shape.top_k);
    tile.id_bytes = static_cast<unsigned>(shape.id_bytes());
    tile.row_bytes = shape.row_bytes();
    const unsigned layer_bytes = tile.top_k * tile.id_bytes;
    const unsigned most = std::min(kMaxChunkLayers, (kMaxPitch - (kVector - 1)) / layer_bytes);
    const unsigned chunks = (tile.num_layers + most - 1) / most;
    tile.chunk_layers = (tile.num_layers + chunks - 1) / chunks;
    const unsigned bytes = tile.chunk_layers * layer_bytes + kVector - 1;
    tile.pitch = ((bytes + kVector - 1) / kVector | 1) * kVector;
    return tile;
  }
  // Bytes of a tile of `rows` rows. Two chunks differ in their layers alone.
  [[nodiscard]] unsigned bytes(unsigned rows = kTileRows) const { return rows * pitch; }
  // Layers of the chunk that begins with layer `first`.
  WAYMARK_DEVICE unsigned ChunkAt(unsigned first) const {
    return num_layers - first < chunk_layers ? num_layers - first : chunk_layers;
  }
};

// ---- loads and stores

WAYMARK_DEVICE unsigned Misalignment(const void* at) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(at) % kVector);
}

// On a device a fault; where tests run this on the host, a failed assertion.
WAYMARK_DEVICE void ExpectMultiple([[maybe_unused]] const void* at,
                                   [[maybe_unused]] std::size_t of) {
#if !defined(__CUDACC__)
  assert(reinterpret_cast<std::uintptr_t>(at) % of == 0);
#endif
}

// REQUIRES: `at` is a multiple of T's size.
template <class T>
WAYMARK_DEVICE T Load(const std::uint8_t* at) {
  ExpectMultiple(at, sizeof(T));
  T value;
  std::memcpy(&value, __builtin_assume_aligned(at, sizeof(T)), sizeof(T));
  return value;
}
// REQUIRES: `at` is a multiple of T's size.
template <class T>
WAYMARK_DEVICE void Store(std::uint8_t* at, const T& value) {
  ExpectMultiple(at, sizeof(T));
  std::memcpy(__builtin_assume_aligned(at, sizeof(T)), &value, sizeof(T));
}

struct alignas(kVector) Vector {
  std::uint32_t words[kVector / sizeof(std::uint32_t)];
};

// Bytes of the widest load that `bytes` are a multiple of.
[[nodiscard]] constexpr std::size_t WidestPart(std::size_t bytes) {
  return std::min<std::size_t>(bytes & ~(bytes - 1), kVector);
}
template <std::size_t kBytes>
inline constexpr std::size_t kWidestPart = WidestPart(kBytes);

// Copies kBytes in parts that are as wide as that number allows. REQUIRES: both are multiples of
// WidestPart(kBytes).
template <std::size_t kBytes>
WAYMARK_DEVICE void CopyParts(void* to, const void* from) {
  constexpr std::size_t kPart = kWidestPart<kBytes>;
  ExpectMultiple(to, kPart);
  ExpectMultiple(from, kPart);
  for (std::size_t at = 0; at < kBytes; at += kPart) {
    std::memcpy(__builtin_assume_aligned(static_cast<std::uint8_t*>(to) + at, kPart),
                __builtin_assume_aligned(static_cast<const std::uint8_t*>(from) + at, kPart),
                kPart);
  }
}

// ---- spans, by the `lanes` threads of a row or layer together; `lane` is which of them, and
// kVector <= lanes

// Bytes before the first multiple of kVector.
WAYMARK_DEVICE unsigned HeadOf(const void* at, unsigned bytes) {
  const unsigned head = (kVector - Misalignment(at)) % kVector;
  return head < bytes ? head : bytes;
}

// REQUIRES: both are as far from a multiple of kVector.
WAYMARK_DEVICE void CopySpan(std::uint8_t* to, const std::uint8_t* from, unsigned bytes,
                             unsigned lane, unsigned lanes = kLanes) {
  const unsigned head = HeadOf(to, bytes);
  if (lane < head) to[lane] = from[lane];
  const unsigned vectors = (bytes - head) / kVector;
  constexpr unsigned kTurns = 2;
  for (unsigned first = lane; first < vectors; first += kTurns * lanes) {
    Vector turn[kTurns];
    for (unsigned i = 0; i < kTurns; ++i) {
      const unsigned v = first + i * lanes;
      if (v < vectors) turn[i] = Load<Vector>(from + head + v * kVector);
    }
    for (unsigned i = 0; i < kTurns; ++i) {
      const unsigned v = first + i * lanes;
      if (v < vectors) Store(to + head + v * kVector, turn[i]);
    }
  }
  const unsigned rest = head + vectors * kVector;
  if (rest + lane < bytes) to[rest + lane] = from[rest + lane];
}

// Sets every bit.
WAYMARK_DEVICE void FillSpan(std::uint8_t* to, unsigned bytes, unsigned lane) {
  const unsigned head = HeadOf(to, bytes);
  if (lane < head) to[lane] = 0xff;
  const unsigned vectors = (bytes - head) / kVector;
  const Vector ones = {{0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}};
  for (unsigned v = lane; v < vectors; v += kLanes) {
    Store(to + head + v * kVector, ones);
  }
  const unsigned rest = head + vectors * kVector;
  if (rest + lane < bytes) to[rest + lane] = 0xff;
}

}  // namespace waymark::kernels::device

#endif  // WAYMARK_KERNELS_ROW_TILE_H_
