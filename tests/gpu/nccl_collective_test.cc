// NcclCollective on one device: a communicator of one rank, and one whose other rank does not come.
// Two ranks need two devices.
#include "plugin/capture/nccl_collective.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace waymark {
namespace {

TEST(NcclCollective, OneRankGathersItsOwnBytes) {
  const auto id = NcclCollective::NewId();
  if (!id.ok()) GTEST_SKIP() << id.status();
  NcclOptions options;
  options.id = *id;
  options.max_bytes = 1000;
  auto made = NcclCollective::Create(options);
  if (made.status().code() == absl::StatusCode::kUnavailable) GTEST_SKIP() << made.status();
  ASSERT_TRUE(made.ok()) << made.status();
  const Collective collective = (*made)->collective();
  for (const std::size_t bytes : {1u, 16u, 999u, 1000u}) {
    const std::vector<std::uint8_t> sent(bytes, static_cast<std::uint8_t>(bytes));
    std::vector<std::uint8_t> received(bytes);
    ASSERT_TRUE(AllGather(collective, "bytes", sent.data(), received.data(), bytes).ok());
    EXPECT_EQ(received, sent);
  }
  std::vector<std::uint8_t> many(1001);
  EXPECT_EQ(AllGather(collective, "bytes", many.data(), many.data(), many.size()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(NcclCollective, ARankThatDoesNotComeEndsInTheDeadline) {
  const auto id = NcclCollective::NewId();
  if (!id.ok()) GTEST_SKIP() << id.status();
  NcclOptions options;
  options.id = *id;
  options.ranks = 2;
  options.max_bytes = 1000;
  options.timeout = std::chrono::seconds(2);
  const auto start = std::chrono::steady_clock::now();
  const auto made = NcclCollective::Create(options);
  if (made.status().code() == absl::StatusCode::kUnavailable) GTEST_SKIP() << made.status();
  EXPECT_EQ(made.status().code(), absl::StatusCode::kDeadlineExceeded) << made.status();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(NcclCollective, RefusesWhatIsNone) {
  NcclOptions options;
  EXPECT_EQ(NcclCollective::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.max_bytes = 8;
  options.rank = 1;
  EXPECT_EQ(NcclCollective::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace waymark
