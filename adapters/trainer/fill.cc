#include "adapters/trainer/fill.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "adapters/trainer/expand.h"
#include "blockstore/distinct_ids.h"
#include "blockstore/invalid.h"
#include "blockstore/write_layers.h"

namespace waymark {
namespace {

// Rows of the tensors that are checked and written together: their stored ids are read from memory
// once, and are in the L2 cache for all layers.
constexpr std::size_t kTileRows = 512;

// What is known of a source before its rows are: it has rows [first, last) of its sequence.
struct SourceInfo {
  const RoutingShape* shape = nullptr;
  std::int64_t first = 0;
  std::int64_t last = 0;
};

SourceInfo InfoOf(const RowSource& source) {
  if (const auto* const view = std::get_if<RowsView>(&source)) {
    return {view->shape, view->first, view->first + view->count};
  }
  const wire::Document& document = *std::get<const wire::Document*>(source);
  return {&document.shape().rows, document.first(), document.last()};
}

// Tensors [begin, end) whose layers are adjacent in every source.
struct LayerRun {
  std::size_t begin;
  std::size_t end;
  RoutingShape shape;  // of these layers
};

// Tokens of a segment whose rows are found together: the source has them all.
struct Piece {
  std::size_t source;
  RowSegment tokens;
};

// How many tokens of a segment are found together: those of a tile, and whole chunks of a document,
// each of which is checked once.
std::int64_t PieceTokens(const RowSource& source, std::int64_t row_stride) {
  const std::int64_t of_tile =
      std::max<std::int64_t>(static_cast<std::int64_t>(kTileRows) / row_stride, 1);
  if (std::holds_alternative<RowsView>(source)) return of_tile;
  const std::int64_t page = InfoOf(source).shape->page_tokens;
  return (of_tile + page - 1) / page * page;
}

// Puts layers that are `from_layer` apart side by side. A copy of constant size is a move or two.
void PackLayers(const std::uint8_t* from, std::size_t from_layer, std::size_t layers,
                std::size_t bytes, std::uint8_t* to) {
  for (std::size_t l = 0; l < layers; ++l, from += from_layer, to += bytes) {
    if (bytes == 8) {
      std::memcpy(to, from, 8);
    } else {
      std::memcpy(to, from, bytes);
    }
  }
}

// One call. Everything that can fail comes first; then the rows are found where they are, just
// before the tile that has them is written.
class Filling {
 public:
  Filling(const RowPlan& plan, std::span<const RowSource> sources,
          std::span<const std::int32_t> layers, const RouterTensors& out)
      : plan_(plan), sources_(sources), layers_(layers), out_(out) {}

  absl::Status Check(bool partial);
  void Write();
  [[nodiscard]] FillReport Report() const;

 private:
  absl::Status CheckPlan() const;
  absl::Status CheckSource(std::size_t i, bool partial);
  void Split(const RowSegment& segment);
  void Find(const Piece& piece);
  void FindChunks(const wire::Document& document, const Piece& piece);
  void CheckChunk(std::span<const std::uint8_t* const> runs, std::size_t layer_bytes,
                  std::span<Reason> reasons);
  template <class RowAt, class ReasonOf>
  void Place(const RowSegment& tokens, std::size_t layer_bytes, RowAt&& row_at,
             ReasonOf&& reason_of);
  void CheckIds(std::size_t begin, std::size_t count);
  void PackTile(std::size_t begin, std::size_t count) const;
  void WriteTile(std::size_t begin, std::size_t count) const;

  const RoutingShape& shape() const { return *infos_.front().shape; }
  std::int32_t column(std::size_t source, std::size_t run) const {
    return columns_[source][runs_[run].begin];
  }
  std::int32_t num_layers(std::size_t run) const { return runs_[run].shape.num_layers; }

  const RowPlan& plan_;
  const std::span<const RowSource> sources_;
  const std::span<const std::int32_t> layers_;
  const RouterTensors& out_;
  std::vector<SourceInfo> infos_;                   // [sequences]
  std::vector<std::vector<std::int32_t>> columns_;  // [sequences][layers]: the source's layers
  std::vector<LayerRun> runs_;
  std::size_t layer_bytes_ = 0;  // of K stored ids
  std::optional<DistinctIds> distinct_;
  bool any_views_ = false;
  bool any_chunks_ = false;
  std::vector<Piece> pieces_;  // by their first rows
  // Of each row of the plan: where its ids of a run are, [runs][rows], null in all runs if it gets
  // the fill; then why; and from a layer to the next, if any rows lie as layers of a chunk do.
  std::vector<std::vector<const std::uint8_t*>> rows_;
  std::vector<Reason> reasons_;
  std::vector<std::uint32_t> row_layer_bytes_;
  // Of CheckChunk, for all chunks.
  std::vector<const std::uint8_t*> chunk_layers_;
  std::vector<std::uint8_t> good_layers_;
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
  const auto* const document = std::get_if<const wire::Document*>(&sources_[i]);
  if (document != nullptr && (*document)->shape().code.codec != wire::Codec::kRaw) {
    return Invalid("sources[", i, "]: must be a document of raw chunks");
  }
  const std::int64_t tokens = plan_.lengths[i];
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
  layer_bytes_ = top_k * shape().id_bytes();
  distinct_.emplace(shape().top_k, shape().num_experts);
  for (const RowSource& source : sources_) {
    any_views_ = any_views_ || std::holds_alternative<RowsView>(source);
    any_chunks_ = any_chunks_ || !std::holds_alternative<RowsView>(source);
  }
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

// Adds the pieces of a segment, of tokens that have rows in the source.
void Filling::Split(const RowSegment& segment) {
  const auto source = static_cast<std::size_t>(segment.sequence);
  const std::int64_t size = PieceTokens(sources_[source], segment.row_stride);
  const std::int64_t last = std::min(segment.position + segment.count, infos_[source].last);
  for (std::int64_t at = std::max(segment.position, infos_[source].first); at < last;) {
    const std::int64_t end = last - at > size - at % size ? at + size - at % size : last;
    RowSegment tokens = segment;
    tokens.position = at;
    tokens.count = end - at;
    tokens.row += (at - segment.position) * segment.row_stride;
    pieces_.push_back({source, tokens});
    at = end;
  }
}

// reason_of(i): why token i of a piece is missing; kNone: it is not, and row_at(run, i) is where
// its layers of a run are, layer_bytes apart.
template <class RowAt, class ReasonOf>
void Filling::Place(const RowSegment& tokens, std::size_t layer_bytes, RowAt&& row_at,
                    ReasonOf&& reason_of) {
  const auto first = static_cast<std::size_t>(tokens.row);
  const auto stride = static_cast<std::size_t>(tokens.row_stride);
  const auto count = static_cast<std::size_t>(tokens.count);
  for (std::size_t i = 0, row = first; i < count; ++i, row += stride)
    reasons_[row] = reason_of(i);
  if (layer_bytes != layer_bytes_) {
    for (std::size_t i = 0, row = first; i < count; ++i, row += stride)
      row_layer_bytes_[row] = static_cast<std::uint32_t>(layer_bytes);
  }
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    for (std::size_t i = 0, row = first; i < count; ++i, row += stride)
      rows_[run][row] = reasons_[row] == Reason::kNone ? row_at(run, i) : nullptr;
  }
}

// Finds the rows of a piece; looks at no id, except of chunks.
void Filling::Find(const Piece& piece) {
  const RowSource& source = sources_[piece.source];
  if (const auto* const document = std::get_if<const wire::Document*>(&source)) {
    return FindChunks(**document, piece);
  }
  const RowSegment& tokens = piece.tokens;
  const auto& view = std::get<RowsView>(source);
  const std::int64_t first = tokens.position - view.first;
  const std::uint8_t* const ids = view.ids + first * view.row_stride;
  const std::uint8_t* const reasons = view.reasons + first * view.reason_stride;
  // Those of the next piece, which would be waited for.
  const std::int64_t ahead = std::min(2 * tokens.count, view.count - first);
  for (std::int64_t i = tokens.count; i < ahead; ++i)
    __builtin_prefetch(reasons + i * view.reason_stride);
  Place(
      tokens, layer_bytes_,
      [&](std::size_t run, std::size_t i) {
        return ids + static_cast<std::ptrdiff_t>(i) * view.row_stride +
               static_cast<std::size_t>(column(piece.source, run)) * layer_bytes_;
      },
      [&](std::size_t i) {
        const std::uint8_t reason = reasons[static_cast<std::ptrdiff_t>(i) * view.reason_stride];
        return reason < kNumReasons ? static_cast<Reason>(reason) : Reason::kInvalidId;
      });
}

// Damage in any of the layers that are filled makes all of them missing, as what one layer has of a
// row is no use without the others.
void Filling::FindChunks(const wire::Document& document, const Piece& piece) {
  const std::int64_t page = document.shape().rows.page_tokens;
  std::vector<const std::uint8_t*> ids(runs_.size());  // of the first row, where a run begins
  std::vector<Reason> reasons;
  RowSegment tokens = piece.tokens;
  for (std::int64_t left = piece.tokens.count; left > 0; left -= tokens.count) {
    tokens.count = std::min(page - tokens.position % page, left);
    reasons.resize(static_cast<std::size_t>(tokens.count));
    document.Reasons(tokens.position, reasons);
    std::size_t layer_bytes = layer_bytes_;
    bool whole = true;
    for (std::size_t run = 0; run < runs_.size() && whole; ++run) {
      const std::int32_t first = column(piece.source, run);
      const absl::StatusOr<wire::ChunkView> view =
          document.Chunk(tokens.position, first, first + num_layers(run));
      whole = view.ok();
      if (!whole) break;
      layer_bytes = view->layer_bytes;
      ids[run] = view->layers.data() + static_cast<std::size_t>(first) * layer_bytes +
                 static_cast<std::size_t>(tokens.position - view->first) * layer_bytes_;
    }
    if (whole) {
      CheckChunk(ids, layer_bytes, reasons);
    } else {
      std::replace(reasons.begin(), reasons.end(), Reason::kNone, Reason::kNotCaptured);
    }
    Place(
        tokens, layer_bytes,
        [&](std::size_t run, std::size_t i) { return ids[run] + i * layer_bytes_; },
        [&](std::size_t i) { return reasons[i]; });
    tokens.position += tokens.count;
    tokens.row += tokens.count * tokens.row_stride;
  }
}

// Rows of a chunk with ids that no router chooses are missing. runs[i]: where run i begins.
void Filling::CheckChunk(std::span<const std::uint8_t* const> runs, std::size_t layer_bytes,
                         std::span<Reason> reasons) {
  std::vector<const std::uint8_t*>& layers = chunk_layers_;
  layers.clear();
  for (std::size_t run = 0; run < runs.size(); ++run) {
    for (std::size_t l = 0; l < static_cast<std::size_t>(num_layers(run)); ++l)
      layers.push_back(runs[run] + l * layer_bytes);
  }
  // The rows of a layer, as if they were the layers of a row.
  std::vector<std::uint8_t>& good = good_layers_;
  good.resize(layers.size());
  if (distinct_->CheckRows(layers, static_cast<std::int32_t>(reasons.size()), good)) return;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (std::size_t i = 0; i < reasons.size() && good[l] == 0; ++i) {
      if (reasons[i] == Reason::kNone &&
          distinct_->FirstBad(layers[l] + i * layer_bytes_, 1) >= 0) {
        reasons[i] = Reason::kInvalidId;
      }
    }
  }
}

// Rows of a tile with ids that no router chooses are missing. Those of chunks have been checked.
void Filling::CheckIds(std::size_t begin, std::size_t count) {
  std::array<std::uint8_t, kTileRows> good;
  std::array<const std::uint8_t*, kTileRows> rows;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    std::copy_n(rows_[run].begin() + static_cast<std::ptrdiff_t>(begin), count, rows.begin());
    for (std::size_t i = 0; any_chunks_ && i < count; ++i) {
      if (row_layer_bytes_[begin + i] != layer_bytes_) rows[i] = nullptr;
    }
    if (distinct_->CheckRows(std::span(rows).first(count), num_layers(run), good)) continue;
    for (std::size_t i = 0; i < count; ++i) {
      if (good[i] != 0) continue;
      reasons_[begin + i] = Reason::kInvalidId;
      for (std::vector<const std::uint8_t*>& of_run : rows_)
        of_run[begin + i] = nullptr;
    }
  }
}

// Rows as they are stored.
void Filling::PackTile(std::size_t begin, std::size_t count) const {
  std::uint8_t* to = out_.ids.data() + begin * layers_.size() * layer_bytes_;
  for (std::size_t row = begin; row < begin + count; ++row) {
    for (std::size_t run = 0; run < runs_.size(); ++run) {
      const std::size_t layers = runs_[run].end - runs_[run].begin;
      const std::uint8_t* const from = rows_[run][row];
      if (from == nullptr) {
        std::memset(to, 0, layers * layer_bytes_);
      } else if (!any_chunks_ || row_layer_bytes_[row] == layer_bytes_) {
        std::memcpy(to, from, layers * layer_bytes_);
      } else {
        PackLayers(from, row_layer_bytes_[row], layers, layer_bytes_, to);
      }
      to += layers * layer_bytes_;
    }
  }
}

void Filling::WriteTile(std::size_t begin, std::size_t count) const {
  if (out_.packed) return PackTile(begin, count);
  const auto rows = static_cast<std::size_t>(plan_.rows);
  const std::size_t row_bytes = static_cast<std::size_t>(shape().top_k) * IdBytes(out_.id_type);
  LayerTensors tensors = {out_.id_type, out_.fill, nullptr, rows * row_bytes,
                          out_.ids.size() >= kStreamedBytes};
  // Chunks that were checked are on their way.
  const std::size_t ahead = any_chunks_ ? 0 : std::min(kTileRows, rows - begin - count);
  const std::size_t end = begin + count;
  for (std::size_t to = begin; begin < end; begin = to) {
    const std::size_t layer_bytes = any_chunks_ ? row_layer_bytes_[begin] : layer_bytes_;
    for (to = any_chunks_ ? begin : end; to < end && row_layer_bytes_[to] == layer_bytes;)
      ++to;
    for (std::size_t run = 0; run < runs_.size(); ++run) {
      tensors.ids = out_.ids.data() + (runs_[run].begin * rows + begin) * row_bytes;
      const std::span<const std::uint8_t* const> of_run(rows_[run]);
      WriteLayers(runs_[run].shape, {of_run.subspan(begin, to - begin), layer_bytes}, tensors,
                  of_run.subspan(end, ahead));
    }
  }
}

// The rows of the next tile are found before a tile is written, so that they are on their way
// meanwhile.
void Filling::Write() {
  for (const RowSegment& segment : plan_.segments)
    Split(segment);
  std::sort(pieces_.begin(), pieces_.end(),
            [](const Piece& a, const Piece& b) { return a.tokens.row < b.tokens.row; });
  const auto rows = static_cast<std::size_t>(plan_.rows);
  rows_.assign(runs_.size(), std::vector<const std::uint8_t*>(rows, nullptr));
  reasons_.assign(rows, Reason::kNeverWritten);
  if (any_chunks_) row_layer_bytes_.assign(rows, static_cast<std::uint32_t>(layer_bytes_));
  std::size_t next = 0;
  for (std::size_t begin = 0; begin < rows; begin += kTileRows) {
    const std::size_t count = std::min(kTileRows, rows - begin);
    const auto end = static_cast<std::int64_t>(begin + 2 * kTileRows);
    for (; next < pieces_.size() && pieces_[next].tokens.row < end; ++next)
      Find(pieces_[next]);
    if (any_views_) CheckIds(begin, count);
    WriteTile(begin, count);
  }
  for (std::size_t row = 0; row < out_.mask.size(); ++row)
    out_.mask[row] = rows_[0][row] != nullptr ? 1 : 0;
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
      if (rows_[0][row] != nullptr) continue;
      --report.replayed;
      if (reasons_[row] == Reason::kNeverWritten &&
          place.position == plan_.lengths[static_cast<std::size_t>(place.sequence)] - 1) {
        ++report.no_row;
      } else {
        ++report.missing[static_cast<std::size_t>(reasons_[row])];
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

absl::StatusOr<FillReport> FillRouterTensors(const RowPlan& plan,
                                             std::span<const RowSource> sources,
                                             std::span<const std::int32_t> layers,
                                             const RouterTensors& out, const FillOptions& options) {
  Filling filling(plan, sources, layers, out);
  if (absl::Status status = filling.Check(options.partial); !status.ok()) return status;
  filling.Write();
  return filling.Report();
}

}  // namespace waymark
