// LogRing: every interleaving of a few operations, and what the checker finds when one is broken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/blockstore/store/model_log.h"

namespace waymark {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr std::size_t kNever = 4096;  // no restart: further than a log of these tests gets

// What the producer and the consumer do.
struct Script {
  std::size_t capacity = 64;
  std::size_t restart_after = kNever;
  // The bytes of the records that are appended and consumed before the threads start.
  std::vector<std::uint32_t> before = {};
  // The bytes of the records of each Publish. Those without room are left out.
  std::vector<std::vector<std::uint32_t>> batches;
  // The most records of each drain.
  std::vector<std::uint32_t> drains;
  // Bugs of the callers.
  bool restarts_blindly = false;
  bool retires_early = false;
};
constexpr std::uint32_t kAll = 100;

// Restarts whatever the consumer has done.
template <class Atomics>
struct BlindLog : ModelLog<Atomics> {
  using ModelLog<Atomics>::ModelLog;
  using ModelLog<Atomics>::Restart;
};

struct Seen {
  ModelChecker::Result result;
  int refused = 0;     // records without room, of all executions
  int began_anew = 0;  // of all executions
  int never_anew = 0;  // executions in which none did
};

template <class Atomics = ModelAtomics<>>
Seen Explore(const Script& script) {
  Seen seen;
  seen.result = ModelChecker::Explore([&](ModelChecker& model) {
    BlindLog<Atomics> log(model, script.capacity, script.restart_after);
    for (const std::uint32_t bytes : script.before) {
      log.Append(bytes);
      log.Publish();
      log.Drain();
    }
    log.began_anew = 0;
    log.retires_early = script.retires_early;
    model.Run(
        [&] {
          for (const std::vector<std::uint32_t>& batch : script.batches) {
            if (script.restarts_blindly) log.Restart();
            for (const std::uint32_t bytes : batch)
              seen.refused += log.Append(bytes) ? 0 : 1;
            log.Publish();
          }
        },
        [&] {
          for (const std::uint32_t most : script.drains)
            log.Drain(most);
        });
    log.retires_early = false;
    log.DrainTheRest();
    seen.began_anew += log.began_anew;
    seen.never_anew += log.began_anew == 0 ? 1 : 0;
  });
  return seen;
}

// Explores all of it, without a failure.
Seen ExploreAll(const Script& script) {
  Seen seen = Explore(script);
  EXPECT_EQ(seen.result.failure, "");
  EXPECT_TRUE(seen.result.exhaustive);
  EXPECT_GT(seen.result.executions, 10);
  return seen;
}

TEST(LogRingInterleavings, AppendsAgainstDrains) {
  const Seen seen = ExploreAll(
      {.capacity = 128, .batches = {{16}, {8, 24}, {16}, {8}}, .drains = {kAll, kAll, kAll, kAll}});
  EXPECT_EQ(seen.refused, 0);
  EXPECT_EQ(seen.began_anew, 0);
}

const Script kTwoRecordsOfRoom = {.batches = {{32}, {32}, {32}, {32}},
                                  .drains = {kAll, kAll, kAll}};
TEST(LogRingInterleavings, RoomForTwoRecords) {
  const Seen seen = ExploreAll(kTwoRecordsOfRoom);
  EXPECT_GT(seen.refused, 0);
}

// 48 of 64 bytes are used and given back: the next record of 24 bytes is behind a skip.
const Script kTornWrap = {
    .before = {24, 24}, .batches = {{24}, {24}, {24}, {24}}, .drains = {kAll, kAll, kAll, kAll}};
TEST(LogRingInterleavings, SkipsTheEndOfTheMemory) {
  const Seen seen = ExploreAll(kTornWrap);
  EXPECT_GT(seen.began_anew, 0);
  EXPECT_GT(seen.refused, 0);
}

TEST(LogRingInterleavings, SkipsInTheMiddleOfABatch) {
  const Seen seen =
      ExploreAll({.before = {40}, .batches = {{16, 24}, {16}, {24, 8}}, .drains = {1, 1, 1, 1}});
  EXPECT_GT(seen.began_anew, 0);
}

const Script kRestarts = {.capacity = 128,
                          .restart_after = 8,
                          .batches = {{16}, {8, 8}, {16}, {8}},
                          .drains = {kAll, kAll, kAll}};
TEST(LogRingInterleavings, RestartsWhenTheConsumerIsAtTheEnd) {
  const Seen seen = ExploreAll(kRestarts);
  EXPECT_GT(seen.began_anew, 0);
  EXPECT_GT(seen.never_anew, 0);
}

TEST(LogRingInterleavings, RestartsAndSkipsWithLittleRoom) {
  const Seen seen = ExploreAll({.restart_after = 16,
                                .before = {24},
                                .batches = {{24}, {24}, {40}, {64}},
                                .drains = {kAll, 1, kAll}});
  EXPECT_GT(seen.began_anew, 0);
  EXPECT_GT(seen.refused, 0);
}

TEST(LogRingInterleavings, DrainsOneRecordAtATime) {
  ExploreAll({.restart_after = 0, .batches = {{8, 8}, {8}, {8}}, .drains = {1, 1, 1, 1}});
}

// Two threads consume under a lock; each looked at the tail before it had it.
TEST(LogRingInterleavings, TheConsumerChangesUnderALock) {
  const auto result = ModelChecker::Explore([](ModelChecker& model) {
    ModelLog<ModelAtomics<>> log(model, 64, 0);
    ModelChecker::Semaphore lock(1);
    const auto drain = [&] {
      const auto upto = log.LoadTail();
      lock.Wait();
      log.DrainUpto(upto);
      lock.Post();
    };
    model.Run(
        [&] {
          for (int i = 0; i < 3; ++i) {
            log.Append(24);
            log.Publish();
          }
        },
        drain, drain);
    log.DrainTheRest();
  });
  EXPECT_EQ(result.failure, "");
  EXPECT_TRUE(result.exhaustive);
}

// The producer reads what the consumer made of a record, once the log is drained.
template <class Atomics = ModelAtomics<>>
ModelChecker::Result ReadWhenDrained() {
  return ModelChecker::Explore([](ModelChecker& model) {
    ModelLog<Atomics> log(model, 64, 0);
    alignas(8) std::array<std::uint8_t, 8> result{};
    model.Run(
        [&] {
          log.Append(8);
          log.Publish();
          if (log.Drained()) model.Require(Atomics::Read32(result.data()) == 7, "the result");
        },
        [&] {
          if (log.Front(log.LoadTail()) == nullptr) return;
          Atomics::Write32(result.data(), 7);
          log.Drain();
        });
  });
}

TEST(LogRingInterleavings, WhatTheConsumerDidIsSeenWhenTheLogIsDrained) {
  const auto result = ReadWhenDrained();
  EXPECT_EQ(result.failure, "");
  EXPECT_TRUE(result.exhaustive);
}

// --- The checker finds ---

template <Weakening kBug, int kThread>
std::string Failure(const Script& script) {
  return Explore<ModelAtomics<kBug, kThread>>(script).result.failure;
}

TEST(LogRingInterleavings, FindsARelaxedPublishOrRetireAndARelaxedLookAtTailOrHead) {
  constexpr auto kStores = Weakening::kRelaxedStores, kLoads = Weakening::kRelaxedLoads;
  for (const Script& script : {kTwoRecordsOfRoom, kTornWrap, kRestarts}) {
    EXPECT_THAT((Failure<kStores, kProducer>(script)), HasSubstr("data race")) << "Publish";
    EXPECT_THAT((Failure<kLoads, kConsumer>(script)), HasSubstr("data race")) << "tail";
    EXPECT_THAT((Failure<kStores, kConsumer>(script)), HasSubstr("with a read of thread 1"));
    EXPECT_THAT((Failure<kLoads, kProducer>(script)), HasSubstr("with a read of thread 1"));
  }
}

TEST(LogRingInterleavings, FindsARelaxedDrained) {
  EXPECT_THAT((ReadWhenDrained<ModelAtomics<Weakening::kRelaxedLoads, kProducer>>().failure),
              HasSubstr("data race"));
}

TEST(LogRingInterleavings, FindsARestartWithoutALookAtTheHead) {
  Script script = kRestarts;
  script.restarts_blindly = true;
  EXPECT_THAT(Explore(script).result.failure, HasSubstr("the next record"));
  // The consumer is in the middle of the record that is overwritten.
  script.batches = {{16}, {}, {16}};
  script.drains = {kAll};
  EXPECT_THAT(Explore(script).result.failure, AnyOf(HasSubstr("data race"), HasSubstr("record")));
}

TEST(LogRingInterleavings, FindsARetireBeforeTheRecordIsRead) {
  for (Script script : {kTwoRecordsOfRoom, kTornWrap, kRestarts}) {
    script.retires_early = true;
    EXPECT_THAT(Explore(script).result.failure, AnyOf(HasSubstr("data race"), HasSubstr("record")));
  }
}

}  // namespace
}  // namespace waymark
