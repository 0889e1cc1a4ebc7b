// The expert counts that a store keeps: of the last versions, in bounded memory.
#include "blockstore/store/expert_counter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>

#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

using testing::ElementsAre;

constexpr std::size_t kCounts = 3 * 64;  // of the shape of StoreDriver

// One row whose ids are all in column `expert` and the three after it.
void AddRow(ExpertCounter& counter, std::uint64_t version, int expert) {
  std::array<std::uint8_t, 12> row;
  for (std::size_t i = 0; i < row.size(); ++i)
    row[i] = static_cast<std::uint8_t>(expert + static_cast<int>(i % 4));
  const std::array<const std::uint8_t*, 2> rows = {nullptr, row.data()};
  counter.Add(StoreDriver::Shape(), version, rows);
}

TEST(ExpertCounter, CountsIdsPerVersionAndLayer) {
  ExpertCounter counter(8);
  RoutingShape shape = {.num_layers = 2, .top_k = 1, .num_experts = 4, .page_tokens = 4};
  const std::uint8_t a[] = {1, 3};
  const std::uint8_t b[] = {1, 0};
  const std::uint8_t* const rows[] = {a, nullptr, b};
  counter.Add(shape, 6, rows);
  counter.Add(shape, 5, std::span(rows).first(1));
  EXPECT_THAT(counter.Versions(), ElementsAre(6, 5)) << "in the order of first use";
  EXPECT_THAT(counter.Of(6).value().counts, ElementsAre(0, 2, 0, 0, 1, 0, 0, 1));
  EXPECT_THAT(counter.Of(5).value().counts, ElementsAre(0, 1, 0, 0, 0, 0, 0, 1));
}

TEST(ExpertCounter, ReadsIdsOfTwoBytes) {
  ExpertCounter counter(8);
  RoutingShape shape = {.num_layers = 1, .top_k = 1, .num_experts = 300, .page_tokens = 4};
  const std::uint8_t id_258[] = {2, 1};
  const std::uint8_t* const rows[] = {id_258};
  counter.Add(shape, 1, rows);
  EXPECT_EQ(counter.Of(1).value().counts[258], 1u);
}

TEST(ExpertCounter, KeepsTheLastVersions) {
  ExpertCounter counter(3);
  EXPECT_TRUE(counter.Versions().empty());
  for (std::uint64_t version = 10; version < 1010; ++version)
    AddRow(counter, version, static_cast<int>(version % 50));
  EXPECT_THAT(counter.Versions(), ElementsAre(1007, 1008, 1009));
  EXPECT_TRUE(absl::IsNotFound(counter.Of(1006).status()));
  const ExpertCounts last = counter.Of(1009).value();
  EXPECT_EQ(last.version, 1009u);
  ASSERT_EQ(last.counts.size(), kCounts);
  for (std::size_t i = 0; i < kCounts; ++i)
    EXPECT_EQ(last.counts[i], i % 64 >= 9 && i % 64 < 13 ? 1u : 0u) << "nothing of version 1006";
  // Rows of a version that is kept are added to its counts, and change no order.
  AddRow(counter, 1007, 7);
  EXPECT_THAT(counter.Versions(), ElementsAre(1007, 1008, 1009));
  EXPECT_EQ(counter.Of(1007).value().counts[7], 2u);
  // A late row of a version that is not kept begins anew.
  AddRow(counter, 10, 0);
  EXPECT_THAT(counter.Versions(), ElementsAre(1008, 1009, 10));
  EXPECT_EQ(counter.Of(10).value().counts[0], 1u);
}

TEST(ExpertCounter, AStoreKeepsEightVersionsByDefault) {
  StoreOptions options = StoreDriver::Options();
  options.count_experts = true;
  StoreDriver d(options);
  for (std::uint64_t step = 1; step <= 20; ++step)
    d.Step(step, {Bind(1)}, d.Slots({1}, 0, 2), {1, 2}, /*version=*/100 + step);
  EXPECT_THAT(d.store().ExpertVersions(), ElementsAre(113, 114, 115, 116, 117, 118, 119, 120));
  std::uint64_t ids = 0;
  const absl::StatusOr<ExpertCounts> newest = d.store().ExpertCountsOf(120);
  ASSERT_TRUE(newest.ok()) << newest.status();
  for (const std::uint64_t count : newest->counts)
    ids += count;
  EXPECT_EQ(ids, 2u * 3 * 4);
  EXPECT_TRUE(absl::IsNotFound(d.store().ExpertCountsOf(112).status()));
}

TEST(ExpertCounter, TheNumberOfVersionsIsChecked) {
  for (const std::uint32_t versions : {0u, 4097u}) {
    StoreOptions options = StoreDriver::Options();
    options.expert_versions = versions;
    const absl::Status status = RoutingStore::Create(options).status();
    EXPECT_EQ(status.message(),
              absl::StrCat("StoreOptions.expert_versions: must be in [1, 4096], got ", versions));
  }
}

}  // namespace
}  // namespace waymark
