#include "blockstore/thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/exception_status.h"
#include "blockstore/fork_guard.h"
#include "blockstore/invalid.h"
#include "blockstore/mutex.h"

namespace waymark {
namespace {

// False if the kernel allows none of `cpus`. REQUIRES: they are in [0, CPU_SETSIZE).
bool Pin(pthread_t thread, std::span<const std::int32_t> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const std::int32_t cpu : cpus)
    CPU_SET(static_cast<std::size_t>(cpu), &set);
  return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
}

// The CPUs of the thread that loads the library; none if there are too many for a cpu_set_t.
cpu_set_t CpusAtLoad() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
  return set;
}
const cpu_set_t kProcessCpus = CpusAtLoad();

// The kernel's struct sched_attr in its first version; the C library has none.
struct SchedulingAttributes {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime;  // of the default policy: the time slice in nanoseconds; 0: the kernel's
  std::uint64_t deadline;
  std::uint64_t period;
};
static_assert(sizeof(SchedulingAttributes) == 48);
constexpr std::uint64_t kShortestSlice = 100'000;  // what the kernel allows

constexpr std::chrono::nanoseconds kNoTime(0);
constexpr std::chrono::nanoseconds kPatience = std::chrono::seconds(5);
// The state of the thread, or of the one that started it; null: not a thread of the library.
thread_local const void* owner_here = nullptr;

}  // namespace

absl::Status CheckCpus(std::string_view argument, std::span<const std::int32_t> cpus) {
  if (cpus.empty()) return absl::OkStatus();
  // The kernel ignores CPUs that it does not allow if it allows one of the others, so each is tried
  // alone; on another thread, so that the caller's CPUs do not change.
  const std::int32_t* bad = nullptr;
  absl::StatusOr<LibraryThread> trial = LibraryThread::Start("wm-cpus", {}, nullptr, [&] {
    for (const std::int32_t& cpu : cpus) {
      if (cpu >= 0 && cpu < CPU_SETSIZE && Pin(pthread_self(), {&cpu, 1})) continue;
      bad = &cpu;
      return;
    }
  });
  if (!trial.ok()) return trial.status();
  (void)trial->End();
  if (bad == nullptr) return absl::OkStatus();
  return Invalid(argument, ": must be CPUs that this process may run on, got ", *bad);
}

// Of the thread, too, which may be let go. No promise: one that nobody keeps needs memory.
struct LibraryThread::Ended {
  Mutex mutex;
  std::condition_variable_any changed;
  bool ended ABSL_GUARDED_BY(mutex) = false;
};
struct LibraryThread::Owned {
  ForkGuard guard;
  const void* state;
  std::function<void()> stop;
  std::shared_ptr<Ended> ended = std::make_shared<Ended>();
  std::thread thread = {};
};

absl::StatusOr<LibraryThread> LibraryThread::Start(const char* name,
                                                   std::span<const std::int32_t> cpus,
                                                   std::shared_ptr<void> state,
                                                   std::function<void()> run,
                                                   std::function<void()> stop) noexcept {
  return Guarded("a new thread", [&]() -> absl::StatusOr<LibraryThread> {
    absl::StatusOr<ForkGuard> guard = ForkGuard::Create(0);
    if (!guard.ok()) return guard.status();
    LibraryThread made;
    std::unique_ptr<Owned> owned(new Owned{*std::move(guard), state.get(), std::move(stop)});
    const void* const owner = state != nullptr ? state.get() : owner_here;
    try {
      owned->thread = std::thread(
          [owner, state = std::move(state), run = std::move(run), ended = owned->ended]() mutable {
            owner_here = owner;
            run();
            run = nullptr;
            state.reset();
            const MutexLock lock(ended->mutex);
            ended->ended = true;
            ended->changed.notify_all();
          });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the system refused a new thread: ", error.what()));
    }
    const pthread_t native = owned->thread.native_handle();
    // Errors are ignored: the thread works without a name or CPUs.
    (void)pthread_setname_np(native, name);
    if (!cpus.empty()) {
      (void)Pin(native, cpus);
    } else if (CPU_COUNT(&kProcessCpus) > 0) {
      (void)pthread_setaffinity_np(native, sizeof kProcessCpus, &kProcessCpus);
    }
    made.owned_ = std::move(owned);
    return made;
  });
}

LibraryThread::LibraryThread() = default;
LibraryThread::LibraryThread(LibraryThread&& other) noexcept = default;
LibraryThread& LibraryThread::operator=(LibraryThread&& other) noexcept {
  std::swap(owned_, other.owned_);
  return *this;
}
LibraryThread::~LibraryThread() {
  (void)End();
}

bool LibraryThread::Wait(std::chrono::nanoseconds timeout) const {
  Ended& ended = *owned_->ended;
  std::unique_lock lock(ended.mutex);
  const auto deadline = std::chrono::steady_clock::now() + Clamped(timeout);
  while (!ended.ended && ended.changed.wait_until(lock, deadline) != std::cv_status::timeout) {
  }
  return ended.ended;
}

bool LibraryThread::End(std::chrono::nanoseconds timeout) {
  if (!started()) return true;
  if (owned_->guard.forked()) {
    (void)owned_.release();
    return false;
  }
  if (owned_->stop) owned_->stop();
  if (owned_->state != nullptr && OnAny())
    timeout = IsHere() ? kNoTime : std::min(timeout, kPatience);
  const bool ended = Wait(timeout);
  const std::unique_ptr<Owned> owned = std::move(owned_);
  ended ? owned->thread.join() : owned->thread.detach();
  return ended;
}

bool LibraryThread::IsHere() const {
  return started() && owned_->state != nullptr && owned_->state == owner_here;
}
bool LibraryThread::OnAny() {
  return owner_here != nullptr;
}

void UseShortTimeSlices() {
  SchedulingAttributes attributes = {};
  constexpr unsigned kNoFlags = 0;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, kNoFlags) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime = kShortestSlice;
  (void)syscall(SYS_sched_setattr, 0, &attributes, kNoFlags);
}

}  // namespace waymark
