// Flights of the engine simulators, and what tests do to flights: read them whole, change them,
// write them again.
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_FLIGHT_FLIGHT_SIM_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_FLIGHT_FLIGHT_SIM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "adapters/simulators/engine.h"
#include "blockstore/flight/check.h"
#include "blockstore/flight/reader.h"
#include "blockstore/flight/writer.h"
#include "gtest/gtest.h"
#include "tests/support/named_options.h"

namespace waymark {

struct SimFlight {
  std::string bytes;
  sim::CheckCounts checks;
};

inline sim::EngineOptions SimOptions(bool megatron, const std::string& features,
                                     std::uint64_t seed) {
  sim::EngineOptions options;
  options.megatron = megatron;
  options.seed = seed;
  options.timing.seed = seed;
  EXPECT_TRUE(sim::SetOptions(options, features)) << features;
  return options;
}

// Runs `steps` steps of an engine and records them.
inline SimFlight FlySim(sim::EngineOptions options, std::int64_t steps,
                        FlightRows rows = FlightRows::kDigests) {
  auto writer = FlightWriter::InMemory(FlightInfo::Of(sim::StoreOptionsOf(options, 0), rows));
  options.flights = {writer->sink()};
  SimFlight flight;
  {
    auto engine = sim::Engine::Create(options).value();
    engine->Run(steps);
    engine->Finish();
    flight.checks = engine->checks();
  }
  EXPECT_TRUE(writer->Close().ok());
  flight.bytes = writer->bytes();
  return flight;
}

inline FlightReader Reader(const std::string& bytes) {
  return FlightReader::FromBytes(bytes).value();
}

inline FlightReport Check(const std::string& bytes) {
  FlightReader reader = Reader(bytes);
  return CheckFlight(reader).value();
}

inline std::vector<FlightRecord> ReadAll(FlightReader& reader) {
  std::vector<FlightRecord> records;
  for (FlightRecord record; reader.Next(record).value(); record = {})
    records.push_back(std::move(record));
  return records;
}

// A record as it was reported. Valid while the record is not changed.
inline FlightEntry EntryOf(const FlightRecord& r) {
  return {r.kind,   r.step,      r.version, r.end,    r.more,    r.read_id,  r.first,
          r.last,   r.last_step, r.begin,   r.voided, r.records, r.complete, r.events,
          r.blocks, r.keys,      r.slots,   r.infos,  r.digests, r.verdicts, r.bytes};
}

// Passes a step that has landed to a sink.
inline void PutLanded(FlightSink& sink, std::uint64_t step, std::span<const std::uint8_t> ids,
                      std::span<const Reason> verdicts) {
  sink.OnRows(step, ids, verdicts);
  sink.On({.kind = FlightRecordKind::kLanded, .step = step});
}

// The flight again, the events of each step (its number, what was reported since the step before)
// and each read changed by the two functions (either may be null). Flights of ids only: the rows of
// a digest cannot be given to a sink.
inline std::string Rewrite(
    const std::string& bytes,
    const std::function<void(std::uint64_t, std::vector<Event>&)>& change_events,
    const std::function<void(FlightRecord&)>& change_read) {
  FlightReader reader = Reader(bytes);
  EXPECT_EQ(reader.info().rows, FlightRows::kIds);
  auto writer = FlightWriter::InMemory(reader.info());
  std::vector<std::uint8_t> ids;
  std::vector<Reason> verdicts;
  std::uint64_t scheduled = 0;
  for (FlightRecord& record : ReadAll(reader)) {
    switch (record.kind) {
      case FlightRecordKind::kCheckpoint:
      case FlightRecordKind::kClose:
        continue;
      case FlightRecordKind::kLanded:
        ids.insert(ids.end(), record.bytes.begin(), record.bytes.end());
        verdicts.insert(verdicts.end(), record.verdicts.begin(), record.verdicts.end());
        if (record.more) continue;
        PutLanded(*writer->sink(), record.step, ids, verdicts);
        ids.clear();
        verdicts.clear();
        continue;
      case FlightRecordKind::kSchedule:
        scheduled = record.step;
        break;
      case FlightRecordKind::kEvents:
        if (change_events) change_events(scheduled, record.events);
        break;
      case FlightRecordKind::kRead:
        if (change_read) change_read(record);
        break;
      default:
        break;
    }
    writer->sink()->On(EntryOf(record));
  }
  EXPECT_TRUE(writer->Close().ok());
  return writer->bytes();
}

}  // namespace waymark

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_FLIGHT_FLIGHT_SIM_H_
