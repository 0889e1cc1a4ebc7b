// WakeFlag: no wake is lost in any interleaving, and what the checker finds when one is.
#include "blockstore/store/wake_flag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/unit/blockstore/store/model_log.h"

namespace waymark {
namespace {

using testing::HasSubstr;

// How the consumer goes to sleep.
enum class Sleep { kLooksAgain, kDoesNotLookAgain, kLooksBeforeItAnnounces };

// The producer publishes `records` one by one, the consumer consumes all of them and sleeps when
// there is none.
template <class Atomics = ModelAtomics<>>
ModelChecker::Result SleepAndWake(std::uint32_t records, Sleep sleep = Sleep::kLooksAgain,
                                  int* wakes = nullptr) {
  return ModelChecker::Explore([=](ModelChecker& model) {
    ModelLog<Atomics> log(model, 64, 0);
    BasicWakeFlag<Atomics> flag;
    ModelChecker::Semaphore semaphore(0);
    model.Run(
        [&] {
          for (std::uint32_t r = 0; r < records; ++r) {
            model.Require(log.Append(8), "there is room");
            log.Publish();
            if (flag.ShouldWake()) {
              if (wakes != nullptr) ++*wakes;
              semaphore.Post();
            }
          }
        },
        [&] {
          for (;;) {
            log.Drain();
            if (log.consumed == records) return;
            if (sleep != Sleep::kLooksBeforeItAnnounces) flag.Announce();
            const bool look = sleep != Sleep::kDoesNotLookAgain;
            const bool found = look && log.Front(log.LoadTail()) != nullptr;
            if (sleep == Sleep::kLooksBeforeItAnnounces) flag.Announce();
            if (!found) semaphore.Wait();
            flag.Withdraw();
          }
        });
    log.DrainTheRest();
  });
}

TEST(WakeFlagInterleavings, NoWakeIsLost) {
  for (const std::uint32_t records : {1u, 2u}) {
    int wakes = 0;
    const auto result = SleepAndWake<>(records, Sleep::kLooksAgain, &wakes);
    EXPECT_EQ(result.failure, "");
    EXPECT_TRUE(result.exhaustive);
    EXPECT_GT(wakes, 0);
    EXPECT_LT(wakes, static_cast<int>(records * result.executions));
  }
}

template <class Atomics = ModelAtomics<>>
ModelChecker::Result TwoProducersSeeOneAnnouncement() {
  return ModelChecker::Explore([](ModelChecker& model) {
    BasicWakeFlag<Atomics> flag;
    int wakes = 0;
    model.Require(!flag.ShouldWake(), "the consumer does not sleep yet");
    flag.Announce();
    const auto wake = [&] { wakes += flag.ShouldWake() ? 1 : 0; };
    model.Run(wake, wake);
    model.Require(wakes == 1, "one call wakes");
    flag.Announce();
    flag.Withdraw();
    model.Require(!flag.ShouldWake(), "the consumer has withdrawn");
  });
}

TEST(WakeFlagInterleavings, OneOfTwoProducersWakes) {
  const auto result = TwoProducersSeeOneAnnouncement();
  EXPECT_EQ(result.failure, "");
  EXPECT_TRUE(result.exhaustive);
}

// --- The checker finds ---

TEST(WakeFlagInterleavings, FindsThatTheProducerHasNoFence) {
  EXPECT_THAT((SleepAndWake<ModelAtomics<Weakening::kNoFences, kProducer>>(1).failure),
              HasSubstr("no thread can go on"));
}

TEST(WakeFlagInterleavings, FindsThatTheConsumerHasNoFence) {
  EXPECT_THAT((SleepAndWake<ModelAtomics<Weakening::kNoFences, kConsumer>>(1).failure),
              HasSubstr("no thread can go on"));
}

TEST(WakeFlagInterleavings, FindsThatTheConsumerDoesNotLookAgain) {
  EXPECT_THAT(SleepAndWake<>(1, Sleep::kDoesNotLookAgain).failure,
              HasSubstr("no thread can go on"));
}

TEST(WakeFlagInterleavings, FindsThatTheConsumerLooksBeforeItAnnounces) {
  EXPECT_THAT(SleepAndWake<>(1, Sleep::kLooksBeforeItAnnounces).failure,
              HasSubstr("no thread can go on"));
}

TEST(WakeFlagInterleavings, FindsThatTwoProducersWake) {
  EXPECT_THAT(TwoProducersSeeOneAnnouncement<ModelAtomics<Weakening::kSplitUpdates>>().failure,
              HasSubstr("one call wakes"));
}

}  // namespace
}  // namespace waymark
