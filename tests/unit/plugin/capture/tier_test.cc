// Rows by key through whole captures, each an engine of its own: what must come, what must not, and
// why it did not.
#include "blockstore/wire/tier.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "blockstore/wire/tier_entry.h"
#include "gtest/gtest.h"
#include "tests/support/in_child.h"
#include "tests/unit/plugin/capture/tier_engine.h"

namespace waymark {
namespace {

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

TEST_F(TierTest, OtherLayersOrShape) {
  Publisher(Of(), "step 10");
  RoutingShape other = kShape;
  other.layer_ids = {1, 2};
  Engine second(source_, Of(), other);
  ASSERT_TRUE(second.capture->NameWeights(1, "step 10").ok());
  EXPECT_EQ(Says(second.LoadAndRead(5)), "4 capacity: the source does not have the object");
}

TEST_F(TierTest, EveryByteOfAnEntryIsChecked) {
  Publisher(Keyed(Of(), 1), "step 10");
  const Object entry = source_->At(0);
  const std::vector<std::uint8_t> good(entry.bytes.begin(), entry.bytes.end());
  const auto codec = wire::TierCodec::Create(kShape, "model a", Keyed(Of(), 1).key).value();
  const Digest128 space = codec.Space("named step 10");
  const wire::TierPage page{KeyOf(5), 0};
  const Digest128 name = codec.Name(space, page);
  ASSERT_EQ(name, source_->names[0]);
  std::vector<std::uint64_t> steps(kBlock);
  std::vector<std::uint8_t> ids(kShape.page_bytes());
  ASSERT_EQ(codec.Decode(good, name, steps, ids), wire::TierEntryState::kGood);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::vector<std::uint8_t> bad = good;
    bad[i] ^= 4;
    EXPECT_EQ(codec.Decode(bad, name, steps, ids), wire::TierEntryState::kDamaged) << i;
    bad.resize(i);
    EXPECT_EQ(codec.Decode(bad, name, steps, ids), wire::TierEntryState::kDamaged) << i;
  }
}

TEST_F(TierTest, AForgedEntryWithoutTheSecret) {
  Publisher(Keyed(Of(), 1), "step 10", 40);
  Publisher(Keyed(Of(), 2), "step 10", 50);
  source_->Overwrite(source_->names[0], source_->At(1));
  const auto second = Make(Keyed(Of(), 1), "step 10");
  EXPECT_EQ(Says(second->LoadAndRead(5)), "4 capacity: the object is damaged");
}

// ---- what is not published

// Regression: a list of them, which was full at 65,536, held a page as often as its seal was told,
// and each step walked it.
TEST_F(TierTest, APageIsPutOnceHoweverOftenItsSealIsTold) {
  const auto first = Make(Of(), "step 10");
  const Event bind = Event::Bind(BlockId(3));
  ASSERT_TRUE(first->capture->Report({&bind, 1}).ok());
  for (int i = 0; i < 20; ++i) {
    const Event seal = Event::Seal(BlockId(3), KeyOf(5));
    ASSERT_TRUE(first->capture->Report({&seal, 1}).ok());
    first->Compute(9, 7, kBlock - 1, /*seals=*/false);
    ASSERT_TRUE(first->capture->store().WaitIdle(seconds(20)).ok());
  }
  first->Compute(3, 5, kBlock, /*seals=*/false, /*binds=*/false);
  ASSERT_TRUE(first->WaitPut());
  EXPECT_EQ(first->stats().pages_sealed, 1u);
  EXPECT_EQ(first->stats().pages_put, 1u);
  EXPECT_EQ(Ids(Make(Of(), "step 10")->LoadAndRead(5)), first->IdsOf(5, kBlock));
}

// A block that is sealed again, when its page waits to be put, is one page of what is put.
TEST_F(TierTest, APageIsPutOnceInOneCall) {
  source_->Set(source_->stuck, true);  // the thread is in Check
  const auto first = Make(Of(), "step 10");
  first->Compute(3, 5, kBlock);
  for (int i = 0; i < 20; ++i) {
    const Event seal = Event::Seal(BlockId(3), KeyOf(5), StepId(first->step));
    ASSERT_TRUE(first->capture->Report({&seal, 1}).ok());
  }
  ASSERT_TRUE(first->capture->store().WaitIdle(seconds(20)).ok());
  source_->Set(source_->stuck, false);
  ASSERT_TRUE(first->WaitPut());
  EXPECT_EQ(first->stats().pages_put, 1u);
  EXPECT_EQ(first->stats().pages_held, 20u);
  EXPECT_EQ(source_->names.size(), 1u);
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

// Regression: its rows were said not to have come in time though nobody had asked for them.
TEST_F(TierTest, WhatASkipEndsWasNotAskedFor) {
  wire::TierOptions options = Of();
  options.timeout = seconds(2);
  options.failures_to_skip = 1;
  const auto second = Make(options, "step 10");
  for (int block = 1; block < 4; ++block)
    second->Load(block, 4 + static_cast<std::uint64_t>(block));
  source_->Set(source_->frozen, true);
  const TakenRows late = second->Take({1}, {5}, kBlock);
  while (source_->gets == 0)
    std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(seconds(1));  // those end before their own deadline
  const TakenRows behind = second->Take({2}, {6}, kBlock);
  EXPECT_EQ(Says(Engine::Read(late)), "4 capacity: the source did not answer in time");
  EXPECT_EQ(Says(Engine::Read(behind)), "4 capacity: the source was skipped");
  EXPECT_EQ(second->stats().pages_late, 1u);
  EXPECT_EQ(second->stats().pages_skipped, 1u);
  source_->Set(source_->frozen, false);
}

// Regression: the end of a tier waited until each reading was late by itself, and for a source
// whose state was looked at when it was made.
TEST_F(TierTest, TheEndOfATierEndsWhatWaits) {
  wire::TierOptions options = Of();
  options.timeout = seconds(60);
  const auto second = Make(options, "step 10");
  second->Load(1, 5);
  const TakenRows taken = second->Take({1}, {5}, kBlock);
  while (source_->gets < 2)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_FALSE(taken.done());
  const auto begin = std::chrono::steady_clock::now();
  second->capture.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(30));
  EXPECT_EQ(Says(Engine::Read(taken)), "4 capacity: the source does not have the object");
}

TEST_F(TierTest, TheEndOfATierDoesNotWaitForALookAtItsSource) {
  source_->Set(source_->stuck, true);
  const auto engine = Make(Of(), "step 10");
  while (source_->checks == 0)
    std::this_thread::sleep_for(milliseconds(1));
  engine->capture.reset();
  EXPECT_EQ(source_->checked, 0);
  source_->Set(source_->stuck, false);
}

// Regression: the callback was called under the mutex of the names.
TEST_F(TierTest, TheLogMayNameWeights) {
  std::future<absl::Status> named;
  Engine* engine = nullptr;
  wire::TierOptions options = Of();
  std::future_status came{};
  std::function<void()> name = [&] {
    named = std::async(std::launch::async, [&] { return engine->capture->NameWeights(7, "w"); });
    came = named.wait_for(seconds(2));
  };
  options.log.function = [](void* context, LogLevel, const char* text, std::size_t) {
    if (std::string_view(text).find("have no name") == std::string_view::npos) return;
    (*static_cast<std::function<void()>*>(context))();
  };
  options.log.context = &name;
  const auto first = Make(options, "");
  engine = first.get();
  first->Compute(3, 5, kBlock);
  ASSERT_TRUE(first->WaitPut());
  EXPECT_EQ(came, std::future_status::ready);
  EXPECT_TRUE(named.get().ok());
}

// Regression: it waited for a mutex that a thread of the parent may hold.
TEST_F(TierTest, AForkedChildNamesNoWeights) {
  const auto engine = Make(Of(), "step 10");
  EXPECT_EQ(InChild([&] { return engine->capture->NameWeights(3, "w").ToString(); }).substr(0, 19),
            "FAILED_PRECONDITION");
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
