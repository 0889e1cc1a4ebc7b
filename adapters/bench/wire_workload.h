// What crosses processes: rows of a long sequence to a document and back, and conversations whose
// turns are fetched by handle. Shared by `waymark bench` and the programs in tests/bench/.
#ifndef WAYMARK_ADAPTERS_BENCH_WIRE_WORKLOAD_H_
#define WAYMARK_ADAPTERS_BENCH_WIRE_WORKLOAD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "adapters/bench/workload.h"
#include "blockstore/rows.h"
#include "blockstore/wire/document_writer.h"

namespace waymark::bench {

// 32,767 rows: a prompt in chunks of 8192 rows, then one row a step. All pages but the last are
// complete.
[[nodiscard]] Rows DocumentRows();

// Rows to bytes to Rows in memory that was used before, in turns with one memcpy of the ids.
class DocumentTurns {
 public:
  // Throws when other rows come back than were written. A set code returns ids in its own order.
  DocumentTurns(const wire::DocumentOptions& options, Clock clock);
  // Nanoseconds; RoundTrip throws when writing or reading fails.
  double RoundTrip();
  double Copy();
  [[nodiscard]] const Rows& rows() const { return rows_; }
  // The document.
  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  const wire::DocumentOptions options_;
  const Clock clock_;
  const Rows rows_;
  std::vector<std::uint8_t> bytes_;
  Rows again_;
  std::vector<std::uint8_t> copied_;
};

// A store of sequences with pages of 16 rows. Each row is unlike every other; row i of the store
// lies in block i / 16.
class SequenceStore {
 public:
  // `rows` is a multiple of kPrefillRows.
  explicit SequenceStore(std::int64_t rows);
  [[nodiscard]] Snapshot Take(std::span<const BlockId> blocks, std::int64_t first,
                              std::int64_t last);
  // The blocks of rows [begin, end), both multiples of 16.
  [[nodiscard]] static std::vector<BlockId> BlocksOf(std::int64_t begin, std::int64_t end);
  [[nodiscard]] static RoutingShape shape() { return Shape(16); }

 private:
  std::unique_ptr<RoutingStore> store_;
};

// What a reader asks for next: rows [0, last) of a sequence, of which [first, last) are new to it.
struct RowRequest {
  std::vector<BlockId> blocks;
  std::int64_t first = 0;
  std::int64_t last = 0;
};

// A conversation of 100 turns in the first 32k rows of a store: 327 or 328 rows a turn, and no turn
// ends with a page. The last row of a sequence has no routing.
[[nodiscard]] std::vector<RowRequest> ConversationTurns();

struct Moved {
  std::uint64_t bytes = 0;  // handles, nodes and chunks
  double sending = 0;       // nanoseconds from a snapshot to its handle
  double receiving = 0;     // nanoseconds from a handle to rows
  std::uint64_t pages_encoded = 0;
};

// Publishes each request whole and fetches it by handle through a page source in memory: all of its
// rows, or the new ones only. Throws if a row is missing.
[[nodiscard]] Moved MoveByHandle(SequenceStore& store, std::span<const RowRequest> requests,
                                 const wire::ChunkCode& code, bool new_rows_only);

}  // namespace waymark::bench

#endif  // WAYMARK_ADAPTERS_BENCH_WIRE_WORKLOAD_H_
