#include "blockstore/step_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace waymark {
namespace {

using ::testing::HasSubstr;

StepCode Invalid(StepRule rule, std::uint64_t index, std::int64_t value) {
  return {static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument), rule, index, value};
}
std::string Message(const StepCode& code) {
  return std::string(code.ToStatus().message());
}

TEST(StepCode, OkIsOk) {
  EXPECT_TRUE(StepCode{}.ok());
  EXPECT_TRUE(StepCode{}.ToStatus().ok());
  EXPECT_FALSE(StepCode{}.dropped());
}

TEST(StepCode, KeepsTheCodeAndNamesArgumentRuleAndValue) {
  const StepCode code = Invalid(StepRule::kSlotOutOfRange, 17, 123456);
  EXPECT_EQ(code.ToStatus().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(code), HasSubstr("slots[17]"));
  EXPECT_THAT(Message(code), HasSubstr("123456"));
  EXPECT_THAT(Message(Invalid(StepRule::kKeyTooLong, 3, 40)),
              HasSubstr("events[3].key_size must be at most 32; it is 40"));
  // A step is unsigned, also when it has the highest bit.
  EXPECT_THAT(Message(Invalid(StepRule::kStepNotIncreasing, 0, -1)),
              HasSubstr("18446744073709551615"));
}

TEST(StepCode, EveryRuleHasItsOwnMessage) {
  std::set<std::string> messages;
  const auto last = static_cast<int>(StepRule::kIdsExperts);
  for (int rule = 1; rule <= last; ++rule) {
    const auto of = static_cast<StepRule>(rule);
    if (rule == 12 || (of > StepRule::kRankRows && of < StepRule::kIdsRows)) continue;
    const std::string message = Message(Invalid(of, 5, 77));
    if (of != StepRule::kBusy && of != StepRule::kForked && of != StepRule::kIdsExperts) {
      EXPECT_THAT(message, HasSubstr("77"));
    }
    EXPECT_THAT(message, Not(HasSubstr("rule "))) << "rule " << rule << " has no message";
    EXPECT_TRUE(messages.insert(message).second) << message;
  }
  EXPECT_THAT(Message(Invalid(static_cast<StepRule>(200), 5, 77)), HasSubstr("rule 200"));
}

TEST(StepCode, ADroppedStepSaysSo) {
  const StepCode code{static_cast<std::int32_t>(absl::StatusCode::kResourceExhausted),
                      StepRule::kRingFull, 0, 16};
  EXPECT_TRUE(code.dropped());
  EXPECT_EQ(code.ToStatus().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace waymark
