#include "adapters/simulators/engine.h"

#include <algorithm>
#include <utility>

namespace waymark::sim {
namespace {

// Calls the store.
class DirectFeed final : public StepFeed {
 public:
  explicit DirectFeed(RoutingStore& store) : store_(store) {}
  StepCode Begin(const StepBatch& batch) override { return store_.BeginStep(batch); }
  StepCode Submit(StepId step, OracleRows* rows) override { return store_.Submit(step, rows); }
  StepCode Drop(StepId step) override { return store_.Drop(step); }
  StepCode Cancel(StepId step) override { return store_.Cancel(step); }

 private:
  RoutingStore& store_;
};

}  // namespace

StoreOptions StoreOptionsOf(const EngineOptions& options, std::int32_t stage) {
  StoreOptions store;
  store.log = LogCallback::Discard();  // it loses rows on purpose
  const RouteOracle oracle(options.layers, options.top_k, options.experts, options.stages);
  store.shape = oracle.StageShape(stage, options.page_tokens);
  store.num_blocks = options.blocks + 1 + options.host_blocks;
  store.block_tokens = options.block_tokens;
  const std::int64_t pages_per_block = options.block_tokens / options.page_tokens;
  const bool big = options.max_batched_tokens > 0;
  // Enough pages for every block and every key of the tier, and for the snapshots of finished and
  // preempted requests, which hold their pages for a few steps while the blocks are reused. Small
  // engines have more than they need.
  std::int64_t pages = pages_per_block * 2048;
  if (big) {
    const std::int64_t held =
        std::max(options.blocks / 16, 4 * options.max_batched_tokens / options.block_tokens);
    pages = pages_per_block *
            (store.num_blocks + held + (options.features.tier > 0 ? options.tier_keys : 0));
  }
  if (options.max_pages > 0) pages = options.max_pages;
  if (options.max_pages < 0) {
    pages =
        pages_per_block * (options.blocks + (options.features.swap > 0 ? options.host_blocks : 0));
    store.spare_pages = static_cast<std::uint32_t>(options.spare_pages);
  }
  store.num_pages = static_cast<std::uint32_t>(pages);
  store.null_blocks = {BlockId(options.blocks)};
  store.max_steps_in_flight = options.max_steps_in_flight;
  store.max_step_rows =
      static_cast<std::uint32_t>(big ? options.max_batched_tokens + 8 : 16 * options.max_running);
  store.landing = options.timing.landing;
  store.log_bytes = static_cast<std::size_t>(options.log_bytes);
  store.audit = options.audit;
  store.key_seed = options.seed + 1;
  if (!options.flights.empty()) store.flight = options.flights[static_cast<std::size_t>(stage)];
  return store;
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       std::unique_ptr<Arrivals> arrivals) {
  std::unique_ptr<Engine> engine(new Engine(options, std::move(arrivals)));
  if (options.features.by_key > 0 && options.rows_by_key) {
    engine->by_key_ = options.rows_by_key(options, engine->oracle_);
    engine->by_key_->NameWeights(engine->version_);
    engine->checker_->FillByKey(engine->by_key_.get(), &engine->records_lost_);
  }
  for (std::int32_t stage = 0; stage < options.stages; ++stage) {
    StoreOptions of_store = StoreOptionsOf(options, stage);
    if (engine->by_key_ != nullptr) {
      of_store.seal_sink = engine->by_key_->sink(static_cast<std::size_t>(stage));
    }
    absl::StatusOr<std::unique_ptr<RoutingStore>> store = RoutingStore::Create(of_store);
    if (!store.ok()) return store.status();
    engine->stores_.push_back(*std::move(store));
    RoutingStore& of = *engine->stores_.back();
    engine->feeds_.push_back(options.feed ? options.feed(of) : std::make_unique<DirectFeed>(of));
  }
  return engine;
}

Engine::Engine(const EngineOptions& options, std::unique_ptr<Arrivals> arrivals)
    : options_(options),
      bs_(options.block_tokens),
      rng_(options.seed),
      timing_(Mix(options.seed, options.timing.seed + 77)),
      worker_(Mix(options.seed, options.timing.seed + 78)),
      arrivals_(std::move(arrivals)),
      oracle_(options.layers, options.top_k, options.experts, options.stages),
      pool_(options.blocks, options.megatron ? BlockPool::Freed::kStack : BlockPool::Freed::kQueue),
      kv_(static_cast<std::size_t>(options.blocks + 1 + options.host_blocks) *
          static_cast<std::size_t>(options.block_tokens)),
      not_vouched_(static_cast<std::size_t>(options.blocks + 1 + options.host_blocks)),
      calls_without_apply_(static_cast<std::size_t>(options.stages)) {
  if (arrivals_ == nullptr) {
    arrivals_ = std::make_unique<RandomArrivals>(options.seed, options.features.full_hit,
                                                 options.features.mute, options.block_tokens);
  }
  for (std::int32_t host = options.host_blocks; host > 0; --host) {
    free_hosts_.push_back(options.blocks + host);
  }
  checker_ =
      std::make_unique<Checker>(&oracle_, &excuses_, options.block_tokens, options.page_tokens,
                                options.collect_digests, [this] { return PagesShort(); });
}

Stats Engine::StoreStats(std::int32_t stage) const {
  return stores_[static_cast<std::size_t>(stage)]->GetStats();
}

bool Engine::PagesShort() const {
  if (records_lost_) return true;
  // Pages that only a key has are evicted, and only the tier finds pages by key.
  const bool enough = options_.max_pages < 0 && options_.features.tier == 0;
  for (const auto& store : stores_) {
    const Stats stats = store->GetStats();
    if (!stats.failure.empty() || stats.snapshots_lost > 0) return true;  // Features::no_memory
    if (enough ? options_.few_spare() && stats.no_page + stats.rows_without_page > 0
               : stats.evictions + stats.no_page > 0) {
      return true;
    }
  }
  return false;
}

void Engine::Run(std::int64_t steps) {
  for (std::int64_t i = 0; i < steps; ++i)
    Step();
}

bool Engine::Idle() const {
  return running_.empty() && waiting_.empty() && !more_arrivals_;
}

void Engine::Step() {
  ++now_;
  ++counts_.steps;
  events_.clear();
  events_.swap(next_events_);
  plan_.clear();
  paused_.clear();
  seals_.clear();
  budget_ = options_.max_batched_tokens;
  AnnounceResults();
  Disturb();
  StartStreams();
  TakeLateReads(/*all=*/false);
  ScheduleRunning();
  if (options_.features.fork > 0 && rng_.Chance(options_.features.mid)) Forks();
  ScheduleWaiting();
  if (options_.features.fork > 0) Forks();
  LeaveSome(/*all=*/true);
  RunForward();
  Feed();
}

void Engine::AnnounceResults() {
  std::erase_if(truncations_, [this](const TruncatePlan& plan) {
    if (plan.due > now_) return false;
    const RequestPtr r = plan.request.lock();
    const bool holds = r != nullptr && r->running &&
                       std::find(r->blocks.begin(), r->blocks.end(), plan.block) != r->blocks.end();
    if (options_.features.blind_truncate || holds) {
      Announce(Event::Truncate(BlockId(plan.block), plan.row, StepId(plan.step)));
    }
    return true;
  });
  std::erase_if(late_seals_, [this](const SealPlan& seal) {
    if (seal.due > now_) return false;
    const BlockPool::Block& block = pool_.at(seal.block);
    if (block.hashed && block.hash == seal.key) {
      Announce(Event::Seal(BlockId(seal.block), seal.key.ToKey(), StepId(seal.step)));
    }
    return true;
  });
}

void Engine::Disturb() {
  const Features& f = options_.features;
  const std::vector<RequestPtr> running = running_;
  for (const RequestPtr& r : running) {
    if (r->done != 0 && r->done + Lag() < now_) {
      Leave(r, Leaving::How::kFinish);
    } else if (rng_.Chance(f.abort)) {
      Leave(r, Leaving::How::kAbort);
    } else if (rng_.Chance(f.preempt) && running_.size() > 1) {
      Leave(r, Leaving::How::kPreempt);
    }
  }
  if (rng_.Chance(f.preempt_one) && running_.size() > 1) {
    const auto size = static_cast<std::int64_t>(running_.size());
    // A copy, because the element of `running_` is erased while the request is being preempted.
    const RequestPtr victim = running_[static_cast<std::size_t>(rng_.Below(size))];
    if (!IsLeaving(victim)) Leave(victim, Leaving::How::kPreempt);
  }
  if (rng_.Chance(f.bump)) {
    version_ = rng_.Chance(f.rollback)
                   ? static_cast<std::uint32_t>(rng_.Between(1, newest_version_ + 1))
                   : ++newest_version_;
    if (by_key_ != nullptr) by_key_->NameWeights(version_);
    for (const KvCell& cell : found_)
      excuses_.AddKey(cell.pass.version, cell.prefix, Excuse::kExternal);
    found_.clear();
    for (const RequestPtr& r : running_) {
      if (!r->unseen) r->reads.push_back(TakeRead(*r, r->computed));
    }
  }
  if (rng_.Chance(f.reset)) {
    const std::vector<RequestPtr> all = running_;
    for (const RequestPtr& r : all)
      if (!LeaveEarly(r)) Preempt(r);
    for (std::int32_t block = 0; block < pool_.size(); ++block) {
      if (pool_.at(block).hashed && options_.megatron && !pool_.at(block).free) {
        pool_.PushFree(block);
      }
      pool_.ForgetHash(block);
    }
    for (const auto& [key, host] : swapped_)
      free_hosts_.push_back(host);
    std::sort(free_hosts_.begin(), free_hosts_.end(), std::greater<>());
    swapped_.clear();
    swap_order_.clear();
    reset_in_ = now_;
    Announce(Event::Reset());
    for (auto& [key, cells] : tier_) {
      for (KvCell& cell : cells)
        cell.excuse = Excuse::kNoPage;
    }
  }
}

void Engine::Leave(const RequestPtr& r, Leaving::How how) {
  if (rng_.Chance(options_.features.mid)) {
    leaving_.push_back({how, r});
  } else {
    LeaveNow({how, r});
  }
}

void Engine::LeaveNow(const Leaving& leaving) {
  switch (leaving.how) {
    case Leaving::How::kFinish:
      return FinishRequest(leaving.request);
    case Leaving::How::kAbort:
      ReleaseBlocks(*leaving.request);
      return StopRunning(leaving.request);
    case Leaving::How::kPreempt:
      return Preempt(leaving.request);
  }
}

void Engine::LeaveSome(bool all) {
  for (std::size_t i = 0; i < leaving_.size();) {
    if (!all && !rng_.Chance(.3)) {
      ++i;
      continue;
    }
    const Leaving leaving = std::move(leaving_[i]);
    leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(i));
    LeaveNow(leaving);
  }
}

bool Engine::LeaveEarly(const RequestPtr& r) {
  const auto at = std::ranges::find(leaving_, r, &Leaving::request);
  if (at == leaving_.end()) return false;
  const Leaving leaving = std::move(*at);
  leaving_.erase(at);
  LeaveNow(leaving);
  return true;
}

bool Engine::IsLeaving(const RequestPtr& r) const {
  return std::ranges::find(leaving_, r, &Leaving::request) != leaving_.end();
}

void Engine::StartStreams() {
  auto streams = std::ranges::count(reads_, false, &ReadJob::finished);
  for (const RequestPtr& r : running_) {
    if (!rng_.Chance(options_.features.stream) || r->computed == 0 || r->unseen ||
        !r->reads.empty() || streams >= 3) {
      continue;
    }
    const std::int64_t rows = Lag() == 0
                                  ? std::min(r->computed, r->known - 1)
                                  : std::min(r->computed, std::max<std::int64_t>(r->confirmed, 0));
    if (rows <= 0) continue;
    ReadJob job;
    job.due = now_ + static_cast<std::uint32_t>(timing_.Between(1, 12));
    job.request = r;
    job.rows = rows;
    job.seen = r->seen.Prefix(rows);
    job.prefix.assign(r->prefix.begin(), r->prefix.begin() + rows + 1);
    job.reads = {TakeRead(*r, rows)};
    job.finished = false;
    reads_.push_back(std::move(job));
    ++streams;
  }
}

void Engine::ScheduleRunning() {
  const Features& f = options_.features;
  const std::vector<RequestPtr> running = running_;
  for (const RequestPtr& r : running) {
    LeaveSome(/*all=*/false);
    if (!r->running || IsLeaving(r) || (Big() && budget_ == 0)) continue;
    if (rng_.Chance(f.pause) && running_.size() > 1) {
      paused_.push_back(r);
      continue;
    }
    Work work;
    work.request = r;
    const std::int64_t left = r->known - r->computed;
    if (left > 1) {
      work.tokens = std::min(left, Big() ? budget_ : rng_.Between(1, 7));
    } else {
      if (r->done == 0 && rng_.Chance(f.rewind) && Lag() == 0) Rewind(*r);
      if (options_.spec_tokens > 0) {
        const std::int64_t room = Big() ? budget_ - 1 : options_.spec_tokens;
        work.drafts = std::max<std::int64_t>(
            0, std::min<std::int64_t>({options_.spec_tokens, room, r->goal - r->known}));
      } else if (rng_.Chance(f.draft)) {
        work.drafts = rng_.Between(1, 4);
      }
      work.tokens = 1 + work.drafts;
      bool right = true;
      for (std::int64_t d = 0; d < work.drafts; ++d) {
        const bool same = rng_.Chance(.6);
        right = right && same;
        work.right_drafts += right;
        work.draft_tokens.push_back(same ? r->stream[static_cast<std::size_t>(r->computed + 1 + d)]
                                         : 0x8000000000000000u +
                                               static_cast<std::uint64_t>(rng_.Below(50)));
      }
    }
    bool planned = true;
    while (!Grow(*r, r->computed + work.tokens)) {
      const RequestPtr victim = running_.back();
      if (LeaveEarly(victim)) continue;
      Preempt(victim);
      std::erase_if(plan_, [&](const Work& x) {
        if (x.request != victim) return false;
        budget_ += Big() ? x.tokens : 0;
        return true;
      });
      if (victim == r) {
        planned = false;
        break;
      }
    }
    if (!planned) continue;
    if (Big()) budget_ -= work.tokens;
    plan_.push_back(std::move(work));
  }
  for (const Work& work : plan_)
    SealFull(*work.request, work.tokens);
}

void Engine::FillQueue() {
  const auto want = static_cast<std::size_t>(options_.max_waiting);
  while (more_arrivals_ &&
         (Big() ? waiting_.size() < want : running_.size() + waiting_.size() < want)) {
    RequestPtr r = Arrive();
    if (r != nullptr) waiting_.push_back(std::move(r));
  }
}

RequestPtr Engine::Arrive() {
  const std::int64_t spare = 2 * (options_.spec_tokens > 0 ? options_.spec_tokens : 3) + 4;
  auto r = std::make_shared<Request>();
  if (!arrivals_->Next(rng_, spare, *r)) {
    more_arrivals_ = false;
    return nullptr;
  }
  r->id = ++last_request_;
  if (Big() && (r->goal + spare + bs_ - 1) / bs_ > pool_.size()) {
    ++counts_.requests_skipped;
    return nullptr;
  }
  r->HashFrom(0);
  return r;
}

void Engine::ScheduleWaiting() {
  FillQueue();
  std::size_t blocked = 0;
  std::vector<std::int32_t> hits;
  while (waiting_.size() > blocked &&
         static_cast<std::int32_t>(running_.size()) < options_.max_running) {
    LeaveSome(/*all=*/false);
    if (Big() ? budget_ == 0
              : pool_.free_count() + (options_.megatron ? pool_.cached_count() : 0) <
                    options_.reserve_blocks) {
      break;
    }
    const RequestPtr r = waiting_[blocked];
    if (!FindHits(*r, hits)) {
      ++blocked;
      continue;
    }
    if (Big() && !Fits(*r, hits)) break;
    TakeHits(*r, hits);
    Restore(*r);
    if (rng_.Chance(options_.features.partial)) CopyPart(*r);
    Work work;
    work.request = r;
    work.fresh = true;
    work.tokens = std::min(r->known - r->computed, Big() ? budget_ : rng_.Between(1, 9));
    if (!Grow(*r, r->computed + work.tokens) || (options_.megatron && !Grow(*r, r->known))) {
      ReleaseBlocks(*r);
      r->Fresh();
      break;
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(blocked));
    running_.push_back(r);
    r->running = true;
    counts_.prefix_hit_tokens += r->computed;
    if (Big()) budget_ -= work.tokens;
    if (options_.megatron) {
      for (std::int64_t i = r->sealed; i < r->known / bs_; ++i) {
        Register(*r, i, BlockPool::kNeverReady, false);
      }
      r->sealed = r->known / bs_;
    } else {
      SealFull(*r, work.tokens);
    }
    plan_.push_back(std::move(work));
    if (Big()) FillQueue();
  }
}

void Engine::Rewind(Request& r) {
  const auto shared_from = [&](std::int64_t index) {
    for (auto i = static_cast<std::size_t>(index); i < r.blocks.size(); ++i) {
      if (pool_.at(r.blocks[i]).refs > 1) return true;
    }
    return false;
  };
  std::int64_t low = std::max<std::int64_t>(r.known - 6, 4);
  while (low < r.known - 1 && shared_from(low / bs_))
    ++low;
  if (low >= r.known - 1 || shared_from(low / bs_)) return;
  for (std::int64_t i = low / bs_; i < static_cast<std::int64_t>(r.blocks.size()); ++i) {
    const std::int32_t block = r.blocks[static_cast<std::size_t>(i)];
    pool_.ForgetHash(block);
    Announce(Event::Truncate(BlockId(block),
                             static_cast<std::int32_t>(i == low / bs_ ? low % bs_ : 0),
                             StepId(now_ - 1)));
  }
  r.sealed = std::min(r.sealed, low / bs_);
  for (auto i = static_cast<std::size_t>(low); i < r.stream.size(); ++i) {
    r.stream[i] = static_cast<std::uint64_t>(rng_.Below(50));
  }
  r.HashFrom(low);
  r.seen.Truncate(low);
  for (const auto& read : r.reads)
    read->limit = std::min(read->limit, low);
  r.known = low + 1;
  r.computed = low;
}

void Engine::Forks() {
  // In the middle of a schedule a child may be forked again, or leave.
  const bool middle = options_.features.mid > 0;
  const std::size_t parents = running_.size();
  for (std::size_t at = 0; at < (middle ? running_.size() : parents); ++at) {
    const RequestPtr r = running_[at];
    if (running_.size() >= 6 || !rng_.Chance(options_.features.fork) || r->computed == 0 ||
        r->mute || r->done != 0 || pool_.free_count() == 0 || r->computed % bs_ == 0) {
      continue;
    }
    if (Lag() != 0 && r->computed >= r->known - 1 &&
        std::any_of(plan_.begin(), plan_.end(), [&](const Work& x) { return x.request == r; })) {
      continue;
    }
    const std::int64_t whole_blocks = r->computed / bs_;
    bool computing = false;
    for (std::int64_t i = 0; i < whole_blocks; ++i) {
      const BlockPool::Block& block = pool_.at(r->blocks[static_cast<std::size_t>(i)]);
      computing |= block.hashed && block.ready >= now_;
    }
    if (computing) continue;
    const std::int32_t destination = Alloc();
    if (destination < 0) continue;
    auto child = std::make_shared<Request>();
    child->id = ++last_request_;
    child->stream.assign(r->stream.begin(), r->stream.begin() + r->known);
    child->known = r->known;
    child->goal = r->known + rng_.Between(3, 20);
    for (int i = 0; i < 45; ++i) {
      child->stream.push_back(static_cast<std::uint64_t>(rng_.Below(50)));
    }
    child->HashFrom(0);
    const std::int32_t tail = r->blocks[static_cast<std::size_t>(whole_blocks)];
    for (std::int64_t i = 0; i < whole_blocks; ++i) {
      Retain(r->blocks[static_cast<std::size_t>(i)]);
    }
    child->blocks.assign(r->blocks.begin(), r->blocks.begin() + whole_blocks);
    child->blocks.push_back(destination);
    child->computed = r->computed;
    child->sealed = std::min(r->sealed, whole_blocks);
    const bool whole = rng_.Chance(.7);
    const std::int64_t rows = r->computed % bs_;
    Announce(Event::Copy(BlockId(tail), BlockId(destination),
                         whole ? Event::kAllRows : static_cast<std::int32_t>(rows)));
    CopyMarks(tail, destination);
    for (std::int64_t o = 0; o < bs_; ++o) {
      const KvCell& cell = Cell(tail, o);
      if (!cell.present || (!whole && o >= rows)) continue;
      Cell(destination, o) = cell;
      // A page that two blocks share is indexed under one key, that of the block sealed last.
      if (whole && options_.page_tokens < bs_) {
        excuses_.AddKey(cell.pass.version, cell.prefix, Excuse::kNoPage);
      }
    }
    child->mute = r->mute;
    child->confirmed = r->confirmed;
    child->running = true;
    running_.push_back(child);
    if (middle && rng_.Chance(.2)) {
      leaving_.push_back(
          {rng_.Chance(.5) ? Leaving::How::kAbort : Leaving::How::kPreempt, std::move(child)});
    }
  }
}

}  // namespace waymark::sim
