// .npy (adapters/formats/payloads.h).
#include "adapters/formats/payloads.h"

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/routing_samples.h"

namespace waymark::fuzz {

void RunOne(std::span<const std::uint8_t> input) {
  const auto array = formats::ReadNpy(input, {.max_bytes = 1 << 20});
  if (!array.ok()) {
    Require(array.status().message().substr(0, 4) == ".npy", "a refusal names the format");
    RequireReadable(array.status());
    return;
  }
  Require(array->ids.size() <= input.size(), "no more ids than bytes");
  const auto again = formats::ReadNpy(formats::WriteNpy(*array), {});
  Require(again.ok() && *again == *array, "what was read is written and read again");
}

std::vector<std::string> Corpus() {
  return RoutingSamples({".npy"});
}

}  // namespace waymark::fuzz
