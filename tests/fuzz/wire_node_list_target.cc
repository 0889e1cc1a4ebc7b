// Node lists (blockstore/wire/objects.h).
#include "blockstore/wire/objects.h"

#include <algorithm>

#include "tests/fuzz/fuzz_target.h"

namespace waymark::fuzz {

void RunOne(std::span<const std::uint8_t> input) {
  // As many as fit, and one more.
  const std::size_t fit = input.size() < 16 ? 0 : (input.size() - 16) / sizeof(Digest128);
  for (const std::size_t nodes : {fit, fit + 1, ~std::size_t{0}}) {
    const auto list = wire::ParseNodeList(input, nodes);
    if (!list.ok()) {
      RequireReadable(list.status());
      continue;
    }
    Require(nodes == fit && list->size() == nodes, "a list has as many nodes as it must have");
    std::vector<std::uint8_t> written = wire::EncodeNodeList(*list);
    written[6] = input[6];  // readers ignore these two
    written[7] = input[7];
    Require(std::equal(written.begin(), written.end(), input.begin(), input.end()),
            "what was read is written as the same bytes");
  }
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (const std::size_t nodes : {0, 1, 4, 100}) {
    std::vector<Digest128> list(nodes);
    for (std::size_t i = 0; i < nodes; ++i)
      list[i].w[0] = static_cast<std::uint32_t>(i);
    const std::vector<std::uint8_t> bytes = wire::EncodeNodeList(list);
    corpus.push_back(AsText(bytes));
  }
  return corpus;
}

}  // namespace waymark::fuzz
