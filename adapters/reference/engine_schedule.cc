// Scheduling of the embedded engine: which rows the next step computes, in which blocks.
//
// Running sequences come first, in order of admission; when blocks run short the youngest loses its
// own. Then waiting sequences are admitted, unless somebody has just been preempted. Blocks are
// sealed once the step's plan can no longer change: a seal promises that the step fills the block.
#include <algorithm>
#include <utility>

#include "adapters/reference/engine.h"

namespace waymark::reference {

absl::Status Engine::Schedule() {
  int budget = options_.max_batched_tokens;
  const uint64_t draw = Mix64(options_.seed * 0x9E3779B97F4A7C15u + step_);
  if (!running_.empty() && static_cast<double>(draw >> 11) * 0x1.0p-53 < options_.preempt_rate) {
    if (absl::Status status = Preempt(draw % running_.size()); !status.ok()) return status;
  }
  bool preempted = false;
  if (absl::Status status = PlanRunning(budget, preempted); !status.ok()) return status;
  for (const SequencePtr& sequence : running_)
    SealFullBlocks(*sequence);
  if (!preempted) Admit(budget);
  return absl::OkStatus();
}

int Engine::RowsWanted(const Sequence& sequence, int budget) const {
  return std::min(static_cast<int>(sequence.tokens.size()) - sequence.computed, budget);
}

absl::Status Engine::PlanRunning(int& budget, bool& preempted) {
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& sequence = *running_[i];
    const int rows = RowsWanted(sequence, budget);
    bool fits = Grow(sequence, sequence.computed + rows);
    while (!fits) {
      // The youngest goes, this one itself when it is the youngest. None of those before it does:
      // their rows are planned.
      preempted = true;
      const size_t victim = running_.size() - 1;
      if (absl::Status status = Preempt(victim); !status.ok()) return status;
      if (victim == i) break;
      fits = Grow(sequence, sequence.computed + rows);
    }
    if (!fits) break;
    sequence.planned = rows;
    budget -= rows;
  }
  return absl::OkStatus();
}

void Engine::Admit(int& budget) {
  while (!waiting_.empty() && budget > 0 &&
         running_.size() < static_cast<size_t>(options_.max_running)) {
    Sequence& sequence = *waiting_.front();
    if (options_.prefix_caching) TakeHits(sequence);
    const size_t hits = sequence.blocks.size();
    sequence.computed = static_cast<int>(hits) * options_.block_tokens;
    const int rows = RowsWanted(sequence, budget);
    if (!Grow(sequence, sequence.computed + rows)) {
      sequence.computed = 0;
      return ReleaseBlocks(sequence);
    }
    sequence.planned = rows;
    sequence.sealed = hits;
    if (sequence.preemptions == 0) sequence.prefix_hit_tokens = sequence.computed;
    stats_.prefix_hit_tokens += static_cast<uint64_t>(sequence.computed);
    budget -= rows;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    // Nothing can take this step's rows from it any more: later admissions may hit them at once.
    SealFullBlocks(sequence);
  }
}

void Engine::TakeHits(Sequence& sequence) {
  ExtendKeys(sequence);
  // At least the last token is computed: its logits are wanted.
  const size_t most = (sequence.tokens.size() - 1) / static_cast<size_t>(options_.block_tokens);
  for (size_t i = 0; i < most; ++i) {
    const std::int32_t block = pool_.Find(sequence.keys[i]);
    if (block < 0) break;
    pool_.SetRefs(block, pool_.at(block).refs + 1, clock_);
    sequence.blocks.emplace_back(block);
    events_.push_back(Event::Retain(BlockId(block)));
  }
  Report();
}

void Engine::ExtendKeys(Sequence& sequence) {
  while (sequence.hashed < sequence.tokens.size()) {
    const auto token = static_cast<uint64_t>(sequence.tokens[sequence.hashed++]);
    sequence.prefix = sequence.prefix.Extend(token);
    if (sequence.hashed % static_cast<size_t>(options_.block_tokens) == 0) {
      sequence.keys.push_back(sequence.prefix);
    }
  }
}

bool Engine::Grow(Sequence& sequence, int rows) {
  const auto needed =
      static_cast<size_t>((rows + options_.block_tokens - 1) / options_.block_tokens);
  const auto unused = static_cast<size_t>(pool_.free_count() + pool_.cached_count());
  if (needed > sequence.blocks.size() + unused) return false;
  while (sequence.blocks.size() < needed) {
    sequence.blocks.emplace_back(TakeBlock());
    events_.push_back(Event::Bind(sequence.blocks.back()));
  }
  Report();
  return true;
}

std::int32_t Engine::TakeBlock() {
  if (pool_.free_count() == 0) {
    const std::int32_t victim = pool_.LeastRecentLeaf();
    // Another block with its key takes its place, so that the prefix still hits.
    const std::int32_t twin = pool_.ForgetHash(victim);
    if (twin >= 0) pool_.Publish(twin);
    pool_.PushFree(victim);
    ++stats_.evictions;
  }
  const std::int32_t block = pool_.PopFree();
  pool_.SetRefs(block, 1, clock_);
  return block;
}

void Engine::SealFullBlocks(Sequence& sequence) {
  if (!options_.prefix_caching || sequence.planned == 0) return;
  const auto full =
      static_cast<size_t>((sequence.computed + sequence.planned) / options_.block_tokens);
  if (sequence.sealed >= full) return;
  ExtendKeys(sequence);
  for (; sequence.sealed < full; ++sequence.sealed) {
    const size_t i = sequence.sealed;
    events_.push_back(Event::Seal(sequence.blocks[i], sequence.keys[i].ToKey()));
    pool_.SetHash(sequence.blocks[i].value(), sequence.keys[i],
                  i > 0 ? sequence.keys[i - 1] : PrefixHash());
  }
  Report();
}

absl::Status Engine::Preempt(size_t index) {
  SequencePtr sequence = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  if (sequence->computed > 0) {
    if (absl::Status status = TakeRows(*sequence, sequence->computed); !status.ok()) return status;
  }
  ReleaseBlocks(*sequence);
  sequence->computed = 0;
  sequence->planned = 0;
  sequence->sealed = 0;
  ++sequence->preemptions;
  ++stats_.preemptions;
  waiting_.push_front(std::move(sequence));
  return absl::OkStatus();
}

void Engine::ReleaseBlocks(Sequence& sequence) {
  for (const BlockId block : sequence.blocks)
    events_.push_back(Event::Release(block));
  Report();
  for (size_t i = sequence.blocks.size(); i-- > 0;) {  // the end of a sequence is evicted first
    const std::int32_t id = sequence.blocks[i].value();
    const BlockPool::Block& block = pool_.at(id);
    pool_.SetRefs(id, block.refs - 1, ++clock_);
    if (block.refs > 0) continue;
    // One of several blocks with a key is enough.
    if (block.hashed && pool_.Find(block.hash) != id) pool_.ForgetHash(id);
    if (!block.hashed) pool_.PushFree(id);
  }
  sequence.blocks.clear();
}

void Engine::Report() {
  // The events are valid, so they are refused only if the store's log is full, and it then removes
  // its rows: the blocks and their KV are as the engine knows them.
  (void)capture_->Report(events_);
  events_.clear();
}

}  // namespace waymark::reference
