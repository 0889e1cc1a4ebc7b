#include "blockstore/wire/file_source.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/huge_pages.h"
#include "blockstore/invalid.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/document_format.h"
#include "blockstore/wire/object_cache.h"
#include "blockstore/wire/objects.h"

namespace waymark::wire {
namespace {

absl::Status Failed(const std::string& path, int error) {
  const std::string what =
      absl::StrCat("path: '", path, "' cannot be read: ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(what) : absl::UnavailableError(what);
}

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

absl::Status CheckRegular(const std::string& path, const struct stat& info) {
  if (S_ISREG(info.st_mode)) return absl::OkStatus();
  return Invalid("path: '", path, "' must be a regular file; it is ", KindOf(info.st_mode));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const FileBytes>> FileBytes::Open(const std::string& path,
                                                                 FileAccess access,
                                                                 std::size_t max_bytes) {
  // Before it is opened, because that alone may block, or start a device.
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return Failed(path, errno);
  if (absl::Status status = CheckRegular(path, info); !status.ok()) return status;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return Failed(path, errno);
  struct Closed {
    ~Closed() { close(file); }
    const int file;
  } const closed{file};
  if (fstat(file, &info) != 0) return Failed(path, errno);
  if (absl::Status status = CheckRegular(path, info); !status.ok()) return status;

  std::shared_ptr<FileBytes> made(new FileBytes);
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return made;
  if (access == FileAccess::kMap) {
    void* const at = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return Failed(path, errno);
    made->bytes_ = {static_cast<const std::uint8_t*>(at), size};
    return made;
  }
  if (size > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("path: '", path, "' must have at most max_bytes = ", max_bytes,
                     " bytes to be read into memory; it has ", size));
  }
  made->read_.reset(new std::uint8_t[size]);
  AskForHugePages(made->read_.get(), size);
  std::size_t got = 0;
  while (got < size) {
    const ssize_t n = read(file, made->read_.get() + got, size - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed(path, errno);
    if (n == 0) break;
    got += static_cast<std::size_t>(n);
  }
  made->bytes_ = {made->read_.get(), got};
  return made;
}

FileBytes::~FileBytes() {
  if (read_ == nullptr && !bytes_.empty())
    munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

struct FileSource::Objects : std::unordered_map<Digest128, Object, DigestHash> {};

FileSource::FileSource(std::unique_ptr<Objects> objects) : objects_(std::move(objects)) {}
FileSource::~FileSource() = default;

absl::StatusOr<std::unique_ptr<FileSource>> FileSource::Open(const std::string& path,
                                                             const ReadLimits& limits,
                                                             FileAccess access) {
  absl::StatusOr<std::shared_ptr<const FileBytes>> file =
      FileBytes::Open(path, access, limits.max_bytes);
  if (!file.ok()) return file.status();
  const std::span<const std::uint8_t> bytes = (*file)->bytes();
  const absl::StatusOr<Document> opened = Document::Open(bytes, limits);
  if (!opened.ok()) return opened.status();
  const Document& document = *opened;
  if (document.nodes().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("path: '", path, "' must be a document with nodes; it has none"));
  }
  const absl::StatusOr<ChunkCodec> codec = ChunkCodec::Create(document.shape());
  if (!codec.ok()) return codec.status();
  auto objects = std::make_unique<Objects>();
  const std::int64_t page_tokens = document.shape().rows.page_tokens;
  const ChunkLayout layout(*codec, document.first(), document.size());
  const std::uint64_t chunks_begin = document.bytes() - layout.bytes();
  std::vector<Digest128> nodes;
  for (const std::span<const std::uint8_t> node_bytes : document.nodes()) {
    const absl::StatusOr<Node> node =
        ParseNode(node_bytes, codec->shape_digest(), static_cast<std::int32_t>(page_tokens),
                  limits.max_bytes);
    if (!node.ok()) return node.status();
    if (objects->size() > limits.max_bytes / sizeof(Object)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "path: '", path, "' has objects that take more than max_bytes, ", limits.max_bytes));
    }
    nodes.push_back(ContentDigest(node_bytes));
    objects->emplace(nodes.back(), Object{*file, node_bytes});
    for (std::size_t i = 0; i < node->chunks.size(); ++i) {
      const std::int64_t row = (node->first_page + static_cast<std::int64_t>(i)) * page_tokens;
      if (row < document.first() || row + page_tokens > document.last()) continue;
      const std::int64_t c = layout.ChunkOf(row - document.first());
      const std::uint64_t begin = chunks_begin + layout.ByteBegin(c);
      const std::size_t size = codec->ChunkBytes(page_tokens);
      if (begin + size > bytes.size()) continue;  // the file was cut off
      objects->emplace(node->chunks[i], Object{*file, bytes.subspan(begin, size)});
    }
  }
  if (nodes.size() >= kListedNodes)
    objects->emplace(NodeListName(nodes.back()), Object::Of(EncodeNodeList(nodes)));
  const std::int64_t tail = document.last() / page_tokens * page_tokens;
  if (tail < document.last() && tail >= document.first() && document.has_steps()) {
    ReadDamage damage;
    const absl::StatusOr<Rows> rows =
        document.ReadRows({tail, document.last(), 0, document.shape().rows.num_layers}, &damage);
    if (!rows.ok()) return rows.status();
    absl::StatusOr<std::vector<std::uint8_t>> segment =
        EncodeTailSegment(*codec, tail, rows->infos, rows->ids);
    if (segment.ok() && !damage.any()) {
      const Digest128 digest = ContentDigest(*segment);
      objects->emplace(digest, Object::Of(*std::move(segment)));
    }
  }
  return std::unique_ptr<FileSource>(new FileSource(std::move(objects)));
}

absl::Status FileSource::Get(std::span<const Digest128> digests, Deadline,
                             std::span<Object> objects) {
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const auto found = objects_->find(digests[i]);
    objects[i] = found == objects_->end() ? Object{} : found->second;
  }
  return absl::OkStatus();
}

absl::Status FileSource::Put(std::span<const NamedObject>, Deadline) {
  return absl::UnimplementedError("FileSource::Put: files are written by DocumentWriter");
}

}  // namespace waymark::wire
