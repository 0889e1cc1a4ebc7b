// SlotEncoder: validates the rows of a step and encodes their slots for a record of the log.
//
// Constant once it is made: any thread, no allocation, nothing throws. Encoded slots are read by
// the same process only: they have the processor's byte order, and the code may change.
//
// A *run* is a number of consecutive rows of one kind: slots that ascend by 1; padding (each is
// kPaddingSlot); or slots of a request that did not ask for routing (each is NotAsked of a slot,
// and these slots ascend by 1). Slots are encoded as runs or one by one, whichever is smaller:
//
//   header                 8 bytes: number of rows, form (uint32 each)
//   runs: [n] {first, rows}     int32 and uint32; int64 and uint64 in a store of wide slots
//   or one by one: [rows]       int32;            int64 in a store of wide slots
//
// where a store of wide slots has 2^31 slots or more.
#ifndef WAYMARK_BLOCKSTORE_STORE_SLOT_CODE_H_
#define WAYMARK_BLOCKSTORE_STORE_SLOT_CODE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockstore/events.h"
#include "blockstore/step_code.h"
#include "blockstore/store/slot_code_ops.h"

namespace waymark {

// The options of the store that rows are validated against. See StoreOptions.
struct SlotLimits {
  std::int32_t num_blocks = 0;    // >= 1
  std::int32_t block_tokens = 0;  // >= 1
  std::uint32_t max_step_rows = 0;

  [[nodiscard]] std::int64_t num_slots() const { return std::int64_t{num_blocks} * block_tokens; }
  // Whether slots are encoded as int64. Otherwise every slot and NotAsked(slot) is an int32.
  [[nodiscard]] bool wide() const { return num_slots() > INT32_MAX; }
};

// The most bytes that SlotEncoder writes for `rows` rows. For `batch` with limits.max_step_rows or
// fewer rows, `rows` is NumRows(batch).
[[nodiscard]] std::size_t MaxEncodedBytes(std::size_t rows, const SlotLimits& limits);

// Holds the functions that it calls by value: with the caches cold, a table of them in the
// program's data would cost a page and two cache lines more.
class SlotEncoder {
 public:
  // With the fastest functions that this machine can run.
  explicit SlotEncoder(const SlotLimits& limits);
  // With the given ones, unless limits.wide(). For tests.
  SlotEncoder(const SlotLimits& limits, const internal::SlotOps<std::int32_t>& ops)
      : limits_(limits), ops_(ops) {}

  // Validates the rows of `batch`, in whichever form they are given, and encodes them to `out`,
  // which has room for MaxEncodedBytes(min(NumRows(batch), limits.max_step_rows), limits) bytes and
  // may be unaligned. `*bytes` is the number of bytes written. Events, step and version are not
  // looked at.
  //
  // InvalidArgument with the first of these rules that is broken, and with the first row or request
  // that breaks it; `out` is then unspecified and `*bytes` unchanged:
  //   slots:  kRowForms, kTooManyRows, kSlotOutOfRange
  //   pairs:  kRowForms, kIndexBytes, kBlockTokens, kTooManyRows, then kRowBlock or kRowOffset
  //   table:  kRowForms, kBlockTokens, then kScheduledTokens or kPosition, kTooManyRows, kRowBlock
  [[nodiscard]] StepCode Encode(const StepBatch& batch, std::uint8_t* out,
                                std::size_t* bytes) const;

 private:
  SlotLimits limits_;
  internal::SlotOps<std::int32_t> ops_;
};

// A run of encoded slots. Row i of it has the slot first + i, kPaddingSlot if `first` is that, and
// first - i (NotAsked) below that.
struct SlotRun {
  std::int64_t first = kPaddingSlot;
  std::uint32_t rows = 0;  // >= 1
};

// How slots are encoded; see above.
enum class SlotForm : std::uint32_t { kRuns = 1, kOneByOne, kWideRuns, kWideOneByOne };

// Encoded slots, as a view of their bytes, which must outlive it. Reads runs in the order of the
// rows; slots that were encoded one by one are runs of one row. A value; const access: any thread.
class EncodedSlots {
 public:
  // REQUIRES: `bytes` are what one SlotEncoder::Encode wrote. They may be unaligned.
  explicit EncodedSlots(std::span<const std::uint8_t> bytes);

  [[nodiscard]] std::size_t num_rows() const { return num_rows_; }
  // The number of runs, which are num_rows() if the slots are encoded one by one.
  [[nodiscard]] std::size_t num_runs() const { return num_runs_; }
  [[nodiscard]] SlotForm form() const { return form_; }
  // REQUIRES: i < num_runs().
  [[nodiscard]] SlotRun run(std::size_t i) const;
  // Writes the slot of each row: num_rows() numbers.
  void Decode(std::int64_t* slots) const;

 private:
  const std::uint8_t* entries_;
  std::size_t num_rows_;
  std::size_t num_runs_;
  SlotForm form_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_SLOT_CODE_H_
