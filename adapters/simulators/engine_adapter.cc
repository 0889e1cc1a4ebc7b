// A simulated engine whose scheduler reports through the adapter of vLLM: from the lists of each
// schedule, and not when something happens to a block.
#include <algorithm>
#include <utility>

#include "adapters/simulators/engine.h"

namespace waymark::sim {

void Engine::MakeAdapter() {
  if (options_.megatron || !ReportsThroughAdapter(options_)) return;
  const StoreOptions store = StoreOptionsOf(options_, 0);
  absl::StatusOr<VllmScheduler> adapter = VllmScheduler::Create(
      {.limits = {.num_blocks = store.num_blocks, .block_tokens = store.block_tokens},
       .hash_block_tokens = HashTokens(),
       .null_block = BlockId(options_.blocks)});
  if (!adapter.ok()) return checker_->Fail(std::string(adapter.status().message()));
  adapter_.emplace(*std::move(adapter));
  derives_ = DerivesEvents(options_);
}

void Engine::ExtendReported(Request& r) {
  const auto begun = static_cast<std::size_t>((r.computed + bs_ - 1) / bs_);
  if (!derives_ || !r.reported || r.reported_blocks == 0 || begun <= r.reported_blocks) return;
  const std::vector<BlockId> blocks = IdsOf(r);
  const auto derived = std::span(blocks).subspan(r.reported_blocks, begun - r.reported_blocks);
  Reported(adapter_->Extend(r.id, derived), "Extend");
  r.reported_blocks = begun;
}

void Engine::Reported(const absl::Status& status, const char* call) {
  if (!status.ok()) checker_->Fail(std::string(call) + ": " + std::string(status.message()));
}

std::uint64_t Engine::AddTag(const std::shared_ptr<Read>& read) {
  const std::uint64_t tag = ++last_tag_;
  read->waits = true;
  message_.reads.push_back({tag, read});
  return tag;
}

void Engine::ReportLeave(Request& r, std::int64_t rows, std::optional<std::uint64_t> tag,
                         bool finished) {
  if (!r.reported) return;  // it came and left in one schedule
  ExtendReported(r);
  if (finished) {
    Reported(adapter_->Finish(r.id, rows, tag), "Finish");
    r.reported = false;
  } else {
    Reported(adapter_->Preempt(r.id, rows, tag), "Preempt");
  }
  r.reported_blocks = 0;
}

void Engine::ReportCopy(std::int32_t src, std::int32_t dst) {
  Reported(adapter_->Copy(BlockId(src), BlockId(dst)), "Copy");
  // Both blocks stay what they are until the copy has run.
  for (const std::int32_t block : {src, dst}) {
    if (pool_.at(block).free) pool_.RemoveFree(block);
    pool_.SetRefs(block, pool_.at(block).refs + 1, pool_.at(block).used);
    copied_.push_back(block);
  }
}

void Engine::ReportRequest(Request& r) {
  const auto planned = std::find_if(plan_.begin(), plan_.end(),
                                    [&r](const Work& work) { return work.request.get() == &r; });
  if (derives_ && r.reported_blocks > 0) {
    if (planned != plan_.end() && planned->tokens == 1) return;
    ExtendReported(r);
  }
  const std::vector<BlockId> blocks = IdsOf(r);
  const auto per_block = static_cast<std::size_t>(bs_ / HashTokens());
  std::span<const BlockId> added = blocks;
  if (r.reported_blocks == 0) {
    const CachedTokens cached = {r.local_tokens, static_cast<std::int64_t>(r.loaded.size()) * bs_};
    // Only the hashes at the ends of loaded blocks are there.
    std::vector<BlockKey> keys(r.loaded.size() * per_block);
    for (std::size_t i = 0; i < r.loaded.size(); ++i)
      keys[(i + 1) * per_block - 1] = r.loaded[i];
    const BlockHashes hashes = {r.local_tokens / HashTokens(), keys};
    if (r.reported) {
      Reported(adapter_->Resume(r.id, blocks, cached, hashes), "Resume");
    } else {
      Reported(adapter_->New(r.id, blocks, cached, hashes), "New");
    }
    added = {};
  } else {
    added = added.subspan(r.reported_blocks);
  }
  r.reported = true;
  r.reported_blocks = blocks.size();
  if (derives_) {
    if (!added.empty()) Reported(adapter_->Append(r.id, added, 0, {}), "Append");
    return;
  }
  const absl::StatusOr<std::int64_t> sealed = adapter_->Sealed(r.id);
  if (!sealed.ok()) return Reported(sealed.status(), "Sealed");
  if (added.empty() && r.full / bs_ <= *sealed) return;
  std::vector<BlockKey> keys;
  for (std::int64_t end = *sealed * bs_ + HashTokens(); end <= r.full; end += HashTokens())
    keys.push_back(r.prefix[static_cast<std::size_t>(end)].ToKey());
  const BlockHashes hashes = {*sealed * static_cast<std::int64_t>(per_block), keys};
  Reported(adapter_->Append(r.id, added, r.full, hashes), "Append");
}

void Engine::WriteSchedule() {
  Reported(adapter_->Begin(StepId(now_), version_), "Begin");
  std::vector<RequestPtr> requests = running_;
  // The order is not that in which they got their blocks.
  if (timing_.Chance(.5)) std::reverse(requests.begin(), requests.end());
  for (const RequestPtr& r : requests)
    ReportRequest(*r);
  SendSchedule();
  for (const std::int32_t block : std::exchange(copied_, {})) {
    pool_.SetRefs(block, pool_.at(block).refs - 1, pool_.at(block).used);
    if (pool_.at(block).refs == 0) pool_.PushFree(block);
  }
}

void Engine::WriteIdle() {
  Reported(adapter_->Begin(StepId(), 0), "Begin");
  SendSchedule();
}

void Engine::SendSchedule() {
  do {
    const absl::StatusOr<std::span<const std::uint8_t>> bytes = adapter_->FinishMessage();
    if (!bytes.ok()) return Reported(bytes.status(), "FinishMessage");
    SendMessage(*bytes);
  } while (adapter_->more());
}

}  // namespace waymark::sim
