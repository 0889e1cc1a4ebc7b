// Every format of routing, told or named, to rows and back (adapters/formats/formats.h,
// conventions.h): the first two bytes choose, the rest is the file.
#include "adapters/formats/formats.h"
#include "blockstore/rows.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/routing_samples.h"

namespace waymark::fuzz {
namespace {

constexpr std::size_t kMaxBytes = 1 << 20;

void ToRowsAndBack(const formats::RoutingArray& array, const formats::Conventions& conventions,
                   std::int32_t num_experts) {
  formats::Model model = {.num_experts = num_experts, .moe_layers = {}, .num_layers = array.layers};
  for (std::int32_t layer = 0; layer < array.layers; ++layer)
    model.moe_layers.push_back(layer);
  if (num_experts == 0) model.num_experts = formats::LeastExperts(array, conventions, model);
  const auto rows =
      formats::ToRows(array, conventions, model, array.first.value_or(0), {.max_bytes = kMaxBytes});
  if (!rows.ok()) return RequireReadable(rows.status());
  Require(CheckRows("rows", rows->rows).ok(), "rows are rows");
  const auto flat = formats::FromRows(rows->rows, conventions, model, array.dtype);
  if (!flat.ok()) {
    Require(conventions.sentinel == formats::Sentinel::kNone, "there is a place for missing rows");
    return;
  }
  Require(flat->array.rows == array.rows, "as many rows as before");
  if (rows->notes.empty() && conventions.rows == formats::RowCount::kTokensMinusOne) {
    Require(flat->array.ids == array.ids, "the same ids as before");
  }
}

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  if (input.size() < 2) return;
  formats::ReadRowsOptions options;
  options.limits.max_bytes = kMaxBytes;
  const int format = input[0] % (formats::kNumFormats + 1);
  if (format < formats::kNumFormats) options.format = static_cast<formats::Format>(format);
  options.num_layers = 3;
  options.top_k = 2;
  options.num_experts = 300;
  if (input[0] >= 128) options.dtype = static_cast<formats::Dtype>(input[1] % formats::kNumDtypes);
  const auto result = formats::ReadArray(input.subspan(2), options);
  if (!result.ok()) return RequireReadable(result.status(), 999);
  const formats::RoutingArray& array = result->array;
  Require(array.ids.size() == static_cast<std::size_t>(array.rows) * array.row_ids() *
                                  formats::DtypeBytes(array.dtype),
          "an array has its ids");
  const auto text = formats::WriteArray(result->format, array);
  if (text.ok() && array.rows > 0) {
    options.format = result->format;
    const auto again = formats::ReadArray(AsBytes(*text), options);
    const bool other_dtype = options.dtype.has_value() && *options.dtype != array.dtype;
    Require(again.ok() || other_dtype, "what was written is read");
    Require(!again.ok() || again->array.ids == array.ids, "and is the same");
  }
  ToRowsAndBack(array, formats::InfoOf(result->format).conventions, 0);
  const formats::Conventions chosen = {
      .rows = static_cast<formats::RowCount>(input[1] % 2),
      .layers = static_cast<formats::LayerAxis>(input[1] / 2 % 2),
      .sentinel = static_cast<formats::Sentinel>(input[1] / 4 % 6)};
  ToRowsAndBack(array, chosen, input[1] < 128 ? 300 : 16);
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (const std::string& sample : RoutingSamples({".npy", ".json", ".txt"})) {
    for (const char format :
         {char{formats::kNumFormats}, char{static_cast<char>(formats::Format::kSglang)},
          char{static_cast<char>(formats::Format::kLmdeploy)}}) {
      corpus.push_back(std::string(1, format) + '\x04' + sample);
    }
  }
  return corpus;
}

}  // namespace waymark::fuzz
