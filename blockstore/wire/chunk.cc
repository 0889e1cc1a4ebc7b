#include "blockstore/wire/chunk.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "blockstore/byte_io.h"
#include "blockstore/invalid.h"
#include "blockstore/rows.h"
#include "blockstore/wire/crc32c.h"
#include "blockstore/wire/set_code_tile.h"
#include "xxhash.h"

namespace waymark::wire {
namespace {

constexpr std::size_t kCrcBytes = 4;
constexpr std::size_t kTileRows = 8;  // with groups of 8 bytes: one cache line of each layer
constexpr std::size_t kSortLanes = 64;
constexpr std::size_t kMostTopK = 64;
constexpr std::size_t kMostPageRows = 4096;  // of a page

// ---- raw chunks: from [layers][rows] groups of K ids to [rows][layers], and sorting

// kGroup: bytes of a group if known at compile time, else 0.
template <std::size_t kGroup>
void LayersToTokens(const std::uint8_t* layers, std::size_t layer_bytes, std::size_t rows,
                    std::size_t num_layers, std::size_t group_bytes, std::uint8_t* out) {
  const std::size_t group = kGroup != 0 ? kGroup : group_bytes;
  const std::size_t row_bytes = num_layers * group;
  for (std::size_t begin = 0; begin < rows; begin += kTileRows) {
    const std::size_t end = std::min(rows, begin + kTileRows);
    for (std::size_t layer = 0; layer < num_layers; ++layer) {
      const std::uint8_t* from = layers + layer * layer_bytes + begin * group;
      std::uint8_t* to = out + begin * row_bytes + layer * group;
      for (std::size_t row = begin; row < end; ++row, from += group, to += row_bytes)
        std::memcpy(to, from, group);
    }
  }
}

using LayersToTokensFn = void (*)(const std::uint8_t*, std::size_t, std::size_t, std::size_t,
                                  std::size_t, std::uint8_t*);

LayersToTokensFn LayersToTokensOf(std::size_t group_bytes) {
  LayersToTokensFn found = &LayersToTokens<0>;
  [&]<std::size_t... kGroup>(std::index_sequence<kGroup...>) {
    ((group_bytes == kGroup ? void(found = &LayersToTokens<kGroup>) : void()), ...);
  }
  (std::index_sequence<1, 2, 4, 6, 8, 10, 12, 16, 20>());
  return found;
}

// Sorts each group of `top_k` ids. A tile of groups is transposed, so that each exchange of the
// network is a minimum and a maximum of two vectors, for all groups at once.
template <class T>
void SortGroups(std::uint8_t* ids, std::size_t groups, std::size_t top_k,
                std::span<const std::pair<std::uint8_t, std::uint8_t>> network) {
  alignas(64) std::array<std::array<T, kSortLanes>, kMostTopK> lanes;
  while (groups > 0) {
    const std::size_t tile = std::min(groups, kSortLanes);
    for (std::size_t g = 0; g < tile; ++g) {
      for (std::size_t k = 0; k < top_k; ++k)
        std::memcpy(&lanes[k][g], ids + (g * top_k + k) * sizeof(T), sizeof(T));
    }
    for (const auto& [low, high] : network) {
      // Copies, so that the compiler knows that nothing overlaps.
      const std::array<T, kSortLanes> a = lanes[low];
      const std::array<T, kSortLanes> b = lanes[high];
      std::array<T, kSortLanes> smaller;
      std::array<T, kSortLanes> larger;
      for (std::size_t g = 0; g < kSortLanes; ++g) {
        smaller[g] = std::min(a[g], b[g]);
        larger[g] = std::max(a[g], b[g]);
      }
      lanes[low] = smaller;
      lanes[high] = larger;
    }
    for (std::size_t g = 0; g < tile; ++g) {
      for (std::size_t k = 0; k < top_k; ++k)
        std::memcpy(ids + (g * top_k + k) * sizeof(T), &lanes[k][g], sizeof(T));
    }
    ids += tile * top_k * sizeof(T);
    groups -= tile;
  }
}

}  // namespace

absl::StatusOr<ChunkCodec> ChunkCodec::Create(const WireShape& shape, const DigestKey& key) {
  if (absl::Status status = shape.Validate(); !status.ok()) return status;
  if (shape.code.codec == Codec::kRaw) return ChunkCodec(shape, key, std::nullopt);
  return ChunkCodec(shape, key, SetCode(shape.set_code()));
}

ChunkCodec::ChunkCodec(const WireShape& shape, const DigestKey& key,
                       std::optional<SetCode> set_code)
    : shape_(shape),
      key_(key),
      shape_digest_(ShapeDigest(shape)),
      group_bytes_(static_cast<std::size_t>(shape.rows.top_k) * shape.rows.id_bytes()),
      set_code_(std::move(set_code)),
      distinct_(shape.rows.top_k, shape.rows.num_experts) {
  if (!shape.code.ordered && !set_code_.has_value()) {
    const internal::SortingNetwork network(static_cast<std::uint32_t>(shape.rows.top_k));
    for (std::size_t i = 0; i < network.size; ++i)
      network_.emplace_back(network.first[i], network.second[i]);
  }
}

std::size_t ChunkCodec::LayerBytes(std::int64_t rows) const {
  return set_code_.has_value() ? set_code_->LayerBytes(rows)
                               : static_cast<std::size_t>(rows) * group_bytes_;
}

std::size_t ChunkCodec::ChunkBytes(std::int64_t rows) const {
  return kCrcBytes * static_cast<std::size_t>(shape_.num_crcs()) +
         static_cast<std::size_t>(shape_.rows.num_layers) * LayerBytes(rows);
}

absl::Status ChunkCodec::Encode(std::span<const RowInfo> infos, std::span<const std::uint8_t> ids,
                                std::span<std::uint8_t> chunk) const {
  const std::size_t row_bytes = shape_.rows.row_bytes();
  const auto page_tokens = static_cast<std::size_t>(shape_.rows.page_tokens);
  if (infos.empty() || infos.size() > page_tokens) {
    return Invalid("chunk: it must have 1 to ", page_tokens, " rows; it has ", infos.size());
  }
  if (ids.size() != infos.size() * row_bytes) {
    return Invalid("chunk: ids must hold ", infos.size(), " rows of ", row_bytes,
                   " bytes; they hold ", ids.size(), " bytes");
  }
  const auto rows = static_cast<std::int64_t>(infos.size());
  if (chunk.size() != ChunkBytes(rows)) {
    return Invalid("chunk: it must have ", ChunkBytes(rows), " bytes; it has ", chunk.size());
  }
  const auto num_crcs = static_cast<std::size_t>(shape_.num_crcs());
  const std::span<std::uint8_t> layers = chunk.subspan(kCrcBytes * num_crcs);
  if (!set_code_.has_value()) {
    EncodeRaw(infos, ids, layers);
  } else if (absl::Status status = set_code_->Encode(infos, shape_.rows.num_layers, ids, layers);
             !status.ok()) {
    return status;
  }
  RawWriter crcs(chunk.data());
  const std::size_t covered = static_cast<std::size_t>(shape_.crc_layers()) * LayerBytes(rows);
  for (std::size_t g = 0; g < num_crcs; ++g)
    crcs.Put(Crc32c(layers.subspan(g * covered, std::min(covered, layers.size() - g * covered))));
  return absl::OkStatus();
}

void ChunkCodec::EncodeRaw(std::span<const RowInfo> infos, std::span<const std::uint8_t> ids,
                           std::span<std::uint8_t> layers) const {
  const std::size_t row_bytes = shape_.rows.row_bytes();
  std::array<const std::uint8_t*, kMostPageRows> sources;
  for (std::size_t i = 0; i < infos.size(); ++i)
    sources[i] = infos[i].valid() ? ids.data() + i * row_bytes : nullptr;
  const bool narrow = shape_.rows.id_bytes() == 1;
  WriteRows(shape_.rows, std::span(sources).first(infos.size()),
            {Layout::kLayersTokensK, narrow ? IdType::kUint8 : IdType::kUint16, Fill::kZeros},
            layers);
  if (network_.empty()) return;
  const auto top_k = static_cast<std::size_t>(shape_.rows.top_k);
  const std::size_t groups = layers.size() / group_bytes_;
  narrow ? SortGroups<std::uint8_t>(layers.data(), groups, top_k, network_)
         : SortGroups<std::uint16_t>(layers.data(), groups, top_k, network_);
}

bool ChunkCodec::CrcsMatch(std::span<const std::uint8_t> chunk, std::size_t layer_bytes,
                           std::int32_t layer_begin, std::int32_t layer_end) const {
  const auto crc_layers = static_cast<std::size_t>(shape_.crc_layers());
  const std::size_t first = static_cast<std::size_t>(layer_begin) / crc_layers;
  const std::size_t last = (static_cast<std::size_t>(layer_end) - 1) / crc_layers;
  const std::span<const std::uint8_t> layers =
      chunk.subspan(kCrcBytes * static_cast<std::size_t>(shape_.num_crcs()));
  const std::size_t covered = crc_layers * layer_bytes;
  for (std::size_t g = first; g <= last; ++g) {
    std::uint32_t crc;
    std::memcpy(&crc, chunk.data() + g * kCrcBytes, kCrcBytes);
    const std::size_t at = g * covered;
    if (crc != Crc32c(layers.subspan(at, std::min(covered, layers.size() - at)))) return false;
  }
  return true;
}

bool ChunkCodec::DecodeRaw(std::span<const RowInfo> infos, const std::uint8_t* layers,
                           const RowsAndLayers& part, std::span<std::uint8_t> ids,
                           std::span<std::uint8_t> invalid) const {
  const auto rows = static_cast<std::size_t>(part.row_end - part.row_begin);
  const auto num_layers = static_cast<std::size_t>(part.layer_end - part.layer_begin);
  const std::size_t layer_bytes = LayerBytes(static_cast<std::int64_t>(infos.size()));
  const std::size_t row_bytes = num_layers * group_bytes_;
  const std::uint8_t* from = layers + static_cast<std::size_t>(part.layer_begin) * layer_bytes +
                             static_cast<std::size_t>(part.row_begin) * group_bytes_;
  LayersToTokensOf(group_bytes_)(from, layer_bytes, rows, num_layers, group_bytes_, ids.data());
  std::array<const std::uint8_t*, kMostPageRows> valid;
  for (std::size_t i = 0; i < rows; ++i) {
    std::uint8_t* const row = ids.data() + i * row_bytes;
    valid[i] = infos[static_cast<std::size_t>(part.row_begin) + i].valid() ? row : nullptr;
    if (valid[i] == nullptr) std::memset(row, 0, row_bytes);
  }
  if (distinct_.CheckRows(std::span(valid).first(rows), part.layer_end - part.layer_begin, invalid))
    return true;
  for (std::uint8_t& row : invalid)
    row ^= 1;  // they are good
  return false;
}

ChunkState ChunkCodec::Decode(std::span<const RowInfo> infos, std::span<const std::uint8_t> chunk,
                              const RowsAndLayers& part, std::span<std::uint8_t> ids,
                              std::span<std::uint8_t> invalid) const {
  const std::size_t layer_bytes = LayerBytes(static_cast<std::int64_t>(infos.size()));
  if (!CrcsMatch(chunk, layer_bytes, part.layer_begin, part.layer_end)) return ChunkState::kDamaged;
  const auto layers = chunk.subspan(kCrcBytes * static_cast<std::size_t>(shape_.num_crcs()));
  const bool good = set_code_.has_value()
                        ? set_code_->Decode(layers, infos, part, ids, invalid) == 0
                        : DecodeRaw(infos, layers.data(), part, ids, invalid);
  if (good) return ChunkState::kGood;
  const std::size_t row_bytes =
      static_cast<std::size_t>(part.layer_end - part.layer_begin) * group_bytes_;
  for (std::size_t i = 0; i < invalid.size(); ++i) {
    if (invalid[i] != 0) std::memset(ids.data() + i * row_bytes, 0, row_bytes);
  }
  return ChunkState::kInvalidId;
}

std::optional<std::span<const std::uint8_t>> ChunkCodec::Layers(std::int64_t rows,
                                                                std::span<const std::uint8_t> chunk,
                                                                std::int32_t layer_begin,
                                                                std::int32_t layer_end) const {
  if (!CrcsMatch(chunk, LayerBytes(rows), layer_begin, layer_end)) return std::nullopt;
  return chunk.subspan(kCrcBytes * static_cast<std::size_t>(shape_.num_crcs()));
}

std::uint32_t ChunkCodec::PlaceDigest(std::span<const std::uint8_t> chunk) const {
  return static_cast<std::uint32_t>(
      XXH3_64bits(chunk.data(), kCrcBytes * static_cast<std::size_t>(shape_.num_crcs())));
}

Digest128 ChunkCodec::Digest(std::int64_t rows, std::span<const std::uint8_t> chunk) const {
  // Nodes, tail segments and handles begin with their magic; the digest of a chunk with a key
  // begins with one, too, so that no bytes are those of two kinds.
  std::array<std::uint8_t, 16> front;
  RawWriter writer(front.data());
  writer.Put(std::array<char, 4>{'W', 'M', 'K', 'C'});
  writer.Put(shape_digest_);
  writer.Put(static_cast<std::uint32_t>(rows));
  Digest128 digest = key_.Digest(std::span(front).subspan(key_.empty() ? 4 : 0), chunk);
  if (key_.empty()) digest.w[0] = PlaceDigest(chunk);  // with a key, no ranges are read
  return digest;
}

}  // namespace waymark::wire
