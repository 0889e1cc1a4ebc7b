// FlightEncoder: turns what a store tells a FlightSink into records. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_ENCODER_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockstore/flight_format.h"
#include "blockstore/flight_info.h"
#include "blockstore/flight_sink.h"
#include "blockstore/mutex.h"

namespace waymark::flight {

// Where encoded records go. Calls come one at a time.
class RecordOutput {
 public:
  virtual ~RecordOutput() = default;
  // `bytes` bytes for one whole record; null: there is no room, and the record is lost.
  virtual std::uint8_t* Reserve(std::size_t bytes) = 0;
  // The record is complete.
  virtual void Commit() = 0;
};

// Any thread. Allocates nothing of its own.
class FlightEncoder final : public FlightSink {
 public:
  // `output` outlives the encoder.
  FlightEncoder(const FlightInfo& info, RecordOutput* output);

  void OnBegin(const StepBatch& batch, bool dropped) override;
  void OnEnd(std::uint64_t step, StepEnd end) override;
  void OnLanded(std::uint64_t step, std::span<const std::uint8_t> ids,
                std::span<const Reason> verdicts) override;
  void OnSnapshot(std::uint64_t read_id, std::span<const BlockId> blocks, std::int64_t first,
                  std::int64_t last) override;
  void OnReleased(std::uint64_t read_id) override;
  void OnRead(std::uint64_t read_id, std::int64_t begin, std::span<const RowInfo> infos,
              std::span<const std::uint64_t> digests) override;
  // Writes the closing record.
  void Close(bool complete);
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
