#include "blockstore/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace waymark {
namespace {

using ::testing::HasSubstr;

RoutingShape Good() {
  return {.num_layers = 3, .top_k = 2, .num_experts = 64, .page_tokens = 16};
}

TEST(Shape, BytesFollowFromTheShape) {
  RoutingShape shape = Good();
  EXPECT_EQ(shape.id_bytes(), 1u);
  EXPECT_EQ(shape.row_ids(), 6u);
  EXPECT_EQ(shape.row_bytes(), 6u);
  EXPECT_EQ(shape.page_bytes(), 96u);
  shape.num_experts = 256;
  EXPECT_EQ(shape.id_bytes(), 1u) << "id 255 is the last of 256";
  shape.num_experts = 257;
  EXPECT_EQ(shape.id_bytes(), 2u);
  EXPECT_EQ(shape.page_bytes(), 192u);
}

TEST(Shape, LayerIdsDefaultToTheCount) {
  RoutingShape shape = Good();
  EXPECT_EQ(shape.layer_id(2), 2);
  shape.layer_ids = {1, 5, 9};
  EXPECT_EQ(shape.layer_id(2), 9);
  EXPECT_TRUE(shape.Validate().ok());
}

TEST(Shape, TheLimitsThemselvesAreLegal) {
  EXPECT_TRUE(Good().Validate().ok());
  EXPECT_TRUE((RoutingShape{1, 1, 1, 1, {}}).Validate().ok());
  EXPECT_TRUE((RoutingShape{1024, 64, 65535, 4096, {}}).Validate().ok());
}

TEST(Shape, ErrorsNameFieldRuleAndValue) {
  struct Case {
    std::function<void(RoutingShape&)> spoil;
    std::string message;
  };
  const Case cases[] = {
      {[](RoutingShape& s) { s.num_layers = 0; }, "num_layers must be in [1, 1024]; it is 0"},
      {[](RoutingShape& s) { s.num_layers = 1025; }, "it is 1025"},
      {[](RoutingShape& s) { s.top_k = 65; }, "top_k must be in [1, 64]; it is 65"},
      {[](RoutingShape& s) { s.num_experts = 1; }, "top_k must be <= num_experts (1); it is 2"},
      {[](RoutingShape& s) { s.num_experts = 65536; },
       "num_experts must be in [1, 65535]; it is 65536"},
      {[](RoutingShape& s) { s.page_tokens = -4; }, "page_tokens must be in [1, 4096]; it is -4"},
      {[](RoutingShape& s) {
         s.layer_ids = {1, 2};
       },
       "one id per layer (3); it holds 2"},
      {[](RoutingShape& s) {
         s.layer_ids = {1, 2, 2};
       },
       "layer_ids[2] must be greater than the id before it (2); it is 2"},
      {[](RoutingShape& s) {
         s.layer_ids = {-1, 2, 3};
       },
       "layer_ids[0] must not be negative; it is -1"},
  };
  for (const Case& c : cases) {
    RoutingShape shape = Good();
    c.spoil(shape);
    const absl::Status status = shape.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace waymark
