// Rows for tests of the wire format, and how to make checksums right again after a change.
#ifndef WAYMARK_TESTS_SUPPORT_WIRE_SAMPLES_H_
#define WAYMARK_TESTS_SUPPORT_WIRE_SAMPLES_H_

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "blockstore/rows.h"
#include "blockstore/wire/crc32c.h"
#include "blockstore/wire/shape_block.h"

namespace waymark::wire_samples {

using Bytes = std::vector<std::uint8_t>;

inline std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

// Id k of layer `layer` of the row at `position`: distinct in a layer, in no order.
inline std::uint32_t IdOf(const RoutingShape& shape, std::int64_t position, std::int32_t layer,
                          std::int32_t k) {
  const auto experts = static_cast<std::uint32_t>(shape.num_experts);
  const auto base = static_cast<std::uint32_t>(position * 7 + layer * 13);
  // K steps of -1 around a ring of E.
  return (base % experts + experts - static_cast<std::uint32_t>(k)) % experts;
}

inline void PutId(const RoutingShape& shape, std::uint8_t* row, std::size_t index,
                  std::uint32_t id) {
  if (shape.id_bytes() == 1) {
    row[index] = static_cast<std::uint8_t>(id);
  } else {
    row[2 * index] = static_cast<std::uint8_t>(id);
    row[2 * index + 1] = static_cast<std::uint8_t>(id >> 8);
  }
}

// Rows whose ids are IdOf; missing ones are zeros.
inline Rows RowsOf(const RoutingShape& shape, std::int64_t first, std::vector<RowInfo> infos) {
  Rows rows;
  rows.shape = shape;
  rows.first = first;
  rows.ids.resize(infos.size() * shape.row_bytes());
  for (std::size_t i = 0; i < infos.size(); ++i) {
    if (!infos[i].valid()) continue;
    std::uint8_t* row = rows.ids.data() + i * shape.row_bytes();
    std::size_t index = 0;
    for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
      for (std::int32_t k = 0; k < shape.top_k; ++k, ++index)
        PutId(shape, row, index, IdOf(shape, first + static_cast<std::int64_t>(i), layer, k));
    }
  }
  rows.infos = std::move(infos);
  return rows;
}

inline RoutingShape RandomShape(std::mt19937_64& random) {
  const auto pick = [&](std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  RoutingShape shape;
  shape.num_layers = pick(1, 9);
  constexpr std::int32_t kTopKs[] = {1, 2, 3, 4, 6, 7, 8, 10, 16, 33, 64};
  shape.top_k = kTopKs[random() % std::size(kTopKs)];
  shape.num_experts = random() % 2 == 0 ? pick(shape.top_k, 256) : pick(257, 600);
  shape.page_tokens = random() % 4 == 0 ? 1 : pick(1, 20);
  if (random() % 2 == 0) {
    std::int32_t id = 0;
    for (std::int32_t layer = 0; layer < shape.num_layers; ++layer)
      shape.layer_ids.push_back(id += pick(1, 3));
  }
  return shape;
}

// Infos in runs, as engines make them: prefills, decoding, jumps, holes of every reason.
inline std::vector<RowInfo> RandomInfos(std::mt19937_64& random, std::size_t rows) {
  std::vector<RowInfo> infos;
  std::uint64_t step = random() % 3 == 0 ? ~std::uint64_t{0} - 20 : 1 + random() % 1000;
  while (infos.size() < rows) {
    RowInfo info;
    info.reason = random() % 3 != 0 ? Reason::kNone : static_cast<Reason>(random() % kNumReasons);
    info.provenance =
        random() % 2 == 0 ? Provenance::kHere : static_cast<Provenance>(random() % kNumProvenances);
    if (info.reason == Reason::kCapacity) info.cause = static_cast<Cause>(random() % 32);
    const std::uint64_t version = random() % 8 == 0 ? random() : random() % 3;
    const std::uint64_t stride = random() % 3 == 0 ? random() % 5 - 2 : random() % 2;
    if (random() % 4 == 0) step += random() % 100;
    for (std::size_t n = 1 + random() % 12; n > 0 && infos.size() < rows; --n) {
      if (info.valid()) {
        info.version = version;
        info.step = step += stride;
      }
      infos.push_back(info);
    }
  }
  return infos;
}

// Rows with random ids, distinct in a layer and in no order.
inline Rows RandomRows(std::mt19937_64& random, const RoutingShape& shape, std::size_t size) {
  Rows rows = RowsOf(shape, static_cast<std::int64_t>(random() % 50), RandomInfos(random, size));
  const auto experts = static_cast<std::uint64_t>(shape.num_experts);
  const auto top_k = static_cast<std::uint64_t>(shape.top_k);
  for (std::size_t i = 0; i < size; ++i) {
    if (!rows.infos[i].valid()) continue;
    std::uint8_t* row = rows.ids.data() + i * shape.row_bytes();
    for (std::size_t index = 0; index < shape.row_ids();) {
      const std::uint64_t base = random();
      const std::uint64_t stride = 1 + (base >> 32) % (experts / top_k);
      for (std::uint64_t k = 0; k < top_k; ++k, ++index)
        PutId(shape, row, index,
              static_cast<std::uint32_t>((base % experts + k * stride) % experts));
    }
  }
  return rows;
}

// Any code that can write such rows.
inline wire::ChunkCode RandomCode(std::mt19937_64& random, const RoutingShape& shape) {
  wire::ChunkCode code;
  code.ordered = random() % 2 == 0;
  if (random() % 2 == 0) {
    code = wire::ChunkCode::SetCodeFor(shape);
    wire::ChunkCode other = code;
    other.low_bits = static_cast<std::int32_t>(random() % 10);
    other.high_bits = static_cast<HighBits>(random() % 2);
    if (wire::WireShape{shape, other}.Validate().ok()) code = other;
  }
  code.crc_layers =
      static_cast<std::int32_t>(random() % (static_cast<std::uint64_t>(shape.num_layers) + 1));
  return code;
}

// Sets the crc of a document's header, if there is a whole one, or that of a handle.
inline void MakeDocumentCrcRight(std::span<std::uint8_t> bytes) {
  std::uint32_t header_bytes = 0;
  if (bytes.size() < 64) return;
  std::memcpy(&header_bytes, bytes.data() + 12, 4);
  if (header_bytes < 64 || header_bytes > bytes.size()) return;
  std::memset(bytes.data() + 16, 0, 4);
  const std::uint32_t crc = wire::Crc32c(bytes.first(header_bytes));
  std::memcpy(bytes.data() + 16, &crc, 4);
}
inline void MakeHandleCrcRight(std::span<std::uint8_t> bytes) {
  if (bytes.size() < 48) return;
  std::memset(bytes.data() + 12, 0, 4);
  const std::uint32_t crc = wire::Crc32c(bytes);
  std::memcpy(bytes.data() + 12, &crc, 4);
}

}  // namespace waymark::wire_samples

#endif  // WAYMARK_TESTS_SUPPORT_WIRE_SAMPLES_H_
