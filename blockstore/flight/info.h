// FlightInfo: what a flight says of the store that it was recorded from.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_INFO_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_INFO_H_

#include <cstdint>
#include <vector>

#include "blockstore/ids.h"
#include "blockstore/shape.h"
#include "blockstore/store/store.h"

namespace waymark {

// What is kept of each landed row.
enum class FlightRows : std::uint8_t {
  kDigests = 1,  // 16 bytes: its XXH3-64 and a sketch that tells near from far
  kIds = 2,      // all of it
};

// The part of StoreOptions that decides what a store does with a flight. A value.
struct FlightInfo {
  RoutingShape shape;
  std::int32_t num_blocks = 0;
  std::int32_t block_tokens = 0;  // never 0 here: one page, when the options say 0
  std::uint32_t num_pages = 0;    // never 0 here: all pages of all blocks, when the options say 0
  std::uint32_t max_steps_in_flight = 0;
  std::uint32_t max_step_rows = 0;
  std::vector<BlockId> null_blocks;
  bool audit = true;
  double audit_threshold = 0.5;
  std::uint64_t key_seed = 0;  // of the index places in a checkpoint; never 0
  FlightRows rows = FlightRows::kDigests;

  // Of a store that is made with `options`. A key_seed of 0 becomes a fixed one.
  [[nodiscard]] static FlightInfo Of(const StoreOptions& options,
                                     FlightRows rows = FlightRows::kDigests);
  // Options of a store that replays the flight: landed by its caller, audited, same places. With
  // kDigests its rows are 16 layers of one id, and its threshold is half the recorded one, because
  // half of such a row is a digest that agrees only when everything does.
  [[nodiscard]] StoreOptions ReplayOptions() const;

  friend bool operator==(const FlightInfo&, const FlightInfo&) = default;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_INFO_H_
