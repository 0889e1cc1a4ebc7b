// What went wrong in routing kernels that others published, one test each: the letters are those of
// the project's list of hazards. Not here:
//   d  a pointer inserted in the middle of a struct shifted the fields behind it: our structs are
//      compiled with their callers. What must not move are the methods' numbers: see MethodNumbers.
//   w  rows lost to preemption and asynchronous scheduling: the capture session's, and tested
//   there. x  a ring's slot used again before it was read: likewise, the transports'. y  tuning
//   launches that write the buffer: nothing here tunes or launches on its own. z  physical against
//   logical ids under load balancing: ids are the columns of the logits, so
//      logical; whoever maps them does so behind.
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "kernels/routing_policy.h"
#include "tests/unit/kernels/guarded_buffer.h"
#include "tests/unit/kernels/routing_inputs.h"
#include "tests/unit/kernels/routing_oracle.h"
#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class RoutingHazard : public RoutingSuite {};

Problem TieFree(RoutingMethod method, std::int64_t rows, std::int32_t experts, std::int32_t top_k,
                std::uint64_t salt) {
  std::mt19937_64 random = RoutingRandom(600 + salt);
  return MakeProblem(method, experts, top_k,
                     std::vector<Family>(static_cast<std::size_t>(rows), Family::kTieFree), random);
}

// A merge lost the stores of every method but two, and callers read memory that nobody had written.
// Each variant records each row. (RoutingCells checks that the ids are right.)
TEST_F(RoutingHazard, A_NoVariantForgetsToRecord) {
  for (const MethodInfo& method : AllMethods()) {
    for (const std::int32_t tier : routing::Tiers::kAll) {
      for (const DType logits : kLogitTypes) {
        for (const DType weights : kWeightTypes) {
          Problem problem =
              TieFree(method.id, 3, tier * routing::kQuadExperts, std::min(8, method.max_k), 0);
          problem.logit_type = logits;
          problem.weight_type = weights;
          for (const auto& backend : RoutingBackends()) {
            const RouteResult result = RunOn(*backend, problem);
            ASSERT_EQ(std::vector<std::int16_t>(result.ids.begin(), result.ids.end()),
                      result.recorded)
                << backend->name() << ": " << problem.ToString();
          }
        }
      }
    }
  }
}

// Of several kernels, chosen by the number of tokens, only that for many recorded.
TEST_F(RoutingHazard, B_EveryNumberOfTokensIsRecorded) {
  for (const MethodInfo& method : AllMethods()) {
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 16, 17, 32, 256, 257, 1024, 1025}) {
      for (const std::int32_t experts : {16, 256}) {
        ExpectRight(TieFree(method.id, rows, experts, std::min(4, method.max_k), 1),
                    rows <= 32 ? Slow::kToo : Slow::kSpared);
        if (HasFailure()) return;
      }
    }
  }
}

// Tests compared sorted ids, or sets, so that an order could be lost unseen. Ours see it.
TEST_F(RoutingHazard, C_TheOrderIsCompared) {
  const Problem problem = TieFree(RoutingMethod::kRenormalize, 1, 64, 8, 2);
  const std::vector<float> keys = KeysOf(problem);
  RouteResult result = RunReference(problem);
  EXPECT_EQ(Judge(problem, keys, result), "");
  std::swap(result.ids[3], result.ids[4]);
  std::swap(result.weights[3], result.weights[4]);
  std::swap(result.recorded[3], result.recorded[4]);
  EXPECT_NE(Judge(problem, keys, result), "");
  result = RunReference(problem);
  std::swap(result.recorded[0], result.recorded[7]);
  EXPECT_NE(Judge(problem, keys, result), "");
}

// Five launchers did not look at the type of the record: int32 memory was filled with int16.
TEST_F(RoutingHazard, E_ARecordOfAnotherTypeIsRefused) {
  std::vector<std::int64_t> memory(1024, -1);
  const std::vector<std::int64_t> before = memory;
  std::vector<float> logits(4 * 16);
  for (const DType type : {DType::kInt32, DType::kInt64, DType::kUint8, DType::kFloat16}) {
    RoutingTensors tensors;
    tensors.logits = Tensor::Matrix(logits.data(), DType::kFloat32, 4, 16);
    tensors.topk_ids = Tensor::Matrix(memory.data(), DType::kInt32, 4, 2);
    tensors.topk_weights = Tensor::Matrix(memory.data() + 256, DType::kFloat32, 4, 2);
    tensors.replay_out = Tensor::Matrix(memory.data() + 512, type, 4, 2);
    for (const auto& backend : RoutingBackends()) {
      const RoutingCode code = backend->Route({RoutingMethod::kTopK, 2}, tensors);
      EXPECT_EQ(code.argument, RoutingArgument::kReplayOut);
      EXPECT_EQ(code.rule, RoutingRule::kDType);
      EXPECT_TRUE(memory == before);
    }
  }
}

// Entry points took the tensor and dropped it. What a call does not use, it refuses.
TEST_F(RoutingHazard, F_NothingIsTakenAndDropped) {
  std::vector<float> memory(1024);
  RoutingTensors tensors;
  tensors.logits = Tensor::Matrix(memory.data(), DType::kFloat32, 4, 16);
  tensors.topk_ids = Tensor::Matrix(memory.data() + 256, DType::kInt32, 4, 2);
  tensors.topk_weights = Tensor::Matrix(memory.data() + 512, DType::kFloat32, 4, 2);
  for (const auto& backend : RoutingBackends()) {
    RoutingTensors more = tensors;
    more.bias = Tensor::Vector(memory.data() + 768, DType::kFloat32, 16);
    EXPECT_EQ(backend->Route({RoutingMethod::kTopK, 2}, more).argument, RoutingArgument::kBias);
    more = tensors;
    more.routed = Tensor::Vector(memory.data() + 768, DType::kUint8, 4);
    EXPECT_EQ(backend->Route({RoutingMethod::kTopK, 2}, more).argument, RoutingArgument::kRouted);
    RoutingConfig config{RoutingMethod::kTopK, 2};
    config.scale = 2.0f;
    EXPECT_EQ(backend->Route(config, tensors).argument, RoutingArgument::kScale);
  }
}

// With ids given, the record was checked and never written. Here it has them all.
TEST_F(RoutingHazard, G_ReplayedRowsAreRecordedToo) {
  std::mt19937_64 random = RoutingRandom(607);
  for (const MethodInfo& method : AllMethods()) {
    Problem problem = TieFree(method.id, 9, 256, std::min(8, method.max_k), 7);
    for (std::int64_t row = 0; row < problem.rows; ++row)
      AppendReplayRow(row % 3 == 0, 256, problem.config.top_k, random, problem.replay);
    const RouteResult result = ExpectRight(problem);
    EXPECT_EQ(std::vector<std::int16_t>(result.ids.begin(), result.ids.end()), result.recorded);
  }
}

// A buffer with fewer rows than tokens was written beyond its end.
TEST_F(RoutingHazard, H_ARecordWithTooFewRowsIsRefused) {
  const std::int64_t rows = 5;
  std::vector<float> logits(rows * 16);
  const GuardedBuffer record((rows - 1) * 2 * sizeof(std::int16_t));
  std::vector<std::int32_t> ids(rows * 2, -7);
  std::vector<float> weights(rows * 2);
  RoutingTensors tensors;
  tensors.logits = Tensor::Matrix(logits.data(), DType::kFloat32, rows, 16);
  tensors.topk_ids = Tensor::Matrix(ids.data(), DType::kInt32, rows, 2);
  tensors.topk_weights = Tensor::Matrix(weights.data(), DType::kFloat32, rows, 2);
  tensors.replay_out = Tensor::Matrix(record.data(), DType::kInt16, rows - 1, 2);
  for (const auto& backend : RoutingBackends()) {
    const RoutingCode code = backend->Route({RoutingMethod::kTopK, 2}, tensors);
    EXPECT_EQ(code.ToString(), "replay_out must have 5 rows or more, got 4");
    EXPECT_EQ(std::count(ids.begin(), ids.end(), -7), 10);
  }
}

// A view with gaps was written as if it had none, over what lay in them.
TEST_F(RoutingHazard, I_StridedViewsAreRespected) {
  for (const MethodInfo& method : AllMethods()) {
    const Problem problem = TieFree(method.id, 7, 96, std::min(8, method.max_k), 9);
    ExpectEverywhere(RunReference(problem), problem, Layout{5, 2, false});
  }
}

// With S shared experts the ids lie in rows of K + S, and the record was indexed so, too. Here each
// tensor has its own stride, and K columns.
TEST_F(RoutingHazard, J_TheRecordHasAStrideOfItsOwn) {
  constexpr std::int64_t kRows = 4, kTopK = 8, kShared = 2;
  const Problem problem = TieFree(RoutingMethod::kDeepSeekV3, kRows, 64, kTopK, 10);
  const RouteResult wanted = RunReference(problem);
  for (const auto& backend : RoutingBackends()) {
    SCOPED_TRACE(backend->name());
    std::vector<std::int32_t> ids(kRows * (kTopK + kShared), -7);
    std::vector<float> weights(kRows * (kTopK + kShared), -7.0f);
    std::vector<std::int16_t> record(kRows * kTopK, -7);
    RoutingTensors tensors;
    tensors.logits = Tensor::Matrix(problem.logits.data(), DType::kFloat32, kRows, 64);
    tensors.topk_ids = Tensor::Matrix(ids.data(), DType::kInt32, kRows, kTopK, MemoryDevice::Host(),
                                      kTopK + kShared);
    tensors.topk_weights = Tensor::Matrix(weights.data(), DType::kFloat32, kRows, kTopK,
                                          MemoryDevice::Host(), kTopK + kShared);
    tensors.replay_out = Tensor::Matrix(record.data(), DType::kInt16, kRows, kTopK);
    ASSERT_TRUE(backend->Route(problem.config, tensors).ok());
    EXPECT_EQ(record, wanted.recorded);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::size_t row = i / (kTopK + kShared), column = i % (kTopK + kShared);
      EXPECT_EQ(ids[i], column < kTopK ? wanted.ids[row * kTopK + column] : -7);
      EXPECT_EQ(weights[i], column < kTopK ? wanted.Weight(row * kTopK + column) : -7.0f);
    }
    tensors.replay_out = Tensor::Matrix(record.data(), DType::kInt16, 3, kTopK + kShared);
    EXPECT_EQ(backend->Route(problem.config, tensors).rule, RoutingRule::kRows);
    tensors.replay_out.shape[0] = kRows;
    tensors.replay_out.stride[0] = 0;
    EXPECT_EQ(backend->Route(problem.config, tensors).rule, RoutingRule::kColumns);
  }
}

// Token times experts, as an int32, is negative from 2^31 on. Two rows that far apart; the memory
// between them is never touched, and mostly not there. A backend that copies would copy it all.
TEST_F(RoutingHazard, K_OffsetsBeyond32Bits) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 64;  // elements
  const Problem problem = TieFree(RoutingMethod::kRenormalize, 2, 64, 8, 11);
  const RouteResult wanted = RunReference(problem);
  struct Sparse {
    explicit Sparse(std::size_t size)
        : bytes(size),
          memory(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
    ~Sparse() { munmap(memory, bytes); }
    Sparse(const Sparse&) = delete;
    Sparse& operator=(const Sparse&) = delete;
    std::size_t bytes;
    void* memory;
  };
  const auto size = [](DType type) {
    return static_cast<std::size_t>(kFar + 64) * DTypeBytes(type);
  };
  const Sparse logits(size(DType::kFloat32)), ids(size(DType::kInt32)),
      weights(size(DType::kFloat32)), record(size(DType::kInt16)), replay(size(DType::kInt16)),
      routed(64);
  for (const Sparse* each : {&logits, &ids, &weights, &record, &replay, &routed}) {
    if (each->memory == MAP_FAILED) GTEST_SKIP() << "no room for sparse memory";
  }
  std::copy_n(problem.logits.data(), 64, static_cast<float*>(logits.memory));
  std::copy_n(problem.logits.data() + 64, 64, static_cast<float*>(logits.memory) + kFar);
  std::copy_n(wanted.recorded.data(), 8, static_cast<std::int16_t*>(replay.memory));
  std::copy_n(wanted.recorded.data() + 8, 8, static_cast<std::int16_t*>(replay.memory) + kFar);
  RoutingTensors tensors;
  const auto far = [](const Sparse& sparse, DType type, std::int64_t columns) {
    return Tensor::Matrix(sparse.memory, type, 2, columns, MemoryDevice::Host(), kFar);
  };
  tensors.logits = far(logits, DType::kFloat32, 64);
  tensors.topk_ids = far(ids, DType::kInt32, 8);
  tensors.topk_weights = far(weights, DType::kFloat32, 8);
  tensors.replay_out = far(record, DType::kInt16, 8);
  for (const auto& backend : RoutingBackends()) {
    if (backend->copies()) continue;
    SCOPED_TRACE(backend->name());
    for (const bool replayed : {false, true}) {
      tensors.replay_in = replayed ? far(replay, DType::kInt16, 8) : Tensor{};
      tensors.routed = replayed ? Tensor::Vector(routed.memory, DType::kUint8, 2) : Tensor{};
      for (const std::int64_t at : {std::int64_t{0}, kFar}) {
        std::fill_n(static_cast<std::int32_t*>(ids.memory) + at, 8, -7);
        std::fill_n(static_cast<float*>(weights.memory) + at, 8, -7.0f);
        std::fill_n(static_cast<std::int16_t*>(record.memory) + at, 8, std::int16_t{-7});
      }
      ASSERT_TRUE(backend->Route(problem.config, tensors).ok());
      for (std::int64_t i = 0; i < 16; ++i) {
        const std::int64_t at = i / 8 * kFar + i % 8;
        const auto flat = static_cast<std::size_t>(i);
        ASSERT_EQ(static_cast<std::int32_t*>(ids.memory)[at], wanted.ids[flat]);
        ASSERT_EQ(static_cast<std::uint32_t*>(weights.memory)[at], wanted.weights[flat]);
        ASSERT_EQ(static_cast<std::int16_t*>(record.memory)[at], wanted.recorded[flat]);
      }
    }
  }
}

// Slots behind the last expert were filled with ids of E and more, and a row with too few finite
// keys selected those, or one expert twice.
TEST_F(RoutingHazard, L_PaddingIsNeverSelected) {
  std::mt19937_64 random = RoutingRandom(612);
  for (const MethodInfo& method : AllMethods()) {
    for (const std::int32_t experts : {1, 2, 5, 31, 33, 100, 127, 129, 257, 1000, 1023}) {
      for (const std::int32_t k : TopKs(method, experts)) {
        const Problem problem =
            MakeProblem(method.id, experts, k,
                        {Family::kAllMinus, Family::kAllNaN, Family::kFewFinite}, random);
        const RouteResult result = ExpectRight(problem);
        for (std::size_t begin = 0; begin < result.ids.size();
             begin += static_cast<std::size_t>(k)) {
          const auto row = result.ids.begin() + static_cast<std::ptrdiff_t>(begin);
          const std::set<std::int32_t> ids(row, row + k);
          ASSERT_EQ(ids.size(), static_cast<std::size_t>(k)) << problem.ToString();
          ASSERT_LT(*ids.rbegin(), experts) << problem.ToString();
          ASSERT_GE(*ids.begin(), 0) << problem.ToString();
        }
      }
    }
  }
}

// From nine groups on, or five kept, a kernel ran out of warps and arrays, and nothing refused it.
TEST_F(RoutingHazard, M_ManyGroups) {
  std::mt19937_64 random = RoutingRandom(613);
  for (const std::int32_t groups : {8, 9, 10, 12, 16, 24, 31, 32}) {
    for (const std::int32_t kept : {1, 4, 5, 7, groups - 1, groups}) {
      const std::int32_t experts = groups * 20;
      Problem problem = MakeProblem(
          RoutingMethod::kDeepSeekV3, experts, 8,
          {Family::kTieFree, Family::kQuantised, Family::kNormal, Family::kSomeNaN}, random);
      problem.config.num_groups = groups;
      problem.config.topk_groups = std::min(kept, groups);
      ExpectRight(problem);
    }
  }
}

// A group of one has no second key; counted as -inf it made every group worth -inf.
TEST_F(RoutingHazard, N_GroupsOfOne) {
  Problem problem = TieFree(RoutingMethod::kDeepSeekV3, 8, 32, 8, 14);
  const RouteResult plain = RunReference(problem);
  problem.config.num_groups = 32;
  problem.config.topk_groups = 8;
  ExpectEverywhere(plain, problem);
}

// With one group, more than 128 experts and K below 8, a second stage read candidates that nobody
// had written.
TEST_F(RoutingHazard, O_OneGroupAndManyExperts) {
  std::mt19937_64 random = RoutingRandom(615);
  for (const std::int32_t experts : {129, 160, 256, 384, 512, 1024}) {
    for (std::int32_t k = 1; k < 8; ++k) {
      ExpectRight(MakeProblem(RoutingMethod::kDeepSeekV3, experts, k,
                              {Family::kNegative, Family::kTieFree, Family::kHighBest}, random));
    }
  }
}

// Groups that hold exactly K experts were refused, and one group with K = 8 as well.
TEST_F(RoutingHazard, P_ExactlyEnoughExpertsAreEnough) {
  ExpectRight(TieFree(RoutingMethod::kDeepSeekV3, 4, 256, 8, 16));
  Problem problem = TieFree(RoutingMethod::kDeepSeekV3, 4, 64, 8, 16);
  problem.config.num_groups = 16;
  problem.config.topk_groups = 2;  // 2 groups of 4
  ExpectRight(problem);
}

// Ids over 255 lost their high byte on the way; and one was read behind the last.
TEST_F(RoutingHazard, Q_IdsOver255AreWhole) {
  std::mt19937_64 random = RoutingRandom(617);
  for (const MethodInfo& method : AllMethods()) {
    for (const std::int32_t experts : {257, 384, 512, 896, 1024}) {
      Problem problem = MakeProblem(method.id, experts, std::min(8, method.max_k),
                                    {Family::kHighBest, Family::kTieFree}, random);
      for (float& x : problem.logits)
        x *= 0.125f;  // up to 4: sigmoids that are told apart
      const RouteResult result = ExpectRight(problem);
      EXPECT_EQ(result.ids[0], experts - 1);
      EXPECT_EQ(result.recorded[0], experts - 1);
      problem.replay = result.recorded;
      EXPECT_EQ(ExpectRight(problem).ids, result.ids);
    }
  }
}

// 0 / 0: sigmoids that are all zero, a softmax over nothing.
TEST_F(RoutingHazard, R_NoWeightIsNaN) {
  for (const MethodInfo& method : AllMethods()) {
    for (const float x : {-kInf, kInf, kNaN, -200.0f, -3e38f, 3e38f, 0.0f}) {
      for (const float other : {-kInf, kInf, kNaN, -200.0f, 0.0f}) {
        Problem problem;
        problem.config = {method.id, std::min(4, method.max_k)};
        problem.rows = 1;
        problem.experts = 8;
        problem.logits = {x, x, x, x, x, x, other, other};
        for (const bool normalize : {true, false}) {
          if (!normalize && method.id != RoutingMethod::kSigmoidRenorm) continue;
          problem.config.normalize = normalize;
          const RouteResult result = ExpectRight(problem);
          for (std::size_t i = 0; i < result.weights.size(); ++i)
            EXPECT_FALSE(std::isnan(result.Weight(i))) << problem.ToString() << x << other;
        }
      }
    }
  }
}

// A float32 bias was read as bfloat16, bfloat16 logits as float32; and rows without a logit above
// zero gave nonsense.
TEST_F(RoutingHazard, S_TypesAreReadAsWhatTheyAre) {
  std::mt19937_64 random = RoutingRandom(619);
  for (const MethodInfo& method : AllMethods()) {
    Problem problem = MakeProblem(method.id, 160, std::min(8, method.max_k),
                                  {Family::kNegative, Family::kTieFree}, random);
    const RouteResult wide = RunReference(problem);  // the numbers are exact in every type
    for (const DType type : kLogitTypes) {
      problem.logit_type = type;
      const RouteResult result = ExpectRight(problem);
      EXPECT_EQ(result.ids, wide.ids);
      EXPECT_EQ(result.weights, wide.weights);
    }
  }
  std::vector<float> memory(1024);
  RoutingTensors tensors;
  tensors.logits = Tensor::Matrix(memory.data(), DType::kFloat32, 4, 16);
  tensors.bias = Tensor::Vector(memory.data() + 128, DType::kBfloat16, 16);
  tensors.topk_ids = Tensor::Matrix(memory.data() + 256, DType::kInt32, 4, 2);
  tensors.topk_weights = Tensor::Matrix(memory.data() + 512, DType::kFloat32, 4, 2);
  for (const auto& backend : RoutingBackends()) {
    EXPECT_EQ(backend->Route({RoutingMethod::kMiniMax2, 2}, tensors).ToString(),
              "bias has a type that it must not have: bfloat16");
  }
}

// A bias between 7 and 12 was rounded to bfloat16 before it was added, which made hundreds of
// different numbers a handful, and nearly every token's experts others.
TEST_F(RoutingHazard, T_TheBiasIsNotRounded) {
  std::mt19937_64 random = RoutingRandom(620);
  for (const RoutingMethod method : {RoutingMethod::kDeepSeekV3, RoutingMethod::kMiniMax2}) {
    for (const DType type : kLogitTypes) {
      Problem problem =
          MakeProblem(method, 256, 8, std::vector<Family>(64, Family::kTieFree), random);
      for (float& x : problem.logits)
        x *= 0x1p-6f;  // sigmoids that differ by about as much as the bias does
      problem.logit_type = type;
      problem.bias = MakeBias(BiasFamily::kOffset, 256, random);
      const RouteResult result = ExpectRight(problem);
      // The example is one: with the bias rounded, most rows would be others.
      std::int64_t others = 0;
      Problem rounded = problem;
      for (float& b : rounded.bias)
        b = Rounded(DType::kBfloat16, b);
      const RouteResult wrong = RunReference(rounded);
      for (std::int64_t row = 0; row < problem.rows; ++row) {
        others += !std::equal(result.ids.begin() + row * 8, result.ids.begin() + (row + 1) * 8,
                              wrong.ids.begin() + row * 8);
      }
      EXPECT_GT(others, problem.rows / 2);
    }
  }
}

// Rows that only fill a graph up hold anything. They are written like others, with ids that can be
// used, and change nothing beside them.
TEST_F(RoutingHazard, U_PaddingRowsAreHarmless) {
  std::mt19937_64 random = RoutingRandom(621);
  for (const MethodInfo& method : AllMethods()) {
    std::vector<Family> families = {Family::kAllNaN, Family::kSomeNaN, Family::kInfinities,
                                    Family::kAllMinus, Family::kAllPlus};
    families.resize(13, Family::kNormal);
    Problem problem = MakeProblem(method.id, 128, std::min(8, method.max_k), families, random);
    for (std::int32_t e = 0; e < 128; ++e)  // and a row of bits that were something else
      problem.logits.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    ++problem.rows;
    const RouteResult result = ExpectRight(problem);
    const RouteResult without = RunReference(problem.Rows({5, 6, 7, 8, 9, 10, 11, 12}));
    const auto before = 5 * static_cast<std::ptrdiff_t>(problem.config.top_k);
    EXPECT_TRUE(std::equal(without.ids.begin(), without.ids.end(), result.ids.begin() + before));
    EXPECT_TRUE(std::equal(without.weights.begin(), without.weights.end(),
                           result.weights.begin() + before));
    for (const std::int32_t id : result.ids) {
      EXPECT_GE(id, 0);
      EXPECT_LT(id, 128);
    }
  }
}

// Ranks that gather their tokens gave a buffer of one rank's rows all ranks' tokens. Too few rows
// are refused (H); a rank's part of a larger buffer is a view, and only that is written.
TEST_F(RoutingHazard, V_PartsOfALargerBuffer) {
  constexpr std::int64_t kRanks = 3, kRows = 5, kTopK = 8;
  const Problem problem = TieFree(RoutingMethod::kMiniMax2, kRanks * kRows, 64, kTopK, 22);
  const RouteResult wanted = RunReference(problem);
  for (const auto& backend : RoutingBackends()) {
    SCOPED_TRACE(backend->name());
    std::vector<std::int32_t> ids(kRanks * kRows * kTopK, -7);
    std::vector<float> weights(kRanks * kRows * kTopK, -7.0f);
    std::vector<std::int16_t> record(kRanks * kRows * kTopK, -7);
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      const std::int64_t first = rank * kRows * kTopK;
      RoutingTensors tensors;
      tensors.logits =
          Tensor::Matrix(problem.logits.data() + rank * kRows * 64, DType::kFloat32, kRows, 64);
      tensors.topk_ids = Tensor::Matrix(ids.data() + first, DType::kInt32, kRows, kTopK);
      tensors.topk_weights = Tensor::Matrix(weights.data() + first, DType::kFloat32, kRows, kTopK);
      tensors.replay_out = Tensor::Matrix(record.data() + first, DType::kInt16, kRows, kTopK);
      ASSERT_TRUE(backend->Route(problem.config, tensors).ok());
      EXPECT_EQ(std::count(record.begin() + first + kRows * kTopK, record.end(), -7),
                (kRanks - rank - 1) * kRows * kTopK);
    }
    EXPECT_EQ(ids, wanted.ids);
    EXPECT_EQ(record, wanted.recorded);
  }
}

// Numbers of methods went up by one when another was put in front of the last. Ours are given.
TEST_F(RoutingHazard, MethodNumbers) {
  const struct {
    int number;
    const char* name;
  } methods[] = {{0, "Default"}, {1, "Renormalize"}, {2, "RenormalizeNaive"}, {3, "DeepSeekV3"},
                 {4, "Llama4"},  {5, "TopK"},        {6, "SigmoidRenorm"},    {7, "MiniMax2"},
                 {8, "Sigmoid"}, {9, "TopKSigmoid"}};
  for (const auto& method : methods)
    EXPECT_STREQ(RoutingMethodName(static_cast<RoutingMethod>(method.number)), method.name);
}

}  // namespace
}  // namespace waymark::kernels
