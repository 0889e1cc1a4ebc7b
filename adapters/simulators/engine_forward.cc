// The forward pass of a simulated step, the only code that writes KV, and the excuses that follow
// from it.
#include <algorithm>
#include <utility>

#include "adapters/simulators/engine.h"

namespace waymark::sim {

void Engine::SealFull(Request& r, std::int64_t tokens) {
  if (options_.megatron) return;
  std::int64_t full = std::min(r.computed + tokens, r.known);
  if (Lag() != 0 && r.confirmed >= 0) full = std::min(full, r.confirmed);
  full /= bs_;
  for (std::int64_t i = r.sealed; i < full; ++i)
    Register(r, i, now_, false);
  r.sealed = std::max(r.sealed, full);
}

void Engine::RunForward() {
  const bool failed = rng_.Chance(options_.features.cancel);
  PlanRows(failed);
  for (SealPlan& seal : seals_) {
    ExcuseSeal(seal);
    if (options_.features.completion_seal) {
      seal.due =
          now_ + 1 + static_cast<std::uint32_t>(timing_.Below(options_.timing.seal_delay + 1));
      if (!failed) late_seals_.push_back(seal);
    } else if (!SealsAtOnce()) {
      Announce(Event::Seal(BlockId(seal.block), seal.key.ToKey(), OwnStep()));
    }
  }
  BeginAndEnd(failed);
  if (failed) {
    Unschedule();
    return;
  }
  loaded_.clear();
  for (const Work& work : plan_) {
    Attend(work);
    Advance(work);
  }
  // What others write into its blocks is what a paused request goes on with, or is read with.
  for (const RequestPtr& r : paused_)
    if (r->running && !r->unseen) AttendDirty(*r);
}

void Engine::PlanRows(bool failed) {
  slots_.clear();
  rows_.clear();
  for (const Work& work : plan_)
    PlanWorkRows(work, failed);
  if (rng_.Chance(options_.features.pad)) {
    slots_.insert(slots_.end(), {kPaddingSlot, options_.blocks * bs_, kPaddingSlot});
    rows_.resize(rows_.size() + 3);
  }
  row_prefixes_.clear();
  for (const RowPlan& row : rows_)
    row_prefixes_.push_back(row.prefix);
}

void Engine::PlanWorkRows(const Work& work, bool failed) {
  const Features& f = options_.features;
  Request& r = *work.request;
  const std::int64_t first_draft = work.tokens - work.drafts;
  PrefixHash prefix, block_start;
  for (std::int64_t j = 0; j < work.tokens; ++j) {
    const std::int64_t position = r.computed + j;
    const std::int64_t index = position / bs_;
    const std::int64_t offset = position % bs_;
    if (offset == 0) {
      block_start = j == 0 ? r.prefix[static_cast<std::size_t>(position)] : prefix;
    } else if (j == 0) {
      block_start = r.prefix[static_cast<std::size_t>(index * bs_)];
    }
    prefix = j < first_draft
                 ? r.prefix[static_cast<std::size_t>(position) + 1]
                 : prefix.Extend(work.draft_tokens[static_cast<std::size_t>(j - first_draft)]);
    const std::int32_t block = r.blocks[static_cast<std::size_t>(index)];
    const bool shared = pool_.at(block).refs > 1;
    KvCell& cell = Cell(block, offset);
    if (options_.megatron && f.guard && index < r.sealed && shared && cell.present &&
        cell.prefix == prefix) {
      slots_.push_back(options_.blocks * bs_ + offset);  // computed into the dummy block
      rows_.emplace_back();
      rows_.back().prefix = prefix;
      continue;
    }
    const std::int64_t slot = block * bs_ + offset;
    slots_.push_back(r.mute ? NotAsked(slot) : slot);
    const Pass pass{r.id, now_, version_};
    rows_.push_back({pass, prefix, block_start});
    ++counts_.computed_tokens;
    if (r.mute) excuses_.AddGap(version_, block_start);
    if (failed) continue;
    if (cell.present && shared) {
      for (const RequestPtr& other : running_) {
        if (other.get() != &r && index < static_cast<std::int64_t>(other->blocks.size()) &&
            other->blocks[static_cast<std::size_t>(index)] == block &&
            (other->dirty.empty() || other->dirty.back() != index)) {
          other->dirty.push_back(index);
        }
      }
    }
    cell = {prefix, pass, r.mute ? Excuse::kNotAsked : Excuse::kNone, true};
  }
}

void Engine::ExcuseSeal(const SealPlan& seal) {
  for (std::int64_t o = 0; o < bs_; ++o) {
    const KvCell& cell = Cell(seal.block, o);
    if (cell.present && cell.pass.version != version_) {
      excuses_.AddSealOfOlder(version_, cell.pass.version, seal.start);
    }
  }
}

void Engine::ExcuseStep(Excuse why, bool failed) {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const RowPlan& row = rows_[i];
    if (row.pass.step == 0) continue;
    excuses_.Add(row.pass, row.prefix, row.block_start, why);
    if (failed && slots_[i] != kPaddingSlot) ExcuseKv(slots_[i], row.block_start, why);
  }
}

void Engine::ExcuseKv(std::int64_t coded_slot, const PrefixHash& block_start, Excuse why) {
  const std::int64_t slot = coded_slot >= 0 ? coded_slot : NotAsked(coded_slot);
  const KvCell& cell = kv_[static_cast<std::size_t>(slot)];
  if (!cell.present) return;
  excuses_.Add(cell.pass, cell.prefix, block_start, why);
  if (coded_slot < 0) excuses_.Add(cell.pass, cell.prefix, block_start, Excuse::kNotAsked);
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

void Engine::BeginAndEnd(bool failed) {
  const Features& f = options_.features;
  if (!failed) found_.clear();
  const bool drop_all = rng_.Chance(f.drop_all);
  std::vector<bool> drops;
  std::vector<std::int64_t> silent;
  for (std::size_t stage = 0; stage < stores_.size(); ++stage) {
    drops.push_back(rng_.Chance(f.drop) || drop_all);
  }
  for (std::size_t stage = 0; stage < stores_.size(); ++stage) {
    const bool is_silent = !rows_.empty() && rng_.Chance(f.silent);
    silent.push_back(is_silent ? rng_.Below(static_cast<std::int64_t>(rows_.size())) : -1);
  }
  if (timing_.Chance(options_.timing.report > 0 ? .7 : 0)) ReportEvents();
  StepBatch batch{now_, version_, events_.data(), events_.size(), slots_.data(), slots_.size()};
  begun_ = now_;
  reported_version_ = version_;
  const bool cancelled_late = timing_.Chance(.5);  // also drawn if a full log drops the step
  std::optional<PairRows> tokens;
  if (options_.megatron) {
    tokens = TakeTokens();
    batch.pairs = &*tokens;
    batch.num_slots = 0;
  }
  for (std::size_t stage = 0; stage < stores_.size(); ++stage) {
    const auto begin = [&] { return feeds_[stage]->Begin(batch); };
    const StepCode begun = Failing(begin);
    ApplySome(stage);
    if (!begun.dropped() || begun.rule == StepRule::kLogFull) Expect(begun, "BeginStep");
    if (!begun.ok() && !begun.dropped()) continue;
    if (failed && !begun.dropped()) {
      const Ending ending{stage, StepId(now_), nullptr, /*run=*/false};
      if (cancelled_late) {
        endings_.push_back(ending);
      } else {
        End(ending);
      }
      continue;
    }
    if (drops[stage] || begun.dropped()) {
      ++counts_.steps_dropped;
      ExcuseStep(Excuse::kDrop, failed);
      if (!begun.dropped()) endings_.push_back({stage, StepId(now_), nullptr});
      continue;
    }
    if (silent[stage] >= 0) {
      const RowPlan& row = rows_[static_cast<std::size_t>(silent[stage])];
      if (row.pass.step != 0) {
        excuses_.Add(row.pass, row.prefix, row.block_start, Excuse::kSilent);
      }
    }
    OracleRows* step_rows = step_rows_.Take();
    step_rows->Fill(&oracle_, static_cast<std::int32_t>(stage), now_, version_, row_prefixes_,
                    silent[stage], now_ % 2 == 0 ? Reason::kNotCaptured : Reason::kInvalidId);
    endings_.push_back({stage, StepId(now_), step_rows});
  }
  events_.clear();
}

void Engine::Unschedule() {
  // The forward did not run, so no request may hit the blocks that it would have filled.
  for (const SealPlan& seal : seals_)
    pool_.ForgetHash(seal.block);
  for (const Work& work : plan_) {
    Request& r = *work.request;
    if (work.fresh) {
      ReleaseBlocks(r);  // announced with the next step
      StopRunning(work.request);
      r.Fresh();
      waiting_.push_front(work.request);
    } else {
      r.sealed = std::min(r.sealed, r.computed / bs_);
    }
  }
  // Own seals of a step that did not run are gone; the blocks that were loaded are there.
  for (const SealPlan& seal : loaded_) {
    const BlockPool::Block& block = pool_.at(seal.block);
    if (block.hashed && block.hash == seal.key)
      Announce(Event::Seal(BlockId(seal.block), seal.key.ToKey()));
  }
  next_events_.swap(events_);
}

void Engine::AttendTo(Request& r, std::int64_t position) {
  const KvCell& cell = Cell(r.blocks[static_cast<std::size_t>(position / bs_)], position % bs_);
  if (!cell.present || cell.prefix != r.prefix[static_cast<std::size_t>(position) + 1]) {
    checker_->Fail("the simulated engine attends to KV that is not its own: request " +
                   std::to_string(r.id) + " row " + std::to_string(position));
    return;
  }
  r.seen.Add(position, {cell.pass, cell.excuse});
}

void Engine::AttendDirty(Request& r) {
  for (const std::int64_t index : r.dirty) {
    for (std::int64_t o = index * bs_; o < std::min((index + 1) * bs_, r.computed); ++o)
      AttendTo(r, o);
  }
  r.dirty.clear();
}

void Engine::Attend(const Work& work) {
  Request& r = *work.request;
  const std::int64_t base = r.computed;
  if (r.unseen) {
    for (std::int64_t position = 0; position < base; ++position)
      AttendTo(r, position);
  } else {
    AttendDirty(r);
  }
  for (std::int64_t position = base; position < std::min(base + work.tokens, r.known); ++position) {
    AttendTo(r, position);
  }
  // Rows of older weights that the request hits (or recomputes into the dummy block) are read now.
  if (newest_version_ > 1) {
    std::int64_t old_rows = 0;
    const std::int64_t last = std::min(base + work.tokens, r.known);
    for (std::int64_t position = r.unseen ? 0 : base; position < last; ++position) {
      const std::span<const SeenCell> seen = r.seen.At(position);
      if (!seen.empty() && seen.back().pass.version != version_) old_rows = position + 1;
    }
    if (old_rows > 0) r.reads.push_back(TakeRead(r, old_rows));
  }
  r.unseen = false;
  r.dirty.clear();
}

void Engine::Advance(const Work& work) {
  Request& r = *work.request;
  const std::int64_t base = r.computed;
  if (base + work.tokens - work.drafts < r.known) {
    r.computed += work.tokens;
    r.confirmed = r.computed;
  } else {
    const std::int64_t rejected = work.drafts - work.right_drafts;
    r.computed = base + work.tokens - rejected;
    for (std::int64_t position = r.known; position < r.computed; ++position) {
      const KvCell& cell = Cell(r.blocks[static_cast<std::size_t>(position / bs_)], position % bs_);
      r.seen.Add(position, {cell.pass, cell.excuse});
    }
    if (r.done == 0) r.known = r.computed + 1;
    if (rejected > 0 && !rng_.Chance(options_.features.no_truncate)) {
      for (std::int64_t position = r.computed; position < base + work.tokens; ++position) {
        if (position != r.computed && position % bs_ != 0) continue;
        TruncatePlan plan;
        plan.block = r.blocks[static_cast<std::size_t>(position / bs_)];
        plan.row = static_cast<std::int32_t>(position % bs_);
        plan.step = now_;
        plan.due =
            now_ + 1 +
            static_cast<std::uint32_t>(Lag() + timing_.Below(options_.timing.truncate_delay + 1));
        plan.request = work.request;
        truncations_.push_back(std::move(plan));
      }
    }
    r.confirmed = Lag() != 0 ? base : r.computed;
    if (r.known >= r.goal && r.done == 0) r.done = now_;
  }
  for (std::int64_t i = base / bs_; i < std::min(r.computed, r.known) / bs_; ++i) {
    BlockPool::Block& block = pool_.at(r.blocks[static_cast<std::size_t>(i)]);
    if (block.ready == BlockPool::kNeverReady) block.ready = now_;
  }
}

}  // namespace waymark::sim
