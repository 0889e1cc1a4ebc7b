// TileFinder: where the stored ids of the rows of a rank's tensors are, some hundred rows at a
// time. Internal to FillRouterTensors: no other file includes it.
#ifndef WAYMARK_ADAPTERS_TRAINER_TILE_FINDER_H_
#define WAYMARK_ADAPTERS_TRAINER_TILE_FINDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "adapters/trainer/fill.h"
#include "adapters/trainer/layout.h"
#include "blockstore/distinct_ids.h"
#include "blockstore/row_info.h"
#include "blockstore/rows.h"
#include "blockstore/shape.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/wire/document.h"

namespace waymark::filling {

// Rows of the tensors that are found, checked and written together: their stored ids are read from
// memory once, and are in the L2 cache for all layers.
inline constexpr std::size_t kTileRows = 512;

// What is known of a source before its rows are: it has rows [first, last) of its sequence.
struct SourceInfo {
  const RoutingShape* shape = nullptr;
  std::int64_t first = 0;
  std::int64_t last = 0;
};

// Tensors [begin, end) whose layers are adjacent in every source.
struct LayerRun {
  std::size_t begin;
  std::size_t end;
  RoutingShape shape;  // of these layers
};

// What is filled from where: the arguments of FillRouterTensors, checked.
struct FillJob {
  const RowPlan& plan;
  std::span<const RowSource> sources;
  std::vector<SourceInfo> infos;                   // [sequences]
  std::vector<std::vector<std::int32_t>> columns;  // [sequences][layers]: the layer of the source
  std::vector<LayerRun> runs;
  std::size_t layer_bytes = 0;  // of K stored ids
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
  [[nodiscard]] const std::uint8_t* const* of_run(std::size_t run) const {
    return pointers.data() + run * kTileRows;
  }
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

// The job must outlive it. Not for several threads at a time.
class TileFinder {
 public:
  explicit TileFinder(const FillJob& job);

  // Fetches what is fetched, and checks that all other rows can be read: after it only memory can
  // lack (std::bad_alloc). FailedPrecondition for a snapshot that is not ready; errors of
  // Document::ReadRows and Fetcher::Fetch.
  [[nodiscard]] absl::Status Prepare();
  // Rows of no token. After Prepare.
  [[nodiscard]] std::int64_t padding() const { return padding_; }
  // Finds the rows from `begin` on, tile after tile from 0; checks the ids of chunks only. The tile
  // before is still good, the one before that is not.
  void Find(std::size_t begin, Tile& tile);
  // Rows with ids that no router chooses become missing.
  void CheckIds(Tile& tile);
  // Whether rows of snapshots were voided since they were found; these are missing then.
  bool TakeVoided(Tile& tile);

 private:
  [[nodiscard]] absl::Status CheckReady(std::size_t source) const;
  absl::Status PreparePart(Part& part);
  template <class Read>
  absl::Status ReadPart(Part& part, std::int64_t begin, std::int64_t end, Read&& read);
  absl::Status Decode(const wire::Document& document, Part& part, std::int64_t begin,
                      std::int64_t end);
  void ReadChunk(const wire::Document& document, Part& part, std::int64_t token);
  void CheckChunk(ChunkRows& chunk);
  void PlaceTokens(Part& part, Tile& tile);
  void PlaceChunks(const wire::Document& document, Part& part, std::int64_t begin, std::int64_t end,
                   Tile& tile);
  template <class RowAt, class ReasonOf>
  void Place(const Tile::Tokens& tokens, Tile& tile, std::size_t layer_bytes, RowAt&& row_at,
             ReasonOf&& reason_of);
  void Drop(Tile& tile, std::size_t row, Reason reason);

  // The document of a part whose chunks have ids as the store keeps them; else null.
  const wire::Document* raw_document(const Part& part) const {
    const auto* const document = std::get_if<const wire::Document*>(&job_.sources[part.source]);
    if (document == nullptr || (*document)->shape().code.codec != wire::Codec::kRaw) return nullptr;
    return *document;
  }
  std::size_t column_bytes(std::size_t source, std::size_t run) const {
    return static_cast<std::size_t>(job_.columns[source][job_.runs[run].begin]) * job_.layer_bytes;
  }

  const FillJob& job_;
  DistinctIds distinct_;
  std::vector<Part> parts_;    // by their first rows
  std::size_t begun_ = 0;      // of parts_: those that have rows in a tile
  std::vector<Part*> active_;  // those that may have rows in the next one
  std::int64_t padding_ = 0;
};

}  // namespace waymark::filling

#endif  // WAYMARK_ADAPTERS_TRAINER_TILE_FINDER_H_
