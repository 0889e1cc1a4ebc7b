#include "blockstore/store/key_index.h"

namespace waymark {

KeyIndex::KeyIndex(PagePool& pool)
    : pool_(pool), buckets_(std::size_t{pool.pages()} * 7 / 4 + 1, kNoPage) {}

std::size_t KeyIndex::Home(const Digest128& index_key) const {
  return (std::uint64_t{index_key.w[0]} * buckets_.size()) >> 32;
}

PageIndex KeyIndex::Find(const Digest128& index_key) const {
  for (std::size_t bucket = Home(index_key);; bucket = Next(bucket)) {
    const PageIndex page = buckets_[bucket];
    if (page == kNoPage || pool_.cold(page).index_key == index_key) return page;
  }
}

void KeyIndex::Insert(const Digest128& index_key, PageIndex page) {
  std::size_t bucket = Home(index_key);
  while (buckets_[bucket] != kNoPage)
    bucket = Next(bucket);
  buckets_[bucket] = page;
  pool_.cold(page).index_key = index_key;
  pool_.hot(page).indexed = true;
}

void KeyIndex::Erase(PageIndex page) {
  std::size_t hole = Home(pool_.cold(page).index_key);
  while (buckets_[hole] != page)
    hole = Next(hole);
  pool_.hot(page).indexed = false;
  // The digests of the next buckets are in page records, which are not in the cache.
  for (std::size_t bucket = Next(hole); buckets_[bucket] != kNoPage; bucket = Next(bucket))
    __builtin_prefetch(&pool_.cold(buckets_[bucket]).index_key);
  // Moves pages back that a search would no longer find behind the hole.
  for (std::size_t bucket = Next(hole); buckets_[bucket] != kNoPage; bucket = Next(bucket)) {
    const std::size_t home = Home(pool_.cold(buckets_[bucket]).index_key);
    const bool between =
        hole <= bucket ? (hole < home && home <= bucket) : (hole < home || home <= bucket);
    if (between) continue;
    buckets_[hole] = buckets_[bucket];
    hole = bucket;
  }
  buckets_[hole] = kNoPage;
}

}  // namespace waymark
