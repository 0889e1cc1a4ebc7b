#include "adapters/trainer/fill.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "adapters/trainer/distinct_ids.h"
#include "adapters/trainer/expand.h"
#include "adapters/trainer/invalid.h"
#include "blockstore/write_layers.h"

namespace waymark {
namespace internal {
void (*before_confirm)() = nullptr;
}  // namespace internal

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

// Rows of the tensors that are found, checked and written together: their stored ids are read from
// memory once, and are in the L2 cache for all layers.
constexpr std::size_t kTileRows = 512;
// Rows of a document that are decoded together, at least: of sequences whose rows alternate a tile
// has few each, and less than a chunk cannot be decoded.
constexpr std::int64_t kWindowRows = 128;

constexpr std::ptrdiff_t kLineBytes = 64;  // bytes of a cache line

// Tensors [begin, end) whose layers are adjacent in every source.
struct LayerRun {
  std::size_t begin;
  std::size_t end;
  RoutingShape shape;  // of these layers
};

// Rows of one chunk of a document that has their ids as the store keeps them, layer after layer.
struct ChunkRows {
  std::vector<const std::uint8_t*> ids;  // [runs]: of the first row, where the run begins
  std::size_t layer_bytes = 0;           // from a layer to the next
  std::vector<Reason> reasons;           // of each row
};

// A segment of the plan. Its tokens [from, to) have rows in the source.
struct Part {
  std::size_t source;
  RowSegment segment;
  std::int64_t from;
  std::int64_t to;
  std::int64_t next = 0;  // the first token that no tile has yet
  // Tokens [begin, end) are those of `read` or of `chunk`.
  std::int64_t begin = 0;
  std::int64_t end = 0;
  // [runs]: rows that were fetched, or decoded from a document.
  std::vector<Rows> read = {};
  std::vector<Rows> read_before = {};  // what the tile before this may use
  std::int64_t window = 0;             // the most rows that are decoded together
  ChunkRows chunk = {};
};

// Rows [begin, begin + rows) of the tensors, and where they come from.
struct Tile {
  // Tokens [begin, end) of a part, that have rows here.
  struct Tokens {
    const Part* part;
    std::int64_t begin;
    std::int64_t end;
  };
  // Those of a snapshot; token: the first.
  struct Found {
    const RowSegment* segment;
    std::int64_t token;
    RowsInPlace rows;
  };
  // Rows [begin, end), whose layers are layer_bytes apart.
  struct Range {
    std::size_t begin;
    std::size_t end;
    std::size_t layer_bytes;
  };
  explicit Tile(std::size_t runs) : pointers(runs * kTileRows) {}

  const std::uint8_t** of_run(std::size_t run) { return pointers.data() + run * kTileRows; }
  [[nodiscard]] std::size_t RowOf(const RowSegment& segment, std::int64_t token) const {
    return static_cast<std::size_t>(segment.row + token * segment.row_stride) - begin;
  }

  std::size_t begin = 0;
  std::size_t rows = 0;
  std::vector<const std::uint8_t*> pointers;  // [runs][kTileRows]; null in all runs: the fill
  std::array<Reason, kTileRows> reasons;      // of rows that are null
  // From a layer of a row to its next: rows lie in memory as rows, or as layers of a chunk.
  std::array<std::size_t, kTileRows> layer_bytes;
  bool unchecked = false;  // whether the ids of a row may be no choice, except those of chunks
  bool chunks = false;     // whether it has rows of chunks
  std::vector<Tokens> tokens;
  std::vector<Found> found;
};

// One call: everything that can fail, then tile by tile what cannot.
class Filling {
 public:
  Filling(const RowPlan& plan, std::span<const RowSource> sources,
          std::span<const std::int32_t> layers, const RouterTensors& out)
      : plan_(plan), sources_(sources), layers_(layers), out_(out) {}

  absl::Status Check(bool partial);
  absl::Status Prepare();
  void Write();

  [[nodiscard]] const FillReport& report() const { return report_; }

 private:
  absl::Status CheckSource(std::size_t i, bool partial);
  absl::Status PreparePart(Part& part);
  template <class Read>
  absl::Status ReadPart(Part& part, std::int64_t begin, std::int64_t end, Read&& read);
  absl::Status Decode(const wire::Document& document, Part& part, std::int64_t begin,
                      std::int64_t end);
  void ReadChunk(const wire::Document& document, Part& part, std::int64_t token);
  void CheckChunk(ChunkRows& chunk);
  void PlaceTile(std::size_t begin, Tile& tile);
  void PlaceTokens(Part& part, Tile& tile);
  void PlaceChunks(const wire::Document& document, Part& part, std::int64_t begin, std::int64_t end,
                   Tile& tile);
  template <class RowAt, class ReasonOf>
  void Place(const Tile::Tokens& tokens, Tile& tile, std::size_t layer_bytes, RowAt&& row_at,
             ReasonOf&& reason_of);
  void CheckTile(Tile& tile);
  void PackTile(Tile& tile);
  [[nodiscard]] Tile::Range NextRange(const Tile& tile, std::size_t begin) const;
  void WriteTile(Tile& tile, Tile* next);
  bool TakeVoided(Tile& tile);
  void Drop(Tile& tile, std::size_t row, Reason reason);
  void Count(Tile& tile);
  void Miss(const RowSegment& segment, std::int64_t token, Reason reason);

  const RoutingShape& shape() const { return *infos_.front().shape; }
  // The document of a part whose chunks have ids as the store keeps them; else null.
  const wire::Document* raw_document(const Part& part) const {
    const auto* const document = std::get_if<const wire::Document*>(&sources_[part.source]);
    if (document == nullptr || (*document)->shape().code.codec != wire::Codec::kRaw) return nullptr;
    return *document;
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
  std::optional<DistinctIds> distinct_;
  std::vector<Part> parts_;    // by their first rows
  std::size_t begun_ = 0;      // of parts_: those that have rows in a tile
  std::vector<Part*> active_;  // those that may have rows in the next one

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
  if (out_.packed && out_.id_type != StoredIdType(shape().num_experts)) {
    return Invalid("id_type: of packed rows must be that in which ids of ", shape().num_experts,
                   " experts are stored, got ", static_cast<int>(out_.id_type));
  }
  if (absl::Status status = CheckHolds(out_.id_type, shape().num_experts); !status.ok())
    return status;
  layer_bytes_ = top_k * shape().id_bytes();
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

// Reads tokens [begin, end) of a part, a run of layers at a time. A row counts if it is valid in all
// of them: damage may be that of some layers only.
template <class Read>
absl::Status Filling::ReadPart(Part& part, std::int64_t begin, std::int64_t end, Read&& read) {
  part.read.resize(runs_.size());
  const std::int64_t position = part.segment.position;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    const std::int32_t column = columns_[part.source][runs_[run].begin];
    const RowsAndLayers rectangle = {position + begin, position + end, column,
                                     column + runs_[run].shape.num_layers};
    if (absl::Status status = read(rectangle, part.read[run]); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("sources[", part.source, "]: ", status.message()));
    }
  }
  part.begin = begin;
  part.end = end;
  return absl::OkStatus();
}

// Tokens from `begin` on, to `end` at least if the window is large enough: to the end of a chunk, so
// that it is seldom decoded twice.
absl::Status Filling::Decode(const wire::Document& document, Part& part, std::int64_t begin,
                             std::int64_t end) {
  const std::int64_t page = document.shape().rows.page_tokens;
  const std::int64_t last = part.segment.position + std::max(end, begin + kWindowRows);
  const std::int64_t chunk_end = (last + page - 1) / page * page - part.segment.position;
  std::swap(part.read, part.read_before);
  return ReadPart(part, begin, std::min({chunk_end, begin + part.window, part.to}),
                  [&](const RowsAndLayers& rectangle, Rows& rows) {
                    return document.ReadRows(rectangle, rows);
                  });
}

absl::Status Filling::PreparePart(Part& part) {
  if (const auto* const snapshot = std::get_if<const Snapshot*>(&sources_[part.source])) {
    return (*snapshot)->Find(infos_[part.source].first, infos_[part.source].first).status();
  }
  if (part.from == part.to) return absl::OkStatus();
  if (const wire::Document* const document = raw_document(part); document != nullptr) {
    part.chunk.ids.resize(runs_.size());
    part.chunk.reasons.reserve(static_cast<std::size_t>(document->shape().rows.page_tokens));
    return absl::OkStatus();
  }
  if (const auto* const document = std::get_if<const wire::Document*>(&sources_[part.source])) {
    // The largest window is the first: if it is within the limits of the document, all are.
    const auto tile = static_cast<std::int64_t>(kTileRows);
    part.window = tile + kWindowRows + (*document)->shape().rows.page_tokens;
    absl::Status status = Decode(**document, part, part.from, part.from + part.window);
    part.window = part.end - part.begin;
    return status;
  }
  if (const auto* const by = std::get_if<RowsByHandle>(&sources_[part.source])) {
    return ReadPart(part, part.from, part.to, [&](const RowsAndLayers& rectangle, Rows& rows) {
      absl::StatusOr<Rows> fetched = by->fetcher->Fetch(*by->handle, rectangle, by->deadline);
      if (!fetched.ok()) return fetched.status();
      rows = *std::move(fetched);
      return absl::OkStatus();
    });
  }
  return absl::OkStatus();
}

absl::Status Filling::Prepare() {
  distinct_.emplace(shape().top_k, shape().num_experts);
  parts_.reserve(plan_.segments().size());
  std::int64_t tokens = 0;
  for (const RowSegment& segment : plan_.segments()) {
    tokens += segment.count;
    const auto i = static_cast<std::size_t>(segment.sequence);
    const std::int64_t from =
        std::clamp(infos_[i].first - segment.position, std::int64_t{0}, segment.count);
    const std::int64_t to = std::clamp(infos_[i].last - segment.position, from, segment.count);
    parts_.push_back({i, segment, from, to});
    if (absl::Status status = PreparePart(parts_.back()); !status.ok()) return status;
  }
  report_.padding = plan_.rows() - tokens;
  std::sort(parts_.begin(), parts_.end(),
            [](const Part& a, const Part& b) { return a.segment.row < b.segment.row; });
  return absl::OkStatus();
}

void Filling::Miss(const RowSegment& segment, std::int64_t token, Reason reason) {
  const std::int64_t position = segment.position + token;
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

// Tokens from `token` on that are in its chunk. Damage in any of the layers that are filled makes
// all of them missing, as what one layer has of a row is no use without the others.
void Filling::ReadChunk(const wire::Document& document, Part& part, std::int64_t token) {
  const std::int64_t page = document.shape().rows.page_tokens;
  const std::int64_t position = part.segment.position + token;
  part.begin = token;
  part.end = std::min((position / page + 1) * page - part.segment.position, part.to);
  ChunkRows& chunk = part.chunk;
  chunk.reasons.resize(static_cast<std::size_t>(part.end - part.begin));
  document.Reasons(position, chunk.reasons);
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    const std::int32_t column = columns_[part.source][runs_[run].begin];
    const absl::StatusOr<wire::ChunkView> view =
        document.Chunk(position, column, column + runs_[run].shape.num_layers);
    if (!view.ok()) {
      std::replace(chunk.reasons.begin(), chunk.reasons.end(), Reason::kNone, Reason::kNotCaptured);
      return;
    }
    chunk.layer_bytes = view->layer_bytes;
    chunk.ids[run] = view->layers.data() + static_cast<std::size_t>(column) * view->layer_bytes +
                     static_cast<std::size_t>(position - view->first) * layer_bytes_;
  }
  CheckChunk(chunk);
}

// Rows with ids that no router chooses are missing.
void Filling::CheckChunk(ChunkRows& chunk) {
  const auto rows = static_cast<std::int32_t>(chunk.reasons.size());
  std::array<const std::uint8_t*, kTileRows> layers;
  std::array<std::uint8_t, kTileRows> good;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    const auto num_layers = static_cast<std::size_t>(runs_[run].shape.num_layers);
    for (std::size_t first = 0; first < num_layers; first += layers.size()) {
      const std::size_t count = std::min(layers.size(), num_layers - first);
      for (std::size_t l = 0; l < count; ++l)
        layers[l] = chunk.ids[run] + (first + l) * chunk.layer_bytes;
      // The rows of a layer, as if they were the layers of a row.
      if (distinct_->CheckRows(std::span(layers).first(count), rows, good)) continue;
      for (std::size_t l = 0; l < count; ++l) {
        if (good[l] != 0) continue;
        for (std::size_t i = 0; i < chunk.reasons.size(); ++i) {
          Reason& reason = chunk.reasons[i];
          if (reason == Reason::kNone && distinct_->FirstBad(layers[l] + i * layer_bytes_, 1) >= 0)
            reason = Reason::kInvalidId;
        }
      }
    }
  }
}

// Sets the pointers and reasons of tokens. reason_of(i): why token i is missing; kNone: it is not,
// and row_at(run, i) is where the layers of a run are, layer_bytes apart.
template <class RowAt, class ReasonOf>
void Filling::Place(const Tile::Tokens& tokens, Tile& tile, std::size_t layer_bytes, RowAt&& row_at,
                    ReasonOf&& reason_of) {
  const RowSegment& segment = tokens.part->segment;
  const auto stride = static_cast<std::size_t>(segment.row_stride);
  std::size_t row = tile.RowOf(segment, tokens.begin);
  for (std::int64_t i = tokens.begin; i < tokens.end; ++i, row += stride) {
    tile.reasons[row] = reason_of(i);
    tile.layer_bytes[row] = layer_bytes;
  }
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    const std::uint8_t** const to = tile.of_run(run);
    row = tile.RowOf(segment, tokens.begin);
    for (std::int64_t i = tokens.begin; i < tokens.end; ++i, row += stride)
      to[row] = tile.reasons[row] == Reason::kNone ? row_at(run, i) : nullptr;
  }
}

void Filling::PlaceChunks(const wire::Document& document, Part& part, std::int64_t begin,
                          std::int64_t end, Tile& tile) {
  tile.chunks = true;
  const ChunkRows& chunk = part.chunk;
  for (std::int64_t until = 0; begin < end; begin = until) {
    if (begin < part.begin || begin >= part.end) ReadChunk(document, part, begin);
    until = std::min(end, part.end);
    Place(
        {&part, begin, until}, tile, chunk.layer_bytes,
        [&](std::size_t run, std::int64_t i) {
          return chunk.ids[run] + static_cast<std::size_t>(i - part.begin) * layer_bytes_;
        },
        [&](std::int64_t i) { return chunk.reasons[static_cast<std::size_t>(i - part.begin)]; });
  }
}

// The tokens of a part that are in a tile.
void Filling::PlaceTokens(Part& part, Tile& tile) {
  const RowSegment& segment = part.segment;
  const auto tile_end = static_cast<std::int64_t>(tile.begin + tile.rows);
  const std::int64_t until = std::min(
      segment.count, (tile_end - segment.row + segment.row_stride - 1) / segment.row_stride);
  tile.tokens.push_back({&part, part.next, until});
  const std::int64_t begin = std::clamp(part.from, part.next, until);
  const std::int64_t end = std::clamp(part.to, begin, until);
  part.next = until;
  if (begin == end) return;
  const Tile::Tokens tokens = {&part, begin, end};
  const RowSource& source = sources_[part.source];
  if (const auto* const snapshot = std::get_if<const Snapshot*>(&source)) {
    absl::StatusOr<RowsInPlace> found =
        (*snapshot)->Find(segment.position + begin, segment.position + end);
    if (!found.ok()) throw std::bad_alloc();  // it is ready, and has these rows
    tile.found.push_back({&segment, begin, *std::move(found)});
    const RowsInPlace& rows = tile.found.back().rows;
    return Place(
        tokens, tile, layer_bytes_,
        [&](std::size_t run, std::int64_t i) {
          return rows.rows()[static_cast<std::size_t>(i - begin)] + column_bytes(part.source, run);
        },
        [&](std::int64_t i) { return rows.infos()[static_cast<std::size_t>(i - begin)].reason; });
  }
  if (const wire::Document* const document = raw_document(part); document != nullptr) {
    return PlaceChunks(*document, part, begin, end, tile);
  }
  tile.unchecked = true;
  if (const auto* const view = std::get_if<RowsView>(&source)) {
    const std::int64_t first = segment.position - view->first;
    // Those of the next tile: where rows of sequences alternate, it has a few of each.
    const std::int64_t per_line =
        kLineBytes / std::clamp<std::int64_t>(view->reason_stride, 1, kLineBytes);
    for (std::int64_t i = end; i < std::min(end + (end - begin) + per_line, part.to); i += per_line)
      __builtin_prefetch(view->reasons + (first + i) * view->reason_stride);
    return Place(
        tokens, tile, layer_bytes_,
        [&](std::size_t run, std::int64_t i) {
          return view->ids + (first + i) * view->row_stride + column_bytes(part.source, run);
        },
        [&](std::int64_t i) {
          const std::uint8_t reason = view->reasons[(first + i) * view->reason_stride];
          return reason < kNumReasons ? static_cast<Reason>(reason) : Reason::kInvalidId;
        });
  }
  if (const auto* const document = std::get_if<const wire::Document*>(&source);
      document != nullptr && (begin < part.begin || end > part.end)) {
    // Rows of it were decoded before, so that only memory can be too little.
    if (!Decode(**document, part, begin, end).ok()) throw std::bad_alloc();
  }
  Place(
      tokens, tile, layer_bytes_,
      [&](std::size_t run, std::int64_t i) { return part.read[run].row(i - part.begin).data(); },
      [&](std::int64_t i) {
        for (const Rows& rows : part.read) {
          const Reason reason = rows.infos[static_cast<std::size_t>(i - part.begin)].reason;
          if (reason != Reason::kNone) return reason;
        }
        return Reason::kNone;
      });
}

// Finds the rows of a tile; looks at no id, except where a document is decoded.
void Filling::PlaceTile(std::size_t begin, Tile& tile) {
  tile.begin = begin;
  tile.rows = std::min(kTileRows, static_cast<std::size_t>(plan_.rows()) - begin);
  std::fill(tile.pointers.begin(), tile.pointers.end(), nullptr);
  tile.reasons.fill(Reason::kNeverWritten);
  tile.layer_bytes.fill(layer_bytes_);
  tile.unchecked = false;
  tile.chunks = false;
  tile.tokens.clear();
  tile.found.clear();
  const auto end = static_cast<std::int64_t>(begin + tile.rows);
  for (; begun_ < parts_.size() && parts_[begun_].segment.row < end; ++begun_)
    active_.push_back(&parts_[begun_]);
  for (Part* const part : active_)
    PlaceTokens(*part, tile);
  std::erase_if(active_, [](const Part* part) { return part->next == part->segment.count; });
}

// Makes a row of a tile missing.
void Filling::Drop(Tile& tile, std::size_t row, Reason reason) {
  tile.reasons[row] = reason;
  for (std::size_t run = 0; run < runs_.size(); ++run)
    tile.of_run(run)[row] = nullptr;
}

// Rows with ids that no router chooses are missing in all runs.
void Filling::CheckTile(Tile& tile) {
  std::array<std::uint8_t, kTileRows> good;
  std::array<const std::uint8_t*, kTileRows> others;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    std::span<const std::uint8_t* const> rows(tile.of_run(run), tile.rows);
    if (tile.chunks) {
      for (std::size_t row = 0; row < tile.rows; ++row)
        others[row] = tile.layer_bytes[row] == layer_bytes_ ? rows[row] : nullptr;
      rows = std::span(others).first(tile.rows);
    }
    if (distinct_->CheckRows(rows, runs_[run].shape.num_layers, good)) continue;
    for (std::size_t row = 0; row < tile.rows; ++row) {
      if (good[row] == 0) Drop(tile, row, Reason::kInvalidId);
    }
  }
}

// Rows as they are stored.
void Filling::PackTile(Tile& tile) {
  std::uint8_t* to = out_.ids.data() + tile.begin * layers_.size() * layer_bytes_;
  for (std::size_t row = 0; row < tile.rows; ++row) {
    for (std::size_t run = 0; run < runs_.size(); ++run) {
      const std::size_t num_layers = runs_[run].end - runs_[run].begin;
      const std::uint8_t* const from = tile.of_run(run)[row];
      if (from == nullptr) {
        std::memset(to, 0, num_layers * layer_bytes_);
      } else if (tile.layer_bytes[row] == layer_bytes_) {
        std::memcpy(to, from, num_layers * layer_bytes_);
      } else {
        for (std::size_t l = 0; l < num_layers; ++l)
          std::memcpy(to + l * layer_bytes_, from + l * tile.layer_bytes[row], layer_bytes_);
      }
      to += num_layers * layer_bytes_;
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

void Filling::WriteTile(Tile& tile, Tile* next) {
  if (out_.packed) return PackTile(tile);
  const auto rows = static_cast<std::size_t>(plan_.rows());
  const std::size_t row_bytes = static_cast<std::size_t>(shape().top_k) * IdBytes(out_.id_type);
  LayerTensors tensors = {out_.id_type, out_.fill, nullptr, rows * row_bytes,
                          out_.ids.size() >= kStreamedBytes};
  if (next != nullptr && next->chunks) next = nullptr;  // what was checked is on its way
  for (std::size_t begin = 0; begin < tile.rows;) {
    const Tile::Range range = NextRange(tile, begin);
    for (std::size_t run = 0; run < runs_.size(); ++run) {
      tensors.ids =
          out_.ids.data() + (runs_[run].begin * rows + tile.begin + range.begin) * row_bytes;
      const std::span<const std::uint8_t* const> of_run(tile.of_run(run), tile.rows);
      std::span<const std::uint8_t* const> ahead;
      if (next != nullptr) ahead = {next->of_run(run), next->rows};
      WriteLayers(runs_[run].shape,
                  {of_run.subspan(range.begin, range.end - range.begin), range.layer_bytes},
                  tensors, ahead);
    }
    begin = range.end;
  }
}

// Whether a row of a snapshot was voided since it was found; it is missing then.
bool Filling::TakeVoided(Tile& tile) {
  if (internal::before_confirm != nullptr) internal::before_confirm();
  bool voided = false;
  for (Tile::Found& found : tile.found) {
    if (found.rows.Confirm()) continue;
    voided = true;
    const std::span<const std::uint8_t* const> rows = found.rows.rows();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] != nullptr) continue;
      Drop(tile, tile.RowOf(*found.segment, found.token + static_cast<std::int64_t>(i)),
           found.rows.infos()[i].reason);
    }
  }
  return voided;
}

void Filling::Count(Tile& tile) {
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
  const auto rows = static_cast<std::size_t>(plan_.rows());
  std::array<Tile, 2> tiles = {Tile(runs_.size()), Tile(runs_.size())};
  Tile* tile = &tiles[0];
  Tile* other = &tiles[1];
  if (rows != 0) PlaceTile(0, *tile);
  for (std::size_t begin = 0; begin < rows; begin += kTileRows) {
    const bool more = rows - begin > kTileRows;
    if (more) PlaceTile(begin + kTileRows, *other);
    if (tile->unchecked) CheckTile(*tile);
    WriteTile(*tile, more ? other : nullptr);
    while (TakeVoided(*tile))
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
