// LastPosition: finds the last item with a key in a list that grows at its end. Internal to
// blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_LAST_POSITION_H_
#define WAYMARK_BLOCKSTORE_STORE_LAST_POSITION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

namespace waymark {

// Looks at an item when a Find first needs it, so that a list in which nothing is looked for costs
// nothing. Find throws std::bad_alloc. One thread at a time.
class LastPosition {
 public:
  // The position of the last item whose key is `key`. `key_of(item)`: its key. O(1) and the items
  // added since the last call.
  template <class List, class KeyOf>
  [[nodiscard]] std::optional<std::size_t> Find(const List& list, std::int64_t key,
                                                const KeyOf& key_of) {
    for (; looked_at_ < list.size(); ++looked_at_)
      last_[key_of(list[looked_at_])] = looked_at_;
    const auto found = last_.find(key);
    if (found == last_.end()) return std::nullopt;
    return found->second;
  }
  // The key of an item changes: the old one has no item, and the new one has that at `position`.
  // REQUIRES: a Find has looked at it.
  void Erase(std::int64_t key) { last_.erase(key); }
  void Set(std::int64_t key, std::size_t position) { last_[key] = position; }
  // The list is empty, or its items have other positions.
  void Clear() {
    if (looked_at_ == 0) return;
    last_.clear();
    looked_at_ = 0;
  }

 private:
  std::unordered_map<std::int64_t, std::size_t> last_;
  std::size_t looked_at_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_LAST_POSITION_H_
