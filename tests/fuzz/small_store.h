// A store of a few rows, and steps that give it everything that a store can have: what the fuzz
// targets record, save and load.
#ifndef WAYMARK_TESTS_FUZZ_SMALL_STORE_H_
#define WAYMARK_TESTS_FUZZ_SMALL_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/flight/record.h"
#include "blockstore/store/store.h"

namespace waymark::fuzz {

// 8 blocks of 4 rows of [2, 2] ids, 6 pages, block 0 null; landed by the caller.
[[nodiscard]] StoreOptions SmallOptions();

// Begins, submits and lands the next step with these events, and a row in each of `slots`. Nothing
// happens when the store refuses it.
void RunStep(RoutingStore& store, std::vector<Event> events, std::vector<std::int64_t> slots);

// Every event there is, several lives of a block, evictions, a dropped and a cancelled step.
void RunSteps(RoutingStore& store);

// Takes a snapshot of all blocks, waits for nothing, and reads what is there.
void ReadAll(RoutingStore& store);

// The flight of RunSteps with reads in between, as FlightWriter writes it. `from_checkpoint`: it
// begins with the state after an earlier RunSteps.
[[nodiscard]] std::string SmallFlight(FlightRows rows, bool from_checkpoint);

// The checkpoint that RunSteps leaves.
[[nodiscard]] std::string SmallCheckpoint();

}  // namespace waymark::fuzz

#endif  // WAYMARK_TESTS_FUZZ_SMALL_STORE_H_
