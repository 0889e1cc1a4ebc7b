#include "plugin/capture/row_reader.h"

#include <mutex>

#include "absl/strings/str_cat.h"
#include "blockstore/exception_status.h"
#include "blockstore/fork_guard.h"

namespace waymark {
namespace {

constexpr int kLooks = 200;  // before it sleeps

}  // namespace

bool TakenRows::done() const {
  if (forked()) return true;
  const MutexLock lock(state_->mutex);
  return state_->rows.has_value();
}

absl::Status TakenRows::Wait(std::chrono::nanoseconds timeout) const {
  if (forked()) return absl::OkStatus();
  const auto deadline = std::chrono::steady_clock::now() + Clamped(timeout);
  std::unique_lock lock(state_->mutex);
  while (!state_->rows.has_value()) {
    if (state_->changed.wait_until(lock, deadline) == std::cv_status::timeout &&
        !state_->rows.has_value()) {
      return absl::DeadlineExceededError(Late(timeout));
    }
  }
  return absl::OkStatus();
}

std::string TakenRows::Late(std::chrono::nanoseconds time) const {
  const WaitingStep* const waits = state_->waiting_step.get();
  return absl::StrCat("the rows have not been read after ",
                      std::chrono::duration<double>(time).count(), " s",
                      waits != nullptr ? waits->ToString() : "");
}

absl::StatusOr<std::shared_ptr<const Rows>> TakenRows::rows() const {
  if (forked()) {
    if (state_->mutex.try_lock()) {
      const auto read = state_->rows;
      state_->mutex.unlock();
      if (read.has_value()) return *read;
    }
    return absl::FailedPreconditionError(
        "the rows are read in the process that took them, of which this is a forked child");
  }
  const MutexLock lock(state_->mutex);
  return *state_->rows;
}

void TakenRows::WhenDone(std::function<void()> function) const {
  if (!forked()) {
    const MutexLock lock(state_->mutex);
    if (!state_->rows.has_value()) {
      state_->callbacks.push_back(std::move(function));
      return;
    }
  }
  function();
}

bool TakenRows::forked() const {
  return state_->guard != nullptr && state_->guard->forked();
}

void TakenRows::Set(absl::StatusOr<std::shared_ptr<const Rows>> rows) const {
  std::vector<std::function<void()>> callbacks;
  {
    const MutexLock lock(state_->mutex);
    state_->rows.emplace(std::move(rows));
    callbacks.swap(state_->callbacks);
  }
  state_->changed.notify_all();
  for (const std::function<void()>& callback : callbacks)
    callback();
}

RowReader::~RowReader() {
  (void)thread_.End(LibraryThread::OnAny() ? std::chrono::nanoseconds(0) : kLongestTimeout);
}

absl::Status RowReader::Start() {
  absl::StatusOr<ForkGuard> guard = ForkGuard::Create(1);
  if (!guard.ok()) return guard.status();
  guard_ = std::make_shared<const ForkGuard>(*std::move(guard));
  absl::StatusOr<LibraryThread> started = LibraryThread::Start(
      "wm-reader", {}, queue_, [queue = queue_.get(), of = of_] { Run(*queue, of); },
      [queue = queue_.get()] {
        const MutexLock lock(queue->mutex);
        queue->ends = true;
        queue->changed.notify_one();
      });
  if (!started.ok()) return started.status();
  thread_ = *std::move(started);
  return absl::OkStatus();
}

TakenRows RowReader::Read(Snapshot snapshot, std::shared_ptr<const WaitingStep> waiting_step,
                          RowKeys keys) {
  TakenRows rows;
  if (!thread_.started()) {
    if (absl::Status started = Start(); !started.ok()) {
      rows.Set(std::move(started));
      return rows;
    }
  }
  rows.state_->guard = guard_;
  rows.state_->waiting_step = std::move(waiting_step);
  bool sleeps = false;
  {
    const MutexLock lock(queue_->mutex);
    queue_->waiting.push_back({std::move(snapshot), rows, std::move(keys)});
    ++queue_->unread;
    sleeps = std::exchange(queue_->sleeps, false);
  }
  if (sleeps) queue_->changed.notify_one();
  return rows;
}

void RowReader::Run(Queue& queue, const Of& of) {
  for (;;) {
    std::unique_lock lock(queue.mutex);
    for (int looks = 0; queue.waiting.empty(); ++looks) {
      if (queue.ends) return;
      if (looks < kLooks) {
        queue.changed.wait_for(lock, std::chrono::milliseconds(1));
      } else {
        queue.sleeps = true;
        queue.changed.wait(lock);
        queue.sleeps = false;
      }
    }
    Waiting waiting = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    lock.unlock();
    ReadOne(waiting, of);
    lock.lock();
    if (--queue.unread == 0) queue.idle.notify_all();
  }
}

absl::Status RowReader::WaitIdle(std::chrono::steady_clock::time_point deadline) const {
  queue_->changed.notify_one();  // it need not end its millisecond
  std::unique_lock lock(queue_->mutex);
  while (queue_->unread > 0) {
    if (queue_->idle.wait_until(lock, deadline) == std::cv_status::timeout && queue_->unread > 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("the rows of ", queue_->unread, " takes have not been read"));
    }
  }
  return absl::OkStatus();
}

void RowReader::ReadOne(Waiting& waiting, const Of& of) {
  Snapshot& snapshot = waiting.snapshot;
  const TakenRows& taken = waiting.rows;
  wire::TierKeys keys;
  std::shared_ptr<Rows> rows;
  const absl::Status read = Guarded("reading a snapshot", [&]() -> absl::Status {
    const absl::Status waited = snapshot.Wait(of.timeout);
    if (absl::IsDeadlineExceeded(waited)) {
      return absl::DeadlineExceededError(taken.Late(of.timeout));
    }
    if (!waited.ok()) return waited;
    absl::StatusOr<Rows> copied = snapshot.ReadRows();
    if (!copied.ok()) return copied.status();
    rows = std::make_shared<Rows>(*std::move(copied));
    if (of.tier != nullptr) {
      keys = wire::TierKeys::Of(snapshot, std::move(waiting.keys.keys), waiting.keys.version,
                                of.block_tokens);
    }
    return absl::OkStatus();
  });
  snapshot.Release();
  if (!read.ok()) return taken.Set(read);
  if (keys.keys.empty()) return taken.Set(std::move(rows));
  const absl::Status asked = Guarded("asking for rows by key", [&] {
    of.tier->Fill(rows, keys,
                  [taken](std::shared_ptr<const Rows> filled) { taken.Set(std::move(filled)); });
    return absl::OkStatus();
  });
  if (!asked.ok()) taken.Set(asked);
}

}  // namespace waymark
