// FlightReplay: a store that lives through a recorded flight again. Internal to blockstore: the
// check re-runs flights with it, and the recorder makes its checkpoints with it.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_REPLAY_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/flight/info.h"
#include "blockstore/flight/record.h"
#include "blockstore/store/row_source.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/store/store.h"

namespace waymark::flight {

// One recorded read, done again.
struct ReplayedRead {
  // Valid during the callback only. Element i of each span is row begin + i of the sequence.
  std::uint64_t read_id = 0;
  std::int64_t begin = 0;
  std::span<const BlockId> blocks;  // of the snapshot
  std::span<const RowInfo> recorded_infos, infos;
  std::span<const std::uint64_t> recorded_digests, digests;  // 0 where a row is missing
  std::span<const std::uint8_t> rows;                        // of the replaying store's shape
};

// One thread. Steps land where they landed; snapshots are taken, read and given back where they
// were.
class FlightReplay {
 public:
  // May be empty. Called from within Apply; must not call the replay.
  using OnRead = std::function<void(const ReplayedRead&)>;

  // ResourceExhausted when the store would take more than `max_bytes`; InvalidArgument when the
  // head describes no store. `audit`: whether the replaying store audits, whatever the recorded one
  // did.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FlightReplay>> Create(const FlightInfo& info,
                                                                            std::uint64_t max_bytes,
                                                                            bool audit = true);
  ~FlightReplay();

  // Records in the order of the flight; the record is only read. InvalidArgument when it cannot
  // follow the records before it, and the replay is then of no more use. The callback sees each
  // read that can be done, possibly later than its record, when the step that it waits for has
  // landed.
  [[nodiscard]] absl::Status Apply(const FlightRecord& record, const OnRead& on_read);

  // Ends and landings of steps that are not in flight are no errors, but passed over. So it is
  // after a checkpoint anyhow: it has the end of what was in flight when it was made.
  void AllowUnknownEnds() { allow_unknown_ends_ = true; }

  // Steps that were begun and have not ended.
  [[nodiscard]] std::vector<std::uint64_t> InFlight() const;
  // The state, as the payload of a checkpoint. FailedPrecondition while a step is in flight.
  [[nodiscard]] absl::Status Save(std::string& out);

  // For its statistics and findings. Owned by the replay.
  [[nodiscard]] RoutingStore& store() { return *store_; }
  // Whether a checkpoint was applied.
  [[nodiscard]] bool from_checkpoint() const { return from_checkpoint_; }
  // Number of the last step begun; 0: none.
  [[nodiscard]] std::uint64_t last_begun() const { return last_begun_; }
  // Rows of reads that were not done: of snapshots from before the flight, or never ready.
  [[nodiscard]] std::uint64_t rows_not_replayed() const { return rows_not_replayed_; }
  // Rows of reads that still wait for a step.
  [[nodiscard]] std::uint64_t rows_waiting() const;
  // Steps that this store had to drop and the recorded one had not, or the other way round.
  [[nodiscard]] std::uint64_t steps_diverged() const { return steps_diverged_; }

 private:
  struct Step;  // one in flight: the rows recorded of it so far, and the RowSource that lands them
  // A snapshot that the flight holds: made at its record, kept until its release.
  struct View {
    Snapshot snapshot;
    std::vector<BlockId> blocks;
    bool released = false;  // once nothing waits for it
  };

  FlightReplay(const FlightInfo& info, std::unique_ptr<RoutingStore> store);
  absl::Status Begin(const FlightRecord& record);
  absl::Status End(const FlightRecord& record, const OnRead& on_read);
  absl::Status Landed(const FlightRecord& record, const OnRead& on_read);
  absl::Status TakeSnapshot(const FlightRecord& record);
  // False: the snapshot is not ready yet.
  absl::StatusOr<bool> Read(const FlightRecord& record, const OnRead& on_read);
  absl::Status RetryReads(const OnRead& on_read);
  void Retire(std::uint64_t step);

  const FlightInfo info_;
  std::unique_ptr<RoutingStore> store_;
  absl::flat_hash_map<std::uint64_t, std::unique_ptr<Step>> steps_;
  std::vector<std::unique_ptr<Step>> spare_steps_;
  absl::flat_hash_map<std::uint64_t, View> views_;
  std::vector<FlightRecord> waiting_;  // reads whose snapshot is not ready
  std::vector<RowInfo> infos_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint64_t> digests_;
  bool from_checkpoint_ = false;
  bool allow_unknown_ends_ = false;
  std::uint64_t last_begun_ = 0;
  std::uint64_t rows_not_replayed_ = 0;
  std::uint64_t steps_diverged_ = 0;
};

}  // namespace waymark::flight

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_REPLAY_H_
