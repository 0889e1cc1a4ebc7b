// RowReader: a thread that reads snapshots as soon as their rows are there, and then releases them.
//
// A page that only a snapshot holds any more is a page that running requests may lack. So nobody
// keeps a snapshot: its rows are copied on this thread ("wm-reader"), and whoever asked for them
// gets a TakenRows at once.
#ifndef WAYMARK_PLUGIN_CAPTURE_ROW_READER_H_
#define WAYMARK_PLUGIN_CAPTURE_ROW_READER_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/mutex.h"
#include "blockstore/rows.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/thread.h"
#include "blockstore/timeout.h"
#include "blockstore/wire/tier.h"

namespace waymark {

class ForkGuard;

// Rows that a RowReader reads, or has read. Copies are of the same rows. Any thread.
class TakenRows {
 public:
  // Whether they have been read, or it is known why they cannot be: also in a forked child, where
  // nobody reads.
  [[nodiscard]] bool done() const;
  // Waits until done(). DeadlineExceeded after `timeout`.
  [[nodiscard]] absl::Status Wait(std::chrono::nanoseconds timeout) const;
  // The rows, or why there are none: DeadlineExceeded if the log was not applied in time, else the
  // error of Snapshot::ReadRows; in a forked child FailedPrecondition, unless they had been read.
  // REQUIRES: done().
  [[nodiscard]] absl::StatusOr<std::shared_ptr<const Rows>> rows() const;
  // Calls `function` once they are done: on the reader's thread or a tier's, or here if they are.
  // It must not throw and should not wait, as other rows wait for it; it may destroy what it likes,
  // also the owner of the reader.
  void WhenDone(std::function<void()> function) const;
  // "the rows have not been read after 5 s", and for which step they wait.
  [[nodiscard]] std::string Late(std::chrono::nanoseconds time) const;

 private:
  friend class RowReader;
  struct State {
    std::shared_ptr<const ForkGuard> guard;  // null: done at once
    std::shared_ptr<const WaitingStep> waiting_step;
    Mutex mutex;
    std::condition_variable_any changed;
    std::optional<absl::StatusOr<std::shared_ptr<const Rows>>> rows ABSL_GUARDED_BY(mutex);
    std::vector<std::function<void()>> callbacks ABSL_GUARDED_BY(mutex);
  };
  void Set(absl::StatusOr<std::shared_ptr<const Rows>> rows) const;
  // Whether the reader, which may hold the mutex, is in a parent of this process.
  [[nodiscard]] bool forked() const;

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// What the KV of a sequence is found by, for rows that a tier may have.
struct RowKeys {
  std::vector<BlockKey> keys;  // of its first blocks; an empty one is not looked up
  // Of the weights when its null blocks were hit, and those that were bound since the last step.
  std::uint64_t version = 0;
};

class RowReader {
 public:
  // `timeout`: how long the reader waits for the rows of a snapshot, once those before it have been
  // read; longer than the store waits for ids, so that a lost step is an answer.
  // `tier`, which may be null, is asked for rows that no step wrote. `block_tokens`: of a block.
  RowReader(std::chrono::nanoseconds timeout, std::shared_ptr<wire::Tier> tier,
            std::int32_t block_tokens)
      : of_{timeout, std::move(tier), block_tokens} {}
  // Reads what is left first. Call it when the store has ended, so that it need not wait. On a
  // thread of the library it does not wait: the store may end behind the call, and what is left is
  // read then.
  ~RowReader();
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  // Reads all rows of `snapshot`, after those that were given before; `waiting_step`: of its store.
  // Rows by key are waited for apart: those that were given later may be done earlier.
  // Starts the thread at its first call. If the system refuses the thread or its guard, the rows
  // are done with its error. One thread at a time.
  [[nodiscard]] TakenRows Read(Snapshot snapshot, std::shared_ptr<const WaitingStep> waiting_step,
                               RowKeys keys = {});
  // Waits until all that was given before has been read, and its snapshots are released; rows by
  // key may come later. DeadlineExceeded at `deadline`. Any thread but the reader's.
  [[nodiscard]] absl::Status WaitIdle(std::chrono::steady_clock::time_point deadline) const;

 private:
  struct Waiting {
    Snapshot snapshot;
    TakenRows rows;
    RowKeys keys;
  };
  // Of the thread, too, which may outlive the reader. In a forked child, where the thread is not,
  // nobody destroys it: the condition's destructor would wait for the thread.
  struct Queue {
    Mutex mutex;
    std::condition_variable_any changed;
    std::condition_variable_any idle;  // waits for unread == 0
    std::deque<Waiting> waiting ABSL_GUARDED_BY(mutex);
    std::size_t unread ABSL_GUARDED_BY(mutex) = 0;  // those, and the one that is being read
    bool ends ABSL_GUARDED_BY(mutex) = false;
    // The thread looks by itself every millisecond, unless it sleeps: waking it would cost the
    // engine's thread more than the rest of a take.
    bool sleeps ABSL_GUARDED_BY(mutex) = false;
  };
  struct Of {
    std::chrono::nanoseconds timeout;
    std::shared_ptr<wire::Tier> tier;
    std::int32_t block_tokens;
  };
  static void Run(Queue& queue, const Of& of);
  static void ReadOne(Waiting& waiting, const Of& of);
  [[nodiscard]] absl::Status Start();

  const Of of_;
  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::shared_ptr<const ForkGuard> guard_;  // of Read
  LibraryThread thread_;                    // of Read
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_ROW_READER_H_
