#include "blockstore/wire/objects.h"

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/invalid.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/document_format.h"

namespace waymark::wire {
namespace {

constexpr std::array<char, 4> kNodeMagic = {'W', 'M', 'K', 'N'};
constexpr std::array<char, 4> kListMagic = {'W', 'M', 'K', 'L'};

// The first 48 bytes of a node, little-endian. docs/internals/format.md defines the fields.
struct NodeHeader {
  std::array<char, 4> magic;
  std::uint16_t major;
  std::uint8_t chunks;
  std::uint8_t names;
  std::uint64_t shape_digest;
  std::uint64_t first_page;
  Digest128 before;
  std::uint32_t coverage_bytes;
  std::uint32_t steps_bytes;
};
static_assert(sizeof(NodeHeader) == 48);

// The first 16 bytes of a list, little-endian. docs/internals/format.md defines the fields.
struct ListHeader {
  std::array<char, 4> magic;
  std::uint16_t major;
  std::uint16_t zero;
  std::uint64_t nodes;
};
static_assert(sizeof(ListHeader) == 16);

// The rules that EncodeNode and ParseNode share.
absl::Status CheckNode(std::uint64_t chunks, std::uint64_t first_page, const Digest128& before,
                       std::int32_t page_tokens) {
  if (chunks < 1 || chunks > kNodeChunks) {
    return Invalid("node: chunks must be 1 to ", kNodeChunks, "; they are ", chunks);
  }
  const auto most_pages = static_cast<std::uint64_t>(kMostRows / page_tokens);
  if (first_page % kNodeChunks != 0 || first_page > most_pages ||
      chunks > most_pages - first_page) {
    return Invalid("node: the first page must be a multiple of ", kNodeChunks, " with rows below ",
                   kMostRows, "; it is ", first_page);
  }
  if ((first_page == 0) != (before == Digest128{})) {
    return Invalid("node: the node before must be zeros for page 0 and only then; the page is ",
                   first_page);
  }
  return absl::OkStatus();
}

constexpr std::array<char, 4> kTailMagic = {'W', 'M', 'K', 'T'};
constexpr std::size_t kMostRunBytes = std::size_t{1} << 20;  // more than those of a page
constexpr int kTailRowBits = 13;       // of TailHeader::rows; the number of names is above them
constexpr std::size_t kTailNames = 7;  // at most
constexpr std::size_t kNodeNames = 255;

// The first 32 bytes of a tail segment, little-endian. docs/internals/format.md defines the fields.
struct TailHeader {
  std::array<char, 4> magic;
  std::uint16_t major;
  std::uint16_t rows;  // and names
  std::uint64_t shape_digest;
  std::uint64_t first;
  std::uint32_t coverage_bytes;
  std::uint32_t steps_bytes;
};
static_assert(sizeof(TailHeader) == 32);

// The rules that EncodeTailSegment and ParseTailSegment share.
absl::Status CheckTail(std::uint64_t first, std::uint64_t rows, std::int32_t page_tokens) {
  const auto page = static_cast<std::uint64_t>(page_tokens);
  if (rows < 1 || rows > page || first > static_cast<std::uint64_t>(kMostRows) - rows ||
      first % page + rows > page) {
    return Invalid("tail segment: it must have 1 row or more, all of one page of ", page_tokens,
                   ", numbered below ", kMostRows, "; it has ", rows, " from ", first);
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const char* what, std::uint64_t wanted, std::uint64_t found) {
  if (found == wanted) return absl::OkStatus();
  return Invalid(what, ": shape digest must be ", absl::Hex(wanted), "; it is ", absl::Hex(found));
}

// The name of rows of a page, at the end of a node or a tail segment. docs/internals/format.md
// defines the fields.
struct NameEntry {
  Digest128 name;
  std::uint64_t version;
  std::uint16_t page;  // counted from the first of the node
  std::uint16_t row;   // of the page
  std::uint16_t rows;
  std::uint16_t flags;
};
static_assert(sizeof(NameEntry) == 32);
enum NameFlag : std::uint32_t { kNameOfLost = 1, kNameOfUnnamed = 2 };

// The entries of rows [begin, end), at most `most`: without a name rows stay missing.
std::vector<NameEntry> EntriesOf(std::span<const PageName> names, std::int64_t begin,
                                 std::int64_t end, std::int32_t page_tokens, std::size_t most) {
  std::vector<NameEntry> entries;
  const std::int64_t first_page = begin / page_tokens;
  std::int64_t next = begin;
  for (const PageName& name : names) {
    const std::int64_t first = std::max(name.begin, begin);
    const std::int64_t last = std::min(name.end, end);
    const std::int64_t page = first / page_tokens;
    if (first < next || first >= last || (last - 1) / page_tokens != page) continue;
    if (entries.size() == most) break;
    next = last;
    const auto flags = (name.lost ? kNameOfLost : 0u) | (name.unnamed ? kNameOfUnnamed : 0u);
    entries.push_back({name.name, name.version, static_cast<std::uint16_t>(page - first_page),
                       static_cast<std::uint16_t>(first % page_tokens),
                       static_cast<std::uint16_t>(last - first),
                       static_cast<std::uint16_t>(flags)});
  }
  return entries;
}

// Takes `count` entries of a node or tail segment with rows [begin, end); `reader` has them.
absl::StatusOr<std::vector<PageName>> TakeNames(const char* what, ByteReader& reader,
                                                std::size_t count, std::int64_t begin,
                                                std::int64_t end, std::int32_t page_tokens) {
  std::vector<PageName> names;
  std::int64_t next = begin;
  for (std::size_t i = 0; i < count; ++i) {
    const auto entry = reader.Get<NameEntry>();
    const std::int64_t first = (begin / page_tokens + entry.page) * page_tokens + entry.row;
    const std::int64_t last = first + entry.rows;
    if (first < next || last <= first || last > end || entry.row + entry.rows > page_tokens ||
        entry.flags > (kNameOfLost | kNameOfUnnamed)) {
      return Invalid(what, ": a name must be of rows of one page, behind those of the name before ",
                     "and below ", end, ", with flags below 4; it is of rows [", first, ", ", last,
                     ") with flags ", entry.flags);
    }
    next = last;
    names.push_back({.begin = first,
                     .end = last,
                     .name = entry.name,
                     .version = entry.version,
                     .lost = (entry.flags & kNameOfLost) != 0,
                     .unnamed = (entry.flags & kNameOfUnnamed) != 0});
  }
  return names;
}

// Takes the coverage and steps of `rows` rows, whose sizes `header` has; `behind` bytes follow.
template <class Header>
absl::StatusOr<RowRuns> TakeKnown(const char* what, const Header& header, ByteReader& reader,
                                  std::size_t behind, std::int64_t rows, std::size_t max_bytes) {
  const std::uint8_t* coverage = reader.Take(header.coverage_bytes);
  const std::uint8_t* steps = reader.Take(header.steps_bytes);
  if (!reader.ok() || reader.left() != behind) {
    return Invalid(what, ": its size must match the counts of its header and its shape");
  }
  absl::StatusOr<RowRuns> known = RowRuns::Parse(
      {coverage, header.coverage_bytes}, std::span(steps, header.steps_bytes), rows, max_bytes);
  if (known.ok() && known->has_provenance()) {
    return Invalid(what, ": the provenance in its coverage must be 0");
  }
  return known;
}

}  // namespace

absl::StatusOr<std::vector<std::uint8_t>> EncodeNode(
    std::uint64_t shape_digest, std::int64_t first_page, const Digest128& before,
    std::span<const Digest128> chunks, std::int32_t page_tokens, std::span<const RowInfo> infos,
    std::span<const PageName> names) {
  // A negative page becomes a number beyond the bound.
  if (absl::Status status =
          CheckNode(chunks.size(), static_cast<std::uint64_t>(first_page), before, page_tokens);
      !status.ok()) {
    return status;
  }
  if (infos.size() != chunks.size() * static_cast<std::size_t>(page_tokens)) {
    return Invalid("node: infos must be those of ", chunks.size(), " pages of ", page_tokens,
                   " rows; they are ", infos.size());
  }
  std::vector<std::uint8_t> coverage;
  AppendCoverage(infos, WithProvenance::kNo, coverage);
  std::vector<std::uint8_t> steps;
  AppendSteps(infos, steps);
  const std::int64_t begin = first_page * page_tokens;
  const std::vector<NameEntry> entries = EntriesOf(
      names, begin, begin + static_cast<std::int64_t>(infos.size()), page_tokens, kNodeNames);
  const NodeHeader header{kNodeMagic,
                          kMajorVersion,
                          static_cast<std::uint8_t>(chunks.size()),
                          static_cast<std::uint8_t>(entries.size()),
                          shape_digest,
                          static_cast<std::uint64_t>(first_page),
                          before,
                          static_cast<std::uint32_t>(coverage.size()),
                          static_cast<std::uint32_t>(steps.size())};
  return BytesOf(header, chunks, coverage, steps, entries);
}

absl::StatusOr<Node> ParseNode(std::span<const std::uint8_t> bytes, std::uint64_t shape_digest,
                               std::int32_t page_tokens, std::size_t max_bytes) {
  ByteReader reader(bytes);
  NodeHeader header;
  if (absl::Status status = TakeHeader("node", kNodeMagic, reader, header); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckNode(header.chunks, header.first_page, header.before, page_tokens);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckShape("node", shape_digest, header.shape_digest); !status.ok()) {
    return status;
  }
  const std::uint8_t* chunks = reader.Take(header.chunks, sizeof(Digest128));
  absl::StatusOr<RowRuns> known =
      TakeKnown("node", header, reader, header.names * sizeof(NameEntry),
                std::int64_t{header.chunks} * page_tokens, max_bytes);
  if (!known.ok()) return known.status();
  const std::int64_t begin = static_cast<std::int64_t>(header.first_page) * page_tokens;
  absl::StatusOr<std::vector<PageName>> names =
      TakeNames("node", reader, header.names, begin, begin + known->rows(), page_tokens);
  if (!names.ok()) return names.status();
  Node node;
  node.first_page = static_cast<std::int64_t>(header.first_page);
  node.before = header.before;
  node.chunks.resize(header.chunks);
  std::memcpy(node.chunks.data(), chunks, header.chunks * sizeof(Digest128));
  node.known = *std::move(known);
  node.names = *std::move(names);
  return node;
}

std::vector<Digest128> ChunksOfNode(std::span<const std::uint8_t> bytes) {
  // Most objects are no nodes, and the text of an error takes longer than all else here.
  if (bytes.size() < kNodeMagic.size() ||
      !std::equal(kNodeMagic.begin(), kNodeMagic.end(), bytes.begin())) {
    return {};
  }
  ByteReader reader(bytes);
  NodeHeader header;
  if (!TakeHeader("node", kNodeMagic, reader, header).ok()) return {};
  const std::uint8_t* digests = reader.Take(header.chunks, sizeof(Digest128));
  std::vector<Digest128> chunks(digests == nullptr ? 0 : header.chunks);
  if (!chunks.empty()) std::memcpy(chunks.data(), digests, chunks.size() * sizeof(Digest128));
  return chunks;
}

Digest128 NodeListName(const Digest128& head) {
  return ContentDigest(BytesOf(kListMagic, std::span(head.w)));
}

std::vector<std::uint8_t> EncodeNodeList(std::span<const Digest128> nodes) {
  return BytesOf(ListHeader{kListMagic, kMajorVersion, 0, nodes.size()}, nodes);
}

absl::StatusOr<std::vector<Digest128>> ParseNodeList(std::span<const std::uint8_t> bytes,
                                                     std::size_t nodes) {
  ByteReader reader(bytes);
  ListHeader header;
  if (absl::Status status = TakeHeader("node list", kListMagic, reader, header); !status.ok()) {
    return status;
  }
  const std::uint8_t* listed = reader.Take(nodes, sizeof(Digest128));
  if (header.nodes != nodes || listed == nullptr || !reader.done()) {
    return Invalid("node list: it must have ", nodes, " nodes; it has ", header.nodes, " in ",
                   bytes.size(), " bytes");
  }
  std::vector<Digest128> parsed(nodes);
  if (nodes > 0) std::memcpy(parsed.data(), listed, nodes * sizeof(Digest128));
  return parsed;
}

absl::StatusOr<std::vector<std::uint8_t>> EncodeTailSegment(const ChunkCodec& codec,
                                                            std::int64_t first,
                                                            std::span<const RowInfo> infos,
                                                            std::span<const std::uint8_t> ids,
                                                            std::span<const PageName> names) {
  // A negative row becomes a number beyond the bound.
  if (absl::Status status = CheckTail(static_cast<std::uint64_t>(first), infos.size(),
                                      codec.shape().rows.page_tokens);
      !status.ok()) {
    return status;
  }
  std::vector<std::uint8_t> coverage;
  AppendCoverage(infos, WithProvenance::kNo, coverage);
  std::vector<std::uint8_t> steps;
  AppendSteps(infos, steps);
  std::vector<std::uint8_t> chunk(codec.ChunkBytes(static_cast<std::int64_t>(infos.size())));
  if (absl::Status status = codec.Encode(infos, ids, chunk); !status.ok()) return status;
  const std::vector<NameEntry> entries =
      EntriesOf(names, first, first + static_cast<std::int64_t>(infos.size()),
                codec.shape().rows.page_tokens, kTailNames);
  const TailHeader header{kTailMagic,
                          kMajorVersion,
                          static_cast<std::uint16_t>(infos.size() | entries.size() << kTailRowBits),
                          codec.shape_digest(),
                          static_cast<std::uint64_t>(first),
                          static_cast<std::uint32_t>(coverage.size()),
                          static_cast<std::uint32_t>(steps.size())};
  return BytesOf(header, coverage, steps, chunk, entries);
}

absl::StatusOr<Rows> ParseTailSegment(const ChunkCodec& codec, std::span<const std::uint8_t> bytes,
                                      std::int32_t layer_begin, std::int32_t layer_end) {
  ByteReader reader(bytes);
  TailHeader header;
  if (absl::Status status = TakeHeader("tail segment", kTailMagic, reader, header); !status.ok()) {
    return status;
  }
  const RoutingShape& shape = codec.shape().rows;
  const std::size_t num_names = header.rows >> kTailRowBits;
  header.rows &= (1 << kTailRowBits) - 1;
  if (absl::Status status = CheckTail(header.first, header.rows, shape.page_tokens); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckShape("tail segment", codec.shape_digest(), header.shape_digest);
      !status.ok()) {
    return status;
  }
  const std::size_t chunk_bytes = codec.ChunkBytes(header.rows);
  const absl::StatusOr<RowRuns> known =
      TakeKnown("tail segment", header, reader, chunk_bytes + num_names * sizeof(NameEntry),
                header.rows, kMostRunBytes);
  if (!known.ok()) return known.status();
  const std::span<const std::uint8_t> chunk(reader.Take(chunk_bytes), chunk_bytes);
  const auto first = static_cast<std::int64_t>(header.first);
  absl::StatusOr<std::vector<PageName>> names =
      TakeNames("tail segment", reader, num_names, first, first + header.rows, shape.page_tokens);
  if (!names.ok()) return names.status();
  Rows rows;
  rows.shape = LayersShape(shape, layer_begin, layer_end);
  rows.first = first;
  rows.ordered = codec.shape().code.ordered;
  rows.names = *std::move(names);
  rows.infos.resize(header.rows);
  rows.ids.resize(header.rows * rows.shape.row_bytes());
  known->Infos(0, rows.infos);
  std::vector<std::uint8_t> invalid(header.rows);
  const ChunkState state =
      codec.Decode(rows.infos, chunk, {0, header.rows, layer_begin, layer_end}, rows.ids, invalid);
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
