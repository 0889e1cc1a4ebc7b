// How well the audit finds a single missing Bind: replays a flight in which each of its Binds in
// turn is a Retain. (Without either, the block has no users, and its rows are missing.)
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_FLIGHT_REMOVALS_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_FLIGHT_REMOVALS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "blockstore/flight/replay.h"
#include "blockstore/store/agreement.h"
#include "tests/unit/blockstore/flight/flight_sim.h"

namespace waymark {

// A removal is harmful if, with the audit off, a row that is read has the route of another token:
// its agreement with the right row is below the threshold.
struct Removals {
  std::uint64_t tried = 0;             // Binds that were removed, of blocks that are not null
  std::uint64_t harmful = 0;           // of those tried
  std::uint64_t found = 0;             // of the harmful: the audit has a finding without the Bind
  std::uint64_t block_named = 0;       // such a finding names the block,
  std::uint64_t step_named = 0;        // and the Bind lies between the two steps that it names
  std::uint64_t rows_wrong = 0;        // over all harmful removals, with the audit off
  std::uint64_t rows_still_wrong = 0;  // the same with the audit on

  [[nodiscard]] double PartOfHarmful(std::uint64_t count) const {
    return harmful == 0 ? 1.0 : static_cast<double>(count) / static_cast<double>(harmful);
  }
};

class RemovingBinds {
 public:
  explicit RemovingBinds(FlightReader& reader) : info_(reader.info()) {
    reader.Rewind();
    records_ = ReadAll(reader);
  }

  Removals All() {
    const Outcome whole = Replay(false);
    const Outcome whole_audited = Replay(true);
    Removals result;
    std::uint64_t last = 0;
    for (FlightRecord& record : records_) {
      if (record.kind == FlightRecordKind::kStep) last = record.step;
      if (record.kind != FlightRecordKind::kEvents) continue;
      for (std::size_t i = 0; i < record.events.size(); ++i) {
        const Event bind = record.events[i];
        if (bind.type != EventType::kBind || IsNull(bind.block)) continue;
        record.events[i] = Event::Retain(BlockId(bind.block));
        TryOne(whole, whole_audited, bind.block, last + 1, result);
        record.events[i] = bind;
      }
    }
    return result;
  }

 private:
  struct Finding {
    std::int32_t block;
    std::uint64_t step;
    flight::StepWindow window;
  };
  // The rows in the order of the reads, which of them are valid, and the findings of the audit.
  struct Outcome {
    std::vector<std::uint8_t> rows;
    std::vector<bool> there;
    std::vector<Finding> findings;
  };

  [[nodiscard]] bool IsNull(std::int32_t block) const {
    return block < 0 || std::find(info_.null_blocks.begin(), info_.null_blocks.end(),
                                  BlockId(block)) != info_.null_blocks.end();
  }

  [[nodiscard]] Outcome Replay(bool audit) const {
    Outcome outcome;
    auto replay = flight::FlightReplay::Create(info_, std::uint64_t{1} << 30, audit,
                                               flight::FlightReplay::Voids::kOwn);
    EXPECT_TRUE(replay.ok()) << replay.status();
    const auto on_read = [&](const flight::ReplayedRead& read) {
      outcome.rows.insert(outcome.rows.end(), read.rows.begin(), read.rows.end());
      for (const RowInfo& info : read.infos)
        outcome.there.push_back(info.valid());
    };
    for (const FlightRecord& record : records_) {
      EXPECT_TRUE((*replay)->Apply(record, on_read).ok());
      if (!audit || record.kind != FlightRecordKind::kLanded) continue;
      for (const AuditFinding& found : (*replay)->store().TakeEachFinding()) {
        if (!found.voided) continue;
        outcome.findings.push_back({found.block, found.step, (*replay)->FindWindow(found)});
      }
    }
    return outcome;
  }

  // The number of rows that `without` returned with the route of another token.
  [[nodiscard]] std::uint64_t RowsWrong(const Outcome& whole, const Outcome& without) const {
    const StoreOptions store = info_.ReplayOptions();
    const std::size_t width = store.shape.row_bytes();
    const double threshold = store.audit_threshold.value_or(DefaultAuditThreshold(store.shape));
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < std::min(whole.there.size(), without.there.size()); ++i) {
      if (!whole.there[i] || !without.there[i]) continue;
      wrong += Agreement(store.shape, &whole.rows[i * width], &without.rows[i * width]) < threshold;
    }
    return wrong;
  }

  void TryOne(const Outcome& whole, const Outcome& whole_audited, std::int32_t block,
              std::uint64_t step, Removals& result) const {
    ++result.tried;
    const std::uint64_t wrong = RowsWrong(whole, Replay(false));
    if (wrong == 0) return;
    ++result.harmful;
    result.rows_wrong += wrong;
    const Outcome audited = Replay(true);
    result.rows_still_wrong += RowsWrong(whole, audited);
    bool found = false, named = false, step_named = false;
    for (const Finding& finding : audited.findings) {
      const bool known = std::any_of(
          whole_audited.findings.begin(), whole_audited.findings.end(), [&](const Finding& other) {
            return other.block == finding.block && other.step == finding.step;
          });
      if (known) continue;
      found = true;
      if (finding.block != block) continue;
      named = true;
      step_named |= finding.window.after < step && step <= finding.window.by;
    }
    result.found += found;
    result.block_named += named;
    result.step_named += step_named;
  }

  const FlightInfo info_;
  std::vector<FlightRecord> records_;
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_FLIGHT_REMOVALS_H_
