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
  const StepCode code = pool_->store().Schedule(StepId(step_), version_);
  if (!code.ok()) return code.ToStatus();
  int budget = options_.max_batched_tokens;
  const uint64_t draw = Mix64(options_.seed * 0x9E3779B97F4A7C15u + step_);
  if (!running_.empty() && static_cast<double>(draw >> 11) * 0x1.0p-53 < options_.preempt_rate) {
    if (absl::Status status = Preempt(draw % running_.size()); !status.ok()) return status;
  }
  bool preempted = false;
  if (absl::Status status = PlanRunning(budget, preempted); !status.ok()) return status;
  for (const SequencePtr& sequence : running_) {
    if (absl::Status status = SealFullBlocks(*sequence); !status.ok()) return status;
  }
  return preempted ? absl::OkStatus() : Admit(budget);
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

absl::Status Engine::Admit(int& budget) {
  while (!waiting_.empty() && budget > 0 &&
         running_.size() < static_cast<size_t>(options_.max_running)) {
    Sequence& sequence = *waiting_.front();
    const int size = static_cast<int>(sequence.tokens.size());
    size_t hits = 0;
    if (options_.prefix_caching) {
      ExtendKeys(sequence);
      // At least the last token is computed: its logits are wanted.
      const auto most = static_cast<size_t>((size - 1) / options_.block_tokens);
      sequence.blocks.resize(most);
      hits =
          pool_->MatchPrefix(std::span<const BlockKey>(sequence.keys).first(most), sequence.blocks);
      sequence.blocks.resize(hits);
    }
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
    if (absl::Status status = SealFullBlocks(sequence); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void Engine::ExtendKeys(Sequence& sequence) {
  while (sequence.hashed < sequence.tokens.size()) {
    const auto token = static_cast<uint64_t>(sequence.tokens[sequence.hashed++]);
    sequence.prefix = sequence.prefix.Extend(token);
    if (sequence.hashed % static_cast<size_t>(options_.block_tokens) == 0) {
      sequence.keys.push_back(sequence.prefix.ToKey());
    }
  }
}

bool Engine::Grow(Sequence& sequence, int rows) {
  const auto needed =
      static_cast<size_t>((rows + options_.block_tokens - 1) / options_.block_tokens);
  const size_t had = sequence.blocks.size();
  if (needed <= had) return true;
  sequence.blocks.resize(needed);
  if (pool_->Allocate(std::span<BlockId>(sequence.blocks).subspan(had))) return true;
  sequence.blocks.resize(had);
  return false;
}

absl::Status Engine::SealFullBlocks(Sequence& sequence) {
  if (!options_.prefix_caching || sequence.planned == 0) return absl::OkStatus();
  const auto full =
      static_cast<size_t>((sequence.computed + sequence.planned) / options_.block_tokens);
  if (sequence.sealed >= full) return absl::OkStatus();
  ExtendKeys(sequence);
  for (; sequence.sealed < full; ++sequence.sealed) {
    const size_t i = sequence.sealed;
    const BlockKey parent = i > 0 ? sequence.keys[i - 1] : BlockKey{};
    if (absl::Status status = pool_->Seal(sequence.blocks[i], sequence.keys[i], parent);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Engine::Preempt(size_t index) {
  SequencePtr sequence = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  if (sequence->computed > 0) {
    absl::StatusOr<Snapshot> snapshot =
        pool_->store().TakeSnapshot(sequence->blocks, 0, sequence->computed);
    if (!snapshot.ok()) return snapshot.status();
    sequence->rows.Add(*std::move(snapshot));
  }
  if (absl::Status status = ReleaseBlocks(*sequence); !status.ok()) return status;
  sequence->computed = 0;
  sequence->planned = 0;
  sequence->sealed = 0;
  ++sequence->preemptions;
  ++stats_.preemptions;
  waiting_.push_front(std::move(sequence));
  return absl::OkStatus();
}

absl::Status Engine::ReleaseBlocks(Sequence& sequence) {
  if (absl::Status status = pool_->Release(sequence.blocks); !status.ok()) return status;
  sequence.blocks.clear();
  return absl::OkStatus();
}

}  // namespace waymark::reference
