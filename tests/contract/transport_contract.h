// The contract of transports: a typed suite that each of them passes. See contract_engine.h for
// what a transport's traits must have, and host_transport_contract_test.cc for an instance.
#ifndef WAYMARK_TESTS_CONTRACT_TRANSPORT_CONTRACT_H_
#define WAYMARK_TESTS_CONTRACT_TRANSPORT_CONTRACT_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include "plugin/self_test.h"
#include "tests/contract/allocation_counter.h"
#include "tests/contract/contract_engine.h"

namespace waymark {

template <class Traits>
class TransportContract : public ::testing::Test {
 protected:
  using Engine = ContractEngine<Traits>;
  static constexpr std::int32_t kLayers = Engine::kLayers;
  static constexpr std::int32_t kTopK = Engine::kTopK;

  static void CountCall(void* context) { ++*static_cast<std::atomic<int>*>(context); }

  // [rows, columns] of T, with gaps of `gap` elements after each row; the first K are the layer's
  // ids.
  template <class T>
  static std::vector<std::uint8_t> TensorBytes(const Engine& engine, std::uint64_t step,
                                               std::int32_t layer, std::int32_t rows,
                                               std::int32_t columns, std::int32_t gap) {
    std::vector<T> elements(static_cast<std::size_t>(rows * (columns + gap)), T{-7});
    for (std::int32_t row = 0; row < rows; ++row) {
      for (std::int32_t k = 0; k < columns; ++k) {
        // A shared expert's column repeats an id: it must not be looked at.
        elements[static_cast<std::size_t>(row * (columns + gap) + k)] = static_cast<T>(
            k < kTopK ? engine.Id(step, row, layer, k) : engine.Id(step, row, layer, 0));
      }
    }
    std::vector<std::uint8_t> bytes(elements.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
    return bytes;
  }

  // Hands every layer of `step` over as T.
  template <class T>
  void HandOverAll(Engine& engine, const CaptureView& view, std::uint64_t step, std::int32_t rows,
                   IdType type, std::int32_t columns, std::int32_t gap) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const typename Traits::Array array(TensorBytes<T>(engine, step, layer, rows, columns, gap));
      IdsTensor ids = IdsTensor::Contiguous(array.data(), type, rows, columns);
      ids.row_stride += gap * static_cast<std::ptrdiff_t>(sizeof(T));
      const CaptureCode code = engine.session->HandOver(view, layer, ids);
      ASSERT_TRUE(code.ok()) << code.ToStatus();
    }
  }

  static bool AllMinusOne(CaptureSession& session, BufferId buffer) {
    std::vector<std::int16_t> ids(static_cast<std::size_t>(session.max_rows() * kLayers * kTopK),
                                  0);
    EXPECT_TRUE(session.transport().ReadBack(buffer, session.max_rows(), ids.data()).ok());
    return std::all_of(ids.begin(), ids.end(), [](std::int16_t id) { return id == -1; });
  }
};

TYPED_TEST_SUITE_P(TransportContract);

TYPED_TEST_P(TransportContract, RowsLandExactly) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    for (const std::int32_t experts : {64, 256, 1000}) {
      typename TestFixture::Engine engine({.landing = landing, .num_experts = experts});
      std::uint64_t step = 0;
      for (const std::int32_t rows : {1, 2, 7, 8, 9, 33, 64, 3}) {
        ++step;
        ASSERT_TRUE(engine.Begin(step, rows).ok());
        engine.Forward(step, rows);
        ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
        engine.ExpectRows(step, rows);
        engine.SettleAndAwaitBuffers();
      }
      for (std::uint64_t again = 1; again <= step; ++again) {
        engine.ExpectRows(again, again == 1 ? 1 : 2);
      }
      EXPECT_TRUE(engine.session->SilentLayers().empty());
    }
  }
}

TYPED_TEST_P(TransportContract, SilentLayerIsMissingInExactlyItsRowsAndNamed) {
  typename TestFixture::Engine engine;
  // Batch size 24 (padded): layer 3 writes nothing. Batch size 9: layer 1 stops after row 4.
  ASSERT_TRUE(engine.Begin(1, 20, 24).ok());
  engine.Forward(1, 24, 3);
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  ASSERT_TRUE(engine.Begin(2, 9).ok());
  engine.Forward(2, 9, 1);
  const std::vector<std::int16_t> ids = engine.Ids(2, 9);
  TypeParam::Write(engine.session->view(StepId(2)), 1, 0, ids.data() + 9 * TestFixture::kTopK, 5);
  ASSERT_TRUE(engine.session->Submit(StepId(2)).ok());
  ASSERT_TRUE(engine.Begin(3, 6).ok());
  engine.Forward(3, 6);
  ASSERT_TRUE(engine.session->Submit(StepId(3)).ok());

  engine.ExpectMissing(1, 20, Reason::kNotCaptured);
  const Rows read = engine.Read(2, 9);
  for (std::int32_t row = 0; row < 9; ++row) {
    if (row < 5) {
      EXPECT_TRUE(engine.IsRow(read, 2, row));
    } else {
      EXPECT_EQ(read.infos[static_cast<std::size_t>(row)].reason, Reason::kNotCaptured);
    }
  }
  engine.ExpectRows(3, 6);

  const std::vector<SilentLayer> silent = engine.session->SilentLayers();
  ASSERT_EQ(silent.size(), 2u);
  EXPECT_EQ(silent[0].layer, 1);
  EXPECT_EQ(silent[0].layer_id, 2);
  EXPECT_EQ(silent[0].module, "model.block1.gate");
  EXPECT_EQ(silent[0].rows, 4u);
  EXPECT_THAT(silent[0].batch_sizes, ::testing::ElementsAre(9));
  EXPECT_EQ(silent[1].layer, 3);
  EXPECT_EQ(silent[1].layer_id, 7);
  EXPECT_EQ(silent[1].rows, 20u);  // of the padding nobody wants a row
  EXPECT_THAT(silent[1].batch_sizes, ::testing::ElementsAre(24));
}

TYPED_TEST_P(TransportContract, SilentRowsAreCountedInEveryStep) {
  typename TestFixture::Engine engine({.num_buffers = 1});
  for (std::uint64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(engine.Begin(step, 7).ok());
    engine.Forward(step, 7, 2);
    ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
    engine.ExpectMissing(step, 7, Reason::kNotCaptured);
    EXPECT_EQ(engine.session->GetStats().layers[2].rows_silent, 7 * step);
  }
}

// The bug of every buffer with fixed addresses: a layer that does not write shows last step's
// plausible ids. Padded steps fill every buffer; then a full ring, a Cancel, a Drop; then small
// steps with one silent layer, through every buffer.
TYPED_TEST_P(TransportContract, StaleIdsNeverComeBack) {
  constexpr std::int32_t kPadded = 512;
  constexpr std::int32_t kValid = 300;
  constexpr std::int32_t kBuffers = 3;
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    for (const std::string end : {"submit", "full ring", "cancel", "drop", "late padding"}) {
      SCOPED_TRACE(end);
      typename TestFixture::Engine engine(
          {.landing = landing, .max_rows = kPadded, .num_buffers = kBuffers});
      std::uint64_t step = 0;
      for (int i = 0; i < kBuffers; ++i) {
        ++step;
        ASSERT_TRUE(engine.Begin(step, kValid, kPadded).ok());
        engine.Forward(step, kPadded);
        ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
        engine.ExpectRows(step, kValid);
        engine.SettleAndAwaitBuffers();
      }
      for (int i = 0; i < kBuffers; ++i) {
        ++step;
        ASSERT_TRUE(engine.Begin(step, kValid, end == "late padding" ? 0 : kPadded).ok());
        engine.Forward(step, kPadded);
      }
      if (end == "full ring") {
        ASSERT_TRUE(engine.Begin(step + 1, kValid, kPadded).dropped());
        engine.Forward(step + 1, kPadded);  // writes the scratch view
      }
      for (std::uint64_t ended = step - kBuffers + 1; ended <= step; ++ended) {
        if (end == "cancel") {
          ASSERT_TRUE(engine.session->Cancel(StepId(ended)).ok());
        } else if (end == "drop") {
          ASSERT_TRUE(engine.session->Drop(StepId(ended)).ok());
        } else {
          ASSERT_TRUE(
              engine.session->Submit(StepId(ended), end == "late padding" ? kPadded : 0).ok());
        }
      }
      step += 1;
      engine.SettleAndAwaitBuffers();
      for (int i = 0; i < 2 * kBuffers; ++i) {
        ++step;
        const std::int32_t rows = i % 2 == 0 ? 400 : 40;
        const std::int32_t silent_layer = i % TestFixture::kLayers;
        ASSERT_TRUE(engine.Begin(step, rows).ok());
        engine.Forward(step, rows, silent_layer);
        ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
        engine.ExpectMissing(step, rows, Reason::kNotCaptured);
        engine.SettleAndAwaitBuffers();
      }
    }
  }
}

// As above, but what wrote beyond the step's declared rows is the hand-over.
TYPED_TEST_P(TransportContract, HandedOverPaddingIsGoneToo) {
  typename TestFixture::Engine engine({.num_buffers = 1, .source = LayerSource::kHandsOver});
  ASSERT_TRUE(engine.Begin(1, 10).ok());
  this->template HandOverAll<std::int32_t>(engine, engine.session->view(StepId(1)), 1, 40,
                                           IdType::kInt32, TestFixture::kTopK, 0);
  ASSERT_TRUE(engine.session->Cancel(StepId(1)).ok());
  ASSERT_TRUE(engine.Begin(2, 40).ok());
  ASSERT_TRUE(engine.session->Submit(StepId(2)).ok());
  engine.ExpectMissing(2, 40, Reason::kNotCaptured);
}

TYPED_TEST_P(TransportContract, RepeatedAndOutOfRangeIdsAreInvalid) {
  for (const std::int32_t experts : {64, 1000}) {
    typename TestFixture::Engine engine({.num_experts = experts});
    ASSERT_TRUE(engine.Begin(1, 12).ok());
    engine.Forward(1, 12);
    const CaptureView view = engine.session->view(StepId(1));
    const auto out = static_cast<std::int16_t>(experts);
    const std::int16_t repeated[] = {5, 6, 7, 5};
    const std::int16_t above[] = {5, 6, out, 8};
    const std::int16_t negative[] = {-2, 6, 7, 8};
    TypeParam::Write(view, 0, 2, repeated, 1);
    TypeParam::Write(view, 2, 4, above, 1);
    TypeParam::Write(view, 2, 11, negative, 1);
    ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
    const Rows read = engine.Read(1, 12);
    for (std::int32_t row = 0; row < 12; ++row) {
      if (row == 2 || row == 4 || row == 11) {
        EXPECT_EQ(read.infos[static_cast<std::size_t>(row)].reason, Reason::kInvalidId) << row;
      } else {
        EXPECT_TRUE(engine.IsRow(read, 1, row));
      }
    }
    const CaptureStats stats = engine.session->GetStats();
    EXPECT_EQ(stats.layers[0].rows_invalid, 1u);
    EXPECT_EQ(stats.layers[1].rows_invalid, 0u);
    EXPECT_EQ(stats.layers[2].rows_invalid, 2u);
    EXPECT_TRUE(engine.session->SilentLayers().empty());
  }
}

TYPED_TEST_P(TransportContract, HandOverTakesTheFirstColumnsOfEveryTypeAndStride) {
  typename TestFixture::Engine engine({.source = LayerSource::kHandsOver});
  std::uint64_t step = 0;
  for (const std::int32_t columns : {TestFixture::kTopK, TestFixture::kTopK + 2}) {
    for (const std::int32_t gap : {0, 3}) {
      for (const IdType type : {IdType::kInt16, IdType::kInt32, IdType::kInt64}) {
        ++step;
        ASSERT_TRUE(engine.Begin(step, 17).ok());
        const CaptureView view = engine.session->view(StepId(step));
        if (type == IdType::kInt16) {
          this->template HandOverAll<std::int16_t>(engine, view, step, 17, type, columns, gap);
        } else if (type == IdType::kInt32) {
          this->template HandOverAll<std::int32_t>(engine, view, step, 17, type, columns, gap);
        } else {
          this->template HandOverAll<std::int64_t>(engine, view, step, 17, type, columns, gap);
        }
        ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
        engine.ExpectRows(step, 17);
      }
    }
  }
  EXPECT_EQ(engine.session->GetStats().rows_handed_over, step * 17 * TestFixture::kLayers);

  // Column-major, by step number.
  ++step;
  ASSERT_TRUE(engine.Begin(step, 6).ok());
  for (std::int32_t layer = 0; layer < TestFixture::kLayers; ++layer) {
    std::vector<std::int64_t> transposed;
    for (std::int32_t k = 0; k < TestFixture::kTopK; ++k) {
      for (std::int32_t row = 0; row < 6; ++row)
        transposed.push_back(engine.Id(step, row, layer, k));
    }
    std::vector<std::uint8_t> bytes(transposed.size() * 8);
    std::memcpy(bytes.data(), transposed.data(), bytes.size());
    const typename TypeParam::Array array(std::move(bytes));
    const IdsTensor ids{array.data(), IdType::kInt64, 6, TestFixture::kTopK, 8, 6 * 8};
    ASSERT_TRUE(engine.session->HandOver(StepId(step), layer, ids).ok());
  }
  ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
  engine.ExpectRows(step, 6);
}

TYPED_TEST_P(TransportContract, HandOverOfIdsThatDoNotFitIsInvalidNotSomeOtherExpert) {
  typename TestFixture::Engine engine({.source = LayerSource::kHandsOver});
  ASSERT_TRUE(engine.Begin(1, 1).ok());
  const CaptureView view = engine.session->view(StepId(1));
  this->template HandOverAll<std::int32_t>(engine, view, 1, 1, IdType::kInt32, TestFixture::kTopK,
                                           0);
  const std::int32_t wrapped[] = {65536, 1, 2, 3};  // cut to 16 bits: expert 0
  std::vector<std::uint8_t> bytes(sizeof(wrapped));
  std::memcpy(bytes.data(), wrapped, bytes.size());
  const typename TypeParam::Array array(std::move(bytes));
  ASSERT_TRUE(
      engine.session->HandOver(view, 2, IdsTensor::Contiguous(array.data(), IdType::kInt32, 1, 4))
          .ok());
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  engine.ExpectMissing(1, 1, Reason::kInvalidId);
}

TYPED_TEST_P(TransportContract, HandOverRefusesWhatIsWrongWithACode) {
  typename TestFixture::Engine writes;
  ASSERT_TRUE(writes.Begin(1, 2).ok());
  const typename TypeParam::Array array(std::vector<std::uint8_t>(4096));
  const IdsTensor good = IdsTensor::Contiguous(array.data(), IdType::kInt32, 2, 4);
  EXPECT_EQ(writes.session->HandOver(StepId(1), 0, good).rule, CaptureRule::kLayerNotHandedOver);
  ASSERT_TRUE(writes.session->Drop(StepId(1)).ok());

  typename TestFixture::Engine engine({.source = LayerSource::kHandsOver});
  ASSERT_TRUE(engine.Begin(1, 2).ok());
  const auto rule = [&](std::int32_t layer, const IdsTensor& ids) {
    const CaptureCode code = engine.session->HandOver(StepId(1), layer, ids);
    EXPECT_EQ(code.ok(), code.rule == CaptureRule::kNone);
    EXPECT_EQ(code.ok(), code.ToStatus().ok());
    return code.rule;
  };
  EXPECT_EQ(rule(-1, good), CaptureRule::kLayerOutOfRange);
  EXPECT_EQ(rule(TestFixture::kLayers, good), CaptureRule::kLayerOutOfRange);
  IdsTensor bad = good;
  bad.type = IdType::kUint8;
  EXPECT_EQ(rule(0, bad), CaptureRule::kIdType);
  bad = good;
  bad.rows = 65;
  EXPECT_EQ(rule(0, bad), CaptureRule::kTooManyRows);
  bad.rows = -1;
  EXPECT_EQ(rule(0, bad), CaptureRule::kTooManyRows);
  bad = good;
  bad.columns = 3;
  EXPECT_EQ(rule(0, bad), CaptureRule::kTooFewColumns);
  bad = good;
  bad.data = nullptr;
  EXPECT_EQ(rule(0, bad), CaptureRule::kNullData);
  bad.rows = 0;
  EXPECT_EQ(rule(0, bad), CaptureRule::kNone);

  // A view that outlived its step must not write into the step that has the buffer now.
  typename TestFixture::Engine one({.num_buffers = 1, .source = LayerSource::kHandsOver});
  ASSERT_TRUE(one.Begin(1, 2).ok());
  const CaptureView old = one.session->view(StepId(1));
  ASSERT_TRUE(one.session->Cancel(StepId(1)).ok());
  EXPECT_EQ(one.session->HandOver(old, 0, good).rule, CaptureRule::kStepNotInFlight);
  ASSERT_TRUE(one.Begin(2, 2).ok());
  EXPECT_EQ(one.session->HandOver(old, 0, good).rule, CaptureRule::kStepNotInFlight);
  ASSERT_TRUE(one.session->Submit(StepId(2)).ok());
  one.ExpectMissing(2, 2, Reason::kNotCaptured);
}

TYPED_TEST_P(TransportContract, TwoMicroBatchesHaveDisjointBuffers) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    typename TestFixture::Engine engine({.landing = landing});
    ASSERT_TRUE(engine.Begin(1, 30).ok());
    ASSERT_TRUE(engine.Begin(2, 40).ok());
    const CaptureView first = engine.session->view(StepId(1));
    const CaptureView second = engine.session->view(StepId(2));
    EXPECT_NE(first.buffer, second.buffer);
    // Layer by layer, in turn, from two threads; submitted in the other order.
    std::thread other([&] { engine.Forward(second, 2, 40); });
    engine.Forward(first, 1, 30);
    other.join();
    ASSERT_TRUE(engine.session->Submit(StepId(2)).ok());
    ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
    engine.ExpectRows(1, 30);
    engine.ExpectRows(2, 40);
  }
}

TYPED_TEST_P(TransportContract, FullRingDropsTheStepAndCountsIt) {
  typename TestFixture::Engine engine({.num_buffers = 2});
  ASSERT_TRUE(engine.Begin(1, 4).ok());
  ASSERT_TRUE(engine.Begin(2, 4).ok());
  engine.Forward(1, 4);
  engine.Forward(2, 4);
  const StepCode code = engine.Begin(3, 4);
  EXPECT_TRUE(code.dropped());
  EXPECT_EQ(code.rule, StepRule::kRingFull);
  EXPECT_EQ(engine.session->view(StepId(3)).buffer, kScratchBuffer);
  engine.Forward(3, 4);  // as if nothing had happened
  // It has ended already.
  EXPECT_EQ(engine.session->Submit(StepId(3)).rule, StepRule::kStepNotInFlight);
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  ASSERT_TRUE(engine.session->Submit(StepId(2)).ok());
  // Submitted is not landed: still full.
  EXPECT_TRUE(engine.Begin(4, 4).dropped());
  engine.Settle();
  ASSERT_TRUE(engine.Begin(5, 4).ok());
  engine.Forward(5, 4);
  ASSERT_TRUE(engine.session->Submit(StepId(5)).ok());
  for (const std::uint64_t step : {1, 2, 5})
    engine.ExpectRows(step, 4);
  for (const std::uint64_t step : {3, 4})
    engine.ExpectMissing(step, 4, Reason::kCapacity);
  const CaptureStats stats = engine.session->GetStats();
  EXPECT_EQ(stats.ring_overflows, 2u);
  EXPECT_EQ(stats.steps_begun, 5u);
  EXPECT_EQ(stats.steps_submitted, 3u);
  EXPECT_EQ(engine.store->GetStats().steps_dropped, 2u);
  EXPECT_EQ(engine.session->transport().in_use(), 0);
}

// The store can be the one that has no room: no buffer must be lost over that.
TYPED_TEST_P(TransportContract, StepThatTheStoreDropsTakesNoBuffer) {
  typename TestFixture::Engine engine({.num_buffers = 4, .max_steps_in_flight = 1});
  ASSERT_TRUE(engine.Begin(1, 4).ok());
  for (std::uint64_t step = 2; step < 12; ++step)
    ASSERT_TRUE(engine.Begin(step, 4).dropped());
  EXPECT_EQ(engine.session->transport().in_use(), 1);
  EXPECT_EQ(engine.session->GetStats().ring_overflows, 0u);
  ASSERT_TRUE(engine.session->Drop(StepId(1)).ok());
  EXPECT_EQ(engine.session->transport().in_use(), 0);
  // A batch that the store refuses takes none either.
  EXPECT_EQ(engine.Begin(1, 4).rule, StepRule::kStepNotIncreasing);
  EXPECT_EQ(engine.session->transport().in_use(), 0);
}

TYPED_TEST_P(TransportContract, DroppedAndCancelledStepsSaySo) {
  typename TestFixture::Engine engine;
  for (const std::uint64_t step : {1, 2}) {
    ASSERT_TRUE(engine.Begin(step, 5).ok());
    engine.Forward(step, 5);
  }
  ASSERT_TRUE(engine.session->Drop(StepId(1)).ok());
  ASSERT_TRUE(engine.session->Cancel(StepId(2)).ok());
  engine.ExpectMissing(1, 5, Reason::kCapacity);
  engine.ExpectMissing(2, 5, Reason::kNeverWritten);
  // The cancelled rows run again.
  ASSERT_TRUE(engine.BeginAgain(3, 2, 5).ok());
  engine.Forward(3, 5);
  ASSERT_TRUE(engine.session->Submit(StepId(3)).ok());
  engine.ExpectRows(3, 5);
  const CaptureStats stats = engine.session->GetStats();
  EXPECT_EQ(stats.steps_dropped, 1u);
  EXPECT_EQ(stats.steps_cancelled, 1u);
  EXPECT_EQ(engine.session->transport().in_use(), 0);
}

TYPED_TEST_P(TransportContract, DiscardedForwardsLeaveNothingBehind) {
  typename TestFixture::Engine engine;
  engine.Forward(engine.session->scratch_view(), 77, 64);
  EXPECT_FALSE(TestFixture::AllMinusOne(*engine.session, kScratchBuffer));
  engine.session->Discard(64);
  EXPECT_TRUE(TestFixture::AllMinusOne(*engine.session, kScratchBuffer));
  engine.session->Discard(1 << 30);  // more than there are: all
  EXPECT_EQ(engine.session->GetStats().discards, 2u);
  // A warm-up between a step's begin and its forward does not become the step.
  ASSERT_TRUE(engine.Begin(1, 8).ok());
  engine.Forward(engine.session->scratch_view(), 1, 8);
  engine.session->Discard(8);
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  engine.ExpectMissing(1, 8, Reason::kNotCaptured);
}

TYPED_TEST_P(TransportContract, StepsWithoutRowsPass) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    typename TestFixture::Engine engine({.landing = landing, .num_buffers = 1});
    std::uint64_t step = 0;
    // Nothing at all; and a dummy batch of padding only, as data-parallel ranks run.
    for (const std::int32_t written : {0, 16, 0, 64}) {
      ++step;
      ASSERT_TRUE(engine.Begin(step, 0, written).ok());
      engine.Forward(step, written);
      ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
      engine.SettleAndAwaitBuffers();
    }
    ++step;
    ASSERT_TRUE(engine.Begin(step, 64).ok());
    ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
    engine.ExpectMissing(step, 64, Reason::kNotCaptured);
  }
}

TYPED_TEST_P(TransportContract, TooManyRowsAreRefused) {
  typename TestFixture::Engine engine({.max_rows = 16});
  EXPECT_EQ(engine.Begin(1, 17).rule, StepRule::kTooManyRows);
  EXPECT_EQ(engine.Begin(1, 4, 17).rule, StepRule::kTooManyRows);
  EXPECT_EQ(engine.Begin(1, 4, -1).rule, StepRule::kTooManyRows);
  ASSERT_TRUE(engine.Begin(1, 16, 16).ok());
  EXPECT_EQ(engine.session->Submit(StepId(1), 17).rule, StepRule::kTooManyRows);
  engine.Forward(1, 16);
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
}

TYPED_TEST_P(TransportContract, UnknownStepsAnswerACode) {
  typename TestFixture::Engine engine;
  std::atomic<int> done{0};
  const auto all_refused = [&](std::uint64_t step) {
    EXPECT_EQ(engine.session->Submit(StepId(step)).rule, StepRule::kStepNotInFlight);
    EXPECT_EQ(engine.session->Drop(StepId(step)).rule, StepRule::kStepNotInFlight);
    EXPECT_EQ(engine.session->Cancel(StepId(step)).rule, StepRule::kStepNotInFlight);
    EXPECT_EQ(engine.session->view(StepId(step)).buffer, kScratchBuffer);
    const StepIds ids = StepIds::TokenMajor(nullptr, IdType::kInt16, 0, engine.session->shape());
    const int before = done;
    EXPECT_EQ(engine.session->SubmitIds(StepId(step), ids, {&TestFixture::CountCall, &done}).rule,
              CaptureRule::kStepNotInFlight);
    EXPECT_EQ(done, before + 1);
  };
  all_refused(0);
  all_refused(9);
  ASSERT_TRUE(engine.Begin(9, 3).ok());
  engine.Forward(9, 3);
  ASSERT_TRUE(engine.session->Submit(StepId(9)).ok());
  EXPECT_EQ(engine.session->Submit(StepId(9)).rule, StepRule::kStepNotInFlight);
  engine.ExpectRows(9, 3);
  all_refused(9);
  // Ended behind the session's back: the buffer comes home all the same.
  ASSERT_TRUE(engine.Begin(10, 3).ok());
  ASSERT_TRUE(engine.store->Drop(StepId(10)).ok());
  EXPECT_FALSE(engine.session->Submit(StepId(10)).ok());
  EXPECT_EQ(engine.session->transport().in_use(), 0);
}

TYPED_TEST_P(TransportContract, TeardownWithPendingStepsIsSafe) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    typename TestFixture::Engine engine({.landing = landing});
    for (const std::uint64_t step : {1, 2, 3}) {
      ASSERT_TRUE(engine.Begin(step, 50).ok());
      engine.Forward(step, 50);
    }
    ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
    ASSERT_TRUE(engine.session->Submit(StepId(3)).ok());
    engine.session.reset();  // 2 is open; 1 and 3 are submitted, and perhaps landed
    engine.ExpectRows(1, 50);
    engine.ExpectMissing(2, 50, Reason::kCapacity);
    engine.ExpectRows(3, 50);
  }
  // Nobody lands them: the store's end is theirs.
  typename TestFixture::Engine engine;
  const std::vector<std::int16_t> ids = engine.Ids(2, 8, true);
  std::atomic<int> done{0};
  ASSERT_TRUE(engine.Begin(1, 8).ok());
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  ASSERT_TRUE(engine.BeginIds(2, 8).ok());
  ASSERT_TRUE(
      engine.session
          ->SubmitIds(StepId(2),
                      StepIds::TokenMajor(ids.data(), IdType::kInt16, 8, engine.session->shape()),
                      {&TestFixture::CountCall, &done})
          .ok());
  ASSERT_TRUE(engine.Begin(3, 8).ok());
  engine.session.reset();
  engine.store.reset();
  EXPECT_EQ(done, 1);
}

TYPED_TEST_P(TransportContract, TwoSessionsShareOneStore) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    typename TestFixture::Engine engine({.landing = landing, .num_buffers = 2});
    const std::unique_ptr<CaptureSession> other = engine.MakeSession();
    for (std::uint64_t step = 1; step <= 20; step += 2) {
      ASSERT_TRUE(engine.Begin(*engine.session, step, 10).ok());
      ASSERT_TRUE(engine.Begin(*other, step + 1, 20).ok());
      engine.Forward(engine.session->view(StepId(step)), step, 10);
      engine.Forward(other->view(StepId(step + 1)), step + 1, 20, step == 5 ? 2 : -1);
      // A step of one is unknown to the other.
      EXPECT_EQ(other->Submit(StepId(step)).rule, StepRule::kStepNotInFlight);
      ASSERT_TRUE(other->Submit(StepId(step + 1)).ok());
      ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
      engine.ExpectRows(step, 10);
      if (step == 5) {
        engine.ExpectMissing(step + 1, 20, Reason::kNotCaptured);
      } else {
        engine.ExpectRows(step + 1, 20);
      }
      engine.SettleAndAwaitBuffers();
    }
    EXPECT_TRUE(engine.session->SilentLayers().empty());
    EXPECT_EQ(other->SilentLayers().size(), 1u);
  }
}

TYPED_TEST_P(TransportContract, PackedIdsLandFromWhereTheyAre) {
  typename TestFixture::Engine engine;
  std::uint64_t step = 0;
  std::atomic<int> done{0};
  for (const IdType type :
       {IdType::kUint8, IdType::kUint16, IdType::kInt16, IdType::kInt32, IdType::kInt64}) {
    for (const bool token_major : {true, false}) {
      ++step;
      const std::vector<std::int16_t> ids = engine.Ids(step, 21, token_major);
      std::vector<std::uint8_t> bytes(ids.size() * IdBytes(type));
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::int64_t wide = ids[i];
        std::memcpy(bytes.data() + i * IdBytes(type), &wide, IdBytes(type));
      }
      const RoutingShape& shape = engine.session->shape();
      const StepIds tensor = token_major ? StepIds::TokenMajor(bytes.data(), type, 21, shape)
                                         : StepIds::LayerMajor(bytes.data(), type, 21, 21, shape);
      ASSERT_TRUE(engine.BeginIds(step, 21).ok());
      const int before = done;
      ASSERT_TRUE(
          engine.session->SubmitIds(StepId(step), tensor, {&TestFixture::CountCall, &done}).ok());
      EXPECT_EQ(done, before);
      engine.ExpectRows(step, 21);
      EXPECT_EQ(done, before + 1);
    }
  }
  EXPECT_EQ(engine.session->transport().in_use(), 0);

  // Fewer rows than the step has: the rest is not captured. A silent layer is named.
  ++step;
  std::vector<std::int16_t> ids = engine.Ids(step, 10, true);
  for (std::int32_t k = 0; k < TestFixture::kTopK; ++k) {
    ids[static_cast<std::size_t>((3 * TestFixture::kLayers + 2) * TestFixture::kTopK + k)] = -1;
  }
  ASSERT_TRUE(engine.BeginIds(step, 12).ok());
  ASSERT_TRUE(engine.session
                  ->SubmitIds(StepId(step), StepIds::TokenMajor(ids.data(), IdType::kInt16, 10,
                                                                engine.session->shape()))
                  .ok());
  const Rows read = engine.Read(step, 12);
  for (std::int32_t row = 0; row < 12; ++row) {
    if (row < 10 && row != 3) {
      EXPECT_TRUE(engine.IsRow(read, step, row));
    } else {
      EXPECT_EQ(read.infos[static_cast<std::size_t>(row)].reason, Reason::kNotCaptured) << row;
    }
  }
  ASSERT_EQ(engine.session->SilentLayers().size(), 1u);
  EXPECT_EQ(engine.session->SilentLayers()[0].layer, 2);
  EXPECT_THAT(engine.session->SilentLayers()[0].batch_sizes, ::testing::ElementsAre(10));
}

TYPED_TEST_P(TransportContract, PackedIdsThatAreWrongAreRefusedAndGivenBack) {
  typename TestFixture::Engine engine({.max_steps_in_flight = 2});
  const RoutingShape& shape = engine.session->shape();
  const std::vector<std::int16_t> ids = engine.Ids(1, 4, true);
  const StepIds good = StepIds::TokenMajor(ids.data(), IdType::kInt16, 4, shape);
  std::atomic<int> done{0};
  const DoneCallback count{&TestFixture::CountCall, &done};
  ASSERT_TRUE(engine.Begin(1, 4).ok());
  StepIds bad = good;
  bad.layers = 4;
  EXPECT_EQ(engine.session->SubmitIds(StepId(1), bad, count).rule, CaptureRule::kWrongLayers);
  bad = good;
  bad.columns = 3;
  EXPECT_EQ(engine.session->SubmitIds(StepId(1), bad, count).rule, CaptureRule::kTooFewColumns);
  bad = good;
  bad.data = nullptr;
  EXPECT_EQ(engine.session->SubmitIds(StepId(1), bad, count).rule, CaptureRule::kNullData);
  bad = good;
  bad.rows = 1025;
  EXPECT_EQ(engine.session->SubmitIds(StepId(1), bad, count).rule, CaptureRule::kTooManyRows);
  EXPECT_EQ(done, 4);
  // The step is still there, with its buffer; and ends by ids.
  EXPECT_EQ(engine.session->transport().in_use(), 1);
  ASSERT_TRUE(engine.session->SubmitIds(StepId(1), good, count).ok());
  EXPECT_EQ(engine.session->transport().in_use(), 0);
  engine.ExpectRows(1, 4);
  EXPECT_EQ(done, 5);
}

TYPED_TEST_P(TransportContract, SelfTestNamesEveryLayerThatDoesNotCapture) {
  typename TestFixture::Engine engine;
  CaptureSession& session = *engine.session;
  constexpr auto kIds = static_cast<std::size_t>(TestFixture::kTopK);
  const auto good = [&](const CaptureView& view, std::int32_t rows) {
    engine.Forward(view, 1, rows);
    return absl::OkStatus();
  };
  for (const std::int32_t rows : {1, 5, 64}) {
    const auto report = RunSelfTest(session, rows, good);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->ok()) << report->ToString();
    EXPECT_EQ(report->rows, rows);
    EXPECT_EQ(report->layers, TestFixture::kLayers);
  }
  // A warm-up that nobody discarded does not stand in for the silent layer.
  engine.Forward(session.scratch_view(), 9, 64);
  const auto report = RunSelfTest(session, 6, [&](const CaptureView& view, std::int32_t rows) {
    engine.Forward(view, 1, rows, 0);
    const std::vector<std::int16_t> zeros(static_cast<std::size_t>(rows) * kIds, 0);
    TypeParam::Write(view, 1, 0, zeros.data(), rows);
    const std::int16_t above[] = {1, 2, 64, 3};
    TypeParam::Write(view, 2, 4, above, 1);
    const std::int16_t twice[] = {1, 2, 3, 2, 5, 5, 6, 7};
    TypeParam::Write(view, 3, 2, twice, 2);
    return absl::OkStatus();
  });
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->findings.size(), 4u) << report->ToString();
  const LayerFault faults[] = {LayerFault::kSilent, LayerFault::kAllZero, LayerFault::kOutOfRange,
                               LayerFault::kRepeating};
  const std::int32_t rows_with[] = {6, 6, 1, 2};
  const std::int32_t first_rows[] = {0, 0, 4, 2};
  for (std::size_t i = 0; i < 4; ++i) {
    const LayerFinding& finding = report->findings[i];
    EXPECT_EQ(finding.layer, static_cast<std::int32_t>(i));
    EXPECT_EQ(finding.layer_id, session.shape().layer_id(static_cast<std::int32_t>(i)));
    EXPECT_EQ(finding.module, TestFixture::Engine::ModuleName(static_cast<std::int32_t>(i)));
    EXPECT_EQ(finding.fault, faults[i]) << LayerFaultName(finding.fault);
    EXPECT_EQ(finding.rows, rows_with[i]);
    EXPECT_EQ(finding.first_row, first_rows[i]);
    EXPECT_THAT(report->ToString(), ::testing::HasSubstr(finding.module));
  }
  EXPECT_TRUE(TestFixture::AllMinusOne(session, kScratchBuffer));

  EXPECT_FALSE(RunSelfTest(session, 0, good).ok());
  EXPECT_FALSE(RunSelfTest(session, 65, good).ok());
  const auto failed = RunSelfTest(session, 3, [&](const CaptureView& view, std::int32_t rows) {
    engine.Forward(view, 1, rows);
    return absl::InternalError("no device");
  });
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(TestFixture::AllMinusOne(session, kScratchBuffer));
}

TYPED_TEST_P(TransportContract, StepPathAllocatesNothing) {
  typename TestFixture::Engine engine({.num_buffers = 2, .source = LayerSource::kHandsOver});
  CaptureSession& session = *engine.session;
  const typename TypeParam::Array array(
      TestFixture::template TensorBytes<std::int32_t>(engine, 1, 0, 16, TestFixture::kTopK, 0));
  const IdsTensor ids = IdsTensor::Contiguous(array.data(), IdType::kInt32, 16, TestFixture::kTopK);
  const std::vector<std::int16_t> packed = engine.Ids(1, 16, true);
  const StepIds step_ids = StepIds::TokenMajor(packed.data(), IdType::kInt16, 16, session.shape());
  std::uint64_t step = 0;
  std::uint64_t allocations = 0;
  const auto measured = [&](auto&& call) {
    const std::uint64_t before = AllocationsOfThisThread();
    call();
    allocations += AllocationsOfThisThread() - before;
  };
  for (int round = 0; round < 20; ++round) {
    if (round == 4) allocations = 0;  // warm by then
    for (int end = 0; end < 5; ++end) {
      engine.Prepare(++step, 16);
      const StepBatch batch = engine.batch().view();
      StepCode code;
      measured(
          [&] { code = end == 3 ? session.BeginIdsStep(batch) : session.BeginStep(batch, 32); });
      ASSERT_TRUE(code.ok()) << code.ToStatus();
      CaptureCode handed;
      measured([&] {
        const CaptureView view = session.view(StepId(step));
        for (std::int32_t layer = 0; layer < TestFixture::kLayers; ++layer) {
          if (end != 3) handed = session.HandOver(view, layer, ids);
        }
        session.Discard(64);
      });
      ASSERT_TRUE(handed.ok());
      CaptureCode by_ids;
      measured([&] {
        if (end == 0 || end == 4) code = session.Submit(StepId(step), 64);
        if (end == 1) code = session.Drop(StepId(step));
        if (end == 2) code = session.Cancel(StepId(step));
        if (end == 3) by_ids = session.SubmitIds(StepId(step), step_ids);
      });
      ASSERT_TRUE(code.ok() && by_ids.ok());
      if (end == 4) {
        // 0, 3 and 4 are submitted: both buffers are out, and one more step overflows.
        engine.Prepare(++step, 16);
        const StepBatch overflow = engine.batch().view();
        measured([&] { code = session.BeginStep(overflow); });
        ASSERT_TRUE(code.dropped());
      }
    }
    measured([&] { engine.Settle(); });
  }
  EXPECT_EQ(allocations, 0u);
}

// Everything at once, over a landing thread: what a row is follows from its step's end alone.
TYPED_TEST_P(TransportContract, RandomStepsOverALandingThread) {
  const char* given = std::getenv("WAYMARK_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "WAYMARK_SEED=" << seed << "\n";
  std::mt19937_64 random(seed);
  typename TestFixture::Engine engine(
      {.landing = Landing::kThread, .max_rows = 128, .num_buffers = 3, .num_blocks = 20000});
  struct Step {
    std::int32_t rows = 0;
    std::int32_t silent_layer = -1;
    Reason reason = Reason::kNone;
  };
  std::map<std::uint64_t, Step> steps;
  std::vector<std::uint64_t> open;
  std::uint64_t next = 1;
  const auto end_one = [&] {
    const std::size_t at = random() % open.size();
    const std::uint64_t step = open[at];
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    Step& of = steps[step];
    switch (random() % 8) {
      case 0:
        ASSERT_TRUE(engine.session->Drop(StepId(step)).ok());
        of.reason = Reason::kCapacity;
        break;
      case 1:
        ASSERT_TRUE(engine.session->Cancel(StepId(step)).ok());
        of.reason = Reason::kNeverWritten;
        break;
      default:
        ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
        if (of.silent_layer >= 0) of.reason = Reason::kNotCaptured;
        break;
    }
  };
  for (int i = 0; i < 600; ++i) {
    const std::uint64_t number = next++;
    Step step;
    step.rows = static_cast<std::int32_t>(random() % 100);
    const auto written = step.rows + static_cast<std::int32_t>(random() % 28);
    if (random() % 3 == 0) step.silent_layer = static_cast<std::int32_t>(random() % 5);
    const StepCode code = engine.Begin(number, step.rows, written);
    if (code.dropped()) {
      step.reason = Reason::kCapacity;
      engine.Forward(number, written);
    } else {
      ASSERT_TRUE(code.ok()) << code.ToStatus();
      engine.Forward(number, written, step.silent_layer);
      open.push_back(number);
    }
    steps[number] = step;
    while (open.size() > random() % 3)
      end_one();
  }
  while (!open.empty())
    end_one();
  for (const auto& [number, step] : steps) {
    if (step.rows == 0) continue;
    if (step.reason == Reason::kNone) {
      engine.ExpectRows(number, step.rows);
    } else {
      engine.ExpectMissing(number, step.rows, step.reason);
    }
    if (::testing::Test::HasFailure()) return;
  }
  engine.SettleAndAwaitBuffers();
}

// The transport by itself, without a session: what CaptureSession relies on.
TYPED_TEST_P(TransportContract, BuffersAreDistinctAndClean) {
  typename TestFixture::Engine engine({.num_buffers = 3});
  Transport& transport = engine.session->transport();
  EXPECT_FALSE(transport.name().empty());
  EXPECT_TRUE(transport.healthy());
  EXPECT_TRUE(transport.status().ok());
  for (int round = 0; round < 3; ++round) {
    std::vector<BufferId> buffers;
    for (int i = 0; i < 3; ++i)
      buffers.push_back(transport.Acquire());
    EXPECT_THAT(buffers, ::testing::UnorderedElementsAre(0, 1, 2));
    EXPECT_EQ(transport.Acquire(), kNoBuffer);
    EXPECT_EQ(transport.in_use(), 3);
    for (const BufferId buffer : buffers) {
      const CaptureView view = transport.View(buffer);
      EXPECT_EQ(view.buffer, buffer);
      EXPECT_EQ(view.max_rows, 64);
      EXPECT_EQ(view.num_layers, TestFixture::kLayers);
      EXPECT_EQ(view.top_k, TestFixture::kTopK);
      EXPECT_TRUE(TestFixture::AllMinusOne(*engine.session, buffer));
      engine.Forward(view, 5, 64);
      transport.Release(buffer, 64);
    }
    EXPECT_EQ(transport.in_use(), 0);
  }
}

REGISTER_TYPED_TEST_SUITE_P(
    TransportContract, RowsLandExactly, SilentLayerIsMissingInExactlyItsRowsAndNamed,
    SilentRowsAreCountedInEveryStep, StaleIdsNeverComeBack, HandedOverPaddingIsGoneToo,
    RepeatedAndOutOfRangeIdsAreInvalid, HandOverTakesTheFirstColumnsOfEveryTypeAndStride,
    HandOverOfIdsThatDoNotFitIsInvalidNotSomeOtherExpert, HandOverRefusesWhatIsWrongWithACode,
    TwoMicroBatchesHaveDisjointBuffers, FullRingDropsTheStepAndCountsIt,
    StepThatTheStoreDropsTakesNoBuffer, DroppedAndCancelledStepsSaySo,
    DiscardedForwardsLeaveNothingBehind, StepsWithoutRowsPass, TooManyRowsAreRefused,
    UnknownStepsAnswerACode, TeardownWithPendingStepsIsSafe, TwoSessionsShareOneStore,
    PackedIdsLandFromWhereTheyAre, PackedIdsThatAreWrongAreRefusedAndGivenBack,
    SelfTestNamesEveryLayerThatDoesNotCapture, StepPathAllocatesNothing,
    RandomStepsOverALandingThread, BuffersAreDistinctAndClean);

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONTRACT_TRANSPORT_CONTRACT_H_
