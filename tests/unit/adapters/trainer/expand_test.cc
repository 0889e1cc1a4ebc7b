// Packed rows become tensors: the kernel of a device, by emulated blocks, against a loop.
#include "adapters/trainer/fill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/gather_kernel.h"
#include "tests/support/emulated_block.h"
#include "tests/support/test_seed.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

constexpr IdType kTypes[] = {IdType::kUint8, IdType::kUint16, IdType::kInt16, IdType::kInt32,
                             IdType::kInt64};

struct Case {
  RoutingShape shape;
  std::int64_t rows = 0;
  IdType id_type = IdType::kInt32;
  RouteFill fill = RouteFill::kSpread;
  std::vector<std::uint8_t> packed, mask, ids;

  absl::StatusOr<kernels::CudaGather> Gather() {
    return GatherOf(shape, rows, packed.data(), mask.data(), ids.data(), id_type, fill);
  }
};

Case Draw(std::mt19937_64& random) {
  Case drawn;
  RoutingShape& shape = drawn.shape;
  shape.num_experts = random() % 2 == 0 ? 200 : 3000;
  shape.num_layers = static_cast<std::int32_t>(1 + random() % 9);
  shape.top_k = static_cast<std::int32_t>(1 + random() % 12);
  drawn.rows = static_cast<std::int64_t>(1 + random() % (random() % 8 == 0 ? 1200 : 90));
  do {
    drawn.id_type = kTypes[random() % 5];
  } while (drawn.id_type == IdType::kUint8 && shape.num_experts > 256);
  drawn.fill = static_cast<RouteFill>(random() % 2);
  const auto ids = static_cast<std::size_t>(drawn.rows) * shape.row_ids();
  const std::size_t stored = shape.id_bytes();
  drawn.packed.resize(ids * stored);
  for (std::size_t i = 0; i < ids; ++i) {
    const auto id =
        static_cast<std::uint16_t>(random() % static_cast<std::uint64_t>(shape.num_experts));
    std::memcpy(drawn.packed.data() + i * stored, &id, stored);
  }
  drawn.mask.resize(static_cast<std::size_t>(drawn.rows));
  for (std::uint8_t& flag : drawn.mask)
    flag = random() % 5 == 0 ? 0 : static_cast<std::uint8_t>(1 + random() % 255);
  drawn.ids.resize(ids * IdBytes(drawn.id_type), 0x5a);
  return drawn;
}

// What the tensors must be, an id at a time.
std::vector<std::uint8_t> Expected(const Case& of) {
  std::vector<std::uint8_t> all;
  const std::size_t stored = of.shape.id_bytes();
  for (std::int32_t layer = 0; layer < of.shape.num_layers; ++layer) {
    for (std::int64_t row = 0; row < of.rows; ++row) {
      for (std::int32_t k = 0; k < of.shape.top_k; ++k) {
        std::uint64_t id = ~std::uint64_t{0};
        if (of.fill == RouteFill::kSpread || of.mask[static_cast<std::size_t>(row)] != 0) {
          id = 0;
          const auto at =
              static_cast<std::size_t>((row * of.shape.num_layers + layer) * of.shape.top_k + k);
          std::memcpy(&id, of.packed.data() + at * stored, stored);
        }
        const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&id);
        all.insert(all.end(), bytes, bytes + IdBytes(of.id_type));
      }
    }
  }
  return all;
}

TEST(Expand, OnADeviceIsALoop) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 150; ++round) {
    Case drawn = Draw(random);
    const kernels::CudaGather gather = drawn.Gather().value();
    ASSERT_TRUE(kernels::device::CheckGather(gather));
    const kernels::device::GatherPlan plan = kernels::device::PlanGather(gather);
    kernels::device::VisitGather(plan, [&]<class Packed, class Out>() {
      kernels::RunBlocks(plan.blocks, kernels::device::kThreads, plan.shared_bytes, random,
                         [&](const kernels::EmulatedBlock& block, std::uint8_t* shared) {
                           kernels::device::GatherTile<Packed, Out>(block, plan, shared);
                         });
    });
    ASSERT_EQ(drawn.ids, Expected(drawn)) << "round " << round;
  }
}

TEST(Expand, WhatDoesNotFitIsRefused) {
  const auto refusal = [](auto&& change) {
    Case of = {.shape = {.num_layers = 2, .top_k = 4, .num_experts = 300}, .rows = 3};
    EXPECT_TRUE(of.Gather().ok());
    change(of);
    return of.Gather().status().ToString();
  };
  EXPECT_THAT(refusal([](Case& c) { c.shape.num_layers = 0; }), HasSubstr("num_layers"));
  EXPECT_THAT(refusal([](Case& c) { c.shape.top_k = 65; }), HasSubstr("top_k"));
  EXPECT_THAT(refusal([](Case& c) { c.shape.num_experts = 0; }), HasSubstr("num_experts"));
  EXPECT_THAT(refusal([](Case& c) { c.rows = -1; }),
              HasSubstr("rows: must be in [0, 2147483647], got -1"));
  EXPECT_THAT(refusal([](Case& c) { c.id_type = IdType::kUint8; }),
              HasSubstr("id_type: must hold ids up to 299"));
  EXPECT_THAT(refusal([](Case& c) {
                c.shape.num_experts = 256;
                c.id_type = IdType::kUint8;
                c.fill = RouteFill::kMinusOne;
              }),
              HasSubstr("fill: must not be minus_one in uint8, where it is 255, an expert of 256"));
}

}  // namespace
}  // namespace waymark
