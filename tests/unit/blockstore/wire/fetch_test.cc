// Handles there and back over sources in memory and in files: what is fetched is what was
// published, crosses once, and is missing where its objects were lost or damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "blockstore/wire/file_source.h"
#include "blockstore/wire/publisher.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"
#include "tests/support/wire_samples.h"
#include "tests/unit/blockstore/wire/fetch_support.h"

namespace waymark::wire {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPlenty = std::size_t{1} << 30;

// Answers one digest with the object of another.
class OtherNames final : public OverSource {
 public:
  OtherNames(PageSource* source, const Digest128& asked, const Digest128& answered)
      : OverSource(source), asked_(asked), answered_(answered) {}

  absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                   std::span<Object> objects) override {
    std::vector<Digest128> names(digests.begin(), digests.end());
    std::replace(names.begin(), names.end(), asked_, answered_);
    return OverSource::Get(names, deadline, objects);
  }
  absl::Status GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                         std::span<Object> objects) override {
    std::vector<ObjectRange> named(ranges.begin(), ranges.end());
    for (ObjectRange& range : named) {
      if (range.digest == asked_) range.digest = answered_;
    }
    return OverSource::GetRanges(named, deadline, objects);
  }

 private:
  const Digest128 asked_;
  const Digest128 answered_;
};

// Counts the calls that a fetcher makes: each is a round trip.
class CountingSource final : public OverSource {
 public:
  using OverSource::OverSource;

  absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                   std::span<Object> objects) override {
    ++calls;
    return OverSource::Get(digests, deadline, objects);
  }
  absl::Status GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                         std::span<Object> objects) override {
    ++calls;
    return OverSource::GetRanges(ranges, deadline, objects);
  }

  int calls = 0;
};

// Calls `round` with a generator of its own, again and again, until a check fails.
template <class Round>
void ForSeeds(std::uint64_t rounds, Round round) {
  const std::uint64_t seed = TestSeed();
  for (std::uint64_t n = 0; n < rounds && !::testing::Test::HasFailure(); ++n) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << n);
    std::mt19937_64 random(seed + n);
    round(random);
  }
}

RowsAndLayers RandomPart(std::mt19937_64& random, std::int64_t rows, std::int32_t layers) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  RowsAndLayers part{0, rows, 0, layers};
  if (random() % 3 != 0) {
    part.row_begin = below(rows + 1);
    part.row_end = part.row_begin + below(rows - part.row_begin + 1);
  }
  if (random() % 3 != 0) {
    part.layer_begin = static_cast<std::int32_t>(below(layers));
    part.layer_end =
        part.layer_begin + 1 + static_cast<std::int32_t>(below(layers - part.layer_begin));
  }
  return part;
}

struct Sample {
  explicit Sample(std::mt19937_64& random, std::size_t most_rows = 400) {
    shape.rows = wire_samples::RandomShape(random);
    shape.code = wire_samples::RandomCode(random, shape.rows);
    rows = wire_samples::RandomRows(random, shape.rows, random() % most_rows);
    rows.first = 0;
  }
  [[nodiscard]] std::unique_ptr<Publisher> MakePublisher(PageSource* source) const {
    return Publisher::Create(source, {.shape = shape, .store = "here"}).value();
  }

  WireShape shape;
  Rows rows;
};

// The same conversation with another end.
Rows WithOtherEnd(Rows rows, std::int64_t from, std::uint8_t salt) {
  for (std::size_t i = static_cast<std::size_t>(from) * rows.shape.row_bytes(); i < rows.ids.size();
       ++i)
    rows.ids[i] = static_cast<std::uint8_t>(rows.ids[i] ^ salt);
  return rows;
}

TEST(Fetch, AnyRowsThereAndBack) {
  ForSeeds(150, [&](std::mt19937_64& random) {
    const Sample sample(random);
    MemorySource source(kPlenty);
    const auto publisher = sample.MakePublisher(&source);
    const auto published = PublishRows(*publisher, "", sample.rows).value();
    EXPECT_EQ(published.store, "here");
    const auto bytes = EncodeHandle(published).value();
    const auto handle = ParseHandle(bytes).value();
    Fetcher fetcher(&source, {.batch_bytes = random() % 5000, .whole_chunks = random() % 3 == 0});
    for (int read = 0; read < 4; ++read) {
      const RowsAndLayers part =
          RandomPart(random, sample.rows.size(), sample.shape.rows.num_layers);
      FetchReport report;
      const auto rows = fetcher.Fetch(handle, part, Soon(), &report).value();
      ExpectSame(rows, ByDocument(sample.rows, sample.shape.code, part));
      EXPECT_EQ(report.counts.absent + report.counts.damaged, 0u);
      EXPECT_TRUE(report.source.ok());
    }
  });
}

TEST(Fetch, WhatGoesOnIsWhatIsWhole) {
  ForSeeds(PlainOr(100u, 30u), [&](std::mt19937_64& random) {
    const Sample sample(random, 1500);
    MemorySource source(kPlenty);
    const auto publisher = sample.MakePublisher(&source);
    Fetcher fetcher(&source);
    std::int64_t at = 0;
    Handle handle;
    while (at < sample.rows.size()) {
      // Either only what is new, or everything again.
      const std::int64_t end = std::min<std::int64_t>(
          sample.rows.size(),
          at + 1 + static_cast<std::int64_t>(random() % (random() % 2 == 0 ? 5 : 500)));
      const bool again = random() % 4 == 0;
      const auto published =
          PublishRows(*publisher, "s", Slice(sample.rows, again ? 0 : at, end)).value();
      handle = published;
      at = end;
      ASSERT_EQ(handle.rows, at);
      // Parts that touch some of the tail's segments, or none, included.
      RowsAndLayers part = RandomPart(random, at, sample.shape.rows.num_layers);
      if (random() % 2 == 0)
        part.row_begin = part.row_end - std::min<std::int64_t>(part.row_end, 3);
      const auto rows = fetcher.Fetch(handle, part, Soon()).value();
      ExpectSame(rows, ByDocument(Slice(sample.rows, 0, at), sample.shape.code, part));
    }
    const auto whole = PublishRows(*publisher, "", sample.rows).value();
    EXPECT_EQ(whole.head, handle.head);
    EXPECT_EQ(whole.provenance, handle.provenance);
  });
}

TEST(Fetch, RowsThatDoNotGoOnAreRefused) {
  std::mt19937_64 random(3);
  Sample sample(random);
  sample.rows = wire_samples::RandomRows(random, sample.shape.rows, 40);
  sample.rows.first = 0;
  MemorySource source(kPlenty);
  const auto publisher = sample.MakePublisher(&source);
  const auto refused = [&](const std::string& name, Rows rows) {
    const auto handle = PublishRows(*publisher, name, std::move(rows));
    EXPECT_FALSE(handle.ok());
    return std::string(handle.status().message());
  };
  EXPECT_THAT(refused("a", Slice(sample.rows, 3, 10)), HasSubstr("'a' is not known"));
  ASSERT_TRUE(PublishRows(*publisher, "a", Slice(sample.rows, 0, 10)).ok());
  EXPECT_THAT(refused("a", Slice(sample.rows, 11, 12)),
              HasSubstr("begin at 11, and 'a' has rows [0, 10)"));
  // Forgotten: what would have gone on does not.
  EXPECT_THAT(refused("a", Slice(sample.rows, 10, 12)), HasSubstr("has rows [0, 0)"));
  EXPECT_TRUE(PublishRows(*publisher, "a", Slice(sample.rows, 0, 10)).ok());
  EXPECT_THAT(refused("", Slice(sample.rows, 10, 12)), HasSubstr("is not known"));
  Rows other = Slice(sample.rows, 0, 10);
  other.shape.num_experts += 1;
  EXPECT_THAT(refused("b", other), HasSubstr("publisher's shape"));
  Rows sorted = Slice(sample.rows, 0, 10);
  sorted.ordered = false;
  if (sample.shape.code.ordered) {
    EXPECT_THAT(refused("b", sorted), HasSubstr("router's order"));
  } else {
    EXPECT_THAT(refused("b", other), HasSubstr("publisher's shape"));
  }
  EXPECT_EQ(publisher->GetStats().failed, 6u);
  EXPECT_EQ(publisher->GetStats().published, 2u);
}

RoutingShape ShortShape() {
  return {.num_layers = 2, .top_k = 2, .num_experts = 256, .page_tokens = 4};
}
// Rows [begin, end) of a sequence, all of them of step `step`.
Rows PartOfStep(std::int64_t begin, std::int64_t end, std::uint64_t step) {
  Rows rows = Slice(LongRows(ShortShape(), end), begin, end);
  for (RowInfo& info : rows.infos)
    info.step = step;
  return rows;
}

// Two requests under one name: whichever comes second is refused, and nothing of the first is lost.
// Rows of one request that continue those of another would be valid rows of the wrong request.
TEST(Fetch, ANameOfTwoRequestsCannotBeContinued) {
  // What a second publication of the whole sequence may look like, after rows [0, 300) of step 1
  // and row 300 of step 2, and whether it is of another request.
  struct Second {
    const char* what;
    Rows rows;
    bool other;
  };
  std::vector<Second> seconds = {{"more rows", PartOfStep(0, 310, 1), false},
                                 {"a row of a page of another step", PartOfStep(0, 310, 1), true},
                                 {"a row of the tail of another step", PartOfStep(0, 310, 1), true},
                                 {"fewer rows", PartOfStep(0, 300, 1), true},
                                 {"a missing row", PartOfStep(0, 310, 1), false}};
  for (Second& second : seconds)
    if (second.rows.size() > 300) second.rows.infos[300].step = 2;
  seconds[1].rows.infos[299].step = 9;
  seconds[2].rows.infos[300].step = 3;
  seconds[4].rows.infos[298] = {0, 0, Reason::kCapacity, {}};
  std::fill_n(
      seconds[4].rows.ids.begin() + 298 * static_cast<std::ptrdiff_t>(ShortShape().row_bytes()),
      ShortShape().row_bytes(), std::uint8_t{0});
  for (const Second& second : seconds) {
    SCOPED_TRACE(second.what);
    SourceOfRows at(ShortShape());
    Fetcher fetcher(&at.source);
    ASSERT_TRUE(at.Publish("a", PartOfStep(0, 300, 1)).ok());
    ASSERT_TRUE(at.Publish("a", PartOfStep(300, 301, 2)).ok());
    const auto handle = at.Publish("a", second.rows).value();
    ExpectSame(*fetcher.Fetch(handle, Soon()), second.rows);
    const std::int64_t end = second.rows.last();
    const auto next = at.Publish("a", PartOfStep(end, end + 1, 3));
    EXPECT_EQ(next.ok(), !second.other);
    if (second.other) {
      EXPECT_EQ(next.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(next.status().message(), HasSubstr("two have published under 'a'"));
    }
    // Whole sequences always can.
    EXPECT_TRUE(at.Publish("a", PartOfStep(0, 320, 1)).ok());
  }
}

// A name that was forgotten between two requests is that of the second alone.
TEST(Fetch, AForgottenNameIsThatOfTheNextRequest) {
  MemorySource source(kPlenty);
  Fetcher fetcher(&source);
  for (const bool forget : {false, true}) {
    const auto publisher =
        Publisher::Create(&source, {.shape = {ShortShape(), {}}, .max_sequences = 2}).value();
    EXPECT_TRUE(publisher->Forget("a").ok());  // nothing is remembered
    const Handle first = PublishRows(*publisher, "a", PartOfStep(0, 10, 1)).value();
    // Queued before it: still continues the sequence.
    Publisher::Result before = publisher->Publish("a", PartOfStep(10, 11, 1));
    if (forget) {
      EXPECT_TRUE(publisher->Forget("a").ok());
    }
    EXPECT_TRUE(before.get().ok());
    const auto whole = PublishRows(*publisher, "a", PartOfStep(0, 6, 2)).value();
    const auto more = PublishRows(*publisher, "a", PartOfStep(6, 7, 2));
    EXPECT_EQ(more.ok(), forget) << more.status();
    if (!forget) {
      EXPECT_THAT(more.status().message(), HasSubstr("forget a name"));
    }
    // What was published stays.
    ExpectSame(*fetcher.Fetch(first, Soon()), PartOfStep(0, 10, 1));
    // Rows that would continue a forgotten sequence are refused, and its place is free.
    EXPECT_TRUE(PublishRows(*publisher, "b", PartOfStep(0, 6, 2)).ok());
    EXPECT_TRUE(publisher->Forget("a").ok());
    EXPECT_EQ(PublishRows(*publisher, "a", PartOfStep(7, 8, 2)).status().code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(PublishRows(*publisher, "c", PartOfStep(0, 6, 2)).ok());
    EXPECT_TRUE(PublishRows(*publisher, "b", PartOfStep(6, 7, 2)).ok());
  }
}

TEST(Fetch, GroupsAndTurnsCrossOnce) {
  SourceOfRows at;
  Fetcher fetcher(&at.source);
  // Eight samples of one prompt: 1600 + 320 rows each, all pages complete.
  const Rows longest = LongRows(1920);
  std::uint64_t unique = static_cast<std::uint64_t>(1600 * longest.shape.row_bytes());
  for (std::uint8_t sample = 0; sample < 8; ++sample) {
    const auto handle = at.Publish("", WithOtherEnd(longest, 1600, sample)).value();
    const auto rows = fetcher.Fetch(handle, Soon()).value();
    ExpectSame(rows, WithOtherEnd(longest, 1600, sample));
    unique += static_cast<std::uint64_t>(320 * longest.shape.row_bytes());
  }
  const FetchCounts group = fetcher.GetCounts();
  EXPECT_GE(group.fetched_bytes, unique);
  EXPECT_LE(group.fetched_bytes, unique + unique / 20);
  // All of it again: nothing crosses.
  const auto handle = at.Publish("", longest);
  ASSERT_TRUE(fetcher.Fetch(*handle, Soon()).ok());
  EXPECT_EQ(fetcher.GetCounts().fetched_bytes, group.fetched_bytes);
  EXPECT_LE(at.publisher->GetStats().bytes_put, unique + unique / 20) << "each once";
  // A turn more: one node and its pages.
  const Rows longer = LongRows(2240);
  const auto turn = at.Publish("", longer);
  FetchReport report;
  const auto rows = fetcher.Fetch(*turn, Soon(), &report).value();
  ExpectSame(rows, longer);
  EXPECT_EQ(report.counts.fetched, 20u + 2u);  // pages; the node that was full now, and the next
  EXPECT_EQ(report.counts.hits, 120u + 1u);
}

TEST(Fetch, ATailGrowsBySegments) {
  SourceOfRows at;
  Fetcher fetcher(&at.source);
  std::vector<Digest128> tail;
  std::int64_t begin = 0;
  for (const std::int64_t end : {17, 20, 21, 31}) {
    // Only what is new, and everything again: the same segments.
    const auto handle = at.Publish("s", Slice(LongRows(end), begin, end)).value();
    ASSERT_EQ(handle.tail.size(), tail.size() + 1);
    EXPECT_TRUE(std::equal(tail.begin(), tail.end(), handle.tail.begin()));
    EXPECT_EQ(at.Publish("s", LongRows(end))->tail, handle.tail);
    tail = handle.tail;
    FetchReport report;
    const auto rows = fetcher.Fetch(handle, Soon(), &report).value();
    ExpectSame(rows, LongRows(end));
    EXPECT_EQ(report.counts.fetched, begin == 0 ? 3u : 1u);  // page, node and segment; segments
    begin = end;
  }
  // The page is complete: it takes the place of its segments.
  const auto handle = at.Publish("s", Slice(LongRows(32), 31, 32)).value();
  EXPECT_TRUE(handle.tail.empty());
  ExpectSame(*fetcher.Fetch(handle, Soon()), LongRows(32));
}

TEST(Fetch, ShardsFetchTheirBytesOnce) {
  SourceOfRows at(LongShape(), ChunkCode{.crc_layers = 1});
  const Rows rows = LongRows(1024);
  const auto handle = at.Publish("", rows);
  Fetcher fetcher(&at.source);
  const RowsAndLayers shard{256, 512, 10, 20};
  FetchReport report;
  const auto part = fetcher.Fetch(*handle, shard, Soon(), &report).value();
  ExpectSame(part, ByDocument(rows, handle->shape.code, shard));
  // 16 pages: 10 layers and all crcs each; and a node.
  EXPECT_EQ(report.counts.fetched, 17u);
  const std::uint64_t pages = 16 * (58 * 4 + 10 * 16 * 8);
  EXPECT_GT(report.counts.fetched_bytes, pages);
  EXPECT_LT(report.counts.fetched_bytes, pages + 1200);
  ASSERT_TRUE(fetcher.Fetch(*handle, shard, Soon(), &report).ok());
  EXPECT_EQ(report.counts.fetched, 0u);
  // Whole chunks: digests vouch, and every layer crosses.
  Fetcher whole(&at.source, {.whole_chunks = true});
  const auto same = whole.Fetch(*handle, shard, Soon(), &report).value();
  ExpectSame(same, part);
  EXPECT_GT(report.counts.fetched_bytes, 16u * 58 * 16 * 8);
}

// Regression: the layers of a chunk are cached under its digest. A node of another shape that names
// the same chunk had more bytes read from the cache than there were.
TEST(Fetch, CachedLayersOfAnotherShapeAreNone) {
  MemorySource source(kPlenty);
  RoutingShape shape{.num_layers = 64, .top_k = 1, .num_experts = 256, .page_tokens = 16};
  const auto publisher = Publisher::Create(&source, {.shape = {shape, {.crc_layers = 1}}}).value();
  const auto handle = PublishRows(*publisher, "", LongRows(shape, 16)).value();
  Object head;
  ASSERT_TRUE(source.Get({&handle.head, 1}, Soon(), {&head, 1}).ok());
  const auto node = ParseNode(head.bytes, ShapeDigest(handle.shape), 16).value();

  Handle larger = handle;
  larger.shape.rows.top_k = 16;
  larger.shape.rows.num_experts = 4096;
  larger.shape.rows.page_tokens = 4096;
  larger.rows = 4096;
  larger.provenance.resize(4096);
  const std::vector<RowInfo> infos(4096, {1, 1, Reason::kNone, {}});
  auto bytes = EncodeNode(ShapeDigest(larger.shape), 0, {}, node.chunks, 4096, infos);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  larger.head = ContentDigest(*bytes);
  const NamedObject named{larger.head, Object::Of(*std::move(bytes))};
  ASSERT_TRUE(source.Put({&named, 1}, Soon()).ok());

  Fetcher fetcher(&source);
  ASSERT_TRUE(fetcher.Fetch(handle, {0, 16, 0, 48}, Soon()).ok());
  const auto got = fetcher.Fetch(larger, {0, 4096, 0, 48}, Soon()).value();
  for (const RowInfo& info : got.infos)
    ASSERT_EQ(info.reason, Reason::kCapacity);
}

// Regression: a source whose index was off by one gave the layers and crcs of another chunk, which
// fit each other: 16 of 16 rows were valid and wrong.
TEST(Fetch, ARangeOfAnotherObjectIsNoRange) {
  SourceOfRows at;
  const Rows rows = LongRows(64);
  const auto handle = at.Publish("", rows);
  const std::vector<Digest128> chunks = at.ChunksOf(*handle);
  OtherNames source(&at.source, chunks[2], chunks[1]);
  Fetcher fetcher(&source);
  for (const RowsAndLayers& part : {RowsAndLayers{0, 64, 0, 15}, {20, 64, 40, 58}}) {
    FetchReport report;
    const auto got = fetcher.Fetch(*handle, part, Soon(), &report).value();
    EXPECT_EQ(ExpectRightOrLost(got, ByDocument(rows, {}, part), Reason::kCapacity), 16);
    EXPECT_EQ(report.counts.damaged, 1u);
  }
}

TEST(Fetch, ALostNodeLosesWhatIsBeforeIt) {
  SourceOfRows at;
  const Rows rows = LongRows(3 * 1024 + 5);
  const auto handle = at.Publish("", rows);
  const Digest128 middle = ContentDigest(NodesOf(at.source, *handle)[1]);
  ChangingSource source(&at.source, [&](const Digest128& digest, std::vector<std::uint8_t>&) {
    return digest != middle;
  });
  Fetcher fetcher(&source);
  const auto got = fetcher.Fetch(*handle, Soon()).value();
  EXPECT_EQ(ExpectRightOrLost(got, rows, Reason::kCapacity), 2048);
  EXPECT_EQ(got.Coverage(),
            (std::vector<CoverageRun>{{0, 2048, Reason::kCapacity, 0, {}, Cause::kAbsent},
                                      {2048, 3077, Reason::kNone, 1, {}}}));
}

// 128k rows and a tail, in 128 nodes and more.
TEST(Fetch, AtMostFourRoundTripsWhateverTheLength) {
  const RoutingShape shape{.num_layers = 2, .top_k = 2, .num_experts = 256, .page_tokens = 16};
  SourceOfRows at(shape);
  const Rows rows = LongRows(shape, (1 << 17) + 1024 + 5);
  const auto handle = at.Publish("s", rows).value();
  CountingSource source(&at.source);
  const std::int64_t size = rows.size();
  // All; a first page; one in the middle, of one layer; the tail alone.
  for (const RowsAndLayers& part :
       {RowsAndLayers{0, size, 0, 2}, RowsAndLayers{0, 16, 0, 2},
        RowsAndLayers{70'000, 70'001, 1, 2}, RowsAndLayers{size - 5, size, 0, 2}}) {
    Fetcher fetcher(&source, {.cache_bytes = part.row_begin == 0 ? kPlenty : 0});
    source.calls = 0;
    const auto got = fetcher.Fetch(handle, part, Soon()).value();
    ExpectSame(got, ByDocument(rows, {}, part));
    EXPECT_LE(source.calls, 4);
    if (part.row_end - part.row_begin != size) continue;
    // A turn more: the new last nodes, and their pages.
    const Rows longer = LongRows(shape, size + 2000);
    const auto turn = at.Publish("s", longer);
    source.calls = 0;
    ExpectSame(*fetcher.Fetch(*turn, Soon()), longer);
    EXPECT_LE(source.calls, 4);
  }
}

// Nodes are found by walking back where their list is absent, and where it is not what it should
// be.
TEST(Fetch, ANodeListIsNotTrusted) {
  SourceOfRows at;
  const Rows rows = LongRows(5 * 1024 + 20);
  const auto handle = at.Publish("", rows);
  const auto other = at.Publish("", WithOtherEnd(rows, 1500, 3));
  const Digest128 list = NodeListName(handle->head);
  Object others;
  ASSERT_TRUE(at.source.Get(std::vector{NodeListName(other->head)}, Soon(), {&others, 1}).ok());
  ASSERT_TRUE(others.present());
  int changes = 0;
  for (int how = 0; how < 5; ++how) {
    SCOPED_TRACE(how);
    ChangingSource changing(&at.source,
                            [&](const Digest128& digest, std::vector<std::uint8_t>& bytes) {
                              if (digest != list) return true;
                              ++changes;
                              if (how == 0) return false;
                              if (how == 1) bytes.resize(bytes.size() - 16);
                              if (how == 2) bytes.assign(others.bytes.begin(), others.bytes.end());
                              if (how == 3) bytes[16] ^= 1;
                              if (how == 4) bytes.clear();
                              return true;
                            });
    Fetcher fetcher(&changing);
    FetchReport report;
    const auto got = fetcher.Fetch(*handle, Soon(), &report).value();
    ExpectSame(got, rows);
    EXPECT_LE(report.counts.absent, how < 2 || how == 4 ? 0u : 4u);
  }
  EXPECT_EQ(changes, 5);
}

TEST(Fetch, HandlesThatCannotBeAreRefused) {
  SourceOfRows at;
  const auto handle = at.Publish("", LongRows(100));
  Fetcher fetcher(&at.source, {.max_rows = 99});
  const auto refused = [&](const Handle& h, const RowsAndLayers& part) {
    return std::string(fetcher.Fetch(h, part, Soon()).status().message());
  };
  EXPECT_THAT(refused(*handle, {0, 101, 0, 58}), HasSubstr("rows [0, 101) must lie in [0, 100)"));
  EXPECT_THAT(refused(*handle, {-1, 5, 0, 58}), HasSubstr("rows [-1, 5)"));
  EXPECT_THAT(refused(*handle, {6, 5, 0, 58}), HasSubstr("rows [6, 5)"));
  EXPECT_THAT(refused(*handle, {0, 5, 0, 59}), HasSubstr("layers [0, 59)"));
  EXPECT_THAT(refused(*handle, {0, 5, 3, 3}), HasSubstr("layers [3, 3)"));
  EXPECT_THAT(refused(*handle, {0, 100, 0, 58}), HasSubstr("max_rows = 99 rows; it has 100"));
  Handle other = *handle;
  other.rows = 90;
  EXPECT_THAT(refused(other, {0, 5, 0, 58}), HasSubstr("one entry per row, 90; it has 100"));
  // Another number of rows than its objects have: nothing of the trajectory fits.
  other.rows = 60;
  other.provenance.resize(60);
  const auto rows = fetcher.Fetch(other, {0, 60, 0, 58}, Soon()).value();
  for (const RowInfo& info : rows.infos)
    EXPECT_EQ(info.reason, Reason::kCapacity);
}

// A handle of 4 KiB made the fetcher ask for 2 TiB: max_rows bounds rows of any size.
TEST(Fetch, MemoryThatAHandleClaimsIsBounded) {
  Handle handle;
  handle.shape.rows.num_layers = 1024;
  handle.shape.rows.top_k = 64;
  handle.shape.rows.num_experts = 65535;
  handle.shape.rows.page_tokens = 4096;
  handle.rows = std::int64_t{1} << 24;
  handle.head = Digest128{{1, 2, 3, 4}};
  handle.provenance.resize(static_cast<std::size_t>(handle.rows));
  const auto bytes = EncodeHandle(handle).value();
  EXPECT_LT(bytes.size(), 5000u);
  const auto read = ParseHandle(bytes).value();
  MemorySource source(std::size_t{1} << 20);
  Fetcher fetcher(&source);
  const auto rows = fetcher.Fetch(read, Soon());
  ASSERT_EQ(rows.status().code(), absl::StatusCode::kResourceExhausted) << rows.status();
  EXPECT_THAT(
      rows.status().message(),
      HasSubstr("its rows must take at most max_bytes = 268435456 bytes; it has 16777216 rows "
                "of 131096 bytes"));
  // What fits is fetched: here, nothing.
  EXPECT_TRUE(fetcher.Fetch(read, {0, 1000, 0, 1}, Soon()).ok());
}

TEST(MemorySource, TheLeastRecentlyUsedGoFirst) {
  const auto named = [](std::uint32_t n) {
    return NamedObject{{{n, 0, 0, 0}}, Object::Of(std::vector<std::uint8_t>(1000, 7))};
  };
  MemorySource source(4 * 1128);
  std::vector<Digest128> digests;
  for (std::uint32_t n = 1; n <= 4; ++n) {
    const NamedObject object = named(n);
    digests.push_back(object.digest);
    ASSERT_TRUE(source.Put({&object, 1}, Soon()).ok());
  }
  std::vector<std::uint8_t> held(1);
  ASSERT_TRUE(source.Holds({&digests[0], 1}, Soon(), held).ok());  // a use
  EXPECT_EQ(held[0], 1);
  const NamedObject fifth = named(5);
  ASSERT_TRUE(source.Put({&fifth, 1}, Soon()).ok());
  held.resize(4);
  ASSERT_TRUE(source.Holds(digests, Soon(), held).ok());
  EXPECT_THAT(held, ::testing::ElementsAre(1, 0, 1, 1));
  // Larger than everything: not kept, and nothing goes for it.
  const NamedObject large{{{6, 0, 0, 0}}, Object::Of(std::vector<std::uint8_t>(5000))};
  ASSERT_TRUE(source.Put({&large, 1}, Soon()).ok());
  digests = {digests[0], digests[2], digests[3], fifth.digest, large.digest};
  held.resize(5);
  ASSERT_TRUE(source.Holds(digests, Soon(), held).ok());
  EXPECT_THAT(held, ::testing::ElementsAre(1, 1, 1, 1, 0));
}

TEST(MemorySource, WhatWasEvictedIsMissingAndPutAgain) {
  const Rows rows = LongRows(1024);
  MemorySource source(256 << 10);  // half of it
  const auto publisher = Publisher::Create(&source, {.shape = {LongShape(), {}}}).value();
  const auto first = PublishRows(*publisher, "", rows);
  const std::uint64_t put = publisher->GetStats().objects_put;
  Fetcher fetcher(&source);
  const auto got = fetcher.Fetch(*first, Soon()).value();
  const std::int64_t lost = ExpectRightOrLost(got, rows, Reason::kCapacity);
  EXPECT_GT(lost, 400);
  EXPECT_LT(lost, 700);
  // The publisher asks the source, which says what it has lost.
  ASSERT_TRUE(PublishRows(*publisher, "", rows).ok());
  EXPECT_GT(publisher->GetStats().objects_put, put + 20);
}

struct TempFile {
  std::string path = ::testing::TempDir() + "/fetch_test_" + std::to_string(getpid()) + ".wmk";
  ~TempFile() { unlink(path.c_str()); }
};

// The rows with their nodes, written to a file.
Handle WriteTrajectory(const Sample& sample, const std::string& path) {
  MemorySource memory(kPlenty);
  const Handle handle = PublishRows(*sample.MakePublisher(&memory), "", sample.rows).value();
  const auto nodes = NodesOf(memory, handle);
  const DocumentOptions options{
      .code = sample.shape.code, .trajectory = handle.head, .nodes = nodes};
  const auto writer = DocumentWriter::Create(sample.rows, options);
  EXPECT_TRUE(writer.ok() && writer->WriteFile(path).ok());
  return handle;
}

// What names rows that are here is what a publisher makes of them; and the nodes are those that it
// puts.
TEST(Trajectory, IsWhatAPublisherMakes) {
  ForSeeds(60, [&](std::mt19937_64& random) {
    const Sample sample(random);
    MemorySource memory(kPlenty);
    const Handle handle = PublishRows(*sample.MakePublisher(&memory), "", sample.rows).value();
    const auto made = MakeTrajectory(sample.rows, sample.shape.code, handle.store).value();
    EXPECT_EQ(made.handle, handle);
    EXPECT_EQ(made.nodes, NodesOf(memory, handle));
    Rows later = sample.rows;
    later.first = 1;
    EXPECT_EQ(MakeTrajectory(later, sample.shape.code).status().code(),
              absl::StatusCode::kInvalidArgument);
  });
}

TEST(FileSource, ServesWhatLiesInAFile) {
  const TempFile file;
  ForSeeds(60, [&](std::mt19937_64& random) {
    const Sample sample(random);
    const Handle handle = WriteTrajectory(sample, file.path);
    auto source = FileSource::Open(file.path);
    if (handle.head == Digest128{}) {
      EXPECT_EQ(source.status().code(), absl::StatusCode::kFailedPrecondition);
      return;
    }
    ASSERT_TRUE(source.ok()) << source.status();
    Fetcher fetcher(source->get());
    const RowsAndLayers part = RandomPart(random, handle.rows, sample.shape.rows.num_layers);
    const auto rows = fetcher.Fetch(handle, part, Soon()).value();
    ExpectSame(rows, ByDocument(sample.rows, sample.shape.code, part));
    // Objects lie in the file's bytes, which they keep.
    Object object;
    ASSERT_TRUE((*source)->Get({&handle.head, 1}, Soon(), {&object, 1}).ok());
    ASSERT_TRUE(object.present());
    const std::vector<std::uint8_t> before(object.bytes.begin(), object.bytes.end());
    source->reset();
    EXPECT_TRUE(std::ranges::equal(before, object.bytes));
  });
}

// Digests in a file are what its writer says. Those that share 64 bits collided, and the source of
// a file of 5 MiB took minutes to open.
TEST(FileSource, DigestsThatAreAlikeDoNotMakeItSlow) {
  const TempFile file;
  RoutingShape shape;
  shape.num_layers = shape.top_k = shape.page_tokens = 1;
  shape.num_experts = 8;
  Rows rows;
  rows.shape = shape;
  rows.infos.assign(64, {1, 1, Reason::kNone, Provenance::kHere});
  rows.ids.resize(64);
  const auto codec = ChunkCodec::Create({shape, {}}).value();
  std::vector<std::vector<std::uint8_t>> nodes;
  std::uint32_t number = 0;
  for (int n = 0; n < 4000; ++n) {
    std::vector<Digest128> chunks(64);
    for (Digest128& chunk : chunks)
      chunk = {{7, 7, 7, ++number}};
    nodes.push_back(EncodeNode(codec.shape_digest(), 0, {}, chunks, 1, rows.infos).value());
  }
  DocumentOptions options;
  options.nodes = nodes;
  const auto writer = DocumentWriter::Create(rows, options).value();
  ASSERT_TRUE(writer.WriteFile(file.path).ok());
  const auto begin = std::chrono::steady_clock::now();
  const auto source = FileSource::Open(file.path);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  // What a file may make it allocate is the caller's to say.
  const auto small = FileSource::Open(file.path, {.max_bytes = std::size_t{1} << 20});
  EXPECT_EQ(small.status().code(), absl::StatusCode::kResourceExhausted) << small.status();
}

}  // namespace
}  // namespace waymark::wire
