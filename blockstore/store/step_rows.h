// StepRows: the rows of a submitted step, an interface. Each way of capturing ids implements it.
#ifndef WAYMARK_BLOCKSTORE_STORE_STEP_ROWS_H_
#define WAYMARK_BLOCKSTORE_STORE_STEP_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "blockstore/row_info.h"

namespace waymark {

// The ids of one step, readable until Done(). RoutingStore::Submit takes a pointer; the caller
// keeps ownership. All calls come from the landing thread (under Landing::kCaller: from LandOne,
// Land or WaitIdle) or the destructor of the store, one at a time, except as stated at Done. No
// call may call the store. If one throws, the rows of the step that have not been read are missing
// (not captured), and only Done is called after it.
//
// The rows are read when it is the step's turn in the log, or before, into memory of the store, if
// the ids of an earlier step are late. Steps are read in any order.
class StepRows {
 public:
  virtual ~StepRows() = default;

  // Whether Land and Slots can be called now. Does not block; may start a copy that a later call
  // finds done. Once true, true until Done(). Also called after the step was lost
  // (StoreOptions::ids_timeout): the ids are then not read, and Done() follows once it is true.
  [[nodiscard]] virtual bool Poll() { return true; }

  // Copies row first + i of the step to destinations[i], as `[num_layers][top_k]` ids of the
  // store's type (RoutingShape::id_bytes), and sets verdicts[i] to kNone. If the row is missing,
  // sets verdicts[i] to the reason (capacity: another rank does not have it); the bytes at
  // destinations[i] are then unspecified. A row with a
  // null destination is skipped. May be called several times for the same row.
  virtual void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
                    std::span<Reason> verdicts) = 0;

  // For the audit. Copies the layers of row `row` that were written to `destination`, as Land does,
  // and sets written[layer] to 1 for them, else to 0. Returns whether one was written. A row with
  // an invalid id counts as not written, as its other ids may be wrong, too. `written`:
  // [num_layers].
  virtual bool LandLayers(std::uint32_t row, std::uint8_t* destination,
                          std::span<std::uint8_t> written) {
    (void)row, (void)destination;
    std::fill(written.begin(), written.end(), std::uint8_t{0});
    return false;
  }

  // Called once, by the destructor of the store and instead of Land, if Poll has not
  // returned true within StoreOptions::teardown_timeout, or for a step that was lost before, at the
  // end: the rows of the step are missing (not captured), and only Done is called after it. Memory
  // that a device may still write must then stay allocated.
  virtual void GiveUp() {}

  // The last call for this step, whose rows have been read, or are not wanted any more; it may
  // reuse or destroy this object. If Submit refuses the step, Submit calls Done() on the engine's
  // thread before it returns. An exception is ignored, and counted (Stats::exceptions).
  virtual void Done() = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STEP_ROWS_H_
