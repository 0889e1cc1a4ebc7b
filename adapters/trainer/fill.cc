#include "adapters/trainer/fill.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "adapters/trainer/spread.h"
#include "blockstore/distinct_ids.h"
#include "blockstore/invalid.h"
#include "blockstore/write_layers.h"
#include "plugin/capture/ids_kind.h"

namespace waymark {
namespace {

// Rows of the tensors that are checked and written together: their stored ids are read from memory
// once, and are in the L2 cache for all layers.
constexpr std::size_t kTileRows = 512;

// InvalidArgument unless an id of every expert fits the type, and the fill is none of them.
absl::Status CheckHolds(IdType id_type, std::int32_t num_experts, RouteFill fill) {
  const std::int32_t most = ExpertsHeld(id_type);
  if (num_experts > most) return Invalid("id_type: must hold ids up to ", num_experts - 1);
  if (fill == RouteFill::kMinusOne && id_type == IdType::kUint8 && num_experts == most)
    return Invalid("fill: must not be minus_one in uint8, where it is 255, an expert of ", most);
  return absl::OkStatus();
}

// Tensors [begin, end) whose layers are adjacent in every source.
struct LayerRun {
  std::size_t begin;
  std::size_t end;
  RoutingShape shape;  // of these layers
};

// One call. Everything that can fail comes first; then the rows are found where they are, checked
// and written.
class Filling {
 public:
  Filling(const RowPlan& plan, std::span<const RowsView> sources,
          std::span<const std::int32_t> layers, const RouterTensors& out)
      : plan_(plan), sources_(sources), layers_(layers), out_(out) {}

  absl::Status Check(bool partial);
  void Write();
  [[nodiscard]] FillReport Report() const;

 private:
  absl::Status CheckPlan() const;
  absl::Status CheckSource(std::size_t i, bool partial);
  void Find(const RowSegment& segment);
  void CheckIds(std::size_t begin, std::size_t count);
  void FillTile(std::size_t begin, std::size_t count);
  void PackTile(std::size_t begin, std::size_t count) const;
  void WriteTile(std::size_t begin, std::size_t count) const;

  const RoutingShape& shape() const { return *sources_.front().shape; }

  const RowPlan& plan_;
  const std::span<const RowsView> sources_;
  const std::span<const std::int32_t> layers_;
  const RouterTensors& out_;
  std::vector<std::vector<std::int32_t>> columns_;  // [sequences][layers]: the source's layers
  std::vector<LayerRun> runs_;
  std::size_t layer_bytes_ = 0;  // of K stored ids
  std::optional<DistinctIds> distinct_;
  std::optional<SpreadIds> spread_;
  std::size_t filled_ = 0;  // rows without a route so far
  // Of each row of the plan: where its ids of a run are, [runs][rows], null in all runs until it
  // gets the fill; then why.
  std::vector<std::vector<const std::uint8_t*>> rows_;
  std::vector<Reason> reasons_;
};

absl::Status Filling::CheckSource(std::size_t i, bool partial) {
  const RowsView& source = sources_[i];
  if (source.shape == nullptr) return Invalid("sources[", i, "]: must have rows; it is empty");
  const RoutingShape& shape = *source.shape;
  if (absl::Status status = shape.Validate(); !status.ok()) {
    return Invalid("sources[", i, "]: ", status.message());
  }
  const RoutingShape& all = this->shape();
  if (shape.top_k != all.top_k || shape.num_experts != all.num_experts) {
    return Invalid("sources[", i, "]: must have K = ", all.top_k, " and E = ", all.num_experts,
                   " as sources[0], got ", shape.top_k, " and ", shape.num_experts);
  }
  const std::int64_t tokens = plan_.lengths[i];
  const std::int64_t least = std::max<std::int64_t>(tokens - 1, 0);
  const std::int64_t last = source.first + source.count;
  if (last > tokens || (!partial && (source.first != 0 || last < least))) {
    const bool cut = source.first != 0 && source.count >= least && source.count <= tokens;
    return Invalid("sources[", i, "]: must have rows [0, ", least, ") or [0, ", tokens, ") of ",
                   tokens, " tokens, got [", source.first, ", ", last, ")",
                   cut ? ": those of a prompt that was cut in front, whose routing depends on the "
                         "tokens that are gone"
                       : "");
  }
  std::vector<std::int32_t> columns;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    std::int32_t column = 0;
    while (column < shape.num_layers && shape.layer_id(column) != layers_[l])
      ++column;
    if (column == shape.num_layers) {
      return Invalid("layers[", l, "]: must be a layer of sources[", i, "], which has ",
                     shape.num_layers, " from ", shape.layer_id(0), " to ",
                     shape.layer_id(shape.num_layers - 1), "; got ", layers_[l]);
    }
    columns.push_back(column);
  }
  columns_.push_back(std::move(columns));
  return absl::OkStatus();
}

absl::Status Filling::CheckPlan() const {
  const auto sequences = static_cast<std::int64_t>(plan_.lengths.size());
  for (const RowSegment& of : plan_.segments) {
    const bool tokens =
        of.sequence >= 0 && of.sequence < sequences && of.position >= 0 && of.count >= 1 &&
        of.count <= plan_.lengths[static_cast<std::size_t>(of.sequence)] - of.position;
    if (!tokens || of.row < 0 || of.row_stride < 1 || of.row >= plan_.rows ||
        of.count - 1 > (plan_.rows - 1 - of.row) / of.row_stride) {
      return Invalid("plan: must have segments of its sequences and rows; one is of sequence ",
                     of.sequence, ", row ", of.row);
    }
  }
  return absl::OkStatus();
}

absl::Status Filling::Check(bool partial) {
  if (absl::Status status = CheckPlan(); !status.ok()) return status;
  if (sources_.size() != plan_.lengths.size()) {
    return Invalid("sources: must be one for each of ", plan_.lengths.size(), " sequences, got ",
                   sources_.size());
  }
  if (sources_.empty()) return Invalid("sources: must be at least one, got 0");
  if (layers_.empty()) return Invalid("layers: must be at least one, got 0");
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    if (std::find(layers_.begin(), layers_.begin() + static_cast<std::ptrdiff_t>(l), layers_[l]) !=
        layers_.begin() + static_cast<std::ptrdiff_t>(l)) {
      return Invalid("layers[", l, "]: must be distinct, got ", layers_[l], " twice");
    }
  }
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (absl::Status status = CheckSource(i, partial); !status.ok()) return status;
  }
  const auto rows = static_cast<std::size_t>(plan_.rows);
  const auto top_k = static_cast<std::size_t>(shape().top_k);
  const std::size_t id_bytes = IdBytes(out_.id_type);
  if (out_.ids.size() != layers_.size() * rows * top_k * id_bytes) {
    return Invalid("ids: must be ", layers_.size() * rows * top_k * id_bytes,
                   " bytes, [layers][rows][K] = [", layers_.size(), "][", rows, "][", top_k,
                   "], got ", out_.ids.size());
  }
  if (!out_.mask.empty() && out_.mask.size() != rows) {
    return Invalid("mask: must be empty or ", rows, " bytes, one a row, got ", out_.mask.size());
  }
  if (out_.packed && out_.id_type != StoredIdType(shape().num_experts)) {
    return Invalid("id_type: of packed rows must be that in which ids of ", shape().num_experts,
                   " experts are stored, got ", static_cast<int>(out_.id_type));
  }
  if (absl::Status status = CheckHolds(out_.id_type, shape().num_experts, out_.fill); !status.ok())
    return status;
  if (out_.packed && out_.fill != RouteFill::kSpread)
    return Invalid("fill: of packed rows must be spread, got minus_one");
  layer_bytes_ = top_k * shape().id_bytes();
  spread_.emplace(shape(), layers_.size());
  distinct_.emplace(shape().top_k, shape().num_experts);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const bool adjacent =
        l != 0 && std::all_of(columns_.begin(), columns_.end(),
                              [l](const auto& of) { return of[l] == of[l - 1] + 1; });
    if (!adjacent) runs_.push_back({l, l, shape()});
    runs_.back().end = l + 1;
  }
  for (LayerRun& run : runs_) {
    run.shape.num_layers = static_cast<std::int32_t>(run.end - run.begin);
    run.shape.layer_ids.clear();
  }
  return absl::OkStatus();
}

// Finds the rows of a segment; looks at no id.
void Filling::Find(const RowSegment& segment) {
  const auto sequence = static_cast<std::size_t>(segment.sequence);
  const RowsView& source = sources_[sequence];
  const std::int64_t begin = std::max(segment.position, source.first);
  const std::int64_t end = std::min(segment.position + segment.count, source.first + source.count);
  for (std::int64_t position = begin; position < end; ++position) {
    const auto row =
        static_cast<std::size_t>(segment.row + (position - segment.position) * segment.row_stride);
    const std::int64_t i = position - source.first;
    const std::uint8_t reason = source.reasons[i * source.reason_stride];
    reasons_[row] = reason < kNumReasons ? static_cast<Reason>(reason) : Reason::kInvalidId;
    if (reasons_[row] != Reason::kNone) continue;
    for (std::size_t run = 0; run < runs_.size(); ++run) {
      const auto column = static_cast<std::size_t>(columns_[sequence][runs_[run].begin]);
      rows_[run][row] = source.ids + i * source.row_stride + column * layer_bytes_;
    }
  }
}

// Rows of a tile with ids that no router chooses are missing.
void Filling::CheckIds(std::size_t begin, std::size_t count) {
  std::array<std::uint8_t, kTileRows> good;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    const std::span<const std::uint8_t* const> rows = std::span(rows_[run]).subspan(begin, count);
    if (distinct_->CheckRows(rows, runs_[run].shape.num_layers, good)) continue;
    for (std::size_t i = 0; i < count; ++i) {
      if (good[i] != 0) continue;
      reasons_[begin + i] = Reason::kInvalidId;
      for (std::vector<const std::uint8_t*>& of_run : rows_)
        of_run[begin + i] = nullptr;
    }
  }
}

// Rows without a route are where their ids are, as any other.
void Filling::FillTile(std::size_t begin, std::size_t count) {
  if (out_.fill != RouteFill::kSpread) return;
  for (std::size_t row = begin; row < begin + count; ++row) {
    if (reasons_[row] == Reason::kNone) continue;
    for (std::size_t run = 0; run < runs_.size(); ++run)
      rows_[run][row] = spread_->Row(filled_, runs_[run].begin);
    ++filled_;
  }
}

// Rows as they are stored.
void Filling::PackTile(std::size_t begin, std::size_t count) const {
  std::uint8_t* to = out_.ids.data() + begin * layers_.size() * layer_bytes_;
  for (std::size_t row = begin; row < begin + count; ++row) {
    for (std::size_t run = 0; run < runs_.size(); ++run) {
      const std::size_t bytes = (runs_[run].end - runs_[run].begin) * layer_bytes_;
      std::memcpy(to, rows_[run][row], bytes);
      to += bytes;
    }
  }
}

void Filling::WriteTile(std::size_t begin, std::size_t count) const {
  if (out_.packed) return PackTile(begin, count);
  const auto rows = static_cast<std::size_t>(plan_.rows);
  const std::size_t row_bytes = static_cast<std::size_t>(shape().top_k) * IdBytes(out_.id_type);
  LayerTensors tensors = {out_.id_type, Fill::kMinusOne, nullptr, rows * row_bytes,
                          out_.ids.size() >= kStreamedBytes};
  const std::size_t ahead = std::min(kTileRows, rows - begin - count);
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    tensors.ids = out_.ids.data() + (runs_[run].begin * rows + begin) * row_bytes;
    const std::span<const std::uint8_t* const> of_run(rows_[run]);
    WriteLayers(runs_[run].shape, {of_run.subspan(begin, count), layer_bytes_}, tensors,
                of_run.subspan(begin + count, ahead));
  }
}

void Filling::Write() {
  const auto rows = static_cast<std::size_t>(plan_.rows);
  rows_.assign(runs_.size(), std::vector<const std::uint8_t*>(rows, nullptr));
  reasons_.assign(rows, Reason::kNeverWritten);
  for (const RowSegment& segment : plan_.segments)
    Find(segment);
  for (std::size_t begin = 0; begin < rows; begin += kTileRows) {
    const std::size_t count = std::min(kTileRows, rows - begin);
    CheckIds(begin, count);
    FillTile(begin, count);
    WriteTile(begin, count);
  }
  for (std::size_t row = 0; row < out_.mask.size(); ++row)
    out_.mask[row] = reasons_[row] == Reason::kNone ? 1 : 0;
}

FillReport Filling::Report() const {
  FillReport report;
  report.padding = plan_.rows;
  for (const RowSegment& segment : plan_.segments) {
    report.padding -= segment.count;
    report.replayed += segment.count;
    for (std::int64_t i = 0; i < segment.count; ++i) {
      const auto row = static_cast<std::size_t>(segment.row + i * segment.row_stride);
      const TokenPlace place{segment.sequence, segment.position + i};
      if (reasons_[row] == Reason::kNone) continue;
      --report.replayed;
      const Reason reason = reasons_[row];
      if ((reason == Reason::kNeverWritten || reason == Reason::kNotTold) &&
          place.position == plan_.lengths[static_cast<std::size_t>(place.sequence)] - 1) {
        ++report.no_row;
      } else {
        ++report.missing[static_cast<std::size_t>(reason)];
        if (report.first_missing.sequence < 0) report.first_missing = place;
      }
    }
  }
  return report;
}

}  // namespace

RowsView ViewOf(const Rows& rows) {
  RowsView view;
  view.shape = &rows.shape;
  view.first = rows.first;
  view.count = rows.size();
  view.ids = rows.ids.data();
  view.row_stride = static_cast<std::ptrdiff_t>(rows.shape.row_bytes());
  if (!rows.infos.empty()) {
    view.reasons = reinterpret_cast<const std::uint8_t*>(&rows.infos.front().reason);
  }
  view.reason_stride = sizeof(RowInfo);
  return view;
}

absl::StatusOr<FillReport> FillRouterTensors(const RowPlan& plan, std::span<const RowsView> sources,
                                             std::span<const std::int32_t> layers,
                                             const RouterTensors& out, const FillOptions& options) {
  Filling filling(plan, sources, layers, out);
  if (absl::Status status = filling.Check(options.partial); !status.ok()) return status;
  filling.Write();
  return filling.Report();
}

absl::StatusOr<kernels::CudaGather> GatherOf(const RoutingShape& shape, std::int64_t rows,
                                             const void* packed, const void* mask, void* ids,
                                             IdType id_type, RouteFill fill) {
  if (absl::Status status = shape.Validate(); !status.ok()) return status;
  constexpr std::int64_t kMostRows = 0x7fffffff;
  if (rows < 0 || rows > kMostRows) {
    return Invalid("rows: must be in [0, ", kMostRows, "], got ", rows);
  }
  if (absl::Status status = CheckHolds(id_type, shape.num_experts, fill); !status.ok()) {
    return status;
  }
  kernels::CudaGather gather;
  gather.shape = ToRowShape(shape);
  gather.packed = static_cast<const std::uint8_t*>(packed);
  if (fill == RouteFill::kMinusOne) gather.valid = static_cast<const std::uint8_t*>(mask);
  gather.rows = rows;
  gather.out = ids;
  gather.kind = ToKind(id_type);
  return gather;
}

}  // namespace waymark
