// FlightInfo: the head of a flight: the options of the store that it was recorded from.
// FlightRecord: one parsed record. FlightRecordKind (store/flight_sink.h) says what each kind
// means, and docs/internals/flight.md defines the bytes.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_RECORD_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_RECORD_H_

#include <cstdint>
#include <vector>

#include "blockstore/ids.h"
#include "blockstore/shape.h"
#include "blockstore/store/flight_sink.h"
#include "blockstore/store/store.h"

namespace waymark {

// How much of each landed row a flight keeps.
enum class FlightRows : std::uint8_t {
  kDigests = 1,  // 16 bytes: the row's XXH3-64, and a sketch that estimates agreement
  kIds = 2,      // all ids: shape.row_bytes()
};

// The StoreOptions on which the behaviour of a replaying store depends. A value.
struct FlightInfo {
  RoutingShape shape;
  std::int32_t num_blocks = 0;
  std::int32_t block_tokens = 0;  // not 0: a 0 in the options became shape.page_tokens
  std::uint32_t num_pages = 0;    // not 0: a 0 in the options became all pages of all blocks
  std::uint32_t spare_pages = 0;  // nullopt in the options became num_pages
  std::uint32_t max_steps_in_flight = 0;
  std::uint32_t max_step_rows = 0;
  std::vector<BlockId> null_blocks;
  bool audit = true;
  double audit_threshold = 0.5;
  std::uint64_t key_seed = 0;  // seed of the index keys in checkpoints and voided pages; not 0
  FlightRows rows = FlightRows::kDigests;

  // The info of a store that is made with `options`. A key_seed of 0 becomes a random one, which
  // the store gets from its sink.
  [[nodiscard]] static FlightInfo Of(const StoreOptions& options,
                                     FlightRows rows = FlightRows::kDigests);
  // The options of a store that replays the flight: landed by its caller, audited, with the same
  // index keys. With kDigests its rows are 16 layers of one id (8 digest bytes, 8 sketch bytes),
  // and its audit threshold is half the recorded one, because the digest bytes agree only if the
  // whole rows do.
  [[nodiscard]] StoreOptions ReplayOptions() const;

  friend bool operator==(const FlightInfo&, const FlightInfo&) = default;
};

template <class T>
using FlightVector = std::vector<T>;

// Owns its items. Reuse one object for many records, to reuse its memory.
struct FlightRecord : FlightFields<FlightVector> {
  std::uint64_t offset = 0;  // byte offset of the record's heading in the file
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_RECORD_H_
