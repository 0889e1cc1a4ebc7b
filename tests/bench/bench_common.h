// What every benchmark of this folder is made of: times of one call each, cold caches, a filled
// store whose blocks lie anywhere in it, and rows to land.
//
// Each call is timed on its own, and quantiles are reported: the mean of a machine that others use
// says nothing. Calls of microseconds are judged by their median; calls of a millisecond and more,
// which seldom run through on such a machine, by their lower decile. Times that stand beside a
// baseline are taken in turns with it, in one run.
#ifndef WAYMARK_TESTS_BENCH_BENCH_COMMON_H_
#define WAYMARK_TESTS_BENCH_BENCH_COMMON_H_

#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "blockstore/store/store.h"
#include "kernels/ids_view.h"

namespace waymark::bench {

// The model that the budgets are stated for.
inline constexpr std::int32_t kLayers = 58;
inline constexpr std::int32_t kTopK = 8;
inline constexpr std::int32_t kExperts = 256;
inline constexpr std::int32_t kDecodeRows = 256;
inline constexpr std::int32_t kPrefillRows = 8192;
inline constexpr std::int64_t kLongRows = 32768;

[[nodiscard]] RoutingShape Shape(std::int32_t page_tokens);

// Nanoseconds of single calls.
class Times {
 public:
  explicit Times(std::size_t expected) { nanoseconds_.reserve(expected); }
  void Add(double nanoseconds) { nanoseconds_.push_back(nanoseconds); }
  // The value that `part` of the calls stayed below, in microseconds; 0.5 is the median.
  [[nodiscard]] double Micros(double part) const;

 private:
  std::vector<double> nanoseconds_;
};

// Runs `call` and returns how many nanoseconds it took.
template <class Call>
double Time(Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::nano>(end - begin).count();
}

// What the caches hold when a timed call begins.
enum class Caches {
  kWarm,     // what the call before has left there
  kColdOwn,  // nothing of the store in the core's own caches; the last-level cache is left alone
  kCold,     // nothing of anything: data, code and translations come from memory
};

// Walks a buffer: four times the second-level cache, or twice the last-level cache.
class CacheWalk {
 public:
  static CacheWalk& Get();
  void Make(Caches caches);
  // Nanoseconds of one load of a chain that was in the caches before Make(): how cold they are.
  [[nodiscard]] double Probe();

 private:
  CacheWalk();

  std::size_t own_ = 0;  // elements that flush the core's own caches
  std::vector<std::uint64_t> buffer_;
  std::vector<std::uint32_t> chain_;  // a random cycle through 4 MB
  std::uint64_t sum_ = 0;
};

// Rows in which every layer has K distinct experts.
[[nodiscard]] std::vector<std::uint8_t> TokenMajorBytes(std::int64_t rows, std::uint64_t seed);
// The same rows as int16 in the order [L, rows, K].
[[nodiscard]] std::vector<std::int16_t> LayerMajorShorts(std::span<const std::uint8_t> token_major,
                                                         std::int64_t rows);

// Lands the rows of a view through PackRows, checks included, and keeps the addresses that they
// went to: the destinations of a baseline's memcpy.
class PackSource final : public RowSource {
 public:
  explicit PackSource(const kernels::IdsView& ids, std::size_t max_rows = kPrefillRows);
  // Waits until every step that was submitted with it is done with it.
  ~PackSource() override;

  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override;
  void Done() override { submitted_.fetch_sub(1, std::memory_order_release); }
  void Submitted() { submitted_.fetch_add(1, std::memory_order_relaxed); }
  // Where row i of the last step went.
  [[nodiscard]] std::span<std::uint8_t* const> landed() const { return landed_; }

 private:
  const kernels::IdsView ids_;
  std::vector<std::uint8_t*> landed_;
  std::atomic<int> submitted_{0};
};

// A store every row of which is valid, all of its blocks in use. A million rows unless said.
class FilledStore {
 public:
  // Aborts, with the status, when the store cannot be made.
  FilledStore(std::int32_t num_blocks, std::int32_t page_tokens, Landing landing);
  // One for all benchmarks of this page size and kind, made when first asked for.
  static FilledStore& Get(std::int32_t page_tokens, Landing landing);

  [[nodiscard]] RoutingStore& store() { return *store_; }
  [[nodiscard]] std::int32_t page_tokens() const { return page_tokens_; }
  // All blocks, shuffled: sequences take theirs from here.
  [[nodiscard]] std::span<const BlockId> shuffled() const { return shuffled_; }
  [[nodiscard]] std::uint64_t NextStep() { return ++step_; }
  // Begins and submits a step; aborts when the store refuses it. Returns nanoseconds.
  double Run(const StepBatch& batch, PackSource* source);
  // Lands what was submitted: by LandOne, or by waiting for the store's own thread.
  void Settle();

 private:
  const std::int32_t page_tokens_;
  std::unique_ptr<RoutingStore> store_;
  std::vector<BlockId> shuffled_;
  std::uint64_t step_ = 0;
};

// Aborts with a message unless `ok`: a benchmark that measures failures measures nothing.
void Demand(bool ok, const char* what);

// Lower decile, median and tail of `times` as counters p10_us, p50_us and p99_us.
void Report(benchmark::State& state, const Times& times);

}  // namespace waymark::bench

#endif  // WAYMARK_TESTS_BENCH_BENCH_COMMON_H_
