// Recorded flights (blockstore/flight/reader.h), and what is done with one that can be read: the
// check, and the removal of its Binds.
//
// Checksums would hide everything behind them, so an input says in its first byte whether they are
// made right again before it is read.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "blockstore/flight/check.h"
#include "blockstore/flight/format.h"
#include "blockstore/flight/reader.h"
#include "blockstore/flight/writer.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/small_store.h"

namespace waymark::fuzz {
namespace {

constexpr char kAsItIs = 0;
constexpr char kRightChecksums = 1;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 20;  // of the replaying store

// Sets the checksums of every record, and cuts one that goes on beyond the end.
void MakeChecksumsRight(std::string& bytes) {
  for (std::size_t at = sizeof flight::kMagic; at + sizeof(flight::Heading) <= bytes.size();) {
    flight::Heading heading;
    std::memcpy(&heading, bytes.data() + at, sizeof heading);
    const auto* payload = reinterpret_cast<const std::uint8_t*>(bytes.data()) + at + sizeof heading;
    const std::size_t left = bytes.size() - at - sizeof heading;
    heading = flight::MakeHeading(static_cast<FlightRecordKind>(heading.kind), heading.flags,
                                  {payload, std::min<std::size_t>(heading.size, left)});
    std::memcpy(bytes.data() + at, &heading, sizeof heading);
    at += sizeof heading + heading.size;
  }
}

// Records up to the end or to the first that is damaged, and whether there was one.
std::pair<std::uint64_t, bool> Count(FlightReader& reader) {
  FlightRecord record;
  for (;;) {
    const absl::StatusOr<bool> more = reader.Next(record);
    if (!more.ok()) return {reader.records(), false};
    if (!*more) return {reader.records(), true};
  }
}

// Records that no store writes: more rows land than were begun, reads leave their snapshot, steps
// come again. A mutation would have to change counts and lengths together to come by them.
std::string ContradictoryFlight(std::uint64_t begun_rows, std::size_t landed_rows) {
  const FlightInfo info = FlightInfo::Of(SmallOptions());
  const auto writer = FlightWriter::InMemory(info);
  FlightSink& sink = *writer->sink();
  const std::vector<Event> events = {Event::Bind(BlockId(1)), Event::Bind(BlockId(2))};
  const std::vector<Event> seals = {Event::Seal(BlockId(1), BlockKey::FromInteger(3), StepId(0)),
                                    Event::Move(BlockId(1), BlockId(2))};
  const std::vector<std::int64_t> slots = {4, 5, 6, 7, 8, 9, 10, 11};
  const std::vector<BlockId> blocks = {BlockId(1), BlockId(2)};
  const std::vector<std::uint8_t> ids(landed_rows * info.shape.row_bytes(), 1);
  const std::vector<Reason> verdicts(landed_rows, Reason::kNone);
  const std::vector<RowInfo> infos(12);
  const std::vector<std::uint64_t> digests(12, 7);
  for (const std::uint64_t step : {1, 3}) {
    const std::span begun(slots.data(), begun_rows);
    sink.On({.kind = FlightRecordKind::kSchedule, .step = step, .version = 1});
    sink.On({.kind = FlightRecordKind::kEvents, .events = events});
    sink.On({.kind = FlightRecordKind::kStep, .step = step, .version = 1, .slots = begun});
    sink.OnRows(step, ids, verdicts);
    sink.On({.kind = FlightRecordKind::kLanded, .step = step});
    sink.On({.kind = FlightRecordKind::kSnapshot, .read_id = step, .last = 8, .blocks = blocks});
    sink.On({.kind = FlightRecordKind::kRead,
             .read_id = step,
             .begin = begun_rows == landed_rows ? 2 : 0,
             .infos = infos,
             .digests = digests});
    sink.On({.kind = FlightRecordKind::kReleased, .read_id = step});
    sink.On({.kind = FlightRecordKind::kReleased, .read_id = step});
    for (const VoidedPage& page :
         {VoidedPage{.block = 1},
          VoidedPage{.by = VoidedPage::By::kSnapshot, .ordinal = 1, .read_id = step},
          VoidedPage{.by = VoidedPage::By::kKey, .row = 1}}) {
      sink.On({.kind = FlightRecordKind::kVoided, .voided = page});
    }
    sink.On({.kind = FlightRecordKind::kEvents, .events = seals});
    if (begun_rows != landed_rows) {
      sink.On({.kind = FlightRecordKind::kPoison, .step = step + 1, .version = 2});
    }
    sink.On({.kind = FlightRecordKind::kStep, .step = step, .end = StepEnd::kCancel});
  }
  Require(writer->Close().ok(), "a flight in memory can be closed");
  return writer->bytes();
}

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  if (input.empty()) return;
  std::string bytes(input.begin() + 1, input.end());
  if (input[0] == kRightChecksums) MakeChecksumsRight(bytes);
  absl::StatusOr<FlightReader> reader = FlightReader::FromBytes(std::move(bytes));
  if (!reader.ok()) return;
  const FlightInfo& info = reader->info();
  Require(info.num_pages > 0 && info.block_tokens > 0 && info.key_seed > 0,
          "a head says what it must");
  const auto once = Count(*reader);
  reader->Rewind();
  Require(Count(*reader) == once, "a flight reads the same twice");

  CheckOptions check;
  check.max_bytes = kMaxBytes;
  const absl::StatusOr<FlightReport> verdict = CheckFlight(*reader, check);
  if (verdict.ok()) {
    Require(once.second && verdict->records == once.first, "what is judged was read to its end");
    for (const ReadDifference& difference : verdict->differences)
      Require(!difference.ToString().empty(), "a difference can be told");
    for (const MissedEvent& missed_event : verdict->missed_events)
      Require(!missed_event.ToString().empty(), "an missed_event can be told");
    Require(
        verdict->rows_right + verdict->rows_excused + verdict->rows_differing <= verdict->rows_read,
        "a row is judged once");
  }
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (const FlightRows rows : {FlightRows::kDigests, FlightRows::kIds}) {
    for (const bool from_checkpoint : {false, true}) {
      const std::string flight = SmallFlight(rows, from_checkpoint);
      corpus.push_back(kRightChecksums + flight);
      corpus.push_back(kAsItIs + flight);
    }
  }
  for (const std::size_t landed_rows : {2, 4, 60})
    corpus.push_back(kRightChecksums + ContradictoryFlight(4, landed_rows));
  // No number of pages: as many as there are blocks were made, whatever max_bytes said.
  FlightInfo info = FlightInfo::Of(SmallOptions());
  info.num_blocks = 1000;
  info.block_tokens = info.shape.page_tokens = 4096;
  info.num_pages = 0;
  corpus.push_back(kAsItIs + flight::EncodeHead(info));
  return corpus;
}

}  // namespace waymark::fuzz
