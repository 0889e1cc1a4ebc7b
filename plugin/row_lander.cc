#include "plugin/row_lander.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "kernels/pack_rows.h"
#include "plugin/ids_kind.h"

namespace waymark {

RowLander::RowLander(const RoutingShape& shape, std::int32_t max_rows,
                     std::shared_ptr<LayerCounters> counters)
    : shape_(ToRowShape(shape)),
      counters_(std::move(counters)),
      counted_(static_cast<std::size_t>(max_rows)) {}

void RowLander::Land(const kernels::IdsView& ids, std::int32_t rows, std::int32_t batch_rows,
                     std::uint32_t first, std::span<std::uint8_t* const> destinations,
                     std::span<Reason> verdicts) {
  constexpr std::size_t kChunk = 128;
  std::array<kernels::RowVerdict, kChunk> judged;
  const std::size_t there = static_cast<std::size_t>(std::clamp<std::int64_t>(
      std::int64_t{rows} - first, 0, static_cast<std::int64_t>(destinations.size())));
  for (std::size_t begin = 0; begin < there; begin += kChunk) {
    const auto wanted = destinations.subspan(begin, std::min(kChunk, there - begin));
    const std::size_t faulty = kernels::PackRows(
        shape_, ids.From(static_cast<std::ptrdiff_t>(first + begin)), wanted, judged);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] != nullptr) verdicts[begin + i] = ToReason(judged[i]);
    }
    if (faulty == 0 || counters_ == nullptr) [[likely]]
      continue;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == nullptr || judged[i] == kernels::RowVerdict::kOk) continue;
      CountFaults(ids, static_cast<std::uint32_t>(first + begin + i), batch_rows);
    }
  }
  for (std::size_t i = there; i < destinations.size(); ++i) {
    if (destinations[i] != nullptr) verdicts[i] = Reason::kNotCaptured;
  }
}

void RowLander::CountFaults(const kernels::IdsView& ids, std::uint32_t row,
                            std::int32_t batch_rows) {
  if (counted_[row] != 0) return;
  counted_[row] = 1;
  any_counted_ = true;
  for (std::int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    switch (kernels::CheckLayer(shape_, ids, static_cast<std::ptrdiff_t>(row), layer)) {
      case kernels::RowVerdict::kOk:
        break;
      case kernels::RowVerdict::kNotWritten:
        counters_->AddSilent(layer, batch_rows);
        break;
      case kernels::RowVerdict::kInvalidId:
        counters_->AddInvalid(layer);
        break;
    }
  }
}

void RowLander::Reset() {
  if (!any_counted_) return;
  std::fill(counted_.begin(), counted_.end(), 0);
  any_counted_ = false;
}

}  // namespace waymark
