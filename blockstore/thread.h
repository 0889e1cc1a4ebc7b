// The threads that Waymark starts: each has a name, can be pinned to CPUs, and is owned by a
// LibraryThread.
#ifndef WAYMARK_BLOCKSTORE_THREAD_H_
#define WAYMARK_BLOCKSTORE_THREAD_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/timeout.h"

namespace waymark {

// InvalidArgument naming `argument`, the rule and the value, unless this process may run on each of
// `cpus` (numbered as the kernel does, from 0). Any thread; starts one for a moment, and fails as
// LibraryThread::Start if it cannot.
[[nodiscard]] absl::Status CheckCpus(std::string_view argument, std::span<const std::int32_t> cpus);

// A thread, and what it needs to end. It ends with this object, which foreign code that the thread
// itself calls may destroy (a callback that has the last reference to the thread's owner), as may
// another thread of the library, or a forked child, where the thread is not.
class LibraryThread {
 public:
  LibraryThread();  // no thread
  // Starts a thread that calls `run`. `stop`, which any thread may call, makes that return. Both
  // use what belongs to `state`, of which the thread keeps a share to its end. Threads with the
  // same state are of one owner. Null: only code that waits for the thread owns it.
  //
  // `name`, of at most 15 bytes, is what debuggers, top -H and /proc/<pid>/task/<tid>/comm show.
  // The thread is pinned to `cpus`; if they are empty it may run on all CPUs that the process could
  // use when this library was loaded: by taskset, numactl and the cpuset. What its creator was
  // pinned to since does not apply, because OpenMP and engines on the CPU pin each of their threads
  // to one core, which such a thread then keeps busy. Name and CPUs are set when this returns.
  // ResourceExhausted, naming the system's message, if it refuses a new thread, and if there is no
  // memory. REQUIRES: CheckCpus(cpus) is ok.
  [[nodiscard]] static absl::StatusOr<LibraryThread> Start(
      const char* name, std::span<const std::int32_t> cpus, std::shared_ptr<void> state,
      std::function<void()> run, std::function<void()> stop = {}) noexcept;
  ~LibraryThread();  // ends it
  LibraryThread(LibraryThread&& other) noexcept;
  LibraryThread& operator=(LibraryThread&& other) noexcept;

  // Whether there is a thread that was not ended.
  [[nodiscard]] bool started() const { return owned_ != nullptr; }
  // Whether `run` has returned and the state was let go, within `timeout`.
  [[nodiscard]] bool Wait(std::chrono::nanoseconds timeout) const;
  // Stops the thread and joins it. It is let go instead, and ends by itself, if it has not ended
  // after `timeout`; at once on a thread of the same owner, and after 5 s on one of another owner,
  // as each may wait for the other. In a forked child nothing is touched: the numbers of a parent's
  // threads are those of threads of the child. Returns whether it has ended.
  bool End(std::chrono::nanoseconds timeout = kLongestTimeout);
  // Whether the caller is on a thread with a state: this one's, or any (OnAny).
  [[nodiscard]] bool IsHere() const;
  [[nodiscard]] static bool OnAny();

 private:
  struct Ended;
  struct Owned;
  std::unique_ptr<Owned> owned_;
};

// Asks the kernel for the shortest time slices for the calling thread: beside busy threads it then
// gets a core sooner after it wakes, and keeps it for a shorter time. Linux 6.12 and later, for the
// default scheduling policy alone; otherwise, and if the kernel refuses, it changes nothing.
void UseShortTimeSlices();

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_THREAD_H_
