// Engines with a tier, over a page source that others may write to, slow down and stop.
#ifndef WAYMARK_TESTS_UNIT_PLUGIN_CAPTURE_TIER_ENGINE_H_
#define WAYMARK_TESTS_UNIT_PLUGIN_CAPTURE_TIER_ENGINE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/tier.h"
#include "gtest/gtest.h"
#include "plugin/capture/capture.h"
#include "tests/support/log_lines.h"

namespace waymark {

using std::chrono::milliseconds;
using std::chrono::seconds;
using wire::Deadline;
using wire::DigestKey;
using wire::Object;

constexpr std::int32_t kBlock = 4;  // tokens
const RoutingShape kShape = {.num_layers = 2, .top_k = 2, .num_experts = 64, .page_tokens = kBlock};

// A page source that others may write to, slow down and stop.
class TestSource final : public wire::PageSource {
 public:
  absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                   std::span<Object> objects) override {
    ++gets;
    {
      std::unique_lock lock(mutex_);
      if (frozen) {
        changed_.wait_until(lock, deadline, [&] { return !frozen; });
        if (frozen) return absl::DeadlineExceededError("frozen");
      }
      changed_.wait(lock, [&] { return !stuck; });
      if (dead) return absl::UnavailableError("dead");
    }
    return memory_->Get(digests, deadline, objects);
  }
  // Does not return by its deadline while the source is stuck.
  absl::Status Check(Deadline) override {
    ++checks;
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, seconds(3), [&] { return !stuck; });
    ++checked;
    return absl::OkStatus();
  }
  absl::Status Put(std::span<const wire::NamedObject> objects, Deadline deadline) override {
    const std::lock_guard lock(mutex_);
    if (dead) return absl::UnavailableError("dead");
    for (const wire::NamedObject& named : objects)
      names.push_back(named.digest);
    return memory_->Put(objects, deadline);
  }
  void Set(std::atomic<bool>& what, bool value) {
    const std::lock_guard lock(mutex_);
    what = value;
    changed_.notify_all();
  }
  Object At(std::size_t i) {
    Object object;
    EXPECT_TRUE(memory_->Get({&names.at(i), 1}, {}, {&object, 1}).ok());
    EXPECT_TRUE(object.present());
    return object;
  }
  void Overwrite(const Digest128& name, Object object) {
    // A MemorySource keeps what it has.
    auto other = std::make_unique<wire::MemorySource>(1 << 20);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const wire::NamedObject named{names[i], names[i] == name ? object : At(i)};
      ASSERT_TRUE(other->Put({&named, 1}, {}).ok());
    }
    memory_ = std::move(other);
  }

  std::atomic<int> gets{0}, checks{0}, checked{0};
  std::atomic<bool> frozen{false}, stuck{false}, dead{false};
  std::vector<Digest128> names;  // of what was put

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<wire::MemorySource> memory_ = std::make_unique<wire::MemorySource>(1 << 20);
};

inline BlockKey KeyOf(std::uint64_t prefix) {
  return BlockKey::FromInteger(prefix);
}

// An engine with blocks of 4 tokens whose ids are a function of the block's prefix and `seed`.
class Engine {
 public:
  explicit Engine(std::shared_ptr<TestSource> source, wire::TierOptions tier = {},
                  RoutingShape shape = kShape, std::int32_t block_tokens = kBlock)
      : shape_(shape), block_tokens_(block_tokens) {
    tier.get = std::move(source);
    Capture::Options options;
    options.store.shape = shape;
    options.store.num_blocks = 32;
    options.store.block_tokens = block_tokens;
    options.store.null_blocks = {BlockId(0)};
    options.store.log = lines.callback();
    options.tier = std::move(tier);
    capture = Capture::Create(options).value();
  }

  std::vector<std::int32_t> IdsOf(std::uint64_t prefix, std::int32_t rows) const {
    std::vector<std::int32_t> ids;
    for (std::int32_t r = 0; r < rows; ++r) {
      for (std::int32_t l = 0; l < shape_.num_layers; ++l) {
        const auto id = static_cast<std::int32_t>((seed + 7 * prefix + 3 * r + 5 * l) % 64);
        ids.push_back(id);
        ids.push_back((id + 1) % 64);
      }
    }
    return ids;
  }
  // Computes `rows` rows of a block, and seals it if `key`.
  void Compute(std::int32_t block, std::uint64_t prefix, std::int32_t rows, bool seals = true,
               bool binds = true, bool asked = true) {
    std::vector<Event> events;
    if (binds) events.push_back(Event::Bind(BlockId(block)));
    if (seals) events.push_back(Event::Seal(BlockId(block), KeyOf(prefix)));
    ASSERT_TRUE(capture->Report(events).ok());
    std::vector<std::int64_t> slots(static_cast<std::size_t>(rows));
    std::iota(slots.begin(), slots.end(), std::int64_t{block} * block_tokens_);
    if (!asked) slots.back() = NotAsked(slots.back());
    kept_.push_back(IdsOf(prefix, rows));
    const StepIds ids = StepIds::TokenMajor(kept_.back().data(), IdType::kInt32, rows, shape_);
    ASSERT_TRUE(capture
                    ->Step({.step = ++step,
                            .version = version,
                            .slots = slots.data(),
                            .num_slots = slots.size()},
                           &ids)
                    .ok());
  }
  // The KV of a block comes from elsewhere.
  void Load(std::int32_t block, std::uint64_t prefix) {
    const Event bind = Event::Bind(BlockId(block), KeyOf(prefix));
    ASSERT_TRUE(capture->Report({&bind, 1}).ok());
  }
  TakenRows Take(std::vector<std::int32_t> blocks, const std::vector<std::uint64_t>& prefixes,
                 std::int64_t rows, std::int64_t first = 0) {
    const std::vector<BlockId> ids(blocks.begin(), blocks.end());
    std::vector<BlockKey> keys;
    for (const std::uint64_t prefix : prefixes)
      keys.push_back(prefix == 0 ? BlockKey{} : KeyOf(prefix));
    return capture
        ->Take(ids, first, rows, {.last_step = ~std::uint64_t{0} >> 8, .keys = keys}, version)
        .value();
  }
  static Rows Read(const TakenRows& taken) {
    EXPECT_TRUE(taken.Wait(seconds(20)).ok());
    return **taken.rows();
  }
  // The rows of one loaded block.
  Rows LoadAndRead(std::uint64_t prefix, std::int32_t block = 1) {
    Load(block, prefix);
    return Read(Take({block}, {prefix}, block_tokens_));
  }
  bool WaitPut() {
    EXPECT_TRUE(capture->store().WaitIdle(seconds(20)).ok());
    return capture->tier()->WaitPut(seconds(20));
  }
  int Logged(const std::string& text) const {
    int times = 0;
    for (const LogLines::Line& line : lines.lines())
      times += line.text.find(text) != std::string::npos ? 1 : 0;
    return times;
  }
  wire::TierStats stats() const { return capture->tier()->GetStats(); }

  std::uint64_t seed = 0, step = 0, version = 1;
  LogLines lines;
  std::unique_ptr<Capture> capture;

 private:
  const RoutingShape shape_;
  const std::int32_t block_tokens_;
  std::list<std::vector<std::int32_t>> kept_;
};

inline std::vector<std::int32_t> Ids(const Rows& rows) {
  return {rows.ids.begin(), rows.ids.end()};
}
// "4 by key", "4 capacity: absent": of rows that are alike.
inline std::string Says(const Rows& rows) {
  std::string text;
  for (const CoverageRun& run : rows.Coverage()) {
    text += text.empty() ? "" : ", ";
    text += std::to_string(run.end - run.begin) + " ";
    text += run.reason == Reason::kNone ? std::string(ProvenanceName(run.provenance))
                                        : WhyMissing(run.reason, run.cause);
  }
  return text;
}

class TierTest : public ::testing::Test {
 protected:
  wire::TierOptions Of(std::string space = "model a") {
    wire::TierOptions options;
    options.space = std::move(space);
    options.timeout = milliseconds(60);
    options.min_key_bytes = 8;
    return options;
  }
  static wire::TierOptions Keyed(wire::TierOptions options, std::uint8_t secret) {
    options.key = DigestKey::Create("key", std::vector<std::uint8_t>(32, secret)).value();
    return options;
  }
  std::unique_ptr<Engine> Make(const wire::TierOptions& options, const std::string& weights) {
    auto engine = std::make_unique<Engine>(source_, options);
    if (!weights.empty()) {
      EXPECT_TRUE(engine->capture->NameWeights(1, weights).ok());
    }
    return engine;
  }
  // An engine that has computed the block of prefix 5.
  std::unique_ptr<Engine> Publisher(const wire::TierOptions& options, const std::string& weights,
                                    std::uint64_t seed = 0) {
    auto engine = Make(options, weights);
    engine->seed = seed;
    engine->Compute(3, 5, kBlock);
    EXPECT_TRUE(engine->WaitPut());
    return engine;
  }

  std::shared_ptr<TestSource> source_ = std::make_shared<TestSource>();
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_UNIT_PLUGIN_CAPTURE_TIER_ENGINE_H_
