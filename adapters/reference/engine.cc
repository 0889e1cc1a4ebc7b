// Running steps: the batch of a step, its forward, its capture, and what becomes of its tokens.
// Scheduling is in engine_schedule.cc.
#include "adapters/reference/engine.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace waymark::reference {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than any landing takes; reached only when something is broken.
constexpr std::chrono::seconds kPatience(60);

absl::Status BadOption(const char* field, const char* rule, int64_t value) {
  return absl::InvalidArgumentError(
      absl::StrCat("EngineOptions.", field, " must be ", rule, ", got ", value));
}

int RoundUp(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

uint64_t NanosecondsSince(Clock::time_point start) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

bool IsProbability(double value) {
  return value >= 0 && value <= 1;
}

absl::Status Validate(const EngineOptions& options) {
  if (options.block_tokens < 1) return BadOption("block_tokens", ">= 1", options.block_tokens);
  if (options.page_tokens < 0 ||
      (options.page_tokens > 0 && options.block_tokens % options.page_tokens != 0)) {
    return BadOption("page_tokens", "0 or a divisor of block_tokens", options.page_tokens);
  }
  if (options.num_blocks < 1) return BadOption("num_blocks", ">= 1", options.num_blocks);
  if (options.max_batched_tokens < 1) {
    return BadOption("max_batched_tokens", ">= 1", options.max_batched_tokens);
  }
  if (options.max_running < 1) return BadOption("max_running", ">= 1", options.max_running);
  if (options.max_chunk < 0) return BadOption("max_chunk", ">= 0", options.max_chunk);
  if (options.pad_to < 1) return BadOption("pad_to", ">= 1", options.pad_to);
  if (options.num_buffers < 1 || options.num_buffers > 16) {
    return BadOption("num_buffers", "in [1, 16]", options.num_buffers);
  }
  if (options.landing_lag < 0 || options.landing_lag >= options.num_buffers) {
    return BadOption("landing_lag", "in [0, num_buffers)", options.landing_lag);
  }
  if (!IsProbability(options.preempt_rate) || !IsProbability(options.drop_rate) ||
      !IsProbability(options.cancel_rate)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "EngineOptions.preempt_rate, drop_rate and cancel_rate must be in [0, 1], got ",
        options.preempt_rate, ", ", options.drop_rate, ", ", options.cancel_rate));
  }
  return absl::OkStatus();
}

bool SameShape(const MoeModelConfig& a, const MoeModelConfig& b) {
  return a.num_layers == b.num_layers && a.num_dense_layers == b.num_dense_layers &&
         a.model_width == b.model_width && a.num_heads == b.num_heads &&
         a.num_experts == b.num_experts && a.top_k == b.top_k && a.max_positions == b.max_positions;
}

}  // namespace

std::string RouterName(const MoeModelConfig& config, int layer) {
  return absl::StrCat("layers.", config.num_dense_layers + layer, ".moe.router");
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const MoeModel* model,
                                                       const EngineOptions& options) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  const MoeModelConfig& config = model->config();
  const int num_layers = config.num_moe_layers();
  for (const int layer : options.silent_layers) {
    if (layer < 0 || layer >= num_layers) {
      return BadOption("silent_layers", "captured layers", layer);
    }
  }
  const int max_rows = RoundUp(options.max_batched_tokens, options.pad_to);

  StoreOptions store;
  store.shape.num_layers = num_layers;
  store.shape.top_k = config.top_k;
  store.shape.num_experts = config.num_experts;
  store.shape.page_tokens = options.page_tokens > 0 ? options.page_tokens : options.block_tokens;
  const std::vector<int> layer_ids = config.MoeLayerIds();
  store.shape.layer_ids.assign(layer_ids.begin(), layer_ids.end());
  store.num_blocks = options.num_blocks;
  store.block_tokens = options.block_tokens;
  const int pages_per_block = options.block_tokens / store.shape.page_tokens;
  store.num_pages = options.num_pages > 0
                        ? options.num_pages
                        : 2 * static_cast<uint32_t>(options.num_blocks * pages_per_block);
  store.max_steps_in_flight = static_cast<uint32_t>(options.num_buffers) + 1;
  store.max_step_rows = static_cast<uint32_t>(max_rows);
  store.landing = options.landing;
  store.key_seed = 1;
  store.flight = options.flight;
  absl::StatusOr<std::unique_ptr<BlockAllocator>> pool = BlockAllocator::Create(store);
  if (!pool.ok()) return pool.status();

  CaptureOptions capture;
  capture.store = &(*pool)->store();
  capture.max_rows = max_rows;
  capture.num_buffers = options.num_buffers;
  for (int layer = 0; layer < num_layers; ++layer) {
    capture.layers.push_back({layer, RouterName(config, layer), LayerCapture::kRoutingKernel});
  }
  absl::StatusOr<std::unique_ptr<CaptureSession>> session = CaptureSession::Create(capture);
  if (!session.ok()) return session.status();
  return std::unique_ptr<Engine>(new Engine(model, options, *std::move(pool), *std::move(session)));
}

Engine::Engine(const MoeModel* model, const EngineOptions& options,
               std::unique_ptr<BlockAllocator> pool, std::unique_ptr<CaptureSession> session)
    : model_(model),
      options_(options),
      pool_(std::move(pool)),
      session_(std::move(session)),
      kv_(model->MakeKv(options.num_blocks, options.block_tokens)) {}

Engine::~Engine() = default;

bool Engine::Chance(double probability) {
  if (probability <= 0) return false;
  const uint64_t bits = Mix64(options_.seed * 0x9E3779B97F4A7C15u + draws_++);
  return static_cast<double>(bits >> 11) * 0x1.0p-53 < probability;
}

absl::StatusOr<uint64_t> Engine::Add(const Request& request) {
  if (request.prompt.empty()) {
    return absl::InvalidArgumentError("Request.prompt must have at least one token, got 0");
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= kVocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("Request.prompt[", i, "] must be in [0, ",
                                                     kVocabulary, "), got ", request.prompt[i]));
    }
  }
  if (request.max_new_tokens < 1 || request.samples < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("Request.max_new_tokens and samples must be >= 1, got ",
                     request.max_new_tokens, " and ", request.samples));
  }
  // The last token of a sequence is never an input: it needs no KV.
  const int64_t rows = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens - 1;
  const int64_t room = std::min<int64_t>(int64_t{options_.num_blocks} * options_.block_tokens,
                                         model_->config().max_positions);
  if (rows > room) {
    return absl::InvalidArgumentError(
        absl::StrCat("Request: prompt and max_new_tokens must fit the pool and the model's "
                     "positions, ",
                     room, " rows, got ", rows));
  }
  const bool fork = options_.share_by == ShareBy::kFork;
  const uint64_t first = next_id_;
  next_id_ += static_cast<uint64_t>(request.samples);
  for (int i = 0; i < (fork ? 1 : request.samples); ++i) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = first + static_cast<uint64_t>(i);
    sequence->tokens = request.prompt;
    sequence->prompt_tokens = static_cast<int>(request.prompt.size());
    sequence->max_new_tokens = request.max_new_tokens;
    sequence->sampling = request.sampling;
    sequence->sampling.seed += static_cast<uint64_t>(i);
    sequence->wants_routing = request.wants_routing;
    if (fork) sequence->samples_to_fork = request.samples - 1;
    waiting_.push_back(std::move(sequence));
  }
  return first;
}

absl::StatusOr<bool> Engine::Step() {
  if (unfinished() == 0) return false;
  ++step_;
  if (absl::Status status = Schedule(); !status.ok()) return status;
  BuildBatch();
  bool begun = false;
  if (absl::Status status = BeginStep(begun); !status.ok()) return status;
  if (absl::Status status = Forward(session_->view(StepId(step_))); !status.ok()) return status;
  if (absl::Status status = EndStep(begun); !status.ok()) return status;
  if (absl::Status status = Advance(); !status.ok()) return status;
  if (absl::Status status = collector_.Poll(); !status.ok()) return status;
  return true;
}

absl::Status Engine::RunAll() {
  for (;;) {
    absl::StatusOr<bool> more = Step();
    if (!more.ok()) return more.status();
    if (!*more) break;
  }
  LandAllBut(0);
  return collector_.Drain(kPatience);
}

void Engine::BuildBatch() {
  Batch& batch = batch_;
  batch.tokens.clear();
  batch.positions.clear();
  batch.sequences.clear();
  batch.slots.clear();
  batch.logit_rows.clear();
  batch.sampled.clear();
  batch.block_ids.clear();
  batch.tables.clear();
  const int block_tokens = options_.block_tokens;
  for (const SequencePtr& sequence : running_) {
    if (sequence->planned == 0) continue;
    const auto owner = static_cast<int32_t>(batch.block_ids.size());
    std::vector<int32_t>& ids = batch.block_ids.emplace_back();
    for (const BlockId block : sequence->blocks)
      ids.push_back(block.value());
    const int end = sequence->computed + sequence->planned;
    for (int position = sequence->computed; position < end; ++position) {
      const int64_t block = ids[static_cast<size_t>(position / block_tokens)];
      const int64_t slot = block * block_tokens + position % block_tokens;
      batch.tokens.push_back(sequence->tokens[static_cast<size_t>(position)]);
      batch.positions.push_back(position);
      batch.sequences.push_back(owner);
      batch.slots.push_back(sequence->wants_routing ? slot : NotAsked(slot));
    }
    if (end == static_cast<int>(sequence->tokens.size())) {
      batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()) - 1);
      batch.sampled.push_back(sequence.get());
    }
  }
  for (const std::vector<int32_t>& ids : batch.block_ids)
    batch.tables.emplace_back(ids);
  batch.rows = batch.tokens.size();
  const auto padded = static_cast<size_t>(RoundUp(static_cast<int>(batch.rows), options_.pad_to));
  batch.tokens.resize(padded, 0);
  batch.positions.resize(padded, 0);
  batch.sequences.resize(padded, -1);
  batch.slots.resize(padded, kPaddingSlot);
  batch.logits.resize(batch.logit_rows.size() * static_cast<size_t>(kVocabulary));
}

void Engine::LandAllBut(int steps) {
  if (options_.landing != Landing::kCaller) return;
  while (unlanded_ > steps && pool_->store().LandOne())
    --unlanded_;
}

absl::Status Engine::AwaitBuffer() {
  // A GPU's forward outlasts its landing many times; this model's may not, and a demonstration that
  // drops steps for it would show the machine and not the design. So this engine waits.
  const Clock::time_point start = Clock::now();
  while (session_->transport().in_use() >= options_.num_buffers) {
    if (Clock::now() - start > kPatience) {
      return absl::DeadlineExceededError("no capture buffer became free: landing has stopped");
    }
    LandAllBut(options_.landing_lag);
    std::this_thread::yield();
  }
  return absl::OkStatus();
}

absl::Status Engine::BeginStep(bool& begun) {
  if (absl::Status status = AwaitBuffer(); !status.ok()) return status;
  // The batch names the real rows; the padding is known by the number of rows that are written.
  const auto written = static_cast<int32_t>(batch_.tokens.size());
  begin_nanoseconds_ = 0;
  for (;;) {
    const StepBatch batch = {
        .step = step_, .version = version_, .slots = batch_.slots.data(), .num_slots = batch_.rows};
    const Clock::time_point start = Clock::now();
    const StepCode code = session_->BeginStep(batch, written);
    begin_nanoseconds_ += NanosecondsSince(start);
    if (!code.ok() && !code.dropped()) return code.ToStatus();
    begun = code.ok();
    if (!begun || !Chance(options_.cancel_rate)) break;
    if (const StepCode cancelled = session_->Cancel(StepId(step_)); !cancelled.ok()) {
      return cancelled.ToStatus();
    }
    ++stats_.cancelled_steps;
    ++step_;  // the same rows again, under a number of their own
  }
  return absl::OkStatus();
}

absl::Status Engine::Forward(const CaptureView& view) {
  const RouteLayer route = [&](int layer, const kernels::RoutingConfig& config,
                               const kernels::RoutingTensors& tensors) {
    const std::vector<int>& silent = options_.silent_layers;
    if (std::find(silent.begin(), silent.end(), layer) != silent.end()) {
      return RouteAlone(layer, config, tensors);
    }
    return session_->Route(view, layer, config, tensors).ToStatus();
  };
  const ForwardBatch batch = {batch_.tokens, batch_.positions, batch_.sequences,
                              batch_.slots,  batch_.tables,    batch_.logit_rows};
  return model_->Forward(batch, route, kv_, scratch_, batch_.logits);
}

absl::Status Engine::EndStep(bool begun) {
  ++stats_.steps;
  stats_.computed_tokens += batch_.rows;
  if (!begun) {
    session_->Discard(static_cast<int32_t>(batch_.tokens.size()));
    return absl::OkStatus();
  }
  if (Chance(options_.drop_rate)) {
    ++stats_.dropped_steps;
    const StepCode code = session_->Drop(StepId(step_));
    return code.ok() ? absl::OkStatus() : code.ToStatus();
  }
  const Clock::time_point start = Clock::now();
  const StepCode code = session_->Submit(StepId(step_));
  const uint64_t taken = begin_nanoseconds_ + NanosecondsSince(start);
  stats_.capture_time.Add(taken);
  stats_.capture_nanoseconds += taken;
  if (!code.ok()) return code.ToStatus();
  ++unlanded_;
  LandAllBut(options_.landing_lag);
  return absl::OkStatus();
}

bool Engine::IsDone(const Sequence& sequence) const {
  return sequence.tokens.back() == kEndToken ||
         static_cast<int>(sequence.tokens.size()) - sequence.prompt_tokens >=
             sequence.max_new_tokens;
}

absl::Status Engine::Advance() {
  for (const SequencePtr& sequence : running_) {
    sequence->computed += std::exchange(sequence->planned, 0);
  }
  std::vector<uint64_t> done;
  for (size_t i = 0; i < batch_.sampled.size(); ++i) {
    Sequence& sequence = *batch_.sampled[i];
    const std::span<const float> logits =
        std::span<const float>(batch_.logits)
            .subspan(i * static_cast<size_t>(kVocabulary), static_cast<size_t>(kVocabulary));
    if (sequence.samples_to_fork > 0) {
      if (absl::Status status = Fork(sequence, logits); !status.ok()) return status;
    }
    sequence.tokens.push_back(SampleToken(logits, sequence.sampling, sequence.computed - 1));
    ++stats_.generated_tokens;
    if (!IsDone(sequence)) continue;
    if (absl::Status status = Finish(sequence, sequence.blocks); !status.ok()) return status;
    if (absl::Status status = ReleaseBlocks(sequence); !status.ok()) return status;
    done.push_back(sequence.id);
  }
  std::erase_if(running_, [&done](const SequencePtr& sequence) {
    return std::find(done.begin(), done.end(), sequence->id) != done.end();
  });
  return absl::OkStatus();
}

absl::Status Engine::Fork(Sequence& parent, std::span<const float> logits) {
  const size_t full = static_cast<size_t>(parent.computed / options_.block_tokens);
  const int partial = parent.computed % options_.block_tokens;
  for (int i = 1; i <= parent.samples_to_fork; ++i) {
    auto child = std::make_unique<Sequence>(parent);
    child->id = parent.id + static_cast<uint64_t>(i);
    child->sampling.seed = parent.sampling.seed + static_cast<uint64_t>(i);
    child->samples_to_fork = 0;
    child->preemptions = 0;
    child->sealed = std::min(parent.sealed, full);
    child->blocks.clear();
    child->tokens.push_back(SampleToken(logits, child->sampling, parent.computed - 1));
    ++stats_.generated_tokens;
    child->prefix_hit_tokens = parent.computed;
    if (IsDone(*child)) {
      stats_.prefix_hit_tokens += static_cast<uint64_t>(parent.computed);
      stats_.forked_tokens += static_cast<uint64_t>(parent.computed);
      if (absl::Status status = Finish(*child, parent.blocks); !status.ok()) return status;
      continue;
    }
    BlockId copy;
    if (running_.size() >= static_cast<size_t>(options_.max_running) ||
        (partial > 0 && !pool_->Allocate({&copy, 1}))) {
      child->computed = 0;
      child->sealed = 0;
      child->prefix_hit_tokens = 0;
      waiting_.push_front(std::move(child));
      continue;
    }
    const std::span<const BlockId> shared = std::span<const BlockId>(parent.blocks).first(full);
    if (absl::Status status = pool_->Retain(shared); !status.ok()) return status;
    child->blocks.assign(shared.begin(), shared.end());
    if (partial > 0) {
      const BlockId src = parent.blocks[full];
      if (absl::Status status = pool_->Copy(src, copy, partial); !status.ok()) return status;
      kv_.CopyBlock(src.value(), copy.value());
      child->blocks.push_back(copy);
    }
    stats_.prefix_hit_tokens += static_cast<uint64_t>(parent.computed);
    stats_.forked_tokens += static_cast<uint64_t>(parent.computed);
    running_.push_back(std::move(child));
  }
  parent.samples_to_fork = 0;
  return absl::OkStatus();
}

absl::Status Engine::Finish(Sequence& sequence, std::span<const BlockId> blocks) {
  ++stats_.requests_finished;
  FinishedRequest request;
  request.id = sequence.id;
  request.prompt_tokens = sequence.prompt_tokens;
  request.prefix_hit_tokens = sequence.prefix_hit_tokens;
  request.preemptions = sequence.preemptions;
  request.tokens = std::move(sequence.tokens);
  if (!sequence.wants_routing) {
    collector_.AddWithoutRows(std::move(request));
    return absl::OkStatus();
  }
  // Before the blocks are released, so that the snapshot has no rows of their next request.
  absl::StatusOr<Snapshot> snapshot =
      pool_->store().TakeSnapshot(blocks, 0, static_cast<int64_t>(request.tokens.size()) - 1);
  if (!snapshot.ok()) return snapshot.status();
  collector_.AddLast(std::move(request), *std::move(snapshot));
  return absl::OkStatus();
}

absl::Status Engine::UpdateWeights(const MoeModel* model) {
  if (!SameShape(model->config(), model_->config())) {
    return absl::InvalidArgumentError(
        "UpdateWeights: model must have the shape of the one it replaces");
  }
  // Their KV is of the old weights: the routes they have so far are kept, the rest is done again.
  while (!running_.empty()) {
    if (absl::Status status = Preempt(running_.size() - 1); !status.ok()) return status;
  }
  pool_->Reset();
  model_ = model;
  ++version_;
  return absl::OkStatus();
}

absl::StatusOr<SelfTestReport> Engine::SelfTest(int rows) {
  const auto forward = [this](const CaptureView& view, int32_t count) -> absl::Status {
    const auto size = static_cast<size_t>(count);
    batch_ = {};
    batch_.rows = size;
    for (int32_t i = 0; i < count; ++i)
      batch_.tokens.push_back(i % 256);
    // Rows of no sequence: nothing of the cache is read or written.
    batch_.positions.assign(size, 0);
    batch_.sequences.assign(size, -1);
    batch_.slots.assign(size, kPaddingSlot);
    return Forward(view);
  };
  return RunSelfTest(*session_, rows, forward);
}

}  // namespace waymark::reference
