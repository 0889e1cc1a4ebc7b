#include "blockstore/wire/document.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/huge_pages.h"
#include "blockstore/invalid.h"
#include "blockstore/wire/document_format.h"

namespace waymark::wire {
namespace {

using Payload = std::optional<std::span<const std::uint8_t>>;

struct Sections {
  Payload shape, coverage, steps, nodes, places;

  // Null: a section that this version does not know.
  Payload* Of(Section type) {
    switch (type) {
      case Section::kShape:
        return &shape;
      case Section::kCoverage:
        return &coverage;
      case Section::kSteps:
        return &steps;
      case Section::kNodes:
        return &nodes;
      case Section::kPlaces:
        return &places;
      default:
        return nullptr;
    }
  }
};

absl::StatusOr<Sections> FindSections(std::span<const std::uint8_t> bytes) {
  Sections found;
  ByteReader reader(bytes);
  for (bool front = true; reader.left() > 0; front = false) {
    const auto header = reader.Get<SectionHeader>();
    if (header.type == static_cast<std::uint16_t>(Section::kEnd)) break;
    const std::uint8_t* payload = reader.Take(header.bytes);
    if (payload == nullptr || reader.Take(RoundUp(header.bytes, 8) - header.bytes) == nullptr) {
      return Invalid("document: section ", header.type, " has ", header.bytes,
                     " bytes, more than the header has left");
    }
    Payload* const section = found.Of(static_cast<Section>(header.type));
    if (section == nullptr) {
      if ((header.flags & kMustUnderstand) == 0) continue;
      return absl::UnimplementedError(
          absl::StrCat("document: section ", header.type,
                       " must be understood, and this version does not know it"));
    }
    if (section == &found.shape && !front)
      return Invalid("document: section 1 (shape) must be the first");
    if (section->has_value()) return Invalid("document: section ", header.type, " comes twice");
    *section = std::span(payload, header.bytes);
  }
  if (!found.shape.has_value())
    return Invalid("document: section 1 (shape) must be the first; there is none");
  if (!found.coverage.has_value())
    return Invalid("document: section 2 (coverage) is required; there is none");
  if (!found.places.has_value())
    return Invalid("document: section 5 (places) is required; there is none");
  return found;
}

void MakeMissing(RowInfo& info, Reason reason) {
  if (info.valid()) info = {0, 0, reason, info.provenance};
}

// The header's fixed part, of which everything is checked that does not follow from its sections.
absl::StatusOr<DocumentHeader> ReadHeader(std::span<const std::uint8_t> bytes) {
  DocumentHeader header;
  if (bytes.size() >= sizeof(kDocumentMagic) &&
      std::memcmp(bytes.data(), kDocumentMagic, sizeof(kDocumentMagic)) != 0) {
    return Invalid("document: it does not begin with the magic bytes 89 57 4D 4B 0D 0A 1A 0A");
  }
  if (bytes.size() < sizeof(header)) {
    return absl::DataLossError(absl::StrCat("document: the header has ", sizeof(header),
                                            " bytes or more; there are ", bytes.size()));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.major != kMajorVersion) {
    return absl::UnimplementedError(
        absl::StrCat("document: major version must be ", kMajorVersion, "; it is ", header.major));
  }
  if (header.header_bytes < sizeof(header) || header.header_bytes % kHeaderAlignment != 0) {
    return Invalid("document: header bytes must be a multiple of 64, not 0; they are ",
                   header.header_bytes);
  }
  if (header.header_bytes > bytes.size()) {
    return absl::DataLossError(absl::StrCat("document: the header has ", header.header_bytes,
                                            " bytes; there are ", bytes.size()));
  }
  const std::span<const std::uint8_t> behind =
      bytes.first(header.header_bytes).subspan(sizeof(header));
  if (CrcOf(header, behind) != header.crc) {
    return absl::DataLossError("document: the crc of the header does not match");
  }
  if (header.first > kMostRows || header.rows > kMostRows - header.first) {
    return Invalid("document: rows must lie in [0, ", kMostRows, "); they are ", header.rows,
                   " from ", header.first);
  }
  return header;
}

}  // namespace

absl::StatusOr<Document> Document::Open(std::span<const std::uint8_t> bytes,
                                        const ReadLimits& limits) {
  const absl::StatusOr<DocumentHeader> read = ReadHeader(bytes);
  if (!read.ok()) return read.status();
  const DocumentHeader& header = *read;
  const std::span<const std::uint8_t> behind =
      bytes.first(header.header_bytes).subspan(sizeof(header));
  const auto first = static_cast<std::int64_t>(header.first);
  const auto rows = static_cast<std::int64_t>(header.rows);

  absl::StatusOr<Sections> sections = FindSections(behind);
  if (!sections.ok()) return sections.status();
  absl::StatusOr<WireShape> shape = DecodeShapeBlock(*sections->shape);
  if (!shape.ok()) return shape.status();
  absl::StatusOr<ChunkCodec> codec = ChunkCodec::Create(*shape);
  if (!codec.ok()) return codec.status();
  const ChunkLayout layout(*codec, first, rows);
  if (header.document_bytes != header.header_bytes + layout.bytes()) {
    return Invalid("document: document bytes must be ", header.header_bytes + layout.bytes(),
                   " by its shape and rows; they are ", header.document_bytes);
  }
  const std::size_t places_bytes = kPlaceBytes * static_cast<std::size_t>(layout.chunks());
  if (sections->places->size() != places_bytes) {
    return Invalid("document: section 5 (places) must have ", places_bytes, " bytes for its ",
                   layout.chunks(), " chunks; it has ", sections->places->size());
  }
  absl::StatusOr<RowRuns> known =
      RowRuns::Parse(*sections->coverage, sections->steps, rows, limits.max_bytes);
  if (!known.ok()) return known.status();

  Document document(*std::move(codec), *std::move(known));
  document.bytes_ = bytes.first(std::min<std::uint64_t>(bytes.size(), header.document_bytes));
  document.limits_ = limits;
  document.document_bytes_ = header.document_bytes;
  document.header_bytes_ = header.header_bytes;
  document.first_ = first;
  document.has_steps_ = sections->steps.has_value();
  document.places_ = *sections->places;
  if (sections->nodes.has_value()) {
    ByteReader reader(*sections->nodes);
    while (reader.left() > 0) {
      const auto node_bytes = reader.Get<std::uint32_t>();
      const std::uint8_t* node = reader.Take(node_bytes);
      if (!reader.ok())
        return Invalid("document: section 4 (nodes): a node extends beyond the section");
      document.nodes_.emplace_back(node, node_bytes);
      if (document.nodes_.size() > limits.max_bytes / sizeof(document.nodes_[0])) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "document: its nodes take more than max_bytes, ", limits.max_bytes, " bytes"));
      }
    }
  }
  return document;
}

RoutingShape LayersShape(const RoutingShape& shape, std::int32_t layer_begin,
                         std::int32_t layer_end) {
  RoutingShape part = shape;
  if (layer_begin == 0 && layer_end == part.num_layers) return part;
  part.num_layers = layer_end - layer_begin;
  part.layer_ids.clear();
  for (std::int32_t layer = layer_begin; layer < layer_end; ++layer)
    part.layer_ids.push_back(shape.layer_id(layer));
  if (part.layer_ids.back() == part.num_layers - 1) part.layer_ids.clear();  // 0, 1, ...
  return part;
}

absl::Status CheckPart(const RowsAndLayers& part, std::int64_t first, std::int64_t last,
                       std::int32_t num_layers, std::int64_t max_rows) {
  if (part.row_begin < first || part.row_begin > part.row_end || part.row_end > last) {
    return absl::OutOfRangeError(absl::StrCat("part: rows [", part.row_begin, ", ", part.row_end,
                                              ") must lie in [", first, ", ", last, ")"));
  }
  if (part.layer_begin < 0 || part.layer_begin >= part.layer_end || part.layer_end > num_layers) {
    return absl::OutOfRangeError(absl::StrCat("part: layers [", part.layer_begin, ", ",
                                              part.layer_end, ") must lie in [0, ", num_layers,
                                              ") and not be empty"));
  }
  if (part.row_end - part.row_begin > max_rows) {
    return absl::ResourceExhaustedError(
        absl::StrCat("part: it must have at most max_rows = ", max_rows, " rows; it has ",
                     part.row_end - part.row_begin));
  }
  return absl::OkStatus();
}

bool Document::InPlace(std::int64_t c, std::span<const std::uint8_t> chunk) const {
  std::uint32_t place;
  std::memcpy(&place, places_.data() + kPlaceBytes * static_cast<std::size_t>(c), sizeof(place));
  return place == codec_.PlaceDigest(chunk);
}

// Writes all of `ids` and `infos`.
void Document::ReadStored(const RowsAndLayers& part, std::span<std::uint8_t> ids,
                          std::span<RowInfo> infos, ReadDamage& damage) const {
  const std::int64_t begin = part.row_begin - first_;
  const std::int64_t end = part.row_end - first_;
  if (begin == end) return;
  known_.Infos(begin, infos);
  const ChunkLayout layout(codec_, first_, size());
  const std::span<const std::uint8_t> chunks = bytes_.subspan(header_bytes_);
  const std::size_t row_bytes = static_cast<std::size_t>(part.layer_end - part.layer_begin) *
                                static_cast<std::size_t>(shape().rows.top_k) *
                                shape().rows.id_bytes();
  std::vector<RowInfo> edge;  // infos of all rows of a chunk that is read only in part
  std::array<std::uint8_t, 4096> invalid;
  for (std::int64_t c = layout.ChunkOf(begin), row = begin; row < end; ++c) {
    const std::int64_t chunk_begin = layout.RowBegin(c);
    const std::int64_t chunk_rows = layout.Rows(c);
    const std::int64_t until = std::min(end, chunk_begin + chunk_rows);
    const auto rows = static_cast<std::size_t>(until - row);
    const auto at = static_cast<std::size_t>(row - begin);
    const std::span<RowInfo> wanted = infos.subspan(at, rows);
    const std::span<std::uint8_t> to = ids.subspan(at * row_bytes, rows * row_bytes);
    const std::size_t bytes = codec_.ChunkBytes(chunk_rows);
    const auto lose = [&](std::int64_t& count) {
      const bool any = std::any_of(wanted.begin(), wanted.end(), [](auto& i) { return i.valid(); });
      count += any ? 1 : 0;
      for (RowInfo& info : wanted)
        MakeMissing(info, Reason::kNotCaptured);
      std::fill(to.begin(), to.end(), std::uint8_t{0});
    };
    if (layout.ByteBegin(c) + bytes > chunks.size()) {
      lose(damage.absent_chunks);
    } else if (const auto chunk = chunks.subspan(layout.ByteBegin(c), bytes); !InPlace(c, chunk)) {
      lose(damage.damaged_chunks);
    } else {
      std::span<const RowInfo> all = wanted;
      if (wanted.size() < static_cast<std::size_t>(chunk_rows)) {
        edge.resize(static_cast<std::size_t>(chunk_rows));
        known_.Infos(chunk_begin, edge);
        all = edge;
      }
      const RowsAndLayers in_chunk{row - chunk_begin, until - chunk_begin, part.layer_begin,
                                   part.layer_end};
      switch (codec_.Decode(all, chunk, in_chunk, to, std::span(invalid).first(rows))) {
        case ChunkState::kGood:
          break;
        case ChunkState::kDamaged:
          lose(damage.damaged_chunks);
          break;
        case ChunkState::kInvalidId:
          for (std::size_t i = 0; i < rows; ++i) {
            if (invalid[i] == 0) continue;
            MakeMissing(wanted[i], Reason::kInvalidId);
            ++damage.invalid_rows;
          }
          break;
      }
    }
    row = until;
  }
}

absl::StatusOr<ChunkView> Document::Chunk(std::int64_t row) const {
  if (row < first() || row >= last()) {
    return absl::OutOfRangeError(
        absl::StrCat("row: must be in [", first(), ", ", last(), "); it is ", row));
  }
  const ChunkLayout layout(codec_, first_, size());
  const std::int64_t c = layout.ChunkOf(row - first_);
  ChunkView view;
  view.first = first_ + layout.RowBegin(c);
  view.rows = layout.Rows(c);
  view.layer_bytes = codec_.LayerBytes(view.rows);
  const auto lost = [&view](const char* how) {
    return absl::DataLossError(absl::StrCat("document: the chunk of rows [", view.first, ", ",
                                            view.first + view.rows, ") ", how));
  };
  const std::span<const std::uint8_t> chunks = bytes_.subspan(header_bytes_);
  const std::size_t bytes = codec_.ChunkBytes(view.rows);
  if (layout.ByteBegin(c) + bytes > chunks.size()) return lost("is cut off");
  const std::span<const std::uint8_t> chunk = chunks.subspan(layout.ByteBegin(c), bytes);
  const auto layers = codec_.Layers(view.rows, chunk, 0, shape().rows.num_layers);
  if (!layers.has_value()) return lost("is damaged");
  if (!InPlace(c, chunk)) return lost("is in another's place");
  view.layers = *layers;
  return view;
}

absl::StatusOr<Rows> Document::ReadRows(const RowsAndLayers& part, ReadDamage* damage) const {
  Rows rows;
  if (absl::Status status = ReadRows(part, rows, damage); !status.ok()) return status;
  return rows;
}

absl::Status Document::ReadRows(const RowsAndLayers& part, Rows& rows, ReadDamage* damage) const {
  if (absl::Status status = Check(part); !status.ok()) return status;
  RoutingShape shape = LayersShape(this->shape().rows, part.layer_begin, part.layer_end);
  const auto size = static_cast<std::size_t>(part.row_end - part.row_begin);
  const std::size_t row_bytes = shape.row_bytes();
  if (size > limits_.max_bytes / (row_bytes + sizeof(RowInfo))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("part: ", size, " rows of ", row_bytes + sizeof(RowInfo),
                     " bytes are more than max_bytes, ", limits_.max_bytes));
  }
  rows.shape = std::move(shape);
  rows.first = part.row_begin;
  rows.ordered = codec_.shape().code.ordered;
  rows.infos.resize(size);
  ResizeForWriting(size * row_bytes, rows.ids);
  ReadDamage found;
  ReadStored(part, rows.ids, rows.infos, found);
  if (damage != nullptr) *damage = found;
  return absl::OkStatus();
}

}  // namespace waymark::wire
