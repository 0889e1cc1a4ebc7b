#include "blockstore/store/store.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <optional>
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
      absl::StrCat("StoreOptions.", std::string(field), ": ", std::string(rule), ", got ", value));
}

LogLimits LogLimitsOf(const StoreOptions& options) {
  LogLimits limits;
  limits.slots = {options.num_blocks, options.block_tokens, options.max_step_rows};
  limits.max_steps_in_flight = options.max_steps_in_flight;
  limits.device_slots = options.device_slots;
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

// The store touches its tables as it makes them. If they were refused in the middle, seconds would
// have passed and memory of others would be gone.
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
  const auto refused = [&](const char* verb, std::uint64_t bytes, const std::string& limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "StoreOptions.num_blocks: ", blocks, " blocks, with num_pages ", pages, " and spare_pages ",
        spare, ", ", verb, " at least ", bytes, " bytes; ", limit));
  };
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      reserved > limit.rlim_cur) {
    return refused("reserve", reserved,
                   absl::StrCat("the process may have ", limit.rlim_cur, " bytes (RLIMIT_AS)"));
  }
  const long system_pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  const auto machine =
      static_cast<std::uint64_t>(system_pages) * static_cast<std::uint64_t>(page_bytes);
  if (system_pages > 0 && page_bytes > 0 && tables > machine) {
    return refused("have tables of", tables, absl::StrCat("the machine has ", machine));
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
  if (options.max_tagged_snapshots < 1 || options.max_tagged_snapshots > (1u << 20)) {
    return Bad("max_tagged_snapshots", "must be in [1, 2^20]", options.max_tagged_snapshots);
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
        "StoreOptions.audit_threshold: must be above top_k / num_experts = ", chance,
        ", on which different tokens agree by chance, and at most 1; got ", threshold));
  }
  for (const BlockId block : options.null_blocks) {
    if (block.value() >= options.num_blocks) {
      return Bad("null_blocks", absl::StrCat("must be below num_blocks (", options.num_blocks, ")"),
                 block.value());
    }
  }
  return CheckCpus("StoreOptions.landing_cpus", options.landing_cpus);
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
    auto impl = std::make_unique<Impl>(options, std::move(core), *std::move(log));
    if (options.landing == Landing::kThread) {
      if (absl::Status status = impl->lander().Start(); !status.ok()) return status;
    }
    return std::unique_ptr<RoutingStore>(new RoutingStore(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the tables of a store of ", options.num_pages, " pages, ",
                     *options.spare_pages, " spare pages and ", options.num_blocks, " blocks"));
  }
}

// ---- the public functions

RoutingStore::RoutingStore(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)), log_(&impl_->log()), landing_(impl_->options().landing) {}
RoutingStore::~RoutingStore() {
  // The landing thread and the holders of the locks are in the parent.
  if (impl_->forked()) (void)impl_.release();
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
WAYMARK_STEP_PATH StepCode RoutingStore::Submit(StepId step, StepRows* rows) {
  const StepCode code = log_->Submit(step.value(), rows);
  if (!code.ok()) impl_->core()->CallDone(rows);
  Ended(code);
  return code;
}
WAYMARK_STEP_PATH StepCode RoutingStore::Drop(StepId step) {
  const StepCode code = log_->End(step.value(), StepEnd::kDrop);
  Ended(code);
  return code;
}
WAYMARK_STEP_PATH StepCode RoutingStore::Cancel(StepId step) {
  const StepCode code = log_->End(step.value(), StepEnd::kCancel);
  Ended(code);
  return code;
}

WAYMARK_STEP_PATH absl::StatusOr<Snapshot> RoutingStore::TakeSnapshot(
    std::span<const BlockId> blocks, std::int64_t first, std::int64_t last) {
  return Guarded("TakeSnapshot", [&]() -> absl::StatusOr<Snapshot> {
    absl::StatusOr<SnapshotState*> state = impl_->TakeSnapshot(blocks, first, last);
    if (!state.ok()) return state.status();
    return Snapshot(impl_->core(), *state);
  });
}

std::int64_t RoutingStore::CoveredPrefix(std::span<const BlockId> blocks, std::int64_t rows) const {
  return impl_->forked() ? 0 : impl_->CoveredPrefix(blocks, rows);
}

WAYMARK_STEP_PATH absl::Status RoutingStore::ReportMessage(std::span<const std::uint8_t> message,
                                                           std::vector<std::uint64_t>* tags) {
  return Guarded("ReportMessage",
                 [&] { return impl_->forked() ? Forked() : impl_->ReportMessage(message, tags); });
}
absl::StatusOr<Snapshot> RoutingStore::TakeTagged(std::uint64_t tag) {
  return Guarded("TakeTagged", [&]() -> absl::StatusOr<Snapshot> {
    if (impl_->forked()) return Forked();
    std::optional<Snapshot> snapshot = impl_->tagged().Take(tag);
    if (snapshot.has_value()) return *std::move(snapshot);
    return absl::NotFoundError(absl::StrCat("TakeTagged: no snapshot waits under tag ", tag));
  });
}
void RoutingStore::ForgetTag(std::uint64_t tag) {
  if (!impl_->forked()) (void)impl_->tagged().Take(tag);
}

bool RoutingStore::LandOne() {
  return options().landing != Landing::kThread && !impl_->forked() && impl_->lander().LandNext();
}
bool RoutingStore::Land(StepId step) {
  return options().landing != Landing::kThread && step.valid() && !impl_->forked() &&
         impl_->lander().LandNext(step.value());
}
std::size_t RoutingStore::Apply(std::size_t records) {
  if (options().landing != Landing::kManual || impl_->forked()) return 0;
  return impl_->lander().ApplyLog(records);
}
absl::Status RoutingStore::WaitIdle(std::chrono::nanoseconds timeout) {
  return Guarded("WaitIdle", [&] { return impl_->forked() ? Forked() : impl_->WaitIdle(timeout); });
}

Stats RoutingStore::GetStats() const {
  return impl_->forked() ? Stats() : impl_->GetStats();
}
absl::Status RoutingStore::status() const {
  return Guarded("status",
                 [&] { return impl_->forked() ? Forked() : impl_->core()->failure.status(); });
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
  return impl_->lander().audit().TakeFindings();
}
const StoreOptions& RoutingStore::options() const {
  return impl_->options();
}
StepId RoutingStore::last_step() const {
  return StepId(impl_->last_step());
}

}  // namespace waymark
