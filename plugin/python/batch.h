// A step's batch, as the arguments of a call give it.
#ifndef WAYMARK_PLUGIN_PYTHON_BATCH_H_
#define WAYMARK_PLUGIN_PYTHON_BATCH_H_

#include <optional>

#include "plugin/python/core.h"
#include "plugin/python/events.h"

namespace waymark_python {

// The rows of a forward: one of the first two is not None.
struct RowArgs {
  nb::handle slots;         // int64 [rows]
  nb::handle pairs;         // (block_idx, local_position)
  nb::handle asked;         // of pairs: None, bool or uint8
  nb::handle block_tokens;  // of pairs; None: `store_block_tokens`
  std::int32_t store_block_tokens = 0;
};

// WM_BATCH_*.
[[nodiscard]] constexpr std::uint32_t BatchFlags(bool device_slots, bool derive_events) {
  return (device_slots ? WM_BATCH_DEVICE_SLOTS : 0u) |
         (derive_events ? WM_BATCH_DERIVE_EVENTS : 0u);
}

// A wm_step_batch of a call's arguments, which it keeps.
class BatchArgs {
 public:
  // `events`: None, or what GivenEvents takes. flags: WM_BATCH_*.
  BatchArgs(std::uint64_t step, std::uint64_t version, const RowArgs& rows, nb::handle events,
            std::uint32_t flags);
  wm_step_batch batch = {};
  // Only the first `count` rows are of the batch. InvalidArgumentError unless it has so many.
  void First(std::int64_t count);
  // The same batch, which has no more rows than memory.
  [[nodiscard]] waymark::StepBatch cpp();
  // How many the batch has, if it is valid.
  [[nodiscard]] std::int64_t rows() const;

 private:
  // Arguments that the form of the rows does not have.
  void RefuseOtherForms(const RowArgs& rows) const;
  void TakePairs(const RowArgs& rows);
  // The flags of `count` rows.
  const std::uint8_t* TakeAsked(nb::handle asked, std::size_t count);

  std::optional<GivenEvents> events_;
  std::optional<Integers<std::int64_t>> slots_, block_idx_, local_position_;
  NumpyMemory memory_[2];
  NumpyMemory asked_;
  Array asked_array_;  // where it is not numpy's
  wm_pair_rows pairs_ = {};
  waymark::PairRows pair_rows_;
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_BATCH_H_
