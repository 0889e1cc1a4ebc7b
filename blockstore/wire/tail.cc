#include "blockstore/wire/tail.h"

#include <array>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/invalid.h"
#include "blockstore/wire/coverage.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/document_format.h"

namespace waymark::wire {
namespace {

constexpr std::array<char, 4> kMagic = {'W', 'M', 'K', 'T'};

// The first 32 bytes of a tail segment, little-endian. docs/format.md defines the fields.
struct TailHeader {
  std::array<char, 4> magic;
  std::uint16_t major;
  std::uint16_t rows;
  std::uint64_t shape_digest;
  std::uint64_t first;
  std::uint32_t coverage_bytes;
  std::uint32_t steps_bytes;
};
static_assert(sizeof(TailHeader) == 32);

// The rules that EncodeTailSegment and ParseTailSegment share.
absl::Status CheckPosition(std::uint64_t first, std::uint64_t rows, std::int32_t page_tokens) {
  const auto page = static_cast<std::uint64_t>(page_tokens);
  if (rows < 1 || rows > page || first > static_cast<std::uint64_t>(kMostRows) - rows ||
      first % page + rows > page) {
    return Invalid("tail segment: it must have 1 row or more, all of one page of ", page_tokens,
                   ", numbered below ", kMostRows, "; it has ", rows, " from ", first);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::uint8_t>> EncodeTailSegment(const ChunkCodec& codec,
                                                            std::int64_t first,
                                                            std::span<const RowInfo> infos,
                                                            std::span<const std::uint8_t> ids) {
  // A negative row becomes a number beyond the bound.
  if (absl::Status status = CheckPosition(static_cast<std::uint64_t>(first), infos.size(),
                                          codec.shape().rows.page_tokens);
      !status.ok()) {
    return status;
  }
  std::vector<std::uint8_t> coverage;
  AppendCoverage(infos, WithProvenance::kNo, coverage);
  std::vector<std::uint8_t> steps;
  AppendSteps(infos, steps);
  TailHeader header{};
  header.magic = kMagic;
  header.major = kMajorVersion;
  header.rows = static_cast<std::uint16_t>(infos.size());
  header.shape_digest = codec.shape_digest();
  header.first = static_cast<std::uint64_t>(first);
  header.coverage_bytes = static_cast<std::uint32_t>(coverage.size());
  header.steps_bytes = static_cast<std::uint32_t>(steps.size());
  const std::size_t chunk_bytes = codec.ChunkBytes(static_cast<std::int64_t>(infos.size()));
  std::vector<std::uint8_t> bytes(sizeof(header) + coverage.size() + steps.size() + chunk_bytes);
  RawWriter writer(bytes.data());
  writer.Put(header);
  writer.PutBytes(coverage.data(), coverage.size());
  writer.PutBytes(steps.data(), steps.size());
  if (absl::Status status = codec.Encode(infos, ids, {writer.Skip(chunk_bytes), chunk_bytes});
      !status.ok()) {
    return status;
  }
  return bytes;
}

absl::StatusOr<Rows> ParseTailSegment(const ChunkCodec& codec, std::span<const std::uint8_t> bytes,
                                      std::int32_t layer_begin, std::int32_t layer_end,
                                      std::size_t max_bytes) {
  ByteReader reader(bytes);
  TailHeader header;
  if (absl::Status status = TakeHeader("tail segment", kMagic, reader, header); !status.ok()) {
    return status;
  }
  const RoutingShape& shape = codec.shape().rows;
  if (absl::Status status = CheckPosition(header.first, header.rows, shape.page_tokens);
      !status.ok()) {
    return status;
  }
  if (header.shape_digest != codec.shape_digest()) {
    return Invalid("tail segment: shape digest must be ", absl::Hex(codec.shape_digest()),
                   "; it is ", absl::Hex(header.shape_digest));
  }
  const std::uint8_t* coverage = reader.Take(header.coverage_bytes);
  const std::uint8_t* steps = reader.Take(header.steps_bytes);
  if (!reader.ok() || reader.left() != codec.ChunkBytes(header.rows)) {
    return Invalid("tail segment: its size must match the counts of its header and its shape");
  }
  Rows rows;
  rows.shape = LayersShape(shape, layer_begin, layer_end);
  const std::size_t own_bytes = header.rows * (rows.shape.row_bytes() + sizeof(RowInfo));
  if (own_bytes > max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "tail segment: its ", header.rows, " rows take more than max_bytes, ", max_bytes));
  }
  const absl::StatusOr<RowRuns> known =
      RowRuns::Parse({coverage, header.coverage_bytes}, std::span(steps, header.steps_bytes),
                     header.rows, max_bytes - own_bytes);
  if (!known.ok()) return known.status();
  if (known->has_provenance())
    return Invalid("tail segment: the provenance in its coverage must be 0");
  rows.first = static_cast<std::int64_t>(header.first);
  rows.ordered = codec.shape().code.ordered;
  rows.infos.resize(header.rows);
  rows.ids.resize(header.rows * rows.shape.row_bytes());
  known->Infos(0, rows.infos);
  std::vector<std::uint8_t> invalid(header.rows);
  const ChunkState state = codec.Decode(
      rows.infos, reader.rest(), {0, header.rows, layer_begin, layer_end}, rows.ids, invalid);
  for (std::size_t i = 0; i < rows.infos.size(); ++i) {
    if (!rows.infos[i].valid()) continue;
    if (state == ChunkState::kDamaged) rows.infos[i] = {0, 0, Reason::kNotCaptured, {}};
    if (state == ChunkState::kInvalidId && invalid[i] != 0) {
      rows.infos[i] = {0, 0, Reason::kInvalidId, {}};
    }
  }
  return rows;
}

}  // namespace waymark::wire
