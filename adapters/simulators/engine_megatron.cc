// A simulated engine that reports as the adapter of Megatron does: each event when it happens,
// the tokens of a step as pairs, and the snapshots of a request when its blocks are released.
#include <algorithm>
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
      Expect(Timed([&] { return Failing([&] {
                           return stores_[stage]->Report({first, last});
                         }); }),
             "a hook");
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

// The snapshots are kept until the request has finished. Its blocks are those of a row of the
// context's table, which has -1 behind them.
std::shared_ptr<Read> Engine::Checkpoint(Request& r, std::int64_t rows) {
  std::vector<BlockId> ids = IdsOf(r);
  ids.resize(ids.size() + static_cast<std::size_t>(timing_.Below(3)), BlockId(-1));
  std::shared_ptr<Read> read = TakeRead(r, rows, ids);
  read->waits = true;
  return read;
}

void Engine::TakeKept(Request& r) {
  for (const std::shared_ptr<Read>& read : r.reads)
    read->waits = false;
}

}  // namespace waymark::sim
