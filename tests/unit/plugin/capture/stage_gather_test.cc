// GatherLayers among ranks that are threads: what every rank gets, what each is told when one of
// them has a problem, and that nobody is left waiting.
#include "plugin/capture/stage_gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "blockstore/digest.h"
#include "tests/unit/blockstore/test_seed.h"

namespace waymark {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A process group in one process. A rank that leaves fails the calls that wait for it, as a real
// group's timeout does.
class Group {
 public:
  explicit Group(std::size_t ranks) : arrived_(ranks, nullptr) {}

  struct Member {
    Group* group = nullptr;
    std::int32_t rank = 0;
    std::vector<std::size_t> sizes = {};  // of its calls
    // What becomes of all that this rank receives in its call-th call.
    std::function<void(std::size_t call, std::uint8_t* bytes, std::size_t size)> spoil = {};
    std::int32_t answer = 0;     // instead of taking part,
    std::size_t fails_at = ~0u;  // in this call
  };
  static std::int32_t AllGather(void* context, const void* send, void* receive, std::size_t bytes) {
    Member& member = *static_cast<Member*>(context);
    const std::size_t call = member.sizes.size();
    member.sizes.push_back(bytes);
    if (call == member.fails_at) return member.answer;
    Group& group = *member.group;
    if (!group.Exchange(static_cast<std::size_t>(member.rank), send, receive, bytes)) return 4;
    if (member.spoil) {
      member.spoil(call, static_cast<std::uint8_t*>(receive), bytes * group.arrived_.size());
    }
    return 0;
  }

  // A rank calls no more.
  void Leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_ = true;
    turn_.notify_all();
  }

 private:
  bool Exchange(std::size_t rank, const void* send, void* receive, std::size_t bytes) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (count_ == 0) bytes_ = bytes;
    if (bytes != bytes_) return false;
    arrived_[rank] = send;
    const std::uint64_t round = round_;
    if (++count_ == arrived_.size()) {
      count_ = 0;
      gathered_.clear();
      for (const void* from : arrived_) {
        const auto* const begin = static_cast<const std::uint8_t*>(from);
        gathered_.insert(gathered_.end(), begin, begin + bytes);
      }
      ++round_;
      turn_.notify_all();
    } else {
      turn_.wait(lock, [&] { return round_ != round || left_; });
      if (round_ == round) return false;
    }
    std::memcpy(receive, gathered_.data(), gathered_.size());
    return true;
  }

  std::mutex mutex_;
  std::condition_variable turn_;
  std::vector<const void*> arrived_;
  std::vector<std::uint8_t> gathered_;
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
  std::uint64_t round_ = 0;
  bool left_ = false;
};

// All ranks call GatherLayers; what each got. `with`: what is odd about a rank's collective.
struct Outcome {
  std::vector<absl::StatusOr<Rows>> results;
  std::vector<std::vector<std::size_t>> sizes;  // bytes of the calls of each rank
};
Outcome GatherAll(const std::vector<Rows>& stages,
                  const std::function<void(Group::Member&)>& with = {}) {
  Group group(stages.size());
  Outcome outcome;
  outcome.results.assign(stages.size(), absl::UnknownError("not called"));
  outcome.sizes.resize(stages.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < stages.size(); ++rank) {
    threads.emplace_back([&, rank] {
      Group::Member member;
      member.group = &group;
      member.rank = static_cast<std::int32_t>(rank);
      if (with) with(member);
      const auto ranks = static_cast<std::int32_t>(stages.size());
      outcome.results[rank] = GatherLayers(
          stages[rank], {static_cast<std::int32_t>(rank), ranks, &Group::AllGather, &member});
      group.Leave();
      outcome.sizes[rank] = member.sizes;
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  return outcome;
}

// Rows of one stage: ids drawn, one row in five missing, steps and versions that all stages share
// (drawn from `shared`).
Rows Stage(std::mt19937_64& random, std::uint64_t shared, std::int32_t layers,
           std::vector<std::int32_t> layer_ids = {}, std::int64_t first = 7,
           std::size_t count = 40) {
  Rows rows;
  rows.shape = {.num_layers = layers,
                .top_k = 2,
                .num_experts = 300,
                .page_tokens = 4,
                .layer_ids = std::move(layer_ids)};
  rows.first = first;
  rows.ordered = random() % 4 != 0;
  rows.infos.resize(count);
  rows.ids.resize(count * rows.shape.row_bytes());
  std::mt19937_64 common(shared);
  for (std::size_t i = 0; i < count; ++i) {
    RowInfo& info = rows.infos[i];
    const std::uint64_t step = common() | 1;
    const std::uint64_t version = common();
    if (random() % 5 == 0) {
      info.reason = static_cast<Reason>(1 + random() % (kNumReasons - 1));
      continue;
    }
    info = {step, version, Reason::kNone, static_cast<Provenance>(random() % kNumProvenances)};
    for (std::size_t j = 0; j < rows.shape.row_ids(); ++j) {
      rows.ids[i * rows.shape.row_bytes() + 2 * j] = static_cast<std::uint8_t>(random());
    }
  }
  return rows;
}

bool Same(const Rows& a, const Rows& b) {
  return a.first == b.first && a.infos == b.infos && a.ids == b.ids && a.shape == b.shape &&
         a.ordered == b.ordered;
}

absl::StatusOr<Rows> Joined(const std::vector<Rows>& stages) {
  std::vector<const Rows*> pointers;
  for (const Rows& stage : stages)
    pointers.push_back(&stage);
  return JoinLayers(pointers);
}

// `result` is an error of this code whose message has all of `texts`.
void ExpectError(const absl::StatusOr<Rows>& result, absl::StatusCode code,
                 const std::vector<std::string>& texts) {
  EXPECT_EQ(result.status().code(), code) << result.status();
  for (const std::string& text : texts)
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(text));
}

class StageGather : public testing::Test {
 protected:
  std::uint64_t seed_ = TestSeed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, "WAYMARK_SEED=" + std::to_string(seed_)};
  std::mt19937_64 random_{seed_};
  // Three good stages, of 2, 1 and 3 layers.
  std::vector<Rows> Stages() {
    return {Stage(random_, seed_, 2), Stage(random_, seed_, 1), Stage(random_, seed_, 3)};
  }
};

TEST_F(StageGather, EveryRankGetsTheJoinOfAll) {
  for (int round = 0; round < 50; ++round) {
    const std::size_t ranks = 1 + random_() % 5;
    const std::size_t count = random_() % 3 == 0 ? 0 : random_() % 100;
    const bool named = random_() % 2 == 0;
    std::vector<Rows> stages;
    std::int32_t id = 3;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto layers = static_cast<std::int32_t>(1 + random_() % 4);
      std::vector<std::int32_t> ids;
      for (std::int32_t layer = 0; named && layer < layers; ++layer)
        ids.push_back(id += static_cast<std::int32_t>(1 + random_() % 3));
      stages.push_back(Stage(random_, seed_, layers, ids, 11, count));
      stages.back().shape.page_tokens = static_cast<std::int32_t>(4 << rank);
    }
    const absl::StatusOr<Rows> expected = Joined(stages);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const Outcome outcome = GatherAll(stages);
    for (const absl::StatusOr<Rows>& result : outcome.results) {
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(Same(*result, *expected)) << "round " << round;
    }
  }
}

TEST_F(StageGather, OneRankNeedsNoCollective) {
  const std::vector<Rows> stages = {Stage(random_, seed_, 2)};
  const absl::StatusOr<Rows> gathered = GatherLayers(stages[0], Collective{});
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  EXPECT_TRUE(Same(*gathered, stages[0]));
}

TEST_F(StageGather, ExchangesRowsAndEighteenBytesEach) {
  const Outcome outcome =
      GatherAll({Stage(random_, seed_, 1), Stage(random_, seed_, 4), Stage(random_, seed_, 2)});
  const std::size_t largest = 40 * (4 * 2 * 2 + 18);
  for (const std::vector<std::size_t>& sizes : outcome.sizes) {
    EXPECT_THAT(sizes, testing::ElementsAre(88, 88, largest));
  }
}

TEST_F(StageGather, RowsOfUnequalStepsOrThatARankMissesAreMissing) {
  std::vector<Rows> stages = Stages();
  for (Rows& stage : stages) {
    for (std::size_t i = 0; i < 3; ++i)
      stage.infos[i] = {9, 1, Reason::kNone, Provenance::kHere};
  }
  stages[1].infos[0].step = 8;
  stages[2].infos[1] = {0, 0, Reason::kCapacity, Provenance::kHere};
  for (const absl::StatusOr<Rows>& result : GatherAll(stages).results) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->infos[0].reason, Reason::kNotCaptured);
    EXPECT_EQ(result->infos[1].reason, Reason::kCapacity);
    EXPECT_TRUE(result->infos[2].valid());
  }
}

TEST_F(StageGather, ARankThatCannotTakePartKeepsNobodyWaiting) {
  const auto bad_id_count = [](Rows& rows) { rows.ids.pop_back(); };
  const auto nothing = [](Rows& rows) { rows = Rows{}; };
  const auto bad_reason = [](Rows& rows) { rows.infos[4].reason = static_cast<Reason>(7); };
  const std::pair<std::function<void(Rows&)>, const char*> problems[] = {
      {bad_id_count, "stage.ids must hold"},
      {nothing, "stage.shape.num_layers must be in"},
      {bad_reason, "stage.infos[4]: reason must be below 7"}};
  for (const auto& [problem, text] : problems) {
    for (std::size_t bad = 0; bad < 3; ++bad) {
      std::vector<Rows> stages = Stages();
      problem(stages[bad]);
      const Outcome outcome = GatherAll(stages);
      for (std::size_t rank = 0; rank < 3; ++rank) {
        EXPECT_THAT(outcome.sizes[rank], testing::ElementsAre(88, 88));
        if (rank == bad) {
          ExpectError(outcome.results[rank], absl::StatusCode::kInvalidArgument, {text});
        } else {
          ExpectError(outcome.results[rank], absl::StatusCode::kAborted,
                      {"rank " + std::to_string(bad) + " could not take part: INVALID_ARGUMENT"});
        }
      }
    }
  }
}

TEST_F(StageGather, RanksThatContradictOneAnotherAreNamedOnEveryRank) {
  const auto contradicts = [&](const std::function<void(Rows&)>& change, const char* text) {
    std::vector<Rows> stages = Stages();
    change(stages[2]);
    for (const absl::StatusOr<Rows>& result : GatherAll(stages).results) {
      ExpectError(result, absl::StatusCode::kInvalidArgument, {text});
    }
  };
  contradicts([](Rows& rows) { rows.first = 8; }, "rank 2: first must be 7, as on rank 0; it is 8");
  contradicts([&](Rows& rows) { rows = Stage(random_, seed_, 3, {}, 7, 39); },
              "rank 2: rows must be 40, as on rank 0; it is 39");
  contradicts(
      [](Rows& rows) {
        rows.shape.top_k = 1;
        rows.shape.num_layers = 6;
      },
      "rank 2: top_k must be 2, as on rank 0; it is 1");
  contradicts([](Rows& rows) { rows.shape.num_experts = 301; },
              "rank 2: num_experts must be 300, as on rank 0; it is 301");
  contradicts([](Rows& rows) { rows.shape.layer_ids = {2, 3, 4}; }, "stages[2].shape.layer_ids[0]");
}

TEST_F(StageGather, RefusesACollectiveThatIsNone) {
  const Rows stage = Stage(random_, seed_, 2);
  const auto refused = [&](const Collective& collective, const char* text) {
    ExpectError(GatherLayers(stage, collective), absl::StatusCode::kInvalidArgument, {text});
  };
  refused({0, 0}, "collective.ranks must be in [1, 4096]; it is 0");
  refused({0, 4097}, "collective.ranks must be in [1, 4096]; it is 4097");
  refused({2, 2}, "collective.rank must be in [0, 2); it is 2");
  refused({-1, 2}, "collective.rank must be in [0, 2); it is -1");
  refused({0, 2}, "collective.all_gather must not be null");
}

TEST_F(StageGather, RanksThatStandInAnothersPlaceAreNamed) {
  Group group(2);
  const std::vector<Rows> stages = {Stage(random_, seed_, 2), Stage(random_, seed_, 1)};
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Group::Member member;
      member.group = &group;
      member.rank = rank;
      ExpectError(GatherLayers(stages[static_cast<std::size_t>(rank)],
                               {1 - rank, 2, &Group::AllGather, &member}),
                  absl::StatusCode::kInvalidArgument,
                  {"rank 0: collective.rank and collective.ranks there must be 0 and 2; they are 1 "
                   "and 2"});
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

TEST_F(StageGather, TheCollectivesOwnAnswerComesBack) {
  const char* const names[] = {"headers", "answers", "payloads"};
  for (std::size_t call = 0; call < 3; ++call) {
    const std::vector<Rows> stages = Stages();
    const Outcome outcome = GatherAll(stages, [&](Group::Member& member) {
      member.fails_at = call;
      member.answer = member.rank == 0 ? -3 : member.rank == 1 ? 14 : 99;
    });
    for (std::size_t rank = 0; rank < 3; ++rank) {
      const auto code = rank == 1 ? absl::StatusCode::kUnavailable : absl::StatusCode::kUnknown;
      ExpectError(outcome.results[rank], code,
                  {std::string("collective.all_gather of the ") + names[call] + ": answered " +
                   (rank == 0   ? "-3"
                    : rank == 1 ? "14"
                                : "99")});
    }
  }
}

// Headers that were made so, digest and all: no length in them is believed.
TEST_F(StageGather, HeadersThatLieAreRefused) {
  constexpr std::size_t kBytes = 88;
  constexpr std::size_t kCount = 56;
  constexpr std::size_t kSize = 64;
  constexpr std::size_t kCheck = 80;
  const auto set = [](std::uint8_t* header, std::size_t field, auto value) {
    std::memcpy(header + field, &value, sizeof(value));
    const std::uint64_t check = RowDigest({header, kCheck});
    std::memcpy(header + kCheck, &check, sizeof(check));
  };
  const std::vector<Rows> stages = Stages();
  const auto gather = [&](const std::function<void(std::size_t, std::uint8_t*)>& lie) {
    return GatherAll(stages, [&](Group::Member& member) {
      member.spoil = [&](std::size_t call, std::uint8_t* headers, std::size_t) {
        for (std::size_t rank = 0; call == 0 && rank < 3; ++rank)
          lie(rank, headers + rank * kBytes);
      };
    });
  };
  const std::int64_t values[] = {0, 1, -1, 39, 41, 1 << 20, 0x7fffffff, INT64_MAX, INT64_MIN};
  for (const std::size_t field : {24, 28, 32, 40, 48, 56, 64}) {
    for (const std::int64_t value : values) {
      if (field == 40 && value == 0) continue;  // as it is
      const Outcome outcome = gather([&](std::size_t rank, std::uint8_t* header) {
        if (rank != 1) return;
        if (field < 40) {
          set(header, field, static_cast<std::int32_t>(value));
        } else {
          set(header, field, value);
        }
      });
      for (std::size_t rank = 0; rank < 3; ++rank) {
        if (field == 24 && value == 1) continue;  // as it is
        EXPECT_FALSE(outcome.results[rank].ok()) << "field " << field << ", value " << value;
        EXPECT_EQ(outcome.sizes[rank].size(), 2u) << "field " << field << ", value " << value;
      }
    }
  }
  // All agree, on more than anybody has memory for.
  const Outcome outcome = gather([&](std::size_t rank, std::uint8_t* header) {
    set(header, kCount, std::int64_t{0x7fffffff});
    set(header, kSize, std::uint64_t{0x7fffffff} * (18 + stages[rank].shape.row_bytes()));
  });
  for (const absl::StatusOr<Rows>& result : outcome.results) {
    ExpectError(result, absl::StatusCode::kResourceExhausted,
                {"payloads of 3 ranks must be at most 68719476736 bytes in all; the largest is"});
  }
}

// Bits of what one rank sends are turned over on their way: to all ranks alike, or to one of them.
// Whoever gets rows gets the right ones, and nobody waits for ever.
TEST_F(StageGather, CorruptedBytesNeverGiveOtherRows) {
  for (int round = 0; round < 600; ++round) {
    const std::vector<Rows> stages = Stages();
    const absl::StatusOr<Rows> expected = Joined(stages);
    ASSERT_TRUE(expected.ok());
    const std::size_t call = round % 3;
    const std::size_t from = random_() % 3;
    const bool everywhere = random_() % 2 == 0;
    const auto victim = static_cast<std::int32_t>(random_() % 3);
    const std::uint64_t flips = random_();
    const Outcome outcome = GatherAll(stages, [&](Group::Member& member) {
      if (!everywhere && member.rank != victim) return;
      member.spoil = [=](std::size_t at, std::uint8_t* bytes, std::size_t size) {
        if (at != call) return;
        // Of a payload only what the rank has: the padding is nobody's.
        const std::size_t part = size / 3;
        const std::size_t own = call < 2 ? part : 40 * (18 + stages[from].shape.row_bytes());
        std::mt19937_64 random(flips);
        const std::size_t first = random() % own;  // and no other flip undoes it
        bytes[from * part + first] ^= static_cast<std::uint8_t>(1 + random() % 255);
        for (std::uint64_t i = 0, n = random() % 8; i < n; ++i) {
          const std::size_t byte = random() % own;
          if (byte != first) bytes[from * part + byte] ^= static_cast<std::uint8_t>(random());
        }
      };
    });
    for (std::int32_t rank = 0; rank < 3; ++rank) {
      const absl::StatusOr<Rows>& result = outcome.results[static_cast<std::size_t>(rank)];
      const bool hit = everywhere || rank == victim;
      if (result.ok()) {
        EXPECT_TRUE(Same(*result, *expected)) << "round " << round << ", rank " << rank;
        EXPECT_FALSE(hit) << "round " << round << ", rank " << rank << ", call " << call;
        continue;
      }
      if (hit) {
        ExpectError(result, absl::StatusCode::kDataLoss,
                    {"rank " + std::to_string(from) + ": its"});
      } else if (call == 0) {
        ExpectError(result, absl::StatusCode::kAborted,
                    {"rank " + std::to_string(victim) + " could not take part: DATA_LOSS"});
      } else {
        // The answers came to the victim alone as nonsense: it went, and the group's timeout ends
        // it for the others.
        EXPECT_EQ(call, 1u);
        ExpectError(result, absl::StatusCode::kDeadlineExceeded, {"payloads: answered 4"});
      }
    }
  }
}

}  // namespace
}  // namespace waymark
