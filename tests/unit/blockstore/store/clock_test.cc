#include "blockstore/store/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace waymark {
namespace {

TEST(TickRate, TicksAreNanosecondsOfTheSteadyClock) {
  const TickRate rate;
  const std::uint64_t steady = SteadyNow();
  const std::uint64_t ticks = TicksNow();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto least = static_cast<double>(SteadyNow() - steady);
  const auto measured = static_cast<double>(rate.NanosecondsSince(ticks));
  const auto most = static_cast<double>(SteadyNow() - steady);
  // The two clocks are not read at once: a thread may be descheduled between two reads.
  EXPECT_GT(measured, 0.5 * least);
  EXPECT_LT(measured, 2 * most);
}

TEST(TickRate, IsZeroForWhatSeemsToComeLater) {
  const TickRate rate;
  EXPECT_EQ(rate.NanosecondsSince(~std::uint64_t{0}), 0u);
  EXPECT_EQ(rate.NanosecondsSince(TicksNow() + (std::uint64_t{1} << 40)), 0u);
}

}  // namespace
}  // namespace waymark
