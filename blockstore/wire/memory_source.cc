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

absl::Status MemorySource::Put(std::span<const NamedObject> objects, Deadline) {
  const MutexLock lock(mutex_);
  for (const NamedObject& named : objects)
    // Copied: the caller's memory may hold others, too.
    objects_->Keep({named.digest},
                   Object::Of({named.object.bytes.begin(), named.object.bytes.end()}));
  return absl::OkStatus();
}

}  // namespace waymark::wire
