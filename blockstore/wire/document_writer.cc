#include "blockstore/wire/document_writer.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/huge_pages.h"
#include "blockstore/invalid.h"
#include "blockstore/whole_file.h"
#include "blockstore/wire/coverage.h"
#include "blockstore/wire/crc32c.h"
#include "blockstore/wire/document_format.h"

namespace waymark::wire {
namespace {

void AppendSection(Section type, std::span<const std::uint8_t> payload,
                   std::vector<std::uint8_t>& header) {
  const std::size_t at = header.size();
  header.resize(at + sizeof(SectionHeader) + RoundUp(payload.size(), 8));
  RawWriter writer(header.data() + at);
  writer.Put(SectionHeader{static_cast<std::uint16_t>(type), 0,
                           static_cast<std::uint32_t>(payload.size())});
  writer.PutBytes(payload.data(), payload.size());
}

}  // namespace

absl::StatusOr<DocumentWriter> DocumentWriter::Create(const Rows& rows,
                                                      const DocumentOptions& options) {
  if (absl::Status status = CheckRows("rows", rows); !status.ok()) return status;
  for (std::size_t i = 0; i < rows.infos.size(); ++i) {
    const RowInfo& info = rows.infos[i];
    if (static_cast<int>(info.reason) >= kNumReasons ||
        static_cast<int>(info.provenance) >= kNumProvenances ||
        !IsCauseOf(info.reason, info.cause)) {
      return Invalid(
          "rows.infos[", i,
          "] must have a reason in [0, 8], a provenance in [0, 3], and a cause in [0, 31] "
          "only with capacity; they are ",
          static_cast<int>(info.reason), ", ", static_cast<int>(info.provenance), " and ",
          static_cast<int>(info.cause));
    }
  }
  absl::StatusOr<ChunkCodec> codec = ChunkCodec::Create({rows.shape, options.code.For(rows)});
  if (!codec.ok()) return codec.status();
  DocumentWriter writer(rows, *std::move(codec));
  const ChunkLayout layout(writer.codec_, rows.first, rows.size());
  writer.chunk_bytes_ = layout.bytes();

  std::vector<std::uint8_t>& header = writer.header_;
  header.resize(sizeof(DocumentHeader));
  AppendSection(Section::kShape, EncodeShapeBlock(writer.codec_.shape()), header);
  std::vector<std::uint8_t> payload;
  AppendCoverage(rows.infos, WithProvenance::kYes, payload);
  AppendSection(Section::kCoverage, payload, header);
  if (options.steps) {
    payload.clear();
    AppendSteps(rows.infos, payload);
    AppendSection(Section::kSteps, payload, header);
  }
  if (!options.nodes.empty()) {
    payload.clear();
    for (const std::vector<std::uint8_t>& node : options.nodes) {
      const std::size_t at = payload.size();
      payload.resize(at + 4 + node.size());
      RawWriter out(payload.data() + at);
      out.Put(static_cast<std::uint32_t>(node.size()));
      out.PutBytes(node.data(), node.size());
    }
    AppendSection(Section::kNodes, payload, header);
  }
  payload.assign(kPlaceBytes * static_cast<std::size_t>(layout.chunks()), 0);
  writer.places_begin_ = header.size() + sizeof(SectionHeader);
  AppendSection(Section::kPlaces, payload, header);
  header.resize(RoundUp(header.size(), kHeaderAlignment));
  if (header.size() > std::numeric_limits<std::uint32_t>::max()) {
    return Invalid("rows: their coverage and steps must fit 2^32 bytes; they take ", header.size());
  }

  DocumentHeader fixed{};
  std::memcpy(fixed.magic, kDocumentMagic, sizeof(fixed.magic));
  fixed.major = kMajorVersion;
  fixed.minor = kMinorVersion;
  fixed.header_bytes = static_cast<std::uint32_t>(header.size());
  fixed.document_bytes = header.size() + layout.bytes();
  fixed.first = static_cast<std::uint64_t>(rows.first);
  fixed.rows = static_cast<std::uint64_t>(rows.size());
  fixed.trajectory = options.trajectory;
  std::memcpy(header.data(), &fixed, sizeof(fixed));
  return writer;
}

absl::Status DocumentWriter::WriteTo(std::span<std::uint8_t> out) const {
  if (out.size() != bytes()) {
    return Invalid("out must hold the document's ", bytes(), " bytes; it holds ", out.size());
  }
  const std::span<std::uint8_t> header = out.first(header_.size());
  std::memcpy(header.data(), header_.data(), header_.size());
  out = out.subspan(header_.size());
  RawWriter places(header.data() + places_begin_);
  const ChunkLayout layout(codec_, rows_->first, rows_->size());
  const std::size_t row_bytes = rows_->shape.row_bytes();
  for (std::int64_t c = 0; c < layout.chunks(); ++c) {
    const auto row = static_cast<std::size_t>(layout.RowBegin(c));
    const auto rows = static_cast<std::size_t>(layout.Rows(c));
    const std::size_t bytes = codec_.ChunkBytes(layout.Rows(c));
    if (absl::Status status = codec_.Encode(
            std::span(rows_->infos).subspan(row, rows),
            std::span(rows_->ids).subspan(row * row_bytes, rows * row_bytes), out.first(bytes));
        !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("rows from ", rows_->first + layout.RowBegin(c),
                                       " on: ", std::string(status.message())));
    }
    places.Put(codec_.PlaceDigest(out.first(bytes)));
    out = out.subspan(bytes);
  }
  const std::uint32_t crc = Crc32c(header);
  std::memcpy(header.data() + offsetof(DocumentHeader, crc), &crc, sizeof(crc));
  return absl::OkStatus();
}

absl::Status DocumentWriter::WriteFile(const std::string& path) const {
  std::vector<std::uint8_t> document;
  ResizeForWriting(bytes(), document);
  if (absl::Status status = WriteTo(document); !status.ok()) return status;
  return WriteWholeFile(path, {reinterpret_cast<const char*>(document.data()), document.size()});
}

absl::StatusOr<std::vector<std::uint8_t>> WriteDocument(const Rows& rows,
                                                        const DocumentOptions& options) {
  absl::StatusOr<DocumentWriter> writer = DocumentWriter::Create(rows, options);
  if (!writer.ok()) return writer.status();
  std::vector<std::uint8_t> bytes;
  ResizeForWriting(writer->bytes(), bytes);
  if (absl::Status status = writer->WriteTo(bytes); !status.ok()) return status;
  return bytes;
}

}  // namespace waymark::wire
