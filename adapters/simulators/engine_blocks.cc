// Blocks of the simulated engines: allocation and eviction, hits, restores, snapshots.
#include <algorithm>
#include <utility>

#include "adapters/simulators/engine.h"

namespace waymark::sim {

std::int32_t Engine::Alloc(const BlockKey* key) {
  if (options_.megatron && pool_.free_count() == 0 && !options_.features.ref_zero) {
    const std::int32_t leaf = pool_.LeastRecentLeaf();
    if (leaf >= 0) Evict(leaf, true);
  }
  const std::int32_t block = pool_.PopFree();
  if (block < 0) return block;
  if (!options_.megatron) Evict(block, false);
  pool_.SetRefs(block, 1, now_);
  for (std::int64_t o = 0; o < bs_; ++o)
    Cell(block, o).present = false;
  not_vouched_[static_cast<std::size_t>(block)] = false;
  Announce(key == nullptr ? Event::Bind(BlockId(block)) : Event::Bind(BlockId(block), *key));
  return block;
}

bool Engine::Complete(std::int32_t block) {
  for (std::int64_t o = 0; o < bs_; ++o) {
    if (!Cell(block, o).present) return false;
  }
  return true;
}

void Engine::Evict(std::int32_t block, bool push) {
  const BlockPool::Block& b = pool_.at(block);
  if (b.hashed) {
    ++counts_.evictions;
    if (b.ready < now_ && Complete(block)) {
      const auto in_tier = tier_.find(b.hash);
      if (rng_.Chance(options_.features.tier) &&
          (in_tier == tier_.end() || in_tier->second[0].pass.version != version_)) {
        StoreInTier(block);
      } else if (rng_.Chance(options_.features.swap) && !swapped_.contains(b.hash)) {
        SwapOut(block);
      }
    }
  }
  pool_.ForgetHash(block);
  if (push) pool_.PushFree(block);
}

void Engine::StoreInTier(std::int32_t block) {
  const BlockPool::Block& b = pool_.at(block);
  std::vector<KvCell>& cells = tier_[b.hash];
  if (cells.empty()) {
    tier_order_.push_back(b.hash);
    if (static_cast<std::int32_t>(tier_order_.size()) > options_.tier_keys) {
      tier_.erase(tier_order_.front());
      tier_order_.pop_front();
    }
  }
  cells.assign(&Cell(block, 0), &Cell(block, 0) + bs_);
  for (KvCell& cell : cells) {
    if (cell.excuse == Excuse::kNone && cell.pass.version != b.sealed_in) {
      cell.excuse = Excuse::kNoPage;
    }
  }
}

bool Engine::SwapOut(std::int32_t block) {
  if (free_hosts_.empty()) {
    // Evicts the oldest swapped block: Move rebinds its host block.
    while (!swap_order_.empty() && free_hosts_.empty()) {
      const auto oldest = swapped_.find(swap_order_.front());
      swap_order_.pop_front();
      if (oldest == swapped_.end()) continue;
      free_hosts_.push_back(oldest->second);
      swapped_.erase(oldest);
    }
    if (free_hosts_.empty()) return false;
  }
  const std::int32_t host = free_hosts_.back();
  free_hosts_.pop_back();
  swapped_[pool_.at(block).hash] = host;
  swap_order_.push_back(pool_.at(block).hash);
  Announce(Event::Move(BlockId(block), BlockId(host)));
  for (std::int64_t o = 0; o < bs_; ++o) {
    Cell(host, o) = Cell(block, o);
    Cell(block, o).present = false;
  }
  CopyMarks(block, host);
  return true;
}

void Engine::Retain(std::int32_t block) {
  if (pool_.at(block).free) pool_.RemoveFree(block);
  pool_.SetRefs(block, pool_.at(block).refs + 1, now_);
  Announce(Event::Retain(BlockId(block)));
}

void Engine::ReleaseBlocks(Request& r) {
  for (auto it = r.blocks.rbegin(); it != r.blocks.rend(); ++it) {
    const std::int32_t block = *it;
    Announce(Event::Release(BlockId(block)));
    const BlockPool::Block& b = pool_.at(block);
    pool_.SetRefs(block, b.refs - 1, b.used);
    if (b.refs > 0) continue;
    if (options_.megatron && (options_.features.ref_zero || b.ready >= now_)) {
      pool_.ForgetHash(block);  // at reference zero, or because it will not be computed
    }
    if (!options_.megatron || !b.hashed) pool_.PushFree(block);
  }
}

bool Engine::Grow(Request& r, std::int64_t tokens) {
  while (static_cast<std::int64_t>(r.blocks.size()) * bs_ < tokens) {
    const std::int32_t block = Alloc();
    if (block < 0) return false;
    r.blocks.push_back(block);
  }
  return true;
}

void Engine::Register(Request& r, std::int64_t index, std::uint32_t ready, bool now) {
  const std::int32_t block = r.blocks[static_cast<std::size_t>(index)];
  const PrefixHash start = r.prefix[static_cast<std::size_t>(index * bs_)];
  const PrefixHash key = r.prefix[static_cast<std::size_t>((index + 1) * bs_)];
  BlockPool::Block& b = pool_.at(block);
  if (!b.hashed) {
    pool_.SetHash(block, key, start);
  } else {
    pool_.Publish(block);
  }
  b.ready = ready;
  b.sealed_in = version_;
  if (SealsAtOnce() && !now) Announce(Event::Seal(BlockId(block), key.ToKey(), OwnStep()));
  if (now) {
    Announce(Event::Seal(BlockId(block), key.ToKey(), OwnStep()));
    loaded_.push_back({block, key, start, now_, 0});
  } else {
    seals_.push_back({block, key, start, now_, 0});
  }
}

bool Engine::FindHits(const Request& r, std::vector<std::int32_t>& hits) {
  hits.clear();
  const bool all = options_.megatron && (r.known % bs_ > 1 || options_.features.full_hit > 0);
  const std::int64_t top = (all ? r.known : r.known - 1) / bs_;
  for (std::int64_t i = 0; i < top; ++i) {
    const std::int32_t block = pool_.Find(r.prefix[static_cast<std::size_t>((i + 1) * bs_)]);
    if (block < 0) break;
    if (options_.megatron && pool_.at(block).ready >= now_)
      return false;  // still being computed: wait
    hits.push_back(block);
  }
  if (options_.features.clip) {
    // By what was told: routing that was lost on the way makes no difference to a schedule.
    const auto told = [&](std::int32_t block) {
      for (std::int64_t o = 0; o < bs_; ++o) {
        const Excuse excuse = Cell(block, o).excuse;
        if (excuse == Excuse::kNotAsked || excuse == Excuse::kExternal) return false;
      }
      return true;
    };
    hits.erase(std::find_if_not(hits.begin(), hits.end(), told), hits.end());
  }
  return true;
}

bool Engine::Fits(const Request& r, const std::vector<std::int32_t>& hits) const {
  std::int64_t available = pool_.free_count() + (options_.megatron ? pool_.cached_count() : 0);
  for (const std::int32_t block : hits)
    available -= pool_.at(block).refs == 0;
  const auto shared = static_cast<std::int64_t>(hits.size());
  return (r.known + bs_) / bs_ + 1 - shared <= available;
}

void Engine::TakeHits(Request& r, const std::vector<std::int32_t>& hits) {
  for (const std::int32_t block : hits) {
    Retain(block);
    r.blocks.push_back(block);
  }
  r.sealed = static_cast<std::int64_t>(hits.size());
  r.computed = r.sealed * bs_;
  // A fully cached prompt recomputes its last shared block.
  const std::int64_t least = options_.megatron && options_.features.full_hit > 0 ? 2 : 1;
  while (options_.megatron && r.computed > 0 && r.known - r.computed < least)
    r.computed -= bs_;
}

void Engine::Restore(Request& r) {
  const Features& f = options_.features;
  if (f.tier == 0 && f.swap == 0 && f.external == 0) return;
  while (r.computed == static_cast<std::int64_t>(r.blocks.size()) * bs_ &&
         r.computed + bs_ < r.known &&
         pool_.free_count() + (Big() && options_.megatron ? pool_.cached_count() : 0) > 2) {
    const PrefixHash key = r.prefix[static_cast<std::size_t>(r.computed + bs_)];
    if (pool_.Find(key) >= 0) break;
    std::int32_t block = -1;
    if (swapped_.contains(key) && rng_.Chance(.7)) {
      block = SwapIn(key);
    } else if (tier_.contains(key) && rng_.Chance(.7)) {
      block = RestoreFromTier(key);
    } else if (rng_.Chance(f.external)) {
      block = ReceiveFromOutside(r);
    } else {
      break;
    }
    r.blocks.push_back(block);
    Register(r, static_cast<std::int64_t>(r.blocks.size()) - 1, now_ - 1, true);
    r.sealed = static_cast<std::int64_t>(r.blocks.size());
    r.computed += bs_;
  }
}

std::int32_t Engine::SwapIn(const PrefixHash& key) {
  const std::int32_t host = swapped_.at(key);
  swapped_.erase(key);
  if (pool_.free_count() == 0) Evict(pool_.LeastRecentLeaf(), true);
  const std::int32_t block = pool_.PopFree();
  const BlockPool::Block& b = pool_.at(block);
  const PrefixHash old = b.hash;
  // The contents of the block are swapped out in the same group of moves.
  const bool keep = b.hashed && !swapped_.contains(old) && Complete(block) && b.ready < now_;
  pool_.ForgetHash(block);
  if (keep) Announce(Event::Move(BlockId(block), BlockId(host), true));
  Announce(Event::Move(BlockId(host), BlockId(block)));
  for (std::int64_t o = 0; o < bs_; ++o)
    std::swap(Cell(host, o), Cell(block, o));
  std::vector<bool>::swap(not_vouched_[static_cast<std::size_t>(host)],
                          not_vouched_[static_cast<std::size_t>(block)]);
  if (keep) {
    swapped_[old] = host;
    swap_order_.push_back(old);
  } else {
    for (std::int64_t o = 0; o < bs_; ++o)
      Cell(host, o).present = false;
    free_hosts_.push_back(host);
  }
  pool_.SetRefs(block, 1, now_);
  Announce(Event::Retain(BlockId(block)));
  return block;
}

std::int32_t Engine::RestoreFromTier(const PrefixHash& key) {
  // A copy, because taking the block may evict another one into the tier.
  const std::vector<KvCell> cells = tier_.at(key);
  bool vouched = true;
  for (const KvCell& cell : cells) {
    vouched = vouched && cell.pass.version == version_;
  }
  const BlockKey name = vouched ? key.ToKey() : key.ToUnknownKey();
  const std::int32_t block = Alloc(&name);
  not_vouched_[static_cast<std::size_t>(block)] = !vouched;
  for (std::int64_t o = 0; o < bs_; ++o) {
    KvCell cell = cells[static_cast<std::size_t>(o)];
    if (!vouched) {
      excuses_.AddKey(cell.pass.version, cell.prefix, Excuse::kExternal);
      cell.excuse = Excuse::kExternal;
    } else if (cell.excuse == Excuse::kNone) {
      cell.excuse = Excuse::kByKey;
    } else {
      // There may be no page with its row: no row of the block is stored.
      excuses_.AddKeyless(cell.pass, cell.prefix);
    }
    Cell(block, o) = cell;
    found_.push_back(cell);
  }
  return block;
}

std::int32_t Engine::ReceiveFromOutside(Request& r) {
  const std::int64_t base = r.computed;
  const BlockKey name = r.prefix[static_cast<std::size_t>(base + bs_)].ToUnknownKey();
  const std::int32_t block = Alloc(&name);
  const Pass pass{0, 1, version_};
  for (std::int64_t o = 0; o < bs_; ++o) {
    const PrefixHash& prefix = r.prefix[static_cast<std::size_t>(base + o + 1)];
    Cell(block, o) = {prefix, pass, Excuse::kExternal, true};
    excuses_.AddKey(version_, prefix, Excuse::kExternal);
  }
  // The other engine's rows come by key or are joined at the end; sometimes they are lost.
  if (!rng_.Chance(.7)) return block;
  if (by_key_ != nullptr) {
    by_key_->Publish(std::span(r.prefix).subspan(static_cast<std::size_t>(base) + 1, bs_),
                     version_);
  } else {
    r.reads.push_back(RemoteRead(r, base));
    for (std::int64_t o = 0; o < bs_; ++o)
      r.seen.Add(base + o, {pass, Excuse::kNone});
  }
  return block;
}

std::shared_ptr<Read> Engine::RemoteRead(const Request& r, std::int64_t base) const {
  Rows rows;
  rows.shape = oracle_.WholeShape(options_.page_tokens);
  rows.infos.resize(static_cast<std::size_t>(base + bs_));
  rows.ids.resize(rows.infos.size() * oracle_.row_bytes());
  for (std::int64_t position = base; position < base + bs_; ++position) {
    const auto index = static_cast<std::size_t>(position);
    rows.infos[index] = {1, version_, Reason::kNone, Provenance::kHere};
    oracle_.Row(r.prefix[index + 1], version_, 1, &rows.ids[index * oracle_.row_bytes()]);
  }
  auto read = std::make_shared<Read>();
  read->rows.push_back(std::move(rows));
  read->limit = base + bs_;
  return read;
}

void Engine::CopyPart(Request& r) {
  if (r.computed != static_cast<std::int64_t>(r.blocks.size()) * bs_ || pool_.free_count() == 0 ||
      r.known - r.computed <= 1) {
    return;
  }
  const PrefixHash parent = r.prefix[static_cast<std::size_t>(r.computed)];
  for (std::int32_t src = 0; src < pool_.size(); ++src) {
    const BlockPool::Block& b = pool_.at(src);
    if (!b.hashed || b.parent != parent || pool_.Find(b.hash) != src || b.ready >= now_ ||
        !Complete(src)) {
      continue;
    }
    std::int64_t rows = 0;
    while (rows < bs_ &&
           Cell(src, rows).prefix == r.prefix[static_cast<std::size_t>(r.computed + rows + 1)]) {
      ++rows;
    }
    rows = std::min(rows, r.known - r.computed - 1);
    if (rows <= 0 || rows >= bs_) return;
    const std::int32_t dst = Alloc();
    if (dst < 0) return;
    r.blocks.push_back(dst);
    if (dst == src) return;
    // Taking the block may have swapped out the block to copy from.
    for (std::int64_t o = 0; o < rows; ++o) {
      if (!Cell(src, o).present) rows = 0;
    }
    for (std::int64_t o = 0; o < rows; ++o)
      Cell(dst, o) = Cell(src, o);
    CopyMarks(src, dst);
    Announce(Event::Copy(BlockId(src), BlockId(dst), static_cast<std::int32_t>(rows)));
    r.computed += rows;
    return;
  }
}

std::vector<BlockId> Engine::IdsOf(const Request& r) {
  std::vector<BlockId> ids;
  ids.reserve(r.blocks.size());
  for (const std::int32_t block : r.blocks)
    ids.emplace_back(block);
  return ids;
}

std::shared_ptr<const AskedByKey> Engine::AskByKey(std::span<const BlockId> blocks,
                                                   std::span<const PrefixHash> prefix,
                                                   std::int64_t known, std::int64_t rows) {
  if (by_key_ == nullptr) return nullptr;
  auto asked = std::make_shared<AskedByKey>();
  asked->version = version_;
  for (std::int64_t i = 0; (i + 1) * bs_ <= known && i * bs_ < rows; ++i) {
    const auto block = static_cast<std::size_t>(blocks[static_cast<std::size_t>(i)].value());
    const BlockKey key = prefix[static_cast<std::size_t>((i + 1) * bs_)].ToKey();
    asked->keys.push_back(not_vouched_[block] ? BlockKey{} : key);
  }
  for (std::int64_t at = 0; at < rows; ++at)
    asked->cells.push_back(Cell(blocks[static_cast<std::size_t>(at / bs_)].value(), at % bs_));
  return asked;
}

std::shared_ptr<Read> Engine::TakeRead(Request& r, std::int64_t rows) {
  const std::vector<BlockId> ids = IdsOf(r);
  auto read = std::make_shared<Read>();
  read->limit = std::min(rows, static_cast<std::int64_t>(r.blocks.size()) * bs_);
  read->by_key = AskByKey(ids, r.prefix, r.known, read->limit);
  ReportEvents();
  // A take may say whose rows it wants, though the request still has its blocks.
  SnapshotOwner owner;
  if (read->by_key != nullptr && timing_.Chance(.5)) owner = {now_, read->by_key->keys};
  TakeSnapshots(*read, ids, owner);
  return read;
}

void Engine::TakeSnapshots(Read& read, std::span<const BlockId> blocks,
                           const SnapshotOwner& owner) {
  for (std::size_t stage = 0; stage < stores_.size(); ++stage) {
    const auto take = [&] { return stores_[stage]->TakeSnapshot(blocks, 0, read.limit, owner); };
    absl::StatusOr<Snapshot> taken = Failing(take);
    ApplySome(stage);
    const bool no_room = MayLoseRecords() && absl::IsResourceExhausted(taken.status());
    records_lost_ = records_lost_ || no_room;
    AddTaken(read, std::move(taken), no_room, "TakeSnapshot");
  }
}

std::shared_ptr<Read> Engine::TakeReadLater(const Request& r, std::int64_t rows) {
  LateRead late;
  late.due = now_ + static_cast<std::uint32_t>(rng_.Below(8));
  late.last_step = now_ - 1;  // it is not in the step that is being scheduled
  late.blocks = IdsOf(r);
  for (const std::int32_t block : r.blocks)
    late.shared.push_back(pool_.at(block).refs > 1);
  late.prefix = r.prefix;
  late.known = r.known;
  for (std::int64_t i = 0; i < r.sealed && rng_.Chance(.9); ++i)
    late.keys.push_back(r.prefix[static_cast<std::size_t>((i + 1) * bs_)].ToKey());
  late.read = std::make_shared<Read>();
  late.read->waits = true;
  late.read->limit = std::min(rows, static_cast<std::int64_t>(r.blocks.size()) * bs_);
  late_reads_.push_back(late);
  return late.read;
}

void Engine::TakeLateReads(bool all) {
  std::erase_if(late_reads_, [&](const LateRead& late) {
    if (!all && late.due > now_) return false;
    Read& read = *late.read;
    for (std::int64_t at = 0; at < read.limit; ++at) {
      const auto index = static_cast<std::size_t>(at / bs_);
      const std::int32_t block = late.blocks[index].value();
      const KvCell& cell = Cell(block, at % bs_);
      // Another user may write and take back rows of a block that it shared, or hit.
      const BlockPool::Block& b = pool_.at(block);
      const bool own = !late.shared[index] && b.refs == 0 && b.used <= late.last_step &&
                       cell.present && cell.pass.step <= late.last_step &&
                       cell.prefix == late.prefix[static_cast<std::size_t>(at + 1)];
      read.released.push_back(!own || reset_in_ > late.last_step);
    }
    if (by_key_ != nullptr) {
      auto asked = *AskByKey(late.blocks, late.prefix, late.known, read.limit);
      for (std::size_t at = 0; at < asked.cells.size(); ++at)
        asked.cells[at].present = asked.cells[at].present && !read.released[at];
      read.by_key = std::make_shared<const AskedByKey>(std::move(asked));
    }
    ReportEvents();
    TakeSnapshots(read, late.blocks, {late.last_step, late.keys});
    read.waits = false;
    return true;
  });
}

void Engine::AddTaken(Read& read, absl::StatusOr<Snapshot> snapshot, bool may_lose,
                      const char* call) {
  if (snapshot.ok()) {
    read.stages.push_back(*std::move(snapshot));
    return;
  }
  if (!may_lose)
    checker_->Fail(std::string(call) + ": " + std::string(snapshot.status().message()));
  read.lost = true;
}

void Engine::Preempt(const RequestPtr& r) {
  ++counts_.preemptions;
  if (!r->unseen) r->reads.push_back(TakeRead(*r, r->computed));
  ReleaseBlocks(*r);
  StopRunning(r);
  r->Fresh();
  waiting_.push_front(r);
}

void Engine::FinishRequest(const RequestPtr& r) {
  // Only rows that this life of the request computed or hit.
  const std::int64_t rows = std::min(r->known - 1, r->computed);
  const bool after = rng_.Chance(options_.features.after);
  r->reads.push_back(after ? TakeReadLater(*r, rows) : TakeRead(*r, rows));
  ReadJob job;
  job.request = r;
  job.rows = r->known - 1;
  job.seen = std::move(r->seen);
  job.prefix = std::move(r->prefix);
  job.reads = std::move(r->reads);
  reads_.push_back(std::move(job));
  ReleaseBlocks(*r);
  StopRunning(r);
}

void Engine::StopRunning(const RequestPtr& r) {
  r->running = false;
  running_.erase(std::find(running_.begin(), running_.end(), r));
}

}  // namespace waymark::sim
