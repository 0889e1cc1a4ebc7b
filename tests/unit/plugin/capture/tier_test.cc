// Rows by key through whole captures, each an engine of its own: what must come, what must not, and
// why it did not.
#include "blockstore/wire/tier.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "blockstore/store/schedule_message.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/tier_entry.h"
#include "gtest/gtest.h"
#include "plugin/capture/capture.h"
#include "tests/support/log_lines.h"

namespace waymark {
namespace {

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

  std::atomic<int> gets{0};
  std::atomic<bool> frozen{false}, stuck{false}, dead{false};
  std::vector<Digest128> names;  // of what was put

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<wire::MemorySource> memory_ = std::make_unique<wire::MemorySource>(1 << 20);
};

BlockKey KeyOf(std::uint64_t prefix) {
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

std::vector<std::int32_t> Ids(const Rows& rows) {
  return {rows.ids.begin(), rows.ids.end()};
}
// "4 by key", "4 capacity: absent": of rows that are alike.
std::string Says(const Rows& rows) {
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

TEST_F(TierTest, RowsOfLoadedKvComeFromTheEngineThatComputedThem) {
  const auto first = Publisher(Of(), "step 10");
  const auto second = Make(Of(), "step 10");
  second->seed = 99;  // its own rows would be others
  const Rows rows = second->LoadAndRead(5);
  EXPECT_EQ(Says(rows), "4 by key");
  EXPECT_EQ(Ids(rows), first->IdsOf(5, kBlock));
  EXPECT_EQ(rows.infos[0].version, 1u);
  EXPECT_GE(rows.infos[0].step, std::uint64_t{1} << 63);
  EXPECT_EQ(second->stats().rows_filled, 4u);
  EXPECT_EQ(first->stats().pages_put, 1u);
}

TEST_F(TierTest, RowsThatWereComputedHereAreNotReplaced) {
  Publisher(Of(), "step 10");
  const auto second = Make(Of(), "step 10");
  second->seed = 99;
  second->Load(1, 5);  // two rows come with the KV, two are computed
  std::vector<std::int64_t> slots = {6, 7};
  const std::vector<std::int32_t> own = second->IdsOf(5, 2);
  const StepIds ids = StepIds::TokenMajor(own.data(), IdType::kInt32, 2, kShape);
  ASSERT_TRUE(
      second->capture
          ->Step({.step = ++second->step, .version = 1, .slots = slots.data(), .num_slots = 2},
                 &ids)
          .ok());
  const Rows rows = Engine::Read(second->Take({1}, {5}, kBlock));
  EXPECT_EQ(Says(rows), "2 by key, 2 here");
  EXPECT_EQ(rows.ids[8], own[0]);
}

TEST_F(TierTest, RowsOfNullBlocksAndOfPartsOfASequence) {
  Publisher(Of(), "step 10");
  const auto second = Make(Of(), "step 10");
  EXPECT_EQ(Says(Engine::Read(second->Take({0}, {5}, kBlock))), "4 by key");
  second->Load(1, 5);
  EXPECT_EQ(Says(Engine::Read(second->Take({0, 1}, {0, 5}, 7, 5))), "2 by key");
  EXPECT_EQ(Says(Engine::Read(second->Take({0, 1}, {0, 5}, 7, 2))), "2 never written, 3 by key");
}

TEST_F(TierTest, BlocksOfSeveralPages) {
  Engine first(source_, Of(), kShape, 2 * kBlock);
  ASSERT_TRUE(first.capture->NameWeights(1, "w").ok());
  first.Compute(3, 5, 2 * kBlock);
  ASSERT_TRUE(first.WaitPut());
  EXPECT_EQ(first.stats().pages_put, 2u);
  Engine second(source_, Of(), kShape, 2 * kBlock);
  ASSERT_TRUE(second.capture->NameWeights(1, "w").ok());
  const Rows rows = second.LoadAndRead(5);
  EXPECT_EQ(Says(rows), "8 by key");
  EXPECT_EQ(Ids(rows), first.IdsOf(5, 2 * kBlock));
}

TEST_F(TierTest, RowsOfAMessageWithKeysBesideIt) {
  const auto first = Publisher(Of(), "step 10");
  const auto second = Make(Of(), "step 10");
  second->Load(1, 5);
  ScheduleWriter writer =
      ScheduleWriter::Create({.num_blocks = 32, .block_tokens = kBlock}).value();
  ASSERT_TRUE(writer.Begin(StepId(), 0).ok());
  const BlockId blocks[] = {BlockId(1)};
  ASSERT_TRUE(writer.Snapshot(7, blocks, 0, kBlock).ok());
  ASSERT_TRUE(writer.Snapshot(8, blocks, 0, kBlock).ok());
  ASSERT_TRUE(
      second->capture->ReportMessage(writer.Finish(), nullptr, {{7, {{KeyOf(5)}, 1}}}).ok());
  ASSERT_TRUE(second->capture->WaitResults(seconds(20)).ok());
  const auto results = second->capture->Results();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(Says(**results[0].rows.rows()), "4 by key");
  EXPECT_EQ(Says(**results[1].rows.rows()), "4 external KV");
}

// ---- planted: none of these may give a row

TEST_F(TierTest, ARestartedEngineWithoutANameSharesNothing) {
  const auto first = Publisher(Of(), "");
  EXPECT_EQ(first->Logged("have no name"), 1);
  EXPECT_EQ(Says(first->LoadAndRead(5)), "4 by key") << "its own rows it finds";
  const auto second = Make(Of(), "");
  EXPECT_EQ(Says(second->LoadAndRead(5)), "4 capacity: the weights have no name");
}

TEST_F(TierTest, AnotherCheckpointUnderTheSameVersionNumber) {
  Publisher(Of(), "step 10");
  EXPECT_EQ(Says(Make(Of(), "step 20")->LoadAndRead(5)),
            "4 capacity: the source does not have the object");
}

TEST_F(TierTest, AnInPlaceReloadOfAnAdapterIsAnotherVersion) {
  const auto first = Publisher(Of(), "base, lora a 1");
  first->version = 2;
  ASSERT_TRUE(first->capture->NameWeights(2, "base, lora a 2").ok());
  first->Compute(4, 6, kBlock);  // a step of the new weights
  EXPECT_EQ(Says(first->LoadAndRead(5)), "4 capacity: the source does not have the object");
}

TEST_F(TierTest, ABlockKeepsTheWeightsOfItsLife) {
  Publisher(Of(), "step 10");
  const auto second = Make(Of(), "step 10");
  ASSERT_TRUE(second->capture->NameWeights(2, "step 20").ok());
  second->Load(1, 5);
  second->Compute(2, 6, kBlock);
  second->version = 2;  // in place: the KV of block 1 stays, and another request hits it
  second->step += 10;
  second->Compute(3, 7, kBlock);
  const Rows rows = Engine::Read(second->Take({1}, {5}, kBlock));
  EXPECT_EQ(Says(rows), "4 by key");
  EXPECT_EQ(rows.infos[0].version, 1u);
}

TEST_F(TierTest, ALoadThatIsToldBeforeAStepOfNewWeightsIsOfThese) {
  Publisher(Of(), "step 20");
  const auto second = Make(Of(), "step 10");
  ASSERT_TRUE(second->capture->NameWeights(2, "step 20").ok());
  second->Compute(2, 6, kBlock);
  second->Load(1, 5);
  second->version = 2;
  second->step += 10;
  second->Compute(3, 7, kBlock);
  EXPECT_EQ(Says(Engine::Read(second->Take({1}, {5}, kBlock))), "4 by key");
}

TEST_F(TierTest, RowsThatWereCopiedOrMovedKeepTheirWeights) {
  Publisher(Of(), "step 10");
  const auto second = Make(Of(), "step 10");
  ASSERT_TRUE(second->capture->NameWeights(2, "step 20").ok());
  second->Load(1, 5);
  second->Compute(9, 6, kBlock);
  second->version = 2;
  const Event events[] = {Event::Copy(BlockId(1), BlockId(2)),
                          Event::Copy(BlockId(1), BlockId(3), 3),
                          Event::Move(BlockId(1), BlockId(4))};
  ASSERT_TRUE(second->capture->Report(events).ok());
  second->Compute(9, 7, kBlock);
  EXPECT_EQ(Says(Engine::Read(second->Take({2}, {5}, kBlock))), "4 by key");
  EXPECT_EQ(Says(Engine::Read(second->Take({3}, {5}, 3))), "3 by key");
  const Rows rows = Engine::Read(second->Take({4}, {5}, kBlock));
  EXPECT_EQ(Says(rows), "4 by key");
  EXPECT_EQ(rows.infos[0].version, 1u);
}

// A block of which nobody told how its KV came: a Bind that was lost, or of before the capture.
TEST_F(TierTest, ABlockThatWasNotBoundHasNoKnownWeights) {
  Publisher(Of(), "step 10");
  const auto second = Make(Of(), "step 10");
  EXPECT_EQ(Says(Engine::Read(second->Take({1}, {5}, kBlock))), "4 never written");
  const Event hit = Event::Retain(BlockId(2));
  ASSERT_TRUE(second->capture->Report({&hit, 1}).ok());
  second->Compute(9, 6, kBlock);
  EXPECT_EQ(Says(Engine::Read(second->Take({2}, {5}, kBlock))), "4 never written");
}

// A step of new weights has written rows of a block that was loaded before, and they were taken
// back: the KV there is of no weights that the tier could be asked for.
TEST_F(TierTest, RowsOfNewWeightsThatWereTakenBackAreNotAskedFor) {
  Publisher(Of(), "step 10");
  const auto second = Make(Of(), "step 10");
  second->Load(1, 5);
  second->Compute(9, 6, kBlock);
  second->version = 2;
  second->Compute(1, 5, kBlock, /*seals=*/false, /*binds=*/false);
  const Event truncate = Event::Truncate(BlockId(1), 0, StepId(second->step));
  ASSERT_TRUE(second->capture->Report({&truncate, 1}).ok());
  EXPECT_EQ(Says(Engine::Read(second->Take({1}, {5}, kBlock))), "4 never written");
}

TEST_F(TierTest, AnotherTenant) {
  Publisher(Of("tenant a"), "step 10");
  EXPECT_EQ(Says(Make(Of("tenant b"), "step 10")->LoadAndRead(5)),
            "4 capacity: the source does not have the object");
}

TEST_F(TierTest, OtherLayersOrShape) {
  Publisher(Of(), "step 10");
  RoutingShape other = kShape;
  other.layer_ids = {1, 2};
  Engine second(source_, Of(), other);
  ASSERT_TRUE(second.capture->NameWeights(1, "step 10").ok());
  EXPECT_EQ(Says(second.LoadAndRead(5)), "4 capacity: the source does not have the object");
}

TEST_F(TierTest, AnAuthenticPageUnderAnotherKey) {
  for (const bool keyed : {false, true}) {
    SCOPED_TRACE(keyed);
    source_ = std::make_shared<TestSource>();
    const wire::TierOptions options = keyed ? Keyed(Of(), 1) : Of();
    const auto first = Publisher(options, "step 10");
    first->Compute(4, 6, kBlock);
    ASSERT_TRUE(first->WaitPut());
    source_->Overwrite(source_->names[0], source_->At(1));
    const auto second = Make(options, "step 10");
    EXPECT_EQ(Says(second->LoadAndRead(5)), "4 capacity: the entry is of another key");
    EXPECT_EQ(second->stats().pages_refused, 1u);
    EXPECT_EQ(Says(second->LoadAndRead(6)), "4 by key");
  }
}

TEST_F(TierTest, EveryByteOfAnEntryIsChecked) {
  Publisher(Keyed(Of(), 1), "step 10");
  const Object entry = source_->At(0);
  const std::vector<std::uint8_t> good(entry.bytes.begin(), entry.bytes.end());
  const auto codec = wire::TierCodec::Create(kShape, "model a", Keyed(Of(), 1).key).value();
  const Digest128 space = codec.Space("named step 10");
  const wire::TierPage page{KeyOf(5), 0};
  ASSERT_EQ(codec.Name(space, page), source_->names[0]);
  std::vector<std::uint64_t> steps(kBlock);
  std::vector<std::uint8_t> ids(kShape.page_bytes());
  ASSERT_EQ(codec.Decode(good, space, page, steps, ids), wire::TierEntryState::kGood);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::vector<std::uint8_t> bad = good;
    bad[i] ^= 4;
    EXPECT_EQ(codec.Decode(bad, space, page, steps, ids), wire::TierEntryState::kDamaged) << i;
    bad.resize(i);
    EXPECT_EQ(codec.Decode(bad, space, page, steps, ids), wire::TierEntryState::kDamaged) << i;
  }
}

TEST_F(TierTest, AForgedEntryWithoutTheSecret) {
  Publisher(Keyed(Of(), 1), "step 10", 40);
  Publisher(Keyed(Of(), 2), "step 10", 50);
  source_->Overwrite(source_->names[0], source_->At(1));
  const auto second = Make(Keyed(Of(), 1), "step 10");
  EXPECT_EQ(Says(second->LoadAndRead(5)), "4 capacity: the object is damaged");
}

TEST_F(TierTest, StagesJoinPagesOfOnePublisherAlone) {
  RoutingShape stages[2] = {kShape, kShape};
  stages[0].layer_ids = {0, 1};
  stages[1].layer_ids = {2, 3};
  for (const bool same : {true, false}) {
    SCOPED_TRACE(same);
    source_ = std::make_shared<TestSource>();
    Rows read[2];
    for (int stage = 0; stage < 2; ++stage) {
      wire::TierOptions options = Of();
      options.publisher = same || stage == 0 ? "engine a" : "engine b";
      Engine first(source_, options, stages[stage]);
      ASSERT_TRUE(first.capture->NameWeights(1, "w").ok());
      first.Compute(3, 5, kBlock);
      ASSERT_TRUE(first.WaitPut());
      Engine second(source_, Of(), stages[stage]);
      ASSERT_TRUE(second.capture->NameWeights(1, "w").ok());
      read[stage] = second.LoadAndRead(5);
    }
    const Rows* const parts[] = {&read[0], &read[1]};
    EXPECT_EQ(Says(*JoinLayers(parts)), same ? "4 by key" : "4 not captured");
  }
}

// ---- what is not published

TEST_F(TierTest, PagesThatAreNotCompleteAreNotPublished) {
  const auto first = Make(Of(), "step 10");
  first->Compute(3, 5, kBlock - 1);                 // a hole
  first->Compute(4, 6, kBlock, true, true, false);  // a row that nobody asked for
  first->Compute(5, 7, kBlock, false);              // no seal
  first->version = 2;
  first->Compute(6, 8, 2, false);  // of two versions
  first->version = 3;
  first->Compute(6, 8, kBlock, true, false);
  ASSERT_TRUE(first->WaitPut());
  EXPECT_EQ(first->stats().pages_sealed, 1u) << "version 3 has written all rows of block 6";
  const auto second = Make(Of(), "step 10");
  for (const std::uint64_t prefix : {5, 6, 7, 8})
    EXPECT_EQ(Says(second->LoadAndRead(prefix)), "4 capacity: the source does not have the object");
}

// Engines that register the blocks of a prompt when it is admitted seal them before their chunks.
TEST_F(TierTest, APageThatIsSealedBeforeItsRowsAreWritten) {
  const auto first = Make(Of(), "step 10");
  const Event events[] = {
      Event::Bind(BlockId(3)), Event::Seal(BlockId(3), KeyOf(5)),  // in two chunks
      Event::Bind(BlockId(4)), Event::Seal(BlockId(4), KeyOf(6)),  // in a later one
      Event::Bind(BlockId(5)), Event::Seal(BlockId(5), KeyOf(7)),  // not at all
  };
  ASSERT_TRUE(first->capture->Report(events).ok());
  first->Compute(3, 5, 2, /*seals=*/false, /*binds=*/false);
  EXPECT_TRUE(first->WaitPut());
  EXPECT_EQ(first->stats().pages_sealed, 0u);
  std::vector<std::int64_t> slots = {14, 15, 16, 17, 18, 19};
  std::vector<std::int32_t> rest = first->IdsOf(5, kBlock);
  rest.erase(rest.begin(), rest.begin() + 8);
  for (const std::int32_t id : first->IdsOf(6, kBlock))
    rest.push_back(id);
  const StepIds ids = StepIds::TokenMajor(rest.data(), IdType::kInt32, 6, kShape);
  ASSERT_TRUE(
      first->capture
          ->Step({.step = ++first->step, .version = 1, .slots = slots.data(), .num_slots = 6}, &ids)
          .ok());
  first->Compute(5, 9, kBlock);  // block 5 has another owner
  EXPECT_TRUE(first->WaitPut());
  EXPECT_EQ(first->stats().pages_sealed, 3u);
  const auto second = Make(Of(), "step 10");
  EXPECT_EQ(Ids(second->LoadAndRead(5)), first->IdsOf(5, kBlock));
  EXPECT_EQ(Ids(second->LoadAndRead(6)), first->IdsOf(6, kBlock));
  EXPECT_EQ(Says(second->LoadAndRead(7)), "4 capacity: the source does not have the object");
}

TEST_F(TierTest, TheFirstCompletePageWins) {
  Publisher(Of(), "step 10", 40);
  const auto second = Publisher(Of(), "step 10", 50);
  EXPECT_EQ(second->stats().pages_held, 1u);
  const auto third = Make(Of(), "step 10");
  EXPECT_EQ(third->LoadAndRead(5).ids[0], (40 + 35) % 64);
}

TEST_F(TierTest, BytesThatArePutAreLimited) {
  wire::TierOptions options = Of();
  options.max_bytes = 400;
  const auto first = Make(options, "step 10");
  for (int i = 0; i < 8; ++i)
    first->Compute(3 + i, 5 + static_cast<std::uint64_t>(i), kBlock);
  ASSERT_TRUE(first->WaitPut());
  EXPECT_LE(first->stats().bytes_put, 400u);
  EXPECT_GT(first->stats().pages_put, 0u);
  EXPECT_EQ(first->stats().pages_put + first->stats().pages_dropped, 8u);
}

// ---- sources that fail

TEST_F(TierTest, APageThatIsPutInTimeIsWaitedFor) {
  wire::TierOptions options = Of();
  options.timeout = seconds(20);
  const auto second = Make(options, "step 10");
  second->Load(1, 5);
  const TakenRows taken = second->Take({1}, {5}, kBlock);
  while (source_->gets < 2)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_FALSE(taken.done());
  Publisher(Of(), "step 10");
  EXPECT_EQ(Says(Engine::Read(taken)), "4 by key");
}

TEST_F(TierTest, RowsByKeyDelayNoOthers) {
  wire::TierOptions options = Of();
  options.timeout = seconds(60);
  const auto engine = Make(options, "step 10");
  source_->Set(source_->frozen, true);
  engine->Load(1, 5);
  const TakenRows waits = engine->Take({1}, {5}, kBlock);
  engine->Compute(2, 6, kBlock);
  EXPECT_EQ(Says(Engine::Read(engine->Take({2}, {6}, kBlock))), "4 here");
  EXPECT_FALSE(waits.done());
  source_->Set(source_->frozen, false);
  EXPECT_EQ(engine->capture->tier()->GetStats().fills, 1u);
  Publisher(Of(), "step 10");
  EXPECT_EQ(Says(Engine::Read(waits)), "4 by key");
}

TEST_F(TierTest, AFrozenSourceIsSkippedAfterThreeTimeouts) {
  wire::TierOptions options = Of();
  options.skip = milliseconds(300);
  Publisher(Of(), "step 10");
  const auto second = Make(options, "step 10");
  source_->Set(source_->frozen, true);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(Says(second->LoadAndRead(5)), "4 capacity: the source did not answer in time") << i;
  const int gets = source_->gets;
  EXPECT_EQ(Says(second->LoadAndRead(5)), "4 capacity: the source was skipped");
  EXPECT_EQ(source_->gets, gets);
  EXPECT_EQ(second->stats().skips, 1u);
  EXPECT_EQ(second->Logged("the tier is not asked for some time"), 1);
  source_->Set(source_->frozen, false);
  std::this_thread::sleep_for(milliseconds(350));
  EXPECT_EQ(Says(second->LoadAndRead(5)), "4 by key");
}

TEST_F(TierTest, ADeadSource) {
  const auto second = Make(Of(), "step 10");
  source_->Set(source_->dead, true);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(Says(second->LoadAndRead(5)), "4 capacity: the source cannot be reached") << i;
  EXPECT_EQ(Says(second->LoadAndRead(5)), "4 capacity: the source was skipped");
  for (int i = 0; i < 3; ++i) {
    second->Compute(3, 5, kBlock);
    ASSERT_TRUE(second->WaitPut());
  }
  EXPECT_EQ(second->stats().pages_failed, 3u);
  second->Compute(3, 5, kBlock);
  ASSERT_TRUE(second->WaitPut());
  EXPECT_EQ(second->stats().pages_dropped, 1u);
}

TEST_F(TierTest, ACallThatDoesNotReturnKeepsOneThread) {
  const auto second = Make(Of(), "step 10");
  source_->Set(source_->stuck, true);
  EXPECT_EQ(Says(second->LoadAndRead(5)), "4 capacity: the source did not answer in time");
  std::this_thread::sleep_for(milliseconds(120));
  EXPECT_EQ(Says(second->LoadAndRead(5)), "4 capacity: the source was skipped");
  EXPECT_EQ(source_->gets, 1);
  second->capture.reset();  // it is let go
  source_->Set(source_->stuck, false);
}

TEST_F(TierTest, LostRowsAreAskedForIfTheOptionSaysSo) {
  Publisher(Of(), "step 10");
  for (const bool lost : {false, true}) {
    wire::TierOptions options = Of();
    options.lost = lost;
    const auto second = Make(options, "step 10");
    const Event bind = Event::Bind(BlockId(1));
    ASSERT_TRUE(second->capture->Report({&bind, 1}).ok());
    std::vector<std::int64_t> slots = {4, 5, 6, 7};
    ASSERT_TRUE(second->capture
                    ->Step({.step = ++second->step,
                            .version = 1,
                            .slots = slots.data(),
                            .num_slots = 4,
                            .drop = true},
                           nullptr)
                    .dropped());
    EXPECT_EQ(Says(Engine::Read(second->Take({1}, {5}, kBlock))),
              lost ? "4 by key" : "4 capacity: no buffer was free");
  }
}

TEST_F(TierTest, KeysThatAreShortAreNoHashes) {
  wire::TierOptions options = Of();
  options.min_key_bytes = 16;
  const auto first = Publisher(options, "step 10");
  EXPECT_EQ(first->stats().pages_sealed, 0u);
  EXPECT_EQ(Says(Make(options, "step 10")->LoadAndRead(5)), "4 external KV");
}

TEST_F(TierTest, AVersionHasOneName) {
  const auto engine = Make(Of(), "step 10");
  EXPECT_TRUE(engine->capture->NameWeights(1, "step 10").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine->capture->NameWeights(1, "step 20")));
  EXPECT_TRUE(engine->capture->NameWeights(2, "step 20").ok());
}

// What is lost was computed at any time in the life of its block: of which weights it was is known
// if they have not changed since.
TEST_F(TierTest, LostRowsAfterAnUpdateOfTheWeightsAreNotAskedFor) {
  Publisher(Of(), "step 10");
  wire::TierOptions options = Of();
  options.lost = true;
  const auto second = Make(options, "step 10");
  ASSERT_TRUE(second->capture->NameWeights(2, "step 20").ok());
  const Event bind = Event::Bind(BlockId(1));
  ASSERT_TRUE(second->capture->Report({&bind, 1}).ok());
  const auto drop = [&](std::vector<std::int64_t> slots) {
    ASSERT_TRUE(second->capture
                    ->Step({.step = ++second->step,
                            .version = second->version,
                            .slots = slots.data(),
                            .num_slots = slots.size(),
                            .drop = true},
                           nullptr)
                    .dropped());
  };
  drop({4, 5});
  EXPECT_EQ(Says(Engine::Read(second->Take({1}, {5}, 2))), "2 by key");
  second->version = 2;
  drop({6, 7});
  EXPECT_EQ(Says(Engine::Read(second->Take({1}, {5}, kBlock))), "4 capacity: no buffer was free");
  const Event reset = Event::Reset();
  ASSERT_TRUE(second->capture->Report({&reset, 1}).ok());
  EXPECT_EQ(Says(Engine::Read(second->Take({1}, {5}, kBlock))), "4 capacity: reset");
}

TEST_F(TierTest, WrongOptionsAreNamed) {
  wire::TierOptions options;
  EXPECT_EQ(wire::Tier::Create(kShape, options).status().message(),
            "TierOptions.get must not be null");
  options.get = source_;
  options.failures_to_skip = 0;
  EXPECT_EQ(wire::Tier::Create(kShape, options).status().message(),
            "TierOptions.failures_to_skip must be at least 1; it is 0");
}

}  // namespace
}  // namespace waymark
