// What went wrong in routing kernels that others published: the letters are those of the project's
// list of hazards. Most are held down by tests that are there for more:
//   a  only some variants recorded: RoutingCells judges the record of each variant
//   b  only some numbers of tokens were recorded: RoutingOutputs.AnyNumberOfRows
//   e  the type of the record was not looked at: RoutingCheck.EveryTensorHasItsType
//   f  tensors were taken and dropped: RoutingCheck.WhatMeansNothingIsRefused
//   g  with ids given, nothing was recorded: RoutingReplay judges the record of replayed rows
//   h  a record with too few rows was written beyond its end: RoutingCheck.EveryTensorHasItsShape
//   i  views with gaps were written as if they had none: RoutingOutputs.HoweverTensorsLie
//   l  padding behind the last expert was selected, or an expert twice: RoutingFamilies
//   m  from nine groups on arrays were too small: RoutingGroups.EveryNumberOfGroups
//   n  a group of one was worth -inf: RoutingGroups.OfAGroupOfOneTheKeyIsTheScore
//   j  the record was indexed by the stride of the ids: RoutingOutputs.HoweverTensorsLie
//   o  one group, many experts and K < 8: RoutingCells
//   p  groups of exactly K experts were refused: RoutingCheck.NumbersAreInTheirRange, and
//      RoutingGroups.EveryNumberOfGroups
//   q  ids over 255 lost their high byte: RoutingCells, and RoutingReplay
//   r  0 / 0, where all sigmoids are zero: RoutingFamilies
//   s  types were read as others: RoutingCells, and RoutingCheck.EveryTensorHasItsType
//   u  rows that only fill a graph up, of any bits: RoutingFamilies, and RoutingOutputs for the
//      rows beside them
//   v  a rank's part of a larger buffer: RunOn looks at all that a call must not write
// Those that are left have a test here. Not in this suite:
//   d  a pointer inserted in the middle of a struct shifted the fields behind it: our structs are
//      compiled with their callers. What must not move are the methods' numbers: see MethodNumbers.
//   w  rows lost to preemption and asynchronous scheduling: the capture session's, and tested
//      there. x  a ring's slot used again before it was read: likewise, the transports'. y  tuning
//      launches that write the buffer: nothing here tunes or launches on its own. z  physical
//      against logical ids under load balancing: ids are the columns of the logits, so logical;
//      whoever maps them does so behind.
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "tests/unit/kernels/routing_inputs.h"
#include "tests/unit/kernels/routing_oracle.h"
#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {
namespace {

class RoutingHazard : public RoutingSuite {};

Problem TieFree(RoutingMethod method, std::int64_t rows, std::int32_t experts, std::int32_t top_k,
                std::uint64_t salt) {
  std::mt19937_64 random = RoutingRandom(600 + salt);
  return MakeProblem(method, experts, top_k,
                     std::vector<Family>(static_cast<std::size_t>(rows), Family::kTieFree), random);
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

// Numbers of methods went up by one when another was put in front of the last. Ours are given.
TEST_F(RoutingHazard, MethodNumbers) {
  using enum RoutingMethod;
  int number = 0;
  for (const RoutingMethod method :
       {kDefault, kRenormalize, kRenormalizeNaive, kDeepSeekV3, kLlama4, kTopK, kSigmoidRenorm,
        kMiniMax2, kSigmoid, kTopKSigmoid}) {
    EXPECT_EQ(static_cast<int>(method), number++) << RoutingMethodName(method);
  }
}

}  // namespace
}  // namespace waymark::kernels
