// Strong ids do not mix, and cost what an integer costs.
#include "blockstore/ids.h"

#include <gtest/gtest.h>

#include <compare>
#include <cstdint>
#include <type_traits>

#include "absl/container/flat_hash_set.h"

namespace waymark {
namespace {

template <class A, class B>
concept Assignable = requires(A a, B b) {
  a = b;
};
template <class A, class B>
concept Comparable = requires(A a, B b) {
  a == b;
};
template <class A, class B>
concept Addable = requires(A a, B b) {
  a + b;
};

static_assert(!std::is_convertible_v<std::int32_t, BlockId>);
static_assert(!std::is_convertible_v<BlockId, std::int32_t>);
static_assert(!std::is_constructible_v<BlockId, StepId>);
static_assert(!Assignable<BlockId, StepId> && !Assignable<BlockId, std::int32_t>);
static_assert(!Assignable<std::uint64_t&, StepId>);
static_assert(Assignable<BlockId, BlockId>);
static_assert(!Comparable<BlockId, StepId> && !std::three_way_comparable_with<BlockId, StepId>);
static_assert(!Comparable<StepId, std::uint64_t> && Comparable<StepId, StepId>);
static_assert(!Addable<BlockId, BlockId> && !Addable<StepId, int>);
static_assert(sizeof(BlockId) == 4 && sizeof(StepId) == 8);
static_assert(std::is_trivially_copyable_v<BlockId>);

TEST(Ids, ADefaultMadeIdNamesNothing) {
  EXPECT_FALSE(BlockId().valid());
  EXPECT_FALSE(StepId().valid());
  EXPECT_EQ(BlockId(), BlockId::Invalid());
  EXPECT_TRUE(BlockId(0).valid());
  EXPECT_TRUE(StepId(1).valid());
}

TEST(Ids, OrderAndHashFollowTheValue) {
  EXPECT_LT(StepId(3), StepId(4));
  EXPECT_GT(BlockId(0), BlockId::Invalid());
  const absl::flat_hash_set<BlockId> ids = {BlockId(1), BlockId(2), BlockId(1)};
  EXPECT_EQ(ids.size(), 2u);
}

}  // namespace
}  // namespace waymark
