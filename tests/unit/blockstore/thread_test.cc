// The names and CPUs of threads, as the kernel knows them.
#include "blockstore/thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "blockstore/flight/recorder.h"
#include "blockstore/store/store.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/publisher.h"

namespace waymark {
namespace {

using testing::HasSubstr;

// The CPUs of a thread, ascending; 0: the calling one.
std::vector<std::int32_t> CpusOf(pid_t thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(thread, sizeof set, &set), 0);
  std::vector<std::int32_t> cpus;
  for (std::int32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// The threads of this process that have this name.
std::vector<pid_t> ThreadsNamed(const std::string& name) {
  std::vector<pid_t> threads;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string comm;
    if (std::getline(file, comm) && comm == name) {
      threads.push_back(static_cast<pid_t>(std::stol(task.path().filename().string())));
    }
  }
  return threads;
}

// Expects one thread of this name, on these CPUs, as long as `owner` lives.
template <class Owner>
void ExpectThread(const std::string& name, const std::vector<std::int32_t>& cpus, Owner owner) {
  ASSERT_TRUE(owner.ok()) << owner.status();
  const std::vector<pid_t> threads = ThreadsNamed(name);
  ASSERT_EQ(threads.size(), 1u) << name;
  EXPECT_EQ(CpusOf(threads[0]), cpus) << name;
  owner->reset();
  // The kernel lists a thread for a moment after it has been joined.
  while (!ThreadsNamed(name).empty())
    std::this_thread::yield();
}

template <class Owner>
void ExpectRefused(const std::string& argument, const Owner& owner) {
  EXPECT_EQ(owner.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(owner.status().message(),
            argument + ": must be CPUs that this process may run on, got -1");
}

StoreOptions SmallStore() {
  return {.shape = {.num_layers = 1, .top_k = 1, .num_experts = 8, .page_tokens = 4},
          .num_blocks = 4};
}

TEST(Thread, HasItsNameAndCpusAtOnce) {
  const std::vector<std::int32_t> cpus = {CpusOf(0).back()};
  std::atomic<bool> stop{false};
  LibraryThread thread =
      LibraryThread::Start("wm-test", cpus, nullptr, [&] { stop.wait(false); }).value();
  const std::vector<pid_t> threads = ThreadsNamed("wm-test");
  EXPECT_EQ(threads.size(), 1u);
  for (const pid_t id : threads)
    EXPECT_EQ(CpusOf(id), cpus);
  stop.store(true);
  stop.notify_all();
  EXPECT_TRUE(thread.End());
}

TEST(Thread, CpusMustBeThereEachOfThem) {
  const std::vector<std::int32_t> mine = CpusOf(0);
  EXPECT_TRUE(CheckCpus("cpus", {}).ok());
  EXPECT_TRUE(CheckCpus("cpus", mine).ok());
  EXPECT_EQ(CpusOf(0), mine) << "the check moved its caller";
  for (const std::int32_t bad : {-1, CPU_SETSIZE - 1, CPU_SETSIZE, 1 << 30}) {
    const absl::Status status = CheckCpus("cpus", std::vector<std::int32_t>{mine[0], bad});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("got " + std::to_string(bad)));
  }
}

TEST(Thread, OfTheStore) {
  StoreOptions options = SmallStore();
  ExpectThread("wm-landing", CpusOf(0), RoutingStore::Create(options));
  options.landing_cpus = {CpusOf(0).back()};
  ExpectThread("wm-landing", options.landing_cpus, RoutingStore::Create(options));
  options.landing_cpus = {-1};
  ExpectRefused("landing_cpus", RoutingStore::Create(options));
}

// As OpenMP and engines on the CPU pin their threads, the main one too.
TEST(Thread, ACreatorThatIsPinnedToOneCoreDoesNotPassThatOn) {
  const std::vector<std::int32_t> all = CpusOf(0);
  if (all.size() < 2) GTEST_SKIP() << "this process may use one CPU only";
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(all.back()), &one);
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  ExpectThread("wm-landing", all, RoutingStore::Create(SmallStore()));
  wire::MemorySource source(1 << 20);
  wire::PublisherOptions options;
  options.shape.rows = SmallStore().shape;
  ExpectThread("wm-publish", all, wire::Publisher::Create(&source, options));
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(Thread, OfThePublisher) {
  wire::MemorySource source(1 << 20);
  wire::PublisherOptions options;
  options.shape.rows = SmallStore().shape;
  ExpectThread("wm-publish", CpusOf(0), wire::Publisher::Create(&source, options));
  options.cpus = {CpusOf(0).back()};
  ExpectThread("wm-publish", options.cpus, wire::Publisher::Create(&source, options));
  options.cpus = {-1};
  ExpectRefused("options.cpus", wire::Publisher::Create(&source, options));
}

TEST(Thread, OfTheFlightRecorder) {
  RecorderOptions options;
  options.ring_bytes = 1 << 20;
  ExpectThread("wm-flight", CpusOf(0), FlightRecorder::Create(SmallStore(), options));
  options.cpus = {CpusOf(0).back()};
  ExpectThread("wm-flight", options.cpus, FlightRecorder::Create(SmallStore(), options));
  options.cpus = {-1};
  ExpectRefused("RecorderOptions.cpus", FlightRecorder::Create(SmallStore(), options));
}

TEST(Threads, ShortTimeSlicesChangeNothingElse) {
  std::thread([] {
    ASSERT_EQ(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 3), 0);  // of this thread
    const auto slice = [] {
      std::ifstream file("/proc/thread-self/sched");  // a kernel without it: 0
      for (std::string name, colon; file >> name;) {
        if (std::uint64_t value = 0; name == "se.slice" && file >> colon >> value) return value;
      }
      return std::uint64_t{0};
    };
    const std::uint64_t before = slice();
    UseShortTimeSlices();
    utsname system;
    ASSERT_EQ(uname(&system), 0);
    int major = 0, minor = 0;
    ASSERT_EQ(std::sscanf(system.release, "%d.%d", &major, &minor), 2) << system.release;
    const bool can = major > 6 || (major == 6 && minor >= 12);
    EXPECT_EQ(slice(), can ? std::min(before, std::uint64_t{100'000}) : before);
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
    EXPECT_EQ(getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())), 3);
  }).join();
}

}  // namespace
}  // namespace waymark
