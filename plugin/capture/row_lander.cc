#include "plugin/capture/row_lander.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "blockstore/step_path.h"
#include "kernels/pack_rows.h"
#include "plugin/capture/ids_kind.h"

namespace waymark {
namespace {

constexpr std::size_t kChunk = 128;  // rows packed and judged at a time

}  // namespace

bool FindWrittenLayers(const RoutingShape& shape, const std::uint8_t* row,
                       std::span<std::uint8_t> written) {
  const auto k = static_cast<std::size_t>(shape.top_k);
  const std::size_t bytes = k * shape.id_bytes();
  const kernels::RowShape one_layer = {1, shape.top_k, shape.num_experts};
  const auto kind = shape.id_bytes() == 1 ? kernels::IdKind::kUint8 : kernels::IdKind::kUint16;
  for (std::size_t layer = 0; layer < written.size(); ++layer) {
    const kernels::IdsView ids{row + layer * bytes, kind, 0, 0,
                               static_cast<std::ptrdiff_t>(shape.id_bytes())};
    const bool ok = kernels::CheckLayer(one_layer, ids, 0, 0) == kernels::RowVerdict::kOk;
    const std::uint8_t* const first = row + layer * bytes;
    const bool ambiguous =
        shape.num_experts == 256 && std::find(first, first + k, 0xff) != first + k;
    written[layer] = ok && !ambiguous ? 1 : 0;
  }
  return std::find(written.begin(), written.end(), 1) != written.end();
}

void PackedRows::Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
                      std::span<Reason> verdicts) {
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    if (destinations[i] == nullptr) continue;
    const Row row = Find(first + i);
    verdicts[i] = row.verdict;
    if (row.verdict == Reason::kNone) std::memcpy(destinations[i], row.bytes, shape_.row_bytes());
  }
}

bool PackedRows::LandLayers(std::uint32_t row, std::uint8_t* destination,
                            std::span<std::uint8_t> written) {
  std::fill(written.begin(), written.end(), std::uint8_t{0});
  const Row from = Find(row);
  if (from.bytes == nullptr || from.verdict == Reason::kInvalidId) return false;
  std::memcpy(destination, from.bytes, shape_.row_bytes());
  if (from.verdict != Reason::kNone) return FindWrittenLayers(shape_, destination, written);
  std::fill(written.begin(), written.end(), std::uint8_t{1});
  return true;
}

HostRows::HostRows(const RoutingShape& shape, std::int32_t max_rows,
                   std::shared_ptr<LayerCounters> counters)
    : shape_(ToRowShape(shape)),
      counters_(std::move(counters)),
      counted_(static_cast<std::size_t>(max_rows)) {
  faulty_.reserve(kChunk);
}

void HostRows::Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
                    std::span<Reason> verdicts) {
  std::array<kernels::RowVerdict, kChunk> judged;
  std::size_t there = static_cast<std::size_t>(std::clamp<std::int64_t>(
      std::int64_t{rows_} - first, 0, static_cast<std::int64_t>(destinations.size())));
  for (std::size_t begin = 0; begin < there; begin += kChunk) {
    const auto wanted = destinations.subspan(begin, std::min(kChunk, there - begin));
    const std::size_t faulty = kernels::PackRows(
        shape_, ids_.From(static_cast<std::ptrdiff_t>(first + begin)), wanted, judged);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] != nullptr) verdicts[begin + i] = ToReason(judged[i]);
    }
    if (faulty == 0 || counters_ == nullptr) [[likely]]
      continue;
    faulty_.clear();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const std::size_t row = first + begin + i;
      if (wanted[i] == nullptr || judged[i] == kernels::RowVerdict::kOk || counted_[row] != 0) {
        continue;
      }
      counted_[row] = 1;
      faulty_.push_back(static_cast<std::ptrdiff_t>(row));
    }
    CountFaults();
  }
  if (watched_.valid() && SampledSum() != sum_) [[unlikely]] {
    if (counters_ != nullptr && rows_ != 0) counters_->AddRewritten(watched_);
    rows_ = 0;
    there = 0;
  }
  for (std::size_t i = there; i < destinations.size(); ++i) {
    if (destinations[i] != nullptr) verdicts[i] = Reason::kNotCaptured;
  }
}

bool HostRows::LandLayers(std::uint32_t row, std::uint8_t* destination,
                          std::span<std::uint8_t> written) {
  std::fill(written.begin(), written.end(), std::uint8_t{0});
  if (row >= static_cast<std::uint32_t>(rows_)) return false;
  const kernels::RowShape one_layer = {1, shape_.top_k, shape_.num_experts};
  const std::size_t bytes = one_layer.row_bytes();
  kernels::IdsView from = ids_.From(static_cast<std::ptrdiff_t>(row));
  bool any = false;
  for (std::uint8_t& of_layer : written) {
    kernels::RowVerdict verdict = kernels::RowVerdict::kOk;
    (void)kernels::PackRows(one_layer, from, {&destination, 1}, {&verdict, 1});
    if (verdict == kernels::RowVerdict::kInvalidId) return false;
    of_layer = verdict == kernels::RowVerdict::kOk ? 1 : 0;
    any |= of_layer != 0;
    destination += bytes;
    from.data = static_cast<const std::uint8_t*>(from.data) + from.layer_stride;
  }
  return any;
}

WAYMARK_STEP_PATH std::uint64_t HostRows::SampledSum() const {
  std::uint64_t sum = 0;
  for (std::int32_t i = 0; i < 8 && rows_ > 0; ++i) {
    const std::int64_t id = kernels::IdAt(ids_, std::ptrdiff_t{rows_ - 1} * i / 7,
                                          shape_.num_layers * i / 8, i < shape_.top_k ? i : 0);
    sum = sum * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(id);
  }
  return sum;
}

void HostRows::CountFaults() {
  if (faulty_.empty()) return;
  any_counted_ = true;
  for (std::int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    std::uint64_t silent = 0;
    std::uint64_t invalid = 0;
    std::ptrdiff_t first_invalid = 0;
    for (const std::ptrdiff_t row : faulty_) {
      const kernels::RowVerdict verdict = kernels::CheckLayer(shape_, ids_, row, layer);
      silent += verdict == kernels::RowVerdict::kNotWritten ? 1 : 0;
      if (verdict == kernels::RowVerdict::kInvalidId && invalid++ == 0) first_invalid = row;
    }
    if (silent != 0) counters_->AddSilent(layer, batch_rows_, silent);
    if (invalid == 0) continue;
    std::array<std::int64_t, 64> seen;  // the most columns of a shape
    const auto ids = std::span(seen).first(static_cast<std::size_t>(shape_.top_k));
    for (std::int32_t k = 0; k < shape_.top_k; ++k)
      ids[static_cast<std::size_t>(k)] = kernels::IdAt(ids_, first_invalid, layer, k);
    counters_->AddInvalid(layer, invalid, ids);
  }
}

void HostRows::Reset() {
  if (!any_counted_) return;
  std::fill(counted_.begin(), counted_.end(), 0);
  any_counted_ = false;
}

}  // namespace waymark
