#include "adapters/bench/workload.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "kernels/pack_rows.h"

namespace waymark::bench {
namespace {

constexpr std::size_t kChunk = 64;
constexpr kernels::RowShape kRowShape{kLayers, kTopK, kExperts};

}  // namespace

RoutingShape Shape(std::int32_t page_tokens) {
  return {.num_layers = kLayers,
          .top_k = kTopK,
          .num_experts = kExperts,
          .page_tokens = page_tokens,
          .layer_ids = {}};
}

// ---- rows

std::vector<std::uint8_t> TokenMajorBytes(std::int64_t rows, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint8_t> ids(static_cast<std::size_t>(rows) * kLayers * kTopK);
  std::array<std::uint8_t, kExperts> experts{};
  std::iota(experts.begin(), experts.end(), std::uint8_t{0});
  for (std::size_t at = 0; at < ids.size(); at += kTopK) {
    for (std::size_t k = 0; k < kTopK; ++k) {
      std::swap(experts[k], experts[k + random() % (kExperts - k)]);
      ids[at + k] = experts[k];
    }
  }
  return ids;
}

std::vector<std::int16_t> LayerMajorShorts(std::span<const std::uint8_t> token_major,
                                           std::int64_t rows) {
  const auto count = static_cast<std::size_t>(rows);
  std::vector<std::int16_t> ids(count * kLayers * kTopK);
  for (std::size_t row = 0; row < count; ++row) {
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      for (std::size_t k = 0; k < kTopK; ++k) {
        ids[(layer * count + row) * kTopK + k] = token_major[(row * kLayers + layer) * kTopK + k];
      }
    }
  }
  return ids;
}

PackedRows::PackedRows(const kernels::IdsView& ids, std::size_t max_rows)
    : ids_(ids), landed_(max_rows, nullptr) {}

PackedRows::~PackedRows() {
  while (submitted_.load(std::memory_order_acquire) != 0)
    std::this_thread::yield();
}

void PackedRows::Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
                      std::span<Reason> verdicts) {
  std::array<kernels::RowVerdict, kChunk> packed;
  std::copy(destinations.begin(), destinations.end(), landed_.begin() + first);
  const std::size_t faults = kernels::PackRows(kRowShape, ids_.From(first), destinations, packed);
  // No row has a fault; with one, none is valid.
  std::fill_n(verdicts.begin(), destinations.size(),
              faults == 0 ? Reason::kNone : Reason::kInvalidId);
}

BenchRows::BenchRows(std::int64_t rows)
    : bytes(TokenMajorBytes(rows, 5)),
      shorts(LayerMajorShorts(bytes, rows)),
      token_major(kernels::IdsView::TokenMajor(bytes.data(), kernels::IdKind::kUint8, kRowShape)),
      layer_major(
          kernels::IdsView::LayerMajor(shorts.data(), kernels::IdKind::kInt16, rows, kRowShape)) {}

// ---- the store

FilledStore::FilledStore(std::int64_t rows, std::int32_t page_tokens, Landing landing)
    : page_tokens_(page_tokens) {
  const auto num_blocks = static_cast<std::int32_t>(rows / page_tokens);
  StoreOptions options;
  options.shape = Shape(page_tokens);
  options.num_blocks = num_blocks;
  options.max_step_rows = kPrefillRows;
  options.landing = landing;
  if (landing == Landing::kManual) options.log_bytes = std::size_t{8} << 20;  // as with kThread
  options.key_seed = 7;
  options.log = LogCallback::Discard();
  auto store = RoutingStore::Create(options);
  Demand(store.ok(), "the store cannot be made");
  store_ = *std::move(store);

  const std::vector<std::uint8_t> ids = TokenMajorBytes(kPrefillRows, 1);
  PackedRows step_rows(
      kernels::IdsView::TokenMajor(ids.data(), kernels::IdKind::kUint8, kRowShape));
  std::vector<std::int64_t> slots;
  std::vector<Event> events;
  for (std::int64_t row = 0; row < rows; row += kPrefillRows) {
    slots.resize(static_cast<std::size_t>(std::min<std::int64_t>(kPrefillRows, rows - row)));
    std::iota(slots.begin(), slots.end(), row);
    events.clear();
    for (const std::int64_t slot : slots) {
      if (slot % page_tokens != 0) continue;
      events.push_back(Event::Bind(BlockId(static_cast<std::int32_t>(slot / page_tokens))));
    }
    Run({NextStep(), 1, events.data(), events.size(), slots.data(), slots.size()}, &step_rows);
    Settle();
  }
  // Pages were taken in the order of the blocks; sequences shall have theirs anywhere.
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_blocks));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(3);
  std::shuffle(order.begin(), order.end(), random);
  for (const std::int32_t block : order)
    shuffled_.emplace_back(block);
}

double FilledStore::Run(const StepBatch& batch, PackedRows* rows) {
  if (rows != nullptr) rows->Submitted();
  StepCode begun;
  StepCode submitted;
  const double nanoseconds = Time([&] {
    begun = store_->BeginStep(batch);
    submitted = store_->Submit(StepId(batch.step), rows);
  });
  Demand(begun.ok() && submitted.ok(), "a step was refused");
  return nanoseconds;
}

void FilledStore::ApplyLog() {
  (void)store_->Apply(std::numeric_limits<std::size_t>::max());
}

void FilledStore::Settle() {
  ApplyLog();
  if (store_->options().landing != Landing::kThread) {
    Demand(store_->LandOne(), "there was nothing to land");
  } else {
    Demand(store_->WaitIdle(std::chrono::seconds(10)).ok(), "a step did not land");
  }
}

// ---- steps

DecodeSteps::DecodeSteps(FilledStore& store, Blocks blocks)
    : store_(store), blocks_(blocks), slots_(kDecodeRows) {
  if (blocks != Blocks::kTurnover) return;
  const auto first = store.shuffled().first(kDecodeRows);
  current_.assign(first.begin(), first.end());
  next_block_ = kDecodeRows;
}

std::size_t DecodeSteps::period() const {
  const auto page = static_cast<std::size_t>(store_.page_tokens());
  return blocks_ == Blocks::kOthers ? store_.shuffled().size() / kDecodeRows : page;
}

StepBatch DecodeSteps::Next() {
  const std::uint64_t step = store_.NextStep();
  const std::size_t number = step_no_++;
  if (blocks_ == Blocks::kTurnover) {
    Turnover(step);
  } else {
    const std::int64_t page = store_.page_tokens();
    const std::size_t groups = store_.shuffled().size() / kDecodeRows;
    const bool others = blocks_ == Blocks::kOthers;
    // kOthers goes to the next offset when every block had a row.
    const std::size_t group = others ? number % groups : 0;
    const auto offset = static_cast<std::int64_t>(others ? number / groups : number) % page;
    for (std::size_t i = 0; i < kDecodeRows; ++i) {
      slots_[i] = std::int64_t{store_.shuffled()[group * kDecodeRows + i].value()} * page + offset;
    }
  }
  return {step, 1, events_.data(), events_.size(), slots_.data(), slots_.size()};
}

// 16 of 256 requests are at the end of a block, which is sealed by this step, and 16 at the
// beginning of one, which is bound by it.
void DecodeSteps::Turnover(std::uint64_t step) {
  events_.clear();
  const auto page = static_cast<std::size_t>(store_.page_tokens());
  for (std::size_t i = 0; i < kDecodeRows; ++i) {
    const std::size_t offset = (step_no_ + i) % page;
    if (offset == 0) {
      current_[i] = store_.shuffled()[next_block_];
      next_block_ = (next_block_ + 1) % store_.shuffled().size();
      events_.push_back(Event::Bind(current_[i]));
    }
    slots_[i] = std::int64_t{current_[i].value()} * store_.page_tokens() +
                static_cast<std::int64_t>(offset);
  }
  for (std::size_t i = 0; i < kDecodeRows; ++i) {
    if (static_cast<std::size_t>(slots_[i]) % page != page - 1) continue;
    events_.push_back(Event::Seal(current_[i], BlockKey::FromInteger(++key_), StepId(step)));
  }
}

std::size_t PrefillSteps::period() const {
  return store_.shuffled().size() * static_cast<std::size_t>(store_.page_tokens()) / kPrefillRows;
}

StepBatch PrefillSteps::Next() {
  const std::uint64_t step = store_.NextStep();
  const std::int64_t page = store_.page_tokens();
  slots_.clear();
  events_.clear();
  while (slots_.size() < kPrefillRows) {
    const BlockId block = store_.shuffled()[next_];
    next_ = (next_ + 1) % store_.shuffled().size();
    events_.push_back(Event::Bind(block));
    events_.push_back(Event::Seal(block, BlockKey::FromInteger(++key_), StepId(step)));
    for (std::int64_t row = 0; row < page; ++row)
      slots_.push_back(std::int64_t{block.value()} * page + row);
  }
  return {step, 1, events_.data(), events_.size(), slots_.data(), slots_.size()};
}

}  // namespace waymark::bench
