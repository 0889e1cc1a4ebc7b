// The threads that Waymark starts: each has a name, and can be pinned to CPUs.
#ifndef WAYMARK_BLOCKSTORE_THREAD_H_
#define WAYMARK_BLOCKSTORE_THREAD_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace waymark {

// InvalidArgument naming `argument`, the rule and the value, unless this process may run on each of
// `cpus` (numbered as the kernel does, from 0). Any thread; starts one for a moment, and fails as
// StartThread if it cannot.
[[nodiscard]] absl::Status CheckCpus(std::string_view argument, std::span<const std::int32_t> cpus);

// Starts a thread that runs `run`. `name`, of at most 15 bytes, is what debuggers, top -H and
// /proc/<pid>/task/<tid>/comm show. The thread is pinned to `cpus`; if they are empty it may run
// on all CPUs that the process could use when this library was loaded: by taskset, numactl
// and the cpuset. What its creator was pinned to since does not apply, because OpenMP and engines
// on the CPU pin each of their threads to one core, which such a thread then keeps busy. Name and
// CPUs are set when this returns. ResourceExhausted, naming the system's message, if it refuses a
// new thread, and if there is no memory. REQUIRES: CheckCpus(cpus) is ok.
[[nodiscard]] absl::StatusOr<std::thread> StartThread(const char* name,
                                                      std::span<const std::int32_t> cpus,
                                                      std::function<void()> run) noexcept;

// Asks the kernel for the shortest time slices for the calling thread: beside busy threads it then
// gets a core sooner after it wakes, and keeps it for a shorter time. Linux 6.12 and later, for the
// default scheduling policy alone; otherwise, and if the kernel refuses, it changes nothing.
void UseShortTimeSlices();

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_THREAD_H_
