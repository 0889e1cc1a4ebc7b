#include "blockstore/wire/memory_source.h"

#include "blockstore/wire/object_cache.h"

namespace waymark::wire {

MemorySource::MemorySource(std::size_t max_bytes)
    : objects_(std::make_unique<ObjectCache>(max_bytes)) {}

MemorySource::~MemorySource() = default;

absl::Status MemorySource::Get(std::span<const Digest128> digests, Deadline,
                               std::span<Object> objects) {
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < digests.size(); ++i)
    objects[i] = objects_->Use({digests[i]});
  return absl::OkStatus();
}

absl::Status MemorySource::GetRanges(std::span<const ObjectRange> ranges, Deadline,
                                     std::span<Object> objects) {
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    objects[i] = {};
    const Object object = objects_->Use({ranges[i].digest});
    if (ranges[i].end > object.bytes.size()) continue;
    objects[i] = {object.owner,
                  object.bytes.subspan(ranges[i].begin, ranges[i].end - ranges[i].begin)};
  }
  return absl::OkStatus();
}

absl::Status MemorySource::Put(std::span<const NamedObject> objects, Deadline) {
  const MutexLock lock(mutex_);
  for (const NamedObject& named : objects)
    objects_->Keep({named.digest}, named.object);
  return absl::OkStatus();
}

absl::Status MemorySource::Holds(std::span<const Digest128> digests, Deadline,
                                 std::span<std::uint8_t> held) {
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < digests.size(); ++i)
    held[i] = objects_->Use({digests[i]}).present() ? 1 : 0;
  return absl::OkStatus();
}

MemorySource::Stats MemorySource::GetStats() const {
  const MutexLock lock(mutex_);
  return {objects_->size(), objects_->bytes(), objects_->evicted()};
}

}  // namespace waymark::wire
