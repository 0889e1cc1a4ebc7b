// StepRecord: a step in flight, with the destinations of its rows. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_STEP_RECORD_H_
#define WAYMARK_BLOCKSTORE_STORE_STEP_RECORD_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "blockstore/row_info.h"
#include "blockstore/store/block_table.h"
#include "blockstore/store/page_claims.h"
#include "blockstore/store/stamp.h"
#include "blockstore/store/step_rows.h"

namespace waymark {

inline constexpr std::uint32_t kNoStepRow = ~0u;

// The destination of one row of a step.
struct Claim {
  PageIndex page = kNoPage;
  std::uint16_t row = 0;
  bool pinned = false;  // this claim pins its page (one pin per run of rows on a page)
  Reason if_cancelled = Reason::kNeverWritten;  // why the row is missing if the step is cancelled
  // Used by device steps only:
  bool revoked = false;  // truncated before the step landed
  bool asked = true;     // a request asked for the row
  bool sealed = false;   // its page was sealed before the step: live rows of its version are kept
  bool kept = false;  // a later step that was dropped may have written the row: it is marked kept
};

// A row of a step that has a second destination, because its page was copied while the row was
// pending; or whose write was ignored, for the audit to compare.
struct SideRow {
  std::uint32_t step_row = 0;
  PageIndex page = kNoPage;
  EntryIndex entry = kNoEntry;
  std::uint16_t row = 0;
  bool revoked = false;                         // as in Claim
  bool sealed = false;                          // as in Claim
  bool asked = true;                            // as in Claim
  bool kept = false;                            // as in Claim
  bool by_key = false;                          // its page was attached by key
  std::uint32_t next = PageClaims::kNone;       // in StepRecord::pages: the next one on this page
  std::uint32_t next_same = PageClaims::kNone;  // device steps: the next one of this claim
};

// What became of the rows of a step that is landing.
struct LandingTally {
  std::uint64_t landed = 0;
  std::uint64_t late = 0;  // no longer claimed by the step
  std::uint64_t missing[kNumReasons] = {};
};

// Records are created with the store and reused. From Submit on, the landing thread reads the
// record without the lock; of its vectors only `copies` may still grow, under the lock.
struct StepRecord {
  enum class State : std::uint8_t { kFree, kBegun, kSubmitted };
  State state = State::kFree;
  std::uint64_t step = 0;
  std::uint64_t version = 0;       // version of the weights
  RelStep relative = 0;            // `step` relative to the base, as its stamps hold it
  std::uint32_t num_rows = 0;      // whose claims are there; with padding
  std::uint32_t batch_rows = 0;    // of its batch
  bool without_claims = false;     // begun while stamps wrapped: it only waits for its end
  StepRows* rows = nullptr;        // the caller's, until Done(); null: no rows
  bool threw = false;              // a call of `rows` threw; there is no further one but Done()
  bool given_up = false;           // its ids are not waited for: no further call but Done() either
  bool overdue = false;            // Stats::steps_overdue counts it
  std::uint64_t submitted_at = 0;  // TicksNow() at Submit; 0: it has no rows
  std::vector<Claim> claims;       // [num_rows]; constant after BeginStep, except for `revoked`
  std::vector<SideRow> copies;     // second destinations, appended while in flight
  std::vector<SideRow> ignored;    // for the audit; each pins its page
  // The claims by page. Of a device step, all of them. Of another step, those of the first
  // `indexed` rows, which is done when a page with pending rows is copied; `next_run` links the
  // runs of claims on one page.
  PageClaims pages;
  std::uint32_t indexed = 0;
  std::vector<std::uint32_t> next_run;
  LandingTally tally;  // landing thread

  // A step with device_slots. It claims all slots that it may write, in ascending order, and does
  // not change their stamps before it lands. The rows that it wrote then become pending, and land
  // like those of any step.
  bool device = false;
  std::vector<std::int64_t> range;        // [num_rows], the slots
  std::vector<std::uint32_t> first_copy;  // [num_rows], of `copies`; SideRow::next_same links them
  // Landing thread: the slots that it wrote (StepRows::Slots), empty if they are lost; for each
  // claim, the row that was written there, or kNoStepRow; the index in `range` after the last slot
  // found.
  std::span<const std::int64_t> slots;
  std::vector<std::uint32_t> step_row;  // [num_rows]
  std::uint32_t next_in_range = 0;

  // The calls of `rows` by the landing thread. If one throws, or after GiveUp, the rows that have
  // not landed are not captured, and the step can land at once.
  [[nodiscard]] bool Poll() {
    if (rows == nullptr || threw || given_up) return true;
    return Guarded([this] { return rows->Poll(); }, true);
  }
  [[nodiscard]] std::optional<std::span<const std::int64_t>> Slots() {
    if (rows == nullptr || threw || given_up) return std::nullopt;
    return Guarded([this] { return rows->Slots(); }, std::nullopt);
  }
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) {
    const auto land = [&] {
      rows->Land(first, destinations, verdicts);
      return true;
    };
    if (threw || given_up || !Guarded(land, false)) {
      std::fill(verdicts.begin(), verdicts.end(), Reason::kNotCaptured);
    }
  }
  [[nodiscard]] bool LandLayers(std::uint32_t row, std::uint8_t* destination,
                                std::span<std::uint8_t> written) {
    return !threw && !given_up &&
           Guarded([&] { return rows->LandLayers(row, destination, written); }, false);
  }
  // REQUIRES: rows != nullptr.
  void GiveUp() {
    given_up = true;
    const auto give_up = [this] {
      rows->GiveUp();
      return true;
    };
    if (!threw) (void)Guarded(give_up, false);
  }

 private:
  template <class Call, class Result = std::invoke_result_t<Call>>
  Result Guarded(const Call& call, std::type_identity_t<Result> otherwise) {
    try {
      return call();
    } catch (...) {
      threw = true;
      return otherwise;
    }
  }
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STEP_RECORD_H_
