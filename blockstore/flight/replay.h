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
#include "blockstore/flight/info.h"
#include "blockstore/flight/record.h"
#include "blockstore/store/snapshot.h"
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

// Not thread safe. Steps land, and snapshots are taken, read and released, at the records of these
// events in the flight.
class FlightReplay {
 public:
  // May be empty. Called from within Apply; must not call the replay.
  using OnRead = std::function<void(const ReplayedRead&)>;

  // Which pages lose their rows in the replay: those of the flight, or those that its own audit
  // finds. kOwn is for a flight that was changed, or whose store had no audit.
  enum class Voids : std::uint8_t { kRecorded, kOwn };

  // Makes the store of info.ReplayOptions(). `audit`: whether it audits, whatever the recorded
  // store did. ResourceExhausted if the store would take more than `max_bytes`; InvalidArgument if
  // the options are not those of any store.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FlightReplay>> Create(const FlightInfo& info,
                                                                            std::uint64_t max_bytes,
                                                                            bool audit,
                                                                            Voids voids);
  ~FlightReplay();

  // Applies the next record of the flight. Calls `on_read` for each read as soon as its rows are
  // readable, which may be at a later record. InvalidArgument if the record contradicts the records
  // before it; the replay must not be used afterwards.
  [[nodiscard]] absl::Status Apply(const FlightRecord& record, const OnRead& on_read);

  // From now on ignores ends and landings of steps that are not in flight, instead of failing. A
  // checkpoint has the same effect: the steps that were in flight when it was made have ended in
  // it, and their ends follow in the flight.
  void AllowUnknownEnds() { allow_unknown_ends_ = true; }

  // The steps that were begun and have not ended, ascending.
  [[nodiscard]] std::vector<std::uint64_t> InFlight() const;
  // Sets `out` to the state of the store as the payload of a checkpoint. FailedPrecondition while a
  // step is in flight.
  [[nodiscard]] absl::Status Save(std::string& out);

  // The replaying store, for its statistics and findings. Owned by the replay.
  [[nodiscard]] RoutingStore& store() { return *store_; }
  // Whether a checkpoint was applied.
  [[nodiscard]] bool from_checkpoint() const { return from_checkpoint_; }
  // The number of the last step begun; 0 if there is none.
  [[nodiscard]] std::uint64_t last_begun() const { return last_begun_; }
  // Rows of reads whose snapshot was taken before the flight begins: they cannot be replayed.
  [[nodiscard]] std::uint64_t rows_not_replayed() const { return rows_not_replayed_; }
  // Rows of reads whose snapshot is not readable yet.
  [[nodiscard]] std::uint64_t rows_waiting() const;
  // Steps that the recorded store did not drop at their begin, and the replaying store did.
  [[nodiscard]] std::uint64_t steps_diverged() const { return steps_diverged_; }

 private:
  struct Step;  // a step in flight: its recorded rows so far, and the StepRows that lands them
  // A snapshot of the replaying store, from its kSnapshot record to its kReleased record.
  struct View {
    Snapshot snapshot;
    std::vector<BlockId> blocks;
    std::uint64_t read_id = 0;  // its number in the replaying store
    bool released = false;      // released in the flight, but a read of it is still waiting
  };

  FlightReplay(const FlightInfo& info, std::unique_ptr<RoutingStore> store, Voids voids);
  absl::Status Schedule(const FlightRecord& record);
  absl::Status Begin(const FlightRecord& record);
  absl::Status Poison(const FlightRecord& record, const OnRead& on_read);
  absl::Status End(const FlightRecord& record, const OnRead& on_read);
  absl::Status Landed(const FlightRecord& record, const OnRead& on_read);
  absl::Status TakeSnapshot(const FlightRecord& record);
  void VoidPage(VoidedPage page);
  // False: the snapshot is not readable yet.
  absl::StatusOr<bool> Read(const FlightRecord& record, const OnRead& on_read);
  // Does the waiting reads whose snapshot has become readable.
  absl::Status RetryReads(const OnRead& on_read);
  // Removes a step that has ended; its memory is reused.
  void Retire(std::uint64_t step);

  const FlightInfo info_;
  const Voids voids_;
  std::unique_ptr<RoutingStore> store_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Step>> steps_;
  std::vector<std::unique_ptr<Step>> spare_steps_;
  std::unordered_map<std::uint64_t, View> views_;
  std::vector<FlightRecord> waiting_;  // reads whose snapshot is not readable
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
