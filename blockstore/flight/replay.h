// FlightReplay: a store to which the records of a flight are applied again. Internal to blockstore:
// CheckFlight replays flights with it, and FlightRecorder makes its checkpoints with it.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_REPLAY_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/flight/record.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/step_rows.h"
#include "blockstore/store/store.h"

namespace waymark::flight {

// A recorded read and the same read of the replaying store. The spans are valid during the callback
// alone. Element i of each (but `blocks`) is row begin + i of the sequence.
struct ReplayedRead {
  std::uint64_t read_id = 0;
  std::int64_t begin = 0;
  std::span<const BlockId> blocks;  // of the snapshot
  std::span<const RowInfo> recorded_infos, infos;
  std::span<const std::uint64_t> recorded_digests, digests;  // 0 if the row is missing
  std::span<const std::uint8_t> rows;                        // in the replaying store's shape
};

// An event was missed at a step in (after, by].
struct StepWindow {
  std::uint64_t after = 0;
  std::uint64_t by = 0;
};

// Not thread safe. Steps land, and snapshots are taken, read and released, at the records of these
// events in the flight.
class FlightReplay {
 public:
  // May be empty. Called from within Apply; must not call the replay.
  using OnRead = std::function<void(const ReplayedRead&)>;

  // Which pages lose their rows in the replay: the flight's, or those that its own audit
  // finds. kOwn is for a flight that was changed, or whose store had no audit.
  enum class Voids : std::uint8_t { kRecorded, kOwn };

  // Makes the store of info.ReplayOptions(). `audit`: whether it audits, whatever the recorded
  // store did. ResourceExhausted if the store would take more than `max_bytes`; InvalidArgument if
  // no store has these options.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FlightReplay>> Create(const FlightInfo& info,
                                                                            std::uint64_t max_bytes,
                                                                            bool audit,
                                                                            Voids voids);
  ~FlightReplay();

  // Applies the next record of the flight; a submitted step with the last of its rows. Calls
  // `on_read` for a read. InvalidArgument if the record contradicts the records before it; the
  // replay must not be used afterwards.
  [[nodiscard]] absl::Status Apply(const FlightRecord& record, const OnRead& on_read);

  // Whether the last step's rows are not complete, so that it has not been applied.
  [[nodiscard]] bool awaits_rows() const;
  // Sets `out` to the state of the store as the payload of a checkpoint, without a step whose rows
  // are not complete.
  [[nodiscard]] absl::Status Save(std::string& out);

  // The steps between which the event was missed that explains a finding of the audit, right behind
  // the step that landed. If a write contradicts the rows that were kept, those are the steps of
  // the two writes. If two pages with one key contradict each other, that is found only when the
  // second is sealed, long after the writes: then the event was missed between the write of the
  // rows and now. If one step wrote both, `after` is 0: not known.
  [[nodiscard]] StepWindow FindWindow(const AuditFinding& finding) const;

  // The replaying store, for its statistics and findings. Owned by the replay.
  [[nodiscard]] RoutingStore& store() { return *store_; }
  // Whether a checkpoint was applied.
  [[nodiscard]] bool from_checkpoint() const { return from_checkpoint_; }
  // Rows of reads whose snapshot was taken before the flight begins: they cannot be replayed.
  [[nodiscard]] std::uint64_t rows_not_replayed() const { return rows_not_replayed_; }

 private:
  struct Step;  // the last step: its rows so far, and the StepRows that lands them
  // A snapshot of the replaying store, from its kSnapshot record to its kReleased record.
  struct View {
    Snapshot snapshot;
    std::vector<BlockId> blocks;
    std::uint64_t read_id = 0;  // its number in the replaying store
  };

  FlightReplay(const FlightInfo& info, std::unique_ptr<RoutingStore> store, Voids voids);
  absl::Status Schedule(const FlightRecord& record);
  absl::Status Begin(const FlightRecord& record);
  absl::Status Landed(const FlightRecord& record);
  // Applies the last step. `rows`: if it was submitted with ids.
  absl::Status ApplyStep(StepEnd end, StepRows* rows);
  absl::Status Poison(const FlightRecord& record);
  absl::Status TakeSnapshot(const FlightRecord& record);
  void VoidPage(VoidedPage page);
  absl::Status Read(const FlightRecord& record, const OnRead& on_read);

  const FlightInfo info_;
  const Voids voids_;
  std::unique_ptr<RoutingStore> store_;
  const std::unique_ptr<Step> step_;
  std::unordered_map<std::uint64_t, View> views_;  // survives a failed allocation
  std::vector<RowInfo> infos_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint64_t> digests_;
  bool from_checkpoint_ = false;
  std::uint64_t rows_not_replayed_ = 0;
};

}  // namespace waymark::flight

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_REPLAY_H_
