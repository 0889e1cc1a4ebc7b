#include "blockstore/thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#include <cstdint>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/exception_status.h"
#include "blockstore/invalid.h"

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

// A thread that runs `run`.
absl::StatusOr<std::thread> Start(std::function<void()> run) noexcept {
  return Guarded("a new thread", [&]() -> absl::StatusOr<std::thread> {
    try {
      return std::thread(std::move(run));
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the system refused a new thread: ", error.what()));
    }
  });
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

}  // namespace

absl::Status CheckCpus(std::string_view argument, std::span<const std::int32_t> cpus) {
  if (cpus.empty()) return absl::OkStatus();
  // The kernel ignores CPUs that it does not allow if it allows one of the others, so each is tried
  // alone; on another thread, so that the caller's CPUs do not change.
  const std::int32_t* bad = nullptr;
  absl::StatusOr<std::thread> trial = Start([&] {
    for (const std::int32_t& cpu : cpus) {
      if (cpu >= 0 && cpu < CPU_SETSIZE && Pin(pthread_self(), {&cpu, 1})) continue;
      bad = &cpu;
      return;
    }
  });
  if (!trial.ok()) return trial.status();
  trial->join();
  if (bad == nullptr) return absl::OkStatus();
  return Invalid(argument, ": must be CPUs that this process may run on, got ", *bad);
}

absl::StatusOr<std::thread> StartThread(const char* name, std::span<const std::int32_t> cpus,
                                        std::function<void()> run) noexcept {
  absl::StatusOr<std::thread> thread = Start(std::move(run));
  if (!thread.ok()) return thread;
  const pthread_t native = thread->native_handle();
  // Errors are ignored: the thread works without a name or CPUs.
  (void)pthread_setname_np(native, name);
  if (!cpus.empty()) {
    (void)Pin(native, cpus);
  } else if (CPU_COUNT(&kProcessCpus) > 0) {
    (void)pthread_setaffinity_np(native, sizeof kProcessCpus, &kProcessCpus);
  }
  return thread;
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
