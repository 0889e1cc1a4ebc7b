#include "blockstore/store/checkpoint.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/store/store_impl.h"

namespace waymark {
namespace {

constexpr std::uint32_t kCheckpointMagic = 0x344b4357;  // "WCK4"

constexpr std::uint8_t kIndexed = 1;
constexpr std::uint8_t kHasSealKey = 2;
constexpr std::uint8_t kByKey = 4;
constexpr std::uint8_t kSealing = 8;
constexpr std::uint8_t kFoundByKey = 16;
constexpr std::uint8_t kMoved = 32;

void PutDigest(ByteWriter& writer, const Digest128& digest) {
  for (const std::uint32_t word : digest.w)
    writer.Put(word);
}

Digest128 GetDigest(ByteReader& reader) {
  Digest128 digest;
  for (std::uint32_t& word : digest.w)
    word = reader.Get<std::uint32_t>();
  return digest;
}

absl::Status Broken(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("flight checkpoint: ", what));
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
  impl.applier_.Poison(last_step, version);
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
  if (named != kNoPage) (void)impl.lander_.audit().VoidPage(named);
}

// Writes one section after another. The store's lock is held throughout.
class StoreCheckpoint::Saver {
 public:
  Saver(const Pages& pages, std::string& out)
      : pages_(pages),
        pool_(pages.pool()),
        core_(pages.core()),
        writer_(out),
        number_of_(pool_.size(), kNoPage) {}

  void Head(std::uint64_t last_step) {
    writer_.Put(kCheckpointMagic);
    writer_.Put(core_.page_tokens);
    writer_.Put(last_step);
    writer_.Put(static_cast<std::uint64_t>(core_.versions.size()));
    for (std::size_t i = 0; i < core_.versions.size(); ++i) {
      writer_.Put(core_.versions.run(i).first);
      writer_.Put(core_.versions.run(i).version);
    }
  }

  // The open schedule, and what waits for the next step.
  void Schedule(std::uint64_t schedule, EventApplier& events) {
    writer_.Put(schedule);
    writer_.Put(events.version());
    writer_.Put(static_cast<std::uint32_t>(events.own_seals().size()));
    for (const Event& seal : events.own_seals())
      writer_.Put(seal);
    writer_.Put(static_cast<std::uint32_t>(events.keyed_binds().size()));
    for (const EntryIndex entry : events.keyed_binds())
      writer_.Put(entry);
  }

  // Pages in order of eviction, then those that cannot be evicted.
  void AllPages() {
    for (const EvictionList list :
         {EvictionList::kUnsealed, EvictionList::kKeyOnly, EvictionList::kSealed}) {
      for (PageIndex page = pool_.LruHead(list); page != kNoPage; page = pool_.hot(page).lru_next)
        Number(page);
    }
    for (PageIndex page = 0; page < pool_.pages_touched(); ++page)
      Number(page);
    writer_.Put(static_cast<std::uint32_t>(saved_.size()));
    for (const PageIndex page : saved_)
      Page(page);
  }

  void Table() {
    const BlockTable& table = pages_.table();
    std::uint32_t entries = 0;
    for (EntryIndex e = 0; e < table.size(); ++e)
      entries += table.hot(e).exists ? 1 : 0;
    writer_.Put(entries);
    for (EntryIndex e = 0; e < table.size(); ++e) {
      const Entry& entry = table.hot(e);
      if (!entry.exists) continue;
      writer_.Put(e);
      writer_.Put(entry.page == kNoPage ? kNoPage : number_of_[entry.page]);
      writer_.Put(entry.refs);
      writer_.Put(entry.life_start);
      writer_.Put(std::uint64_t{entry.seal.step});
      writer_.Put(static_cast<std::uint8_t>(entry.reason));
      writer_.Put(entry.reason_rows);
      writer_.Put(static_cast<std::uint8_t>(
          (entry.by_key ? kByKey : 0) | (entry.seal.has_key ? kHasSealKey : 0) |
          (entry.sealing ? kSealing : 0) | (entry.found_by_key ? kFoundByKey : 0) |
          (entry.moved ? kMoved : 0)));
      if (!entry.seal.has_key) continue;
      PutDigest(writer_, table.cold(e).key);
      writer_.Put(table.cold(e).version);
    }
  }

 private:
  void Number(PageIndex page) {
    const PageHot& hot = pool_.hot(page);
    if (hot.free || (hot.bindings == 0 && !hot.indexed) || number_of_[page] != kNoPage) return;
    number_of_[page] = static_cast<std::uint32_t>(saved_.size());
    saved_.push_back(page);
  }

  void Page(PageIndex page) {
    const PageHot& hot = pool_.hot(page);
    const PageCold& cold = pool_.cold(page);
    writer_.Put(std::uint64_t{hot.seal.step});
    writer_.Put(static_cast<std::uint8_t>((hot.indexed ? kIndexed : 0) |
                                          (hot.seal.has_key ? kHasSealKey : 0)));
    if (hot.indexed) PutDigest(writer_, cold.index_key);
    if (hot.seal.has_key) {
      PutDigest(writer_, cold.seal.key);
      writer_.Put(cold.seal.version);
    }
    for (std::uint32_t row = 0; row < core_.page_tokens; ++row) {
      const Stamp stamp = core_.stamp(page, row).Load();
      writer_.Put(stamp.bits());
      if (stamp.valid()) writer_.PutBytes(core_.row(page, row), core_.row_bytes);
    }
  }

  const Pages& pages_;
  const PagePool& pool_;
  const StoreCore& core_;
  ByteWriter writer_;
  std::vector<std::uint32_t> number_of_;  // [pages]: in the checkpoint
  std::vector<PageIndex> saved_;
};

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
  Saver saver(impl.pages_, out);
  saver.Head(impl.applier_.last_step());
  saver.Schedule(impl.applier_.schedule(), impl.events_);
  saver.AllPages();
  saver.Table();
  return absl::OkStatus();
}

// Loads one section after another. The store's lock is held throughout.
class StoreCheckpoint::Loader {
 public:
  Loader(std::span<const std::uint8_t> bytes, const StoreOptions& options, Pages& pages,
         EventApplier& events, LogApplier& applier)
      : reader_(bytes), options_(options), pages_(pages), events_(events), applier_(applier) {}

  absl::Status Load() {
    if (applier_.last_step() != 0 || pages_.pool().pages_touched() != 0) {
      return Broken("the store is not fresh");
    }
    if (absl::Status status = LoadBase(); !status.ok()) return status;
    if (absl::Status status = LoadSchedule(); !status.ok()) return status;
    const auto count = reader_.Get<std::uint32_t>();
    if (count > pages_.pool().size()) return Broken("more pages than the store has");
    for (std::uint32_t i = 0; i < count; ++i) {
      if (absl::Status status = LoadPage(); !status.ok()) return status;
    }
    const auto entries = reader_.Get<std::uint32_t>();
    if (entries > pages_.table().size()) return Broken("more blocks than the store has");
    for (std::uint32_t i = 0; i < entries; ++i) {
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
  absl::Status LoadBase() {
    if (reader_.Get<std::uint32_t>() != kCheckpointMagic) return Broken("unknown magic");
    if (reader_.Get<std::uint32_t>() != pages_.core().page_tokens) return Broken("other pages");
    last_ = reader_.Get<std::uint64_t>();
    if (last_ >= StoreLog::kStepLimit) return Broken("its last step is not below 2^56");
    const auto runs = reader_.Get<std::uint64_t>();
    if (runs > reader_.left() / (2 * sizeof(std::uint64_t))) return Broken("it ends too soon");
    std::uint64_t before = 0;
    for (std::uint64_t i = 0; i < runs; ++i) {
      const auto first = reader_.Get<std::uint64_t>();
      const auto version = reader_.Get<std::uint64_t>();
      if (first > last_ || first <= before) return Broken("versions out of order");
      pages_.core().versions.Append(first, version);
      before = first;
    }
    return reader_.ok() ? absl::OkStatus() : Broken("it ends too soon");
  }

  absl::Status LoadSchedule() {
    const auto schedule = reader_.Get<std::uint64_t>();
    events_.SetVersion(reader_.Get<std::uint64_t>());
    if (schedule != 0 && (schedule <= last_ || schedule >= StoreLog::kStepLimit)) {
      return Broken("its schedule is not open");
    }
    applier_.SetSteps(last_, schedule);
    const auto seals = reader_.Get<std::uint32_t>();
    if (seals > reader_.left() / sizeof(Event)) return Broken("it ends too soon");
    for (std::uint32_t i = 0; i < seals; ++i) {
      const auto seal = reader_.Get<Event>();
      if (seal.type != EventType::kSeal || seal.block >= options_.num_blocks ||
          seal.key_size > BlockKey::kMaxBytes || seal.step != 0) {
        return Broken("an own seal");
      }
      events_.own_seals().push_back(seal);
    }
    const auto binds = reader_.Get<std::uint32_t>();
    if (binds > reader_.left() / sizeof(EntryIndex)) return Broken("it ends too soon");
    for (std::uint32_t i = 0; i < binds; ++i) {
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
    PageCold& cold = pages_.pool().cold(page);
    const auto sealed = reader_.Get<std::uint64_t>();
    const auto flags = reader_.Get<std::uint8_t>();
    if (sealed >= StoreLog::kStepLimit || (flags & ~(kIndexed | kHasSealKey)) != 0) {
      return Broken("a page's seal");
    }
    if ((flags & kIndexed) != 0) {
      const Digest128 index_key = GetDigest(reader_);
      if (pages_.index().Find(index_key) != kNoPage) return Broken("two pages under one index key");
      pages_.index().Insert(index_key, page);
    }
    hot.seal = {sealed, (flags & kHasSealKey) != 0};
    if (hot.seal.has_key) {
      cold.seal.key = GetDigest(reader_);
      cold.seal.version = reader_.Get<std::uint64_t>();
    }
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
    const auto e = reader_.Get<EntryIndex>();
    const auto page = reader_.Get<std::uint32_t>();
    const auto refs = reader_.Get<std::int32_t>();
    const auto life_start = reader_.Get<std::uint64_t>();
    const auto sealed = reader_.Get<std::uint64_t>();
    const auto reason = reader_.Get<std::uint8_t>();
    const auto reason_rows = reader_.Get<std::uint16_t>();
    const auto flags = reader_.Get<std::uint8_t>();
    if (!reader_.ok()) return Broken("it ends too soon");
    if (e >= pages_.table().size() || pages_.table().hot(e).null || pages_.table().hot(e).exists) {
      return Broken("a block that is not the store's, or comes twice");
    }
    if (page != kNoPage && page >= loaded_.size()) return Broken("a block's page");
    if (refs < 0 || life_start > StoreLog::kStepLimit || sealed >= StoreLog::kStepLimit ||
        reason == 0 || reason >= kNumReasons ||
        (flags & ~(kByKey | kHasSealKey | kSealing | kFoundByKey | kMoved)) != 0) {
      return Broken("a block's state");
    }
    Entry& entry = pages_.table().hot(e);
    entry.exists = true;
    entry.refs = refs;
    entry.life_start = life_start;
    entry.SetReason(static_cast<Reason>(reason), reason_rows);
    entry.sealing = (flags & kSealing) != 0;
    entry.found_by_key = (flags & kFoundByKey) != 0;
    entry.moved = (flags & kMoved) != 0;
    entry.seal = {sealed, (flags & kHasSealKey) != 0};
    if (entry.seal.has_key) {
      pages_.table().cold(e).key = GetDigest(reader_);
      pages_.table().cold(e).version = reader_.Get<std::uint64_t>();
    }
    if (page != kNoPage) {
      if (pages_.pool().hot(loaded_[page]).bindings == 0xffff) return Broken("a page's blocks");
      pages_.Attach(e, loaded_[page]);
      entry.by_key = (flags & kByKey) != 0;
    }
    return absl::OkStatus();
  }

  ByteReader reader_;
  const StoreOptions& options_;
  Pages& pages_;
  EventApplier& events_;
  LogApplier& applier_;
  std::uint64_t last_ = 0;  // the last step that was begun
  std::vector<PageIndex> loaded_;
};

absl::Status StoreCheckpoint::Load(std::span<const std::uint8_t> bytes, RoutingStore& store) {
  RoutingStore::Impl& impl = store.impl();
  const MutexLock lock(impl.mutex_);
  const absl::Status status =
      Loader(bytes, impl.options_, impl.pages_, impl.events_, impl.applier_).Load();
  impl.log_->SetSteps(impl.applier_.last_step(), impl.applier_.schedule(), impl.events_.version());
  return status;
}

}  // namespace waymark
