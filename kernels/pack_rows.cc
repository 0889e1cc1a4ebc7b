#include "kernels/pack_rows.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/pack_rows_ops.h"

namespace waymark::kernels {

std::int64_t IdAt(const IdsView& ids, std::ptrdiff_t row, std::int32_t layer, std::int32_t k) {
  const std::uint8_t* address = static_cast<const std::uint8_t*>(ids.data) + row * ids.row_stride +
                                layer * ids.layer_stride + k * ids.k_stride;
  return VisitKind(ids.kind, [address]<class Id>() -> std::int64_t {
    Id id;
    std::memcpy(&id, address, sizeof(id));
    if constexpr (std::is_same_v<Id, std::uint16_t>) {
      if (id == 0xffff) return -1;
    }
    return id;
  });
}

namespace {

using internal::PackOps;
using internal::PackPlan;
using internal::Tile;

// One bit an expert, all clear between layers.
class SeenExperts {
 public:
  explicit SeenExperts(std::int32_t num_experts) {
    std::fill_n(words_.begin(), (static_cast<std::size_t>(num_experts) + 63) / 64, 0);
  }
  // Whether `id` was there already. REQUIRES: 0 <= id < num_experts.
  bool Add(std::uint32_t id) {
    const std::uint64_t bit = std::uint64_t{1} << (id % 64);
    const bool seen = (words_[id / 64] & bit) != 0;
    words_[id / 64] |= bit;
    return seen;
  }
  void Forget(std::uint32_t id) { words_[id / 64] &= ~(std::uint64_t{1} << (id % 64)); }

 private:
  std::array<std::uint64_t, 1024> words_;
};

RowVerdict Check(const RowShape& shape, const IdsView& ids, std::ptrdiff_t row, std::int32_t layer,
                 SeenExperts& seen) {
  // First and apart: where a hook was skipped every row comes here.
  std::int32_t unwritten = 0;
  while (unwritten < shape.top_k && IdAt(ids, row, layer, unwritten) == -1)
    ++unwritten;
  if (unwritten == shape.top_k) return RowVerdict::kNotWritten;
  bool invalid = false;
  for (std::int32_t k = 0; k < shape.top_k; ++k) {
    const std::int64_t id = IdAt(ids, row, layer, k);
    if (id < 0 || id >= shape.num_experts) {
      invalid = true;
    } else {
      invalid |= seen.Add(static_cast<std::uint32_t>(id));
    }
  }
  for (std::int32_t k = 0; k < shape.top_k; ++k) {
    const std::int64_t id = IdAt(ids, row, layer, k);
    if (id >= 0 && id < shape.num_experts) seen.Forget(static_cast<std::uint32_t>(id));
  }
  return invalid ? RowVerdict::kInvalidId : RowVerdict::kOk;
}

// Only rows that the fast path has found wanting come here.
RowVerdict Classify(const RowShape& shape, const IdsView& ids, std::ptrdiff_t row) {
  SeenExperts seen(shape.num_experts);
  for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
    const RowVerdict verdict = Check(shape, ids, row, layer, seen);
    if (verdict != RowVerdict::kOk) return verdict;
  }
  return RowVerdict::kOk;
}

// Whether x has a byte of zeros.
bool HasZeroByte(std::uint64_t x) {
  return ((x - 0x0101010101010101u) & ~x & 0x8080808080808080u) != 0;
}

// Layers of K <= 8 bytes: a layer is a word, and a repeated id a zero byte in the difference of the
// word and itself shifted by as many bytes as the two are apart.
template <int kTopK>
bool DistinctBytes(const PackPlan& plan, const std::uint8_t* row) {
  bool repeated = false;
  for (std::size_t at = 0; at < plan.row_ids; at += kTopK) {
    std::uint64_t word = 0;
    std::memcpy(&word, row + at, kTopK);
    for (int apart = 1; apart < kTopK; ++apart) {
      const std::uint64_t beyond = ~std::uint64_t{0} << (8 * (kTopK - apart));
      repeated |= HasZeroByte((word ^ (word >> (8 * apart))) | beyond);
    }
  }
  return !repeated;
}

// For K of 2 to 8.
bool DistinctBytesUpTo8(const PackPlan& plan, const std::uint8_t* row) {
  static constexpr auto kOfK = []<int... kIndices>(std::integer_sequence<int, kIndices...>) {
    return std::array{&DistinctBytes<2 + kIndices>...};
  }
  (std::make_integer_sequence<int, 7>());
  return kOfK[static_cast<std::size_t>(plan.shape.top_k) - 2](plan, row);
}

template <class Packed>
bool DistinctAny(const PackPlan& plan, const std::uint8_t* row) {
  SeenExperts seen(plan.shape.num_experts);
  const std::size_t top_k = static_cast<std::size_t>(plan.shape.top_k);
  for (std::size_t at = 0; at < plan.row_ids; at += top_k) {
    bool repeated = false;
    for (std::size_t k = 0; k < top_k; ++k) {
      const auto id = internal::LoadId<Packed>(row + (at + k) * sizeof(Packed));
      // Out of range: somebody else has found that already, and the bitmap has no bit for it.
      if (static_cast<std::int32_t>(id) >= plan.shape.num_experts) return false;
      repeated |= seen.Add(id);
    }
    if (repeated) return false;
    for (std::size_t k = 0; k < top_k; ++k) {
      seen.Forget(internal::LoadId<Packed>(row + (at + k) * sizeof(Packed)));
    }
  }
  return true;
}

template <class Packed>
bool InRange(const PackPlan& plan, const std::uint8_t* row) {
  bool bad = false;
  for (std::size_t at = 0; at < plan.row_ids; ++at) {
    bad |= static_cast<std::int32_t>(internal::LoadId<Packed>(row + at * sizeof(Packed))) >=
           plan.shape.num_experts;
  }
  return !bad;
}

template <class Packed>
bool CopyCheckPortable(const PackPlan& plan, const std::uint8_t* input, std::uint8_t* destination) {
  if (input != destination) std::memcpy(destination, input, plan.row_ids * sizeof(Packed));
  if (plan.copy_checks_range && !InRange<Packed>(plan, input)) return false;
  if (plan.shape.top_k == 1) return true;
  if (sizeof(Packed) == 1 && plan.shape.top_k <= 8) return DistinctBytesUpTo8(plan, input);
  return DistinctAny<Packed>(plan, input);
}

bool CopyCheckPortableAny(const PackPlan& plan, const std::uint8_t* input,
                          std::uint8_t* destination) {
  return plan.shape.id_bytes() == 1 ? CopyCheckPortable<std::uint8_t>(plan, input, destination)
                                    : CopyCheckPortable<std::uint16_t>(plan, input, destination);
}

const PackOps& OpsOf(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return internal::Avx512Ops();
  if (isa == Isa::kAvx2) return internal::Avx2Ops();
#endif
  (void)isa;
  return internal::PortableOps();
}

PackPlan MakePlan(const RowShape& shape, const IdsView& ids) {
  PackPlan plan;
  plan.shape = shape;
  plan.row_ids = shape.row_ids();
  plan.limit = static_cast<std::uint64_t>(shape.num_experts);
  if (ids.kind == IdKind::kInt16) plan.limit = std::min<std::uint64_t>(plan.limit, 32768);
  std::int32_t k = 0;
  for (std::size_t at = 0; at < PackPlan::kWholeLayers; at += shape.id_bytes()) {
    plan.whole_layers[at] = static_cast<std::uint8_t>(k);
    k = k + 1 < shape.top_k ? k + 1 : 0;
  }
  return plan;
}

// Whether a row of `ids` is a packed row already.
bool IsPacked(const RowShape& shape, const IdsView& ids) {
  const std::size_t bytes = shape.id_bytes();
  const bool same_type = bytes == 1 ? ids.kind == IdKind::kUint8 : ids.kind == IdKind::kUint16;
  const bool k_packed = shape.top_k == 1 || ids.k_stride == static_cast<std::ptrdiff_t>(bytes);
  const bool layers_packed =
      shape.num_layers == 1 || ids.layer_stride == static_cast<std::ptrdiff_t>(bytes) * shape.top_k;
  return same_type && k_packed && layers_packed;
}

}  // namespace

const PackOps& internal::PortableOps() {
  static constexpr PackOps kOps{&CopyCheckPortableAny, &NarrowTileByKind};
  return kOps;
}

RowVerdict CheckLayer(const RowShape& shape, const IdsView& ids, std::ptrdiff_t row,
                      std::int32_t layer) {
  SeenExperts seen(shape.num_experts);
  return Check(shape, ids, row, layer, seen);
}

std::size_t PackRows(const RowShape& shape, const IdsView& ids,
                     std::span<std::uint8_t* const> destinations, std::span<RowVerdict> verdicts,
                     Isa isa) {
  assert(verdicts.size() >= destinations.size());
  PackPlan plan = MakePlan(shape, ids);
  const PackOps& ops = OpsOf(isa);
  const bool packed = IsPacked(shape, ids);
  // Narrowing checks the range; a packed byte can be out of range only when E < 256.
  plan.copy_checks_range = packed && shape.num_experts != 256;

  // A tile is narrowed where it stays in the first-level cache, then copied in full vectors:
  // scattered small stores to cold pages would wait for each other.
  alignas(64) std::array<std::uint8_t, 16384> stage;
  const std::size_t stage_stride = (shape.row_bytes() + Tile::kSlack + 63) / 64 * 64;
  const std::size_t staged_rows = std::min(Tile::kMaxRows, stage.size() / stage_stride);
  // A row that does not fit is narrowed where it goes.
  const std::size_t tile_rows = std::max<std::size_t>(staged_rows, 1);

  const auto* data = static_cast<const std::uint8_t*>(ids.data);
  std::size_t faulty = 0;
  const auto judge = [&](std::size_t row, bool ok) {
    verdicts[row] = RowVerdict::kOk;
    if (ok) [[likely]]
      return;
    verdicts[row] = Classify(shape, ids, static_cast<std::ptrdiff_t>(row));
    assert(verdicts[row] != RowVerdict::kOk);
    ++faulty;
  };

  if (packed) {
    for (std::size_t row = 0; row < destinations.size(); ++row) {
      if (destinations[row] == nullptr) continue;
      const std::uint8_t* input = data + static_cast<std::ptrdiff_t>(row) * ids.row_stride;
      judge(row, ops.copy_check(plan, input, destinations[row]));
    }
    return faulty;
  }

  Tile tile;
  tile.slack = staged_rows != 0;
  tile.room = staged_rows;
  tile.staged_stride = stage_stride;
  for (std::size_t row = 0; row < destinations.size();) {
    if (destinations[row] == nullptr) {
      ++row;
      continue;
    }
    tile.rows = 1;
    while (tile.rows < tile_rows && row + tile.rows < destinations.size() &&
           destinations[row + tile.rows] != nullptr) {
      ++tile.rows;
    }
    tile.input = data + static_cast<std::ptrdiff_t>(row) * ids.row_stride;
    tile.staged = tile.slack ? stage.data() : destinations[row];
    ops.narrow(plan, ids, tile);
    for (std::size_t i = 0; i < tile.rows; ++i) {
      const bool distinct =
          ops.copy_check(plan, tile.staged + i * stage_stride, destinations[row + i]);
      judge(row + i, distinct && tile.in_range[i]);
    }
    row += tile.rows;
  }
  return faulty;
}

}  // namespace waymark::kernels
