// TensorRows: the rows of a step, read from a tensor that the engine owns. The only copy is the
// one into the page.
#ifndef WAYMARK_PLUGIN_CAPTURE_TENSOR_ROWS_H_
#define WAYMARK_PLUGIN_CAPTURE_TENSOR_ROWS_H_

#include <cstdint>
#include <memory>
#include <span>

#include "blockstore/shape.h"
#include "blockstore/store/step_rows.h"
#include "kernels/ids_view.h"
#include "plugin/capture/ids_tensor.h"
#include "plugin/capture/layer_counters.h"

namespace waymark {

class RowLander;  // internal

// Called when the tensor of a step is no longer read: on the landing thread, or on the engine's
// thread if the step was refused. Must not throw, and must not call the store or the session.
struct DoneCallback {
  void (*function)(void* context) = nullptr;  // null: nothing is called
  void* context = nullptr;                    // passed to `function`

  void operator()() const {
    if (function != nullptr) function(context);
  }
};

// Packs rows from one StepIds, with the same checks as rows from a capture buffer. Reusable: Set,
// submit, Done, Set, ... Set is called on the engine's thread, before the rows are submitted; the
// other calls come from the landing thread.
class TensorRows : public StepRows {
 public:
  // Allocates for steps of up to `max_rows` rows. `counters` may be null: faults are not counted.
  TensorRows(const RoutingShape& shape, std::int32_t max_rows,
             std::shared_ptr<LayerCounters> counters);
  ~TensorRows() override;
  TensorRows(const TensorRows&) = delete;
  TensorRows& operator=(const TensorRows&) = delete;

  // Sets the tensor of the next step. It stays the caller's and must not change until `done` is
  // called, which happens once. Does not allocate.
  // REQUIRES: ids.layers == L, ids.columns >= K, 0 <= ids.rows <= max_rows.
  void Set(const StepIds& ids, DoneCallback done);

  // As StepRows::Land: packs row first + i of the tensor into destinations[i], unless that is
  // null. The verdict of rows at or beyond ids.rows is kNotCaptured.
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override;
  bool LandLayers(std::uint32_t row, std::uint8_t* destination,
                  std::span<std::uint8_t> written) override;
  // Drops the tensor, then calls `done`; from then on the engine may free or reuse the tensor.
  void Done() override;

 private:
  [[nodiscard]] kernels::IdsView View() const;

  const std::unique_ptr<RowLander> lander_;
  StepIds ids_;
  DoneCallback done_;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_TENSOR_ROWS_H_
