// Layers that hand their ids over as tensors, instead of writing into the buffer.
#ifndef WAYMARK_TESTS_CONTRACT_HAND_OVER_CONTRACT_H_
#define WAYMARK_TESTS_CONTRACT_HAND_OVER_CONTRACT_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/contract/transport_fixture.h"

namespace waymark {

template <class Traits>
class HandOverContract : public TransportFixture<Traits> {
 protected:
  using typename TransportFixture<Traits>::Engine;
  using TransportFixture<Traits>::kLayers;

  // Hands every layer of `step` over as T.
  template <class T>
  void HandOverAll(Engine& engine, const CaptureView& view, std::uint64_t step, std::int32_t rows,
                   IdType type, std::int32_t columns, std::int32_t gap) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const typename Traits::Array array(
          HandOverContract::template TensorBytes<T>(engine, step, layer, rows, columns, gap));
      StepIds ids = StepIds::OfLayer(array.data(), type, rows, columns);
      ids.row_stride += gap * static_cast<std::ptrdiff_t>(sizeof(T));
      const StepCode code = engine.session->HandOver(view, layer, ids);
      ASSERT_TRUE(code.ok()) << code.ToStatus();
    }
  }
};

TYPED_TEST_SUITE_P(HandOverContract);

TYPED_TEST_P(HandOverContract, HandOverTakesEveryTypeAndStride) {
  typename TestFixture::Engine engine;
  std::uint64_t step = 0;
  constexpr std::int32_t kColumns = TestFixture::kTopK;
  for (const std::int32_t gap : {0, 3}) {
    for (const IdType type : {IdType::kInt16, IdType::kInt32, IdType::kInt64}) {
      ++step;
      ASSERT_TRUE(engine.Begin(step, 17).ok());
      const CaptureView view = engine.session->view(StepId(step));
      if (type == IdType::kInt16) {
        this->template HandOverAll<std::int16_t>(engine, view, step, 17, type, kColumns, gap);
      } else if (type == IdType::kInt32) {
        this->template HandOverAll<std::int32_t>(engine, view, step, 17, type, kColumns, gap);
      } else {
        this->template HandOverAll<std::int64_t>(engine, view, step, 17, type, kColumns, gap);
      }
      ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
      engine.ExpectRows(step, 17);
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
    const StepIds ids{array.data(), IdType::kInt64, 6, 1, TestFixture::kTopK, 8, 0, 6 * 8};
    ASSERT_TRUE(engine.session->HandOver(engine.session->view(StepId(step)), layer, ids).ok());
  }
  ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
  engine.ExpectRows(step, 6);
}

TYPED_TEST_P(HandOverContract, HandOverOfIdsThatDoNotFitIsInvalidNotSomeOtherExpert) {
  typename TestFixture::Engine engine;
  ASSERT_TRUE(engine.Begin(1, 1).ok());
  const CaptureView view = engine.session->view(StepId(1));
  this->template HandOverAll<std::int32_t>(engine, view, 1, 1, IdType::kInt32, TestFixture::kTopK,
                                           0);
  const std::int32_t wrapped[] = {65536, 1, 2, 3};  // cut to 16 bits: expert 0
  std::vector<std::uint8_t> bytes(sizeof(wrapped));
  std::memcpy(bytes.data(), wrapped, bytes.size());
  const typename TypeParam::Array array(std::move(bytes));
  ASSERT_TRUE(
      engine.session->HandOver(view, 2, StepIds::OfLayer(array.data(), IdType::kInt32, 1, 4)).ok());
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  engine.ExpectMissing(1, 1, Reason::kInvalidId);
}

TYPED_TEST_P(HandOverContract, HandOverRefusesWhatIsWrongWithACode) {
  const typename TypeParam::Array array(std::vector<std::uint8_t>(4096));
  const StepIds good = StepIds::OfLayer(array.data(), IdType::kInt32, 2, 4);
  typename TestFixture::Engine engine;
  ASSERT_TRUE(engine.Begin(1, 2).ok());
  const auto rule = [&](std::int32_t layer, const StepIds& ids) {
    const StepCode code = engine.session->HandOver(engine.session->view(StepId(1)), layer, ids);
    EXPECT_EQ(code.ok(), code.rule == StepRule::kNone);
    EXPECT_EQ(code.ok(), code.ToStatus().ok());
    return code.rule;
  };
  EXPECT_EQ(rule(-1, good), StepRule::kIdsLayer);
  EXPECT_EQ(rule(TestFixture::kLayers, good), StepRule::kIdsLayer);
  StepIds bad = good;
  bad.type = IdType::kUint8;
  EXPECT_EQ(rule(0, bad), StepRule::kIdsType);
  bad = good;
  bad.rows = 65;
  EXPECT_EQ(rule(0, bad), StepRule::kIdsRows);
  bad.rows = -1;
  EXPECT_EQ(rule(0, bad), StepRule::kIdsRows);
  bad = good;
  bad.columns = 3;
  EXPECT_EQ(rule(0, bad), StepRule::kIdsColumns);
  bad.columns = 5;
  EXPECT_EQ(rule(0, bad), StepRule::kIdsColumns);
  bad = good;
  bad.data = nullptr;
  EXPECT_EQ(rule(0, bad), StepRule::kIdsData);
  bad.rows = 0;
  EXPECT_EQ(rule(0, bad), StepRule::kNone);

  // A view that outlived its step must not write into the step that has the buffer now.
  typename TestFixture::Engine one({.num_buffers = 1});
  ASSERT_TRUE(one.Begin(1, 2).ok());
  const CaptureView old = one.session->view(StepId(1));
  ASSERT_TRUE(one.session->Cancel(StepId(1)).ok());
  EXPECT_EQ(one.session->HandOver(old, 0, good).rule, StepRule::kStepNotInFlight);
  ASSERT_TRUE(one.Begin(2, 2).ok());
  EXPECT_EQ(one.session->HandOver(old, 0, good).rule, StepRule::kStepNotInFlight);
  ASSERT_TRUE(one.session->Submit(StepId(2)).ok());
  one.ExpectMissing(2, 2, Reason::kNotCaptured);
}

// Stale ids (capture_contract.h) once more: what wrote beyond the step's declared rows is the
// hand-over.
TYPED_TEST_P(HandOverContract, HandedOverPaddingIsGoneToo) {
  typename TestFixture::Engine engine({.num_buffers = 1});
  ASSERT_TRUE(engine.Begin(1, 10).ok());
  this->template HandOverAll<std::int32_t>(engine, engine.session->view(StepId(1)), 1, 40,
                                           IdType::kInt32, TestFixture::kTopK, 0);
  ASSERT_TRUE(engine.session->Cancel(StepId(1)).ok());
  ASSERT_TRUE(engine.Begin(2, 40).ok());
  ASSERT_TRUE(engine.session->Submit(StepId(2)).ok());
  engine.ExpectMissing(2, 40, Reason::kNotCaptured);
}

REGISTER_TYPED_TEST_SUITE_P(HandOverContract, HandOverTakesEveryTypeAndStride,
                            HandOverOfIdsThatDoNotFitIsInvalidNotSomeOtherExpert,
                            HandOverRefusesWhatIsWrongWithACode, HandedOverPaddingIsGoneToo);

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONTRACT_HAND_OVER_CONTRACT_H_
