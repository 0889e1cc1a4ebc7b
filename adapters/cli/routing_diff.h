// RoutingDiff: where two captures of the same tokens chose the same experts, and where not.
#ifndef WAYMARK_ADAPTERS_CLI_ROUTING_DIFF_H_
#define WAYMARK_ADAPTERS_CLI_ROUTING_DIFF_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/rows.h"

namespace waymark::cli {

// Of (row, layer) pairs that are valid in both.
struct PairCounts {
  std::int64_t pairs = 0;
  std::int64_t same_set = 0;    // the same experts, in any order
  std::int64_t same_order = 0;  // and in the same order
  std::int64_t ids = 0;         // K a pair
  std::int64_t shared_ids = 0;  // in both

  void Add(const PairCounts& other);
  [[nodiscard]] std::int64_t differing() const { return pairs - same_set; }
  // In [0, 1]; 1 where there is nothing to compare.
  [[nodiscard]] double same_set_share() const { return Share(same_set, pairs); }
  [[nodiscard]] double same_order_share() const { return Share(same_order, pairs); }
  [[nodiscard]] double shared_id_share() const { return Share(shared_ids, ids); }

 private:
  static double Share(std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 1 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

// One part of the sequence: all of it, the prompt, what was generated.
struct PartDiff {
  std::vector<PairCounts> layers;  // one a layer
  std::int64_t rows = 0;           // valid in both
  std::int64_t same_rows = 0;      // of them: the same experts in every layer
  [[nodiscard]] PairCounts Total() const;
};

// The comparison of two. Rows are named by their position.
struct RoutingDiff {
  RoutingShape shape;      // the layers, K and the greater E of the two
  std::int64_t begin = 0;  // rows that both ranges have: [begin, end)
  std::int64_t end = 0;
  std::int64_t only_a = 0;  // rows of a's range outside b's
  std::int64_t only_b = 0;
  std::int64_t missing_a = 0;  // in [begin, end): missing in a, valid in b
  std::int64_t missing_b = 0;
  std::int64_t missing_both = 0;
  std::int64_t prompt_end = 0;  // rows before it are the prompt's; begin: nobody said
  PartDiff all;
  PartDiff prompt;
  PartDiff generated;
  // [end - begin][layers]: how many of the K ids of each are not shared; kNotCompared where the
  // row is missing in either.
  std::vector<std::uint8_t> differing;
  static constexpr std::uint8_t kNotCompared = 255;

  [[nodiscard]] std::uint8_t differing_at(std::int64_t row, std::int32_t layer) const {
    return differing[static_cast<std::size_t>(row - begin) *
                         static_cast<std::size_t>(shape.num_layers) +
                     static_cast<std::size_t>(layer)];
  }
  // Whether row `row` differs in some layer. REQUIRES: begin <= row < end.
  [[nodiscard]] bool RowDiffers(std::int64_t row) const;
  // The same rows, valid in both or neither, and the same experts in each.
  [[nodiscard]] bool same() const;
};

// `prompt_tokens`: 0: not known. `progress` is called now and then with the rows that are done.
// InvalidArgument unless both have the same layers and K, and some row in common.
[[nodiscard]] absl::StatusOr<RoutingDiff> Compare(
    const Rows& a, const Rows& b, std::int64_t prompt_tokens,
    const std::function<void(std::int64_t)>& progress = nullptr);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_ROUTING_DIFF_H_
