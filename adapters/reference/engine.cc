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
constexpr uint64_t kNumBuffers = 8;  // steps whose ids may not have been read

template <class Value>
absl::Status BadOption(const char* field, const char* rule, Value value) {
  return absl::InvalidArgumentError(
      absl::StrCat("EngineOptions.", field, " must be ", rule, ", got ", value));
}

int RoundUp(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// What the library does not check.
absl::Status Validate(const EngineOptions& options) {
  if (options.block_tokens < 1) return BadOption("block_tokens", ">= 1", options.block_tokens);
  if (options.max_batched_tokens < 1) {
    return BadOption("max_batched_tokens", ">= 1", options.max_batched_tokens);
  }
  if (options.max_running < 1) return BadOption("max_running", ">= 1", options.max_running);
  if (options.pad_to < 1) return BadOption("pad_to", ">= 1", options.pad_to);
  if (!(options.preempt_rate >= 0 && options.preempt_rate <= 1)) {
    return BadOption("preempt_rate", "in [0, 1]", options.preempt_rate);
  }
  return absl::OkStatus();
}

}  // namespace

std::string RouterName(const MoeModelConfig& config, int layer) {
  return absl::StrCat("layers.", config.num_dense_layers + layer, ".moe.router");
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const MoeModel* model,
                                                       const EngineOptions& options) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  const MoeModelConfig& config = model->config();
  if (absl::Status status = config.Validate(); !status.ok()) return status;
  const int num_layers = config.num_moe_layers();
  for (const int layer : options.silent_layers) {
    if (layer < 0 || layer >= num_layers) {
      return BadOption("silent_layers", "captured layers", layer);
    }
  }
  Capture::Options capture;
  StoreOptions& store = capture.store;
  store.log = LogCallback::Discard();  // its callers look at the counters
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
  store.max_steps_in_flight = kNumBuffers + 1;
  store.max_step_rows = static_cast<uint32_t>(options.max_batched_tokens);
  store.key_seed = 1;
  store.flight = options.flight;
  absl::StatusOr<std::unique_ptr<Capture>> made = Capture::Create(capture);
  if (!made.ok()) return made.status();
  for (int layer = 0; layer < num_layers; ++layer) {
    absl::Status named = (*made)->NameLayer(layer, RouterName(config, layer));
    if (!named.ok()) return named;
  }
  return std::unique_ptr<Engine>(new Engine(model, options, *std::move(made)));
}

Engine::Engine(const MoeModel* model, const EngineOptions& options,
               std::unique_ptr<Capture> capture)
    : model_(model),
      options_(options),
      buffers_(kNumBuffers),
      capture_(std::move(capture)),
      pool_(options.num_blocks, BlockPool::Freed::kStack),
      kv_(model->MakeKv(options.num_blocks, options.block_tokens)) {}

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
  const uint64_t first = next_id_;
  next_id_ += static_cast<uint64_t>(request.samples);
  for (int i = 0; i < request.samples; ++i) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = first + static_cast<uint64_t>(i);
    sequence->tokens = request.prompt;
    sequence->prompt_tokens = static_cast<int>(request.prompt.size());
    sequence->max_new_tokens = request.max_new_tokens;
    sequence->sampling = request.sampling;
    sequence->sampling.seed += static_cast<uint64_t>(i);
    waiting_.push_back(std::move(sequence));
  }
  return first;
}

absl::StatusOr<bool> Engine::Step() {
  if (unfinished() == 0) return false;
  ++step_;
  if (absl::Status status = Schedule(); !status.ok()) return status;
  BuildBatch();
  const absl::StatusOr<CaptureView> ids = AwaitBuffer();
  if (!ids.ok()) return ids.status();
  if (absl::Status status = Forward(*ids); !status.ok()) return status;
  if (absl::Status status = TellStep(*ids); !status.ok()) return status;
  if (absl::Status status = Advance(); !status.ok()) return status;
  if (absl::Status status = Collect(/*all=*/false); !status.ok()) return status;
  return true;
}

absl::Status Engine::RunAll() {
  for (;;) {
    absl::StatusOr<bool> more = Step();
    if (!more.ok()) return more.status();
    if (!*more) break;
  }
  return Collect(/*all=*/true);
}

absl::Status Engine::Collect(bool all) {
  for (; !reading_.empty() && (all || reading_.front().second.back().done());
       reading_.pop_front()) {
    auto& [request, lives] = reading_.front();
    std::vector<std::shared_ptr<const Rows>> read;
    std::vector<const Rows*> rows;
    for (const TakenRows& life : lives) {  // read in this order
      if (absl::Status status = life.Wait(kPatience); !status.ok()) return status;
      absl::StatusOr<std::shared_ptr<const Rows>> of_life = life.rows();
      if (!of_life.ok()) return of_life.status();
      rows.push_back(read.emplace_back(*std::move(of_life)).get());
    }
    absl::StatusOr<Rows> joined = Join(rows);
    if (!joined.ok()) return joined.status();
    request.rows = *std::move(joined);
    finished_.push_back(std::move(request));
  }
  return absl::OkStatus();
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
      batch.slots.push_back(slot);
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

absl::StatusOr<CaptureView> Engine::AwaitBuffer() {
  // A GPU's forward outlasts its landing many times; this model's may not, and a demonstration that
  // drops steps for it would show the machine and not the design. So this engine waits.
  const Clock::time_point start = Clock::now();
  while (stats_.steps - steps_read_.load(std::memory_order_acquire) >= kNumBuffers) {
    if (Clock::now() - start > kPatience) {
      return absl::DeadlineExceededError("the ids of no step were read: landing has stopped");
    }
    std::this_thread::yield();
  }
  const RoutingShape& shape = capture_->store().options().shape;
  const auto rows = static_cast<int32_t>(batch_.tokens.size());
  const auto stride = static_cast<size_t>(rows) * static_cast<size_t>(shape.top_k);
  std::vector<int16_t>& ids = buffers_[stats_.steps % kNumBuffers];
  ids.assign(stride * static_cast<size_t>(shape.num_layers), -1);
  return CaptureView{.data = ids.data(),
                     .layer_stride = static_cast<ptrdiff_t>(stride),
                     .num_layers = shape.num_layers,
                     .max_rows = rows,
                     .top_k = shape.top_k};
}

absl::Status Engine::Forward(const CaptureView& view) {
  const RouteLayer route = [&](int layer, const kernels::RoutingConfig& config,
                               const kernels::RoutingTensors& tensors) {
    const std::vector<int>& silent = options_.silent_layers;
    if (std::find(silent.begin(), silent.end(), layer) != silent.end()) {
      return RouteAlone(layer, config, tensors);
    }
    kernels::RoutingTensors recorded = tensors;
    recorded.replay_out = kernels::Tensor::Matrix(view.layer(layer), kernels::DType::kInt16,
                                                  view.max_rows, view.top_k);
    return RouteAlone(layer, config, recorded);
  };
  const ForwardBatch batch = {batch_.tokens, batch_.positions, batch_.sequences,
                              batch_.slots,  batch_.tables,    batch_.logit_rows};
  return model_->Forward(batch, route, kv_, scratch_, batch_.logits);
}

absl::Status Engine::TellStep(const CaptureView& view) {
  ++stats_.steps;
  stats_.computed_tokens += batch_.rows;
  // The step has the real rows; the ids of the padding are behind theirs.
  const StepBatch batch = {
      .step = step_, .version = version_, .slots = batch_.slots.data(), .num_slots = batch_.rows};
  constexpr auto kIdBytes = static_cast<std::ptrdiff_t>(sizeof(*view.data));
  const StepIds ids = {.data = view.data,
                       .type = IdType::kInt16,
                       .rows = static_cast<int32_t>(batch_.rows),
                       .layers = view.num_layers,
                       .columns = view.top_k,
                       .row_stride = kIdBytes * view.top_k,
                       .layer_stride = kIdBytes * view.layer_stride,
                       .k_stride = kIdBytes};
  const DoneCallback done = {
      [](void* steps_read) {
        static_cast<std::atomic<uint64_t>*>(steps_read)->fetch_add(1, std::memory_order_release);
      },
      &steps_read_};
  const Clock::time_point start = Clock::now();
  const StepCode code = capture_->Step(batch, &ids, done);
  const auto taken = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
  stats_.capture_time.Add(taken);
  stats_.capture_nanoseconds += taken;
  return code.ok() || code.dropped() ? absl::OkStatus() : code.ToStatus();
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
    sequence.tokens.push_back(SampleToken(logits, sequence.sampling, sequence.computed - 1));
    if (!IsDone(sequence)) continue;
    if (absl::Status status = Finish(sequence); !status.ok()) return status;
    ReleaseBlocks(sequence);
    done.push_back(sequence.id);
  }
  std::erase_if(running_, [&done](const SequencePtr& sequence) {
    return std::find(done.begin(), done.end(), sequence->id) != done.end();
  });
  return absl::OkStatus();
}

absl::Status Engine::Finish(Sequence& sequence) {
  ++stats_.requests_finished;
  FinishedRequest request;
  request.id = sequence.id;
  request.prefix_hit_tokens = sequence.prefix_hit_tokens;
  request.preemptions = sequence.preemptions;
  request.tokens = std::move(sequence.tokens);
  const auto rows = static_cast<int64_t>(request.tokens.size()) - 1;
  if (absl::Status status = TakeRows(sequence, rows); !status.ok()) return status;
  reading_.emplace_back(std::move(request), std::move(sequence.lives));
  return absl::OkStatus();
}

absl::Status Engine::TakeRows(Sequence& sequence, int64_t rows) {
  absl::StatusOr<TakenRows> taken = capture_->Take(sequence.blocks, 0, rows);
  if (!taken.ok()) return taken.status();
  sequence.lives.push_back(*std::move(taken));
  return absl::OkStatus();
}

absl::Status Engine::UpdateWeights(const MoeModel* model) {
  MoeModelConfig same = model_->config();
  same.weight_seed = model->config().weight_seed;
  if (model->config() != same) {
    return absl::InvalidArgumentError(
        "UpdateWeights: model must have the sizes of the one it replaces");
  }
  // Their KV is of the old weights: the routes they have so far are kept, the rest is done again.
  while (!running_.empty()) {
    if (absl::Status status = Preempt(running_.size() - 1); !status.ok()) return status;
  }
  pool_ = BlockPool(options_.num_blocks, BlockPool::Freed::kStack);
  events_.push_back(Event::Reset());
  Report();
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
  CaptureOptions options;
  options.store = &capture_->store();
  options.max_rows = rows;
  absl::StatusOr<std::unique_ptr<CaptureSession>> session = CaptureSession::Create(options);
  if (!session.ok()) return session.status();
  for (int layer = 0; layer < model_->config().num_moe_layers(); ++layer) {
    absl::Status named = (*session)->BindLayer(layer, RouterName(model_->config(), layer));
    if (!named.ok()) return named;
  }
  return RunSelfTest(**session, rows, forward);
}

}  // namespace waymark::reference
