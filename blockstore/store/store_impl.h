// RoutingStore::Impl: the state behind the store, and the rules as member functions. Internal to
// blockstore. Split by what it does: store.cc (making, reading), steps.cc (begin, claim,
// end), pages.cc (pages of entries: new, own, evicted, indexed), apply_events.cc (events),
// device_steps.cc (steps whose slots only the device knows), landing.cc (the landing
// thread).
//
// Names of the rules are those of docs/architecture.md.
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

inline constexpr std::size_t kLandingChunk = 64;  // rows asked of a source at a time
inline constexpr std::uint32_t kNoSourceRow = ~0u;

// Where one source row of a step goes.
struct Claim {
  PageIndex page = kNoPage;
  std::uint16_t row = 0;
  bool pinned = false;  // this claim holds the pin of its page (one pin a run of rows)
  // Of a device step:
  bool revoked = false;  // truncated before the step landed
  bool asked = true;     // somebody asked for the row
  bool sealed = false;   // its page was sealed before the step: a live row of its version stays
};

// A source row that has a second destination (its page was copied while it was pending), or whose
// write was ignored and is to be compared.
struct SideRow {
  std::uint32_t source_row = 0;
  PageIndex page = kNoPage;
  EntryIndex entry = kNoEntry;
  std::uint16_t row = 0;
  bool revoked = false;                    // as of a Claim
  bool sealed = false;                     // as of a Claim
  bool asked = true;                       // as of a Claim
  bool by_key = false;                     // the rows of its page came by key
  std::uint32_t next = PageClaims::kNone;  // of a device step: another one on this page
};

// A begun step that has not ended. Records are made with the store and reused. While it is
// submitted the landing thread reads it without the lock; of its vectors only `copies` may then
// still grow, under the lock.
struct StepRecord {
  enum class State : std::uint8_t { kFree, kBegun, kSubmitted };
  State state = State::kFree;
  std::uint64_t step = 0;
  std::uint64_t version = 0;       // weights of the forward
  RelStep relative = 0;            // `step` under the base at hand: what its stamps hold
  std::uint32_t num_rows = 0;      // of the forward, padding included
  RowSource* source = nullptr;     // the caller's, until its Done; null: nothing to land
  std::uint64_t submitted_at = 0;  // nanoseconds
  std::vector<Claim> claims;       // [num_rows]; constant from BeginStep on, but for revoked ones
  std::vector<SideRow> copies;     // more destinations, appended while it is in flight
  std::vector<SideRow> ignored;    // for the audit; each pins its page
  // A step with device_slots. Its claims are of the slots that it may write, ascending, and leave
  // stamps alone until it lands: then those that it wrote become pending, and land as any other.
  bool device = false;
  std::vector<std::int64_t> range;  // [num_rows], the slots
  std::vector<std::uint32_t>
      source_row;    // [num_rows]; landing thread: where it wrote each, or none
  PageClaims pages;  // where its claims on a page are
};

// Row bytes that a page gets from another one.
struct PageCopy {
  PageIndex from = kNoPage;
  PageIndex to = kNoPage;
  std::uint32_t rows = 0;
};

class RoutingStore::Impl {
 public:
  Impl(const StoreOptions& store_options, std::shared_ptr<StoreCore> shared);
  ~Impl();

  // ---- step path (steps.cc); validation first, then everything under the lock. Engine's
  // thread.
  StepCode BeginStep(const StepBatch& batch) ABSL_LOCKS_EXCLUDED(mutex_);
  StepCode Submit(std::uint64_t step, RowSource* source) ABSL_LOCKS_EXCLUDED(mutex_);
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
  // Lands the next submitted step, or the given one; false when there is none.
  bool LandNext(std::uint64_t only_step = 0) ABSL_LOCKS_EXCLUDED(mutex_);

  [[nodiscard]] const StoreOptions& options() const { return options_; }
  [[nodiscard]] const std::shared_ptr<StoreCore>& core() const { return core_; }
  [[nodiscard]] std::uint64_t last_step() const { return last_; }

 private:
  friend class StoreCheckpoint;

  // ---- steps.cc
  // What is wrong with a batch, before anything is changed; ok when nothing is. Engine's thread.
  StepCode Validate(const StepBatch& batch);
  StepCode ValidateEvent(const Event& event, std::uint64_t index, std::uint64_t step);
  StepCode ValidateMoves(std::span<const Event> events);
  // Seals of the step at hand that precede a move of their block, before it moves.
  void SealWhatMoves(std::span<const Event> events, std::size_t move)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Seals of the step at hand, after its claims: those whose block still has the same life.
  void ApplyOwnSeals(std::span<const Event> events, std::uint64_t step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Brings what an event looks at first into the cache.
  void FetchFor(const Event& event) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ClaimRows(StepRecord* record, std::span<const std::int64_t> slots, RelStep step,
                 std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `e`: the entry of `slot`; kNoEntry for padding.
  void ClaimRow(StepRecord* record, std::uint32_t source_row, std::int64_t slot, EntryIndex e,
                RelStep step, std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a claim of `version` does to the page's place in the index.
  void CompeteAfterClaim(PageIndex page, std::uint64_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Rule 3: a row that step `step` of `version` must not write.
  bool Protected(const PageHot& hot, Stamp stamp, RelStep step, std::uint64_t version) const;
  // Rule 4: somebody other than the block at hand sees this row of the page.
  static bool Visible(const PageHot& hot, std::uint32_t row);
  // The step in flight of this number; null when there is none.
  StepRecord* FindRecord(std::uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  StepRecord* FindRecordByRelative(RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a step: its pins go, then its record, and the oldest step in flight may be another.
  void Unpin(StepRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Retire(StepRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts a new base when stamps are about to wrap. False: steps in flight forbid it, drop the
  // step.
  bool MakeRoomFor(std::uint64_t step, std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins a base with `step` as its first; table and index are emptied (capacity).
  void Rebase(std::uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- pages.cc
  // The entry, which exists from now on: with one user, and a life that began with the last step.
  Entry& Touch(EntryIndex e) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A page that nobody holds, evicting one if need be; kNoPage when all are held.
  PageIndex TakePage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The entry's first page of this life; kNoPage (and reason capacity) when there is none.
  PageIndex NewPage(EntryIndex e) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Copy on write: the entry leaves a page that others see, with every row and the seal.
  PageIndex OwnPage(EntryIndex e) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Rows [0, rows): stamps at once, bytes queued for the landing thread. `by_key`: of the copy.
  void CopyRows(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What `step` lands in `from` it lands in `to` as well, where that is pending for it.
  void ExtendPending(PageIndex from, PageIndex to, RelStep step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Binds the entry to the page. REQUIRES: it has none.
  void Attach(EntryIndex e, PageIndex page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the entry off its page's list, whatever becomes of the page.
  void Unlink(EntryIndex e) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The entry has no page from now on, and its rows are missing for `reason`.
  void Detach(EntryIndex e, Reason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the page out of the index; the second one takes all out.
  void Unindex(PageIndex page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ClearIndex() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees, lists or unlists a page after what holds it has changed.
  void Review(PageIndex page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PinPage(PageIndex page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UnpinPage(PageIndex page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Evicts the page that would go first; false when none may.
  bool EvictOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The page, sealed and written by `step`, contends for its place in the index.
  void Compete(PageIndex page, RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Rows of the page that are valid or pending, or that a device step may still write.
  std::uint32_t LiveRows(PageIndex page) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives back at most `states` snapshots; true when it gave back any.
  bool TakeBackSnapshots(std::size_t states) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- apply_events.cc: one function an event; each is what blockstore/events.h says of it
  // Applies events[at], with all that are simultaneous with it, and moves `at` past them.
  void Apply(std::span<const Event> events, std::size_t& at, std::uint64_t step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyBind(const Event& event, RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyRetain(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyRelease(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplySeal(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyCopy(const Event& event, RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyMove(std::span<const Event> pairs, RelStep step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyTruncate(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyReset() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // First entry of a block of the engine; kNoEntry for null blocks.
  EntryIndex FirstEntry(std::int32_t block) const;
  // The entry that a slot falls in. A multiplication: a division a row would cost more than the
  // claim. Exact, as slots are below 2^43 and pages have at most 4096 rows.
  EntryIndex EntryOf(std::uint64_t slot) const {
    if (page_shift_ >= 0) return static_cast<EntryIndex>(slot >> page_shift_);
    return static_cast<EntryIndex>((static_cast<unsigned __int128>(slot) * page_magic_) >> 64);
  }

  // ---- device_steps.cc: steps whose slots are known on the device only. The first part is the
  // engine's thread's, the second the landing thread's.
  // Claims every row that a device step may write.
  void ClaimDeviceRows(StepRecord* record, std::span<const std::int64_t> slots, RelStep step,
                       std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Claims one row of device_range_; without a record, the step is dropped at once.
  void ClaimDeviceRow(StepRecord* record, std::uint32_t index, RelStep step, std::uint64_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A dropped device step may have rewritten this row: what it held is not known any more.
  void ForgetRow(PageIndex page, std::uint32_t row, bool sealed, RelStep step,
                 std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All that a dropped device step may have rewritten.
  void ForgetRange(const StepRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a device step <= upto, `but_of` those of a version, may still write this row.
  bool DeviceClaims(PageIndex page, std::uint32_t row, RelStep upto,
                    const std::uint64_t* but_of = nullptr) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes it from them.
  void RevokeDeviceClaims(PageIndex page, std::uint32_t row, RelStep upto)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Rule 3 for a device step, which looks at the seal when it begins and at the stamp when it
  // lands: whenever that is, it keeps the same rows.
  bool Protected(bool sealed, Stamp stamp, std::uint64_t version) const {
    return sealed && stamp.live() && base_->VersionOf(stamp.step()) == version;
  }
  // The page is sealed with a step before `step`.
  static bool SealedBefore(const PageHot& hot, RelStep step) {
    return hot.sealed != 0 && hot.sealed < step;
  }
  // What a device step may write in `from`, rows [0, rows), it may then write in `to` as well.
  void ExtendDeviceClaims(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a device step may still write a row of the page, for somebody who asked.
  bool DeviceMayWrite(PageIndex page, std::uint32_t row) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a device step may still write any row of the page.
  static bool Claims(const StepRecord& record, PageIndex page);
  void LandDeviceSource(StepRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes what one row of the source wrote pending. Its claim, or kNoSourceRow: it is not wanted.
  std::uint32_t ResolveDeviceRow(StepRecord& record, std::uint32_t source_row)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- landing.cc: for the thread that lands, but for Wake
  void LandingLoop();
  // Tells the landing thread of work; costs a system call only when it sleeps. Engine's thread.
  void Wake();
  // Everything of one step: copies, its rows, the audit, its end.
  void LandStep(StepRecord& record);
  void LandSource(StepRecord& record);
  void LandSides(StepRecord& record, std::span<const SideRow> sides);
  // The row has landed with this verdict, if it still is pending for `step`.
  void Publish(PageIndex page, std::uint32_t row, RelStep step, Reason verdict);
  // Copies the bytes that are queued; false when there were none.
  bool RunCopies() ABSL_LOCKS_EXCLUDED(mutex_);
  void Housekeeping() ABSL_LOCKS_EXCLUDED(mutex_);
  void AuditIgnored(StepRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  void AuditSecondSeals() ABSL_LOCKS_EXCLUDED(mutex_);
  // Voids what is valid on a page; returns how many rows that was.
  std::uint32_t Void(PageIndex page);
  void Report(const AuditFinding& finding, double agreement_sum, std::uint64_t disagreements)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the flight's sink of all rows of a step, before any of them is landed.
  void RecordFlight(StepRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  void CountExperts(const StepRecord& record, std::span<std::uint8_t* const> rows);
  void SleepUntilWork(std::uint32_t seen);

  const StoreOptions options_;
  const std::shared_ptr<StoreCore> core_;
  const std::uint32_t parts_;  // pages a block
  const std::uint32_t page_tokens_;
  const int page_shift_;            // log2 of page_tokens_, -1 when it is no power of two
  const std::uint64_t page_magic_;  // 2^64 / page_tokens_, rounded up
  const std::int64_t num_slots_;
  const std::uint64_t key_seed_;
  std::uint64_t last_ = 0;  // engine's thread

  mutable Mutex mutex_;
  std::shared_ptr<StepBase> base_;  // replaced under the lock; its content has its own rules
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
  std::vector<std::uint32_t> own_seals_ ABSL_GUARDED_BY(mutex_);  // scratch of ApplyOwnSeals
  std::uint32_t device_steps_ ABSL_GUARDED_BY(mutex_) = 0;        // of active_
  // Scratch of BeginStep: slots that a device step may write, and whether nobody asked.
  std::vector<std::pair<std::int64_t, bool>> device_range_ ABSL_GUARDED_BY(mutex_);
  std::vector<PageIndex> competing_ ABSL_GUARDED_BY(mutex_);  // claimed, sealed, not in the index
  std::vector<std::pair<Entry, EntryCold>> moved_ ABSL_GUARDED_BY(mutex_);
  std::vector<SnapshotState*> free_states_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t snapshots_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t snapshots_live_ ABSL_GUARDED_BY(mutex_) = 0;
  Stats stats_ ABSL_GUARDED_BY(mutex_);
  std::deque<AuditFinding> findings_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::int32_t> move_blocks_;  // scratch of validation, engine's thread

  // The landing thread's own.
  struct Tally {
    std::uint64_t landed = 0, late = 0;
    std::uint64_t missing[kNumReasons] = {};
  } tally_;
  std::span<const std::int64_t> slots_;  // of the source of a device step
  std::uint32_t next_in_range_ = 0;      // of its range: behind the row that was found last
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
  bool dozing_ = false;                 // the landing thread's: the last look for work timed out
  std::atomic<std::uint32_t> work_{0};  // rises with every Submit and queued copy
  std::mutex wake_mutex_;
  std::condition_variable wake_cv_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STORE_IMPL_H_
