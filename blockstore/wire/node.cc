#include "blockstore/wire/node.h"

#include <array>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/invalid.h"
#include "blockstore/wire/document_format.h"

namespace waymark::wire {
namespace {

constexpr std::array<char, 4> kMagic = {'W', 'M', 'K', 'N'};
constexpr std::array<char, 4> kListMagic = {'W', 'M', 'K', 'L'};

// The first 48 bytes of a node, little-endian. docs/format.md defines the fields.
struct NodeHeader {
  std::array<char, 4> magic;
  std::uint16_t major;
  std::uint16_t chunks;
  std::uint64_t shape_digest;
  std::uint64_t first_page;
  Digest128 before;
  std::uint32_t coverage_bytes;
  std::uint32_t steps_bytes;
};
static_assert(sizeof(NodeHeader) == 48);

// The first 16 bytes of a list, little-endian. docs/format.md defines the fields.
struct ListHeader {
  std::array<char, 4> magic;
  std::uint16_t major;
  std::uint16_t zero;
  std::uint64_t nodes;
};
static_assert(sizeof(ListHeader) == 16);

// The rules that EncodeNode and ParseNode share.
absl::Status CheckPosition(std::uint64_t chunks, std::uint64_t first_page, const Digest128& before,
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

}  // namespace

absl::StatusOr<std::vector<std::uint8_t>> EncodeNode(
    std::uint64_t shape_digest, std::int64_t first_page, const Digest128& before,
    std::span<const Digest128> chunks, std::int32_t page_tokens, std::span<const RowInfo> infos) {
  // A negative page becomes a number beyond the bound.
  if (absl::Status status =
          CheckPosition(chunks.size(), static_cast<std::uint64_t>(first_page), before, page_tokens);
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
  NodeHeader header{};
  header.magic = kMagic;
  header.major = kMajorVersion;
  header.chunks = static_cast<std::uint16_t>(chunks.size());
  header.shape_digest = shape_digest;
  header.first_page = static_cast<std::uint64_t>(first_page);
  header.before = before;
  header.coverage_bytes = static_cast<std::uint32_t>(coverage.size());
  header.steps_bytes = static_cast<std::uint32_t>(steps.size());
  std::vector<std::uint8_t> bytes(sizeof(header) + chunks.size_bytes() + coverage.size() +
                                  steps.size());
  RawWriter writer(bytes.data());
  writer.Put(header);
  writer.PutBytes(chunks.data(), chunks.size_bytes());
  writer.PutBytes(coverage.data(), coverage.size());
  writer.PutBytes(steps.data(), steps.size());
  return bytes;
}

absl::StatusOr<Node> ParseNode(std::span<const std::uint8_t> bytes, std::uint64_t shape_digest,
                               std::int32_t page_tokens, std::size_t max_bytes) {
  ByteReader reader(bytes);
  NodeHeader header;
  if (absl::Status status = TakeHeader("node", kMagic, reader, header); !status.ok()) {
    return status;
  }
  if (absl::Status status =
          CheckPosition(header.chunks, header.first_page, header.before, page_tokens);
      !status.ok()) {
    return status;
  }
  if (header.shape_digest != shape_digest) {
    return Invalid("node: shape digest must be ", absl::Hex(shape_digest), "; it is ",
                   absl::Hex(header.shape_digest));
  }
  const std::uint8_t* chunks = reader.Take(header.chunks, sizeof(Digest128));
  const std::uint8_t* coverage = reader.Take(header.coverage_bytes);
  const std::uint8_t* steps = reader.Take(header.steps_bytes);
  if (!reader.done()) return Invalid("node: its size must match the counts of its header");
  absl::StatusOr<RowRuns> known =
      RowRuns::Parse({coverage, header.coverage_bytes}, std::span(steps, header.steps_bytes),
                     std::int64_t{header.chunks} * page_tokens, max_bytes);
  if (!known.ok()) return known.status();
  if (known->has_provenance()) return Invalid("node: the provenance in its coverage must be 0");
  Node node;
  node.first_page = static_cast<std::int64_t>(header.first_page);
  node.before = header.before;
  node.chunks.resize(header.chunks);
  std::memcpy(node.chunks.data(), chunks, header.chunks * sizeof(Digest128));
  node.known = *std::move(known);
  return node;
}

Digest128 NodeListName(const Digest128& head) {
  std::array<std::uint8_t, sizeof(kListMagic) + sizeof(head)> named;
  RawWriter writer(named.data());
  writer.Put(kListMagic);
  writer.Put(head);
  return ContentDigest(named);
}

std::vector<std::uint8_t> EncodeNodeList(std::span<const Digest128> nodes) {
  std::vector<std::uint8_t> bytes(sizeof(ListHeader) + nodes.size_bytes());
  RawWriter writer(bytes.data());
  writer.Put(ListHeader{kListMagic, kMajorVersion, 0, nodes.size()});
  writer.PutBytes(nodes.data(), nodes.size_bytes());
  return bytes;
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

}  // namespace waymark::wire
