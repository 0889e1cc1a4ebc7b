// SetCode: every implementation against the vectors of the Python reference, against each other,
// and against what a set code has to be (a bijection, decodable at any row and layer, safe on any
// bytes).
#include "blockstore/wire/set_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "blockstore/wire/set_code_tile.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"
#include "tests/unit/kernels/guarded_buffer.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<std::uint32_t>;
using Bytes = std::vector<std::uint8_t>;

constexpr RowInfo kValid{1, 1, Reason::kNone, Provenance::kHere};

std::string Name(const SetCodeParams& params) {
  return "E " + std::to_string(params.num_experts) + ", K " + std::to_string(params.top_k) +
         ", l " + std::to_string(params.low_bits) +
         (params.high_bits == HighBits::kUnary ? ", unary" : ", ranked");
}

std::size_t IdBytes(const SetCodeParams& params) {
  return params.num_experts <= 256 ? 1 : 2;
}

std::size_t CellBytes(const SetCodeParams& params) {
  return static_cast<std::size_t>(params.top_k) * IdBytes(params);
}

void Append(const SetCodeParams& params, const Ids& ids, Bytes* to) {
  for (const std::uint32_t id : ids) {
    to->push_back(static_cast<std::uint8_t>(id));
    if (IdBytes(params) == 2) to->push_back(static_cast<std::uint8_t>(id >> 8));
  }
}

Ids IdsAt(const SetCodeParams& params, const std::uint8_t* cell) {
  Ids ids;
  for (std::size_t k = 0; k < static_cast<std::size_t>(params.top_k); ++k) {
    ids.push_back(IdBytes(params) == 1
                      ? cell[k]
                      : static_cast<std::uint32_t>(cell[2 * k] | cell[2 * k + 1] << 8));
  }
  return ids;
}

// Bit after bit, on purpose.
bool BitAt(const Bytes& bytes, std::size_t bit) {
  return (bytes[bit / 8] >> bit % 8 & 1) != 0;
}

// The bits of a code.
std::size_t BitsOf(const SetCode& code) {
  return code.LayerBytes(8);
}

Bytes Encode(const SetCode& code, const std::vector<RowInfo>& infos, std::int32_t layers,
             const Bytes& ids) {
  Bytes codes(
      static_cast<std::size_t>(layers) * code.LayerBytes(static_cast<std::int64_t>(infos.size())),
      0xcd);
  const absl::Status status = code.Encode(infos, layers, ids, codes);
  EXPECT_TRUE(status.ok()) << status;
  return codes;
}

struct Decoded {
  Bytes ids;
  Bytes corrupt;
  std::int64_t corrupt_rows = 0;
  friend bool operator==(const Decoded&, const Decoded&) = default;
};

// From codes that end where the readable memory ends, to ids that end where the writable one does.
Decoded Decode(const SetCodeParams& params, const SetCode& code, const Bytes& codes,
               const std::vector<RowInfo>& infos, const RowsAndLayers& part) {
  const auto rows = static_cast<std::size_t>(part.row_end - part.row_begin);
  const auto part_layers = static_cast<std::size_t>(part.layer_end - part.layer_begin);
  const kernels::GuardedBuffer in(codes.size());
  std::copy(codes.begin(), codes.end(), in.data());
  const kernels::GuardedBuffer out(rows * part_layers * CellBytes(params));
  std::memset(out.data(), 0xcd, out.size());
  Decoded decoded;
  decoded.corrupt.assign(rows, 0xcd);
  decoded.corrupt_rows =
      code.Decode({in.data(), in.size()}, infos, part, {out.data(), out.size()}, decoded.corrupt);
  decoded.ids.assign(out.data(), out.data() + out.size());
  return decoded;
}

RowsAndLayers All(std::size_t rows, std::int32_t layers) {
  return {0, static_cast<std::int64_t>(rows), 0, layers};
}

// Sets that go wrong first, then random ones; each shuffled.
Ids MakeIds(const SetCodeParams& params, std::size_t n, std::mt19937_64& random) {
  const auto experts = static_cast<std::uint32_t>(params.num_experts);
  const auto top_k = static_cast<std::uint32_t>(params.top_k);
  Ids ids(top_k);
  std::iota(ids.begin(), ids.end(), 0u);
  switch (n % 8) {
    case 0:  // the lowest
      break;
    case 1:  // the highest
      for (std::uint32_t& id : ids)
        id += experts - top_k;
      break;
    case 2: {  // neighbours somewhere
      const auto by = static_cast<std::uint32_t>(random() % (experts - top_k + 1));
      for (std::uint32_t& id : ids)
        id += by;
      break;
    }
    case 3:  // far apart
      for (std::uint32_t& id : ids)
        id = id * (experts / top_k);
      break;
    case 4:  // the lowest and the last
      ids.back() = experts - 1;
      break;
    default: {
      std::map<std::uint32_t, bool> seen;
      for (std::uint32_t& id : ids) {
        do {
          id = static_cast<std::uint32_t>(random() % experts);
        } while (!seen.emplace(id, true).second);
      }
    }
  }
  std::shuffle(ids.begin(), ids.end(), random);
  return ids;
}

struct Chunk {
  std::vector<RowInfo> infos;
  std::int32_t layers = 0;
  Bytes ids;       // as given
  Bytes expected;  // as decoded: ascending; missing rows zero
};

Chunk MakeChunk(const SetCodeParams& params, std::size_t rows, std::int32_t layers,
                std::mt19937_64& random, bool with_missing) {
  Chunk chunk;
  chunk.layers = layers;
  for (std::size_t row = 0; row < rows; ++row) {
    const bool missing = with_missing && random() % 5 == 0;
    chunk.infos.push_back(missing ? RowInfo{} : kValid);
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      Ids ids = MakeIds(params, row + static_cast<std::size_t>(layer), random);
      // What stands in a missing row is nobody's business.
      if (missing) ids.assign(ids.size(), static_cast<std::uint32_t>(random() % 65536));
      Append(params, ids, &chunk.ids);
      std::sort(ids.begin(), ids.end());
      if (missing) ids.assign(ids.size(), 0);
      Append(params, ids, &chunk.expected);
    }
  }
  return chunk;
}

std::vector<SetCodeParams> Grid() {
  std::vector<SetCodeParams> grid;
  for (const std::int32_t experts :
       {1, 2, 3, 8, 16, 17, 31, 60, 64, 128, 160, 255, 256, 257, 384, 512, 1000, 4096, 65535}) {
    for (const std::int32_t top_k : {1, 2, 3, 4, 6, 7, 8, 9, 10, 16, 22, 33, 64}) {
      for (std::int32_t low_bits = 0; low_bits <= 16; ++low_bits) {
        if (low_bits > 6 && low_bits < 15 && experts < 1000) continue;
        for (const HighBits high_bits : {HighBits::kRanked, HighBits::kUnary}) {
          const SetCodeParams params{experts, top_k, low_bits, high_bits};
          if (params.Validate().ok()) grid.push_back(params);
        }
      }
    }
  }
  return grid;
}

const SetCodeParams kModels[] = {SetCodeParams::Default(128, 8), SetCodeParams::Default(256, 8),
                                 SetCodeParams::Default(384, 8), SetCodeParams::Default(512, 10),
                                 SetCodeParams::Default(512, 22)};

// ---- Vectors

struct Vectors {
  struct Cell {
    SetCodeParams params;
    Bytes code;  // ceil(bits / 8) bytes
    Ids ids;     // empty: the code is corrupt
  };
  struct Layer {
    SetCodeParams params;
    Bytes codes;
    std::vector<Ids> rows;  // empty: missing
  };
  std::vector<Cell> cells;
  std::vector<Layer> layers;
};

Bytes FromHex(const std::string& text) {
  Bytes bytes;
  if (text == "-") return bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

Ids IdsOf(const std::string& text) {
  Ids ids;
  std::istringstream stream(text);
  for (std::string id; std::getline(stream, id, ',');)
    ids.push_back(static_cast<std::uint32_t>(std::stoul(id)));
  return ids;
}

Vectors ReadVectors() {
  Vectors vectors;
  std::ifstream file(WAYMARK_SET_CODE_VECTORS);
  EXPECT_TRUE(file.is_open()) << WAYMARK_SET_CODE_VECTORS;
  for (std::string line; std::getline(file, line);) {
    std::istringstream stream(line);
    std::string kind, bytes, ids;
    SetCodeParams params;
    int unary = 0;
    if (!(stream >> kind) || kind[0] == '#') continue;
    stream >> params.num_experts >> params.top_k >> params.low_bits >> unary >> bytes;
    params.high_bits = unary != 0 ? HighBits::kUnary : HighBits::kRanked;
    if (kind == "layer") {
      Vectors::Layer layer{params, FromHex(bytes), {}};
      while (stream >> ids)
        layer.rows.push_back(ids == "-" ? Ids{} : IdsOf(ids));
      vectors.layers.push_back(layer);
    } else {
      stream >> ids;
      vectors.cells.push_back({params, FromHex(bytes), ids == "corrupt" ? Ids{} : IdsOf(ids)});
    }
  }
  return vectors;
}

TEST(SetCodeTest, IsThePythonReference) {
  const Vectors vectors = ReadVectors();
  ASSERT_GE(vectors.cells.size(), 80u);
  ASSERT_GE(vectors.layers.size(), 5u);
  for (const internal::SetCodeBackend& backend : internal::SetCodeBackends()) {
    SCOPED_TRACE(backend.name);
    int corrupt = 0;
    for (const Vectors::Cell& cell : vectors.cells) {
      SCOPED_TRACE(Name(cell.params) + ", ids " + ::testing::PrintToString(cell.ids));
      const SetCode code(cell.params, backend);
      const Decoded decoded = Decode(cell.params, code, cell.code, {kValid}, All(1, 1));
      if (cell.ids.empty()) {
        ++corrupt;
        EXPECT_EQ(decoded, (Decoded{Bytes(CellBytes(cell.params)), {1}, 1}));
        continue;
      }
      Bytes ids;
      Append(cell.params, cell.ids, &ids);
      EXPECT_EQ(Encode(code, {kValid}, 1, ids), cell.code);
      EXPECT_EQ(decoded, (Decoded{ids, {0}, 0}));
    }
    EXPECT_GE(corrupt, 10);
    for (const Vectors::Layer& layer : vectors.layers) {
      SCOPED_TRACE(Name(layer.params));
      const SetCode code(layer.params, backend);
      std::vector<RowInfo> infos;
      Bytes ids;
      for (const Ids& row : layer.rows) {
        infos.push_back(row.empty() ? RowInfo{} : kValid);
        Append(layer.params, row.empty() ? Ids(static_cast<std::size_t>(layer.params.top_k)) : row,
               &ids);
      }
      EXPECT_EQ(Encode(code, infos, 1, ids), layer.codes);
    }
  }
}

// ---- A bijection

TEST(SetCodeTest, EverySetHasOneCodeAndEveryOtherCodeIsCorrupt) {
  std::vector<SetCodeParams> small;
  for (std::int32_t experts = 1; experts <= 12; ++experts) {
    for (std::int32_t top_k = 1; top_k <= std::min(experts, 6); ++top_k) {
      for (const std::int32_t low_bits : {0, 1, 2, 3}) {
        small.push_back({experts, top_k, low_bits, HighBits::kRanked});
        small.push_back({experts, top_k, low_bits, HighBits::kUnary});
      }
    }
  }
  small.push_back({64, 2, 1, HighBits::kRanked});
  small.push_back({300, 2, 4, HighBits::kRanked});
  std::size_t tried = 0;
  for (const SetCodeParams& params : small) {
    SCOPED_TRACE(Name(params));
    const SetCode portable(params, internal::SetCodeBackends().front());
    if (BitsOf(portable) > (params.num_experts <= 12 ? PlainOr(16u, 12u) : 16u)) continue;
    ++tried;
    // All sets, by all bitmaps or, of larger E, all pairs.
    std::vector<Ids> sets;
    std::string chosen(static_cast<std::size_t>(params.top_k), 1);
    chosen.resize(static_cast<std::size_t>(params.num_experts), 0);
    do {
      Ids ids;
      for (std::size_t id = 0; id < chosen.size(); ++id) {
        if (chosen[id] != 0) ids.push_back(static_cast<std::uint32_t>(id));
      }
      sets.push_back(ids);
    } while (std::prev_permutation(chosen.begin(), chosen.end()));
    Bytes ids;
    for (const Ids& set : sets)
      Append(params, set, &ids);
    for (const internal::SetCodeBackend& backend : internal::SetCodeBackends()) {
      SCOPED_TRACE(backend.name);
      const SetCode code(params, backend);
      const auto bits = BitsOf(code);
      const Bytes codes = Encode(code, std::vector<RowInfo>(sets.size(), kValid), 1, ids);
      std::map<std::uint32_t, Ids> set_of;
      for (std::size_t i = 0; i < sets.size(); ++i) {
        std::uint32_t value = 0;
        for (std::size_t bit = 0; bit < bits; ++bit)
          value |= std::uint32_t{BitAt(codes, i * bits + bit)} << bit;
        ASSERT_TRUE(set_of.emplace(value, sets[i]).second) << "two sets have the code " << value;
      }
      const std::size_t all = std::size_t{1} << bits;
      Bytes every((all * bits + 7) / 8);
      for (std::size_t bit = 0; bit < all * bits; ++bit) {
        if ((bit / bits >> bit % bits & 1) != 0)
          every[bit / 8] |= static_cast<std::uint8_t>(1 << bit % 8);
      }
      const Decoded decoded =
          Decode(params, code, every, std::vector<RowInfo>(all, kValid), All(all, 1));
      EXPECT_EQ(decoded.corrupt_rows, static_cast<std::int64_t>(all - sets.size()));
      for (std::size_t value = 0; value < all; ++value) {
        const auto found = set_of.find(static_cast<std::uint32_t>(value));
        const bool is_code = found != set_of.end();
        ASSERT_EQ(decoded.corrupt[value], is_code ? 0 : 1) << value;
        ASSERT_EQ(IdsAt(params, decoded.ids.data() + value * CellBytes(params)),
                  is_code ? found->second : Ids(static_cast<std::size_t>(params.top_k)))
            << value;
      }
    }
  }
  EXPECT_GE(tried, 200u);
}

// ---- Round trips

TEST(SetCodeTest, RoundTripsOverTheGridAndAllBackendsAgree) {
  TestRandom random;
  const std::vector<SetCodeParams> grid = Grid();
  ASSERT_GE(grid.size(), 1000u);
  for (const SetCodeParams& params : grid) {
    SCOPED_TRACE(Name(params));
    const std::size_t rows = 1 + random() % PlainOr(150u, 80u);
    const Chunk chunk = MakeChunk(params, rows, 2, random, random() % 2 == 0);
    Bytes codes;
    for (const internal::SetCodeBackend& backend : internal::SetCodeBackends()) {
      SCOPED_TRACE(backend.name);
      const SetCode code(params, backend);
      const Bytes of_backend = Encode(code, chunk.infos, 2, chunk.ids);
      if (codes.empty()) codes = of_backend;
      ASSERT_EQ(of_backend, codes);
      const Decoded decoded = Decode(params, code, codes, chunk.infos, All(rows, 2));
      ASSERT_EQ(decoded.corrupt_rows, 0);
      ASSERT_EQ(decoded.ids, chunk.expected);
    }
  }
}

TEST(SetCodeTest, RowsOfTheModelsRoundTripAndAnyRectangleDecodesAlone) {
  TestRandom random(2);
  constexpr std::size_t kRows = 4003;
  constexpr std::int32_t kLayers = 5;
  for (const SetCodeParams& params : kModels) {
    SCOPED_TRACE(Name(params));
    const Chunk chunk = MakeChunk(params, kRows, kLayers, random, true);
    const std::size_t cell = CellBytes(params);
    for (const internal::SetCodeBackend& backend : internal::SetCodeBackends()) {
      SCOPED_TRACE(backend.name);
      const SetCode code(params, backend);
      const Bytes codes = Encode(code, chunk.infos, kLayers, chunk.ids);
      EXPECT_EQ(Decode(params, code, codes, chunk.infos, All(kRows, kLayers)),
                (Decoded{chunk.expected, Bytes(kRows), 0}));
      for (int n = 0; n < 200; ++n) {
        const std::size_t from = random() % (kRows - 203);
        RowsAndLayers part{static_cast<std::int64_t>(from + random() % 204),
                           static_cast<std::int64_t>(from + random() % 204),
                           static_cast<std::int32_t>(random() % (kLayers + 1)),
                           static_cast<std::int32_t>(random() % (kLayers + 1))};
        if (part.row_begin > part.row_end) std::swap(part.row_begin, part.row_end);
        if (part.layer_begin > part.layer_end) std::swap(part.layer_begin, part.layer_end);
        Bytes expected;
        for (auto row = part.row_begin; row < part.row_end; ++row) {
          const std::uint8_t* first =
              chunk.expected.data() +
              static_cast<std::size_t>(row * kLayers + part.layer_begin) * cell;
          expected.insert(
              expected.end(), first,
              first + static_cast<std::size_t>(part.layer_end - part.layer_begin) * cell);
        }
        const Decoded decoded = Decode(params, code, codes, chunk.infos, part);
        ASSERT_EQ(decoded.ids, expected)
            << "rows [" << part.row_begin << ", " << part.row_end << "), layers ["
            << part.layer_begin << ", " << part.layer_end << ")";
        ASSERT_EQ(decoded.corrupt_rows, 0);
      }
      // Layers [2, 4) of a chunk are a range of its bytes, and a chunk of two layers.
      const std::size_t layer_bytes = code.LayerBytes(kRows);
      const Bytes two(codes.begin() + static_cast<std::ptrdiff_t>(2 * layer_bytes),
                      codes.begin() + static_cast<std::ptrdiff_t>(4 * layer_bytes));
      EXPECT_EQ(Decode(params, code, two, chunk.infos, All(kRows, 2)).ids,
                Decode(params, code, codes, chunk.infos, {0, kRows, 2, 4}).ids);
    }
  }
}

// ---- Missing rows, and what is refused

TEST(SetCodeTest, BadIdsAreNamedAndNothingIsLeftBehind) {
  for (const internal::SetCodeBackend& backend : internal::SetCodeBackends()) {
    SCOPED_TRACE(backend.name);
    for (const SetCodeParams& params : kModels) {
      SCOPED_TRACE(Name(params));
      const SetCode code(params, backend);
      std::mt19937_64 random(8);
      const Chunk good = MakeChunk(params, 130, 3, random, false);
      const std::size_t at = (70 * 3 + 2) * CellBytes(params);
      Bytes codes(3 * code.LayerBytes(130), 0xcd);

      Bytes repeated = good.ids;
      const std::size_t last = at + CellBytes(params) - IdBytes(params);
      std::copy_n(repeated.begin() + static_cast<std::ptrdiff_t>(at), IdBytes(params),
                  repeated.begin() + static_cast<std::ptrdiff_t>(last));
      // A later one, in an earlier layer: the first row is named.
      std::fill_n(repeated.begin() + static_cast<std::ptrdiff_t>(90 * 3 * CellBytes(params)),
                  CellBytes(params), std::uint8_t{0});
      EXPECT_THAT(code.Encode(good.infos, 3, repeated, codes).message(),
                  HasSubstr("ids of row 70, layer 2 must be distinct; ids 0 and " +
                            std::to_string(params.top_k - 1)));
      EXPECT_EQ(codes, Bytes(codes.size()));

      if (params.num_experts == 256) continue;  // a byte holds no id that is out of range
      Bytes above = good.ids;
      above[last] = static_cast<std::uint8_t>(params.num_experts);
      if (IdBytes(params) == 2) {
        above[last + 1] = static_cast<std::uint8_t>(params.num_experts >> 8);
      }
      codes.assign(codes.size(), 0xcd);
      EXPECT_THAT(
          code.Encode(good.infos, 3, above, codes).message(),
          HasSubstr("ids of row 70, layer 2 must be below " + std::to_string(params.num_experts) +
                    "; id " + std::to_string(params.top_k - 1) + " is " +
                    std::to_string(params.num_experts)));
      EXPECT_EQ(codes, Bytes(codes.size()));
    }
  }
}

TEST(SetCodeTest, AnyBytesDecodeSafelyAndAlike) {
  TestRandom random(3);
  const std::vector<SetCodeParams> grid = Grid();
  std::int64_t corrupt = 0;
  for (const SetCodeParams& params : grid) {
    SCOPED_TRACE(Name(params));
    const std::size_t rows = 1 + random() % 100;
    const std::vector<RowInfo> infos(rows, kValid);
    const SetCode portable(params, internal::SetCodeBackends().front());
    Bytes codes(2 * portable.LayerBytes(static_cast<std::int64_t>(rows)));
    const unsigned kind = static_cast<unsigned>(random() % 4);
    for (std::uint8_t& byte : codes) {
      byte = static_cast<std::uint8_t>(kind == 0   ? 0xff
                                       : kind == 1 ? random() & random()
                                                   : random());
    }
    const Decoded expected = Decode(params, portable, codes, infos, All(rows, 2));
    corrupt += expected.corrupt_rows;
    for (const internal::SetCodeBackend& backend : internal::SetCodeBackends()) {
      ASSERT_EQ(Decode(params, SetCode(params, backend), codes, infos, All(rows, 2)), expected)
          << backend.name;
    }
    // What was not corrupt is the code of what was decoded: all of it again, bit for bit.
    std::vector<RowInfo> sound = infos;
    for (std::size_t row = 0; row < rows; ++row) {
      if (expected.corrupt[row] != 0) sound[row] = RowInfo{};
    }
    const Bytes again = Encode(portable, sound, 2, expected.ids);
    const auto bits = BitsOf(portable);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      for (std::size_t bit = 0; bit < rows * bits; ++bit) {
        if (!sound[bit / bits].valid()) continue;
        const std::size_t from = layer * codes.size() / 2 * 8;
        ASSERT_EQ(BitAt(again, from + bit), BitAt(codes, from + bit)) << "row " << bit / bits;
      }
    }
  }
  EXPECT_GT(corrupt, 0);
}

TEST(SetCodeTest, NoRowsAndNoLayersAreNoBytes) {
  for (const SetCodeParams& params : kModels) {
    const SetCode code(params);
    EXPECT_TRUE(code.Encode({}, 3, {}, {}).ok());
    EXPECT_EQ(code.Decode({}, {}, {0, 0, 0, 3}, {}, {}), 0);
    const std::vector<RowInfo> infos(70, kValid);
    EXPECT_TRUE(code.Encode(infos, 0, {}, {}).ok());
    Bytes corrupt(70, 0xcd);
    EXPECT_EQ(code.Decode({}, infos, {0, 70, 0, 0}, {}, corrupt), 0);
    EXPECT_EQ(corrupt, Bytes(70));
  }
}

TEST(SetCodeTest, ParametersOutOfBoundsAreRefusedByName) {
  const auto message = [](const SetCodeParams& params) {
    EXPECT_FALSE(params.Validate().ok());
    return std::string(params.Validate().message());
  };
  EXPECT_THAT(message({0, 1, 0, HighBits::kRanked}),
              HasSubstr("num_experts must be in [1, 65535]; it is 0"));
  EXPECT_THAT(message({65536, 1, 0, HighBits::kRanked}), HasSubstr("num_experts must be in"));
  EXPECT_THAT(message({8, 0, 0, HighBits::kRanked}), HasSubstr("top_k must be in [1, 8]; it is 0"));
  EXPECT_THAT(message({8, 9, 0, HighBits::kRanked}), HasSubstr("top_k must be in [1, 8]; it is 9"));
  EXPECT_THAT(message({128, 65, 0, HighBits::kRanked}), HasSubstr("top_k must be in [1, 64]"));
  EXPECT_THAT(message({8, 2, -1, HighBits::kRanked}), HasSubstr("low_bits must be in [0, 16]"));
  EXPECT_THAT(message({8, 2, 17, HighBits::kRanked}), HasSubstr("low_bits must be in [0, 16]"));
  EXPECT_THAT(message({8, 2, 1, static_cast<HighBits>(2)}),
              HasSubstr("high_bits must be in [0, 1]; it is 2"));
  EXPECT_THAT(message({512, 10, 0, HighBits::kRanked}),
              HasSubstr("a rank must have at most 64 bits; E 512, K 10, l 0 need more"));
  EXPECT_THAT(message({65535, 2, 0, HighBits::kUnary}),
              HasSubstr("a code must have at most 1024 bits; E 65535, K 2, l 0 make 65535"));
}

// What docs/internals/format-set-code.md says.
TEST(SetCodeTest, DefaultsOfTheModels) {
  struct Row {
    SetCodeParams params;
    std::size_t bits;
  };
  const Row rows[] = {{{128, 8, 3, HighBits::kRanked}, 43},
                      {{256, 8, 4, HighBits::kRanked}, 51},
                      {{384, 8, 4, HighBits::kRanked}, 55},
                      {{512, 10, 4, HighBits::kRanked}, 71},
                      {{512, 22, 4, HighBits::kUnary}, 141}};
  for (const Row& row : rows) {
    const auto made = SetCodeParams::Default(row.params.num_experts, row.params.top_k);
    EXPECT_EQ(made, row.params) << Name(made);
    EXPECT_EQ(BitsOf(SetCode(made)), row.bits) << Name(made);
  }
  // The budget of 32,767 rows of 58 layers.
  EXPECT_LE(58 * SetCode(rows[1].params).LayerBytes(32767), 12'200'000u);
}

TEST(SetCodeTest, DefaultsAreSoundForEveryShape) {
  for (std::int32_t experts = 1; experts <= 65535; experts += 1 + experts / 17) {
    for (std::int32_t top_k = 1; top_k <= std::min(64, experts); ++top_k) {
      const SetCodeParams params = SetCodeParams::Default(experts, top_k);
      const absl::Status status = params.Validate();
      ASSERT_TRUE(status.ok()) << Name(params) << ": " << status;
    }
  }
  EXPECT_FALSE(SetCodeParams::Default(0, 1).Validate().ok());
  EXPECT_FALSE(SetCodeParams::Default(8, 9).Validate().ok());
}

}  // namespace
}  // namespace waymark
