// FlightEncoder: the FlightSink that turns what a store tells it into records. Internal to
// blockstore: FlightWriter and FlightRecorder each have one, and say only where records go.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_ENCODER_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockstore/flight/format.h"
#include "blockstore/flight/info.h"
#include "blockstore/mutex.h"
#include "blockstore/store/flight_sink.h"

namespace waymark::flight {

// Where encoded records go. Calls come one at a time, under the encoder's lock and mostly under the
// store's: be short. A record is written by one Reserve and one Commit, in that order.
class RecordOutput {
 public:
  virtual ~RecordOutput() = default;
  // `bytes` bytes for one whole record, heading included, owned by the output and written by the
  // encoder until Commit; null: there is no room, and the record is lost.
  virtual std::uint8_t* Reserve(std::size_t bytes) = 0;
  // The record is complete.
  virtual void Commit() = 0;
};

// Any thread: each call takes the encoder's own lock, so records are whole and in the order of the
// calls. Allocates nothing of its own. Long rows and reads become several records of about 64 KiB.
class FlightEncoder final : public FlightSink {
 public:
  // `info`: of the store that is recorded; says how much of each landed row is kept. `output` stays
  // the caller's and outlives the encoder. Does not write the head.
  FlightEncoder(const FlightInfo& info, RecordOutput* output);

  void OnBegin(const StepBatch& batch, bool dropped) override;
  void OnEnd(std::uint64_t step, StepEnd end) override;
  void OnLanded(std::uint64_t step, std::span<const std::uint8_t> ids,
                std::span<const Reason> verdicts,
                std::span<const std::int64_t> slots = {}) override;
  void OnSnapshot(std::uint64_t read_id, std::span<const BlockId> blocks, std::int64_t first,
                  std::int64_t last) override;
  void OnReleased(std::uint64_t read_id) override;
  void OnRead(std::uint64_t read_id, std::int64_t begin, std::span<const RowInfo> infos,
              std::span<const std::uint64_t> digests) override;
  // Writes the closing record: the count of records so far. `complete`: none of them was lost.
  void Close(bool complete);
  // Records that the output took.
  [[nodiscard]] std::uint64_t records() const;
  // Serialises every use of the output; for those who share it.
  [[nodiscard]] Mutex& mutex() { return mutex_; }

 private:
  // Calls fill(RawWriter&) on the payload's memory, then writes the heading.
  template <class Fill>
  void Append(Kind kind, std::uint16_t flags, std::size_t payload_bytes, Fill fill)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FlightInfo info_;
  mutable Mutex mutex_;
  RecordOutput* const output_ ABSL_PT_GUARDED_BY(mutex_);
  std::uint64_t records_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace waymark::flight

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_ENCODER_H_
