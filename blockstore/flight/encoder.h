// FlightEncoder: the FlightSink that encodes the calls of a store as records. Internal to
// blockstore: FlightWriter and FlightRecorder each have one, with an output of their own.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_ENCODER_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "blockstore/flight/format.h"
#include "blockstore/flight/info.h"
#include "blockstore/mutex.h"
#include "blockstore/store/flight_sink.h"

namespace waymark::flight {

// The destination of encoded records. Calls come one at a time, under the encoder's lock and mostly
// under the store's, so they must be short. Each record is one Reserve and then one Commit.
class RecordOutput {
 public:
  virtual ~RecordOutput() = default;
  // Returns memory for one whole record of `bytes` bytes, heading included, which the encoder
  // writes until Commit. Owned by the output. Null: there is no room, and the record is lost.
  virtual std::uint8_t* Reserve(std::size_t bytes) = 0;
  // The record is complete.
  virtual void Commit() = 0;
};

// Any thread may call it: each call takes the encoder's lock, so records are whole and in the order
// of the calls. Only OnRows does not: it hashes the rows into memory of its own, from which
// OnLanded copies finished records. Does not allocate, but for steps of more rows than
// info.max_step_rows, and groups of more than 128 Moves. Landed rows and reads longer than about 64
// KiB become several records.
class FlightEncoder final : public FlightSink {
 public:
  // `info` describes the recorded store; info.rows is how much of each landed row is kept. `output`
  // is not owned and must outlive the encoder. Does not write the head of the flight.
  FlightEncoder(const FlightInfo& info, RecordOutput* output);

  [[nodiscard]] std::uint64_t key_seed() const override { return info_.key_seed; }
  void OnSchedule(std::uint64_t step, std::uint64_t version) override;
  void OnEvents(std::span<const Event> events) override;
  void OnStep(const AppliedStep& step) override;
  void OnRows(std::uint64_t step, std::span<const std::uint8_t> ids,
              std::span<const Reason> verdicts,
              std::optional<std::span<const std::int64_t>> slots = {}) override;
  void OnLanded(std::uint64_t step) override;
  void OnSnapshot(std::uint64_t read_id, std::span<const BlockId> blocks, std::int64_t first,
                  std::int64_t last) override;
  void OnReleased(std::uint64_t read_id) override;
  void OnVoided(const VoidedPage& page) override;
  void OnPoison(std::uint64_t last_step, std::uint64_t version) override;
  void OnRead(std::uint64_t read_id, std::int64_t begin, std::span<const RowInfo> infos,
              std::span<const std::uint64_t> digests) override;
  // Writes the closing record, which has the number of records so far. `complete`: none was lost.
  void Close(bool complete);
  // The number of records written so far.
  [[nodiscard]] std::uint64_t records() const;
  // The lock that is held during every call of the output. For other users of the output.
  [[nodiscard]] Mutex& mutex() { return mutex_; }

 private:
  // Reserves a record, calls fill(RawWriter&) on the payload's memory, and writes the heading.
  template <class Fill>
  void Append(Kind kind, std::uint16_t flags, std::size_t payload_bytes, Fill fill)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Appends a finished record, heading included.
  void Append(std::span<const std::uint8_t> record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FlightInfo info_;
  std::vector<std::uint8_t> landed_;  // finished records of the step that lands; landing thread
  mutable Mutex mutex_;
  std::vector<std::uint8_t> events_ ABSL_GUARDED_BY(mutex_);  // encoded
  std::vector<BlockId> scratch_ ABSL_GUARDED_BY(mutex_);      // of EncodeEvents
  RecordOutput* const output_ ABSL_PT_GUARDED_BY(mutex_);
  std::uint64_t records_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace waymark::flight

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_ENCODER_H_
