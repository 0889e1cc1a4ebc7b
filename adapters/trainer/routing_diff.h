// Compare: compares two captures of the same tokens, row by row and layer by layer.
#ifndef WAYMARK_ADAPTERS_TRAINER_ROUTING_DIFF_H_
#define WAYMARK_ADAPTERS_TRAINER_ROUTING_DIFF_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/rows.h"

namespace waymark {

// Counts over (row, layer) pairs whose row is valid in both captures.
struct PairCounts {
  std::int64_t pairs = 0;
  std::int64_t same_set = 0;    // pairs with the same experts, in any order
  std::int64_t same_order = 0;  // pairs with the same experts in the same order
  std::int64_t ids = 0;         // ids of the pairs in one capture: K per pair
  std::int64_t shared_ids = 0;  // ids that are in both captures

  void Add(const PairCounts& other);
  [[nodiscard]] std::int64_t differing() const { return pairs - same_set; }
  // Shares, in [0, 1]; 1 if there are no pairs.
  [[nodiscard]] double same_set_share() const { return Share(same_set, pairs); }
  [[nodiscard]] double same_order_share() const { return Share(same_order, pairs); }
  [[nodiscard]] double shared_id_share() const { return Share(shared_ids, ids); }

 private:
  static double Share(std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 1 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

// Counts over a section of the sequence: all of it, its prompt, or its generated tokens.
struct SectionDiff {
  std::vector<PairCounts> layers;  // one per layer
  std::int64_t rows = 0;           // rows that are valid in both captures
  std::int64_t same_rows = 0;      // rows with the same experts in every layer
  // The counts of all layers, added up.
  [[nodiscard]] PairCounts Total() const;
};

// The result of Compare. Rows are numbered by their position in the sequence.
struct RoutingDiff {
  RoutingShape shape;      // the layers and K of both, and the greater E
  std::int64_t begin = 0;  // the range that both captures have is [begin, end)
  std::int64_t end = 0;
  std::int64_t only_a = 0;  // number of rows in the range of a but not of b
  std::int64_t only_b = 0;
  std::int64_t missing_a = 0;  // rows of [begin, end) that are missing in a and valid in b
  std::int64_t missing_b = 0;
  std::int64_t missing_both = 0;
  std::int64_t prompt_end = 0;  // rows before it belong to the prompt; begin: not known
  SectionDiff all;
  SectionDiff prompt;
  SectionDiff generated;
  // [end - begin][layers]: how many of the K ids of a are not in b; kNotCompared if the row is
  // missing in a or b.
  std::vector<std::uint8_t> differing;
  static constexpr std::uint8_t kNotCompared = 255;

  [[nodiscard]] std::uint8_t differing_at(std::int64_t row, std::int32_t layer) const {
    return differing[static_cast<std::size_t>(row - begin) *
                         static_cast<std::size_t>(shape.num_layers) +
                     static_cast<std::size_t>(layer)];
  }
  // Whether row `row` differs in some layer. REQUIRES: begin <= row < end.
  [[nodiscard]] bool RowDiffers(std::int64_t row) const;
  // Whether both captures have the same rows, valid in both or in neither, with the same experts.
  [[nodiscard]] bool same() const;
};

// Compares `a` and `b`. `prompt_tokens`: how many tokens the prompt has; 0: not known. `progress`,
// if not empty, is called every 4096 rows with the number of rows done. InvalidArgument unless both
// have the same layers and K and their ranges overlap.
[[nodiscard]] absl::StatusOr<RoutingDiff> Compare(
    const Rows& a, const Rows& b, std::int64_t prompt_tokens,
    const std::function<void(std::int64_t)>& progress = nullptr);

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_TRAINER_ROUTING_DIFF_H_
