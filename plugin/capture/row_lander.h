// How the StepRows of this folder land: HostRows are packed, their ids checked, and faulty rows
// counted once; PackedRows are packed already. Included by this folder only.
#ifndef WAYMARK_PLUGIN_CAPTURE_ROW_LANDER_H_
#define WAYMARK_PLUGIN_CAPTURE_ROW_LANDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "blockstore/ids.h"
#include "blockstore/row_info.h"
#include "blockstore/shape.h"
#include "blockstore/store/step_rows.h"
#include "kernels/ids_view.h"
#include "plugin/capture/layer_counters.h"

namespace waymark {

// The layers of a packed row with a silent one that were written: those with K different ids below
// E, in `written`, [num_layers]. Returns whether there is one. -1 is all bits set; where that is an
// expert, too (E = 256), a layer that has it counts as not written.
[[nodiscard]] bool FindWrittenLayers(const RoutingShape& shape, const std::uint8_t* row,
                                     std::span<std::uint8_t> written);

// The StepRows of a step whose rows lie packed in memory, with their verdicts.
class PackedRows : public StepRows {
 public:
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) final;
  bool LandLayers(std::uint32_t row, std::uint8_t* destination,
                  std::span<std::uint8_t> written) final;

 protected:
  // `shape` outlives this object.
  explicit PackedRows(const RoutingShape& shape) : shape_(shape) {}
  // The verdict of a row, and its bytes; null: there are none, and it is missing.
  struct Row {
    Reason verdict = Reason::kNotCaptured;
    const std::uint8_t* bytes = nullptr;
  };
  [[nodiscard]] virtual Row Find(std::size_t row) const = 0;

  const RoutingShape& shape_;
};

// The StepRows of a step whose ids lie in host memory. The store may ask for a row several times
// (for two pages, or to compare it); the row's faults are counted the first time.
class HostRows : public StepRows {
 public:
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) final;
  // Counts nothing.
  bool LandLayers(std::uint32_t row, std::uint8_t* destination,
                  std::span<std::uint8_t> written) final;

 protected:
  // Allocates for steps of up to `max_rows` rows. `counters` may be null: nothing is counted.
  HostRows(const RoutingShape& shape, std::int32_t max_rows,
           std::shared_ptr<LayerCounters> counters);
  // Where the ids of the next steps lie.
  void SetIds(const kernels::IdsView& ids) { ids_ = ids; }
  // A step begins whose rows i < `rows` are the rows of the ids; the verdict of its other rows is
  // kNotCaptured. `batch_rows`: the rows of the forward, padding included: the batch size at which
  // silent layers are recorded.
  void SetRows(std::int32_t rows, std::int32_t batch_rows) {
    rows_ = rows;
    batch_rows_ = batch_rows;
  }
  [[nodiscard]] std::int32_t batch_rows() const { return batch_rows_; }
  // The ids of `step` are in memory of a caller, which must not change: keeps a sum of some of
  // them. A Land that finds another one behind its copy, and those after it, have no rows.
  void Watch(StepId step) {
    watched_ = step;
    sum_ = SampledSum();
  }
  // The step has ended: clears which rows were counted.
  void Reset();

  const kernels::RowShape shape_;

 private:
  // Counts the faults of the rows in faulty_.
  void CountFaults();
  // Of eight ids, from the first row to the last one, and from the first layer on.
  [[nodiscard]] std::uint64_t SampledSum() const;

  kernels::IdsView ids_;
  std::int32_t rows_ = 0;
  std::int32_t batch_rows_ = 0;
  StepId watched_;  // none: the memory is the library's
  std::uint64_t sum_ = 0;
  const std::shared_ptr<LayerCounters> counters_;
  std::vector<std::uint8_t> counted_;  // [max_rows]: 1 if the row's faults are counted
  bool any_counted_ = false;
  std::vector<std::ptrdiff_t> faulty_;  // faulty rows of this Land call; capacity is reserved
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_ROW_LANDER_H_
