// PublishedSequence: what a publisher remembers of a sequence. SequenceBuilder: encodes the rows of
// a publication as objects, puts those that the page source does not hold, and makes the handle.
// Internal to wire.
#ifndef WAYMARK_BLOCKSTORE_WIRE_SEQUENCE_BUILDER_H_
#define WAYMARK_BLOCKSTORE_WIRE_SEQUENCE_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/rows.h"
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/guarded_source.h"
#include "blockstore/wire/handle.h"
#include "blockstore/wire/publisher.h"

namespace waymark::wire {

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
// compared, because requests share their first ones.
[[nodiscard]] bool IsOtherRequest(const Rows& input, const PublishedSequence& known,
                                  const ChunkCodec& codec);

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
  // within options.source_timeout. InvalidArgument for ids that the code cannot encode. A failure
  // of the page source is no error: it is counted.
  [[nodiscard]] absl::Status Build(const PublishedSequence* before, const Rows& input,
                                   PublishedSequence& next);

  PublisherStats counted;  // of the publication in progress; the caller resets it

 private:
  void SourceFailed(const absl::Status& status);
  // Whether the source holds each object. If its Holds fails, it is taken to hold none.
  std::vector<std::uint8_t> Held(std::span<const Digest128> digests);
  void Put(std::span<const NamedObject> objects);
  void PutNodeList(const PublishedSequence& sequence);
  // Adds pages [begin, end), all of one node, to the last node of the sequence, or begins a new
  // one. `rows` has them.
  absl::Status BuildNode(const Rows& rows, std::int64_t begin, std::int64_t end,
                         PublishedSequence& next);
  // The rows after the last complete page. Segments that were there before keep their rows, so
  // that they are the same objects if nothing of them has changed.
  absl::Status BuildTail(const PublishedSequence* before, const Rows& rows,
                         PublishedSequence& next);

  GuardedSource source_;
  const PublisherOptions& options_;
  const ChunkCodec codec_;
  const std::int64_t page_tokens_;
  const std::size_t row_bytes_;
  Deadline deadline_;
  bool logged_source_ = false;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_SEQUENCE_BUILDER_H_
