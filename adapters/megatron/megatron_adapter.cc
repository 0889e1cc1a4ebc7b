#include "adapters/megatron/megatron_adapter.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/exception_status.h"
#include "blockstore/step_path.h"

namespace waymark {
namespace {

// Events of one record: on the stack, since the engine's thread does not allocate.
constexpr std::size_t kChunk = 64;

}  // namespace

absl::StatusOr<MegatronAdapter> MegatronAdapter::Create(RoutingStore* store, BlockId dummy_block) {
  if (store == nullptr) return absl::InvalidArgumentError("store must not be null");
  if (std::ranges::find(store->options().null_blocks, dummy_block) ==
      store->options().null_blocks.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dummy_block must be one of the store's null_blocks; it is ", dummy_block.value()));
  }
  return MegatronAdapter(store);
}

template <class MakeEvent>
WAYMARK_STEP_PATH StepCode MegatronAdapter::Report(std::span<const BlockId> blocks,
                                                   const MakeEvent& event) {
  // A call of several records must not be refused in the middle.
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].value() < num_blocks_) continue;
    return {static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument),
            StepRule::kBlockOutOfRange, i, blocks[i].value()};
  }
  std::array<Event, kChunk> events;
  for (std::size_t first = 0; first < blocks.size(); first += kChunk) {
    const std::size_t count = std::min(kChunk, blocks.size() - first);
    for (std::size_t i = 0; i < count; ++i)
      events[i] = event(first + i);
    const StepCode code = store_->Report(std::span(events).first(count));
    if (!code.ok()) return code;
  }
  return {};
}

WAYMARK_STEP_PATH StepCode MegatronAdapter::Allocate(std::span<const BlockId> blocks) {
  return Report(blocks, [&](std::size_t i) { return Event::Bind(blocks[i]); });
}

WAYMARK_STEP_PATH StepCode MegatronAdapter::Match(std::span<const BlockId> blocks) {
  return Report(blocks, [&](std::size_t i) { return Event::Retain(blocks[i]); });
}

WAYMARK_STEP_PATH StepCode MegatronAdapter::Release(std::span<const BlockId> blocks) {
  return Report(blocks, [&](std::size_t i) { return Event::Release(blocks[i]); });
}

WAYMARK_STEP_PATH StepCode MegatronAdapter::Register(std::span<const BlockId> blocks,
                                                     const std::int64_t* hashes) {
  return Report(blocks, [&](std::size_t i) {
    return Event::Seal(blocks[i], BlockKey::FromInteger(static_cast<std::uint64_t>(hashes[i])));
  });
}

WAYMARK_STEP_PATH StepCode MegatronAdapter::Reset() {
  const Event reset = Event::Reset();
  return store_->Report({&reset, 1});
}

WAYMARK_STEP_PATH StepBatch MegatronAdapter::Batch(StepId step, std::uint64_t version,
                                                   const MegatronTokens& tokens) {
  pairs_ = {.block_idx = tokens.token_to_block_idx,
            .local_position = tokens.token_to_local_position_within_kv_block,
            .asked = tokens.asked,
            .num_rows = tokens.active_tokens,
            .index_bytes = sizeof(*tokens.token_to_block_idx),
            .block_tokens = block_tokens_,
            .position_bytes = sizeof(*tokens.token_to_local_position_within_kv_block)};
  return {.step = step.value(), .version = version, .pairs = &pairs_};
}

absl::Status MegatronAdapter::Checkpoint(std::uint64_t request, std::span<const BlockId> blocks,
                                         std::int64_t rows) {
  if (rows >= 0) {
    const std::int64_t needed = rows / block_tokens_ + (rows % block_tokens_ != 0 ? 1 : 0);
    blocks = blocks.first(std::min(blocks.size(), static_cast<std::size_t>(needed)));
  }
  return Guarded("keeping a snapshot", [&]() -> absl::Status {
    absl::StatusOr<Snapshot> snapshot = store_->TakeSnapshot(blocks, 0, rows);
    if (!snapshot.ok()) return snapshot.status();
    const auto found = kept_.find(request);
    if (found != kept_.end()) {
      found->second.push_back(*std::move(snapshot));
      return absl::OkStatus();
    }
    std::vector<Snapshot> first;
    first.push_back(*std::move(snapshot));
    kept_.emplace(request, std::move(first));
    return absl::OkStatus();
  });
}

std::optional<Snapshot> MegatronAdapter::Take(std::uint64_t request) {
  const auto found = kept_.find(request);
  if (found == kept_.end()) return std::nullopt;
  std::vector<Snapshot>& kept = found->second;
  std::optional<Snapshot> oldest(std::move(kept.front()));
  kept.erase(kept.begin());
  if (kept.empty()) kept_.erase(found);
  return oldest;
}

void MegatronAdapter::Forget(std::uint64_t request) {
  kept_.erase(request);
}

}  // namespace waymark
