// What every implementation of pack_cuda.h must do: the same as the host forms, bit for bit, and
// nothing beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/capture_ids.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"
#include "tests/unit/kernels/guarded_buffer.h"
#include "tests/unit/kernels/rows_backend.h"
#include "tests/unit/kernels/test_ids.h"

namespace waymark::kernels {
namespace {

using Bytes = std::vector<std::uint8_t>;

// How many random calls of each kind a test makes: WAYMARK_ROUNDS, or this many in a plain build.
int Rounds(int usual) {
  const char* given = std::getenv("WAYMARK_ROUNDS");
  return given != nullptr ? std::atoi(given) : usual / PlainOr(1, 5);
}

// Host memory that a call reads or writes, with bytes before and, where the place allows, behind it
// that nobody may write. It begins at a multiple of 16, or, if it is `tight`, ends where readable
// memory ends.
class Memory {
 public:
  Memory(std::size_t bytes, std::size_t alignment, bool tight, std::mt19937_64& random)
      : bytes_(bytes), buffer_(kBefore + RoundUp(bytes, tight ? alignment : 16)) {
    for (std::size_t i = 0; i < buffer_.size(); ++i)
      buffer_.data()[i] = static_cast<std::uint8_t>(random());
  }
  [[nodiscard]] std::uint8_t* data() const { return buffer_.data() + kBefore; }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  // With what surrounds it: data() is at kBefore.
  [[nodiscard]] Bytes All() const { return {buffer_.data(), buffer_.data() + buffer_.size()}; }
  [[nodiscard]] std::uint8_t* BringTo(RowsBackend& backend) const {
    return backend.Bring(buffer_.data(), buffer_.size()) + kBefore;
  }
  static constexpr std::size_t kBefore = 64;

 private:
  static std::size_t RoundUp(std::size_t bytes, std::size_t to) {
    return (bytes + to - 1) / to * to;
  }

  std::size_t bytes_;
  GuardedBuffer buffer_;
};

// The places of a strided array [rows][layers][k], and how many bytes it takes.
struct ArrayLayout {
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t layer_stride = 0;
  std::ptrdiff_t k_stride = 0;
  std::ptrdiff_t first = 0;  // of (0, 0, 0)
  std::ptrdiff_t bytes = 0;

  [[nodiscard]] std::ptrdiff_t At(std::int64_t row, std::int64_t layer, std::int64_t k) const {
    return first + row * row_stride + layer * layer_stride + k * k_stride;
  }
};

// Axes in any order, gaps after each, rows and layers forwards or backwards. `unit`: what strides
// are multiples of.
ArrayLayout RandomLayout(std::int64_t rows, std::int64_t layers, std::int64_t top_k,
                         std::ptrdiff_t id, std::ptrdiff_t unit, std::mt19937_64& random) {
  ArrayLayout layout;
  std::array<std::pair<std::int64_t, std::ptrdiff_t*>, 3> axes = {
      {{rows, &layout.row_stride}, {layers, &layout.layer_stride}, {top_k, &layout.k_stride}}};
  // The last axis is the fastest one; mostly that is k.
  switch (random() % 8) {
    case 0:
      std::shuffle(axes.begin(), axes.end(), random);
      break;
    case 1:
    case 2:
      break;  // token-major
    default:
      std::swap(axes[0], axes[1]);  // layer-major
      break;
  }
  const bool gaps = random() % 3 == 0;
  std::ptrdiff_t step = (id + unit - 1) / unit * unit;
  for (std::size_t i = 3; i-- > 0;) {
    *axes[i].second = step;
    step *= std::max<std::int64_t>(axes[i].first, 1);
    if (gaps) step += unit * static_cast<std::ptrdiff_t>(random() % 5);
  }
  for (auto& [count, stride] : axes) {
    if (random() % 8 == 0 && count > 0) {
      layout.first += *stride * (count - 1);
      *stride = -*stride;
    }
  }
  layout.bytes = step;
  return layout;
}

// Distinct ids of a layer, the ends of the range often.
void RandomLayer(std::int32_t top_k, std::int64_t end, std::mt19937_64& random,
                 std::vector<std::int64_t>& ids) {
  ids.clear();
  while (static_cast<std::int32_t>(ids.size()) < top_k) {
    auto id = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
    if (random() % 8 == 0) id = random() % 2 == 0 ? 0 : end - 1;
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
}

IdKind SignedKind(std::mt19937_64& random) {
  constexpr IdKind kKinds[] = {IdKind::kInt16, IdKind::kInt16, IdKind::kInt32, IdKind::kInt64};
  return kKinds[random() % std::size(kKinds)];
}

// Packs what the case describes, and compares all memory with what the host forms make of it.
struct PackCase {
  RowShape shape;
  std::int64_t view_rows = 0;
  std::int64_t rows = 0;
  std::int64_t written_rows = 0;
  double faults = 0.0;        // of rows with any
  bool silent_layer = false;  // one layer of every row
  bool counts = true;
  bool tight = false;
  std::int64_t gap = 0;  // ids between two layers

  [[nodiscard]] std::string Text() const {
    std::ostringstream text;
    text << "L " << shape.num_layers << ", K " << shape.top_k << ", E " << shape.num_experts
         << ", view of " << view_rows << ", rows " << rows << ", written " << written_rows
         << ", tight " << tight << ", gap " << gap;
    return text.str();
  }
};

void ExpectPacked(RowsBackend& backend, const PackCase& c, std::mt19937_64& random) {
  SCOPED_TRACE(c.Text());
  constexpr IdKind kKind = IdKind::kInt16;
  const std::int64_t layer_stride = c.view_rows * c.shape.top_k + c.gap;
  const ArrayLayout layout = {2 * c.shape.top_k, 2 * layer_stride, 2, 0,
                              2 * layer_stride * c.shape.num_layers};
  const Memory view(static_cast<std::size_t>(layout.bytes), 2, c.tight, random);
  std::vector<std::int64_t> layer_ids;
  const std::int64_t end = std::min(c.shape.num_experts, 32768);
  const auto silent_layer =
      static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(c.shape.num_layers));
  for (std::int64_t row = 0; row < c.view_rows; ++row) {
    const bool faulty = std::bernoulli_distribution(c.faults)(random);
    for (std::int32_t layer = 0; layer < c.shape.num_layers; ++layer) {
      RandomLayer(c.shape.top_k, end, random, layer_ids);
      if (faulty && random() % static_cast<std::uint64_t>(c.shape.num_layers) < 2) {
        auto& one = layer_ids[random() % layer_ids.size()];
        switch (random() % 3) {
          case 0:
            one = FaultyId(kKind, c.shape.num_experts, random);
            break;
          case 1:
            one = layer_ids[random() % layer_ids.size()];  // itself: no fault
            break;
          default:
            std::fill(layer_ids.begin(), layer_ids.end(), -1);
            break;
        }
      }
      if (c.silent_layer && layer == silent_layer) {
        std::fill(layer_ids.begin(), layer_ids.end(), -1);
      }
      for (std::int32_t k = 0; k < c.shape.top_k; ++k) {
        StoreId(view.data() + layout.At(row, layer, k), kKind,
                layer_ids[static_cast<std::size_t>(k)]);
      }
    }
  }
  const auto rows = static_cast<std::size_t>(c.rows);
  const auto layers = static_cast<std::size_t>(c.shape.num_layers);
  const Memory packed(rows * c.shape.row_bytes(), c.shape.id_bytes(), c.tight, random);
  const Memory verdicts(rows, 1, c.tight, random);
  const Memory silent(layers * sizeof(std::uint32_t), sizeof(std::uint32_t), c.tight, random);
  const Memory invalid(layers * sizeof(std::uint32_t), sizeof(std::uint32_t), c.tight, random);

  // What must come of it.
  Bytes view_after = view.All();
  Bytes packed_after = packed.All();
  Bytes verdicts_after = verdicts.All();
  Bytes silent_after = silent.All();
  Bytes invalid_after = invalid.All();
  {
    const IdsView ids{view.data(), kKind, layout.row_stride, layout.layer_stride, layout.k_stride};
    std::vector<std::uint8_t*> destinations;
    for (std::size_t row = 0; row < rows; ++row) {
      destinations.push_back(packed_after.data() + Memory::kBefore + row * c.shape.row_bytes());
    }
    std::vector<RowVerdict> expected(rows);
    std::vector<std::uint64_t> expected_silent(layers);
    std::vector<std::uint64_t> expected_invalid(layers);
    PackRows(c.shape, ids, destinations, expected);
    for (std::size_t row = 0; row < rows; ++row) {
      verdicts_after[Memory::kBefore + row] = static_cast<std::uint8_t>(expected[row]);
      for (std::size_t layer = 0; layer < layers; ++layer) {
        const RowVerdict verdict = CheckLayer(c.shape, ids, static_cast<std::ptrdiff_t>(row),
                                              static_cast<std::int32_t>(layer));
        expected_silent[layer] += verdict == RowVerdict::kNotWritten ? 1 : 0;
        expected_invalid[layer] += verdict == RowVerdict::kInvalidId ? 1 : 0;
      }
    }
    const auto add = [](Bytes& bytes, const std::vector<std::uint64_t>& counts) {
      std::uint8_t* const at = bytes.data() + Memory::kBefore;
      for (std::size_t i = 0; i < counts.size(); ++i) {
        std::uint32_t count;
        std::memcpy(&count, at + i * sizeof(count), sizeof(count));
        count += static_cast<std::uint32_t>(counts[i]);
        std::memcpy(at + i * sizeof(count), &count, sizeof(count));
      }
    };
    if (c.counts) {
      add(silent_after, expected_silent);
      add(invalid_after, expected_invalid);
    }
    PoisonRows(reinterpret_cast<std::int16_t*>(view_after.data() + Memory::kBefore), layer_stride,
               c.shape.num_layers, c.shape.top_k, static_cast<std::int32_t>(c.written_rows));
  }

  PackLaunch pack;
  pack.shape = c.shape;
  pack.view = reinterpret_cast<std::int16_t*>(view.BringTo(backend));
  pack.layer_stride = layer_stride;
  pack.rows = c.rows;
  pack.written_rows = c.written_rows;
  pack.packed = packed.BringTo(backend);
  pack.verdicts = reinterpret_cast<RowVerdict*>(verdicts.BringTo(backend));
  auto* const silent_there = reinterpret_cast<std::uint32_t*>(silent.BringTo(backend));
  auto* const invalid_there = reinterpret_cast<std::uint32_t*>(invalid.BringTo(backend));
  if (c.counts) {
    pack.silent = silent_there;
    pack.invalid = invalid_there;
  }
  ASSERT_EQ(backend.PackRows(pack, random), 0);
  backend.TakeBack();

  EXPECT_EQ(verdicts.All(), verdicts_after);
  EXPECT_EQ(silent.All(), silent_after);
  EXPECT_EQ(invalid.All(), invalid_after);
  EXPECT_TRUE(view.All() == view_after) << "the view";
  // The bytes of a row with a fault may be any.
  Bytes got = packed.All();
  for (std::size_t row = 0; row < rows; ++row) {
    if (verdicts_after[Memory::kBefore + row] == 0) continue;
    const auto at = static_cast<std::ptrdiff_t>(Memory::kBefore + row * c.shape.row_bytes());
    std::copy_n(packed_after.begin() + at, c.shape.row_bytes(), got.begin() + at);
  }
  const auto [differ, expected] = std::mismatch(got.begin(), got.end(), packed_after.begin());
  EXPECT_TRUE(differ == got.end())
      << "packed byte " << differ - got.begin() - static_cast<std::ptrdiff_t>(Memory::kBefore);
}

RowShape RandomShape(std::mt19937_64& random) {
  constexpr std::int32_t kExperts[] = {1,   2,   8,   60,  64,   128,   200,
                                       255, 256, 257, 384, 4096, 32768, 65535};
  RowShape shape;
  shape.num_experts = kExperts[random() % std::size(kExperts)];
  const std::int32_t most = std::min(shape.num_experts, 40);
  shape.top_k = 1 + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(most));
  constexpr std::int32_t kUsual[] = {4, 6, 8, 10};
  if (random() % 2 == 0) shape.top_k = std::min(most, kUsual[random() % std::size(kUsual)]);
  shape.num_layers = 1 + static_cast<std::int32_t>(random() % (random() % 4 == 0 ? 100 : 20));
  return shape;
}

class RowsSuite : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    backend_ = TheRowsBackend(&why);
    if (backend_ == nullptr) GTEST_SKIP() << why;
    random_.seed(DrawnSeed());
  }

  std::uint64_t Random(std::uint64_t end) { return random_() % end; }
  // Fatal, so that a test that fails does not go on.
  void Packs(const PackCase& c) {
    ExpectPacked(*backend_, c, random_);
    ASSERT_FALSE(HasFailure());
  }
  // The verdicts of all rows of a view that holds `ids`, [layers][rows][k].
  std::vector<RowVerdict> VerdictsOf(const RowShape& shape, std::int64_t rows,
                                     const std::vector<std::int16_t>& ids) {
    const auto num_rows = static_cast<std::size_t>(rows);
    const Memory view(ids.size() * 2, 2, false, random_);
    std::memcpy(view.data(), ids.data(), view.size());
    const Memory packed(num_rows * shape.row_bytes(), 2, false, random_);
    const Memory verdicts(num_rows, 1, false, random_);
    PackLaunch pack;
    pack.shape = shape;
    pack.view = reinterpret_cast<std::int16_t*>(view.BringTo(*backend_));
    pack.layer_stride = rows * shape.top_k;
    pack.rows = rows;
    pack.packed = packed.BringTo(*backend_);
    pack.verdicts = reinterpret_cast<RowVerdict*>(verdicts.BringTo(*backend_));
    EXPECT_EQ(backend_->PackRows(pack, random_), 0);
    backend_->TakeBack();
    const auto* const first = reinterpret_cast<const RowVerdict*>(verdicts.data());
    return {first, first + rows};
  }

  RowsBackend* backend_ = nullptr;
  std::mt19937_64 random_;
};

// ---- pack

TEST_F(RowsSuite, PacksAsTheHostDoes) {
  for (int round = 0; round < Rounds(400); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    PackCase c;
    c.shape = RandomShape(random_);
    c.view_rows = static_cast<std::int64_t>(Random(Random(4) == 0 ? 120 : 40));
    const auto end = static_cast<std::uint64_t>(c.view_rows) + 1;
    c.rows = Random(2) == 0 ? c.view_rows : static_cast<std::int64_t>(Random(end));
    c.written_rows = Random(2) == 0 ? c.view_rows : static_cast<std::int64_t>(Random(end));
    c.faults = Random(3) == 0 ? 0.0 : 0.3;
    c.silent_layer = Random(10) == 0;
    c.counts = Random(5) != 0;
    c.tight = Random(2) == 0;
    c.gap = static_cast<std::int64_t>(Random(3) * Random(9));
    ASSERT_NO_FATAL_FAILURE(Packs(c));
  }
}

// Rows that are longer than a tile, and layers that are more than a chunk.
TEST_F(RowsSuite, PacksLongRowsInChunks) {
  for (const RowShape shape :
       {RowShape{256, 64, 65535}, RowShape{300, 8, 256}, RowShape{600, 1, 256},
        RowShape{92, 22, 512}, RowShape{3, 1000, 4096}, RowShape{127, 8, 384},
        RowShape{253, 8, 256}}) {
    ASSERT_NO_FATAL_FAILURE(
        Packs({.shape = shape, .view_rows = 19, .rows = 17, .written_rows = 19, .faults = 0.3}));
  }
}

// Every packed type and number of ids that vectors are compiled for, and some that they are not;
// layers that begin at a whole vector, and those that do not.
TEST_F(RowsSuite, PacksEveryWidth) {
  for (const std::int32_t num_experts : {255, 256, 257, 65535}) {
    for (const std::int32_t top_k : {1, 2, 4, 6, 8, 10, 12, 16, 22}) {
      for (const std::int64_t gap : {0, 1, 8}) {
        ASSERT_NO_FATAL_FAILURE(Packs({.shape = {70, top_k, num_experts},
                                       .view_rows = 40,
                                       .rows = 33,
                                       .written_rows = 37,
                                       .faults = 0.5,
                                       .gap = gap}));
      }
    }
  }
}

// Rows that are packed and rows that are cleaned end in the same tile and in different ones.
TEST_F(RowsSuite, PacksEveryRangeOfRows) {
  for (const std::int64_t rows : {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64}) {
    for (const std::int64_t written : {0, 1, 7, 8, 9, 15, 16, 17, 50, 64}) {
      ASSERT_NO_FATAL_FAILURE(Packs({.shape = {3, 8, 256},
                                     .view_rows = 64,
                                     .rows = rows,
                                     .written_rows = written,
                                     .faults = 0.1}));
    }
  }
}

// One repeated pair at every two places, for the compares that are unrolled and those that are not.
TEST_F(RowsSuite, FindsEveryRepeatedPair) {
  for (const std::int32_t num_experts : {100, 300}) {
    for (std::int32_t top_k = 2; top_k <= 34; ++top_k) {
      const RowShape shape{2, top_k, num_experts};
      const std::int64_t rows = std::int64_t{top_k} * (top_k - 1);
      std::vector<std::int16_t> ids(static_cast<std::size_t>(2 * rows * top_k));
      for (std::size_t i = 0; i < ids.size(); ++i)
        ids[i] = static_cast<std::int16_t>(num_experts - 1 - static_cast<std::int32_t>(i) % top_k);
      std::int64_t row = 0;
      for (std::int64_t layer = 0; layer < 2; ++layer) {
        for (std::int32_t a = 0; a < top_k; ++a) {
          for (std::int32_t b = 0; b < a; ++b, ++row) {
            std::int16_t* const at = ids.data() + (layer * rows + row) * top_k;
            at[a] = at[b];
          }
        }
      }
      ASSERT_EQ(row, rows);
      const std::vector<RowVerdict> verdicts = VerdictsOf(shape, rows, ids);
      for (std::size_t i = 0; i < verdicts.size(); ++i) {
        ASSERT_EQ(verdicts[i], RowVerdict::kInvalidId)
            << "K " << top_k << ", E " << num_experts << ", row " << i;
      }
    }
  }
}

// A row's verdict is that of its first faulty layer, whichever thread finds its fault first.
TEST_F(RowsSuite, TheFirstFaultyLayerDecides) {
  constexpr RowShape kShape{40, 8, 256};
  constexpr std::int64_t kRows = 32;
  for (std::int32_t first = 0; first < 39; ++first) {
    std::vector<std::int16_t> ids(kRows * kShape.num_layers * kShape.top_k);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int16_t>(i % 8);
    for (std::int64_t row = 0; row < kRows; ++row) {
      // Even rows: silent first and invalid in all later layers; odd ones the other way round.
      for (std::int32_t layer = first; layer < kShape.num_layers; ++layer) {
        const bool silent = (layer == first) == (row % 2 == 0);
        const auto at = ids.begin() + (layer * kRows + row) * 8;
        // One id that is missing is an invalid row, not a silent layer.
        silent ? std::fill_n(at, 8, -1) : std::fill_n(at + 3, 1, row % 3 == 0 ? -1 : 256);
      }
    }
    const std::vector<RowVerdict> verdicts = VerdictsOf(kShape, kRows, ids);
    for (std::size_t row = 0; row < verdicts.size(); ++row) {
      ASSERT_EQ(verdicts[row], row % 2 == 0 ? RowVerdict::kNotWritten : RowVerdict::kInvalidId)
          << "first " << first << ", row " << row;
    }
  }
}

TEST_F(RowsSuite, NoRowsNeedNothing) {
  PackLaunch pack;
  pack.shape = {58, 8, 256};
  EXPECT_EQ(backend_->PackRows(pack, random_), 0);
  EXPECT_EQ(backend_->CaptureIds({nullptr, IdKind::kInt32, 32, 0, 4}, 0, 8, nullptr, random_), 0);
  CudaGather gather;
  gather.shape = {58, 8, 256};
  EXPECT_EQ(backend_->GatherRows(gather, random_), 0);
}

// ---- capture

TEST_F(RowsSuite, CapturesAsTheHostDoes) {
  for (int round = 0; round < Rounds(400); ++round) {
    const IdKind kind = SignedKind(random_);
    const auto id = static_cast<std::ptrdiff_t>(IdKindBytes(kind));
    const auto rows = static_cast<std::int32_t>(Random(Random(4) == 0 ? 600 : 70));
    auto top_k = static_cast<std::int32_t>(1 + Random(40));
    if (Random(2) == 0) top_k = 8;
    const bool odd = Random(6) == 0;
    const bool tight = Random(2) == 0;
    const std::int32_t columns = top_k + static_cast<std::int32_t>(Random(2) * Random(5));
    ArrayLayout layout = RandomLayout(rows, 1, columns, id, odd ? 1 : id, random_);
    if (Random(2) == 0) {
      layout = {id * columns, 0, id, 0, id * columns * rows};
    }
    const Memory input(static_cast<std::size_t>(layout.bytes),
                       odd ? 1 : static_cast<std::size_t>(id), tight, random_);
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int32_t k = 0; k < columns; ++k) {
        const auto value = Random(4) == 0 ? FaultyId(kind, 32768, random_)
                                          : static_cast<std::int64_t>(Random(32768));
        StoreId(input.data() + layout.At(row, 0, k), kind, value);
      }
    }
    const Memory view(static_cast<std::size_t>(rows) * static_cast<std::size_t>(top_k) * 2, 2,
                      tight, random_);
    Bytes after = view.All();
    const Bytes input_after = input.All();
    IdsView ids{input.data() + layout.first, kind, layout.row_stride, 0, layout.k_stride};
    CaptureIds(ids, rows, top_k, reinterpret_cast<std::int16_t*>(after.data() + Memory::kBefore));
    ids.data = input.BringTo(*backend_) + layout.first;
    auto* const there = reinterpret_cast<std::int16_t*>(view.BringTo(*backend_));
    ASSERT_EQ(backend_->CaptureIds(ids, rows, top_k, there, random_), 0);
    backend_->TakeBack();
    ASSERT_TRUE(view.All() == after && input.All() == input_after)
        << "round " << round << ": kind " << static_cast<int>(kind) << ", rows " << rows << ", K "
        << top_k << " of " << columns << ", strides " << layout.row_stride << " "
        << layout.k_stride;
  }
}

// ---- gather

// Row i of `view`, from a packed row; null: a missing one.
void ExpectedRow(const RowShape& shape, const std::uint8_t* packed, const IdsView& view,
                 std::int64_t i) {
  for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (std::int32_t k = 0; k < shape.top_k; ++k) {
      std::int64_t id = -1;
      if (packed != nullptr) {
        std::uint16_t stored = 0;
        std::memcpy(&stored, packed + (layer * shape.top_k + k) * shape.id_bytes(),
                    shape.id_bytes());
        id = stored;
      }
      auto* const to = static_cast<std::uint8_t*>(const_cast<void*>(view.data));
      StoreId(to + i * view.row_stride + layer * view.layer_stride + k * view.k_stride, view.kind,
              id);
    }
  }
}

TEST_F(RowsSuite, GathersAsTheHostDoes) {
  for (int round = 0; round < Rounds(400); ++round) {
    RowShape shape = RandomShape(random_);
    if (Random(12) == 0) shape = {static_cast<std::int32_t>(200 + Random(100)), 16, 4096};
    CudaGather gather;
    gather.shape = shape;
    gather.rows = static_cast<std::int64_t>(Random(Random(4) == 0 ? 150 : 40));
    gather.kind = static_cast<IdKind>(Random(5));
    const bool tight = Random(2) == 0;
    const auto id = shape.id_bytes();
    const auto rows = static_cast<std::size_t>(gather.rows);
    const Memory packed(rows * shape.row_bytes(), id, tight, random_);
    if (id == 2) {
      auto* const ids = reinterpret_cast<std::uint16_t*>(packed.data());
      for (std::size_t i = 0; i < packed.size() / 2; ++i)
        ids[i] = static_cast<std::uint16_t>(Random(static_cast<std::uint64_t>(shape.num_experts)));
    }
    const Memory valid(rows, 1, tight, random_);
    for (std::size_t i = 0; i < rows; ++i) {
      if (Random(4) == 0) valid.data()[i] = 0;
    }
    const bool all_valid = Random(3) == 0;

    const Memory out(rows * shape.row_ids() * IdKindBytes(gather.kind), IdKindBytes(gather.kind),
                     tight, random_);
    Bytes after = out.All();
    void* const to = after.data() + Memory::kBefore;
    const IdsView view = IdsView::LayerMajor(to, gather.kind, gather.rows, shape);
    for (std::size_t i = 0; i < rows; ++i) {
      const bool missing = !all_valid && valid.data()[i] == 0;
      ExpectedRow(shape, missing ? nullptr : packed.data() + i * shape.row_bytes(), view,
                  static_cast<std::int64_t>(i));
    }

    gather.packed = packed.BringTo(*backend_);
    const std::uint8_t* const valid_there = valid.BringTo(*backend_);
    gather.valid = all_valid ? nullptr : valid_there;
    gather.out = out.BringTo(*backend_);
    ASSERT_EQ(backend_->GatherRows(gather, random_), 0);
    backend_->TakeBack();
    ASSERT_TRUE(out.All() == after) << "round " << round << ": L " << shape.num_layers << ", K "
                                    << shape.top_k << ", E " << shape.num_experts << ", rows "
                                    << gather.rows << ", kind " << static_cast<int>(gather.kind);
  }
}

// ---- arguments

constexpr int kInvalidValue = 1;  // cudaErrorInvalidValue

TEST_F(RowsSuite, RefusesWhatItCannotDo) {
  alignas(16) std::uint8_t memory[64] = {};
  const auto refuses_pack = [&](auto&& change) {
    PackLaunch pack;
    pack.shape = {2, 2, 256};
    pack.view = reinterpret_cast<std::int16_t*>(memory);
    pack.layer_stride = 2;
    pack.rows = 1;
    pack.packed = memory + 32;
    pack.verdicts = reinterpret_cast<RowVerdict*>(memory + 48);
    change(pack);
    return backend_->PackRows(pack, random_) == kInvalidValue;
  };
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.shape.num_layers = 0; }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.shape.num_layers = (1 << 20) + 1; }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.shape.top_k = 0; }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.shape.top_k = 1001; }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.shape.num_experts = 0; }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.shape.num_experts = 65536; }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.rows = -1; }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.written_rows = -1; }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.written_rows = INT64_MAX; }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.rows = INT64_MAX; }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.view = nullptr; }));
  EXPECT_TRUE(
      refuses_pack([&](PackLaunch& p) { p.view = reinterpret_cast<std::int16_t*>(memory + 1); }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) {
    p.rows = 0;
    p.written_rows = 1;
    p.view = nullptr;
  }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.packed = nullptr; }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) { p.verdicts = nullptr; }));
  EXPECT_TRUE(refuses_pack([](PackLaunch& p) {
    p.shape.num_experts = 257;
    p.packed += 1;
  }));
  auto* const view = reinterpret_cast<std::int16_t*>(memory + 32);
  const IdsView ids{memory, IdKind::kInt32, 8, 0, 4};
  EXPECT_EQ(backend_->CaptureIds(ids, -1, 2, view, random_), kInvalidValue);
  EXPECT_EQ(backend_->CaptureIds(ids, 1, 0, view, random_), kInvalidValue);
  EXPECT_EQ(backend_->CaptureIds(ids, 1, 1001, view, random_), kInvalidValue);
  EXPECT_EQ(backend_->CaptureIds(ids, 1, 2, nullptr, random_), kInvalidValue);
  EXPECT_EQ(backend_->CaptureIds({memory, IdKind::kUint8, 8, 0, 1}, 1, 2, view, random_),
            kInvalidValue);
  EXPECT_EQ(backend_->CaptureIds({nullptr, IdKind::kInt32, 8, 0, 4}, 1, 2, view, random_),
            kInvalidValue);

  const auto refuses_gather = [&](auto&& change) {
    CudaGather gather;
    gather.shape = {2, 2, 300};
    gather.packed = memory;
    gather.rows = 1;
    gather.out = memory + 32;
    change(gather);
    return backend_->GatherRows(gather, random_) == kInvalidValue;
  };
  EXPECT_TRUE(refuses_gather([](CudaGather& g) { g.rows = -1; }));
  EXPECT_TRUE(refuses_gather([](CudaGather& g) { g.shape.top_k = 0; }));
  EXPECT_TRUE(refuses_gather([](CudaGather& g) { g.packed = nullptr; }));
  EXPECT_TRUE(refuses_gather([](CudaGather& g) { g.packed += 1; }));
  EXPECT_TRUE(refuses_gather([](CudaGather& g) { g.out = nullptr; }));
  EXPECT_TRUE(refuses_gather([&](CudaGather& g) { g.out = memory + 33; }));
  EXPECT_TRUE(refuses_gather([](CudaGather& g) { g.kind = static_cast<IdKind>(5); }));
}

}  // namespace
}  // namespace waymark::kernels
