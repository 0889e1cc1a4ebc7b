#include "blockstore/wire/node_list.h"

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/wire/document_format.h"

namespace waymark::wire {
namespace {

constexpr std::array<char, 4> kMagic = {'W', 'M', 'K', 'L'};

// The first 16 bytes of a list, little-endian. docs/format.md defines the fields.
struct ListHeader {
  std::array<char, 4> magic;
  std::uint16_t major;
  std::uint16_t zero;
  std::uint64_t nodes;
};
static_assert(sizeof(ListHeader) == 16);

}  // namespace

Digest128 NodeListName(const Digest128& head) {
  std::array<std::uint8_t, sizeof(kMagic) + sizeof(head)> named;
  RawWriter writer(named.data());
  writer.Put(kMagic);
  writer.Put(head);
  return ContentDigest(named);
}

std::vector<std::uint8_t> EncodeNodeList(std::span<const Digest128> nodes) {
  std::vector<std::uint8_t> bytes(sizeof(ListHeader) + nodes.size_bytes());
  RawWriter writer(bytes.data());
  writer.Put(ListHeader{kMagic, kMajorVersion, 0, nodes.size()});
  writer.PutBytes(nodes.data(), nodes.size_bytes());
  return bytes;
}

absl::StatusOr<std::vector<Digest128>> ParseNodeList(std::span<const std::uint8_t> bytes,
                                                     std::size_t nodes) {
  ByteReader reader(bytes);
  const auto header = reader.Get<ListHeader>();
  if (!reader.ok() || header.magic != kMagic) {
    return absl::InvalidArgumentError(
        "node list: it must begin with a header of 16 bytes, the first of which are WMKL");
  }
  if (header.major != kMajorVersion) {
    return absl::UnimplementedError(
        absl::StrCat("node list: major version must be ", kMajorVersion, "; it is ", header.major));
  }
  const std::uint8_t* listed = reader.Take(nodes, sizeof(Digest128));
  if (header.nodes != nodes || listed == nullptr || !reader.done()) {
    return absl::InvalidArgumentError(absl::StrCat("node list: it must have ", nodes,
                                                   " nodes; it has ", header.nodes, " in ",
                                                   bytes.size(), " bytes"));
  }
  std::vector<Digest128> parsed(nodes);
  if (nodes > 0) std::memcpy(parsed.data(), listed, nodes * sizeof(Digest128));
  return parsed;
}

}  // namespace waymark::wire
