#include "blockstore/wire/sequence_builder.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/wire/node.h"
#include "blockstore/wire/object_cache.h"
#include "blockstore/wire/tail.h"

namespace waymark::wire {
bool IsOtherRequest(const Rows& input, const PublishedSequence& known, const ChunkCodec& codec) {
  if (input.last() < known.handle.rows) return true;
  std::int64_t first = known.tail.first;
  std::vector<RowInfo> before;
  if (!known.node.empty()) {
    const std::int32_t page_tokens = codec.shape().rows.page_tokens;
    // This publisher encoded it, so it parses.
    const Node node = ParseNode(known.node, codec.shape_digest(), page_tokens).value();
    first = node.first_page * page_tokens;
    before.resize(static_cast<std::size_t>(node.known.rows()));
    node.known.Infos(0, before);
  }
  before.insert(before.end(), known.tail.infos.begin(), known.tail.infos.end());
  const auto same = [](const RowInfo& a, const RowInfo& b) {
    return !a.valid() || !b.valid() || (a.step == b.step && a.version == b.version);
  };
  return !std::equal(before.begin(), before.end(), input.infos.begin() + first, same);
}

void LogOnce(const LogCallback& log, bool& logged, LogLevel level, const char* what,
             const absl::Status& status) noexcept {
  if (!log || std::exchange(logged, true)) return;
  try {
    log(level, absl::StrCat(what, ": ", std::string(status.message())));
  } catch (...) {  // no memory for the line
  }
}

SequenceBuilder::SequenceBuilder(PageSource* source, const PublisherOptions& options,
                                 ChunkCodec codec)
    : source_(source),
      options_(options),
      codec_(std::move(codec)),
      page_tokens_(options.shape.rows.page_tokens),
      row_bytes_(options.shape.rows.row_bytes()) {}

void SequenceBuilder::SourceFailed(const absl::Status& status) {
  ++counted.puts_failed;
  LogOnce(options_.log, logged_source_, LogLevel::kWarning,
          "readers may miss rows that are published", status);
}

absl::Status SequenceBuilder::Build(const PublishedSequence* before, const Rows& input,
                                    PublishedSequence& next) {
  deadline_ = After(options_.source_timeout);
  const std::int64_t pages = input.last() / page_tokens_;
  Handle& handle = next.handle;
  std::int64_t known_pages = 0;
  Rows joined;  // those of the tail so far, and `input`
  const Rows* rows = &input;
  if (input.first != 0) {
    handle = before->handle;
    next.nodes = before->nodes;
    next.node = before->node;
    known_pages = handle.rows / page_tokens_;
    if (!before->tail.infos.empty()) {
      joined = before->tail;
      joined.infos.insert(joined.infos.end(), input.infos.begin(), input.infos.end());
      joined.ids.insert(joined.ids.end(), input.ids.begin(), input.ids.end());
      rows = &joined;
    }
  }
  handle.shape = options_.shape;
  handle.store = options_.store;
  handle.rows = input.last();
  handle.tail.clear();
  handle.provenance.resize(static_cast<std::size_t>(input.first));
  for (const RowInfo& info : input.infos)
    handle.provenance.push_back(info.provenance);

  // Complete pages, a node at a time.
  for (std::int64_t page = known_pages; page < pages;) {
    const std::int64_t first_page = page / kNodeChunks * kNodeChunks;
    const std::int64_t end = std::min(pages, first_page + kNodeChunks);
    if (absl::Status status = BuildNode(*rows, page, end, next); !status.ok()) return status;
    page = end;
  }
  counted.pages += static_cast<std::uint64_t>(pages - known_pages);
  if (pages > known_pages) PutNodeList(next);
  if (absl::Status status = BuildTail(before, *rows, next); !status.ok()) return status;
  if (codec_.key().empty()) return absl::OkStatus();
  const absl::StatusOr<Digest128> mac = HandleMac(handle, codec_.key());
  if (!mac.ok()) return mac.status();
  handle.mac = *mac;
  return absl::OkStatus();
}

std::vector<std::uint8_t> SequenceBuilder::Held(std::span<const Digest128> digests) {
  std::vector<std::uint8_t> held(digests.size());
  if (digests.empty()) return held;
  if (absl::Status status = source_.Holds(digests, deadline_, held); !status.ok()) {
    SourceFailed(status);
    std::fill(held.begin(), held.end(), std::uint8_t{0});
  }
  counted.objects_held +=
      static_cast<std::uint64_t>(std::count(held.begin(), held.end(), std::uint8_t{1}));
  return held;
}

void SequenceBuilder::Put(std::span<const NamedObject> objects) {
  if (objects.empty()) return;
  if (absl::Status status = source_.Put(objects, deadline_); !status.ok()) {
    SourceFailed(status);
    return;
  }
  counted.objects_put += objects.size();
  for (const NamedObject& named : objects)
    counted.bytes_put += named.object.bytes.size();
}

void SequenceBuilder::PutNodeList(const PublishedSequence& sequence) {
  const Digest128 name = NodeListName(sequence.handle.head);
  if (sequence.nodes.size() < kListedNodes || Held({&name, 1})[0] != 0) return;
  const NamedObject list{name, Object::Of(EncodeNodeList(sequence.nodes))};
  Put({&list, 1});
}

absl::Status SequenceBuilder::BuildNode(const Rows& rows, std::int64_t begin, std::int64_t end,
                                        PublishedSequence& next) {
  const std::int64_t first_page = begin / kNodeChunks * kNodeChunks;
  const auto page_rows = static_cast<std::size_t>(page_tokens_);
  std::vector<Digest128> chunks;
  std::vector<RowInfo> infos;
  Digest128 chained;
  if (begin > first_page) {
    // The node so far. This publisher encoded it, so it parses.
    Node node = ParseNode(next.node, codec_.shape_digest(), static_cast<std::int32_t>(page_tokens_))
                    .value();
    infos.resize(node.chunks.size() * page_rows);
    node.known.Infos(0, infos);
    chunks = std::move(node.chunks);
    chained = node.before;
  } else if (begin > 0) {
    chained = next.handle.head;
  }
  const std::size_t known = chunks.size();
  std::vector<NamedObject> pages;
  for (std::int64_t page = begin; page < end; ++page) {
    const auto at = static_cast<std::size_t>(page * page_tokens_ - rows.first);
    const auto of_page = std::span(rows.infos).subspan(at, page_rows);
    std::vector<std::uint8_t> chunk(codec_.ChunkBytes(page_tokens_));
    absl::Status status = codec_.Encode(
        of_page, std::span(rows.ids).subspan(at * row_bytes_, page_rows * row_bytes_), chunk);
    if (!status.ok()) return status;
    chunks.push_back(codec_.Digest(page_tokens_, chunk));
    pages.push_back({chunks.back(), Object::Of(std::move(chunk))});
    infos.insert(infos.end(), of_page.begin(), of_page.end());
  }
  absl::StatusOr<std::vector<std::uint8_t>> node =
      EncodeNode(codec_.shape_digest(), first_page, chained, chunks,
                 static_cast<std::int32_t>(page_tokens_), infos);
  if (!node.ok()) return node.status();
  next.node = *std::move(node);
  next.handle.head = codec_.key().Digest(next.node);
  next.nodes.resize(static_cast<std::size_t>(first_page / kNodeChunks));
  next.nodes.push_back(next.handle.head);

  // The chunks that the source does not hold, each once.
  const std::vector<std::uint8_t> held = Held(std::span(chunks).subspan(known));
  std::vector<NamedObject> objects;
  std::unordered_set<Digest128, DigestHash> putting;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (held[i] == 0 && putting.insert(pages[i].digest).second)
      objects.push_back(std::move(pages[i]));
  }
  if (Held({&next.handle.head, 1})[0] == 0) {
    objects.push_back({next.handle.head, Object::Of(next.node)});
  }
  Put(objects);
  return absl::OkStatus();
}

absl::Status SequenceBuilder::BuildTail(const PublishedSequence* before, const Rows& rows,
                                        PublishedSequence& next) {
  const std::int64_t first = rows.last() / page_tokens_ * page_tokens_;
  const auto size = static_cast<std::size_t>(rows.last() - first);
  Rows& tail = next.tail;
  tail.shape = options_.shape.rows;
  tail.first = first;
  tail.infos.assign(rows.infos.end() - static_cast<std::ptrdiff_t>(size), rows.infos.end());
  tail.ids.assign(rows.ids.end() - static_cast<std::ptrdiff_t>(size * row_bytes_), rows.ids.end());
  if (size == 0) return absl::OkStatus();
  std::size_t cut_rows = 0;
  if (before != nullptr && before->tail.first == first) {
    for (const std::size_t cut : before->cuts) {
      if (cut_rows + cut > size) break;
      next.cuts.push_back(cut);
      cut_rows += cut;
    }
  }
  if (cut_rows < size) next.cuts.push_back(size - cut_rows);
  std::vector<NamedObject> objects;
  std::size_t at = 0;
  for (const std::size_t cut : next.cuts) {
    absl::StatusOr<std::vector<std::uint8_t>> segment = EncodeTailSegment(
        codec_, first + static_cast<std::int64_t>(at), std::span(tail.infos).subspan(at, cut),
        std::span(tail.ids).subspan(at * row_bytes_, cut * row_bytes_));
    if (!segment.ok()) return segment.status();
    const Digest128 digest = codec_.key().Digest(*segment);
    next.handle.tail.push_back(digest);
    objects.push_back({digest, Object::Of(*std::move(segment))});
    at += cut;
  }
  const std::vector<std::uint8_t> held = Held(next.handle.tail);
  std::vector<NamedObject> wanted;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    if (held[i] == 0) wanted.push_back(std::move(objects[i]));
  }
  Put(wanted);
  return absl::OkStatus();
}

}  // namespace waymark::wire
