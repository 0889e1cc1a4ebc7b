// Steps: the steps in flight, from their begin to their end, and the rows that they claim: rules 2
// (claims) and 3 (protected rows) of docs/architecture.md. Internal to blockstore.
//
// Guarded by the store's mutex, except that the landing thread reads the record of the step that it
// lands without it (see StepRecord).
#ifndef WAYMARK_BLOCKSTORE_STORE_STEPS_H_
#define WAYMARK_BLOCKSTORE_STORE_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/store/device_steps.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/step_record.h"
#include "blockstore/store/step_rows.h"

namespace waymark {

class Steps final : public RowsInFlight {
 public:
  // `options`: as RoutingStore::Create completed them. The references must outlive the object,
  // which becomes the RowsInFlight of `pages`.
  Steps(const StoreOptions& options, Pages& pages, Stats& stats);

  // ---- begin. Engine's thread.
  // Rule 6: makes `step` of `version` a step that stamps can hold, with a new base if they are
  // about to wrap. False if steps in flight prevent it; the step must then be dropped.
  bool MakeRoomFor(std::uint64_t step, std::uint64_t version);
  // Adds a step to those in flight; null if there are max_steps_in_flight. REQUIRES: MakeRoomFor.
  StepRecord* Begin(const StepBatch& batch);
  // Adds a step that stamps cannot hold, because MakeRoomFor failed. It only waits for its end.
  StepRecord* BeginWithoutClaims(const StepBatch& batch);
  // Claims the rows of the batch, in order. `record` is null if the step is dropped at its begin:
  // its rows become missing (capacity).
  void ClaimRows(StepRecord* record, const StepBatch& batch);

  // ---- end
  // The record of a step in flight; null if there is none.
  [[nodiscard]] StepRecord* Find(std::uint64_t step) const;
  // From now on the landing thread may land the step. `rows`: null, or the caller's until Done().
  // `submitted_at`: TicksNow() at Submit. REQUIRES: its state is kBegun.
  void Submit(StepRecord& record, StepRows* rows, std::uint64_t submitted_at);
  // Lists the submitted steps that may land now, in submit order; of them only_step, if it is not
  // 0. Landing thread.
  void ListSubmitted(std::uint64_t only_step, std::vector<StepRecord*>& candidates) const;
  // Takes a listed step, to land it. Landing thread.
  void TakeSubmitted(StepRecord& record);
  // Takes one that will not land, because the store has failed; null if there is none.
  StepRecord* TakeAnySubmitted();
  // Makes the rows that the step still holds missing, because it was dropped or cancelled.
  void Revoke(const StepRecord& record, StepEnd how);
  // Records were lost: no row that a step in flight has claimed will land (capacity). Ends those
  // that were not submitted and are not in `open`, since their end was lost.
  void VoidAll(std::span<const std::uint64_t> open);
  // Ends the step: returns its pins, and its record.
  void Retire(StepRecord& record);

  // Steps that were begun and have not ended, in begin order; without those of BeginWithoutClaims.
  [[nodiscard]] std::span<StepRecord* const> in_flight() const { return in_flight_; }
  [[nodiscard]] DeviceSteps& device() { return device_; }
  // The base for MakeRoomFor is made ahead, because that allocates.
  [[nodiscard]] bool NeedsSpareBase() const { return spare_base_ == nullptr; }
  void SetSpareBase(std::shared_ptr<StepBase> base) { spare_base_ = std::move(base); }

  // ---- RowsInFlight
  void Extend(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key) override;
  [[nodiscard]] bool MayWrite(PageIndex page, std::uint32_t row) const override {
    return device_.MayWrite(page, row);
  }
  [[nodiscard]] bool OtherVersionMayWrite(PageIndex page, std::uint64_t version) const override {
    return device_.OtherVersionMayWrite(page, version);
  }

 private:
  void ClaimHostRows(StepRecord* record, std::span<const std::int64_t> slots, RelStep step,
                     std::uint64_t version);
  // `e`: the entry of `slot`; kNoEntry: padding.
  void ClaimRow(StepRecord* record, std::uint32_t step_row, std::int64_t slot, EntryIndex e,
                RelStep step, std::uint64_t version);
  // Makes rows that `step` will land in `from` land in `to` too, where they are pending for it.
  void ExtendPending(PageIndex from, PageIndex to, RelStep step);
  // Adds the claims of the step to its `pages`, as far as they are not there.
  static void IndexClaims(StepRecord& record);
  StepRecord* NewRecord(const StepBatch& batch);
  void Unpin(StepRecord& record);

  Pages& pages_;
  BlockTable& table_;  // parts of pages_
  PagePool& pool_;
  Stats& stats_;
  const bool audit_;
  DeviceSteps device_;
  std::vector<std::unique_ptr<StepRecord>> records_;  // all
  std::vector<StepRecord*> free_records_;
  std::vector<StepRecord*> in_flight_;
  std::vector<StepRecord*> without_claims_;
  std::vector<StepRecord*> submitted_;  // of in_flight_, in submit order
  std::shared_ptr<StepBase> spare_base_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STEPS_H_
