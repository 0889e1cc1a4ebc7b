// Pages by name in handles: an engine that asks for nothing, and a trainer that asks its tier.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "blockstore/wire/fetcher.h"
#include "blockstore/wire/handle.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/publisher.h"
#include "blockstore/wire/set_code.h"
#include "gtest/gtest.h"
#include "tests/unit/plugin/capture/tier_engine.h"

namespace waymark {
namespace {

class TierNamesTest : public TierTest {
 protected:
  static wire::TierOptions NamesOf(wire::TierOptions options) {
    options.look_up = false;
    return options;
  }
  // An engine that asks for nothing, into whose block 1 the KV of prefix 5 comes, and which then
  // computes `rows` rows of prefix 6 in block 2.
  std::unique_ptr<Engine> Loaded(const wire::TierOptions& options, std::int32_t rows) {
    auto engine = Make(NamesOf(options), "step 10");
    engine->seed = 99;
    engine->Load(1, 5);
    engine->Compute(2, 6, rows, rows == kBlock);
    return engine;
  }
  wire::Handle Publish(const Rows& rows, const std::string& sequence = "",
                       const wire::ChunkCode& code = {}) {
    if (publisher_ == nullptr) {
      wire::PublisherOptions options;
      options.shape = {rows.shape, code};
      publisher_ = wire::Publisher::Create(&objects_, options).value();
    }
    auto made = publisher_->Publish(sequence, rows).get();
    EXPECT_TRUE(made.ok()) << made.status();
    // As it crosses.
    return wire::ParseHandle(wire::EncodeHandle(made->handle).value()).value();
  }
  Rows Fetch(const wire::Handle& handle, const wire::TierOptions& tier) {
    return Fetch(handle, tier, {0, handle.rows, 0, handle.shape.rows.num_layers});
  }
  Rows Fetch(const wire::Handle& handle, const wire::TierOptions& tier, const RowsAndLayers& part) {
    wire::FetcherOptions options;
    options.tier = tier;
    options.tier.get = source_;
    wire::Fetcher fetcher(&objects_, options);
    return fetcher.Fetch(handle, part, wire::After(seconds(20))).value();
  }

  wire::MemorySource objects_{1 << 20};
  std::unique_ptr<wire::Publisher> publisher_;
};

TEST_F(TierNamesTest, ATrainerFindsWhatTheEngineDidNotAskFor) {
  for (const bool keyed : {false, true}) {
    SCOPED_TRACE(keyed);
    source_ = std::make_shared<TestSource>();
    publisher_ = nullptr;
    const wire::TierOptions options = keyed ? Keyed(Of(), 1) : Of();
    const auto first = Publisher(options, "step 10");
    const int before = source_->gets;  // of what was put
    const auto second = Loaded(options, 3);
    const Rows named = Engine::Read(second->Take({1, 2}, {5}, 7));
    EXPECT_EQ(Says(named), "4 external KV, 3 here");
    ASSERT_EQ(named.names.size(), 1u);
    const wire::Handle handle = Publish(named);
    EXPECT_EQ(source_->gets, before);
    wire::TierOptions trainer;  // the namespace and the weights are in the name
    trainer.key = options.key;
    const Rows rows = Fetch(handle, trainer);
    EXPECT_EQ(Says(rows), "4 by key, 3 here");
    std::vector<std::int32_t> ids = first->IdsOf(5, kBlock);
    for (const std::int32_t id : second->IdsOf(6, 3))
      ids.push_back(id);
    EXPECT_EQ(Ids(rows), ids);
    EXPECT_EQ(rows.infos[0].version, 1u);
    EXPECT_GE(rows.infos[0].step, std::uint64_t{1} << 63);
    EXPECT_TRUE(rows.names.empty());
  }
}

TEST_F(TierNamesTest, WithoutATierRowsAreMissingAsTheyWere) {
  Publisher(Of(), "step 10");
  const auto second = Loaded(Of(), 3);
  const wire::Handle handle = Publish(Engine::Read(second->Take({1, 2}, {5}, 7)));
  wire::Fetcher fetcher(&objects_);
  const Rows rows = fetcher.Fetch(handle, wire::After(seconds(20))).value();
  EXPECT_EQ(Says(rows), "4 external KV, 3 here");
  // What was fetched can be published again.
  EXPECT_EQ(Says(Fetch(Publish(rows), {})), "4 by key, 3 here");
}

TEST_F(TierNamesTest, APageThatIsCutIsNamedInTheTail) {
  const auto first = Publisher(Of(), "step 10");
  const auto second = Loaded(Of(), 3);
  Rows named = Engine::Read(second->Take({1}, {5}, 3));
  const Rows cut = Fetch(Publish(named, "a"), {});
  EXPECT_EQ(Says(cut), "3 by key");
  EXPECT_EQ(Ids(cut), first->IdsOf(5, 3));
  // A second segment of the tail has the name, too; then the page is complete.
  const auto more = Engine::Read(second->Take({1, 2}, {5}, 7));
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    Rows rows = more;
    rows.first = begin;
    rows.infos = {more.infos.begin() + begin, more.infos.begin() + end};
    const auto bytes = static_cast<std::int64_t>(more.shape.row_bytes());
    rows.ids = {more.ids.begin() + begin * bytes, more.ids.begin() + end * bytes};
    return rows;
  };
  Publish(part(0, 2), "b");
  const wire::Handle grown = Publish(part(2, 3), "b");
  EXPECT_EQ(grown.tail.size(), 2u);
  EXPECT_EQ(Says(Fetch(grown, {})), "3 by key");
  EXPECT_EQ(Says(Fetch(grown, {}, {2, 3, 0, 2})), "1 by key");
  EXPECT_EQ(Says(Fetch(Publish(part(3, 7), "b"), {})), "4 by key, 3 here");
}

TEST_F(TierNamesTest, PartsAndLayers) {
  RoutingShape shape = kShape;
  shape.num_experts = 300;  // two bytes an id
  Engine first(source_, Of(), shape);
  ASSERT_TRUE(first.capture->NameWeights(1, "step 10").ok());
  first.Compute(3, 5, kBlock);
  ASSERT_TRUE(first.WaitPut());
  Engine second(source_, NamesOf(Of()), shape);
  ASSERT_TRUE(second.capture->NameWeights(1, "step 10").ok());
  second.Load(1, 5);
  const wire::Handle handle = Publish(Engine::Read(second.Take({1}, {5}, kBlock)));
  const std::vector<std::int32_t> ids = first.IdsOf(5, kBlock);
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    const Rows rows = Fetch(handle, {}, {1, 3, layer, layer + 1});
    EXPECT_EQ(Says(rows), "2 by key");
    for (std::int64_t row = 0; row < 2; ++row) {
      for (std::int64_t k = 0; k < 2; ++k) {
        std::uint16_t id = 0;
        std::memcpy(&id, rows.row(row).data() + 2 * k, 2);
        EXPECT_EQ(id, ids[static_cast<std::size_t>(4 * (row + 1) + 2 * layer + k)]);
      }
    }
  }
}

TEST_F(TierNamesTest, AHandleInTheSetCode) {
  const auto first = Publisher(Of(), "step 10");
  const auto second = Loaded(Of(), 4);
  const Rows named = Engine::Read(second->Take({1, 2}, {5, 6}, 8));
  wire::ChunkCode code;
  code.codec = wire::Codec::kSetCode;
  code.ordered = false;
  const Rows rows = Fetch(Publish(named, "", code.For(named)), {});
  EXPECT_EQ(Says(rows), "4 by key, 4 here");
  EXPECT_FALSE(rows.ordered);
  const std::vector<std::int32_t> ids = first->IdsOf(5, kBlock);
  EXPECT_EQ(Ids(rows).front(), ids.front());
}

TEST_F(TierNamesTest, SeveralNodes) {
  constexpr std::int32_t kPages = 130;
  const auto first = Make(Of(), "step 10");
  std::vector<std::int32_t> blocks;
  std::vector<std::uint64_t> prefixes;
  for (std::int32_t page = 0; page < kPages; ++page) {
    const auto prefix = static_cast<std::uint64_t>(1000 + page);
    first->Compute(3, prefix, kBlock);
    ASSERT_TRUE(first->WaitPut());
    blocks.push_back(0);  // a null block: its KV is not here
    prefixes.push_back(prefix);
  }
  const auto second = Make(NamesOf(Of()), "step 10");
  const Rows named = Engine::Read(second->Take(blocks, prefixes, kPages * kBlock));
  ASSERT_EQ(named.names.size(), static_cast<std::size_t>(kPages));
  const Rows rows = Fetch(Publish(named), {});
  EXPECT_EQ(Says(rows), "520 by key");
  for (std::int32_t page = 0; page < kPages; ++page) {
    const auto ids = first->IdsOf(prefixes[static_cast<std::size_t>(page)], 1);
    ASSERT_EQ(rows.row(page * kBlock)[0], ids[0]) << page;
  }
}

TEST_F(TierNamesTest, WhyTheyAreNotFound) {
  const auto first = Publisher(Of(), "step 10");
  first->Compute(4, 7, kBlock);
  ASSERT_TRUE(first->WaitPut());
  const auto second = Make(NamesOf(Of()), "step 10");
  second->Load(1, 5);
  const wire::Handle handle = Publish(Engine::Read(second->Take({1}, {5}, kBlock)));
  second->Load(2, 8);
  const wire::Handle absent = Publish(Engine::Read(second->Take({2}, {8}, kBlock)));
  const wire::TierOptions tier = Of();
  EXPECT_EQ(Says(Fetch(absent, tier)), "4 capacity: the source does not have the object");
  EXPECT_EQ(Says(Fetch(handle, Keyed(tier, 1))), "4 capacity: the object is damaged");
  source_->Overwrite(source_->names[0], source_->At(1));
  EXPECT_EQ(Says(Fetch(handle, tier)), "4 capacity: the entry is of another key");
  source_->dead = true;
  EXPECT_EQ(Says(Fetch(handle, tier)), "4 capacity: the source cannot be reached");
  source_->dead = false;
  source_->frozen = true;
  EXPECT_EQ(Says(Fetch(handle, tier)), "4 capacity: the source did not answer in time");
  // The deadline of the fetch holds for the tier, too.
  wire::FetcherOptions patient;
  patient.tier = tier;
  patient.tier.get = source_;
  patient.tier.timeout = seconds(20);
  wire::Fetcher fetcher(&objects_, patient);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Says(fetcher.Fetch(handle, wire::After(milliseconds(200))).value()).substr(0, 10),
            "4 capacity");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(10));
  source_->Set(source_->frozen, false);
}

// The threads of this process that have this name.
int ThreadsNamed(const std::string& name) {
  int found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::ifstream(task.path() / "comm") >> comm;
    found += comm == name ? 1 : 0;
  }
  return found;
}

// Regression: a fetcher had a tier of one shape, and made another one for a handle of another,
// when it waited for the end of the former: seconds beyond the deadline, if its source hung.
TEST_F(TierNamesTest, OneTierIsForHandlesOfAllShapes) {
  Publisher(Of(), "step 10");
  RoutingShape other = kShape;
  other.num_layers = 3;
  Engine third(source_, Of(), other);
  ASSERT_TRUE(third.capture->NameWeights(1, "step 10").ok());
  third.Compute(3, 5, kBlock);
  ASSERT_TRUE(third.WaitPut());
  std::vector<wire::Handle> handles;
  for (const RoutingShape& shape : {kShape, other}) {
    Engine second(source_, NamesOf(Of()), shape);
    ASSERT_TRUE(second.capture->NameWeights(1, "step 10").ok());
    second.Load(1, 5);
    publisher_ = nullptr;
    handles.push_back(Publish(Engine::Read(second.Take({1}, {5}, kBlock))));
  }
  third.capture.reset();
  source_->checks = 0;
  source_->Set(source_->stuck, true);
  wire::FetcherOptions options;
  options.tier = Of();
  options.tier.get = source_;
  options.tier.skip = milliseconds(50);
  wire::Fetcher fetcher(&objects_, options);
  for (int i = 0; i < 6; ++i) {
    const wire::Handle& handle = handles[static_cast<std::size_t>(i % 2)];
    EXPECT_EQ(Says(fetcher.Fetch(handle, wire::After(milliseconds(50))).value()).substr(0, 10),
              "4 capacity");
  }
  EXPECT_EQ(ThreadsNamed("wm-tier-get"), 1);
  EXPECT_EQ(ThreadsNamed("wm-tier-put"), 0);
  EXPECT_EQ(source_->checks, 0);
  source_->Set(source_->stuck, false);
  for (const wire::Handle& handle : handles) {
    std::string says;
    for (int i = 0; i < 1000 && says != "4 by key"; ++i) {  // until it is called again
      says = Says(fetcher.Fetch(handle, wire::After(seconds(20))).value());
      std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_EQ(says, "4 by key");
  }
}

// Regression: a fetcher waited for a server that does not answer when it was made, and a publisher
// that had published nothing when it was destroyed.
TEST_F(TierNamesTest, ASourceIsLookedAtWhenItIsUsed) {
  source_->Set(source_->stuck, true);
  {
    const wire::Fetcher fetcher(source_.get());
    wire::PublisherOptions options;
    options.shape.rows = kShape;
    const auto publisher = wire::Publisher::Create(source_.get(), options).value();
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(source_->checks, 0);
  source_->Set(source_->stuck, false);
}

TEST_F(TierNamesTest, WeightsWithoutAName) {
  Publisher(Of(), "");
  const auto second = Make(NamesOf(Of()), "");
  second->Load(1, 5);
  const wire::Handle handle = Publish(Engine::Read(second->Take({1}, {5}, kBlock)));
  EXPECT_EQ(Says(Fetch(handle, Of())), "4 capacity: the weights have no name");
}

TEST_F(TierNamesTest, JoinKeepsTheNamesOfTheRowsThatItTakes) {
  const auto made = [](std::int64_t first, std::int64_t rows, std::vector<PageName> names) {
    Rows read;
    read.shape = kShape;
    read.first = first;
    read.infos.assign(static_cast<std::size_t>(rows), {.reason = Reason::kExternalKv});
    read.ids.resize(static_cast<std::size_t>(rows) * kShape.row_bytes());
    read.names = std::move(names);
    return read;
  };
  const auto name = [](std::int64_t begin, std::int64_t end, std::uint64_t version) {
    return PageName{.begin = begin, .end = end, .version = version};
  };
  Rows a = made(0, 3, {name(0, 3, 1)});
  const Rows b = made(2, 6, {name(2, 4, 2), name(4, 8, 3)});
  const Rows c = made(9, 1, {name(8, 12, 4)});  // more than its rows: not taken
  a.infos[1] = {.reason = Reason::kNeverWritten};
  const Rows d = made(1, 1, {name(1, 2, 1)});
  const Rows* const reads[] = {&a, &b, &c, &d};
  EXPECT_EQ(Join(reads).value().names,
            (std::vector<PageName>{name(0, 3, 1), name(3, 4, 2), name(4, 8, 3), name(9, 10, 4)}));
}

}  // namespace
}  // namespace waymark
