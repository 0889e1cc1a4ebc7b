// Nodes, tail segments and handles: there and back, and every rule that bytes can break.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "blockstore/wire/handle.h"
#include "blockstore/wire/objects.h"
#include "tests/support/wire_samples.h"

namespace waymark::wire {
namespace {

using ::testing::HasSubstr;
using wire_samples::Bytes;
using wire_samples::Message;

template <class T>
Bytes With(Bytes bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  return bytes;
}

RowInfo Valid(std::uint64_t step) {
  return {step, 3, Reason::kNone, Provenance::kByKey};
}

std::vector<RowInfo> WithoutProvenance(std::vector<RowInfo> infos) {
  for (RowInfo& info : infos)
    info.provenance = Provenance::kHere;
  return infos;
}

// ---- nodes

constexpr std::uint64_t kShape = 0x1122334455667788;

struct NodeSample {
  std::vector<Digest128> chunks = {{{1, 2, 3, 4}}, {{5, 6, 7, 8}}};
  std::vector<RowInfo> infos = {
      Valid(1), Valid(2), {0, 0, Reason::kAudit, Provenance::kKept}, Valid(9)};
  Bytes bytes = *EncodeNode(kShape, 64, {{1, 0, 0, 0}}, chunks, 2, infos);
};

TEST(Node, ThereAndBack) {
  const NodeSample sample;
  const auto node = ParseNode(sample.bytes, kShape, 2).value();
  EXPECT_EQ(node.first_page, 64);
  EXPECT_EQ(node.before, (Digest128{{1, 0, 0, 0}}));
  EXPECT_EQ(node.chunks, sample.chunks);
  std::vector<RowInfo> infos(4);
  node.known.Infos(0, infos);
  EXPECT_EQ(infos, WithoutProvenance(sample.infos));
  // Whoever attached the rows, the bytes and so the name are the same.
  EXPECT_EQ(
      *EncodeNode(kShape, 64, {{1, 0, 0, 0}}, sample.chunks, 2, WithoutProvenance(sample.infos)),
      sample.bytes);
}

TEST(Node, WhatCannotBeIsNotWritten) {
  const NodeSample s;
  EXPECT_FALSE(EncodeNode(kShape, 63, {{1, 0, 0, 0}}, s.chunks, 2, s.infos).ok());
  EXPECT_FALSE(EncodeNode(kShape, -64, {{1, 0, 0, 0}}, s.chunks, 2, s.infos).ok());
  EXPECT_FALSE(EncodeNode(kShape, 64, {}, s.chunks, 2, s.infos).ok());
  EXPECT_FALSE(EncodeNode(kShape, 0, {{1, 0, 0, 0}}, s.chunks, 2, s.infos).ok());
  EXPECT_FALSE(EncodeNode(kShape, 64, {{1, 0, 0, 0}}, s.chunks, 3, s.infos).ok());
  EXPECT_FALSE(EncodeNode(kShape, 64, {{1, 0, 0, 0}}, {}, 2, {}).ok());
  EXPECT_FALSE(EncodeNode(kShape, 64, {{1, 0, 0, 0}}, std::vector<Digest128>(65), 1,
                          std::vector<RowInfo>(65))
                   .ok());
  EXPECT_TRUE(
      EncodeNode(kShape, 0, {}, std::vector<Digest128>(64), 1, std::vector<RowInfo>(64)).ok());
}

TEST(Node, WhatCannotBeIsNotRead) {
  const Bytes bytes = NodeSample().bytes;
  const auto refused = [](const Bytes& b) { return Message(ParseNode(b, kShape, 2).status()); };
  EXPECT_THAT(refused(With(bytes, 0, 'X')), HasSubstr("WMKN"));
  EXPECT_THAT(refused(With(bytes, 4, std::uint16_t{2})),
              HasSubstr("major version must be 1; it is 2"));
  EXPECT_THAT(refused(With(bytes, 6, std::uint16_t{0})), HasSubstr("1 to 64; they are 0"));
  EXPECT_THAT(refused(With(bytes, 6, std::uint16_t{65})), HasSubstr("1 to 64; they are 65"));
  EXPECT_THAT(refused(With(bytes, 8, std::uint64_t{5})),
              HasSubstr("shape digest must be 1122334455667788; it is 5"));
  EXPECT_THAT(refused(With(bytes, 16, std::uint64_t{65})), HasSubstr("multiple of 64"));
  EXPECT_THAT(refused(With(bytes, 16, std::uint64_t{1} << 63)),
              HasSubstr("multiple of 64 with rows below"));
  EXPECT_THAT(refused(With(bytes, 16, std::uint64_t{1} << 30)),
              HasSubstr("multiple of 64 with rows below"));
  EXPECT_THAT(refused(With(bytes, 16, std::uint64_t{0})), HasSubstr("zeros for page 0"));
  EXPECT_THAT(refused(With(bytes, 40, std::uint32_t{0xffffffff})), HasSubstr("counts"));
  EXPECT_THAT(refused(With(bytes, 44, std::uint32_t{0})), HasSubstr("counts"));
  EXPECT_THAT(refused(With(bytes, 48 + 32 + 2, std::uint8_t{1})),
              HasSubstr("provenance in its coverage must be 0"));
  Bytes longer = bytes;
  longer.push_back(0);
  EXPECT_THAT(refused(longer), HasSubstr("counts"));
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_NE(refused(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size))), "")
        << size;
  EXPECT_EQ(ParseNode(bytes, kShape, 2, 8).status().code(), absl::StatusCode::kResourceExhausted);
}

// ---- tail segments

struct TailSample {
  ChunkCodec codec = *ChunkCodec::Create(
      {{.num_layers = 3, .top_k = 2, .num_experts = 100, .page_tokens = 8}, {}});
  Rows rows = wire_samples::RowsOf(
      codec.shape().rows, 17, {Valid(4), {0, 0, Reason::kCapacity, Provenance::kKept}, Valid(5)});
  Bytes bytes = *EncodeTailSegment(codec, 17, rows.infos, rows.ids);
};

TEST(TailSegment, ThereAndBack) {
  const TailSample sample;
  const auto rows = ParseTailSegment(sample.codec, sample.bytes, 0, 3).value();
  EXPECT_EQ(rows.first, 17);
  EXPECT_EQ(rows.shape, sample.rows.shape);
  EXPECT_EQ(rows.ids, sample.rows.ids);
  EXPECT_EQ(rows.infos, WithoutProvenance(sample.rows.infos));
}

TEST(TailSegment, WhatCannotBeIsNotWritten) {
  const TailSample s;
  EXPECT_FALSE(EncodeTailSegment(s.codec, 17, {}, {}).ok());
  EXPECT_FALSE(EncodeTailSegment(s.codec, 22, s.rows.infos, s.rows.ids).ok()) << "two pages";
  EXPECT_FALSE(EncodeTailSegment(s.codec, -3, s.rows.infos, s.rows.ids).ok());
  EXPECT_FALSE(
      EncodeTailSegment(s.codec, (std::int64_t{1} << 31) - 3, s.rows.infos, s.rows.ids).ok());
  EXPECT_FALSE(EncodeTailSegment(s.codec, 17, s.rows.infos, std::span(s.rows.ids).first(5)).ok());
}

TEST(TailSegment, WhatCannotBeIsNotRead) {
  const TailSample sample;
  const auto refused = [&](const Bytes& b) {
    return Message(ParseTailSegment(sample.codec, b, 0, 3).status());
  };
  EXPECT_THAT(refused(With(sample.bytes, 3, 'N')), HasSubstr("WMKT"));
  EXPECT_THAT(refused(With(sample.bytes, 4, std::uint16_t{0})),
              HasSubstr("major version must be 1; it is 0"));
  EXPECT_THAT(refused(With(sample.bytes, 6, std::uint16_t{0})), HasSubstr("it has 0 from 17"));
  EXPECT_THAT(refused(With(sample.bytes, 6, std::uint16_t{9})), HasSubstr("it has 9 from 17"));
  EXPECT_THAT(refused(With(sample.bytes, 8, std::uint64_t{7})), HasSubstr("shape digest"));
  EXPECT_THAT(refused(With(sample.bytes, 16, ~std::uint64_t{0})), HasSubstr("one page"));
  EXPECT_THAT(refused(With(sample.bytes, 16, std::uint64_t{22})), HasSubstr("one page"));
  EXPECT_THAT(refused(With(sample.bytes, 24, ~std::uint32_t{0})), HasSubstr("counts"));
  EXPECT_THAT(refused(With(sample.bytes, 32 + 2, std::uint8_t{2})),
              HasSubstr("provenance in its coverage must be 0"));
  for (std::size_t size = 0; size < sample.bytes.size(); ++size)
    EXPECT_NE(refused(Bytes(sample.bytes.begin(),
                            sample.bytes.begin() + static_cast<std::ptrdiff_t>(size))),
              "")
        << size;
}

TEST(TailSegment, DamagedRowsAreMissing) {
  const TailSample sample;
  Bytes bytes = sample.bytes;
  bytes.back() ^= 1;
  const auto rows = ParseTailSegment(sample.codec, bytes, 0, 3).value();
  EXPECT_EQ(rows.infos[0].reason, Reason::kNotCaptured);
  EXPECT_EQ(rows.infos[1].reason, Reason::kCapacity);
  EXPECT_EQ(rows.infos[0].step, 0u);
  EXPECT_EQ(rows.ids, Bytes(18));
}

// ---- handles

Handle HandleSample() {
  Handle handle;
  handle.shape.rows = {.num_layers = 3, .top_k = 2, .num_experts = 100, .page_tokens = 4};
  handle.shape.code.crc_layers = 1;
  handle.store = "rollouts/\xc3\xa9t\xc3\xa9";
  handle.rows = 10;
  handle.head = {{9, 8, 7, 6}};
  handle.tail = {{{1, 1, 1, 1}}, {{2, 2, 2, 2}}};
  handle.provenance.assign(10, Provenance::kHere);
  handle.provenance[3] = Provenance::kByKey;
  return handle;
}

TEST(Handle, ThereAndBack) {
  const auto bytes = EncodeHandle(HandleSample()).value();
  const auto back = ParseHandle(bytes).value();
  EXPECT_EQ(back, HandleSample());
  Handle none;
  none.shape = HandleSample().shape;
  EXPECT_EQ(*ParseHandle(*EncodeHandle(none)), none);
}

TEST(Handle, WhatCannotBeIsNotWritten) {
  const auto refused = [](auto&& change) {
    Handle handle = HandleSample();
    change(handle);
    return Message(EncodeHandle(handle).status());
  };
  EXPECT_THAT(refused([](Handle& h) { h.rows = -1; }), HasSubstr("rows must be in"));
  EXPECT_THAT(refused([](Handle& h) { h.head = {}; }),
              HasSubstr("head must be zeros when no page"));
  EXPECT_THAT(refused([](Handle& h) { h.tail.clear(); }), HasSubstr("tail segments"));
  EXPECT_THAT(refused([](Handle& h) { h.tail.resize(3); }),
              HasSubstr("tail segments of the 2 rows"));
  EXPECT_THAT(refused([](Handle& h) { h.provenance.pop_back(); }),
              HasSubstr("provenance must have one entry per row, 10"));
  EXPECT_THAT(refused([](Handle& h) { h.provenance[0] = static_cast<Provenance>(4); }),
              HasSubstr("[0, 3]; it is 4"));
  EXPECT_THAT(refused([](Handle& h) { h.store.assign(65536, 'x'); }),
              HasSubstr("fewer than 65536"));
  EXPECT_THAT(refused([](Handle& h) { h.shape.rows.top_k = 0; }), HasSubstr("top_k"));
  for (const char* text : {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80", "\xff", "a\xf0\x9f\x98"})
    EXPECT_THAT(refused([&](Handle& h) { h.store = text; }), HasSubstr("UTF-8")) << text;
  EXPECT_EQ(refused([](Handle& h) { h.store = "\xf0\x9f\x98\x80\xe2\x82\xac"; }), "");
}

TEST(Handle, WhatCannotBeIsNotRead) {
  const Bytes bytes = *EncodeHandle(HandleSample());
  const auto refused = [](Bytes b) {
    wire_samples::MakeHandleCrcRight(b);
    return Message(ParseHandle(b).status());
  };
  EXPECT_THAT(refused(With(bytes, 3, 'T')), HasSubstr("WMKH"));
  EXPECT_THAT(refused(With(bytes, 4, std::uint16_t{3})),
              HasSubstr("major version must be 1; it is 3"));
  EXPECT_THAT(refused(With(bytes, 6, std::uint16_t{3})), HasSubstr("counts"));
  EXPECT_THAT(refused(With(bytes, 8, std::uint32_t{5})), HasSubstr("the 5 bytes of its header"));
  EXPECT_THAT(refused(With(bytes, 16, std::uint64_t{1} << 40)), HasSubstr("rows must be in"));
  EXPECT_THAT(refused(With(bytes, 16, std::uint64_t{11})), HasSubstr("provenance"));
  EXPECT_THAT(refused(With(bytes, 40, ~std::uint32_t{0})), HasSubstr("counts"));
  EXPECT_THAT(refused(With(With(bytes, 44, std::uint16_t{39}), 46, std::uint16_t{15})),
              HasSubstr("shape block"));
  EXPECT_THAT(refused(With(bytes, 46, ~std::uint16_t{0})), HasSubstr("counts"));
  EXPECT_EQ(ParseHandle(bytes, 9).status().code(), absl::StatusCode::kResourceExhausted);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes damaged = bytes;
      damaged[at] ^= static_cast<std::uint8_t>(1 << bit);
      EXPECT_FALSE(ParseHandle(damaged).ok()) << at;
    }
    EXPECT_FALSE(ParseHandle(std::span(bytes).first(at)).ok()) << at;
  }
}

}  // namespace
}  // namespace waymark::wire
