// PrefixIndex: the keys that hit, as prefix chains. Internal to the block allocator.
//
// One entry per key. The entries form a forest: a child is the block after its parent. A chained
// hash table over an array of entries, both of fixed size, so that no operation rehashes.
#ifndef WAYMARK_ADAPTERS_POOL_PREFIX_INDEX_H_
#define WAYMARK_ADAPTERS_POOL_PREFIX_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockstore/events.h"

namespace waymark {

class PrefixIndex {
 public:
  static constexpr std::int32_t kNone = -1;

  struct Entry {
    BlockKey key;
    std::int32_t first_block = kNone;  // the block that hits
    std::int32_t last_block = kNone;   // the last one sealed with this key
    std::int32_t parent = kNone;       // entry of the block before; kNone: first block
    std::int32_t child = kNone;        // first of the entries of the blocks after
    std::int32_t next_sibling = kNone;
    std::int32_t previous_sibling = kNone;
    std::int32_t next_in_bucket = kNone;  // also links unused entries
  };

  // An empty index for up to `capacity` keys.
  explicit PrefixIndex(std::size_t capacity);

  [[nodiscard]] Entry& entry(std::int32_t entry) {
    return entries_[static_cast<std::size_t>(entry)];
  }
  [[nodiscard]] const Entry& entry(std::int32_t entry) const {
    return entries_[static_cast<std::size_t>(entry)];
  }
  // The entry of the key; kNone if there is none. O(1).
  [[nodiscard]] std::int32_t Find(const BlockKey& key) const;
  // Adds an entry, without blocks, after `parent` (kNone: a first block). O(1).
  // REQUIRES: the key is not in the index, which has fewer than `capacity` entries.
  std::int32_t Insert(const BlockKey& key, std::int32_t parent);
  // Removes an entry. REQUIRES: it has no child. O(1).
  void Remove(std::int32_t entry);
  // Removes all entries. O(capacity).
  void Clear();

 private:
  [[nodiscard]] std::size_t Bucket(const BlockKey& key) const;

  std::vector<Entry> entries_;
  std::vector<std::int32_t> buckets_;  // their number is a power of two
  std::int32_t unused_ = kNone;
};

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_POOL_PREFIX_INDEX_H_
