// An engine whose scheduler and worker are two processes, connected by a pipe.
//
// The simulated engine is deterministic, so both processes run it with the same options. The child
// is the scheduler: it sends the messages that it writes. The parent is the worker: in place of the
// messages that its own copy of the scheduler writes, its stores get those that arrive. When a
// scheduler is restarted, its process ends, and another one continues with a new epoch. Messages
// are lost and doubled on the worker's side. Prints the seeds, and takes them as WAYMARK_SEED and
// WAYMARK_TWO_PROCESSES, their number.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <span>
#include <vector>

#include "tests/conformance/schedules.h"
#include "tests/support/sanitizers.h"
#include "tests/support/schedule_messages.h"
#include "tests/support/test_seed.h"

namespace waymark::conformance {
namespace {

bool WriteAll(int file, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(file, at, bytes);
    if (written <= 0) return false;
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

bool ReadAll(int file, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = read(file, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

std::uint64_t EpochOf(const Schedule& schedule, std::span<const std::uint8_t> bytes) {
  const StoreOptions store = sim::StoreOptionsOf(schedule.options, 0);
  const auto message = ParseScheduleMessage(
      bytes, {.num_blocks = store.num_blocks, .block_tokens = store.block_tokens});
  return message.ok() ? message->epoch : 0;
}

// The scheduler's process: sends the messages of its `life`-th epoch and ends.
[[noreturn]] void RunScheduler(Schedule schedule, int life, int file) {
  int epochs = -1;
  std::uint64_t epoch = 0;
  schedule.options.channel = [&](std::span<const std::uint8_t> bytes) {
    if (const std::uint64_t now = EpochOf(schedule, bytes); now != epoch) {
      epoch = now;
      if (++epochs > life) _exit(0);
    }
    const std::uint64_t size = bytes.size();
    if (epochs == life &&
        !(WriteAll(file, &size, sizeof(size)) && WriteAll(file, bytes.data(), bytes.size()))) {
      _exit(1);
    }
    return std::vector<std::uint8_t>(bytes.begin(), bytes.end());
  };
  // Its own stores get all messages: nobody reads from them.
  schedule.options.timing.lost = 0;
  schedule.options.timing.doubled = 0;
  const Outcome outcome = RunSchedule(schedule);
  _exit(outcome.error.empty() ? 0 : 1);
}

// The scheduler's processes, one after the other, as the worker sees them.
class Schedulers {
 public:
  explicit Schedulers(const Schedule& schedule) : schedule_(schedule) {}
  ~Schedulers() { End(); }

  // The next message; nothing if the last scheduler has ended and no other one sends anything.
  std::vector<std::uint8_t> Receive() {
    for (int attempt = 0; attempt < 2; ++attempt) {
      if (file_ < 0) Start();
      std::uint64_t size = 0;
      if (Answers() && ReadAll(file_, &size, sizeof(size))) {
        std::vector<std::uint8_t> bytes(size);
        EXPECT_TRUE(ReadAll(file_, bytes.data(), size));
        ++received_;
        return bytes;
      }
      End();
    }
    ADD_FAILURE() << "no scheduler sends the message";
    return {};
  }
  [[nodiscard]] int lives() const { return lives_; }
  [[nodiscard]] int received() const { return received_; }

 private:
  // Whether the scheduler sends something, or ends. One that does neither is ended, so that the
  // test names its seed and does not wait for ever.
  bool Answers() {
    pollfd of = {.fd = file_, .events = POLLIN, .revents = 0};
    int ready = 0;
    do {
      ready = poll(&of, 1, kPatience);
    } while (ready < 0 && errno == EINTR);
    if (ready > 0) return true;
    ADD_FAILURE() << "seed " << schedule_.options.seed << ", life " << lives_
                  << ": the scheduler has sent nothing for a minute, after " << received_
                  << " messages of all lives";
    kill(child_, SIGABRT);  // with a core, where they are kept
    return false;
  }

  void Start() {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    std::fflush(stdout);
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      close(ends[0]);
      RunScheduler(schedule_, lives_, ends[1]);
    }
    close(ends[1]);
    file_ = ends[0];
    ++lives_;
  }
  void End() {
    if (file_ < 0) return;
    close(file_);
    file_ = -1;
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }

  static constexpr int kPatience = 60'000;  // milliseconds

  const Schedule schedule_;
  pid_t child_ = -1;
  int file_ = -1;
  int lives_ = 0;
  int received_ = 0;
};

// The schedule of a seed, with messages and without threads of the store: the parent forks.
Schedule DrawTwoProcesses(std::uint64_t seed) {
  Schedule schedule = DrawSchedule(seed);
  sim::Timing& timing = schedule.options.timing;
  // What is streamed depends on when snapshots become readable, which the scheduler does not know.
  schedule.options.features.stream = 0;
  schedule.options.features.clip = false;
  if (timing.landing == Landing::kThread) {
    timing.landing = Landing::kManual;
    timing.lag = 30;
  }
  timing.wire = true;
  timing.lost = seed % 4 == 1 ? .05 : 0;
  timing.doubled = seed % 4 >= 2 ? .1 : 0;
  timing.restart = seed % 8 == 3 ? .01 : 0;
  schedule.features += " [two processes, lost " + std::to_string(timing.lost) + ", doubled " +
                       std::to_string(timing.doubled) + ", restart " +
                       std::to_string(timing.restart) + "]";
  return schedule;
}

TEST(TwoProcesses, NothingWrongNothingUnexplained) {
  const std::uint64_t count = FromEnvironment("WAYMARK_TWO_PROCESSES", PlainOr(1500, 100));
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  Totals totals;
  int lives = 0;
  int received = 0;
  for (std::uint64_t seed = first; seed < first + count && totals.failed < 5; ++seed) {
    Schedule schedule = DrawTwoProcesses(seed);
    Schedulers schedulers(schedule);
    schedule.options.channel = [&](std::span<const std::uint8_t>) { return schedulers.Receive(); };
    const Outcome outcome = RunSchedule(schedule);
    totals.Add(outcome);
    lives += schedulers.lives();
    received += schedulers.received();
    schedule.options.channel = nullptr;
    if (outcome.clean(schedule)) continue;
    ++totals.failed;
    ADD_FAILURE() << outcome.Describe(schedule);
  }
  std::printf("seeds %llu ... %llu, %d processes, %d messages: %s\n",
              static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1), lives, received,
              totals.ToString().c_str());
  EXPECT_GT(totals.checks.exact, 0);
  EXPECT_GE(lives, static_cast<int>(count));
}

}  // namespace
}  // namespace waymark::conformance
