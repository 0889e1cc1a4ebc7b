// PublishInput, PublishedSequence: the rows of one publication, and what a publisher remembers of a
// sequence. SequenceBuilder: encodes the rows of a publication as objects, puts those that the page
// source does not hold, and makes the handle. Internal to wire.
#ifndef WAYMARK_BLOCKSTORE_WIRE_SEQUENCE_BUILDER_H_
#define WAYMARK_BLOCKSTORE_WIRE_SEQUENCE_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/rows.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/guarded_source.h"
#include "blockstore/wire/handle.h"
#include "blockstore/wire/lru_map.h"
#include "blockstore/wire/publisher.h"

namespace waymark::wire {

// The rows to publish: a snapshot, or rows that were read already.
struct PublishInput {
  Snapshot snapshot;
  Rows rows;  // used if the snapshot is empty

  [[nodiscard]] bool pinned() const { return snapshot.shape() != nullptr; }
  [[nodiscard]] std::int64_t first() const { return pinned() ? snapshot.first() : rows.first; }
  [[nodiscard]] std::int64_t last() const { return pinned() ? snapshot.last() : rows.last(); }
  [[nodiscard]] const RoutingShape& shape() const {
    return pinned() ? *snapshot.shape() : rows.shape;
  }
  [[nodiscard]] std::optional<PageRef> PageOf(std::int64_t row) const {
    return pinned() ? snapshot.PageOf(row) : std::nullopt;
  }
  // Reads rows [begin, end): their infos, and their ids as the store keeps them.
  [[nodiscard]] absl::Status Read(std::int64_t begin, std::int64_t end, std::span<RowInfo> infos,
                                  std::span<std::uint8_t> ids) const;
  [[nodiscard]] absl::Status ReadInfos(std::int64_t begin, std::int64_t end,
                                       std::span<RowInfo> infos) const;
};

// What is remembered of a sequence, so that later rows can extend it.
struct PublishedSequence {
  Handle handle;
  std::vector<Digest128> nodes;    // their digests, first to last
  std::vector<std::uint8_t> node;  // the bytes of its last node
  Rows tail;                       // rows after the last complete page
  std::vector<std::size_t> cuts;   // number of rows of each tail segment
  bool disputed = false;  // two requests have published under its name, not forgotten between
};

// Whether `input`, which begins at row 0, is of another request than the rows of `known`: it has
// fewer rows, or valid rows of other steps. Of these, those of the last node and of the tail are
// compared, because requests share their first ones. Errors of reading the snapshot.
[[nodiscard]] absl::StatusOr<bool> IsOtherRequest(const PublishInput& input,
                                                  const PublishedSequence& known,
                                                  std::uint64_t shape_digest,
                                                  std::int64_t page_tokens);

// Logs the first failure of a kind: `logged` is false until then.
void LogOnce(const LogCallback& log, bool& logged, LogLevel level, const char* what,
             const absl::Status& status) noexcept;

// One thread: the publisher's.
class SequenceBuilder {
 public:
  // `source` is not owned; `options` are referred to: both outlive it. `codec` is of options.shape
  // and options.key.
  SequenceBuilder(PageSource* source, const PublisherOptions& options, ChunkCodec codec);

  [[nodiscard]] const ChunkCodec& codec() const { return codec_; }
  // Exceptions of the page source that were caught.
  [[nodiscard]] std::uint64_t source_exceptions() const { return source_.exceptions(); }
  // Sets `next` to the sequence `before` (null: none) extended by `input`, and puts its objects
  // within options.source_timeout. InvalidArgument for ids that the code cannot encode; errors of
  // reading the snapshot. A failure of the page source is none: it is counted.
  [[nodiscard]] absl::Status Build(const PublishedSequence* before, const PublishInput& input,
                                   PublishedSequence& next);

  PublisherStats counted;  // of the publication in progress; the caller resets it

 private:
  // A page whose node is being made.
  struct Page {
    std::int64_t number = 0;
    Digest128 name;  // NameOf its contents, if named
    bool named = false;
    bool digested = false;  // `digest` is set; else the page must be encoded
    Digest128 digest;
    std::vector<std::uint8_t> chunk;  // empty: not encoded in this call
  };

  // Reads rows [begin, end) of the sequence. Those before the first row of `input` come from the
  // tail of `before`. Records their provenance in `handle`.
  absl::Status ReadRange(const PublishedSequence* before, const PublishInput& input,
                         std::int64_t begin, std::int64_t end, std::span<RowInfo> infos,
                         std::span<std::uint8_t> ids, Handle& handle) const;
  static void NoteProvenance(std::int64_t begin, std::span<const RowInfo> infos, Handle& handle);
  // Sets the digest of a page: the cached one, or that of the chunk encoded now.
  absl::Status DigestPage(const PublishedSequence* before, const PublishInput& input, Page& page,
                          std::span<RowInfo> infos, Handle& handle);
  // The name of a page's ids: which page of which store, and the steps of its valid rows. This is
  // unique, because step numbers increase as long as a store lives and a step writes a row once.
  Digest128 NameOf(const PageRef& page_ref, std::span<const RowInfo> infos);
  // Encodes the chunk of a page from its rows as they are now.
  absl::Status Encode(const PublishedSequence* before, const PublishInput& input, Page& page,
                      std::span<RowInfo> infos, Handle& handle);
  void SourceFailed(const absl::Status& status);
  // Whether the source holds each object. If its Holds fails, it is taken to hold none.
  std::vector<std::uint8_t> Held(std::span<const Digest128> digests);
  void Put(std::span<const NamedObject> objects);
  void PutNodeList(const PublishedSequence& sequence);
  // Adds pages [begin, end), all of one node, to the last node of the sequence, or begins a new
  // one.
  absl::Status BuildNode(const PublishedSequence* before, const PublishInput& input,
                         std::int64_t begin, std::int64_t end, PublishedSequence& next);
  // The rows after the last complete page. Segments that were there before keep their rows, so
  // that they are the same objects if nothing of them has changed.
  absl::Status BuildTail(const PublishedSequence* before, const PublishInput& input,
                         PublishedSequence& next);

  GuardedSource source_;
  const PublisherOptions& options_;
  const ChunkCodec codec_;
  const std::int64_t page_tokens_;
  const std::size_t row_bytes_;
  LruMap<Digest128, Digest128, DigestHash> pages_;  // NameOf a page -> digest of its chunk
  Deadline deadline_;
  std::vector<std::uint64_t> name_;
  std::vector<std::uint8_t> ids_;
  bool logged_source_ = false;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_SEQUENCE_BUILDER_H_
