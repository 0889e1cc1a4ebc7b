// SetCode with AVX2, one cell per lane of a vector.
// Compiled for the baseline processor: only the functions marked WAYMARK_SIMD use AVX2.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "blockstore/wire/set_code_tile.h"

#define WAYMARK_SIMD __attribute__((target("avx2,bmi,popcnt")))
#define WAYMARK_SIMD_INLINE __attribute__((target("avx2,bmi,popcnt"), always_inline)) inline

namespace waymark::internal {
namespace {

inline constexpr std::size_t kLanes = 8;
using V = __m256i;  // 8 numbers, or all ones or all zeros in each lane

template <class Word>
WAYMARK_SIMD_INLINE V Load(const Word* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
WAYMARK_SIMD_INLINE void Store(std::uint32_t* at, V value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), value);
}
WAYMARK_SIMD_INLINE V Set(std::int32_t value) {
  return _mm256_set1_epi32(value);
}
WAYMARK_SIMD_INLINE V And(V a, V b) {
  return _mm256_and_si256(a, b);
}
WAYMARK_SIMD_INLINE V Or(V a, V b) {
  return _mm256_or_si256(a, b);
}
WAYMARK_SIMD_INLINE V Add(V a, V b) {
  return _mm256_add_epi32(a, b);
}
WAYMARK_SIMD_INLINE V Sub(V a, V b) {
  return _mm256_sub_epi32(a, b);
}
WAYMARK_SIMD_INLINE V Min(V a, V b) {
  return _mm256_min_epi32(a, b);
}
WAYMARK_SIMD_INLINE V Max(V a, V b) {
  return _mm256_max_epi32(a, b);
}
WAYMARK_SIMD_INLINE V ShiftLeft(V a, std::uint32_t count) {
  return _mm256_sll_epi32(a, _mm_cvtsi32_si128(static_cast<int>(count)));
}
WAYMARK_SIMD_INLINE V ShiftRight(V a, std::uint32_t count) {
  return _mm256_srl_epi32(a, _mm_cvtsi32_si128(static_cast<int>(count)));
}
WAYMARK_SIMD_INLINE V OneAt(V n) {
  return _mm256_sllv_epi32(Set(1), n);
}
WAYMARK_SIMD_INLINE V Less(V a, V b) {
  return _mm256_cmpgt_epi32(b, a);
}
WAYMARK_SIMD_INLINE std::uint32_t Bits(V mask) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
}
// In each lane b if bit `bit` of i is set, else a. The blend tests the sign bit.
WAYMARK_SIMD_INLINE V Choose(V a, V b, V i, int bit) {
  return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b),
                                              _mm256_castsi256_ps(_mm256_slli_epi32(i, 31 - bit))));
}
template <std::uint32_t kLevels>
WAYMARK_SIMD_INLINE V Lookup(const std::int32_t* table, V i) {
  const V low = Choose(_mm256_permutevar8x32_epi32(Load(table), i),
                       _mm256_permutevar8x32_epi32(Load(table + 8), i), i, 3);
  if constexpr (kLevels == 4) return low;
  const V high = Choose(_mm256_permutevar8x32_epi32(Load(table + 16), i),
                        _mm256_permutevar8x32_epi32(Load(table + 24), i), i, 3);
  return Choose(low, high, i, 4);
}
template <std::uint32_t kLevel>
WAYMARK_SIMD_INLINE V Child(const std::int32_t* tree, V node, V rank) {
  V value;
  if constexpr (kLevel == 0) {
    value = Set(tree[1]);
  } else if constexpr (kLevel < 3) {
    value = _mm256_permutevar8x32_epi32(Load(tree), node);
  } else if constexpr (kLevel == 3) {
    value = _mm256_permutevar8x32_epi32(Load(tree + 8), node);
  } else {
    value = Choose(_mm256_permutevar8x32_epi32(Load(tree + 16), node),
                   _mm256_permutevar8x32_epi32(Load(tree + 24), node), node, 3);
  }
  // The comparison is -1 where it holds.
  return Sub(Add(node, node), _mm256_cmpgt_epi32(rank, value));
}

inline constexpr std::uint32_t kAnyBits = 32;  // more than low bits can be

// Arrays of vectors stay in registers only if every index is known at compile time.
#define WAYMARK_UNROLL _Pragma("GCC unroll 32")

// Appends numbers of up to 32 bits to the words of a code.
class CodeWriter {
 public:
  WAYMARK_SIMD_INLINE explicit CodeWriter(std::uint32_t* at) : at_(at), pending_(Set(0)) {}
  WAYMARK_SIMD_INLINE void Put(V value, std::uint32_t width) {
    pending_ = Or(pending_, ShiftLeft(value, fill_));
    fill_ += width;
    if (fill_ < 32) return;
    fill_ -= 32;
    Flush();
    pending_ = ShiftRight(value, width - fill_);
  }
  WAYMARK_SIMD_INLINE void Finish() {
    if (fill_ != 0) Flush();
  }

 private:
  WAYMARK_SIMD_INLINE void Flush() {
    Store(at_, pending_);
    at_ += kTileRows;
  }

  std::uint32_t* at_;
  V pending_;
  std::uint32_t fill_ = 0;
};

// The `width` bits of a code from bit `at` on. REQUIRES: 1 <= width <= 32.
WAYMARK_SIMD_INLINE V Get(const std::uint32_t* code_words, std::uint32_t at, std::uint32_t width) {
  const std::uint32_t* const word = code_words + std::size_t{at / 32} * kTileRows;
  V value = ShiftRight(Load(word), at % 32);
  if (at % 32 + width > 32) {
    value = Or(value, ShiftLeft(Load(word + kTileRows), 32 - at % 32));
  }
  if (width == 32) return value;
  return And(value, Set(static_cast<std::int32_t>((std::uint32_t{1} << width) - 1)));
}

WAYMARK_SIMD_INLINE void Exchange(V& a, V& b) {
  const V low = Min(a, b);
  b = Max(a, b);
  a = low;
}

template <std::uint32_t kTopK, std::size_t... kPairs>
WAYMARK_SIMD_INLINE void SortKnown(V* ids, std::index_sequence<kPairs...>) {
  constexpr SortingNetwork kNetwork(kTopK);
  (Exchange(ids[kNetwork.first[kPairs]], ids[kNetwork.second[kPairs]]), ...);
}

template <std::uint32_t kTopK>
WAYMARK_SIMD_INLINE void Sort(const SetCodePlan& plan, V* ids) {
  if constexpr (kTopK != 0) {
    SortKnown<kTopK>(ids, std::make_index_sequence<SortingNetwork(kTopK).size>());
  } else {
    const SortingNetwork& network = plan.network;
    for (std::size_t i = 0; i < network.size; ++i)
      Exchange(ids[network.first[i]], ids[network.second[i]]);
  }
}

// Encodes kLanes cells. kTopK 0: known at run time. kLevels 0: unary high bits. kLowBits kAnyBits:
// known at run time, as are the bytes of an id, which else is one: shifts by constants are faster.
template <std::uint32_t kTopK, std::uint32_t kLevels, std::uint32_t kLowBits>
WAYMARK_SIMD_INLINE std::uint32_t EncodeLanes(const SetCodePlan& plan,
                                              const std::uint32_t* id_words,
                                              std::uint32_t* code_words) {
  const std::uint32_t top_k = kTopK != 0 ? kTopK : plan.top_k;
  if (top_k == 0) __builtin_unreachable();
  V ids[kTopK != 0 ? kTopK : kMaxTopK];
  if (kLowBits != kAnyBits || plan.id_bytes == 1) {
    WAYMARK_UNROLL
    for (std::uint32_t k = 0; k < top_k; ++k) {
      const V word = Load(id_words + std::size_t{k / 4} * kTileRows);
      ids[k] = And(ShiftRight(word, k % 4 * 8), Set(0xff));
    }
  } else {
    WAYMARK_UNROLL
    for (std::uint32_t k = 0; k < top_k; ++k) {
      const V word = Load(id_words + std::size_t{k / 2} * kTileRows);
      ids[k] = And(ShiftRight(word, k % 2 * 16), Set(0xffff));
    }
  }
  Sort<kTopK>(plan, ids);

  CodeWriter code(code_words);
  V good = Less(ids[top_k - 1], Set(static_cast<std::int32_t>(plan.num_experts)));
  WAYMARK_UNROLL
  for (std::uint32_t k = 1; k < top_k; ++k)
    good = And(good, Less(ids[k - 1], ids[k]));
  const std::uint32_t low_bits = kLowBits != kAnyBits ? kLowBits : plan.low_bits;
  if (low_bits != 0) {
    const V low_mask = Set((1 << low_bits) - 1);
    WAYMARK_UNROLL
    for (std::uint32_t k = 0; k < top_k; ++k)
      code.Put(And(ids[k], low_mask), low_bits);
  }
  // Without low bits point k is id k; with them it is the high part of id k, plus k.
  const std::uint32_t slope = low_bits != 0 ? 1 : 0;
  if constexpr (kLevels != 0) {
    V rank = Set(0);
    WAYMARK_UNROLL
    for (std::uint32_t k = 0; k < top_k; ++k) {
      const V height =
          Sub(ShiftRight(ids[k], low_bits), Set(static_cast<std::int32_t>(k - k * slope)));
      rank = Add(rank, Lookup<kLevels>(plan.heights[k].data(), height));
    }
    if (plan.bits != plan.high_bits_begin) code.Put(rank, plan.bits - plan.high_bits_begin);
  } else {
    V first = Set(0);
    V second = Set(0);
    WAYMARK_UNROLL
    for (std::uint32_t k = 0; k < top_k; ++k) {
      const V point = Add(ShiftRight(ids[k], low_bits), Set(static_cast<std::int32_t>(k * slope)));
      first = Or(first, OneAt(point));
      second = Or(second, OneAt(Sub(point, Set(32))));
    }
    code.Put(first, plan.points < 32 ? plan.points : 32);
    if (plan.points > 32) code.Put(second, plan.points - 32);
  }
  code.Finish();
  return Bits(good);
}

template <std::uint32_t kTopK, std::uint32_t kLevels, std::uint32_t kLowBits = kAnyBits>
WAYMARK_SIMD std::uint64_t EncodeTile(const SetCodePlan& plan, const std::uint32_t* id_words,
                                      std::uint32_t* code_words) {
  std::uint64_t good = 0;
  for (std::size_t row = 0; row < kTileRows; row += kLanes) {
    good |=
        std::uint64_t{EncodeLanes<kTopK, kLevels, kLowBits>(plan, id_words + row, code_words + row)}
        << row;
  }
  return ~good;
}

// Computes heights[k][row] from the ranks of kTileRows codes. Returns a bit for each rank that is
// valid. Searches several vectors at a time, because each step of a search depends on the last.
template <std::uint32_t kTopK, std::uint32_t kLevels>
WAYMARK_SIMD_INLINE std::uint64_t Unrank(const SetCodePlan& plan, const std::uint32_t* code_words,
                                         std::uint32_t* heights) {
  constexpr std::size_t kVectors = 4;
  const std::uint32_t top_k = kTopK != 0 ? kTopK : plan.top_k;
  const std::uint32_t width = plan.bits - plan.high_bits_begin;
  const V sets = Set(static_cast<std::int32_t>(plan.sets));
  std::uint64_t good = 0;
  for (std::size_t row = 0; row < kTileRows; row += kVectors * kLanes) {
    V rank[kVectors];
    WAYMARK_UNROLL
    for (std::size_t i = 0; i < kVectors; ++i) {
      const std::size_t at = row + i * kLanes;
      rank[i] = width != 0 ? Get(code_words + at, plan.high_bits_begin, width) : Set(0);
      good |= std::uint64_t{Bits(Less(rank[i], sets))} << at;
    }
    for (std::uint32_t k = top_k; k-- > 0;) {
      const std::int32_t* const tree = plan.nodes[k].data();
      V node[kVectors];
      WAYMARK_UNROLL
      for (std::size_t i = 0; i < kVectors; ++i) {
        node[i] = Child<0>(tree, Set(1), rank[i]);
        node[i] = Child<1>(tree, node[i], rank[i]);
        node[i] = Child<2>(tree, node[i], rank[i]);
        node[i] = Child<3>(tree, node[i], rank[i]);
        if constexpr (kLevels == 5) node[i] = Child<4>(tree, node[i], rank[i]);
        rank[i] = Sub(rank[i], Lookup<kLevels>(plan.heights[k].data(), node[i]));
        Store(heights + std::size_t{k} * kTileRows + row + i * kLanes,
              Sub(node[i], Set(1 << kLevels)));
      }
    }
  }
  return good;
}

// The same for bitmaps (unary high bits).
WAYMARK_SIMD_INLINE std::uint64_t Unmap(const SetCodePlan& plan, const std::uint32_t* code_words,
                                        std::uint32_t* heights) {
  const std::uint32_t top_k = plan.top_k;
  const std::uint32_t* const word = code_words + std::size_t{plan.high_bits_begin / 32} * kTileRows;
  const std::uint32_t bit = plan.high_bits_begin % 32;
  const std::uint32_t words = (bit + plan.points + 31) / 32;
  const std::uint64_t mask = ~std::uint64_t{0} >> (64 - plan.points);
  std::uint64_t good = 0;
  for (std::size_t row = 0; row < kTileRows; ++row) {
    std::uint64_t bits = std::uint64_t{word[row]} >> bit;
    if (words > 1) bits |= std::uint64_t{word[row + kTileRows]} << (32 - bit);
    if (words > 2) bits |= std::uint64_t{word[row + 2 * kTileRows]} << (64 - bit);
    bits &= mask;
    if (static_cast<std::uint32_t>(__builtin_popcountll(bits)) != top_k) {
      bits = ~std::uint64_t{0};
    } else {
      good |= std::uint64_t{1} << row;
    }
    for (std::uint32_t k = 0; k < top_k; ++k, bits &= bits - 1) {
      heights[std::size_t{k} * kTileRows + row] =
          static_cast<std::uint32_t>(__builtin_ctzll(bits)) - k;
    }
  }
  return good;
}

template <std::uint32_t kTopK, std::uint32_t kLevels, std::uint32_t kLowBits = kAnyBits>
WAYMARK_SIMD std::uint64_t DecodeTile(const SetCodePlan& plan, const std::uint32_t* code_words,
                                      std::uint32_t* id_words) {
  const std::uint32_t top_k = kTopK != 0 ? kTopK : plan.top_k;
  alignas(64) std::uint32_t heights[(kTopK != 0 ? kTopK : kMaxTopK) * kTileRows];
  std::uint64_t good = 0;
  if constexpr (kLevels != 0) {
    good = Unrank<kTopK, kLevels>(plan, code_words, heights);
  } else {
    good = Unmap(plan, code_words, heights);
  }
  const std::uint32_t low_bits = kLowBits != kAnyBits ? kLowBits : plan.low_bits;
  const std::uint32_t slope = low_bits != 0 ? 0 : 1;
  const std::uint32_t id_bits = kLowBits != kAnyBits ? 8 : 8 * plan.id_bytes;
  const V experts = Set(static_cast<std::int32_t>(plan.num_experts));
  for (std::size_t row = 0; row < kTileRows; row += kLanes) {
    V rising = Set(-1);
    V previous = Set(-1);
    V word = Set(0);
    std::uint32_t fill = 0;
    std::uint32_t* out = id_words + row;
    WAYMARK_UNROLL
    for (std::uint32_t k = 0; k < top_k; ++k) {
      const V height = Add(Load(heights + std::size_t{k} * kTileRows + row),
                           Set(static_cast<std::int32_t>(k * slope)));
      V id = ShiftLeft(height, low_bits);
      if (low_bits != 0) id = Or(id, Get(code_words + row, k * low_bits, low_bits));
      rising = And(rising, Less(previous, id));
      previous = id;
      word = Or(word, ShiftLeft(id, fill));
      fill += id_bits;
      if (fill == 32 || k + 1 == top_k) {
        Store(out, word);
        out += kTileRows;
        word = Set(0);
        fill = 0;
      }
    }
    rising = And(rising, Less(previous, experts));
    good &= ~(std::uint64_t{static_cast<std::uint32_t>(~Bits(rising)) & 0xff} << row);
  }
  return ~good;
}

#define WAYMARK_BY_PLAN(tile)                                                            \
  if (plan.top_k == 8 && plan.levels == 4 && plan.low_bits == 4 && plan.id_bytes == 1) { \
    return tile<8, 4, 4>(plan, from, to);                                                \
  }                                                                                      \
  if (plan.top_k == 8 && plan.levels == 4) return tile<8, 4>(plan, from, to);            \
  if (plan.top_k == 8 && plan.levels == 5) return tile<8, 5>(plan, from, to);            \
  if (plan.top_k == 10 && plan.levels == 5) return tile<10, 5>(plan, from, to);          \
  if (plan.top_k == 22 && plan.levels == 0) return tile<22, 0>(plan, from, to);          \
  if (plan.levels == 4) return tile<0, 4>(plan, from, to);                               \
  if (plan.levels == 5) return tile<0, 5>(plan, from, to);                               \
  return tile<0, 0>(plan, from, to)

WAYMARK_SIMD std::uint64_t Encode(const SetCodePlan& plan, const std::uint32_t* from,
                                  std::uint32_t* to) {
  WAYMARK_BY_PLAN(EncodeTile);
}

WAYMARK_SIMD std::uint64_t Decode(const SetCodePlan& plan, const std::uint32_t* from,
                                  std::uint32_t* to) {
  WAYMARK_BY_PLAN(DecodeTile);
}
#undef WAYMARK_BY_PLAN

}  // namespace

const SetCodeBackend kSetCodeAvx2 = {"avx2", Encode, Decode};

}  // namespace waymark::internal

#endif  // defined(__x86_64__)
