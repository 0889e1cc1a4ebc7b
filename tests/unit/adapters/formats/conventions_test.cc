// Conventions: arrays to rows and back, and everything that would have to be guessed.
#include "adapters/formats/conventions.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_seed.h"

namespace waymark::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Rows of lists of lists of ids.
RoutingArray ArrayOf(Dtype dtype, const std::vector<std::vector<std::vector<std::int64_t>>>& rows) {
  RoutingArray array;
  const std::int64_t shape[3] = {static_cast<std::int64_t>(rows.size()),
                                 static_cast<std::int64_t>(rows[0].size()),
                                 static_cast<std::int64_t>(rows[0][0].size())};
  EXPECT_TRUE(MakeArray("test", shape, dtype, {}, array).ok());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::int64_t> ids;
    for (const auto& layer : rows[i])
      ids.insert(ids.end(), layer.begin(), layer.end());
    StoreRow(array, static_cast<std::int64_t>(i), ids);
  }
  return array;
}

const Model kSixteen = {.num_experts = 16, .moe_layers = {}};

std::string ErrorOf(const RoutingArray& array, const Conventions& conventions, const Model& model,
                    std::int64_t first = 0) {
  const auto result = ToRows(array, conventions, model, first);
  return result.ok() ? "" : std::string(result.status().message());
}

// What is known of a row that was read from an array.
RowInfo OfAnArray(const RowInfo& row) {
  if (row.valid()) return {0, kUnknownVersion, Reason::kNone, Provenance::kUnknown};
  return {0, 0, Reason::kNotTold, Provenance::kUnknown};
}

std::vector<Reason> ReasonsOf(const Rows& rows) {
  std::vector<Reason> reasons;
  for (const RowInfo& info : rows.infos)
    reasons.push_back(info.reason);
  return reasons;
}

TEST(Conventions, PlainRows) {
  const RoutingArray array = ArrayOf(Dtype::kInt16, {{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}});
  const auto result = ToRows(array, {}, kSixteen, 40).value();
  EXPECT_EQ(result.rows.first, 40);
  EXPECT_THAT(result.rows.ids, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(ReasonsOf(result.rows), ElementsAre(Reason::kNone, Reason::kNone));
  EXPECT_THAT(result.notes, IsEmpty());
  const auto back = FromRows(result.rows, {}, kSixteen, Dtype::kInt16).value();
  EXPECT_EQ(back.array.ids, array.ids);
  EXPECT_EQ(back.array.first, 40);
  EXPECT_THAT(back.notes, IsEmpty());
}

TEST(Conventions, AllLayersNeedTheListOfMoeLayers) {
  const Conventions all = {.layers = LayerAxis::kAllLayers};
  const RoutingArray array = ArrayOf(Dtype::kUint8, {{{0, 0}, {3, 4}, {9, 9}, {5, 6}}});
  EXPECT_THAT(ErrorOf(array, all, kSixteen), HasSubstr("moe_layers is required"));
  Model model = {.num_experts = 16, .moe_layers = {1, 3}};
  const auto result = ToRows(array, all, model, 0).value();
  EXPECT_THAT(result.rows.shape.layer_ids, ElementsAre(1, 3));
  EXPECT_THAT(result.rows.ids, ElementsAre(3, 4, 5, 6));
  // Back: what stood in the dense columns is gone.
  EXPECT_THAT(FromRows(result.rows, all, model, Dtype::kUint8).status().message(),
              HasSubstr("num_layers must be above the last MoE layer, 3"));
  model.num_layers = 4;
  const auto back = FromRows(result.rows, all, model, Dtype::kUint8).value();
  EXPECT_THAT(back.array.ids, ElementsAre(0, 0, 3, 4, 0, 0, 5, 6));
  EXPECT_THAT(ErrorOf(array, all, {.num_experts = 16, .moe_layers = {1, 4}}),
              HasSubstr("the last is 4"));
  EXPECT_THAT(ErrorOf(array, all, {.num_experts = 16, .moe_layers = {3, 1}}),
              HasSubstr("moe_layers[1] must be at least 4"));
  EXPECT_THAT(ErrorOf(array, all, {.num_experts = 16, .moe_layers = {1}, .num_layers = 5}),
              HasSubstr("num_layers must be the array's, 4"));
  EXPECT_THAT(ErrorOf(array, {}, {.num_experts = 16, .moe_layers = {1, 3}}),
              HasSubstr("one layer per column, 4; they are 2"));
  const RoutingArray turned =
      ArrayOf(Dtype::kUint8, {{{0, 1}, {2, 3}, {4, 5}}, {{0, 1}, {2, 3}, {4, 5}}});
  EXPECT_THAT(
      ErrorOf(turned, {}, {.num_experts = 16, .moe_layers = {1, 3}}),
      HasSubstr(
          "Is the array [layers, rows, K]? It has to be [rows, layers, K], and is [2, 3, 2]"));
  // A dense column taken for an MoE layer.
  EXPECT_THAT(ErrorOf(array, {}, kSixteen), HasSubstr("column 0 has an id twice"));
}

// One more than the number of a layer was an int, and an overflow.
TEST(Conventions, AGreatestLayerNumberIsRefusedAsAnyOther) {
  const RoutingArray array = ArrayOf(Dtype::kUint8, {{{0, 1}, {2, 3}, {4, 5}}});
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  EXPECT_THAT(ErrorOf(array, {}, {.num_experts = 16, .moe_layers = {1, kMost, 2}}),
              HasSubstr("moe_layers[2] must be at least 2147483648"));
  EXPECT_TRUE(ToRows(array, {}, {.num_experts = 16, .moe_layers = {1, 2, kMost}}, 0).ok());
}

TEST(Conventions, EverySentinelMarksMissingRows) {
  const std::pair<Sentinel, std::pair<Dtype, std::int64_t>> cases[] = {
      {Sentinel::kMinusOne, {Dtype::kInt8, -1}},
      {Sentinel::k255, {Dtype::kUint8, 255}},
      {Sentinel::k65535, {Dtype::kUint16, 65535}},
      {Sentinel::kZeros, {Dtype::kUint8, 0}},
  };
  for (const auto& [sentinel, mark] : cases) {
    SCOPED_TRACE(SentinelName(sentinel));
    const auto [dtype, id] = mark;
    const Conventions conventions = {.sentinel = sentinel};
    const RoutingArray array =
        ArrayOf(dtype, {{{1, 2}, {3, 4}}, {{id, id}, {id, id}}, {{5, 6}, {id, id}}});
    const auto result = ToRows(array, conventions, kSixteen, 0).value();
    EXPECT_THAT(ReasonsOf(result.rows),
                ElementsAre(Reason::kNone, Reason::kNotTold, Reason::kNotCaptured));
    EXPECT_THAT(result.rows.ids, ElementsAre(1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0));
    ASSERT_EQ(result.notes.size(), 1u);
    EXPECT_THAT(result.notes[0], HasSubstr("row 2"));
    const auto back = FromRows(result.rows, conventions, kSixteen, dtype).value();
    EXPECT_EQ(back.array.ids,
              ArrayOf(dtype, {{{1, 2}, {3, 4}}, {{id, id}, {id, id}}, {{id, id}, {id, id}}}).ids);
    ASSERT_EQ(back.notes.size(), 1u);
    EXPECT_THAT(back.notes[0], HasSubstr("1 not captured, 1 not told"));
  }
}

TEST(Conventions, SentinelsThatCouldBeRoutesAreRefused) {
  const RoutingArray one = ArrayOf(Dtype::kUint8, {{{0}, {0}}, {{255}, {1}}});
  EXPECT_THAT(ErrorOf(one, {.sentinel = Sentinel::kZeros}, {.num_experts = 256}),
              HasSubstr("'zeros' is one for top_k = 1"));
  EXPECT_THAT(ErrorOf(one, {.sentinel = Sentinel::k255}, {.num_experts = 256}),
              HasSubstr("'255' is one for top_k = 1 and 256"));
  EXPECT_EQ(ErrorOf(ArrayOf(Dtype::kUint8, {{{255}}, {{254}}}), {.sentinel = Sentinel::k255},
                    {.num_experts = 255}),
            "");
  const RoutingArray two = ArrayOf(Dtype::kUint8, {{{0, 1}}, {{5, 6}}});
  EXPECT_THAT(ErrorOf(two, {.sentinel = Sentinel::kArange}, kSixteen), HasSubstr("'arange'"));
  // Two equal ids are no route, also where there are 256 experts.
  EXPECT_EQ(ErrorOf(ArrayOf(Dtype::kUint8, {{{255, 255}}, {{255, 6}}}),
                    {.sentinel = Sentinel::k255}, {.num_experts = 256}),
            "");
  EXPECT_THAT(ErrorOf(two, {.sentinel = Sentinel::kMinusOne}, kSixteen),
              HasSubstr("uint8 has no -1"));
  EXPECT_THAT(ErrorOf(ArrayOf(Dtype::kInt16, {{{1, 2}}}), {.sentinel = Sentinel::k65535}, kSixteen),
              HasSubstr("int16 has no 65535"));
}

TEST(Conventions, IdsAreCheckedAgainstTheModel) {
  const RoutingArray array = ArrayOf(Dtype::kInt32, {{{1, 2}}, {{3, 70000}}});
  EXPECT_THAT(ErrorOf(array, {}, {}), HasSubstr("num_experts is required"));
  EXPECT_THAT(ErrorOf(array, {}, kSixteen, 10),
              HasSubstr("row 11, column 0: an id must be in [0, 16); it is 70000"));
  EXPECT_THAT(ErrorOf(array, {}, {.num_experts = 70000}), HasSubstr("num_experts"));
  EXPECT_THAT(
      ErrorOf(ArrayOf(Dtype::kInt16, {{{1, -1}}}), {.sentinel = Sentinel::kMinusOne}, kSixteen),
      HasSubstr("or all of them -1; it is -1"));
  EXPECT_THAT(ErrorOf(ArrayOf(Dtype::kInt16, {{{1, 2}}}), {}, kSixteen, -1), HasSubstr("first"));
  EXPECT_THAT(ErrorOf(ArrayOf(Dtype::kInt16, {{{1, 2}}}), {}, kSixteen, 0x7fffffff),
              HasSubstr("first"));
  // A repeated id is no route: the row is missing, and it is said.
  const auto repeated =
      ToRows(ArrayOf(Dtype::kInt16, {{{1, 2}}, {{3, 3}}}), {}, kSixteen, 0).value();
  EXPECT_THAT(ReasonsOf(repeated.rows), ElementsAre(Reason::kNone, Reason::kInvalidId));
  ASSERT_EQ(repeated.notes.size(), 1u);
  EXPECT_THAT(repeated.notes[0], HasSubstr("1 row (row 1) with an id twice"));
}

TEST(Conventions, ThePlaceholderOfTheLastTokenIsNoRow) {
  const Conventions tokens = {.rows = RowCount::kTokens, .sentinel = Sentinel::kMinusOne};
  const RoutingArray array = ArrayOf(Dtype::kInt16, {{{1, 2}}, {{3, 4}}, {{-1, -1}}});
  const auto result = ToRows(array, tokens, kSixteen, 0).value();
  EXPECT_EQ(result.rows.size(), 2);
  EXPECT_THAT(result.notes, IsEmpty());
  const auto back = FromRows(result.rows, tokens, kSixteen, Dtype::kInt16).value();
  EXPECT_EQ(back.array.ids, array.ids);
  // Something else in its place is told.
  const auto route = ToRows(ArrayOf(Dtype::kInt16, {{{1, 2}}, {{3, 4}}}), tokens, kSixteen, 0);
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->rows.size(), 1);
  ASSERT_EQ(route->notes.size(), 1u);
  EXPECT_THAT(route->notes[0], HasSubstr("looks like a route"));
  const auto none = FromRows(result.rows, {.rows = RowCount::kTokens}, kSixteen, Dtype::kInt16);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Conventions, MissingRowsAreNeverWrittenUnsaid) {
  auto result = ToRows(ArrayOf(Dtype::kInt16, {{{1, 2}}, {{-1, -1}}, {{3, 4}}}),
                       {.sentinel = Sentinel::kMinusOne}, kSixteen, 5)
                    .value();
  Rows& rows = result.rows;
  rows.infos[1].reason = Reason::kCapacity;
  rows.infos[0] = {.step = 9, .version = 2, .reason = Reason::kNone};
  const auto refused = FromRows(rows, {}, kSixteen, Dtype::kInt16);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("1 row (row 6) is missing"));
  const auto filled =
      FromRows(rows, {.sentinel = Sentinel::kArange}, kSixteen, Dtype::kUint8).value();
  EXPECT_THAT(filled.array.ids, ElementsAre(1, 2, 0, 1, 3, 4));
  ASSERT_EQ(filled.notes.size(), 3u);
  EXPECT_THAT(filled.notes[0], HasSubstr("1 capacity"));
  EXPECT_THAT(filled.notes[1], HasSubstr("also a route"));
  EXPECT_THAT(filled.notes[2], HasSubstr("of 1 rows are not written"));
  EXPECT_THAT(
      FromRows(rows, {.sentinel = Sentinel::kMinusOne}, kSixteen, Dtype::kUint8).status().message(),
      HasSubstr("uint8 has no -1"));
}

TEST(Conventions, IdsMustFitTheDtype) {
  auto result = ToRows(ArrayOf(Dtype::kInt32, {{{1, 300}}}), {}, {.num_experts = 512}, 0).value();
  EXPECT_THAT(FromRows(result.rows, {}, {}, Dtype::kUint8).status().message(),
              HasSubstr("uint8 has no 300, of row 0"));
  EXPECT_TRUE(FromRows(result.rows, {}, {}, Dtype::kUint16).ok());
  EXPECT_EQ(
      ToRows(ArrayOf(Dtype::kInt32, {{{1, 300}}}), {}, {.num_experts = 512}, 0, {.max_bytes = 10})
          .status()
          .code(),
      absl::StatusCode::kResourceExhausted);
}

TEST(Conventions, LeastExpertsCountsNothingButRoutes) {
  const RoutingArray array = ArrayOf(Dtype::kUint8, {{{99, 3}, {4, 5}}, {{98, 3}, {255, 255}}});
  const Model second = {.moe_layers = {1}};
  EXPECT_EQ(LeastExperts(array, {}, {}), 256);
  EXPECT_EQ(LeastExperts(array, {.sentinel = Sentinel::k255}, {}), 100);
  EXPECT_EQ(
      LeastExperts(array, {.layers = LayerAxis::kAllLayers, .sentinel = Sentinel::k255}, second),
      6);
  EXPECT_EQ(LeastExperts(ArrayOf(Dtype::kUint8, {{{0, 0, 0}}}), {}, {}), 3);
}

// Random rows, conventions and dtypes: what is written is read again.
TEST(Conventions, RandomRowsComeBack) {
  TestRandom random;
  int done = 0;
  for (int round = 0; round < 400; ++round) {
    const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % n); };
    Rows rows;
    rows.shape.num_experts =
        static_cast<std::int32_t>(below(2) == 0 ? 2 + below(255) : 2 + below(60000));
    rows.shape.top_k =
        static_cast<std::int32_t>(std::min<std::int64_t>(2 + below(7), rows.shape.num_experts));
    rows.shape.num_layers = static_cast<std::int32_t>(1 + below(6));
    Model model = {.num_experts = rows.shape.num_experts, .num_layers = 20};
    std::int32_t id = -1;
    for (int layer = 0; layer < rows.shape.num_layers; ++layer) {
      id += static_cast<std::int32_t>(1 + below(3));
      model.moe_layers.push_back(id);
    }
    rows.shape.layer_ids = model.moe_layers;
    rows.first = below(1000);
    const std::int64_t count = 1 + below(20);
    const Conventions conventions = {.rows = static_cast<RowCount>(below(2)),
                                     .layers = static_cast<LayerAxis>(below(2)),
                                     .sentinel = static_cast<Sentinel>(1 + below(4))};
    std::vector<std::int32_t> experts(static_cast<std::size_t>(rows.shape.num_experts));
    std::iota(experts.begin(), experts.end(), 0);
    for (std::int64_t i = 0; i < count; ++i) {
      const bool valid = below(4) != 0;
      RowInfo info;
      info.reason = valid ? Reason::kNone : Reason::kNeverWritten;
      rows.infos.push_back(info);
      for (int layer = 0; layer < rows.shape.num_layers; ++layer) {
        for (int k = 0; k < rows.shape.top_k; ++k) {
          const auto other = static_cast<std::size_t>(k + below(rows.shape.num_experts - k));
          std::swap(experts[static_cast<std::size_t>(k)], experts[other]);
          const std::int32_t expert = valid ? experts[static_cast<std::size_t>(k)] : 0;
          rows.ids.push_back(static_cast<std::uint8_t>(expert));
          if (rows.shape.id_bytes() == 2)
            rows.ids.push_back(static_cast<std::uint8_t>(expert >> 8));
        }
      }
    }
    const Dtype dtype = static_cast<Dtype>(below(kNumDtypes));
    const auto array = FromRows(rows, conventions, model, dtype);
    if (!array.ok()) {
      EXPECT_THAT(array.status().message(), HasSubstr(" has no "));
      continue;
    }
    ++done;
    EXPECT_EQ(array->array.rows, count + (conventions.rows == RowCount::kTokens ? 1 : 0));
    const auto back = ToRows(array->array, conventions, model, *array->array.first).value();
    EXPECT_EQ(back.rows.shape, rows.shape);
    EXPECT_EQ(back.rows.first, rows.first);
    for (std::size_t i = 0; i < rows.infos.size(); ++i)
      EXPECT_EQ(back.rows.infos[i], OfAnArray(rows.infos[i])) << i;
    EXPECT_EQ(back.rows.ids, rows.ids);
  }
  EXPECT_GT(done, 100);
}

}  // namespace
}  // namespace waymark::formats
