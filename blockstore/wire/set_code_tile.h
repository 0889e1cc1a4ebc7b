// The inner loops of SetCode, one set an instruction set. Internal to blockstore.
//
// A tile is up to 64 rows of one layer. Everything of a tile is transposed: an array of 32-bit
// words is [words][kTileRows], so that a vector holds the same word of neighbouring rows.
#ifndef WAYMARK_BLOCKSTORE_WIRE_SET_CODE_TILE_H_
#define WAYMARK_BLOCKSTORE_WIRE_SET_CODE_TILE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/wire/set_code.h"

namespace waymark::internal {

inline constexpr std::size_t kTileRows = 64;
inline constexpr std::size_t kMaxTopK = 64;
inline constexpr std::size_t kMaxCodeBits = 1024;
inline constexpr std::size_t kMaxCodeWords = kMaxCodeBits / 32;
inline constexpr std::size_t kMaxIdWords = kMaxTopK / 2;  // 16-bit ids
// Vectors rank by tables of so many heights, and ranks below 2^31.
inline constexpr std::size_t kMaxHeights = 32;

// A sorting network for `inputs` numbers: compare the two, and exchange if need be.
struct SortingNetwork {
  // Batcher's odd-even merge sort, which for 8 is as short as there is.
  constexpr explicit SortingNetwork(std::uint32_t inputs) {
    for (std::uint32_t p = 1; p < inputs; p *= 2) {
      for (std::uint32_t k = p; k >= 1; k /= 2) {
        for (std::uint32_t j = k % p; j + k < inputs; j += 2 * k) {
          for (std::uint32_t i = j; i < j + k && i + k < inputs; ++i) {
            if (i / (2 * p) != (i + k) / (2 * p)) continue;
            first[size] = static_cast<std::uint8_t>(i);
            second[size++] = static_cast<std::uint8_t>(i + k);
          }
        }
      }
    }
  }

  static constexpr std::size_t kMax = 543;  // of 64 inputs
  std::size_t size = 0;
  std::array<std::uint8_t, kMax> first{};
  std::array<std::uint8_t, kMax> second{};
};
static_assert(SortingNetwork(kMaxTopK).size == SortingNetwork::kMax);

// Parameters and what follows from them. The letters are those of docs/format-set-code.md.
struct SetCodePlan {
  SetCodeParams params;
  std::uint32_t num_experts = 0;
  std::uint32_t top_k = 0;
  std::uint32_t low_bits = 0;
  std::uint32_t id_bytes = 0;
  std::uint32_t ids_in_word = 0;  // 4 or 2
  std::uint32_t id_words = 0;     // words that the K ids of a cell take
  std::uint32_t points = 0;       // Y: the high parts are a set of K points in [0, Y)
  std::uint32_t high_at = 0;      // the bit where the high parts begin: K * l
  std::uint32_t bits = 0;
  std::uint32_t code_words = 0;
  // Ranked: binomials[k * points + y] = C(y, k + 1); sets = C(Y, K).
  std::uint64_t sets = 0;
  std::vector<std::uint64_t> binomials;

  // For vectors, where `vectors` says that they can do it. A height is y - k, in [0, Y - K].
  bool vectors = false;
  std::uint32_t levels = 0;  // ranked: 4 or 5, heights < 2^levels
  // heights[k][h] = C(h + k, k + 1); out of range 2^31 - 1, above every rank.
  alignas(64) std::array<std::array<std::int32_t, kMaxHeights>, kMaxTopK> heights{};
  // The same as a search tree: the children of node n are 2n and 2n + 1, the root is 1.
  alignas(64) std::array<std::array<std::int32_t, kMaxHeights>, kMaxTopK> nodes{};
  SortingNetwork network{0};  // for K
};

struct SetCodeBackend {
  const char* name;  // "scalar", "portable", "avx2", "avx512"
  // Codes of 64 cells. Returns a bit for each cell whose ids are not K distinct ones below E; what
  // its code is then is open.
  std::uint64_t (*encode)(const SetCodePlan& plan, const std::uint32_t* id_words,
                          std::uint32_t* code_words);
  // Ids of 64 codes. Returns a bit for each code that no set has; what its ids are then is open.
  std::uint64_t (*decode)(const SetCodePlan& plan, const std::uint32_t* code_words,
                          std::uint32_t* id_words);
};

// Those that this machine can run: scalar, which does all parameters, first, and the best last; all
// but the first are asked only where plan.vectors says so. Static storage.
[[nodiscard]] std::span<const SetCodeBackend> SetCodeBackends();

extern const SetCodeBackend kSetCodePortable;
#if defined(__x86_64__)
extern const SetCodeBackend kSetCodeAvx2;
extern const SetCodeBackend kSetCodeAvx512;
#endif

}  // namespace waymark::internal

#endif  // WAYMARK_BLOCKSTORE_WIRE_SET_CODE_TILE_H_
