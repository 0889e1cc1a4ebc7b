// Ranks that are real processes, and a collective between them over shared memory.
//
//   SharedGather group(4, bytes, 10s);                 // before the ranks are forked
//   const auto reports = RunRanks(4, 60s, [&](std::int32_t rank) {
//     ... group.Of(rank) ...                            // in the process of the rank
//     return std::string("what the test compares");
//   });
//
// The process that calls RunRanks must have no other thread.
#ifndef WAYMARK_TESTS_SUPPORT_RANK_PROCESSES_H_
#define WAYMARK_TESTS_SUPPORT_RANK_PROCESSES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plugin/capture/collective.h"

namespace waymark {

// An all-gather between forked processes. A call waits for the other ranks until its deadline, and
// then answers DeadlineExceeded (4). InvalidArgument (3) if a rank gives another number of bytes. A
// failed call has been made: the n-th calls of all ranks belong together, whatever became of the
// calls before.
class SharedGather {
 public:
  SharedGather(std::int32_t ranks, std::size_t max_bytes, std::chrono::milliseconds deadline);
  ~SharedGather();
  SharedGather(const SharedGather&) = delete;
  SharedGather& operator=(const SharedGather&) = delete;

  // The collective of `rank`; one for each process. This object must outlive it.
  [[nodiscard]] Collective Of(std::int32_t rank);
  // Returns when every rank is here, so that none is late because its process began late. At most a
  // minute.
  void Meet();
  // How often `rank` has called, and how many bytes it has sent. Any process.
  [[nodiscard]] std::uint64_t Calls(std::int32_t rank) const;
  [[nodiscard]] std::uint64_t BytesSent(std::int32_t rank) const;

 private:
  struct Rank;
  static std::int32_t AllGather(void* context, const void* send, void* receive, std::size_t bytes);
  [[nodiscard]] std::uint8_t* Slot(std::uint64_t call, std::int32_t rank) const;

  const std::int32_t ranks_;
  const std::size_t max_bytes_;
  const std::chrono::milliseconds deadline_;
  std::size_t mapped_ = 0;
  Rank* shared_ = nullptr;         // [ranks_]
  std::uint8_t* slots_ = nullptr;  // [kDepth][ranks_][max_bytes_]
  std::int32_t rank_ = -1;         // of this process
};

// What became of the process of a rank.
struct RankReport {
  std::string text;    // what `run` returned
  bool ended = false;  // by itself, with exit code 0
  bool hung = false;   // it had not ended after the timeout, and was killed then
};

// Runs `run(rank)` in one process for each rank, at the same time.
[[nodiscard]] std::vector<RankReport> RunRanks(
    std::int32_t ranks, std::chrono::seconds timeout,
    const std::function<std::string(std::int32_t rank)>& run);

}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_RANK_PROCESSES_H_
