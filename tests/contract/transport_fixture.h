// TransportFixture: what the themes of the transport contract share. See contract_engine.h for what
// a transport's traits must have.
#ifndef WAYMARK_TESTS_CONTRACT_TRANSPORT_FIXTURE_H_
#define WAYMARK_TESTS_CONTRACT_TRANSPORT_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/contract/contract_engine.h"

namespace waymark {

template <class Traits>
class TransportFixture : public ::testing::Test {
 protected:
  using Engine = ContractEngine<Traits>;
  static constexpr std::int32_t kLayers = Engine::kLayers;
  static constexpr std::int32_t kTopK = Engine::kTopK;

  // Where a transport cannot be had, its Traits::WhyNot() says why not; "": it can.
  void SetUp() override {
    if constexpr (requires { Traits::WhyNot(); }) {
      if (const std::string why = Traits::WhyNot(); !why.empty()) GTEST_SKIP() << why;
    }
  }

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

  static bool AllMinusOne(typename Engine::Session& session, BufferId buffer) {
    std::vector<std::int16_t> ids(static_cast<std::size_t>(session.max_rows() * kLayers * kTopK),
                                  0);
    EXPECT_TRUE(session.transport().ReadBack(buffer, session.max_rows(), ids.data()).ok());
    return std::all_of(ids.begin(), ids.end(), [](std::int16_t id) { return id == -1; });
  }
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONTRACT_TRANSPORT_FIXTURE_H_
