// Steps that end with all their ids in one tensor, and need no buffer of the transport.
#ifndef WAYMARK_TESTS_CONTRACT_PACKED_IDS_CONTRACT_H_
#define WAYMARK_TESTS_CONTRACT_PACKED_IDS_CONTRACT_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/contract/transport_fixture.h"

namespace waymark {

template <class Traits>
class PackedIdsContract : public TransportFixture<Traits> {};

TYPED_TEST_SUITE_P(PackedIdsContract);

TYPED_TEST_P(PackedIdsContract, PackedIdsLandFromWhereTheyAre) {
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
      StepIds tensor = StepIds::TokenMajor(bytes.data(), type, 21, shape);
      if (!token_major) {
        tensor.row_stride = tensor.layer_stride;
        tensor.layer_stride *= 21;
      }
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
  engine.ExpectRowsWhere(step, 12, Reason::kNotCaptured,
                         [](std::int32_t row) { return row < 10 && row != 3; });
  EXPECT_EQ(engine.session->GetStats().layers[2].rows_silent, 1u);
  EXPECT_EQ(engine.SilentRows(), 1u);
}

TYPED_TEST_P(PackedIdsContract, PackedIdsThatAreWrongAreRefusedAndGivenBack) {
  typename TestFixture::Engine engine({.max_steps_in_flight = 2});
  const RoutingShape& shape = engine.session->shape();
  const std::vector<std::int16_t> ids = engine.Ids(1, 4, true);
  const StepIds good = StepIds::TokenMajor(ids.data(), IdType::kInt16, 4, shape);
  std::atomic<int> done{0};
  const DoneCallback count{&TestFixture::CountCall, &done};
  ASSERT_TRUE(engine.Begin(1, 4).ok());
  StepIds bad = good;
  bad.layers = 4;
  EXPECT_EQ(engine.session->SubmitIds(StepId(1), bad, count).rule, StepRule::kIdsLayers);
  bad = good;
  for (const std::int32_t columns : {3, 5}) {
    bad.columns = columns;
    EXPECT_EQ(engine.session->SubmitIds(StepId(1), bad, count).rule, StepRule::kIdsColumns);
  }
  bad = good;
  bad.data = nullptr;
  EXPECT_EQ(engine.session->SubmitIds(StepId(1), bad, count).rule, StepRule::kIdsData);
  bad = good;
  bad.rows = 1025;
  EXPECT_EQ(engine.session->SubmitIds(StepId(1), bad, count).rule, StepRule::kIdsRows);
  EXPECT_EQ(done, 5);
  // The step is still there, with its buffer; and ends by ids.
  EXPECT_EQ(engine.session->transport().in_use(), 1);
  ASSERT_TRUE(engine.session->SubmitIds(StepId(1), good, count).ok());
  EXPECT_EQ(engine.session->transport().in_use(), 0);
  engine.ExpectRows(1, 4);
  EXPECT_EQ(done, 6);
}

REGISTER_TYPED_TEST_SUITE_P(PackedIdsContract, PackedIdsLandFromWhereTheyAre,
                            PackedIdsThatAreWrongAreRefusedAndGivenBack);

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONTRACT_PACKED_IDS_CONTRACT_H_
