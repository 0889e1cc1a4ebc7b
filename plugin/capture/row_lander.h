// RowLander: lands the rows of every StepRows of this folder: packs them, checks their ids, and
// counts each faulty row once. Included by this folder only.
#ifndef WAYMARK_PLUGIN_CAPTURE_ROW_LANDER_H_
#define WAYMARK_PLUGIN_CAPTURE_ROW_LANDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "blockstore/row_info.h"
#include "blockstore/shape.h"
#include "kernels/ids_view.h"
#include "plugin/capture/layer_counters.h"

namespace waymark {

// The layers of a packed row with an id of -1 that were written: those with K different ids below
// E, in `written`, [num_layers]. Returns whether there is one. -1 is all bits set; where that is an
// expert, too (E = 256), a layer that has it counts as not written.
[[nodiscard]] bool FindWrittenLayers(const RoutingShape& shape, const std::uint8_t* row,
                                     std::span<std::uint8_t> written);

// One per StepRows; used by one thread at a time. The store may ask for a row several times (for
// two pages, or to compare it); the row's faults are counted the first time.
class RowLander {
 public:
  // Allocates for steps of up to `max_rows` rows. `counters` may be null: nothing is counted.
  RowLander(const RoutingShape& shape, std::int32_t max_rows,
            std::shared_ptr<LayerCounters> counters);

  // StepRows::Land for a step whose rows i < `rows` are the rows of `ids`; the verdict of its
  // other rows is kNotCaptured. `batch_rows`: the rows of the forward, padding included: the batch
  // size at which silent layers are recorded. Does not allocate.
  void Land(const kernels::IdsView& ids, std::int32_t rows, std::int32_t batch_rows,
            std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts);
  // StepRows::LandLayers for such a step. Counts nothing.
  [[nodiscard]] bool LandLayers(const kernels::IdsView& ids, std::int32_t rows, std::uint32_t row,
                                std::uint8_t* destination, std::span<std::uint8_t> written) const;
  // The step has ended: clears which rows were counted.
  void Reset();

 private:
  // Counts the faults of the rows in faulty_.
  void CountFaults(const kernels::IdsView& ids, std::int32_t batch_rows);

  const kernels::RowShape shape_;
  const std::shared_ptr<LayerCounters> counters_;
  std::vector<std::uint8_t> counted_;  // [max_rows]: 1 if the row's faults are counted
  bool any_counted_ = false;
  std::vector<std::ptrdiff_t> faulty_;  // faulty rows of this Land call; capacity is reserved
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_ROW_LANDER_H_
