// Snapshot: a pinned, immutable view of rows [first, last) of one sequence.
#ifndef WAYMARK_BLOCKSTORE_STORE_SNAPSHOT_H_
#define WAYMARK_BLOCKSTORE_STORE_SNAPSHOT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/row_info.h"
#include "blockstore/rows.h"

namespace waymark {

struct Birth;          // internal: when the KV of a block came
struct StoreCore;      // internal: pages and stamps, shared by store and snapshots
struct SnapshotState;  // internal: the pinned pages of one snapshot

// Distinguishes the rows of a request from the rows of a later owner of its blocks: those are
// missing (released). For snapshots that may be taken after the blocks were released. Without it
// the rows of blocks without users are missing (released). Plain data; `keys` is read during the
// call of TakeSnapshot.
struct SnapshotOwner {
  // The last step in which the request ran: a row of a later step is another's, and so is a block
  // whose life began later. 0: not given.
  std::uint64_t last_step = 0;
  // The keys of the sequence's first blocks, those that are full; an empty key is not looked at. A
  // page that is sealed under another key is another's. Only with last_step: they do not say whose
  // the blocks behind them are.
  std::span<const BlockKey> keys;

  [[nodiscard]] bool given() const { return last_step != 0; }
};

// RoutingStore::TakeSnapshot makes one on the engine's thread. Any thread may then use and destroy
// it, one at a time. Nothing is copied before it is read. Its rows do not change while it exists,
// except that the audit may void them (reason kAudit). It may outlive its store. A moved-from or
// default-constructed snapshot is empty.
class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();  // Release()
  Snapshot(Snapshot&& other) noexcept;
  Snapshot& operator=(Snapshot&& other) noexcept;
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Positions in the sequence: rows [first(), last()).
  [[nodiscard]] std::int64_t first() const;
  [[nodiscard]] std::int64_t last() const;
  [[nodiscard]] std::int64_t size() const { return last() - first(); }
  // The shape of the rows; null if the snapshot is empty. Lives as long as the snapshot.
  [[nodiscard]] const RoutingShape* shape() const;

  // Whether the rows can be read: its record was applied, and so every step begun before it has
  // landed or otherwise ended.
  [[nodiscard]] bool Ready() const;
  // Waits until Ready(). DeadlineExceeded after `timeout`. FailedPrecondition in a forked child,
  // where it does not become ready any more. Must not be called on the landing thread.
  [[nodiscard]] absl::Status Wait(std::chrono::nanoseconds timeout) const;

  // Writes rows [begin, end) to `out` in the layout, type and fill of `spec`, and one info per row
  // to `infos`, which may be empty. `out`: (end - begin) * L * K ids of spec.id_type. A row with a
  // valid info is complete, even if the audit voids rows meanwhile. FailedPrecondition before
  // Ready(). OutOfRange unless first() <= begin <= end <= last(). InvalidArgument, naming the
  // argument and the value, if a size or the id type does not fit. ResourceExhausted without
  // memory. On another error nothing is written.
  // O(end - begin).
  [[nodiscard]] absl::Status Read(std::int64_t begin, std::int64_t end, const ReadSpec& spec,
                                  std::span<std::uint8_t> out, std::span<RowInfo> infos = {}) const;
  // All rows, copied, with ids as the store keeps them. Errors as Read.
  [[nodiscard]] absl::StatusOr<Rows> ReadRows() const;

  // Of a store with StoreOptions::seal_sink: the version of the weights in force when the block of
  // rows [begin, end) was bound, or the one that it was copied or moved from. `present` if no step
  // was told since then, and for null blocks; nullopt: not known (no Bind was told, events were
  // lost, rows were taken back). `written`: of rows that a step wrote and that were lost; nullopt,
  // too, if a step of another version wrote rows of the block since then. REQUIRES: Ready(), the
  // rows are of one block, first() <= begin < end <= last().
  [[nodiscard]] std::optional<std::uint64_t> VersionOf(std::int64_t begin, std::int64_t end,
                                                       std::uint64_t present, bool written) const;

  // Returns the pages to the store, through a queue and without a lock. The snapshot is then empty.
  void Release();

 private:
  friend class RoutingStore;
  // SnapshotState::births of the page of a row.
  [[nodiscard]] Birth BirthOf(std::int64_t row) const;
  Snapshot(std::shared_ptr<StoreCore> core, SnapshotState* state);
  // Whether Read may read rows [begin, end) into so many infos; its errors.
  [[nodiscard]] absl::Status CheckRange(std::int64_t begin, std::int64_t end,
                                        std::size_t infos) const;

  std::shared_ptr<StoreCore> core_;
  SnapshotState* state_ = nullptr;  // owned by *core_; Release returns it
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_SNAPSHOT_H_
