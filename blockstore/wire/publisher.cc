#include "blockstore/wire/publisher.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/exception_status.h"
#include "blockstore/fork_guard.h"
#include "blockstore/invalid.h"
#include "blockstore/mutex.h"
#include "blockstore/thread.h"
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/object_cache.h"
#include "blockstore/wire/object_putter.h"
#include "blockstore/wire/objects.h"

namespace waymark::wire {
namespace {

// What is remembered of a sequence, so that later rows can extend it.
struct PublishedSequence {
  Handle handle;
  std::vector<Digest128> nodes;       // their digests, first to last
  std::vector<std::uint8_t> node;     // the bytes of its last node
  Rows tail;                          // rows after the last complete page
  std::vector<std::size_t> cuts;      // number of rows of each tail segment
  std::shared_ptr<absl::Status> put;  // the first failed put of what `handle` names
  bool disputed = false;  // two requests have published under its name, not forgotten between
};

// Whether `input`, which begins at row 0, is of another request than the rows of `known`: it has
// fewer rows, or valid rows of other steps. Of these, those of the last node and of the tail are
// compared, because requests share their first ones.
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

// Encodes the rows of a publication as objects, and makes the handle. For the publisher's thread.
class SequenceBuilder {
 public:
  // `source` is not owned; null: nothing is put. `options` are referred to: both outlive it.
  // `codec` is of options.shape and options.key.
  SequenceBuilder(PageSource* source, const PublisherOptions& options, ChunkCodec codec)
      : options_(options), codec_(std::move(codec)), putter_(source, options) {}

  [[nodiscard]] const ChunkCodec& codec() const { return codec_; }
  // Sets `next` to the sequence `before` (null: none) extended by `input`, and makes its objects,
  // which are put with those of the next one, or when putter() is told to; after an error, too.
  // InvalidArgument for ids that the code cannot encode. A failure of the page source is no error:
  // it is counted, and next.put has it.
  [[nodiscard]] absl::Status Build(const PublishedSequence* before, const Rows& input,
                                   PublishedSequence& next,
                                   const std::shared_ptr<Publication>& publication) {
    const std::int64_t pages = input.last() / page_tokens_;
    Handle& handle = next.handle;
    std::int64_t known_pages = 0;
    Rows joined;  // those of the tail so far, and `input`
    const Rows* rows = &input;
    next.put = std::make_shared<absl::Status>();
    if (input.first != 0) {
      putter_.PutAll();  // a put of the earlier rows that fails is one of the sequence
      handle = before->handle;
      next.put = before->put;
      next.nodes = before->nodes;
      next.node = before->node;
      known_pages = handle.rows / page_tokens_;
      if (!before->tail.infos.empty()) {
        joined = before->tail;
        joined.infos.insert(joined.infos.end(), input.infos.begin(), input.infos.end());
        joined.ids.insert(joined.ids.end(), input.ids.begin(), input.ids.end());
        AddNames(input, input.first, input.last(), joined.names);
        rows = &joined;
      }
    }
    publication->put = next.put;
    putter_.Begin(publication);
    handle.shape = options_.shape;
    handle.store = options_.store;
    handle.rows = input.last();
    handle.tail.clear();
    handle.provenance.resize(static_cast<std::size_t>(input.first));
    for (const RowInfo& info : input.infos)
      handle.provenance.push_back(info.provenance);

    // Complete pages, a node at a time.
    for (std::int64_t page = known_pages; page < pages;) {
      const std::int64_t end = std::min(pages, (page / kNodeChunks + 1) * kNodeChunks);
      if (absl::Status status = BuildNode(*rows, page, end, next); !status.ok()) return status;
      page = end;
      if (!putter_.full()) continue;
      putter_.PutAdded();
      putter_.Begin(publication);
    }
    {
      const MutexLock lock(publication->mutex);
      publication->counted.pages += static_cast<std::uint64_t>(pages - known_pages);
    }
    if (pages > known_pages && next.nodes.size() >= kListedNodes)
      putter_.Add({NodeListName(handle.head), Object::Of(EncodeNodeList(next.nodes))});
    if (absl::Status status = BuildTail(before, *rows, next); !status.ok()) return status;
    if (codec_.key().empty()) return absl::OkStatus();
    const absl::StatusOr<Digest128> mac = HandleMac(handle, codec_.key());
    if (!mac.ok()) return mac.status();
    handle.mac = *mac;
    return absl::OkStatus();
  }

  [[nodiscard]] ObjectPutter& putter() { return putter_; }

  std::vector<std::vector<std::uint8_t>>* built_nodes = nullptr;  // if not null: get each node

 private:
  // Memory for a chunk, behind that of the one before if it can be: a bundle is then one piece.
  std::span<std::uint8_t> Room(std::size_t bytes) {
    if (room_.size() < bytes || putter_.empty()) {
      const std::size_t size = std::max(kBlockBytes / bytes, std::size_t{1}) * bytes;
      // Nothing has the chunks of a block any more when only blocks_ has it.
      const auto free = std::ranges::find_if(
          blocks_, [](const std::shared_ptr<std::uint8_t[]>& one) { return one.use_count() == 1; });
      if (free != blocks_.end()) {
        std::atomic_thread_fence(std::memory_order_acquire);  // behind its last reader
        block_ = *free;
      } else {
        block_ = std::make_shared_for_overwrite<std::uint8_t[]>(size);
        if (blocks_.size() < kMostBlocks) blocks_.push_back(block_);
      }
      room_ = {block_.get(), size};
    }
    const std::span<std::uint8_t> chunk = room_.first(bytes);
    room_ = room_.subspan(bytes);
    return chunk;
  }

  // Adds pages [begin, end), all of one node, to the last node of the sequence, or begins a new
  // one. `rows` has them.
  absl::Status BuildNode(const Rows& rows, std::int64_t begin, std::int64_t end,
                         PublishedSequence& next) {
    const std::int64_t first_page = begin / kNodeChunks * kNodeChunks;
    const auto page_rows = static_cast<std::size_t>(page_tokens_);
    std::vector<Digest128> chunks;
    std::vector<RowInfo> infos;
    std::vector<PageName> names;
    Digest128 chained;
    if (begin > first_page) {
      // The node so far. This publisher encoded it, so it parses.
      Node node = ParseNode(next.node, codec_.shape_digest(), page_tokens_).value();
      infos.resize(node.chunks.size() * page_rows);
      node.known.Infos(0, infos);
      chunks = std::move(node.chunks);
      names = std::move(node.names);
      chained = node.before;
    } else if (begin > 0) {
      chained = next.handle.head;
    }
    for (std::int64_t page = begin; page < end; ++page) {
      const auto at = static_cast<std::size_t>(page * page_tokens_ - rows.first);
      const auto of_page = std::span(rows.infos).subspan(at, page_rows);
      const std::span<std::uint8_t> chunk = Room(codec_.ChunkBytes(page_tokens_));
      absl::Status status = codec_.Encode(
          of_page, std::span(rows.ids).subspan(at * row_bytes_, page_rows * row_bytes_), chunk);
      if (!status.ok()) return status;
      chunks.push_back(codec_.Digest(page_tokens_, chunk));
      putter_.Add({chunks.back(), {block_, chunk}});
      infos.insert(infos.end(), of_page.begin(), of_page.end());
    }
    AddNames(rows, begin * page_tokens_, end * page_tokens_, names);
    absl::StatusOr<std::vector<std::uint8_t>> node =
        EncodeNode(codec_.shape_digest(), first_page, chained, chunks, page_tokens_, infos, names);
    if (!node.ok()) return node.status();
    next.node = *std::move(node);
    next.handle.head = codec_.key().Digest(next.node);
    next.nodes.resize(static_cast<std::size_t>(first_page / kNodeChunks));
    next.nodes.push_back(next.handle.head);
    if (built_nodes != nullptr) built_nodes->push_back(next.node);
    putter_.Add({next.handle.head, Object::Of(next.node)});
    return absl::OkStatus();
  }

  // The rows after the last complete page. Segments that were there before keep their rows, so
  // that they are the same objects if nothing of them has changed.
  absl::Status BuildTail(const PublishedSequence* before, const Rows& rows,
                         PublishedSequence& next) {
    const std::int64_t first = rows.last() / page_tokens_ * page_tokens_;
    const auto size = static_cast<std::size_t>(rows.last() - first);
    Rows& tail = next.tail;
    tail.shape = options_.shape.rows;
    tail.first = first;
    tail.infos.assign(rows.infos.end() - static_cast<std::ptrdiff_t>(size), rows.infos.end());
    tail.ids.assign(rows.ids.end() - static_cast<std::ptrdiff_t>(size * row_bytes_),
                    rows.ids.end());
    if (size == 0) return absl::OkStatus();
    AddNames(rows, first, rows.last(), tail.names);
    std::size_t cut_rows = 0;
    if (before != nullptr && before->tail.first == first) {
      for (const std::size_t cut : before->cuts) {
        if (cut_rows + cut > size) break;
        next.cuts.push_back(cut);
        cut_rows += cut;
      }
    }
    if (cut_rows < size) next.cuts.push_back(size - cut_rows);
    std::size_t at = 0;
    for (const std::size_t cut : next.cuts) {
      absl::StatusOr<std::vector<std::uint8_t>> segment = EncodeTailSegment(
          codec_, first + static_cast<std::int64_t>(at), std::span(tail.infos).subspan(at, cut),
          std::span(tail.ids).subspan(at * row_bytes_, cut * row_bytes_), tail.names);
      if (!segment.ok()) return segment.status();
      next.handle.tail.push_back(codec_.key().Digest(*segment));
      putter_.Add({next.handle.tail.back(), Object::Of(*std::move(segment))});
      at += cut;
    }
    return absl::OkStatus();
  }

  static constexpr std::size_t kBlockBytes = std::size_t{1} << 21;  // as bundles have
  // That are kept: memory that is freed and allocated anew costs page faults, as much as encoding.
  static constexpr std::size_t kMostBlocks = 24;

  const PublisherOptions& options_;
  const ChunkCodec codec_;
  const std::int32_t page_tokens_ = options_.shape.rows.page_tokens;
  const std::size_t row_bytes_ = options_.shape.rows.row_bytes();
  std::shared_ptr<std::uint8_t[]> block_;  // has the chunks that were encoded last
  std::span<std::uint8_t> room_;           // behind them
  std::vector<std::shared_ptr<std::uint8_t[]>> blocks_;
  ObjectPutter putter_;
};

}  // namespace

struct Publisher::Impl {
  Impl(PageSource* source, const PublisherOptions& options, ChunkCodec codec, ForkGuard guard)
      : options_(options), builder_(source, options_, std::move(codec)), guard_(std::move(guard)) {}
  absl::Status Start(const std::shared_ptr<Impl>& impl, PageSource& source) {
    absl::StatusOr<LibraryThread> thread = LibraryThread::Start(
        "wm-publish", options_.cpus, impl, [this, &source] { Loop(source); },
        [this] {
          const MutexLock lock(mutex_);
          stop_ = true;
          wake_.notify_all();
        });
    if (thread.ok()) thread_ = *std::move(thread);
    return thread.status();
  }
  ~Impl() {
    for (const std::shared_ptr<Publication>& one : waiting_)
      one->result.set_value(absl::CancelledError("Publish: the publisher was destroyed"));
  }

  // Puts the publication at the end of the queue. On an error its result is the caller's.
  absl::Status Queue(std::shared_ptr<Publication> publication) {
    if (guard_.forked()) {
      return absl::FailedPreconditionError(
          "a publisher must be used in the process that created it; this is a forked child");
    }
    const bool forget = publication->rows == nullptr;
    const MutexLock lock(mutex_);
    if (forget || waiting_.size() - forgets_ < options_.max_waiting) {
      waiting_.push_back(std::move(publication));
      if (forget) ++forgets_;
      wake_.notify_one();
      return absl::OkStatus();
    }
    ++stats_.dropped;
    return absl::ResourceExhaustedError(
        absl::StrCat("Publish: at most max_waiting = ", options_.max_waiting, " calls may wait"));
  }

  // Waits for the next publication; null when the publisher is destroyed. What was made is put with
  // the objects of the next one only if there is one.
  std::shared_ptr<Publication> Next() {
    if (idle()) builder_.putter().PutAdded();
    const MutexLock lock(mutex_);
    while (!stop_ && waiting_.empty())
      wake_.wait(mutex_);
    if (stop_) return nullptr;
    std::shared_ptr<Publication> next = std::move(waiting_.front());
    waiting_.pop_front();
    if (next->rows == nullptr) --forgets_;
    return next;
  }

  void Loop(PageSource& source) noexcept {
    bool checked = false;  // not before it is used: the end of the publisher would wait for it
    while (const std::shared_ptr<Publication> next = Next()) {
      if (next->rows == nullptr) {
        sequences_.Erase(next->sequence);
        continue;
      }
      if (!std::exchange(checked, true))
        CheckAndLog(source, After(options_.source_timeout), options_.log);
      next->finish = [this](Publication& ended) { Finish(ended); };
      next->made = PublishOrForget(next);
    }
    builder_.putter().PutAll();
  }

  [[nodiscard]] bool idle() {
    const MutexLock lock(mutex_);
    return waiting_.empty();
  }

  void Finish(Publication& ended) {
    {
      const MutexLock alone(ended.mutex);
      PublisherStats& counted = ended.counted;
      ++(ended.made.ok() ? counted.published : counted.failed);
      if (ended.made.ok()) {
        ended.made->put = *ended.put;
        counted.incomplete += ended.put->ok() ? 0 : 1;
      }
      const MutexLock lock(mutex_);
#define WAYMARK_ADD(name, meaning) stats_.name += counted.name;
      WAYMARK_PUBLISHER_COUNTERS(WAYMARK_ADD)
#undef WAYMARK_ADD
    }
    ended.result.set_value(std::move(ended.made));
  }

  absl::StatusOr<Published> PublishOrForget(
      const std::shared_ptr<Publication>& publication) noexcept {
    try {
      return Publish(publication);
    } catch (...) {
      {
        const MutexLock lock(publication->mutex);
        ++publication->counted.exceptions;
      }
      const absl::Status status = ExceptionStatus("publishing rows");
      Forget(publication->sequence);
      LogOnce(options_.log, logged_exception_, LogLevel::kError, "a publication has failed",
              status);
      return status;
    }
  }
  absl::StatusOr<Published> Publish(const std::shared_ptr<Publication>& publication) {
    const std::string& name = publication->sequence;
    const Rows& input = *publication->rows;
    absl::Status status = CheckRows("rows", input);
    RoutingShape shape = input.shape;  // JoinLayers and parts number layers that need no numbers
    shape.Normalize();
    if (shape != options_.shape.rows) {
      status = Invalid("Publish: the rows must have the publisher's shape; theirs is another");
    } else if (options_.shape.code.ordered && !input.ordered) {
      status = Invalid(
          "Publish: the rows must be in the router's order, because the publisher's code is "
          "ordered; they are sorted");
    }
    if (!status.ok()) {
      Forget(name);
      return status;
    }
    PublishedSequence* known = name.empty() ? nullptr : sequences_.Use(name);
    if (input.first != 0 && (known == nullptr || known->handle.rows != input.first)) {
      const std::string has = known == nullptr
                                  ? "is not known"
                                  : absl::StrCat("has rows [0, ", known->handle.rows, ")");
      Forget(name);
      return absl::FailedPreconditionError(
          absl::StrCat("Publish: rows must begin at 0 or where their sequence ends; they begin at ",
                       input.first, ", and '", name, "' ", has));
    }
    if (input.first != 0 && known->disputed) {
      return absl::FailedPreconditionError(absl::StrCat(
          "Publish: a name belongs to one request; two have published under '", name,
          "', and whose rows continue it is not known: publish all rows, from row 0, take "
          "another name, or forget a name when its request ends"));
    }
    PublishedSequence next;
    if (known != nullptr) {
      next.disputed = known->disputed;
      if (input.first == 0) next.disputed |= IsOtherRequest(input, *known, builder_.codec());
    }
    status = builder_.Build(known, input, next, publication);
    if (!status.ok()) {
      Forget(name);
      return status;
    }
    Published made{next.handle, {}};
    if (known != nullptr) {
      *known = std::move(next);
    } else if (!name.empty() && options_.max_sequences > 0) {
      if (sequences_.size() == options_.max_sequences) sequences_.PopOldest();
      sequences_.Insert(name, std::move(next));
    }
    return made;
  }

  void Forget(const std::string& name) {
    // An empty sequence has 0 rows: only rows that begin at row 0 can extend it.
    if (PublishedSequence* known = sequences_.Use(name)) *known = PublishedSequence{};
  }

  const PublisherOptions options_;
  SequenceBuilder builder_;  // used by the publisher's thread alone
  const ForkGuard guard_;

  // Used by the publisher's thread alone.
  LruMap<std::string, PublishedSequence, std::hash<std::string>> sequences_;
  std::atomic<bool> logged_exception_{false};

  Mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<std::shared_ptr<Publication>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::size_t forgets_ ABSL_GUARDED_BY(mutex_) = 0;  // of waiting_: those without rows
  PublisherStats stats_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  LibraryThread thread_;
};

Publisher::Publisher(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Publisher::~Publisher() {
  (void)impl_->thread_.End();
}

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Create(PageSource* source,
                                                             const PublisherOptions& options) {
  return Guarded("Publisher::Create", [&]() -> absl::StatusOr<std::unique_ptr<Publisher>> {
    if (source == nullptr) return Invalid("source must not be null");
    if (source->read_only()) return Invalid("source must take objects; it is read only");
    if (options.max_waiting == 0) return Invalid("options.max_waiting must be at least 1; it is 0");
    if (options.store.size() > 0xffff) {
      return Invalid("options.store must be below 65536 bytes; it has ", options.store.size());
    }
    if (absl::Status status = CheckCpus("options.cpus", options.cpus); !status.ok()) return status;
    PublisherOptions normal = options;
    normal.shape.rows.Normalize();
    absl::StatusOr<ChunkCodec> codec = ChunkCodec::Create(normal.shape, options.key);
    if (!codec.ok()) return codec.status();
    absl::StatusOr<ForkGuard> guard = ForkGuard::Create(0);
    if (!guard.ok()) return guard.status();
    std::unique_ptr<Publisher> publisher(new Publisher(
        std::make_shared<Impl>(source, normal, *std::move(codec), *std::move(guard))));
    absl::Status started = publisher->impl_->Start(publisher->impl_, *source);
    if (!started.ok()) return started;
    return publisher;
  });
}

Publisher::Result Publisher::Publish(std::string sequence, std::shared_ptr<const Rows> rows) {
  const auto publication = std::make_shared<Publication>();
  publication->sequence = std::move(sequence);
  publication->rows = std::move(rows);
  Result result = publication->result.get_future();
  const absl::Status queued = Guarded("Publish", [&] { return impl_->Queue(publication); });
  if (!queued.ok()) publication->result.set_value(queued);
  return result;
}

absl::Status Publisher::Forget(std::string sequence) {
  return Guarded("Forget", [&] {
    const auto publication = std::make_shared<Publication>();
    publication->sequence = std::move(sequence);
    return impl_->Queue(publication);
  });
}

PublisherStats Publisher::GetStats() const {
  if (forked()) return {};
  const MutexLock lock(impl_->mutex_);
  return impl_->stats_;
}
bool Publisher::forked() const {
  return impl_->guard_.forked();
}

absl::StatusOr<Trajectory> MakeTrajectory(const Rows& rows, const ChunkCode& code,
                                          std::string store) {
  if (absl::Status status = CheckRows("rows", rows); !status.ok()) return status;
  if (rows.first != 0) {
    return Invalid("rows: a trajectory must begin at row 0; it begins at ", rows.first);
  }
  absl::StatusOr<ChunkCodec> codec = ChunkCodec::Create({rows.shape, code.For(rows)});
  if (!codec.ok()) return codec.status();
  PublisherOptions options;
  options.shape = codec->shape();
  options.store = std::move(store);
  Trajectory made;
  SequenceBuilder builder(nullptr, options, *std::move(codec));
  builder.built_nodes = &made.nodes;
  PublishedSequence sequence;
  if (absl::Status status = builder.Build(nullptr, rows, sequence, std::make_shared<Publication>());
      !status.ok())
    return status;
  made.handle = std::move(sequence.handle);
  return made;
}

}  // namespace waymark::wire
