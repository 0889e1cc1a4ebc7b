// Packed rows become tensors: against a loop, and the kernel of a device, by emulated blocks,
// against its host twin.
#include "adapters/trainer/expand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/gather_kernel.h"
#include "tests/support/emulated_block.h"
#include "tests/unit/blockstore/test_seed.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

constexpr IdType kTypes[] = {IdType::kUint8, IdType::kUint16, IdType::kInt16, IdType::kInt32,
                             IdType::kInt64};

struct Case {
  PackedTensors tensors;
  std::vector<std::uint8_t> packed, mask, ids;

  void Point() {
    tensors.packed = packed;
    tensors.mask = mask;
    tensors.ids = ids;
  }
};

Case Draw(std::mt19937_64& random) {
  Case drawn;
  PackedTensors& tensors = drawn.tensors;
  tensors.num_experts = random() % 2 == 0 ? 200 : 3000;
  tensors.num_layers = static_cast<std::int32_t>(1 + random() % 9);
  tensors.top_k = static_cast<std::int32_t>(1 + random() % 12);
  tensors.rows = static_cast<std::int64_t>(random() % (random() % 8 == 0 ? 1200 : 90));
  do {
    tensors.id_type = kTypes[random() % 5];
  } while (tensors.id_type == IdType::kUint8 && tensors.num_experts > 256);
  tensors.fill = static_cast<Fill>(random() % 3);
  const auto ids = static_cast<std::size_t>(tensors.rows * tensors.num_layers * tensors.top_k);
  const std::size_t stored = IdBytes(StoredIdType(tensors.num_experts));
  drawn.packed.resize(ids * stored);
  for (std::size_t i = 0; i < ids; ++i) {
    const auto id =
        static_cast<std::uint16_t>(random() % static_cast<std::uint64_t>(tensors.num_experts));
    std::memcpy(drawn.packed.data() + i * stored, &id, stored);
  }
  drawn.mask.resize(static_cast<std::size_t>(tensors.rows));
  for (std::uint8_t& flag : drawn.mask)
    flag = random() % 5 == 0 ? 0 : static_cast<std::uint8_t>(1 + random() % 255);
  drawn.ids.resize(ids * IdBytes(tensors.id_type), 0x5a);
  drawn.Point();
  return drawn;
}

// What the tensors must be, an id at a time.
std::vector<std::uint8_t> Expected(const PackedTensors& of) {
  std::vector<std::uint8_t> all;
  const std::size_t stored = IdBytes(StoredIdType(of.num_experts));
  for (std::int32_t layer = 0; layer < of.num_layers; ++layer) {
    for (std::int64_t row = 0; row < of.rows; ++row) {
      for (std::int32_t k = 0; k < of.top_k; ++k) {
        std::uint64_t id = 0;
        if (of.mask[static_cast<std::size_t>(row)] != 0) {
          const auto at = static_cast<std::size_t>((row * of.num_layers + layer) * of.top_k + k);
          std::memcpy(&id, of.packed.data() + at * stored, stored);
        } else if (of.fill == Fill::kArange) {
          id = static_cast<std::uint64_t>(k);
        } else if (of.fill == Fill::kMinusOne) {
          id = ~std::uint64_t{0};
        }
        const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&id);
        all.insert(all.end(), bytes, bytes + IdBytes(of.id_type));
      }
    }
  }
  return all;
}

TEST(Expand, OnTheHostIsALoop) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 400; ++round) {
    Case drawn = Draw(random);
    ASSERT_TRUE(CheckExpand(drawn.tensors).ok());
    ExpandOnHost(drawn.tensors);
    ASSERT_EQ(drawn.ids, Expected(drawn.tensors)) << "round " << round;
  }
}

TEST(Expand, OnADeviceIsTheHosts) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 150; ++round) {
    Case drawn = Draw(random);
    if (drawn.tensors.rows == 0) continue;
    const kernels::CudaGather gather = GatherOf(drawn.tensors);
    ASSERT_TRUE(kernels::device::CheckGather(gather));
    const kernels::device::GatherPlan plan = kernels::device::PlanGather(gather);
    kernels::device::VisitGather(plan, [&]<class Packed, class Out>() {
      kernels::RunBlocks(plan.blocks, kernels::device::kThreads, plan.shared_bytes, random,
                         [&](const kernels::EmulatedBlock& block, std::uint8_t* shared) {
                           kernels::device::GatherTile<Packed, Out>(block, plan, shared);
                         });
    });
    ASSERT_EQ(drawn.ids, Expected(drawn.tensors)) << "round " << round;
  }
}

// Regression: they went on to the routers.
TEST(Expand, IdsThatAreNoExpertsAreRefused) {
  for (const std::int32_t experts : {200, 300}) {
    PackedTensors tensors;
    tensors.num_layers = 2;
    tensors.top_k = 4;
    tensors.num_experts = experts;
    tensors.rows = 3;
    const std::size_t bytes = experts <= 256 ? 1 : 2;
    std::vector<std::uint8_t> packed(3 * 2 * 4 * bytes);
    const auto put = [&](std::size_t at, std::int32_t id) {
      std::memcpy(packed.data() + at * bytes, &id, bytes);
    };
    std::vector<std::uint8_t> mask = {1, 0, 1};
    tensors.packed = packed;
    tensors.mask = mask;
    put(0, experts - 1);
    put(8, experts);  // its row gets the fill
    EXPECT_TRUE(CheckExpandIds(tensors).ok());
    put(23, experts);
    EXPECT_THAT(CheckExpandIds(tensors).ToString(),
                HasSubstr("packed: ids must be below " + std::to_string(experts) + ", got " +
                          std::to_string(experts) + " in row 2"));
    mask[2] = 0;
    EXPECT_TRUE(CheckExpandIds(tensors).ok());
  }
}

TEST(Expand, WhatDoesNotFitIsRefused) {
  std::mt19937_64 random(TestSeed());
  Case drawn = Draw(random);
  drawn.tensors.num_experts = 300;
  drawn.tensors.num_layers = 2;
  drawn.tensors.top_k = 4;
  drawn.tensors.rows = 3;
  drawn.tensors.id_type = IdType::kInt32;
  drawn.packed.resize(3 * 2 * 4 * 2);
  drawn.mask.resize(3);
  drawn.ids.resize(3 * 2 * 4 * 4);
  drawn.Point();
  const auto refused = [&](auto&& change, const char* text) {
    PackedTensors tensors = drawn.tensors;
    ASSERT_TRUE(CheckExpand(tensors).ok());
    change(tensors);
    EXPECT_THAT(CheckExpand(tensors).ToString(), HasSubstr(text));
  };
  refused([](auto& t) { t.num_layers = 0; }, "num_layers");
  refused([](auto& t) { t.top_k = 65; }, "top_k");
  refused([](auto& t) { t.num_experts = 0; }, "num_experts");
  refused([](auto& t) { t.rows = -1; }, "rows: must be in [0, 2147483647], got -1");
  refused([](auto& t) { t.rows = 4; }, "packed: must be 64 bytes, got 48");
  refused([](auto& t) { t.mask = t.mask.first(2); }, "mask: must be 3 bytes, one a row, got 2");
  refused([](auto& t) { t.ids = t.ids.first(95); }, "ids: must be 96 bytes, got 95");
  refused(
      [](auto& t) {
        t.id_type = IdType::kUint8;
        t.ids = t.ids.first(24);
      },
      "id_type: must hold ids up to 299");
  drawn.tensors.num_experts = 256;
  drawn.packed.resize(3 * 2 * 4);
  drawn.Point();
  refused(
      [](auto& t) {
        t.id_type = IdType::kUint8;
        t.ids = t.ids.first(24);
        t.fill = Fill::kMinusOne;
      },
      "fill: must not be minus_one in uint8, where it is 255, an expert of 256");
}

}  // namespace
}  // namespace waymark
