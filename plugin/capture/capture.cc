#include "plugin/capture/capture.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/exception_status.h"
#include "blockstore/step_path.h"
#include "blockstore/timeout.h"

namespace waymark {
namespace {

// Longer than the store waits for ids.
std::chrono::nanoseconds ReadTimeout(const StoreOptions& store) {
  if (store.ids_timeout <= std::chrono::nanoseconds::zero()) return kLongestTimeout;
  return Clamped(store.ids_timeout) + std::chrono::seconds(5);
}

}  // namespace

Capture::Capture(const Options& options, std::shared_ptr<wire::Tier> tier)
    : tier_(std::move(tier)),
      reader_(ReadTimeout(options.store), tier_,
              options.store.block_tokens != 0 ? options.store.block_tokens
                                              : options.store.shape.page_tokens) {}

absl::StatusOr<std::unique_ptr<Capture>> Capture::Create(const Options& options) {
  return Guarded("making a capture", [&]() -> absl::StatusOr<std::unique_ptr<Capture>> {
    StoreOptions of_store = options.store;
    std::shared_ptr<wire::Tier> tier;
    if (options.tier.get != nullptr) {
      wire::TierOptions of_tier = options.tier;
      if (of_tier.log.function == nullptr) of_tier.log = of_store.log;
      if (of_tier.cpus.empty()) of_tier.cpus = of_store.landing_cpus;
      absl::StatusOr<std::unique_ptr<wire::Tier>> made =
          wire::Tier::Create(of_store.shape, of_tier);
      if (!made.ok()) return made.status();
      tier = *std::move(made);
      of_store.seal_sink = tier;
    }
    std::unique_ptr<Capture> capture(new Capture(options, std::move(tier)));
    absl::StatusOr<std::unique_ptr<RoutingStore>> store = RoutingStore::Create(of_store);
    if (!store.ok()) return store.status();
    capture->store_ = *std::move(store);
    CaptureOptions of_session;
    of_session.store = capture->store_.get();
    // It has no use for a view.
    of_session.max_rows = 1;
    of_session.num_buffers = 1;
    of_session.ids_only = true;
    of_session.extra_columns = options.extra_columns;
    of_session.row_gather = options.row_gather;
    absl::StatusOr<std::unique_ptr<CaptureSession>> session = CaptureSession::Create(of_session);
    if (!session.ok()) return session.status();
    capture->session_ = *std::move(session);
    if (options.engine.has_value()) capture->LogStart(*options.engine);
    return capture;
  });
}

void Capture::LogStart(const std::string& engine) const {
  const StoreOptions& of = store_->options();
  if (!of.log) return;
  of.log(LogLevel::kInfo,
         absl::StrCat("the capture is on", engine.empty() ? "" : " for ", engine, ": ",
                      of.shape.num_layers, " layers, top ", of.shape.top_k, " of ",
                      of.shape.num_experts, " experts, ", of.num_blocks, " blocks of ",
                      of.block_tokens, " tokens, ", store_->GetStats().bytes / 1'000'000,
                      " MB of address space; waymark " WAYMARK_VERSION));
}

Capture::~Capture() {
  session_.reset();
  store_.reset();
}

WAYMARK_STEP_PATH StepCode Capture::Step(const StepBatch& batch, const StepIds* ids,
                                         DoneCallback done, StepCode* refused) {
  const StepCode told = session_->BeginIdsStep(batch);
  if (!told.ok()) {
    done();
    return told;
  }
  const StepId step(batch.step);
  if (ids == nullptr) {
    done();
    return session_->Lose(step);
  }
  const StepCode taken = session_->SubmitIds(step, *ids, done);
  if (taken.ok() || taken.dropped()) return taken;
  if (refused != nullptr) *refused = taken;
  return session_->Lose(step);
}

absl::StatusOr<TakenRows> Capture::Take(std::span<const BlockId> blocks, std::int64_t first,
                                        std::int64_t last, const SnapshotOwner& owner,
                                        std::uint64_t version) {
  if (last >= 0) {
    const std::int64_t block_tokens = store_->options().block_tokens;
    const auto needed =
        static_cast<std::uint64_t>(last / block_tokens + (last % block_tokens != 0));
    blocks = blocks.first(std::min<std::uint64_t>(blocks.size(), needed));
  }
  return Guarded("taking rows", [&]() -> absl::StatusOr<TakenRows> {
    absl::StatusOr<Snapshot> snapshot = store_->TakeSnapshot(blocks, first, last, owner);
    if (!snapshot.ok()) return snapshot.status();
    RowKeys keys{{}, version};
    if (tier_ != nullptr) keys.keys.assign(owner.keys.begin(), owner.keys.end());
    return reader_.Read(*std::move(snapshot), store_->waiting_step(), std::move(keys));
  });
}

absl::Status Capture::WaitIdle(std::chrono::nanoseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + Clamped(timeout);
  absl::Status idle = store_->WaitIdle(timeout);
  return idle.ok() ? reader_.WaitIdle(deadline) : idle;
}

}  // namespace waymark
