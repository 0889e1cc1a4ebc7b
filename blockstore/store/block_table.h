// BlockTable: for each page of each block of the engine, the page it has, or why it has none.
// Internal to blockstore; guarded by the store's lock.
//
// An array of fixed size, indexed by block and ordinal: finding an entry is arithmetic, and an
// event or claim costs the cache misses of the entries that it names, no more.
#ifndef WAYMARK_BLOCKSTORE_STORE_BLOCK_TABLE_H_
#define WAYMARK_BLOCKSTORE_STORE_BLOCK_TABLE_H_

#include <cstdint>
#include <vector>

#include "blockstore/digest.h"
#include "blockstore/huge_allocator.h"
#include "blockstore/row_info.h"
#include "blockstore/store/page_pool.h"
#include "blockstore/store/stamp.h"

namespace waymark {

using EntryIndex = std::uint32_t;  // block * pages a block + ordinal
inline constexpr EntryIndex kNoEntry = 0xffffffffu;

// One page of one block. What every claim and snapshot looks at comes first: 24 bytes may lie on
// two cache lines, but their first 8 never do.
struct Entry {
  PageIndex page = kNoPage;
  Reason reason = Reason::kNeverWritten;  // of its rows, while it has no page
  bool exists : 1 = false;                // told of since the start, or since the last Reset
  bool by_key : 1 = false;                // its page was attached through the key index
  bool null : 1 = false;                  // of a null block; for ever
  bool has_wants : 1 = false;             // its seal named a key: EntryCold is set
  bool sealing : 1 = false;  // this life has been sealed in the batch at hand, before its claims
  std::int32_t refs = 1;     // users of the block
  RelStep since = 0;         // the step in which its present life began
  RelStep sealed = 0;        // the seal of its present life: it outlives an evicted page
  EntryIndex next_binding = kNoEntry;  // the next entry bound to the same page
};
static_assert(sizeof(Entry) == 24);

// The rest of an entry, which only seals and moves look at.
struct EntryCold {
  Digest128 wants{};                // the seal's place in the key index
  std::uint64_t wants_version = 0;  // weights of the seal
};
static_assert(sizeof(EntryCold) == 24);

// Owns the entries. Which pages they name, and the list of entries that a page has, are the
// store's business (pages.cc); here nothing is checked. Any thread that holds the lock.
class BlockTable {
 public:
  // `entries`: blocks of the engine times pages a block, < kNoEntry. 48 bytes each, all as new.
  explicit BlockTable(std::size_t entries) : hot_(entries), cold_(entries) {}

  // REQUIRES, of all of these: e < size().
  [[nodiscard]] Entry& hot(EntryIndex e) { return hot_[e]; }
  [[nodiscard]] const Entry& hot(EntryIndex e) const { return hot_[e]; }
  [[nodiscard]] EntryCold& cold(EntryIndex e) { return cold_[e]; }
  [[nodiscard]] const EntryCold& cold(EntryIndex e) const { return cold_[e]; }
  // Brings the front of an entry into the cache.
  void Prefetch(EntryIndex e) const { __builtin_prefetch(&hot_[e]); }
  [[nodiscard]] EntryIndex size() const { return static_cast<EntryIndex>(hot_.size()); }

 private:
  std::vector<Entry, HugeAllocator<Entry>> hot_;
  std::vector<EntryCold, HugeAllocator<EntryCold>> cold_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_BLOCK_TABLE_H_
