// Steps whose rows are told by tokens, for tests that write two flights of one block.
#ifndef WAYMARK_TESTS_SUPPORT_TOKEN_ROWS_H_
#define WAYMARK_TESTS_SUPPORT_TOKEN_ROWS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "blockstore/store/store.h"

namespace waymark {

// A row a token, with ids that another token's row shares few of.
class TokenRows final : public StepRows {
 public:
  TokenRows(const RoutingShape& shape, std::vector<std::uint32_t> tokens)
      : shape_(shape), tokens_(std::move(tokens)) {}
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      verdicts[i] = Reason::kNone;
      for (int layer = 0; layer < shape_.num_layers; ++layer) {
        const std::uint32_t start =
            (tokens_[first + i] * 2654435761u + static_cast<std::uint32_t>(layer) * 40503u) >> 11;
        for (int k = 0; k < shape_.top_k; ++k) {
          destinations[i][layer * shape_.top_k + k] =
              static_cast<std::uint8_t>((start + static_cast<std::uint32_t>(k)) % 64);
        }
      }
    }
  }
  void Done() override {}

 private:
  const RoutingShape shape_;
  const std::vector<std::uint32_t> tokens_;
};

// A store of 8 blocks of 4 tokens, with such rows; the caller lands its steps.
inline StoreOptions TokenRowsOptions() {
  return {.shape = {.num_layers = 6, .top_k = 4, .num_experts = 64, .page_tokens = 4},
          .num_blocks = 8,
          .landing = Landing::kCaller};
}

// A whole step of such a store.
inline void LandTokens(RoutingStore& store, std::uint64_t step, const std::vector<Event>& events,
                       const std::vector<std::int64_t>& slots, std::vector<std::uint32_t> tokens) {
  TokenRows rows(store.options().shape, std::move(tokens));
  ASSERT_TRUE(
      store.BeginStep({step, 1, events.data(), events.size(), slots.data(), slots.size()}).ok());
  ASSERT_TRUE(store.Submit(StepId(step), &rows).ok());
  ASSERT_TRUE(store.Land(StepId(step)));
}

}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_TOKEN_ROWS_H_
