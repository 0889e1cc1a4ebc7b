// LruMap: a hash map that keeps its entries in the order of their last use. ObjectCache: objects by
// digest in bounded memory; evicts the least recently used. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_WIRE_OBJECT_CACHE_H_
#define WAYMARK_BLOCKSTORE_WIRE_OBJECT_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

#include "absl/hash/hash.h"
#include "blockstore/digest.h"
#include "blockstore/wire/page_source.h"

namespace waymark::wire {

// Hash of a digest. Digests are hashes already, but those in a file or a handle come from outside
// and may be chosen to collide: absl::HashOf is seeded.
struct DigestHash {
  std::size_t operator()(const Digest128& digest) const {
    return absl::HashOf(digest.w[0], digest.w[1], digest.w[2], digest.w[3]);
  }
};

// Not thread safe. Has no bound of its own: the caller compares size() with its bound and calls
// PopOldest. Hash maps of the standard library stay as they are if an allocation fails;
// Abseil's do not.
template <typename Key, typename Value, typename Hash>
class LruMap {
 public:
  // The value of `key`, or null if there is none. Counts as a use. The pointer stays valid until
  // the entry is removed.
  Value* Use(const Key& key) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return nullptr;
    entries_.splice(entries_.end(), entries_, found->second);
    return &found->second->second;
  }
  // Adds an entry as the most recently used; adds none if it throws. REQUIRES: no entry has this
  // key.
  Value& Insert(const Key& key, Value value) {
    std::list<std::pair<Key, Value>> added;
    added.emplace_back(key, std::move(value));
    by_key_.emplace(key, added.begin());
    entries_.splice(entries_.end(), added);
    return entries_.back().second;
  }
  // Removes the entry of `key`, if there is one.
  void Erase(const Key& key) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return;
    entries_.erase(found->second);
    by_key_.erase(found);
  }
  // The least recently used entry; PopOldest removes it. REQUIRES: size() > 0.
  const std::pair<Key, Value>& oldest() const { return entries_.front(); }
  void PopOldest() {
    by_key_.erase(entries_.front().first);
    entries_.pop_front();
  }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

 private:
  std::list<std::pair<Key, Value>> entries_;  // least recently used first
  std::unordered_map<Key, typename std::list<std::pair<Key, Value>>::iterator, Hash> by_key_;
};

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
    }
    objects_.Insert(key, object);
    bytes_ += bytes;
  }

 private:
  const std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  LruMap<ObjectKey, Object, ObjectKeyHash> objects_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_OBJECT_CACHE_H_
