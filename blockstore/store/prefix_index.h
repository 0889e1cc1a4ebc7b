// PrefixIndex: the keys that hit, and which key comes before which. Internal to the block
// allocator.
//
// One entry a key; the entries form a forest, a child being the block after its parent. All memory
// is sized once: a chained hash table over an array of entries, so no operation ever rehashes.
#ifndef WAYMARK_BLOCKSTORE_STORE_PREFIX_INDEX_H_
#define WAYMARK_BLOCKSTORE_STORE_PREFIX_INDEX_H_

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
    std::int32_t parent = kNone;       // entry before this one; kNone: the sequence begins here
    std::int32_t child = kNone;        // first of the entries behind this one
    std::int32_t next_sibling = kNone;
    std::int32_t previous_sibling = kNone;
    std::int32_t next_in_bucket = kNone;  // of unused entries: the next unused one
  };

  // Holds up to `capacity` keys.
  explicit PrefixIndex(std::size_t capacity);

  [[nodiscard]] Entry& entry(std::int32_t entry) {
    return entries_[static_cast<std::size_t>(entry)];
  }
  [[nodiscard]] const Entry& entry(std::int32_t entry) const {
    return entries_[static_cast<std::size_t>(entry)];
  }
  // kNone when the key is not there. O(1).
  [[nodiscard]] std::int32_t Find(const BlockKey& key) const;
  // A new entry without blocks behind `parent` (kNone: a root). O(1).
  // REQUIRES: the key is not there; fewer than `capacity` entries.
  std::int32_t Insert(const BlockKey& key, std::int32_t parent);
  // REQUIRES: the entry has no child. O(1).
  void Remove(std::int32_t entry);
  // O(capacity).
  void Clear();

 private:
  [[nodiscard]] std::size_t Bucket(const BlockKey& key) const;

  std::vector<Entry> entries_;
  std::vector<std::int32_t> buckets_;  // a power of two of them
  std::int32_t unused_ = kNone;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_PREFIX_INDEX_H_
