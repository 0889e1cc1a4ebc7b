// JSON and nested lists (adapters/formats/json_value.h, payloads.h).
#include "adapters/formats/json_value.h"
#include "adapters/formats/payloads.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/routing_samples.h"

namespace waymark::fuzz {

void RunOne(std::span<const std::uint8_t> input) {
  const auto value = formats::ParseJson(input, {.max_bytes = 1 << 20});
  if (!value.ok()) {
    Require(value.status().message().substr(0, 4) == "JSON", "a refusal says where it comes from");
    RequireReadable(value.status());
    return;
  }
  const auto array = formats::ReadLists(*value, formats::Dtype::kInt16, {.max_bytes = 1 << 20});
  if (!array.ok()) return RequireReadable(array.status(), 999);
  std::string text;
  formats::AppendLists(*array, text);
  const auto again = formats::ParseJson(AsBytes(text), {});
  Require(again.ok(), "lists are JSON");
  if (array->rows == 0) return;  // no list says how many columns it does not have
  const auto back = formats::ReadLists(*again, formats::Dtype::kInt16, {});
  Require(back.ok() && *back == *array, "what was read is written and read again");
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus = RoutingSamples({".json"});
  corpus.push_back("[[[1,2],[3,4]],[[5,6],[7]]]");
  corpus.push_back("[[],[[]],[1],[1,2.5,[3],{}],\"\\u0000\",5000000000,-0,null,true]");
  corpus.push_back(std::string(100000, '[') + std::string(100000, ']'));
  return corpus;
}

}  // namespace waymark::fuzz
