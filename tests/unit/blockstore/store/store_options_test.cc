// Options by name, and the list of counters.
#include "blockstore/store/store_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "blockstore/store/stats.h"
#include "blockstore/timeout.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

TEST(StoreOptions, AreSetByTheirNames) {
  StoreOptions options;
  const auto set = [&](const char* name, const char* text) {
    return SetStoreOption(options, name, text);
  };
  EXPECT_TRUE(set("num_pages", "77").ok());
  EXPECT_EQ(options.num_pages, 77u);
  EXPECT_TRUE(set("key_seed", "18446744073709551615").ok());
  EXPECT_EQ(options.key_seed, ~std::uint64_t{0});
  EXPECT_TRUE(set("audit", "False").ok());
  EXPECT_FALSE(options.audit);
  EXPECT_TRUE(set("audit_threshold", "0.75").ok());
  EXPECT_EQ(options.audit_threshold, 0.75);
  EXPECT_TRUE(set("audit_threshold", "none").ok());
  EXPECT_EQ(options.audit_threshold, std::nullopt);
  EXPECT_TRUE(set("spare_pages", "0").ok());
  EXPECT_EQ(options.spare_pages, 0u);
  EXPECT_TRUE(set("spare_pages", "none").ok());
  EXPECT_EQ(options.spare_pages, std::nullopt);
}

// Where 0 is never, a wait of no time at all is one of the shortest; a store does not end never.
TEST(StoreOptions, SecondsAreExactAtTheirEnds) {
  StoreOptions options;
  EXPECT_TRUE(SetStoreOption(options, "ids_timeout", "1.5").ok());
  EXPECT_EQ(options.ids_timeout, std::chrono::milliseconds(1500));
  EXPECT_TRUE(SetStoreOption(options, "ids_timeout", "0").ok());
  EXPECT_EQ(options.ids_timeout, std::chrono::nanoseconds(1));
  EXPECT_TRUE(SetStoreOption(options, "ids_timeout", "none").ok());
  EXPECT_EQ(options.ids_timeout, std::chrono::nanoseconds(0));
  EXPECT_TRUE(SetStoreOption(options, "overdue_after", "1e300").ok());
  EXPECT_EQ(options.overdue_after, std::chrono::nanoseconds(kLongestTimeout));
  EXPECT_TRUE(SetStoreOption(options, "teardown_timeout", "0").ok());
  EXPECT_EQ(options.teardown_timeout, std::chrono::nanoseconds(0));
  EXPECT_TRUE(SetStoreOption(options, "teardown_timeout", "none").ok());
  EXPECT_EQ(options.teardown_timeout, std::chrono::nanoseconds(kLongestTimeout));
}

TEST(StoreOptions, WhatIsRefusedNamesTheOptionTheRuleAndTheText) {
  const StoreOptions before;
  StoreOptions options;
  const struct {
    const char *name, *text, *says;
  } kCases[] = {
      {"num_pages", "-1", "num_pages: an integer in [0, 2^32), got -1"},
      {"num_pages", "4294967296", "num_pages: an integer in [0, 2^32), got 4294967296"},
      {"log_bytes", "1.5", "log_bytes: an integer in [0, 2^64), got 1.5"},
      {"audit", "perhaps", "audit: true or false, got perhaps"},
      {"audit_threshold", "nan", "audit_threshold: a number in (0, 1], or none, got nan"},
      {"spare_pages", "", "spare_pages: an integer in [0, 2^32), or none, got "},
      {"ids_timeout", "-2.0", "ids_timeout: seconds, at least 0, or none, got -2.0"},
      {"ids_timeout", "nan", "ids_timeout: seconds, at least 0, or none, got nan"},
      {"page_tokens", "16", "options: one of num_pages, spare_pages, "},
  };
  for (const auto& one : kCases) {
    const absl::Status status = SetStoreOption(options, one.name, one.text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.name << " " << one.text;
    EXPECT_THAT(status.message(), HasSubstr(one.says));
  }
  EXPECT_EQ(options.num_pages, before.num_pages);
  EXPECT_EQ(options.audit, before.audit);
  EXPECT_EQ(options.ids_timeout, before.ids_timeout);
}

TEST(Stats, EveryCounterThatIsNotZeroIsInTheText) {
  Stats stats;
  EXPECT_EQ(stats.ToString(), "");
  std::uint64_t value = 1000;
#define WAYMARK_SET(name, meaning) stats.name = ++value;
  WAYMARK_STORE_COUNTERS(WAYMARK_SET)
#undef WAYMARK_SET
  stats.rows_missing[static_cast<std::size_t>(Reason::kAudit)] = 7;
  stats.failure = "the store has failed";
  const std::string text = stats.ToString();
  EXPECT_EQ(text.find("the store has failed\n"), 0u);
  value = 1000;
#define WAYMARK_EXPECT(name, meaning)                    \
  EXPECT_THAT(text, HasSubstr("\n" #name " ")) << #name; \
  EXPECT_THAT(text, HasSubstr(" " + std::to_string(++value) + "\n")) << #name << meaning;
  WAYMARK_STORE_COUNTERS(WAYMARK_EXPECT)
#undef WAYMARK_EXPECT
  EXPECT_THAT(text, HasSubstr("rows missing, audit "));
}

}  // namespace
}  // namespace waymark
