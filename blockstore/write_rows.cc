// WriteRows, WriteLayers: the conversion of rows to other types and layouts.
//
// It is fast because of its inner loops: adjacent rows (those of a page) are converted as one; ids
// are widened in blocks of constant size, which compilers vectorize, or by wider instructions where
// the machine has them; layers-first order is written in tiles of rows that fit a cache, and, where
// it is more than caches hold, past them.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "blockstore/rows.h"
#include "blockstore/write_layers.h"

namespace waymark {
namespace {

static_assert(std::endian::native == std::endian::little,
              "stored and written ids are little-endian");

// Integers at any address, and 16 bytes of them in a register.
template <class T>
struct Types {
  using Unaligned __attribute__((aligned(1), may_alias)) = T;
  using Vector __attribute__((vector_size(16))) = T;
};
template <class T>
using VectorOf = typename Types<T>::Vector;
template <class T>
using UnalignedOf = typename Types<T>::Unaligned;

template <class T>
using Wider = std::conditional_t<sizeof(T) == 1, std::uint16_t,
                                 std::conditional_t<sizeof(T) == 2, std::uint32_t, std::uint64_t>>;

// Elements kFirst, kFirst + 1, ... of `v`, each followed by a zero. Little-endian: that is the same
// element of twice the width.
template <class T, int kFirst, int... kIndices>
VectorOf<Wider<T>> Spread(VectorOf<T> v, std::integer_sequence<int, kIndices...>) {
  constexpr int kSize = sizeof...(kIndices);
  return reinterpret_cast<VectorOf<Wider<T>>>(__builtin_shufflevector(
      v, VectorOf<T>{}, ((kIndices % 2 == 0 ? 0 : kSize) + kFirst + kIndices / 2)...));
}

// Writes the first kCount elements of `ids` as To, by doubling.
template <class From, class To, int kCount>
void Widen(VectorOf<From> ids, std::uint8_t* to) {
  if constexpr (sizeof(From) == sizeof(To)) {
    std::memcpy(to, &ids, kCount * sizeof(To));
  } else {
    constexpr int kHalf = 8 / sizeof(From);
    constexpr std::make_integer_sequence<int, 2 * kHalf> kAll;
    Widen<Wider<From>, To, std::min(kCount, kHalf)>(Spread<From, 0>(ids, kAll), to);
    if constexpr (kCount > kHalf) {
      Widen<Wider<From>, To, kCount - kHalf>(Spread<From, kHalf>(ids, kAll),
                                             to + kHalf * sizeof(To));
    }
  }
}

// The rows of a tile: in the L1 cache.
constexpr std::size_t kTileRows = 32;
constexpr std::size_t kLine = 64;
constexpr std::size_t kMostTopK = 64;  // of a valid shape

// What is streamed past the caches is written in tiles of the L2 cache, and the next tile is on its
// way there: each layer of a tile is a run of its own in the output, and long runs keep the
// translation of addresses cheap.
constexpr std::size_t kStreamedTileBytes = std::size_t{192} << 10;
constexpr std::size_t kStageBytes = std::size_t{4} << 10;

// Loads kBytes <= 8 bytes into the low end of a word. By loads of register size only: bytes
// assembled in memory would stall the load of the word.
template <int kBytes>
std::uint64_t LoadWord(const std::uint8_t* from) {
  constexpr int kPart = kBytes >= 8 ? 8 : kBytes >= 4 ? 4 : kBytes >= 2 ? 2 : 1;
  using Part = std::conditional_t<
      kPart == 8, std::uint64_t,
      std::conditional_t<kPart == 4, std::uint32_t,
                         std::conditional_t<kPart == 2, std::uint16_t, std::uint8_t>>>;
  Part part;
  std::memcpy(&part, from, kPart);
  std::uint64_t word = part;
  if constexpr (kBytes > kPart) word |= LoadWord<kBytes - kPart>(from + kPart) << (8 * kPart);
  return word;
}

// Loads kBytes <= 16 bytes into the low end of a vector.
template <int kBytes>
VectorOf<std::uint64_t> LoadVector(const std::uint8_t* from) {
  if constexpr (kBytes == 16) {
    VectorOf<std::uint64_t> words;
    std::memcpy(&words, from, sizeof(words));
    return words;
  } else if constexpr (kBytes > 8) {
    return VectorOf<std::uint64_t>{LoadWord<8>(from), LoadWord<kBytes - 8>(from + 8)};
  } else {
    return VectorOf<std::uint64_t>{LoadWord<kBytes>(from), 0};
  }
}

// Converts kCount ids; the count is constant, so this is a few moves.
template <class From, class To, int kCount>
void CopyConstant(const std::uint8_t* from, std::uint8_t* to) {
  constexpr int kVector = 16 / sizeof(From);
  if constexpr (sizeof(From) == sizeof(To)) {
    std::memcpy(to, from, kCount * sizeof(To));
  } else if constexpr (kCount > kVector) {
    CopyConstant<From, To, kVector>(from, to);
    CopyConstant<From, To, kCount - kVector>(from + 16, to + kVector * sizeof(To));
  } else {
    Widen<From, To, kCount>(
        reinterpret_cast<VectorOf<From>>(LoadVector<kCount * sizeof(From)>(from)), to);
  }
}

template <class From, class To>
void CopyIds(const std::uint8_t* from, std::uint8_t* to, std::size_t count) {
  if constexpr (sizeof(From) == sizeof(To)) {
    std::memcpy(to, from, count * sizeof(To));
  } else {
    constexpr std::size_t kVector = 16 / sizeof(From);
    std::size_t i = 0;
    for (; i + kVector <= count; i += kVector) {
      CopyConstant<From, To, kVector>(from + i * sizeof(From), to + i * sizeof(To));
    }
    const auto* in = reinterpret_cast<const UnalignedOf<From>*>(from);
    auto* out = reinterpret_cast<UnalignedOf<To>*>(to);
    for (; i < count; ++i)
      out[i] = in[i];
  }
}

// Converts the K ids of one layer. kTopK: K if it is known when compiling, else 0.
template <class From, class To, int kTopK>
void CopyLayer(const std::uint8_t* from, std::uint8_t* to, std::size_t top_k) {
  if constexpr (kTopK == 0) {
    CopyIds<From, To>(from, to, top_k);
  } else {
    CopyConstant<From, To, kTopK>(from, to);
  }
}

void FillIds(Fill fill, std::size_t bytes, std::uint8_t* to) {
  std::memset(to, fill == Fill::kZeros ? 0 : 0xff, bytes);  // of -1 all bits are set
}

struct Job {
  std::span<const std::uint8_t* const> row_pointers;
  std::size_t num_layers;
  std::size_t top_k;
  Fill fill;
  std::uint8_t* out;
};

template <class From, class To>
void WriteTokensFirst(const Job& job) {
  const std::size_t row_ids = job.num_layers * job.top_k;
  const std::size_t from_bytes = row_ids * sizeof(From);
  const std::size_t to_bytes = row_ids * sizeof(To);
  const std::size_t rows = job.row_pointers.size();
  for (std::size_t begin = 0; begin < rows;) {
    const std::uint8_t* row = job.row_pointers[begin];
    std::size_t end = begin + 1;
    if (row == nullptr) {
      while (end < rows && job.row_pointers[end] == nullptr)
        ++end;
      FillIds(job.fill, (end - begin) * to_bytes, job.out + begin * to_bytes);
    } else {
      const std::uint8_t* next = row + from_bytes;
      while (end < rows && job.row_pointers[end] == next) {
        ++end;
        next += from_bytes;
      }
      CopyIds<From, To>(row, job.out + begin * to_bytes, (end - begin) * row_ids);
    }
    begin = end;
  }
}

// Calls visit.operator()<To>() with the unsigned type of ids of so many bytes.
template <class Visit>
auto VisitIds(std::size_t bytes, const Visit& visit) {
  switch (bytes) {
    case 1:
      return visit.template operator()<std::uint8_t>();
    case 2:  // ids are below 2^15 where they are signed, so the bytes are equal
      return visit.template operator()<std::uint16_t>();
    case 4:
      return visit.template operator()<std::uint32_t>();
    default:
      return visit.template operator()<std::uint64_t>();
  }
}

template <class From>
void WriteFrom(const Job& job, const ReadSpec& spec) {
  VisitIds(IdBytes(spec.id_type), [&]<class To>() {
    if constexpr (sizeof(To) >= sizeof(From)) WriteTokensFirst<From, To>(job);
  });
}

template <class From, class To, int kTopK>
void WidenLayer(const internal::LayerRows& layer, std::uint8_t* to) {
  const std::size_t row_bytes = layer.top_k * sizeof(To);
  for (const std::uint8_t* const row : layer.rows) {
    if (row != nullptr) {
      CopyLayer<From, To, kTopK>(row + layer.offset, to, layer.top_k);
    } else {
      std::memcpy(to, layer.missing, row_bytes);
    }
    to += row_bytes;
  }
}

template <class From, class To>
internal::LayerOps::Widen FindWidenOf(std::size_t top_k) {
  internal::LayerOps::Widen widen = &WidenLayer<From, To, 0>;
  [&]<int... kTopK>(std::integer_sequence<int, kTopK...>) {
    ((top_k == kTopK ? void(widen = &WidenLayer<From, To, kTopK>) : void()), ...);
  }
  (std::integer_sequence<int, 1, 2, 4, 6, 8, 10>());
  return widen;
}

template <class From>
internal::LayerOps::Widen FindWidenFrom(std::size_t to_bytes, std::size_t top_k) {
  return VisitIds(to_bytes, [top_k]<class To>() -> internal::LayerOps::Widen {
    if constexpr (sizeof(To) >= sizeof(From)) return FindWidenOf<From, To>(top_k);
    return nullptr;
  });
}

internal::LayerOps::Widen FindWiden(std::size_t from_bytes, std::size_t to_bytes,
                                    std::size_t top_k) {
  return from_bytes == 1 ? FindWidenFrom<std::uint8_t>(to_bytes, top_k)
                         : FindWidenFrom<std::uint16_t>(to_bytes, top_k);
}

void Stream(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
#if defined(__SSE2__)
  for (std::size_t at = 0; at < bytes; at += kLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from + at);
    auto* const line = reinterpret_cast<__m128i*>(to + at);
    const __m128i parts[] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1),
                             _mm_loadu_si128(source + 2), _mm_loadu_si128(source + 3)};
    _mm_stream_si128(line, parts[0]);
    _mm_stream_si128(line + 1, parts[1]);
    _mm_stream_si128(line + 2, parts[2]);
    _mm_stream_si128(line + 3, parts[3]);
  }
#else
  std::memcpy(to, from, bytes);
#endif
}

#if defined(__x86_64__)

// With AVX2, for layers of 4, 8 or 16 bytes of stored ids. Only the functions marked so use more
// than the baseline processor has, and they run only where SupportedLayerOps() has found it.

#if defined(__GNUC__) && !defined(__clang__)
// The compiler's own headers make "undefined" vectors by initialising a variable with itself.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define WAYMARK_AVX2 __attribute__((target("avx2")))
#define WAYMARK_AVX2_INLINE __attribute__((target("avx2"), always_inline)) inline

template <int kBytes>
WAYMARK_AVX2_INLINE __m128i LoadIds(const std::uint8_t* from) {
  if constexpr (kBytes == 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  if constexpr (kBytes == 8) return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  std::int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return _mm_cvtsi32_si128(word);
}

// Writes the stored ids in `ids` from byte kAt to kBytes as ids of kTo bytes.
template <int kFrom, int kTo, int kBytes, int kAt = 0>
WAYMARK_AVX2_INLINE void WidenIds(__m128i ids, std::uint8_t* to) {
  const __m128i part = _mm_srli_si128(ids, kAt);
  __m256i wide;
  if constexpr (kFrom == 1) {
    wide = kTo == 8 ? _mm256_cvtepu8_epi64(part) : _mm256_cvtepu8_epi32(part);
  } else {
    wide = kTo == 8 ? _mm256_cvtepu16_epi64(part) : _mm256_cvtepu16_epi32(part);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), wide);
  constexpr int kNext = kAt + 32 / kTo * kFrom;
  if constexpr (kNext < kBytes) WidenIds<kFrom, kTo, kBytes, kNext>(ids, to + 32);
}

template <int kFrom, int kTo, int kBytes>
WAYMARK_AVX2 void WidenLayerAvx2(const internal::LayerRows& layer, std::uint8_t* to) {
  constexpr std::size_t kRowBytes = kBytes / kFrom * kTo;
  for (const std::uint8_t* const row : layer.rows) {
    if (row != nullptr) [[likely]] {
      WidenIds<kFrom, kTo, kBytes>(LoadIds<kBytes>(row + layer.offset), to);
    } else {
      std::memcpy(to, layer.missing, kRowBytes);
    }
    to += kRowBytes;
  }
}

template <int kFrom, int kTo>
internal::LayerOps::Widen FindAvx2Of(std::size_t layer_bytes) {
  switch (layer_bytes) {
    case 4:
      return &WidenLayerAvx2<kFrom, kTo, 4>;
    case 8:
      return &WidenLayerAvx2<kFrom, kTo, 8>;
    case 16:
      return &WidenLayerAvx2<kFrom, kTo, 16>;
    default:
      return nullptr;
  }
}

internal::LayerOps::Widen FindAvx2(std::size_t from_bytes, std::size_t to_bytes,
                                   std::size_t top_k) {
  if (to_bytes < 4) return nullptr;
  const std::size_t layer_bytes = from_bytes * top_k;
  if (from_bytes == 1) {
    return to_bytes == 8 ? FindAvx2Of<1, 8>(layer_bytes) : FindAvx2Of<1, 4>(layer_bytes);
  }
  return to_bytes == 8 ? FindAvx2Of<2, 8>(layer_bytes) : FindAvx2Of<2, 4>(layer_bytes);
}

WAYMARK_AVX2 void StreamAvx2(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLine) {
    const auto* const line = reinterpret_cast<const __m256i*>(from + at);
    const __m256i low = _mm256_loadu_si256(line);
    const __m256i high = _mm256_loadu_si256(line + 1);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at) + 1, high);
  }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif  // defined(__x86_64__)

// Copies bytes without reading the cache lines that they overwrite. Lines that they fill in part
// are written as any others, because what fills the rest is not written at the same time.
void StreamCopy(const internal::LayerOps& ops, std::uint8_t* to, const std::uint8_t* from,
                std::size_t bytes) {
  const std::size_t head =
      std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  const std::size_t lines = (bytes - head) / kLine * kLine;
  ops.stream(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}

// Inline, because GCC 12 takes out calls of a function that does nothing else.
__attribute__((always_inline)) inline void Prefetch(std::span<const std::uint8_t* const> rows,
                                                    std::size_t row_bytes) {
  for (const std::uint8_t* const row : rows) {
    if (row == nullptr) continue;
    for (std::size_t at = 0; at < row_bytes; at += kLine)
      __builtin_prefetch(row + at, 0, 2);
    __builtin_prefetch(row + row_bytes - 1, 0, 2);
  }
}

// WriteRows, layers first. What is more than caches hold is streamed past them.
void WriteLayersFirst(const RoutingShape& shape, std::span<const std::uint8_t* const> row_pointers,
                      const ReadSpec& spec, std::span<std::uint8_t> out) {
  const std::size_t rows = row_pointers.size();
  const std::size_t to_bytes = static_cast<std::size_t>(shape.top_k) * IdBytes(spec.id_type);
  const std::size_t layer_bytes = static_cast<std::size_t>(shape.top_k) * shape.id_bytes();
  const bool streamed = out.size() >= kStreamedBytes;
  const std::size_t tile =
      streamed ? std::clamp(kStreamedTileBytes / shape.row_bytes(), kTileRows, std::size_t{512})
               : kTileRows;
  LayerTensors tensors = {spec.id_type, spec.fill, out.data(), rows * to_bytes, streamed};
  for (std::size_t begin = 0; begin < rows; begin += tile) {
    const auto rest = row_pointers.subspan(begin);
    const auto of_tile = rest.first(std::min(tile, rest.size()));
    const auto next = rest.subspan(of_tile.size());
    if (begin == 0) Prefetch(of_tile, shape.row_bytes());
    tensors.ids = out.data() + begin * to_bytes;
    WriteLayers(shape, {of_tile, layer_bytes}, tensors, next.first(std::min(tile, next.size())));
  }
}

}  // namespace

namespace internal {

std::span<const LayerOps> SupportedLayerOps() {
#if defined(__x86_64__)
  static constexpr LayerOps kAll[] = {{"portable", &FindWiden, &Stream},
                                      {"avx2", &FindAvx2, &StreamAvx2}};
  static const std::size_t count = __builtin_cpu_supports("avx2") ? 2 : 1;
  return std::span(kAll).first(count);
#else
  static constexpr LayerOps kAll[] = {{"portable", &FindWiden, &Stream}};
  return kAll;
#endif
}

void WriteLayers(const LayerOps& ops, const RoutingShape& shape, const StoredRows& stored,
                 const LayerTensors& out, std::span<const std::uint8_t* const> next) {
  const auto top_k = static_cast<std::size_t>(shape.top_k);
  const std::size_t to_bytes = IdBytes(out.id_type);
  LayerOps::Widen widen = ops.find(shape.id_bytes(), to_bytes, top_k);
  if (widen == nullptr) widen = FindWiden(shape.id_bytes(), to_bytes, top_k);
  alignas(kLine) std::uint8_t stage[kStageBytes + kSlack];
  alignas(kLine) std::uint8_t missing[kMostTopK * sizeof(std::uint64_t) + kSlack] = {};
  const std::size_t row_bytes = top_k * to_bytes;
  FillIds(out.fill, row_bytes, missing);
  const std::size_t staged = kStageBytes / row_bytes;
  const std::size_t parts =
      (stored.rows.size() + staged - 1) / staged * static_cast<std::size_t>(shape.num_layers);
  std::size_t part = 0;
  LayerRows layer = {{}, 0, top_k, missing};
  for (std::int32_t l = 0; l < shape.num_layers; ++l) {
    std::uint8_t* to = out.ids + static_cast<std::size_t>(l) * out.layer_bytes;
    for (std::size_t at = 0; at < stored.rows.size(); at += staged) {
      layer.rows = stored.rows.subspan(at, std::min(staged, stored.rows.size() - at));
      const std::size_t asked = next.size() * part / parts;
      ++part;
      Prefetch(next.subspan(asked, next.size() * part / parts - asked), shape.row_bytes());
      widen(layer, stage);
      const std::size_t bytes = layer.rows.size() * row_bytes;
      if (out.streamed) {
        StreamCopy(ops, to, stage, bytes);
      } else {
        std::memcpy(to, stage, bytes);
      }
      to += bytes;
    }
    layer.offset += stored.layer_bytes;
  }
#if defined(__SSE2__)
  if (out.streamed) _mm_sfence();  // what was streamed comes before what this thread writes next
#endif
}

}  // namespace internal

void WriteLayers(const RoutingShape& shape, const StoredRows& stored, const LayerTensors& out,
                 std::span<const std::uint8_t* const> next) {
  internal::WriteLayers(internal::SupportedLayerOps().back(), shape, stored, out, next);
}

void WriteRows(const RoutingShape& shape, std::span<const std::uint8_t* const> row_pointers,
               const ReadSpec& spec, std::span<std::uint8_t> out) {
  if (spec.layout == Layout::kLayersTokensK) {
    return WriteLayersFirst(shape, row_pointers, spec, out);
  }
  const Job job{row_pointers, static_cast<std::size_t>(shape.num_layers),
                static_cast<std::size_t>(shape.top_k), spec.fill, out.data()};
  if (shape.id_bytes() == 1) {
    WriteFrom<std::uint8_t>(job, spec);
  } else {
    WriteFrom<std::uint16_t>(job, spec);
  }
}

}  // namespace waymark
