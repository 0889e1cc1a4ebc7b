#include "blockstore/store/key_index.h"

namespace waymark {

KeyIndex::KeyIndex(PagePool& pool)
    : pool_(pool), slots_(std::size_t{pool.size()} * 7 / 4 + 1, kNoPage) {}

std::size_t KeyIndex::Home(const Digest128& place) const {
  return (std::uint64_t{place.w[0]} * slots_.size()) >> 32;
}

PageIndex KeyIndex::Find(const Digest128& place) const {
  for (std::size_t slot = Home(place);; slot = Next(slot)) {
    const PageIndex page = slots_[slot];
    if (page == kNoPage || pool_.cold(page).indexed_as == place) return page;
  }
}

void KeyIndex::Insert(const Digest128& place, PageIndex page) {
  std::size_t slot = Home(place);
  while (slots_[slot] != kNoPage)
    slot = Next(slot);
  slots_[slot] = page;
  pool_.cold(page).indexed_as = place;
  pool_.hot(page).indexed = true;
  ++size_;
}

void KeyIndex::Erase(PageIndex page) {
  std::size_t hole = Home(pool_.cold(page).indexed_as);
  while (slots_[hole] != page)
    hole = Next(hole);
  pool_.hot(page).indexed = false;
  --size_;
  // The digests of the next buckets are in page records, which are not in the cache.
  for (std::size_t slot = Next(hole); slots_[slot] != kNoPage; slot = Next(slot))
    __builtin_prefetch(&pool_.cold(slots_[slot]).indexed_as);
  // Moves pages back that a search would no longer find behind the hole.
  for (std::size_t slot = Next(hole); slots_[slot] != kNoPage; slot = Next(slot)) {
    const std::size_t home = Home(pool_.cold(slots_[slot]).indexed_as);
    const bool between =
        hole <= slot ? (hole < home && home <= slot) : (hole < home || home <= slot);
    if (between) continue;
    slots_[hole] = slots_[slot];
    hole = slot;
  }
  slots_[hole] = kNoPage;
}

}  // namespace waymark
