#include "adapters/pool/eviction_heap.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/unit/blockstore/test_seed.h"

namespace waymark {
namespace {

TEST(EvictionHeap, AgreesWithASortedMap) {
  SCOPED_TRACE(::testing::Message() << "WAYMARK_SEED=" << TestSeed());
  std::mt19937_64 random(TestSeed());
  constexpr std::int32_t kBlocks = 40;
  EvictionHeap heap(kBlocks);
  std::map<std::uint64_t, std::int32_t> by_use;
  std::map<std::int32_t, std::uint64_t> uses;
  std::uint64_t clock = 1000000;
  for (int i = 0; i < 20000; ++i) {
    const auto block = static_cast<std::int32_t>(random() % kBlocks);
    if (random() % 2) {
      // Old uses come back too: a block changes heaps with the last use it had.
      const std::uint64_t use = random() % 2 ? ++clock : clock / 2 - static_cast<unsigned>(i);
      heap.Insert(block, use);
      if (uses.emplace(block, use).second) by_use[use] = block;
    } else {
      heap.Erase(block);
      if (uses.count(block) != 0) {
        by_use.erase(uses[block]);
        uses.erase(block);
      }
    }
    ASSERT_EQ(heap.empty(), by_use.empty());
    ASSERT_EQ(heap.Contains(block), uses.count(block) != 0);
    if (!by_use.empty()) {
      ASSERT_EQ(heap.oldest(), by_use.begin()->second) << "after " << i;
    }
  }
}

}  // namespace
}  // namespace waymark
