#include "blockstore/store/store.h"

#include <sys/resource.h>

#include <algorithm>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/digest.h"
#include "blockstore/exception_status.h"
#include "blockstore/step_path.h"
#include "blockstore/store/agreement.h"
#include "blockstore/store/store_impl.h"
#include "blockstore/thread.h"

namespace waymark {
namespace {

constexpr std::size_t kLogBytes = std::size_t{8} << 20;
constexpr std::size_t kCallerLogBytes = std::size_t{64} << 10;  // each call applies its records
constexpr std::size_t kOverflowBytes = 8 * kLogBytes;           // a batch may be large, too
constexpr std::size_t kStepOverhead = 4096;                     // events, among others

absl::Status Bad(std::string_view field, std::string_view rule, std::int64_t value) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(field), ": ", std::string(rule), ", got ", value));
}

LogLimits LogLimitsOf(const StoreOptions& options) {
  LogLimits limits;
  limits.slots = {options.num_blocks, options.block_tokens, options.max_step_rows};
  limits.max_steps_in_flight = options.max_steps_in_flight;
  const bool lags = options.landing == Landing::kThread;
  const std::size_t wanted = options.log_bytes != 0 ? options.log_bytes
                             : lags                 ? kLogBytes
                                                    : kCallerLogBytes;
  // Tests of a log that is full want it small.
  const std::size_t overhead = options.landing == Landing::kManual ? 0 : kStepOverhead;
  const std::size_t step = MaxEncodedBytes(options.max_step_rows, limits.slots) + overhead;
  limits.ring_bytes = (std::max(wanted, 4 * step) + 63) / 64 * 64;
  limits.overflow_bytes =
      std::max(8 * limits.ring_bytes, options.log_bytes != 0 ? std::size_t{0} : kOverflowBytes);
  return limits;
}

absl::Status Forked() {
  constexpr StepCode kForked{static_cast<std::int32_t>(absl::StatusCode::kFailedPrecondition),
                             StepRule::kForked, 0, 0};
  return kForked.ToStatus();
}

std::uint32_t PagesPerBlock(const StoreOptions& options) {
  return static_cast<std::uint32_t>(options.block_tokens / options.shape.page_tokens);
}

// The store touches its tables as it makes them, and its pages when rows come. If they were refused
// in the middle, seconds would have passed and memory of others would be gone.
absl::Status CheckMemory(const StoreOptions& options) {
  const std::uint64_t page_tokens = static_cast<std::uint64_t>(options.shape.page_tokens);
  const auto blocks = static_cast<std::uint64_t>(options.num_blocks);
  const std::uint64_t entries = blocks * PagesPerBlock(options);
  const std::uint64_t pages = options.num_pages, spare = *options.spare_pages;
  const std::uint64_t record = sizeof(PageHot) + sizeof(PageCold) + sizeof(StampCell) * page_tokens;
  const std::uint64_t tables = entries * BlockTable::kEntryBytes + pages * (record + 7);
  // 2^61 bytes at most for the pages.
  const std::uint64_t reserved =
      tables + spare * record + (pages + spare) * options.shape.page_bytes() +
      blocks * sizeof(Event) + entries * sizeof(EntryIndex);  // EventApplier
  const std::string refused = absl::StrCat("num_blocks: ", blocks, " blocks, with num_pages ",
                                           pages, " and spare_pages ", spare, ", ");
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      reserved > limit.rlim_cur) {
    return absl::ResourceExhaustedError(absl::StrCat(refused, "reserve at least ", reserved,
                                                     " bytes; the process may have ",
                                                     limit.rlim_cur, " bytes (RLIMIT_AS)"));
  }
  const std::uint64_t used = tables + pages * options.shape.page_bytes(), here = MemoryHere();
  if (used > here) {
    return absl::InvalidArgumentError(absl::StrCat(
        refused, "need ", used, " bytes, which must fit into the memory here, ", here, " bytes"));
  }
  return absl::OkStatus();
}

// Fills in the defaults of blocks and pages. InvalidArgument naming the field, the rule and the
// value, as the next one.
absl::Status CompletePages(StoreOptions& options) {
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
  const std::uint32_t most_spare = kNoPage - 1 - options.num_pages;
  if (!options.spare_pages) options.spare_pages = std::min(options.num_pages, most_spare);
  if (*options.spare_pages > most_spare) {
    return Bad("spare_pages",
               absl::StrCat("and num_pages (", options.num_pages, ") must be below 2^32 - 1"),
               *options.spare_pages);
  }
  return absl::OkStatus();
}

absl::Status CompleteSteps(StoreOptions& options) {
  if (options.max_steps_in_flight < 1 || options.max_steps_in_flight > 4096) {
    return Bad("max_steps_in_flight", "must be in [1, 4096]", options.max_steps_in_flight);
  }
  if (options.max_step_rows < 1 || options.max_step_rows > (1u << 24)) {
    return Bad("max_step_rows", "must be in [1, 2^24]", options.max_step_rows);
  }
  for (const auto& [field, time] : {std::pair("teardown_timeout", options.teardown_timeout),
                                    std::pair("overdue_after", options.overdue_after),
                                    std::pair("ids_timeout", options.ids_timeout)}) {
    if (time.count() < 0) return Bad(field, "must be at least 0 ns", time.count());
  }
  if (!options.audit_threshold) options.audit_threshold = DefaultAuditThreshold(options.shape);
  const double threshold = *options.audit_threshold;
  const double chance = ChanceAgreement(options.shape);
  if (threshold != 0 && !(threshold > chance && threshold <= 1) && !(threshold == 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "audit_threshold: must be above top_k / num_experts = ", chance,
        ", on which different tokens agree by chance, and at most 1; got ", threshold));
  }
  for (const BlockId block : options.null_blocks) {
    if (block.value() >= options.num_blocks) {
      return Bad("null_blocks", absl::StrCat("must be below num_blocks (", options.num_blocks, ")"),
                 block.value());
    }
  }
  return CheckCpus("landing_cpus", options.landing_cpus);
}

// Checks rows [first, last) of the sequence whose KV is in `blocks`, and returns the blocks that
// have a row of them; `*skipped` is the number of those before. InvalidArgument naming the
// argument, the rule and the value.
WAYMARK_STEP_PATH absl::StatusOr<std::span<const BlockId>> BlocksOfRows(
    std::span<const BlockId> blocks, std::int64_t first, std::int64_t last,
    const StoreOptions& options, std::uint32_t* skipped) {
  const std::int64_t tokens = options.block_tokens;
  const auto rows = static_cast<std::int64_t>(blocks.size()) * tokens;
  if (first < 0 || first > last || last > rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rows [first, last) must satisfy 0 <= first <= last <= ", rows, " (", blocks.size(),
        " blocks of ", tokens, " tokens); they are [", first, ", ", last, ")"));
  }
  const auto end = static_cast<std::size_t>((last + tokens - 1) / tokens);
  const std::size_t begin = first == last ? end : static_cast<std::size_t>(first / tokens);
  *skipped = static_cast<std::uint32_t>(begin);
  const std::span<const BlockId> needed = blocks.subspan(begin, end - begin);
  // Without a branch per block: the lists are long.
  BlockId greatest;
  for (const BlockId block : needed)
    greatest = std::max(greatest, block);
  if (greatest.value() < options.num_blocks) return needed;
  const auto bad = std::find_if(needed.begin(), needed.end(), [&options](BlockId block) {
    return block.value() >= options.num_blocks;
  });
  return absl::InvalidArgumentError(
      absl::StrCat("blocks[", begin + static_cast<std::size_t>(bad - needed.begin()),
                   "] must be negative (null) or less than num_blocks, ", options.num_blocks,
                   "; it is ", bad->value()));
}

}  // namespace

// ---- creation

absl::StatusOr<std::unique_ptr<RoutingStore>> RoutingStore::Create(const StoreOptions& given) {
  return Guarded("RoutingStore::Create", [&] { return Make(given); });
}

absl::StatusOr<std::unique_ptr<RoutingStore>> RoutingStore::Make(const StoreOptions& given) {
  StoreOptions options = given;
  if (absl::Status status = CompletePages(options); !status.ok()) return status;
  if (absl::Status status = CompleteSteps(options); !status.ok()) return status;
  if (absl::Status status = CheckMemory(options); !status.ok()) return status;
  options.shape.Normalize();
  if (options.key_seed == 0 && options.flight != nullptr) {
    options.key_seed = options.flight->key_seed();
  }
  if (options.key_seed == 0) options.key_seed = DrawSeed();
  try {
    const std::size_t pages = std::size_t{options.num_pages} + *options.spare_pages;
    auto memory = PageMemory::Map(pages * options.shape.page_bytes());
    if (!memory.ok()) return memory.status();
    auto core = std::make_shared<StoreCore>(options.shape, *std::move(memory), options.num_pages,
                                            *options.spare_pages);
    core->flight = options.flight;
    auto log = StoreLog::Create(LogLimitsOf(options), core->guard);
    if (!log.ok()) return log.status();
    auto impl = std::make_shared<Impl>(options, std::move(core), *std::move(log));
    std::unique_ptr<RoutingStore> store(new RoutingStore(impl));
    if (options.landing == Landing::kThread) {
      if (absl::Status status = impl->lander_.Start(impl); !status.ok()) return status;
    }
    return store;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the tables of a store of ", options.num_pages, " pages, ",
                     *options.spare_pages, " spare pages and ", options.num_blocks, " blocks"));
  }
}

RoutingStore::Impl::Impl(const StoreOptions& store_options, std::shared_ptr<StoreCore> shared,
                         StoreLog::Pointer log)
    : options_(store_options),
      core_(std::move(shared)),
      log_(std::move(log)),
      pages_(options_, *core_, stats_),
      events_(options_, pages_, stats_),
      applier_(options_, *core_, *log_, pages_, events_, stats_),
      lander_(options_, *core_, mutex_, pages_, stats_, *log_, applier_) {}

RoutingStore::Impl::~Impl() {
  lander_.Finish();
  (void)log_->SettleLoss();  // there is room now
  lander_.Finish();
}

// ---- what appends a record

RoutingStore::RoutingStore(std::shared_ptr<Impl> impl)
    : impl_(std::move(impl)), log_(impl_->log_.get()), landing_(impl_->options_.landing) {}
RoutingStore::~RoutingStore() {
  impl_->lander_.Stop();
  // The holders of the locks are in the parent.
  if (impl_->forked()) new std::shared_ptr<Impl>(std::move(impl_));  // never destroyed
}

WAYMARK_STEP_PATH void RoutingStore::Impl::Published(const StepCode& code, bool wake) {
  if (!code.ok() && !code.dropped()) return;  // nothing was appended, or lost
  if (options_.landing == Landing::kCaller) {
    // A second thread, whose call comes between, does not apply beside this one.
    const StoreLog::Turn turn(*log_);
    if (turn.taken()) lander_.ApplyLog();
  } else if (options_.landing == Landing::kThread && wake) {
    lander_.WakeForRecords();
  }
}

// A landing thread that sleeps need not know of records before the end of a step.
WAYMARK_STEP_PATH void RoutingStore::Reported(const StepCode& code) {
  if (landing_ == Landing::kCaller) impl_->Published(code, /*wake=*/false);
}
WAYMARK_STEP_PATH void RoutingStore::Ended(const StepCode& code) {
  if (landing_ != Landing::kManual) impl_->Published(code, /*wake=*/true);
}

WAYMARK_STEP_PATH StepCode RoutingStore::Schedule(StepId step, std::uint64_t version) {
  const StepCode code = log_->Schedule(step.value(), version);
  Reported(code);
  return code;
}
WAYMARK_STEP_PATH StepCode RoutingStore::Report(std::span<const Event> events) {
  const StepCode code = log_->Report(events);
  Reported(code);
  return code;
}
WAYMARK_STEP_PATH StepCode RoutingStore::BeginStep(const StepBatch& batch) {
  const StepCode code = log_->Begin(batch);
  Reported(code);
  return code;
}
StepCode RoutingStore::LoseRows() {
  const StepCode code = log_->LoseRecords();
  Reported(code);
  return code;
}
WAYMARK_STEP_PATH StepCode RoutingStore::Submit(StepId step, StepRows* rows) {
  const StepCode code = log_->Submit(step.value(), rows);
  if (!code.ok()) impl_->core_->CallDone(rows);
  Ended(code);
  return code;
}
WAYMARK_STEP_PATH StepCode RoutingStore::Drop(StepId step, bool no_room) {
  const StepCode code = log_->End(step.value(), StepEnd::kDrop, no_room);
  Ended(code);
  return code;
}
WAYMARK_STEP_PATH StepCode RoutingStore::Cancel(StepId step) {
  const StepCode code = log_->End(step.value(), StepEnd::kCancel);
  Ended(code);
  return code;
}

// No lambda, which would not be on the step path's pages.
WAYMARK_STEP_PATH absl::StatusOr<Snapshot> RoutingStore::TakeSnapshot(
    std::span<const BlockId> blocks, std::int64_t first, std::int64_t last,
    const SnapshotOwner& owner) try {
  SnapshotRecord record{.first = first, .last = last};
  const auto needed = BlocksOfRows(blocks, first, last, options(), &record.skipped);
  if (!needed.ok()) return needed.status();
  if (!owner.given() && !owner.keys.empty())
    return absl::InvalidArgumentError(absl::StrCat("keys: only with last_step above 0, got ",
                                                   owner.keys.size(), " keys and last_step 0"));
  {
    const StoreLog::Turn turn(*log_);
    if (!turn.taken()) return turn.refusal().ToStatus();
    record.state = impl_->TakeTicket(first, last);
    if (record.state == nullptr) {
      return absl::ResourceExhaustedError("no memory for one more snapshot");
    }
    if (!log_->TakeSnapshot(turn, record, *needed, owner).ok()) impl_->LoseSnapshot(record.state);
  }
  impl_->Published({}, /*wake=*/true);
  return Snapshot(impl_->core_, record.state);
} catch (...) {
  return ExceptionStatus("TakeSnapshot");
}

WAYMARK_STEP_PATH SnapshotState* RoutingStore::Impl::TakeTicket(std::int64_t first,
                                                                std::int64_t last) try {
  if (tickets_ == nullptr) {
    tickets_ = core_->free_tickets.exchange(nullptr, std::memory_order_acquire);
  }
  if (tickets_ == nullptr) {
    core_->tickets.push_back(std::make_unique<SnapshotState>());
    tickets_ = core_->tickets.back().get();
  }
  SnapshotState* const state = std::exchange(tickets_, tickets_->next_free);
  state->first = first;
  state->last = last;
  state->lost = Cause::kNone;
  state->ticket.Take();
  return state;
} catch (const std::bad_alloc&) {
  return nullptr;
}

void RoutingStore::Impl::LoseSnapshot(SnapshotState* state) {
  state->pages.clear();
  state->read_id = 0;
  state->lost = Cause::kLogFull;
  if (state->ticket.Apply()) core_->FreeTicket(state);
  snapshots_without_room_.fetch_add(1, std::memory_order_relaxed);
}

bool RoutingStore::LandOne() {
  return options().landing != Landing::kThread && !impl_->forked() && impl_->lander_.LandNext();
}
bool RoutingStore::Land(StepId step) {
  return options().landing != Landing::kThread && step.valid() && !impl_->forked() &&
         impl_->lander_.LandNext(step.value());
}
std::size_t RoutingStore::Apply(std::size_t records) {
  if (options().landing != Landing::kManual || impl_->forked()) return 0;
  return impl_->lander_.ApplyLog(records);
}
absl::Status RoutingStore::WaitIdle(std::chrono::nanoseconds timeout) {
  return Guarded("WaitIdle", [&]() -> absl::Status {
    if (forked()) return Forked();
    Impl& impl = *impl_;
    const auto empty = [&] { return !impl.log_->HasRecords(); };
    bool idle = false;
    if (impl.lander_.has_thread()) {
      impl.lander_.Wake();  // events alone do not
      idle = impl.core_->WaitUntil(empty, timeout);
    } else {
      const auto deadline = std::chrono::steady_clock::now() + Clamped(timeout);
      idle = impl.lander_.ApplyAll(deadline);
      if (idle && impl.log_->SettleLoss())
        idle = impl.lander_.ApplyAll(deadline);  // there is room now
    }
    if (impl.core_->failure.failed()) return impl.core_->failure.status();
    if (idle) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat("WaitIdle: the log was not empty after ",
                                                    timeout.count(), " ns",
                                                    impl.core_->waiting_step->ToString()));
  });
}

std::shared_ptr<const WaitingStep> RoutingStore::waiting_step() const {
  return impl_->core_->waiting_step;
}

// ---- the state, as far as the log was applied

std::int64_t RoutingStore::CoveredPrefix(std::span<const BlockId> blocks, std::int64_t rows) const {
  Impl& impl = *impl_;
  if (impl.forked()) return 0;
  const MutexLock lock(impl.mutex_);
  std::int64_t covered = 0;
  if (impl.core_->failure.failed()) return covered;
  for (const BlockId block : blocks) {
    if (block.value() >= impl.options_.num_blocks) return covered;
    const EntryIndex first = impl.pages_.FirstEntry(block.value());
    if (first == kNoEntry) return covered;
    for (EntryIndex e = first; e < first + impl.pages_.pages_per_block(); ++e) {
      const Entry& entry = impl.pages_.table().hot(e);
      if (!entry.exists || entry.page == kNoPage) return covered;
      for (std::uint32_t row = 0; row < impl.pages_.page_tokens(); ++row) {
        if (covered == rows || !impl.pages_.stamp(entry.page, row).Load().valid()) return covered;
        ++covered;
      }
    }
  }
  return covered;
}

Stats RoutingStore::GetStats() const {
  Impl& impl = *impl_;
  Stats stats;
  if (impl.forked()) return stats;
  std::uint64_t entries = 0;
  {
    const MutexLock lock(impl.mutex_);
    stats = impl.stats_;
    entries = impl.pages_.table().size();
    stats.pages = impl.pages_.pool().pages();
    stats.spare_pages = impl.pages_.pool().size() - impl.pages_.pool().pages();
    stats.pages_in_use = impl.pages_.pool().in_use();
    stats.pages_in_use_peak = impl.pages_.pool().in_use_peak();
    stats.pages_detached = impl.pages_.pool().detached();
    stats.pages_detached_peak = impl.pages_.pool().detached_peak();
    stats.snapshots_taken = impl.pages_.snapshots_taken();
    stats.snapshots_live = impl.pages_.snapshots_live();
  }
  const std::uint64_t page_bytes = impl.core_->shape.page_bytes();
  const std::uint64_t records = sizeof(PageHot) + sizeof(PageCold) +
                                sizeof(StampCell) * std::uint64_t{impl.core_->page_tokens};
  const std::uint64_t pages = stats.pages + stats.spare_pages;
  stats.bytes =
      pages * (page_bytes + records) + stats.pages * 7 + entries * BlockTable::kEntryBytes;
  stats.bytes_touched_peak = stats.bytes - (pages - stats.pages_in_use_peak) * page_bytes -
                             (pages - std::max(stats.pages, stats.pages_in_use_peak)) * records;
  stats.snapshots_lost += impl.snapshots_without_room_.load(std::memory_order_relaxed);
  stats.steps_ahead = impl.lander_.told().fetched();
  stats.exceptions = impl.core_->exceptions.load(std::memory_order_relaxed);
  try {
    stats.failure = impl.core_->failure.text();
  } catch (const std::bad_alloc&) {  // then without them
  }
  return stats;
}

absl::Status RoutingStore::status() const {
  return Guarded("status",
                 [&] { return impl_->forked() ? Forked() : impl_->core_->failure.status(); });
}
bool RoutingStore::forked() const {
  return impl_->forked();
}
std::vector<AuditFinding> RoutingStore::TakeFindings() {
  std::vector<AuditFinding> findings = TakeEachFinding();
  try {
    return MergeCauses(findings);
  } catch (const std::bad_alloc&) {
    return findings;
  }
}
std::vector<AuditFinding> RoutingStore::TakeEachFinding() {
  if (impl_->forked()) return {};
  return impl_->lander_.audit().TakeFindings();
}
const StoreOptions& RoutingStore::options() const {
  return impl_->options_;
}
StepId RoutingStore::last_step() const {
  return StepId(impl_->log_->last_step());
}

}  // namespace waymark
