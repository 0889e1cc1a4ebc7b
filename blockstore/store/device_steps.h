// DeviceSteps: steps whose slots only the device knows. They claim all rows that they may write,
// and land the rows that they wrote, in step order: rule 7 of docs/architecture.md, and all that it
// adds to the other rules. Internal to blockstore; guarded by the store's mutex.
#ifndef WAYMARK_BLOCKSTORE_STORE_DEVICE_STEPS_H_
#define WAYMARK_BLOCKSTORE_STORE_DEVICE_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "blockstore/store/pages.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/step_record.h"

namespace waymark {

class DeviceSteps {
 public:
  // `options`: as RoutingStore::Create completed them. The references must outlive the object.
  DeviceSteps(const StoreOptions& options, Pages& pages, Stats& stats);

  // ---- begin and end. Engine's thread, but for End.
  // Adds a device step to those in flight. `num_slots`: that it may write.
  void Begin(StepRecord& record, std::size_t num_slots);
  // Claims every row that the step may write. `record` is null if the step is dropped at its begin.
  void ClaimRows(StepRecord* record, std::span<const std::int64_t> slots, RelStep step,
                 std::uint64_t version);
  // Makes all rows missing that the step may have written, because its ids or its slots are lost,
  // but for protected rows (rule 3 of docs/architecture.md). `reason` is that of rows whose routing
  // a request asked for; of the others it is not captured. Rows there that earlier device steps
  // have not landed yet become missing too, unless they are protected.
  void Invalidate(const StepRecord& record, Reason reason = Reason::kCapacity);
  // Removes a step from those in flight.
  void End(StepRecord& record);

  // ---- what the device steps in flight may still write
  // Whether there is a device step in flight.
  [[nodiscard]] bool any() const { return !in_flight_.empty(); }
  // Whether a device step <= upto may still write this row; steps of version *except_version do not
  // count.
  [[nodiscard]] bool Claimed(PageIndex page, std::uint32_t row, RelStep upto,
                             const std::uint64_t* except_version = nullptr) const;
  // Revokes these claims. Those of steps of version *kept_version stay, and their rows will be
  // marked kept.
  void Revoke(PageIndex page, std::uint32_t row, RelStep upto,
              const std::uint64_t* kept_version = nullptr);
  // Extends the claims on rows [0, rows) of `from` to `to`.
  void Extend(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key);
  // Whether a device step may still write this row of the page and a request asked for it.
  [[nodiscard]] bool MayWrite(PageIndex page, std::uint32_t row) const;
  // Whether a device step may still write any row of the page.
  [[nodiscard]] bool MayWrite(PageIndex page) const;
  // The same for steps of another version than `version`.
  [[nodiscard]] bool OtherVersionMayWrite(PageIndex page, std::uint64_t version) const;

  // ---- landing. Landing thread.
  // Reads the slots that the step wrote. False if they are lost: Invalidate makes its rows missing.
  // Without the mutex.
  [[nodiscard]] static bool StartLanding(StepRecord& record);
  // Rows [first, first + claims.size()) of the step: sets the page rows that they go to to pending.
  // claims[i]: the claim of the row; null: not stored.
  void Resolve(StepRecord& record, std::size_t first, std::span<const Claim*> claims);

 private:
  // Claims one row of range_.
  void ClaimRow(StepRecord* record, std::uint32_t index, RelStep step, std::uint64_t version);
  // The same for one row.
  void InvalidateRow(PageIndex page, std::uint32_t row, bool sealed, RelStep step,
                     std::uint64_t version, Reason reason = Reason::kCapacity);
  // The claim of row `step_row`, whose page row is now pending; null: not stored.
  const Claim* ResolveRow(StepRecord& record, std::uint32_t step_row);

  Pages& pages_;
  PagePool& pool_;  // of pages_
  Stats& stats_;
  const bool audit_;
  std::vector<StepRecord*> in_flight_;  // device steps only, in begin order
  // Scratch of ClaimRows: slots that a step may write, and whether none asked for it.
  std::vector<std::pair<std::int64_t, bool>> range_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_DEVICE_STEPS_H_
