// FillRouterTensors: what is refused, and rows that are missing. Random cases are in
// fill_random_test.cc.
#include "adapters/trainer/fill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

RoutingShape Shape(std::int32_t experts = 64) {
  return {.num_layers = 6,
          .top_k = 4,
          .num_experts = experts,
          .page_tokens = 4,
          .layer_ids = {1, 2, 4, 5, 6, 9}};
}

// The routing of a sequence: number -1 is a missing row.
struct Sequence {
  std::vector<int> numbers;  // of its rows
  std::int64_t tokens = 0;

  [[nodiscard]] Rows ToRows(const RoutingShape& shape) const {
    Rows rows;
    rows.shape = shape;
    rows.ids.resize(numbers.size() * shape.row_bytes());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] < 0) {
        rows.infos.push_back({.reason = Reason::kNotCaptured});
        continue;
      }
      rows.infos.push_back({.step = 1, .version = 1, .reason = Reason::kNone});
      NumberedRows::Fill(shape, numbers[i], rows.ids.data() + i * shape.row_bytes());
    }
    return rows;
  }
};

// All rows of all sequences, one after the other.
RowPlan Packed(std::vector<std::int64_t> lengths) {
  RowPlan plan;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    plan.segments.push_back({static_cast<std::int32_t>(i), 0, lengths[i], plan.rows});
    plan.rows += lengths[i];
  }
  plan.lengths = std::move(lengths);
  return plan;
}

// One packed sequence of rows in memory, layers {1, 2}, int64.
struct One {
  explicit One(std::int64_t of_tokens, std::vector<int> numbers)
      : tokens(of_tokens), rows(Sequence{std::move(numbers), of_tokens}.ToRows(Shape())) {}

  absl::StatusOr<FillReport> Fill(const FillOptions& options = {}) {
    ids.assign(layers.size() * static_cast<std::size_t>(tokens) * 4, -7);
    mask.assign(static_cast<std::size_t>(tokens), 7);
    RouterTensors out;
    out.ids = {reinterpret_cast<std::uint8_t*>(ids.data()), ids.size() * 8};
    out.mask = mask;
    const RowsView sources[] = {ViewOf(rows)};
    return FillRouterTensors(Packed({tokens}), sources, layers, out, options);
  }
  [[nodiscard]] bool untouched() const {
    return std::all_of(ids.begin(), ids.end(), [](std::int64_t id) { return id == -7; }) &&
           std::all_of(mask.begin(), mask.end(), [](std::uint8_t m) { return m == 7; });
  }

  std::int64_t tokens;
  Rows rows;
  std::vector<std::int32_t> layers = {1, 2};
  std::vector<std::int64_t> ids;
  std::vector<std::uint8_t> mask;
};

std::string Refusal(One& one, const FillOptions& options = {}) {
  const absl::StatusOr<FillReport> report = one.Fill(options);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(one.untouched());
  return std::string(report.status().message());
}

// Megatron-Core takes a tensor that is a row short in silence.
TEST(FillRouterTensors, ARowTooFewOrTooManyIsRefused) {
  One with_last(4, {1, 2, 3, 4});
  EXPECT_EQ(with_last.Fill()->replayed, 4);
  One without_last(4, {1, 2, 3});
  EXPECT_EQ(without_last.Fill()->no_row, 1);
  One short_by_one(4, {1, 2});
  EXPECT_EQ(Refusal(short_by_one),
            "sources[0]: must have rows [0, 3) or [0, 4) of 4 tokens, got [0, 2)");
  One too_many(4, {1, 2, 3, 4, 5});
  EXPECT_THAT(Refusal(too_many), HasSubstr("got [0, 5)"));
  EXPECT_THAT(Refusal(too_many, {.partial = true}), HasSubstr("got [0, 5)"));
  One later(4, {1, 2, 3});
  later.rows.first = 1;
  EXPECT_THAT(Refusal(later), HasSubstr("got [1, 4)"));
}

// Duplicates are computed on in silence, or break the dispatcher.
TEST(FillRouterTensors, IdsThatNoRouterChoosesMakeTheRowMissing) {
  One twice(3, {1, 2, 3});
  twice.rows.ids[Shape().row_bytes()] = twice.rows.ids[Shape().row_bytes() + 1];  // layer 1
  One out_of_range(3, {1, 2, 3});
  out_of_range.rows.ids[Shape().row_bytes() + 7] = 64;  // layer 2
  for (One* one : {&twice, &out_of_range}) {
    const auto report = one->Fill().value();
    EXPECT_THAT(one->mask, ::testing::ElementsAre(1, 0, 1));
    EXPECT_EQ(report.missing[static_cast<std::size_t>(Reason::kInvalidId)], 1);
    constexpr std::int64_t kSpread[] = {0, 32, 16, 48, 8, 40, 24, 56};  // of 64 experts
    for (std::size_t layer = 0; layer < 2; ++layer) {
      for (std::size_t k = 0; k < 4; ++k)
        EXPECT_EQ(one->ids[(layer * 3 + 1) * 4 + k], kSpread[layer * 4 + k]);
    }
  }
  One elsewhere(3, {1, 2, 3});  // in a layer that is not asked for
  elsewhere.rows.ids[Shape().row_bytes() + 8] = elsewhere.rows.ids[Shape().row_bytes() + 9];
  EXPECT_EQ(elsewhere.Fill()->replayed, 3);
}

TEST(FillRouterTensors, RefusesWhatItCannotFillAndNamesIt) {
  One one(3, {1, 2, 3});
  one.layers = {1, 3};
  EXPECT_EQ(Refusal(one),
            "layers[1]: must be a layer of sources[0], which has 6 from 1 to 9; got 3");
  one.layers = {1, 2, 1};
  EXPECT_EQ(Refusal(one), "layers[2]: must be distinct, got 1 twice");
  one.layers = {};
  EXPECT_EQ(Refusal(one), "layers: must be at least one, got 0");

  const RowPlan plan = Packed({3, 3});
  std::vector<std::uint8_t> ids(6 * 4 * 8);
  std::vector<std::uint8_t> mask(6);
  const std::int32_t layers[] = {1};
  const RowsView view = ViewOf(one.rows);
  RoutingShape other = Shape(128);
  RowsView of_other = view;
  of_other.shape = &other;
  const auto refusal = [&](std::vector<RowsView> sources, RouterTensors out) {
    return std::string(FillRouterTensors(plan, sources, layers, out).status().message());
  };
  EXPECT_THAT(refusal({view}, {.ids = ids}), HasSubstr("sources: must be one for each of 2"));
  EXPECT_THAT(refusal({view, of_other}, {.ids = ids}),
              HasSubstr("sources[1]: must have K = 4 and E = 64"));
  EXPECT_THAT(refusal({view, view}, {.ids = std::span(ids).first(8)}),
              HasSubstr("ids: must be 192 bytes, [layers][rows][K] = [1][6][4], got 8"));
  EXPECT_THAT(refusal({view, view}, {.ids = ids, .mask = std::span(mask).first(5)}),
              HasSubstr("mask: must be empty or 6 bytes"));
  EXPECT_THAT(refusal({view, RowsView{}}, {.ids = ids}), HasSubstr("sources[1]: must have rows"));

  for (const RowSegment& wrong :
       {RowSegment{2, 0, 1, 0}, RowSegment{1, 2, 2, 0}, RowSegment{0, 0, 3, 4},
        RowSegment{0, 0, 3, 0, 3}, RowSegment{0, 0, 1, -1}, RowSegment{0, -1, 1, 0}}) {
    RowPlan of_wrong = plan;
    of_wrong.segments.push_back(wrong);
    const RowsView two[] = {view, view};
    EXPECT_THAT(FillRouterTensors(of_wrong, two, layers, {.ids = ids}).status().ToString(),
                HasSubstr("plan: must have segments of its sequences and rows"));
  }
  One wide(3, {1, 2, 3});
  wide.rows.shape.num_experts = 300;
  std::vector<std::uint8_t> two_bytes(wide.rows.ids.size() * 2);
  wide.rows.ids = two_bytes;
  const RowsView of_wide = ViewOf(wide.rows);
  EXPECT_THAT(
      refusal({of_wide, of_wide}, {.id_type = IdType::kUint8, .ids = std::span(ids).first(24)}),
      HasSubstr("id_type: must hold ids up to 299"));
}

}  // namespace
}  // namespace waymark
