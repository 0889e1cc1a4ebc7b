// Writing rows out: every layout, id type and fill against one plain loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "blockstore/rows.h"
#include "blockstore/write_layers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

constexpr IdType kIdTypes[] = {IdType::kUint8, IdType::kUint16, IdType::kInt16, IdType::kInt32,
                               IdType::kInt64};

std::uint64_t Expected(const RoutingShape& shape, const std::uint8_t* stored, Fill fill,
                       std::size_t layer, std::size_t k) {
  if (stored == nullptr) return fill == Fill::kMinusOne ? ~std::uint64_t{0} : 0;
  const std::size_t at = layer * static_cast<std::size_t>(shape.top_k) + k;
  if (shape.id_bytes() == 1) return stored[at];
  return static_cast<std::uint64_t>(stored[2 * at] | stored[2 * at + 1] << 8);
}

class WriteRowsTest : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(WriteRowsTest, EveryLayoutTypeAndFillIsThePlainLoop) {
  const auto [top_k, num_experts] = GetParam();
  TestRandom random(static_cast<std::uint64_t>(top_k));
  for (const int layers : {1, 3, 17}) {
    const RoutingShape shape{layers, top_k, num_experts, 4, {}};
    ASSERT_TRUE(shape.Validate().ok());
    for (const std::size_t rows : {0, 1, 31, 33, 77}) {
      // Rows side by side, runs broken at random, missing rows alone and in runs. Odd addresses.
      std::vector<std::uint8_t> memory(2 * (rows + 4) * shape.row_bytes() + 1);
      for (std::size_t i = 1; i + 1 < memory.size(); i += 2) {
        const auto id = static_cast<std::uint32_t>(random() % static_cast<unsigned>(num_experts));
        memory[i] = static_cast<std::uint8_t>(id);
        memory[i + 1] = static_cast<std::uint8_t>(
            shape.id_bytes() == 2 ? id >> 8 : random() % static_cast<unsigned>(num_experts));
      }
      std::vector<const std::uint8_t*> row_pointers(rows);
      std::size_t row = 0;
      for (auto& stored : row_pointers) {
        if (random() % 8 == 0) row = random() % (2 * rows);
        stored = random() % 6 == 0 ? nullptr : memory.data() + 1 + row * shape.row_bytes();
        row = (row + 1) % (2 * rows);
      }
      for (const Layout layout : {Layout::kTokensLayersK, Layout::kLayersTokensK}) {
        for (const IdType type : kIdTypes) {
          for (const Fill fill : {Fill::kMinusOne, Fill::kZeros}) {
            const ReadSpec spec{layout, type, fill};
            const std::size_t bytes = IdBytes(type);
            std::vector<std::uint8_t> out(rows * shape.row_ids() * bytes + 2, 0xa5);
            const std::size_t size = out.size() - 2;
            if (!CheckReadSpec(shape, static_cast<std::int64_t>(rows), spec, size).ok()) continue;
            WriteRows(shape, row_pointers, spec, std::span(out).subspan(1, size));
            ASSERT_EQ(out.front(), 0xa5);
            ASSERT_EQ(out.back(), 0xa5);
            for (std::size_t t = 0; t < rows; ++t) {
              for (std::size_t l = 0; l < static_cast<std::size_t>(layers); ++l) {
                for (std::size_t k = 0; k < static_cast<std::size_t>(top_k); ++k) {
                  const std::size_t at =
                      (layout == Layout::kTokensLayersK ? t * static_cast<std::size_t>(layers) + l
                                                        : l * rows + t) *
                          static_cast<std::size_t>(top_k) +
                      k;
                  const std::uint64_t wanted = Expected(shape, row_pointers[t], fill, l, k);
                  ASSERT_EQ(std::memcmp(out.data() + 1 + at * bytes, &wanted, bytes), 0)
                      << "row " << t << " layer " << l << " k " << k << " of " << rows << " rows, "
                      << layers << " layers; layout " << static_cast<int>(layout) << " type "
                      << static_cast<int>(type) << " fill " << static_cast<int>(fill);
                }
              }
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, WriteRowsTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 6, 8, 10, 13, 16, 22),
                                            ::testing::Values(64, 256, 257, 32768, 65535)));

// More than caches hold is written past them: in other tiles, and lines of the output are shared by
// tiles and by layers at every address.
TEST(WriteRows, StreamedOutputIsThePlainLoop) {
  TestRandom random;
  for (const int top_k : PlainOr<std::vector<int>>({1, 2, 4, 6, 8, 10, 13}, {1, 8, 13})) {
    for (const int num_experts : {256, 384}) {
      for (const IdType type : {IdType::kInt16, IdType::kInt32, IdType::kInt64}) {
        const RoutingShape shape{top_k == 1 ? 131 : 23, top_k, num_experts, 4, {}};
        const std::size_t bytes = IdBytes(type);
        const std::size_t rows = (std::size_t{5} << 20) / (shape.row_ids() * bytes) + random() % 99;
        std::vector<std::uint8_t> memory((rows + 1) * shape.row_bytes());
        for (std::uint8_t& byte : memory)
          byte = static_cast<std::uint8_t>(random() % 2);
        std::vector<const std::uint8_t*> row_pointers(rows);
        for (auto& stored : row_pointers) {
          stored = random() % 6 == 0 ? nullptr
                                     : memory.data() + random() % (rows + 1) * shape.row_bytes();
        }
        // Streamed at multiples of 16 alone.
        std::vector<std::uint8_t> out(256 + rows * shape.row_ids() * bytes, 0xa5);
        const std::size_t shift = 1 + (random() % 4 == 0 ? random() % 64 : 15 + random() % 4 * 16) +
                                  (64 - reinterpret_cast<std::uintptr_t>(out.data()) % 64) % 64;
        out.resize(shift + rows * shape.row_ids() * bytes + 1);
        WriteRows(shape, row_pointers, {Layout::kLayersTokensK, type, Fill::kMinusOne},
                  std::span(out).subspan(shift, out.size() - shift - 1));
        ASSERT_EQ(out[shift - 1], 0xa5);
        ASSERT_EQ(out.back(), 0xa5);
        const std::uint8_t* at = out.data() + shift;
        for (std::size_t l = 0; l < static_cast<std::size_t>(shape.num_layers); ++l) {
          for (std::size_t t = 0; t < rows; ++t) {
            for (std::size_t k = 0; k < static_cast<std::size_t>(top_k); ++k, at += bytes) {
              const std::uint64_t wanted = Expected(shape, row_pointers[t], Fill::kMinusOne, l, k);
              ASSERT_EQ(std::memcmp(at, &wanted, bytes), 0)
                  << "row " << t << " of " << rows << ", layer " << l << ", k " << k << ", K "
                  << top_k << ", E " << num_experts << ", type " << static_cast<int>(type);
            }
          }
        }
      }
    }
  }
}

// Every instruction set, K, type and fill; tiles of tensors whose layers are apart. Rows lie anywhere,
// as rows or as layers of a chunk, some behind each other, the last one at the end of its memory, so
// that a sanitizer sees a read behind it.
TEST(WriteLayers, EveryInstructionSetIsThePlainLoop) {
  TestRandom random;
  std::vector<int> top_ks = {32, 47, 64};
  for (int top_k = 1; top_k <= 22; ++top_k)
    top_ks.push_back(top_k);
  for (const internal::LayerOps& ops : internal::SupportedLayerOps()) {
    for (const int top_k : top_ks) {
      for (const int num_experts : {256, 65535}) {
        const RoutingShape shape{
            static_cast<std::int32_t>(1 + random() % 5), top_k, num_experts, 4, {}};
        const auto k_size = static_cast<std::size_t>(top_k);
        const std::size_t rows = random() % 3 == 0 ? 1 + random() % 3 : 1 + random() % 700;
        std::vector<std::uint8_t> memory((rows + 1) * shape.row_bytes());
        for (std::uint8_t& byte : memory)
          byte = static_cast<std::uint8_t>(random());
        const std::size_t group = k_size * shape.id_bytes();
        const bool chunk = random() % 2 == 0;
        const std::size_t from_row = chunk ? group : shape.row_bytes();
        const std::size_t from_layer = chunk ? (rows + 1) * group : group;
        std::vector<const std::uint8_t*> row_pointers(rows);
        std::size_t at = 0;
        for (auto& stored : row_pointers) {
          at = random() % 3 == 0 ? random() % (rows + 1) : (at + 1) % (rows + 1);
          stored = random() % 6 == 0 ? nullptr : memory.data() + at * from_row;
        }
        row_pointers[random() % rows] = memory.data() + rows * from_row;
        for (const IdType type : kIdTypes) {
          if (num_experts > 256 && IdBytes(type) < 2) continue;
          for (const Fill fill : {Fill::kMinusOne, Fill::kZeros}) {
            const std::size_t bytes = IdBytes(type);
            const std::size_t layer_bytes = rows * k_size * bytes + random() % 200;
            std::vector<std::uint8_t> out(
                static_cast<std::size_t>(shape.num_layers) * layer_bytes + random() % 64 + 64,
                0xa5);
            const std::size_t shift =
                random() % (out.size() - static_cast<std::size_t>(shape.num_layers) * layer_bytes);
            internal::WriteLayers(ops, shape, {row_pointers, from_layer},
                                  {type, fill, out.data() + shift, layer_bytes, random() % 2 == 0},
                                  std::span(row_pointers).first(chunk ? 0 : random() % rows));
            std::vector<std::uint8_t> wanted(out.size(), 0xa5);
            for (std::size_t l = 0; l < static_cast<std::size_t>(shape.num_layers); ++l) {
              for (std::size_t t = 0; t < rows; ++t) {
                const std::uint8_t* const stored = row_pointers[t];
                for (std::size_t k = 0; k < k_size; ++k) {
                  const std::uint64_t id = Expected(
                      shape, stored == nullptr ? nullptr : stored + l * from_layer, fill, 0, k);
                  std::memcpy(wanted.data() + shift + l * layer_bytes + (t * k_size + k) * bytes,
                              &id, bytes);
                }
              }
            }
            ASSERT_TRUE(out == wanted)
                << ops.name << ", " << rows << " rows, " << shape.num_layers << " layers, K "
                << top_k << ", E " << num_experts << ", type " << static_cast<int>(type)
                << ", fill " << static_cast<int>(fill);
          }
        }
      }
    }
  }
}

TEST(ReadSpec, IdsMustFitTheType) {
  const auto check = [](int num_experts, IdType type) {
    const RoutingShape shape{1, 1, num_experts, 4, {}};
    return CheckReadSpec(shape, 1, {Layout::kTokensLayersK, type, Fill::kZeros}, IdBytes(type));
  };
  EXPECT_TRUE(check(256, IdType::kUint8).ok());
  EXPECT_THAT(check(257, IdType::kUint8).message(),
              HasSubstr("spec.id_type holds ids below 256 only; shape.num_experts is 257"));
  EXPECT_TRUE(check(32768, IdType::kInt16).ok());
  EXPECT_FALSE(check(32769, IdType::kInt16).ok());
  EXPECT_TRUE(check(65535, IdType::kUint16).ok());
  EXPECT_TRUE(check(65535, IdType::kInt32).ok());
}

// Regression: a missing row read as expert 255.
TEST(ReadSpec, TheFillIsNoExpert) {
  const auto check = [](int num_experts, IdType type, Fill fill) {
    const RoutingShape shape{1, 1, num_experts, 4, {}};
    return CheckReadSpec(shape, 1, {Layout::kTokensLayersK, type, fill}, IdBytes(type));
  };
  EXPECT_TRUE(check(255, IdType::kUint8, Fill::kMinusOne).ok());
  EXPECT_THAT(check(256, IdType::kUint8, Fill::kMinusOne).message(),
              HasSubstr("spec.fill must not be kMinusOne with kUint8, where it is 255"));
  EXPECT_TRUE(check(256, IdType::kUint8, Fill::kZeros).ok());
  EXPECT_TRUE(check(256, IdType::kInt16, Fill::kMinusOne).ok());
  EXPECT_TRUE(check(65535, IdType::kUint16, Fill::kMinusOne).ok());
}

TEST(ReadSpec, TheSizeIsExact) {
  const RoutingShape shape{2, 3, 64, 4, {}};
  const ReadSpec spec{Layout::kTokensLayersK, IdType::kInt32, Fill::kZeros};
  EXPECT_TRUE(CheckReadSpec(shape, 5, spec, 5 * 6 * 4).ok());
  EXPECT_THAT(CheckReadSpec(shape, 5, spec, 119).message(),
              HasSubstr("out must hold 5 rows of 24 bytes; it holds 119 bytes"));
  EXPECT_FALSE(CheckReadSpec(shape, 5, spec, 121).ok());
  EXPECT_FALSE(CheckReadSpec(shape, -1, spec, 0).ok());
  // 2^61 rows of 24 bytes are 0 modulo 2^64.
  EXPECT_FALSE(CheckReadSpec(shape, std::int64_t{1} << 61, spec, 0).ok());
}

// Through the C ABI the enums are integers.
TEST(ReadSpec, UnknownNumbersAreRefused) {
  const RoutingShape shape{1, 1, 64, 4, {}};
  EXPECT_FALSE(
      CheckReadSpec(shape, 0, {static_cast<Layout>(2), IdType::kInt16, Fill::kZeros}, 0).ok());
  EXPECT_FALSE(
      CheckReadSpec(shape, 0, {Layout::kTokensLayersK, static_cast<IdType>(5), Fill::kZeros}, 0)
          .ok());
  EXPECT_FALSE(
      CheckReadSpec(shape, 0, {Layout::kTokensLayersK, IdType::kInt16, static_cast<Fill>(2)}, 0)
          .ok());
  EXPECT_EQ(IdBytes(static_cast<IdType>(9)), 0u);
}

TEST(Rows, WriteFillsMissingRows) {
  Rows rows;
  rows.shape = {1, 2, 64, 4, {}};
  rows.infos = {{1, 1, Reason::kNone, Provenance::kHere}, {}};
  rows.ids = {5, 6, 0, 0};
  std::vector<std::uint8_t> out(8);
  ASSERT_TRUE(rows.Write({}, out).ok());
  const std::int16_t wanted[] = {5, 6, -1, -1};
  EXPECT_EQ(std::memcmp(out.data(), wanted, sizeof(wanted)), 0);
  out.resize(7);
  EXPECT_FALSE(rows.Write({}, out).ok());
  rows.ids.resize(3);
  out.resize(8);
  EXPECT_FALSE(rows.Write({}, out).ok()) << "ids that the infos promise are not there";
}

}  // namespace
}  // namespace waymark
