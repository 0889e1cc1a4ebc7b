#include "adapters/pool/prefix_index.h"

#include <algorithm>
#include <bit>
#include <span>

#include "blockstore/digest.h"

namespace waymark {

PrefixIndex::PrefixIndex(std::size_t capacity)
    : entries_(capacity), buckets_(std::bit_ceil(std::max<std::size_t>(2 * capacity, 1))) {
  Clear();
}

void PrefixIndex::Clear() {
  std::fill(buckets_.begin(), buckets_.end(), kNone);
  unused_ = kNone;
  for (std::size_t i = entries_.size(); i-- > 0;) {
    entries_[i] = Entry{};
    entries_[i].next_in_bucket = unused_;
    unused_ = static_cast<std::int32_t>(i);
  }
}

std::size_t PrefixIndex::Bucket(const BlockKey& key) const {
  // The keys of some engines are counters, or have equal ends: spreads them over the buckets.
  const std::uint64_t hash = RowDigest(std::span(key.bytes).first(key.size));
  return static_cast<std::size_t>(hash) & (buckets_.size() - 1);
}

std::int32_t PrefixIndex::Find(const BlockKey& key) const {
  std::int32_t at = buckets_[Bucket(key)];
  while (at != kNone && !(entry(at).key == key))
    at = entry(at).next_in_bucket;
  return at;
}

std::int32_t PrefixIndex::Insert(const BlockKey& key, std::int32_t parent) {
  const std::int32_t at = unused_;
  Entry& added = entry(at);
  unused_ = added.next_in_bucket;
  added = Entry{};
  added.key = key;
  std::int32_t& bucket = buckets_[Bucket(key)];
  added.next_in_bucket = bucket;
  bucket = at;
  added.parent = parent;
  if (parent != kNone) {
    added.next_sibling = entry(parent).child;
    if (added.next_sibling != kNone) entry(added.next_sibling).previous_sibling = at;
    entry(parent).child = at;
  }
  return at;
}

void PrefixIndex::Remove(std::int32_t at) {
  Entry& removed = entry(at);
  std::int32_t* link = &buckets_[Bucket(removed.key)];
  while (*link != at)
    link = &entry(*link).next_in_bucket;
  *link = removed.next_in_bucket;
  if (removed.previous_sibling != kNone) {
    entry(removed.previous_sibling).next_sibling = removed.next_sibling;
  } else if (removed.parent != kNone) {
    entry(removed.parent).child = removed.next_sibling;
  }
  if (removed.next_sibling != kNone) {
    entry(removed.next_sibling).previous_sibling = removed.previous_sibling;
  }
  removed = Entry{};
  removed.next_in_bucket = unused_;
  unused_ = at;
}

}  // namespace waymark
