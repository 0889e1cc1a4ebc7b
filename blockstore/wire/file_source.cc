#include "blockstore/wire/file_source.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/wire/document_format.h"
#include "blockstore/wire/node.h"
#include "blockstore/wire/object_cache.h"
#include "blockstore/wire/tail.h"

namespace waymark::wire {
struct FileSource::State {
  std::shared_ptr<const FileBytes> file;
  Document document;
  ChunkCodec codec;
  std::unordered_map<Digest128, Object, DigestHash> objects;

  [[nodiscard]] Object Find(const Digest128& digest) const {
    const auto found = objects.find(digest);
    return found == objects.end() ? Object{} : found->second;
  }
};

FileSource::FileSource(std::unique_ptr<State> state) : state_(std::move(state)) {}
FileSource::~FileSource() = default;

absl::StatusOr<std::unique_ptr<FileSource>> FileSource::Open(const std::string& path,
                                                             const ReadLimits& limits,
                                                             FileAccess access) {
  absl::StatusOr<std::shared_ptr<const FileBytes>> file =
      FileBytes::Open(path, access, limits.max_bytes);
  if (!file.ok()) return file.status();
  const std::span<const std::uint8_t> bytes = (*file)->bytes();
  absl::StatusOr<Document> opened = Document::Open(bytes, limits);
  if (!opened.ok()) return opened.status();
  if (opened->nodes().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("path: '", path, "' must be a document with nodes; it has none"));
  }
  absl::StatusOr<ChunkCodec> codec = ChunkCodec::Create(opened->shape());
  if (!codec.ok()) return codec.status();
  auto state =
      std::make_unique<State>(State{*std::move(file), *std::move(opened), *std::move(codec), {}});
  const Document& document = state->document;
  const std::int64_t page_tokens = document.shape().rows.page_tokens;
  const ChunkLayout layout(state->codec, document.first(), document.size());
  const std::uint64_t chunks_begin = document.bytes() - layout.bytes();
  std::vector<Digest128> nodes;
  for (const std::span<const std::uint8_t> node_bytes : document.nodes()) {
    const absl::StatusOr<Node> node =
        ParseNode(node_bytes, state->codec.shape_digest(), static_cast<std::int32_t>(page_tokens),
                  limits.max_bytes);
    if (!node.ok()) return node.status();
    if (state->objects.size() > limits.max_bytes / sizeof(Object)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "path: '", path, "' has objects that take more than max_bytes, ", limits.max_bytes));
    }
    nodes.push_back(ContentDigest(node_bytes));
    state->objects.emplace(nodes.back(), Object{state->file, node_bytes});
    for (std::size_t i = 0; i < node->chunks.size(); ++i) {
      const std::int64_t row = (node->first_page + static_cast<std::int64_t>(i)) * page_tokens;
      if (row < document.first() || row + page_tokens > document.last()) continue;
      const std::int64_t c = layout.ChunkOf(row - document.first());
      const std::uint64_t begin = chunks_begin + layout.ByteBegin(c);
      const std::size_t size = state->codec.ChunkBytes(page_tokens);
      if (begin + size > bytes.size()) continue;  // the file was cut off
      state->objects.emplace(node->chunks[i], Object{state->file, bytes.subspan(begin, size)});
    }
  }
  if (nodes.size() >= kListedNodes)
    state->objects.emplace(NodeListName(nodes.back()), Object::Of(EncodeNodeList(nodes)));
  const std::int64_t tail = document.last() / page_tokens * page_tokens;
  if (tail < document.last() && tail >= document.first() && document.has_steps()) {
    ReadDamage damage;
    const absl::StatusOr<Rows> rows =
        document.ReadRows({tail, document.last(), 0, document.shape().rows.num_layers}, &damage);
    if (!rows.ok()) return rows.status();
    absl::StatusOr<std::vector<std::uint8_t>> segment =
        EncodeTailSegment(state->codec, tail, rows->infos, rows->ids);
    if (segment.ok() && !damage.any()) {
      const Digest128 digest = ContentDigest(*segment);
      state->objects.emplace(digest, Object::Of(*std::move(segment)));
    }
  }
  return std::unique_ptr<FileSource>(new FileSource(std::move(state)));
}

absl::Status FileSource::Get(std::span<const Digest128> digests, Deadline,
                             std::span<Object> objects) {
  for (std::size_t i = 0; i < digests.size(); ++i)
    objects[i] = state_->Find(digests[i]);
  return absl::OkStatus();
}

absl::Status FileSource::GetRanges(std::span<const ObjectRange> ranges, Deadline,
                                   std::span<Object> objects) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Object object = state_->Find(ranges[i].digest);
    objects[i] = {};
    if (ranges[i].end > object.bytes.size()) continue;
    objects[i] = {object.owner,
                  object.bytes.subspan(ranges[i].begin, ranges[i].end - ranges[i].begin)};
  }
  return absl::OkStatus();
}

absl::Status FileSource::Put(std::span<const NamedObject>, Deadline) {
  return absl::UnimplementedError("FileSource::Put: files are written by DocumentWriter");
}

absl::Status FileSource::Holds(std::span<const Digest128> digests, Deadline,
                               std::span<std::uint8_t> held) {
  for (std::size_t i = 0; i < digests.size(); ++i)
    held[i] = state_->objects.contains(digests[i]) ? 1 : 0;
  return absl::OkStatus();
}

const Document& FileSource::document() const {
  return state_->document;
}
std::size_t FileSource::size() const {
  return state_->objects.size();
}

}  // namespace waymark::wire
