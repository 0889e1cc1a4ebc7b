// UnpackRows: every type and layout, and what becomes of missing rows; back and forth with
// PackRows.
#include "kernels/unpack_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/pack_rows.h"
#include "tests/unit/kernels/guarded_buffer.h"

namespace waymark::kernels {
namespace {

std::int64_t ReadId(const std::uint8_t* address, IdKind kind) {
  switch (kind) {
    case IdKind::kUint8:
      return *address;
    case IdKind::kUint16: {
      std::uint16_t id;
      std::memcpy(&id, address, sizeof(id));
      return id;
    }
    case IdKind::kInt16: {
      std::int16_t id;
      std::memcpy(&id, address, sizeof(id));
      return id;
    }
    case IdKind::kInt32: {
      std::int32_t id;
      std::memcpy(&id, address, sizeof(id));
      return id;
    }
    case IdKind::kInt64: {
      std::int64_t id;
      std::memcpy(&id, address, sizeof(id));
      return id;
    }
  }
  return 0;
}

TEST(UnpackRows, WritesEveryTypeAndLayoutAndFillsMissingRows) {
  for (const std::int32_t num_experts : {256, 300}) {
    const RowShape shape{3, 2, num_experts};
    constexpr std::int32_t kRows = 4;
    std::vector<std::vector<std::uint8_t>> packed;
    std::vector<const std::uint8_t*> inputs;
    for (std::int32_t row = 0; row < kRows; ++row) {
      packed.emplace_back(shape.row_bytes());
      for (std::size_t i = 0; i < shape.row_ids(); ++i) {
        const auto id = static_cast<std::uint16_t>((static_cast<std::size_t>(row) * 50 + i) % 127);
        std::memcpy(packed.back().data() + i * shape.id_bytes(), &id, shape.id_bytes());
      }
    }
    for (const auto& row : packed)
      inputs.push_back(row.data());
    inputs[2] = nullptr;
    for (int kind_number = 0; kind_number < 5; ++kind_number) {
      const auto kind = static_cast<IdKind>(kind_number);
      for (const bool layer_major : {false, true}) {
        for (const MissingFill fill :
             {MissingFill::kMinusOne, MissingFill::kZeros, MissingFill::kArange}) {
          SCOPED_TRACE(std::to_string(kind_number) + (layer_major ? " L" : " T") +
                       std::to_string(static_cast<int>(fill)));
          GuardedBuffer memory(kRows * shape.row_ids() * IdKindBytes(kind));
          const IdsView view = layer_major ? IdsView::LayerMajor(memory.data(), kind, kRows, shape)
                                           : IdsView::TokenMajor(memory.data(), kind, shape);
          UnpackRows(shape, inputs,
                     {memory.data(), kind, view.row_stride, view.layer_stride, view.k_stride},
                     fill);
          for (std::int32_t row = 0; row < kRows; ++row) {
            for (std::int32_t i = 0; i < 6; ++i) {
              const std::int64_t id = ReadId(memory.data() + row * view.row_stride +
                                                 i / 2 * view.layer_stride + i % 2 * view.k_stride,
                                             kind);
              std::int64_t expected = (row * 50 + i) % 127;
              if (row == 2) {
                expected = fill == MissingFill::kZeros ? 0 : i % 2;
                if (fill == MissingFill::kMinusOne) {
                  expected = kind == IdKind::kUint8 ? 255 : kind == IdKind::kUint16 ? 65535 : -1;
                }
              }
              EXPECT_EQ(id, expected) << "row " << row << ", id " << i;
            }
          }
        }
      }
    }
  }
}

TEST(UnpackRows, IsTheInverseOfPackRows) {
  for (const std::int32_t num_experts : {256, 4000}) {
    const RowShape shape{7, 5, num_experts};
    constexpr std::int32_t kRows = 37;
    std::vector<std::int32_t> ids(kRows * shape.row_ids());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>((i * 37 + i / 5) % static_cast<std::size_t>(num_experts));
    }
    const IdsView view = IdsView::LayerMajor(ids.data(), IdKind::kInt32, kRows, shape);
    std::vector<std::uint8_t> packed(kRows * shape.row_bytes());
    std::vector<std::uint8_t*> rows;
    for (std::size_t row = 0; row < kRows; ++row) {
      rows.push_back(packed.data() + row * shape.row_bytes());
    }
    std::vector<RowVerdict> verdicts(kRows);
    ASSERT_EQ(PackRows(shape, view, rows, verdicts), 0u);
    std::vector<std::int32_t> back(ids.size());
    UnpackRows(shape, std::vector<const std::uint8_t*>(rows.begin(), rows.end()),
               {back.data(), view.kind, view.row_stride, view.layer_stride, view.k_stride},
               MissingFill::kZeros);
    EXPECT_EQ(back, ids);
  }
}

}  // namespace
}  // namespace waymark::kernels
