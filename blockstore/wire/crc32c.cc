// A crc32 instruction takes eight bytes and has a latency of three cycles, so three streams run
// side by side; each of their crcs is then combined by a carry-less multiplication. Where such
// multiplications take four pairs of words at a time, most bytes are folded by them alone.
#include "blockstore/wire/crc32c.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace waymark::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "words are loaded as they lie");

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected: bit 31 is x^0

constexpr std::uint32_t TimesX(std::uint32_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
}

// kTables[i][b]: the crc of byte b followed by i zero bytes.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t value = b;
    for (int bit = 0; bit < 8; ++bit)
      value = TimesX(value);
    tables[0][b] = value;
  }
  for (std::size_t i = 1; i < tables.size(); ++i) {
    for (std::size_t b = 0; b < 256; ++b)
      tables[i][b] = (tables[i - 1][b] >> 8) ^ tables[0][tables[i - 1][b] & 0xff];
  }
  return tables;
}();

std::uint64_t LoadWord(const std::uint8_t* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// The functions below take and return the crc without its two inversions.
std::uint32_t RunTables(std::uint32_t state, const std::uint8_t* at, std::size_t size) {
  for (; size >= 8; at += 8, size -= 8) {
    const std::uint64_t word = LoadWord(at) ^ state;
    state = 0;
    for (std::size_t i = 0; i < 8; ++i)
      state ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; size > 0; ++at, --size)
    state = (state >> 8) ^ kTables[0][(state ^ *at) & 0xff];
  return state;
}

#if defined(__x86_64__)

constexpr std::size_t kMostWords = 128;  // of one stream

// kShift[w]: x^(64 w - 33). The carry-less product of a state and kShift[w], reduced by the crc32
// instruction, is the state after w more zero words: the instruction multiplies by x^32, and the
// product of reflected words lacks a factor x.
constexpr auto kShift = [] {
  std::array<std::uint32_t, 2 * kMostWords + 1> shift{};
  shift[1] = 1;  // x^31
  for (std::size_t w = 2; w < shift.size(); ++w) {
    shift[w] = shift[w - 1];
    for (int bit = 0; bit < 64; ++bit)
      shift[w] = TimesX(shift[w]);
  }
  return shift;
}();

__attribute__((target("sse4.2,pclmul"))) std::uint64_t Shifted(std::uint64_t state,
                                                               std::size_t words) {
  const __m128i product =
      _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(state)),
                           _mm_cvtsi32_si128(static_cast<int>(kShift[words])), 0);
  return _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product)));
}

__attribute__((target("sse4.2,pclmul"))) std::uint32_t RunSse(std::uint32_t begin,
                                                              const std::uint8_t* at,
                                                              std::size_t size) {
  std::uint64_t state = begin;
  while (size >= 3 * 8) {
    const std::size_t words = std::min(size / (3 * 8), kMostWords);
    const std::uint8_t* const second = at + 8 * words;
    const std::uint8_t* const third = second + 8 * words;
    std::uint64_t b = 0;
    std::uint64_t c = 0;
    for (std::size_t i = 0; i < 8 * words; i += 8) {
      state = _mm_crc32_u64(state, LoadWord(at + i));
      b = _mm_crc32_u64(b, LoadWord(second + i));
      c = _mm_crc32_u64(c, LoadWord(third + i));
    }
    state = Shifted(state, 2 * words) ^ Shifted(b, words) ^ c;
    at = third + 8 * words;
    size -= 3 * 8 * words;
  }
  for (; size >= 8; at += 8, size -= 8)
    state = _mm_crc32_u64(state, LoadWord(at));
  auto low = static_cast<std::uint32_t>(state);
  for (; size > 0; ++at, --size)
    low = _mm_crc32_u8(low, *at);
  return low;
}

#if defined(__GNUC__) && !defined(__clang__)
// The compiler's own headers make "undefined" vectors by initialising a variable with itself.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define WAYMARK_AVX512 __attribute__((target("avx512f,vpclmulqdq,sse4.2,pclmul")))

// Moves each 16 bytes, two words of a polynomial, `words` words towards the front, and adds them to
// the 16 bytes of `to` that are there: the first word times x^(64 (words + 1)), the second times
// x^(64 words), modulo the polynomial of the crc. So the crc stays what it was.
WAYMARK_AVX512 inline __m512i Fold(__m512i bytes, __m512i shifts, __m512i to) {
  const __m512i first = _mm512_clmulepi64_epi128(bytes, shifts, 0x00);
  const __m512i second = _mm512_clmulepi64_epi128(bytes, shifts, 0x11);
  return _mm512_ternarylogic_epi64(first, second, to, 0x96);  // xor of the three
}

WAYMARK_AVX512 inline __m512i ShiftsBy(std::size_t words) {
  return _mm512_broadcast_i32x4(_mm_set_epi64x(kShift[words], kShift[words + 1]));
}

WAYMARK_AVX512 std::uint32_t RunAvx512(std::uint32_t begin, const std::uint8_t* at,
                                       std::size_t size) {
  constexpr std::size_t kBytes = sizeof(__m512i);
  if (size < 4 * kBytes) return RunSse(begin, at, size);
  __m512i sums[4];
  for (std::size_t i = 0; i < 4; ++i)
    sums[i] = _mm512_loadu_si512(at + i * kBytes);
  sums[0] =
      _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(begin))));
  const __m512i by_four = ShiftsBy(4 * kBytes / 8);
  for (at += 4 * kBytes, size -= 4 * kBytes; size >= 4 * kBytes;
       at += 4 * kBytes, size -= 4 * kBytes) {
    for (std::size_t i = 0; i < 4; ++i)
      sums[i] = Fold(sums[i], by_four, _mm512_loadu_si512(at + i * kBytes));
  }
  const __m512i by_one = ShiftsBy(kBytes / 8);
  __m512i sum = sums[0];
  for (std::size_t i = 1; i < 4; ++i)
    sum = Fold(sum, by_one, sums[i]);
  for (; size >= kBytes; at += kBytes, size -= kBytes)
    sum = Fold(sum, by_one, _mm512_loadu_si512(at));
  std::array<std::uint64_t, kBytes / 8> words;
  _mm512_storeu_si512(words.data(), sum);
  std::uint64_t state = 0;
  for (const std::uint64_t word : words)
    state = _mm_crc32_u64(state, word);
  return RunSse(static_cast<std::uint32_t>(state), at, size);
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif

}  // namespace

std::span<const Crc32cOps> SupportedCrc32cOps() {
#if defined(__x86_64__)
  static constexpr std::array<Crc32cOps, 3> kAll = {
      {{"portable", &RunTables}, {"sse4.2", &RunSse}, {"avx512", &RunAvx512}}};
  static const std::size_t count = []() -> std::size_t {
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return 1;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
    return avx512 ? 3 : 2;
  }();
  return std::span(kAll).first(count);
#else
  static constexpr std::array<Crc32cOps, 1> kAll = {{{"portable", &RunTables}}};
  return kAll;
#endif
}

std::uint32_t ExtendCrc32c(std::uint32_t crc, std::span<const std::uint8_t> bytes) {
  static const auto extend = SupportedCrc32cOps().back().extend;
  return ~extend(~crc, bytes.data(), bytes.size());
}

}  // namespace waymark::wire
