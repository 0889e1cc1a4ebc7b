// PackRows against a definition written down once more, on every instruction set this machine has.
#include "kernels/pack_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"
#include "tests/unit/kernels/guarded_buffer.h"
#include "tests/unit/kernels/test_ids.h"

namespace waymark::kernels {
namespace {

// Ids of [rows][layers][k] as numbers, -1 = not written.
using Ids = std::vector<std::vector<std::vector<std::int64_t>>>;

RowVerdict JudgeLayer(const RowShape& shape, const std::vector<std::int64_t>& ids) {
  const std::set<std::int64_t> distinct(ids.begin(), ids.end());
  if (distinct == std::set<std::int64_t>{-1}) return RowVerdict::kNotWritten;
  const bool right = distinct.size() == ids.size() && *distinct.begin() >= 0 &&
                     *distinct.rbegin() < shape.num_experts;
  return right ? RowVerdict::kOk : RowVerdict::kInvalidId;
}

// A tensor in guarded memory. Order of the axes from slowest to fastest, a gap after each run of
// the fastest axis, and the sign of the row stride are free.
struct Tensor {
  std::unique_ptr<GuardedBuffer> memory;
  IdsView view;
};

enum class Order { kTokenMajor, kLayerMajor, kKMajor };

Tensor MakeTensor(const RowShape& shape, const Ids& ids, IdKind kind, Order order,
                  std::ptrdiff_t gap, bool reversed_rows) {
  const auto rows = static_cast<std::ptrdiff_t>(ids.size());
  const auto bytes = static_cast<std::ptrdiff_t>(IdKindBytes(kind));
  const std::ptrdiff_t layers = shape.num_layers;
  const std::ptrdiff_t top_k = shape.top_k;
  Tensor tensor;
  IdsView& view = tensor.view;
  view.kind = kind;
  std::ptrdiff_t elements = 0;
  switch (order) {
    case Order::kTokenMajor:  // [row][layer][k + gap]
      view.k_stride = bytes;
      view.layer_stride = bytes * (top_k + gap);
      view.row_stride = view.layer_stride * layers;
      elements = rows * layers * (top_k + gap) - gap;
      break;
    case Order::kLayerMajor:  // [layer][row][k + gap]
      view.k_stride = bytes;
      view.row_stride = bytes * (top_k + gap);
      view.layer_stride = view.row_stride * rows;
      elements = rows * layers * (top_k + gap) - gap;
      break;
    case Order::kKMajor:  // [k][layer][row + gap]
      view.row_stride = bytes;
      view.layer_stride = bytes * (rows + gap);
      view.k_stride = view.layer_stride * layers;
      elements = top_k * layers * (rows + gap) - gap;
      break;
  }
  tensor.memory =
      std::make_unique<GuardedBuffer>(static_cast<std::size_t>(std::max(elements, bytes) * bytes));
  std::uint8_t* first = tensor.memory->data();
  if (reversed_rows && rows > 0) {
    first += view.row_stride * (rows - 1);
    view.row_stride = -view.row_stride;
  }
  view.data = first;
  for (std::ptrdiff_t row = 0; row < rows; ++row) {
    for (std::ptrdiff_t layer = 0; layer < layers; ++layer) {
      for (std::ptrdiff_t k = 0; k < top_k; ++k) {
        StoreId(first + row * view.row_stride + layer * view.layer_stride + k * view.k_stride, kind,
                ids[static_cast<std::size_t>(row)][static_cast<std::size_t>(layer)]
                   [static_cast<std::size_t>(k)]);
      }
    }
  }
  return tensor;
}

// Packs on every instruction set, each row at the end of readable memory, and compares with
// JudgeLayer, as CheckLayer is, layer by layer.
void ExpectPacked(const RowShape& shape, const Ids& ids, const IdsView& view,
                  const std::vector<bool>& wanted, const std::string& what) {
  std::vector<RowVerdict> expected(ids.size());
  std::size_t faulty = 0;
  for (std::size_t row = 0; row < ids.size(); ++row) {
    for (std::size_t layer = 0; layer < ids[row].size() && wanted[row]; ++layer) {
      const RowVerdict verdict = JudgeLayer(shape, ids[row][layer]);
      EXPECT_EQ(CheckLayer(shape, view, static_cast<std::ptrdiff_t>(row),
                           static_cast<std::int32_t>(layer)),
                verdict);
      if (expected[row] == RowVerdict::kOk) expected[row] = verdict;
    }
    faulty += expected[row] != RowVerdict::kOk;
  }
  for (const Isa isa : SupportedIsas()) {
    SCOPED_TRACE(what + ", " + IsaName(isa));
    // Two rows a buffer: the upper ends where memory ends, the lower where the upper begins.
    std::vector<std::unique_ptr<GuardedBuffer>> memory;
    std::vector<std::uint8_t*> destinations;
    for (std::size_t row = 0; row < ids.size(); ++row) {
      if (row % 2 == 0) {
        memory.push_back(std::make_unique<GuardedBuffer>(2 * shape.row_bytes() + 1));
        std::memset(memory.back()->data(), 0xa5, memory.back()->size());
      }
      std::uint8_t* at = memory.back()->data() + 1 + (row % 2) * shape.row_bytes();
      destinations.push_back(wanted[row] ? at : nullptr);
    }
    // A stale verdict must be overwritten, and one of an unwanted row must not.
    std::vector<RowVerdict> verdicts(ids.size(), static_cast<RowVerdict>(77));
    EXPECT_EQ(PackRows(shape, view, destinations, verdicts, isa), faulty);
    for (std::size_t row = 0; row < ids.size(); ++row) {
      const std::uint8_t* at = memory[row / 2]->data() + 1 + (row % 2) * shape.row_bytes();
      if (!wanted[row]) {
        EXPECT_EQ(static_cast<int>(verdicts[row]), 77) << "row " << row;
        EXPECT_EQ(std::count(at, at + shape.row_bytes(), 0xa5),
                  static_cast<std::ptrdiff_t>(shape.row_bytes()))
            << "row " << row;
        continue;
      }
      ASSERT_EQ(static_cast<int>(verdicts[row]), static_cast<int>(expected[row])) << "row " << row;
      if (expected[row] != RowVerdict::kOk) continue;
      std::size_t i = 0;
      for (const auto& layer : ids[row]) {
        for (const std::int64_t id : layer) {
          std::int64_t stored = 0;
          std::memcpy(&stored, at + i++ * shape.id_bytes(), shape.id_bytes());
          ASSERT_EQ(stored, id) << "row " << row << ", id " << i - 1;
        }
      }
    }
    for (const auto& buffer : memory)
      EXPECT_EQ(buffer->data()[0], 0xa5);
  }
}

Ids RandomIds(const RowShape& shape, IdKind kind, std::int32_t rows, double faults,
              std::mt19937_64& random) {
  std::int64_t last = shape.num_experts - 1;
  if (kind == IdKind::kUint8) last = std::min<std::int64_t>(last, 255);
  if (kind == IdKind::kInt16) last = std::min<std::int64_t>(last, 32767);
  Ids ids(static_cast<std::size_t>(rows));
  std::bernoulli_distribution fault(faults);
  for (auto& row : ids) {
    for (std::int32_t l = 0; l < shape.num_layers; ++l) {
      std::vector<std::int64_t> layer;
      while (static_cast<std::int32_t>(layer.size()) < shape.top_k) {
        // The ends of the range come up often.
        std::int64_t id =
            static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(last + 1));
        if (random() % 8 == 0) id = random() % 2 == 0 ? 0 : last;
        if (std::find(layer.begin(), layer.end(), id) == layer.end()) layer.push_back(id);
      }
      row.push_back(layer);
    }
    if (fault(random)) {
      const int count = 1 + static_cast<int>(random() % 3);
      for (int i = 0; i < count; ++i) {
        auto& layer = row[random() % row.size()];
        const std::size_t k = random() % layer.size();
        switch (random() % 3) {
          case 0:
            layer[k] = FaultyId(kind, shape.num_experts, random);
            break;
          case 1:
            layer[k] = layer[random() % layer.size()];  // itself: no fault
            break;
          default:
            if (kind != IdKind::kUint8) std::fill(layer.begin(), layer.end(), -1);
            break;
        }
      }
    }
  }
  return ids;
}

TEST(PackRows, AgreesWithItsDefinitionOnRandomTensors) {
  std::mt19937_64 random(DrawnSeed());
  const std::int32_t experts[] = {1,   2,   8,   60,  64,   128,   200,
                                  255, 256, 257, 512, 4096, 32768, 65535};
  for (int round = 0; round < PlainOr(600, 200); ++round) {
    RowShape shape;
    shape.num_experts = experts[random() % std::size(experts)];
    const std::int32_t most_k = std::min(shape.num_experts, random() % 10 == 0 ? 64 : 17);
    shape.top_k = 1 + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(most_k));
    if (random() % 4 == 0 && shape.num_experts >= 8) shape.top_k = 8;
    shape.num_layers = 1 + static_cast<std::int32_t>(random() % (random() % 10 == 0 ? 70 : 12));
    if (random() % 40 == 0 && shape.num_experts >= 64) {  // rows that are too long to be staged
      shape.top_k = 64;
      shape.num_layers = 300;
    }
    auto kind = static_cast<IdKind>(random() % 5);
    if (kind == IdKind::kUint8 && shape.top_k > 200) kind = IdKind::kInt16;
    const auto rows = static_cast<std::int32_t>(random() % 40);
    const Ids ids = RandomIds(shape, kind, rows, random() % 3 == 0 ? 0.0 : 0.3, random);
    const auto order = static_cast<Order>(random() % 3);
    const std::ptrdiff_t gap = random() % 2 == 0 ? 0 : static_cast<std::ptrdiff_t>(random() % 5);
    const Tensor tensor = MakeTensor(shape, ids, kind, order, gap, random() % 4 == 0);
    std::vector<bool> wanted;
    const bool all = random() % 2 == 0;
    for (std::int32_t row = 0; row < rows; ++row)
      wanted.push_back(all || random() % 3 != 0);
    ExpectPacked(shape, ids, tensor.view, wanted,
                 "round " + std::to_string(round) + ": L " + std::to_string(shape.num_layers) +
                     ", K " + std::to_string(shape.top_k) + ", E " +
                     std::to_string(shape.num_experts) + ", kind " +
                     std::to_string(static_cast<int>(kind)) + ", order " +
                     std::to_string(static_cast<int>(order)) + ", gap " + std::to_string(gap));
    if (::testing::Test::HasFailure()) return;
  }
}

// Every id of a small alphabet at every k, in the first, a middle and the last layer.
TEST(PackRows, AgreesWithItsDefinitionOnAllSmallRows) {
  for (const IdKind kind : {IdKind::kInt16, IdKind::kInt32, IdKind::kInt64}) {
    for (const std::int32_t top_k : {1, 2, 3, 4}) {
      const RowShape shape{19, top_k, 4};
      Ids ids;
      std::int64_t count = 1;
      for (std::int32_t k = 0; k < top_k; ++k)
        count *= 7;
      for (std::int64_t code = 0; code < count; code += PlainOr(1, 5)) {
        for (const std::size_t at : {std::size_t{0}, std::size_t{8}, std::size_t{18}}) {
          std::vector<std::int64_t> good;
          for (std::int32_t k = 0; k < top_k; ++k)
            good.push_back(3 - k);
          std::vector<std::vector<std::int64_t>> row(19, good);
          std::int64_t rest = code;
          for (std::int32_t k = 0; k < top_k; ++k, rest /= 7) {
            row[at][static_cast<std::size_t>(k)] = rest % 7 - 2;  // -2 ... 4
          }
          ids.push_back(row);
        }
      }
      const Tensor tensor = MakeTensor(shape, ids, kind, Order::kLayerMajor, 0, false);
      ExpectPacked(shape, ids, tensor.view, std::vector<bool>(ids.size(), true),
                   "K " + std::to_string(top_k));
    }
  }
}

// One repeated pair at every two places of a layer, in every layer: no comparison is left out.
TEST(PackRows, FindsEveryRepeatedPair) {
  for (const std::int32_t num_experts : {100, 256, 300}) {
    for (std::int32_t top_k = 2; top_k <= 34; ++top_k) {
      const RowShape shape{5, top_k, num_experts};
      std::vector<std::int64_t> good;
      for (std::int32_t k = 0; k < top_k; ++k)
        good.push_back(num_experts - 1 - k);
      // Every pair in every layer; under a sanitizer, in one layer after the other.
      Ids ids;
      std::size_t next = 0;
      for (std::size_t a = 0; a < good.size(); ++a) {
        for (std::size_t b = 0; b < a; ++b) {
          for (std::size_t i = 0; i < PlainOr<std::size_t>(5, 1); ++i) {
            const std::size_t layer = next++ % 5;
            ids.emplace_back(5, good);
            ids.back()[layer][a] = ids.back()[layer][b];
          }
        }
      }
      const IdKind packed = num_experts <= 256 ? IdKind::kUint8 : IdKind::kUint16;
      for (const IdKind kind : {packed, IdKind::kInt16}) {
        const Order order = kind == packed ? Order::kTokenMajor : Order::kLayerMajor;
        const Tensor tensor = MakeTensor(shape, ids, kind, order, 0, false);
        ExpectPacked(shape, ids, tensor.view, std::vector<bool>(ids.size(), true),
                     "K " + std::to_string(top_k) + ", E " + std::to_string(num_experts));
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(PackRows, TakesNoRowsAndNobodyWhoWantsThem) {
  const RowShape shape{3, 2, 8};
  EXPECT_EQ(PackRows(shape, IdsView::TokenMajor(nullptr, IdKind::kInt16, shape), {}, {}), 0u);
  std::vector<std::uint8_t*> nobody(40, nullptr);
  std::vector<RowVerdict> verdicts(40, RowVerdict::kInvalidId);
  EXPECT_EQ(PackRows(shape, IdsView::TokenMajor(nullptr, IdKind::kInt16, shape), nobody, verdicts),
            0u);
  EXPECT_EQ(verdicts[39], RowVerdict::kInvalidId);
}

}  // namespace
}  // namespace waymark::kernels
