// MemorySource: a page source in the memory of this process, for publishers and fetchers that share
// it, and for tests.
#ifndef WAYMARK_BLOCKSTORE_WIRE_MEMORY_SOURCE_H_
#define WAYMARK_BLOCKSTORE_WIRE_MEMORY_SOURCE_H_

#include <cstddef>
#include <memory>
#include <span>

#include "blockstore/mutex.h"
#include "blockstore/wire/page_source.h"

namespace waymark::wire {

class ObjectCache;

// Evicts the least recently used objects; Put, Get, GetRanges and Holds each count as a use. A
// handle pins nothing: a reader that died would pin its objects for ever. Object bytes that a
// caller holds stay alive after eviction. No call blocks for longer than its lock; deadlines are
// ignored, and every status is OK.
class MemorySource final : public PageSource {
 public:
  // Holds at most `max_bytes` bytes, about 128 per object for its entry included. A larger object
  // is not kept.
  explicit MemorySource(std::size_t max_bytes);
  ~MemorySource() override;

  [[nodiscard]] absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                                 std::span<Object> objects) override;
  [[nodiscard]] absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override;

 private:
  Mutex mutex_;
  const std::unique_ptr<ObjectCache> objects_ ABSL_PT_GUARDED_BY(mutex_);
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_MEMORY_SOURCE_H_
