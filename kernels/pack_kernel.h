// Pack and poison, over a Block: what the kernel runs on a device, and tests run on the host.
// Internal to kernels.
//
// A block has a tile of R = 16 or 8 rows [R i, R i + R) of the view, whether they are packed,
// written, or both; so no other block reads what it makes -1. For each chunk of layers:
//   1. [layers][rows]: thread (layer, row) loads the layer's ids of the row, checks them in
//      registers, and stores them narrow into the tile.
//   2. [rows][bytes]: 256 / R threads copy a row of the tile out; as [layers][bytes], 16 of them
//      write -1 over the layer's run of R rows; and one thread per layer adds what was found wrong
//      in it, if anything, to the global counts. After the last chunk one thread per row writes the
//      row's verdict.
//
// How many rows: a block loads a tile, then stores it, and an SM is busy in both directions only
// when several of its blocks are at different stages. Four blocks fit into an SM; with fewer than
// two waves of them (8 blocks per SM; 1056 on 132 SMs, so 16,896 rows) they all load at once and
// then all store at once. Tiles of 8 rows then make twice as many blocks of half the work: 4096
// rows are 512 blocks in place of 256, four per SM in place of two. A run of 8 rows of 8 int16 ids
// is still a whole line of 128 bytes. From two waves on, 16 rows have half the barriers.
//
// Bytes of a row at L = 58, K = 8, E = 256: 928 read, 464 + 1 written, 928 made -1; 2321 in all,
// and 2321 in a copy of half as many. In each layer of a row 8 compares are for the range and 28
// for distinctness; with the rest some 70 instructions per thread, for 40 bytes of traffic. An SM
// that issues four warps' instructions a cycle at 1.7 GHz needs 70 * 32 / 128 / 1.7 = 10 ns for 32
// of them; memory of 4.8 TB/s gives it 36 bytes a nanosecond, and 32 * 40 bytes take 35 ns.
#ifndef WAYMARK_KERNELS_PACK_KERNEL_H_
#define WAYMARK_KERNELS_PACK_KERNEL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/pack_cuda.h"
#include "kernels/row_tile.h"

namespace waymark::kernels::device {

// A checked call of PackRowsOnCuda, and what follows from it.
struct PackPlan {
  PackLaunch pack;
  TileShape tile;
  std::uint64_t blocks = 0;  // 0: nothing to do
  unsigned shared_bytes = 0;
  unsigned tile_rows = kTileRows;  // kTileRows or kSmallTileRows
  unsigned tile_offset = 0;        // of the tile in shared memory
  std::uint32_t limit = 0;         // ids are below it, as unsigned numbers of their own width
  std::int32_t vector_k = 0;       // top_k, where ids can be loaded and stored in vectors; else 0
};

// The numbers of ids that vectors are compiled for; any other takes a loop.
[[nodiscard]] constexpr bool IsVectorK(std::int32_t top_k) {
  return top_k == 4 || top_k == 6 || top_k == 8 || top_k == 10;
}

// Layers of `bytes` each that a thread loads before it looks at any: no more than fit, with what
// else it needs, into the 64 registers that let four blocks share an SM.
[[nodiscard]] constexpr unsigned TurnsOf(std::size_t bytes) {
  const std::size_t loads = bytes / WidestPart(bytes);
  return static_cast<unsigned>(
      std::max<std::size_t>(1, std::min({std::size_t{4}, kInFlight / bytes, 10 / loads})));
}
template <std::size_t kBytes>
inline constexpr unsigned kTurnsOf = TurnsOf(kBytes);

// False if an argument breaks a rule of PackLaunch.
[[nodiscard]] inline bool CheckPack(const PackLaunch& pack) {
  const auto is_at = [](const void* at, std::size_t bytes) {
    return at != nullptr && reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
  };
  if (!CheckShape(pack.shape) || !CheckRows(pack.rows) || !CheckRows(pack.written_rows)) {
    return false;
  }
  if ((pack.rows > 0 || pack.written_rows > 0) && !is_at(pack.view, sizeof(*pack.view))) {
    return false;
  }
  if (pack.rows == 0) return true;
  return pack.verdicts != nullptr && is_at(pack.packed, pack.shape.id_bytes());
}

// Rows of a tile of few rows.
inline constexpr unsigned kSmallTileRows = 8;
// Blocks per SM below which tiles are small: two waves of four.
inline constexpr std::uint64_t kTwoWaves = 8;

// `multiprocessors`: SMs of the device. REQUIRES: CheckPack(pack); multiprocessors >= 0.
[[nodiscard]] inline PackPlan PlanPack(const PackLaunch& pack, int multiprocessors) {
  PackPlan plan;
  plan.pack = pack;
  plan.tile = TileShape::Of(pack.shape);
  const auto split = [&](unsigned rows) {
    plan.tile_rows = rows;
    plan.blocks =
        (static_cast<std::uint64_t>(std::max(pack.rows, pack.written_rows)) + rows - 1) / rows;
  };
  split(kTileRows);
  if (plan.blocks < kTwoWaves * static_cast<std::uint64_t>(multiprocessors)) split(kSmallTileRows);
  const unsigned words = plan.tile_rows + plan.tile.chunk_layers;
  plan.tile_offset =
      (words * static_cast<unsigned>(sizeof(std::uint32_t)) + kVector - 1) / kVector * kVector;
  plan.shared_bytes = plan.tile_offset + plan.tile.bytes(plan.tile_rows);
  plan.limit = std::min(static_cast<std::uint32_t>(pack.shape.num_experts), 32768u);

  const auto top_k = static_cast<std::size_t>(pack.shape.top_k);
  const std::size_t layer = top_k * sizeof(std::int16_t);
  const std::uintptr_t addresses =
      reinterpret_cast<std::uintptr_t>(pack.view) |
      static_cast<std::uintptr_t>(pack.layer_stride) * sizeof(std::int16_t);
  const auto packed = reinterpret_cast<std::uintptr_t>(pack.packed);
  if (IsVectorK(pack.shape.top_k) && addresses % WidestPart(layer) == 0 &&
      packed % WidestPart(top_k * plan.tile.id_bytes) == 0) {
    plan.vector_k = pack.shape.top_k;
  }
  return plan;
}

// What was found of one layer of one row.
struct LayerFault {
  bool silent = false;  // every id is -1
  bool bad = false;     // an id is out of range or there twice; so it is, if silent
};

// Whether two of kCount numbers are the same.
template <unsigned kCount>
WAYMARK_DEVICE bool AnyEqual(const std::uint32_t (&values)[kCount]) {
  bool equal = false;
  for (unsigned i = 1; i < kCount; ++i) {
    for (unsigned j = 0; j < i; ++j)
      equal |= values[i] == values[j];
  }
  return equal;
}

// Eight ids of `ids` from `first` on; behind the last one, numbers that no two places share and no
// id is.
template <class Packed>
WAYMARK_DEVICE void LoadEight(const std::uint8_t* ids, unsigned first, unsigned top_k,
                              std::uint32_t (&eight)[8]) {
  for (unsigned i = 0; i < 8; ++i) {
    eight[i] = first + i < top_k ? std::uint32_t{Load<Packed>(ids + (first + i) * sizeof(Packed))}
                                 : 0x10000u + i;
  }
}

// Whether a layer of any K has an id twice: eight at a time in registers, each later one compared
// with all of them.
template <class Packed>
WAYMARK_DEVICE bool AnyRepeated(const std::uint8_t* ids, unsigned top_k) {
  bool repeated = false;
  for (unsigned first = 0; first < top_k; first += 8) {
    std::uint32_t eight[8];
    LoadEight<Packed>(ids, first, top_k, eight);
    repeated |= AnyEqual(eight);
    for (unsigned k = first + 8; k < top_k; ++k) {
      const std::uint32_t id = Load<Packed>(ids + k * sizeof(Packed));
      for (unsigned i = 0; i < 8; ++i)
        repeated |= eight[i] == id;
    }
  }
  return repeated;
}

// Step 1 of a layer of kTopK ids in registers, which are also at `from`: `to` gets them narrow.
template <class Packed, int kTopK>
WAYMARK_DEVICE LayerFault NarrowVector(const std::int16_t (&ids)[kTopK], const std::uint8_t* from,
                                       std::uint32_t limit, std::uint8_t* to) {
  LayerFault fault;
  std::uint32_t values[kTopK];
  alignas(kVector) Packed packed[kTopK];
  for (int k = 0; k < kTopK; ++k) {
    const auto value = static_cast<std::uint16_t>(ids[k]);
    fault.bad |= value >= limit;
    values[k] = value;
    packed[k] = static_cast<Packed>(value);
  }
  fault.bad |= AnyEqual(values);
  CopyParts<sizeof(packed)>(to, packed);
  if (fault.bad) {  // rare: read again, so that no register waits for it
    const auto* again = reinterpret_cast<const volatile std::int16_t*>(from);
    const auto* const end = again + kTopK;
    while (again < end && *again == -1)
      ++again;
    fault.silent = again == end;
  }
  return fault;
}

// Step 1 of a layer of any K, from global memory.
template <class Packed>
WAYMARK_DEVICE LayerFault NarrowAny(const PackPlan& plan, const std::uint8_t* from,
                                    std::uint8_t* to) {
  LayerFault fault = {.silent = true};
  const unsigned top_k = plan.tile.top_k;
  for (unsigned first = 0; first < top_k; first += 8) {
    std::int16_t ids[8];
    for (unsigned i = 0; i < 8; ++i) {
      if (first + i < top_k) ids[i] = Load<std::int16_t>(from + (first + i) * sizeof(ids[i]));
    }
    for (unsigned i = 0; i < 8 && first + i < top_k; ++i) {
      const auto value = static_cast<std::uint16_t>(ids[i]);
      fault.silent &= ids[i] == -1;
      fault.bad |= value >= plan.limit;
      Store(to + (first + i) * sizeof(Packed), static_cast<Packed>(value));
    }
  }
  fault.bad |= AnyRepeated<Packed>(to, top_k);
  return fault;
}

// What a row's first layer with a fault is kept as: twice the layer, and one more if an id is
// invalid; kNoFault: none. So the least is the first layer's.
inline constexpr std::uint32_t kNoFault = 0xffffffffu;

// Step 1 of every kStep-th layer of a chunk of `layers`, from layer `first` on, of one row: the ids
// at `from` (of layer 0) go to `to`, narrow, and record(layer, fault) gets what was found.
template <class Packed, int kTopK, unsigned kStep, class Record>
WAYMARK_DEVICE void NarrowLayers(const PackPlan& plan, unsigned first, unsigned layers,
                                 const std::uint8_t* from, std::uint8_t* to, Record&& record) {
  const std::ptrdiff_t stride = plan.pack.layer_stride * std::ptrdiff_t{sizeof(std::int16_t)};
  if constexpr (kTopK != 0) {
    constexpr unsigned kBytes = kTopK * sizeof(std::int16_t);
    constexpr unsigned kTurns = kTurnsOf<kBytes>;
    for (; first < layers; first += kTurns * kStep) {
      alignas(kVector) std::int16_t ids[kTurns][kTopK];
      for (unsigned i = 0; i < kTurns; ++i) {
        const unsigned layer = first + i * kStep;
        if (layer < layers) CopyParts<kBytes>(ids[i], from + layer * stride);
      }
      for (unsigned i = 0; i < kTurns; ++i) {
        const unsigned layer = first + i * kStep;
        if (layer < layers) {
          record(layer, NarrowVector<Packed, kTopK>(ids[i], from + layer * stride, plan.limit,
                                                    to + layer * kTopK * sizeof(Packed)));
        }
      }
    }
  } else {
    for (; first < layers; first += kStep) {
      record(first, NarrowAny<Packed>(plan, from + static_cast<std::ptrdiff_t>(first) * stride,
                                      to + first * plan.tile.top_k * sizeof(Packed)));
    }
  }
}

// Step 2, the counts: adds the chunk's layers' to the global ones, and clears them. The
// lower half of a count is of rows in which the layer is silent, the upper half of invalid ones.
template <class Block>
WAYMARK_DEVICE void AddCounts(const Block& block, const PackLaunch& pack, unsigned chunk,
                              unsigned layers, std::uint32_t* counts, unsigned thread) {
  for (unsigned layer = thread; layer < layers; layer += kThreads) {
    const std::uint32_t count = counts[layer];
    if (count == 0) continue;
    counts[layer] = 0;
    if (pack.silent != nullptr && (count & 0xffff) != 0) {
      block.AtomicAdd(pack.silent + chunk + layer, count & 0xffff);
    }
    if (pack.invalid != nullptr && count >> 16 != 0) {
      block.AtomicAdd(pack.invalid + chunk + layer, count >> 16);
    }
  }
}

// After the last chunk: the verdict of packed row i.
WAYMARK_DEVICE void FinishRow(const PackLaunch& pack, std::int64_t i, std::uint32_t first_fault) {
  pack.verdicts[i] = first_fault == kNoFault ? RowVerdict::kOk
                     : first_fault % 2 == 0  ? RowVerdict::kNotWritten
                                             : RowVerdict::kInvalidId;
}

// The work of a block with a tile of kRows rows.
template <class Packed, int kTopK, unsigned kRows, class Block>
WAYMARK_DEVICE void PackTileOf(const Block& block, const PackPlan& plan, std::uint8_t* shared) {
  const PackLaunch& pack = plan.pack;
  const TileShape& shape = plan.tile;
  constexpr unsigned kRowLanes = kThreads / kRows;                      // threads of a row
  auto* const first_faults = reinterpret_cast<std::uint32_t*>(shared);  // of each row, as above
  std::uint32_t* const counts = first_faults + kRows;  // of each layer of the chunk
  std::uint8_t* const tile = shared + plan.tile_offset;

  const auto begin = static_cast<std::int64_t>(block.index() * kRows);
  // Of row begin + i: i is packed below packed, and written below written.
  const auto within = [begin](std::int64_t row) {
    return static_cast<unsigned>(row <= begin ? 0 : row - begin >= kRows ? kRows : row - begin);
  };
  const unsigned packed = within(pack.rows);
  const unsigned written = within(pack.written_rows);
  const unsigned row_bytes = shape.top_k * static_cast<unsigned>(sizeof(std::int16_t));

  if (packed > 0) {
    block.ForEachThread([&](unsigned thread) {
      if (thread < kRows) first_faults[thread] = kNoFault;
      for (unsigned i = thread; i < shape.chunk_layers; i += kThreads)
        counts[i] = 0;
    });
  }
  for (unsigned chunk = 0; chunk < shape.num_layers; chunk += shape.chunk_layers) {
    const unsigned layers = shape.ChunkAt(chunk);
    const unsigned chunk_offset = chunk * shape.top_k * static_cast<unsigned>(sizeof(Packed));
    std::int16_t* const view = pack.view + chunk * pack.layer_stride + begin * shape.top_k;
    const auto in_memory = [&](unsigned row) {
      return pack.packed + static_cast<std::uint64_t>(begin + row) * shape.row_bytes + chunk_offset;
    };
    // As far from a multiple of kVector as in memory.
    const auto in_tile = [&](unsigned row) {
      return tile + row * shape.pitch + Misalignment(in_memory(row));
    };
    if (packed > 0) {
      block.ForEachThread([&](unsigned thread) {
        const unsigned row = thread % kRows;
        if (row >= packed) return;
        NarrowLayers<Packed, kTopK, kRowLanes>(
            plan, thread / kRows, layers,
            reinterpret_cast<const std::uint8_t*>(view) + row * row_bytes, in_tile(row),
            [&](unsigned layer, LayerFault fault) {
              if (!fault.bad) return;
              block.AtomicMin(&first_faults[row], 2 * (chunk + layer) + (fault.silent ? 0 : 1));
              block.AtomicAdd(&counts[layer], fault.silent ? 1u : 0x10000u);
            });
      });
    }
    block.ForEachThread([&](unsigned thread) {
      const unsigned row = thread / kRowLanes;
      if (row < packed) {
        CopySpan(in_memory(row), in_tile(row),
                 layers * shape.top_k * static_cast<unsigned>(sizeof(Packed)), thread % kRowLanes,
                 kRowLanes);
      }
      for (unsigned layer = thread / kLanes; layer < layers && written > 0;
           layer += kThreads / kLanes) {
        FillSpan(reinterpret_cast<std::uint8_t*>(view + layer * pack.layer_stride),
                 written * row_bytes, thread % kLanes);
      }
      if (packed == 0) return;
      AddCounts(block, pack, chunk, layers, counts, thread);
      if (chunk + layers == shape.num_layers && thread < packed) {
        FinishRow(pack, begin + thread, first_faults[thread]);
      }
    });
  }
}

// The block's work. `shared`: plan.shared_bytes, at a multiple of kVector. kTopK: plan.vector_k.
// Both sizes of tile are in one kernel, each with its own constants: as run-time numbers they would
// take the registers that K = 8 has not left.
template <class Packed, int kTopK, class Block>
WAYMARK_DEVICE void PackTile(const Block& block, const PackPlan& plan, std::uint8_t* shared) {
  if (plan.tile_rows == kTileRows) {
    PackTileOf<Packed, kTopK, kTileRows>(block, plan, shared);
  } else {
    PackTileOf<Packed, kTopK, kSmallTileRows>(block, plan, shared);
  }
}

// Calls visit.operator()<Packed, kTopK>() with what PackTile is to be instantiated with.
template <class Visitor>
void VisitPack(const PackPlan& plan, Visitor&& visit) {
  const auto with_k = [&]<class Packed>() {
    switch (plan.vector_k) {
      case 4:
        return visit.template operator()<Packed, 4>();
      case 6:
        return visit.template operator()<Packed, 6>();
      case 8:
        return visit.template operator()<Packed, 8>();
      case 10:
        return visit.template operator()<Packed, 10>();
      default:
        return visit.template operator()<Packed, 0>();
    }
  };
  if (plan.tile.id_bytes == 1) return with_k.template operator()<std::uint8_t>();
  with_k.template operator()<std::uint16_t>();
}

}  // namespace waymark::kernels::device

#endif  // WAYMARK_KERNELS_PACK_KERNEL_H_
