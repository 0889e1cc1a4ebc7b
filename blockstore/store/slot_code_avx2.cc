// SlotCode for x86-64 with AVX2, for codes of int32. Compiled for the baseline processor: only the
// functions marked so use more, and they run only where SupportedSlotOps() has found the
// instructions. The rows that do not fill a vector are left to the plain functions.
#if defined(__x86_64__)

#include <immintrin.h>

#include <bit>

#include "blockstore/step_path.h"
#include "blockstore/store/slot_code_ops.h"

#if defined(__GNUC__) && !defined(__clang__)
// The compiler's own headers make "undefined" vectors by initialising a variable with itself.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define WAYMARK_AVX2 WAYMARK_STEP_PATH __attribute__((target("avx2,popcnt")))
#define WAYMARK_AVX2_INLINE __attribute__((target("avx2,popcnt"), always_inline)) inline

namespace waymark::internal {
namespace {

constexpr std::size_t kLanes = 8;

WAYMARK_AVX2_INLINE __m256i Load(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

// Whether no lane of `outside` is negative.
WAYMARK_AVX2_INLINE bool AllInside(__m256i outside) {
  return _mm256_movemask_ps(_mm256_castsi256_ps(outside)) == 0;
}

// Eight integers: their low and their high halves. `high` of an int32 is its sign.
struct Halves {
  __m256i low;
  __m256i high;
};

WAYMARK_AVX2_INLINE Halves LoadInt32(const std::uint8_t* at) {
  const __m256i low = Load(at);
  return {low, _mm256_srai_epi32(low, 31)};
}
WAYMARK_AVX2_INLINE Halves LoadInt64(const std::uint8_t* at) {
  const __m256 a = _mm256_castsi256_ps(Load(at));
  const __m256 b = _mm256_castsi256_ps(Load(at + 32));
  // The shuffles leave the lanes in the order 0 1 4 5 2 3 6 7.
  const __m256i low = _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
  const __m256i high = _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
  return {_mm256_permute4x64_epi64(low, _MM_SHUFFLE(3, 1, 2, 0)),
          _mm256_permute4x64_epi64(high, _MM_SHUFFLE(3, 1, 2, 0))};
}

template <class Index>
WAYMARK_AVX2_INLINE Halves LoadIndices(const std::uint8_t* at) {
  if constexpr (sizeof(Index) == sizeof(std::int32_t)) {
    return LoadInt32(at);
  } else {
    return LoadInt64(at);
  }
}

// What FromSlots has found out about the slots so far.
struct SlotRange {
  __m256i outside;  // not 0 where a slot is not an int32
  __m256i least;
  __m256i greatest;
};

// Writes the codes of kLanes slots.
WAYMARK_AVX2_INLINE void FromEight(const std::uint8_t* slots, std::uint8_t* codes,
                                   SlotRange* range) {
  const __m256 a = _mm256_castsi256_ps(Load(slots));
  const __m256 b = _mm256_castsi256_ps(Load(slots + 32));
  const __m256i low = _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
  const __m256i high = _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
  // Not an int32: the high half is not the sign of the low half.
  range->outside =
      _mm256_or_si256(range->outside, _mm256_xor_si256(high, _mm256_srai_epi32(low, 31)));
  range->least = _mm256_min_epi32(range->least, low);
  range->greatest = _mm256_max_epi32(range->greatest, low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes),
                      _mm256_permute4x64_epi64(low, _MM_SHUFFLE(3, 1, 2, 0)));
}

WAYMARK_AVX2 bool FromSlots(const SlotPlan& plan, const std::uint8_t* slots, std::size_t rows,
                            std::uint8_t* codes) {
  if (rows < kLanes) return kSlotOpsPlain.from_slots(plan, slots, rows, codes);
  const __m256i zero = _mm256_setzero_si256();
  SlotRange range = {zero, zero, zero};
  for (std::size_t i = 0; i + kLanes <= rows; i += kLanes)
    FromEight(slots + i * sizeof(std::int64_t), codes + i * sizeof(std::int32_t), &range);
  if (rows % kLanes != 0) {  // some again: the plain functions are in pages of their own
    const std::size_t i = rows - kLanes;
    FromEight(slots + i * sizeof(std::int64_t), codes + i * sizeof(std::int32_t), &range);
  }
  const auto slots_end = static_cast<std::int32_t>(plan.num_slots);
  const __m256i beyond =
      _mm256_or_si256(_mm256_cmpgt_epi32(range.greatest, _mm256_set1_epi32(slots_end - 1)),
                      _mm256_cmpgt_epi32(_mm256_set1_epi32(-1 - slots_end), range.least));
  return _mm256_testz_si256(range.outside, range.outside) != 0 && AllInside(beyond);
}

// What the rows of pairs and of a table are validated against.
struct Blocks {
  __m256i last;         // block
  __m256i last_offset;  // in a block
  __m256i tokens;
};

WAYMARK_AVX2_INLINE Blocks MakeBlocks(const SlotPlan& plan) {
  return {_mm256_set1_epi32(static_cast<std::int32_t>(plan.num_blocks - 1)),
          _mm256_set1_epi32(plan.tokens - 1), _mm256_set1_epi32(plan.tokens)};
}

// Writes the codes of the rows at `offset` of `block`; of those with asked[i] == 0, if `asked` is
// not null, the codes of NotAsked. A lane of *outside becomes negative where there is no such slot.
WAYMARK_AVX2_INLINE void StoreCodes(const Blocks& blocks, const Halves& block, const Halves& offset,
                                    const std::uint8_t* asked, __m256i* outside,
                                    std::uint8_t* codes) {
  const __m256i padding = _mm256_srai_epi32(block.high, 31);
  // Where it is not padding, a block is in range if its high half is 0 and its low half is not
  // negative and not above the last; and so is an offset.
  const __m256i halves = _mm256_or_si256(_mm256_or_si256(block.low, offset.low),
                                         _mm256_cmpgt_epi32(block.high, _mm256_setzero_si256()));
  const __m256i high =
      _mm256_or_si256(offset.high, _mm256_cmpgt_epi32(offset.high, _mm256_setzero_si256()));
  const __m256i above = _mm256_or_si256(_mm256_cmpgt_epi32(block.low, blocks.last),
                                        _mm256_cmpgt_epi32(offset.low, blocks.last_offset));
  *outside = _mm256_or_si256(
      *outside,
      _mm256_andnot_si256(padding, _mm256_or_si256(_mm256_or_si256(halves, high), above)));
  __m256i code = _mm256_add_epi32(_mm256_mullo_epi32(block.low, blocks.tokens), offset.low);
  if (asked != nullptr) {
    // NotAsked(slot) is ~slot - 1.
    const __m256i flags =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(asked)));
    const __m256i not_asked = _mm256_cmpeq_epi32(flags, _mm256_setzero_si256());
    code = _mm256_add_epi32(_mm256_xor_si256(code, not_asked), not_asked);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm256_or_si256(code, padding));
}

template <class Block, class Position>
WAYMARK_AVX2 bool FromPairsOf(const SlotPlan& plan, const PairRows& pairs, std::size_t first,
                              std::size_t rows, std::uint8_t* codes) {
  const Blocks blocks = MakeBlocks(plan);
  const auto* const block_idx = static_cast<const std::uint8_t*>(pairs.block_idx);
  const auto* const local_position = static_cast<const std::uint8_t*>(pairs.local_position);
  __m256i outside = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + kLanes <= rows; i += kLanes) {
    const std::size_t at = first + i;
    StoreCodes(blocks, LoadIndices<Block>(block_idx + at * sizeof(Block)),
               LoadIndices<Position>(local_position + at * sizeof(Position)),
               pairs.asked == nullptr ? nullptr : pairs.asked + first + i, &outside,
               codes + i * sizeof(std::int32_t));
  }
  return AllInside(outside) && kSlotOpsPlain.from_pairs(plan, pairs, first + i, rows - i,
                                                        codes + i * sizeof(std::int32_t));
}

bool FromPairs(const SlotPlan& plan, const PairRows& pairs, std::size_t first, std::size_t rows,
               std::uint8_t* codes) {
  return WithPairTypes(pairs, [&]<class Block, class Position>() {
    return FromPairsOf<Block, Position>(plan, pairs, first, rows, codes);
  });
}

// Requests [first, ...) of `table`.
TableRows RequestsFrom(const TableRows& table, std::size_t first) {
  TableRows rest = table;
  rest.block_table = reinterpret_cast<const std::int32_t*>(
      reinterpret_cast<const std::uint8_t*>(table.block_table) +
      first * table.table_stride * sizeof(std::int32_t));
  rest.num_computed_tokens += first;
  rest.num_scheduled_tokens += first;
  if (rest.asked != nullptr) rest.asked += first;
  rest.num_requests -= first;
  return rest;
}

// position / tokens, where inverse is 1.0 / tokens. Exact: half a token keeps the product away from
// the next integer by 1 / (2 * tokens), and it is off by less than 2^31 / tokens * 2^-51.
WAYMARK_AVX2_INLINE __m128i Divide(__m128i position, __m256d inverse) {
  const __m256d middle = _mm256_add_pd(_mm256_cvtepi32_pd(position), _mm256_set1_pd(0.5));
  return _mm256_cvttpd_epi32(_mm256_mul_pd(middle, inverse));
}

WAYMARK_AVX2 bool FromRequests(const SlotPlan& plan, const TableRows& table, std::uint8_t* codes) {
  // Entries of eight requests are found with 32-bit indices.
  constexpr std::size_t kMaxStride = std::size_t{1} << 28;
  if (table.table_stride >= kMaxStride) return kSlotOpsPlain.from_requests(plan, table, codes);
  const Blocks blocks = MakeBlocks(plan);
  const __m256d inverse = _mm256_set1_pd(1.0 / plan.tokens);
  const __m256i row = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                         _mm256_set1_epi32(static_cast<int>(table.table_stride)));
  __m256i outside = _mm256_setzero_si256();
  std::size_t r = 0;
  for (; r + kLanes <= table.num_requests; r += kLanes) {
    const __m256i position = Load(table.num_computed_tokens + r);
    const __m256i entry = _mm256_set_m128i(Divide(_mm256_extracti128_si256(position, 1), inverse),
                                           Divide(_mm256_castsi256_si128(position), inverse));
    const __m256i offset = _mm256_sub_epi32(position, _mm256_mullo_epi32(entry, blocks.tokens));
    const __m256i block = _mm256_i32gather_epi32(table.block_table + r * table.table_stride,
                                                 _mm256_add_epi32(row, entry), 4);
    StoreCodes(blocks, {block, _mm256_srai_epi32(block, 31)}, {offset, _mm256_setzero_si256()},
               table.asked == nullptr ? nullptr : table.asked + r, &outside,
               codes + r * sizeof(std::int32_t));
  }
  return AllInside(outside) && kSlotOpsPlain.from_requests(plan, RequestsFrom(table, r),
                                                           codes + r * sizeof(std::int32_t));
}

WAYMARK_AVX2 bool SumRequests(const SlotPlan& plan, const TableRows& table, TableSums* sums) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i end = _mm256_set1_epi32(plan.table_end);
  const __m256i low = _mm256_set1_epi64x(0xffffffff);
  __m256i outside = zero;
  __m256i not_one = zero;
  __m256i sum = zero;
  std::size_t r = 0;
  for (; r + kLanes <= table.num_requests; r += kLanes) {
    const __m256i first = Load(table.num_computed_tokens + r);
    const __m256i rows = Load(table.num_scheduled_tokens + r);
    const __m256i behind = _mm256_add_epi32(first, rows);  // negative beyond 2^31
    const __m256i position =
        _mm256_or_si256(_mm256_or_si256(first, behind), _mm256_cmpgt_epi32(behind, end));
    outside = _mm256_or_si256(
        outside,
        _mm256_or_si256(rows, _mm256_andnot_si256(_mm256_cmpeq_epi32(rows, zero), position)));
    not_one = _mm256_or_si256(not_one, _mm256_xor_si256(rows, _mm256_set1_epi32(1)));
    sum = _mm256_add_epi64(
        sum, _mm256_add_epi64(_mm256_and_si256(rows, low), _mm256_srli_epi64(rows, 32)));
  }
  alignas(32) std::uint64_t parts[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts), sum);
  sums->rows += parts[0] + parts[1] + parts[2] + parts[3];
  sums->one_each &= _mm256_testz_si256(not_one, not_one) != 0;
  return AllInside(outside) && kSlotOpsPlain.sum_requests(plan, RequestsFrom(table, r), sums);
}

// Bit j is set where code j does not follow previous[j]. Needs no constant from memory, which would
// be in a page of its own.
WAYMARK_AVX2_INLINE std::uint64_t RunStarts(const __m256i& code, const __m256i& previous) {
  // NextCode: 1 more, 0 if it is padding, 1 less if it was not asked for.
  const __m256i minus_one = _mm256_set1_epi32(-1);
  const __m256i below = _mm256_add_epi32(_mm256_cmpgt_epi32(_mm256_setzero_si256(), previous),
                                         _mm256_cmpgt_epi32(minus_one, previous));
  const __m256i next = _mm256_sub_epi32(_mm256_add_epi32(previous, below), minus_one);
  const auto follows = static_cast<std::uint32_t>(
      _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(code, next))));
  return follows ^ 0xff;
}

WAYMARK_AVX2 std::size_t FindRuns(const std::uint8_t* codes, std::size_t rows, std::int32_t before,
                                  std::uint64_t* starts) {
  if (rows < kLanes) return kSlotOpsPlain.find_runs(codes, rows, before, starts);
  __m256i last = _mm256_set1_epi32(before);  // lane 7: the code before the next vector
  std::size_t runs = 0;
  for (std::size_t i = 0; i < rows; i += 64) {
    std::uint64_t word = 0;
    unsigned bit = 0;
    for (; bit < 64 && i + bit + kLanes <= rows; bit += kLanes) {
      const __m256i code = Load(codes + (i + bit) * sizeof(std::int32_t));
      const __m256i middle = _mm256_permute2x128_si256(last, code, 0x21);  // last.high, code.low
      word |= RunStarts(code, _mm256_alignr_epi8(code, middle, 3 * sizeof(std::int32_t))) << bit;
      last = code;
    }
    if (bit < 64 && i + bit < rows) {  // fewer than kLanes codes are left: looks at some again
      const std::uint8_t* const at = codes + (rows - kLanes) * sizeof(std::int32_t);
      const std::uint64_t found = RunStarts(Load(at), Load(at - sizeof(std::int32_t)));
      word |= found >> (kLanes - (rows - i - bit)) << bit;
    }
    runs += static_cast<std::size_t>(std::popcount(word));
    *starts++ = word;
  }
  return runs;
}

}  // namespace

const SlotOps<std::int32_t> kSlotOpsAvx2 = {"avx2",        &FromSlots,   &FromPairs,
                                            &FromRequests, &SumRequests, &FindRuns};

}  // namespace waymark::internal

#endif  // defined(__x86_64__)
