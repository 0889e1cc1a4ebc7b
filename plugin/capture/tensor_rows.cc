#include "plugin/capture/tensor_rows.h"

#include <utility>

#include "kernels/ids_view.h"
#include "plugin/capture/ids_kind.h"
#include "plugin/capture/row_lander.h"

namespace waymark {

TensorRows::TensorRows(const RoutingShape& shape, std::int32_t max_rows,
                       std::shared_ptr<LayerCounters> counters)
    : lander_(std::make_unique<RowLander>(shape, max_rows, std::move(counters))) {}

TensorRows::~TensorRows() = default;

void TensorRows::Set(const StepIds& ids, DoneCallback done) {
  ids_ = ids;
  done_ = done;
}

void TensorRows::Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
                      std::span<Reason> verdicts) {
  lander_->Land(View(), ids_.rows, ids_.rows, first, destinations, verdicts);
}

bool TensorRows::LandLayers(std::uint32_t row, std::uint8_t* destination,
                            std::span<std::uint8_t> written) {
  return lander_->LandLayers(View(), ids_.rows, row, destination, written);
}

kernels::IdsView TensorRows::View() const {
  return {ids_.data, ToKind(ids_.type), ids_.row_stride, ids_.layer_stride, ids_.k_stride};
}

void TensorRows::Done() {
  lander_->Reset();
  // Copied first: as soon as the callback runs, another thread may call Set.
  const DoneCallback done = done_;
  ids_ = {};
  done_ = {};
  done();
}

}  // namespace waymark
