#include "adapters/trainer/tile_finder.h"

#include <algorithm>
#include <new>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace waymark {

namespace internal {
void (*before_confirm)() = nullptr;
}  // namespace internal

namespace filling {
namespace {

// Rows of a document that are decoded together, at least: of sequences whose rows alternate a tile
// has few each, and less than a chunk cannot be decoded.
constexpr std::int64_t kWindowRows = 128;

constexpr std::ptrdiff_t kLineBytes = 64;  // a cache line

}  // namespace

TileFinder::TileFinder(const FillJob& job)
    : job_(job), distinct_(job.infos.front().shape->top_k, job.infos.front().shape->num_experts) {}

// Reads tokens [begin, end) of a part, a run of layers at a time. A row counts if it is valid in
// all of them: damage may be that of some layers only.
template <class Read>
absl::Status TileFinder::ReadPart(Part& part, std::int64_t begin, std::int64_t end, Read&& read) {
  part.read.resize(job_.runs.size());
  const std::int64_t position = part.segment.position;
  for (std::size_t run = 0; run < job_.runs.size(); ++run) {
    const std::int32_t column = job_.columns[part.source][job_.runs[run].begin];
    const RowsAndLayers rectangle = {position + begin, position + end, column,
                                     column + job_.runs[run].shape.num_layers};
    if (absl::Status status = read(rectangle, part.read[run]); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("sources[", part.source, "]: ", status.message()));
    }
  }
  part.begin = begin;
  part.end = end;
  return absl::OkStatus();
}

// Tokens from `begin` on, to `end` at least if the window is large enough: to the end of a chunk,
// so that it is seldom decoded twice.
absl::Status TileFinder::Decode(const wire::Document& document, Part& part, std::int64_t begin,
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

// Of snapshots nothing is read, only whether it can be: also of those that have no token here, so
// that all ranks refuse the same sources.
absl::Status TileFinder::CheckReady(std::size_t source) const {
  const auto* const snapshot = std::get_if<const Snapshot*>(&job_.sources[source]);
  if (snapshot == nullptr) return absl::OkStatus();
  const std::int64_t first = job_.infos[source].first;
  const absl::Status status = (*snapshot)->Find(first, first).status();
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("sources[", source, "]: ", status.message()));
}

absl::Status TileFinder::PreparePart(Part& part) {
  if (part.from == part.to) return absl::OkStatus();
  if (const wire::Document* const document = raw_document(part); document != nullptr) {
    part.chunk.ids.resize(job_.runs.size());
    part.chunk.reasons.reserve(static_cast<std::size_t>(document->shape().rows.page_tokens));
    return absl::OkStatus();
  }
  if (const auto* const document = std::get_if<const wire::Document*>(&job_.sources[part.source])) {
    // The largest window is the first: if it is within the limits of the document, all are.
    const auto tile = static_cast<std::int64_t>(kTileRows);
    part.window = tile + kWindowRows + (*document)->shape().rows.page_tokens;
    absl::Status status = Decode(**document, part, part.from, part.from + part.window);
    part.window = part.end - part.begin;
    return status;
  }
  if (const auto* const by = std::get_if<RowsByHandle>(&job_.sources[part.source])) {
    return ReadPart(part, part.from, part.to, [&](const RowsAndLayers& rectangle, Rows& rows) {
      absl::StatusOr<Rows> fetched = by->fetcher->Fetch(*by->handle, rectangle, by->deadline);
      if (!fetched.ok()) return fetched.status();
      rows = *std::move(fetched);
      return absl::OkStatus();
    });
  }
  return absl::OkStatus();
}

absl::Status TileFinder::Prepare() {
  for (std::size_t i = 0; i < job_.sources.size(); ++i) {
    if (absl::Status status = CheckReady(i); !status.ok()) return status;
  }
  parts_.reserve(job_.plan.segments().size());
  std::int64_t tokens = 0;
  for (const RowSegment& segment : job_.plan.segments()) {
    tokens += segment.count;
    const auto i = static_cast<std::size_t>(segment.sequence);
    const std::int64_t from =
        std::clamp(job_.infos[i].first - segment.position, std::int64_t{0}, segment.count);
    const std::int64_t to = std::clamp(job_.infos[i].last - segment.position, from, segment.count);
    parts_.push_back({i, segment, from, to});
    if (absl::Status status = PreparePart(parts_.back()); !status.ok()) return status;
  }
  padding_ = job_.plan.rows() - tokens;
  std::sort(parts_.begin(), parts_.end(),
            [](const Part& a, const Part& b) { return a.segment.row < b.segment.row; });
  return absl::OkStatus();
}

// Tokens from `token` on that are in its chunk. Damage in any of the layers that are filled makes
// all of them missing, as what one layer has of a row is no use without the others.
void TileFinder::ReadChunk(const wire::Document& document, Part& part, std::int64_t token) {
  const std::int64_t page = document.shape().rows.page_tokens;
  const std::int64_t position = part.segment.position + token;
  part.begin = token;
  part.end = std::min((position / page + 1) * page - part.segment.position, part.to);
  ChunkRows& chunk = part.chunk;
  chunk.reasons.resize(static_cast<std::size_t>(part.end - part.begin));
  document.Reasons(position, chunk.reasons);
  for (std::size_t run = 0; run < job_.runs.size(); ++run) {
    const std::int32_t column = job_.columns[part.source][job_.runs[run].begin];
    const absl::StatusOr<wire::ChunkView> view =
        document.Chunk(position, column, column + job_.runs[run].shape.num_layers);
    if (!view.ok()) {
      std::replace(chunk.reasons.begin(), chunk.reasons.end(), Reason::kNone, Reason::kNotCaptured);
      return;
    }
    chunk.layer_bytes = view->layer_bytes;
    chunk.ids[run] = view->layers.data() + static_cast<std::size_t>(column) * view->layer_bytes +
                     static_cast<std::size_t>(position - view->first) * job_.layer_bytes;
  }
  CheckChunk(chunk);
}

// Rows with ids that no router chooses are missing.
void TileFinder::CheckChunk(ChunkRows& chunk) {
  const auto rows = static_cast<std::int32_t>(chunk.reasons.size());
  std::array<const std::uint8_t*, kTileRows> layers;
  std::array<std::uint8_t, kTileRows> good;
  for (std::size_t run = 0; run < job_.runs.size(); ++run) {
    const auto num_layers = static_cast<std::size_t>(job_.runs[run].shape.num_layers);
    for (std::size_t first = 0; first < num_layers; first += layers.size()) {
      const std::size_t count = std::min(layers.size(), num_layers - first);
      for (std::size_t l = 0; l < count; ++l)
        layers[l] = chunk.ids[run] + (first + l) * chunk.layer_bytes;
      // The rows of a layer, as if they were the layers of a row.
      if (distinct_.CheckRows(std::span(layers).first(count), rows, good)) continue;
      for (std::size_t l = 0; l < count; ++l) {
        if (good[l] != 0) continue;
        for (std::size_t i = 0; i < chunk.reasons.size(); ++i) {
          Reason& reason = chunk.reasons[i];
          if (reason == Reason::kNone &&
              distinct_.FirstBad(layers[l] + i * job_.layer_bytes, 1) >= 0)
            reason = Reason::kInvalidId;
        }
      }
    }
  }
}

// Sets the pointers and reasons of tokens. reason_of(i): why token i is missing; kNone: it is not,
// and row_at(run, i) is where the layers of a run are, layer_bytes apart.
template <class RowAt, class ReasonOf>
void TileFinder::Place(const Tile::Tokens& tokens, Tile& tile, std::size_t layer_bytes,
                       RowAt&& row_at, ReasonOf&& reason_of) {
  const RowSegment& segment = tokens.part->segment;
  const auto stride = static_cast<std::size_t>(segment.row_stride);
  std::size_t row = tile.RowOf(segment, tokens.begin);
  for (std::int64_t i = tokens.begin; i < tokens.end; ++i, row += stride) {
    tile.reasons[row] = reason_of(i);
    tile.layer_bytes[row] = layer_bytes;
  }
  for (std::size_t run = 0; run < job_.runs.size(); ++run) {
    const std::uint8_t** const to = tile.of_run(run);
    row = tile.RowOf(segment, tokens.begin);
    for (std::int64_t i = tokens.begin; i < tokens.end; ++i, row += stride)
      to[row] = tile.reasons[row] == Reason::kNone ? row_at(run, i) : nullptr;
  }
}

void TileFinder::PlaceChunks(const wire::Document& document, Part& part, std::int64_t begin,
                             std::int64_t end, Tile& tile) {
  tile.chunks = true;
  const ChunkRows& chunk = part.chunk;
  for (std::int64_t until = 0; begin < end; begin = until) {
    if (begin < part.begin || begin >= part.end) ReadChunk(document, part, begin);
    until = std::min(end, part.end);
    Place(
        {&part, begin, until}, tile, chunk.layer_bytes,
        [&](std::size_t run, std::int64_t i) {
          return chunk.ids[run] + static_cast<std::size_t>(i - part.begin) * job_.layer_bytes;
        },
        [&](std::int64_t i) { return chunk.reasons[static_cast<std::size_t>(i - part.begin)]; });
  }
}

// The tokens of a part that are in a tile.
void TileFinder::PlaceTokens(Part& part, Tile& tile) {
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
  const RowSource& source = job_.sources[part.source];
  if (const auto* const snapshot = std::get_if<const Snapshot*>(&source)) {
    absl::StatusOr<RowsInPlace> found =
        (*snapshot)->Find(segment.position + begin, segment.position + end);
    if (!found.ok()) throw std::bad_alloc();  // it is ready, and has these rows
    tile.found.push_back({&segment, begin, *std::move(found)});
    const RowsInPlace& rows = tile.found.back().rows;
    return Place(
        tokens, tile, job_.layer_bytes,
        [&](std::size_t run, std::int64_t i) {
          return rows.rows()[static_cast<std::size_t>(i - begin)] + column_bytes(part.source, run);
        },
        [&](std::int64_t i) { return rows.infos()[static_cast<std::size_t>(i - begin)].reason; });
  }
  if (const wire::Document* const document = raw_document(part); document != nullptr) {
    return PlaceChunks(*document, part, begin, end, tile);
  }
  if (const auto* const view = std::get_if<RowsView>(&source)) {
    tile.unchecked = true;  // what was decoded has been checked
    const std::int64_t first = segment.position - view->first;
    // Those of the next tile: where rows of sequences alternate, it has a few of each.
    const std::int64_t per_line =
        kLineBytes / std::clamp<std::int64_t>(view->reason_stride, 1, kLineBytes);
    for (std::int64_t i = end; i < std::min(end + (end - begin) + per_line, part.to); i += per_line)
      __builtin_prefetch(view->reasons + (first + i) * view->reason_stride);
    return Place(
        tokens, tile, job_.layer_bytes,
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
      tokens, tile, job_.layer_bytes,
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
void TileFinder::Find(std::size_t begin, Tile& tile) {
  tile.begin = begin;
  tile.rows = std::min(kTileRows, static_cast<std::size_t>(job_.plan.rows()) - begin);
  std::fill(tile.pointers.begin(), tile.pointers.end(), nullptr);
  tile.reasons.fill(Reason::kNeverWritten);
  tile.layer_bytes.fill(job_.layer_bytes);
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
void TileFinder::Drop(Tile& tile, std::size_t row, Reason reason) {
  tile.reasons[row] = reason;
  for (std::size_t run = 0; run < job_.runs.size(); ++run)
    tile.of_run(run)[row] = nullptr;
}

// Rows with ids that no router chooses are missing in all runs.
void TileFinder::CheckIds(Tile& tile) {
  std::array<std::uint8_t, kTileRows> good;
  std::array<const std::uint8_t*, kTileRows> others;
  for (std::size_t run = 0; run < job_.runs.size(); ++run) {
    std::span<const std::uint8_t* const> rows(tile.of_run(run), tile.rows);
    if (tile.chunks) {
      for (std::size_t row = 0; row < tile.rows; ++row)
        others[row] = tile.layer_bytes[row] == job_.layer_bytes ? rows[row] : nullptr;
      rows = std::span(others).first(tile.rows);
    }
    if (distinct_.CheckRows(rows, job_.runs[run].shape.num_layers, good)) continue;
    for (std::size_t row = 0; row < tile.rows; ++row) {
      if (good[row] == 0) Drop(tile, row, Reason::kInvalidId);
    }
  }
}

// Whether a row of a snapshot was voided since it was found; it is missing then.
bool TileFinder::TakeVoided(Tile& tile) {
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

}  // namespace filling
}  // namespace waymark
