// FillRouterTensors from rows of every kind, against a loop over rows and layers. Random;
// WAYMARK_SEED chooses the cases and WAYMARK_ROUNDS how many of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "adapters/trainer/fill.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"
#include "tests/support/wire_samples.h"
#include "tests/unit/kernels/guarded_buffer.h"

namespace waymark {
namespace {

using kernels::GuardedBuffer;
using wire_samples::Bytes;

int Rounds(int usual) {
  const char* given = std::getenv("WAYMARK_ROUNDS");
  return given != nullptr ? std::atoi(given) : usual;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine(seed) {}
  std::int64_t Below(std::int64_t end) {
    return static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(end));
  }
  std::int32_t In(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(Below(high - low + 1));
  }
  std::size_t Index(std::size_t size) { return engine() % size; }
  bool Once(std::int64_t in) { return Below(in) == 0; }
  template <class T, std::size_t n>
  T Of(const T (&values)[n]) {
    return values[Index(n)];
  }

  std::mt19937_64 engine;
};

// ---- what the routers get of a row

struct ModelRow {
  Reason reason = Reason::kNone;   // kNone: the row is valid
  std::vector<std::uint32_t> ids;  // [layers][K]
};

// Appends the ids of a layer, stored at `from`, or why they are no choice of a router.
void TakeLayer(const RoutingShape& shape, const std::uint8_t* from, ModelRow& row) {
  const auto begin = static_cast<std::ptrdiff_t>(row.ids.size());
  for (std::int32_t k = 0; k < shape.top_k; ++k) {
    std::uint16_t id = 0;
    std::memcpy(&id, from + static_cast<std::size_t>(k) * shape.id_bytes(), shape.id_bytes());
    const bool twice = std::find(row.ids.begin() + begin, row.ids.end(), id) != row.ids.end();
    if (twice || id >= shape.num_experts) row.reason = Reason::kInvalidId;
    row.ids.push_back(id);
  }
}

std::int32_t ColumnOf(const RoutingShape& shape, std::int32_t layer) {
  std::int32_t column = 0;
  while (shape.layer_id(column) != layer)
    ++column;
  return column;
}

// ---- sources

// The rows of a sequence.
struct Source {
  RoutingShape shape;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t tokens = 0;
  Bytes ids;
  std::vector<std::uint8_t> reasons;
  RowsView view;

  [[nodiscard]] ModelRow RowAt(std::int64_t position,
                               const std::vector<std::int32_t>& layers) const;
};

ModelRow Source::RowAt(std::int64_t position, const std::vector<std::int32_t>& layers) const {
  ModelRow row;
  if (position < first || position >= first + count) {
    row.reason = Reason::kNeverWritten;
    return row;
  }
  const std::int64_t i = position - first;
  const auto layer_bytes = static_cast<std::ptrdiff_t>(shape.row_bytes()) / shape.num_layers;
  const std::uint8_t reason = view.reasons[i * view.reason_stride];
  if (reason != 0) {
    row.reason = reason < kNumReasons ? static_cast<Reason>(reason) : Reason::kInvalidId;
    return row;
  }
  for (const std::int32_t layer : layers)
    TakeLayer(shape, view.ids + i * view.row_stride + ColumnOf(shape, layer) * layer_bytes, row);
  return row;
}

// Makes sources of one K and E, all of which have `layers`.
class Maker {
 public:
  Maker(Random& random, std::int32_t top_k, std::int32_t experts, std::vector<std::int32_t> layers)
      : random_(random), top_k_(top_k), experts_(experts), layers_(std::move(layers)) {}

  Source Make(std::int64_t tokens, bool partial) {
    Source source;
    source.tokens = tokens;
    if (partial) {
      source.first = random_.Below(tokens + 1);
      source.count = random_.Below(tokens - source.first + 1);
    } else {
      source.count = std::max<std::int64_t>(tokens - random_.Below(2), 0);
    }
    source.shape = Shape();
    MakeView(source);
    return source;
  }

 private:
  RoutingShape Shape() {
    RoutingShape shape = {.top_k = top_k_, .num_experts = experts_, .layer_ids = layers_};
    for (std::int32_t layer = 0; layer < 12; ++layer) {
      if (random_.Once(3)) shape.layer_ids.push_back(layer);
    }
    std::sort(shape.layer_ids.begin(), shape.layer_ids.end());
    shape.layer_ids.erase(std::unique(shape.layer_ids.begin(), shape.layer_ids.end()),
                          shape.layer_ids.end());
    shape.num_layers = static_cast<std::int32_t>(shape.layer_ids.size());
    if (shape.layer_ids.back() == shape.num_layers - 1 && random_.Once(2)) shape.layer_ids.clear();
    return shape;
  }

  Rows RandomRows(const Source& source) {
    const auto count = static_cast<std::size_t>(source.count);
    Rows rows = wire_samples::RandomRows(random_.engine, source.shape, count);
    rows.first = source.first;
    if (random_.Once(3)) return rows;
    // Nearly all valid: what is read straight through.
    const Rows all = rows;
    std::vector<RowInfo> infos(count, RowInfo{.step = 1, .version = 1, .reason = Reason::kNone});
    if (count != 0 && random_.Once(2))
      infos[random_.Index(count)] = {.reason = static_cast<Reason>(random_.In(1, kNumReasons - 1))};
    rows = wire_samples::RowsOf(source.shape, source.first, std::move(infos));
    for (std::size_t i = 0; i < count; ++i) {
      if (!rows.infos[i].valid() || !all.infos[i].valid()) continue;
      std::copy_n(all.row(static_cast<std::int64_t>(i)).begin(), source.shape.row_bytes(),
                  rows.ids.begin() + static_cast<std::ptrdiff_t>(i * source.shape.row_bytes()));
    }
    return rows;
  }

  void MakeView(Source& source) {
    const Rows rows = RandomRows(source);
    const std::size_t row_bytes = source.shape.row_bytes();
    const std::size_t stride = row_bytes + (random_.Once(2) ? 0 : random_.Index(9));
    source.ids.assign(static_cast<std::size_t>(source.count) * stride, 0xee);
    for (std::int64_t i = 0; i < source.count; ++i) {
      std::uint8_t* const to = source.ids.data() + static_cast<std::size_t>(i) * stride;
      std::copy_n(rows.row(i).begin(), row_bytes, to);
      const Reason reason = rows.infos[static_cast<std::size_t>(i)].reason;
      source.reasons.push_back(static_cast<std::uint8_t>(reason));
      if (random_.Once(64)) source.reasons.back() = static_cast<std::uint8_t>(random_.Below(256));
      if (random_.Once(32))
        to[random_.Index(row_bytes)] = static_cast<std::uint8_t>(random_.Below(256));
    }
    // Reasons some bytes apart, or none at all: all rows are valid.
    const std::ptrdiff_t apart = random_.Below(4);
    if (apart == 0) source.reasons.assign(1, 0);
    Bytes spread(
        source.reasons.size() * static_cast<std::size_t>(std::max<std::ptrdiff_t>(apart, 1)), 0xee);
    for (std::size_t i = 0; i < source.reasons.size(); ++i)
      spread[i * static_cast<std::size_t>(apart)] = source.reasons[i];
    source.reasons = std::move(spread);
    source.view = {nullptr,
                   source.first,
                   source.count,
                   source.ids.data(),
                   static_cast<std::ptrdiff_t>(stride),
                   source.reasons.data(),
                   apart};
  }

  Random& random_;
  const std::int32_t top_k_;
  const std::int32_t experts_;
  const std::vector<std::int32_t> layers_;
};

// ---- the output

// Memory that is written: canaries lie before it, and behind it too, or nothing at all is there.
class Out {
 public:
  Out(std::size_t size, Random& random)
      : size_(size),
        behind_(random.Once(2) ? 0 : 1 + random.Index(80)),
        buffer_(kBefore + size + behind_) {
    std::fill_n(buffer_.data(), buffer_.size(), kCanary);
  }
  [[nodiscard]] std::span<std::uint8_t> bytes() const { return {buffer_.data() + kBefore, size_}; }
  // Where something else than `wanted` is, with canaries around it; -1: nowhere.
  [[nodiscard]] std::ptrdiff_t Differs(std::span<const std::uint8_t> wanted) const {
    Bytes all(buffer_.size(), kCanary);
    std::copy(wanted.begin(), wanted.end(), all.begin() + kBefore);
    if (std::memcmp(all.data(), buffer_.data(), all.size()) == 0) return -1;
    return std::mismatch(all.begin(), all.end(), buffer_.data()).first - all.begin() - kBefore;
  }
  [[nodiscard]] bool untouched() const { return Differs({}) < 0; }

 private:
  static constexpr std::size_t kBefore = 64;
  static constexpr std::uint8_t kCanary = 0xee;

  const std::size_t size_;
  const std::size_t behind_;
  GuardedBuffer buffer_;
};

void PutId(std::int64_t id, IdType type, std::uint8_t* to) {
  std::memcpy(to, &id, IdBytes(type));
}

// The experts of rows without a route, K after K: those of the least last digit come first.
std::vector<std::int64_t> SpreadOrder(std::int64_t experts) {
  if (experts == 1) return {0};
  std::int64_t prime = 2;
  while (experts % prime != 0)
    ++prime;
  std::vector<std::int64_t> order;
  for (const std::int64_t of_part : SpreadOrder(experts / prime)) {
    for (std::int64_t part = 0; part < prime; ++part)
      order.push_back(part * (experts / prime) + of_part);
  }
  return order;
}

// What FillRouterTensors must write and report, row by row.
struct Wanted {
  Bytes ids;
  Bytes mask;
  std::int64_t replayed = 0;
  std::int64_t padding = 0;
  std::int64_t no_row = 0;
  std::array<std::int64_t, kNumReasons> missing{};  // by reason
  TokenPlace first_missing;
};

Wanted Model(const RowPlan& plan, const std::vector<const Source*>& sources,
             const std::vector<std::int32_t>& layers, const RouterTensors& out) {
  Wanted wanted;
  const auto rows = static_cast<std::size_t>(plan.rows);
  const std::int32_t top_k = sources.front()->shape.top_k;
  const std::size_t id_bytes = IdBytes(out.id_type);
  wanted.ids.resize(out.ids.size());
  std::vector<TokenPlace> places(rows);
  const auto order = SpreadOrder(sources.front()->shape.num_experts);
  std::size_t filled = 0;
  for (const RowSegment& of : plan.segments) {
    for (std::int64_t i = 0; i < of.count; ++i)
      places[static_cast<std::size_t>(of.row + i * of.row_stride)] = {of.sequence, of.position + i};
  }
  for (std::size_t row = 0; row < rows; ++row) {
    const TokenPlace& place = places[row];
    ModelRow of;
    const Source* const source =
        place.sequence < 0 ? nullptr : sources[static_cast<std::size_t>(place.sequence)];
    if (source != nullptr) of = source->RowAt(place.position, layers);
    const bool valid = source != nullptr && of.reason == Reason::kNone;
    if (source == nullptr) {
      ++wanted.padding;
    } else if (valid) {
      ++wanted.replayed;
    } else if (place.position == plan.lengths[static_cast<std::size_t>(place.sequence)] - 1 &&
               (of.reason == Reason::kNeverWritten || of.reason == Reason::kNotTold)) {
      ++wanted.no_row;
    } else {
      ++wanted.missing[static_cast<std::size_t>(of.reason)];
      const TokenPlace& first = wanted.first_missing;
      if (first.sequence < 0 || place.sequence < first.sequence ||
          (place.sequence == first.sequence && place.position < first.position)) {
        wanted.first_missing = place;
      }
    }
    wanted.mask.push_back(valid ? 1 : 0);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      for (std::int32_t k = 0; k < top_k; ++k) {
        const std::size_t group = out.packed ? row * layers.size() + l : l * rows + row;
        const auto at = group * static_cast<std::size_t>(top_k) + static_cast<std::size_t>(k);
        std::int64_t id = -1;
        if (out.fill == RouteFill::kSpread) {
          const std::size_t next = (filled + l) * static_cast<std::size_t>(top_k);
          id = order[(next + static_cast<std::size_t>(k)) % order.size()];
        }
        if (valid) id = of.ids[l * static_cast<std::size_t>(top_k) + static_cast<std::size_t>(k)];
        PutId(id, out.id_type, wanted.ids.data() + at * id_bytes);
      }
    }
    filled += valid ? 0 : 1;
  }
  if (out.mask.empty()) wanted.mask.clear();
  return wanted;
}

void ExpectReport(const FillReport& report, const Wanted& wanted) {
  EXPECT_EQ(report.replayed, wanted.replayed);
  EXPECT_EQ(report.padding, wanted.padding);
  EXPECT_EQ(report.no_row, wanted.no_row);
  EXPECT_EQ(report.first_missing, wanted.first_missing);
  EXPECT_EQ(report.missing, wanted.missing);
}

// ---- cases

// Sequences one after the other or interleaved, each in pieces, of which some are on other ranks.
RowPlan RandomPlan(Random& random, const std::vector<std::int64_t>& lengths) {
  RowPlan plan;
  plan.lengths = lengths;
  const bool interleaved = random.Once(3);
  const std::int64_t stride =
      interleaved ? static_cast<std::int64_t>(lengths.size()) : 1 + random.Below(2);
  std::int64_t row = 0;
  for (std::int32_t sequence = 0; const std::int64_t length : lengths) {
    if (interleaved) row = sequence;
    for (std::int64_t at = 0; at < length;) {
      const std::int64_t count = 1 + random.Below(length - at);
      if (!random.Once(4)) {
        plan.segments.push_back({sequence, at, count, row, stride});
        row += count * stride;
      }
      if (random.Once(3)) row += random.Below(9) * stride;  // padding
      at += count;
    }
    plan.rows = std::max(plan.rows, row);
    ++sequence;
  }
  return plan;
}

// One call, right or with one wrong argument.
void RunCase(Random& random) {
  static constexpr std::int32_t kTopKs[] = {1, 2, 3, 4, 6, 7, 8, 10, 16, 33, 64};
  // Tensors that are more than caches hold are written past them.
  const bool large = random.Once(150);
  const std::int32_t top_k = large ? 64 : random.Once(2) ? 8 : random.Of(kTopKs);
  static constexpr std::int32_t kExperts[] = {64, 128, 255, 256, 257, 512, 65535};
  const std::int32_t experts = random.Once(3) ? random.In(top_k, 600) : random.Of(kExperts);
  std::vector<std::int32_t> layers;
  for (std::int32_t layer = 0; layer < 12; ++layer) {
    if (large || random.Once(2)) layers.push_back(layer);
  }
  if (layers.empty()) layers.push_back(random.In(0, 11));
  Maker maker(random, top_k, experts, layers);
  if (random.Once(2)) std::shuffle(layers.begin(), layers.end(), random.engine);
  const std::int64_t wrong = random.Once(8) ? random.Below(9) : -1;

  std::deque<Source> made;
  std::vector<const Source*> sources;  // of the sequences; two may have the same
  std::vector<std::int64_t> lengths;
  const bool partial = random.Once(4);
  const bool long_ones = large || random.Once(6);
  for (std::int64_t n = 1 + random.Below(5); n > 0; --n) {
    if (made.empty() || !random.Once(8)) {
      const std::int64_t tokens = random.Below(long_ones && random.Once(2) ? 1500 : 70);
      made.push_back(maker.Make(tokens, partial));
      made.back().view.shape = &made.back().shape;
    }
    sources.push_back(&made.back());
    lengths.push_back(made.back().tokens);
  }
  std::vector<RowsView> given;
  for (const Source* source : sources)
    given.push_back(source->view);
  if (wrong == 0) ++lengths.front();  // a token that the source may lack, and two for sure
  if (wrong == 0) ++lengths.front();
  const std::int64_t last = sources.back()->first + sources.back()->count;
  if (wrong == 7) lengths.back() = std::max<std::int64_t>(last - 1, 0);
  const RowPlan plan = RandomPlan(random, lengths);

  RouterTensors out;
  out.packed = random.Once(3);
  static constexpr IdType kTypes[] = {IdType::kUint8, IdType::kUint16, IdType::kInt16,
                                      IdType::kInt32, IdType::kInt64};
  do {
    out.id_type = out.packed ? StoredIdType(experts) : random.Of(kTypes);
  } while ((out.id_type == IdType::kUint8 && experts > 256) ||
           (out.id_type == IdType::kInt16 && experts > 32768));
  out.fill = static_cast<RouteFill>(random.Below(2));
  const auto rows = static_cast<std::size_t>(plan.rows);
  const bool masked = !random.Once(4);
  bool refused = wrong == 0 && !partial;
  if (wrong == 1) layers[random.Index(layers.size())] = 12, refused = true;  // no source has it
  if (wrong == 2 && layers.size() > 1) layers.front() = layers.back(), refused = true;
  if (wrong == 3) given.pop_back(), refused = true;
  if (wrong == 4 && out.packed) {
    out.id_type = IdType::kInt32;
    refused = true;
  }
  RoutingShape other;
  if (wrong == 5 && given.size() > 1) {
    other = sources.back()->shape;
    ++other.num_experts;
    given.back() = RowsView{&other, 0, 0, nullptr, 0, nullptr, 1};
    refused = true;
  }
  const std::size_t ids_bytes =
      layers.size() * rows * static_cast<std::size_t>(top_k) * IdBytes(out.id_type);
  const Out ids(wrong == 6 ? ids_bytes + 1 : ids_bytes, random);
  const Out mask(!masked ? 0 : wrong == 8 ? rows + 1 : rows, random);
  refused = refused || (masked && wrong == 8);
  // The fill would be an expert, or is not stored.
  refused = refused || (out.fill == RouteFill::kMinusOne &&
                        (out.packed || (out.id_type == IdType::kUint8 && experts == 256)));
  refused = refused || wrong == 6 || (wrong == 7 && last != 0);
  out.ids = ids.bytes();
  if (masked) out.mask = mask.bytes();

  const absl::StatusOr<FillReport> report =
      FillRouterTensors(plan, given, layers, out, {.partial = partial});
  if (refused) {
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument)
        << "wrong " << wrong << ": " << report.status();
    EXPECT_TRUE(ids.untouched() && mask.untouched()) << "wrong " << wrong;
    return;
  }
  ASSERT_TRUE(report.ok()) << report.status();
  const Wanted wanted = Model(plan, sources, layers, out);
  ASSERT_EQ(mask.Differs(wanted.mask), -1);
  const std::ptrdiff_t differs = ids.Differs(wanted.ids);
  ASSERT_EQ(differs, -1) << "of " << ids_bytes << " bytes" << (out.packed ? ", packed" : "");
  ExpectReport(*report, wanted);
}

TEST(FillRandom, EveryRowOfEverySourceIsInItsPlace) {
  const std::uint64_t seed = TestSeed();
  std::cout << "WAYMARK_SEED=" << seed << "\n";
  Random random(seed);
  const int rounds = Rounds(PlainOr(1200, 150));
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("WAYMARK_SEED=" + std::to_string(seed) + ", round " + std::to_string(round));
    RunCase(random);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace waymark
