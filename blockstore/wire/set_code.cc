// SetCode: the implementation without vectors, and what moves rows into tiles, through one, and out
// again.
#include "blockstore/wire/set_code.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "blockstore/invalid.h"
#include "blockstore/wire/set_code_tile.h"

namespace waymark {
namespace internal {
namespace {

static_assert(std::endian::native == std::endian::little, "ids and codes are little-endian");

// ---- one cell at a time, for all parameters that Validate accepts and for any processor;
// set_code_avx2.cc must give the same bits

std::uint64_t EncodeScalar(const SetCodePlan& plan, const std::uint32_t* id_words,
                           std::uint32_t* code_words) {
  std::uint64_t bad = 0;
  const std::uint32_t id_mask = plan.id_bytes == 1 ? 0xff : 0xffff;
  const std::uint32_t low_mask = (std::uint32_t{1} << plan.low_bits) - 1;
  for (std::size_t row = 0; row < kTileRows; ++row) {
    std::array<std::uint32_t, kMaxTopK> ids;
    for (std::uint32_t k = 0; k < plan.top_k; ++k) {
      const std::uint32_t word = id_words[k / plan.ids_in_word * kTileRows + row];
      const std::uint32_t id = word >> k % plan.ids_in_word * (8 * plan.id_bytes) & id_mask;
      std::uint32_t at = k;
      for (; at > 0 && ids[at - 1] > id; --at)
        ids[at] = ids[at - 1];
      ids[at] = id;
    }
    bool good = ids[plan.top_k - 1] < plan.num_experts;
    for (std::uint32_t k = 1; k < plan.top_k; ++k)
      good &= ids[k - 1] < ids[k];
    for (std::uint32_t word = 0; word < plan.code_words; ++word)
      code_words[word * kTileRows + row] = 0;
    if (!good) {
      bad |= std::uint64_t{1} << row;
      continue;
    }
    const auto put = [&](std::uint64_t value, std::uint32_t at) {
      for (; value != 0; at += 32 - at % 32) {
        code_words[at / 32 * kTileRows + row] |= static_cast<std::uint32_t>(value) << at % 32;
        value >>= 32 - at % 32;
      }
    };
    std::uint64_t rank = 0;
    for (std::uint32_t k = 0; k < plan.top_k; ++k) {
      put(ids[k] & low_mask, k * plan.low_bits);
      const std::uint32_t point = (ids[k] >> plan.low_bits) + (plan.low_bits != 0 ? k : 0);
      if (plan.params.high_bits == HighBits::kUnary) {
        put(1, plan.high_bits_begin + point);
      } else {
        rank += plan.binomials[std::size_t{k} * plan.points + point];
      }
    }
    put(rank, plan.high_bits_begin);
  }
  return bad;
}

std::uint64_t DecodeScalar(const SetCodePlan& plan, const std::uint32_t* code_words,
                           std::uint32_t* id_words) {
  std::uint64_t bad = 0;
  const std::uint32_t low_mask = (std::uint32_t{1} << plan.low_bits) - 1;
  for (std::size_t row = 0; row < kTileRows; ++row) {
    const auto word_at = [&](std::uint32_t word) -> std::uint64_t {
      return word < plan.code_words ? code_words[word * kTileRows + row] : 0;
    };
    // The 32 bits of the code from bit `at` on.
    const auto get = [&](std::uint32_t at) {
      return static_cast<std::uint32_t>((word_at(at / 32) | word_at(at / 32 + 1) << 32) >> at % 32);
    };
    std::array<std::uint32_t, kMaxTopK> points{};
    bool good = true;
    if (plan.params.high_bits == HighBits::kUnary) {
      std::uint32_t found = 0;
      for (std::uint32_t point = 0; point < plan.points; point += 32) {
        std::uint32_t bits = get(plan.high_bits_begin + point);
        for (; bits != 0 && found < plan.top_k; bits &= bits - 1)
          points[found++] = point + static_cast<std::uint32_t>(std::countr_zero(bits));
        good &= bits == 0;
      }
      good &= found == plan.top_k;
    } else {
      std::uint64_t rank = get(plan.high_bits_begin) | std::uint64_t{get(plan.high_bits_begin + 32)}
                                                           << 32;
      good = rank < plan.sets;
      for (std::uint32_t k = plan.top_k; k-- > 0 && good;) {
        const std::uint64_t* const first = &plan.binomials[std::size_t{k} * plan.points];
        const std::uint64_t* const above = std::upper_bound(first, first + plan.points, rank);
        points[k] = static_cast<std::uint32_t>(above - first - 1);
        rank -= above[-1];
      }
    }
    for (std::uint32_t word = 0; word < plan.id_words; ++word)
      id_words[word * kTileRows + row] = 0;
    std::uint32_t previous = 0;
    for (std::uint32_t k = 0; k < plan.top_k && good; ++k) {
      const std::uint32_t high = points[k] - (plan.low_bits != 0 ? k : 0);
      const std::uint32_t id = high << plan.low_bits | (get(k * plan.low_bits) & low_mask);
      good &= (k == 0 || previous < id) && id < plan.num_experts;
      previous = id;
      id_words[k / plan.ids_in_word * kTileRows + row] |=
          id << k % plan.ids_in_word * (8 * plan.id_bytes);
    }
    if (!good) bad |= std::uint64_t{1} << row;
  }
  return bad;
}

}  // namespace

std::span<const SetCodeBackend> SetCodeBackends() {
  static constexpr SetCodeBackend kScalar = {"scalar", EncodeScalar, DecodeScalar};
#if defined(__x86_64__)
  static const SetCodeBackend all[] = {kScalar, kSetCodeAvx2};
  static const std::size_t count = __builtin_cpu_supports("avx2") &&
                                           __builtin_cpu_supports("bmi") &&
                                           __builtin_cpu_supports("popcnt")
                                       ? 2
                                       : 1;
  return std::span(all).first(count);
#else
  return {&kScalar, 1};
#endif
}

}  // namespace internal

namespace {

using internal::kTileRows;
using internal::SetCodePlan;

// ---- from rows to tiles and back

// Iterates over groups of layers that share a tile. A page has fewer rows than a tile, so a tile
// has as many layers of it as fit. Cell i * rows + row is row `row` of the i-th layer of the group.
class TileLayers {
 public:
  TileLayers(std::size_t rows, std::size_t all) : rows_(rows), all_(all) {}

  [[nodiscard]] bool done() const { return first_ >= all_; }
  void Next() { first_ += kTileRows / rows_; }
  [[nodiscard]] std::size_t first() const { return first_; }
  [[nodiscard]] std::size_t layers() const { return std::min(kTileRows / rows_, all_ - first_); }
  // A mask with a bit for each cell of the tile that is in use.
  [[nodiscard]] std::uint64_t cells() const {
    return ~std::uint64_t{0} >> (kTileRows - layers() * rows_);
  }
  // Turns a mask of rows into a mask of cells: the rows of every layer of the group.
  [[nodiscard]] std::uint64_t Repeat(std::uint64_t of_rows) const {
    std::uint64_t of_cells = 0;
    for (std::size_t i = 0; i < layers(); ++i)
      of_cells |= of_rows << i * rows_;
    return of_cells;
  }
  // Turns a mask of cells into a mask of rows: those with a bit in any layer of the group.
  [[nodiscard]] std::uint64_t Fold(std::uint64_t of_cells) const {
    std::uint64_t of_rows = 0;
    for (std::size_t i = 0; i < layers(); ++i)
      of_rows |= of_cells >> i * rows_;
    return of_rows & (~std::uint64_t{0} >> (kTileRows - rows_));
  }

 private:
  std::size_t rows_;
  std::size_t all_;
  std::size_t first_ = 0;
};

// A mask with a bit for each of the `rows` rows that is valid.
std::uint64_t ValidRows(const RowInfo* infos, std::size_t rows) {
  std::uint64_t valid = 0;
  for (std::size_t row = 0; row < rows; ++row)
    valid |= std::uint64_t{infos[row].valid()} << row;
  return valid;
}

// Calls body(std::integral_constant<std::uint32_t, n>), where n is `words` for the numbers that
// common models have, so that loops over words are unrolled, and 0 for other numbers.
template <class Body>
void WithConstantWords(std::uint32_t words, Body&& body) {
  switch (words) {
    case 2:
      return body(std::integral_constant<std::uint32_t, 2>());
    case 3:
      return body(std::integral_constant<std::uint32_t, 3>());
    case 4:
      return body(std::integral_constant<std::uint32_t, 4>());
    case 5:
      return body(std::integral_constant<std::uint32_t, 5>());
    case 11:
      return body(std::integral_constant<std::uint32_t, 11>());
    default:
      return body(std::integral_constant<std::uint32_t, 0>());
  }
}

// Loads one cell of each of `rows` rows into words, or, with `ids` that are not const, stores them.
// The cells begin at `ids`, `row_bytes` apart. The unused bytes of a cell's last word are zero.
template <class Byte, class Word>
void MoveCells(const SetCodePlan& plan, Byte* ids, std::size_t row_bytes, std::size_t rows,
               Word* id_words) {
  const auto move = [](Byte* cell, Word* word, std::size_t bytes) {
    if constexpr (std::is_const_v<Byte>) {
      std::memcpy(word, cell, bytes);
    } else {
      std::memcpy(cell, word, bytes);
    }
  };
  const std::size_t cell_bytes = std::size_t{plan.top_k} * plan.id_bytes;
  const auto whole = static_cast<std::uint32_t>(cell_bytes / 4);
  WithConstantWords(whole, [&](auto known) {
    const std::uint32_t words = known() != 0 ? known() : whole;
    Byte* cell = ids;
    for (std::size_t row = 0; row < rows; ++row, cell += row_bytes) {
      for (std::uint32_t word = 0; word < words; ++word)
        move(cell + std::size_t{4} * word, &id_words[word * kTileRows + row], 4);
    }
  });
  if (cell_bytes % 4 == 0) return;
  for (std::size_t row = 0; row < rows; ++row) {
    Word* const last = &id_words[whole * kTileRows + row];
    if constexpr (!std::is_const_v<Word>) *last = 0;
    move(ids + row * row_bytes + 4 * whole, last, cell_bytes % 4);
  }
}

// Zeroes the words of the cells in the mask `rows`.
void ClearRows(std::uint64_t rows, std::uint32_t words, std::uint32_t* of_tile) {
  for (; rows != 0; rows &= rows - 1) {
    for (std::uint32_t word = 0; word < words; ++word)
      of_tile[word * kTileRows + static_cast<std::size_t>(std::countr_zero(rows))] = 0;
  }
}

// Writes the codes of `rows` rows to `bytes`, without padding: exactly ceil(rows * bits / 8) bytes.
void PackCodes(const SetCodePlan& plan, const std::uint32_t* code_words, std::size_t rows,
               std::uint8_t* bytes) {
  if (plan.bits == 0) return;
  // Writes 8 bytes at a time. A whole tile of 64 rows is a multiple of 8 bytes; fewer rows go
  // through a copy, so that nothing behind them is overwritten.
  std::array<std::uint8_t, kTileRows * internal::kMaxCodeBits / 8 + 8> copy;
  std::uint8_t* out = rows == kTileRows ? bytes : copy.data();
  std::uint64_t pending = 0;
  std::uint32_t fill = 0;  // < 64
  const auto put = [&](std::uint64_t value, std::uint32_t width) {
    pending |= value << fill;
    std::memcpy(out, &pending, 8);
    const std::uint64_t rest = value >> 1 >> (63 - fill);
    fill += width;
    out += fill / 64 * 8;
    pending = fill >= 64 ? rest : pending;
    fill %= 64;
  };
  WithConstantWords(plan.code_words, [&](auto known) {
    const std::uint32_t words = known() != 0 ? known() : plan.code_words;
    const std::uint32_t last_bits = plan.bits - 32 * (words - 1);
    for (std::size_t row = 0; row < rows; ++row) {
      const std::uint32_t* const code = code_words + row;
      std::uint32_t word = 0;
      for (; word + 2 < words; word += 2)
        put(code[word * kTileRows] | std::uint64_t{code[(word + 1) * kTileRows]} << 32, 64);
      if (word + 2 == words) {
        put(code[word * kTileRows] | std::uint64_t{code[(word + 1) * kTileRows]} << 32,
            32 + last_bits);
      } else {
        put(code[word * kTileRows], last_bits);
      }
    }
  });
  if (rows == kTileRows) return;
  std::memcpy(out, &pending, 8);
  std::memcpy(bytes, copy.data(), (rows * plan.bits + 7) / 8);
}

// Reads the codes of rows [first_row, first_row + rows) of the layer that begins at `layer`. Reads
// no byte from `end` on.
void UnpackCodes(const SetCodePlan& plan, const std::uint8_t* layer, const std::uint8_t* end,
                 std::size_t first_row, std::size_t rows, std::uint32_t* code_words) {
  if (plan.bits == 0) return;
  const std::size_t first_bit = first_row * plan.bits;
  const std::uint8_t* bytes = layer + first_bit / 8;
  std::size_t bit = first_bit % 8;
  // A load reads 8 bytes: codes near the end are first copied to a buffer with 8 bytes behind them.
  std::array<std::uint8_t, kTileRows * internal::kMaxCodeBits / 8 + 16> copy;
  const std::size_t used = (bit + rows * plan.bits + 7) / 8;
  if (static_cast<std::size_t>(end - bytes) < used + 8) {
    std::memcpy(copy.data(), bytes, used);
    std::memset(copy.data() + used, 0, 8);
    bytes = copy.data();
  }
  const auto load = [&](std::size_t at) {
    std::uint64_t loaded;
    std::memcpy(&loaded, bytes + at / 8, 8);
    return loaded >> at % 8;
  };
  if (plan.code_words == 2 && plan.bits <= 57) {  // one load reads a whole code
    const std::uint64_t mask = (std::uint64_t{1} << plan.bits) - 1;
    for (std::size_t row = 0; row < rows; ++row, bit += plan.bits) {
      const std::uint64_t code = load(bit) & mask;
      code_words[row] = static_cast<std::uint32_t>(code);
      code_words[kTileRows + row] = static_cast<std::uint32_t>(code >> 32);
    }
    return;
  }
  WithConstantWords(plan.code_words, [&](auto known) {
    const std::uint32_t words = known() != 0 ? known() : plan.code_words;
    const std::uint32_t last_bits = plan.bits - 32 * (words - 1);
    const auto last_mask = static_cast<std::uint32_t>((std::uint64_t{1} << last_bits) - 1);
    for (std::size_t row = 0; row < rows; ++row, bit += plan.bits) {
      for (std::uint32_t word = 0; word + 1 < words; ++word)
        code_words[word * kTileRows + row] = static_cast<std::uint32_t>(load(bit + 32 * word));
      code_words[(words - 1) * kTileRows + row] =
          static_cast<std::uint32_t>(load(bit + 32 * (words - 1))) & last_mask;
    }
  });
}

// The error for the cell at `ids` if its ids are not a set, else OK.
absl::Status BadCell(const SetCodePlan& plan, const std::uint8_t* ids, std::int64_t row,
                     std::int32_t layer) {
  const auto id_at = [&](std::uint32_t k) {
    return plan.id_bytes == 1 ? ids[k]
                              : static_cast<std::uint32_t>(ids[2 * k] | ids[2 * k + 1] << 8);
  };
  for (std::uint32_t k = 0; k < plan.top_k; ++k) {
    if (id_at(k) >= plan.num_experts) {
      return Invalid("ids of row ", row, ", layer ", layer, " must be below ", plan.num_experts,
                     "; id ", k, " is ", id_at(k));
    }
    for (std::uint32_t before = 0; before < k; ++before) {
      if (id_at(before) != id_at(k)) continue;
      return Invalid("ids of row ", row, ", layer ", layer, " must be distinct; ids ", before,
                     " and ", k, " are ", id_at(k));
    }
  }
  return absl::OkStatus();
}

}  // namespace

SetCode::SetCode(const SetCodeParams& params)
    : SetCode(params, internal::SetCodeBackends().back()) {}

SetCode::SetCode(const SetCodeParams& params, const internal::SetCodeBackend& backend)
    : plan_(internal::MakeSetCodePlan(params)),
      backend_(plan_->vectors ? &backend : &internal::SetCodeBackends().front()) {}

std::size_t SetCode::LayerBytes(std::int64_t rows) const {
  return (static_cast<std::size_t>(rows) * plan_->bits + 7) / 8;
}

absl::Status SetCode::Encode(std::span<const RowInfo> infos, std::int32_t num_layers,
                             std::span<const std::uint8_t> ids,
                             std::span<std::uint8_t> codes) const {
  const SetCodePlan& plan = *plan_;
  const std::size_t rows = infos.size();
  const std::size_t cell_bytes = std::size_t{plan.top_k} * plan.id_bytes;
  const std::size_t layer_bytes = LayerBytes(static_cast<std::int64_t>(rows));
  const auto layers = static_cast<std::size_t>(num_layers);
  const std::size_t row_bytes = layers * cell_bytes;
  std::array<std::uint32_t, internal::kMaxIdWords * kTileRows> id_words{};
  std::array<std::uint32_t, internal::kMaxCodeWords * kTileRows> code_words;
  for (std::size_t first = 0; first < rows; first += kTileRows) {
    const std::size_t in_tile = std::min(kTileRows, rows - first);
    const std::uint64_t valid = ValidRows(infos.data() + first, in_tile);
    const std::uint8_t* const of_tile = ids.data() + first * row_bytes;
    std::uint64_t bad = 0;
    for (TileLayers tile(in_tile, layers); !tile.done(); tile.Next()) {
      const std::uint64_t valid_cells = tile.Repeat(valid);
      for (std::size_t i = 0; i < tile.layers(); ++i) {
        MoveCells(plan, of_tile + (tile.first() + i) * cell_bytes, row_bytes, in_tile,
                  id_words.data() + i * in_tile);
      }
      bad |= tile.Fold(backend_->encode(plan, id_words.data(), code_words.data()));
      const std::uint64_t zeros = ~valid_cells & tile.cells();
      if (zeros != 0) ClearRows(zeros, plan.code_words, code_words.data());
      for (std::size_t i = 0; i < tile.layers(); ++i) {
        PackCodes(plan, code_words.data() + i * in_tile, in_tile,
                  codes.data() + (tile.first() + i) * layer_bytes + first * plan.bits / 8);
      }
    }
    bad &= valid;
    if (bad == 0) continue;
    std::fill(codes.begin(), codes.end(), std::uint8_t{0});
    const auto row = static_cast<std::size_t>(std::countr_zero(bad));
    for (std::size_t layer = 0; layer < layers; ++layer) {
      absl::Status status =
          BadCell(plan, of_tile + row * row_bytes + layer * cell_bytes,
                  static_cast<std::int64_t>(first + row), static_cast<std::int32_t>(layer));
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

std::int64_t SetCode::Decode(std::span<const std::uint8_t> codes, std::span<const RowInfo> infos,
                             const RowsAndLayers& part, std::span<std::uint8_t> ids,
                             std::span<std::uint8_t> corrupt) const {
  const SetCodePlan& plan = *plan_;
  const std::size_t layer_bytes = LayerBytes(static_cast<std::int64_t>(infos.size()));
  const auto rows = static_cast<std::size_t>(part.row_end - part.row_begin);
  const auto layers = static_cast<std::size_t>(part.layer_end - part.layer_begin);
  const std::size_t cell_bytes = std::size_t{plan.top_k} * plan.id_bytes;
  const std::size_t row_bytes = layers * cell_bytes;
  std::array<std::uint32_t, internal::kMaxIdWords * kTileRows> id_words;
  std::array<std::uint32_t, internal::kMaxCodeWords * kTileRows> code_words{};
  const std::uint8_t* const end = codes.data() + codes.size();
  std::int64_t corrupt_rows = 0;
  for (std::size_t first = 0; first < rows; first += kTileRows) {
    const std::size_t in_tile = std::min(kTileRows, rows - first);
    const std::size_t chunk_row = static_cast<std::size_t>(part.row_begin) + first;
    const std::uint64_t valid = ValidRows(infos.data() + chunk_row, in_tile);
    std::uint64_t bad = 0;
    for (TileLayers tile(in_tile, layers); !tile.done(); tile.Next()) {
      const std::size_t chunk_layer = static_cast<std::size_t>(part.layer_begin) + tile.first();
      for (std::size_t i = 0; i < tile.layers(); ++i) {
        UnpackCodes(plan, codes.data() + (chunk_layer + i) * layer_bytes, end, chunk_row, in_tile,
                    code_words.data() + i * in_tile);
      }
      const std::uint64_t valid_cells = tile.Repeat(valid);
      const std::uint64_t bad_cells =
          backend_->decode(plan, code_words.data(), id_words.data()) & valid_cells;
      const std::uint64_t zeros = (~valid_cells | bad_cells) & tile.cells();
      if (zeros != 0) ClearRows(zeros, plan.id_words, id_words.data());
      for (std::size_t i = 0; i < tile.layers(); ++i) {
        MoveCells(plan, ids.data() + first * row_bytes + (tile.first() + i) * cell_bytes, row_bytes,
                  in_tile, std::as_const(id_words).data() + i * in_tile);
      }
      bad |= tile.Fold(bad_cells);
    }
    for (std::size_t row = 0; row < in_tile; ++row)
      corrupt[first + row] = static_cast<std::uint8_t>(bad >> row & 1);
    corrupt_rows += std::popcount(bad);
  }
  return corrupt_rows;
}

}  // namespace waymark
