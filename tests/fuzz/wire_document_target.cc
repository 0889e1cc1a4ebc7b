// Documents (blockstore/wire/document.h), and what is written of what was read.
//
// The header's crc would hide everything behind it, so an input says in its first byte whether it
// is made right before the document is opened.
#include <algorithm>

#include "blockstore/wire/document.h"
#include "blockstore/wire/document_writer.h"
#include "blockstore/wire/objects.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/wire_golden.h"

namespace waymark::fuzz {
namespace {

constexpr char kAsItIs = 0;
constexpr char kRightCrc = 1;
constexpr wire::ReadLimits kLimits{1 << 14, std::size_t{1} << 22};

bool AllZero(std::span<const std::uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t byte) { return byte == 0; });
}

// What holds of rows whatever they were read from.
void CheckRead(const Rows& rows) {
  Require(CheckRows("rows", rows).ok(), "rows hold what they say");
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const RowInfo& info = rows.infos[static_cast<std::size_t>(i)];
    if (!info.valid()) {
      Require(info.step == 0 && info.version == 0 && AllZero(rows.row(i)),
              "a missing row is empty");
      continue;
    }
    const auto row = rows.row(i);
    for (std::size_t at = 0; at < row.size(); at += rows.shape.id_bytes()) {
      const int id = rows.shape.id_bytes() == 1 ? row[at] : row[at] | row[at + 1] << 8;
      Require(id < rows.shape.num_experts, "an id is below E");
    }
  }
}

// A part is what it is of the whole; unless chunks are damaged: then it may have more.
void CheckPart(const wire::Document& document, const Rows& whole, bool damaged) {
  RowsAndLayers part = document.All();
  part.row_begin += document.size() / 3;
  part.layer_begin = part.layer_end / 2;
  const auto rows = document.ReadRows(part);
  if (!rows.ok()) return;
  CheckRead(*rows);
  const RoutingShape& shape = whole.shape;
  const std::size_t skipped = static_cast<std::size_t>(part.layer_begin) *
                              static_cast<std::size_t>(shape.top_k) * shape.id_bytes();
  for (std::int64_t i = 0; i < rows->size(); ++i) {
    const std::int64_t in_whole = i + part.row_begin - whole.first;
    const RowInfo& info = whole.infos[static_cast<std::size_t>(in_whole)];
    if (!info.valid() && damaged) continue;
    Require(rows->infos[static_cast<std::size_t>(i)] == info, "a part has the infos of the whole");
    const auto ids = whole.row(in_whole).subspan(skipped);
    Require(std::equal(ids.begin(), ids.end(), rows->row(i).begin()),
            "a part has the ids of the whole");
  }
}

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  if (input.empty()) return;
  std::vector<std::uint8_t> bytes(input.begin() + 1, input.end());
  if (input[0] == kRightCrc) wire_samples::MakeDocumentCrcRight(bytes);
  const auto document = wire::Document::Open(bytes, kLimits);
  if (!document.ok()) return RequireReadable(document.status());
  Require(document->truncated() == (bytes.size() < document->bytes()), "what is short says so");
  std::int64_t covered = document->first();
  for (const CoverageRun& run : document->Coverage()) {
    Require(run.begin == covered && run.end > covered, "coverage has no holes");
    covered = run.end;
  }
  Require(covered == document->last(), "coverage covers all");
  for (const auto node : document->nodes()) {
    (void)wire::ParseNode(node, wire::ShapeDigest(document->shape()),
                          document->shape().rows.page_tokens, kLimits.max_bytes);
  }
  wire::ReadDamage damage;
  const auto rows = document->ReadRows(document->All(), &damage);
  if (!rows.ok()) return;
  CheckRead(*rows);
  CheckPart(*document, *rows, damage.any());

  wire::DocumentOptions options;
  options.code = document->shape().code;
  const auto written = wire::WriteDocument(*rows, options);
  Require(written.ok(), "what was read can be written");
  const auto again = wire::Document::Open(*written, {kLimits.max_rows, 4 * kLimits.max_bytes});
  Require(again.ok(), "what was written can be read");
  const auto same = again->ReadRows(again->All(), &damage);
  Require(same.ok() && !damage.any() && same->infos == rows->infos, "infos stay as they were");
  // Under the raw codec a writer that did not sort is made to.
  if (options.code.ordered || options.code.codec != wire::Codec::kRaw) {
    Require(same->ids == rows->ids, "ids stay as they were");
  }
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (const auto& golden : wire_samples::Goldens()) {
    if (golden.name.find(".wmk") == std::string::npos) continue;
    const std::string bytes = AsText(golden.bytes);
    corpus.push_back(kRightCrc + bytes);
    corpus.push_back(kAsItIs + bytes);
  }
  // A source of pages.
  const auto objects = wire_samples::GoldenObjects();
  const std::vector<std::vector<std::uint8_t>> nodes = {objects[0].bytes};
  const Rows rows = wire_samples::GoldenDocuments()[0].second.first;
  wire::DocumentOptions options;
  options.nodes = nodes;
  const auto bytes = wire::WriteDocument(rows, options);
  corpus.push_back(kRightCrc + AsText(*bytes));
  return corpus;
}

}  // namespace waymark::fuzz
