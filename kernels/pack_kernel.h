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
//      row's verdict and, where there are slots, copies its slot.
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
#include <type_traits>

#include "kernels/pack_cuda.h"
#include "kernels/row_tile.h"

namespace waymark::kernels::device {

// A checked call of PackRowsOnCuda, and what follows from it.
struct PackPlan {
  CudaPack pack;
  TileShape tile;
  std::uint64_t blocks = 0;      // 0: nothing to do
  std::uint64_t first_tile = 0;  // of the first block
  unsigned shared_bytes = 0;
  unsigned tile_rows = kTileRows;  // kTileRows or kSmallTileRows
  unsigned tile_offset = 0;        // of the tile in shared memory
  std::uint32_t limit = 0;         // ids are below it, as unsigned numbers of their own width
  bool aligned = false;            // every id lies at a multiple of its size
  bool runs = false;               // the rows of a layer lie side by side
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

// False if an argument breaks a rule of CudaPack.
[[nodiscard]] inline bool CheckPack(const CudaPack& pack) {
  if (!CheckShape(pack.shape) || !CheckRows(pack.first_row, pack.rows) ||
      !CheckRows(0, pack.written_rows)) {
    return false;
  }
  if (pack.ids.kind != IdKind::kInt16 && pack.ids.kind != IdKind::kInt32 &&
      pack.ids.kind != IdKind::kInt64) {
    return false;
  }
  if (pack.written_rows > 0 && pack.ids.kind != IdKind::kInt16) return false;
  if ((pack.rows > 0 || pack.written_rows > 0) && pack.ids.data == nullptr) return false;
  if (pack.rows == 0) return true;
  constexpr std::uintptr_t kSlot = sizeof(std::int64_t);
  if (pack.slots != nullptr &&
      (pack.packed_slots == nullptr || reinterpret_cast<std::uintptr_t>(pack.slots) % kSlot != 0 ||
       reinterpret_cast<std::uintptr_t>(pack.packed_slots) % kSlot != 0)) {
    return false;
  }
  return pack.packed != nullptr && pack.verdicts != nullptr &&
         reinterpret_cast<std::uintptr_t>(pack.packed) % pack.shape.id_bytes() == 0;
}

// Rows of a tile of few rows.
inline constexpr unsigned kSmallTileRows = 8;
// Blocks per SM below which tiles are small: two waves of four.
inline constexpr std::uint64_t kTwoWaves = 8;

// `multiprocessors`: SMs of the device. REQUIRES: CheckPack(pack); multiprocessors >= 0.
[[nodiscard]] inline PackPlan PlanPack(const CudaPack& pack, int multiprocessors) {
  PackPlan plan;
  plan.pack = pack;
  plan.tile = TileShape::Of(pack.shape);
  // Blocks of rows between the written and the packed ones find nothing to do.
  const std::int64_t last =
      std::max(pack.rows == 0 ? 0 : pack.first_row + pack.rows, pack.written_rows);
  const auto split = [&](unsigned rows) {
    if (pack.rows == 0 && pack.written_rows == 0) return;
    const std::int64_t first =
        pack.written_rows > 0 ? 0 : pack.first_row / std::int64_t{rows} * rows;
    plan.tile_rows = rows;
    plan.first_tile = static_cast<std::uint64_t>(first) / rows;
    plan.blocks = (static_cast<std::uint64_t>(last - first) + rows - 1) / rows;
  };
  split(kTileRows);
  if (plan.blocks < kTwoWaves * static_cast<std::uint64_t>(multiprocessors)) split(kSmallTileRows);
  const unsigned words = plan.tile_rows + plan.tile.chunk_layers;
  plan.tile_offset =
      (words * static_cast<unsigned>(sizeof(std::uint32_t)) + kVector - 1) / kVector * kVector;
  plan.shared_bytes = plan.tile_offset + plan.tile.bytes(plan.tile_rows);
  plan.limit = static_cast<std::uint32_t>(pack.shape.num_experts);
  if (pack.ids.kind == IdKind::kInt16) plan.limit = std::min(plan.limit, 32768u);

  const auto id = static_cast<std::ptrdiff_t>(IdKindBytes(pack.ids.kind));
  const std::ptrdiff_t layer = id * pack.shape.top_k;
  const bool gapless = pack.shape.top_k == 1 || pack.ids.k_stride == id;
  const auto data = static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(pack.ids.data));
  const std::ptrdiff_t addresses = data | pack.ids.row_stride | pack.ids.layer_stride;
  plan.aligned = ((addresses | pack.ids.k_stride) & (id - 1)) == 0;
  plan.runs = gapless && pack.ids.row_stride == layer;
  const std::size_t packed_layer = plan.tile.top_k * plan.tile.id_bytes;
  if (IsVectorK(pack.shape.top_k) && gapless &&
      static_cast<std::size_t>(addresses) % WidestPart(static_cast<std::size_t>(layer)) == 0 &&
      reinterpret_cast<std::uintptr_t>(pack.packed) % WidestPart(packed_layer) == 0) {
    plan.vector_k = pack.shape.top_k;
  }
  return plan;
}

// The pack that is PoisonRowsOnCuda's call: no row packed, all written.
[[nodiscard]] inline CudaPack PoisonOnly(std::int16_t* data, std::ptrdiff_t layer_stride,
                                         std::int32_t num_layers, std::int32_t top_k,
                                         std::int64_t rows) {
  constexpr auto kId = static_cast<std::ptrdiff_t>(sizeof(std::int16_t));
  CudaPack pack;
  pack.shape = {num_layers, top_k, 1};
  pack.ids = {data, IdKind::kInt16, top_k * kId, layer_stride * kId, kId};
  pack.written_rows = rows;
  return pack;
}

// What was found of one layer of one row.
struct LayerFault {
  bool silent = false;  // an id is -1
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

// Step 1 of a layer of kTopK ids in registers: `to` gets them narrow.
template <class Input, class Packed, int kTopK>
WAYMARK_DEVICE LayerFault NarrowVector(const Input (&ids)[kTopK], std::uint32_t limit,
                                       std::uint8_t* to) {
  LayerFault fault;
  std::uint32_t values[kTopK];
  alignas(kVector) Packed packed[kTopK];
  for (int k = 0; k < kTopK; ++k) {
    const auto value = static_cast<std::make_unsigned_t<Input>>(ids[k]);
    fault.bad |= value >= limit;
    values[k] = static_cast<std::uint32_t>(value);
    packed[k] = static_cast<Packed>(value);
  }
  fault.bad |= AnyEqual(values);
  CopyParts<sizeof(packed)>(to, packed);
  if (fault.bad) {
    for (int k = 0; k < kTopK; ++k)
      fault.silent |= ids[k] == -1;
  }
  return fault;
}

// Step 1 of a layer of any K, from global memory.
template <class Input, class Packed>
WAYMARK_DEVICE LayerFault NarrowAny(const PackPlan& plan, const std::uint8_t* from,
                                    std::uint8_t* to) {
  LayerFault fault;
  const unsigned top_k = plan.tile.top_k;
  for (unsigned first = 0; first < top_k; first += 8) {
    Input ids[8];
    for (unsigned i = 0; i < 8; ++i) {
      const auto k = static_cast<std::ptrdiff_t>(first + i);
      if (first + i < top_k) {
        ids[i] = LoadAnywhere<Input>(from + k * plan.pack.ids.k_stride, plan.aligned);
      }
    }
    for (unsigned i = 0; i < 8 && first + i < top_k; ++i) {
      const auto value = static_cast<std::make_unsigned_t<Input>>(ids[i]);
      fault.silent |= ids[i] == -1;
      fault.bad |= value >= plan.limit;
      Store(to + (first + i) * sizeof(Packed), static_cast<Packed>(value));
    }
  }
  fault.bad |= AnyRepeated<Packed>(to, top_k);
  return fault;
}

// What a row's first layer with a fault is kept as: twice the layer, and one more if an id is
// invalid; kNoFault: none. So the least is that of the first layer.
inline constexpr std::uint32_t kNoFault = 0xffffffffu;

// Step 1 of every kStep-th layer of a chunk of `layers`, from layer `first` on, of one row: the ids
// at `from` (of layer 0) go to `to`, narrow, and record(layer, fault) gets what was found.
template <class Input, class Packed, int kTopK, unsigned kStep, class Record>
WAYMARK_DEVICE void NarrowLayers(const PackPlan& plan, unsigned first, unsigned layers,
                                 const std::uint8_t* from, std::uint8_t* to, Record&& record) {
  const std::ptrdiff_t stride = plan.pack.ids.layer_stride;
  if constexpr (kTopK != 0) {
    constexpr unsigned kBytes = kTopK * sizeof(Input);
    constexpr unsigned kTurns = kTurnsOf<kBytes>;
    for (; first < layers; first += kTurns * kStep) {
      alignas(kVector) Input ids[kTurns][kTopK];
      for (unsigned i = 0; i < kTurns; ++i) {
        const unsigned layer = first + i * kStep;
        if (layer < layers) CopyParts<kBytes>(ids[i], from + layer * stride);
      }
      for (unsigned i = 0; i < kTurns; ++i) {
        const unsigned layer = first + i * kStep;
        if (layer < layers) {
          record(layer, NarrowVector<Input, Packed, kTopK>(ids[i], plan.limit,
                                                           to + layer * kTopK * sizeof(Packed)));
        }
      }
    }
  } else {
    for (; first < layers; first += kStep) {
      record(first,
             NarrowAny<Input, Packed>(plan, from + static_cast<std::ptrdiff_t>(first) * stride,
                                      to + first * plan.tile.top_k * sizeof(Packed)));
    }
  }
}

// Step 2, the view: makes the ids of the first `written` rows -1 in each of `layers` layers of the
// chunk at `view`.
template <class Input>
WAYMARK_DEVICE void PoisonChunk(const PackPlan& plan, std::uint8_t* view, unsigned layers,
                                unsigned written, unsigned thread) {
  const IdsView& ids = plan.pack.ids;
  const unsigned top_k = plan.tile.top_k;
  const unsigned lane = thread % kLanes;
  for (unsigned layer = thread / kLanes; layer < layers && written > 0;
       layer += kThreads / kLanes) {
    std::uint8_t* const to = view + static_cast<std::ptrdiff_t>(layer) * ids.layer_stride;
    if (plan.runs) {
      FillSpan(to, written * top_k * static_cast<unsigned>(sizeof(Input)), lane);
    } else if (lane < written) {
      for (unsigned k = 0; k < top_k; ++k) {
        StoreOnes<Input>(to + static_cast<std::ptrdiff_t>(lane) * ids.row_stride +
                             static_cast<std::ptrdiff_t>(k) * ids.k_stride,
                         plan.aligned);
      }
    }
  }
}

// Step 2, the counts: adds those of the chunk's layers to the global ones, and clears them. The
// lower half of a count is of rows in which the layer is silent, the upper half of invalid ones.
template <class Block>
WAYMARK_DEVICE void AddCounts(const Block& block, const CudaPack& pack, unsigned chunk,
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

// After the last chunk: the verdict and the slot of packed row i.
WAYMARK_DEVICE void FinishRow(const CudaPack& pack, std::int64_t i, std::uint32_t first_fault) {
  pack.verdicts[i] = first_fault == kNoFault ? RowVerdict::kOk
                     : first_fault % 2 == 0  ? RowVerdict::kNotWritten
                                             : RowVerdict::kInvalidId;
  if (pack.slots != nullptr) pack.packed_slots[i] = pack.slots[i];
}

// The work of a block with a tile of kRows rows.
template <class Input, class Packed, int kTopK, unsigned kRows, class Block>
WAYMARK_DEVICE void PackTileOf(const Block& block, const PackPlan& plan, std::uint8_t* shared) {
  const CudaPack& pack = plan.pack;
  const TileShape& shape = plan.tile;
  constexpr unsigned kRowLanes = kThreads / kRows;                      // threads of a row
  auto* const first_faults = reinterpret_cast<std::uint32_t*>(shared);  // of each row, as above
  std::uint32_t* const counts = first_faults + kRows;  // of each layer of the chunk
  std::uint8_t* const tile = shared + plan.tile_offset;

  const auto begin = static_cast<std::int64_t>((plan.first_tile + block.index()) * kRows);
  // Of row begin + i: i is packed from pack_begin to pack_end, and written below written.
  const auto within = [begin](std::int64_t row) {
    return static_cast<unsigned>(row <= begin ? 0 : row - begin >= kRows ? kRows : row - begin);
  };
  const unsigned pack_begin = within(pack.first_row);
  const unsigned pack_end = pack.rows == 0 ? 0 : within(pack.first_row + pack.rows);
  const unsigned written = within(pack.written_rows);
  const bool packs = pack_begin < pack_end;
  const auto* const input =
      static_cast<const std::uint8_t*>(pack.ids.data) + begin * pack.ids.row_stride;

  if (packs) {
    block.ForEachThread([&](unsigned thread) {
      if (thread < kRows) first_faults[thread] = kNoFault;
      for (unsigned i = thread; i < shape.chunk_layers; i += kThreads)
        counts[i] = 0;
    });
  }
  for (unsigned chunk = 0; chunk < shape.num_layers; chunk += shape.chunk_layers) {
    const unsigned layers = shape.ChunkAt(chunk);
    const unsigned chunk_offset = chunk * shape.top_k * static_cast<unsigned>(sizeof(Packed));
    const std::uint8_t* const chunk_input = input + chunk * pack.ids.layer_stride;
    const auto in_memory = [&](unsigned row) {
      const auto i = static_cast<std::uint64_t>(begin - pack.first_row + row);
      return pack.packed + i * shape.row_bytes + chunk_offset;
    };
    // As far from a multiple of kVector as in memory.
    const auto in_tile = [&](unsigned row) {
      return tile + row * shape.pitch + Misalignment(in_memory(row));
    };
    if (packs) {
      block.ForEachThread([&](unsigned thread) {
        const unsigned row = thread % kRows;
        if (row < pack_begin || row >= pack_end) return;
        NarrowLayers<Input, Packed, kTopK, kRowLanes>(
            plan, thread / kRows, layers,
            chunk_input + static_cast<std::ptrdiff_t>(row) * pack.ids.row_stride, in_tile(row),
            [&](unsigned layer, LayerFault fault) {
              if (!fault.bad) return;
              block.AtomicMin(&first_faults[row], 2 * (chunk + layer) + (fault.silent ? 0 : 1));
              block.AtomicAdd(&counts[layer], fault.silent ? 1u : 0x10000u);
            });
      });
    }
    block.ForEachThread([&](unsigned thread) {
      const unsigned row = thread / kRowLanes;
      if (row >= pack_begin && row < pack_end) {
        CopySpan(in_memory(row), in_tile(row),
                 layers * shape.top_k * static_cast<unsigned>(sizeof(Packed)), thread % kRowLanes,
                 kRowLanes);
      }
      if constexpr (sizeof(Input) == sizeof(std::int16_t)) {
        PoisonChunk<Input>(plan, const_cast<std::uint8_t*>(chunk_input), layers, written, thread);
      }
      if (!packs) return;
      AddCounts(block, pack, chunk, layers, counts, thread);
      if (chunk + layers == shape.num_layers && thread >= pack_begin && thread < pack_end) {
        FinishRow(pack, begin - pack.first_row + thread, first_faults[thread]);
      }
    });
  }
}

// The block's work. `shared`: plan.shared_bytes, at a multiple of kVector. kTopK: plan.vector_k.
// Both sizes of tile are in one kernel, each with its own constants: as run-time numbers they would
// take the registers that K = 8 has not left.
template <class Input, class Packed, int kTopK, class Block>
WAYMARK_DEVICE void PackTile(const Block& block, const PackPlan& plan, std::uint8_t* shared) {
  if (plan.tile_rows == kTileRows) {
    PackTileOf<Input, Packed, kTopK, kTileRows>(block, plan, shared);
  } else {
    PackTileOf<Input, Packed, kTopK, kSmallTileRows>(block, plan, shared);
  }
}

// Calls visit.operator()<Input, Packed, kTopK>() with what PackTile is to be instantiated with.
template <class Visitor>
void VisitPack(const PackPlan& plan, Visitor&& visit) {
  const auto with_k = [&]<class Input, class Packed>() {
    switch (plan.vector_k) {
      case 4:
        return visit.template operator()<Input, Packed, 4>();
      case 6:
        return visit.template operator()<Input, Packed, 6>();
      case 8:
        return visit.template operator()<Input, Packed, 8>();
      case 10:
        return visit.template operator()<Input, Packed, 10>();
      default:
        return visit.template operator()<Input, Packed, 0>();
    }
  };
  const auto with_input = [&]<class Input>() {
    if (plan.tile.id_bytes == 1) return with_k.template operator()<Input, std::uint8_t>();
    return with_k.template operator()<Input, std::uint16_t>();
  };
  VisitSigned(plan.pack.ids.kind, with_input);
}

}  // namespace waymark::kernels::device

#endif  // WAYMARK_KERNELS_PACK_KERNEL_H_
