// What the checker lets programs of a few lines do is what the C++ memory model does.
#include "tests/support/model_checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"

namespace waymark {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

using Atomic = ModelAtomics<>::Atomic<std::uint32_t>;
using Outcome = std::vector<std::uint32_t>;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
constexpr auto kAcqRel = std::memory_order_acq_rel;

void Fence() {
  ModelAtomics<>::Fence();
}

// Explores to the end without a failure; `body` returns what the execution read.
std::set<Outcome> Outcomes(const std::function<Outcome(ModelChecker&)>& body,
                           bool every_order = false) {
  std::set<Outcome> outcomes;
  const ModelChecker::Result result = ModelChecker::Explore(
      [&](ModelChecker& model) { outcomes.insert(body(model)); }, {.every_order = every_order});
  EXPECT_EQ(result.failure, "");
  EXPECT_TRUE(result.exhaustive);
  return outcomes;
}

// Thread 0 stores data, then a flag; thread 1 loads the flag, then data.
std::set<Outcome> MessagePassing(std::memory_order store, std::memory_order load, bool fences) {
  return Outcomes([&](ModelChecker& model) {
    Atomic data(0), flag(0);
    std::uint32_t saw_flag = 0, saw_data = 0;
    model.Run(
        [&] {
          data.store(1, kRelaxed);
          if (fences) Fence();
          flag.store(1, store);
        },
        [&] {
          saw_flag = flag.load(load);
          if (fences) Fence();
          saw_data = data.load(kRelaxed);
        });
    return Outcome{saw_flag, saw_data};
  });
}

TEST(ModelChecker, MessagePassingNeedsBothReleaseAndAcquire) {
  const Outcome flag_without_data = {1, 0};
  EXPECT_THAT(MessagePassing(kRelease, kAcquire, false),
              UnorderedElementsAre(Outcome{0, 0}, Outcome{0, 1}, Outcome{1, 1}));
  EXPECT_THAT(MessagePassing(kRelaxed, kAcquire, false), Contains(flag_without_data));
  EXPECT_THAT(MessagePassing(kRelease, kRelaxed, false), Contains(flag_without_data));
  EXPECT_THAT(MessagePassing(kRelaxed, kRelaxed, true), Not(Contains(flag_without_data)));
}

// Each thread stores to its own atomic and loads the other's.
std::set<Outcome> StoreBuffering(bool fence0, bool fence1) {
  return Outcomes([&](ModelChecker& model) {
    Atomic x(0), y(0);
    std::uint32_t saw_y = 0, saw_x = 0;
    model.Run(
        [&] {
          x.store(1, kRelease);
          if (fence0) Fence();
          saw_y = y.load(kAcquire);
        },
        [&] {
          y.store(1, kRelease);
          if (fence1) Fence();
          saw_x = x.load(kAcquire);
        });
    return Outcome{saw_y, saw_x};
  });
}

TEST(ModelChecker, StoreBufferingNeedsTwoFences) {
  const Outcome both_miss = {0, 0};
  EXPECT_THAT(StoreBuffering(false, false), Contains(both_miss));
  EXPECT_THAT(StoreBuffering(true, false), Contains(both_miss));
  EXPECT_THAT(StoreBuffering(false, true), Contains(both_miss));
  EXPECT_THAT(StoreBuffering(true, true),
              UnorderedElementsAre(Outcome{0, 1}, Outcome{1, 0}, Outcome{1, 1}));
}

// Two threads store to different atomics; a third one sees the store of x, then loads y; what the
// store of y's thread saw of x after its store comes last.
TEST(ModelChecker, AFenceCoversWhatTheThreadHasSeenAndIsPassedOn) {
  const auto outcomes = Outcomes([](ModelChecker& model) {
    Atomic x(0), y(0), z(0);
    std::uint32_t saw_y = 0, saw_z = 0, saw_x = 0;
    model.Run(
        [&] {
          x.store(1, kRelaxed);
          Fence();
          saw_y = y.load(kRelaxed);
        },
        [&] {
          y.store(1, kRelaxed);
          Fence();
          z.store(1, kRelease);
        },
        [&] {
          saw_z = z.load(kAcquire);
          saw_x = x.load(kRelaxed);
        });
    return Outcome{saw_y, saw_z, saw_x};
  });
  // Thread 0 missed y, so its fence was first; what happens after thread 1's fence sees x.
  EXPECT_THAT(outcomes, Not(Contains(Outcome{0, 1, 0})));
  EXPECT_THAT(outcomes, Contains(Outcome{1, 1, 0}));
  EXPECT_THAT(outcomes, Contains(Outcome{0, 0, 0}));
}

TEST(ModelChecker, LoadsOfOneAtomicDoNotGoBack) {
  const auto outcomes = Outcomes([](ModelChecker& model) {
    Atomic x(0);
    Outcome saw;
    model.Run(
        [&] {
          x.store(1, kRelaxed);
          x.store(2, kRelaxed);
        },
        [&] {
          saw.push_back(x.load(kRelaxed));
          saw.push_back(x.load(kRelaxed));
        });
    return saw;
  });
  EXPECT_THAT(outcomes, UnorderedElementsAre(Outcome{0, 0}, Outcome{0, 1}, Outcome{0, 2},
                                             Outcome{1, 1}, Outcome{1, 2}, Outcome{2, 2}));
}

// Two readers may see two independent stores in different orders, unless they have fences.
TEST(ModelChecker, ReadersAgreeOnIndependentStoresOnlyByFences) {
  for (const bool fences : {false, true}) {
    const auto outcomes = Outcomes([&](ModelChecker& model) {
      Atomic x(0), y(0);
      Outcome saw(4);
      const auto read = [&](Atomic& first, Atomic& second, std::uint32_t* both) {
        both[0] = first.load(kAcquire);
        if (fences) Fence();
        both[1] = second.load(kAcquire);
      };
      model.Run([&] { x.store(1, kRelease); }, [&] { y.store(1, kRelease); },
                [&] { read(x, y, &saw[0]); }, [&] { read(y, x, &saw[2]); });
      return saw;
    });
    EXPECT_EQ(outcomes.size(), fences ? 15 : 16);
    EXPECT_EQ(outcomes.contains({1, 0, 1, 0}), !fences);
  }
}

TEST(ModelChecker, UpdatesAreAtomicAndContinueAReleaseSequence) {
  const auto sums = Outcomes([](ModelChecker& model) {
    Atomic x(0);
    Outcome before(2);
    model.Run([&] { before[0] = x.fetch_or(1, kRelaxed); },
              [&] { before[1] = x.fetch_or(2, kRelaxed); });
    return Outcome{before[0], before[1], x.load(kRelaxed)};
  });
  EXPECT_THAT(sums, UnorderedElementsAre(Outcome{0, 1, 3}, Outcome{2, 0, 3}));

  // Thread 1 changes the flag after thread 0 has released it: by an update the data still comes
  // with it, by a store it does not.
  for (const bool update : {true, false}) {
    const auto outcomes = Outcomes([&](ModelChecker& model) {
      Atomic data(0), flag(0);
      Outcome saw(2);
      model.Run(
          [&] {
            data.store(1, kRelaxed);
            flag.store(1, kRelease);
          },
          [&] {
            if (update) {
              flag.fetch_or(2, kRelaxed);
            } else if (flag.load(kRelaxed) == 1) {
              flag.store(3, kRelaxed);
            }
          },
          [&] {
            saw[0] = flag.load(kAcquire);
            saw[1] = data.load(kRelaxed);
          });
      return saw;
    });
    EXPECT_EQ(outcomes.contains({3, 0}), !update);
    EXPECT_TRUE(outcomes.contains({3, 1}));
  }
}

TEST(ModelChecker, FindsDataRaces) {
  alignas(8) std::array<std::uint8_t, 8> bytes{};
  const auto with = [&](std::memory_order store, std::memory_order load) {
    return ModelChecker::Explore([&](ModelChecker& model) {
             Atomic flag(0);
             ModelAtomics<>::Write32(bytes.data(), 0);
             model.Run(
                 [&] {
                   ModelAtomics<>::Write32(bytes.data(), 7);
                   flag.store(1, store);
                 },
                 [&] {
                   if (flag.load(load) == 1)
                     model.Require(ModelAtomics<>::Read32(bytes.data()) == 7, "stale");
                 });
             model.Require(ModelAtomics<>::Read32(bytes.data()) == 7, "stale at the end");
           })
        .failure;
  };
  EXPECT_EQ(with(kRelease, kAcquire), "");
  EXPECT_THAT(with(kRelaxed, kAcquire), HasSubstr("data race: thread 1 with a write of thread 0"));
  EXPECT_THAT(with(kRelease, kRelaxed), HasSubstr("data race"));
  // The read before the write.
  const auto reuse = [&](std::memory_order store) {
    return ModelChecker::Explore([&](ModelChecker& model) {
             Atomic flag(0);
             ModelAtomics<>::Write32(bytes.data(), 0);
             model.Run(
                 [&] {
                   model.Require(ModelAtomics<>::Read32(bytes.data()) == 0, "from the future");
                   flag.store(1, store);
                 },
                 [&] {
                   if (flag.load(kAcquire) == 1) ModelAtomics<>::Write32(bytes.data(), 7);
                 });
           })
        .failure;
  };
  EXPECT_EQ(reuse(kRelease), "");
  EXPECT_THAT(reuse(kRelaxed), HasSubstr("data race: thread 1 with a read of thread 0"));
  EXPECT_THAT(ModelChecker::Explore([&](ModelChecker&) {
                static_cast<void>(ModelAtomics<>::Read32(bytes.data()));
              }).failure,
              HasSubstr("never written"));
}

TEST(ModelChecker, FencesOrderPlainMemoryThroughAStoreThatIsRead) {
  alignas(8) std::array<std::uint8_t, 8> bytes{};
  const auto with = [&](bool fence0, bool fence1, bool looks) {
    return ModelChecker::Explore([&](ModelChecker& model) {
             Atomic flag(0);
             ModelAtomics<>::Write32(bytes.data(), 0);
             model.Run(
                 [&] {
                   ModelAtomics<>::Write32(bytes.data(), 7);
                   if (fence0) Fence();
                   flag.store(1, kRelaxed);
                 },
                 [&] {
                   const bool saw = flag.load(kRelaxed) == 1;
                   if (fence1) Fence();
                   if (saw || !looks)
                     model.Require(ModelAtomics<>::Read32(bytes.data()) == 7, "stale");
                 });
           })
        .failure;
  };
  EXPECT_EQ(with(true, true, true), "");
  EXPECT_THAT(with(false, true, true), HasSubstr("data race"));
  EXPECT_THAT(with(true, false, true), HasSubstr("data race"));
  EXPECT_THAT(with(true, true, false), HasSubstr("data race"));

  // The store is read behind the fence, so the fences are not enough, although their order is
  // known: thread 0 stores only if its fence was first.
  const auto result = ModelChecker::Explore([&](ModelChecker& model) {
    Atomic x(0), flag(0);
    model.Run(
        [&] {
          ModelAtomics<>::Write32(bytes.data(), 7);
          Fence();
          if (x.load(kRelaxed) == 0) flag.store(1, kRelaxed);
        },
        [&] {
          x.store(1, kRelaxed);
          Fence();
          if (flag.load(kRelaxed) == 1) static_cast<void>(ModelAtomics<>::Read32(bytes.data()));
        });
  });
  EXPECT_THAT(result.failure, HasSubstr("data race"));
}

TEST(ModelChecker, SemaphoresBlockAndOrder) {
  alignas(8) std::array<std::uint8_t, 8> bytes{};
  const auto with = [&](int posts) {
    return ModelChecker::Explore([&](ModelChecker& model) {
             ModelChecker::Semaphore semaphore(0);
             model.Run(
                 [&] {
                   ModelAtomics<>::Write32(bytes.data(), 7);
                   for (int i = 0; i < posts; ++i)
                     semaphore.Post();
                 },
                 [&] {
                   semaphore.Wait();
                   model.Require(ModelAtomics<>::Read32(bytes.data()) == 7, "stale");
                 },
                 [&] { semaphore.Wait(); });
           })
        .failure;
  };
  EXPECT_EQ(with(2), "");
  EXPECT_THAT(with(1), HasSubstr("no thread can go on"));
}

TEST(ModelChecker, ReportsWhatWasRequiredAndTheOperationsBefore) {
  std::uint64_t calls = 0;
  const auto result = ModelChecker::Explore([&](ModelChecker& model) {
    ++calls;
    Atomic x(0);
    model.Run([&] { x.store(5, kRelaxed); },
              [&] { model.Require(x.load(kRelaxed) == 0, "x is still 0"); });
  });
  EXPECT_THAT(result.failure, HasSubstr("x is still 0\n  thread 0: store of 0: 5\n"));
  EXPECT_THAT(result.failure, HasSubstr("thread 1: load of 0: 5, store 2 of in all 2"));
  EXPECT_FALSE(result.exhaustive);
  EXPECT_EQ(result.executions, calls);

  const auto bounded = ModelChecker::Explore(
      [&](ModelChecker& model) {
        Atomic x(0);
        model.Run([&] { x.store(1, kRelaxed); }, [&] { x.store(2, kRelaxed); });
      },
      {.max_executions = 1});
  EXPECT_EQ(bounded.failure, "");
  EXPECT_FALSE(bounded.exhaustive);
  EXPECT_THAT(ModelChecker::Explore([&](ModelChecker&) {
                static_cast<void>(Atomic(0).load(std::memory_order_seq_cst));
              }).failure,
              HasSubstr("not modelled"));
}

TEST(ModelChecker, ExploresIndependentOperationsInOneOrder) {
  const auto body = [](ModelChecker& model) {
    Atomic x(0), y(0), z(0);
    const auto twice = [](Atomic& atomic) {
      atomic.store(1, kRelaxed);
      atomic.store(2, kRelaxed);
    };
    model.Run([&] { twice(x); }, [&] { twice(y); }, [&] { twice(z); });
  };
  EXPECT_EQ(ModelChecker::Explore(body).executions, 1);
  EXPECT_EQ(ModelChecker::Explore(body, {.every_order = true}).executions, 90);  // 6! / (2! 2! 2!)
}

// Sleep sets leave out executions, but no outcome.
TEST(ModelChecker, ReductionLosesNoOutcome) {
  TestRandom random;
  struct Step {
    int kind;
    std::size_t atomic;
    std::memory_order order;
  };
  std::size_t total = 0;
  for (int program = 0; program < PlainOr(150, 30); ++program) {
    std::array<std::vector<Step>, 3> threads;
    for (std::size_t t = 0; t < threads.size(); ++t) {
      for (std::size_t i = 0; i < (t == 2 ? 2 : 3); ++i) {
        Step step = {static_cast<int>(random() % 5), random() % 2, kRelaxed};
        if (random() % 2 == 0)
          step.order = step.kind <= 1 ? kAcquire : step.kind == 2 ? kRelease : kAcqRel;
        threads[t].push_back(step);
      }
    }
    const auto body = [&](ModelChecker& model) {
      std::array<Atomic, 2> atomics;
      std::array<Outcome, 3> saw;
      const auto run = [&](std::size_t t) {
        std::uint32_t value = static_cast<std::uint32_t>(t) * 10;
        for (const Step& step : threads[t]) {
          Atomic& atomic = atomics[step.atomic];
          ++value;
          if (step.kind <= 1) {
            saw[t].push_back(atomic.load(step.order));
          } else if (step.kind == 2) {
            atomic.store(value, step.order);
          } else if (step.kind == 3) {
            saw[t].push_back(atomic.exchange(value, step.order));
          } else {
            Fence();
          }
        }
      };
      model.Run([&] { run(0); }, [&] { run(1); }, [&] { run(2); });
      Outcome all = {atomics[0].load(kRelaxed), atomics[1].load(kRelaxed)};
      for (const Outcome& one : saw)
        all.insert(all.end(), one.begin(), one.end());
      return all;
    };
    const std::set<Outcome> reduced = Outcomes(body);
    ASSERT_EQ(reduced, Outcomes(body, true)) << "program " << program;
    total += reduced.size();
  }
  EXPECT_GT(total, PlainOr(1000, 200));
}

}  // namespace
}  // namespace waymark
