// MemorySource: objects in the memory of this process.
#ifndef WAYMARK_BLOCKSTORE_WIRE_MEMORY_SOURCE_H_
#define WAYMARK_BLOCKSTORE_WIRE_MEMORY_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "blockstore/mutex.h"
#include "blockstore/wire/page_source.h"

namespace waymark::wire {

class ObjectCache;

// Keeps at most `max_bytes`, some 128 bytes an object included. The object used least recently goes
// first: put, read, or asked for by Holds. Handles pin nothing: a reader that dies would keep its
// objects for ever. Never waits, and its statuses are ok.
class MemorySource final : public PageSource {
 public:
  explicit MemorySource(std::size_t max_bytes);
  ~MemorySource() override;

  [[nodiscard]] absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                                 std::span<Object> objects) override;
  [[nodiscard]] absl::Status GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                                       std::span<Object> parts) override;
  [[nodiscard]] absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override;
  // Exact.
  [[nodiscard]] absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                                   std::span<std::uint8_t> held) override;

  struct Stats {
    std::uint64_t objects = 0;  // there now
    std::uint64_t bytes = 0;    // of them
    std::uint64_t evicted = 0;  // objects, ever
  };
  [[nodiscard]] Stats GetStats() const;

 private:
  mutable Mutex mutex_;
  const std::unique_ptr<ObjectCache> objects_ ABSL_PT_GUARDED_BY(mutex_);
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_MEMORY_SOURCE_H_
