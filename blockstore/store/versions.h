// Versions: the weights version of each step, as runs of steps. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_VERSIONS_H_
#define WAYMARK_BLOCKSTORE_STORE_VERSIONS_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace waymark {

// Grows in chunks that do not move, so that readers need no lock: an RL run changes the weights
// more often than any fixed number of times.
class Versions {
 public:
  // Consecutive steps with the same weights.
  struct Run {
    std::uint64_t first = 0;    // first step of the run
    std::uint64_t version = 0;  // of all its steps
  };

  // Steps from `first` on have `version`. REQUIRES: `first` is above the first step of every run.
  // Throws std::bad_alloc, and nothing has changed. The applying thread.
  void Append(std::uint64_t first, std::uint64_t version) {
    const std::size_t n = num_runs_.load(std::memory_order_relaxed);
    if (n > 0 && At(n - 1).version == version) return;
    std::unique_ptr<Run[]>& chunk = chunks_[ChunkOf(n)];
    if (chunk == nullptr) chunk = std::make_unique<Run[]>(kFirst << ChunkOf(n));
    At(n) = {first, version};
    num_runs_.store(n + 1, std::memory_order_release);
  }
  // The version of a step; of one before the first run, the first run's; 0 if there is none.
  // Any thread: steps of stamps that it has read are there.
  [[nodiscard]] std::uint64_t Of(std::uint64_t step) const {
    std::size_t high = num_runs_.load(std::memory_order_acquire);
    if (high == 0) return 0;
    if (At(high - 1).first <= step) return At(high - 1).version;
    std::size_t low = 0;
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      (At(middle).first <= step ? low : high) = middle;
    }
    return At(low).version;
  }
  [[nodiscard]] std::size_t size() const { return num_runs_.load(std::memory_order_acquire); }
  // REQUIRES: i < size().
  [[nodiscard]] const Run& run(std::size_t i) const { return At(i); }

 private:
  // Chunk c has kFirst << c runs.
  static constexpr std::size_t kFirst = 256;
  static std::size_t ChunkOf(std::size_t i) {
    return static_cast<std::size_t>(std::bit_width(i / kFirst + 1)) - 1;
  }
  [[nodiscard]] Run& At(std::size_t i) const {
    const std::size_t chunk = ChunkOf(i);
    return chunks_[chunk][i - kFirst * ((std::size_t{1} << chunk) - 1)];
  }

  std::array<std::unique_ptr<Run[]>, 48> chunks_;
  std::atomic<std::size_t> num_runs_{0};  // published after the run
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_VERSIONS_H_
