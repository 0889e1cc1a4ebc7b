// The embedded engine: serves requests with the small MoE model and keeps the route of every token.
//
// It does what engines with a paged KV cache do: continuous batching, chunked prefill, prefix
// caching over full blocks (prompt and generation; the samples of a request share their prompt by
// it), preemption by recomputation when blocks run short, and graph padding. It captures as any
// engine may, through a Capture: what happens to its KV blocks, each step after its forward, and
// the rows of a sequence before its blocks are released. Its routers are Waymark's routing kernels,
// so that what a forward uses is what is recorded. The model is batch-invariant, so recomputing a
// finished sequence from scratch (RecomputeRoutes) shows whether each stored row is right.
//
// Threads: one, the caller's, beside the library's.
#ifndef WAYMARK_ADAPTERS_REFERENCE_ENGINE_H_
#define WAYMARK_ADAPTERS_REFERENCE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "adapters/pool/block_pool.h"
#include "adapters/pool/prefix_hash.h"
#include "adapters/reference/moe_model.h"
#include "adapters/reference/tokens.h"
#include "blockstore/events.h"
#include "blockstore/rows.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/store.h"
#include "plugin/capture/capture.h"
#include "plugin/capture/self_test.h"

namespace waymark::reference {

// A prompt, and how many continuations of it are wanted.
struct Request {
  std::vector<int32_t> prompt;  // at least one token, 0 .. kVocabulary - 1
  int max_new_tokens = 16;      // >= 1; a sampled kEndToken ends a sequence earlier
  SamplingOptions sampling;     // sample i of the group uses seed + i
  int samples = 1;              // >= 1; a group shares its prompt's blocks
};

// One finished sample.
struct FinishedRequest {
  uint64_t id = 0;
  std::vector<int32_t> tokens;  // [T] the prompt, then what was generated
  // Rows [0, T - 1) with their infos: the last token was sampled and never an input.
  Rows rows;
  int64_t prefix_hit_tokens = 0;  // found in the cache when it was admitted
  int preemptions = 0;            // times it lost its blocks and began again
};

struct EngineOptions {
  // The pool.
  int block_tokens = 16;   // tokens of a KV block
  int page_tokens = 0;     // rows of a page, a divisor of block_tokens; 0 = one page a block
  int num_blocks = 1024;   // KV blocks, >= 1
  uint32_t num_pages = 0;  // pages of the store; 0 = two for every page of every block
  // The scheduler.
  int max_batched_tokens = 256;  // tokens of one step, >= 1
  int max_running = 64;          // sequences with blocks, >= 1
  int pad_to = 8;                // the forward runs a multiple of so many rows, >= 1
  bool prefix_caching = true;
  // Capture.
  std::vector<int> silent_layers;  // captured layers whose router does not report; for self-tests
  std::shared_ptr<FlightSink> flight;  // records the store
  // For tests: the probability, in [0, 1] and drawn from `seed`, that a running sequence loses its
  // blocks in a step.
  double preempt_rate = 0;
  uint64_t seed = 1;
};

struct EngineStats {
  uint64_t steps = 0;              // forwards
  uint64_t requests_finished = 0;  // samples
  uint64_t computed_tokens = 0;    // rows that a forward computed, padding not counted
  uint64_t prefix_hit_tokens = 0;  // rows that no forward had to compute
  uint64_t preemptions = 0;
  uint64_t evictions = 0;  // cached blocks whose memory was needed
  // What capture costs the engine's thread: the call of each step, in nanoseconds. The events that
  // are reported while it is scheduled are not included.
  LatencyHistogram capture_time;
  uint64_t capture_nanoseconds = 0;  // all of it
};

class Engine {
 public:
  // `model` is the caller's and must outlive the engine. InvalidArgument naming the option, its
  // rule and its value, also one of the model's; else as Capture::Create.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Engine>> Create(const MoeModel* model,
                                                                      const EngineOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request and returns the id of its first sample; sample i has this id + i.
  // InvalidArgument: an empty prompt, a token out of range, a count below 1, or a sequence that
  // could never fit the pool or the model.
  [[nodiscard]] absl::StatusOr<uint64_t> Add(const Request& request);

  // Schedules and runs one step. False, and nothing done, when no request is queued or running.
  // Errors are internal ones (a refused event, a read that failed): the engine cannot be used any
  // more.
  [[nodiscard]] absl::StatusOr<bool> Step();
  // Steps until everything queued is finished and read.
  [[nodiscard]] absl::Status RunAll();
  // What has been finished and read since the last call.
  [[nodiscard]] std::vector<FinishedRequest> TakeFinished() { return std::exchange(finished_, {}); }

  // From the next step on, rows come from `model` (same sizes, the caller's, outlives the engine),
  // as the next version. Running sequences keep the tokens and routes they have and compute their
  // KV again. InvalidArgument when the sizes differ.
  [[nodiscard]] absl::Status UpdateWeights(const MoeModel* model);
  // Number of the weights in use; the first are 1.
  [[nodiscard]] uint64_t version() const { return version_; }

  // Runs one forward of `rows` rows that is no step and names every layer that does not capture as
  // it should. Errors as waymark::RunSelfTest.
  [[nodiscard]] absl::StatusOr<SelfTestReport> SelfTest(int rows);

  [[nodiscard]] const EngineStats& stats() const { return stats_; }
  [[nodiscard]] Capture& capture() { return *capture_; }
  // Requests queued or running.
  [[nodiscard]] size_t unfinished() const { return waiting_.size() + running_.size(); }

 private:
  // One sample on its way. Waiting: no blocks. Running: blocks for rows [0, computed) and more.
  struct Sequence {
    uint64_t id = 0;
    std::vector<int32_t> tokens;
    int prompt_tokens = 0;
    int max_new_tokens = 0;
    SamplingOptions sampling;
    int computed = 0;  // rows whose KV is in `blocks`
    int planned = 0;   // rows of the coming step
    std::vector<BlockId> blocks;
    PrefixHash prefix;  // of tokens [0, hashed)
    size_t hashed = 0;
    std::vector<PrefixHash> keys;  // at the ends of the full blocks of these
    size_t sealed = 0;             // leading blocks that have been sealed
    int64_t prefix_hit_tokens = 0;
    int preemptions = 0;
    std::vector<TakenRows> lives;  // the rows of those that have ended, the earliest first
  };
  using SequencePtr = std::unique_ptr<Sequence>;

  // The flat arrays of one forward.
  struct Batch {
    std::vector<int32_t> tokens, positions, sequences;
    std::vector<int64_t> slots;                   // [padded rows]
    size_t rows = 0;                              // without padding
    std::vector<std::vector<int32_t>> block_ids;  // per scheduled sequence
    std::vector<std::span<const int32_t>> tables;
    std::vector<int32_t> logit_rows;  // the last row of each sequence that samples
    std::vector<Sequence*> sampled;   // the sequence of each logit row
    std::vector<float> logits;
  };

  Engine(const MoeModel* model, const EngineOptions& options, std::unique_ptr<Capture> capture);

  // Scheduling, before the step is told. What is decided is reported at once, so rows can be taken
  // at any point of it.
  absl::Status Schedule();
  absl::Status PlanRunning(int& budget, bool& preempted);
  void Admit(int& budget);
  [[nodiscard]] int RowsWanted(const Sequence& sequence, int budget) const;
  // Sets the keys of all full blocks of its tokens.
  void ExtendKeys(Sequence& sequence);
  // Gives a sequence the cached blocks of its prefix, all but its last token's.
  void TakeHits(Sequence& sequence);
  // Blocks for rows [0, rows); false, and nothing changed, when there are too few.
  [[nodiscard]] bool Grow(Sequence& sequence, int rows);
  // A block without users: a free one, else the least recently used cached leaf.
  [[nodiscard]] std::int32_t TakeBlock();
  // A full block's key hits from now on; the coming step fills the block.
  void SealFullBlocks(Sequence& sequence);
  absl::Status Preempt(size_t index);
  void ReleaseBlocks(Sequence& sequence);
  // Reports events_ and empties it.
  void Report();

  // Running a step that was scheduled.
  void BuildBatch();
  // Where the routers write the ids of the coming step, -1 everywhere. Waits until the library has
  // read those that were there.
  absl::StatusOr<CaptureView> AwaitBuffer();
  absl::Status Forward(const CaptureView& view);
  absl::Status TellStep(const CaptureView& view);
  absl::Status Advance();
  [[nodiscard]] bool IsDone(const Sequence& sequence) const;
  // Takes rows [0, rows) of a sequence before its blocks are released.
  absl::Status TakeRows(Sequence& sequence, int64_t rows);
  absl::Status Finish(Sequence& sequence);
  // Joins the lives of finished requests whose rows have been read; `all`: waits for the others.
  absl::Status Collect(bool all);

  const MoeModel* model_;
  const EngineOptions options_;
  // The ids of the last steps, [L, rows, K] each, of which the library reads the latest.
  std::vector<std::vector<int16_t>> buffers_;
  std::atomic<uint64_t> steps_read_{0};
  std::unique_ptr<Capture> capture_;
  BlockPool pool_;
  uint64_t clock_ = 0;         // how often a block lost a user
  std::vector<Event> events_;  // of what is being decided
  PagedKv kv_;
  ForwardScratch scratch_;
  std::deque<SequencePtr> waiting_;
  std::vector<SequencePtr> running_;  // in order of admission
  // Finished requests whose rows are not read yet, and the rows of their lives.
  std::deque<std::pair<FinishedRequest, std::vector<TakenRows>>> reading_;
  std::vector<FinishedRequest> finished_;
  Batch batch_;
  uint64_t step_ = 0;
  uint64_t version_ = 1;
  uint64_t next_id_ = 1;
  EngineStats stats_;
};

// The name of the module that captured layer `layer` belongs to, as reports show it.
[[nodiscard]] std::string RouterName(const MoeModelConfig& config, int layer);

}  // namespace waymark::reference

#endif  // WAYMARK_ADAPTERS_REFERENCE_ENGINE_H_
