// The batch of a step, as the arguments of Capture.step give it.
#ifndef WAYMARK_PLUGIN_PYTHON_BATCH_H_
#define WAYMARK_PLUGIN_PYTHON_BATCH_H_

#include <optional>

#include "plugin/python/arrays.h"
#include "plugin/python/events.h"

namespace waymark_python {

// The rows of a forward.
struct RowArgs {
  nb::handle rows;          // slots, int64 [rows]; or a tuple (blocks, positions)
  nb::handle asked;         // of pairs: None, bool or uint8
  nb::handle block_tokens;  // of pairs; None: `store_block_tokens`
  std::int32_t store_block_tokens = 0;
};

// A StepBatch of a call's arguments, which it keeps.
class BatchArgs {
 public:
  // `events`: None, or what GivenEvents takes.
  BatchArgs(std::uint64_t step, std::uint64_t version, const RowArgs& rows, nb::handle events,
            bool derive_events);
  BatchArgs(const BatchArgs&) = delete;
  BatchArgs& operator=(const BatchArgs&) = delete;
  // Only the first `count` rows are of the batch. InvalidArgumentError unless it has so many.
  void First(std::int64_t count);
  // Valid as long as this object and its arguments.
  [[nodiscard]] const waymark::StepBatch& get() const { return batch_; }
  // How many rows the batch has.
  [[nodiscard]] std::int64_t rows() const;

 private:
  void TakePairs(const RowArgs& rows);
  // int32 or int64, [count]; sets their bytes.
  const void* TakeIndexes(nb::handle given, const char* name, int index, std::size_t& count,
                          std::int32_t& bytes);
  // The flags of `count` rows.
  const std::uint8_t* TakeAsked(nb::handle asked, std::size_t count);

  waymark::StepBatch batch_;
  waymark::PairRows pairs_;
  std::optional<GivenEvents> events_;
  std::optional<Integers<std::int64_t>> indexes_[2];  // slots, or what is not int32 of pairs
  NumpyMemory memory_[2];
  NumpyMemory asked_;
  Array asked_array_;  // where it is not numpy's
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_BATCH_H_
