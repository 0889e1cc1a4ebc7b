#include "blockstore/distinct_ids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"

namespace waymark {
namespace {

// Every K and some E of each kind of code, against sets.
TEST(DistinctIds, FindsTheFirstLayerThatIsNoChoice) {
  const std::uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (const std::int32_t experts :
       {1, 2, 8, 60, 64, 127, 128, 129, 160, 255, 256, 257, 384, 512, 32768, 65535}) {
    for (std::int32_t top_k = 1; top_k <= std::min(experts, 24); ++top_k) {
      DistinctIds distinct(top_k, experts);
      for (int n = 0; n < PlainOr(50, 10); ++n) {
        const std::string where = "seed " + std::to_string(seed) + ", E " +
                                  std::to_string(experts) + ", K " + std::to_string(top_k);
        const auto layers = static_cast<int>(1 + random() % 20);
        std::vector<std::uint32_t> ids;
        for (int layer = 0; layer < layers; ++layer) {
          std::set<std::uint32_t> chosen;
          while (chosen.size() < static_cast<std::size_t>(top_k))
            chosen.insert(
                static_cast<std::uint32_t>(random() % static_cast<std::uint64_t>(experts)));
          std::vector<std::uint32_t> order(chosen.begin(), chosen.end());
          std::shuffle(order.begin(), order.end(), random);
          ids.insert(ids.end(), order.begin(), order.end());
        }
        const std::uint32_t most = experts <= 256 ? 255 : 65535;
        if (n % 2 == 1) {  // one id is another's, or any
          std::uint32_t& id = ids[random() % ids.size()];
          id = random() % 2 == 0 ? ids[random() % ids.size()]
                                 : static_cast<std::uint32_t>(random()) & most;
        }
        std::int32_t wanted = -1;
        for (int layer = layers - 1; layer >= 0; --layer) {
          const auto begin = ids.begin() + layer * top_k;
          const std::set<std::uint32_t> chosen(begin, begin + top_k);
          if (chosen.size() != static_cast<std::size_t>(top_k) ||
              *chosen.rbegin() >= static_cast<std::uint32_t>(experts)) {
            wanted = layer;
          }
        }
        const std::size_t bytes = experts <= 256 ? 1 : 2;
        // Exactly as long as its ids, so that a sanitizer sees a read beyond them.
        std::vector<std::uint8_t> stored(ids.size() * bytes);
        for (std::size_t i = 0; i < ids.size(); ++i)
          std::memcpy(stored.data() + i * bytes, &ids[i], bytes);
        ASSERT_EQ(distinct.FirstBad(stored.data(), layers), wanted) << where << ", case " << n;
        const std::uint8_t* const rows[] = {nullptr, stored.data(), nullptr};
        std::uint8_t good[] = {7, 7, 7};
        ASSERT_EQ(distinct.CheckRows(rows, layers, good), wanted < 0) << where << ", case " << n;
        ASSERT_EQ(good[1], wanted < 0 ? 1 : 0) << where << ", case " << n;
        ASSERT_EQ(good[0] + good[2], 2);
      }
    }
  }
}

// Two equal ids at every pair of places, and the largest id and the next at every place: in each
// layer of a row that takes several vectors.
TEST(DistinctIds, FindsEveryPairAtEveryPlace) {
  for (const std::int32_t experts : {64, 200, 256, 300}) {
    for (std::int32_t top_k = 1; top_k <= 16; ++top_k) {
      DistinctIds distinct(top_k, experts);
      const std::int32_t layers = 150 / top_k;
      const auto k = static_cast<std::size_t>(top_k);
      const std::size_t bytes = experts <= 256 ? 1 : 2;
      std::vector<std::uint8_t> stored(static_cast<std::size_t>(layers) * k * bytes);
      const auto set = [&](std::size_t at, std::size_t id) {
        std::memcpy(stored.data() + at * bytes, &id, bytes);
      };
      for (std::size_t at = 0; at < static_cast<std::size_t>(layers) * k; ++at)
        set(at, static_cast<std::size_t>(experts) - 1 - at % k);
      const std::uint8_t* const rows[] = {stored.data()};
      std::uint8_t good[1];
      ASSERT_TRUE(distinct.CheckRows(rows, layers, good));
      for (std::size_t layer = 0; layer < static_cast<std::size_t>(layers); ++layer) {
        for (std::size_t a = 0; a < k; ++a) {
          const std::size_t at = layer * k + a;
          const std::size_t was = static_cast<std::size_t>(experts) - 1 - a;
          for (std::size_t b = 0; b < k; ++b) {
            if (b == a) continue;
            set(at, static_cast<std::size_t>(experts) - 1 - b);
            ASSERT_FALSE(distinct.CheckRows(rows, layers, good)) << top_k << ", " << a << ", " << b;
          }
          if (experts != 256) {
            set(at, static_cast<std::size_t>(experts));
            ASSERT_FALSE(distinct.CheckRows(rows, layers, good)) << top_k << ", " << a;
          }
          set(at, was);
        }
      }
    }
  }
}

}  // namespace
}  // namespace waymark
