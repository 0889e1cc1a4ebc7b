// TicketState: every interleaving of the threads that use a ticket, and what the checker finds when
// one is broken.
#include "blockstore/store/ticket_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/unit/blockstore/store/model_log.h"

namespace waymark {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

// A bug of the threads that use the ticket.
enum class Misuse { kNone, kAppliedBeforeItIsWritten, kReadAfterRelease, kReleasedTwice };

// A ticket with one word for its range and one for its pages, and how often it was recycled.
template <class Atomics>
class Ticket {
 public:
  explicit Ticket(ModelChecker& checker, Misuse bug) : model_(checker), misuse_(bug) {}

  void Take(std::uint32_t snapshot) {
    Atomics::Write32(range(), snapshot);
    state_.Take();
  }
  // The applying thread: the pages are written only if a reader can still come.
  void Apply() {
    bool recycle = misuse_ == Misuse::kAppliedBeforeItIsWritten && state_.Apply();
    if (!state_.released()) Atomics::Write32(pages(), Atomics::Read32(range()));
    if (misuse_ != Misuse::kAppliedBeforeItIsWritten) recycle = state_.Apply();
    if (recycle) Recycle();
  }
  // The reader: reads the range, and the pages if they are written, and releases the ticket.
  void ReadAndRelease() {
    const std::uint32_t snapshot = Atomics::Read32(range());
    const bool applied = state_.applied();
    if (applied) ++ready;
    if (misuse_ == Misuse::kReadAfterRelease) Release();
    if (applied) model_.Require(Atomics::Read32(pages()) == snapshot, "the pages of this snapshot");
    if (misuse_ != Misuse::kReadAfterRelease) Release();
    if (misuse_ == Misuse::kReleasedTwice) Release();
  }

  int recycled = 0;
  int ready = 0;

 private:
  void Release() {
    if (state_.Release()) Recycle();
  }
  // The next user writes both words.
  void Recycle() {
    ++recycled;
    Atomics::Write32(range(), 0);
    Atomics::Write32(pages(), 0);
  }
  std::uint8_t* range() { return words_.data(); }
  std::uint8_t* pages() { return words_.data() + 4; }

  ModelChecker& model_;
  const Misuse misuse_;
  BasicTicketState<Atomics> state_;
  alignas(8) std::array<std::uint8_t, 8> words_{};
};

template <class Atomics = ModelAtomics<>>
ModelChecker::Result ApplyAgainstRelease(Misuse misuse = Misuse::kNone, int* ready = nullptr) {
  return ModelChecker::Explore([&](ModelChecker& model) {
    Ticket<Atomics> ticket(model, misuse);
    for (std::uint32_t snapshot = 1; snapshot <= 2; ++snapshot) {
      ticket.Take(snapshot);
      model.Run([&] { ticket.Apply(); }, [&] { ticket.ReadAndRelease(); });
      model.Require(ticket.recycled == static_cast<int>(snapshot), "recycled exactly once");
    }
    if (ready != nullptr) *ready += ticket.ready;
  });
}

TEST(TicketStateInterleavings, ApplyAgainstRelease) {
  int ready = 0;
  const auto result = ApplyAgainstRelease<>(Misuse::kNone, &ready);
  EXPECT_EQ(result.failure, "");
  EXPECT_TRUE(result.exhaustive);
  EXPECT_GT(ready, 0);
  EXPECT_LT(ready, static_cast<int>(2 * result.executions));
}

// The ticket as the store uses it: taken, appended to the log, and given to the reader, in the
// engine's thread; applied in another one; released in a third.
TEST(TicketStateInterleavings, TakenThroughTheLog) {
  int ready = 0;
  const auto result = ModelChecker::Explore([&](ModelChecker& model) {
    ModelLog<ModelAtomics<>> log(model, 64, 0);
    Ticket<ModelAtomics<>> ticket(model, Misuse::kNone);
    ModelChecker::Semaphore given(0);
    bool applied = false;
    model.Run(
        [&] {
          ticket.Take(7);
          log.Append(8);
          log.Publish();
          given.Post();
        },
        [&] {
          log.Drain();
          applied = log.consumed == 1;
          if (applied) ticket.Apply();
        },
        [&] {
          given.Wait();
          ticket.ReadAndRelease();
        });
    if (!applied) ticket.Apply();
    log.DrainTheRest();
    model.Require(ticket.recycled == 1, "recycled exactly once");
    ready += ticket.ready;
  });
  EXPECT_EQ(result.failure, "");
  EXPECT_TRUE(result.exhaustive);
  EXPECT_GT(ready, 0);
}

// --- The checker finds ---

template <Weakening kBug>
std::string Failure() {
  return ApplyAgainstRelease<ModelAtomics<kBug>>().failure;
}

TEST(TicketStateInterleavings, FindsWeakerOperations) {
  EXPECT_THAT(Failure<Weakening::kRelaxedUpdates>(), HasSubstr("data race"));
  EXPECT_THAT(Failure<Weakening::kRelaxedLoads>(), HasSubstr("data race"));
  EXPECT_THAT(Failure<Weakening::kSplitUpdates>(), HasSubstr("recycled exactly once"));
}

TEST(TicketStateInterleavings, FindsMisuse) {
  EXPECT_THAT(ApplyAgainstRelease<>(Misuse::kAppliedBeforeItIsWritten).failure,
              HasSubstr("data race"));
  EXPECT_THAT(ApplyAgainstRelease<>(Misuse::kReadAfterRelease).failure,
              AnyOf(HasSubstr("data race"), HasSubstr("the pages of this snapshot")));
  EXPECT_THAT(ApplyAgainstRelease<>(Misuse::kReleasedTwice).failure,
              HasSubstr("recycled exactly once"));
}

}  // namespace
}  // namespace waymark
