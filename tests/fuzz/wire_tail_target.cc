// Tail segments (blockstore/wire/objects.h), of a raw shape and one of sets.
#include "blockstore/wire/objects.h"

#include <cstring>

#include "tests/fuzz/fuzz_target.h"
#include "tests/support/wire_golden.h"

namespace waymark::fuzz {
namespace {

const wire::ChunkCodec& CodecOf(bool sets) {
  static const RoutingShape shape = wire_samples::GoldenShape(3, 2, 256, 4);
  static const wire::ChunkCodec raw = *wire::ChunkCodec::Create({shape, {}});
  static const wire::ChunkCodec set_code =
      *wire::ChunkCodec::Create({shape, wire::ChunkCode::SetCodeFor(shape)});
  return sets ? set_code : raw;
}

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  if (input.empty()) return;
  const wire::ChunkCodec& codec = CodecOf(input[0] % 2 == 1);
  std::vector<std::uint8_t> bytes(input.begin() + 1, input.end());
  // The digest of the shape, so that it goes on.
  const std::uint64_t digest = codec.shape_digest();
  if (bytes.size() >= 16 && input[0] < 2) std::memcpy(bytes.data() + 8, &digest, 8);
  const auto rows = wire::ParseTailSegment(codec, bytes, 0, codec.shape().rows.num_layers);
  if (!rows.ok()) return RequireReadable(rows.status());
  Require(CheckRows("rows", *rows).ok() && rows->size() >= 1 && rows->size() <= 4,
          "rows hold what they say");
  const auto written =
      wire::EncodeTailSegment(codec, rows->first, rows->infos, rows->ids, rows->names);
  Require(written.ok(), "what was read can be written");
  const auto again = wire::ParseTailSegment(codec, *written, 0, codec.shape().rows.num_layers);
  Require(again.ok() && again->infos == rows->infos && again->ids == rows->ids &&
              again->first == rows->first && again->names == rows->names,
          "what was written reads the same");
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  const Rows rows = wire_samples::RowsOf(
      CodecOf(false).shape().rows, 9, {{3, 1, Reason::kNone, {}}, {}, {4, 1, Reason::kNone, {}}});
  for (const char first : {char{0}, char{1}, char{2}, char{3}}) {
    const auto bytes =
        wire::EncodeTailSegment(CodecOf(first % 2 == 1), rows.first, rows.infos, rows.ids);
    corpus.push_back(first + AsText(*bytes));
    const PageName name{.begin = 9, .end = 11, .version = 3, .lost = true};
    const auto named = wire::EncodeTailSegment(CodecOf(first % 2 == 1), rows.first, rows.infos,
                                               rows.ids, {&name, 1});
    corpus.push_back(first + AsText(*named));
  }
  return corpus;
}

}  // namespace waymark::fuzz
