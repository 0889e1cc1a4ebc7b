#include "blockstore/wire/publisher.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <optional>
#include <span>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/exception_status.h"
#include "blockstore/fork_guard.h"
#include "blockstore/mutex.h"
#include "blockstore/thread.h"
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/guarded_source.h"
#include "blockstore/wire/lru_map.h"
#include "blockstore/wire/node.h"
#include "blockstore/wire/node_list.h"
#include "blockstore/wire/published_sequence.h"
#include "blockstore/wire/tail.h"

namespace waymark::wire {
namespace {

std::uint64_t Count(std::size_t n) {
  return static_cast<std::uint64_t>(n);
}

struct Job {
  std::string sequence;
  PublishInput input;
  std::promise<absl::StatusOr<Handle>> result;
};

struct StringHash {
  std::size_t operator()(const std::string& s) const { return std::hash<std::string>()(s); }
};

}  // namespace

class Publisher::Impl {
 public:
  Impl(PageSource* source, const PublisherOptions& options, ChunkCodec codec, ForkGuard guard)
      : source_(source),
        options_(options),
        codec_(std::move(codec)),
        page_tokens_(options.shape.rows.page_tokens),
        row_bytes_(options.shape.rows.row_bytes()),
        guard_(std::move(guard)) {}
  absl::Status Start() {
    absl::StatusOr<std::thread> thread =
        StartThread("wm-publish", options_.cpus, [this] { Loop(); });
    if (thread.ok()) thread_ = *std::move(thread);
    return thread.status();
  }
  ~Impl() {
    if (!thread_.joinable()) return;
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
    for (Job& job : waiting_)
      job.result.set_value(absl::CancelledError("Publish: the publisher was destroyed"));
  }

  Result Enqueue(std::string sequence, PublishInput input) {
    Job job{std::move(sequence), std::move(input), {}};
    Result result = job.result.get_future();
    const absl::Status queued = Guarded("Publish", [&] { return Queue(job); });
    if (queued.ok()) {
      wake_.notify_one();
    } else {
      job.result.set_value(queued);
    }
    return result;
  }

  PublisherStats GetStats() const {
    if (forked()) return {};
    const MutexLock lock(mutex_);
    return stats_;
  }
  [[nodiscard]] bool forked() const { return guard_.forked(); }

 private:
  // A page whose node is being made.
  struct Page {
    std::int64_t number = 0;
    Digest128 name;  // NameOf its contents, if named
    bool named = false;
    bool digested = false;  // `digest` is set; else the page must be encoded
    Digest128 digest;
    std::vector<std::uint8_t> chunk;  // empty: not encoded in this call
  };

  // Moves the job to the end of the queue. On an error it is the caller's.
  absl::Status Queue(Job& job) {
    if (forked()) {
      return absl::FailedPreconditionError(
          "a publisher must be used in the process that created it; this is a forked child");
    }
    const MutexLock lock(mutex_);
    if (waiting_.size() < options_.max_waiting) {
      waiting_.push_back(std::move(job));
      return absl::OkStatus();
    }
    ++stats_.dropped;
    return absl::ResourceExhaustedError(
        absl::StrCat("Publish: at most max_waiting = ", options_.max_waiting, " calls may wait"));
  }

  // Waits for the next job; none when the publisher is destroyed.
  std::optional<Job> NextJob() {
    const MutexLock lock(mutex_);
    while (!stop_ && waiting_.empty())
      wake_.wait(mutex_);
    if (stop_) return std::nullopt;
    std::optional<Job> job(std::move(waiting_.front()));
    waiting_.pop_front();
    return job;
  }

  void Loop() noexcept {
    while (std::optional<Job> next = NextJob()) {
      Job& job = *next;
      counted_ = {};
      const std::uint64_t source_exceptions = source_.exceptions();
      absl::StatusOr<Handle> handle = PublishOrForget(job);
      counted_.exceptions += source_.exceptions() - source_exceptions;
      job.input = {};  // releases the pages before the result is ready
      ++(handle.ok() ? counted_.published : counted_.failed);
      {
        const MutexLock lock(mutex_);
        stats_.published += counted_.published;
        stats_.failed += counted_.failed;
        stats_.pages += counted_.pages;
        stats_.pages_encoded += counted_.pages_encoded;
        stats_.objects_held += counted_.objects_held;
        stats_.objects_put += counted_.objects_put;
        stats_.bytes_put += counted_.bytes_put;
        stats_.puts_failed += counted_.puts_failed;
        stats_.exceptions += counted_.exceptions;
      }
      job.result.set_value(std::move(handle));
    }
  }

  absl::StatusOr<Handle> PublishOrForget(const Job& job) noexcept {
    try {
      return Publish(job);
    } catch (...) {
      ++counted_.exceptions;
      const absl::Status status = ExceptionStatus("publishing rows");
      Forget(job.sequence);
      LogOnce(logged_exception_, LogLevel::kError, "a publication has failed", status);
      return status;
    }
  }
  // Logs the first failure of a kind.
  void LogOnce(bool& logged, LogLevel level, const char* what,
               const absl::Status& status) noexcept {
    if (!options_.log || std::exchange(logged, true)) return;
    try {
      options_.log(level, absl::StrCat(what, ": ", std::string(status.message())));
    } catch (...) {  // no memory for the line
    }
  }
  void SourceFailed(const absl::Status& status) {
    ++counted_.puts_failed;
    LogOnce(logged_source_, LogLevel::kWarning, "readers may miss rows that are published", status);
  }

  absl::StatusOr<Handle> Publish(const Job& job) {
    const PublishInput& input = job.input;
    if (input.shape() != options_.shape.rows) {
      Forget(job.sequence);
      return absl::InvalidArgumentError(
          "Publish: the rows must have the publisher's shape; theirs is another");
    }
    if (!input.pinned() && options_.shape.code.ordered && !input.rows.ordered) {
      Forget(job.sequence);
      return absl::InvalidArgumentError(
          "Publish: the rows must be in the router's order, because the publisher's code is "
          "ordered; they are sorted");
    }
    absl::Status status = input.pinned() ? input.snapshot.Wait(options_.landing_timeout)
                                         : CheckRows("rows", input.rows);
    if (!status.ok()) {
      Forget(job.sequence);
      return status;
    }
    PublishedSequence* known = job.sequence.empty() ? nullptr : sequences_.Use(job.sequence);
    if (input.first() != 0 && (known == nullptr || known->handle.rows != input.first())) {
      const std::string has = known == nullptr
                                  ? "is not known"
                                  : absl::StrCat("has rows [0, ", known->handle.rows, ")");
      Forget(job.sequence);
      return absl::FailedPreconditionError(
          absl::StrCat("Publish: rows must begin at 0 or where their sequence ends; they begin at ",
                       input.first(), ", and '", job.sequence, "' ", has));
    }
    if (input.first() != 0 && known->disputed) {
      return absl::FailedPreconditionError(absl::StrCat(
          "Publish: a name belongs to one request; two have published under '", job.sequence,
          "', and whose rows continue it is not known: publish all rows, from row 0, or take "
          "another name"));
    }
    PublishedSequence next;
    if (known != nullptr) {
      next.disputed = known->disputed;
      if (input.first() == 0 && !next.disputed) {
        const absl::StatusOr<bool> other =
            IsOtherRequest(input, *known, codec_.shape_digest(), page_tokens_);
        if (!other.ok()) {
          Forget(job.sequence);
          return other.status();
        }
        next.disputed = *other;
      }
    }
    deadline_ = After(options_.source_timeout);
    status = Build(known, input, next);
    if (!status.ok()) {
      Forget(job.sequence);
      return status;
    }
    Handle handle = next.handle;
    if (known != nullptr) {
      *known = std::move(next);
    } else if (!job.sequence.empty() && options_.max_sequences > 0) {
      if (sequences_.size() == options_.max_sequences) sequences_.PopOldest();
      sequences_.Insert(job.sequence, std::move(next));
    }
    return handle;
  }

  void Forget(const std::string& name) {
    // An empty sequence has 0 rows: only rows that begin at row 0 can extend it.
    if (PublishedSequence* known = sequences_.Use(name)) *known = PublishedSequence{};
  }

  // Sets `next` to the sequence `before` (null: none) extended by `input`, and puts its objects.
  absl::Status Build(const PublishedSequence* before, const PublishInput& input,
                     PublishedSequence& next) {
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
    counted_.pages += Count(static_cast<std::size_t>(pages - known_pages));
    if (pages > known_pages) PutNodeList(next);
    if (absl::Status status = BuildTail(before, input, next); !status.ok()) return status;
    if (codec_.key().empty()) return absl::OkStatus();
    const absl::StatusOr<Digest128> mac = HandleMac(handle, codec_.key());
    if (!mac.ok()) return mac.status();
    handle.mac = *mac;
    return absl::OkStatus();
  }

  // Reads rows [begin, end) of the sequence. Those before the first row of `input` come from the
  // tail of `before`. Records their provenance in `handle`.
  absl::Status ReadRange(const PublishedSequence* before, const PublishInput& input,
                         std::int64_t begin, std::int64_t end, std::span<RowInfo> infos,
                         std::span<std::uint8_t> ids, Handle& handle) const {
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

  static void NoteProvenance(std::int64_t begin, std::span<const RowInfo> infos, Handle& handle) {
    for (std::size_t i = 0; i < infos.size(); ++i)
      handle.provenance[static_cast<std::size_t>(begin) + i] = infos[i].provenance;
  }

  // The name of a page's ids: which page of which store, and the steps of its valid rows. This is
  // unique, because step numbers increase as long as a store lives and a step writes a row once.
  Digest128 NameOf(const PageRef& page_ref, std::span<const RowInfo> infos) {
    name_.assign({page_ref.store, page_ref.page});
    for (const RowInfo& info : infos)
      name_.push_back(info.step);  // 0: missing
    return ContentDigest(
        {reinterpret_cast<const std::uint8_t*>(name_.data()), name_.size() * sizeof(name_[0])});
  }

  // Encodes the chunk of a page from its rows as they are now.
  absl::Status Encode(const PublishedSequence* before, const PublishInput& input, Page& page,
                      std::span<RowInfo> infos, Handle& handle) {
    const std::int64_t begin = page.number * page_tokens_;
    ids_.resize(static_cast<std::size_t>(page_tokens_) * row_bytes_);
    absl::Status status =
        ReadRange(before, input, begin, begin + page_tokens_, infos, ids_, handle);
    if (!status.ok()) return status;
    page.chunk.resize(codec_.ChunkBytes(page_tokens_));
    status = codec_.Encode(infos, ids_, page.chunk);
    if (!status.ok()) return status;
    page.digest = codec_.Digest(page_tokens_, page.chunk);
    page.digested = true;
    ++counted_.pages_encoded;
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

  // Whether the source holds each object. If its Holds fails, it is taken to hold none.
  std::vector<std::uint8_t> Held(std::span<const Digest128> digests) {
    std::vector<std::uint8_t> held(digests.size());
    if (digests.empty()) return held;
    if (absl::Status status = source_.Holds(digests, deadline_, held); !status.ok()) {
      SourceFailed(status);
      std::fill(held.begin(), held.end(), std::uint8_t{0});
    }
    counted_.objects_held +=
        Count(static_cast<std::size_t>(std::count(held.begin(), held.end(), std::uint8_t{1})));
    return held;
  }

  void Put(std::span<const NamedObject> objects) {
    if (objects.empty()) return;
    if (absl::Status status = source_.Put(objects, deadline_); !status.ok()) {
      SourceFailed(status);
      return;
    }
    counted_.objects_put += objects.size();
    for (const NamedObject& named : objects)
      counted_.bytes_put += named.object.bytes.size();
  }

  void PutNodeList(const PublishedSequence& sequence) {
    const Digest128 name = NodeListName(sequence.handle.head);
    if (sequence.nodes.size() < kListedNodes || Held({&name, 1})[0] != 0) return;
    const NamedObject list{name, Object::Of(EncodeNodeList(sequence.nodes))};
    Put({&list, 1});
  }

  // Adds pages [begin, end), all of one node, to the last node of the sequence, or begins a new
  // one.
  absl::Status BuildNode(const PublishedSequence* before, const PublishInput& input,
                         std::int64_t begin, std::int64_t end, PublishedSequence& next) {
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

    // The digest of each page: the cached one, or that of the chunk encoded now.
    std::vector<Page> pages(static_cast<std::size_t>(end - begin));
    for (std::size_t i = 0; i < pages.size(); ++i) {
      Page& page = pages[i];
      page.number = begin + static_cast<std::int64_t>(i);
      const std::int64_t row = page.number * page_tokens_;
      const auto page_ref =
          row >= input.first() ? input.PageOf(row) : std::optional<PageRef>(std::nullopt);
      if (page_ref.has_value()) {
        const std::span<RowInfo> known = infos_of(page.number);
        absl::Status status = input.ReadInfos(row, row + page_tokens_, known);
        if (!status.ok()) return status;
        page.named = true;
        page.name = NameOf(*page_ref, known);
        if (const Digest128* digest = pages_.Use(page.name)) {
          page.digest = *digest;
          page.digested = true;
          NoteProvenance(row, known, next.handle);
        }
      }
      if (page.digested) continue;
      absl::Status status = Encode(before, input, page, infos_of(page.number), next.handle);
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
        absl::Status status =
            Encode(before, input, pages[i], infos_of(pages[i].number), next.handle);
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

  // The rows after the last complete page. Segments that were there before keep their rows, so
  // that they are the same objects if nothing of them has changed.
  absl::Status BuildTail(const PublishedSequence* before, const PublishInput& input,
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

  GuardedSource source_;
  const PublisherOptions options_;
  const ChunkCodec codec_;
  const std::int64_t page_tokens_;
  const std::size_t row_bytes_;
  const ForkGuard guard_;

  // Used by the publisher's thread alone.
  LruMap<Digest128, Digest128, DigestHash> pages_;  // NameOf a page -> digest of its chunk
  LruMap<std::string, PublishedSequence, StringHash> sequences_;
  PublisherStats counted_;  // of the publication in progress
  Deadline deadline_;
  std::vector<std::uint64_t> name_;
  std::vector<std::uint8_t> ids_;
  bool logged_source_ = false;
  bool logged_exception_ = false;

  mutable Mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<Job> waiting_ ABSL_GUARDED_BY(mutex_);
  PublisherStats stats_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

Publisher::Publisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Publisher::~Publisher() {
  // The thread and the holders of the locks are in the parent.
  if (impl_->forked()) (void)impl_.release();
}

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Create(PageSource* source,
                                                             const PublisherOptions& options) {
  return Guarded("Publisher::Create", [&] { return Make(source, options); });
}

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Make(PageSource* source,
                                                           const PublisherOptions& options) {
  if (source == nullptr) return absl::InvalidArgumentError("source must not be null");
  if (options.max_waiting == 0) {
    return absl::InvalidArgumentError("options.max_waiting must be at least 1; it is 0");
  }
  if (options.store.size() > 0xffff) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.store must be below 65536 bytes; it has ", options.store.size()));
  }
  if (absl::Status status = CheckCpus("options.cpus", options.cpus); !status.ok()) return status;
  absl::StatusOr<ChunkCodec> codec = ChunkCodec::Create(options.shape, options.key);
  if (!codec.ok()) return codec.status();
  absl::StatusOr<ForkGuard> guard = ForkGuard::Create(0);
  if (!guard.ok()) return guard.status();
  std::unique_ptr<Publisher> publisher(
      new Publisher(std::make_unique<Impl>(source, options, *std::move(codec), *std::move(guard))));
  if (absl::Status status = publisher->impl_->Start(); !status.ok()) return status;
  return publisher;
}

Publisher::Result Publisher::Publish(std::string sequence, Snapshot snapshot) {
  return impl_->Enqueue(std::move(sequence), {std::move(snapshot), {}});
}
Publisher::Result Publisher::Publish(std::string sequence, Rows rows) {
  return impl_->Enqueue(std::move(sequence), {{}, std::move(rows)});
}

PublisherStats Publisher::GetStats() const {
  return impl_->GetStats();
}
bool Publisher::forked() const {
  return impl_->forked();
}

}  // namespace waymark::wire
