// RowLander: what every RowSource of this folder does to land rows: pack, judge, count each row
// once. Included by this folder only.
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

// One a source, used by one thread at a time. A store may land a row several times (into two pages,
// or to compare it); its faults are counted the first time.
class RowLander {
 public:
  // `counters` may be null: nothing is counted.
  RowLander(const RoutingShape& shape, std::int32_t max_rows,
            std::shared_ptr<LayerCounters> counters);

  // RowSource::Land for a step whose row i is row i of `ids`, for i < rows; others are not
  // captured. `batch_rows`: rows of the forward, under which silent layers are noted.
  void Land(const kernels::IdsView& ids, std::int32_t rows, std::int32_t batch_rows,
            std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts);
  // The step is over: its rows may be counted anew.
  void Reset();

 private:
  // Of the rows in faulty_.
  void CountFaults(const kernels::IdsView& ids, std::int32_t batch_rows);

  const kernels::RowShape shape_;
  const std::shared_ptr<LayerCounters> counters_;
  std::vector<std::uint8_t> counted_;  // rows whose faults are counted
  bool any_counted_ = false;
  std::vector<std::ptrdiff_t> faulty_;  // of a chunk, to be counted now; never allocates
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_ROW_LANDER_H_
