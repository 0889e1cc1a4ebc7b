#include "plugin/capture/ids_row_source.h"

#include <utility>

#include "kernels/ids_view.h"
#include "plugin/capture/ids_kind.h"
#include "plugin/capture/row_lander.h"

namespace waymark {

IdsRowSource::IdsRowSource(const RoutingShape& shape, std::int32_t max_rows,
                           std::shared_ptr<LayerCounters> counters)
    : lander_(std::make_unique<RowLander>(shape, max_rows, std::move(counters))) {}

IdsRowSource::~IdsRowSource() = default;

void IdsRowSource::Set(const StepIds& ids, DoneCallback done) {
  ids_ = ids;
  done_ = done;
}

void IdsRowSource::Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
                        std::span<Reason> verdicts) {
  const kernels::IdsView view{ids_.data, ToKind(ids_.type), ids_.row_stride, ids_.layer_stride,
                              ids_.k_stride};
  lander_->Land(view, ids_.rows, ids_.rows, first, destinations, verdicts);
}

void IdsRowSource::Done() {
  lander_->Reset();
  // The source may be set again from inside the callback's thread as soon as it has been told.
  const DoneCallback done = done_;
  ids_ = {};
  done_ = {};
  done();
}

}  // namespace waymark
