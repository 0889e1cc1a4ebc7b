#include "plugin/capture/capture.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "blockstore/flight/recorder.h"
#include "gtest/gtest.h"

namespace waymark {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int32_t kBlock = 4;
const RoutingShape kShape = {.num_layers = 2, .top_k = 2, .num_experts = 64, .page_tokens = kBlock};

// The ids of row r of a step of `tag` in layer l are tag + 2 r + l and the next one, modulo E.
std::vector<std::int32_t> IdsOf(std::int32_t tag, std::int32_t rows) {
  std::vector<std::int32_t> ids;
  for (std::int32_t r = 0; r < rows; ++r) {
    for (std::int32_t l = 0; l < kShape.num_layers; ++l) {
      ids.push_back((tag + 2 * r + l) % 64);
      ids.push_back((tag + 2 * r + l + 1) % 64);
    }
  }
  return ids;
}

class CaptureTest : public ::testing::Test {
 protected:
  CaptureTest() { Make({}); }

  void Make(Capture::Options options) {
    options.store.shape = kShape;
    options.store.num_blocks = 16;
    capture_.reset();
    capture_ = Capture::Create(options).value();
  }
  // A step of rows [0, rows) of `block`.
  StepBatch Batch(std::uint64_t step, std::int32_t block, std::int32_t rows) {
    slots_.resize(static_cast<std::size_t>(rows));
    std::iota(slots_.begin(), slots_.end(), std::int64_t{block} * kBlock);
    return {.step = step, .version = 1, .slots = slots_.data(), .num_slots = slots_.size()};
  }
  void Bind(std::int32_t block) {
    const Event bind = Event::Bind(BlockId(block));
    ASSERT_TRUE(capture_->Report({&bind, 1}).ok());
  }
  StepIds Given(std::int32_t tag, std::int32_t rows) {
    kept_.push_back(IdsOf(tag, rows));
    return StepIds::TokenMajor(kept_.back().data(), IdType::kInt32, rows, kShape);
  }
  // What was read, which must be there in time.
  static Rows Read(const TakenRows& taken) {
    EXPECT_TRUE(taken.Wait(seconds(20)).ok());
    return **taken.rows();
  }
  TakenRows Take(std::int32_t block, std::int64_t rows) {
    const BlockId blocks[] = {BlockId(block)};
    return capture_->Take(blocks, 0, rows).value();
  }
  static std::vector<Reason> Reasons(const Rows& rows) {
    std::vector<Reason> reasons;
    for (const RowInfo& info : rows.infos)
      reasons.push_back(info.reason);
    return reasons;
  }
  static std::vector<std::int32_t> Ids(const Rows& rows) {
    return {rows.ids.begin(), rows.ids.end()};
  }
  std::atomic<int> done_{0};
  const DoneCallback count_{[](void* to) { ++*static_cast<std::atomic<int>*>(to); }, &done_};
  std::vector<std::vector<std::int32_t>> kept_;
  std::vector<std::int64_t> slots_;
  std::unique_ptr<Capture> capture_;
};

TEST_F(CaptureTest, AWholeStepAndItsRows) {
  Bind(3);
  const StepIds ids = Given(7, 3);
  ASSERT_TRUE(capture_->Step(Batch(1, 3, 3), &ids, count_).ok());
  const TakenRows taken = Take(3, 4);
  const Event release = Event::Release(BlockId(3));
  ASSERT_TRUE(capture_->Report({&release, 1}).ok());
  Bind(3);  // what is told later does not change what was taken
  const Rows rows = Read(taken);
  EXPECT_EQ(Reasons(rows),
            (std::vector{Reason::kNone, Reason::kNone, Reason::kNone, Reason::kNeverWritten}));
  std::vector<std::int32_t> expected = IdsOf(7, 3);
  expected.resize(16, 0);
  EXPECT_EQ(Ids(rows), expected);
  EXPECT_EQ(done_, 1);
}

TEST_F(CaptureTest, AStepWithoutIdsIsNotCaptured) {
  Bind(3);
  ASSERT_TRUE(capture_->Step(Batch(1, 3, 2), nullptr, count_).ok());
  EXPECT_EQ(done_, 1);
  EXPECT_EQ(Reasons(Read(Take(3, 2))), (std::vector{Reason::kNotCaptured, Reason::kNotCaptured}));
}

// The ids of padding were counted as invalid where they were fetched ahead or recorded.
TEST_F(CaptureTest, OfPaddingAndOfRowsThatDidNotAskNoIdCounts) {
  StoreOptions recorded;
  recorded.shape = kShape;
  recorded.num_blocks = 16;
  recorded.null_blocks = {BlockId(0)};
  for (const bool late : {false, true}) {
    for (const bool records : {false, true}) {
      const auto recorder = FlightRecorder::Create(recorded).value();
      Capture::Options options;
      options.store.null_blocks = recorded.null_blocks;
      options.store.flight = records ? recorder->sink() : nullptr;
      Make(options);
      Bind(3);
      Bind(4);
      const StepIds first = Given(7, 1);
      ASSERT_TRUE(capture_->Tell(Batch(1, 3, 1)).ok());
      if (!late) {
        ASSERT_TRUE(capture_->SetIds(StepId(1), first).ok());
      }
      (void)Batch(2, 4, 2);
      slots_.insert(slots_.end(), {kPaddingSlot, 1, NotAsked(18), NotAsked(2)});
      kept_.push_back(IdsOf(9, 2));
      kept_.back().resize(24, 0);  // one id twice in each layer
      const StepIds ids = StepIds::TokenMajor(kept_.back().data(), IdType::kInt32, 6, kShape);
      const StepBatch second{.step = 2, .version = 1, .slots = slots_.data(), .num_slots = 6};
      ASSERT_TRUE(capture_->Step(second, &ids, count_).ok());
      if (late) {
        while (capture_->store().GetStats().steps_ahead == 0)
          std::this_thread::yield();
        ASSERT_TRUE(capture_->SetIds(StepId(1), first).ok());
      }
      EXPECT_EQ(Reasons(Read(Take(4, 3))),
                (std::vector{Reason::kNone, Reason::kNone, Reason::kNotCaptured}));
      for (const LayerStats& layer : capture_->session().GetStats().layers) {
        EXPECT_EQ(layer.rows_invalid, 0u) << "late " << late << ", recorded " << records;
        EXPECT_EQ(layer.rows_silent, 0u) << "late " << late << ", recorded " << records;
      }
      capture_.reset();
    }
  }
}

TEST_F(CaptureTest, IdsThatAreRefusedAreLostAndTheReasonIsSaid) {
  Bind(3);
  StepIds ids = Given(7, 2);
  ids.layers = 3;
  StepCode refused;
  ASSERT_TRUE(capture_->Step(Batch(1, 3, 2), &ids, count_, &refused).ok());
  EXPECT_EQ(refused.rule, StepRule::kIdsLayers);
  EXPECT_EQ(done_, 1);
  EXPECT_EQ(Reasons(Read(Take(3, 2))), (std::vector{Reason::kNotCaptured, Reason::kNotCaptured}));
}

// uint8 ids of 300 experts were stored cut, valid, and nothing said so.
TEST_F(CaptureTest, IdsOfATypeThatCannotHoldTheExpertsAreRefusedAtEveryDoor) {
  for (const auto& [type, held, views] :
       {std::tuple(IdType::kUint8, 256, false), std::tuple(IdType::kInt16, 32768, true)}) {
    for (const std::int32_t experts : {held, held + 1}) {
      Capture::Options options;
      options.store.shape = kShape;
      options.store.shape.num_experts = experts;
      options.store.num_blocks = 16;
      capture_ = Capture::Create(options).value();
      const StepRule rule = experts == held ? StepRule::kNone : StepRule::kIdsExperts;
      static const std::vector<std::int64_t> ids(4, 0x0002000100020001);
      const StepIds given = StepIds::TokenMajor(ids.data(), type, 2, kShape);
      StepCode refused;
      ASSERT_TRUE(capture_->Step(Batch(1, 3, 2), &given, count_, &refused).ok());
      EXPECT_EQ(refused.rule, rule) << experts;
      ASSERT_TRUE(capture_->Tell(Batch(2, 3, 2)).ok());
      EXPECT_EQ(capture_->SetIds(StepId(2), given).rule, rule) << experts;
      // A view is int16: there are none of more experts, and it takes no bytes.
      const auto session =
          CaptureSession::Create({.store = &capture_->store(), .max_rows = 2, .num_buffers = 1});
      EXPECT_EQ(session.ok(), experts <= 32768);
      if (!session.ok()) continue;
      EXPECT_EQ((*session)->HandOver((*session)->scratch_view(), 0, given).ok(), views);
    }
  }
}

TEST_F(CaptureTest, ABatchThatIsRefusedIsNoStep) {
  Bind(3);
  const StepIds ids = Given(7, 2);
  const StepCode code = capture_->Step(Batch(1, 99, 2), &ids, count_);
  EXPECT_EQ(code.rule, StepRule::kSlotOutOfRange);
  EXPECT_EQ(done_, 1);
  EXPECT_EQ(capture_->store().last_step(), StepId());
  ASSERT_TRUE(capture_->Step(Batch(1, 3, 2), &ids).ok());
  EXPECT_EQ(Reasons(Read(Take(3, 2))), (std::vector{Reason::kNone, Reason::kNone}));
}

// Whatever ends a step in the middle, those around it are as they were.
TEST_F(CaptureTest, AToldStepEndsInThreeWays) {
  for (std::int32_t block = 0; block < 4; ++block)
    Bind(block);
  const StepIds first = Given(1, 2);
  const StepIds second = Given(2, 2);
  ASSERT_TRUE(capture_->Tell(Batch(1, 0, 2)).ok());
  ASSERT_TRUE(capture_->Tell(Batch(2, 1, 2)).ok());
  ASSERT_TRUE(capture_->Tell(Batch(3, 2, 2)).ok());
  ASSERT_TRUE(capture_->Tell(Batch(4, 3, 2)).ok());
  std::vector<TakenRows> taken;
  for (std::int32_t block = 0; block < 4; ++block)
    taken.push_back(Take(block, 2));
  EXPECT_FALSE(taken[3].done());
  EXPECT_EQ(taken[0].Wait(milliseconds(1)).code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(capture_->SetIds(StepId(4), second).ok());
  ASSERT_TRUE(capture_->NotRun(StepId(3)).ok());
  ASSERT_TRUE(capture_->Lose(StepId(2)).ok());
  ASSERT_TRUE(capture_->SetIds(StepId(1), first).ok());
  EXPECT_EQ(capture_->Lose(StepId(1)).code, static_cast<int>(absl::StatusCode::kNotFound));
  const Rows rows[] = {Read(taken[0]), Read(taken[1]), Read(taken[2]), Read(taken[3])};
  EXPECT_EQ(Ids(rows[0]), IdsOf(1, 2));
  EXPECT_EQ(Reasons(rows[1]), (std::vector{Reason::kNotCaptured, Reason::kNotCaptured}));
  EXPECT_EQ(Reasons(rows[2]), (std::vector{Reason::kNeverWritten, Reason::kNeverWritten}));
  EXPECT_EQ(Ids(rows[3]), IdsOf(2, 2));
}

TEST_F(CaptureTest, WhoAsksIsCalledOnceTheRowsAreThere) {
  Bind(3);
  ASSERT_TRUE(capture_->Tell(Batch(1, 3, 2)).ok());
  const TakenRows taken = Take(3, 2);
  std::atomic<int> called{0};
  taken.WhenDone([&] { ++called; });
  EXPECT_EQ(called, 0);
  const StepIds ids = Given(7, 2);
  ASSERT_TRUE(capture_->SetIds(StepId(1), ids).ok());
  (void)Read(taken);
  while (called == 0)
    std::this_thread::sleep_for(milliseconds(1));
  taken.WhenDone([&] { ++called; });
  EXPECT_EQ(called, 2);
}

TEST_F(CaptureTest, IdleIsWhatHasReadAllThatWasTaken) {
  Bind(3);
  const StepIds ids = Given(7, 3);
  ASSERT_TRUE(capture_->Step(Batch(1, 3, 3), &ids).ok());
  std::promise<void> held;
  std::promise<void> end;
  const TakenRows first = Take(3, 3);
  first.WhenDone([&] {  // the reader stands still here, once it may
    held.set_value();
    end.get_future().wait();
  });
  held.get_future().wait();
  const TakenRows second = Take(3, 3);
  ASSERT_TRUE(capture_->store().WaitIdle(seconds(20)).ok());
  const absl::Status late = capture_->WaitIdle(milliseconds(20));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(second.done());
  EXPECT_NE(late.message().find("2 takes"), std::string::npos) << late;
  end.set_value();
  EXPECT_TRUE(capture_->WaitIdle(seconds(20)).ok());
  EXPECT_TRUE(second.done());
}

TEST_F(CaptureTest, WhatWasTakenIsReadWhenTheCaptureEnds) {
  Bind(3);
  const StepIds ids = Given(7, 2);
  ASSERT_TRUE(capture_->Step(Batch(1, 3, 2), &ids).ok());
  const TakenRows taken = Take(3, 2);
  capture_.reset();
  EXPECT_TRUE(taken.done());
  EXPECT_EQ(Ids(**taken.rows()), IdsOf(7, 2));
}

TEST_F(CaptureTest, AStepThatIsLateIsLostAndWhatWasTakenBehindItIsRead) {
  Capture::Options options;
  options.store.ids_timeout = milliseconds(50);
  Make(options);
  Bind(3);
  ASSERT_TRUE(capture_->Tell(Batch(1, 3, 2)).ok());
  const TakenRows taken = Take(3, 2);
  ASSERT_TRUE(capture_->Lose(StepId(1)).ok());
  EXPECT_EQ(Reasons(Read(taken)), (std::vector{Reason::kNotCaptured, Reason::kNotCaptured}));
}

TEST_F(CaptureTest, LostEventsCostAllRows) {
  Bind(3);
  const StepIds ids = Given(7, 2);
  ASSERT_TRUE(capture_->Step(Batch(1, 3, 2), &ids).ok());
  const TakenRows before = Take(3, 2);
  ASSERT_TRUE(capture_->LoseRows().ok());
  EXPECT_EQ(Reasons(Read(Take(3, 2))), (std::vector{Reason::kCapacity, Reason::kCapacity}));
  EXPECT_EQ(Reasons(Read(before)), (std::vector{Reason::kNone, Reason::kNone}));
}

TEST_F(CaptureTest, OptionsAreChecked) {
  Capture::Options options;
  options.store.shape = kShape;
  options.store.num_blocks = 16;
  options.store.num_blocks = 0;
  EXPECT_FALSE(Capture::Create(options).ok());
}

}  // namespace
}  // namespace waymark
