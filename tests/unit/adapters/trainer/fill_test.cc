// FillRouterTensors against a loop over rows and layers, from every kind of source.
#include "adapters/trainer/fill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "blockstore/wire/document_writer.h"
#include "tests/unit/blockstore/store/store_driver.h"
#include "tests/unit/blockstore/test_seed.h"
#include "tests/unit/blockstore/wire/fetch_support.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

constexpr std::int32_t kLayers = 6;

RoutingShape Shape(std::int32_t experts = 64) {
  return {.num_layers = kLayers,
          .top_k = 4,
          .num_experts = experts,
          .page_tokens = 4,
          .layer_ids = {1, 2, 4, 5, 6, 9}};
}

// The routing of a sequence: number -1 is a missing row.
struct Sequence {
  std::vector<int> numbers;  // of its rows
  std::int64_t tokens = 0;

  [[nodiscard]] Rows ToRows(const RoutingShape& shape) const {
    Rows rows;
    rows.shape = shape;
    rows.ids.resize(numbers.size() * shape.row_bytes());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] < 0) {
        rows.infos.push_back({.reason = Reason::kNotCaptured});
        continue;
      }
      rows.infos.push_back({.step = 1, .version = 1, .reason = Reason::kNone});
      NumberedRows::Fill(shape, numbers[i], rows.ids.data() + i * shape.row_bytes());
    }
    return rows;
  }
};

// Layers of rows.
Rows OfLayers(const Rows& rows, const std::vector<std::int32_t>& columns) {
  Rows part;
  part.infos = rows.infos;
  part.shape = rows.shape;
  part.shape.num_layers = static_cast<std::int32_t>(columns.size());
  part.shape.layer_ids.clear();
  const std::size_t layer_bytes =
      static_cast<std::size_t>(rows.shape.top_k) * rows.shape.id_bytes();
  for (const std::int32_t column : columns)
    part.shape.layer_ids.push_back(rows.shape.layer_id(column));
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    for (const std::int32_t column : columns) {
      const auto ids =
          rows.row(i).subspan(static_cast<std::size_t>(column) * layer_bytes, layer_bytes);
      part.ids.insert(part.ids.end(), ids.begin(), ids.end());
    }
  }
  return part;
}

// Sources of each kind, and what they need.
class Sources {
 public:
  explicit Sources(const RoutingShape& shape) : shape_(shape) {
    StoreOptions options = StoreDriver::Options();
    options.shape = shape;
    options.num_blocks = 2048;
    driver_ = std::make_unique<StoreDriver>(options);
    page_source_ = std::make_unique<wire::MemorySource>(std::size_t{1} << 24);
    publisher_ = wire::Publisher::Create(page_source_.get(), {.shape = {shape, {}}}).value();
    fetcher_ = std::make_unique<wire::Fetcher>(page_source_.get());
  }

  enum Kind { kView, kSnapshot, kDocument, kHandle, kKinds };

  // `columns`: the layers that the source has; snapshots and handles have all.
  void Add(Kind kind, const Sequence& sequence, const std::vector<std::int32_t>& columns) {
    const Rows all = sequence.ToRows(shape_);
    switch (kind) {
      case kSnapshot:
        snapshots_.push_back(Store(sequence));
        sources.emplace_back(&snapshots_.back());
        return;
      case kHandle: {
        handles_.push_back(wire::PublishRows(*publisher_, "", all).value());
        sources.emplace_back(
            RowsByHandle{fetcher_.get(), &handles_.back(), wire::After(std::chrono::seconds(10))});
        return;
      }
      case kDocument:
        bytes_.push_back(wire::WriteDocument(OfLayers(all, columns)).value());
        documents_.push_back(wire::Document::Open(bytes_.back()).value());
        sources.emplace_back(&documents_.back());
        return;
      default:
        rows_.push_back(OfLayers(all, columns));
        sources.emplace_back(ViewOf(rows_.back()));
    }
  }

  std::vector<RowSource> sources;

 private:
  Snapshot Store(const Sequence& sequence) {
    std::vector<int> blocks;
    std::vector<Event> events;
    const auto rows = static_cast<int>(sequence.numbers.size());
    for (int at = 0; at < rows; at += 4) {
      blocks.push_back(next_block_++);
      events.push_back(Bind(blocks.back()));
    }
    driver_->Step(++step_, events, driver_->Slots(blocks, 0, rows), sequence.numbers);
    return driver_->Take(blocks, 0, rows);
  }

  const RoutingShape shape_;
  std::unique_ptr<StoreDriver> driver_;
  std::unique_ptr<wire::MemorySource> page_source_;
  std::unique_ptr<wire::Publisher> publisher_;
  std::unique_ptr<wire::Fetcher> fetcher_;
  int next_block_ = 0;
  std::uint64_t step_ = 0;
  std::deque<Snapshot> snapshots_;
  std::deque<Rows> rows_;
  std::deque<std::vector<std::uint8_t>> bytes_;
  std::deque<wire::Document> documents_;
  std::deque<wire::Handle> handles_;
};

std::int64_t IdAt(const std::uint8_t* at, IdType type) {
  std::uint64_t id = 0;
  std::memcpy(&id, at, IdBytes(type));
  return static_cast<std::int64_t>(id);
}

// What FillRouterTensors must write, row by row.
void ExpectFilled(const RowPlan& plan, const std::vector<Sequence>& sequences,
                  const std::vector<std::int32_t>& layers, const RouterTensors& out,
                  const FillReport& report, const std::string& where) {
  const RoutingShape shape = Shape();
  const std::size_t bytes = IdBytes(out.id_type);
  const auto rows = static_cast<std::size_t>(plan.rows());
  const auto top_k = static_cast<std::size_t>(shape.top_k);
  std::vector<TokenPlace> places(rows);
  plan.Places(places);
  FillReport wanted;
  std::vector<std::uint8_t> row_ids(shape.row_bytes());
  for (std::size_t row = 0; row < rows; ++row) {
    const TokenPlace& place = places[row];
    int number = -1;
    if (place.sequence < 0) {
      ++wanted.padding;
    } else {
      const Sequence& sequence = sequences[static_cast<std::size_t>(place.sequence)];
      const auto at = static_cast<std::size_t>(place.position);
      if (at < sequence.numbers.size()) number = sequence.numbers[at];
      if (number >= 0) {
        ++wanted.replayed;
      } else if (at >= sequence.numbers.size()) {
        ++wanted.no_row;
      } else {
        ++wanted.missing[static_cast<std::size_t>(Reason::kNotCaptured)];
        const TokenPlace& first = wanted.first_missing;
        if (first.sequence < 0 || place.sequence < first.sequence ||
            (place.sequence == first.sequence && place.position < first.position)) {
          wanted.first_missing = place;
        }
      }
    }
    if (!out.mask.empty()) {
      ASSERT_EQ(out.mask[row], number >= 0) << where;
    }
    if (number >= 0) NumberedRows::Fill(shape, number, row_ids.data());
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const auto column = static_cast<std::size_t>(
          std::find(shape.layer_ids.begin(), shape.layer_ids.end(), layers[l]) -
          shape.layer_ids.begin());
      for (std::size_t k = 0; k < top_k; ++k) {
        std::int64_t id = out.fill == Fill::kArange ? static_cast<std::int64_t>(k) : 0;
        if (number >= 0) id = row_ids[column * top_k + k];
        ASSERT_EQ(IdAt(out.ids.data() + ((l * rows + row) * top_k + k) * bytes, out.id_type), id)
            << where << ", layer " << layers[l] << ", row " << row;
      }
    }
  }
  EXPECT_EQ(report.replayed, wanted.replayed) << where;
  EXPECT_EQ(report.padding, wanted.padding) << where;
  EXPECT_EQ(report.no_row, wanted.no_row) << where;
  EXPECT_EQ(report.missing, wanted.missing) << where;
  EXPECT_EQ(report.first_missing, wanted.first_missing) << where;
}

TEST(FillRouterTensors, EveryRowOfEverySourceIsInItsPlace) {
  const std::uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int n = 0; n < 300; ++n) {
    const std::string where = "seed " + std::to_string(seed) + ", case " + std::to_string(n);
    TrainerLayout layout;
    layout.order = static_cast<TokenOrder>(random() % 3);
    layout.context_cut = static_cast<ContextCut>(random() % 2);
    layout.context_size = static_cast<std::int32_t>(1 + random() % 2);
    layout.context_rank = static_cast<std::int32_t>(random()) & (layout.context_size - 1);
    layout.tensor_size = 2;
    layout.tensor_rank = static_cast<std::int32_t>(random() % 2);
    layout.sequence_parallel = random() % 2 == 0;
    layout.sequence_multiple = 8;

    // Of the layers that the tensors have, every source has all.
    std::vector<std::int32_t> columns(kLayers);
    for (std::size_t c = 0; c < columns.size(); ++c)
      columns[c] = static_cast<std::int32_t>(c);
    std::shuffle(columns.begin(), columns.end(), random);
    columns.resize(1 + random() % kLayers);
    if (random() % 2 == 0) std::sort(columns.begin(), columns.end());
    std::vector<std::int32_t> layers;
    for (const std::int32_t column : columns)
      layers.push_back(Shape().layer_id(column));

    Sources sources(Shape());
    std::vector<Sequence> sequences(1 + random() % 4);
    std::vector<std::int64_t> lengths;
    for (Sequence& sequence : sequences) {
      // Rows are found and written 512 at a time.
      sequence.tokens = static_cast<std::int64_t>(1 + random() % (random() % 6 == 0 ? 1500 : 40));
      const std::int64_t rows = sequence.tokens - static_cast<std::int64_t>(random() % 2);
      for (std::int64_t i = 0; i < rows; ++i)
        sequence.numbers.push_back(random() % 8 == 0 ? -1 : static_cast<int>(random() % 100000));
      lengths.push_back(sequence.tokens);
      std::vector<std::int32_t> has = columns;
      for (std::int32_t column = 0; column < kLayers; ++column) {
        if (random() % 2 == 0) has.push_back(column);
      }
      std::sort(has.begin(), has.end());
      has.erase(std::unique(has.begin(), has.end()), has.end());
      auto kind = static_cast<Sources::Kind>(random() % Sources::kKinds);
      if (rows == 0) kind = Sources::kView;  // nothing to take a snapshot of
      sources.Add(kind, sequence, has);
    }
    const absl::StatusOr<RowPlan> plan = RowPlan::Make(layout, lengths);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const IdType types[] = {IdType::kInt64, IdType::kInt32, IdType::kUint8, IdType::kInt16};
    RouterTensors out;
    out.id_type = types[random() % 4];
    out.fill = random() % 2 == 0 ? Fill::kArange : Fill::kZeros;
    std::vector<std::uint8_t> ids(
        layers.size() * static_cast<std::size_t>(plan->rows()) * 4 * IdBytes(out.id_type), 0xee);
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(plan->rows()), 0xee);
    out.ids = ids;
    if (random() % 4 != 0) out.mask = mask;
    const absl::StatusOr<FillReport> report =
        FillRouterTensors(*plan, sources.sources, layers, out);
    ASSERT_TRUE(report.ok()) << report.status() << ", " << where;
    ExpectFilled(*plan, sequences, layers, out, *report, where);
    if (HasFatalFailure()) return;
  }
}

// One packed sequence of rows in memory, layers {1, 2}, int64.
struct One {
  explicit One(std::int64_t of_tokens, std::vector<int> numbers)
      : tokens(of_tokens), rows(Sequence{std::move(numbers), of_tokens}.ToRows(Shape())) {}

  absl::StatusOr<FillReport> Fill(const FillOptions& options = {}) {
    const std::int64_t lengths[] = {tokens};
    const absl::StatusOr<RowPlan> plan = RowPlan::Make({}, lengths);
    if (!plan.ok()) return plan.status();
    ids.assign(layers.size() * static_cast<std::size_t>(tokens) * 4, -7);
    mask.assign(static_cast<std::size_t>(tokens), 7);
    RouterTensors out;
    out.ids = {reinterpret_cast<std::uint8_t*>(ids.data()), ids.size() * 8};
    out.mask = mask;
    const RowSource sources[] = {ViewOf(rows)};
    return FillRouterTensors(*plan, sources, layers, out, options);
  }
  [[nodiscard]] bool untouched() const {
    return std::all_of(ids.begin(), ids.end(), [](std::int64_t id) { return id == -7; }) &&
           std::all_of(mask.begin(), mask.end(), [](std::uint8_t m) { return m == 7; });
  }

  std::int64_t tokens;
  Rows rows;
  std::vector<std::int32_t> layers = {1, 2};
  std::vector<std::int64_t> ids;
  std::vector<std::uint8_t> mask;
};

std::string Refusal(One& one, const FillOptions& options = {}) {
  const absl::StatusOr<FillReport> report = one.Fill(options);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(one.untouched());
  return std::string(report.status().message());
}

// Megatron-Core takes a tensor that is a row short in silence.
TEST(FillRouterTensors, ARowTooFewOrTooManyIsRefused) {
  One with_last(4, {1, 2, 3, 4});
  EXPECT_EQ(with_last.Fill()->replayed, 4);
  One without_last(4, {1, 2, 3});
  EXPECT_EQ(without_last.Fill()->no_row, 1);
  One short_by_one(4, {1, 2});
  EXPECT_EQ(Refusal(short_by_one),
            "sources[0]: must have rows [0, 3) or [0, 4) of 4 tokens, got [0, 2)");
  One too_many(4, {1, 2, 3, 4, 5});
  EXPECT_THAT(Refusal(too_many), HasSubstr("got [0, 5)"));
  EXPECT_THAT(Refusal(too_many, {.partial = true}), HasSubstr("got [0, 5)"));
  One later(4, {1, 2, 3});
  later.rows.first = 1;
  EXPECT_THAT(Refusal(later), HasSubstr("got [1, 4)"));
}

TEST(FillRouterTensors, PartialSourcesMissTheirRows) {
  One one(6, {1, 2});
  one.rows.first = 1;
  const absl::StatusOr<FillReport> report = one.Fill({.partial = true});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(one.mask, ::testing::ElementsAre(0, 1, 1, 0, 0, 0));
  EXPECT_EQ(report->missing[static_cast<std::size_t>(Reason::kNeverWritten)], 3);
  EXPECT_EQ(report->no_row, 1);
  EXPECT_EQ(report->first_missing, (TokenPlace{0, 0}));
}

// The rows that a source has go where those of the whole sequence would.
TEST(FillRouterTensors, PartialSourcesKeepTheirPlacesInABatch) {
  const std::int64_t lengths[] = {6, 6};
  const RowPlan plan = *RowPlan::Make({.order = TokenOrder::kSequenceMajor}, lengths);
  std::vector<Rows> parts;
  for (const int first : {1, 2}) {
    Sequence sequence;
    for (int position = first; position < 5; ++position)
      sequence.numbers.push_back(100 * first + position);
    parts.push_back(sequence.ToRows(Shape()));
    parts.back().first = first;
  }
  const std::int32_t layers[] = {4};  // column 2
  std::vector<std::int64_t> ids(12 * 4);
  std::vector<std::uint8_t> mask(12);
  RouterTensors out;
  out.ids = {reinterpret_cast<std::uint8_t*>(ids.data()), ids.size() * 8};
  out.mask = mask;
  const RowSource sources[] = {ViewOf(parts[0]), ViewOf(parts[1])};
  const auto report = FillRouterTensors(plan, sources, layers, out, {.partial = true});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->replayed, 7);
  EXPECT_EQ(report->first_missing, (TokenPlace{0, 0}));
  std::vector<std::uint8_t> row(Shape().row_bytes());
  for (std::int64_t position = 0; position < 6; ++position) {
    for (std::int64_t sequence = 0; sequence < 2; ++sequence) {
      const auto at = static_cast<std::size_t>(position * 2 + sequence);
      const std::int64_t first = sequence + 1;
      ASSERT_EQ(mask[at], position >= first && position < 5);
      if (mask[at] == 0) continue;
      NumberedRows::Fill(Shape(), static_cast<int>(100 * first + position), row.data());
      for (std::size_t k = 0; k < 4; ++k)
        EXPECT_EQ(ids[at * 4 + k], row[2 * 4 + k]) << position << ", " << sequence;
    }
  }
}

// Duplicates are computed on in silence, or break the dispatcher.
TEST(FillRouterTensors, IdsThatNoRouterChoosesMakeTheRowMissing) {
  One twice(3, {1, 2, 3});
  twice.rows.ids[Shape().row_bytes()] = twice.rows.ids[Shape().row_bytes() + 1];  // layer 1
  One out_of_range(3, {1, 2, 3});
  out_of_range.rows.ids[Shape().row_bytes() + 7] = 64;  // layer 2
  for (One* one : {&twice, &out_of_range}) {
    const absl::StatusOr<FillReport> report = one->Fill();
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(one->mask, ::testing::ElementsAre(1, 0, 1));
    EXPECT_EQ(report->missing[static_cast<std::size_t>(Reason::kInvalidId)], 1);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      for (std::size_t k = 0; k < 4; ++k)
        EXPECT_EQ(one->ids[(layer * 3 + 1) * 4 + k], static_cast<std::int64_t>(k));
    }
  }
  One elsewhere(3, {1, 2, 3});  // in a layer that is not asked for
  elsewhere.rows.ids[Shape().row_bytes() + 8] = elsewhere.rows.ids[Shape().row_bytes() + 9];
  EXPECT_EQ(elsewhere.Fill()->replayed, 3);
}

TEST(FillRouterTensors, RefusesWhatItCannotFillAndNamesIt) {
  One one(3, {1, 2, 3});
  one.layers = {1, 3};
  EXPECT_EQ(Refusal(one), "layers[1]: must be a layer of sources[0], got 3");
  one.layers = {1, 2, 1};
  EXPECT_EQ(Refusal(one), "layers[2]: must be distinct, got 1 twice");
  one.layers = {};
  EXPECT_EQ(Refusal(one), "layers: must be at least one, got 0");

  const std::int64_t lengths[] = {3, 3};
  const RowPlan plan = *RowPlan::Make({}, lengths);
  std::vector<std::uint8_t> ids(6 * 4 * 8);
  std::vector<std::uint8_t> mask(6);
  const std::int32_t layers[] = {1};
  const RowsView view = ViewOf(one.rows);
  RoutingShape other = Shape(128);
  RowsView of_other = view;
  of_other.shape = &other;
  const auto refusal = [&](std::vector<RowSource> sources, RouterTensors out) {
    return std::string(FillRouterTensors(plan, sources, layers, out).status().message());
  };
  EXPECT_THAT(refusal({view}, {.ids = ids}), HasSubstr("sources: must be one for each of 2"));
  EXPECT_THAT(refusal({view, of_other}, {.ids = ids}),
              HasSubstr("sources[1]: must have K = 4 and E = 64"));
  EXPECT_THAT(refusal({view, view}, {.ids = std::span(ids).first(8)}),
              HasSubstr("ids: must be 192 bytes, [layers][rows][K] = [1][6][4], got 8"));
  EXPECT_THAT(refusal({view, view}, {.ids = ids, .mask = std::span(mask).first(5)}),
              HasSubstr("mask: must be empty or 6 bytes"));
  const Snapshot empty;
  EXPECT_THAT(refusal({view, &empty}, {.ids = ids}), HasSubstr("sources[1]: must have rows"));

  One wide(3, {1, 2, 3});
  wide.rows.shape.num_experts = 300;
  std::vector<std::uint8_t> two_bytes(wide.rows.ids.size() * 2);
  wide.rows.ids = two_bytes;
  const RowsView of_wide = ViewOf(wide.rows);
  EXPECT_THAT(
      refusal({of_wide, of_wide}, {.id_type = IdType::kUint8, .ids = std::span(ids).first(24)}),
      HasSubstr("id_type: must hold ids up to 299"));
}

// Sets internal::before_confirm as long as it exists.
class BeforeConfirm {
 public:
  explicit BeforeConfirm(std::function<void()> what) {
    What() = std::move(what);
    internal::before_confirm = [] { What()(); };
  }
  ~BeforeConfirm() { internal::before_confirm = nullptr; }
  BeforeConfirm(const BeforeConfirm&) = delete;
  BeforeConfirm& operator=(const BeforeConfirm&) = delete;

 private:
  static std::function<void()>& What() {
    static std::function<void()> what;
    return what;
  }
};

// The audit of the store voids a page of a snapshot after its rows were found and written, and
// before they are confirmed.
TEST(FillRouterTensors, RowsThatAreVoidedMeanwhileAreMissing) {
  StoreOptions options = StoreDriver::Options();
  options.shape = Shape();
  options.audit = true;
  StoreDriver driver(options);
  driver.Step(1, {Bind(0), Seal(0, 1, 1), Bind(1)}, driver.Slots({0, 1}, 0, 8),
              {1, 2, 3, 4, 5, 6, 7, 8});
  const Snapshot snapshot = driver.Take({0, 1}, 0, 8);
  const Rows more = Sequence{{9, 10, 11, 12}, 4}.ToRows(Shape());
  int calls = 0;
  const BeforeConfirm audit([&] {
    if (++calls == 1) driver.Step(2, {}, driver.Slots({0}, 0, 4), {101, 102, 103, 104});
  });
  const std::int64_t lengths[] = {8, 4};
  const RowPlan plan = *RowPlan::Make({}, lengths);
  std::vector<std::uint8_t> ids(2 * 12 * 4);
  std::vector<std::uint8_t> mask(12);
  RouterTensors out;
  out.id_type = IdType::kUint8;
  out.ids = ids;
  out.mask = mask;
  const RowSource sources[] = {&snapshot, ViewOf(more)};
  const std::int32_t layers[] = {1, 9};
  const absl::StatusOr<FillReport> report = FillRouterTensors(plan, sources, layers, out);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(calls, 2);  // written again, and confirmed
  EXPECT_THAT(mask, ::testing::ElementsAre(0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_EQ(report->replayed, 8);
  EXPECT_EQ(report->missing[static_cast<std::size_t>(Reason::kAudit)], 4);
  EXPECT_EQ(report->first_missing, (TokenPlace{0, 0}));
  for (std::size_t row = 0; row < 12; ++row) {
    std::vector<std::uint8_t> wanted(Shape().row_bytes());
    NumberedRows::Fill(Shape(), static_cast<int>(row) + 1, wanted.data());
    for (std::size_t k = 0; k < 4; ++k) {
      EXPECT_EQ(ids[row * 4 + k], row < 4 ? k : wanted[k]) << row;
      EXPECT_EQ(ids[(12 + row) * 4 + k], row < 4 ? k : wanted[5 * 4 + k]) << row;
    }
  }
}

// Every rank refuses a snapshot that is not ready. One that has no token of the sequence took it,
// so that of the ranks of a step some filled and others did not.
TEST(FillRouterTensors, ASnapshotThatIsNotReadyIsRefusedByEveryRank) {
  StoreOptions options = StoreDriver::Options();
  options.shape = Shape();
  StoreDriver driver(options);
  driver.Begin(1, {Bind(0)}, driver.Slots({0}, 0, 4));
  const Snapshot snapshot = driver.Take({0}, 0, 4);
  const Rows rows = Sequence{{5, 6, 7, 8}, 4}.ToRows(Shape());
  const RowSource sources[] = {&snapshot, ViewOf(rows)};
  const std::int64_t lengths[] = {4, 4};
  const std::int32_t layers[] = {1};
  std::vector<std::uint8_t> ids(4 * 4, 0xa5);
  RouterTensors out;
  out.id_type = IdType::kUint8;
  out.ids = ids;
  for (const std::int32_t rank : {0, 1}) {
    const TrainerLayout layout{
        .context_cut = ContextCut::kStream, .context_size = 2, .context_rank = rank};
    const RowPlan plan = *RowPlan::Make(layout, lengths);
    const absl::Status status = FillRouterTensors(plan, sources, layers, out).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << rank;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("sources[0]: ")) << rank;
    EXPECT_EQ(ids, std::vector<std::uint8_t>(ids.size(), 0xa5)) << rank;
  }
  driver.Land(1, {1, 2, 3, 4});
  const TrainerLayout layout{
      .context_cut = ContextCut::kStream, .context_size = 2, .context_rank = 1};
  EXPECT_TRUE(FillRouterTensors(*RowPlan::Make(layout, lengths), sources, layers, out).ok());
}

// A chunk is damaged in one layer run only: its rows are missing in all.
TEST(FillRouterTensors, RowsThatAreDamagedInOneLayerAreMissingInAll) {
  const Sequence sequence{{1, 2, 3, 4, 5, 6, 7, 8}, 8};
  wire::DocumentOptions options;
  options.code.crc_layers = 1;
  std::vector<std::uint8_t> bytes = wire::WriteDocument(sequence.ToRows(Shape()), options).value();
  const std::size_t row = Shape().row_bytes();
  // Layers of the first chunk, [L][4][K]: find its last layer, and damage an id of it.
  std::vector<std::uint8_t> last_layer;
  for (int number = 1; number <= 4; ++number) {
    std::vector<std::uint8_t> ids(row);
    NumberedRows::Fill(Shape(), number, ids.data());
    last_layer.insert(last_layer.end(), ids.end() - 4, ids.end());
  }
  const auto found = std::search(bytes.begin(), bytes.end(), last_layer.begin(), last_layer.end());
  ASSERT_NE(found, bytes.end());
  *found ^= 1;
  const wire::Document document = wire::Document::Open(bytes).value();
  const std::int64_t lengths[] = {8};
  const RowPlan plan = *RowPlan::Make({}, lengths);
  std::vector<std::uint8_t> ids(2 * 8 * 4 * 8);
  std::vector<std::uint8_t> mask(8);
  const RowSource sources[] = {&document};
  RouterTensors out;
  out.ids = ids;
  out.mask = mask;
  const std::int32_t apart[] = {1, 9};
  const absl::StatusOr<FillReport> report = FillRouterTensors(plan, sources, apart, out);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(mask, ::testing::ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_EQ(report->missing[static_cast<std::size_t>(Reason::kNotCaptured)], 4);
  for (std::size_t k = 0; k < 4; ++k) {
    EXPECT_EQ(IdAt(ids.data() + k * 8, IdType::kInt64), static_cast<std::int64_t>(k));
  }
}

}  // namespace
}  // namespace waymark
