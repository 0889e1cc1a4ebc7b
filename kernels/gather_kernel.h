// Gather, over a Block: what the kernel runs on a device, and tests run on the host. Internal to
// kernels.
//
// A block has 16 rows of the result. For each chunk of layers:
//   1. [rows][bytes]: 16 threads copy what the chunk takes of a row into the tile.
//   2. 16 threads write a run of the result, widened, in vectors: the 16 rows of a layer.
#ifndef WAYMARK_KERNELS_GATHER_KERNEL_H_
#define WAYMARK_KERNELS_GATHER_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

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

// False if an argument breaks a rule of CudaGather that the host can see: not checked are whether
// ids fit `kind`, and overlaps. Without rows, the pointers are not looked at.
[[nodiscard]] inline bool CheckGather(const CudaGather& gather) {
  if (!CheckShape(gather.shape) || !CheckRows(gather.rows) || gather.kind > IdKind::kInt64)
    return false;
  const auto is_at = [](const void* at, std::size_t bytes) {
    return at != nullptr && reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
  };
  return gather.rows == 0 || (is_at(gather.packed, gather.shape.id_bytes()) &&
                              is_at(gather.out, IdKindBytes(gather.kind)));
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

// The work of block.index(), one of plan.blocks. `shared`: plan.shared_bytes, at a multiple of
// kVector. Packed: an unsigned type of tile.id_bytes. Out: unsigned, as wide as an id of
// gather.kind.
template <class Packed, class Out, class Block>
WAYMARK_DEVICE void GatherTile(const Block& block, const GatherPlan& plan, std::uint8_t* shared) {
  const CudaGather& gather = plan.gather;
  const TileShape& shape = plan.tile;
  // Where the chunk of a row begins in the tile, in bytes; kMissing: the row is missing. As far
  // from a multiple of kVector as in memory, so that both ends of the copy take vectors.
  auto* const offsets = reinterpret_cast<std::uint32_t*>(shared);
  std::uint8_t* const tile = shared + kOffsetsBytes;
  constexpr std::uint32_t kMissing = 0xffffffffu;

  const auto begin = static_cast<std::int64_t>(block.index() * kTileRows);
  const unsigned rows =
      gather.rows - begin < kTileRows ? static_cast<unsigned>(gather.rows - begin) : kTileRows;
  for (unsigned chunk = 0; chunk < shape.num_layers; chunk += shape.chunk_layers) {
    const unsigned layers = shape.ChunkAt(chunk);
    block.ForEachThread([&](unsigned thread) {
      const unsigned lane = thread % kLanes;
      const unsigned row = thread / kLanes;
      if (row >= rows) return;
      std::uint32_t offset = kMissing;
      if (gather.valid == nullptr || gather.valid[begin + row] != 0) {
        const std::uint8_t* const from = gather.packed +
                                         static_cast<std::uint64_t>(begin + row) * shape.row_bytes +
                                         chunk * shape.top_k * sizeof(Packed);
        offset = row * shape.pitch + Misalignment(from);
        CopySpan(tile + offset, from, layers * shape.top_k * static_cast<unsigned>(sizeof(Packed)),
                 lane);
      }
      if (lane == 0) offsets[row] = offset;
    });
    block.ForEachThread([&](unsigned thread) {
      auto* const out = static_cast<std::uint8_t*>(gather.out);
      for (unsigned layer = thread / kLanes; layer < layers; layer += kThreads / kLanes) {
        const auto first = std::uint64_t{chunk + layer} * static_cast<std::uint64_t>(gather.rows) +
                           static_cast<std::uint64_t>(begin);
        WriteSpan<Out>(out + first * shape.top_k * sizeof(Out), rows * shape.top_k, thread % kLanes,
                       [&](unsigned at) {
                         const unsigned row = plan.by_top_k.Quotient(at);
                         const unsigned k = at - row * shape.top_k;
                         if (offsets[row] == kMissing)
                           return ~std::uint64_t{0};  // -1 in every type
                         return std::uint64_t{Load<Packed>(
                             tile + offsets[row] + (layer * shape.top_k + k) * sizeof(Packed))};
                       });
      }
    });
  }
}

// Calls visit.operator()<Packed, Out>() with what GatherTile is to be instantiated with.
template <class Visitor>
void VisitGather(const GatherPlan& plan, Visitor&& visit) {
  VisitKind(plan.gather.kind, [&]<class Id>() {
    using Out = std::make_unsigned_t<Id>;
    if (plan.tile.id_bytes == 1) return visit.template operator()<std::uint8_t, Out>();
    visit.template operator()<std::uint16_t, Out>();
  });
}

}  // namespace waymark::kernels::device

#endif  // WAYMARK_KERNELS_GATHER_KERNEL_H_
