#include "blockstore/store/store.h"

#include <algorithm>
#include <bit>
#include <new>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/store/store_impl.h"
#include "blockstore/thread.h"

namespace waymark {
namespace {

absl::Status Bad(std::string_view field, std::string_view rule, std::int64_t value) {
  return absl::InvalidArgumentError(
      absl::StrCat("StoreOptions.", std::string(field), ": ", std::string(rule), ", got ", value));
}

std::uint64_t DrawSeed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device() | 1;
}

std::uint32_t PagesPerBlock(const StoreOptions& options) {
  return static_cast<std::uint32_t>(options.block_tokens / options.shape.page_tokens);
}

}  // namespace

// ---- creation

absl::StatusOr<std::unique_ptr<RoutingStore>> RoutingStore::Create(const StoreOptions& given) {
  StoreOptions options = given;
  if (absl::Status status = options.shape.Validate(); !status.ok()) return status;
  const std::int32_t page_tokens = options.shape.page_tokens;
  if (options.block_tokens == 0) options.block_tokens = page_tokens;
  if (options.block_tokens < 0 || options.block_tokens % page_tokens != 0) {
    return Bad("block_tokens",
               absl::StrCat("must be a multiple of page_tokens (", page_tokens, ")"),
               options.block_tokens);
  }
  if (options.num_blocks < 1) return Bad("num_blocks", "must be at least 1", options.num_blocks);
  const std::int64_t entries = std::int64_t{options.num_blocks} * PagesPerBlock(options);
  if (entries >= std::int64_t{kNoEntry}) {
    return Bad("num_blocks", "times pages a block must be below 2^32 - 1", entries);
  }
  if (options.num_pages == 0) options.num_pages = static_cast<std::uint32_t>(entries);
  if (options.num_pages >= kNoPage) {
    return Bad("num_pages", "must be below 2^32 - 1", options.num_pages);
  }
  if (options.max_steps_in_flight < 1 || options.max_steps_in_flight > 4096) {
    return Bad("max_steps_in_flight", "must be in [1, 4096]", options.max_steps_in_flight);
  }
  if (options.max_step_rows < 1 || options.max_step_rows > (1u << 24)) {
    return Bad("max_step_rows", "must be in [1, 2^24]", options.max_step_rows);
  }
  if (!(options.audit_threshold >= 0 && options.audit_threshold <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "StoreOptions.audit_threshold: must be in [0, 1], got ", options.audit_threshold));
  }
  for (const BlockId block : options.null_blocks) {
    if (block.value() >= options.num_blocks) {
      return Bad("null_blocks", absl::StrCat("must be below num_blocks (", options.num_blocks, ")"),
                 block.value());
    }
  }
  if (absl::Status status = CheckCpus("StoreOptions.landing_cpus", options.landing_cpus);
      !status.ok()) {
    return status;
  }
  if (options.key_seed == 0) options.key_seed = DrawSeed();
  try {
    auto memory = PageMemory::Map(std::size_t{options.num_pages} * options.shape.page_bytes());
    if (!memory.ok()) return memory.status();
    auto core = std::make_shared<StoreCore>(options.shape, *std::move(memory), options.num_pages);
    core->flight = options.flight;
    auto impl = std::make_unique<Impl>(options, std::move(core));
    if (options.landing == Landing::kThread) impl->StartLanding();
    return std::unique_ptr<RoutingStore>(new RoutingStore(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for the tables of a store of ",
                                                     options.num_pages, " pages and ",
                                                     options.num_blocks, " blocks"));
  }
}

RoutingStore::Impl::Impl(const StoreOptions& store_options, std::shared_ptr<StoreCore> shared)
    : options_(store_options),
      core_(std::move(shared)),
      pages_per_block_(PagesPerBlock(store_options)),
      page_tokens_(static_cast<std::uint32_t>(store_options.shape.page_tokens)),
      page_shift_(std::has_single_bit(page_tokens_) ? std::countr_zero(page_tokens_) : -1),
      page_magic_(~std::uint64_t{0} / page_tokens_ + 1),
      num_slots_(std::int64_t{store_options.num_blocks} * store_options.block_tokens),
      key_seed_(store_options.key_seed),
      base_(std::make_shared<StepBase>()),
      spare_base_(std::make_shared<StepBase>()),
      pool_(store_options.num_pages),
      table_(static_cast<std::size_t>(store_options.num_blocks) * PagesPerBlock(store_options)),
      index_(pool_) {
  const std::size_t rows = options_.max_step_rows;
  const std::size_t sides = std::max<std::size_t>(256, rows / 4);
  for (std::uint32_t i = 0; i < options_.max_steps_in_flight; ++i) {
    auto record = std::make_unique<StepRecord>();
    record->claims.resize(rows);
    if (options_.device_slots) {
      record->range.resize(rows);
      record->step_row.resize(rows);
    }
    record->copies.reserve(sides);
    if (options_.device_slots) record->pages.Reserve(rows + record->copies.capacity());
    record->ignored.reserve(sides);
    free_records_.push_back(record.get());
    records_.push_back(std::move(record));
  }
  active_.reserve(records_.size());
  submitted_.reserve(records_.size());
  page_copies_.reserve(4096);
  running_copies_.reserve(4096);
  second_seals_.reserve(256);
  contending_.reserve(rows);
  device_range_.reserve(options_.device_slots ? rows : 0);
  own_seals_.reserve(rows);
  found_by_key_.reserve(rows);
  moved_.reserve(1024);
  move_blocks_.reserve(1024);
  free_states_.reserve(1024);
  side_scratch_.reserve(sides);
  destinations_.resize(64);
  verdicts_.resize(64);
  row_scratch_.resize(core_->row_bytes);
  for (const BlockId block : options_.null_blocks) {
    if (block.value() < 0) continue;
    for (std::uint32_t ordinal = 0; ordinal < pages_per_block_; ++ordinal) {
      table_.hot(static_cast<EntryIndex>(block.value()) * pages_per_block_ + ordinal).null = true;
    }
  }
}

RoutingStore::Impl::~Impl() {
  StopLanding();
  for (;;) {
    // A submitted device step can land once the open steps before it have been dropped.
    while (LandNext()) {
    }
    RunCopies();
    std::uint64_t step = 0;
    {
      const MutexLock lock(mutex_);
      if (active_.empty()) break;
      step = active_.front()->step;
    }
    (void)End(step, StepEnd::kDrop);
  }
}

// ---- reading

absl::StatusOr<SnapshotState*> RoutingStore::Impl::TakeSnapshot(std::span<const BlockId> blocks,
                                                                std::int64_t first,
                                                                std::int64_t last) {
  const std::int64_t block_tokens = options_.block_tokens;
  const std::int64_t limit = static_cast<std::int64_t>(blocks.size()) * block_tokens;
  if (first < 0 || first > last || last > limit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TakeSnapshot: rows [", first, ", ", last, ") must satisfy 0 <= first <= last <= ", limit,
        " (", blocks.size(), " blocks of ", block_tokens, " tokens)"));
  }
  const std::int64_t page_tokens = page_tokens_;
  const std::int64_t begin = first / page_tokens;
  const std::int64_t end = first == last ? begin : (last + page_tokens - 1) / page_tokens;
  const std::int64_t pages_per_block = pages_per_block_;
  for (std::int64_t i = begin / pages_per_block; i * pages_per_block < end; ++i) {
    const std::int32_t block = blocks[static_cast<std::size_t>(i)].value();
    if (block >= options_.num_blocks) {
      return absl::InvalidArgumentError(absl::StrCat("TakeSnapshot: blocks[", i,
                                                     "] must be below num_blocks (",
                                                     options_.num_blocks, "), got ", block));
    }
  }
  const MutexLock lock(mutex_);
  SnapshotState* state = nullptr;
  if (free_states_.empty()) {
    core_->states.push_back(std::make_unique<SnapshotState>());
    state = core_->states.back().get();
  } else {
    state = free_states_.back();
    free_states_.pop_back();
  }
  state->base = base_;
  state->first = first;
  state->last = last;
  state->upto = last_;
  state->copies = copies_queued_;
  state->read_id = ++snapshots_;
  ++snapshots_live_;
  state->pages.resize(static_cast<std::size_t>(end - begin));
  // Entries and page records are not in the cache. Groups of pages go through three passes, which
  // prefetch for one another: find the entries, copy them, pin their pages.
  constexpr std::size_t kGroup = 16;
  const std::span<SnapshotPage> out(state->pages);
  EntryIndex found[2][kGroup];
  const BlockId* block = blocks.data() + begin / pages_per_block;
  auto ordinal = static_cast<std::uint32_t>(begin % pages_per_block);
  for (std::size_t at = 0; at < out.size() + 2 * kGroup; at += kGroup) {
    EntryIndex* const finding = found[at / kGroup % 2];
    const std::size_t found_end = std::min(at + kGroup, out.size());
    for (std::size_t i = at; i < found_end; ++i) {
      const std::int32_t id = block->value();
      const EntryIndex e =
          id < 0 ? kNoEntry : static_cast<EntryIndex>(id) * pages_per_block_ + ordinal;
      finding[i - at] = e;
      if (e != kNoEntry) table_.Prefetch(e);
      if (++ordinal == pages_per_block_) {
        ordinal = 0;
        ++block;
      }
    }
    if (at < kGroup) continue;
    const std::size_t copying = at - kGroup;
    const EntryIndex* const entries = found[copying / kGroup % 2];
    const std::size_t copied_end = std::min(at, out.size());
    for (std::size_t i = copying; i < copied_end; ++i) {
      out[i] = SnapshotPage{};
      if (entries[i - copying] == kNoEntry) continue;
      const Entry& entry = table_.hot(entries[i - copying]);
      if (!entry.exists) continue;
      out[i] = {entry.page, entry.reason, entry.by_key};
      if (entry.page != kNoPage) __builtin_prefetch(&pool_.hot(entry.page), 1);
    }
    if (at < 2 * kGroup) continue;
    const std::size_t marked_end = std::min(copying, out.size());
    for (std::size_t i = at - 2 * kGroup; i < marked_end; ++i) {
      if (out[i].page == kNoPage) continue;
      PageHot& hot = pool_.hot(out[i].page);
      ++hot.snapshots;
      out[i].copied = hot.copied;
      // The snapshot may see only a part of its last page.
      const std::int64_t seen = i + 1 < out.size() ? page_tokens : last - (end - 1) * page_tokens;
      hot.high_water = std::max(hot.high_water, static_cast<std::uint16_t>(seen));
    }
  }
  if (core_->flight != nullptr) core_->flight->OnSnapshot(state->read_id, blocks, first, last);
  return state;
}

std::int64_t RoutingStore::Impl::CoveredPrefix(std::span<const BlockId> blocks, std::int64_t rows) {
  const MutexLock lock(mutex_);
  std::int64_t covered = 0;
  for (const BlockId block : blocks) {
    if (block.value() >= options_.num_blocks) return covered;
    const EntryIndex first = FirstEntry(block.value());
    if (first == kNoEntry) return covered;
    for (EntryIndex e = first; e < first + pages_per_block_; ++e) {
      const Entry& entry = table_.hot(e);
      if (!entry.exists || entry.page == kNoPage) return covered;
      for (std::uint32_t row = 0; row < page_tokens_; ++row) {
        if (covered == rows || (!core_->stamp(entry.page, row).Load().live() &&
                                !ClaimedByDeviceStep(entry.page, row, kMaxRelStep))) {
          return covered;
        }
        ++covered;
      }
    }
  }
  return covered;
}

absl::Status RoutingStore::Impl::WaitIdle(std::chrono::nanoseconds timeout) {
  std::uint64_t upto = 0;
  std::uint64_t copies = 0;
  if (!thread_.joinable()) {
    while (LandNext()) {
    }
    RunCopies();
  }
  {
    const MutexLock lock(mutex_);
    upto = last_;
    copies = copies_queued_;
  }
  if (thread_.joinable() ? core_->WaitReached(upto, copies, timeout)
                         : core_->Reached(upto, copies)) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "WaitIdle: steps up to ", upto, " had not all ended after ", timeout.count(), " ns"));
}

Stats RoutingStore::Impl::GetStats() {
  Stats stats;
  {
    const MutexLock lock(mutex_);
    stats = stats_;
    stats.pages = pool_.size();
    stats.pages_in_use = pool_.in_use();
    stats.pages_in_use_peak = pool_.in_use_peak();
    stats.snapshots_taken = snapshots_;
    stats.snapshots_live = snapshots_live_;
  }
  const std::uint64_t per_page = sizeof(PageHot) + sizeof(PageCold) + 7;
  stats.bytes =
      stats.pages * (core_->shape.page_bytes() + 4 * std::uint64_t{page_tokens_} + per_page) +
      std::uint64_t{table_.size()} * (sizeof(Entry) + sizeof(EntryCold));
  stats.bytes_touched_peak =
      stats.bytes - (stats.pages - stats.pages_in_use_peak) * core_->shape.page_bytes();
  const MutexLock lock(experts_mutex_);
  stats.experts = experts_;
  return stats;
}

std::vector<AuditFinding> RoutingStore::Impl::TakeFindings() {
  const MutexLock lock(mutex_);
  std::vector<AuditFinding> findings(findings_.begin(), findings_.end());
  findings_.clear();
  return findings;
}

// ---- the public functions

RoutingStore::RoutingStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RoutingStore::~RoutingStore() = default;

StepCode RoutingStore::Schedule(StepId step, std::uint64_t version) {
  return impl_->Schedule(step.value(), version);
}
StepCode RoutingStore::Report(std::span<const Event> events) {
  return impl_->Report(events);
}
StepCode RoutingStore::BeginStep(const StepBatch& batch) {
  return impl_->BeginStep(batch);
}
StepCode RoutingStore::Submit(StepId step, StepRows* rows) {
  return impl_->Submit(step.value(), rows);
}
StepCode RoutingStore::Drop(StepId step) {
  return impl_->End(step.value(), StepEnd::kDrop);
}
StepCode RoutingStore::Cancel(StepId step) {
  return impl_->End(step.value(), StepEnd::kCancel);
}

absl::StatusOr<Snapshot> RoutingStore::TakeSnapshot(std::span<const BlockId> blocks,
                                                    std::int64_t first, std::int64_t last) {
  absl::StatusOr<SnapshotState*> state = impl_->TakeSnapshot(blocks, first, last);
  if (!state.ok()) return state.status();
  return Snapshot(impl_->core(), *state);
}

std::int64_t RoutingStore::CoveredPrefix(std::span<const BlockId> blocks, std::int64_t rows) const {
  return impl_->CoveredPrefix(blocks, rows);
}

bool RoutingStore::LandOne() {
  return options().landing == Landing::kCaller && impl_->LandNext();
}
bool RoutingStore::Land(StepId step) {
  return options().landing == Landing::kCaller && step.valid() && impl_->LandNext(step.value());
}
absl::Status RoutingStore::WaitIdle(std::chrono::nanoseconds timeout) {
  return impl_->WaitIdle(timeout);
}

Stats RoutingStore::GetStats() const {
  return impl_->GetStats();
}
std::vector<AuditFinding> RoutingStore::TakeFindings() {
  return impl_->TakeFindings();
}
const StoreOptions& RoutingStore::options() const {
  return impl_->options();
}
StepId RoutingStore::last_step() const {
  return StepId(impl_->last_step());
}

absl::StatusOr<Snapshot> Cursor::Next(RoutingStore& store, std::span<const BlockId> blocks,
                                      std::int64_t last) {
  absl::StatusOr<Snapshot> snapshot = store.TakeSnapshot(blocks, next_, last);
  if (snapshot.ok()) next_ = last;
  return snapshot;
}

}  // namespace waymark
