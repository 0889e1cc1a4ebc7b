#include "adapters/trainer/fill.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "adapters/trainer/distinct_ids.h"
#include "adapters/trainer/invalid.h"

namespace waymark {
namespace {

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

// What is known of a source before its rows are.
struct SourceInfo {
  const RoutingShape* shape = nullptr;
  std::int64_t first = 0;
  std::int64_t last = 0;
};

SourceInfo InfoOf(const RowSource& source) {
  return std::visit(
      Overloaded{
          [](const RowsView& view) {
            return SourceInfo{view.shape, view.first, view.first + view.count};
          },
          [](const Snapshot* snapshot) {
            return SourceInfo{snapshot->shape(), snapshot->first(), snapshot->last()};
          },
          [](const wire::Document* document) {
            return SourceInfo{&document->shape().rows, document->first(), document->last()};
          },
          [](const RowsByHandle& by_handle) {
            return SourceInfo{&by_handle.handle->shape.rows, 0, by_handle.handle->rows};
          },
      },
      source);
}

// Tensors [begin, end) whose layers are adjacent in every source.
struct LayerRun {
  std::size_t begin;
  std::size_t end;
};

// One call: what is checked once, then where every row is.
class Filling {
 public:
  Filling(const RowPlan& plan, std::span<const RowSource> sources,
          std::span<const std::int32_t> layers, const RouterTensors& out)
      : plan_(plan), sources_(sources), layers_(layers), out_(out) {}

  absl::Status Check(bool partial);
  absl::Status FindRows();
  void Write();

  [[nodiscard]] const FillReport& report() const { return report_; }

 private:
  absl::Status CheckSource(std::size_t i, bool partial);
  absl::Status FindRowsOf(std::size_t i);
  absl::Status FindSegment(std::size_t i, const RowSegment& segment);
  template <class RunRow, class ReasonOf>
  void Place(const RowSegment& segment, bool check, RunRow&& run_row, ReasonOf&& reason_of);
  void PlaceFound(std::size_t i, const RowSegment& segment, const RowsInPlace& found);
  void Miss(const RowSegment& segment, std::int64_t position, Reason reason);
  void WriteRuns();

  const RoutingShape& shape() const { return *infos_.front().shape; }
  const std::uint8_t** pointers(std::size_t run) {
    return pointers_.data() + run * static_cast<std::size_t>(plan_.rows());
  }
  std::size_t column_bytes(std::size_t source, std::size_t run) const {
    return static_cast<std::size_t>(columns_[source][runs_[run].begin]) * layer_bytes_;
  }

  const RowPlan& plan_;
  const std::span<const RowSource> sources_;
  const std::span<const std::int32_t> layers_;
  const RouterTensors& out_;
  std::vector<SourceInfo> infos_;                   // [sequences]
  std::vector<std::vector<std::int32_t>> columns_;  // [sequences][layers]
  std::vector<LayerRun> runs_;
  std::size_t layer_bytes_ = 0;  // of K stored ids

  // A segment of a snapshot.
  struct Found {
    std::size_t source;
    RowSegment segment;
    RowsInPlace rows;
  };
  std::vector<Found> found_;
  std::vector<Rows> read_;                     // of documents and handles
  std::vector<const std::uint8_t*> pointers_;  // [runs][rows]; null: the fill
  FillReport report_;
};

absl::Status Filling::CheckSource(std::size_t i, bool partial) {
  const SourceInfo info = InfoOf(sources_[i]);
  if (info.shape == nullptr) return Invalid("sources[", i, "]: must have rows; it is empty");
  const RoutingShape& shape = *info.shape;
  if (absl::Status status = shape.Validate(); !status.ok()) {
    return Invalid("sources[", i, "]: ", status.message());
  }
  const RoutingShape& all = infos_.empty() ? shape : this->shape();
  if (shape.top_k != all.top_k || shape.num_experts != all.num_experts) {
    return Invalid("sources[", i, "]: must have K = ", all.top_k, " and E = ", all.num_experts,
                   " as sources[0], got ", shape.top_k, " and ", shape.num_experts);
  }
  const std::int64_t tokens = plan_.length(static_cast<std::int32_t>(i));
  const std::int64_t least = std::max<std::int64_t>(tokens - 1, 0);
  if (info.last > tokens || (!partial && (info.first != 0 || info.last < least))) {
    return Invalid("sources[", i, "]: must have rows [0, ", least, ") or [0, ", tokens, ") of ",
                   tokens, " tokens, got [", info.first, ", ", info.last, ")");
  }
  std::vector<std::int32_t> columns;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    std::int32_t column = 0;
    while (column < shape.num_layers && shape.layer_id(column) != layers_[l])
      ++column;
    if (column == shape.num_layers) {
      return Invalid("layers[", l, "]: must be a layer of sources[", i, "], got ", layers_[l]);
    }
    columns.push_back(column);
  }
  infos_.push_back(info);
  columns_.push_back(std::move(columns));
  return absl::OkStatus();
}

absl::Status Filling::Check(bool partial) {
  if (sources_.size() != static_cast<std::size_t>(plan_.sequences())) {
    return Invalid("sources: must be one for each of ", plan_.sequences(), " sequences, got ",
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
  const auto rows = static_cast<std::size_t>(plan_.rows());
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
  const std::int32_t most = out_.id_type == IdType::kUint8   ? 256
                            : out_.id_type == IdType::kInt16 ? 32768
                                                             : 65536;
  if (shape().num_experts > most) {
    return Invalid("id_type: must hold ids up to ", shape().num_experts - 1);
  }
  layer_bytes_ = top_k * shape().id_bytes();
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const bool adjacent =
        l != 0 && std::all_of(columns_.begin(), columns_.end(),
                              [l](const auto& of) { return of[l] == of[l - 1] + 1; });
    if (!adjacent) runs_.push_back({l, l});
    runs_.back().end = l + 1;
  }
  return absl::OkStatus();
}

void Filling::Miss(const RowSegment& segment, std::int64_t position, Reason reason) {
  const std::int64_t tokens = plan_.length(segment.sequence);
  if (position == tokens - 1 && reason == Reason::kNeverWritten) {
    ++report_.no_row;
    return;
  }
  ++report_.missing[static_cast<std::size_t>(reason)];
  const TokenPlace place{segment.sequence, position};
  TokenPlace& first = report_.first_missing;
  if (first.sequence < 0 || place.sequence < first.sequence ||
      (place.sequence == first.sequence && place.position < first.position)) {
    first = place;
  }
}

// Sets the pointers of the tokens of a segment. reason_of(i): why token i of it is missing; kNone:
// it is not, and run_row(run, i) is where the layers of a run are.
template <class RunRow, class ReasonOf>
void Filling::Place(const RowSegment& segment, bool check, RunRow&& run_row, ReasonOf&& reason_of) {
  DistinctIds distinct(shape().top_k, shape().num_experts);
  for (std::int64_t i = 0; i < segment.count; ++i) {
    Reason reason = reason_of(i);
    const auto row = static_cast<std::size_t>(segment.row + i * segment.row_stride);
    for (std::size_t run = 0; run < runs_.size() && reason == Reason::kNone; ++run) {
      const std::uint8_t* const at = run_row(run, i);
      const auto layers = static_cast<std::int32_t>(runs_[run].end - runs_[run].begin);
      if (check && distinct.FirstBad(at, layers) >= 0) reason = Reason::kInvalidId;
      pointers(run)[row] = at;
    }
    if (reason == Reason::kNone) {
      ++report_.replayed;
      continue;
    }
    for (std::size_t run = 0; run < runs_.size(); ++run)
      pointers(run)[row] = nullptr;
    Miss(segment, segment.position + i, reason);
  }
}

void Filling::PlaceFound(std::size_t i, const RowSegment& segment, const RowsInPlace& found) {
  Place(
      segment, false,
      [&](std::size_t run, std::int64_t at) {
        return found.rows()[static_cast<std::size_t>(at)] + column_bytes(i, run);
      },
      [&](std::int64_t at) { return found.infos()[static_cast<std::size_t>(at)].reason; });
}

// A segment whose tokens all have rows in the source.
absl::Status Filling::FindSegment(std::size_t i, const RowSegment& segment) {
  const std::int64_t begin = segment.position;
  const std::int64_t end = begin + segment.count;
  if (const auto* const view = std::get_if<RowsView>(&sources_[i])) {
    const std::int64_t from = begin - view->first;
    Place(
        segment, true,
        [&](std::size_t run, std::int64_t at) {
          return view->ids + (from + at) * view->row_stride + column_bytes(i, run);
        },
        [&](std::int64_t at) {
          const std::uint8_t reason = view->reasons[(from + at) * view->reason_stride];
          return reason < kNumReasons ? static_cast<Reason>(reason) : Reason::kInvalidId;
        });
    return absl::OkStatus();
  }
  if (const auto* const snapshot = std::get_if<const Snapshot*>(&sources_[i])) {
    absl::StatusOr<RowsInPlace> found = (*snapshot)->Find(begin, end);
    if (!found.ok()) return found.status();
    found_.push_back({i, segment, *std::move(found)});
    PlaceFound(i, segment, found_.back().rows);
    return absl::OkStatus();
  }
  // A row counts if it is valid in all runs: damage may be that of some layers only.
  const std::size_t first = read_.size();
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    const std::int32_t column = columns_[i][runs_[run].begin];
    const RowsAndLayers part = {
        begin, end, column, column + static_cast<std::int32_t>(runs_[run].end - runs_[run].begin)};
    absl::StatusOr<Rows> rows = std::visit(
        Overloaded{
            [&](const wire::Document* document) { return document->ReadRows(part); },
            [&](const RowsByHandle& by) {
              return by.fetcher->Fetch(*by.handle, part, by.deadline);
            },
            [](const auto&) -> absl::StatusOr<Rows> { return absl::InternalError("no reader"); },
        },
        sources_[i]);
    if (!rows.ok()) {
      return absl::Status(rows.status().code(),
                          absl::StrCat("sources[", i, "]: ", rows.status().message()));
    }
    read_.push_back(*std::move(rows));
  }
  const auto rows_of = [&](std::size_t run) -> const Rows& { return read_[first + run]; };
  Place(
      segment, true, [&](std::size_t run, std::int64_t at) { return rows_of(run).row(at).data(); },
      [&](std::int64_t at) {
        for (std::size_t run = 0; run < runs_.size(); ++run) {
          const Reason reason = rows_of(run).infos[static_cast<std::size_t>(at)].reason;
          if (reason != Reason::kNone) return reason;
        }
        return Reason::kNone;
      });
  return absl::OkStatus();
}

absl::Status Filling::FindRowsOf(std::size_t i) {
  for (const RowSegment& segment : plan_.segments(static_cast<std::int32_t>(i))) {
    // The part of the segment that the source has; around it rows were never written.
    const std::int64_t from =
        std::clamp(infos_[i].first - segment.position, std::int64_t{0}, segment.count);
    const std::int64_t to = std::clamp(infos_[i].last - segment.position, from, segment.count);
    for (std::int64_t at = 0; at < segment.count; ++at) {
      if (at == from) at = to;
      if (at < segment.count) Miss(segment, segment.position + at, Reason::kNeverWritten);
    }
    if (from == to) continue;
    const RowSegment part = {segment.sequence, segment.position + from, to - from,
                             segment.row + from * segment.row_stride, segment.row_stride};
    if (absl::Status status = FindSegment(i, part); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Filling::FindRows() {
  pointers_.assign(runs_.size() * static_cast<std::size_t>(plan_.rows()), nullptr);
  read_.reserve(plan_.segments().size() * runs_.size());
  found_.reserve(plan_.segments().size());
  std::int64_t tokens = 0;
  for (const RowSegment& segment : plan_.segments())
    tokens += segment.count;
  report_.padding = plan_.rows() - tokens;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (absl::Status status = FindRowsOf(i); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void Filling::WriteRuns() {
  const auto rows = static_cast<std::size_t>(plan_.rows());
  const std::size_t tensor_bytes =
      rows * static_cast<std::size_t>(shape().top_k) * IdBytes(out_.id_type);
  const ReadSpec spec{Layout::kLayersTokensK, out_.id_type, out_.fill};
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    const std::size_t layers = runs_[run].end - runs_[run].begin;
    RoutingShape of_run = shape();
    of_run.num_layers = static_cast<std::int32_t>(layers);
    of_run.layer_ids.clear();
    WriteRows(of_run, {pointers(run), rows}, spec,
              out_.ids.subspan(runs_[run].begin * tensor_bytes, layers * tensor_bytes));
  }
}

void Filling::Write() {
  WriteRuns();
  for (;;) {
    bool voided = false;
    for (Found& found : found_) {
      if (found.rows.Confirm()) continue;
      voided = true;
      // What it counted before does not hold any more.
      for (std::int64_t at = 0; at < found.segment.count; ++at) {
        const auto row =
            static_cast<std::size_t>(found.segment.row + at * found.segment.row_stride);
        if (pointers(0)[row] == nullptr ||
            found.rows.rows()[static_cast<std::size_t>(at)] != nullptr) {
          continue;
        }
        --report_.replayed;
        for (std::size_t run = 0; run < runs_.size(); ++run)
          pointers(run)[row] = nullptr;
        Miss(found.segment, found.segment.position + at,
             found.rows.infos()[static_cast<std::size_t>(at)].reason);
      }
    }
    if (!voided) break;
    WriteRuns();
  }
  for (std::size_t row = 0; row < out_.mask.size(); ++row)
    out_.mask[row] = pointers(0)[row] != nullptr ? 1 : 0;
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

absl::StatusOr<FillReport> FillRouterTensors(const RowPlan& plan,
                                             std::span<const RowSource> sources,
                                             std::span<const std::int32_t> layers,
                                             const RouterTensors& out, const FillOptions& options) {
  Filling filling(plan, sources, layers, out);
  if (absl::Status status = filling.Check(options.partial); !status.ok()) return status;
  if (absl::Status status = filling.FindRows(); !status.ok()) return status;
  filling.Write();
  return filling.report();
}

}  // namespace waymark
