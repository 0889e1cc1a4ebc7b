// Documents: random rows there and back by every way of reading, and the rules of the header.
#include "blockstore/wire/document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "blockstore/wire/document_writer.h"
#include "blockstore/wire/publisher.h"
#include "tests/support/test_seed.h"
#include "tests/support/wire_samples.h"

namespace waymark::wire {
namespace {

using ::testing::HasSubstr;
using wire_samples::Bytes;
using wire_samples::Message;

// What the wire makes of rows: layers [begin, end), ids sorted where order is not kept.
Rows Expected(const Rows& rows, const RowsAndLayers& part, bool ordered) {
  Rows expected;
  expected.shape = rows.shape;
  expected.shape.num_layers = part.layer_end - part.layer_begin;
  expected.shape.layer_ids.clear();
  bool counted = true;
  for (std::int32_t layer = part.layer_begin; layer < part.layer_end; ++layer) {
    counted &= rows.shape.layer_id(layer) == layer - part.layer_begin;
    expected.shape.layer_ids.push_back(rows.shape.layer_id(layer));
  }
  if (counted) expected.shape.layer_ids.clear();
  expected.first = part.row_begin;
  expected.ordered = ordered;
  const auto top_k = static_cast<std::size_t>(rows.shape.top_k);
  for (std::int64_t row = part.row_begin; row < part.row_end; ++row) {
    expected.infos.push_back(rows.infos[static_cast<std::size_t>(row - rows.first)]);
    const auto stored = rows.row(row - rows.first);
    for (std::int32_t layer = part.layer_begin; layer < part.layer_end; ++layer) {
      std::vector<std::uint32_t> ids;
      for (std::size_t i = static_cast<std::size_t>(layer) * top_k, k = 0; k < top_k; ++k, ++i)
        ids.push_back(rows.shape.id_bytes() == 1 ? stored[i]
                                                 : stored[2 * i] | stored[2 * i + 1] << 8);
      if (!ordered) std::sort(ids.begin(), ids.end());
      for (const std::uint32_t id : ids) {
        expected.ids.push_back(static_cast<std::uint8_t>(id));
        if (rows.shape.id_bytes() == 2) expected.ids.push_back(static_cast<std::uint8_t>(id >> 8));
      }
    }
  }
  return expected;
}

void ExpectSame(const Rows& a, const Rows& b) {
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.first, b.first);
  EXPECT_EQ(a.infos, b.infos);
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.ordered, b.ordered);
}

TEST(Document, RandomRowsThereAndBack) {
  TestRandom random;
  for (int i = 0; i < 700 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const RoutingShape shape = wire_samples::RandomShape(random);
    const Rows rows = wire_samples::RandomRows(random, shape, random() % 90);
    DocumentOptions options;
    options.code = wire_samples::RandomCode(random, shape);
    options.steps = random() % 4 != 0;
    if (random() % 2 == 0) options.trajectory.w[2] = 77;
    const std::vector<Bytes> nodes = {{1, 2, 3}, {}, {4}};
    if (random() % 2 == 0) options.nodes = nodes;
    const auto bytes = WriteDocument(rows, options).value();
    // At any address.
    Bytes moved(bytes.size() + 3);
    std::copy(bytes.begin(), bytes.end(), moved.begin() + 3);
    const auto document = Document::Open(std::span(moved).subspan(3)).value();
    EXPECT_EQ(document.first(), rows.first);
    EXPECT_EQ(document.size(), rows.size());
    EXPECT_EQ(document.bytes(), bytes.size());
    EXPECT_EQ(document.has_steps(), options.steps);
    EXPECT_FALSE(document.truncated());
    ASSERT_EQ(document.nodes().size(), options.nodes.size());
    for (std::size_t n = 0; n < options.nodes.size(); ++n)
      EXPECT_TRUE(std::equal(nodes[n].begin(), nodes[n].end(), document.nodes()[n].begin(),
                             document.nodes()[n].end()));
    EXPECT_EQ(document.Coverage(), rows.Coverage());

    Rows reused;
    for (int j = 0; j < 6; ++j) {
      RowsAndLayers part = document.All();
      if (j > 0) {
        const auto layers = static_cast<std::uint64_t>(shape.num_layers);
        part.layer_begin = static_cast<std::int32_t>(random() % layers);
        part.layer_end = part.layer_begin + 1 +
                         static_cast<std::int32_t>(
                             random() % (layers - static_cast<std::uint64_t>(part.layer_begin)));
        part.row_begin += static_cast<std::int64_t>(random() % (rows.infos.size() + 1));
        part.row_end -= static_cast<std::int64_t>(
            random() % static_cast<std::uint64_t>(part.row_end - part.row_begin + 1));
      }
      Rows expected = Expected(rows, part, options.code.ordered);
      if (!options.steps) {
        for (RowInfo& info : expected.infos)
          info.step = 0;
      }
      ReadDamage damage;
      damage.absent_chunks = 1;
      ASSERT_TRUE(document.ReadRows(part, reused, &damage).ok());
      ExpectSame(reused, expected);
      EXPECT_FALSE(damage.any());
      EXPECT_EQ(LayersShape(shape, part.layer_begin, part.layer_end), expected.shape);
    }
  }
}

TEST(Document, LongRowsThereAndBack) {
  for (const std::int32_t page_tokens : {16, 3, 1024, 4096}) {
    SCOPED_TRACE(page_tokens);
    std::mt19937_64 random(7);
    RoutingShape shape{
        .num_layers = 13, .top_k = 8, .num_experts = 256, .page_tokens = page_tokens};
    const Rows rows = wire_samples::RandomRows(random, shape, 9000);
    const auto bytes = WriteDocument(rows);
    const auto document = Document::Open(*bytes).value();
    for (const RowsAndLayers& part :
         {document.All(), RowsAndLayers{rows.first + 17, rows.last() - 5, 2, 9}}) {
      ExpectSame(*document.ReadRows(part), Expected(rows, part, true));
    }
  }
}

// A set code document that was written again raw said that its ascending ids were in the router's
// order.
TEST(Document, AnOrderThatWasLostIsNotClaimedAgain) {
  std::mt19937_64 random(5);
  const RoutingShape shape{.num_layers = 2, .top_k = 4, .num_experts = 64, .page_tokens = 16};
  Rows rows = wire_samples::RandomRows(random, shape, 40);
  rows.first = 0;
  const auto there_and_back = [](const Rows& given, const ChunkCode& code) {
    const Bytes bytes = WriteDocument(given, {.code = code}).value();
    const Document document = Document::Open(bytes).value();
    EXPECT_EQ(document.shape().code.ordered, code.ordered && given.ordered);
    return document.ReadRows(document.All()).value();
  };
  EXPECT_TRUE(there_and_back(rows, {}).ordered);
  const Rows sets = there_and_back(rows, ChunkCode::SetCodeFor(shape));
  EXPECT_FALSE(sets.ordered);
  ExpectSame(there_and_back(sets, {}), sets);
  ChunkCode sorted;
  sorted.ordered = false;
  ExpectSame(there_and_back(rows, sorted), sets);
  EXPECT_FALSE(MakeTrajectory(sets, {})->handle.shape.code.ordered);
}

TEST(Document, ToAFileAndBack) {
  std::mt19937_64 random(3);
  const RoutingShape shape{.num_layers = 5, .top_k = 8, .num_experts = 64, .page_tokens = 16};
  const Rows rows = wire_samples::RandomRows(random, shape, 60000);
  const std::string path = ::testing::TempDir() + "wire_document_test.wmk";
  const auto writer = DocumentWriter::Create(rows).value();
  ASSERT_TRUE(writer.WriteFile(path).ok());
  std::ifstream file(path, std::ios::binary);
  const Bytes found((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_TRUE(found == *WriteDocument(rows));
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  std::remove(path.c_str());

  const absl::Status status = writer.WriteFile("/nowhere/at/all.wmk");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(status), HasSubstr("/nowhere/at/all.wmk"));
  Bytes small(writer.bytes() - 1);
  EXPECT_THAT(Message(writer.WriteTo(small)), HasSubstr("out must hold the document's"));
}

TEST(Document, RowsThatDoNotHoldWhatTheySayAreRefused) {
  Rows rows =
      wire_samples::RowsOf({.num_layers = 2, .top_k = 2, .num_experts = 8, .page_tokens = 4}, 0,
                           {{1, 1, Reason::kNone, Provenance::kHere}});
  DocumentOptions options;
  options.code.crc_layers = 3;
  EXPECT_THAT(Message(WriteDocument(rows, options).status()),
              HasSubstr("crc_layers must be in [0, 2]; it is 3"));
  rows.ids.pop_back();
  EXPECT_THAT(Message(WriteDocument(rows).status()), HasSubstr("rows.ids must hold 4 bytes"));
  rows.ids.push_back(0);
  rows.infos[0].cause = Cause::kEvicted;
  EXPECT_THAT(Message(WriteDocument(rows).status()), HasSubstr("they are 0, 0 and 9"));
  rows.infos[0] = {1, 1, static_cast<Reason>(9), Provenance::kHere};
  EXPECT_THAT(Message(WriteDocument(rows).status()), HasSubstr("rows.infos[0] must have a reason"));
}

// ---- rules of the header

Rows Ten() {
  return wire_samples::RowsOf({.num_layers = 3, .top_k = 2, .num_experts = 8, .page_tokens = 4}, 6,
                              std::vector<RowInfo>(10, {5, 1, Reason::kNone, Provenance::kHere}));
}

template <class T>
Bytes With(Bytes bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  wire_samples::MakeDocumentCrcRight(bytes);
  return bytes;
}

absl::Status Opened(const Bytes& bytes) {
  return Document::Open(bytes).status();
}
std::string Refusal(const Bytes& bytes) {
  return Message(Opened(bytes));
}
// Whatever is new in `bytes`, they hold the rows of Ten().
void ExpectTen(const Bytes& bytes) {
  const auto document = Document::Open(bytes).value();
  EXPECT_FALSE(document.truncated());
  ExpectSame(*document.ReadRows(document.All()), Ten());
}

// Puts a section in front of those at `at` (the sections begin at byte 64).
Bytes WithSection(const Bytes& bytes, std::size_t at, std::uint16_t type, std::uint16_t flags,
                  const Bytes& payload) {
  Bytes section(8 + (payload.size() + 7) / 8 * 8);
  const auto size = static_cast<std::uint32_t>(payload.size());
  std::memcpy(section.data(), &type, 2);
  std::memcpy(section.data() + 2, &flags, 2);
  std::memcpy(section.data() + 4, &size, 4);
  std::copy(payload.begin(), payload.end(), section.begin() + 8);
  section.resize((section.size() + 63) / 64 * 64);
  // As the sections have to lie one behind the other, its payload takes what is left.
  const auto padded = static_cast<std::uint32_t>(section.size() - 8);
  std::memcpy(section.data() + 4, &padded, 4);
  Bytes longer = bytes;
  longer.insert(longer.begin() + static_cast<std::ptrdiff_t>(at), section.begin(), section.end());
  std::uint32_t header_bytes;
  std::memcpy(&header_bytes, longer.data() + 12, 4);
  header_bytes += static_cast<std::uint32_t>(section.size());
  std::memcpy(longer.data() + 12, &header_bytes, 4);
  return With(longer, 24, std::uint64_t{longer.size()});
}

constexpr std::size_t kSections = 64;
constexpr std::size_t kBehindShape = 64 + 8 + 40;

TEST(DocumentRules, MinorVersionsUnknownSectionsAndWhatFollowsArePassedOver) {
  const Bytes bytes = *WriteDocument(Ten());
  ExpectTen(With(bytes, 10, std::uint16_t{9}));
  ExpectTen(WithSection(bytes, kBehindShape, 4711, 0xfffe, {1, 2, 3}));
  Bytes longer = bytes;
  longer.insert(longer.end(), 100, 0xaa);
  ExpectTen(longer);
}

TEST(DocumentRules, MajorVersionsAreRefusedByName) {
  for (const std::uint16_t major : {0, 2, 0xffff}) {
    const absl::Status status = Opened(With(*WriteDocument(Ten()), 8, major));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(Message(status),
                HasSubstr("major version must be 1; it is " + std::to_string(major)));
  }
}

TEST(DocumentRules, SectionsThatMustBeUnderstoodAreRefusedByNumber) {
  const absl::Status status = Opened(WithSection(*WriteDocument(Ten()), kBehindShape, 4711, 1, {}));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(status), HasSubstr("section 4711 must be understood"));
}

TEST(DocumentRules, Sections) {
  const Bytes bytes = *WriteDocument(Ten());
  EXPECT_THAT(Refusal(WithSection(bytes, kSections, 4711, 0, {})),
              HasSubstr("section 1 (shape) must be the first"));
  EXPECT_THAT(Refusal(WithSection(bytes, kBehindShape, 2, 0, {})),
              HasSubstr("section 2 comes twice"));
  EXPECT_THAT(Refusal(With(bytes, kSections, std::uint16_t{0})), HasSubstr("there is none"));
  EXPECT_THAT(Refusal(With(bytes, kBehindShape, std::uint16_t{0})),
              HasSubstr("section 2 (coverage) is required"));
  EXPECT_THAT(Refusal(With(bytes, kSections + 4, std::uint32_t{0xffffffff})),
              HasSubstr("section 1 has 4294967295 bytes"));
  EXPECT_THAT(Refusal(With(bytes, kBehindShape + 4, std::uint32_t{100})),
              HasSubstr("section 2 has 100 bytes, more"));
}

TEST(DocumentRules, Numbers) {
  const Bytes bytes = *WriteDocument(Ten());
  ASSERT_TRUE(Opened(bytes).ok());
  Bytes magic = bytes;
  magic[6] = 'x';
  EXPECT_THAT(Refusal(magic), HasSubstr("magic bytes"));
  EXPECT_THAT(Refusal(With(bytes, 12, std::uint32_t{65})),
              HasSubstr("multiple of 64, not 0; they are 65"));
  EXPECT_THAT(Refusal(With(bytes, 12, std::uint32_t{0})), HasSubstr("multiple of 64"));
  EXPECT_EQ(Opened(With(bytes, 12, std::uint32_t{0xffffffc0})).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Refusal(With(bytes, 24, std::uint64_t{bytes.size() + 1})),
              HasSubstr("by its shape and rows"));
  EXPECT_THAT(Refusal(With(bytes, 32, ~std::uint64_t{0})), HasSubstr("rows must lie in"));
  EXPECT_THAT(Refusal(With(bytes, 32, std::uint64_t{0x7ffffff6})), HasSubstr("rows must lie in"));
  EXPECT_THAT(Refusal(With(bytes, 40, ~std::uint64_t{0} - 5)), HasSubstr("rows must lie in"));
  EXPECT_THAT(Refusal(With(bytes, 40, std::uint64_t{11})), HasSubstr("by its shape and rows"));
  Bytes damaged = bytes;
  damaged[70] ^= 1;
  EXPECT_THAT(Refusal(damaged), HasSubstr("the crc of the header does not match"));
}

TEST(DocumentRules, Parts) {
  const Bytes bytes = *WriteDocument(Ten());
  const auto document = Document::Open(bytes);
  constexpr std::int64_t kLow = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kHigh = std::numeric_limits<std::int64_t>::max();
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const RowsAndLayers& part : {RowsAndLayers{5, 16, 0, 3},
                                    {6, 17, 0, 3},
                                    {8, 7, 0, 3},
                                    {kLow, kHigh, 0, 3},
                                    {kHigh, kLow, 0, 3},
                                    {6, 16, -1, 3},
                                    {6, 16, 0, 4},
                                    {6, 16, 1, 1},
                                    {6, 16, 2, 1},
                                    {6, 16, kLeast, kMost},
                                    {6, 16, kMost, kLeast}}) {
    EXPECT_EQ(document->ReadRows(part).status().code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_EQ(document->ReadRows({9, 9, 0, 1})->size(), 0);
}

TEST(DocumentRules, Limits) {
  const Bytes bytes = *WriteDocument(Ten());
  const auto limited = [&](std::int64_t max_rows, std::size_t max_bytes) {
    const auto document = Document::Open(bytes, {max_rows, max_bytes});
    return document.ok() ? document->ReadRows(document->All()).status() : document.status();
  };
  constexpr std::size_t kRowBytes = 6 + sizeof(RowInfo);
  EXPECT_TRUE(limited(10, 10 * kRowBytes).ok());
  EXPECT_THAT(Message(limited(9, 1000)), HasSubstr("at most max_rows = 9 rows; it has 10"));
  EXPECT_THAT(Message(limited(10, 10 * kRowBytes - 1)), HasSubstr("more than max_bytes, 299"));
  EXPECT_EQ(limited(10, 8).code(), absl::StatusCode::kResourceExhausted) << "by Open";
}

// A header may claim rows that nobody sent; what that costs is the caller's to say.
TEST(DocumentRules, RowsThatAreOnlyClaimedCostNoMemory) {
  Rows rows = Ten();
  Bytes bytes = *WriteDocument(rows, {.steps = false});
  // 2^31 - 1 rows from 0 on, one run.
  std::memset(bytes.data() + 32, 0, 8);
  const std::uint64_t claimed = 0x7fffffff;
  std::memcpy(bytes.data() + 40, &claimed, 8);
  const Bytes run = {0xff, 0xff, 0xff, 0xff, 0x07, 0, 0, 1};
  const std::uint32_t run_bytes = 8;
  std::memcpy(bytes.data() + kBehindShape + 4, &run_bytes, 4);
  std::copy(run.begin(), run.end(), bytes.begin() + static_cast<std::ptrdiff_t>(kBehindShape) + 8);
  const auto codec = ChunkCodec::Create({rows.shape, {}});
  std::uint32_t header_bytes;
  std::memcpy(&header_bytes, bytes.data() + 12, 4);
  const std::uint64_t whole =
      header_bytes + claimed / 4 * codec->ChunkBytes(4) + codec->ChunkBytes(claimed % 4);
  // Places are as many as chunks, so that a document that has them cannot claim more.
  EXPECT_THAT(Refusal(With(bytes, 24, whole)),
              HasSubstr("section 5 (places) must have 2147483648 bytes for its 536870912 chunks"));
  bytes = With(With(bytes, kBehindShape + 16, std::uint16_t{0}), 24, whole);
  EXPECT_THAT(Refusal(bytes), HasSubstr("section 5 (places) is required; there is none"));
}

// Chunks where they lie: every row's ids, layer-major, as rows have them.
TEST(Document, LendsChunks) {
  TestRandom random;
  for (int i = 0; i < 200 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const RoutingShape shape = wire_samples::RandomShape(random);
    const Rows rows = wire_samples::RandomRows(random, shape, 1 + random() % 90);
    DocumentOptions options;
    options.code.crc_layers =
        static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(shape.num_layers + 1));
    const auto bytes = WriteDocument(rows, options).value();
    const auto document = Document::Open(bytes).value();
    const std::size_t group = static_cast<std::size_t>(shape.top_k) * shape.id_bytes();
    std::int64_t row = rows.first;
    const std::uint8_t* end = nullptr;
    while (row < rows.last()) {
      const auto chunk = document.Chunk(row).value();
      ASSERT_EQ(chunk.first, row);
      ASSERT_EQ(chunk.layer_bytes, static_cast<std::size_t>(chunk.rows) * group);
      ASSERT_EQ(chunk.layers.size(),
                chunk.layer_bytes * static_cast<std::size_t>(shape.num_layers));
      for (std::int64_t r = 0; r < chunk.rows; ++r) {
        const std::span<const std::uint8_t> ids = rows.row(row - rows.first + r);
        const std::vector<std::uint8_t> zeros(ids.size());
        const bool valid = rows.infos[static_cast<std::size_t>(row - rows.first + r)].valid();
        for (std::size_t layer = 0; layer < static_cast<std::size_t>(shape.num_layers); ++layer) {
          EXPECT_EQ(std::memcmp(chunk.layers.data() + layer * chunk.layer_bytes +
                                    static_cast<std::size_t>(r) * group,
                                (valid ? ids.data() : zeros.data()) + layer * group, group),
                    0);
        }
      }
      // The same from each of its rows.
      EXPECT_EQ(document.Chunk(row + chunk.rows - 1)->first, row);
      row += chunk.rows;
      end = chunk.layers.data() + chunk.layers.size();
    }
    EXPECT_EQ(row, rows.last());
    EXPECT_EQ(end, bytes.data() + bytes.size());
    for (const std::int64_t outside : {rows.first - 1, rows.last()})
      EXPECT_EQ(document.Chunk(outside).status().code(), absl::StatusCode::kOutOfRange);
  }
}

}  // namespace
}  // namespace waymark::wire
