// Gather, over a Block: what the kernel runs on a device, and tests run on the host. Internal to
// kernels.
//
// A block has 16 rows of the result. For each chunk of layers:
//   1. [rows][bytes]: 16 threads find a row's page and copy what the chunk takes of it into the
//      tile.
//   2. 16 threads write a run of the result, widened, in vectors: the chunk of a row (tokens
//      first) or the 16 rows of a layer (layers first).
#ifndef WAYMARK_KERNELS_GATHER_KERNEL_H_
#define WAYMARK_KERNELS_GATHER_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "kernels/pack_cuda.h"
#include "kernels/row_tile.h"

namespace waymark::kernels::device {

// Offsets of the tile's rows, before the tile in shared memory.
inline constexpr unsigned kOffsetsBytes = kTileRows * sizeof(std::uint32_t);

// A checked call of GatherRowsOnCuda, and what follows from it. Plain data, an argument of the
// kernel; owns nothing.
struct GatherPlan {
  CudaGather gather;
  TileShape tile;  // how a chunk of kTileRows packed rows lies in shared memory
  Divider by_top_k;
  std::uint64_t blocks = 0;   // of kThreads threads; 0: nothing to do
  unsigned shared_bytes = 0;  // that each block needs
};

// False if an argument breaks a rule of CudaGather that the host can see: not checked are the
// numbers in page_list, whether ids fit `kind`, and overlaps. Without rows, the pointers are not
// looked at.
[[nodiscard]] inline bool CheckGather(const CudaGather& gather) {
  const RowShape& shape = gather.shape;
  if (!CheckShape(shape) || !CheckRows(gather.first_row, gather.rows) || gather.page_rows < 1) {
    return false;
  }
  if (gather.kind > IdKind::kInt64 || gather.order > RowsOrder::kLayersTokensK ||
      gather.fill > MissingFill::kArange) {
    return false;
  }
  if (gather.rows == 0) return true;
  const auto is_at = [](const void* at, std::size_t bytes) {
    return at != nullptr && reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
  };
  return is_at(gather.pages, shape.id_bytes()) && is_at(gather.out, IdKindBytes(gather.kind)) &&
         static_cast<std::size_t>(gather.page_stride) % shape.id_bytes() == 0 &&
         (gather.page_list == nullptr || is_at(gather.page_list, alignof(std::int32_t)));
}

// REQUIRES: CheckGather(gather).
[[nodiscard]] inline GatherPlan PlanGather(const CudaGather& gather) {
  GatherPlan plan;
  plan.gather = gather;
  plan.tile = TileShape::Of(gather.shape);
  plan.by_top_k = Divider::Of(plan.tile.top_k);
  plan.blocks = (static_cast<std::uint64_t>(gather.rows) + kTileRows - 1) / kTileRows;
  plan.shared_bytes = kOffsetsBytes + plan.tile.bytes();
  return plan;
}

// Writes value(0), ..., value(count - 1) to `to`, by the kLanes threads of a group together; `lane`
// is which of them, and each calls `value` for the elements that it writes. REQUIRES: `to` is a
// multiple of the size of Out.
template <class Out, class Value>
WAYMARK_DEVICE void WriteSpan(std::uint8_t* to, unsigned count, unsigned lane, Value&& value) {
  constexpr unsigned kMost = kVector / sizeof(Out);  // elements of a vector
  const unsigned head =
      HeadOf(to, count * static_cast<unsigned>(sizeof(Out))) / static_cast<unsigned>(sizeof(Out));
  if (lane < head) Store(to + lane * sizeof(Out), static_cast<Out>(value(lane)));
  const unsigned vectors = (count - head) / kMost;
  for (unsigned v = lane; v < vectors; v += kLanes) {
    const unsigned first = head + v * kMost;
    alignas(kVector) Out elements[kMost];
    for (unsigned i = 0; i < kMost; ++i)
      elements[i] = static_cast<Out>(value(first + i));
    CopyParts<sizeof(elements)>(to + first * sizeof(Out), elements);
  }
  const unsigned rest = head + vectors * kMost;
  if (rest + lane < count) {
    Store(to + (rest + lane) * sizeof(Out), static_cast<Out>(value(rest + lane)));
  }
}

// What a missing row has at the k-th place of a layer; -1 is all bits set in every type.
WAYMARK_DEVICE std::uint64_t FillId(MissingFill fill, unsigned k) {
  if (fill == MissingFill::kArange) return k;
  return fill == MissingFill::kZeros ? 0 : ~std::uint64_t{0};
}

// The work of block.index(), one of plan.blocks. `shared`: plan.shared_bytes, at a multiple of
// kVector. Packed: an unsigned type of tile.id_bytes. Out: unsigned, as wide as an id of
// gather.kind.
template <class Packed, class Out, class Block>
WAYMARK_DEVICE void GatherTile(const Block& block, const GatherPlan& plan, std::uint8_t* shared) {
  const CudaGather& gather = plan.gather;
  const TileShape& shape = plan.tile;
  // Where the chunk of a row begins in the tile, in bytes; kMissing: the row is missing. As far
  // from a multiple of kVector as in its page, so that both ends of the copy take vectors.
  auto* const offsets = reinterpret_cast<std::uint32_t*>(shared);
  std::uint8_t* const tile = shared + kOffsetsBytes;
  constexpr std::uint32_t kMissing = 0xffffffffu;

  const auto begin = static_cast<std::int64_t>(block.index() * kTileRows);
  const unsigned rows =
      gather.rows - begin < kTileRows ? static_cast<unsigned>(gather.rows - begin) : kTileRows;
  // The packed row, in its page; null: it is missing.
  const auto find = [&](unsigned row) -> const std::uint8_t* {
    const std::int64_t i = begin + row;
    if (gather.valid != nullptr && gather.valid[i] == 0) return nullptr;
    const std::int64_t position = gather.first_row + i;
    const std::int64_t ordinal = position / gather.page_rows;
    const std::int64_t page = gather.page_list == nullptr ? ordinal : gather.page_list[ordinal];
    if (page < 0) return nullptr;
    const auto slot = static_cast<std::uint64_t>(position - ordinal * gather.page_rows);
    return gather.pages + page * gather.page_stride + slot * shape.row_bytes;
  };
  // The id `at` ids into the chunk of the row at `offset`, which is the k-th of its layer.
  const auto id_at = [&](std::uint32_t offset, unsigned at, unsigned k) {
    return offset == kMissing ? FillId(gather.fill, k)
                              : std::uint64_t{Load<Packed>(tile + offset + at * sizeof(Packed))};
  };
  for (unsigned chunk = 0; chunk < shape.num_layers; chunk += shape.chunk_layers) {
    const unsigned layers = shape.ChunkAt(chunk);
    const unsigned ids = layers * shape.top_k;
    block.ForEachThread([&](unsigned thread) {
      const unsigned lane = thread % kLanes;
      const unsigned row = thread / kLanes;
      if (row >= rows) return;
      const std::uint8_t* from = find(row);
      std::uint32_t offset = kMissing;
      if (from != nullptr) {
        from += chunk * shape.top_k * sizeof(Packed);
        offset = row * shape.pitch + Misalignment(from);
        CopySpan(tile + offset, from, ids * static_cast<unsigned>(sizeof(Packed)), lane);
      }
      if (lane == 0) offsets[row] = offset;
    });
    block.ForEachThread([&](unsigned thread) {
      const unsigned lane = thread % kLanes;
      const unsigned group = thread / kLanes;
      auto* const out = static_cast<std::uint8_t*>(gather.out);
      if (gather.order == RowsOrder::kTokensLayersK) {
        if (group >= rows) return;
        const std::uint32_t offset = offsets[group];
        const auto first = static_cast<std::uint64_t>(begin + group) * shape.num_layers + chunk;
        WriteSpan<Out>(out + first * shape.top_k * sizeof(Out), ids, lane, [&](unsigned at) {
          return id_at(offset, at, at - plan.by_top_k.Quotient(at) * shape.top_k);
        });
        return;
      }
      for (unsigned layer = group; layer < layers; layer += kThreads / kLanes) {
        const auto first = std::uint64_t{chunk + layer} * static_cast<std::uint64_t>(gather.rows) +
                           static_cast<std::uint64_t>(begin);
        WriteSpan<Out>(out + first * shape.top_k * sizeof(Out), rows * shape.top_k, lane,
                       [&](unsigned at) {
                         const unsigned row = plan.by_top_k.Quotient(at);
                         const unsigned k = at - row * shape.top_k;
                         return id_at(offsets[row], layer * shape.top_k + k, k);
                       });
      }
    });
  }
}

// Calls visit.operator()<Packed, Out>() with what GatherTile is to be instantiated with.
template <class Visitor>
void VisitGather(const GatherPlan& plan, Visitor&& visit) {
  const auto with_out = [&]<class Out>() {
    if (plan.tile.id_bytes == 1) return visit.template operator()<std::uint8_t, Out>();
    return visit.template operator()<std::uint16_t, Out>();
  };
  switch (plan.gather.kind) {
    case IdKind::kUint8:
      return with_out.template operator()<std::uint8_t>();
    case IdKind::kUint16:
    case IdKind::kInt16:
      return with_out.template operator()<std::uint16_t>();
    case IdKind::kInt32:
      return with_out.template operator()<std::uint32_t>();
    case IdKind::kInt64:
      return with_out.template operator()<std::uint64_t>();
  }
}

}  // namespace waymark::kernels::device

#endif  // WAYMARK_KERNELS_GATHER_KERNEL_H_
