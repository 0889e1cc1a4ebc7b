// LruMap: a map that knows which entry was used least recently. Internal.
#ifndef WAYMARK_BLOCKSTORE_WIRE_LRU_MAP_H_
#define WAYMARK_BLOCKSTORE_WIRE_LRU_MAP_H_

#include <cstddef>
#include <iterator>
#include <list>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "blockstore/digest.h"

namespace waymark::wire {

// Digests are hashes already; but what a file or a handle names may be any, and alike on purpose.
struct DigestHash {
  std::size_t operator()(const Digest128& digest) const {
    return absl::HashOf(digest.w[0], digest.w[1], digest.w[2], digest.w[3]);
  }
};

// One thread at a time. The caller bounds it: it looks at size() and takes the oldest away.
template <typename Key, typename Value, typename Hash>
class LruMap {
 public:
  // The value of `key`, which is now the last used; null when there is none. Stays where it is
  // until it is taken away.
  Value* Use(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.end(), entries_, found->second);
    return &found->second->second;
  }
  // The last used from now on. REQUIRES: no entry has this key.
  Value& Insert(const Key& key, Value value) {
    entries_.emplace_back(key, std::move(value));
    places_.emplace(key, std::prev(entries_.end()));
    return entries_.back().second;
  }
  // The least recently used. REQUIRES: there is one.
  const std::pair<Key, Value>& oldest() const { return entries_.front(); }
  void PopOldest() {
    places_.erase(entries_.front().first);
    entries_.pop_front();
  }
  void Clear() {
    places_.clear();
    entries_.clear();
  }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

 private:
  std::list<std::pair<Key, Value>> entries_;  // least recently used first
  absl::flat_hash_map<Key, typename std::list<std::pair<Key, Value>>::iterator, Hash> places_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_LRU_MAP_H_
