// The inner loops of PackRows, one set per instruction set. Included by this folder only.
#ifndef WAYMARK_KERNELS_PACK_ROWS_OPS_H_
#define WAYMARK_KERNELS_PACK_ROWS_OPS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/ids_view.h"

namespace waymark::kernels::internal {

// Shape and what follows from it, worked out once a call.
struct PackPlan {
  RowShape shape;
  std::size_t row_ids = 0;
  // First id that is out of range, in the unsigned type of the input: negative ids are above it.
  std::uint64_t limit = 0;
  // Whether the packed type can hold an id that is out of range (E < 256 in a byte).
  bool copy_checks_range = false;
  // Layers that have nothing wrong, for what is shorter than a vector: 0 ... K - 1 again and again,
  // as packed ids.
  static constexpr std::size_t kWholeLayers = 96;
  std::array<std::uint8_t, kWholeLayers> whole_layers{};
};

// Neighbouring rows of the input, and where they are staged, packed: `staged_stride` bytes apart.
// Tiles are narrowed layer by layer where rows that are neighbours share cache lines, and layers
// whose distance is a multiple of 4 KiB share a set of the cache.
struct Tile {
  static constexpr std::size_t kMaxRows = 16;
  // If `slack` is true, `narrow` may write over so many bytes beyond a staged row, and over staged
  // rows up to `room`.
  static constexpr std::size_t kSlack = 64;
  std::size_t rows = 0;
  std::size_t room = 0;                 // rows that can be staged
  const std::uint8_t* input = nullptr;  // layer 0, k 0 of the first row
  std::uint8_t* staged = nullptr;
  std::size_t staged_stride = 0;
  std::array<bool, kMaxRows> in_range{};
  bool slack = false;
};

struct PackOps {
  // Copies one packed row and returns whether it is right: every layer distinct and, where
  // plan.copy_checks_range, in range.
  bool (*copy_check)(const PackPlan& plan, const std::uint8_t* input, std::uint8_t* destination);
  // Narrows every row of `tile` into its staged bytes, and sets in_range. Ids out of range leave
  // any byte behind.
  void (*narrow)(const PackPlan& plan, const IdsView& ids, Tile& tile);
};

[[nodiscard]] const PackOps& PortableOps();
#if defined(__x86_64__)
// Only for processors that have them.
[[nodiscard]] const PackOps& Avx2Ops();
[[nodiscard]] const PackOps& Avx512Ops();
#endif

// The id at `address`, unaligned, as an unsigned number of its own width.
template <class T>
[[nodiscard]] inline std::make_unsigned_t<T> LoadId(const std::uint8_t* address) {
  std::make_unsigned_t<T> value;
  std::memcpy(&value, address, sizeof(value));
  return value;
}

// Narrows without vectors.
template <class Input, class Packed>
void NarrowTile(const PackPlan& plan, const IdsView& ids, Tile& tile) {
  using Wide = std::conditional_t<sizeof(Input) == 8, std::uint64_t, std::uint32_t>;
  const auto limit = static_cast<Wide>(plan.limit);
  const std::size_t top_k = static_cast<std::size_t>(plan.shape.top_k);
  std::array<bool, Tile::kMaxRows> bad{};
  for (std::int32_t layer = 0; layer < plan.shape.num_layers; ++layer) {
    for (std::size_t row = 0; row < tile.rows; ++row) {
      const std::uint8_t* input =
          tile.input + static_cast<std::ptrdiff_t>(row) * ids.row_stride + layer * ids.layer_stride;
      std::uint8_t* packed = tile.staged + row * tile.staged_stride +
                             static_cast<std::size_t>(layer) * top_k * sizeof(Packed);
      bool bad_here = false;
      for (std::size_t k = 0; k < top_k; ++k) {
        const auto id = LoadId<Input>(input + static_cast<std::ptrdiff_t>(k) * ids.k_stride);
        bad_here |= Wide{id} >= limit;
        const auto narrow = static_cast<Packed>(id);
        std::memcpy(packed + k * sizeof(Packed), &narrow, sizeof(narrow));
      }
      bad[row] |= bad_here;
    }
  }
  for (std::size_t row = 0; row < tile.rows; ++row)
    tile.in_range[row] = !bad[row];
}

// NarrowTile for the types of `ids` and of the packed row.
inline void NarrowTileByKind(const PackPlan& plan, const IdsView& ids, Tile& tile) {
  VisitKind(ids.kind, [&]<class Input>() {
    if (plan.shape.id_bytes() == 1) return NarrowTile<Input, std::uint8_t>(plan, ids, tile);
    NarrowTile<Input, std::uint16_t>(plan, ids, tile);
  });
}

}  // namespace waymark::kernels::internal

#endif  // WAYMARK_KERNELS_PACK_ROWS_OPS_H_
