// The golden files: their bytes are what is written, and what is read of them is what was meant.
// WAYMARK_WRITE_GOLDEN=1 writes them anew: only for a change of the format that is meant.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "blockstore/wire/document.h"
#include "tests/support/wire_golden.h"

namespace waymark::wire {
namespace {

using wire_samples::Bytes;

std::string PathOf(const std::string& name) {
  return std::string(WAYMARK_WIRE_DATA) + "/" + name;
}

Bytes FileOf(const std::string& name) {
  std::ifstream file(PathOf(name), std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(Golden, BytesAreWrittenSo) {
  for (const auto& golden : wire_samples::Goldens()) {
    if (std::getenv("WAYMARK_WRITE_GOLDEN") != nullptr) {
      std::ofstream(PathOf(golden.name), std::ios::binary)
          .write(reinterpret_cast<const char*>(golden.bytes.data()),
                 static_cast<std::streamsize>(golden.bytes.size()));
    }
    EXPECT_EQ(FileOf(golden.name), golden.bytes) << golden.name;
  }
}

TEST(Golden, DocumentsAreReadSo) {
  for (const auto& [name, meant] : wire_samples::GoldenDocuments()) {
    SCOPED_TRACE(name);
    const Bytes bytes = FileOf(name);
    const auto document = Document::Open(bytes).value();
    const auto& [rows, options] = meant;
    EXPECT_EQ(document.has_steps(), options.steps);
    EXPECT_EQ(document.shape().code.ordered, options.code.ordered);
    EXPECT_EQ(document.shape().code.codec, options.code.codec);
    const auto found = document.ReadRows(document.All()).value();
    Rows expected = rows;
    for (RowInfo& info : expected.infos) {
      if (!options.steps) info.step = 0;
    }
    const std::size_t group = static_cast<std::size_t>(rows.shape.top_k) * rows.shape.id_bytes();
    for (std::size_t at = 0; !options.code.ordered && at < expected.ids.size(); at += group) {
      const auto begin = expected.ids.begin() + static_cast<std::ptrdiff_t>(at);
      if (rows.shape.id_bytes() == 1) {
        std::sort(begin, begin + static_cast<std::ptrdiff_t>(group));
      } else {
        auto* ids = reinterpret_cast<std::uint16_t*>(&*begin);
        std::sort(ids, ids + rows.shape.top_k);
      }
    }
    EXPECT_EQ(found.shape, expected.shape);
    EXPECT_EQ(found.first, expected.first);
    EXPECT_EQ(found.infos, expected.infos);
    EXPECT_EQ(found.ids, expected.ids);
  }
}

TEST(Golden, ObjectsAreReadSo) {
  const auto handle = ParseHandle(FileOf("handle.bin")).value();
  EXPECT_EQ(handle.rows, 9);
  const Bytes node_bytes = FileOf("node.bin");
  EXPECT_EQ(handle.head, ContentDigest(node_bytes));
  const auto node = ParseNode(node_bytes, ShapeDigest(handle.shape), 4).value();
  EXPECT_EQ(node.chunks.size(), 2u);
  const auto named = ParseNode(FileOf("node_named.bin"), ShapeDigest(handle.shape), 4).value();
  EXPECT_EQ(named.names,
            (std::vector<PageName>{{.begin = 5, .end = 7, .name = {{1, 2, 3, 4}}, .version = 7}}));

  const auto list = ParseNodeList(FileOf("node_list.bin"), 4).value();
  EXPECT_EQ((list)[1], (Digest128{{5, 6, 7, 8}}));
  EXPECT_EQ(list.back(), handle.head);
  EXPECT_EQ(NodeListName(handle.head),
            (Digest128{{0x9a8c7a1a, 0xc5feafc1, 0x5f186cfc, 0x86546625}}));  // by reference.py
  const Bytes tail_bytes = FileOf("tail.bin");
  ASSERT_EQ(handle.tail.size(), 1u);
  EXPECT_EQ(handle.tail[0], ContentDigest(tail_bytes));
  const auto tail = ParseTailSegment(*ChunkCodec::Create(handle.shape), tail_bytes, 0,
                                     handle.shape.rows.num_layers)
                        .value();
  EXPECT_EQ(tail.first, 8);
  EXPECT_EQ(tail.infos, (std::vector<RowInfo>{{11, 1, Reason::kNone, Provenance::kHere}}));
  const auto named_tail =
      ParseTailSegment(*ChunkCodec::Create(handle.shape), FileOf("tail_named.bin"), 0,
                       handle.shape.rows.num_layers)
          .value();
  EXPECT_EQ(named_tail.names, (std::vector<PageName>{{.begin = 8,
                                                      .end = 9,
                                                      .name = {{5, 6, 7, 8}},
                                                      .version = 9,
                                                      .lost = true,
                                                      .unnamed = true}}));
}

}  // namespace
}  // namespace waymark::wire
