// RowSource: where the rows of a submitted step come from. Implemented by whoever captures.
#ifndef WAYMARK_BLOCKSTORE_STORE_ROW_SOURCE_H_
#define WAYMARK_BLOCKSTORE_STORE_ROW_SOURCE_H_

#include <cstdint>
#include <span>

#include "blockstore/row_info.h"

namespace waymark {

// The ids of one step, readable row by row until Done(). Given to RoutingStore::Submit by pointer;
// the store never owns it. All calls come from the landing thread (or from inside LandOne), one at
// a time.
class RowSource {
 public:
  virtual ~RowSource() = default;

  // Copies rows [first, first + destinations.size()) of the step, each in the store's row format
  // (token-major, uint8 or little-endian uint16), to destinations[i]; a null destination means that
  // nobody wants that row, and nothing is copied. Sets verdicts[i] of every wanted row: kNone, or
  // why the row must be missing (its destination bytes are then unspecified). May be asked for the
  // same row several times. Must not throw and must not call the store.
  virtual void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
                    std::span<Reason> verdicts) = 0;

  // Of a step begun with device_slots, once and before Land: the slot of each of the source's rows,
  // kPaddingSlot for one that is of no block; whether a row asked is the batch's to say. Row i of
  // Land is then row i of these. A slot that the batch did not name is dropped and counted; of two
  // rows of one slot the first counts. Valid until Done().
  virtual std::span<const std::int64_t> Slots() { return {}; }

  // The step has ended: landed, dropped or cancelled. The last call for this step; the source may
  // be reused or destroyed from inside it. On the engine's thread when Submit itself refused the
  // step.
  virtual void Done() = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_ROW_SOURCE_H_
