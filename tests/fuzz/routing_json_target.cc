// JSON and nested lists (adapters/formats/json_value.h, nested_lists.h).
#include "adapters/formats/json_value.h"
#include "adapters/formats/nested_lists.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/routing_samples.h"

namespace waymark::fuzz {
namespace {

void Walk(const formats::JsonValue& value) {
  if (const auto* grid = value.As<formats::JsonGrid>(); grid != nullptr) {
    std::size_t numbers = 1;
    for (const std::int64_t axis : grid->shape)
      numbers *= static_cast<std::size_t>(axis);
    Require(!grid->shape.empty() && numbers == grid->numbers.size(), "a grid is full");
  } else if (const auto* list = value.As<formats::JsonValue::List>(); list != nullptr) {
    for (const formats::JsonValue& item : *list)
      Walk(item);
  } else if (const auto* object = value.As<formats::JsonValue::Object>(); object != nullptr) {
    for (const auto& [key, member] : *object) {
      Require(value.Find(key) == &member, "a key leads to its member");
      Walk(member);
    }
  }
}

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  const auto value = formats::ParseJson(input, {.max_bytes = 1 << 20});
  if (!value.ok()) {
    Require(value.status().message().substr(0, 4) == "JSON", "a refusal says where it comes from");
    Require(value.status().message().size() < 300, "a refusal is a line that can be read");
    return;
  }
  Walk(*value);
  const auto array = formats::ReadLists(*value, formats::Dtype::kInt16, {.max_bytes = 1 << 20});
  if (!array.ok()) {
    Require(array.status().message().size() < 1000, "a refusal is a line that can be read");
    return;
  }
  std::string text;
  formats::AppendLists(*array, text);
  const auto again =
      formats::ParseJson({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, {});
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
