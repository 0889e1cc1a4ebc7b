// ObjectCache: objects by digest in bounded memory; evicts the least recently used. Internal to
// blockstore.
#ifndef WAYMARK_BLOCKSTORE_WIRE_OBJECT_CACHE_H_
#define WAYMARK_BLOCKSTORE_WIRE_OBJECT_CACHE_H_

#include <cstddef>
#include <cstdint>

#include "blockstore/wire/lru_map.h"
#include "blockstore/wire/page_source.h"

namespace waymark::wire {

// The key of a cached object: a whole object, or the crcs and layers [layer_begin, layer_end) of a
// chunk as a fetcher keeps them.
struct ObjectKey {
  Digest128 digest;
  std::int32_t layer_begin = 0;
  std::int32_t layer_end = 0;  // 0: the whole object

  friend bool operator==(const ObjectKey&, const ObjectKey&) = default;
};

struct ObjectKeyHash {
  std::size_t operator()(const ObjectKey& key) const {
    const auto layers =
        static_cast<std::size_t>(key.layer_begin) * 1031 + static_cast<std::size_t>(key.layer_end);
    return DigestHash()(key.digest) ^ (layers * 0x9e3779b97f4a7c15u);
  }
};

// Not thread safe.
class ObjectCache {
 public:
  static constexpr std::size_t kEntryBytes = 128;  // about what an entry takes besides its bytes

  explicit ObjectCache(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  // The object, or an absent one. Counts as a use.
  [[nodiscard]] Object Use(const ObjectKey& key) {
    const Object* object = objects_.Use(key);
    return object == nullptr ? Object{} : *object;
  }
  // Adds an object and evicts others to make room. Ignored if the object is cached already or
  // larger than the cache.
  void Keep(const ObjectKey& key, const Object& object) {
    const std::size_t bytes = object.bytes.size() + kEntryBytes;
    if (bytes > max_bytes_ || objects_.Use(key) != nullptr) return;
    while (bytes_ + bytes > max_bytes_) {
      bytes_ -= objects_.oldest().second.bytes.size() + kEntryBytes;
      objects_.PopOldest();
      ++evicted_;
    }
    objects_.Insert(key, object);
    bytes_ += bytes;
  }

  [[nodiscard]] std::size_t size() const { return objects_.size(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t evicted() const { return evicted_; }

 private:
  const std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  std::uint64_t evicted_ = 0;
  LruMap<ObjectKey, Object, ObjectKeyHash> objects_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_OBJECT_CACHE_H_
