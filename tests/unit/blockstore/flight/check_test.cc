// CheckFlight: right flights are right, wrong reads are named, and an engine that forgot a Bind is
// found with block, step and event.
#include <cstdint>
#include <string>
#include <vector>

#include "blockstore/flight/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sanitizers.h"
#include "tests/support/token_rows.h"
#include "tests/unit/blockstore/flight/flight_sim.h"
#include "tests/unit/blockstore/flight/removals.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

constexpr const char* kScenarios[] = {
    "",
    "draft=.5 late=1",
    "preempt=.05 draft=.3",
    "swap=.5",
    "tier=.5 bump=.02",
    "partial=.5 fork=.1",
    "drop=.05 cancel=.03 draft=.4 reset=.02 mute=.1 silent=.05",
    "bump=.05 full_hit=.4",
    "behind=3 shuffle=1 draft=.5 truncate_delay=2",
    "block_tokens=8 page_tokens=4 external=.3",
};

TEST(FlightCheck, FlightsOfBothEnginesAreRight) {
  for (const char* features : kScenarios) {
    for (const bool megatron : {false, true}) {
      for (const FlightRows rows : {FlightRows::kDigests, FlightRows::kIds}) {
        SCOPED_TRACE(std::string(features) + (megatron ? " megatron" : " vllm"));
        const SimFlight flight = FlySim(SimOptions(megatron, features, 7), 150, rows);
        const FlightReport verdict = Check(flight.bytes);
        EXPECT_TRUE(verdict.clean());
        EXPECT_EQ(verdict.rows_differing, 0u);
        EXPECT_EQ(verdict.rows_right, verdict.rows_read);
        EXPECT_EQ(verdict.rows_not_checked, 0u);
        EXPECT_GT(verdict.rows_read, 300u);
        EXPECT_FALSE(verdict.truncated);
        for (const ReadDifference& difference : verdict.differences) {
          ADD_FAILURE() << difference.ToString();
        }
      }
    }
  }
}

TEST(FlightCheck, AChangedReadIsNamed) {
  const SimFlight flight = FlySim(SimOptions(false, "draft=.3", 11), 100, FlightRows::kIds);
  ASSERT_TRUE(Check(flight.bytes).clean());
  std::uint64_t read_id = 0;
  std::int64_t row = 0;
  // The digest of one row: another route was read than was landed.
  std::string bad = Rewrite(flight.bytes, nullptr, [&](FlightRecord& read) {
    if (read.read_id != 5) return;
    for (std::size_t i = 0; i < read.infos.size(); ++i) {
      if (read_id != 0 || !read.infos[i].valid()) continue;
      read_id = read.read_id;
      row = read.begin + static_cast<std::int64_t>(i);
      read.digests[i] ^= 1;
    }
  });
  ASSERT_NE(read_id, 0u);
  FlightReport verdict = Check(bad);
  EXPECT_FALSE(verdict.clean());
  EXPECT_FALSE(verdict.has_missed_event());
  EXPECT_EQ(verdict.rows_differing, 1u);
  EXPECT_EQ(verdict.reads_differing, 1u);
  ASSERT_EQ(verdict.differences.size(), 1u);
  EXPECT_EQ(verdict.differences[0].read_id, 5u);
  EXPECT_EQ(verdict.differences[0].row, row);
  EXPECT_TRUE(verdict.differences[0].other_route);
  EXPECT_THAT(verdict.differences[0].ToString(), HasSubstr("another route"));

  // What is said of a row: step, version, provenance, reason.
  for (int what = 0; what < 4; ++what) {
    bool done = false;
    bad = Rewrite(flight.bytes, nullptr, [&](FlightRecord& read) {
      for (RowInfo& info : read.infos) {
        if (done || !info.valid()) continue;
        done = true;
        if (what == 0) info.step += 1;
        if (what == 1) info.version += 1;
        if (what == 2) info.provenance = Provenance::kByKey;
        if (what == 3) info = RowInfo{0, 0, Reason::kNotCaptured, Provenance::kHere};
      }
    });
    verdict = Check(bad);
    EXPECT_EQ(verdict.rows_differing, 1u) << what;
    ASSERT_EQ(verdict.differences.size(), 1u) << what;
    EXPECT_FALSE(verdict.differences[0].other_route) << what;
  }
}

// ---- a forgotten Bind

// A block is written, sealed, released, bound again and written by another sequence.
std::string ReuseFlight(bool audit, bool forget_bind) {
  StoreOptions options = TokenRowsOptions();
  options.audit = audit;
  const auto writer = FlightWriter::InMemory(FlightInfo::Of(options, FlightRows::kIds));
  options.flight = writer->sink();

  {
    auto store = RoutingStore::Create(options).value();
    const auto read = [&](std::int64_t rows) {
      const std::vector<BlockId> blocks = {BlockId(3), BlockId(4)};
      auto snapshot = store->TakeSnapshot(blocks, 0, rows);
      EXPECT_TRUE(snapshot.ok());
      EXPECT_TRUE(snapshot->ReadRows().ok());
    };
    const BlockKey first = BlockKey::FromInteger(101);
    const BlockKey second = BlockKey::FromInteger(202);
    LandTokens(*store, 10, {Event::Bind(BlockId(3)), Event::Seal(BlockId(3), first, StepId(10))},
               {12, 13, 14, 15}, {1, 2, 3, 4});
    LandTokens(*store, 11, {Event::Bind(BlockId(4))}, {16, 17}, {5, 6});
    read(6);
    LandTokens(*store, 12, {Event::Release(BlockId(3)), Event::Release(BlockId(4))}, {}, {});
    std::vector<Event> reuse = {Event::Bind(BlockId(3)), Event::Bind(BlockId(4))};
    if (forget_bind) reuse.erase(reuse.begin());
    LandTokens(*store, 13, reuse, {12, 13, 14}, {21, 22, 23});
    LandTokens(*store, 14, {Event::Seal(BlockId(3), second, StepId(14))}, {15, 16}, {24, 25});
    read(5);
  }
  EXPECT_TRUE(writer->Close().ok());
  return writer->bytes();
}

TEST(FlightCheck, AnEngineThatForgotABindIsIndictedByItsOwnWrites) {
  EXPECT_TRUE(Check(ReuseFlight(/*audit=*/true, /*forget_bind=*/false)).clean());

  // The store had its audit off, so that what it gave out was wrong, and that is what was recorded.
  const FlightReport verdict = Check(ReuseFlight(/*audit=*/false, /*forget_bind=*/true));
  EXPECT_TRUE(verdict.has_missed_event());
  ASSERT_EQ(verdict.missed_events.size(), 1u);
  const MissedEvent& found = verdict.missed_events[0];
  EXPECT_EQ(found.block, 3);
  EXPECT_EQ(found.step, 13u);
  EXPECT_EQ(found.after, 10u);
  EXPECT_EQ(found.event, "Bind(block 3)");
  EXPECT_EQ(found.rows, 3u);
  EXPECT_LT(found.agreement, 0.5);
  EXPECT_THAT(found.ToString(), HasSubstr("block 3, step 13: Bind(block 3) is missing"));
}

// Nothing but the events and the landed rows is needed: without one recorded read it is the same.
TEST(FlightCheck, IndictmentNeedsNoReads) {
  const std::string flight = ReuseFlight(true, false);
  const std::string bad = Rewrite(
      flight,
      [&](std::uint64_t scheduled, std::vector<Event>& events) {
        if (scheduled == 13) events.erase(events.begin());
      },
      [](FlightRecord& read) {
        read.infos.clear();
        read.digests.clear();
      });
  const FlightReport verdict = Check(bad);
  EXPECT_EQ(verdict.rows_read, 0u);
  EXPECT_TRUE(verdict.reads_right());
  ASSERT_EQ(verdict.missed_events.size(), 1u);
  EXPECT_EQ(verdict.missed_events[0].block, 3);
  EXPECT_EQ(verdict.missed_events[0].step, 13u);
}

TEST(FlightCheck, TheAuditFindsBindsThatAreRemovedOneByOne) {
  Removals all;
  for (const char* features : {"", "draft=.5 late=1", "swap=.5", "preempt=.05"}) {
    for (const bool megatron : {false, true}) {
      const SimFlight flight = FlySim(SimOptions(megatron, features, 7), PlainOr(100, 50));
      FlightReader reader = Reader(flight.bytes);
      const Removals removals = RemovingBinds(reader).All();
      all.harmful += removals.harmful;
      all.found += removals.found;
      all.block_named += removals.block_named;
      all.step_named += removals.step_named;
      all.rows_wrong += removals.rows_wrong;
      all.rows_still_wrong += removals.rows_still_wrong;
    }
  }
  EXPECT_GT(all.harmful, PlainOr(150u, 50u));
  EXPECT_GE(all.PartOfHarmful(all.found), 0.95);
  EXPECT_GE(all.PartOfHarmful(all.block_named), 0.95);
  EXPECT_GE(all.PartOfHarmful(all.step_named), 0.97);
  EXPECT_LT(all.rows_still_wrong, all.rows_wrong / 10);
}

// Found by made-up payloads: a step's own seal of a null block indexed the table with -1.
TEST(FlightCheck, ASealOfANullBlockIsIgnored) {
  StoreOptions options;
  options.shape = {.num_layers = 4, .top_k = 2, .num_experts = 16, .page_tokens = 4};
  options.num_blocks = 8;
  options.null_blocks = {BlockId(2)};
  options.landing = Landing::kCaller;
  auto store = RoutingStore::Create(options).value();
  const BlockKey key = BlockKey::FromInteger(1);
  const std::vector<Event> events = {Event::Seal(BlockId(-1), key, StepId(5)),
                                     Event::Seal(BlockId(2), key, StepId(5))};
  ASSERT_TRUE(store->BeginStep({5, 1, events.data(), events.size(), nullptr, 0}).ok());
  EXPECT_EQ(store->GetStats().events_on_null_blocks, 2u);
}

TEST(FlightCheck, AHeadThatAsksForTooMuchMemoryIsRefused) {
  StoreOptions options;
  options.shape = {.num_layers = 4, .top_k = 2, .num_experts = 16, .page_tokens = 16};
  options.num_blocks = 1 << 30;
  const auto writer = FlightWriter::InMemory(FlightInfo::Of(options));
  ASSERT_TRUE(writer->Close().ok());
  FlightReader reader = Reader(writer->bytes());
  const auto verdict = CheckFlight(reader);
  EXPECT_EQ(verdict.status().code(), absl::StatusCode::kResourceExhausted) << verdict.status();
}

}  // namespace
}  // namespace waymark
