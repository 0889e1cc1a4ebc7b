#include "blockstore/wire/sequence_builder.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/wire/node.h"
#include "blockstore/wire/tail.h"

namespace waymark::wire {
namespace {

std::uint64_t Count(std::size_t n) {
  return static_cast<std::uint64_t>(n);
}

}  // namespace

absl::Status PublishInput::Read(std::int64_t begin, std::int64_t end, std::span<RowInfo> infos,
                                std::span<std::uint8_t> ids) const {
  if (pinned()) {
    const IdType type = shape().id_bytes() == 1 ? IdType::kUint8 : IdType::kUint16;
    return snapshot.Read(begin, end, {Layout::kTokensLayersK, type, Fill::kZeros}, ids, infos);
  }
  const auto at = static_cast<std::size_t>(begin - rows.first);
  std::copy_n(rows.infos.begin() + static_cast<std::ptrdiff_t>(at), infos.size(), infos.begin());
  std::copy_n(rows.ids.begin() + static_cast<std::ptrdiff_t>(at * rows.shape.row_bytes()),
              ids.size(), ids.begin());
  return absl::OkStatus();
}

absl::Status PublishInput::ReadInfos(std::int64_t begin, std::int64_t end,
                                     std::span<RowInfo> infos) const {
  if (pinned()) return snapshot.ReadInfos(begin, end, infos);
  std::copy_n(rows.infos.begin() + (begin - rows.first), infos.size(), infos.begin());
  return absl::OkStatus();
}

absl::StatusOr<bool> IsOtherRequest(const PublishInput& input, const PublishedSequence& known,
                                    std::uint64_t shape_digest, std::int64_t page_tokens) {
  if (input.last() < known.handle.rows) return true;
  std::int64_t first = known.tail.first;
  std::vector<RowInfo> before;
  if (!known.node.empty()) {
    const absl::StatusOr<Node> node =
        ParseNode(known.node, shape_digest, static_cast<std::int32_t>(page_tokens));
    if (!node.ok()) return node.status();
    first = node->first_page * page_tokens;
    before.resize(static_cast<std::size_t>(node->known.rows()));
    node->known.Infos(0, before);
  }
  before.insert(before.end(), known.tail.infos.begin(), known.tail.infos.end());
  std::vector<RowInfo> now(before.size());
  absl::Status status = input.ReadInfos(first, first + static_cast<std::int64_t>(now.size()), now);
  if (!status.ok()) return status;
  const auto same = [](const RowInfo& a, const RowInfo& b) {
    return !a.valid() || !b.valid() || (a.step == b.step && a.version == b.version);
  };
  return !std::equal(before.begin(), before.end(), now.begin(), same);
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

absl::Status SequenceBuilder::Build(const PublishedSequence* before, const PublishInput& input,
                                    PublishedSequence& next) {
  deadline_ = After(options_.source_timeout);
  const bool goes_on = input.first() != 0;
  const std::int64_t rows = input.last();
  const std::int64_t pages = rows / page_tokens_;
  Handle& handle = next.handle;
  if (goes_on) {
    handle = before->handle;
    next.nodes = before->nodes;
    next.node = before->node;
  }
  handle.shape = options_.shape;
  handle.store = options_.store;
  handle.rows = rows;
  handle.provenance.resize(static_cast<std::size_t>(rows));
  handle.tail.clear();

  // Complete pages, a node at a time.
  const std::int64_t known_pages = goes_on ? before->handle.rows / page_tokens_ : 0;
  for (std::int64_t page = known_pages; page < pages;) {
    const std::int64_t first_page = page / kNodeChunks * kNodeChunks;
    const std::int64_t end = std::min(pages, first_page + kNodeChunks);
    if (absl::Status status = BuildNode(before, input, page, end, next); !status.ok()) {
      return status;
    }
    page = end;
  }
  counted.pages += Count(static_cast<std::size_t>(pages - known_pages));
  if (pages > known_pages) PutNodeList(next);
  if (absl::Status status = BuildTail(before, input, next); !status.ok()) return status;
  if (codec_.key().empty()) return absl::OkStatus();
  const absl::StatusOr<Digest128> mac = HandleMac(handle, codec_.key());
  if (!mac.ok()) return mac.status();
  handle.mac = *mac;
  return absl::OkStatus();
}

absl::Status SequenceBuilder::ReadRange(const PublishedSequence* before, const PublishInput& input,
                                        std::int64_t begin, std::int64_t end,
                                        std::span<RowInfo> infos, std::span<std::uint8_t> ids,
                                        Handle& handle) const {
  const std::int64_t cut = std::clamp(input.first(), begin, end);
  const auto old_rows = static_cast<std::size_t>(cut - begin);
  if (old_rows > 0) {
    const auto at = static_cast<std::size_t>(begin - before->tail.first);
    std::copy_n(before->tail.infos.begin() + static_cast<std::ptrdiff_t>(at), old_rows,
                infos.begin());
    std::copy_n(before->tail.ids.begin() + static_cast<std::ptrdiff_t>(at * row_bytes_),
                old_rows * row_bytes_, ids.begin());
  }
  if (cut < end) {
    const absl::Status status =
        input.Read(cut, end, infos.subspan(old_rows), ids.subspan(old_rows * row_bytes_));
    if (!status.ok()) return status;
  }
  NoteProvenance(begin, infos, handle);
  return absl::OkStatus();
}

void SequenceBuilder::NoteProvenance(std::int64_t begin, std::span<const RowInfo> infos,
                                     Handle& handle) {
  for (std::size_t i = 0; i < infos.size(); ++i)
    handle.provenance[static_cast<std::size_t>(begin) + i] = infos[i].provenance;
}

Digest128 SequenceBuilder::NameOf(const PageRef& page_ref, std::span<const RowInfo> infos) {
  name_.assign({page_ref.store, page_ref.page});
  for (const RowInfo& info : infos)
    name_.push_back(info.step);  // 0: missing
  return ContentDigest(
      {reinterpret_cast<const std::uint8_t*>(name_.data()), name_.size() * sizeof(name_[0])});
}

absl::Status SequenceBuilder::Encode(const PublishedSequence* before, const PublishInput& input,
                                     Page& page, std::span<RowInfo> infos, Handle& handle) {
  const std::int64_t begin = page.number * page_tokens_;
  ids_.resize(static_cast<std::size_t>(page_tokens_) * row_bytes_);
  absl::Status status = ReadRange(before, input, begin, begin + page_tokens_, infos, ids_, handle);
  if (!status.ok()) return status;
  page.chunk.resize(codec_.ChunkBytes(page_tokens_));
  status = codec_.Encode(infos, ids_, page.chunk);
  if (!status.ok()) return status;
  page.digest = codec_.Digest(page_tokens_, page.chunk);
  page.digested = true;
  ++counted.pages_encoded;
  if (!page.named || options_.max_pages == 0) return absl::OkStatus();
  // Named by the infos that were read with the ids: the audit may have voided rows in between.
  page.name = NameOf(*input.PageOf(begin), infos);
  if (Digest128* known = pages_.Use(page.name)) {
    *known = page.digest;
    return absl::OkStatus();
  }
  if (pages_.size() == options_.max_pages) pages_.PopOldest();
  pages_.Insert(page.name, page.digest);
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
      Count(static_cast<std::size_t>(std::count(held.begin(), held.end(), std::uint8_t{1})));
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

absl::Status SequenceBuilder::DigestPage(const PublishedSequence* before, const PublishInput& input,
                                         Page& page, std::span<RowInfo> infos, Handle& handle) {
  const std::int64_t row = page.number * page_tokens_;
  const auto of_store =
      row >= input.first() ? input.PageOf(row) : std::optional<PageRef>(std::nullopt);
  if (of_store.has_value()) {
    absl::Status status = input.ReadInfos(row, row + page_tokens_, infos);
    if (!status.ok()) return status;
    page.named = true;
    page.name = NameOf(*of_store, infos);
    if (const Digest128* digest = pages_.Use(page.name)) {
      page.digest = *digest;
      page.digested = true;
      NoteProvenance(row, infos, handle);
      return absl::OkStatus();
    }
  }
  return Encode(before, input, page, infos, handle);
}

absl::Status SequenceBuilder::BuildNode(const PublishedSequence* before, const PublishInput& input,
                                        std::int64_t begin, std::int64_t end,
                                        PublishedSequence& next) {
  const std::int64_t first_page = begin / kNodeChunks * kNodeChunks;
  const auto node_pages = static_cast<std::size_t>(end - first_page);
  const auto page_rows = static_cast<std::size_t>(page_tokens_);
  std::vector<Digest128> chunks;
  std::vector<RowInfo> infos(node_pages * page_rows);
  Digest128 chained;
  if (begin > first_page) {
    // The node so far. This publisher encoded it, so it parses.
    const absl::StatusOr<Node> node =
        ParseNode(next.node, codec_.shape_digest(), static_cast<std::int32_t>(page_tokens_));
    if (!node.ok()) return node.status();
    chunks = node->chunks;
    node->known.Infos(0, std::span(infos).first(chunks.size() * page_rows));
    chained = node->before;
  } else if (begin > 0) {
    chained = next.handle.head;
  }
  const auto infos_of = [&](std::int64_t page) {
    return std::span(infos).subspan(static_cast<std::size_t>(page - first_page) * page_rows,
                                    page_rows);
  };

  std::vector<Page> pages(static_cast<std::size_t>(end - begin));
  for (std::size_t i = 0; i < pages.size(); ++i) {
    pages[i].number = begin + static_cast<std::int64_t>(i);
    const absl::Status status =
        DigestPage(before, input, pages[i], infos_of(pages[i].number), next.handle);
    if (!status.ok()) return status;
  }

  // The chunks that the source does not hold.
  std::vector<Digest128> digests;
  for (const Page& page : pages)
    digests.push_back(page.digest);
  const std::vector<std::uint8_t> held = Held(digests);
  std::vector<NamedObject> objects;
  std::unordered_set<Digest128, DigestHash> putting;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (held[i] != 0 || putting.contains(pages[i].digest)) continue;
    if (pages[i].chunk.empty()) {
      absl::Status status = Encode(before, input, pages[i], infos_of(pages[i].number), next.handle);
      if (!status.ok()) return status;
    }
    putting.insert(pages[i].digest);
    objects.push_back({pages[i].digest, Object::Of(std::move(pages[i].chunk))});
  }
  for (const Page& page : pages)
    chunks.push_back(page.digest);
  absl::StatusOr<std::vector<std::uint8_t>> node =
      EncodeNode(codec_.shape_digest(), first_page, chained, chunks,
                 static_cast<std::int32_t>(page_tokens_), infos);
  if (!node.ok()) return node.status();
  next.node = *std::move(node);
  next.handle.head = codec_.key().Digest(next.node);
  next.nodes.resize(static_cast<std::size_t>(first_page / kNodeChunks));
  next.nodes.push_back(next.handle.head);
  if (Held({&next.handle.head, 1})[0] == 0) {
    objects.push_back({next.handle.head, Object::Of(next.node)});
  }
  Put(objects);
  return absl::OkStatus();
}

absl::Status SequenceBuilder::BuildTail(const PublishedSequence* before, const PublishInput& input,
                                        PublishedSequence& next) {
  const std::int64_t rows = next.handle.rows;
  const std::int64_t first = rows / page_tokens_ * page_tokens_;
  const auto size = static_cast<std::size_t>(rows - first);
  Rows& tail = next.tail;
  tail.shape = options_.shape.rows;
  tail.first = first;
  tail.infos.resize(size);
  tail.ids.resize(size * row_bytes_);
  if (size == 0) return absl::OkStatus();
  if (absl::Status status =
          ReadRange(before, input, first, rows, tail.infos, tail.ids, next.handle);
      !status.ok()) {
    return status;
  }
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
