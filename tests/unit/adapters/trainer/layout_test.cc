// RowPlan against lists that are cut token by token. Layouts by hand are in
// tests/python/adapters/test_trainer.py.
#include "adapters/trainer/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/blockstore/test_seed.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

using Places = std::vector<TokenPlace>;
using Lengths = std::vector<std::int64_t>;

constexpr TokenPlace kPadding = {};

Places PlacesOf(const RowPlan& plan) {
  Places places(static_cast<std::size_t>(plan.rows()), TokenPlace{77, 77});
  plan.Places(places);
  return places;
}

Places PlacesOf(const TrainerLayout& layout, const Lengths& lengths, const Lengths& padded = {}) {
  const absl::StatusOr<RowPlan> plan = RowPlan::Make(layout, lengths, padded);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? PlacesOf(*plan) : Places();
}

// ---- the reference: lists, and cuts of lists ----

template <class T>
std::vector<T> Part(const std::vector<T>& list, std::size_t part, std::size_t parts) {
  EXPECT_EQ(list.size() % parts, 0u);
  const std::size_t size = list.size() / parts;
  return {list.begin() + static_cast<std::ptrdiff_t>(part * size),
          list.begin() + static_cast<std::ptrdiff_t>((part + 1) * size)};
}

template <class T>
std::vector<T> OfContextRank(const TrainerLayout& layout, const std::vector<T>& list) {
  const auto rank = static_cast<std::size_t>(layout.context_rank);
  const auto size = static_cast<std::size_t>(layout.context_size);
  if (size == 1) return list;
  if (layout.context_cut != ContextCut::kZigzag) return Part(list, rank, size);
  std::vector<T> both = Part(list, rank, 2 * size);
  for (const T& item : Part(list, 2 * size - 1 - rank, 2 * size))
    both.push_back(item);
  return both;
}

void Pad(Places& list, std::int64_t multiple) {
  while (static_cast<std::int64_t>(list.size()) % multiple != 0)
    list.push_back(kPadding);
}

// The tokens of a sequence, padded.
Places Sequence(std::size_t sequence, const Lengths& lengths, const Lengths& padded) {
  Places list;
  for (std::int64_t p = 0; p < padded[sequence]; ++p) {
    list.push_back(p < lengths[sequence] ? TokenPlace{static_cast<std::int32_t>(sequence), p}
                                         : kPadding);
  }
  return list;
}

Places Reference(const TrainerLayout& layout, const Lengths& lengths, const Lengths& padded) {
  const auto tensor_rank = static_cast<std::size_t>(layout.tensor_rank);
  const std::size_t tensor_size =
      layout.sequence_parallel ? static_cast<std::size_t>(layout.tensor_size) : 1;
  const std::size_t own = layout.sequence_parallel ? tensor_rank : 0;
  if (layout.order == TokenOrder::kPacked) {
    std::vector<Places> sequences;
    std::int64_t total = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      sequences.push_back(Sequence(i, lengths, padded));
      total += padded[i];
    }
    for (; total % layout.total_multiple != 0; ++total)
      sequences.back().push_back(kPadding);
    Places rows;
    if (layout.context_cut == ContextCut::kStream) {
      Places all;
      for (const Places& sequence : sequences)
        all.insert(all.end(), sequence.begin(), sequence.end());
      rows = OfContextRank(layout, all);
    } else {
      for (const Places& sequence : sequences) {
        const Places part = OfContextRank(layout, sequence);
        rows.insert(rows.end(), part.begin(), part.end());
      }
    }
    Pad(rows, layout.local_multiple);
    return Part(rows, own, tensor_size);
  }
  std::vector<Places> batch;  // of this rank: [B][S]
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    batch.push_back(Part(OfContextRank(layout, Sequence(i, lengths, padded)), own, tensor_size));
  }
  Places rows;
  if (layout.order == TokenOrder::kBatchMajor) {
    for (const Places& sequence : batch)
      rows.insert(rows.end(), sequence.begin(), sequence.end());
    return rows;
  }
  for (std::size_t s = 0; s < batch.front().size(); ++s) {
    for (const Places& sequence : batch)
      rows.push_back(sequence[s]);
  }
  return rows;
}

TEST(RowPlan, NoTokensNoRows) {
  EXPECT_TRUE(PlacesOf({}, {}).empty());
  EXPECT_TRUE(PlacesOf({.order = TokenOrder::kSequenceMajor}, {}).empty());
  EXPECT_TRUE(PlacesOf({}, {0, 0}).empty());
}

// ---- random ----

struct Case {
  TrainerLayout layout;
  Lengths lengths;
  Lengths padded;
  bool given = false;  // whether the padded lengths are given
};

Case RandomCase(std::mt19937_64& random) {
  const auto below = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  Case c;
  TrainerLayout& layout = c.layout;
  layout.order = static_cast<TokenOrder>(below(3));
  const bool packed = layout.order == TokenOrder::kPacked;
  layout.context_cut = static_cast<ContextCut>(below(packed ? 3 : 2));
  layout.context_size = static_cast<std::int32_t>(1 + below(4));
  layout.tensor_size = static_cast<std::int32_t>(1 + below(4));
  layout.sequence_parallel = below(3) != 0;
  const std::int64_t sequences = 1 + below(5);
  const std::int64_t unit = 2 * layout.context_size * layout.tensor_size;
  layout.sequence_multiple =
      below(4) == 0 && packed && layout.context_size == 1 && !layout.sequence_parallel
          ? 1 + below(7)
          : unit * (1 + below(2));
  if (packed && below(2) == 0) layout.total_multiple = unit * (1 + below(4));
  if (packed && below(2) == 0) layout.local_multiple = layout.tensor_size * (1 + below(5));
  for (std::int64_t i = 0; i < sequences; ++i)
    c.lengths.push_back(below(4) == 0 ? below(3) : below(60));
  c.given = below(3) == 0;
  const std::int64_t m = layout.sequence_multiple;
  std::int64_t longest = 0;
  for (const std::int64_t length : c.lengths) {
    c.padded.push_back((length + m - 1) / m * m + (c.given ? m * below(3) : 0));
    longest = std::max(longest, c.padded.back());
  }
  if (!packed) std::fill(c.padded.begin(), c.padded.end(), longest);
  return c;
}

TEST(RowPlan, EveryRankHasWhatCutListsHave) {
  const std::uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int n = 0; n < 3000; ++n) {
    Case c = RandomCase(random);
    const std::string where = "seed " + std::to_string(seed) + ", case " + std::to_string(n);
    std::vector<int> seen;  // how many ranks have a token: all tensor ranks, or one
    std::int64_t tokens = 0;
    std::vector<std::int64_t> starts;
    for (const std::int64_t length : c.lengths) {
      starts.push_back(tokens);
      tokens += length;
    }
    seen.assign(static_cast<std::size_t>(tokens), 0);
    for (c.layout.context_rank = 0; c.layout.context_rank < c.layout.context_size;
         ++c.layout.context_rank) {
      for (c.layout.tensor_rank = 0; c.layout.tensor_rank < c.layout.tensor_size;
           ++c.layout.tensor_rank) {
        const absl::StatusOr<RowPlan> plan =
            RowPlan::Make(c.layout, c.lengths, c.given ? c.padded : Lengths());
        ASSERT_TRUE(plan.ok()) << plan.status() << ", " << where;
        const Places places = PlacesOf(*plan);
        ASSERT_EQ(places, Reference(c.layout, c.lengths, c.padded)) << where;
        for (std::size_t row = 0; row < places.size(); ++row) {
          const TokenPlace& place = places[row];
          if (place == kPadding) continue;
          ++seen[static_cast<std::size_t>(starts[static_cast<std::size_t>(place.sequence)] +
                                          place.position)];
        }
        TokenPlace next{0, 0};  // segments are in order, and name only tokens
        for (const RowSegment& segment : plan->segments()) {
          ASSERT_GE(segment.sequence, next.sequence) << where;
          if (segment.sequence != next.sequence) next = {segment.sequence, 0};
          ASSERT_GE(segment.position, next.position) << where;
          ASSERT_GE(segment.count, 1);
          next.position = segment.position + segment.count;
          ASSERT_LE(next.position, plan->length(segment.sequence)) << where;
        }
      }
    }
    const int wanted = c.layout.sequence_parallel ? 1 : c.layout.tensor_size;
    ASSERT_EQ(std::count(seen.begin(), seen.end(), wanted),
              static_cast<std::ptrdiff_t>(seen.size()))
        << where;
  }
}

// ---- refused ----

std::string Refusal(const TrainerLayout& layout, const Lengths& lengths,
                    const Lengths& padded = {}) {
  const absl::StatusOr<RowPlan> plan = RowPlan::Make(layout, lengths, padded);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(plan.status().message());
}

TEST(RowPlan, RefusesWhatCannotBeCutAndNamesIt) {
  EXPECT_EQ(
      Refusal({.context_size = 2}, {8, 6}),
      "lengths[1], padded: must be a multiple of 4 to be cut between the context ranks, got 6");
  EXPECT_THAT(Refusal({.context_cut = ContextCut::kStream, .context_size = 2}, {8, 5}),
              HasSubstr("the padded micro-batch: must be a multiple of 2"));
  EXPECT_THAT(Refusal({.order = TokenOrder::kBatchMajor, .context_size = 2}, {8, 10}),
              HasSubstr("the padded length: must be a multiple of 4"));
  EXPECT_THAT(Refusal({.tensor_size = 2, .sequence_parallel = true}, {3}),
              HasSubstr("rows of a context rank: must be a multiple of layout.tensor_size = 2"));
  EXPECT_THAT(
      Refusal({.order = TokenOrder::kSequenceMajor, .tensor_size = 2, .sequence_parallel = true},
              {3, 3}),
      HasSubstr("positions of a context rank"));
}

TEST(RowPlan, RefusesLayoutsAndLengthsThatAreNone) {
  EXPECT_THAT(Refusal({.context_size = 0}, {1}), HasSubstr("layout.context_size"));
  EXPECT_THAT(Refusal({.context_size = 2, .context_rank = 2}, {4}),
              HasSubstr("layout.context_rank: must be in [0, 2), got 2"));
  EXPECT_THAT(Refusal({.tensor_rank = 1}, {1}), HasSubstr("layout.tensor_rank"));
  EXPECT_THAT(Refusal({.sequence_multiple = 0}, {1}), HasSubstr("layout.sequence_multiple"));
  EXPECT_THAT(Refusal({.order = static_cast<TokenOrder>(3)}, {1}), HasSubstr("layout.order"));
  EXPECT_THAT(Refusal({.context_cut = static_cast<ContextCut>(3)}, {1}),
              HasSubstr("layout.context_cut"));
  EXPECT_THAT(Refusal({.order = TokenOrder::kBatchMajor, .context_cut = ContextCut::kStream}, {1}),
              HasSubstr("kStream"));
  EXPECT_THAT(Refusal({.order = TokenOrder::kBatchMajor, .local_multiple = 2}, {1}),
              HasSubstr("local_multiple"));
  EXPECT_THAT(Refusal({}, {1, -1}), HasSubstr("lengths[1]"));
  EXPECT_THAT(Refusal({}, {4, 4}, {4}), HasSubstr("padded_lengths: must be empty or one of each"));
  EXPECT_THAT(Refusal({}, {4, 4}, {4, 3}), HasSubstr("padded_lengths[1]"));
  EXPECT_THAT(Refusal({.order = TokenOrder::kBatchMajor}, {4, 4}, {4, 5}),
              HasSubstr("must be equal unless packed, got 4 and 5"));
  EXPECT_THAT(Refusal({}, {2147483647, 2147483647}), HasSubstr("fewer than 2^31 tokens"));
  EXPECT_THAT(Refusal({.order = TokenOrder::kBatchMajor}, {2147483647, 1}),
              HasSubstr("fewer than 2^31 rows"));
}

}  // namespace
}  // namespace waymark
