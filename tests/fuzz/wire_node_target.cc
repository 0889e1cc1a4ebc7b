// Nodes (blockstore/wire/objects.h): one that is read is written as it was, but for runs that are not
// the longest.
#include "blockstore/wire/objects.h"

#include <cstring>

#include "tests/fuzz/fuzz_target.h"
#include "tests/support/wire_golden.h"

namespace waymark::fuzz {
namespace {

constexpr std::int32_t kPageTokens = 4;

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  // The digest that it says, so that it goes on.
  std::uint64_t shape_digest = 0;
  if (input.size() >= 16) std::memcpy(&shape_digest, input.data() + 8, 8);
  const auto node = wire::ParseNode(input, shape_digest, kPageTokens, 1 << 16);
  if (!node.ok()) return RequireReadable(node.status());
  Require(!node->chunks.empty() && node->chunks.size() <= 64, "1 to 64 chunks");
  Require(node->known.rows() == static_cast<std::int64_t>(node->chunks.size()) * kPageTokens,
          "all rows are known");
  std::vector<RowInfo> infos(static_cast<std::size_t>(node->known.rows()));
  node->known.Infos(0, infos);
  const auto bytes = wire::EncodeNode(shape_digest, node->first_page, node->before, node->chunks,
                                      kPageTokens, infos, node->names);
  Require(bytes.ok(), "what was read can be written");
  const auto again = wire::ParseNode(*bytes, shape_digest, kPageTokens);
  Require(again.ok() && again->chunks == node->chunks && again->before == node->before &&
              again->first_page == node->first_page && again->names == node->names,
          "what was written can be read");
  std::vector<RowInfo> infos_again(infos.size());
  again->known.Infos(0, infos_again);
  Require(infos_again == infos, "infos stay as they were");
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (const auto& golden : wire_samples::GoldenObjects()) {
    if (golden.name.starts_with("node")) corpus.push_back(AsText(golden.bytes));
  }
  const std::vector<Digest128> chunks(64, Digest128{{1, 2, 3, 4}});
  const auto bytes = wire::EncodeNode(5, 128, {{1, 1, 1, 1}}, chunks, kPageTokens,
                                      wire_samples::GoldenInfos(256, 100));
  corpus.push_back(AsText(*bytes));
  return corpus;
}

}  // namespace waymark::fuzz
