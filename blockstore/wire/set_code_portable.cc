// SetCode in the compiler's vectors of 16 bytes, for any processor; set_code_simd.inc has the
// algorithm.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "blockstore/wire/set_code_tile.h"

#define WAYMARK_SIMD
#define WAYMARK_SIMD_INLINE __attribute__((always_inline)) inline

namespace waymark::internal {
namespace {

inline constexpr std::size_t kLanes = 4;
inline constexpr std::uint32_t kAllLanes = 0xf;
using V = std::uint32_t __attribute__((vector_size(16)));
using Mask = std::int32_t __attribute__((vector_size(16)));  // all ones or all zeros in each lane

template <class Word>
WAYMARK_SIMD_INLINE V Load(const Word* at) {
  V value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
WAYMARK_SIMD_INLINE void Store(std::uint32_t* at, V value) {
  std::memcpy(at, &value, sizeof(value));
}
WAYMARK_SIMD_INLINE V Set(std::int32_t value) {
  const auto word = static_cast<std::uint32_t>(value);
  return V{word, word, word, word};
}
WAYMARK_SIMD_INLINE V And(V a, V b) {
  return a & b;
}
WAYMARK_SIMD_INLINE V Or(V a, V b) {
  return a | b;
}
WAYMARK_SIMD_INLINE V Add(V a, V b) {
  return a + b;
}
WAYMARK_SIMD_INLINE V Sub(V a, V b) {
  return a - b;
}
WAYMARK_SIMD_INLINE Mask Less(V a, V b) {
  return reinterpret_cast<Mask>(a) < reinterpret_cast<Mask>(b);
}
WAYMARK_SIMD_INLINE V Min(V a, V b) {
  const V less = reinterpret_cast<V>(Less(a, b));
  return (a & less) | (b & ~less);
}
WAYMARK_SIMD_INLINE V Max(V a, V b) {
  const V less = reinterpret_cast<V>(Less(a, b));
  return (b & less) | (a & ~less);
}
WAYMARK_SIMD_INLINE V ShiftLeft(V a, std::uint32_t count) {
  return count < 32 ? a << count : Set(0);
}
WAYMARK_SIMD_INLINE V ShiftRight(V a, std::uint32_t count) {
  return count < 32 ? a >> count : Set(0);
}
WAYMARK_SIMD_INLINE V OneAt(V n) {
  return (Set(1) << (n & 31)) & reinterpret_cast<V>(n < 32);
}
WAYMARK_SIMD_INLINE Mask Both(Mask a, Mask b) {
  return a & b;
}
WAYMARK_SIMD_INLINE Mask AllTrue() {
  return Mask{-1, -1, -1, -1};
}
WAYMARK_SIMD_INLINE std::uint32_t Bits(Mask mask) {
  return static_cast<std::uint32_t>((mask[0] & 1) | (mask[1] & 2) | (mask[2] & 4) | (mask[3] & 8));
}
WAYMARK_SIMD_INLINE V At(const std::int32_t* table, V i) {
  return reinterpret_cast<V>(Mask{table[i[0]], table[i[1]], table[i[2]], table[i[3]]});
}
template <std::uint32_t kLevels>
WAYMARK_SIMD_INLINE V Lookup(const std::int32_t* table, V i) {
  return At(table, i & ((1u << kLevels) - 1));
}
template <std::uint32_t kLevel>
WAYMARK_SIMD_INLINE V Child(const std::int32_t* tree, V node, V rank) {
  const V value = kLevel == 0 ? Set(tree[1]) : At(tree, node);
  // The comparison is -1 where it holds.
  return node + node - reinterpret_cast<V>(Less(value, rank));
}

#include "blockstore/wire/set_code_simd.inc"

}  // namespace

const SetCodeBackend kSetCodePortable = {"portable", Encode, Decode};

}  // namespace waymark::internal
