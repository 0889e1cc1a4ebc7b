#include "adapters/trainer/fill.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "adapters/trainer/expand.h"
#include "adapters/trainer/invalid.h"
#include "adapters/trainer/tile_finder.h"
#include "blockstore/write_layers.h"

namespace waymark {
namespace {

using filling::FillJob;
using filling::kTileRows;
using filling::LayerRun;
using filling::SourceInfo;
using filling::Tile;
using filling::TileFinder;

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

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

// Puts layers that are `from_layer` apart side by side, each of `bytes` bytes.
void PackLayers(const std::uint8_t* from, std::size_t from_layer, std::size_t num_layers,
                std::size_t bytes, std::uint8_t* to) {
  const auto pack = [&](auto constant) {
    for (std::size_t l = 0; l < num_layers; ++l)
      std::memcpy(to + l * constant, from + l * from_layer, constant);
  };
  switch (bytes) {  // a copy of constant size is a move or two
    case 4:
      return pack(std::integral_constant<std::size_t, 4>());
    case 8:
      return pack(std::integral_constant<std::size_t, 8>());
    case 16:
      return pack(std::integral_constant<std::size_t, 16>());
    default:
      return pack(bytes);
  }
}

// One call: everything that can fail, then tile by tile what cannot.
class Filling {
 public:
  Filling(const RowPlan& plan, std::span<const RowSource> sources,
          std::span<const std::int32_t> layers, const RouterTensors& out)
      : job_{plan, sources, {}, {}, {}}, layers_(layers), out_(out) {}

  absl::Status Check(bool partial);
  absl::Status Prepare();
  void Write();

  [[nodiscard]] const FillReport& report() const { return report_; }

 private:
  absl::Status CheckSource(std::size_t i, bool partial);
  void PackTile(const Tile& tile);
  [[nodiscard]] Tile::Range NextRange(const Tile& tile, std::size_t begin) const;
  void WriteTile(const Tile& tile, const Tile* next);
  void Count(const Tile& tile);
  void Miss(const RowSegment& segment, std::int64_t token, Reason reason);

  const RoutingShape& shape() const { return *job_.infos.front().shape; }

  FillJob job_;
  const std::span<const std::int32_t> layers_;
  const RouterTensors& out_;
  std::optional<TileFinder> finder_;
  FillReport report_;
};

absl::Status Filling::CheckSource(std::size_t i, bool partial) {
  const SourceInfo info = InfoOf(job_.sources[i]);
  if (info.shape == nullptr) return Invalid("sources[", i, "]: must have rows; it is empty");
  const RoutingShape& shape = *info.shape;
  if (absl::Status status = shape.Validate(); !status.ok()) {
    return Invalid("sources[", i, "]: ", status.message());
  }
  const RoutingShape& all = job_.infos.empty() ? shape : this->shape();
  if (shape.top_k != all.top_k || shape.num_experts != all.num_experts) {
    return Invalid("sources[", i, "]: must have K = ", all.top_k, " and E = ", all.num_experts,
                   " as sources[0], got ", shape.top_k, " and ", shape.num_experts);
  }
  const std::int64_t tokens = job_.plan.length(static_cast<std::int32_t>(i));
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
  job_.infos.push_back(info);
  job_.columns.push_back(std::move(columns));
  return absl::OkStatus();
}

absl::Status Filling::Check(bool partial) {
  if (job_.sources.size() != static_cast<std::size_t>(job_.plan.sequences())) {
    return Invalid("sources: must be one for each of ", job_.plan.sequences(), " sequences, got ",
                   job_.sources.size());
  }
  if (job_.sources.empty()) return Invalid("sources: must be at least one, got 0");
  if (layers_.empty()) return Invalid("layers: must be at least one, got 0");
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    if (std::find(layers_.begin(), layers_.begin() + static_cast<std::ptrdiff_t>(l), layers_[l]) !=
        layers_.begin() + static_cast<std::ptrdiff_t>(l)) {
      return Invalid("layers[", l, "]: must be distinct, got ", layers_[l], " twice");
    }
  }
  for (std::size_t i = 0; i < job_.sources.size(); ++i) {
    if (absl::Status status = CheckSource(i, partial); !status.ok()) return status;
  }
  const auto rows = static_cast<std::size_t>(job_.plan.rows());
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
  job_.layer_bytes = top_k * shape().id_bytes();
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const bool adjacent =
        l != 0 && std::all_of(job_.columns.begin(), job_.columns.end(),
                              [l](const auto& of) { return of[l] == of[l - 1] + 1; });
    if (!adjacent) job_.runs.push_back({l, l, shape()});
    job_.runs.back().end = l + 1;
  }
  for (LayerRun& run : job_.runs) {
    run.shape.num_layers = static_cast<std::int32_t>(run.end - run.begin);
    run.shape.layer_ids.clear();
  }
  return absl::OkStatus();
}

absl::Status Filling::Prepare() {
  finder_.emplace(job_);
  if (absl::Status status = finder_->Prepare(); !status.ok()) return status;
  report_.padding = finder_->padding();
  return absl::OkStatus();
}

void Filling::Miss(const RowSegment& segment, std::int64_t token, Reason reason) {
  const std::int64_t position = segment.position + token;
  const std::int64_t tokens = job_.plan.length(segment.sequence);
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

// Rows as they are stored.
void Filling::PackTile(const Tile& tile) {
  std::uint8_t* to = out_.ids.data() + tile.begin * layers_.size() * job_.layer_bytes;
  for (std::size_t row = 0; row < tile.rows; ++row) {
    for (std::size_t run = 0; run < job_.runs.size(); ++run) {
      const std::size_t num_layers = job_.runs[run].end - job_.runs[run].begin;
      const std::uint8_t* const from = tile.of_run(run)[row];
      if (from == nullptr) {
        std::memset(to, 0, num_layers * job_.layer_bytes);
      } else if (tile.layer_bytes[row] == job_.layer_bytes) {
        std::memcpy(to, from, num_layers * job_.layer_bytes);
      } else {
        PackLayers(from, tile.layer_bytes[row], num_layers, job_.layer_bytes, to);
      }
      to += num_layers * job_.layer_bytes;
    }
  }
}

// The rows from `begin` on that can be written together.
Tile::Range Filling::NextRange(const Tile& tile, std::size_t begin) const {
  Tile::Range range = {begin, begin + 1, tile.layer_bytes[begin]};
  if (!tile.chunks) {
    range.end = tile.rows;
    return range;
  }
  while (range.end < tile.rows && tile.layer_bytes[range.end] == range.layer_bytes)
    ++range.end;
  return range;
}

void Filling::WriteTile(const Tile& tile, const Tile* next) {
  if (out_.packed) return PackTile(tile);
  const auto rows = static_cast<std::size_t>(job_.plan.rows());
  const std::size_t row_bytes = static_cast<std::size_t>(shape().top_k) * IdBytes(out_.id_type);
  LayerTensors tensors = {out_.id_type, out_.fill, nullptr, rows * row_bytes,
                          out_.ids.size() >= kStreamedBytes};
  if (next != nullptr && next->chunks) next = nullptr;  // what was checked is on its way
  for (std::size_t begin = 0; begin < tile.rows;) {
    const Tile::Range range = NextRange(tile, begin);
    for (std::size_t run = 0; run < job_.runs.size(); ++run) {
      tensors.ids =
          out_.ids.data() + (job_.runs[run].begin * rows + tile.begin + range.begin) * row_bytes;
      const std::span<const std::uint8_t* const> of_run(tile.of_run(run), tile.rows);
      std::span<const std::uint8_t* const> ahead;
      if (next != nullptr) ahead = {next->of_run(run), next->rows};
      WriteLayers(job_.runs[run].shape,
                  {of_run.subspan(range.begin, range.end - range.begin), range.layer_bytes},
                  tensors, ahead);
    }
    begin = range.end;
  }
}

void Filling::Count(const Tile& tile) {
  for (const Tile::Tokens& tokens : tile.tokens) {
    const RowSegment& segment = tokens.part->segment;
    for (std::int64_t i = tokens.begin; i < tokens.end; ++i) {
      const std::size_t row = tile.RowOf(segment, i);
      if (tile.of_run(0)[row] != nullptr) {
        ++report_.replayed;
      } else {
        Miss(segment, i, tile.reasons[row]);
      }
    }
  }
  if (out_.mask.empty()) return;
  for (std::size_t row = 0; row < tile.rows; ++row)
    out_.mask[tile.begin + row] = tile.of_run(0)[row] != nullptr ? 1 : 0;
}

// The next tile is found before a tile is written, so that its rows are on their way meanwhile.
void Filling::Write() {
  const auto rows = static_cast<std::size_t>(job_.plan.rows());
  std::array<Tile, 2> tiles = {Tile(job_.runs.size()), Tile(job_.runs.size())};
  Tile* tile = &tiles[0];
  Tile* other = &tiles[1];
  if (rows != 0) finder_->Find(0, *tile);
  for (std::size_t begin = 0; begin < rows; begin += kTileRows) {
    const bool more = rows - begin > kTileRows;
    if (more) finder_->Find(begin + kTileRows, *other);
    if (tile->unchecked) finder_->CheckIds(*tile);
    WriteTile(*tile, more ? other : nullptr);
    while (finder_->TakeVoided(*tile))
      WriteTile(*tile, nullptr);
    Count(*tile);
    std::swap(tile, other);
  }
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
  if (absl::Status status = filling.Prepare(); !status.ok()) return status;
  filling.Write();
  return filling.report();
}

}  // namespace waymark
