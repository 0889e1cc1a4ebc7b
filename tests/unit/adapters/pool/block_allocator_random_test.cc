// BlockAllocator against a reference model that knows no data structure: it scans.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "adapters/pool/block_allocator.h"
#include "tests/unit/blockstore/store/reported_events.h"
#include "tests/unit/blockstore/test_seed.h"

namespace waymark {
namespace {

BlockKey Key(std::uint64_t number) {
  return number == 0 ? BlockKey{} : BlockKey::FromInteger(number);
}

// Keys are numbers; 0 is no key.
struct Model {
  struct Block {
    int references = 0;
    std::uint64_t key = 0, last_use = 0;
    bool in_index = false;
  };
  struct Entry {
    std::vector<std::int32_t> blocks;  // the one that hits, then in the order of their seals
    std::uint64_t parent = 0;
  };
  explicit Model(int num_blocks) : blocks(static_cast<std::size_t>(num_blocks)) {}

  bool Cached(std::int32_t b) const { return blocks[Index(b)].references == 0 && InIndex(b); }
  bool InIndex(std::int32_t b) const { return blocks[Index(b)].in_index; }
  int Count(bool used, bool cached) const {
    int count = 0;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      count += (blocks[b].references > 0) == used && Cached(static_cast<std::int32_t>(b)) == cached;
    }
    return count;
  }
  bool HasChild(std::uint64_t key) const {
    return std::any_of(index.begin(), index.end(),
                       [key](const auto& entry) { return entry.second.parent == key; });
  }
  void Leave(std::int32_t b) {
    Block& block = blocks[Index(b)];
    std::vector<std::int32_t>& same = index[block.key].blocks;
    same.erase(std::find(same.begin(), same.end(), b));
    block.in_index = false;
    if (same.empty()) index.erase(block.key);
  }
  void EvictOne() {
    std::int32_t victim = -1;
    bool victim_leaf = false;
    for (std::int32_t b = 0; b < static_cast<std::int32_t>(blocks.size()); ++b) {
      if (!Cached(b)) continue;
      const bool leaf = !HasChild(blocks[Index(b)].key);
      if (victim < 0 || (leaf && !victim_leaf) ||
          (leaf == victim_leaf && blocks[Index(b)].last_use < blocks[Index(victim)].last_use)) {
        victim = b;
        victim_leaf = leaf;
      }
    }
    Leave(victim);
    ++evictions;
    const auto entry = index.find(blocks[Index(victim)].key);
    if (entry == index.end()) return;
    std::vector<std::int32_t>& same = entry->second.blocks;
    std::rotate(same.begin(), same.end() - 1, same.end());
  }
  void Release(std::int32_t b) {
    Block& block = blocks[Index(b)];
    block.last_use = ++clock;
    if (block.in_index && index[block.key].blocks.front() != b) Leave(b);
  }
  static std::size_t Index(std::int32_t b) { return static_cast<std::size_t>(b); }

  std::vector<Block> blocks;
  std::map<std::uint64_t, Entry> index;
  std::uint64_t clock = 0;
  int evictions = 0;
};

class RandomRun {
 public:
  RandomRun(std::uint64_t seed, int num_blocks) : random_(seed), model_(num_blocks) {
    StoreOptions options;
    options.shape = {.num_layers = 1, .top_k = 1, .num_experts = 4, .page_tokens = 2};
    options.num_blocks = num_blocks;
    options.block_tokens = 4;
    options.landing = Landing::kCaller;
    options.flight = &reported_;
    pool_ = *BlockAllocator::Create(options);
    num_blocks_ = num_blocks;
  }

  void Go(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) {
      SCOPED_TRACE(::testing::Message() << "operation " << i);
      switch (random_() % 18) {
        case 0:
        case 1:
        case 2:
        case 3:
          Request();
          break;
        case 4:
        case 5:
        case 6:
          Finish();
          break;
        case 7:
          Allocate(random_() % 5);
          break;
        case 8:
          if (random_() % 2 == 0) Retain();
          Finish();
          break;
        case 9:
        case 10:
          Misuse();
          break;
        case 11:
        case 12:
          Copy();
          break;
        case 13:
          ReleaseSome();
          break;
        case 14:
          if (random_() % 8 == 0) Reset();
          break;
        case 15:
          Step();
          break;
        case 16:
        case 17:
          SealLater();
          break;
      }
      Compare();
    }
  }
  int evictions() const { return model_.evictions; }

 private:
  // A sequence of the tree of prefixes: its key names the tokens and everything before them.
  std::vector<std::uint64_t> Path() {
    std::vector<std::uint64_t> path;
    std::uint64_t key = 1;
    for (std::size_t depth = random_() % 6; depth > 0; --depth) {
      key = key * 4 + random_() % 2;
      path.push_back(key);
    }
    return path;
  }

  std::vector<std::int32_t> Allocate(std::size_t count) {
    std::vector<BlockId> out(count, BlockId(-9));
    const std::size_t room = static_cast<std::size_t>(model_.Count(false, false)) +
                             static_cast<std::size_t>(model_.Count(false, true));
    const bool given = pool_->Allocate(out);
    EXPECT_EQ(given, count <= room);
    std::vector<std::int32_t> blocks;
    if (!given) return blocks;
    for (const BlockId block : out) {
      if (model_.Count(false, false) == 0) model_.EvictOne();
      Model::Block& taken = model_.blocks[Model::Index(block.value())];
      EXPECT_TRUE(taken.references == 0 && !taken.in_index)
          << "block " << block.value() << " was handed out, but is used or cached";
      taken = {};
      taken.references = 1;
      events_.push_back(Event::Bind(block));
      blocks.push_back(block.value());
    }
    return blocks;
  }

  void Seal(std::int32_t b, std::uint64_t key, std::uint64_t parent) {
    Model::Block& block = model_.blocks[Model::Index(b)];
    const bool ok = pool_->Seal(BlockId(b), Key(key), Key(parent)).ok();
    ASSERT_EQ(ok, block.references > 0 && !(block.in_index && block.key != key));
    if (!ok || block.in_index) return;
    events_.push_back(Event::Seal(BlockId(b), Key(key)));
    block.key = key;
    if (key == 0) return;
    model_.index[key].parent = parent;
    model_.index[key].blocks.push_back(b);
    block.in_index = true;
  }

  void Request() {
    const std::vector<std::uint64_t> path = Path();
    std::vector<BlockKey> keys;
    for (const std::uint64_t key : path)
      keys.push_back(Key(key));
    std::vector<BlockId> out(keys.size());
    const std::size_t hits = pool_->MatchPrefix(keys, out);
    std::size_t wanted = 0;
    std::vector<std::int32_t> blocks;
    while (wanted < path.size() && model_.index.count(path[wanted]) != 0) {
      const std::int32_t block = model_.index[path[wanted]].blocks.front();
      ASSERT_LT(wanted, hits);
      ASSERT_EQ(out[wanted].value(), block);
      ++model_.blocks[Model::Index(block)].references;
      events_.push_back(Event::Retain(BlockId(block)));
      blocks.push_back(block);
      ++wanted;
    }
    ASSERT_EQ(hits, wanted);
    const std::vector<std::int32_t> fresh = Allocate(path.size() - hits);
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      const std::size_t at = hits + i;
      blocks.push_back(fresh[i]);
      if (random_() % 8 == 0) break;  // not full
      Seal(fresh[i], path[at], at > 0 ? path[at - 1] : 0);
    }
    for (std::size_t i = blocks.size(); i < hits + fresh.size(); ++i) {
      blocks.push_back(fresh[i - hits]);
    }
    if (!blocks.empty()) requests_.push_back(blocks);
  }

  void ReleaseBlocks(const std::vector<std::int32_t>& blocks) {
    std::vector<BlockId> ids;
    for (const std::int32_t block : blocks)
      ids.emplace_back(block);
    ASSERT_TRUE(pool_->Release(ids).ok());
    for (const BlockId id : ids) {
      events_.push_back(Event::Release(id));
      --model_.blocks[Model::Index(id.value())].references;
    }
    std::set<std::int32_t> seen;
    for (std::size_t i = blocks.size(); i-- > 0;) {
      if (model_.blocks[Model::Index(blocks[i])].references == 0 && seen.insert(blocks[i]).second) {
        model_.Release(blocks[i]);
      }
    }
  }
  void Finish() {
    if (requests_.empty()) return;
    const std::size_t which = random_() % requests_.size();
    const std::vector<std::int32_t> blocks = requests_[which];
    requests_.erase(requests_.begin() + static_cast<long>(which));
    ReleaseBlocks(blocks);
  }
  // A window slides: the front goes while the rest stays.
  void ReleaseSome() {
    if (requests_.empty()) return;
    std::vector<std::int32_t>& blocks = requests_[random_() % requests_.size()];
    if (blocks.empty()) return;
    ReleaseBlocks({blocks.front()});
    blocks.erase(blocks.begin());
  }
  void Retain() {
    if (requests_.empty()) return;
    const std::vector<std::int32_t> blocks = requests_[random_() % requests_.size()];
    std::vector<BlockId> ids;
    for (const std::int32_t block : blocks)
      ids.emplace_back(block);
    ASSERT_TRUE(pool_->Retain(ids).ok());
    for (const BlockId id : ids) {
      events_.push_back(Event::Retain(id));
      ++model_.blocks[Model::Index(id.value())].references;
    }
    requests_.push_back(blocks);
  }
  // A block computed by itself, sealed in a later step: a twin of one that hits, or behind one that
  // nobody uses.
  void SealLater() {
    const std::vector<std::uint64_t> path = Path();
    std::vector<std::int32_t> open;
    for (const std::vector<std::int32_t>& blocks : requests_) {
      for (const std::int32_t block : blocks) {
        if (!model_.blocks[Model::Index(block)].in_index) open.push_back(block);
      }
    }
    if (open.empty()) {
      const std::vector<std::int32_t> fresh = Allocate(1 + random_() % 2);
      if (!fresh.empty()) requests_.push_back(fresh);
    } else if (!path.empty()) {
      const std::uint64_t parent = path.size() > 1 ? path[path.size() - 2] : 0;
      Seal(open[random_() % open.size()], path.back(), parent);
    }
  }
  void Misuse() {
    const auto b = static_cast<std::int32_t>(random_() % static_cast<unsigned>(num_blocks_));
    const Model::Block& block = model_.blocks[Model::Index(b)];
    const std::vector<BlockId> often(static_cast<std::size_t>(block.references) + 1, BlockId(b));
    ASSERT_FALSE(pool_->Release(often).ok());
    if (block.references == 0) {
      Seal(b, 1 + random_() % 100, 0);
      if (!block.in_index) {
        ASSERT_FALSE(pool_->Retain(std::span(often)).ok());
        ASSERT_FALSE(pool_->Copy(BlockId(b), BlockId((b + 1) % num_blocks_)).ok());
      }
    } else if (block.in_index) {
      Seal(b, block.key + 1, 0);
    }
  }
  void Copy() {
    const auto a = static_cast<std::int32_t>(random_() % static_cast<unsigned>(num_blocks_));
    const auto b = static_cast<std::int32_t>(random_() % static_cast<unsigned>(num_blocks_));
    const Model::Block& src = model_.blocks[Model::Index(a)];
    const Model::Block& block = model_.blocks[Model::Index(b)];
    const bool ok = pool_->Copy(BlockId(a), BlockId(b), 3).ok();
    ASSERT_EQ(ok, a != b && (src.references > 0 || src.in_index) && block.references == 1 &&
                      !block.in_index);
    if (!ok) return;
    events_.push_back(Event::Copy(BlockId(a), BlockId(b), 3));
  }
  void Reset() {
    pool_->Reset();
    for (std::int32_t b = 0; b < num_blocks_; ++b) {
      if (model_.InIndex(b)) model_.blocks[Model::Index(b)].in_index = false;
    }
    model_.index.clear();
    if (model_.Count(true, false) == 0) events_.push_back(Event::Reset());
  }
  // The store takes every event, and finds no release too many.
  void Step() {
    last_step_ += 1 + random_() % 2;
    const StepCode code = pool_->store().BeginStep({.step = last_step_});
    ASSERT_TRUE(code.ok()) << code.ToStatus();
    ASSERT_TRUE(pool_->store().Submit(StepId(last_step_), nullptr).ok());
    while (pool_->store().LandOne()) {
    }
    ASSERT_EQ(pool_->store().GetStats().releases_below_zero, 0u);
  }

  void Compare() {
    ASSERT_EQ(pool_->free_blocks(), model_.Count(false, false));
    ASSERT_EQ(pool_->cached_blocks(), model_.Count(false, true));
    ASSERT_EQ(pool_->evictions(), static_cast<std::uint64_t>(model_.evictions));
    const std::vector<Event> reported = reported_.Take();
    ASSERT_TRUE(std::equal(reported.begin(), reported.end(), events_.begin(), events_.end()))
        << "of " << reported.size() << " events, " << events_.size() << " expected, the last is "
        << (reported.empty() ? "none" : DescribeEvent(reported.back()));
    events_.clear();
  }

  std::mt19937_64 random_;
  Model model_;
  ReportedEvents reported_;  // outlives the store
  std::unique_ptr<BlockAllocator> pool_;
  std::int32_t num_blocks_ = 0;
  std::uint64_t last_step_ = 0;
  std::vector<std::vector<std::int32_t>> requests_;
  std::vector<Event> events_;  // expected of the operation that is running
};

TEST(BlockAllocatorRandom, AgreesWithTheModel) {
  int evictions = 0;
  for (std::uint64_t round = 0; round < 60; ++round) {
    const std::uint64_t seed = TestSeed() + round;
    SCOPED_TRACE(::testing::Message() << "WAYMARK_SEED=" << seed << " (round 0)");
    RandomRun run(seed, 1 + static_cast<int>(seed % 37));
    run.Go(1500);
    evictions += run.evictions();
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  EXPECT_GT(evictions, 1000) << "the scenario does not press on memory";
}

}  // namespace
}  // namespace waymark
