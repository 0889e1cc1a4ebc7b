// Handles there and back over sources in memory and in files: what is fetched is what was
// published, crosses once, and is missing where its objects were lost or damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <set>

#include "blockstore/wire/file_source.h"
#include "blockstore/wire/publisher.h"
#include "tests/support/sanitizers.h"
#include "tests/support/wire_samples.h"
#include "tests/unit/blockstore/test_seed.h"
#include "tests/unit/blockstore/wire/fetch_support.h"

namespace waymark::wire {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPlenty = std::size_t{1} << 30;

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
  // Rows [begin, end) of it.
  [[nodiscard]] Rows Slice(std::int64_t begin, std::int64_t end) const {
    Rows slice;
    slice.shape = rows.shape;
    slice.first = begin;
    slice.infos.assign(rows.infos.begin() + begin, rows.infos.begin() + end);
    const auto bytes = static_cast<std::ptrdiff_t>(rows.shape.row_bytes());
    slice.ids.assign(rows.ids.begin() + begin * bytes, rows.ids.begin() + end * bytes);
    return slice;
  }
  [[nodiscard]] std::unique_ptr<Publisher> MakePublisher(PageSource* source) const {
    return Publisher::Create(source, {.shape = shape, .store = "here"}).value();
  }

  WireShape shape;
  Rows rows;
};

// A conversation: 58 x 8 ids of 256, 16 rows a page.
RoutingShape LongShape() {
  return {.num_layers = 58, .top_k = 8, .num_experts = 256, .page_tokens = 16};
}
Rows LongRows(const RoutingShape& shape, std::int64_t size) {
  Rows rows;
  rows.shape = shape;
  rows.infos.assign(static_cast<std::size_t>(size), {1, 1, Reason::kNone, {}});
  rows.ids.resize(rows.infos.size() * rows.shape.row_bytes());
  std::mt19937_64 random(1);                           // longer ones begin with shorter ones
  for (std::size_t i = 0; i < rows.ids.size(); ++i) {  // distinct in a layer
    rows.ids[i] = i % static_cast<std::size_t>(shape.top_k) == 0
                      ? static_cast<std::uint8_t>(random())
                      : static_cast<std::uint8_t>(rows.ids[i - 1] + 31);
  }
  return rows;
}
Rows LongRows(std::int64_t size) {
  return LongRows(LongShape(), size);
}
// The same conversation with another end.
Rows WithOtherEnd(Rows rows, std::int64_t from, std::uint8_t salt) {
  for (std::size_t i = static_cast<std::size_t>(from) * rows.shape.row_bytes(); i < rows.ids.size();
       ++i)
    rows.ids[i] = static_cast<std::uint8_t>(rows.ids[i] ^ salt);
  return rows;
}

TEST(Fetch, AnyRowsThereAndBack) {
  const std::uint64_t seed = TestSeed();
  for (std::uint64_t round = 0; round < 150; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    std::mt19937_64 random(seed + round);
    const Sample sample(random);
    MemorySource source(kPlenty);
    const auto publisher = sample.MakePublisher(&source);
    const auto published = PublishRows(*publisher, "", sample.rows);
    ASSERT_TRUE(published.ok()) << published.status();
    EXPECT_EQ(published->store, "here");
    const auto bytes = EncodeHandle(*published);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    const auto handle = ParseHandle(*bytes);
    ASSERT_TRUE(handle.ok()) << handle.status();
    Fetcher fetcher(&source, {.batch_bytes = random() % 5000, .whole_chunks = random() % 3 == 0});
    for (int read = 0; read < 4; ++read) {
      const RowsAndLayers part =
          RandomPart(random, sample.rows.size(), sample.shape.rows.num_layers);
      FetchReport report;
      const auto rows = fetcher.Fetch(*handle, part, Soon(), &report);
      ASSERT_TRUE(rows.ok()) << rows.status();
      ExpectSame(*rows, ByDocument(sample.rows, sample.shape.code, part));
      EXPECT_EQ(report.counts.absent + report.counts.damaged, 0u);
      EXPECT_TRUE(report.source.ok());
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Fetch, WhatGoesOnIsWhatIsWhole) {
  const std::uint64_t seed = TestSeed();
  for (std::uint64_t round = 0; round < PlainOr(100u, 30u); ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    std::mt19937_64 random(seed + round);
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
      const auto published = PublishRows(*publisher, "s", sample.Slice(again ? 0 : at, end));
      ASSERT_TRUE(published.ok()) << published.status();
      handle = *published;
      at = end;
      ASSERT_EQ(handle.rows, at);
      // Parts that touch some of the tail's segments, or none, included.
      RowsAndLayers part = RandomPart(random, at, sample.shape.rows.num_layers);
      if (random() % 2 == 0)
        part.row_begin = part.row_end - std::min<std::int64_t>(part.row_end, 3);
      const auto rows = fetcher.Fetch(handle, part, Soon());
      ASSERT_TRUE(rows.ok()) << rows.status();
      ExpectSame(*rows, ByDocument(sample.Slice(0, at), sample.shape.code, part));
      if (HasFatalFailure()) return;
    }
    const auto whole = PublishRows(*publisher, "", sample.rows);
    ASSERT_TRUE(whole.ok());
    EXPECT_EQ(whole->head, handle.head);
    EXPECT_EQ(whole->provenance, handle.provenance);
  }
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
  EXPECT_THAT(refused("a", sample.Slice(3, 10)), HasSubstr("'a' is not known"));
  ASSERT_TRUE(PublishRows(*publisher, "a", sample.Slice(0, 10)).ok());
  EXPECT_THAT(refused("a", sample.Slice(11, 12)),
              HasSubstr("begin at 11, and 'a' has rows [0, 10)"));
  // Forgotten: what would have gone on does not.
  EXPECT_THAT(refused("a", sample.Slice(10, 12)), HasSubstr("has rows [0, 0)"));
  EXPECT_TRUE(PublishRows(*publisher, "a", sample.Slice(0, 10)).ok());
  EXPECT_THAT(refused("", sample.Slice(10, 12)), HasSubstr("is not known"));
  Rows other = sample.Slice(0, 10);
  other.shape.num_experts += 1;
  EXPECT_THAT(refused("b", other), HasSubstr("publisher's shape"));
  Rows sorted = sample.Slice(0, 10);
  sorted.ordered = false;
  if (sample.shape.code.ordered) {
    EXPECT_THAT(refused("b", sorted), HasSubstr("router's order"));
  } else {
    EXPECT_THAT(refused("b", other), HasSubstr("publisher's shape"));
  }
  EXPECT_EQ(publisher->GetStats().failed, 6u);
  EXPECT_EQ(publisher->GetStats().published, 2u);
}

// Two requests under one name: whichever comes second is refused, and nothing of the first is lost.
// Rows of one request that continue those of another would be valid rows of the wrong request.
TEST(Fetch, ANameOfTwoRequestsCannotBeContinued) {
  const RoutingShape shape{.num_layers = 2, .top_k = 2, .num_experts = 256, .page_tokens = 4};
  const auto part = [&](std::int64_t begin, std::int64_t end, std::uint64_t step) {
    Rows rows = LongRows(shape, end);
    rows.first = begin;
    rows.infos.assign(static_cast<std::size_t>(end - begin), {step, 1, Reason::kNone, {}});
    rows.ids.resize(rows.infos.size() * shape.row_bytes());
    return rows;
  };
  // What a second publication of the whole sequence may look like, after rows [0, 300) of step 1
  // and row 300 of step 2, and whether it is of another request.
  struct Second {
    const char* what;
    Rows rows;
    bool other;
  };
  std::vector<Second> seconds = {{"more rows", part(0, 310, 1), false},
                                 {"a row of a page of another step", part(0, 310, 1), true},
                                 {"a row of the tail of another step", part(0, 310, 1), true},
                                 {"fewer rows", part(0, 300, 1), true},
                                 {"a missing row", part(0, 310, 1), false}};
  for (Second& second : seconds)
    if (second.rows.size() > 300) second.rows.infos[300].step = 2;
  seconds[1].rows.infos[299].step = 9;
  seconds[2].rows.infos[300].step = 3;
  seconds[4].rows.infos[298] = {0, 0, Reason::kCapacity, {}};
  std::fill_n(seconds[4].rows.ids.begin() + 298 * static_cast<std::ptrdiff_t>(shape.row_bytes()),
              shape.row_bytes(), std::uint8_t{0});
  for (const Second& second : seconds) {
    SCOPED_TRACE(second.what);
    MemorySource source(kPlenty);
    Fetcher fetcher(&source);
    const auto publisher = Publisher::Create(&source, {.shape = {shape, {}}}).value();
    ASSERT_TRUE(PublishRows(*publisher, "a", part(0, 300, 1)).ok());
    ASSERT_TRUE(PublishRows(*publisher, "a", part(300, 301, 2)).ok());
    const auto handle = PublishRows(*publisher, "a", second.rows);
    ASSERT_TRUE(handle.ok()) << handle.status();
    ExpectSame(*fetcher.Fetch(*handle, Soon()), second.rows);
    const std::int64_t end = second.rows.last();
    const auto next = PublishRows(*publisher, "a", part(end, end + 1, 3));
    EXPECT_EQ(next.ok(), !second.other);
    if (second.other) {
      EXPECT_EQ(next.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(next.status().message()), HasSubstr("two have published under 'a'"));
    }
    // Whole sequences always can.
    EXPECT_TRUE(PublishRows(*publisher, "a", part(0, 320, 1)).ok());
  }
}

// A name that was forgotten between two requests is that of the second alone.
TEST(Fetch, AForgottenNameIsThatOfTheNextRequest) {
  const RoutingShape shape{.num_layers = 2, .top_k = 2, .num_experts = 256, .page_tokens = 4};
  const auto part = [&](std::int64_t begin, std::int64_t end, std::uint64_t step) {
    Rows rows = LongRows(shape, end - begin);
    rows.first = begin;
    for (RowInfo& info : rows.infos)
      info.step = step;
    return rows;
  };
  MemorySource source(kPlenty);
  Fetcher fetcher(&source);
  for (const bool forget : {false, true}) {
    const auto publisher =
        Publisher::Create(&source, {.shape = {shape, {}}, .max_sequences = 2}).value();
    EXPECT_TRUE(publisher->Forget("a").ok());  // nothing is remembered
    const Handle first = PublishRows(*publisher, "a", part(0, 10, 1)).value();
    // Queued before it: still continues the sequence.
    Publisher::Result before = publisher->Publish("a", part(10, 11, 1));
    if (forget) {
      EXPECT_TRUE(publisher->Forget("a").ok());
    }
    EXPECT_TRUE(before.get().ok());
    const auto whole = PublishRows(*publisher, "a", part(0, 6, 2));
    ASSERT_TRUE(whole.ok()) << whole.status();
    const auto more = PublishRows(*publisher, "a", part(6, 7, 2));
    EXPECT_EQ(more.ok(), forget) << more.status();
    if (!forget) {
      EXPECT_THAT(std::string(more.status().message()), HasSubstr("forget a name"));
    }
    // What was published stays.
    ExpectSame(*fetcher.Fetch(first, Soon()), part(0, 10, 1));
    // Rows that would continue a forgotten sequence are refused, and its place is free.
    EXPECT_TRUE(PublishRows(*publisher, "b", part(0, 6, 2)).ok());
    EXPECT_TRUE(publisher->Forget("a").ok());
    EXPECT_EQ(PublishRows(*publisher, "a", part(7, 8, 2)).status().code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(PublishRows(*publisher, "c", part(0, 6, 2)).ok());
    EXPECT_TRUE(PublishRows(*publisher, "b", part(6, 7, 2)).ok());
  }
}

TEST(Fetch, GroupsAndTurnsCrossOnce) {
  MemorySource source(kPlenty);
  const auto publisher =
      Publisher::Create(&source, {.shape = {LongShape(), {}}, .store = "s"}).value();
  Fetcher fetcher(&source);
  // Eight samples of one prompt: 1600 + 320 rows each, all pages complete.
  const Rows longest = LongRows(1920);
  std::uint64_t unique = static_cast<std::uint64_t>(1600 * longest.shape.row_bytes());
  for (std::uint8_t sample = 0; sample < 8; ++sample) {
    const auto handle = PublishRows(*publisher, "", WithOtherEnd(longest, 1600, sample));
    ASSERT_TRUE(handle.ok());
    const auto rows = fetcher.Fetch(*handle, Soon());
    ASSERT_TRUE(rows.ok());
    ExpectSame(*rows, WithOtherEnd(longest, 1600, sample));
    unique += static_cast<std::uint64_t>(320 * longest.shape.row_bytes());
  }
  const FetchCounts group = fetcher.GetCounts();
  EXPECT_GE(group.fetched_bytes, unique);
  EXPECT_LE(group.fetched_bytes, unique + unique / 20);
  // All of it again: nothing crosses.
  const auto handle = PublishRows(*publisher, "", longest);
  ASSERT_TRUE(fetcher.Fetch(*handle, Soon()).ok());
  EXPECT_EQ(fetcher.GetCounts().fetched_bytes, group.fetched_bytes);
  EXPECT_LE(publisher->GetStats().bytes_put, unique + unique / 20) << "each once";
  // A turn more: one node and its pages.
  const Rows longer = LongRows(2240);
  const auto turn = PublishRows(*publisher, "", longer);
  FetchReport report;
  const auto rows = fetcher.Fetch(*turn, Soon(), &report);
  ASSERT_TRUE(rows.ok());
  ExpectSame(*rows, longer);
  EXPECT_EQ(report.counts.fetched, 20u + 2u);  // pages; the node that was full now, and the next
  EXPECT_EQ(report.counts.hits, 120u + 1u);
}

TEST(Fetch, ATailGrowsBySegments) {
  MemorySource source(kPlenty);
  const auto publisher = Publisher::Create(&source, {.shape = {LongShape(), {}}}).value();
  Fetcher fetcher(&source);
  const auto slice = [](std::int64_t begin, std::int64_t end) {
    Rows rows = LongRows(end);
    rows.first = begin;
    rows.infos.erase(rows.infos.begin(), rows.infos.begin() + begin);
    rows.ids.erase(rows.ids.begin(),
                   rows.ids.begin() + begin * static_cast<std::int64_t>(rows.shape.row_bytes()));
    return rows;
  };
  std::vector<Digest128> tail;
  std::int64_t begin = 0;
  for (const std::int64_t end : {17, 20, 21, 31}) {
    // Only what is new, and everything again: the same segments.
    const auto handle = PublishRows(*publisher, "s", slice(begin, end));
    ASSERT_TRUE(handle.ok()) << handle.status();
    ASSERT_EQ(handle->tail.size(), tail.size() + 1);
    EXPECT_TRUE(std::equal(tail.begin(), tail.end(), handle->tail.begin()));
    EXPECT_EQ(PublishRows(*publisher, "s", slice(0, end))->tail, handle->tail);
    tail = handle->tail;
    FetchReport report;
    const auto rows = fetcher.Fetch(*handle, Soon(), &report);
    ASSERT_TRUE(rows.ok());
    ExpectSame(*rows, LongRows(end));
    EXPECT_EQ(report.counts.fetched, begin == 0 ? 3u : 1u);  // page, node and segment; segments
    begin = end;
  }
  // The page is complete: it takes the place of its segments.
  const auto handle = PublishRows(*publisher, "s", slice(31, 32));
  ASSERT_TRUE(handle.ok());
  EXPECT_TRUE(handle->tail.empty());
  ExpectSame(*fetcher.Fetch(*handle, Soon()), LongRows(32));
}

TEST(Fetch, ShardsFetchTheirBytesOnce) {
  MemorySource source(kPlenty);
  const auto publisher =
      Publisher::Create(&source, {.shape = {LongShape(), {.crc_layers = 1}}}).value();
  const Rows rows = LongRows(1024);
  const auto handle = PublishRows(*publisher, "", rows);
  Fetcher fetcher(&source);
  const RowsAndLayers shard{256, 512, 10, 20};
  FetchReport report;
  const auto part = fetcher.Fetch(*handle, shard, Soon(), &report);
  ASSERT_TRUE(part.ok());
  ExpectSame(*part, ByDocument(rows, handle->shape.code, shard));
  // 16 pages: 10 layers and all crcs each; and a node.
  EXPECT_EQ(report.counts.fetched, 17u);
  const std::uint64_t pages = 16 * (58 * 4 + 10 * 16 * 8);
  EXPECT_GT(report.counts.fetched_bytes, pages);
  EXPECT_LT(report.counts.fetched_bytes, pages + 1200);
  ASSERT_TRUE(fetcher.Fetch(*handle, shard, Soon(), &report).ok());
  EXPECT_EQ(report.counts.fetched, 0u);
  // Whole chunks: digests vouch, and every layer crosses.
  Fetcher whole(&source, {.whole_chunks = true});
  const auto same = whole.Fetch(*handle, shard, Soon(), &report);
  ASSERT_TRUE(same.ok());
  ExpectSame(*same, *part);
  EXPECT_GT(report.counts.fetched_bytes, 16u * 58 * 16 * 8);
}

// Regression: the layers of a chunk are cached under its digest. A node of another shape that names
// the same chunk had more bytes read from the cache than there were.
TEST(Fetch, CachedLayersOfAnotherShapeAreNone) {
  MemorySource source(kPlenty);
  RoutingShape shape{.num_layers = 64, .top_k = 1, .num_experts = 256, .page_tokens = 16};
  const auto publisher = Publisher::Create(&source, {.shape = {shape, {.crc_layers = 1}}}).value();
  const auto handle = PublishRows(*publisher, "", LongRows(shape, 16));
  ASSERT_TRUE(handle.ok()) << handle.status();
  Object head;
  ASSERT_TRUE(source.Get({&handle->head, 1}, Soon(), {&head, 1}).ok());
  const auto node = ParseNode(head.bytes, ShapeDigest(handle->shape), 16);
  ASSERT_TRUE(node.ok()) << node.status();

  Handle larger = *handle;
  larger.shape.rows.top_k = 16;
  larger.shape.rows.num_experts = 4096;
  larger.shape.rows.page_tokens = 4096;
  larger.rows = 4096;
  larger.provenance.resize(4096);
  const std::vector<RowInfo> infos(4096, {1, 1, Reason::kNone, {}});
  auto bytes = EncodeNode(ShapeDigest(larger.shape), 0, {}, node->chunks, 4096, infos);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  larger.head = ContentDigest(*bytes);
  const NamedObject named{larger.head, Object::Of(*std::move(bytes))};
  ASSERT_TRUE(source.Put({&named, 1}, Soon()).ok());

  Fetcher fetcher(&source);
  ASSERT_TRUE(fetcher.Fetch(*handle, {0, 16, 0, 48}, Soon()).ok());
  const auto got = fetcher.Fetch(larger, {0, 4096, 0, 48}, Soon());
  ASSERT_TRUE(got.ok()) << got.status();
  for (const RowInfo& info : got->infos)
    ASSERT_EQ(info.reason, Reason::kCapacity);
}

TEST(Fetch, DamageLosesRowsAndMakesNoneWrong) {
  const std::uint64_t seed = TestSeed();
  std::uint64_t damaged = 0;
  std::int64_t lost = 0;
  for (std::uint64_t round = 0; round < 200; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    std::mt19937_64 random(seed + round);
    const Sample sample(random);
    MemorySource good(kPlenty);
    const auto handle = PublishRows(*sample.MakePublisher(&good), "", sample.rows);
    ASSERT_TRUE(handle.ok());
    const std::uint64_t one_in = 1 + random() % 10;
    ChangingSource source(&good, [&](const Digest128&, std::vector<std::uint8_t>& bytes) {
      if (random() % one_in != 0) return true;
      switch (random() % 4) {
        case 0:
          return false;
        case 1:
          bytes.resize(random() % bytes.size());
          return true;
        default:
          bytes[random() % bytes.size()] ^= static_cast<std::uint8_t>(1u << random() % 8);
          return true;
      }
    });
    Fetcher fetcher(&source, {.cache_bytes = random() % 2 == 0 ? 0 : kPlenty});
    for (int read = 0; read < 4; ++read) {
      const RowsAndLayers part =
          RandomPart(random, sample.rows.size(), sample.shape.rows.num_layers);
      const auto rows = fetcher.Fetch(*handle, part, Soon());
      ASSERT_TRUE(rows.ok()) << rows.status();
      lost += ExpectRightOrLost(*rows, ByDocument(sample.rows, sample.shape.code, part),
                                Reason::kCapacity);
      if (HasFailure()) return;
    }
    damaged += fetcher.GetCounts().damaged;
  }
  EXPECT_GT(damaged, 100u);
  EXPECT_GT(lost, 1000);
}

TEST(Fetch, AnObjectUnderAnotherNameIsNoObject) {
  MemorySource good(kPlenty);
  const auto publisher = Publisher::Create(&good, {.shape = {LongShape(), {}}}).value();
  const Rows rows = LongRows(64);
  const auto handle = PublishRows(*publisher, "", rows);
  const auto node =
      ParseNode(NodesOf(good, *handle)[0], ChunkCodec::Create(handle->shape)->shape_digest(), 16);
  ASSERT_TRUE(node.ok());
  Object other;
  ASSERT_TRUE(good.Get({&node->chunks[1], 1}, Soon(), {&other, 1}).ok());
  ChangingSource source(&good, [&](const Digest128& digest, std::vector<std::uint8_t>& bytes) {
    if (digest == node->chunks[2]) bytes.assign(other.bytes.begin(), other.bytes.end());
    return true;
  });
  Fetcher fetcher(&source);
  FetchReport report;
  const auto got = fetcher.Fetch(*handle, Soon(), &report);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(ExpectRightOrLost(*got, rows, Reason::kCapacity), 16);
  EXPECT_EQ(report.counts.damaged, 1u);
  EXPECT_EQ(got->Coverage()[1], (CoverageRun{32, 48, Reason::kCapacity, 0, {}}));
}

// Regression: a source whose index was off by one gave the layers and crcs of another chunk, which
// fit each other: 16 of 16 rows were valid and wrong.
TEST(Fetch, ARangeOfAnotherObjectIsNoRange) {
  MemorySource good(kPlenty);
  const auto publisher = Publisher::Create(&good, {.shape = {LongShape(), {}}}).value();
  const Rows rows = LongRows(64);
  const auto handle = PublishRows(*publisher, "", rows);
  const auto node =
      ParseNode(NodesOf(good, *handle)[0], ChunkCodec::Create(handle->shape)->shape_digest(), 16);
  ASSERT_TRUE(node.ok());
  OtherNames source(&good, node->chunks[2], node->chunks[1]);
  Fetcher fetcher(&source);
  for (const RowsAndLayers& part : {RowsAndLayers{0, 64, 0, 15}, {20, 64, 40, 58}}) {
    FetchReport report;
    const auto got = fetcher.Fetch(*handle, part, Soon(), &report);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(ExpectRightOrLost(*got, ByDocument(rows, {}, part), Reason::kCapacity), 16);
    EXPECT_EQ(report.counts.damaged, 1u);
  }
}

TEST(Fetch, ALostNodeLosesWhatIsBeforeIt) {
  MemorySource good(kPlenty);
  const auto publisher = Publisher::Create(&good, {.shape = {LongShape(), {}}}).value();
  const Rows rows = LongRows(3 * 1024 + 5);
  const auto handle = PublishRows(*publisher, "", rows);
  const Digest128 middle = ContentDigest(NodesOf(good, *handle)[1]);
  ChangingSource source(
      &good, [&](const Digest128& digest, std::vector<std::uint8_t>&) { return digest != middle; });
  Fetcher fetcher(&source);
  const auto got = fetcher.Fetch(*handle, Soon());
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(ExpectRightOrLost(*got, rows, Reason::kCapacity), 2048);
  EXPECT_EQ(got->Coverage(), (std::vector<CoverageRun>{{0, 2048, Reason::kCapacity, 0, {}},
                                                       {2048, 3077, Reason::kNone, 1, {}}}));
}

// 128k rows and a tail, in 128 nodes and more.
TEST(Fetch, AtMostFourRoundTripsWhateverTheLength) {
  const RoutingShape shape{.num_layers = 2, .top_k = 2, .num_experts = 256, .page_tokens = 16};
  MemorySource memory(kPlenty);
  const auto publisher = Publisher::Create(&memory, {.shape = {shape, {}}}).value();
  const Rows rows = LongRows(shape, (1 << 17) + 1024 + 5);
  const auto handle = PublishRows(*publisher, "s", rows);
  ASSERT_TRUE(handle.ok()) << handle.status();
  CountingSource source(&memory);
  const std::int64_t size = rows.size();
  // All; a first page; one in the middle, of one layer; the tail alone.
  for (const RowsAndLayers& part :
       {RowsAndLayers{0, size, 0, 2}, RowsAndLayers{0, 16, 0, 2},
        RowsAndLayers{70'000, 70'001, 1, 2}, RowsAndLayers{size - 5, size, 0, 2}}) {
    Fetcher fetcher(&source, {.cache_bytes = part.row_begin == 0 ? kPlenty : 0});
    source.calls = 0;
    const auto got = fetcher.Fetch(*handle, part, Soon());
    ASSERT_TRUE(got.ok()) << got.status();
    ExpectSame(*got, ByDocument(rows, {}, part));
    EXPECT_LE(source.calls, 4);
    if (part.row_end - part.row_begin != size) continue;
    // A turn more: the new last nodes, and their pages.
    const Rows longer = LongRows(shape, size + 2000);
    const auto turn = PublishRows(*publisher, "s", longer);
    source.calls = 0;
    ExpectSame(*fetcher.Fetch(*turn, Soon()), longer);
    EXPECT_LE(source.calls, 4);
  }
}

// Nodes are found by walking back where their list is absent, and where it is not what it should
// be.
TEST(Fetch, ANodeListIsNotTrusted) {
  MemorySource good(kPlenty);
  const auto publisher = Publisher::Create(&good, {.shape = {LongShape(), {}}}).value();
  const Rows rows = LongRows(5 * 1024 + 20);
  const auto handle = PublishRows(*publisher, "", rows);
  const auto other = PublishRows(*publisher, "", WithOtherEnd(rows, 1500, 3));
  const Digest128 list = NodeListName(handle->head);
  Object others;
  ASSERT_TRUE(good.Get(std::vector{NodeListName(other->head)}, Soon(), {&others, 1}).ok());
  ASSERT_TRUE(others.present());
  int changes = 0;
  for (int how = 0; how < 5; ++how) {
    SCOPED_TRACE(how);
    ChangingSource changing(&good, [&](const Digest128& digest, std::vector<std::uint8_t>& bytes) {
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
    const auto got = fetcher.Fetch(*handle, Soon(), &report);
    ASSERT_TRUE(got.ok()) << got.status();
    ExpectSame(*got, rows);
    EXPECT_LE(report.counts.absent, how < 2 || how == 4 ? 0u : 4u);
  }
  EXPECT_EQ(changes, 5);
}

TEST(Fetch, HandlesThatCannotBeAreRefused) {
  MemorySource source(kPlenty);
  const auto publisher = Publisher::Create(&source, {.shape = {LongShape(), {}}}).value();
  const auto handle = PublishRows(*publisher, "", LongRows(100));
  Fetcher fetcher(&source, {.max_rows = 99});
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
  const auto rows = fetcher.Fetch(other, {0, 60, 0, 58}, Soon());
  ASSERT_TRUE(rows.ok());
  for (const RowInfo& info : rows->infos)
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
  const auto bytes = EncodeHandle(handle);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_LT(bytes->size(), 5000u);
  const auto read = ParseHandle(*bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  MemorySource source(std::size_t{1} << 20);
  Fetcher fetcher(&source);
  const auto rows = fetcher.Fetch(*read, Soon());
  ASSERT_EQ(rows.status().code(), absl::StatusCode::kResourceExhausted) << rows.status();
  EXPECT_THAT(
      std::string(rows.status().message()),
      HasSubstr("its rows must take at most max_bytes = 268435456 bytes; it has 16777216 rows "
                "of 131096 bytes"));
  // What fits is fetched: here, nothing.
  EXPECT_TRUE(fetcher.Fetch(*read, {0, 1000, 0, 1}, Soon()).ok());
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
  const auto got = fetcher.Fetch(*first, Soon());
  ASSERT_TRUE(got.ok());
  const std::int64_t lost = ExpectRightOrLost(*got, rows, Reason::kCapacity);
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
  const std::uint64_t seed = TestSeed();
  for (std::uint64_t round = 0; round < 60; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    std::mt19937_64 random(seed + round);
    const Sample sample(random);
    MemorySource memory(kPlenty);
    const Handle handle = PublishRows(*sample.MakePublisher(&memory), "", sample.rows).value();
    const auto made = MakeTrajectory(sample.rows, sample.shape.code, handle.store);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->handle, handle);
    EXPECT_EQ(made->nodes, NodesOf(memory, handle));
    Rows later = sample.rows;
    later.first = 1;
    EXPECT_EQ(MakeTrajectory(later, sample.shape.code).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(FileSource, ServesWhatLiesInAFile) {
  const std::uint64_t seed = TestSeed();
  const TempFile file;
  for (std::uint64_t round = 0; round < 60; ++round) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " round " << round);
    std::mt19937_64 random(seed + round);
    const Sample sample(random);
    const Handle handle = WriteTrajectory(sample, file.path);
    auto source = FileSource::Open(file.path);
    if (handle.head == Digest128{}) {
      EXPECT_EQ(source.status().code(), absl::StatusCode::kFailedPrecondition);
      continue;
    }
    ASSERT_TRUE(source.ok()) << source.status();
    Fetcher fetcher(source->get());
    const RowsAndLayers part = RandomPart(random, handle.rows, sample.shape.rows.num_layers);
    const auto rows = fetcher.Fetch(handle, part, Soon());
    ASSERT_TRUE(rows.ok()) << rows.status();
    ExpectSame(*rows, ByDocument(sample.rows, sample.shape.code, part));
    if (HasFatalFailure()) return;
    // Objects lie in the file's bytes, which they keep.
    Object object;
    ASSERT_TRUE((*source)->Get({&handle.head, 1}, Soon(), {&object, 1}).ok());
    ASSERT_TRUE(object.present());
    const std::vector<std::uint8_t> before(object.bytes.begin(), object.bytes.end());
    source->reset();
    EXPECT_TRUE(std::ranges::equal(before, object.bytes));
  }
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

TEST(FileSource, DamagedAndShortFilesLoseRows) {
  const TempFile file;
  std::mt19937_64 random(5);
  Sample sample(random);
  sample.shape = {LongShape(), {}};
  sample.rows = LongRows(160);
  const Handle handle = WriteTrajectory(sample, file.path);
  const auto fetch = [&] {
    auto source = FileSource::Open(file.path).value();
    Fetcher fetcher(source.get());
    return fetcher.Fetch(handle, Soon()).value();
  };
  EXPECT_EQ(ExpectRightOrLost(fetch(), sample.rows, Reason::kCapacity), 0);
  std::fstream bytes(file.path, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(-100, std::ios::end);
  bytes.put('\x55');
  bytes.close();
  EXPECT_EQ(ExpectRightOrLost(fetch(), sample.rows, Reason::kCapacity), 16);
  const auto size = static_cast<off_t>(std::ifstream(file.path, std::ios::ate).tellg());
  ASSERT_EQ(truncate(file.path.c_str(), size - 8000), 0);
  EXPECT_EQ(ExpectRightOrLost(fetch(), sample.rows, Reason::kCapacity), 32);

  EXPECT_EQ(FileSource::Open(file.path + ".none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FileSource::Open("/").status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(truncate(file.path.c_str(), 0), 0);
  EXPECT_EQ(FileSource::Open(file.path).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace waymark::wire
