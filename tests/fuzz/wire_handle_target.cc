// Handles (blockstore/wire/handle.h): one that is read is written as it was, and the code of a
// keyed one is that of its fields.
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
  if (!handle.ok()) return RequireReadable(handle.status());
  Require(static_cast<std::int64_t>(handle->provenance.size()) == handle->rows,
          "provenance of every row");
  const auto written = wire::EncodeHandle(*handle);
  Require(written.ok(), "what was read can be written");
  const auto again = wire::ParseHandle(*written);
  Require(again.ok() && *again == *handle, "what was written reads the same");
  static const wire::DigestKey kKey =
      *wire::DigestKey::Create("key", std::vector<std::uint8_t>(16, 7));
  const auto mac = wire::HandleMac(*handle, kKey);
  Require(mac.ok() && *mac == *wire::HandleMac(*again, kKey), "one code for equal handles");
  Require(handle->mac != *mac, "no input has the code of a key that it does not know");
  wire::Handle longer = *handle;
  longer.store += 'x';
  Require(*wire::HandleMac(longer, kKey) != *mac, "another code for another handle");
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (const auto& golden : wire_samples::GoldenObjects()) {
    if (golden.name != "handle.bin" && golden.name != "handle_keyed.bin") continue;
    const std::string bytes = AsText(golden.bytes);
    corpus.push_back('\1' + bytes);
    corpus.push_back('\0' + bytes);
  }
  return corpus;
}

}  // namespace waymark::fuzz
