// The flight format: what is written comes back; what was changed or cut is noticed; no bytes
// crash.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "blockstore/flight/check.h"
#include "blockstore/flight/format.h"
#include "blockstore/flight/reader.h"
#include "blockstore/flight/writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sanitizers.h"
#include "tests/unit/blockstore/flight/flight_sim.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

FlightInfo SmallInfo(FlightRows rows) {
  StoreOptions options;
  options.shape = {
      .num_layers = 3, .top_k = 2, .num_experts = 300, .page_tokens = 4, .layer_ids = {1, 2, 7}};
  options.num_blocks = 8;
  options.block_tokens = 8;
  options.null_blocks = {BlockId(0), BlockId(5)};
  options.max_step_rows = 100;
  options.audit_threshold = 0.25;
  return FlightInfo::Of(options, rows);
}

TEST(FlightFormat, EveryRecordComesBackAsItWasWritten) {
  for (const FlightRows rows : {FlightRows::kIds, FlightRows::kDigests}) {
    const FlightInfo info = SmallInfo(rows);
    const auto writer = FlightWriter::InMemory(info);
    FlightSink& sink = *writer->sink();
    sink.On({.kind = FlightRecordKind::kSchedule, .step = 41, .version = 6});
    const std::vector<std::uint8_t> key_bytes = {9, 8, 7};
    std::vector<Event> events = {Event::Bind(BlockId(3), BlockKey::FromBytes(key_bytes)),
                                 Event::Truncate(BlockId(2), 5, StepId(40)), Event::Reset()};
    std::vector<Event> given = events;
    given[0].key[5] = 99;  // beyond its size: has no meaning
    sink.On({.kind = FlightRecordKind::kEvents, .events = given});
    const std::vector<std::int64_t> slots = {24, -1, NotAsked(25)};
    sink.On({.kind = FlightRecordKind::kStep,
             .step = 41,
             .version = 6,
             .end = StepEnd::kCancel,
             .slots = slots});
    sink.On({.kind = FlightRecordKind::kStep, .step = 42, .version = 7});
    const std::size_t width = info.shape.row_bytes();
    std::vector<std::uint8_t> ids(2 * width);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::uint8_t>(i);
    const std::vector<Reason> verdicts = {Reason::kNone, Reason::kInvalidId};
    PutLanded(sink, 41, ids, verdicts);
    sink.On({.kind = FlightRecordKind::kLanded, .step = 42});  // without rows
    const std::vector<BlockId> blocks = {BlockId(3), BlockId(-1)};
    sink.On({.kind = FlightRecordKind::kSnapshot,
             .read_id = 1,
             .first = 2,
             .last = 9,
             .blocks = blocks});
    std::vector<RowInfo> infos(7);
    infos[0] = {41, 6, Reason::kNone, Provenance::kHere};
    infos[1] = {42, 6, Reason::kNone, Provenance::kHere};
    infos[2] = {43, 6, Reason::kNone, Provenance::kHere};
    infos[3] = {7, 6, Reason::kNone, Provenance::kByKey};
    infos[4] = {0, 0, Reason::kExternalKv, Provenance::kHere};
    infos[5] = {40, 5, Reason::kNone, Provenance::kKept};
    infos[6] = {70000000000, 5, Reason::kNone, Provenance::kKept};
    const std::vector<std::uint64_t> digests = {1, 2, 3, 4, 0, 6, 7};
    sink.On({.kind = FlightRecordKind::kRead,
             .read_id = 1,
             .begin = 2,
             .infos = infos,
             .digests = digests});
    sink.On({.kind = FlightRecordKind::kReleased, .read_id = 1});
    sink.On({.kind = FlightRecordKind::kPoison, .step = 44, .version = 7});
    const VoidedPage voided = {VoidedPage::By::kKey, 3, 1, 5, {{6, 7, 8, 9}}, 2};
    sink.On({.kind = FlightRecordKind::kVoided, .voided = voided});
    ASSERT_TRUE(writer->Close().ok());

    FlightReader reader = Reader(writer->bytes());
    EXPECT_EQ(reader.info(), info);
    const std::vector<FlightRecord> records = ReadAll(reader);
    EXPECT_FALSE(reader.truncated());
    ASSERT_EQ(records.size(), 12u);
    EXPECT_EQ(records[0].kind, FlightRecordKind::kSchedule);
    EXPECT_EQ(records[0].step, 41u);
    EXPECT_EQ(records[0].version, 6u);
    EXPECT_EQ(records[1].kind, FlightRecordKind::kEvents);
    EXPECT_EQ(records[1].events, events);
    EXPECT_EQ(records[2].kind, FlightRecordKind::kStep);
    EXPECT_EQ(records[2].step, 41u);
    EXPECT_EQ(records[2].version, 6u);
    EXPECT_EQ(records[2].slots, slots);
    EXPECT_EQ(records[2].end, StepEnd::kCancel);
    EXPECT_EQ(records[3].step, 42u);
    EXPECT_EQ(records[3].version, 7u);
    EXPECT_TRUE(records[3].slots.empty());
    EXPECT_EQ(records[3].end, StepEnd::kSubmit);
    EXPECT_EQ(records[4].verdicts, verdicts);
    EXPECT_EQ(records[4].bytes.size(), 2 * flight::RecordedRowBytes(info));
    if (rows == FlightRows::kIds) {
      EXPECT_TRUE(std::equal(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(width),
                             records[4].bytes.begin()));
    }
    EXPECT_EQ(records[5].kind, FlightRecordKind::kLanded);
    EXPECT_EQ(records[5].step, 42u);
    EXPECT_TRUE(records[5].verdicts.empty());
    EXPECT_EQ(records[6].blocks, blocks);
    EXPECT_EQ(records[6].first, 2);
    EXPECT_EQ(records[6].last, 9);
    EXPECT_EQ(records[7].begin, 2);
    EXPECT_EQ(records[7].infos, infos);
    EXPECT_EQ(records[7].digests, digests);
    EXPECT_EQ(records[8].read_id, 1u);
    EXPECT_EQ(records[9].kind, FlightRecordKind::kPoison);
    EXPECT_EQ(records[9].step, 44u);
    EXPECT_EQ(records[9].version, 7u);
    EXPECT_EQ(records[10].kind, FlightRecordKind::kVoided);
    EXPECT_EQ(records[10].voided, voided);
    EXPECT_EQ(records[11].records, 11u);
    EXPECT_TRUE(records[11].complete);
  }
}

// The events of a record have the bytes that they have in the log.
TEST(FlightFormat, EventsAreThoseOfTheLog) {
  const auto writer = FlightWriter::InMemory(SmallInfo(FlightRows::kDigests));
  const std::vector<Event> events = {Event::Seal(BlockId(3), BlockKey::FromInteger(5), StepId(9))};
  writer->sink()->On({.kind = FlightRecordKind::kEvents, .events = events});
  ASSERT_TRUE(writer->Close().ok());
  const std::string coded("\x04\x08\0\0\x03\0\0\0\x09\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0", 24);
  EXPECT_THAT(writer->bytes(), HasSubstr(coded));
}

// By CheckEventBytes, which has tests of its own.
TEST(FlightFormat, EventsThatNoStoreWritesAreRefused) {
  const auto read = [](std::vector<std::uint8_t> events) {
    FlightRecord record;
    return flight::DecodeRecord(flight::MakeHeading(FlightRecordKind::kEvents, 0, events), events,
                                SmallInfo(FlightRows::kDigests), record);
  };
  EXPECT_TRUE(read({}).ok());
  EXPECT_TRUE(read({8, 0, 0, 0, 8, 0, 0, 0}).ok());
  const std::pair<std::vector<std::uint8_t>, const char*> wrong[] = {
      {{9, 0, 0, 0}, ".kind must be in [1, 8]; it is 9"},
      {{8, 0, 1, 0}, ".zero must be 0; it is 1"},
      {{1, 33, 0, 0}, ".detail must be at most 32 in an event of kind 1; it is 33"},
      {{2, 0, 0, 0, 1, 0, 0}, " must be complete; it is cut off"}};
  for (auto [events, message] : wrong) {
    events.insert(events.begin(), {8, 0, 0, 0});
    EXPECT_THAT(read(events).message(), HasSubstr(std::string("events[1]") + message));
  }
}

TEST(FlightFormat, LongStepsAndReadsAreCutIntoRecordsAndComeBackWhole) {
  StoreOptions options;
  options.shape = {.num_layers = 4, .top_k = 2, .num_experts = 16, .page_tokens = 4};
  options.num_blocks = 8192;
  options.max_step_rows = 10000;
  const FlightInfo info = FlightInfo::Of(options, FlightRows::kIds);
  const auto writer = FlightWriter::InMemory(info);
  std::vector<std::uint8_t> ids(10000 * info.shape.row_bytes());
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::uint8_t>(i % 16);
  const std::vector<Reason> verdicts(10000, Reason::kNone);
  PutLanded(*writer->sink(), 3, ids, verdicts);
  std::vector<RowInfo> infos(10000);
  std::vector<std::uint64_t> digests(10000);
  for (std::size_t i = 0; i < infos.size(); ++i) {
    infos[i] = {i / 3 + 1, i / 5000, Reason::kNone, Provenance::kHere};
    digests[i] = i + 1;
  }
  writer->sink()->On(
      {.kind = FlightRecordKind::kRead, .read_id = 1, .infos = infos, .digests = digests});
  ASSERT_TRUE(writer->Close().ok());

  FlightReader reader = Reader(writer->bytes());
  std::vector<std::uint8_t> got_ids;
  std::vector<RowInfo> got_infos;
  std::vector<std::uint64_t> got_digests;
  for (const FlightRecord& record : ReadAll(reader)) {
    if (record.kind == FlightRecordKind::kLanded) {
      EXPECT_EQ(record.begin * static_cast<std::int64_t>(info.shape.row_bytes()),
                static_cast<std::int64_t>(got_ids.size()));
      got_ids.insert(got_ids.end(), record.bytes.begin(), record.bytes.end());
      EXPECT_EQ(record.more, got_ids.size() < ids.size());
    } else if (record.kind == FlightRecordKind::kRead) {
      EXPECT_EQ(record.begin, static_cast<std::int64_t>(got_infos.size()));
      got_infos.insert(got_infos.end(), record.infos.begin(), record.infos.end());
      got_digests.insert(got_digests.end(), record.digests.begin(), record.digests.end());
    }
  }
  EXPECT_EQ(got_ids, ids);
  EXPECT_EQ(got_infos, infos);
  EXPECT_EQ(got_digests, digests);
}

// Sketches tell a mild disagreement from another token: what the audit of a digest flight goes by.
TEST(FlightFormat, SketchesFollowTheShareOfCommonIds) {
  RoutingShape shape = {.num_layers = 27, .top_k = 6, .num_experts = 64};
  std::uint64_t state = 12345;
  const auto next = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state >> 33);
  };
  const auto draw = [&](std::vector<std::uint8_t>& row) {
    row.resize(shape.row_bytes());
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      for (int k = 0; k < shape.top_k; ++k) {
        std::uint8_t* layer_ids = row.data() + layer * shape.top_k;
        do {
          layer_ids[k] = static_cast<std::uint8_t>(next() % 64);
        } while (std::find(layer_ids, layer_ids + k, layer_ids[k]) != layer_ids + k);
      }
    }
  };
  double near = 0;
  double far = 0;
  const int kRows = 400;
  for (int i = 0; i < kRows; ++i) {
    std::vector<std::uint8_t> a;
    std::vector<std::uint8_t> other;
    draw(a);
    draw(other);
    std::vector<std::uint8_t> b = a;
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      std::uint8_t* ids = b.data() + layer * shape.top_k;
      std::reverse(ids, ids + shape.top_k);  // order within a layer has no meaning
      if (next() % 4 == 0) ids[0] = static_cast<std::uint8_t>((ids[0] + 1) % 64);
    }
    std::uint8_t da[flight::kDigestRowBytes];
    std::uint8_t db[flight::kDigestRowBytes];
    std::uint8_t dother[flight::kDigestRowBytes];
    flight::DigestRow(shape, a.data(), da);
    flight::DigestRow(shape, b.data(), db);
    flight::DigestRow(shape, other.data(), dother);
    for (std::size_t j = 8; j < flight::kDigestRowBytes; ++j) {
      near += da[j] == db[j] ? 1 : 0;
      far += da[j] == dother[j] ? 1 : 0;
    }
  }
  EXPECT_GT(near / (kRows * 8), 0.85);
  EXPECT_LT(far / (kRows * 8), 0.15);
}

// A small flight with every kind of record but a checkpoint.
std::string SmallFlight(FlightRows rows = FlightRows::kDigests) {
  sim::EngineOptions options = SimOptions(false, "draft=.5 drop=.1 cancel=.1 stream=.5", 3);
  options.max_running = 2;
  options.max_steps_in_flight = 8;  // a store is made for every changed byte
  return FlySim(options, 12, rows).bytes;
}

TEST(FlightFormat, EveryFlippedByteIsNoticed) {
  const std::string good = SmallFlight();
  ASSERT_LT(good.size(), 20000u);
  {
    FlightReader reader = Reader(good);
    const auto verdict = CheckFlight(reader).value();
    ASSERT_TRUE(verdict.clean());
    ASSERT_GT(verdict.rows_read, 0u);
  }
  for (std::size_t at = 0; at < good.size(); at += PlainOr(1, 5)) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    absl::StatusOr<FlightReader> reader = FlightReader::FromBytes(bad);
    absl::Status status = reader.status();
    if (reader.ok()) status = CheckFlight(*reader).status();
    ASSERT_FALSE(status.ok()) << "byte " << at << " of " << good.size();
    ASSERT_FALSE(status.message().empty());
  }
}

TEST(FlightFormat, EveryCutIsNoticedAndWhatIsLeftIsJudged) {
  const std::string good = SmallFlight();
  const std::size_t head = flight::EncodeHead(Reader(good).info()).size();
  for (std::size_t size = 0; size < good.size(); size += PlainOr(1, 5)) {
    absl::StatusOr<FlightReader> reader = FlightReader::FromBytes(good.substr(0, size));
    if (size < head) {
      ASSERT_FALSE(reader.ok()) << size;
      continue;
    }
    ASSERT_TRUE(reader.ok()) << size << reader.status();
    const auto verdict = CheckFlight(*reader).value();
    ASSERT_TRUE(verdict.truncated) << size;
    ASSERT_TRUE(verdict.clean()) << size;
  }
}

TEST(FlightFormat, AMissingRecordAndATailAreNoticed) {
  const std::string good = SmallFlight();
  FlightReader reader = Reader(good);
  const std::vector<FlightRecord> records = ReadAll(reader);
  ASSERT_GT(records.size(), 10u);
  // Without its fourth record.
  std::string bad = good;
  bad.erase(records[3].offset, records[4].offset - records[3].offset);
  FlightReader without = Reader(bad);
  FlightRecord record;
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more)
    more = without.Next(record);
  EXPECT_THAT(more.status().message(), HasSubstr("closed after"));

  FlightReader tail = Reader(good + "x");
  more = true;
  while (more.ok() && *more)
    more = tail.Next(record);
  EXPECT_THAT(more.status().message(), HasSubstr("follow the closing record"));
}

TEST(FlightFormat, AnotherVersionIsNamed) {
  std::string flight = SmallFlight();
  flight::Heading heading;
  std::memcpy(&heading, flight.data() + sizeof flight::kMagic, sizeof heading);
  const auto* payload =
      reinterpret_cast<const std::uint8_t*>(flight.data()) + sizeof flight::kMagic + sizeof heading;
  heading = flight::MakeHeading(FlightRecordKind::kInfo, 4, {payload, heading.size});
  std::memcpy(flight.data() + sizeof flight::kMagic, &heading, sizeof heading);
  const absl::Status status = FlightReader::FromBytes(flight).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("format version 4; this version reads 9"));
}

TEST(FlightFormat, OtherFilesAreNamedAsSuch) {
  EXPECT_THAT(FlightReader::FromBytes("").status().message(), HasSubstr("not a flight"));
  EXPECT_THAT(FlightReader::FromBytes("{\"timestamp\": 0}").status().message(),
              HasSubstr("not a flight"));
  const auto missing = FlightReader::Open("/nonexistent/flight");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("/nonexistent/flight"));
  EXPECT_FALSE(FlightReader::Open("/").ok());
  EXPECT_THAT(
      FlightWriter::Open("/nonexistent/flight", SmallInfo(FlightRows::kIds)).status().message(),
      HasSubstr("/nonexistent/flight"));
}

TEST(FlightFormat, FilesAndMemoryHoldTheSame) {
  const std::string good = SmallFlight(FlightRows::kIds);
  const std::string path = ::testing::TempDir() + "/same.flight";
  {
    FlightReader reader = Reader(good);
    auto writer = FlightWriter::Open(path, reader.info()).value();
    for (const FlightRecord& record : ReadAll(reader)) {
      if (record.kind == FlightRecordKind::kStep) {
        writer->sink()->On(EntryOf(record));
      }
    }
    ASSERT_TRUE(writer->Close().ok());
    EXPECT_TRUE(writer->Close().ok());
  }
  auto reader = FlightReader::Open(path).value();
  const std::vector<FlightRecord> once = ReadAll(reader);
  reader.Rewind();
  const std::vector<FlightRecord> twice = ReadAll(reader);
  EXPECT_EQ(once.size(), twice.size());
  EXPECT_GT(once.size(), 10u);
  EXPECT_FALSE(reader.truncated());
  std::remove(path.c_str());
}

}  // namespace
}  // namespace waymark
