#include "blockstore/store/message_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/test_seed.h"

namespace waymark {
namespace {

using enum MessageVerdict;

struct Received {
  std::uint64_t epoch;
  std::uint64_t sequence;
  MessageVerdict verdict;
};

struct Arrivals {
  const char* rule;
  std::vector<Received> messages;
};

TEST(MessageOrder, EachMessageHasTheVerdictOfItsTurn) {
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  const Arrivals cases[] = {
      {"messages in order are applied", {{7, 1, kApply}, {7, 2, kApply}, {7, 3, kApply}}},
      {"a first message with another number is a gap",
       {{7, 2, kGap}, {7, 3, kApply}, {7, 1, kIgnore}}},
      {"a doubled message is ignored",
       {{7, 1, kApply},
        {7, 1, kIgnore},
        {7, 2, kApply},
        {7, 2, kIgnore},
        {7, 1, kIgnore},
        {7, 3, kApply}}},
      {"a lost message is a gap once", {{7, 1, kApply}, {7, 3, kGap}, {7, 4, kApply}}},
      {"several lost messages are, too", {{7, 1, kApply}, {7, 9, kGap}, {7, 10, kApply}}},
      {"of reordered messages the late one is ignored",
       {{7, 1, kApply}, {7, 3, kGap}, {7, 2, kIgnore}, {7, 4, kApply}}},
      {"another sender is a new epoch",
       {{7, 1, kApply}, {8, 1, kNewEpoch}, {8, 2, kApply}, {8, 2, kIgnore}}},
      {"whatever its number", {{7, 1, kApply}, {8, 2, kNewEpoch}, {8, 3, kApply}, {8, 5, kGap}}},
      {"also the one that comes next",
       {{7, 5, kGap}, {8, 5, kNewEpoch}, {8, 4, kIgnore}, {8, 6, kApply}}},
      {"a late message of a replaced sender is a new epoch, too",
       {{7, 1, kApply}, {8, 1, kNewEpoch}, {7, 2, kNewEpoch}, {8, 2, kNewEpoch}, {8, 3, kApply}}},
      {"the greatest number is a number like any other",
       {{7, kMost - 1, kGap}, {7, kMost, kApply}, {7, kMost, kIgnore}, {7, 1, kIgnore}}}};
  for (const auto& [rule, messages] : cases) {
    MessageOrder order;
    for (const Received& message : messages) {
      EXPECT_EQ(order.Next(message.epoch, message.sequence), message.verdict)
          << rule << ": " << message.epoch << " " << message.sequence;
    }
  }
}

// The store is right if it was poisoned, since the last message that did not arrive in its turn,
// before each message that is applied.
TEST(MessageOrder, NoMessageIsAppliedTwiceOrBehindALostOneWithoutPoison) {
  TestRandom random;
  for (int run = 0; run < 300; ++run) {
    MessageOrder order;
    std::uint64_t sent = 0;
    std::uint64_t epoch = 1;
    std::uint64_t applied_epoch = 0;   // of the last message applied
    std::uint64_t applied_number = 0;  // its number
    std::vector<Received> on_the_way;
    for (int i = 0; i < 60; ++i) {
      if (random() % 20 == 0) {
        ++epoch;
        sent = 0;
      }
      on_the_way.push_back({epoch, ++sent, kApply});
      if (random() % 8 == 0) on_the_way.push_back(on_the_way.back());  // doubled
      if (random() % 8 == 0) on_the_way.pop_back();                    // lost
      while (on_the_way.size() > random() % 3) {
        // As a rule the oldest, now and then another one.
        const std::size_t which = random() % 4 == 0 ? random() % on_the_way.size() : 0;
        const Received message = on_the_way[which];
        on_the_way.erase(on_the_way.begin() + static_cast<std::ptrdiff_t>(which));
        const MessageVerdict verdict = order.Next(message.epoch, message.sequence);
        if (verdict == kIgnore) {
          ASSERT_EQ(message.epoch, applied_epoch);
          ASSERT_LE(message.sequence, applied_number);
          continue;
        }
        const bool in_turn = applied_epoch == 0 ? message.sequence == 1
                                                : message.epoch == applied_epoch &&
                                                      message.sequence == applied_number + 1;
        ASSERT_EQ(verdict == kApply, in_turn) << message.epoch << " " << message.sequence;
        applied_epoch = message.epoch;
        applied_number = message.sequence;
      }
    }
  }
}

}  // namespace
}  // namespace waymark
