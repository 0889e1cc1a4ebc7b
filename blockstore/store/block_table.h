// BlockTable: maps each page-sized part of each block of the engine to its page, or to the reason
// why it has none. Internal to blockstore; guarded by the store's lock.
//
// An array of fixed size: the index of an entry is computed, so an event or a row costs only the
// cache misses of the entries that it names.
#ifndef WAYMARK_BLOCKSTORE_STORE_BLOCK_TABLE_H_
#define WAYMARK_BLOCKSTORE_STORE_BLOCK_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "blockstore/huge_pages.h"
#include "blockstore/store/page_pool.h"
#include "blockstore/store/stamp.h"
#include "blockstore/store/why.h"

namespace waymark {

using EntryIndex = std::uint32_t;  // block * pages per block + ordinal
inline constexpr EntryIndex kNoEntry = 0xffffffffu;

// Of an entry without a page: rows [begin, end) are lost (capacity): they were there, or found no
// page.
struct LostRows {
  std::uint32_t begin : 13;
  std::uint32_t end : 13;  // 0: none
  std::uint32_t code : 6;  // Why::code

  // They are those from the first to the last that was added, with the last one's cause.
  void Add(std::uint32_t row, Cause cause) {
    begin = end == 0 ? row : std::min<std::uint32_t>(begin, row);
    end = std::max<std::uint32_t>(end, row + 1);
    code = Why(cause).code();
  }
  // Those below `rows`.
  [[nodiscard]] LostRows First(std::uint32_t rows) const {
    return begin < rows ? LostRows{begin, std::min<std::uint32_t>(end, rows), code} : LostRows{};
  }
  // Why a row is missing. `why`: of the other rows below `rows`; those behind are never written.
  [[nodiscard]] Why WhyOf(std::uint32_t row, Why why, std::uint32_t rows) const {
    if (row >= begin && row < end) return Why::FromCode(static_cast<std::uint8_t>(code));
    return row < rows ? why : Why();
  }
};

// The part of one block that one page holds. Two entries are on one cache line.
struct Entry {
  static constexpr std::uint16_t kAllRows = 0xffff;

  PageIndex page = kNoPage;
  Why why;                        // of rows [0, reason_rows) without a page, but for those lost
  bool exists : 1 = false;        // an event or a row named it since the last Reset
  bool by_key : 1 = false;        // its page was attached by key
  bool null : 1 = false;          // part of a null block; never changes
  bool sealing : 1 = false;       // it has an own seal, which waits for its step's rows
  bool found_by_key : 1 = false;  // it found its page by key since the last step
  bool moved : 1 = false;         // its life began with a move of what an earlier step had
  bool users_lost : 1 = false;    // events were lost: there may be users that are not in refs
  bool has_birth : 1 = false;     // it has a BlockTable::birth of its own
  std::uint16_t reason_rows = kAllRows;  // the rows behind them are never written
  std::int32_t refs = 1;                 // users of the block
  union {
    LostRows lost = {};       // without a page
    EntryIndex next_binding;  // with one: the next entry bound to it
  };
  std::uint64_t life_start = 0;  // the step in which its life began
  SealHot seal;                  // kept when its page is evicted

  // REQUIRES: it has no page.
  void SetWhy(Why of, std::uint16_t rows = kAllRows, LostRows of_them = {}) {
    why = of;
    reason_rows = rows;
    lost = of_them;
  }
  // Why a row is missing. REQUIRES: it has no page.
  [[nodiscard]] Why WhyOf(std::uint32_t row) const { return lost.WhyOf(row, why, reason_rows); }
};
static_assert(sizeof(Entry) == 32);

// When the KV of an entry came, also before copies and moves.
struct Birth {
  std::uint64_t step : 63 = 0;  // the first one since then; 0: not known
  std::uint64_t mixed : 1 = 0;  // 1: a step of other weights than that one's wrote rows since then
};

// Owns the entries. class Pages maintains the pages that they name and the list of entries of a
// page; nothing is checked here. Any thread that holds the lock.
class BlockTable {
 public:
  // Bytes of memory per entry.
  static constexpr std::size_t kEntryBytes = sizeof(Entry) + sizeof(SealCold) + sizeof(EntryIndex);

  // `entries`: number of blocks times pages per block, < kNoEntry. `births`: whether to keep them.
  BlockTable(std::size_t entries, bool births)
      : hot_(entries), cold_(entries), previous_(entries), births_(births ? entries : 0) {}

  // All of these: REQUIRES e < size().
  [[nodiscard]] Entry& hot(EntryIndex e) { return hot_[e]; }
  [[nodiscard]] const Entry& hot(EntryIndex e) const { return hot_[e]; }
  // The part of its seal that rows do not read.
  [[nodiscard]] SealCold& cold(EntryIndex e) { return cold_[e]; }
  [[nodiscard]] const SealCold& cold(EntryIndex e) const { return cold_[e]; }
  // The entry before it among those bound to its page. Only set if it is not the first of them, so
  // that it is not read while a page has one block.
  [[nodiscard]] EntryIndex& previous_binding(EntryIndex e) { return previous_[e]; }
  // The whole seal of an entry.
  [[nodiscard]] Seal seal(EntryIndex e) const { return {hot_[e].seal, cold_[e]}; }
  void SetSeal(EntryIndex e, const Seal& seal) {
    hot_[e].seal = seal.hot;
    cold_[e] = seal.cold;
  }
  // Whether births are kept. They cost memory, and only rows by key need them.
  [[nodiscard]] bool has_births() const { return !births_.empty(); }
  [[nodiscard]] Birth birth(EntryIndex e) const {
    if (!hot_[e].has_birth) return {hot_[e].life_start};
    return births_.empty() ? Birth() : births_[e];
  }
  void SetBirth(EntryIndex e, Birth birth) {
    hot_[e].has_birth = true;
    if (!births_.empty()) births_[e] = birth;
  }
  // Prefetches the first fields of an entry.
  void Prefetch(EntryIndex e) const { __builtin_prefetch(&hot_[e]); }
  [[nodiscard]] EntryIndex size() const { return static_cast<EntryIndex>(hot_.size()); }

 private:
  std::vector<Entry, HugeAllocator<Entry>> hot_;
  std::vector<SealCold, HugeAllocator<SealCold>> cold_;
  std::vector<EntryIndex, HugeAllocator<EntryIndex>> previous_;
  std::vector<Birth> births_;  // of entries with has_birth; empty without a seal sink
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_BLOCK_TABLE_H_
