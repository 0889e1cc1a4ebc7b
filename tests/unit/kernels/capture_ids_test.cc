// CaptureIds and PoisonRows: what arrives in a layer view, and what does not.
#include "kernels/capture_ids.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/unit/kernels/guarded_buffer.h"

namespace waymark::kernels {
namespace {

template <class T>
struct KindOf;
template <>
struct KindOf<std::int16_t> {
  static constexpr IdKind kKind = IdKind::kInt16;
};
template <>
struct KindOf<std::int32_t> {
  static constexpr IdKind kKind = IdKind::kInt32;
};
template <>
struct KindOf<std::int64_t> {
  static constexpr IdKind kKind = IdKind::kInt64;
};

template <class T>
class CaptureIdsTest : public ::testing::Test {};
using Types = ::testing::Types<std::int16_t, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(CaptureIdsTest, Types);

TYPED_TEST(CaptureIdsTest, CopiesTheFirstColumnsOfContiguousRows) {
  constexpr std::int32_t kRows = 5;
  constexpr std::int32_t kColumns = 7;
  constexpr std::int32_t kTopK = 6;
  GuardedBuffer memory(sizeof(TypeParam) * kRows * kColumns);
  auto* ids = reinterpret_cast<TypeParam*>(memory.data());
  for (std::int32_t i = 0; i < kRows * kColumns; ++i)
    ids[i] = static_cast<TypeParam>(i - 1);
  GuardedBuffer out(sizeof(std::int16_t) * kRows * kTopK);
  auto* view = reinterpret_cast<std::int16_t*>(out.data());
  const IdsView input{ids, KindOf<TypeParam>::kKind, sizeof(TypeParam) * kColumns, 0,
                      sizeof(TypeParam)};
  CaptureIds(input, kRows, kTopK, view);
  for (std::int32_t row = 0; row < kRows; ++row) {
    for (std::int32_t k = 0; k < kTopK; ++k) {
      EXPECT_EQ(view[row * kTopK + k], row * kColumns + k - 1);
    }
  }
}

TYPED_TEST(CaptureIdsTest, FollowsAnyStrides) {
  // [k][row], rows backwards.
  constexpr std::int32_t kRows = 4;
  constexpr std::int32_t kTopK = 3;
  std::vector<TypeParam> ids(kRows * kTopK);
  for (std::int32_t row = 0; row < kRows; ++row) {
    for (std::int32_t k = 0; k < kTopK; ++k) {
      ids[static_cast<std::size_t>(k * kRows + (kRows - 1 - row))] =
          static_cast<TypeParam>(10 * row + k);
    }
  }
  std::vector<std::int16_t> view(kRows * kTopK + 1, 99);
  const auto bytes = static_cast<std::ptrdiff_t>(sizeof(TypeParam));
  const IdsView input{ids.data() + kRows - 1, KindOf<TypeParam>::kKind, -bytes, 0, bytes * kRows};
  CaptureIds(input, kRows, kTopK, view.data());
  for (std::int32_t row = 0; row < kRows; ++row) {
    for (std::int32_t k = 0; k < kTopK; ++k) {
      EXPECT_EQ(view[static_cast<std::size_t>(row * kTopK + k)], 10 * row + k);
    }
  }
  EXPECT_EQ(view.back(), 99);
}

// Cut to 16 bits, 65536 would be expert 0, and 65535 "not written".
TYPED_TEST(CaptureIdsTest, AnIdThatDoesNotFitIsNeverValidNorMinusOne) {
  std::vector<TypeParam> ids = {0, -1, -2, 32767, -32768};
  std::vector<std::int16_t> expected = {
      0, -1, -2, 32767, sizeof(TypeParam) == 2 ? std::int16_t{-32768} : kUnrepresentableId};
  if constexpr (sizeof(TypeParam) > 2) {
    for (const TypeParam id :
         {TypeParam{32768}, TypeParam{65535}, TypeParam{65536},
          std::numeric_limits<TypeParam>::max(), std::numeric_limits<TypeParam>::min()}) {
      ids.push_back(id);
      expected.push_back(kUnrepresentableId);
    }
  }
  if constexpr (sizeof(TypeParam) == 8) {
    ids.push_back(TypeParam{1} << 32);
    expected.push_back(kUnrepresentableId);
  }
  std::vector<std::int16_t> view(ids.size());
  const auto columns = static_cast<std::int32_t>(ids.size());
  CaptureIds({ids.data(), KindOf<TypeParam>::kKind, 0, 0, sizeof(TypeParam)}, 1, columns,
             view.data());
  EXPECT_EQ(view, expected);
}

TEST(PoisonRows, WritesTheRowsOfEveryLayerAndNothingElse) {
  // [3 layers][4 rows + a gap][2]
  constexpr std::ptrdiff_t kStride = 11;
  std::vector<std::int16_t> data(3 * kStride, 5);
  PoisonRows(data.data(), kStride, 3, 2, 3);
  for (std::size_t i = 0; i < data.size(); ++i) {
    EXPECT_EQ(data[i], static_cast<std::ptrdiff_t>(i) % kStride < 6 ? -1 : 5) << i;
  }
  PoisonRows(nullptr, kStride, 3, 2, 0);
}

}  // namespace
}  // namespace waymark::kernels
