// RoutingStore::Impl: the state of the store, and the rules as member functions. Internal to
// blockstore. Its files: store.cc (creation, reading), steps.cc (begin, claim, end), pages.cc
// (pages of entries: allocation, copy-on-write, eviction, key index), apply_events.cc (events),
// device_steps.cc (steps whose slots only the device knows), landing.cc (the landing thread).
//
// docs/architecture.md explains the rules that comments name.
#ifndef WAYMARK_BLOCKSTORE_STORE_STORE_IMPL_H_
#define WAYMARK_BLOCKSTORE_STORE_STORE_IMPL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "blockstore/mutex.h"
#include "blockstore/store/block_table.h"
#include "blockstore/store/key_index.h"
#include "blockstore/store/page_claims.h"
#include "blockstore/store/page_pool.h"
#include "blockstore/store/stamp.h"
#include "blockstore/store/store.h"
#include "blockstore/store/store_core.h"

namespace waymark {

inline constexpr std::size_t kLandingChunk = 64;  // rows per call of StepRows::Land
inline constexpr std::uint32_t kNoStepRow = ~0u;

// The destination of one row of a step.
struct Claim {
  PageIndex page = kNoPage;
  std::uint16_t row = 0;
  bool pinned = false;  // this claim pins its page (one pin per run of rows on a page)
  // Used by device steps only:
  bool revoked = false;  // truncated before the step landed
  bool asked = true;     // a request asked for the row
  bool sealed = false;   // its page was sealed before the step: live rows of its version are kept
};

// A row of a step that has a second destination, because its page was copied while the row was
// pending; or whose write was ignored, for the audit to compare.
struct SideRow {
  std::uint32_t step_row = 0;
  PageIndex page = kNoPage;
  EntryIndex entry = kNoEntry;
  std::uint16_t row = 0;
  bool revoked = false;                    // as in Claim
  bool sealed = false;                     // as in Claim
  bool asked = true;                       // as in Claim
  bool by_key = false;                     // its page was attached by key
  std::uint32_t next = PageClaims::kNone;  // device steps: the next one on this page
};

// A step in flight. Records are created with the store and reused. From Submit on, the landing
// thread reads the record without the lock; of its vectors only `copies` may still grow, under the
// lock.
struct StepRecord {
  enum class State : std::uint8_t { kFree, kBegun, kSubmitted };
  State state = State::kFree;
  std::uint64_t step = 0;
  std::uint64_t version = 0;       // version of the weights
  RelStep relative = 0;            // `step` relative to the base, as its stamps hold it
  std::uint32_t num_rows = 0;      // with padding
  StepRows* rows = nullptr;        // the caller's, until Done(); null: no rows
  std::uint64_t submitted_at = 0;  // time of Submit, in nanoseconds
  std::vector<Claim> claims;       // [num_rows]; constant after BeginStep, except for `revoked`
  std::vector<SideRow> copies;     // second destinations, appended while in flight
  std::vector<SideRow> ignored;    // for the audit; each pins its page
  // A step with device_slots. It claims all slots that it may write, in ascending order, and does
  // not change their stamps before it lands. The rows that it wrote then become pending, and land
  // like those of any step.
  bool device = false;
  std::vector<std::int64_t> range;  // [num_rows], the slots
  std::vector<std::uint32_t>
      step_row;      // [num_rows]; landing thread: the row that was written there, or none
  PageClaims pages;  // its claims by page
};

// A block that was bound since the last begin to a page found by its key.
struct FoundByKey {
  std::int32_t block = -1;
  std::uint64_t version = 0;  // the version under which the key was looked up
};

// A copy of row bytes from one page to another.
struct PageCopy {
  PageIndex from = kNoPage;
  PageIndex to = kNoPage;
  std::uint32_t rows = 0;
};

class RoutingStore::Impl {
 public:
  Impl(const StoreOptions& store_options, std::shared_ptr<StoreCore> shared);
  ~Impl();

  // ---- step path (steps.cc): validation, then everything else under the lock. Engine's thread.
  StepCode Schedule(std::uint64_t step, std::uint64_t version) ABSL_LOCKS_EXCLUDED(mutex_);
  StepCode Report(std::span<const Event> events) ABSL_LOCKS_EXCLUDED(mutex_);
  // `drop`: the step is dropped at once, whether or not there is room for it.
  StepCode BeginStep(const StepBatch& batch, bool drop = false) ABSL_LOCKS_EXCLUDED(mutex_);
  StepCode Submit(std::uint64_t step, StepRows* rows) ABSL_LOCKS_EXCLUDED(mutex_);
  // Records were lost, behind which this is applied: see FlightSink::OnPoison. Live snapshots and
  // the users of blocks stay as they are.
  void Poison(std::span<const std::uint64_t> open_steps, std::uint64_t last_step,
              std::uint64_t version) ABSL_LOCKS_EXCLUDED(mutex_);
  StepCode End(std::uint64_t step, StepEnd how) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- reading (store.cc); threads as in blockstore/store/store.h
  absl::StatusOr<SnapshotState*> TakeSnapshot(std::span<const BlockId> blocks, std::int64_t first,
                                              std::int64_t last) ABSL_LOCKS_EXCLUDED(mutex_);
  std::int64_t CoveredPrefix(std::span<const BlockId> blocks, std::int64_t rows)
      ABSL_LOCKS_EXCLUDED(mutex_);
  Stats GetStats() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<AuditFinding> TakeFindings() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status WaitIdle(std::chrono::nanoseconds timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- landing (landing.cc)
  void StartLanding();
  void StopLanding() ABSL_LOCKS_EXCLUDED(mutex_);
  // Lands the next submitted step, or `only_step`. False if there is none.
  bool LandNext(std::uint64_t only_step = 0) ABSL_LOCKS_EXCLUDED(mutex_);

  [[nodiscard]] const StoreOptions& options() const { return options_; }
  [[nodiscard]] const std::shared_ptr<StoreCore>& core() const { return core_; }
  [[nodiscard]] std::uint64_t last_step() const { return last_; }

 private:
  friend class StoreCheckpoint;

  // ---- steps.cc
  // The first error of a batch or of its events, or ok. Changes nothing. Engine's thread. `step`:
  // the last step that a Seal may name.
  StepCode Validate(const StepBatch& batch);
  StepCode ValidateEvents(std::span<const Event> events, std::uint64_t step);
  StepCode ValidateStep(std::uint64_t step);
  StepCode ValidateEvent(const Event& event, std::uint64_t index, std::uint64_t step);
  StepCode ValidateMoves(std::span<const Event> events);
  void ClaimRows(StepRecord* record, std::span<const std::int64_t> slots, RelStep step,
                 std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `e`: the entry of `slot`; kNoEntry: padding.
  void ClaimRow(StepRecord* record, std::uint32_t step_row, std::int64_t slot, EntryIndex e,
                RelStep step, std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After a claim by a step of `version`: removes the page from the key index if its rows no longer
  // match its index key, and adds it to contending_ if it may then get its seal's key.
  void UpdateIndexAfterClaim(PageIndex page, std::uint64_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Rule 3: whether the row is protected from a write by a step of `version`.
  bool Protected(const PageHot& hot, Stamp stamp, std::uint64_t version) const;
  // Rule 4: whether a snapshot or another block sees this row of the page.
  static bool SeenByOthers(const PageHot& hot, std::uint32_t row);
  // The record of a step in flight; null if there is none.
  StepRecord* FindRecord(std::uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  StepRecord* FindRecordByRelative(RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The rows that the step has claimed and not landed are missing for `reason`; a device step may
  // have rewritten its range, unless it is cancelled (never written).
  void RevokeClaims(StepRecord& record, Reason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Unpin and Retire end a step: they return its pins, and its record.
  void Unpin(StepRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Retire(StepRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts a new base if stamps are about to wrap. False if steps in flight prevent it; the step
  // must then be dropped.
  bool MakeRoomFor(std::uint64_t step, std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Second seals that the audit has not compared yet.
  void ForgetSecondSeals() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts a base whose first step is `step`; empties the table and the index (capacity).
  void Rebase(std::uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- pages.cc
  // The entry. If it did not exist, it now does, with one user and a life that starts at `step`.
  Entry& EnsureEntry(EntryIndex e, RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a free page, evicting one if necessary; kNoPage if none can be evicted.
  PageIndex TakePage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the entry its first page of this life; kNoPage, with reason capacity, if there is none.
  PageIndex NewPage(EntryIndex e) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Copy-on-write: gives the entry a page of its own, with all rows and the seal of the old one.
  PageIndex CopyOnWrite(EntryIndex e) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Copies rows [0, rows): stamps at once; bytes are queued for the landing
  // thread. `by_key`: the rows of `from` came by key.
  void CopyRows(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes rows that `step` will land in `from` land in `to` too, where they are pending for it.
  void ExtendPending(PageIndex from, PageIndex to, RelStep step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Binds the entry to the page. REQUIRES: it has none.
  void Attach(EntryIndex e, PageIndex page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the entry from its page's list, and does nothing else to the page.
  void Unlink(EntryIndex e) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the page from the entry, whose rows are then missing for `reason`.
  void Detach(EntryIndex e, Reason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes one page, or all pages, from the key index.
  void Unindex(PageIndex page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ClearIndex() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees the page if it is not held; else lists it for eviction if it may be evicted.
  void UpdateEvictability(PageIndex page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PinPage(PageIndex page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UnpinPage(PageIndex page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Evicts the least recently used page; false if none may be evicted.
  bool EvictOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Puts the page, sealed or claimed by `step`, into the key index if it wins its key.
  void ContendForKey(PageIndex page, RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Rows of the page that are valid or pending, or that a device step may still write.
  std::uint32_t LiveRows(PageIndex page) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes back at most `states` released snapshots; true if there was one.
  bool ReclaimSnapshots(std::size_t states) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- apply_events.cc: one function per event type, with the effect that events.h states
  // Opens the schedule of a step.
  void OpenSchedule(std::uint64_t step, std::uint64_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies events in their order; own seals wait. The lives that they begin start at last_ + 1.
  void ApplyEvents(std::span<const Event> events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies events[at] and all events that are simultaneous with it; moves `at` past them.
  void Apply(std::span<const Event> events, std::size_t& at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a seal waits for the claims of the step that is begun next.
  bool IsOwnSeal(const Event& event) const {
    return event.type == EventType::kSeal && (event.step == 0 || event.step == schedule_);
  }
  void KeepOwnSeal(const Event& event, RelStep now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies the own seals of blocks whose life has not ended since, as seals of `step`.
  void ApplyOwnSeals(std::uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What was noted about a block goes with a move: own seals, and pages found by key.
  void MoveNotes(std::span<const Event> pairs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A step of `version` begins: blocks lose a page that their Bind found under another version.
  void LosePagesOfOtherVersions(std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Prefetches the entry of an event.
  void PrefetchFor(const Event& event) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyBind(const Event& event, RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyRetain(const Event& event, RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyRelease(const Event& event, RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplySeal(const Event& event, RelStep now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyCopy(const Event& event, RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyMove(std::span<const Event> pairs, RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyTruncate(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyReset() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first entry of a block; kNoEntry for null blocks.
  EntryIndex FirstEntry(std::int32_t block) const;
  // The entry of a slot. Multiplies, because a division per row would cost more than the claim.
  // Exact, because slots are below 2^43 and pages have at most 4096 rows.
  EntryIndex EntryOf(std::uint64_t slot) const {
    if (page_shift_ >= 0) return static_cast<EntryIndex>(slot >> page_shift_);
    return static_cast<EntryIndex>((static_cast<unsigned __int128>(slot) * page_magic_) >> 64);
  }

  // ---- device_steps.cc: steps whose slots only the device knows. LandDeviceRows and
  // ResolveDeviceRow: landing thread; the others: engine's thread.
  // Claims every row that a device step may write.
  void ClaimDeviceRows(StepRecord* record, std::span<const std::int64_t> slots, RelStep step,
                       std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Claims one row of device_range_. `record` is null if the step is dropped at its begin.
  void ClaimDeviceRow(StepRecord* record, std::uint32_t index, RelStep step, std::uint64_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the row missing because a dropped device step may have rewritten it, unless rule 3 keeps
  // it.
  void InvalidateRow(PageIndex page, std::uint32_t row, bool sealed, RelStep step,
                     std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same for all rows that a dropped device step may have written.
  void InvalidateRange(const StepRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a device step <= upto may still write this row; steps of version *except_version do not
  // count.
  bool ClaimedByDeviceStep(PageIndex page, std::uint32_t row, RelStep upto,
                           const std::uint64_t* except_version = nullptr) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Revokes these claims.
  void RevokeDeviceClaims(PageIndex page, std::uint32_t row, RelStep upto)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Rule 3 for a device step. The seal is read when the step begins (`sealed`) and the stamp when
  // it lands, so that the same rows are kept whenever it lands.
  bool KeptByDeviceStep(bool sealed, Stamp stamp, std::uint64_t version) const {
    return sealed && stamp.live() && base_->VersionOf(stamp.step()) == version;
  }
  // Whether the page was sealed by a step before `step`.
  static bool SealedBefore(const PageHot& hot, RelStep step) {
    return hot.sealed != 0 && hot.sealed < step;
  }
  // Extends the claims of device steps on rows [0, rows) of `from` to `to`.
  void ExtendDeviceClaims(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a device step may still write this row of the page and a request asked for it.
  bool DeviceMayWrite(PageIndex page, std::uint32_t row) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a device step may still write any row of the page.
  static bool HasDeviceClaims(const StepRecord& record, PageIndex page);
  void LandDeviceRows(StepRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets the page row for row `step_row` of the step to pending. Returns its claim; kNoStepRow: not
  // stored.
  std::uint32_t ResolveDeviceRow(StepRecord& record, std::uint32_t step_row)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- landing.cc: landing thread, except for Wake
  void LandingLoop();
  // Wakes the landing thread; a system call only if it sleeps. Engine's thread.
  void Wake();
  // Lands one step: page copies, its rows, the audit, its end.
  void LandStep(StepRecord& record);
  void LandRows(StepRecord& record);
  void LandSides(StepRecord& record, std::span<const SideRow> sides);
  // Publishes the row with this verdict if it is still pending for `step`.
  void Publish(PageIndex page, std::uint32_t row, RelStep step, Reason verdict);
  // Does the queued page copies; false if there are none.
  bool RunCopies() ABSL_LOCKS_EXCLUDED(mutex_);
  void Housekeeping() ABSL_LOCKS_EXCLUDED(mutex_);
  void AuditIgnored(StepRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  void AuditSecondSeals() ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the valid rows of a page missing (audit); returns their number.
  std::uint32_t VoidPage(PageIndex page);
  void RecordFinding(const AuditFinding& finding, double agreement_sum, std::uint64_t disagreements)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Passes all rows of a step that has landed to the flight sink, which hashes them.
  void RecordRows(StepRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  void CountExperts(const StepRecord& record, std::span<std::uint8_t* const> rows);
  void SleepUntilWork(std::uint32_t seen);

  const StoreOptions options_;
  const std::shared_ptr<StoreCore> core_;
  const std::uint32_t pages_per_block_;  // block_tokens / page_tokens
  const std::uint32_t page_tokens_;
  const int page_shift_;            // log2 of page_tokens_; -1: not a power of two
  const std::uint64_t page_magic_;  // 2^64 / page_tokens_, rounded up
  const std::int64_t num_slots_;
  const std::uint64_t key_seed_;
  std::uint64_t last_ = 0;      // engine's thread, as is the next
  std::uint64_t schedule_ = 0;  // the step of the open schedule; 0: none

  mutable Mutex mutex_;
  std::shared_ptr<StepBase> base_;  // replaced under the lock; see StepBase for its content
  std::shared_ptr<StepBase> spare_base_ ABSL_GUARDED_BY(mutex_);
  PagePool pool_;
  BlockTable table_;
  KeyIndex index_;
  std::vector<std::unique_ptr<StepRecord>> records_;
  std::vector<StepRecord*> free_records_ ABSL_GUARDED_BY(mutex_);
  std::vector<StepRecord*> active_ ABSL_GUARDED_BY(mutex_);     // in begin order
  std::vector<StepRecord*> submitted_ ABSL_GUARDED_BY(mutex_);  // in submit order
  std::vector<PageCopy> page_copies_ ABSL_GUARDED_BY(mutex_);   // queued for the landing thread
  std::vector<PageCopy> second_seals_ ABSL_GUARDED_BY(mutex_);  // pairs of pages to compare
  std::uint64_t copies_queued_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;  // of the latest schedule or begin
  // Own seals since the last begin, in the order reported. Of those of a block the last one counts,
  // and only if its entries are `sealing`.
  std::vector<Event> own_seals_ ABSL_GUARDED_BY(mutex_);
  // The same for pages that were found by key, and entries that are `found_by_key`.
  std::vector<FoundByKey> found_by_key_ ABSL_GUARDED_BY(mutex_);
  std::uint32_t device_steps_ ABSL_GUARDED_BY(mutex_) = 0;  // of active_
  // Scratch of BeginStep: slots that a device step may write, and whether none asked for it.
  std::vector<std::pair<std::int64_t, bool>> device_range_ ABSL_GUARDED_BY(mutex_);
  std::vector<PageIndex> contending_ ABSL_GUARDED_BY(mutex_);  // claimed, sealed, not in the index
  std::vector<std::pair<Entry, EntryCold>> moved_ ABSL_GUARDED_BY(mutex_);
  std::vector<SnapshotState*> free_states_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t snapshots_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t snapshots_live_ ABSL_GUARDED_BY(mutex_) = 0;
  Stats stats_ ABSL_GUARDED_BY(mutex_);
  std::deque<AuditFinding> findings_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::int32_t> move_blocks_;  // scratch of validation, engine's thread

  // Used by the landing thread only.
  struct Tally {
    std::uint64_t landed = 0, late = 0;
    std::uint64_t missing[kNumReasons] = {};
  } tally_;
  std::span<const std::int64_t> slots_;  // StepRows::Slots of a device step
  std::uint32_t next_in_range_ = 0;      // in the step's range: after the last row found
  std::vector<std::uint8_t*> destinations_;
  std::vector<Reason> verdicts_;
  std::vector<PageCopy> running_copies_;
  std::vector<SideRow> side_scratch_;
  std::vector<std::uint8_t> row_scratch_;
  std::vector<std::uint8_t> flight_ids_;
  std::vector<Reason> flight_verdicts_;
  Mutex experts_mutex_;
  std::vector<ExpertCounts> experts_ ABSL_GUARDED_BY(experts_mutex_);

  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> sleeping_{false};
  bool dozing_ = false;                 // landing thread: the last wait timed out
  std::atomic<std::uint32_t> work_{0};  // incremented by every Submit and queued copy
  std::mutex wake_mutex_;
  std::condition_variable wake_cv_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STORE_IMPL_H_
