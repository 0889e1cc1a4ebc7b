// Snapshots that are released late: their rows are copied out of pages when pages are short, and
// cost no row of a request that runs.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/log_lines.h"
#include "tests/unit/blockstore/store/reported_events.h"
#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

// Three pages for three blocks, which every turn binds again, and room for the pages of two more
// turns. Nobody releases a snapshot.
StoreOptions Small() {
  StoreOptions options = StoreDriver::Options();
  options.num_pages = 3;
  options.spare_pages = 8;
  options.copy_out_bytes = 1 << 20;
  return options;
}

class Turns {
 public:
  explicit Turns(const StoreOptions& options = Small()) : driver(options) {}

  void Turn(std::uint64_t step) {
    const int id = static_cast<int>(step);
    driver.Step(step, {Bind(1), Bind(2), Bind(3)}, {4, 8, 9, 10, 11, 12}, {id, id, id, id, id, id});
    held.push_back(driver.Take({1, 2, 3}, 0, 9));
  }
  static std::string Text(std::uint64_t step) {
    const std::string row = absl::StrCat(step, "@", step);
    return absl::StrCat(row, " n n n ", row, " ", row, " ", row, " ", row, " ", row);
  }
  Stats stats() { return driver.store().GetStats(); }

  StoreDriver driver;
  std::vector<Snapshot> held;
};

TEST(CopyOut, ReadersThatNeverReadCostNoRowOfARunningRequest) {
  Turns turns;
  for (std::uint64_t step = 1; step <= 50; ++step)
    turns.Turn(step);
  const Stats stats = turns.stats();
  EXPECT_EQ(stats.no_page, 0u);
  EXPECT_EQ(stats.rows_without_page, 0u);
  EXPECT_GE(stats.snapshots_copied_out, 45u);
  EXPECT_GE(stats.pages_copied_out, 3 * 45u);
  EXPECT_GE(stats.copied_out_bytes, 45 * 6 * StoreDriver::Shape().row_bytes());
  EXPECT_EQ(stats.pages_snapshots_only, stats.pages_detached);
  for (std::uint64_t step = 1; step <= 50; ++step)
    EXPECT_EQ(turns.driver.Show(turns.held[step - 1]), Turns::Text(step));

  turns.held.clear();
  turns.driver.Step(51, {}, {}, {});
  EXPECT_EQ(turns.stats().copied_out_bytes, 0u) << "a copy ends with its snapshot";
  EXPECT_EQ(turns.stats().pages_detached, 0u);
  EXPECT_EQ(turns.stats().pages_in_use, 3u);
}

// What the pages have: 3 + 8, of which 3 at a time are those of the blocks. What no turn had any
// page for is missing for want of capacity, which the log says once, with what to do.
TEST(CopyOut, BeyondTheLimitRowsAreMissingAndTheLogSaysSoOnce) {
  LogLines log;
  StoreOptions options = Small();
  options.copy_out_bytes = 1;
  options.log = log.callback();
  Turns turns(options);
  for (std::uint64_t step = 1; step <= 3; ++step)
    turns.Turn(step);
  EXPECT_EQ(turns.stats().no_page, 0u);
  EXPECT_TRUE(log.lines().empty());
  for (std::uint64_t step = 4; step <= 6; ++step)
    turns.Turn(step);
  const Stats stats = turns.stats();
  EXPECT_EQ(stats.pages_copied_out, 0u);
  EXPECT_EQ(stats.pages_snapshots_only, 9u + 2u);
  EXPECT_EQ(turns.driver.Show(turns.held[0]), Turns::Text(1));
  EXPECT_EQ(turns.driver.Show(turns.held[3]), "4@4 n n n 4@4 4@4 4@4 4@4 c");
  EXPECT_EQ(turns.driver.Show(turns.held[4]), "c c c c c c c c c");
  ASSERT_EQ(log.lines().size(), 1u);
  const LogLines::Line line = log.lines()[0];
  EXPECT_EQ(line.level, LogLevel::kWarning);
  for (const char* const part : {"3 + 8 spare pages", "0 of 1 bytes", "release", "copy_out_bytes"})
    EXPECT_NE(line.text.find(part), std::string::npos) << line.text;
}

TEST(CopyOut, TheLimitIsThatOfAllCopies) {
  StoreOptions options = Small();
  options.copy_out_bytes = 2000;
  Turns turns(options);
  for (std::uint64_t step = 1; step <= 20; ++step)
    turns.Turn(step);
  EXPECT_GT(turns.stats().pages_copied_out, 5u);
  EXPECT_LE(turns.stats().copied_out_bytes, 2000u);
  EXPECT_GT(turns.stats().no_page, 0u);
  // Room for further copies comes with the snapshots that are released.
  turns.held.clear();
  const std::uint64_t no_page = turns.stats().no_page;
  turns.driver.Step(21, {}, {}, {});
  for (std::uint64_t step = 22; step <= 26; ++step)
    turns.Turn(step);
  EXPECT_EQ(turns.stats().no_page, no_page);
}

TEST(CopyOut, SnapshotsThatHadAPageShareItsCopy) {
  Turns turns;
  turns.Turn(1);
  for (int more = 0; more < 5; ++more)
    turns.held.push_back(turns.driver.Take({1, 2, 3}, 0, 9 - more));
  for (std::uint64_t step = 2; step <= 4; ++step)
    turns.Turn(step);
  EXPECT_GE(turns.stats().snapshots_copied_out, 6u);
  EXPECT_LE(turns.stats().pages_copied_out, 4u);
  EXPECT_EQ(turns.driver.Show(turns.held[0]), Turns::Text(1));
  turns.held.erase(turns.held.begin());
  turns.driver.Step(5, {}, {}, {});
  EXPECT_GT(turns.stats().copied_out_bytes, 0u);
  EXPECT_EQ(turns.driver.Show(turns.held[4]), "1@1 n n n 1@1");
}

// Everything that a read returns: ids, steps, versions, reasons and provenance.
TEST(CopyOut, ACopyReadsAsThePageDid) {
  StoreOptions options = Small();
  options.spare_pages = 2;
  StoreDriver d(options);
  d.Step(1, {Bind(1)}, {4, 5, NotAsked(6), 7}, {10, 11, 12, -1});
  d.Step(2, {Bind(2), Seal(1, 7, 1)}, {5, 8}, {11, 20}, 1);
  d.Step(3, {Bind(3, 7)}, {9}, {21}, 1);
  const Snapshot snapshot = d.Take({1, 2, 3}, 1, 12);
  const std::string before = d.Show(snapshot);
  EXPECT_EQ(before, "~11@1 N N 20@2 21@3 n n #10@1 #11@1 #N #N");
  const absl::StatusOr<Rows> rows = snapshot.ReadRows();
  const std::optional<PageRef> page = snapshot.PageOf(4);
  d.Step(4, {Bind(1), Bind(2), Bind(3)}, {4, 8, 12}, {40, 40, 40}, 2);
  d.Step(5, {Event::Reset(), Bind(1), Bind(2), Bind(3)}, {4, 8, 12}, {50, 50, 50}, 2);
  ASSERT_GE(d.store().GetStats().pages_copied_out, 2u);
  EXPECT_EQ(d.Show(snapshot), before);
  const absl::StatusOr<Rows> again = snapshot.ReadRows();
  EXPECT_EQ(again->ids, rows->ids);
  EXPECT_EQ(again->infos, rows->infos);
  ASSERT_TRUE(snapshot.PageOf(4).has_value());
  EXPECT_EQ(snapshot.PageOf(4)->page, page->page);
  std::vector<RowInfo> infos(3);
  ASSERT_TRUE(snapshot.ReadInfos(7, 10, infos).ok());
  EXPECT_EQ(infos[1], rows->infos[7]) << "a range that begins within a page";
}

TEST(CopyOut, ACopyOutlivesItsStore) {
  auto turns = std::make_unique<Turns>();
  for (std::uint64_t step = 1; step <= 9; ++step)
    turns->Turn(step);
  ASSERT_GE(turns->stats().snapshots_copied_out, 6u);
  const Snapshot first = std::move(turns->held[0]);
  turns.reset();
  const absl::StatusOr<Rows> rows = first.ReadRows();
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_TRUE(rows->infos[0].valid());
  std::vector<std::uint8_t> expected(StoreDriver::Shape().row_bytes());
  NumberedRows::Fill(StoreDriver::Shape(), 1, expected.data());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), rows->row(0).begin()));
}

// Called in the middle of a read, between two of its pieces.
class DuringReads final : public ReportedEvents {
 public:
  void OnRead(std::uint64_t, std::int64_t, std::span<const RowInfo>,
              std::span<const std::uint64_t>) override {
    if (const auto call = std::exchange(meanwhile, nullptr)) call();
  }
  std::function<void()> meanwhile;
};

// A read finds addresses in pages and then copies the rows. The pages must not be given back before
// that, although the copies are there. (In threads_test.cc other threads read.)
TEST(CopyOut, NoPageIsGivenBackUnderAReader) {
  DuringReads reads;
  StoreOptions options = StoreDriver::Options(256, 256);
  options.num_pages = 3;
  options.spare_pages = 8;
  options.copy_out_bytes = 1 << 20;
  options.max_step_rows = 1024;
  options.flight = &reads;
  StoreDriver d(options);
  std::vector<int> numbers(768);
  const auto turn = [&](std::uint64_t step) {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<int>(step * 1000 + i);
    d.Step(step, {Bind(1), Bind(2), Bind(3)}, d.Slots({1, 2, 3}, 0, 768), numbers);
  };
  turn(1);
  const Snapshot snapshot = d.Take({1, 2, 3}, 0, 768);
  std::vector<Snapshot> held;
  reads.meanwhile = [&] {
    for (std::uint64_t step = 2; step <= 4; ++step) {
      turn(step);
      held.push_back(d.Take({1, 2, 3}, 0, 768));
    }
    // Four pages had to go. The reader's three were copied first, and stay.
    EXPECT_EQ(d.store().GetStats().pages_copied_out, 3u + 4u);
  };
  const absl::StatusOr<Rows> rows = snapshot.ReadRows();
  ASSERT_TRUE(rows.ok()) << rows.status();
  std::vector<std::uint8_t> expected(d.shape().row_bytes());
  for (std::int64_t i = 0; i < rows->size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(rows->infos[at].step, 1u) << "row " << i;
    NumberedRows::Fill(d.shape(), static_cast<int>(1000 + i), expected.data());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), rows->row(i).begin())) << "row " << i;
  }
  turn(5);
  EXPECT_EQ(d.store().GetStats().no_page, 0u);
}

TEST(CopyOut, IsOffWithoutBytesForIt) {
  StoreOptions options = Small();
  options.copy_out_bytes = 0;
  Turns turns(options);
  for (std::uint64_t step = 1; step <= 5; ++step)
    turns.Turn(step);
  EXPECT_EQ(turns.stats().pages_copied_out, 0u);
  EXPECT_GT(turns.stats().no_page, 0u);
  options.copy_out_bytes.reset();
  EXPECT_EQ(StoreDriver(options).store().options().copy_out_bytes, 3 * options.shape.page_bytes())
      << "by default as many bytes as the pages have";
}

}  // namespace
}  // namespace waymark
