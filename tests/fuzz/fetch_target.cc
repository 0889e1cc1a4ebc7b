// Rows by handle (blockstore/wire/fetcher.h) from a file (blockstore/wire/file_source.h): whatever
// bytes the file or the handle are, rows are those that were written, or missing with a reason.
//
// The first byte of an input chooses the shape and what the rest is: a file, changes to the right
// file, or a handle.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "blockstore/wire/document_writer.h"
#include "blockstore/wire/fetcher.h"
#include "blockstore/wire/file_source.h"
#include "blockstore/wire/publisher.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/wire_golden.h"

namespace waymark::fuzz {
namespace {

using Bytes = wire_samples::Bytes;

constexpr std::uint8_t kSets = 1;      // the set code, else raw
constexpr std::uint8_t kRightCrc = 2;  // the header's, or the handle's, is made right
enum Kind { kFile = 0, kChanges = 1, kHandle = 2, kKeyed = 3 };  // input[0] / 4 % 4
constexpr wire::ReadLimits kLimits{1 << 14, std::size_t{1} << 22};

// Rows of 2 nodes and a tail, their document with nodes, and their handle.
struct Right {
  Rows rows;
  wire::Trajectory trajectory;
  Bytes file;
  Bytes handle;
  std::vector<std::pair<std::size_t, std::size_t>> pages;  // bytes [first, second) of the file
};

Right Make(bool sets) {
  const RoutingShape shape = wire_samples::GoldenShape(4, 3, 200, 2);
  std::vector<RowInfo> infos = wire_samples::GoldenInfos(133, 100);
  infos[5] = {0, 0, Reason::kCapacity, {}};
  Right right{wire_samples::RowsOf(shape, 0, infos), {}, {}, {}, {}};
  wire::ChunkCode code = sets ? wire::ChunkCode::SetCodeFor(shape) : wire::ChunkCode{};
  code.crc_layers = sets ? 1 : 2;
  right.trajectory = wire::MakeTrajectory(right.rows, code, "a store").value();
  wire::DocumentOptions options;
  options.code = code;
  options.trajectory = right.trajectory.handle.head;
  options.nodes = right.trajectory.nodes;
  right.file = wire::WriteDocument(right.rows, options).value();
  right.handle = wire::EncodeHandle(right.trajectory.handle).value();
  const auto document = wire::Document::Open(right.file).value();
  if (sets) {
    // What a reader gets: in a set ids ascend.
    right.rows = document.ReadRows(document.All()).value();
  }
  const std::size_t crcs = 4 * static_cast<std::size_t>(document.shape().num_crcs());
  for (std::int64_t row = 0; row < document.size(); row += shape.page_tokens) {
    const auto layers = document.Chunk(row)->layers;
    const auto at = static_cast<std::size_t>(layers.data() - right.file.data());
    right.pages.emplace_back(at - crcs, at + layers.size());
  }
  return right;
}

const Right& RightOf(bool sets) {
  static const Right kRights[] = {Make(false), Make(true)};
  return kRights[sets ? 1 : 0];
}

// The bytes as a file that can be opened, and is gone with this.
class File {
 public:
  explicit File(std::span<const std::uint8_t> bytes) : file_(memfd_create("fuzz", MFD_CLOEXEC)) {
    Require(file_ >= 0 &&
                write(file_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
            "there is memory for a file");
  }
  ~File() { close(file_); }
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  const int file_;
};

// Which positions are as they were written; the others are missing, and empty.
std::vector<bool> Compare(const Rows& rows, const Right& right, const wire::Handle& handle,
                          std::int32_t layer_begin) {
  Require(CheckRows("rows", rows).ok(), "rows hold what they say");
  const RoutingShape& shape = right.rows.shape;
  const std::size_t skipped = static_cast<std::size_t>(layer_begin) *
                              static_cast<std::size_t>(shape.top_k) * shape.id_bytes();
  std::vector<bool> there;
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const RowInfo& info = rows.infos[static_cast<std::size_t>(i)];
    const auto ids = rows.row(i);
    there.push_back(info.valid());
    if (!info.valid()) {
      Require(info.step == 0 && info.version == 0 &&
                  std::all_of(ids.begin(), ids.end(), [](std::uint8_t byte) { return byte == 0; }),
              "a missing row is empty");
      continue;
    }
    const std::int64_t position = rows.first + i;
    Require(position < right.rows.size(), "a row that is there was written");
    const RowInfo& written = right.rows.infos[static_cast<std::size_t>(position)];
    Require(written.valid() && info.step == written.step && info.version == written.version &&
                info.provenance == handle.provenance[static_cast<std::size_t>(position)],
            "a row that is there is of its step and version");
    const auto expected = right.rows.row(position).subspan(skipped);
    Require(ids.size() <= expected.size() && std::equal(ids.begin(), ids.end(), expected.begin()),
            "a row that is there has the ids that were written");
  }
  return there;
}

// All rows, and a part of them; then both again, of what was kept. True where all rows are there.
std::vector<bool> FetchAndCompare(wire::PageSource& source, const wire::Handle& handle,
                                  const Right& right, bool whole_chunks) {
  wire::FetcherOptions options;
  options.whole_chunks = whole_chunks;
  options.max_rows = kLimits.max_rows;
  options.max_bytes = kLimits.max_bytes;
  options.batch_bytes = 64;
  wire::Fetcher fetcher(&source, options);
  const wire::Deadline deadline = wire::After(std::chrono::seconds(100));
  const std::int32_t layers = handle.shape.rows.num_layers;
  const RowsAndLayers part{handle.rows / 3, handle.rows - handle.rows / 4, layers / 2, layers};
  std::vector<bool> there;
  for (int again = 0; again < 2; ++again) {
    for (const RowsAndLayers& wanted : {part, RowsAndLayers{0, handle.rows, 0, layers}}) {
      wire::FetchReport report;
      const auto rows = fetcher.Fetch(handle, wanted, deadline, &report);
      if (!rows.ok()) {
        RequireReadable(rows.status());
        return there;
      }
      Require(report.source.ok(), "a file has no more to say");
      Require(rows->first == wanted.row_begin && rows->size() == wanted.row_end - wanted.row_begin,
              "an info for each row that was asked for");
      there = Compare(*rows, right, handle, wanted.layer_begin);
    }
  }
  return there;
}

void RunFile(Bytes file, const Right& right, bool right_crc) {
  if (right_crc) wire_samples::MakeDocumentCrcRight(file);
  const File opened(file);
  const auto source = wire::FileSource::Open(opened.path(), kLimits);
  if (!source.ok()) return RequireReadable(source.status());
  // Crcs that were made right with the bytes that they cover are found by digests alone, of which a
  // fetcher of ranges compares none: the source does.
  FetchAndCompare(**source, right.trajectory.handle, right, /*whole_chunks=*/true);
  FetchAndCompare(**source, right.trajectory.handle, right, /*whole_chunks=*/false);
}

// Changes of a bit each, 5 at most: the crc of a few layers overlooks none of them. What they do
// not touch is not lost.
void RunChanges(std::span<const std::uint8_t> changes, const Right& right) {
  Bytes file = right.file;
  std::vector<std::size_t> changed;
  while (changes.size() >= 3 && changed.size() < 5) {
    const std::size_t at = static_cast<std::size_t>(changes[0] | changes[1] << 8) % file.size();
    const int bit = changes[2];
    changes = changes.subspan(3);
    if (bit == 0) break;
    file[at] ^= static_cast<std::uint8_t>(1 << bit % 8);
    changed.push_back(at);
  }
  if (changes.size() >= 2)
    file.resize(static_cast<std::size_t>(changes[0] | changes[1] << 8) % (file.size() + 1));
  const File opened(file);
  const auto source = wire::FileSource::Open(opened.path());
  const bool header = std::any_of(changed.begin(), changed.end(),
                                  [&](std::size_t at) { return at < right.pages[0].first; });
  if (!source.ok()) {
    Require(header || file.size() < right.pages[0].first, "a header that is whole is read");
    return;
  }
  const std::vector<bool> there =
      FetchAndCompare(**source, right.trajectory.handle, right, /*whole_chunks=*/header);
  Require(there.size() == right.rows.infos.size(), "all rows can be asked for");
  const auto page_tokens = static_cast<std::size_t>(right.rows.shape.page_tokens);
  for (std::size_t row = 0; row < there.size() && !header; ++row) {
    const auto [begin, end] = right.pages[row / page_tokens];
    const bool whole =
        end <= file.size() && std::equal(file.begin() + static_cast<std::ptrdiff_t>(begin),
                                         file.begin() + static_cast<std::ptrdiff_t>(end),
                                         right.file.begin() + static_cast<std::ptrdiff_t>(begin));
    Require(there[row] == (whole && right.rows.infos[row].valid()),
            "the rows of a damaged chunk are lost, and no others");
  }
}

void RunHandle(Bytes bytes, const Right& right, bool right_crc) {
  if (right_crc) wire_samples::MakeHandleCrcRight(bytes);
  const auto handle = wire::ParseHandle(bytes, kLimits.max_rows);
  if (!handle.ok()) return;
  const File opened(right.file);
  const auto source = wire::FileSource::Open(opened.path());
  Require(source.ok(), "the right file can be opened");
  FetchAndCompare(**source, *handle, right, /*whole_chunks=*/false);
  FetchAndCompare(**source, *handle, right, /*whole_chunks=*/true);
}

// The objects that were put, which others change.
class Objects final : public wire::PageSource {
 public:
  absl::Status Get(std::span<const Digest128> digests, wire::Deadline,
                   std::span<wire::Object> objects) override {
    for (std::size_t i = 0; i < digests.size(); ++i) {
      objects[i] = {};
      for (const auto& [name, bytes] : all) {
        if (name == digests[i]) objects[i] = wire::Object::Of(Bytes(bytes));
      }
    }
    return absl::OkStatus();
  }
  absl::Status GetRanges(std::span<const wire::ObjectRange>, wire::Deadline,
                         std::span<wire::Object>) override {
    Require(false, "a fetcher with a key compares the digests of whole objects");
    return absl::OkStatus();
  }
  absl::Status Put(std::span<const wire::NamedObject> objects, wire::Deadline) override {
    for (const wire::NamedObject& named : objects)
      all.emplace_back(named.digest, Bytes(named.object.bytes.begin(), named.object.bytes.end()));
    return absl::OkStatus();
  }
  absl::Status Holds(std::span<const Digest128>, wire::Deadline, std::span<std::uint8_t>) override {
    return absl::OkStatus();
  }

  std::vector<std::pair<Digest128, Bytes>> all;
};

// What a publisher with a key made, changed byte by byte, the handle included: nothing that was
// changed is accepted. A change: object (1 byte), place (2), value (1).
void RunKeyed(std::span<const std::uint8_t> changes, const Right& right, bool right_crc) {
  const wire::DigestKey key = *wire::DigestKey::Create("key", Bytes(16, 7));
  Objects source;
  const auto publisher = wire::Publisher::Create(
      &source, {.shape = right.trajectory.handle.shape, .store = "a store", .key = key});
  Require(publisher.ok(), "a publisher can be made");
  const wire::Handle handle = (*publisher)->Publish("", right.rows).get()->handle;
  Bytes bytes = wire::EncodeHandle(handle).value();
  std::size_t changed = 0;
  for (; changes.size() >= 4 && changed < 8; changes = changes.subspan(4), ++changed) {
    const std::size_t object = changes[0] % (source.all.size() + 1);
    Bytes& to = object < source.all.size() ? source.all[object].second : bytes;
    to[static_cast<std::size_t>(changes[1] | changes[2] << 8) % to.size()] = changes[3];
  }
  if (right_crc) wire_samples::MakeHandleCrcRight(bytes);
  const auto parsed = wire::ParseHandle(bytes, kLimits.max_rows);
  if (!parsed.ok()) return;
  wire::Fetcher fetcher(&source, {.key = key});
  const auto rows = fetcher.Fetch(*parsed, wire::After(std::chrono::seconds(100)));
  Require(rows.ok() == (*parsed == *wire::ParseHandle(*wire::EncodeHandle(handle))),
          "the handle that the publisher made is accepted, and no other");
  if (!rows.ok()) return;
  const std::vector<bool> there = Compare(*rows, right, *parsed, 0);
  if (changed > 0) return;
  for (std::size_t row = 0; row < there.size(); ++row)
    Require(there[row] == right.rows.infos[row].valid(), "what was not changed is there");
}

}  // namespace

void RunOne(std::span<const std::uint8_t> input) {
  if (input.empty()) return;
  const Right& right = RightOf((input[0] & kSets) != 0);
  const bool right_crc = (input[0] & kRightCrc) != 0;
  const std::span<const std::uint8_t> rest = input.subspan(1);
  switch (input[0] / 4 % 4) {
    case kFile:
      return RunFile({rest.begin(), rest.end()}, right, right_crc);
    case kChanges:
      return RunChanges(rest, right);
    case kKeyed:
      return RunKeyed(rest, right, right_crc);
    default:
      return RunHandle({rest.begin(), rest.end()}, right, right_crc);
  }
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  for (const int sets : {0, 1}) {
    const Right& right = RightOf(sets != 0);
    const auto add = [&](int kind, const std::string& rest) {
      corpus.push_back(static_cast<char>(kind * 4 + kRightCrc + sets) + rest);
    };
    add(kFile, AsText(right.file));
    add(kHandle, AsText(right.handle));
    add(kChanges, "");
    add(kKeyed, "");
    for (const char object : {0, 40, 66, 67, 68, 69, 70})
      add(kKeyed, {object, 50, 0, 1, 0, 0, 0, 0});
    // Two pages, each where the other should be: their crcs fit.
    Bytes swapped = right.file;
    std::swap_ranges(swapped.begin() + static_cast<std::ptrdiff_t>(right.pages[30].first),
                     swapped.begin() + static_cast<std::ptrdiff_t>(right.pages[30].second),
                     swapped.begin() + static_cast<std::ptrdiff_t>(right.pages[33].first));
    add(kFile, AsText(swapped));
    const auto [begin, end] = right.pages[20];
    for (const std::size_t at : {begin, end - 1}) {
      std::string change = {static_cast<char>(at), static_cast<char>(at >> 8), 1};
      add(kChanges, change);
      add(kChanges, std::string(3, '\0') + change.substr(0, 2));  // cut off there
    }
  }
  return corpus;
}

}  // namespace waymark::fuzz
