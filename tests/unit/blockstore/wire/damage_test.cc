// Damaged and short documents: rows are missing, or the document is refused; no row is ever
// another. (What else happens to bytes: tests/fuzz/wire_damage_target.cc.)
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "blockstore/wire/document.h"
#include "blockstore/wire/document_writer.h"
#include "tests/support/wire_samples.h"

namespace waymark::wire {
namespace {

using wire_samples::Bytes;

// Four chunks, rows of every reason, layers under several crcs.
Rows Sample() {
  std::mt19937_64 random(11);
  return wire_samples::RowsOf({.num_layers = 5, .top_k = 2, .num_experts = 100, .page_tokens = 4},
                              2, wire_samples::RandomInfos(random, 13));
}

struct ChunkRange {
  std::size_t begin, end;
  std::int64_t row_begin, row_end;  // of the sample
};

// Header, then chunks. By the format's own arithmetic, not the reader's.
std::vector<ChunkRange> ChunksOfSample(std::size_t header_bytes) {
  std::vector<ChunkRange> ranges;
  std::size_t at = header_bytes;
  for (const auto& [begin, end] : {std::pair{0, 2}, {2, 6}, {6, 10}, {10, 13}}) {
    const std::size_t bytes = 3 * 4 + 5 * static_cast<std::size_t>(end - begin) * 2;
    ranges.push_back({at, at + bytes, begin, end});
    at += bytes;
  }
  return ranges;
}

std::size_t HeaderBytes(const Bytes& bytes) {
  std::uint32_t header_bytes;
  std::memcpy(&header_bytes, bytes.data() + 12, 4);
  return header_bytes;
}

// The rows of `found` are those of `right`, but for those of [lost_begin, lost_end): of these, what
// was valid is missing and not captured.
void ExpectLost(const Rows& found, const Rows& right, std::int64_t lost_begin,
                std::int64_t lost_end) {
  ASSERT_EQ(found.size(), right.size());
  for (std::int64_t row = 0; row < right.size(); ++row) {
    RowInfo info = right.infos[static_cast<std::size_t>(row)];
    const bool lost = row >= lost_begin && row < lost_end;
    if (lost && info.valid()) info = {0, 0, Reason::kNotCaptured, info.provenance};
    ASSERT_EQ(found.infos[static_cast<std::size_t>(row)], info) << row;
    const auto ids = found.row(row);
    if (lost) {
      ASSERT_TRUE(std::all_of(ids.begin(), ids.end(), [](auto id) { return id == 0; })) << row;
    } else {
      ASSERT_TRUE(std::ranges::equal(ids, right.row(row))) << row;
    }
  }
}

TEST(Damage, EveryBitOfEveryByte) {
  const Rows right = Sample();
  const Bytes bytes = *WriteDocument(right);
  const std::size_t header_bytes = HeaderBytes(bytes);
  const std::vector<ChunkRange> chunks = ChunksOfSample(header_bytes);
  ASSERT_EQ(chunks.back().end, bytes.size());
  Rows reused;  // what was read before must not shine through
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    SCOPED_TRACE(at);
    for (int change = 1; change < 256; ++change) {
      if (change > 8 && change % 31 != 0) continue;  // every bit below, and more
      Bytes damaged = bytes;
      damaged[at] ^= static_cast<std::uint8_t>(change <= 8 ? 1 << (change - 1) : change);
      const auto document = Document::Open(damaged);
      if (at < header_bytes) {
        ASSERT_FALSE(document.ok());
        continue;
      }
      ASSERT_TRUE(document.ok()) << document.status();
      const auto hit = std::find_if(chunks.begin(), chunks.end(),
                                    [at](const ChunkRange& chunk) { return at < chunk.end; });
      ReadDamage damage;
      ASSERT_TRUE(Document::Open(bytes)->ReadRows(document->All(), reused).ok());
      ASSERT_TRUE(document->ReadRows(document->All(), reused, &damage).ok());
      ASSERT_NO_FATAL_FAILURE(ExpectLost(reused, right, hit->row_begin, hit->row_end));
      EXPECT_LE(damage.damaged_chunks, 1);
      EXPECT_EQ(damage.absent_chunks + damage.invalid_rows, 0);
      // Layer by layer: lost are the layers under the crc that was hit; if the crc itself was, all,
      // because the place of the chunk is found by its crcs.
      const std::size_t in_chunk = at - hit->begin;
      const std::size_t layer_bytes = static_cast<std::size_t>(hit->row_end - hit->row_begin) * 2;
      const std::size_t crc = in_chunk < 12 ? in_chunk / 4 : (in_chunk - 12) / layer_bytes / 2;
      for (std::int32_t layer = 0; layer < 5; ++layer) {
        const RowsAndLayers part{2, 15, layer, layer + 1};
        const auto one = document->ReadRows(part);
        const Bytes whole = *WriteDocument(right);
        const auto one_right = Document::Open(whole)->ReadRows(part);
        const bool lost = in_chunk < 12 || static_cast<std::size_t>(layer) / 2 == crc;
        ASSERT_NO_FATAL_FAILURE(
            ExpectLost(*one, *one_right, hit->row_begin, lost ? hit->row_end : hit->row_begin));
      }
    }
  }
}

TEST(Damage, AShortDocumentSaysSo) {
  const Bytes bytes = *WriteDocument(Sample());
  const Bytes part(bytes.begin(), bytes.end() - 1);
  const auto document = Document::Open(part).value();
  EXPECT_TRUE(document.truncated());
  EXPECT_EQ(document.bytes(), bytes.size());
  ReadDamage damage;
  ASSERT_NO_FATAL_FAILURE(
      ExpectLost(*document.ReadRows(document.All(), &damage), Sample(), 10, 13));
  EXPECT_EQ(damage.absent_chunks, 1);
  EXPECT_EQ(damage.damaged_chunks, 0);
}

// A writer that gave an id that cannot be: the crc fits, and the row is missing all the same.
TEST(Damage, IdsBeyondE) {
  Rows wrong = Sample();
  std::int64_t row = 0;
  while (!wrong.infos[static_cast<std::size_t>(row)].valid())
    ++row;
  wrong.ids[static_cast<std::size_t>(row) * wrong.shape.row_bytes() + 3] = 100;
  const Bytes bytes = *WriteDocument(wrong);
  const auto document = Document::Open(bytes).value();
  ReadDamage damage;
  const auto rows = document.ReadRows(document.All(), &damage).value();
  Rows right = Sample();
  RowInfo& info = right.infos[static_cast<std::size_t>(row)];
  info = {0, 0, Reason::kInvalidId, info.provenance};
  std::fill_n(right.ids.begin() + static_cast<std::ptrdiff_t>(row * 10), 10, std::uint8_t{0});
  ExpectLost(rows, right, 0, 0);
  EXPECT_EQ(damage.invalid_rows, 1);
  EXPECT_EQ(damage.damaged_chunks + damage.absent_chunks, 0);
}

// A shard of a mapped document: every memory page that has none of its bytes cannot be accessed.
TEST(Shards, TouchTheirBytesOnly) {
  const RoutingShape shape{.num_layers = 64, .top_k = 8, .num_experts = 256, .page_tokens = 256};
  std::mt19937_64 random(5);
  const Rows rows = wire_samples::RandomRows(random, shape, 256 * 6);
  const auto writer = DocumentWriter::Create(rows).value();
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t mapped = (writer.bytes() + page - 1) / page * page;
  auto* memory = static_cast<std::uint8_t*>(
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  const std::span<std::uint8_t> bytes(memory, writer.bytes());
  ASSERT_TRUE(writer.WriteTo(bytes).ok());
  const auto document = Document::Open(bytes).value();

  // Layers [20, 28) of rows [300, 700) of the rows: 16 layers a crc, so layers [16, 32) of chunks.
  const RowsAndLayers part{document.first() + 300, document.first() + 700, 20, 28};
  const auto codec = ChunkCodec::Create(document.shape());
  ASSERT_EQ(codec->shape().crc_layers(), 16);
  std::vector<bool> needed(mapped / page);
  std::size_t at = bytes.size();
  const auto need = [&](std::size_t begin, std::size_t size) {
    for (std::size_t p = begin / page; p <= (begin + size - 1) / page; ++p)
      needed[p] = true;
  };
  const std::int64_t offset = document.first() % 256;
  std::vector<std::pair<std::int64_t, std::int64_t>> chunks;  // rows [begin, end) of the document
  for (std::int64_t begin = 0; begin < rows.size();) {
    const std::int64_t end = std::min(rows.size(), begin == 0 ? 256 - offset : begin + 256);
    chunks.emplace_back(begin, end);
    begin = end;
  }
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
    const auto n = static_cast<std::size_t>(chunk->second - chunk->first);
    at -= 16 + 64 * n * 8;
    if (chunk->first >= 700 || chunk->second <= 300) continue;
    need(at, 16);  // all crcs: the place of the chunk is found by them
    need(at + 16 + 16 * n * 8, 16 * n * 8);
  }
  need(0, at);  // the header: the places
  const Rows before = *document.ReadRows(part);
  std::size_t closed = 0;
  for (std::size_t p = 0; p < needed.size(); ++p) {
    if (needed[p]) continue;
    ASSERT_EQ(mprotect(memory + p * page, page, PROT_NONE), 0);
    ++closed;
  }
  EXPECT_GT(closed, needed.size() / 2);
  ReadDamage damage;
  const auto shard = document.ReadRows(part, &damage).value();
  EXPECT_FALSE(damage.any());
  EXPECT_EQ(shard.ids, before.ids);
  EXPECT_EQ(shard.infos, before.infos);
  EXPECT_DEATH((void)document.ReadRows(document.All()), "") << "the rest is really closed";
  munmap(memory, mapped);
}

}  // namespace
}  // namespace waymark::wire
