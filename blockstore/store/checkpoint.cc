#include "blockstore/store/checkpoint.h"

#include <cstring>
#include <vector>

#include "blockstore/byte_io.h"
#include "blockstore/invalid.h"
#include "blockstore/store/store_impl.h"

namespace waymark {
namespace {

constexpr std::uint32_t kMagic = 0x384b4357;  // "WCK8"

// The first bytes; then the runs of versions, own seals (Event), entries that found a page by key
// (EntryIndex), pages and entries.
struct SavedHead {
  std::uint32_t magic, page_tokens;
  std::uint64_t last_step, schedule, version;
  std::uint64_t runs;
  std::uint32_t own_seals, keyed_binds, pages, entries;
};
static_assert(sizeof(SavedHead) == 56);

// Then the index key of one that is indexed, the SealCold of a seal with a key, and the stamp of
// each row, with the row behind it if it is valid.
struct SavedPage {
  SealHot seal;
  std::uint64_t indexed;
};
static_assert(sizeof(SavedPage) == 16);

// Then the SealCold of a seal with a key. Its page is the number of one in the checkpoint.
struct SavedEntry {
  std::uint64_t at;
  Entry entry;
};
static_assert(sizeof(SavedEntry) == 40);

absl::Status Broken(const char* what) {
  return Invalid("flight checkpoint: ", what);
}

bool IsWhy(std::uint32_t code) {
  return code < Why::kCodes && code != Why::kValid;
}

}  // namespace

void StoreCheckpoint::ReclaimSnapshots(RoutingStore& store) {
  RoutingStore::Impl& impl = store.impl();
  const MutexLock lock(impl.mutex_);
  while (impl.pages_.ReclaimSnapshots(64)) {
  }
}

void StoreCheckpoint::Poison(RoutingStore& store, std::uint64_t last_step, std::uint64_t version) {
  RoutingStore::Impl& impl = store.impl();
  impl.lander_.ApplyLog();
  impl.log_->SetSteps(last_step, 0, version);
  const MutexLock lock(impl.mutex_);
  impl.applier_.Poison(last_step, version, Cause::kEventsLost);
}

void StoreCheckpoint::KeepAuditedPages(RoutingStore& store) {
  RoutingStore::Impl& impl = store.impl();
  const MutexLock lock(impl.mutex_);
  impl.lander_.audit().SetVoids(false);
}

void StoreCheckpoint::VoidPage(RoutingStore& store, const VoidedPage& page) {
  RoutingStore::Impl& impl = store.impl();
  impl.lander_.ApplyLog();
  const MutexLock lock(impl.mutex_);
  const PageIndex named = impl.pages_.Named(page);
  if (named != kNoPage) (void)impl.lander_.audit().VoidRows(named, page.row);
}

namespace {

// Pages in order of eviction, then those that cannot be evicted. Sets number_of[page] to the place
// of each of them.
std::vector<PageIndex> PagesInOrder(const PagePool& pool, std::vector<PageIndex>& number_of) {
  std::vector<PageIndex> order;
  number_of.assign(pool.size(), kNoPage);
  const auto add = [&](PageIndex page) {
    const PageHot& hot = pool.hot(page);
    if (hot.free || (hot.bindings == 0 && !hot.indexed) || number_of[page] != kNoPage) return;
    number_of[page] = static_cast<PageIndex>(order.size());
    order.push_back(page);
  };
  for (const EvictionList list :
       {EvictionList::kUnsealed, EvictionList::kKeyOnly, EvictionList::kSealed}) {
    for (PageIndex page = pool.LruHead(list); page != kNoPage; page = pool.hot(page).lru_next)
      add(page);
  }
  for (PageIndex page = 0; page < pool.pages_touched(); ++page)
    add(page);
  return order;
}

void SavePage(const StoreCore& core, const PagePool& pool, PageIndex page, ByteWriter& writer) {
  const PageHot& hot = pool.hot(page);
  const PageCold& cold = pool.cold(page);
  writer.Put(SavedPage{hot.seal, hot.indexed ? 1u : 0u});
  if (hot.indexed) writer.Put(cold.index_key);
  if (hot.seal.has_key) writer.Put(cold.seal);
  for (std::uint32_t row = 0; row < core.page_tokens; ++row) {
    const Stamp stamp = core.stamp(page, row).Load();
    writer.Put(stamp.bits());
    if (stamp.valid()) writer.PutBytes(core.row(page, row), core.row_bytes);
  }
}

}  // namespace

absl::Status StoreCheckpoint::Save(RoutingStore& store, std::string& out) {
  RoutingStore::Impl& impl = store.impl();
  impl.lander_.ApplyLog();
  const MutexLock lock(impl.mutex_);
  if (impl.core_->failure.failed()) return impl.core_->failure.status();
  if (impl.log_->HasRecords()) {
    return absl::FailedPreconditionError("flight checkpoint: a step waits in the log");
  }
  while (impl.pages_.ReclaimSnapshots(64)) {
  }
  Pages& pages = impl.pages_;
  const Versions& versions = pages.core().versions;
  const std::vector<Event>& own_seals = impl.events_.own_seals();
  const std::vector<EntryIndex>& keyed_binds = impl.events_.keyed_binds();
  std::vector<PageIndex> number_of;
  const std::vector<PageIndex> order = PagesInOrder(pages.pool(), number_of);
  std::uint32_t entries = 0;
  for (EntryIndex e = 0; e < pages.table().size(); ++e)
    entries += pages.table().hot(e).exists ? 1 : 0;
  ByteWriter writer(out);
  writer.Put(SavedHead{kMagic, pages.page_tokens(), impl.applier_.last_step(),
                       impl.applier_.schedule(), impl.events_.version(), versions.size(),
                       static_cast<std::uint32_t>(own_seals.size()),
                       static_cast<std::uint32_t>(keyed_binds.size()),
                       static_cast<std::uint32_t>(order.size()), entries});
  for (std::size_t i = 0; i < versions.size(); ++i)
    writer.Put(versions.run(i));
  writer.PutBytes(own_seals.data(), own_seals.size() * sizeof(Event));
  writer.PutBytes(keyed_binds.data(), keyed_binds.size() * sizeof(EntryIndex));
  for (const PageIndex page : order)
    SavePage(pages.core(), pages.pool(), page, writer);
  for (EntryIndex e = 0; e < pages.table().size(); ++e) {
    Entry entry = pages.table().hot(e);
    if (!entry.exists) continue;
    if (entry.page != kNoPage) {
      entry.page = number_of[entry.page];
      entry.lost = {};
    }
    writer.Put(SavedEntry{e, entry});
    if (entry.seal.has_key) writer.Put(pages.table().cold(e));
  }
  return absl::OkStatus();
}

namespace {

// Loads one section after another. The store's lock is held throughout.
class Loader {
 public:
  Loader(std::span<const std::uint8_t> bytes, const StoreOptions& options, Pages& pages,
         EventApplier& events, LogApplier& applier)
      : reader_(bytes), options_(options), pages_(pages), events_(events), applier_(applier) {}

  absl::Status Load() {
    if (applier_.last_step() != 0 || pages_.pool().pages_touched() != 0) {
      return Broken("the store is not fresh");
    }
    if (absl::Status status = LoadHead(); !status.ok()) return status;
    if (head_.pages > pages_.pool().size()) return Broken("more pages than the store has");
    for (std::uint32_t i = 0; i < head_.pages; ++i) {
      if (absl::Status status = LoadPage(); !status.ok()) return status;
    }
    if (head_.entries > pages_.table().size()) return Broken("more blocks than the store has");
    for (std::uint32_t i = 0; i < head_.entries; ++i) {
      if (absl::Status status = LoadEntry(); !status.ok()) return status;
    }
    if (!reader_.done()) return Broken("its length is wrong");
    for (const PageIndex page : loaded_) {
      pages_.UnpinPage(page);
      // They were listed in the order of the blocks, and belong in the saved one.
      if (!pages_.pool().hot(page).in_lru) continue;
      pages_.pool().UnlinkLru(page);
      pages_.pool().PushLru(page);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status LoadHead() {
    head_ = reader_.Get<SavedHead>();
    if (head_.magic != kMagic) return Broken("unknown magic");
    if (head_.page_tokens != pages_.page_tokens()) return Broken("other pages");
    if (head_.last_step >= StoreLog::kStepLimit) return Broken("its last step is not below 2^56");
    if (head_.schedule != 0 &&
        (head_.schedule <= head_.last_step || head_.schedule >= StoreLog::kStepLimit)) {
      return Broken("its schedule is not open");
    }
    applier_.SetSteps(head_.last_step, head_.schedule);
    events_.SetVersion(head_.version);
    std::uint64_t before = 0;
    for (std::uint64_t i = 0; i < head_.runs && reader_.ok(); ++i) {
      const auto run = reader_.Get<Versions::Run>();
      if (run.first > head_.last_step || run.first <= before) {
        return Broken("versions out of order");
      }
      pages_.core().versions.Append(run.first, run.version);
      before = run.first;
    }
    for (std::uint32_t i = 0; i < head_.own_seals && reader_.ok(); ++i) {
      const auto seal = reader_.Get<Event>();
      if (seal.type != EventType::kSeal || seal.block >= options_.num_blocks ||
          seal.key_size > BlockKey::kMaxBytes || seal.step != 0) {
        return Broken("an own seal");
      }
      events_.own_seals().push_back(seal);
    }
    for (std::uint32_t i = 0; i < head_.keyed_binds && reader_.ok(); ++i) {
      const auto entry = reader_.Get<EntryIndex>();
      if (entry >= pages_.table().size()) return Broken("a block that was bound by key");
      events_.keyed_binds().push_back(entry);
    }
    return reader_.ok() ? absl::OkStatus() : Broken("it ends too soon");
  }

  absl::Status LoadPage() {
    const PageIndex page = pages_.pool().Take();
    if (page == kNoPage) return Broken("more pages than the store has");
    loaded_.push_back(page);
    pages_.PinPage(page);
    PageHot& hot = pages_.pool().hot(page);
    const auto saved = reader_.Get<SavedPage>();
    if (saved.indexed > 1) return Broken("a page's seal");
    if (saved.indexed != 0) {
      const auto index_key = reader_.Get<Digest128>();
      if (pages_.index().Find(index_key) != kNoPage) return Broken("two pages under one index key");
      pages_.index().Insert(index_key, page);
    }
    hot.seal = {saved.seal.step, saved.seal.has_key};
    if (hot.seal.has_key) pages_.pool().cold(page).seal = reader_.Get<SealCold>();
    const StoreCore& core = pages_.core();
    for (std::uint32_t row = 0; row < core.page_tokens; ++row) {
      const Stamp stamp(reader_.Get<std::uint64_t>());
      if (!stamp.well_formed()) return Broken("a row's stamp");
      if (stamp.valid()) {
        const std::uint8_t* bytes = reader_.Take(core.row_bytes);
        if (bytes == nullptr) return Broken("it ends too soon");
        std::memcpy(core.row(page, row), bytes, core.row_bytes);
      }
      core.stamp(page, row).Store(stamp);
    }
    return reader_.ok() ? absl::OkStatus() : Broken("it ends too soon");
  }

  absl::Status LoadEntry() {
    const auto saved = reader_.Get<SavedEntry>();
    const auto e = static_cast<EntryIndex>(saved.at);
    if (!reader_.ok()) return Broken("it ends too soon");
    if (saved.at >= pages_.table().size() || pages_.table().hot(e).null ||
        pages_.table().hot(e).exists) {
      return Broken("a block that is not the store's, or comes twice");
    }
    const PageIndex number = saved.entry.page;
    if (number != kNoPage && number >= loaded_.size()) return Broken("a block's page");
    if (!saved.entry.exists || saved.entry.null || saved.entry.refs < 0 ||
        saved.entry.life_start > StoreLog::kStepLimit || !IsWhy(saved.entry.why.code()) ||
        !IsWhy(saved.entry.lost.code) || saved.entry.lost.end > pages_.page_tokens()) {
      return Broken("a block's state");
    }
    Entry& entry = pages_.table().hot(e);
    entry = saved.entry;
    entry.page = kNoPage;
    if (number != kNoPage) entry.lost = {};
    entry.by_key = false;
    if (entry.seal.has_key) pages_.table().cold(e) = reader_.Get<SealCold>();
    if (number != kNoPage) {
      const PageIndex page = loaded_[number];
      if (pages_.pool().hot(page).bindings == 0xffff) return Broken("a page's blocks");
      pages_.Attach(e, page);
      entry.by_key = saved.entry.by_key;
    }
    return absl::OkStatus();
  }

  ByteReader reader_;
  const StoreOptions& options_;
  Pages& pages_;
  EventApplier& events_;
  LogApplier& applier_;
  SavedHead head_{};
  std::vector<PageIndex> loaded_;
};

}  // namespace

absl::Status StoreCheckpoint::Load(std::span<const std::uint8_t> bytes, RoutingStore& store) {
  RoutingStore::Impl& impl = store.impl();
  const MutexLock lock(impl.mutex_);
  const absl::Status status =
      Loader(bytes, impl.options_, impl.pages_, impl.events_, impl.applier_).Load();
  impl.log_->SetSteps(impl.applier_.last_step(), impl.applier_.schedule(), impl.events_.version());
  return status;
}

}  // namespace waymark
