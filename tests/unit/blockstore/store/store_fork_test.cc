// A store in a forked child of its process.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "blockstore/fork_guard.h"
#include "tests/support/in_child.h"
#include "tests/support/sanitizers.h"
#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

TEST(ForkGuard, IsZeroInAChildByTheKernelAndByTheHandler) {
  for (const bool kernel : {true, false}) {
    absl::StatusOr<ForkGuard> guard = ForkGuard::Create(64, kernel);
    absl::StatusOr<ForkGuard> other = ForkGuard::Create(64, kernel);
    ASSERT_TRUE(guard.ok() && other.ok());
    auto* const word = static_cast<int*>(guard->memory());
    EXPECT_EQ(*word, 0);
    *word = 7;
    *other = ForkGuard();
    EXPECT_FALSE(guard->forked());
    const auto look = [&] {
      std::string found = guard->forked() ? "forked, " : "not forked, ";
      found += std::to_string(*word);
      // A guard of the child is its own, and the child's child finds that one zeroed, too.
      absl::StatusOr<ForkGuard> own = ForkGuard::Create(64, kernel);
      found += own->forked() ? ", forked" : ", not forked";
      return found + InChild([&] { return std::string(own->forked() ? ", forked" : ""); });
    };
    EXPECT_EQ(InChild(look), "forked, 0, not forked, forked") << (kernel ? "kernel" : "handler");
    EXPECT_FALSE(guard->forked());
    EXPECT_EQ(*word, 7);
  }
  EXPECT_FALSE(ForkGuard().forked());
}

struct Forked : testing::TestWithParam<Landing> {
  static std::unique_ptr<RoutingStore> Make(Landing landing) {
    StoreOptions options = StoreDriver::Options();
    options.landing = landing;
    return RoutingStore::Create(options).value();
  }
};

TEST_P(Forked, EveryCallIsRefusedAndNothingWaits) {
  std::unique_ptr<RoutingStore> store = Make(GetParam());
  const std::int64_t slots[] = {12, 13};
  const BlockId blocks[] = {BlockId(3)};
  NumberedRows rows(store->options().shape, {10, 11});
  const Event bind[] = {Bind(3)};
  StepBatch batch{.step = 1, .version = 1};
  batch.events = bind, batch.num_events = 1;
  batch.slots = slots, batch.num_slots = 2;
  ASSERT_TRUE(store->BeginStep(batch).ok());
  ASSERT_TRUE(store->Submit(StepId(1), &rows).ok());
  ASSERT_TRUE(store->WaitIdle(std::chrono::seconds(20)).ok());
  std::optional<Snapshot> ready = store->TakeSnapshot(blocks, 0, 2).value();
  ASSERT_TRUE(ready->Wait(std::chrono::seconds(20)).ok());
  ASSERT_TRUE(store->BeginStep({.step = 2, .version = 1}).ok());
  std::optional<Snapshot> waiting = store->TakeSnapshot(blocks, 0, 2).value();

  const auto calls = [&] {
    std::string wrong;
    const auto expect = [&](bool right, const char* call) {
      if (!right) wrong += std::string(call) + " ";
    };
    const auto refused = [](const absl::Status& status) {
      return status.code() == absl::StatusCode::kFailedPrecondition;
    };
    const auto forked = [](const StepCode& code) { return code.rule == StepRule::kForked; };
    NumberedRows more(store->options().shape, {});
    expect(forked(store->Schedule(StepId(9), 1)), "Schedule");
    expect(forked(store->Report(bind)), "Report");
    expect(forked(store->BeginStep({.step = 9, .version = 1})), "BeginStep");
    expect(forked(store->Submit(StepId(2), &more)) && more.done == 1, "Submit");
    expect(forked(store->Drop(StepId(2))), "Drop");
    expect(forked(store->Cancel(StepId(2))), "Cancel");
    expect(refused(store->Cancel(StepId(2)).ToStatus()), "ToStatus");
    expect(refused(store->TakeSnapshot(blocks, 0, 2).status()), "TakeSnapshot");
    expect(forked(store->LoseRows()), "LoseRows");
    expect(refused(store->WaitIdle(std::chrono::hours(1))), "WaitIdle");
    expect(refused(store->status()), "status");
    expect(store->CoveredPrefix(blocks, 2) == 0, "CoveredPrefix");
    expect(store->GetStats().steps_begun == 0, "GetStats");
    expect(store->TakeFindings().empty(), "TakeFindings");
    expect(!store->LandOne() && !store->Land(StepId(2)), "Land");
    expect(store->last_step() == StepId(0), "last_step");

    expect(ready->Ready() && ready->Wait(std::chrono::hours(1)).ok(), "Ready");
    const absl::StatusOr<Rows> read = ready->ReadRows();
    expect(read.ok() && read->infos[0].step == 1 && read->infos[1].valid(), "ReadRows");
    expect(!waiting->Ready() && refused(waiting->Wait(std::chrono::hours(1))), "Wait");
    expect(refused(waiting->ReadRows().status()), "ReadRows of one that waits");
    waiting.reset();
    store.reset();
    ready.reset();
    // A store of the child's own. Under ThreadSanitizer such a child cannot start a thread.
    store = Make(PlainOr(GetParam(), Landing::kCaller));
    expect(store->BeginStep(batch).ok() && store->Drop(StepId(1)).ok(), "BeginStep of its own");
    expect(store->WaitIdle(std::chrono::seconds(20)).ok(), "WaitIdle of its own");
    store.reset();
    return wrong;
  };
  EXPECT_EQ(InChild(calls), "");

  // Other threads hold locks of the store when the child is made.
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop.load())
      (void)store->GetStats();
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(InChild([&] {
                (void)store->GetStats();
                (void)store->WaitIdle(std::chrono::hours(1));
                store.reset();
                return std::string("ended");
              }),
              "ended");
  }
  stop = true;
  other.join();
  // The parent does not notice.
  ASSERT_TRUE(store->Drop(StepId(2)).ok());
  ASSERT_TRUE(store->WaitIdle(std::chrono::seconds(20)).ok());
  EXPECT_TRUE(waiting->Ready());
  EXPECT_TRUE(store->status().ok());
}

INSTANTIATE_TEST_SUITE_P(ThreadAndCaller, Forked,
                         testing::Values(Landing::kThread, Landing::kCaller));

}  // namespace
}  // namespace waymark
