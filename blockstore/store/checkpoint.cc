#include "blockstore/store/checkpoint.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/store/store_impl.h"

namespace waymark {
namespace {

constexpr std::uint32_t kCheckpointMagic = 0x324b4357;  // "WCK2"

constexpr std::uint8_t kIndexed = 1;
constexpr std::uint8_t kHasSealKey = 2;
constexpr std::uint8_t kByKey = 4;
constexpr std::uint8_t kDeviceWeights = 4;  // of a page
constexpr std::uint8_t kSealing = 8;        // of a block
constexpr std::uint8_t kFoundByKey = 16;    // of a block

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

void StoreCheckpoint::RunCopies(RoutingStore& store) {
  store.impl().RunCopies();
}

void StoreCheckpoint::ReclaimSnapshots(RoutingStore& store) {
  RoutingStore::Impl& impl = store.impl();
  const MutexLock lock(impl.mutex_);
  while (impl.ReclaimSnapshots(64)) {
  }
}

StepCode StoreCheckpoint::BeginStep(RoutingStore& store, const StepBatch& batch, bool drop) {
  return store.impl().BeginStep(batch, drop);
}

void StoreCheckpoint::Poison(RoutingStore& store, std::span<const std::uint64_t> open_steps,
                             std::uint64_t last_step, std::uint64_t version) {
  store.impl().Poison(open_steps, last_step, version);
}

absl::Status StoreCheckpoint::Save(RoutingStore& store, std::string& out) {
  RoutingStore::Impl& impl = store.impl();
  impl.RunCopies();
  const MutexLock lock(impl.mutex_);
  if (!impl.active_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("flight checkpoint: ", impl.active_.size(),
                                                      " steps are in flight, the first is step ",
                                                      impl.active_.front()->step));
  }
  while (impl.ReclaimSnapshots(64)) {
  }
  const StoreCore& core = *impl.core_;
  ByteWriter writer(out);
  writer.Put(kCheckpointMagic);
  writer.Put(impl.page_tokens_);
  writer.Put(impl.last_);
  writer.Put(impl.base_->base);
  const std::uint32_t runs = impl.base_->num_runs.load(std::memory_order_relaxed);
  writer.Put(runs);
  for (std::uint32_t i = 0; i < runs; ++i) {
    writer.Put(impl.base_->runs[i].first);
    writer.Put(impl.base_->runs[i].version);
  }

  // The open schedule, and what waits for the next begin.
  writer.Put(impl.schedule_);
  writer.Put(impl.version_);
  writer.Put(static_cast<std::uint32_t>(impl.own_seals_.size()));
  for (const Event& seal : impl.own_seals_)
    writer.Put(seal);
  writer.Put(static_cast<std::uint32_t>(impl.found_by_key_.size()));
  for (const FoundByKey& found : impl.found_by_key_) {
    writer.Put(found.block);
    writer.Put(found.version);
  }

  // Pages in order of eviction, then those that cannot be evicted.
  std::vector<PageIndex> pages;
  std::vector<std::uint32_t> number_of(impl.pool_.size(), kNoPage);
  const auto add = [&](PageIndex page) {
    const PageHot& hot = impl.pool_.hot(page);
    if (hot.free || (hot.bindings == 0 && !hot.indexed) || number_of[page] != kNoPage) return;
    number_of[page] = static_cast<std::uint32_t>(pages.size());
    pages.push_back(page);
  };
  for (const bool bound : {false, true}) {
    for (PageIndex page = impl.pool_.LruHead(bound); page != kNoPage;
         page = impl.pool_.hot(page).lru_next) {
      add(page);
    }
  }
  for (PageIndex page = 0; page < impl.pool_.pages_touched(); ++page)
    add(page);

  writer.Put(static_cast<std::uint32_t>(pages.size()));
  for (const PageIndex page : pages) {
    const PageHot& hot = impl.pool_.hot(page);
    const PageCold& cold = impl.pool_.cold(page);
    writer.Put(hot.sealed);
    writer.Put(static_cast<std::uint8_t>((hot.indexed ? kIndexed : 0) |
                                         (hot.has_seal_key ? kHasSealKey : 0) |
                                         (hot.device_weights != kNoWeights ? kDeviceWeights : 0)));
    if (hot.device_weights != kNoWeights) writer.Put(hot.device_weights);
    if (hot.indexed) PutDigest(writer, cold.index_key);
    if (hot.has_seal_key) {
      PutDigest(writer, cold.seal_key);
      writer.Put(cold.seal_version);
    }
    for (std::uint32_t row = 0; row < impl.page_tokens_; ++row) {
      const Stamp stamp = core.stamp(page, row).Load();
      writer.Put(stamp.bits());
      if (stamp.valid()) writer.PutBytes(core.row(page, row), core.row_bytes);
    }
  }

  std::uint32_t entries = 0;
  for (EntryIndex e = 0; e < impl.table_.size(); ++e)
    entries += impl.table_.hot(e).exists ? 1 : 0;
  writer.Put(entries);
  for (EntryIndex e = 0; e < impl.table_.size(); ++e) {
    const Entry& entry = impl.table_.hot(e);
    if (!entry.exists) continue;
    writer.Put(e);
    writer.Put(entry.page == kNoPage ? kNoPage : number_of[entry.page]);
    writer.Put(entry.refs);
    writer.Put(entry.life_start);
    writer.Put(entry.sealed);
    writer.Put(static_cast<std::uint8_t>(entry.reason));
    writer.Put(static_cast<std::uint8_t>(
        (entry.by_key ? kByKey : 0) | (entry.has_seal_key ? kHasSealKey : 0) |
        (entry.sealing ? kSealing : 0) | (entry.found_by_key ? kFoundByKey : 0)));
    if (entry.has_seal_key) {
      PutDigest(writer, impl.table_.cold(e).seal_key);
      writer.Put(impl.table_.cold(e).seal_version);
    }
  }
  return absl::OkStatus();
}

// Loads one section after another. The store's lock is held throughout.
class StoreCheckpoint::Loader {
 public:
  Loader(std::span<const std::uint8_t> bytes, RoutingStore::Impl& impl)
      : reader_(bytes), impl_(impl) {}

  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_.mutex_) {
    if (impl_.last_ != 0 || impl_.pool_.pages_touched() != 0) {
      return Broken("the store is not fresh");
    }
    if (absl::Status status = LoadBase(); !status.ok()) return status;
    if (absl::Status status = LoadSchedule(); !status.ok()) return status;
    const auto count = reader_.Get<std::uint32_t>();
    if (count > impl_.pool_.size()) return Broken("more pages than the store has");
    for (std::uint32_t i = 0; i < count; ++i) {
      if (absl::Status status = LoadPage(); !status.ok()) return status;
    }
    const auto entries = reader_.Get<std::uint32_t>();
    if (entries > impl_.table_.size()) return Broken("more blocks than the store has");
    for (std::uint32_t i = 0; i < entries; ++i) {
      if (absl::Status status = LoadEntry(); !status.ok()) return status;
    }
    if (!reader_.done()) return Broken("its length is wrong");
    // They were pinned until now, so that they are listed in the saved order.
    for (const PageIndex page : pages_)
      impl_.UnpinPage(page);
    return absl::OkStatus();
  }

 private:
  absl::Status LoadBase() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_.mutex_) {
    if (reader_.Get<std::uint32_t>() != kCheckpointMagic) return Broken("unknown magic");
    if (reader_.Get<std::uint32_t>() != impl_.page_tokens_) return Broken("other pages");
    impl_.last_ = reader_.Get<std::uint64_t>();
    if (impl_.last_ == StoreCore::kNoStep) return Broken("its last step is none");
    impl_.base_->base = reader_.Get<std::uint64_t>();
    const auto runs = reader_.Get<std::uint32_t>();
    if (runs > StepBase::kMaxRuns) return Broken("too many versions");
    for (std::uint32_t i = 0; i < runs; ++i) {
      const auto first = reader_.Get<RelStep>();
      const auto version = reader_.Get<std::uint64_t>();
      if (first > kMaxRelStep || (i > 0 && first <= impl_.base_->runs[i - 1].first)) {
        return Broken("versions out of order");
      }
      impl_.base_->runs[i] = {first, version};
    }
    impl_.base_->num_runs.store(runs, std::memory_order_release);
    return reader_.ok() ? absl::OkStatus() : Broken("it ends too soon");
  }

  absl::Status LoadSchedule() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_.mutex_) {
    impl_.schedule_ = reader_.Get<std::uint64_t>();
    impl_.version_ = reader_.Get<std::uint64_t>();
    if (impl_.schedule_ != 0 &&
        (impl_.schedule_ <= impl_.last_ || impl_.schedule_ == StoreCore::kNoStep)) {
      return Broken("its schedule is not open");
    }
    const auto seals = reader_.Get<std::uint32_t>();
    if (seals > reader_.left() / sizeof(Event)) return Broken("it ends too soon");
    for (std::uint32_t i = 0; i < seals; ++i) {
      const auto seal = reader_.Get<Event>();
      if (seal.type != EventType::kSeal || seal.block >= impl_.options_.num_blocks ||
          seal.key_size > BlockKey::kMaxBytes || seal.step != 0) {
        return Broken("an own seal");
      }
      impl_.own_seals_.push_back(seal);
    }
    const auto found = reader_.Get<std::uint32_t>();
    if (found > reader_.left() / (sizeof(std::int32_t) + sizeof(std::uint64_t))) {
      return Broken("it ends too soon");
    }
    for (std::uint32_t i = 0; i < found; ++i) {
      const auto block = reader_.Get<std::int32_t>();
      const auto version = reader_.Get<std::uint64_t>();
      if (block >= impl_.options_.num_blocks) return Broken("a block found by key");
      impl_.found_by_key_.push_back({block, version});
    }
    return reader_.ok() ? absl::OkStatus() : Broken("it ends too soon");
  }

  absl::Status LoadPage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_.mutex_) {
    const PageIndex page = impl_.pool_.Take();
    if (page == kNoPage) return Broken("more pages than the store has");
    pages_.push_back(page);
    impl_.PinPage(page);
    PageHot& hot = impl_.pool_.hot(page);
    PageCold& cold = impl_.pool_.cold(page);
    hot.sealed = reader_.Get<RelStep>();
    const auto flags = reader_.Get<std::uint8_t>();
    if (hot.sealed > kMaxRelStep || (flags & ~(kIndexed | kHasSealKey | kDeviceWeights)) != 0) {
      return Broken("a page's seal");
    }
    if ((flags & kDeviceWeights) != 0) hot.device_weights = reader_.Get<std::uint8_t>();
    if ((flags & kIndexed) != 0) {
      const Digest128 index_key = GetDigest(reader_);
      if (impl_.index_.Find(index_key) != kNoPage) return Broken("two pages under one index key");
      impl_.index_.Insert(index_key, page);
    }
    hot.has_seal_key = (flags & kHasSealKey) != 0;
    if (hot.has_seal_key) {
      cold.seal_key = GetDigest(reader_);
      cold.seal_version = reader_.Get<std::uint64_t>();
    }
    const StoreCore& core = *impl_.core_;
    for (std::uint32_t row = 0; row < impl_.page_tokens_; ++row) {
      const Stamp stamp(reader_.Get<std::uint32_t>());
      // A checkpoint has no pending rows.
      if (stamp.pending() ||
          (!stamp.valid() && (static_cast<int>(stamp.reason()) >= kNumReasons ||
                              stamp.bits() != Stamp::Absent(stamp.reason(), stamp.how()).bits()))) {
        return Broken("a row's stamp");
      }
      if (stamp.valid()) {
        const std::uint8_t* bytes = reader_.Take(core.row_bytes);
        if (bytes == nullptr) return Broken("it ends too soon");
        std::memcpy(core.row(page, row), bytes, core.row_bytes);
      }
      core.stamp(page, row).Store(stamp);
    }
    return reader_.ok() ? absl::OkStatus() : Broken("it ends too soon");
  }

  absl::Status LoadEntry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_.mutex_) {
    const auto e = reader_.Get<EntryIndex>();
    const auto page = reader_.Get<std::uint32_t>();
    const auto refs = reader_.Get<std::int32_t>();
    const auto life_start = reader_.Get<RelStep>();
    const auto sealed = reader_.Get<RelStep>();
    const auto reason = reader_.Get<std::uint8_t>();
    const auto flags = reader_.Get<std::uint8_t>();
    if (!reader_.ok()) return Broken("it ends too soon");
    if (e >= impl_.table_.size() || impl_.table_.hot(e).null || impl_.table_.hot(e).exists) {
      return Broken("a block that is not the store's, or comes twice");
    }
    if (page != kNoPage && page >= pages_.size()) return Broken("a block's page");
    if (refs < 0 || life_start > kMaxRelStep || sealed > kMaxRelStep || reason == 0 ||
        reason >= kNumReasons || (flags & ~(kByKey | kHasSealKey | kSealing | kFoundByKey)) != 0) {
      return Broken("a block's state");
    }
    Entry& entry = impl_.table_.hot(e);
    entry.exists = true;
    entry.refs = refs;
    entry.life_start = life_start;
    entry.sealed = sealed;
    entry.reason = static_cast<Reason>(reason);
    entry.sealing = (flags & kSealing) != 0;
    entry.found_by_key = (flags & kFoundByKey) != 0;
    entry.has_seal_key = (flags & kHasSealKey) != 0;
    if (entry.has_seal_key) {
      impl_.table_.cold(e).seal_key = GetDigest(reader_);
      impl_.table_.cold(e).seal_version = reader_.Get<std::uint64_t>();
    }
    if (page != kNoPage) {
      if (impl_.pool_.hot(pages_[page]).bindings == 0xffff) return Broken("a page's blocks");
      impl_.Attach(e, pages_[page]);
      entry.by_key = (flags & kByKey) != 0;
    }
    return absl::OkStatus();
  }

  ByteReader reader_;
  RoutingStore::Impl& impl_;
  std::vector<PageIndex> pages_;
};

absl::Status StoreCheckpoint::Load(std::span<const std::uint8_t> bytes, RoutingStore& store) {
  RoutingStore::Impl& impl = store.impl();
  const MutexLock lock(impl.mutex_);
  return Loader(bytes, impl).Load();
}

}  // namespace waymark
