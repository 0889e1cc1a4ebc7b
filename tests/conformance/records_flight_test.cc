// Flights of random records: a replay reads what was read, from the first record and from a
// checkpoint between any two of them.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "blockstore/flight/check.h"
#include "blockstore/flight/format.h"
#include "blockstore/flight/recorder.h"
#include "blockstore/flight/writer.h"
#include "tests/conformance/direct.h"
#include "tests/conformance/random_records.h"
#include "tests/conformance/schedules.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"

namespace waymark::conformance {
namespace {

FlightReport CheckBytes(const std::string& bytes) {
  FlightReader reader = FlightReader::FromBytes(bytes).value();
  FlightReport report = CheckFlight(reader).value();
  for (const ReadDifference& difference : report.differences)
    ADD_FAILURE() << difference.ToString();
  EXPECT_FALSE(report.truncated || report.incomplete);
  return report;
}

// The flight without its records of one kind, and without its close. `left_out` sees each of them.
std::string Without(const std::string& bytes, FlightRecordKind kind,
                    const std::function<void(const FlightRecord&)>& left_out) {
  FlightReader reader = FlightReader::FromBytes(bytes).value();
  std::string out = flight::EncodeHead(reader.info());
  std::size_t kept_from = out.size();
  FlightRecord record;
  while (reader.Next(record).value()) {
    if (kept_from != 0) out += bytes.substr(kept_from, record.offset - kept_from);
    if (record.kind == kind) left_out(record);
    const bool kept = record.kind != kind && record.kind != FlightRecordKind::kClose;
    kept_from = kept ? record.offset : 0;
  }
  return out;
}

// What a replay says of the flight without these records.
FlightReport CheckWithout(
    const std::string& bytes, FlightRecordKind kind,
    const std::function<void(const FlightRecord&)>& left_out = [](const FlightRecord&) {}) {
  FlightReader changed = FlightReader::FromBytes(Without(bytes, kind, left_out)).value();
  return CheckFlight(changed).value();
}

// The flight of the random records of a seed, in which a replay reads all rows as they were read.
std::string FlyRecords(std::uint64_t seed, const FlightInfo& info, RecordsHooks hooks,
                       FlightReport& report) {
  const auto writer = FlightWriter::InMemory(info);
  hooks.sink = writer->sink();
  (void)RunRecords(seed, Reporting::kMixed, hooks);
  EXPECT_TRUE(writer->Close().ok());
  report = CheckBytes(writer->bytes());
  EXPECT_EQ(report.rows_right, report.rows_read);
  return writer->bytes();
}

FlightRows RowsOf(std::uint64_t seed) {
  return seed % 2 == 0 ? FlightRows::kIds : FlightRows::kDigests;
}

TEST(RecordsFlight, AReplayReadsTheSame) {
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  const std::uint64_t count = FromEnvironment("WAYMARK_DIFFERENTIAL", PlainOr(300, 60));
  std::uint64_t right = 0;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RecordsHooks hooks;
    hooks.equal_rows = true;
    FlightReport report;
    FlyRecords(seed, FlightInfo::Of(RecordsOptions(seed), RowsOf(seed)), hooks, report);
    EXPECT_EQ(report.rows_not_checked, 0u);
    right += report.rows_right;
  }
  EXPECT_GT(right, 10 * count);
}

// The audit voids pages of random rows, and the replay loses them at the same places: without any
// of these records it reads otherwise. The digests of a flight agree like the rows only on average,
// so that its own audit would void others.
TEST(RecordsFlight, AReplayVoidsTheSameRowsAtTheSamePlaces) {
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  const std::uint64_t count = FromEnvironment("WAYMARK_DIFFERENTIAL", 300);
  std::array<std::uint64_t, 4> named{};
  std::uint64_t audited = 0;
  std::uint64_t missed = 0;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const FlightInfo info = FlightInfo::Of(RecordsOptions(seed, /*audit=*/true), RowsOf(seed));
    RecordsHooks hooks;
    hooks.audit = true;
    FlightReport report;
    const std::string whole = FlyRecords(seed, info, hooks, report);
    audited += report.rows_missing[static_cast<std::size_t>(Reason::kAudit)];
    const FlightReport differs =
        CheckWithout(whole, FlightRecordKind::kVoided, [&](const FlightRecord& record) {
          ++named.at(static_cast<std::size_t>(record.voided.by));
        });
    missed += differs.rows_differing > 0 ? 1 : 0;
  }
  std::printf(
      "voided pages: %llu by block, %llu by snapshot, %llu by key; %llu rows read as such\n",
      static_cast<unsigned long long>(named[1]), static_cast<unsigned long long>(named[2]),
      static_cast<unsigned long long>(named[3]), static_cast<unsigned long long>(audited));
  EXPECT_GT(named[1], count / 10);
  EXPECT_GT(named[2] + named[3], 0u);
  EXPECT_GT(audited, count);
  EXPECT_GT(missed, count / 10) << "flights without their voided pages";
}

// With few pages, snapshots decide which pages are evicted and which rows have none. The replay
// decides the same, so that no difference has to be excused; without the returned snapshots it does
// not.
TEST(RecordsFlight, AReplayIsShortOfPagesForTheSameRows) {
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  const std::uint64_t count = FromEnvironment("WAYMARK_DIFFERENTIAL", PlainOr(300, 60));
  std::uint64_t short_of_pages = 0;
  std::uint64_t without_returned = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RecordsHooks hooks;
    hooks.few_pages = true;
    FlightReport report;
    const std::string whole = FlyRecords(seed, FlightInfo::Of(FewPages(seed)), hooks, report);
    EXPECT_EQ(report.rows_excused, 0u);
    short_of_pages += report.rows_missing[static_cast<std::size_t>(Reason::kCapacity)];
    const FlightReport differs = CheckWithout(whole, FlightRecordKind::kReleased);
    without_returned += differs.rows_excused > 0 ? 1 : 0;
  }
  std::printf("%llu rows missing (capacity), %llu flights differ without returned snapshots\n",
              static_cast<unsigned long long>(short_of_pages),
              static_cast<unsigned long long>(without_returned));
  EXPECT_GT(short_of_pages, count);
  EXPECT_GT(without_returned, count / 10);
}

// The ring is small, and reads of no snapshot fill it, so that checkpoints fall between events and
// their step, and under open schedules.
TEST(RecordsFlight, ADumpFromACheckpointReadsTheSame) {
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  const std::uint64_t count = FromEnvironment("WAYMARK_DIFFERENTIAL", PlainOr(200, 40));
  std::uint64_t checkpoints = 0;
  std::uint64_t right = 0;
  for (std::uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RecorderOptions ring;
    ring.ring_bytes = std::size_t{32} << 10;
    ring.background = false;
    auto recorder = FlightRecorder::Create(RecordsOptions(seed), ring).value();
    RecordsHooks hooks;
    hooks.equal_rows = true;
    hooks.sink = recorder->sink();
    const std::vector<RowInfo> infos(150);
    const std::vector<std::uint64_t> digests(infos.size());
    hooks.between_schedules = [&] {
      hooks.sink->On({.kind = FlightRecordKind::kRead, .infos = infos, .digests = digests});
      ASSERT_TRUE(recorder->ReplayOldest().ok());
      std::string dump;
      const absl::Status status = recorder->DumpTo(dump);
      ASSERT_TRUE(status.ok()) << status;
      const FlightReport report = CheckBytes(dump);
      checkpoints += report.from_checkpoint ? 1 : 0;
      right += report.rows_right;
    };
    (void)RunRecords(seed, Reporting::kMixed, hooks);
    EXPECT_EQ(recorder->stopped(), "");
  }
  EXPECT_GT(checkpoints, count);
  EXPECT_GT(right, 10 * count);
}

}  // namespace
}  // namespace waymark::conformance
