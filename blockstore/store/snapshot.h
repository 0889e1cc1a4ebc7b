// Snapshot: a pinned, immutable view of rows [first, last) of one sequence; Cursor: the next one.
#ifndef WAYMARK_BLOCKSTORE_STORE_SNAPSHOT_H_
#define WAYMARK_BLOCKSTORE_STORE_SNAPSHOT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/row_info.h"
#include "blockstore/rows.h"

namespace waymark {

struct StoreCore;      // pages and stamps, shared by the store and its snapshots (internal)
struct SnapshotState;  // the pinned pages of one snapshot (internal)

// A page of a store of this process. See Snapshot::Place.
struct PagePlace {
  std::uint64_t store = 0;
  std::uint32_t page = 0;
};

// Made by RoutingStore::TakeSnapshot, on the engine's thread; used and destroyed on any thread (one
// at a time). Copies nothing until it is read. While it lives, the rows it sees do not change,
// except that the audit may void them (reason kAudit). It may outlive its store. Movable; a
// moved-from or default-made snapshot is empty and holds no rows.
class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();  // gives the pages back through a queue; takes no lock of the store
  Snapshot(Snapshot&& other) noexcept;
  Snapshot& operator=(Snapshot&& other) noexcept;
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  [[nodiscard]] std::int64_t first() const;
  [[nodiscard]] std::int64_t last() const;
  [[nodiscard]] std::int64_t size() const { return last() - first(); }
  // Of its rows; null for an empty snapshot.
  [[nodiscard]] const RoutingShape* shape() const;

  // Whether every step begun before the snapshot was taken has ended, and its copies are done.
  [[nodiscard]] bool Ready() const;
  // Waits until Ready(). DeadlineExceeded after `timeout`. Never call it on the landing thread.
  [[nodiscard]] absl::Status Wait(std::chrono::nanoseconds timeout) const;

  // Writes rows [begin, end) to `out` as `spec` says and their infos to `infos` (empty: not
  // wanted), consistently: a row whose info is valid is whole. FailedPrecondition before Ready();
  // OutOfRange unless first() <= begin <= end <= last(); InvalidArgument for sizes or id types that
  // do not fit, naming argument and value. Nothing is written on error. O(end - begin).
  [[nodiscard]] absl::Status Read(std::int64_t begin, std::int64_t end, const ReadSpec& spec,
                                  std::span<std::uint8_t> out, std::span<RowInfo> infos = {}) const;
  // All rows as an owning value, in the store's own id type. Errors as Read.
  [[nodiscard]] absl::StatusOr<Rows> ReadRows() const;
  // Runs of equal reason, version and provenance over [first(), last()). Errors as Read.
  [[nodiscard]] absl::StatusOr<std::vector<CoverageRun>> Coverage() const;

  // The infos of rows [begin, end), without their ids. Errors as Read.
  [[nodiscard]] absl::Status ReadInfos(std::int64_t begin, std::int64_t end,
                                       std::span<RowInfo> infos) const;
  // Where row `row` lies, so that what was made of a page once need not be made again: as long as
  // this process runs, rows of one place that are valid from the same steps have the same ids.
  // nullopt where that is not so (rows copied from another page) or where there is no page.
  // REQUIRES: first() <= row < last().
  [[nodiscard]] std::optional<PagePlace> Place(std::int64_t row) const;

  // Gives the pages back now; the snapshot is then empty.
  void Release();

 private:
  friend class RoutingStore;
  Snapshot(std::shared_ptr<StoreCore> core, SnapshotState* state);

  std::shared_ptr<StoreCore> core_;
  SnapshotState* state_ = nullptr;  // owned by *core_; given back by Release
};

// The prompt and the generation part of what a request's rows split into: rows [first, prompt) and
// [prompt, last), clipped to [first, last).
struct RowSplit {
  std::int64_t prompt_first, prompt_last, generation_first, generation_last;
};
[[nodiscard]] RowSplit SplitRows(std::int64_t first, std::int64_t last, std::int64_t prompt_tokens);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_SNAPSHOT_H_
