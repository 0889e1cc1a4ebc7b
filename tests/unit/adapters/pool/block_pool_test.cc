// BlockPool, used as the embedded engine uses it, against a reference model that knows no data
// structure: it scans.
#include "adapters/pool/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "tests/support/failing_new.h"
#include "tests/support/test_seed.h"

namespace waymark {
namespace {

PrefixHash Key(std::uint64_t number) {
  return {number, 0};
}

// Keys are numbers; 0 is that of no tokens.
struct Model {
  struct Block {
    int users = 0;
    std::uint64_t key = 0, last_use = 0;
    bool in_index = false;
  };
  struct Entry {
    std::vector<std::int32_t> blocks;  // the one that hits, then in the order of their seals
    std::uint64_t parent = 0;
  };
  explicit Model(int num_blocks) : blocks(static_cast<std::size_t>(num_blocks)) {}

  Block& at(std::int32_t b) { return blocks[static_cast<std::size_t>(b)]; }
  static bool Cached(const Block& block) { return block.users == 0 && block.in_index; }
  int Count(bool cached) const {
    return static_cast<int>(std::count_if(blocks.begin(), blocks.end(), [&](const Block& block) {
      return block.users == 0 && Cached(block) == cached;
    }));
  }
  bool HasChild(std::uint64_t key) const {
    return std::any_of(index.begin(), index.end(),
                       [key](const auto& entry) { return entry.second.parent == key; });
  }
  void Leave(std::int32_t b) {
    std::vector<std::int32_t>& same = index[at(b).key].blocks;
    same.erase(std::find(same.begin(), same.end(), b));
    at(b).in_index = false;
    if (same.empty()) index.erase(at(b).key);
  }
  std::int32_t EvictOne() {
    std::int32_t victim = -1;
    bool victim_leaf = false;
    for (std::int32_t b = 0; b < static_cast<std::int32_t>(blocks.size()); ++b) {
      if (!Cached(at(b))) continue;
      const bool leaf = !HasChild(at(b).key);
      if (victim < 0 || (leaf && !victim_leaf) ||
          (leaf == victim_leaf && at(b).last_use < at(victim).last_use)) {
        victim = b;
        victim_leaf = leaf;
      }
    }
    Leave(victim);
    if (const auto entry = index.find(at(victim).key); entry != index.end()) {
      std::vector<std::int32_t>& same = entry->second.blocks;
      std::rotate(same.begin(), same.end() - 1, same.end());
    }
    return victim;
  }

  std::vector<Block> blocks;
  std::map<std::uint64_t, Entry> index;
};

class RandomRun {
 public:
  RandomRun(std::uint64_t seed, int num_blocks)
      : random_(seed), model_(num_blocks), pool_(num_blocks, BlockPool::Freed::kStack) {}

  void Go(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) {
      SCOPED_TRACE(::testing::Message() << "operation " << i);
      const std::uint64_t draw = random_() % 100;
      if (draw < 40) {
        Request();
      } else if (draw < 80) {
        Finish(/*front=*/draw < 50);
      } else if (draw < 99) {
        SealLater();
      } else {
        Reset();
      }
      ASSERT_EQ(pool_.free_count(), model_.Count(false));
      ASSERT_EQ(pool_.cached_count(), model_.Count(true));
    }
  }
  int evictions() const { return evictions_; }

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

  // -1: all blocks have users.
  std::int32_t Take() {
    if (pool_.free_count() == 0) {
      const std::int32_t victim = pool_.LeastRecentLeaf();
      if (victim < 0) {
        EXPECT_EQ(model_.Count(true), 0);
        return -1;
      }
      EXPECT_EQ(victim, model_.EvictOne());
      const std::int32_t twin = pool_.ForgetHash(victim);
      if (twin >= 0) pool_.Publish(twin);
      pool_.PushFree(victim);
      ++evictions_;
    }
    const std::int32_t block = pool_.PopFree();
    EXPECT_TRUE(model_.at(block).users == 0 && !model_.at(block).in_index) << block;
    model_.at(block) = {.users = 1};
    pool_.SetRefs(block, 1, clock_);
    return block;
  }

  void Seal(std::int32_t block, std::uint64_t key, std::uint64_t parent) {
    pool_.SetHash(block, Key(key), Key(parent));
    model_.at(block).key = key;
    model_.at(block).in_index = true;
    model_.index[key].parent = parent;
    model_.index[key].blocks.push_back(block);
  }

  void Request() {
    const std::vector<std::uint64_t> path = Path();
    std::vector<std::int32_t> blocks;
    bool hits = true;
    for (std::size_t i = 0; i < path.size(); ++i) {
      const auto entry = model_.index.find(path[i]);
      if (hits) {
        const std::int32_t hit = entry == model_.index.end() ? -1 : entry->second.blocks.front();
        ASSERT_EQ(pool_.Find(Key(path[i])), hit);
        hits = hit >= 0;
        if (hits) {
          pool_.SetRefs(hit, ++model_.at(hit).users, clock_);
          blocks.push_back(hit);
          continue;
        }
      }
      const std::int32_t block = Take();
      if (block < 0) break;
      blocks.push_back(block);
      if (random_() % 8 != 0) Seal(block, path[i], i > 0 ? path[i - 1] : 0);
    }
    if (!blocks.empty()) requests_.push_back(blocks);
  }

  // Releases a request, or the front of one: a window slides.
  void Finish(bool front) {
    if (requests_.empty()) return;
    const auto which = requests_.begin() + static_cast<long>(random_() % requests_.size());
    const std::size_t count = front ? 1 : which->size();
    for (std::size_t i = count; i-- > 0;) {
      const std::int32_t b = (*which)[i];
      Model::Block& block = model_.at(b);
      pool_.SetRefs(b, --block.users, block.last_use = ++clock_);
      if (block.users > 0) continue;
      if (block.in_index && model_.index[block.key].blocks.front() != b) {
        model_.Leave(b);
        pool_.ForgetHash(b);
      }
      if (!block.in_index) pool_.PushFree(b);
    }
    which->erase(which->begin(), which->begin() + static_cast<long>(count));
    if (which->empty()) requests_.erase(which);
  }

  // A block computed by itself: a twin of one that hits, or behind one that nobody uses.
  void SealLater() {
    const std::vector<std::uint64_t> path = Path();
    if (path.empty()) return;
    for (const std::vector<std::int32_t>& blocks : requests_) {
      for (const std::int32_t block : blocks) {
        if (model_.at(block).in_index) continue;
        return Seal(block, path.back(), path.size() > 1 ? path[path.size() - 2] : 0);
      }
    }
  }

  void Reset() {
    for (std::int32_t b = 0; b < pool_.size(); ++b) {
      pool_.ForgetHash(b);
      if (Model::Cached(model_.at(b))) pool_.PushFree(b);
      model_.at(b).in_index = false;
    }
    model_.index.clear();
  }

  std::mt19937_64 random_;
  Model model_;
  BlockPool pool_;
  std::uint64_t clock_ = 0;
  int evictions_ = 0;
  std::vector<std::vector<std::int32_t>> requests_;
};

TEST(BlockPool, AgreesWithTheModel) {
  int evictions = 0;
  for (std::uint64_t round = 0; round < 60; ++round) {
    const std::uint64_t seed = TestSeed() + round;
    SCOPED_TRACE(::testing::Message() << "WAYMARK_SEED=" << seed << " (round 0)");
    RandomRun run(seed, 1 + static_cast<int>(seed % 37));
    run.Go(1500);
    evictions += run.evictions();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(evictions, 1000) << "the scenario does not press on memory";
}

TEST(BlockPool, OfAQueueTheLeastRecentlyFreedIsTakenFirst) {
  BlockPool pool(3, BlockPool::Freed::kQueue);
  EXPECT_EQ(pool.PopFree(), 0);
  EXPECT_EQ(pool.PopFree(), 1);
  pool.PushFree(1);
  pool.PushFree(0);
  pool.RemoveFree(1);
  EXPECT_EQ(pool.PopFree(), 2);
  EXPECT_EQ(pool.PopFree(), 0);
  EXPECT_EQ(pool.PopFree(), -1);
}

TEST(BlockPool, NothingAllocatesAfterWarmUp) {
  BlockPool pool(64, BlockPool::Freed::kStack);
  for (std::uint64_t round = 0; round < 3000; ++round) {
    if (round == 500) FailAllocation(0);
    if (pool.free_count() == 0) {
      const std::int32_t victim = pool.LeastRecentLeaf();
      pool.ForgetHash(victim);
      pool.PushFree(victim);
    }
    const std::int32_t block = pool.PopFree();
    pool.SetRefs(block, 1, round);
    pool.SetHash(block, Key(1 + round), Key(round % 7 == 0 ? 0 : round));
    pool.SetRefs(block, 0, round);
  }
  EXPECT_EQ(AllocationsSeen(), 0u);
}

}  // namespace
}  // namespace waymark
