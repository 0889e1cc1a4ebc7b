// The rows of tensors, capture buffers and counters by themselves, as the store's landing thread uses them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugin/capture/host_transport.h"
#include "plugin/capture/ids_ring.h"
#include "plugin/capture/layer_counters.h"
#include "plugin/capture/row_lander.h"

namespace waymark {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RoutingShape Shape(std::int32_t layers, std::int32_t top_k, std::int32_t experts) {
  RoutingShape shape = {.num_layers = layers, .top_k = top_k, .num_experts = experts};
  return shape;
}

TEST(LayerCounters, CountByLayer) {
  LayerCounters counters(Shape(3, 2, 8));
  counters.AddSilent(1, 64);
  counters.AddSilent(1, 64);
  counters.AddSilent(1, 63);
  counters.AddSilent(1, 0);
  counters.AddSilent(2, 130);
  counters.AddSilent(2, 5000, 7);
  counters.AddInvalid(0);
  EXPECT_EQ(counters.silent_rows(0), 0u);
  EXPECT_EQ(counters.silent_rows(1), 4u);
  EXPECT_EQ(counters.silent_rows(2), 8u);
  EXPECT_EQ(counters.invalid_rows(0), 1u);
  EXPECT_EQ(counters.invalid_rows(1), 0u);
}

// A store lands a row twice: into two pages, or once more to compare it.
TEST(IdsRing, CountsARowOnceHoweverOftenItIsLanded) {
  const RoutingShape shape = Shape(2, 2, 8);
  auto counters = std::make_shared<LayerCounters>(shape);
  const auto ring = std::make_shared<IdsRing>(shape, 16, 1, counters);
  const std::int16_t ids[] = {0, 1, -1, -1, 2, 2, 3, 4};
  for (int step = 1; step <= 2; ++step) {
    StepRows& step_rows =
        *ring->Take(StepId(1), StepIds::TokenMajor(ids, IdType::kInt16, 2, shape), {});
    std::vector<std::uint8_t> bytes(8);
    const std::vector<std::uint8_t*> rows = {bytes.data(), bytes.data() + 4};
    std::vector<Reason> verdicts(2);
    step_rows.Land(0, rows, verdicts);
    EXPECT_THAT(verdicts, ElementsAre(Reason::kNotCaptured, Reason::kInvalidId));
    const std::vector<std::uint8_t*> one = {bytes.data()};
    step_rows.Land(1, one, verdicts);
    EXPECT_THAT(verdicts, ElementsAre(Reason::kInvalidId, Reason::kInvalidId));
    step_rows.Land(0, one, verdicts);
    step_rows.Done();
    EXPECT_EQ(counters->silent_rows(1), static_cast<std::uint64_t>(step));
    EXPECT_EQ(counters->invalid_rows(0), static_cast<std::uint64_t>(step));
  }
}

// Ids that an engine wrote again too early were landed as those of the earlier step.
TEST(IdsRing, IdsThatChangeBeforeTheyWereReadAreNotCaptured) {
  const RoutingShape shape = Shape(2, 2, 512);
  std::vector<std::string> lines;
  const LogCallback log{[](void* to, LogLevel, const char* text, std::size_t) {
                          static_cast<std::vector<std::string>*>(to)->emplace_back(text);
                        },
                        &lines};
  const auto ring =
      std::make_shared<IdsRing>(shape, 300, 1, std::make_shared<LayerCounters>(shape, log));
  for (const std::size_t written : {0, 1, 2, 70, 300}) {  // rows, from the first on
    std::vector<std::int16_t> ids(300 * 4);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int16_t>(i % 4);
    StepRows& rows =
        *ring->Take(StepId(7), StepIds::TokenMajor(ids.data(), IdType::kInt16, 300, shape), {});
    std::vector<std::uint8_t> bytes(8 * 64);
    std::vector<std::uint8_t*> at;
    for (std::size_t i = 0; i < 64; ++i)
      at.push_back(bytes.data() + 8 * i);
    std::vector<Reason> before(64), behind(64);
    rows.Land(64, at, before);
    for (std::size_t i = 0; i < written * 4; ++i)
      ids[i] = static_cast<std::int16_t>(ids[i] + 4);
    rows.Land(128, at, behind);
    rows.Done();
    EXPECT_EQ(before, std::vector(64, Reason::kNone));  // they were read before
    EXPECT_EQ(behind, std::vector(64, written == 0 ? Reason::kNone : Reason::kNotCaptured));
  }
  EXPECT_THAT(lines, ElementsAre(HasSubstr("step 7: its ids were written again")));
}

TEST(IdsRing, LandsRowsFromAnyFirstAndSaysWhichItHasNot) {
  const RoutingShape shape = Shape(1, 1, 1000);
  const auto ring = std::make_shared<IdsRing>(shape, 400, 1, nullptr);
  std::vector<std::int32_t> ids(300);
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(i);
  ids[170] = -1;
  int done = 0;
  StepRows& step_rows =
      *ring->Take(StepId(1), StepIds::TokenMajor(ids.data(), IdType::kInt32, 300, shape),
                  {[](void* context) { ++*static_cast<int*>(context); }, &done});
  std::vector<std::uint8_t> bytes(2 * 290, 0xee);
  std::vector<std::uint8_t*> rows;
  for (std::size_t i = 0; i < 290; ++i) {
    rows.push_back(i % 10 == 3 ? nullptr : bytes.data() + 2 * i);
  }
  std::vector<Reason> verdicts(290, Reason::kAudit);
  step_rows.Land(20, rows, verdicts);
  for (std::size_t i = 0; i < 290; ++i) {
    const Reason expected = i % 10 == 3 ? Reason::kAudit
                            : i == 150  ? Reason::kNotCaptured
                            : i < 280   ? Reason::kNone
                                        : Reason::kNotCaptured;
    EXPECT_EQ(verdicts[i], expected) << i;
    if (expected == Reason::kNone) {
      EXPECT_EQ(bytes[2 * i] + 256 * bytes[2 * i + 1], static_cast<int>(i + 20));
    } else if (i % 10 == 3) {
      EXPECT_EQ(bytes[2 * i], 0xee);
    }
  }
  // Beyond every row there is.
  step_rows.Land(5000, std::span<std::uint8_t* const>(rows).first(1), verdicts);
  EXPECT_EQ(verdicts[0], Reason::kNotCaptured);
  EXPECT_EQ(done, 0);
  step_rows.Done();
  EXPECT_EQ(done, 1);
}

// In a byte, -1 is also expert 255: a layer with one id missing counted as written, and the audit
// took its 255 for another expert.
TEST(FindWrittenLayers, KnowsNothingOfALayerWithTheExpertThatMinusOneLooksLike) {
  const std::uint8_t row[] = {3, 7, 3, 0xff, 0xff, 0xff, 9, 9};
  std::uint8_t written[4] = {};
  EXPECT_TRUE(FindWrittenLayers(Shape(4, 2, 256), row, written));
  EXPECT_THAT(written, ElementsAre(1, 0, 0, 0));
  EXPECT_TRUE(FindWrittenLayers(Shape(4, 1, 256), row, written));
  EXPECT_THAT(written, ElementsAre(1, 1, 1, 0));
  EXPECT_TRUE(FindWrittenLayers(Shape(4, 2, 255), row, written));
  EXPECT_THAT(written, ElementsAre(1, 0, 0, 0));
  const std::uint8_t wide[] = {3, 1, 7, 0, 0xff, 0, 3, 1, 0xff, 0xff, 3, 1, 9, 1, 9, 1};
  EXPECT_TRUE(FindWrittenLayers(Shape(4, 2, 512), wide, written));
  EXPECT_THAT(written, ElementsAre(1, 1, 0, 0));
}

TEST(IdsRing, LivesUntilItsLastStepIsDone) {
  auto ring = std::make_shared<IdsRing>(Shape(1, 1, 4), 4, 2, nullptr);
  const std::weak_ptr<IdsRing> watch = ring;
  StepRows* first = ring->Take(StepId(1), {}, {});
  StepRows* second = ring->Take(StepId(1), {}, {});
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_NE(first, second);
  EXPECT_EQ(ring->Take(StepId(1), {}, {}), nullptr);
  first->Done();
  EXPECT_EQ(ring->Take(StepId(1), {}, {}), first);
  ring = nullptr;
  first->Done();
  EXPECT_FALSE(watch.expired());
  second->Done();
  EXPECT_TRUE(watch.expired());
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WAYMARK_SANITIZED 1
#endif
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(WAYMARK_SANITIZED)
// Sanitizers end the program where malloc answers null.
TEST(HostTransport, SaysHowMuchMemoryItWouldTake) {
  const auto made = HostTransport::Create({Shape(1024, 64, 256), 1 << 30, 1, nullptr});
  ASSERT_EQ(made.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(made.status().message(), AllOf(HasSubstr("bytes"), HasSubstr("1073741824")));
}
#endif

}  // namespace
}  // namespace waymark
