// EditedDocument: a document whose chunks are changed on purpose, with checksums that show it or
// with ones made right again.
#ifndef WAYMARK_TESTS_SUPPORT_EDITED_DOCUMENT_H_
#define WAYMARK_TESTS_SUPPORT_EDITED_DOCUMENT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "blockstore/wire/chunk.h"
#include "blockstore/wire/crc32c.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/document_format.h"
#include "tests/support/wire_samples.h"

namespace waymark::wire_samples {

// A chunk is meant by its number. Checksums stay as they are unless a function says otherwise.
class EditedDocument {
 public:
  // REQUIRES: a whole and right document, with places.
  explicit EditedDocument(Bytes document) : bytes_(std::move(document)) {
    const wire::Document opened = wire::Document::Open(bytes_).value();
    shape_ = opened.shape();
    codec_ = wire::ChunkCodec::Create(shape_).value();
    layout_.emplace(*codec_, opened.first(), opened.size());
    header_bytes_ = bytes_.size() - layout_->bytes();
    places_ = FindPlaces();
  }

  [[nodiscard]] const wire::WireShape& shape() const { return shape_; }
  [[nodiscard]] std::size_t chunks() const { return static_cast<std::size_t>(layout_->chunks()); }
  // Rows [first_row(c), first_row(c) + rows(c)) of the document, from 0.
  [[nodiscard]] std::int64_t first_row(std::size_t c) const {
    return layout_->RowBegin(static_cast<std::int64_t>(c));
  }
  [[nodiscard]] std::int64_t rows(std::size_t c) const {
    return layout_->Rows(static_cast<std::int64_t>(c));
  }
  [[nodiscard]] std::size_t header_bytes() const { return header_bytes_; }
  [[nodiscard]] std::span<std::uint8_t> chunk(std::size_t c) {
    return std::span(bytes_).subspan(
        header_bytes_ + layout_->ByteBegin(static_cast<std::int64_t>(c)),
        codec_->ChunkBytes(rows(c)));
  }
  // The layers of a chunk, each of layer_bytes(c) bytes.
  [[nodiscard]] std::span<std::uint8_t> layers(std::size_t c) {
    return chunk(c).subspan(4 * static_cast<std::size_t>(shape_.num_crcs()));
  }
  [[nodiscard]] std::size_t layer_bytes(std::size_t c) const { return codec_->LayerBytes(rows(c)); }

  // REQUIRES: the raw codec.
  void PutId(std::size_t c, std::int32_t layer, std::int64_t row, std::int32_t k,
             std::uint32_t id) {
    const auto top_k = static_cast<std::size_t>(shape_.rows.top_k);
    wire_samples::PutId(shape_.rows,
                        layers(c).data() + static_cast<std::size_t>(layer) * layer_bytes(c),
                        static_cast<std::size_t>(row) * top_k + static_cast<std::size_t>(k), id);
  }
  // Nothing, unless both have as many rows.
  void Swap(std::size_t a, std::size_t b) {
    if (a != b && rows(a) == rows(b))
      std::swap_ranges(chunk(a).begin(), chunk(a).end(), chunk(b).begin());
  }
  void Copy(std::size_t from, std::size_t to) {
    if (from != to && rows(from) == rows(to))
      std::copy(chunk(from).begin(), chunk(from).end(), chunk(to).begin());
  }

  // The crcs of a chunk, its place, and the crc of the header.
  void MakeRight(std::size_t c) {
    const std::span<std::uint8_t> of = layers(c);
    const std::size_t covered = static_cast<std::size_t>(shape_.crc_layers()) * layer_bytes(c);
    for (std::size_t crc = 0, at = 0; at < of.size(); ++crc, at += covered) {
      const std::uint32_t right = wire::Crc32c(of.subspan(at, std::min(covered, of.size() - at)));
      std::memcpy(chunk(c).data() + 4 * crc, &right, sizeof(right));
    }
    PutPlace(c, codec_->PlaceDigest(chunk(c)));
  }
  // The place of a chunk, and with it the crc of the header. Nothing without places.
  void PutPlace(std::size_t c, std::uint32_t place) {
    if (places_ == 0) return;
    std::memcpy(bytes_.data() + places_ + wire::kPlaceBytes * c, &place, sizeof(place));
    MakeDocumentCrcRight(bytes_);
  }
  // As a writer of minor version 0 writes it. The places become a section that nobody knows.
  void DropPlaces() {
    if (places_ == 0) return;
    constexpr std::uint16_t kUnknown = 999, kMinor = 0;
    std::memcpy(bytes_.data() + places_ - sizeof(wire::SectionHeader), &kUnknown, sizeof(kUnknown));
    std::memcpy(bytes_.data() + offsetof(wire::DocumentHeader, minor), &kMinor, sizeof(kMinor));
    places_ = 0;
    MakeDocumentCrcRight(bytes_);
  }

  // One change of any kind. `infos`: of the rows that were written. below(n): a number in [0, n).
  // REQUIRES: a chunk has layers of a byte or more.
  template <class Below>
  void ChangeAny(std::span<const RowInfo> infos, Below&& below) {
    const auto draw = [&below](auto end) {
      return static_cast<decltype(end)>(below(static_cast<std::uint32_t>(end)));
    };
    const std::size_t c = draw(chunks());
    const std::size_t other = draw(chunks());
    const std::int64_t row = draw(rows(c));
    const std::int32_t layer = draw(shape_.rows.num_layers);
    const std::int32_t top_k = shape_.rows.top_k;
    const bool raw = shape_.code.codec == wire::Codec::kRaw;
    const auto byte = static_cast<std::uint8_t>(1 + draw(255));
    switch (draw(10)) {
      case 0:  // in a crc
        chunk(c)[draw(static_cast<std::size_t>(shape_.num_crcs()) * 4)] ^= byte;
        return;
      case 1:  // in the layers
        layers(c)[draw(layers(c).size())] ^= byte;
        return;
      case 2:
        Swap(c, other);
        return;
      case 3:
        Copy(other, c);
        return;
      case 4:
        PutPlace(c, byte);
        return;
      case 5:  // an id that no expert has, if the stored type has room for one
        if (!raw) return;
        PutId(c, layer, row, draw(top_k),
              draw(2) == 0 ? static_cast<std::uint32_t>(shape_.rows.num_experts) : 0xffff);
        break;
      case 6:    // the same id twice, in rows that follow each other
      case 7: {  // and in rows that the coverage calls missing
        if (!raw || top_k == 1) return;
        const std::int64_t end = std::min(rows(c), row + (draw(2) == 0 ? 1 : 1 + draw(80)));
        for (std::int64_t r = row; r < end; ++r) {
          const auto id = static_cast<std::uint32_t>(draw(shape_.rows.num_experts));
          const std::int32_t k = draw(top_k - 1);
          PutId(c, layer, r, k, id);
          PutId(c, layer, r, k + 1 + draw(top_k - 1 - k), id);
        }
        break;
      }
      case 8: {  // something else than zeros where the coverage calls rows missing
        if (!raw) return;
        for (std::int64_t r = 0; r < rows(c); ++r) {
          if (infos[static_cast<std::size_t>(first_row(c) + r)].valid()) continue;
          for (std::int32_t k = 0; k < top_k; ++k)
            PutId(c, layer, r, k, draw(65536));
        }
        break;
      }
      default:  // any byte: another set, or the code of none
        layers(c)[draw(layers(c).size())] ^= byte;
    }
    MakeRight(c);
  }

  // The document. What follows edits no more.
  [[nodiscard]] Bytes Take() && { return std::move(bytes_); }

 private:
  // Where the payload of the section is.
  [[nodiscard]] std::size_t FindPlaces() const {
    for (std::size_t at = sizeof(wire::DocumentHeader); at < header_bytes_;) {
      wire::SectionHeader section;
      std::memcpy(&section, bytes_.data() + at, sizeof(section));
      at += sizeof(section);
      if (section.type == static_cast<std::uint16_t>(wire::Section::kPlaces)) return at;
      at += wire::RoundUp(section.bytes, 8);
    }
    return 0;
  }

  Bytes bytes_;
  wire::WireShape shape_;
  std::optional<wire::ChunkCodec> codec_;
  std::optional<wire::ChunkLayout> layout_;
  std::size_t header_bytes_ = 0;
  std::size_t places_ = 0;  // 0: there are none
};

}  // namespace waymark::wire_samples

#endif  // WAYMARK_TESTS_SUPPORT_EDITED_DOCUMENT_H_
