// Codes from a wire: the first bytes of the input choose parameters and a rectangle, the rest are
// codes. Every implementation must decode them alike, and what is not corrupt must encode to the
// same bits.
#include <algorithm>
#include <vector>

#include "blockstore/wire/set_code.h"
#include "blockstore/wire/set_code_tile.h"
#include "tests/fuzz/fuzz_target.h"

namespace waymark::fuzz {

void RunOne(std::span<const std::uint8_t> input) {
  constexpr std::size_t kHead = 8;
  if (input.size() < kHead) return;
  const auto word = [&](std::size_t at) {
    return static_cast<std::int32_t>(input[at] | input[at + 1] << 8);
  };
  const SetCodeParams params{word(0), input[2], input[3] % 20, static_cast<HighBits>(input[4] % 3)};
  if (!params.Validate().ok()) return;

  const auto layers = static_cast<std::int32_t>(1 + input[5] % 3);
  const auto bits = SetCode(params).LayerBytes(8);
  if (bits == 0) return;
  const std::span<const std::uint8_t> bytes = input.subspan(kHead);
  const std::size_t layer_bytes = bytes.size() / static_cast<std::size_t>(layers);
  const auto rows = static_cast<std::int64_t>(layer_bytes * 8 / bits);
  const std::size_t chunk_bytes =
      SetCode(params).LayerBytes(rows) * static_cast<std::size_t>(layers);
  // A copy of its own, so that reading on is seen.
  const std::vector<std::uint8_t> codes(bytes.begin(),
                                        bytes.begin() + static_cast<std::ptrdiff_t>(chunk_bytes));
  std::vector<RowInfo> infos(static_cast<std::size_t>(rows));
  for (std::size_t row = 0; row < infos.size(); ++row) {
    if ((row * 7 + input[6]) % 5 != 0) infos[row].reason = Reason::kNone;
  }
  const RowsAndLayers part{rows == 0 ? 0 : input[7] % rows, rows, layers / 2, layers};
  const auto part_rows = static_cast<std::size_t>(part.row_end - part.row_begin);
  const auto part_layers = part.layer_end - part.layer_begin;
  const std::size_t cell =
      static_cast<std::size_t>(params.top_k) * (params.num_experts <= 256 ? 1 : 2);

  std::vector<std::uint8_t> first_ids;
  std::vector<std::uint8_t> first_corrupt;
  for (const internal::SetCodeBackend& backend : internal::SetCodeBackends()) {
    const SetCode code(params, backend);
    std::vector<std::uint8_t> ids(part_rows * static_cast<std::size_t>(part_layers) * cell, 0xcd);
    std::vector<std::uint8_t> corrupt(part_rows, 0xcd);
    const auto count = code.Decode(codes, infos, part, ids, corrupt);
    Require(count == std::count(corrupt.begin(), corrupt.end(), 1), "corrupt rows are counted");
    if (first_corrupt.empty()) {
      first_ids = ids;
      first_corrupt = corrupt;
    }
    Require(ids == first_ids && corrupt == first_corrupt, "all implementations agree");

    std::vector<RowInfo> sound(infos.begin() + part.row_begin, infos.end());
    for (std::size_t row = 0; row < part_rows; ++row) {
      if (corrupt[row] != 0) sound[row] = RowInfo{};
    }
    const std::size_t again_bytes = code.LayerBytes(static_cast<std::int64_t>(part_rows));
    std::vector<std::uint8_t> again(again_bytes * static_cast<std::size_t>(part_layers));
    Require(code.Encode(sound, part_layers, ids, again).ok(), "decoded rows encode");
    const auto bit_at = [](const std::vector<std::uint8_t>& of, std::size_t bit) {
      return of[bit / 8] >> bit % 8 & 1;
    };
    for (std::size_t layer = 0; layer < static_cast<std::size_t>(part_layers); ++layer) {
      const std::size_t from =
          (layer + static_cast<std::size_t>(part.layer_begin)) * code.LayerBytes(rows) * 8 +
          static_cast<std::size_t>(part.row_begin) * bits;
      for (std::size_t bit = 0; bit < part_rows * bits; ++bit) {
        if (!sound[bit / bits].valid()) continue;
        Require(bit_at(again, layer * again_bytes * 8 + bit) == bit_at(codes, from + bit),
                "a code that is not corrupt is the code of its set");
      }
    }
  }
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  const std::vector<std::vector<int>> heads = {
      {128, 0, 8, 3, 0}, {0, 1, 8, 4, 0},  {128, 1, 8, 4, 0}, {0, 2, 10, 4, 0},
      {0, 2, 22, 4, 1},  {0, 1, 8, 0, 0},  {60, 0, 6, 2, 1},  {255, 255, 64, 10, 1},
      {8, 0, 2, 0, 0},   {232, 3, 5, 0, 0}};
  for (const std::vector<int>& head : heads) {
    std::string input;
    for (const int byte : head)
      input.push_back(static_cast<char>(byte));
    input += std::string("\x01\x02\x03", 3);
    corpus.push_back(input + std::string(700, '\0'));
    for (int i = 0; i < 700; ++i)
      input.push_back(static_cast<char>(i * i % 251));
    corpus.push_back(input);
  }
  return corpus;
}

}  // namespace waymark::fuzz
