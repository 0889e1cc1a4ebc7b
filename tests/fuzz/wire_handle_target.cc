// Handles (blockstore/wire/handle.h): one that is read is written as it was.
//
// The crc would hide everything behind it: an input says in its first byte whether it is made
// right.
#include "blockstore/wire/handle.h"

#include "tests/fuzz/fuzz_target.h"
#include "tests/support/wire_golden.h"

namespace waymark::fuzz {

void RunOne(std::span<const std::uint8_t> input) {
  if (input.empty()) return;
  std::vector<std::uint8_t> bytes(input.begin() + 1, input.end());
  if (input[0] == 1) wire_samples::MakeHandleCrcRight(bytes);
  const auto handle = wire::ParseHandle(bytes, 1 << 16);
  if (!handle.ok()) {
    Require(handle.status().message().size() < 300, "a refusal is a line that can be read");
    return;
  }
  Require(static_cast<std::int64_t>(handle->provenance.size()) == handle->rows,
          "provenance of every row");
  const auto written = wire::EncodeHandle(*handle);
  Require(written.ok(), "what was read can be written");
  const auto again = wire::ParseHandle(*written);
  Require(again.ok() && *again == *handle, "what was written reads the same");
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (const auto& golden : wire_samples::GoldenObjects()) {
    if (golden.name != "handle.bin") continue;
    const std::string bytes(golden.bytes.begin(), golden.bytes.end());
    corpus.push_back('\1' + bytes);
    corpus.push_back('\0' + bytes);
  }
  return corpus;
}

}  // namespace waymark::fuzz
