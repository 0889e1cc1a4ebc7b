#include "blockstore/wire/publisher.h"

#include <condition_variable>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/exception_status.h"
#include "blockstore/fork_guard.h"
#include "blockstore/invalid.h"
#include "blockstore/mutex.h"
#include "blockstore/thread.h"
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/object_cache.h"
#include "blockstore/wire/sequence_builder.h"

namespace waymark::wire {
namespace {

struct Job {
  std::string sequence;
  Rows rows;
  bool forget = false;  // has no rows and no result
  std::promise<absl::StatusOr<Handle>> result;
};

struct StringHash {
  std::size_t operator()(const std::string& s) const { return std::hash<std::string>()(s); }
};

}  // namespace

class Publisher::Impl {
 public:
  Impl(PageSource* source, const PublisherOptions& options, ChunkCodec codec, ForkGuard guard)
      : options_(options), builder_(source, options_, std::move(codec)), guard_(std::move(guard)) {}
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

  Result Enqueue(std::string sequence, Rows rows) {
    Job job{std::move(sequence), std::move(rows), false, {}};
    Result result = job.result.get_future();
    const absl::Status queued = Guarded("Publish", [&] { return Queue(job); });
    if (queued.ok()) {
      wake_.notify_one();
    } else {
      job.result.set_value(queued);
    }
    return result;
  }

  absl::Status EnqueueForget(std::string sequence) {
    absl::Status queued = Guarded("Forget", [&] {
      Job job{std::move(sequence), {}, true, {}};
      return Queue(job);
    });
    if (queued.ok()) wake_.notify_one();
    return queued;
  }

  PublisherStats GetStats() const {
    if (forked()) return {};
    const MutexLock lock(mutex_);
    return stats_;
  }
  [[nodiscard]] bool forked() const { return guard_.forked(); }

 private:
  // Moves the job to the end of the queue. On an error it is the caller's.
  absl::Status Queue(Job& job) {
    if (forked()) {
      return absl::FailedPreconditionError(
          "a publisher must be used in the process that created it; this is a forked child");
    }
    const MutexLock lock(mutex_);
    if (job.forget || waiting_.size() - forgets_ < options_.max_waiting) {
      waiting_.push_back(std::move(job));
      if (waiting_.back().forget) ++forgets_;
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
    if (job->forget) --forgets_;
    return job;
  }

  void Loop() noexcept {
    while (std::optional<Job> next = NextJob()) {
      Job& job = *next;
      if (job.forget) {
        sequences_.Erase(job.sequence);
        continue;
      }
      PublisherStats& counted = builder_.counted;
      counted = {};
      const std::uint64_t source_exceptions = builder_.source_exceptions();
      absl::StatusOr<Handle> handle = PublishOrForget(job);
      counted.exceptions += builder_.source_exceptions() - source_exceptions;
      ++(handle.ok() ? counted.published : counted.failed);
      {
        const MutexLock lock(mutex_);
        stats_.published += counted.published;
        stats_.failed += counted.failed;
        stats_.pages += counted.pages;
        stats_.objects_held += counted.objects_held;
        stats_.objects_put += counted.objects_put;
        stats_.bytes_put += counted.bytes_put;
        stats_.puts_failed += counted.puts_failed;
        stats_.exceptions += counted.exceptions;
      }
      job.result.set_value(std::move(handle));
    }
  }

  absl::StatusOr<Handle> PublishOrForget(const Job& job) noexcept {
    try {
      return Publish(job);
    } catch (...) {
      ++builder_.counted.exceptions;
      const absl::Status status = ExceptionStatus("publishing rows");
      Forget(job.sequence);
      LogOnce(options_.log, logged_exception_, LogLevel::kError, "a publication has failed",
              status);
      return status;
    }
  }
  absl::StatusOr<Handle> Publish(const Job& job) {
    const Rows& input = job.rows;
    absl::Status status = CheckRows("rows", input);
    if (input.shape != options_.shape.rows) {
      status = absl::InvalidArgumentError(
          "Publish: the rows must have the publisher's shape; theirs is another");
    } else if (options_.shape.code.ordered && !input.ordered) {
      status = absl::InvalidArgumentError(
          "Publish: the rows must be in the router's order, because the publisher's code is "
          "ordered; they are sorted");
    }
    if (!status.ok()) {
      Forget(job.sequence);
      return status;
    }
    PublishedSequence* known = job.sequence.empty() ? nullptr : sequences_.Use(job.sequence);
    if (input.first != 0 && (known == nullptr || known->handle.rows != input.first)) {
      const std::string has = known == nullptr
                                  ? "is not known"
                                  : absl::StrCat("has rows [0, ", known->handle.rows, ")");
      Forget(job.sequence);
      return absl::FailedPreconditionError(
          absl::StrCat("Publish: rows must begin at 0 or where their sequence ends; they begin at ",
                       input.first, ", and '", job.sequence, "' ", has));
    }
    if (input.first != 0 && known->disputed) {
      return absl::FailedPreconditionError(absl::StrCat(
          "Publish: a name belongs to one request; two have published under '", job.sequence,
          "', and whose rows continue it is not known: publish all rows, from row 0, take "
          "another name, or forget a name when its request ends"));
    }
    PublishedSequence next;
    if (known != nullptr) {
      next.disputed = known->disputed;
      if (input.first == 0) next.disputed |= IsOtherRequest(input, *known, builder_.codec());
    }
    status = builder_.Build(known, input, next);
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

  const PublisherOptions options_;
  SequenceBuilder builder_;  // used by the publisher's thread alone
  const ForkGuard guard_;

  // Used by the publisher's thread alone.
  LruMap<std::string, PublishedSequence, StringHash> sequences_;
  bool logged_exception_ = false;

  mutable Mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<Job> waiting_ ABSL_GUARDED_BY(mutex_);
  std::size_t forgets_ ABSL_GUARDED_BY(mutex_) = 0;  // jobs of waiting_ that forget
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
    return Invalid("options.store must be below 65536 bytes; it has ", options.store.size());
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

Publisher::Result Publisher::Publish(std::string sequence, Rows rows) {
  return impl_->Enqueue(std::move(sequence), std::move(rows));
}

absl::Status Publisher::Forget(std::string sequence) {
  return impl_->EnqueueForget(std::move(sequence));
}

PublisherStats Publisher::GetStats() const {
  return impl_->GetStats();
}
bool Publisher::forked() const {
  return impl_->forked();
}

}  // namespace waymark::wire
