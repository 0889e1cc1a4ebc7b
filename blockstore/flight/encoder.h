// FlightEncoder: the FlightSink that encodes what a store reports as records. Internal to
// blockstore: FlightWriter and FlightRecorder each derive one, which says where the records go.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_ENCODER_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/flight/record.h"
#include "blockstore/mutex.h"
#include "blockstore/store/flight_sink.h"

namespace waymark::flight {

// Any thread may call it: each call takes the encoder's lock, so records are whole and in the order
// of the calls. Only OnRows does not: it hashes the rows into memory of its own, which the kLanded
// record of the step copies. Allocates only for steps of more rows than info.max_step_rows,
// and groups of more than 128 Moves. Landed rows and reads longer than about 64 KiB become several
// records.
class FlightEncoder : public FlightSink {
 public:
  // `info` describes the recorded store; info.rows is how much of each landed row is kept. Does not
  // write the head of the flight.
  explicit FlightEncoder(const FlightInfo& info);

  [[nodiscard]] std::uint64_t key_seed() const override { return info_.key_seed; }
  void On(const FlightEntry& entry) override;
  void OnRows(std::uint64_t step, std::span<const std::uint8_t> ids,
              std::span<const Reason> verdicts) override;
  // Writes the closing record, which has the number of records so far. `complete`: none was lost.
  void Close(bool complete);
  // The lock that is held during every call of Reserve, and while a record is written.
  [[nodiscard]] Mutex& mutex() ABSL_LOCK_RETURNED(mutex_) { return mutex_; }

 private:
  // Returns memory for one whole record of `bytes` bytes, heading included, which is written before
  // the next call. Null: there is no room, and the record is lost. Called under the lock, mostly
  // under the store's, too, so it must be short.
  virtual std::uint8_t* Reserve(std::size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  void Append(const FlightEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AppendEvents(std::span<const Event> events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Each in records of at most this many rows; one, if there are none.
  void AppendLanded(std::uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AppendRead(const FlightEntry& read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FlightInfo info_;
  // The rows of the step that lands. The landing thread's.
  std::vector<std::uint8_t> rows_;
  std::vector<Reason> verdicts_;
  Mutex mutex_;
  std::vector<std::uint8_t> events_ ABSL_GUARDED_BY(mutex_);  // encoded
  std::vector<BlockId> scratch_ ABSL_GUARDED_BY(mutex_);      // of EncodeEvents
  std::uint64_t records_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace waymark::flight

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_ENCODER_H_
