// The emulated warp itself: what its collectives give, and what it must notice.
#include "tests/support/emulated_warp.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace waymark::kernels {
namespace {

using Lane = EmulatedWarp::Lane;

TEST(EmulatedWarp, CollectivesGiveWhatADeviceGives) {
  EmulatedWarp warp(1);
  int lanes = 0;
  const std::string fault = warp.Run([&](const Lane& lane) {
    const auto l = static_cast<std::uint32_t>(lane.lane());
    EXPECT_EQ(lane.Max(l ^ 5), 31u);
    EXPECT_EQ(lane.Min(100 - l), 69u);
    EXPECT_EQ(lane.Ballot(l % 3 == 0), 0x49249249u);
    EXPECT_EQ(lane.Match(l / 16), l < 16 ? 0x0000ffffu : 0xffff0000u);
    EXPECT_EQ(lane.Shuffle(-static_cast<int>(l), 7), -7);
    EXPECT_EQ(lane.ShuffleXor(static_cast<float>(l), 4), static_cast<float>(l ^ 4));
    ++lanes;
  });
  EXPECT_EQ(fault, "");
  EXPECT_EQ(lanes, 32);
}

TEST(EmulatedWarp, LanesRunInOrdersThatTheSeedDraws) {
  const auto orders = [](std::uint64_t seed) {
    EmulatedWarp warp(seed);
    std::vector<std::vector<int>> rounds(3);
    EXPECT_EQ(warp.Run([&](const Lane& lane) {
      for (auto& round : rounds) {
        round.push_back(lane.lane());
        lane.Ballot(true);
      }
    }),
              "");
    return rounds;
  };
  const auto first = orders(1);
  EXPECT_EQ(first, orders(1));
  EXPECT_NE(first, orders(2));
  EXPECT_NE(first[0], first[1]);
  for (const auto& round : first)
    EXPECT_EQ(std::set<int>(round.begin(), round.end()).size(), 32u);
}

// A kernel in which some lanes leave out a collective, or take another, hangs or gives garbage.
TEST(EmulatedWarp, NoticesLanesThatPart) {
  EmulatedWarp warp(1);
  EXPECT_EQ(warp.Run([](const Lane& lane) {
    if (lane.lane() != 9) lane.Max(1);
  }),
            "lane 0 is at Max, lane 9 at its end");
  EXPECT_EQ(warp.Run([](const Lane& lane) {
    if (lane.lane() < 16) {
      lane.Max(1);
    } else {
      lane.Min(1);
    }
  }),
            "lane 0 is at Max, lane 16 at Min");
  EXPECT_EQ(warp.Run([](const Lane& lane) { lane.Shuffle(0, lane.lane() + 1); }),
            "lane 31 asks lane 32");
  // And can be used again.
  EXPECT_EQ(warp.Run([](const Lane& lane) { lane.Max(1); }), "");
}

}  // namespace
}  // namespace waymark::kernels
