#include "adapters/trainer/distinct_ids.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace waymark {
namespace {

constexpr std::uint64_t kLow = 0x0101010101010101u;
constexpr std::uint64_t kHigh = 0x8080808080808080u;

// Whether one of kTopK <= 8 bytes at `ids` is not below `num_experts` <= 256, or two are equal.
template <int kTopK>
bool BadBytes(const std::uint8_t* ids, std::uint32_t num_experts) {
  constexpr std::uint64_t kAll =
      kTopK == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * (kTopK % 8))) - 1;
  std::uint64_t word = 0;
  std::memcpy(&word, ids, kTopK);
  std::uint64_t bad = 0;
  for (int distance = 1; distance < kTopK; ++distance) {
    // Bytes i and i + distance differ by 0: the lowest byte that is 0 gets its high bit, and none
    // below it does.
    const std::uint64_t difference = word ^ (word >> (8 * distance));
    bad |= (difference - kLow) & ~difference & (kAll >> (8 * distance));
  }
  // The high bit of a byte: whether its low 7 bits are at least those of num_experts.
  const std::uint64_t sums =
      (word & ~kHigh) + kLow * ((num_experts <= 128 ? 128 : 256) - num_experts);
  if (num_experts <= 128) {
    bad |= (word | sums) & kAll;
  } else {
    bad |= word & sums & kAll;
  }
  return (bad & kHigh) != 0;
}

template <int kTopK>
std::int32_t FirstBadBytes(const std::uint8_t* ids, std::int32_t layers,
                           std::uint32_t num_experts) {
  for (std::int32_t layer = 0; layer < layers; ++layer, ids += kTopK) {
    if (BadBytes<kTopK>(ids, num_experts)) return layer;
  }
  return -1;
}

// The same for layers of 8 ids of two bytes.
using Shorts __attribute__((vector_size(16))) = std::uint16_t;
std::int32_t FirstBadShorts(const std::uint8_t* ids, std::int32_t layers,
                            std::uint32_t num_experts) {
  for (std::int32_t layer = 0; layer < layers; ++layer, ids += sizeof(Shorts)) {
    Shorts word;
    std::memcpy(&word, ids, sizeof(word));
    // Every pair is 1, 2, 3 or 4 apart on a ring of 8.
    auto bad = word == __builtin_shufflevector(word, word, 1, 2, 3, 4, 5, 6, 7, 0);
    bad |= word == __builtin_shufflevector(word, word, 2, 3, 4, 5, 6, 7, 0, 1);
    bad |= word == __builtin_shufflevector(word, word, 3, 4, 5, 6, 7, 0, 1, 2);
    bad |= word == __builtin_shufflevector(word, word, 4, 5, 6, 7, 0, 1, 2, 3);
    bad |= word >= static_cast<std::uint16_t>(num_experts);
    std::uint64_t any[2];
    std::memcpy(any, &bad, sizeof(any));
    if ((any[0] | any[1]) != 0) return layer;
  }
  return -1;
}

}  // namespace

DistinctIds::DistinctIds(std::int32_t top_k, std::int32_t num_experts)
    : top_k_(top_k), num_experts_(num_experts), seen_(static_cast<std::size_t>(num_experts)) {}

template <class Id>
std::int32_t DistinctIds::FirstBadOf(const std::uint8_t* ids, std::int32_t layers) {
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    if (++turn_ == 0) {  // wrapped
      std::fill(seen_.begin(), seen_.end(), 0);
      turn_ = 1;
    }
    for (std::int32_t k = 0; k < top_k_; ++k, ids += sizeof(Id)) {
      Id id;
      std::memcpy(&id, ids, sizeof(id));
      if (id >= num_experts_ || seen_[id] == turn_) return layer;
      seen_[id] = turn_;
    }
  }
  return -1;
}

std::int32_t DistinctIds::FirstBad(const std::uint8_t* ids, std::int32_t layers) {
  const auto experts = static_cast<std::uint32_t>(num_experts_);
  if (experts > 256) {
    return top_k_ == 8 ? FirstBadShorts(ids, layers, experts)
                       : FirstBadOf<std::uint16_t>(ids, layers);
  }
  switch (top_k_) {
    case 1:
      return FirstBadBytes<1>(ids, layers, experts);
    case 2:
      return FirstBadBytes<2>(ids, layers, experts);
    case 4:
      return FirstBadBytes<4>(ids, layers, experts);
    case 6:
      return FirstBadBytes<6>(ids, layers, experts);
    case 8:
      return FirstBadBytes<8>(ids, layers, experts);
    default:
      return FirstBadOf<std::uint8_t>(ids, layers);
  }
}

}  // namespace waymark
