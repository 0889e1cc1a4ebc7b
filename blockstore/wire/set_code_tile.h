// What the files of SetCode share: the tables that follow from its parameters (set_code_plan.cc),
// and the table of functions of each implementation (set_code.cc, set_code_avx2.cc).
// Internal to blockstore.
//
// A cell is one row of one layer: K ids, or their code. A tile is up to 64 cells. Everything of a
// tile is transposed: an array of 32-bit words is [words][kTileRows], so that a vector holds the
// same word of neighbouring cells.
#ifndef WAYMARK_BLOCKSTORE_WIRE_SET_CODE_TILE_H_
#define WAYMARK_BLOCKSTORE_WIRE_SET_CODE_TILE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "blockstore/wire/set_code.h"

namespace waymark::internal {

inline constexpr std::size_t kTileRows = 64;
inline constexpr std::size_t kMaxTopK = 64;
inline constexpr std::size_t kMaxCodeBits = 1024;
inline constexpr std::size_t kMaxCodeWords = kMaxCodeBits / 32;
inline constexpr std::size_t kMaxIdWords = kMaxTopK / 2;  // 16-bit ids
// Vectors rank with tables of at most this many heights, and only ranks below 2^31.
inline constexpr std::size_t kMaxHeights = 32;

// The compare-and-exchange steps, in order, that sort `inputs` numbers.
struct SortingNetwork {
  // Batcher's odd-even merge sort. For 8 inputs no shorter network exists.
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

  static constexpr std::size_t kMax = 543;  // steps for 64 inputs
  std::size_t size = 0;                     // steps of this network
  // Step i puts the smaller of inputs first[i] and second[i] into first[i], the greater into
  // second[i].
  std::array<std::uint8_t, kMax> first{};
  std::array<std::uint8_t, kMax> second{};
};
static_assert(SortingNetwork(kMaxTopK).size == SortingNetwork::kMax);

// The parameters and the numbers that follow from them. docs/internals/format-set-code.md
// explains the letters E, K, l and Y. Immutable after MakeSetCodePlan.
struct SetCodePlan {
  SetCodeParams params;
  std::uint32_t num_experts = 0;      // E
  std::uint32_t top_k = 0;            // K
  std::uint32_t low_bits = 0;         // l
  std::uint32_t id_bytes = 0;         // 1 if E <= 256, else 2
  std::uint32_t ids_in_word = 0;      // 4 or 2
  std::uint32_t id_words = 0;         // words that the K ids of a cell take
  std::uint32_t points = 0;           // Y: the high bits are a set of K points in [0, Y)
  std::uint32_t high_bits_begin = 0;  // the bit where the high bits begin: K * l
  std::uint32_t bits = 0;             // bits of a code
  std::uint32_t code_words = 0;       // words that a code takes
  // Ranked high bits only: binomials[k * points + y] = C(y, k + 1), and sets = C(Y, K).
  std::uint64_t sets = 0;
  std::vector<std::uint64_t> binomials;

  // Whether vectors can do these parameters. What follows is for them alone. The
  // height of the k-th point y is y - k, which lies in [0, Y - K].
  bool vectors = false;
  std::uint32_t levels = 0;  // ranked: 4 or 5, and every height is below 2^levels; unary: 0
  // heights[k][h] = C(h + k, k + 1). Entries beyond Y - K are 2^31 - 1, which is above every rank.
  alignas(64) std::array<std::array<std::int32_t, kMaxHeights>, kMaxTopK> heights{};
  // The same numbers, less 1, as a search tree: the root is node 1; the search for a rank goes on
  // from node n to node 2n + 1 if the rank is greater than nodes[k][n], else to 2n.
  alignas(64) std::array<std::array<std::int32_t, kMaxHeights>, kMaxTopK> nodes{};
  SortingNetwork network{0};  // for K inputs
};

// The plan of parameters that Validate accepts. Throws std::bad_alloc.
[[nodiscard]] std::shared_ptr<const SetCodePlan> MakeSetCodePlan(const SetCodeParams& params);

// One implementation of the code. Pure functions: any thread.
struct SetCodeBackend {
  const char* name;  // "scalar", "avx2"
  // Writes the codes, [plan.code_words][64], of the 64 cells `id_words`, [plan.id_words][64].
  // Returns a mask with a bit for each cell whose ids are not K distinct ids below E; the code of
  // such a cell is unspecified.
  std::uint64_t (*encode)(const SetCodePlan& plan, const std::uint32_t* id_words,
                          std::uint32_t* code_words);
  // Writes the ids, ascending, of 64 codes. Returns a mask with a bit for each code that is not the
  // code of any set; the ids of such a cell are unspecified.
  std::uint64_t (*decode)(const SetCodePlan& plan, const std::uint32_t* code_words,
                          std::uint32_t* id_words);
};

// The implementations that this machine can run, the slowest first. The first is the scalar one,
// which does all parameters; the other is called only if plan.vectors. Static storage; any thread.
[[nodiscard]] std::span<const SetCodeBackend> SetCodeBackends();

#if defined(__x86_64__)
extern const SetCodeBackend kSetCodeAvx2;
#endif

}  // namespace waymark::internal

#endif  // WAYMARK_BLOCKSTORE_WIRE_SET_CODE_TILE_H_
