#include "blockstore/wire/fetcher.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <iterator>
#include <span>
#include <unordered_map>
#include <unordered_set>
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
#include "blockstore/wire/object_cache.h"
#include "blockstore/wire/objects.h"
#include "blockstore/wire/tier_entry.h"

namespace waymark::wire {
namespace {

RowInfo Lost(Cause cause) {
  return {0, 0, Reason::kCapacity, Provenance::kHere, cause};
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

struct Fetcher::State {
  State(PageSource* of, const FetcherOptions& given)
      : source(of), options(given), cache(given.cache_bytes) {
    // Without the guard, which needs a page of memory, only forked children are not recognised.
    if (absl::StatusOr<ForkGuard> made = ForkGuard::Create(0); made.ok()) guard = *std::move(made);
  }

  // The codec of a shape. The last one is cached.
  absl::StatusOr<std::shared_ptr<const ChunkCodec>> CodecOf(const WireShape& shape) {
    {
      const MutexLock lock(mutex);
      if (codec != nullptr && codec->shape() == shape) return codec;
    }
    absl::StatusOr<ChunkCodec> made = ChunkCodec::Create(shape, options.key);
    if (!made.ok()) return made.status();
    auto shared = std::make_shared<const ChunkCodec>(*std::move(made));
    const MutexLock lock(mutex);
    codec = shared;
    return shared;
  }
  // The tier, of handles of all shapes: made for the first that needs it, which has this one.
  absl::StatusOr<Tier*> TierFor(const RoutingShape& shape) {
    const MutexLock lock(mutex);
    if (tier != nullptr) return tier.get();
    TierOptions reads = options.tier;
    reads.publish = false;
    if (reads.log.function == nullptr) reads.log = options.log;
    absl::StatusOr<std::unique_ptr<Tier>> made = Tier::Create(shape, reads);
    if (!made.ok()) return made.status();
    tier = *std::move(made);
    return tier.get();
  }
  Object Use(const ObjectKey& key) {
    const MutexLock lock(mutex);
    return cache.Use(key);
  }
  void Keep(const ObjectKey& key, const Object& object) {
    const MutexLock lock(mutex);
    cache.Keep(key, object);
  }

  PageSource* const source;
  const FetcherOptions options;
  std::atomic<bool> checked{false}, logged{false};  // the source; that it failed
  ForkGuard guard;  // the locks of a forked child may be held for ever
  Mutex mutex;
  ObjectCache cache ABSL_GUARDED_BY(mutex);
  std::shared_ptr<const ChunkCodec> codec ABSL_GUARDED_BY(mutex);
  std::unique_ptr<Tier> tier ABSL_GUARDED_BY(mutex);  // once made, it stays
  FetchCounts counts ABSL_GUARDED_BY(mutex);
};

// One call of Fetch: its arguments and its working memory.
struct Fetcher::Call {
  State& fetcher;
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

  // Calls the source, unless it cannot be reached. Its calls must not throw, but those of others
  // do. What one wrote to its objects by then stays.
  template <class Get>
  absl::Status Ask(const char* doing, const Get& get) {
    if (!report.source.ok() && !absl::IsUnimplemented(report.source)) return absl::OkStatus();
    return Guarded(doing, get);
  }
  void NoteStatus(const absl::Status& status) {
    if (!status.ok() && report.source.ok()) report.source = status;
  }
  void Get(std::span<const Digest128> digests, std::span<Object> objects) {
    NoteStatus(Ask("the page source's Get",
                   [&] { return fetcher.source->Get(digests, deadline, objects); }));
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
    Get(asked, got);
    for (std::size_t i = 0; i < wanted; ++i) {
      if (!Arrived(got[i])) continue;
      if (fetcher.options.key.Digest(got[i].bytes) != asked[i]) {
        ++report.counts.damaged;
        damaged.insert(asked[i]);
        continue;
      }
      fetcher.Keep({asked[i]}, got[i]);
      fetched[asked[i]] = got[i];
    }
    return extra != nullptr ? got.back() : Object{};
  }
  // Why an object is missing that did not arrive; that arrived damaged, if it is named.
  Cause WhyAbsent(const Digest128* digest = nullptr) const {
    if (digest != nullptr && damaged.contains(*digest)) return Cause::kDamaged;
    if (report.source.ok() || absl::IsUnimplemented(report.source)) return Cause::kAbsent;
    return absl::IsDeadlineExceeded(report.source) ? Cause::kTimeout : Cause::kUnreachable;
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
  // damaged, and sets lost_node.
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
      if (!object.present()) {
        lost_node = WhyAbsent(&digest);
        break;
      }
      absl::StatusOr<Node> node =
          ParseNode(object.bytes, codec.shape_digest(), static_cast<std::int32_t>(page_tokens));
      const std::int64_t chunks = std::min(kNodeChunks, pages - n * kNodeChunks);
      if (!node.ok() || node->first_page != n * kNodeChunks ||
          static_cast<std::int64_t>(node->chunks.size()) != chunks) {
        ++report.counts.damaged;  // it is not a node of this trajectory
        lost_node = Cause::kDamaged;
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
  void MarkLost(const Page& page, Cause cause) {
    const std::int64_t first = page.number * page_tokens;
    const Wanted wanted = WantedOf(first, first + page_tokens);
    for (RowInfo& info : wanted.infos) {
      if (info.valid()) info = Lost(cause);
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
    return !fetcher.options.whole_chunks && fetcher.options.key.empty() &&
           layers_end() - layers_begin() < codec.shape().rows.num_layers;
  }

  void ReadPages(std::span<const Page> wanted) {
    std::vector<const Page*> asked;
    const std::size_t page_bytes = ranges() ? crc_bytes() + range_bytes() : chunk_bytes;
    const std::size_t batch = std::max<std::size_t>(1, fetcher.options.batch_bytes / page_bytes);
    const auto flush = [&] {
      if (!asked.empty()) FetchPages(asked);
      asked.clear();
    };
    for (const Page& page : wanted) {
      if (!SetInfos(page)) continue;
      if (ReadCached(page)) {
        ++report.counts.hits;
        continue;
      }
      asked.push_back(&page);
      if (asked.size() == batch) flush();
    }
    flush();
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
  // Writes the rows of a page from an object: its chunk, or (`part_of_it`) only those two ranges.
  // Returns false if it is damaged.
  bool Read(const Page& page, std::span<const std::uint8_t> bytes, bool part_of_it) {
    if (bytes.size() != (part_of_it ? crc_bytes() + range_bytes() : chunk_bytes)) return false;
    return Decode(page, part_of_it ? FillChunk(bytes) : bytes);
  }
  [[nodiscard]] ObjectKey RangesOf(const Page& page) const {
    return {page.chunk, layers_begin(), layers_end()};
  }
  bool ReadCached(const Page& page) {
    const Object whole = fetcher.Use({page.chunk});
    if (whole.present()) return Read(page, whole.bytes, false);
    // A node of another shape may have named the same chunk: Read compares the size.
    return ranges() && Read(page, fetcher.Use(RangesOf(page)).bytes, true);
  }

  // The two ranges of each chunk as one object. Returns false if the source has no ranges.
  bool GetRanges(std::span<const Page* const> asked, std::span<Object> objects) {
    std::vector<ObjectRange> parts;
    for (const Page* page : asked) {
      parts.push_back({page->chunk, 0, crc_bytes()});
      parts.push_back({page->chunk, range_begin(), range_begin() + range_bytes()});
    }
    std::vector<Object> got(parts.size());
    const absl::Status status = Ask("the page source's GetRanges", [&] {
      return fetcher.source->GetRanges(parts, deadline, got);
    });
    if (absl::IsUnimplemented(status)) return false;
    NoteStatus(status);
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const Object& crcs = got[2 * i];
      const Object& layers = got[2 * i + 1];
      if (!crcs.present() || !layers.present()) continue;
      std::vector<std::uint8_t> both(crcs.bytes.begin(), crcs.bytes.end());
      both.insert(both.end(), layers.bytes.begin(), layers.bytes.end());
      objects[i] = Object::Of(std::move(both));
    }
    return true;
  }
  void FetchPages(std::span<const Page* const> asked) {
    std::vector<Object> got(asked.size());
    const bool in_parts = ranges() && GetRanges(asked, got);
    if (!in_parts) {
      std::vector<Digest128> digests;
      for (const Page* page : asked)
        digests.push_back(page->chunk);
      Get(digests, got);
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
      const Page& page = *asked[i];
      const std::span<const std::uint8_t> bytes = got[i].bytes;
      const bool arrived = Arrived(got[i]);
      // The digest of a chunk names its crcs, too, which check the layers.
      const bool right =
          in_parts ? bytes.size() >= crc_bytes() && codec.PlaceDigest(bytes) == page.chunk.w[0]
                   : bytes.size() == chunk_bytes && codec.Digest(page_tokens, bytes) == page.chunk;
      if (arrived && right && Read(page, bytes, in_parts)) {
        fetcher.Keep(in_parts ? RangesOf(page) : ObjectKey{page.chunk}, got[i]);
        continue;
      }
      report.counts.damaged += arrived ? 1 : 0;
      MarkLost(page, arrived ? Cause::kDamaged : WhyAbsent());
    }
  }

  void ReadTail() {
    const std::int64_t tail = pages * page_tokens;
    std::int64_t at = tail;
    if (part.row_end <= at || handle.tail.empty()) return;
    Cause lost = Cause::kNone;
    const auto lose = [&lost](Cause cause) {
      if (lost == Cause::kNone) lost = cause;
    };
    for (const Digest128& digest : handle.tail) {
      const Object object = fetched[digest];
      if (!object.present()) {
        lose(WhyAbsent(&digest));
        continue;
      }
      const absl::StatusOr<Rows> segment =
          ParseTailSegment(codec, object.bytes, part.layer_begin, part.layer_end);
      if (!segment.ok() || segment->first < at || segment->last() > handle.rows) {
        ++report.counts.damaged;
        lose(Cause::kDamaged);
        continue;
      }
      at = segment->last();
      if (segment->first >= part.row_end || segment->last() <= part.row_begin) continue;
      rows.names.insert(rows.names.end(), segment->names.begin(), segment->names.end());
      const Wanted wanted = WantedOf(segment->first, segment->last());
      for (std::int64_t row = wanted.begin; row < wanted.end; ++row) {
        const auto to = static_cast<std::size_t>(row - wanted.begin);
        const std::int64_t from = row - segment->first;
        wanted.infos[to] = segment->infos[static_cast<std::size_t>(from)];
        std::memcpy(wanted.ids.data() + to * row_bytes, segment->row(from).data(), row_bytes);
      }
    }
    const Wanted wanted = WantedOf(tail, handle.rows);
    std::replace(wanted.infos.begin(), wanted.infos.end(), Lost(Cause::kNone), Lost(lost));
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
    rows.infos.assign(static_cast<std::size_t>(part.row_end - part.row_begin), Lost(Cause::kNone));
    if (page_begin < page_end) {
      const Wanted complete = WantedOf(page_begin * page_tokens, pages * page_tokens);
      std::fill(complete.infos.begin(), complete.infos.end(), Lost(lost_node));
    }
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
        rows.names.insert(rows.names.end(), node->names.begin(), node->names.end());
      }
      ReadPages(wanted);
    }
    ReadTail();
    for (std::size_t i = 0; i < rows.infos.size(); ++i)
      rows.infos[i].provenance = handle.provenance[static_cast<std::size_t>(part.row_begin) + i];
  }

  std::unordered_set<Digest128, DigestHash> damaged;
  Cause lost_node = Cause::kNone;
  std::vector<RowInfo> all_infos;
  std::vector<std::uint8_t> invalid;
  std::vector<std::uint8_t> spread;
};

Fetcher::Fetcher(PageSource* source, const FetcherOptions& options)
    : state_(std::make_unique<State>(source, options)) {}
Fetcher::~Fetcher() = default;

absl::StatusOr<Rows> Fetcher::Run(const Handle& handle, const RowsAndLayers& part,
                                  Deadline deadline, FetchReport& report) {
  const FetcherOptions& options = state_->options;
  if (state_->guard.forked()) {
    return absl::FailedPreconditionError(
        "a fetcher must be used in the process that created it; this is a forked child");
  }
  const absl::StatusOr<std::shared_ptr<const ChunkCodec>> codec = state_->CodecOf(handle.shape);
  if (!codec.ok()) return codec.status();
  if (absl::Status status = CheckHandle(handle, options.key); !status.ok()) return status;
  absl::Status status =
      CheckPart(part, 0, handle.rows, handle.shape.rows.num_layers, options.max_rows);
  if (!status.ok()) return status;
  Rows rows;
  rows.shape = LayersShape(handle.shape.rows, part.layer_begin, part.layer_end);
  rows.first = part.row_begin;
  rows.ordered = handle.shape.code.ordered;
  const auto size = static_cast<std::size_t>(part.row_end - part.row_begin);
  const std::size_t row_bytes = rows.shape.row_bytes() + sizeof(RowInfo);
  if (size > options.max_bytes / row_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("part: its rows must take at most max_bytes = ", options.max_bytes,
                     " bytes; it has ", size, " rows of ", row_bytes, " bytes"));
  }
  if (!state_->checked.exchange(true)) {
    CheckAndLog(*state_->source, std::min(deadline, After(std::chrono::seconds(2))), options.log);
  }
  Call{*state_, handle, part, **codec, deadline, report, rows}.Run();
  {
    const MutexLock lock(state_->mutex);
    FetchCounts& all = state_->counts;
    all.fetched += report.counts.fetched;
    all.fetched_bytes += report.counts.fetched_bytes;
    all.hits += report.counts.hits;
    all.absent += report.counts.absent;
    all.damaged += report.counts.damaged;
  }
  if (rows.names.empty() || options.tier.get == nullptr) return rows;
  const absl::StatusOr<Tier*> tier = state_->TierFor(handle.shape.rows);
  if (!tier.ok()) return tier.status();
  absl::StatusOr<TierCodec> of_shape =
      TierCodec::Create(handle.shape.rows, options.tier.space, options.tier.key);
  if (!of_shape.ok()) return of_shape.status();
  // Shared with the tier's thread, which may still be in set_value when this one goes on.
  const auto resolved = std::make_shared<std::promise<void>>();
  const auto shared = std::make_shared<Rows>(std::move(rows));
  auto tier_codec = std::make_shared<const TierCodec>(*std::move(of_shape));
  (*tier)->Resolve(shared, std::move(tier_codec), part.layer_begin, deadline,
                   [resolved](const std::shared_ptr<const Rows>&) { resolved->set_value(); });
  resolved->get_future().wait();
  return std::move(*shared);
}

absl::StatusOr<Rows> Fetcher::Fetch(const Handle& handle, const RowsAndLayers& part,
                                    Deadline deadline, FetchReport* report) {
  FetchReport made;
  absl::StatusOr<Rows> rows = Guarded("Fetch", [&] { return Run(handle, part, deadline, made); });
  if (!made.source.ok()) {
    LogOnce(state_->options.log, state_->logged, LogLevel::kWarning,
            "rows are missing, because the page source failed", made.source);
  }
  if (report != nullptr) *report = std::move(made);
  return rows;
}

absl::StatusOr<Rows> Fetcher::Fetch(const Handle& handle, Deadline deadline, FetchReport* report) {
  return Fetch(handle, {0, handle.rows, 0, handle.shape.rows.num_layers}, deadline, report);
}

FetchCounts Fetcher::GetCounts() const {
  if (state_->guard.forked()) return {};
  const MutexLock lock(state_->mutex);
  return state_->counts;
}

}  // namespace waymark::wire
