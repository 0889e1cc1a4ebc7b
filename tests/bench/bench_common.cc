#include "tests/bench/bench_common.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "kernels/pack_rows.h"

namespace waymark::bench {
namespace {

constexpr std::size_t kChunk = 64;
constexpr std::int64_t kFilledRows = std::int64_t{1} << 20;

Reason ReasonOf(kernels::RowVerdict verdict) {
  switch (verdict) {
    case kernels::RowVerdict::kOk:
      return Reason::kNone;
    case kernels::RowVerdict::kNotWritten:
      return Reason::kNotCaptured;
    case kernels::RowVerdict::kInvalidId:
      return Reason::kInvalidId;
  }
  return Reason::kInvalidId;
}

}  // namespace

void Demand(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "waymark_bench: %s\n", what);
  std::abort();
}

RoutingShape Shape(std::int32_t page_tokens) {
  RoutingShape shape;
  shape.num_layers = kLayers;
  shape.top_k = kTopK;
  shape.num_experts = kExperts;
  shape.page_tokens = page_tokens;
  return shape;
}

double Times::Micros(double part) const {
  if (nanoseconds_.empty()) return 0;
  std::vector<double> sorted = nanoseconds_;
  const auto at = static_cast<std::ptrdiff_t>(part * static_cast<double>(sorted.size() - 1));
  std::nth_element(sorted.begin(), sorted.begin() + at, sorted.end());
  return sorted[static_cast<std::size_t>(at)] / 1000;
}

void Report(benchmark::State& state, const Times& times) {
  state.counters["p10_us"] = times.Micros(0.1);
  state.counters["p50_us"] = times.Micros(0.5);
  state.counters["p99_us"] = times.Micros(0.99);
}

// ---- caches

CacheWalk& CacheWalk::Get() {
  static CacheWalk walk;
  return walk;
}

CacheWalk::CacheWalk() {
  const auto reported = [](int name, std::size_t otherwise) {
    const long bytes = sysconf(name);
    return bytes > 0 ? static_cast<std::size_t>(bytes) : otherwise;
  };
  const std::size_t last = reported(_SC_LEVEL3_CACHE_SIZE, std::size_t{32} << 20);
  const std::size_t second = reported(_SC_LEVEL2_CACHE_SIZE, std::size_t{1} << 20);
  buffer_.resize(2 * std::max(last, 4 * second) / sizeof(std::uint64_t), 1);
  own_ = 4 * second / sizeof(std::uint64_t);
  // One element a cache line, linked into one random cycle.
  constexpr std::size_t kLine = 16;
  chain_.resize((std::size_t{4} << 20) / sizeof(std::uint32_t));
  std::vector<std::uint32_t> order(chain_.size() / kLine);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(11);
  std::shuffle(order.begin(), order.end(), random);
  for (std::size_t i = 0; i < order.size(); ++i) {
    chain_[order[i] * kLine] = static_cast<std::uint32_t>(order[(i + 1) % order.size()] * kLine);
  }
}

void CacheWalk::Make(Caches caches) {
  if (caches == Caches::kWarm) return;
  constexpr std::size_t kLine = 8;
  const std::size_t end = caches == Caches::kCold ? buffer_.size() : own_;
  for (std::size_t i = 0; i < end; i += kLine)
    sum_ += buffer_[i]++;
  benchmark::DoNotOptimize(sum_);
}

double CacheWalk::Probe() {
  constexpr int kLoads = 4096;
  std::uint32_t at = 0;
  const double nanoseconds = Time([&] {
    for (int i = 0; i < kLoads; ++i)
      at = chain_[at];
    benchmark::DoNotOptimize(at);
  });
  return nanoseconds / kLoads;
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

PackSource::PackSource(const kernels::IdsView& ids, std::size_t max_rows)
    : ids_(ids), landed_(max_rows, nullptr) {}

PackSource::~PackSource() {
  while (submitted_.load(std::memory_order_acquire) != 0)
    std::this_thread::yield();
}

void PackSource::Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
                      std::span<Reason> verdicts) {
  static constexpr kernels::RowShape kShape{kLayers, kTopK, kExperts};
  std::array<kernels::RowVerdict, kChunk> packed;
  std::copy(destinations.begin(), destinations.end(), landed_.begin() + first);
  const std::size_t faults = kernels::PackRows(kShape, ids_.From(first), destinations, packed);
  if (faults == 0) {
    std::fill_n(verdicts.begin(), destinations.size(), Reason::kNone);
    return;
  }
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    if (destinations[i] != nullptr) verdicts[i] = ReasonOf(packed[i]);
  }
}

// ---- the store

FilledStore::FilledStore(std::int32_t num_blocks, std::int32_t page_tokens, Landing landing)
    : page_tokens_(page_tokens) {
  StoreOptions options;
  options.shape = Shape(page_tokens);
  options.num_blocks = num_blocks;
  options.max_step_rows = kPrefillRows;
  options.landing = landing;
  options.key_seed = 7;
  auto store = RoutingStore::Create(options);
  Demand(store.ok(), "the store cannot be made");
  store_ = *std::move(store);

  const std::vector<std::uint8_t> ids = TokenMajorBytes(kPrefillRows, 1);
  PackSource source(kernels::IdsView::TokenMajor(ids.data(), kernels::IdKind::kUint8,
                                                 {kLayers, kTopK, kExperts}));
  const std::int64_t rows = std::int64_t{num_blocks} * page_tokens;
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
    Run({NextStep(), 1, events.data(), events.size(), slots.data(), slots.size()}, &source);
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

FilledStore& FilledStore::Get(std::int32_t page_tokens, Landing landing) {
  static std::map<std::pair<std::int32_t, Landing>, std::unique_ptr<FilledStore>> stores;
  std::unique_ptr<FilledStore>& store = stores[{page_tokens, landing}];
  if (store == nullptr) {
    store = std::make_unique<FilledStore>(static_cast<std::int32_t>(kFilledRows / page_tokens),
                                          page_tokens, landing);
  }
  return *store;
}

double FilledStore::Run(const StepBatch& batch, PackSource* source) {
  if (source != nullptr) source->Submitted();
  StepCode begun;
  StepCode submitted;
  const double nanoseconds = Time([&] {
    begun = store_->BeginStep(batch);
    submitted = store_->Submit(StepId(batch.step), source);
  });
  Demand(begun.ok() && submitted.ok(), "a step was refused");
  return nanoseconds;
}

void FilledStore::Settle() {
  if (store_->options().landing == Landing::kCaller) {
    Demand(store_->LandOne(), "there was nothing to land");
  } else {
    Demand(store_->WaitIdle(std::chrono::seconds(10)).ok(), "a step did not land");
  }
}

}  // namespace waymark::bench
