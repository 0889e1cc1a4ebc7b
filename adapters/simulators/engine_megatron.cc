// A simulated engine that reports as the adapter of Megatron does: each event when it happens,
// the tokens of a step as pairs, and the snapshots of a request when its blocks are released.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "adapters/simulators/engine.h"

namespace waymark::sim {
namespace {

MegatronHook HookOf(const Event& event) {
  switch (event.type) {
    case EventType::kBind:
      return event.key_size == 0 ? MegatronHook::kAllocate : MegatronHook::kOther;
    case EventType::kRetain:
      return MegatronHook::kMatch;
    case EventType::kRelease:
      return MegatronHook::kRelease;
    case EventType::kSeal:
      return event.step == 0 ? MegatronHook::kRegister : MegatronHook::kOther;
    case EventType::kReset:
      return MegatronHook::kReset;
    case EventType::kCopy:
    case EventType::kMove:
    case EventType::kTruncate:
      break;
  }
  return MegatronHook::kOther;
}

// The hash of such an engine: the first 8 bytes of a key.
std::int64_t HashOf(const Event& event) {
  std::int64_t hash = 0;
  std::memcpy(&hash, event.key.data(), sizeof(hash));
  return hash;
}
// The same as a key; one that nobody registers stays as it is.
void SetHash(Event& event) {
  if (event.key_size != 16) return;
  const BlockKey key = BlockKey::FromInteger(static_cast<std::uint64_t>(HashOf(event)));
  event.key = key.bytes;
  event.key_size = key.size;
}

}  // namespace

void Engine::MakeMegatron() {
  if (!options_.megatron || !ReportsThroughAdapter(options_)) return;
  snapshots_.resize(stores_.size());
}

void Engine::CallHooks() {
  if (events_.empty()) return;
  OpenSchedule();
  std::vector<Event> announced = std::exchange(events_, {});
  std::for_each(announced.begin(), announced.end(), SetHash);
  for (auto first = announced.begin(); first != announced.end();) {
    const MegatronHook hook = HookOf(*first);
    const auto last = std::find_if(first, announced.end(),
                                   [hook](const Event& event) { return HookOf(event) != hook; });
    for (std::size_t stage = 0; stage < stores_.size(); ++stage) {
      if (hook == options_.left_out) continue;
      const auto start = std::chrono::steady_clock::now();
      Expect(Failing([&] { return stores_[stage]->Report({first, last}); }), "a hook");
      const auto took = std::chrono::steady_clock::now() - start;
      step_nanoseconds_ += static_cast<std::uint64_t>(std::chrono::nanoseconds(took).count());
      ApplySome(stage);
    }
    first = last;
  }
}

PairRows Engine::TakeTokens() {
  token_blocks_.clear();
  token_positions_.clear();
  token_asked_.clear();
  for (const std::int64_t given : slots_) {
    const std::int64_t slot = given < kPaddingSlot ? NotAsked(given) : given;
    // Padding is a negative block, or the dummy block.
    const std::int64_t padding = token_blocks_.size() % 2 == 0 ? options_.blocks : -1;
    token_blocks_.push_back(slot < 0 ? padding : slot / bs_);
    token_positions_.push_back(static_cast<std::int32_t>(slot < 0 ? bs_ - 1 : slot % bs_));
    token_asked_.push_back(given >= kPaddingSlot ? 1 : 0);
  }
  return {.block_idx = token_blocks_.data(),
          .local_position = token_positions_.data(),
          .asked = token_asked_.data(),
          .num_rows = token_blocks_.size(),
          .index_bytes = sizeof(token_blocks_[0]),
          .block_tokens = static_cast<std::int32_t>(bs_),
          .position_bytes = sizeof(token_positions_[0])};
}

std::shared_ptr<Read> Engine::Checkpoint(Request& r, std::int64_t rows) {
  auto read = std::make_shared<Read>();
  read->limit = std::min(rows, static_cast<std::int64_t>(r.blocks.size()) * bs_);
  // As in the context's table, which has -1 behind the blocks of a request.
  std::vector<BlockId> ids = IdsOf(r);
  ids.resize(ids.size() + static_cast<std::size_t>(timing_.Below(3)), BlockId(-1));
  ReportEvents();
  r.kept.resize(stores_.size());
  for (std::size_t stage = 0; stage < stores_.size(); ++stage) {
    const auto start = std::chrono::steady_clock::now();
    absl::StatusOr<Snapshot> taken =
        Failing([&] { return stores_[stage]->TakeSnapshot(ids, 0, read->limit); });
    const auto took = std::chrono::steady_clock::now() - start;
    counts_.snapshot.Add(static_cast<std::uint64_t>(std::chrono::nanoseconds(took).count()));
    ApplySome(stage);
    const absl::Status status = taken.status();
    if (status.ok()) {
      snapshots_[stage][r.id].push_back(*std::move(taken));
      read->waits = true;
      r.kept[stage].push_back(read);
    } else if (MayLoseRecords() && absl::IsResourceExhausted(status)) {
      RecordsLost();
      read->lost = true;
    } else {
      checker_->Fail("Checkpoint: " + std::string(status.message()));
      read->lost = true;
    }
  }
  return read;
}

void Engine::TakeKept(Request& r) {
  for (std::size_t stage = 0; stage < r.kept.size(); ++stage) {
    for (const std::shared_ptr<Read>& read : std::exchange(r.kept[stage], {})) {
      std::deque<Snapshot>& kept = snapshots_[stage][r.id];
      read->waits = false;
      if (!kept.empty()) {
        read->stages.push_back(std::move(kept.front()));
        kept.pop_front();
      } else {
        checker_->Fail("a snapshot is missing");
        read->lost = true;
      }
    }
    const auto left = snapshots_[stage].extract(r.id);
    if (!left.empty() && !left.mapped().empty()) checker_->Fail("one snapshot too many");
  }
}

void Engine::ForgetKept(Request& r, std::int64_t rows) {
  // Its blocks are released like those of others.
  if (!r.unseen && timing_.Chance(.5)) (void)Checkpoint(r, rows);
  r.kept.clear();
  if (options_.left_out == MegatronHook::kForget) return;
  for (auto& kept : snapshots_)
    kept.erase(r.id);
}

void Engine::CheckKept() {
  for (std::size_t stage = 0; stage < snapshots_.size(); ++stage) {
    std::size_t kept = 0;
    const auto count = [&](const RequestPtr& r) {
      kept += static_cast<std::size_t>(stage < r->kept.size() && !r->kept[stage].empty());
    };
    std::for_each(running_.begin(), running_.end(), count);
    std::for_each(waiting_.begin(), waiting_.end(), count);
    const std::size_t found = snapshots_[stage].size();
    if (found == kept) continue;
    checker_->Fail("snapshots are kept of " + std::to_string(found) + " requests, not of " +
                   std::to_string(kept));
  }
}

}  // namespace waymark::sim
