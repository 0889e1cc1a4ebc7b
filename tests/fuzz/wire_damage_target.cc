// Damaged documents (blockstore/wire/document.h): a row that is read as valid is the row that was
// written, whatever happened to the bytes, and damage costs no rows of chunks that it did not
// touch.
//
// The first byte of an input chooses the document, and each 7 bytes after it are a change: what (1
// byte) and two numbers (3 bytes each).
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "blockstore/wire/document.h"
#include "blockstore/wire/document_writer.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/wire_samples.h"

namespace waymark::fuzz {
namespace {

using wire_samples::Bytes;

constexpr std::size_t kDocuments = 16;
constexpr std::size_t kChangeBytes = 7;
constexpr std::size_t kMostChanges = 6;
constexpr std::uint8_t kKinds = 14;  // cases of Change

// A range of bytes.
struct Range {
  std::size_t begin, end;
  [[nodiscard]] std::size_t size() const { return end - begin; }
};

// A document as it was written, and its rows as they are read from it.
struct Right {
  Rows rows;
  Bytes bytes;
  std::vector<Range> chunks;
  std::int64_t front;  // rows of the first chunk
  [[nodiscard]] std::size_t header_bytes() const { return chunks[0].begin; }
};

Right Make(std::mt19937_64& random, const wire::WireShape& shape, std::size_t rows) {
  Right right;
  const Rows written = wire_samples::RandomRows(random, shape.rows, rows);
  wire::DocumentOptions options;
  options.code = shape.code;
  right.bytes = wire::WriteDocument(written, options).value();
  const auto document = wire::Document::Open(right.bytes).value();
  right.rows = document.ReadRows(document.All()).value();
  const auto crc_bytes = 4 * static_cast<std::size_t>(document.shape().num_crcs());
  for (std::int64_t row = document.first(); row < document.last();) {
    const wire::ChunkView chunk = document.Chunk(row).value();
    const auto at = static_cast<std::size_t>(chunk.layers.data() - right.bytes.data());
    right.chunks.push_back({at - crc_bytes, at + chunk.layers.size()});
    row = chunk.first + chunk.rows;
  }
  right.front = document.Chunk(document.first())->rows;
  return right;
}

// Each document and the one after it have the same shape and code, and other rows.
const std::vector<Right>& Documents() {
  static const auto* const kAll = [] {
    auto* all = new std::vector<Right>;
    std::mt19937_64 random(20261122);
    while (all->size() < kDocuments) {
      wire::WireShape shape;
      shape.rows = wire_samples::RandomShape(random);
      shape.code = wire_samples::RandomCode(random, shape.rows);
      const auto page = static_cast<std::size_t>(shape.rows.page_tokens);
      for (int i = 0; i < 2; ++i)
        all->push_back(Make(random, shape, 1 + 6 * page + random() % page));
    }
    return all;
  }();
  return *kAll;
}

// Replaces [to.begin, to.end) of `bytes`, or what there is of it, by `with`.
void Replace(Bytes& bytes, Range to, std::span<const std::uint8_t> with) {
  const Bytes copy(with.begin(), with.end());  // `with` may lie in `bytes`
  const std::size_t begin = std::min(to.begin, bytes.size());
  const std::size_t end = std::min(to.end, bytes.size());
  const auto at = bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                              bytes.begin() + static_cast<std::ptrdiff_t>(end));
  bytes.insert(at, copy.begin(), copy.end());
}

void Change(Bytes& bytes, const Right& right, const Right& other, int kind, std::size_t a,
            std::size_t b) {
  if (bytes.empty()) return;
  const std::size_t at = a % bytes.size();
  const std::size_t length = std::min(b % 300, bytes.size() - at);
  const std::size_t here = a % right.chunks.size();
  const Range chunk = right.chunks[here];
  const Range second = right.chunks[b % right.chunks.size()];
  const Range others = other.chunks[b % other.chunks.size()];
  const auto original = [&](Range of) {
    return std::span(right.bytes).subspan(of.begin, of.size());
  };
  const auto foreign = [&](Range of) {
    return std::span(other.bytes).subspan(of.begin, of.size());
  };
  switch (kind) {
    case 0:  // a bit
      bytes[at] ^= static_cast<std::uint8_t>(1 << b % 8);
      break;
    case 1:  // a byte
      bytes[at] = static_cast<std::uint8_t>(b);
      break;
    case 2:  // cut off
      bytes.resize(at);
      break;
    case 3:  // more at the end
      Replace(bytes, {bytes.size(), bytes.size()}, std::span(bytes).subspan(at, length));
      break;
    case 4:  // bytes lost
      Replace(bytes, {at, at + length}, {});
      break;
    case 5:  // bytes doubled
      Replace(bytes, {at, at}, std::span(bytes).subspan(at, length));
      break;
    case 6:  // bytes that were never written
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), length, std::uint8_t{0});
      break;
    case 7:  // a chunk lost
      Replace(bytes, chunk, {});
      break;
    case 8:  // a chunk doubled, and what follows moved
      Replace(bytes, {second.begin, second.begin}, original(chunk));
      break;
    case 9:  // a chunk in the place of another
      Replace(bytes, second, original(chunk));
      break;
    case 10:  // two chunks swapped
      Replace(bytes, chunk.begin < second.begin ? second : chunk,
              original(chunk.begin < second.begin ? chunk : second));
      Replace(bytes, chunk.begin < second.begin ? chunk : second,
              original(chunk.begin < second.begin ? second : chunk));
      break;
    case 11:  // a chunk of another document
      Replace(bytes, chunk, foreign(others));
      break;
    case 12: {  // all chunks of another document
      const Range all{other.chunks.front().begin, other.chunks.back().end};
      Replace(bytes, {right.header_bytes(), bytes.size()}, foreign(all));
      break;
    }
    default: {  // a piece of a chunk of another document, at its place
      const std::size_t from = others.begin + a / 7 % others.size();
      const Range piece{from, std::min(others.end, from + 1 + b / 7 % 64)};
      const std::size_t to = chunk.begin + (piece.begin - others.begin);
      Replace(bytes, {to, to + piece.size()}, foreign(piece));
      break;
    }
  }
}

// Whether each chunk is where it was written, and whole.
std::vector<bool> IntactChunks(const Right& right, std::span<const std::uint8_t> bytes) {
  std::vector<bool> intact;
  for (const Range& chunk : right.chunks) {
    intact.push_back(chunk.end <= bytes.size() &&
                     std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(chunk.begin),
                                bytes.begin() + static_cast<std::ptrdiff_t>(chunk.end),
                                right.bytes.begin() + static_cast<std::ptrdiff_t>(chunk.begin)));
  }
  return intact;
}

// Compares rows that were read with those that were written. Rows of intact chunks are all there;
// `whole`: rows of other chunks are all missing.
void Compare(const Rows& rows, const Right& right, const std::vector<bool>& intact,
             std::int32_t layer_begin, bool whole) {
  Require(CheckRows("rows", rows).ok(), "rows hold what they say");
  const RoutingShape& shape = right.rows.shape;
  const std::size_t skipped = static_cast<std::size_t>(layer_begin) *
                              static_cast<std::size_t>(shape.top_k) * shape.id_bytes();
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const std::int64_t at = rows.first + i - right.rows.first;
    const RowInfo& info = rows.infos[static_cast<std::size_t>(i)];
    const RowInfo& written = right.rows.infos[static_cast<std::size_t>(at)];
    const auto chunk =
        static_cast<std::size_t>(at < right.front ? 0 : 1 + (at - right.front) / shape.page_tokens);
    if (info.valid()) {
      const auto ids = rows.row(i);
      const auto expected = right.rows.row(at).subspan(skipped, ids.size());
      Require(info == written, "a valid row has the step, version and provenance of its row");
      Require(std::equal(ids.begin(), ids.end(), expected.begin()), "a valid row has its own ids");
      Require(intact[chunk] || !whole, "a damaged chunk has no valid row");
    } else if (written.valid()) {
      Require(!intact[chunk] && info.reason == Reason::kNotCaptured,
              "a row is lost with its chunk, and with that reason");
    } else {
      Require(info == written, "a missing row has the reason that was written");
    }
  }
}

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  if (input.empty()) return;
  const std::vector<Right>& documents = Documents();
  const std::size_t number = input[0] % kDocuments;
  const Right& right = documents[number];
  const Right& other = documents[number ^ 1];
  Bytes bytes = right.bytes;
  for (std::size_t n = 0; n < kMostChanges && input.size() >= 1 + (n + 1) * kChangeBytes; ++n) {
    const auto change = input.subspan(1 + n * kChangeBytes, kChangeBytes);
    const auto number_at = [&](std::size_t at) {
      return static_cast<std::size_t>(change[at] | change[at + 1] << 8 | change[at + 2] << 16);
    };
    Change(bytes, right, other, change[0] % kKinds, number_at(1), number_at(4));
  }

  const auto document = wire::Document::Open(bytes);
  const bool header =
      bytes.size() >= right.header_bytes() &&
      std::equal(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(right.header_bytes()),
                 right.bytes.begin());
  Require(document.ok() == header, "a header is read if it is whole, and only then");
  if (!header) return;
  const std::vector<bool> intact = IntactChunks(right, bytes);
  wire::ReadDamage damage;
  const auto rows = document->ReadRows(document->All(), &damage);
  Require(rows.ok() && damage.invalid_rows == 0, "all rows can be read");
  Compare(*rows, right, intact, 0, /*whole=*/true);

  RowsAndLayers part = document->All();
  part.row_begin += document->size() / 3;
  part.layer_begin = part.layer_end / 2;
  const auto some = document->ReadRows(part);
  Require(some.ok(), "a part can be read");
  Compare(*some, right, intact, part.layer_begin, /*whole=*/false);
  for (std::size_t c = 0; c < intact.size(); ++c) {
    const std::int64_t row =
        c == 0 ? 0 : right.front + static_cast<std::int64_t>(c - 1) * right.rows.shape.page_tokens;
    Require(document->Chunk(document->first() + row).ok() == intact[c],
            "a chunk is given in place if it is intact, and only then");
  }
}

std::vector<std::string> Corpus() {
  std::mt19937_64 random(1);
  std::vector<std::string> corpus;
  for (std::size_t number = 0; number < kDocuments; ++number) {
    for (std::uint8_t kind = 0; kind < kKinds; ++kind) {
      // One change of the kind, then it and two of any kind.
      std::string input(1, static_cast<char>(number));
      for (int change = 0; change < 3; ++change) {
        input += static_cast<char>(change == 0 ? kind : random() % kKinds);
        for (std::size_t i = 1; i < kChangeBytes; ++i)
          input += static_cast<char>(random());
        if (change != 1) corpus.push_back(input);
      }
    }
  }
  return corpus;
}

}  // namespace waymark::fuzz
