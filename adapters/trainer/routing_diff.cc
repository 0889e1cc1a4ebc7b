#include "adapters/trainer/routing_diff.h"

#include <algorithm>

#include "absl/status/status.h"
#include "blockstore/invalid.h"

namespace waymark {
namespace {

constexpr std::int64_t kProgressRows = 4096;

absl::Status Differ(const char* what, std::int64_t a, std::int64_t b) {
  return Invalid("both must have the same number of ", what, "; they have ", a, " and ", b);
}

}  // namespace

void PairCounts::Add(const PairCounts& other) {
  pairs += other.pairs;
  same_set += other.same_set;
  same_order += other.same_order;
  ids += other.ids;
  shared_ids += other.shared_ids;
}

PairCounts SectionDiff::Total() const {
  PairCounts total;
  for (const PairCounts& layer : layers)
    total.Add(layer);
  return total;
}

bool RoutingDiff::RowDiffers(std::int64_t row) const {
  for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::uint8_t ids = differing_at(row, layer);
    if (ids != 0 && ids != kNotCompared) return true;
  }
  return false;
}

bool RoutingDiff::same() const {
  return only_a == 0 && only_b == 0 && missing_a == 0 && missing_b == 0 &&
         all.same_rows == all.rows;
}

absl::StatusOr<RoutingDiff> Compare(const Rows& a, const Rows& b, std::int64_t prompt_tokens,
                                    const std::function<void(std::int64_t)>& progress) {
  if (a.shape.num_layers != b.shape.num_layers) {
    return Differ("layers", a.shape.num_layers, b.shape.num_layers);
  }
  if (a.shape.top_k != b.shape.top_k) return Differ("ids per layer", a.shape.top_k, b.shape.top_k);
  if (!a.shape.layer_ids.empty() && !b.shape.layer_ids.empty() &&
      a.shape.layer_ids != b.shape.layer_ids) {
    return absl::InvalidArgumentError("both must have the same layers; their numbers differ");
  }
  RoutingDiff diff;
  diff.shape = a.shape;
  if (diff.shape.layer_ids.empty()) diff.shape.layer_ids = b.shape.layer_ids;
  diff.shape.num_experts = std::max(a.shape.num_experts, b.shape.num_experts);
  diff.begin = std::max(a.first, b.first);
  diff.end = std::max(diff.begin, std::min(a.last(), b.last()));
  if (diff.begin == diff.end) {
    return Invalid("both must have rows of the same positions; they have [", a.first, ", ",
                   a.last(), ") and [", b.first, ", ", b.last(), ")");
  }
  diff.only_a = a.size() - (diff.end - diff.begin);
  diff.only_b = b.size() - (diff.end - diff.begin);
  diff.prompt_end = std::clamp(prompt_tokens, diff.begin, diff.end);
  const std::size_t layers = static_cast<std::size_t>(diff.shape.num_layers);
  const std::size_t top_k = static_cast<std::size_t>(diff.shape.top_k);
  for (SectionDiff* part : {&diff.all, &diff.prompt, &diff.generated})
    part->layers.resize(layers);
  diff.differing.assign(static_cast<std::size_t>(diff.end - diff.begin) * layers,
                        RoutingDiff::kNotCompared);

  std::vector<std::uint64_t> in_a(static_cast<std::size_t>(diff.shape.num_experts), 0);
  std::uint64_t turn = 0;
  for (std::int64_t row = diff.begin; row < diff.end; ++row) {
    if (progress != nullptr && row % kProgressRows == 0) progress(row - diff.begin);
    const bool valid_a = a.infos[static_cast<std::size_t>(row - a.first)].valid();
    const bool valid_b = b.infos[static_cast<std::size_t>(row - b.first)].valid();
    diff.missing_a += !valid_a && valid_b ? 1 : 0;
    diff.missing_b += valid_a && !valid_b ? 1 : 0;
    diff.missing_both += !valid_a && !valid_b ? 1 : 0;
    if (!valid_a || !valid_b) continue;
    const std::uint8_t* row_a = a.row(row - a.first).data();
    const std::uint8_t* row_b = b.row(row - b.first).data();
    SectionDiff& part = row < diff.prompt_end ? diff.prompt : diff.generated;
    bool same = true;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      ++turn;
      bool in_order = true;
      for (std::size_t k = 0; k < top_k; ++k)
        in_a[static_cast<std::size_t>(a.shape.id_at(row_a, layer * top_k + k))] = turn;
      std::size_t shared = 0;
      for (std::size_t k = 0; k < top_k; ++k) {
        const std::int32_t id = b.shape.id_at(row_b, layer * top_k + k);
        shared += in_a[static_cast<std::size_t>(id)] == turn ? 1 : 0;
        in_order &= id == a.shape.id_at(row_a, layer * top_k + k);
      }
      const PairCounts counts = {.pairs = 1,
                                 .same_set = shared == top_k ? 1 : 0,
                                 .same_order = in_order ? 1 : 0,
                                 .ids = static_cast<std::int64_t>(top_k),
                                 .shared_ids = static_cast<std::int64_t>(shared)};
      diff.all.layers[layer].Add(counts);
      part.layers[layer].Add(counts);
      diff.differing[static_cast<std::size_t>(row - diff.begin) * layers + layer] =
          static_cast<std::uint8_t>(top_k - shared);
      same &= shared == top_k;
    }
    for (SectionDiff* of : {&diff.all, &part}) {
      ++of->rows;
      of->same_rows += same ? 1 : 0;
    }
  }
  return diff;
}

}  // namespace waymark
