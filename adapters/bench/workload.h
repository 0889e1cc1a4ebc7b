// What is measured: a filled store whose blocks lie anywhere in it, and the steps of an engine. The
// budgets (budgets.h) and the programs in tests/bench/ time these, so that both measure the same.
//
// One thread uses all of it: the engine's thread, which also lands, except where stated.
#ifndef WAYMARK_ADAPTERS_BENCH_WORKLOAD_H_
#define WAYMARK_ADAPTERS_BENCH_WORKLOAD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "adapters/bench/measure.h"
#include "blockstore/store/store.h"
#include "kernels/ids_view.h"

namespace waymark::bench {

// The model that the budgets are stated for.
inline constexpr std::int32_t kLayers = 58;
inline constexpr std::int32_t kTopK = 8;
inline constexpr std::int32_t kExperts = 256;
inline constexpr std::int32_t kDecodeRows = 256;
inline constexpr std::int32_t kPrefillRows = 8192;
// Rows of a store, except where stated: with a page for each block, 486 MB.
inline constexpr std::int64_t kStoreRows = std::int64_t{1} << 20;

[[nodiscard]] RoutingShape Shape(std::int32_t page_tokens);

// Rows [rows, L, K] in which every layer has K distinct experts.
[[nodiscard]] std::vector<std::uint8_t> TokenMajorBytes(std::int64_t rows, std::uint64_t seed);
// The same rows as int16 in the order [L, rows, K].
[[nodiscard]] std::vector<std::int16_t> LayerMajorShorts(std::span<const std::uint8_t> token_major,
                                                         std::int64_t rows);

// Lands the rows of a view through PackRows, checks included, and keeps the addresses that they
// went to: the destinations of a baseline's memcpy.
class PackedRows final : public StepRows {
 public:
  explicit PackedRows(const kernels::IdsView& ids, std::size_t max_rows = kPrefillRows);
  // Waits until every step that was submitted with it is done with it.
  ~PackedRows() override;

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

// The same random rows as token-major uint8 and as capture buffers have them: int16 [L, rows, K].
struct BenchRows {
  explicit BenchRows(std::int64_t rows);

  const std::vector<std::uint8_t> bytes;
  const std::vector<std::int16_t> shorts;
  PackedRows token_major;
  PackedRows layer_major;
};

// A store every row of which is valid, all of its blocks in use, as many pages as blocks.
class FilledStore {
 public:
  // `rows` is a multiple of kPrefillRows. Throws when the store cannot be made.
  FilledStore(std::int64_t rows, std::int32_t page_tokens, Landing landing);

  [[nodiscard]] RoutingStore& store() { return *store_; }
  [[nodiscard]] std::int32_t page_tokens() const { return page_tokens_; }
  // All blocks, shuffled: sequences take theirs from here.
  [[nodiscard]] std::span<const BlockId> shuffled() const { return shuffled_; }
  [[nodiscard]] std::uint64_t NextStep() { return ++step_; }
  // Begins and submits a step; throws when the store refuses it. Returns nanoseconds.
  double Run(const StepBatch& batch, PackedRows* rows);
  // Applies what Run appended to the log of a store with Landing::kManual.
  void ApplyLog();
  // The same, and lands what was submitted: by LandOne, or by waiting for the store's own thread.
  void Settle();

 private:
  const std::int32_t page_tokens_;
  std::unique_ptr<RoutingStore> store_;
  std::vector<BlockId> shuffled_;
  std::uint64_t step_ = 0;
};

// Which blocks decode steps use.
enum class Blocks {
  kSame,      // the same 256, step after step
  kOthers,    // 256 others every step
  kTurnover,  // requests at all offsets: of 256 blocks, 16 are sealed and 16 bound by every step
};

// Decode steps of 256 requests: row i of every step goes to the next slot of request i.
class DecodeSteps {
 public:
  DecodeSteps(FilledStore& store, Blocks blocks);
  // The next step; good until the next call. Its arrays are warm, as an engine has just written
  // them.
  [[nodiscard]] StepBatch Next();
  // Steps until the same slots come again; kSame and kOthers.
  [[nodiscard]] std::size_t period() const;

 private:
  void Turnover(std::uint64_t step);

  FilledStore& store_;
  const Blocks blocks_;
  std::vector<std::int64_t> slots_;
  std::vector<Event> events_;
  std::vector<BlockId> current_;  // kTurnover: the block that each request writes
  std::size_t next_block_ = 0;
  std::uint64_t step_no_ = 0;
  std::uint64_t key_ = 0;
};

// 8192 rows of one prompt into 512 blocks of 16 rows, each of them bound and sealed by the step.
class PrefillSteps {
 public:
  explicit PrefillSteps(FilledStore& store) : store_(store) {}
  // The next step; good until the next call.
  [[nodiscard]] StepBatch Next();
  // Steps until the same blocks come again.
  [[nodiscard]] std::size_t period() const;

 private:
  FilledStore& store_;
  std::vector<std::int64_t> slots_;
  std::vector<Event> events_;
  std::size_t next_ = 0;
  std::uint64_t key_ = std::uint64_t{1} << 40;
};

}  // namespace waymark::bench

#endif  // WAYMARK_ADAPTERS_BENCH_WORKLOAD_H_
