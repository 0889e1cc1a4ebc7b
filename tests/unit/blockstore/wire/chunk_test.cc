// Shape blocks and chunks: pinned bytes, sorting, what a part of a chunk touches, ids beyond E.
#include "blockstore/wire/chunk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "blockstore/wire/crc32c.h"
#include "tests/support/test_seed.h"
#include "tests/support/wire_samples.h"

namespace waymark::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire_samples::Bytes;
using wire_samples::Message;

WireShape Small() {
  WireShape shape;
  shape.rows = {.num_layers = 2, .top_k = 2, .num_experts = 8, .page_tokens = 4};
  shape.rows.layer_ids = {3, 5};
  return shape;
}

TEST(ShapeBlock, Bytes) {
  EXPECT_THAT(EncodeShapeBlock(Small()), ElementsAre(2, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, 4, 0, 0, 0,
                                                     0, 0, 1, 0, 0, 0, 0, 0,  //
                                                     1, 0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0));
}

TEST(ShapeBlock, ThereAndBack) {
  TestRandom random;
  for (int i = 0; i < 500; ++i) {
    WireShape shape;
    shape.rows = wire_samples::RandomShape(random);
    shape.code = wire_samples::RandomCode(random, shape.rows);
    shape.code.crc_layers = shape.crc_layers();
    const auto back = DecodeShapeBlock(EncodeShapeBlock(shape)).value();
    EXPECT_EQ(back, shape);
  }
  // Layer numbers that only count are not kept.
  WireShape counted = Small();
  counted.rows.layer_ids = {0, 1};
  EXPECT_TRUE(DecodeShapeBlock(EncodeShapeBlock(counted))->rows.layer_ids.empty());
}

TEST(ShapeBlock, DefaultCrcLayersAreAQuarter) {
  WireShape shape = Small();
  for (const auto& [layers, crc_layers, crcs] :
       {std::tuple{1, 1, 1}, {4, 1, 4}, {5, 2, 3}, {58, 15, 4}}) {
    shape.rows.num_layers = layers;
    shape.rows.layer_ids.clear();
    EXPECT_EQ(shape.crc_layers(), crc_layers);
    EXPECT_EQ(shape.num_crcs(), crcs);
  }
}

TEST(ShapeBlock, BadBlocksAreRefused) {
  const auto with = [](std::size_t at, std::uint8_t value) {
    Bytes bytes = EncodeShapeBlock(Small());
    bytes[at] = value;
    return DecodeShapeBlock(bytes).status();
  };
  EXPECT_THAT(Message(with(0, 3)), HasSubstr("it has 36 bytes for 3 layers"));
  EXPECT_THAT(Message(with(3, 0x80)), HasSubstr("1 to 1024 layers"));
  EXPECT_THAT(Message(with(4, 9)), HasSubstr("top_k must be <= num_experts (8)"));
  EXPECT_THAT(Message(with(7, 0x80)), HasSubstr("top_k must be in [1, 64]"));
  EXPECT_THAT(Message(with(12, 0)), HasSubstr("page_tokens must be in [1, 4096]"));
  EXPECT_THAT(Message(with(16, 1)), HasSubstr("id space 1 is not known"));
  EXPECT_THAT(Message(with(18, 3)), HasSubstr("a flag of 3 is not known"));
  EXPECT_THAT(Message(with(20, 9)), HasSubstr("codec 9 is not known"));
  EXPECT_EQ(with(20, 9).code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(with(22, 1)), HasSubstr("must be 0 under the raw codec"));
  EXPECT_THAT(Message(with(23, 2)), HasSubstr("must be 0 under the raw codec; they are 0 and 2"));
  EXPECT_THAT(Message(with(20, 1)), HasSubstr("ordered must be false under the set code"));
  Bytes sets = EncodeShapeBlock(Small());
  sets[18] = 0;
  sets[20] = 1;
  EXPECT_EQ(DecodeShapeBlock(sets)->set_code(), (SetCodeParams{8, 2, 0, HighBits::kRanked}));
  sets[23] = 2;
  EXPECT_THAT(Message(DecodeShapeBlock(sets).status()),
              HasSubstr("high_bits must be in [0, 1]; it is 2"));
  sets[23] = 0;
  sets[22] = 17;
  EXPECT_THAT(Message(DecodeShapeBlock(sets).status()),
              HasSubstr("low_bits must be in [0, 16]; it is 17"));
  EXPECT_THAT(Message(with(24, 0)), HasSubstr("layers a crc must be in [1, L]; it is 0"));
  EXPECT_THAT(Message(with(24, 3)), HasSubstr("crc_layers must be in [0, 2]; it is 3"));
  EXPECT_THAT(Message(with(32, 3)), HasSubstr("layer_ids[1]"));
  Bytes longer = EncodeShapeBlock(Small());
  longer.push_back(0);
  EXPECT_FALSE(DecodeShapeBlock(longer).ok());
  for (std::size_t size = 0; size < 36; ++size)
    EXPECT_FALSE(DecodeShapeBlock(std::span(longer).first(size)).ok()) << size;
}

TEST(ShapeBlock, TheDigestTellsShapesAndCodesApart) {
  WireShape shape = Small();
  const std::uint64_t digest = ShapeDigest(shape);
  EXPECT_EQ(ShapeDigest(Small()), digest);
  shape.code.ordered = false;
  EXPECT_NE(ShapeDigest(shape), digest);
  shape = Small();
  shape.code.crc_layers = 2;
  EXPECT_NE(ShapeDigest(shape), digest);
  shape = Small();
  shape.rows.layer_ids = {3, 6};
  EXPECT_NE(ShapeDigest(shape), digest);
}

TEST(Chunk, Bytes) {
  const auto codec = ChunkCodec::Create(Small()).value();
  const RowInfo valid{1, 1, Reason::kNone, Provenance::kHere};
  const std::vector<RowInfo> infos = {valid, {}, valid};
  // The row in the middle is missing, whatever its bytes are.
  const Bytes ids = {7, 1, 2, 3, 0xee, 0xee, 0xee, 0xee, 4, 5, 6, 0};
  Bytes chunk(codec.ChunkBytes(3));
  ASSERT_TRUE(codec.Encode(infos, ids, chunk).ok());
  const Bytes layer0 = {7, 1, 0, 0, 4, 5};
  const Bytes layer1 = {2, 3, 0, 0, 6, 0};
  Bytes expected;
  for (const Bytes& layer : {layer0, layer1}) {
    const std::uint32_t crc = Crc32c(layer);
    for (int i = 0; i < 4; ++i)
      expected.push_back(static_cast<std::uint8_t>(crc >> (8 * i)));
  }
  expected.insert(expected.end(), layer0.begin(), layer0.end());
  expected.insert(expected.end(), layer1.begin(), layer1.end());
  EXPECT_EQ(chunk, expected);
}

TEST(Chunk, SizesThatDoNotFitAreRefused) {
  const auto codec = ChunkCodec::Create(Small());
  const std::vector<RowInfo> infos(5);
  Bytes ids(20);
  Bytes chunk(codec->ChunkBytes(4));
  EXPECT_THAT(Message(codec->Encode(infos, ids, chunk)), HasSubstr("1 to 4 rows; it has 5"));
  EXPECT_FALSE(codec->Encode({}, {}, chunk).ok());
  EXPECT_THAT(Message(codec->Encode(std::span(infos).first(4), ids, chunk)),
              HasSubstr("ids must hold 4 rows of 4 bytes; they hold 20"));
  ids.resize(16);
  chunk.pop_back();
  EXPECT_THAT(Message(codec->Encode(std::span(infos).first(4), ids, chunk)),
              HasSubstr("it must have 24 bytes; it has 23"));
}

TEST(Chunk, IdsBeyondEAreNotGivenOut) {
  for (const std::int32_t experts : {100, 255, 300}) {
    WireShape shape;
    shape.rows = {.num_layers = 3, .top_k = 24, .num_experts = experts, .page_tokens = 8};
    const auto codec = ChunkCodec::Create(shape);
    Rows rows =
        wire_samples::RowsOf(shape.rows, 0, std::vector<RowInfo>(6, {1, 1, Reason::kNone, {}}));
    const std::uint32_t beyond = static_cast<std::uint32_t>(experts);
    wire_samples::PutId(shape.rows, rows.ids.data() + 4 * shape.rows.row_bytes(), 71, beyond);
    Bytes chunk(codec->ChunkBytes(6));
    ASSERT_TRUE(codec->Encode(rows.infos, rows.ids, chunk).ok());
    Bytes ids(rows.ids.size());
    Bytes invalid(6);
    EXPECT_EQ(codec->Decode(rows.infos, chunk, {0, 6, 0, 3}, ids, invalid), ChunkState::kInvalidId);
    EXPECT_THAT(invalid, ElementsAre(0, 0, 0, 0, 1, 0));
    std::fill_n(rows.ids.begin() + static_cast<std::ptrdiff_t>(4 * shape.rows.row_bytes()),
                shape.rows.row_bytes(), 0);
    EXPECT_EQ(ids, rows.ids);
    // Layers without it have nothing against the row.
    ids.resize(6 * 2 * 24 * shape.rows.id_bytes());
    EXPECT_EQ(codec->Decode(rows.infos, chunk, {0, 6, 0, 2}, ids, invalid), ChunkState::kGood);
  }
}

// Whoever wrote the chunk left something where the coverage says that nothing is.
TEST(Chunk, BitsOfMissingRowsAreNotGivenOut) {
  WireShape shape;
  shape.rows = {.num_layers = 3, .top_k = 2, .num_experts = 100, .page_tokens = 8};
  for (const bool sets : {false, true}) {
    if (sets) shape.code = ChunkCode::SetCodeFor(shape.rows);
    const auto codec = ChunkCodec::Create(shape);
    const std::vector<RowInfo> all(5, {1, 1, Reason::kNone, {}});
    const Rows rows = wire_samples::RowsOf(shape.rows, 0, all);
    Bytes chunk(codec->ChunkBytes(5));
    ASSERT_TRUE(codec->Encode(all, rows.ids, chunk).ok());
    std::vector<RowInfo> infos = all;
    infos[3] = RowInfo{};
    Bytes ids(rows.ids.size(), 0xcc);
    Bytes invalid(5);
    ASSERT_EQ(codec->Decode(infos, chunk, {0, 5, 0, 3}, ids, invalid), ChunkState::kGood);
    EXPECT_EQ(Bytes(ids.begin() + 18, ids.begin() + 24), Bytes(6));
    EXPECT_NE(Bytes(ids.begin() + 24, ids.end()), Bytes(6));
  }
}

TEST(Chunk, TheDigestIsOfShapeRowsAndBytes) {
  const auto codec = ChunkCodec::Create(Small());
  WireShape other_shape = Small();
  other_shape.rows.layer_ids = {3, 6};
  const auto other = ChunkCodec::Create(other_shape);
  Bytes chunk(codec->ChunkBytes(2));
  std::iota(chunk.begin(), chunk.end(), std::uint8_t{1});
  Bytes whole;
  for (int i = 0; i < 8; ++i)
    whole.push_back(static_cast<std::uint8_t>(codec->shape_digest() >> (8 * i)));
  whole.insert(whole.end(), {2, 0, 0, 0});
  whole.insert(whole.end(), chunk.begin(), chunk.end());
  const Digest128 plain = ContentDigest(whole);
  const Digest128 digest = codec->Digest(2, chunk);
  EXPECT_EQ(digest, (Digest128{{codec->PlaceDigest(chunk), plain.w[1], plain.w[2], plain.w[3]}}));
  EXPECT_NE(digest, codec->Digest(3, chunk));
  EXPECT_NE(digest, other->Digest(2, chunk));
  // A key names with all 128 bits.
  const DigestKey key = DigestKey::Create("key", Bytes(16, 7)).value();
  const auto keyed = ChunkCodec::Create(Small(), key);
  whole.insert(whole.begin(), {'W', 'M', 'K', 'C'});
  EXPECT_EQ(keyed->Digest(2, chunk), key.Digest(whole));
}

}  // namespace
}  // namespace waymark::wire
