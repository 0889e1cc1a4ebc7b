#include "tests/support/rank_processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>

namespace waymark {
namespace {

// A rank that overtakes another by more calls writes over what the other has not read.
constexpr std::uint64_t kDepth = 4;
constexpr auto kLook = std::chrono::microseconds(50);

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

}  // namespace

struct SharedGather::Rank {
  std::atomic<std::uint32_t> here;
  std::atomic<std::uint64_t> calls;  // of which the part is there
  std::atomic<std::uint64_t> bytes_sent;
  std::atomic<std::uint64_t> bytes[kDepth];  // of its last calls
};

SharedGather::SharedGather(std::int32_t ranks, std::size_t max_bytes,
                           std::chrono::milliseconds deadline)
    : ranks_(ranks), max_bytes_((max_bytes + 63) / 64 * 64), deadline_(deadline) {
  const std::size_t header = (static_cast<std::size_t>(ranks) * sizeof(Rank) + 63) / 64 * 64;
  mapped_ = header + kDepth * static_cast<std::size_t>(ranks) * max_bytes_;
  void* const memory =
      mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Die("mmap");
  shared_ = static_cast<Rank*>(memory);  // zeroed
  slots_ = static_cast<std::uint8_t*>(memory) + header;
}

SharedGather::~SharedGather() {
  munmap(shared_, mapped_);
}

Collective SharedGather::Of(std::int32_t rank) {
  rank_ = rank;
  return {rank, ranks_, &AllGather, this};
}

void SharedGather::Meet() {
  shared_[rank_].here.store(1);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (std::int32_t rank = 0; rank < ranks_; ++rank) {
    while (shared_[rank].here.load() == 0 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(kLook);
  }
}

std::uint64_t SharedGather::Calls(std::int32_t rank) const {
  return shared_[rank].calls.load(std::memory_order_acquire);
}
std::uint64_t SharedGather::BytesSent(std::int32_t rank) const {
  return shared_[rank].bytes_sent.load(std::memory_order_acquire);
}

std::uint8_t* SharedGather::Slot(std::uint64_t call, std::int32_t rank) const {
  return slots_ +
         (call % kDepth * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)) *
             max_bytes_;
}

std::int32_t SharedGather::AllGather(void* context, const void* send, void* receive,
                                     std::size_t bytes) {
  SharedGather& group = *static_cast<SharedGather*>(context);
  Rank& mine = group.shared_[group.rank_];
  const std::uint64_t call = mine.calls.load(std::memory_order_relaxed);
  if (bytes > group.max_bytes_) return 3;
  std::memcpy(group.Slot(call, group.rank_), send, bytes);
  mine.bytes[call % kDepth].store(bytes, std::memory_order_relaxed);
  mine.bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
  mine.calls.store(call + 1, std::memory_order_release);
  const auto deadline = std::chrono::steady_clock::now() + group.deadline_;
  for (std::int32_t rank = 0; rank < group.ranks_; ++rank) {
    const Rank& other = group.shared_[rank];
    while (other.calls.load(std::memory_order_acquire) <= call) {
      if (std::chrono::steady_clock::now() >= deadline) return 4;
      std::this_thread::sleep_for(kLook);
    }
    if (other.bytes[call % kDepth].load(std::memory_order_relaxed) != bytes) return 3;
    std::memcpy(static_cast<std::uint8_t*>(receive) + static_cast<std::size_t>(rank) * bytes,
                group.Slot(call, rank), bytes);
  }
  return 0;
}

std::vector<RankReport> RunRanks(std::int32_t ranks, std::chrono::seconds timeout,
                                 const std::function<std::string(std::int32_t rank)>& run) {
  struct Process {
    pid_t id = -1;
    int pipe = -1;
    bool open = true;
  };
  std::fflush(nullptr);
  std::vector<Process> processes;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) Die("pipe");
    const pid_t id = fork();
    if (id < 0) Die("fork");
    if (id == 0) {
      close(ends[0]);
      std::string text;
      try {
        text = run(rank);
      } catch (const std::exception& error) {
        text = std::string("exception: ") + error.what();
      }
      for (std::size_t at = 0; at < text.size();) {
        const ssize_t wrote = write(ends[1], text.data() + at, text.size() - at);
        if (wrote <= 0) _exit(2);
        at += static_cast<std::size_t>(wrote);
      }
      std::fflush(nullptr);
      _exit(0);
    }
    close(ends[1]);
    processes.push_back({id, ends[0]});
  }

  std::vector<RankReport> reports(processes.size());
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (std::size_t open = processes.size(); open > 0;) {
    std::vector<pollfd> waits;
    for (const Process& process : processes) {
      if (process.open) waits.push_back({process.pipe, POLLIN, 0});
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    (void)poll(waits.data(), waits.size(), static_cast<int>(left.count()));
    for (std::size_t rank = 0; rank < processes.size(); ++rank) {
      Process& process = processes[rank];
      for (const pollfd& wait : waits) {
        if (!process.open || wait.fd != process.pipe || wait.revents == 0) continue;
        char bytes[4096];
        const ssize_t got = read(process.pipe, bytes, sizeof(bytes));
        if (got > 0) {
          reports[rank].text.append(bytes, static_cast<std::size_t>(got));
        } else {
          process.open = false;
          --open;
        }
      }
    }
  }
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    Process& process = processes[rank];
    reports[rank].hung = process.open;
    if (process.open) kill(process.id, SIGKILL);
    int status = 0;
    if (waitpid(process.id, &status, 0) != process.id) Die("waitpid");
    reports[rank].ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    close(process.pipe);
  }
  return reports;
}

}  // namespace waymark
