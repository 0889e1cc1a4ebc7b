// What the golden files of tests/data/wire hold. tests/unit/blockstore/wire/reference.py reads them
// by the documentation alone.
#ifndef WAYMARK_TESTS_SUPPORT_WIRE_GOLDEN_H_
#define WAYMARK_TESTS_SUPPORT_WIRE_GOLDEN_H_

#include <cstdlib>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "blockstore/wire/digest_key.h"
#include "blockstore/wire/document_writer.h"
#include "blockstore/wire/handle.h"
#include "blockstore/wire/objects.h"
#include "tests/support/wire_samples.h"

namespace waymark::wire_samples {

// A file and its bytes, as this build writes them.
struct Golden {
  std::string name;
  Bytes bytes;
};

inline RoutingShape GoldenShape(std::int32_t num_layers, std::int32_t top_k,
                                std::int32_t num_experts, std::int32_t page_tokens) {
  RoutingShape shape = {.num_layers = num_layers,
                        .top_k = top_k,
                        .num_experts = num_experts,
                        .page_tokens = page_tokens};
  return shape;
}

// A prefill of `prompt` rows in step 7, then a row a step.
inline std::vector<RowInfo> GoldenInfos(std::size_t rows, std::size_t prompt) {
  std::vector<RowInfo> infos(rows);
  for (std::size_t i = 0; i < rows; ++i)
    infos[i] = {i < prompt ? 7 : 8 + (i - prompt), 1, Reason::kNone, Provenance::kHere};
  return infos;
}

// Golden documents; aborts when one cannot be written.
inline std::vector<std::pair<std::string, std::pair<Rows, wire::DocumentOptions>>>
GoldenDocuments() {
  std::vector<std::pair<std::string, std::pair<Rows, wire::DocumentOptions>>> all;
  const auto add = [&](const char* name, Rows rows, wire::DocumentOptions options = {}) {
    all.emplace_back(name, std::pair(std::move(rows), options));
  };
  const RoutingShape small = GoldenShape(3, 2, 256, 4);
  const RoutingShape wide = GoldenShape(5, 3, 300, 4);
  add("raw_uint8.wmk", RowsOf(small, 0, GoldenInfos(8, 5)));
  add("raw_uint16.wmk", RowsOf(wide, 0, GoldenInfos(12, 4)));
  add("no_rows.wmk", RowsOf(small, 3, {}));

  RoutingShape dense_first = wide;
  dense_first.layer_ids = {1, 2, 4, 8, 9};
  wire::DocumentOptions options;
  options.code.crc_layers = 2;
  options.trajectory = {{0x03020100, 0x07060504, 0x0b0a0908, 0x0f0e0d0c}};
  add("partial_pages.wmk", RowsOf(dense_first, 6, GoldenInfos(9, 1)), options);

  std::vector<RowInfo> infos = GoldenInfos(16, 16);
  for (int reason = 1; reason < kNumStoreReasons; ++reason)
    infos[static_cast<std::size_t>(2 * reason)] = {0, 0, static_cast<Reason>(reason), {}};
  infos[8].cause = Cause::kEvicted;
  infos[13] = {0, 0, Reason::kCapacity, {}, Cause::kAbsent};
  infos[4].provenance = Provenance::kKept;
  infos[9].provenance = Provenance::kByKey;
  infos[1] = {0, kUnknownVersion, Reason::kNone, Provenance::kUnknown};
  infos[15] = {0, 0, Reason::kNotTold, Provenance::kUnknown};
  infos[11].provenance = Provenance::kKept;
  add("reasons.wmk", RowsOf(small, 1, infos));

  infos = GoldenInfos(14, 3);
  const std::uint64_t versions[] = {0, 1, 300, std::uint64_t{1} << 63, ~std::uint64_t{0}};
  const std::uint64_t steps[] = {0, 1, 1000, 900, 800, 700, std::uint64_t{1} << 63, 5, 6, 8, 10};
  for (std::size_t i = 0; i < infos.size(); ++i) {
    infos[i].version = versions[i / 3];
    if (i >= 3) infos[i].step = steps[i - 3];
  }
  add("versions.wmk", RowsOf(small, 0, infos));
  options = {};
  options.steps = false;
  add("no_steps.wmk", RowsOf(small, 0, infos), options);

  options = {};
  options.code.ordered = false;
  add("sorted.wmk", RowsOf(GoldenShape(2, 5, 300, 4), 0, GoldenInfos(6, 6)), options);
  infos = GoldenInfos(7, 7);
  infos[2] = {0, 0, Reason::kCapacity, {}};
  options.code.codec = wire::Codec::kSetCode;
  options.code.low_bits = 4;
  add("sets_ranked.wmk", RowsOf(GoldenShape(6, 8, 256, 4), 2, infos), options);
  options.code.low_bits = 5;
  options.code.high_bits = HighBits::kUnary;
  add("sets_unary.wmk", RowsOf(GoldenShape(4, 10, 512, 4), 2, infos), options);
  return all;
}

// One node, tail segment and handle of the same trajectory: 9 rows, the last one a tail.
inline std::vector<Golden> GoldenObjects() {
  const RoutingShape shape = GoldenShape(3, 2, 256, 4);
  std::vector<RowInfo> infos = GoldenInfos(9, 5);
  infos[3] = {0, 0, Reason::kExternalKv, {}};
  infos[1].provenance = Provenance::kByKey;
  const Rows rows = RowsOf(shape, 0, infos);
  const auto codec = wire::ChunkCodec::Create({shape, {}});
  std::vector<Digest128> chunks;
  std::vector<Bytes> contents;
  for (std::size_t page = 0; page < 2; ++page) {
    Bytes chunk(codec->ChunkBytes(4));
    if (!codec
             ->Encode(
                 std::span(rows.infos).subspan(4 * page, 4),
                 std::span(rows.ids).subspan(4 * page * shape.row_bytes(), 4 * shape.row_bytes()),
                 chunk)
             .ok()) {
      std::abort();
    }
    chunks.push_back(codec->Digest(4, chunk));
    contents.push_back(chunk);
  }
  std::vector<Golden> all;
  all.push_back({"node.bin", *wire::EncodeNode(codec->shape_digest(), 0, {}, chunks, 4,
                                               std::span(rows.infos).first(8))});
  all.push_back({"tail.bin", *wire::EncodeTailSegment(*codec, 8, std::span(rows.infos).subspan(8),
                                                      rows.row(8))});
  const std::vector<PageName> names = {
      {.begin = 5, .end = 7, .name = {{1, 2, 3, 4}}, .version = 7},
      {.begin = 8, .end = 9, .name = {{5, 6, 7, 8}}, .version = 9, .lost = true, .unnamed = true}};
  all.push_back({"node_named.bin", *wire::EncodeNode(codec->shape_digest(), 0, {}, chunks, 4,
                                                     std::span(rows.infos).first(8), names)});
  all.push_back(
      {"tail_named.bin",
       *wire::EncodeTailSegment(*codec, 8, std::span(rows.infos).subspan(8), rows.row(8), names)});
  wire::Handle handle;
  handle.shape = codec->shape();
  handle.store = "store of \xc3\xa9t\xc3\xa9";
  handle.rows = 9;
  handle.head = ContentDigest(all[0].bytes);
  handle.tail = {ContentDigest(all[1].bytes)};
  for (const RowInfo& info : infos)
    handle.provenance.push_back(info.provenance);
  all.push_back({"handle.bin", *wire::EncodeHandle(handle)});
  // The same rows, published with a key: the bytes 0 ... 31.
  Bytes secret(32);
  std::iota(secret.begin(), secret.end(), std::uint8_t{0});
  const wire::DigestKey key = wire::DigestKey::Create("key", secret).value();
  const auto keyed = wire::ChunkCodec::Create({shape, {}}, key);
  for (std::size_t page = 0; page < 2; ++page)
    chunks[page] = keyed->Digest(4, contents[page]);
  all.push_back({"node_keyed.bin", *wire::EncodeNode(codec->shape_digest(), 0, {}, chunks, 4,
                                                     std::span(rows.infos).first(8))});
  wire::Handle keyed_handle = handle;
  keyed_handle.head = key.Digest(all.back().bytes);
  keyed_handle.tail = {key.Digest(all[1].bytes)};
  keyed_handle.mac = wire::HandleMac(keyed_handle, key).value();
  all.push_back({"handle_keyed.bin", *wire::EncodeHandle(keyed_handle)});
  // The list of a longer trajectory that would end with that node.
  all.push_back(
      {"node_list.bin", wire::EncodeNodeList(std::vector<Digest128>{
                            {{1, 2, 3, 4}}, {{5, 6, 7, 8}}, {{9, 0, 0, 0}}, handle.head})});
  return all;
}

inline std::vector<Golden> Goldens() {
  std::vector<Golden> all;
  for (const auto& [name, document] : GoldenDocuments()) {
    auto bytes = wire::WriteDocument(document.first, document.second);
    if (!bytes.ok()) std::abort();
    all.push_back({name, *std::move(bytes)});
  }
  for (Golden& golden : GoldenObjects())
    all.push_back(std::move(golden));
  return all;
}

}  // namespace waymark::wire_samples

#endif  // WAYMARK_TESTS_SUPPORT_WIRE_GOLDEN_H_
