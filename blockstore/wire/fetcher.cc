#include "blockstore/wire/fetcher.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/exception_status.h"
#include "blockstore/fork_guard.h"
#include "blockstore/huge_pages.h"
#include "blockstore/invalid.h"
#include "blockstore/mutex.h"
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/guarded_source.h"
#include "blockstore/wire/node.h"
#include "blockstore/wire/object_cache.h"
#include "blockstore/wire/tail.h"

namespace waymark::wire {
namespace {

constexpr RowInfo kLost{0, 0, Reason::kCapacity, Provenance::kHere};

void Add(const FetchCounts& counts, FetchCounts& to) {
  to.fetched += counts.fetched;
  to.fetched_bytes += counts.fetched_bytes;
  to.hits += counts.hits;
  to.absent += counts.absent;
  to.damaged += counts.damaged;
}

absl::Status CheckHandle(const Handle& handle, const DigestKey& key) {
  const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(handle.rows, 0));
  if (handle.rows < 0 || handle.provenance.size() != rows) {
    return Invalid("handle: provenance must have one entry per row, ", handle.rows, "; it has ",
                   handle.provenance.size());
  }
  if (key.empty()) {
    if (!handle.mac.has_value()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "handle: it is keyed, and can be fetched only with the key of its publisher; this fetcher "
        "has none");
  }
  if (!handle.mac.has_value()) {
    return absl::DataLossError(
        "handle: it must be keyed, because the fetcher has a key; it is not");
  }
  const absl::StatusOr<Digest128> mac = HandleMac(handle, key);
  if (!mac.ok()) return mac.status();
  std::uint32_t different = 0;  // all words are compared: the time does not depend on them
  for (std::size_t i = 0; i < std::size(mac->w); ++i)
    different |= mac->w[i] ^ handle.mac->w[i];
  if (different == 0) return absl::OkStatus();
  return absl::DataLossError(
      "handle: its keyed digest does not match: it was changed, or made with another key");
}

}  // namespace

class Fetcher::Impl {
 public:
  Impl(PageSource* source, const FetcherOptions& options)
      : source_(source), options_(options), cache_(options.cache_bytes) {
    // Without the guard, which needs a page of memory, only forked children are not recognised.
    if (absl::StatusOr<ForkGuard> guard = ForkGuard::Create(0); guard.ok()) {
      guard_ = *std::move(guard);
    }
  }

  absl::StatusOr<Rows> Fetch(const Handle& handle, const RowsAndLayers& part, Deadline deadline,
                             FetchReport& report);

  FetchCounts GetCounts() const {
    if (forked()) return {};
    const MutexLock lock(mutex_);
    return counts_;
  }
  // Whether this process is a forked child of the fetcher's. Its locks may be held for ever.
  [[nodiscard]] bool forked() const { return guard_.forked(); }

 private:
  struct FetchCall;

  // The codec of a shape. The last one is cached.
  absl::StatusOr<std::shared_ptr<const ChunkCodec>> CodecOf(const WireShape& shape) {
    {
      const MutexLock lock(mutex_);
      if (codec_ != nullptr && codec_->shape() == shape) return codec_;
    }
    absl::StatusOr<ChunkCodec> made = ChunkCodec::Create(shape, options_.key);
    if (!made.ok()) return made.status();
    auto codec = std::make_shared<const ChunkCodec>(*std::move(made));
    const MutexLock lock(mutex_);
    codec_ = codec;
    return codec;
  }
  Object Use(const ObjectKey& key) {
    const MutexLock lock(mutex_);
    return cache_.Use(key);
  }
  void Keep(const ObjectKey& key, const Object& object) {
    const MutexLock lock(mutex_);
    cache_.Keep(key, object);
  }

  GuardedSource source_;
  const FetcherOptions options_;
  ForkGuard guard_;
  mutable Mutex mutex_;
  ObjectCache cache_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const ChunkCodec> codec_ ABSL_GUARDED_BY(mutex_);
  FetchCounts counts_ ABSL_GUARDED_BY(mutex_);
};

// One call of Fetch: its arguments and its working memory.
struct Fetcher::Impl::FetchCall {
  Impl& fetcher;
  const Handle& handle;
  const RowsAndLayers& part;
  const ChunkCodec& codec;
  const Deadline deadline;
  FetchReport& report;
  Rows& rows;

  const std::int64_t page_tokens = handle.shape.rows.page_tokens;
  const std::int64_t pages = handle.rows / page_tokens;  // complete ones
  const std::size_t chunk_bytes = codec.ChunkBytes(page_tokens);
  const std::size_t row_bytes = rows.shape.row_bytes();
  // Nodes and tail segments that were fetched in this call, whether or not they are cached.
  std::unordered_map<Digest128, Object, DigestHash> fetched = {};

  // A complete page that has rows of `part`.
  struct Page {
    std::int64_t number;
    Digest128 chunk;
    const Node* node;
  };

  void NoteStatus(const absl::Status& status) {
    if (!status.ok() && report.source.ok()) report.source = status;
  }
  // Whether another call of the source can succeed.
  [[nodiscard]] bool reachable() const {
    return report.source.ok() || report.source.code() == absl::StatusCode::kUnimplemented;
  }

  // Fetches, in one call of the source, those of the objects that are not cached. Their digests are
  // those of their bytes: they are nodes and tail segments. Returns the object `extra` with
  // them, unchecked, if it is not null.
  Object FetchByContent(std::span<const Digest128> digests, const Digest128* extra = nullptr) {
    std::vector<Digest128> asked;
    for (const Digest128& digest : digests) {
      const auto [at, is_new] = fetched.try_emplace(digest, fetcher.Use({digest}));
      if (!is_new) continue;
      if (at->second.present()) {
        ++report.counts.hits;
      } else {
        asked.push_back(digest);
      }
    }
    const std::size_t wanted = asked.size();
    if (extra != nullptr) asked.push_back(*extra);
    if (asked.empty()) return {};
    std::vector<Object> got(asked.size());
    if (reachable()) NoteStatus(fetcher.source_.Get(asked, deadline, got));
    for (std::size_t i = 0; i < wanted; ++i) {
      if (!Arrived(got[i])) continue;
      if (fetcher.options_.key.Digest(got[i].bytes) != asked[i]) {
        ++report.counts.damaged;
        continue;
      }
      fetcher.Keep({asked[i]}, got[i]);
      fetched[asked[i]] = got[i];
    }
    return extra != nullptr ? got.back() : Object{};
  }
  bool Arrived(const Object& object) {
    if (!object.present()) {
      ++report.counts.absent;
      return false;
    }
    ++report.counts.fetched;
    report.counts.fetched_bytes += object.bytes.size();
    return true;
  }

  // Fetches node `n`, whose digest is `digest`, and the node list with it. With the list, those of
  // nodes [first, n) too. A list that is absent or damaged costs time and no rows.
  void FetchWithList(std::int64_t first, std::int64_t n, const Digest128& digest) {
    const Digest128 name = NodeListName(handle.head);
    const Object list = FetchByContent({&digest, 1}, &name);
    if (!list.present()) return;
    report.counts.fetched_bytes += list.bytes.size();
    const auto nodes = static_cast<std::size_t>((pages + kNodeChunks - 1) / kNodeChunks);
    const absl::StatusOr<std::vector<Digest128>> listed = ParseNodeList(list.bytes, nodes);
    if (!listed.ok()) return;
    FetchByContent(std::span(*listed).subspan(static_cast<std::size_t>(first),
                                              static_cast<std::size_t>(n - first)));
  }

  // The nodes of pages [begin, pages), the last one first. Stops at a node that is absent or
  // damaged.
  std::vector<Node> GetNodes(std::int64_t begin) {
    std::vector<Node> nodes;
    Digest128 digest = handle.head;
    bool asked_for_list = false;
    const std::int64_t first = begin / kNodeChunks;
    for (std::int64_t n = (pages - 1) / kNodeChunks; n >= first; --n) {
      if (!fetched.contains(digest)) {
        // Walking back takes a call for each node.
        if (!asked_for_list && n - first >= 2 && !fetcher.Use({digest}).present()) {
          asked_for_list = true;
          FetchWithList(first, n, digest);
        } else {
          FetchByContent({&digest, 1});
        }
      }
      const Object object = fetched[digest];
      if (!object.present()) break;
      absl::StatusOr<Node> node =
          ParseNode(object.bytes, codec.shape_digest(), static_cast<std::int32_t>(page_tokens));
      const std::int64_t chunks = std::min(kNodeChunks, pages - n * kNodeChunks);
      if (!node.ok() || node->first_page != n * kNodeChunks ||
          static_cast<std::int64_t>(node->chunks.size()) != chunks) {
        ++report.counts.damaged;  // it is not a node of this trajectory
        break;
      }
      digest = node->before;
      nodes.push_back(*std::move(node));
    }
    return nodes;
  }

  // Rows [begin, end) of the sequence, and where they go in `rows`.
  struct Wanted {
    std::int64_t begin, end;
    std::span<RowInfo> infos;
    std::span<std::uint8_t> ids;
  };
  // Those of rows [first, last) that are in `part`. REQUIRES: there is one.
  Wanted WantedOf(std::int64_t first, std::int64_t last) {
    const std::int64_t begin = std::max(first, part.row_begin);
    const std::int64_t end = std::min(last, part.row_end);
    const auto at = static_cast<std::size_t>(begin - part.row_begin);
    const auto size = static_cast<std::size_t>(end - begin);
    return {begin, end, std::span(rows.infos).subspan(at, size),
            std::span(rows.ids).subspan(at * row_bytes, size * row_bytes)};
  }

  // Sets the infos of a page's rows from its node. Returns whether a row is valid.
  bool SetInfos(const Page& page) {
    const std::int64_t first = page.number * page_tokens;
    const Wanted wanted = WantedOf(first, first + page_tokens);
    page.node->known.Infos(wanted.begin - page.node->first_page * page_tokens, wanted.infos);
    bool any = false;
    for (const RowInfo& info : wanted.infos)
      any |= info.valid();
    return any;
  }
  void MarkLost(const Page& page) {
    const std::int64_t first = page.number * page_tokens;
    const Wanted wanted = WantedOf(first, first + page_tokens);
    for (RowInfo& info : wanted.infos) {
      if (info.valid()) info = kLost;
    }
    std::fill(wanted.ids.begin(), wanted.ids.end(), std::uint8_t{0});
  }
  // Writes the rows of a page from its chunk, of which only the layers of `part` and their crcs
  // must be there. Returns false if it is damaged.
  bool Decode(const Page& page, std::span<const std::uint8_t> chunk) {
    const std::int64_t first = page.number * page_tokens;
    const Wanted wanted = WantedOf(first, first + page_tokens);
    all_infos.resize(static_cast<std::size_t>(page_tokens));
    page.node->known.Infos(first - page.node->first_page * page_tokens, all_infos);
    invalid.resize(wanted.infos.size());
    const ChunkState state =
        codec.Decode(all_infos, chunk,
                     {wanted.begin - first, wanted.end - first, part.layer_begin, part.layer_end},
                     wanted.ids, invalid);
    if (state == ChunkState::kDamaged) return false;
    for (std::size_t i = 0; i < invalid.size() && state == ChunkState::kInvalidId; ++i) {
      if (invalid[i] != 0 && wanted.infos[i].valid()) {
        wanted.infos[i] = {0, 0, Reason::kInvalidId, Provenance::kHere};
      }
    }
    return true;
  }

  // The layers to fetch: those of `part`, extended to whole groups of layers under one crc.
  [[nodiscard]] std::int32_t layers_begin() const {
    const std::int32_t crc = codec.shape().crc_layers();
    return part.layer_begin / crc * crc;
  }
  [[nodiscard]] std::int32_t layers_end() const {
    const std::int32_t crc = codec.shape().crc_layers();
    return std::min(codec.shape().rows.num_layers, (part.layer_end + crc - 1) / crc * crc);
  }
  [[nodiscard]] bool ranges() const {
    return !fetcher.options_.whole_chunks && fetcher.options_.key.empty() &&
           layers_end() - layers_begin() < codec.shape().rows.num_layers;
  }

  void ReadPages(std::span<const Page> wanted) {
    std::unordered_map<Digest128, std::size_t, DigestHash> asked_at;
    std::vector<std::vector<const Page*>> same;  // pages of each digest that is asked for
    const std::size_t page_bytes = ranges() ? crc_bytes() + range_bytes() : chunk_bytes;
    const std::size_t batch = std::max<std::size_t>(1, fetcher.options_.batch_bytes / page_bytes);
    const auto flush = [&] {
      if (ranges()) {
        FetchRanges(same);
      } else {
        FetchChunks(same);
      }
      same.clear();
      asked_at.clear();
    };
    for (const Page& page : wanted) {
      if (!SetInfos(page)) continue;
      if (ReadCached(page)) {
        ++report.counts.hits;
        continue;
      }
      const auto [at, is_new] = asked_at.try_emplace(page.chunk, same.size());
      if (is_new) same.emplace_back();
      same[at->second].push_back(&page);
      if (same.size() == batch) flush();
    }
    if (!same.empty()) flush();
  }

  bool ReadCached(const Page& page) {
    const Object whole = fetcher.Use({page.chunk});
    if (whole.present()) return whole.bytes.size() == chunk_bytes && Decode(page, whole.bytes);
    if (!ranges()) return false;
    const Object layers = fetcher.Use({page.chunk, layers_begin(), layers_end()});
    // A node of another shape may have named the same chunk.
    return layers.bytes.size() == crc_bytes() + range_bytes() &&
           Decode(page, FillChunk(layers.bytes));
  }

  void FetchChunks(std::span<const std::vector<const Page*>> same) {
    std::vector<Digest128> digests;
    for (const auto& pages_of : same)
      digests.push_back(pages_of[0]->chunk);
    std::vector<Object> got(digests.size());
    if (reachable()) NoteStatus(fetcher.source_.Get(digests, deadline, got));
    for (std::size_t i = 0; i < got.size(); ++i) {
      bool good = Arrived(got[i]);
      if (good && (got[i].bytes.size() != chunk_bytes ||
                   codec.Digest(page_tokens, got[i].bytes) != digests[i])) {
        ++report.counts.damaged;
        good = false;
      }
      if (good) fetcher.Keep({digests[i]}, got[i]);
      for (const Page* page : same[i]) {
        if (!good || !Decode(*page, got[i].bytes)) MarkLost(*page);
      }
    }
  }

  // Sizes and offsets of the two ranges of a chunk that are fetched and cached: the crcs, all of
  // them, because the digest of the chunk vouches for all together, and the layers.
  [[nodiscard]] std::size_t crc_bytes() const {
    return 4 * static_cast<std::size_t>(codec.shape().num_crcs());
  }
  [[nodiscard]] std::size_t range_begin() const {
    return crc_bytes() + static_cast<std::size_t>(layers_begin()) * codec.LayerBytes(page_tokens);
  }
  [[nodiscard]] std::size_t range_bytes() const {
    return static_cast<std::size_t>(layers_end() - layers_begin()) * codec.LayerBytes(page_tokens);
  }
  // A chunk in which only those two ranges have been filled in.
  std::span<const std::uint8_t> FillChunk(std::span<const std::uint8_t> kept) {
    spread.resize(chunk_bytes);
    std::memcpy(spread.data(), kept.data(), crc_bytes());
    std::memcpy(spread.data() + range_begin(), kept.data() + crc_bytes(), range_bytes());
    return spread;
  }
  // The digest of a chunk names its crcs, which check the layers.
  void FetchRanges(std::span<const std::vector<const Page*>> same) {
    std::vector<ObjectRange> asked;
    for (const auto& pages_of : same) {
      const Digest128& digest = pages_of[0]->chunk;
      asked.push_back({digest, 0, crc_bytes()});
      asked.push_back({digest, range_begin(), range_begin() + range_bytes()});
    }
    std::vector<Object> got(asked.size());
    if (reachable()) {
      const absl::Status status = fetcher.source_.GetRanges(asked, deadline, got);
      if (absl::IsUnimplemented(status)) return FetchChunks(same);
      NoteStatus(status);
    }
    for (std::size_t i = 0; i < same.size(); ++i) {
      const Object& crcs = got[2 * i];
      const Object& layers = got[2 * i + 1];
      bool good = Arrived(layers.present() ? crcs : Object{}) && crcs.bytes.size() == crc_bytes() &&
                  layers.bytes.size() == range_bytes();
      if (layers.present()) report.counts.fetched_bytes += layers.bytes.size();
      std::vector<std::uint8_t> kept;
      if (good && codec.PlaceDigest(crcs.bytes) != same[i][0]->chunk.w[0]) {
        ++report.counts.damaged;
        good = false;
      } else if (good) {
        kept.insert(kept.end(), crcs.bytes.begin(), crcs.bytes.end());
        kept.insert(kept.end(), layers.bytes.begin(), layers.bytes.end());
        good = Decode(*same[i][0], FillChunk(kept));
        if (!good) ++report.counts.damaged;
      }
      for (const Page* page : same[i]) {
        if (!good || !Decode(*page, FillChunk(kept))) MarkLost(*page);
      }
      if (good) {
        fetcher.Keep({same[i][0]->chunk, layers_begin(), layers_end()},
                     Object::Of(std::move(kept)));
      }
    }
  }

  void ReadTail() {
    std::int64_t at = pages * page_tokens;
    if (part.row_end <= at || handle.tail.empty()) return;
    for (const Digest128& digest : handle.tail) {
      const Object object = fetched[digest];
      if (!object.present()) continue;
      const absl::StatusOr<Rows> segment =
          ParseTailSegment(codec, object.bytes, part.layer_begin, part.layer_end);
      if (!segment.ok() || segment->first < at || segment->last() > handle.rows) {
        ++report.counts.damaged;
        continue;
      }
      at = segment->last();
      if (segment->first >= part.row_end || segment->last() <= part.row_begin) continue;
      const Wanted wanted = WantedOf(segment->first, segment->last());
      for (std::int64_t row = wanted.begin; row < wanted.end; ++row) {
        const auto to = static_cast<std::size_t>(row - wanted.begin);
        const std::int64_t from = row - segment->first;
        wanted.infos[to] = segment->infos[static_cast<std::size_t>(from)];
        std::memcpy(wanted.ids.data() + to * row_bytes, segment->row(from).data(), row_bytes);
      }
    }
  }

  void Run() {
    if (part.row_begin == part.row_end) return;
    const std::int64_t page_begin = part.row_begin / page_tokens;
    const std::int64_t page_end = std::min(pages, (part.row_end + page_tokens - 1) / page_tokens);
    std::vector<Digest128> first;
    if (page_begin < page_end) first.push_back(handle.head);
    if (part.row_end > pages * page_tokens)
      first.insert(first.end(), handle.tail.begin(), handle.tail.end());
    FetchByContent(first);
    const std::vector<Node> nodes =
        page_begin < page_end ? GetNodes(page_begin) : std::vector<Node>();
    // Only now, so that a handle alone makes no call that waits for a source hold memory.
    rows.infos.assign(static_cast<std::size_t>(part.row_end - part.row_begin), kLost);
    ResizeForWriting(rows.infos.size() * row_bytes, rows.ids);
    if (page_begin < page_end) {
      std::vector<Page> wanted;
      for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
        for (std::size_t i = 0; i < node->chunks.size(); ++i) {
          const std::int64_t number = node->first_page + static_cast<std::int64_t>(i);
          if (number >= page_begin && number < page_end) {
            wanted.push_back({number, node->chunks[i], &*node});
          }
        }
      }
      ReadPages(wanted);
    }
    ReadTail();
    for (std::size_t i = 0; i < rows.infos.size(); ++i)
      rows.infos[i].provenance = handle.provenance[static_cast<std::size_t>(part.row_begin) + i];
  }

  std::vector<RowInfo> all_infos;
  std::vector<std::uint8_t> invalid;
  std::vector<std::uint8_t> spread;
};

absl::StatusOr<Rows> Fetcher::Impl::Fetch(const Handle& handle, const RowsAndLayers& part,
                                          Deadline deadline, FetchReport& report) {
  const absl::StatusOr<std::shared_ptr<const ChunkCodec>> codec = CodecOf(handle.shape);
  if (!codec.ok()) return codec.status();
  if (absl::Status status = CheckHandle(handle, options_.key); !status.ok()) return status;
  absl::Status status =
      CheckPart(part, 0, handle.rows, handle.shape.rows.num_layers, options_.max_rows);
  if (!status.ok()) return status;
  Rows rows;
  rows.shape = LayersShape(handle.shape.rows, part.layer_begin, part.layer_end);
  rows.first = part.row_begin;
  rows.ordered = handle.shape.code.ordered;
  const auto size = static_cast<std::size_t>(part.row_end - part.row_begin);
  const std::size_t row_bytes = rows.shape.row_bytes() + sizeof(RowInfo);
  if (size > options_.max_bytes / row_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("part: its rows must take at most max_bytes = ", options_.max_bytes,
                     " bytes; it has ", size, " rows of ", row_bytes, " bytes"));
  }
  FetchCall{*this, handle, part, **codec, deadline, report, rows}.Run();
  const MutexLock lock(mutex_);
  Add(report.counts, counts_);
  return rows;
}

Fetcher::Fetcher(PageSource* source, const FetcherOptions& options)
    : impl_(std::make_unique<Impl>(source, options)) {}
Fetcher::~Fetcher() = default;

absl::StatusOr<Rows> Fetcher::Fetch(const Handle& handle, const RowsAndLayers& part,
                                    Deadline deadline, FetchReport* report) {
  FetchReport made;
  absl::StatusOr<Rows> rows = Guarded("Fetch", [&]() -> absl::StatusOr<Rows> {
    if (impl_->forked()) {
      return absl::FailedPreconditionError(
          "a fetcher must be used in the process that created it; this is a forked child");
    }
    return impl_->Fetch(handle, part, deadline, made);
  });
  if (report != nullptr) *report = std::move(made);
  return rows;
}

absl::StatusOr<Rows> Fetcher::Fetch(const Handle& handle, Deadline deadline, FetchReport* report) {
  return Fetch(handle, {0, handle.rows, 0, handle.shape.rows.num_layers}, deadline, report);
}

FetchCounts Fetcher::GetCounts() const {
  return impl_->GetCounts();
}

}  // namespace waymark::wire
