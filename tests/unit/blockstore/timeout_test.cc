// Timeouts that are too long for a clock.
#include "blockstore/timeout.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "blockstore/store/store.h"
#include "blockstore/wire/page_source.h"

namespace waymark {
namespace {

TEST(Timeout, IsAtLeastZeroAndAtMostAYear) {
  EXPECT_EQ(Clamped(std::chrono::seconds(7)), std::chrono::seconds(7));
  EXPECT_EQ(Clamped(std::chrono::nanoseconds(-1)), std::chrono::nanoseconds(0));
  EXPECT_EQ(Clamped(std::chrono::nanoseconds::max()), std::chrono::hours(24 * 365));
  EXPECT_EQ(Clamped(std::chrono::milliseconds::max()), std::chrono::hours(24 * 365));
}

// The sum of the clock and such a timeout overflowed: nothing was waited for.
TEST(Timeout, TheLongestOnesWait) {
  StoreOptions options = {
      .shape = {.num_layers = 1, .top_k = 1, .num_experts = 8, .page_tokens = 4}, .num_blocks = 1};
  const auto store = RoutingStore::Create(options).value();
  const std::int64_t slot = 0;
  const BlockId block(0);
  using Wait = std::function<absl::Status(std::chrono::nanoseconds)>;
  std::uint64_t step = 0;
  const auto expect_waits = [&](const char* what, auto&& make_wait) {
    for (const std::chrono::nanoseconds timeout :
         {std::chrono::nanoseconds::max(), std::chrono::nanoseconds(std::chrono::hours(1 << 21))}) {
      ASSERT_TRUE(store->BeginStep({.step = ++step, .slots = &slot, .num_slots = 1}).ok());
      const Wait wait = make_wait();
      std::thread ends([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        EXPECT_TRUE(store->Drop(StepId(step)).ok());
      });
      const absl::Status waited = wait(timeout);
      ends.join();
      EXPECT_TRUE(waited.ok()) << what << ": " << waited;
    }
  };
  std::optional<Snapshot> snapshot;
  expect_waits("Snapshot::Wait", [&]() -> Wait {
    snapshot = store->TakeSnapshot({&block, 1}, 0, 1).value();
    return [&](std::chrono::nanoseconds timeout) { return snapshot->Wait(timeout); };
  });
  expect_waits("RoutingStore::WaitIdle", [&]() -> Wait {
    return [&](std::chrono::nanoseconds timeout) { return store->WaitIdle(timeout); };
  });
}

TEST(Timeout, ADeadlineIsNeverBehind) {
  const auto now = std::chrono::steady_clock::now();
  EXPECT_GT(wire::After(std::chrono::nanoseconds::max()), now + std::chrono::hours(24 * 300));
  EXPECT_GE(wire::After(std::chrono::nanoseconds::min()), now);
}

}  // namespace
}  // namespace waymark
