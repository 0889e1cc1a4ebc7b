// Rows by key: what a tier costs the engine's thread, and how many cores it takes to put the pages
// that an engine seals.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/tier.h"
#include "plugin/capture/capture.h"
#include "plugin/sources/folder_source.h"
#include "plugin/sources/redis_source.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

constexpr std::int32_t kDecodes = 256, kBlock = 16, kLives = 4;

RoutingShape Shape() {
  RoutingShape shape;
  shape.num_layers = kLayers;
  shape.top_k = kTopK;
  shape.num_experts = 256;
  return shape;
}

// Takes its time for each call, or waits for the deadline.
class SlowSource final : public wire::PageSource {
 public:
  explicit SlowSource(bool stopped) : stopped_(stopped) {}
  absl::Status Get(std::span<const Digest128>, wire::Deadline deadline,
                   std::span<wire::Object>) override {
    return Wait(deadline);
  }
  absl::Status Put(std::span<const wire::NamedObject>, wire::Deadline deadline) override {
    return Wait(deadline);
  }

 private:
  absl::Status Wait(wire::Deadline deadline) const {
    if (!stopped_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return absl::OkStatus();
    }
    std::this_thread::sleep_until(deadline);
    return absl::DeadlineExceededError("stopped");
  }
  const bool stopped_;
};

// An engine with 256 decodes: a step writes a row of each, and every 16th seals 256 blocks.
class Decodes {
 public:
  explicit Decodes(std::shared_ptr<wire::PageSource> source)
      : ids_(std::size_t{kDecodes} * kLayers * kTopK) {
    for (std::size_t i = 0; i < ids_.size(); ++i)
      ids_[i] = static_cast<std::int32_t>(i % kTopK + i / kTopK % 200);
    Capture::Options options;
    options.store.shape = Shape();
    options.store.num_blocks = kDecodes * kLives;
    options.tier.get = std::move(source);
    options.tier.space = "bench";
    options.tier.min_key_bytes = 8;
    capture_ = *Capture::Create(options);
    Demand(capture_->NameWeights(1, "w").ok(), "no name");
  }
  // The nanoseconds of the thread, of the events and the step.
  double Step(Clock clock) {
    const std::int32_t row = step_ % kBlock;
    const std::int32_t first = step_ / kBlock % kLives * kDecodes;
    std::array<Event, 2 * kDecodes> events;
    std::array<std::int64_t, kDecodes> slots;
    std::size_t told = 0;
    for (std::int32_t i = 0; i < kDecodes; ++i) {
      const BlockId block(first + i);
      if (row == 0) events[told++] = Event::Bind(block);
      if (row == kBlock - 1) {
        events[told++] = Event::Seal(
            block,
            BlockKey::FromInteger(static_cast<std::uint64_t>(step_ / kBlock * kDecodes + i)));
      }
      slots[static_cast<std::size_t>(i)] = std::int64_t{block.value()} * kBlock + row;
    }
    ++step_;
    const StepIds ids = StepIds::TokenMajor(ids_.data(), IdType::kInt32, kDecodes, Shape());
    StepBatch batch = {.step = static_cast<std::uint64_t>(step_),
                       .version = 1,
                       .events = events.data(),
                       .num_events = told,
                       .slots = slots.data(),
                       .num_slots = slots.size()};
    StepCode code;
    const double time = Time([&] { code = capture_->Step(batch, &ids); }, clock);
    Demand(code.ok(), "a step was refused");
    Demand(capture_->store().WaitIdle(std::chrono::seconds(10)).ok(), "it did not land");
    return time;
  }

 private:
  std::vector<std::int32_t> ids_;
  std::unique_ptr<Capture> capture_;
  std::int32_t step_ = 0;
};

// Steps of four engines in turns, each time in another order: without a tier, and with sources that
// work, are slow, are stopped. The engines are made anew every 4000 steps: where their memory lies
// makes 3 % of a difference. Counters: median CPU time of the engine's thread of each, in us, and as
// a ratio to the one without; and the 99.9th percentile of the time by the clock.
void StepsWithTier(benchmark::State& state) {
  const char* const names[] = {"none", "memory", "slow", "stopped"};
  const auto source_of = [](std::size_t i) -> std::shared_ptr<wire::PageSource> {
    if (i == 0) return nullptr;
    if (i == 1) return std::make_shared<wire::MemorySource>(std::size_t{1} << 28);
    return std::make_shared<SlowSource>(i == 3);
  };
  std::array<std::unique_ptr<Decodes>, 4> engines;
  Times processor[4], wall[4];
  std::array<std::size_t, 4> order = {0, 1, 2, 3};
  std::mt19937 random(1);
  std::size_t turn = 0;
  for (auto _ : state) {
    const Clock clock = turn++ % 2 == 0 ? Clock::kProcessor : Clock::kWall;
    double sum = 0;
    std::ranges::shuffle(order, random);
    for (const std::size_t at : order) {
      if (turn % 4000 == 1) engines[at] = std::make_unique<Decodes>(source_of(at));
    }
    for (const std::size_t at : order) {
      const double time = engines[at]->Step(clock);
      (clock == Clock::kProcessor ? processor : wall)[at].Add(time);
      sum += time;
    }
    state.SetIterationTime(sum * 1e-9);
  }
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const std::string name = names[i];
    state.counters[name + "_cpu_us"] = processor[i].Micros(0.5);
    state.counters[name + "_ratio"] = processor[i].Micros(0.5) / processor[0].Micros(0.5);
    state.counters[name + "_p999_us"] = wall[i].Micros(0.999);
  }
}

std::shared_ptr<wire::PageSource> SourceOf(const std::string& kind) {
  if (kind == "memory") return std::make_shared<wire::MemorySource>(std::size_t{1} << 29);
  if (kind == "folder") {
    const char* const path = std::getenv("WAYMARK_BENCH_FOLDER");
    if (path == nullptr) return nullptr;
    return *FolderSource::Create({.path = path});
  }
  const char* const socket = std::getenv("WAYMARK_BENCH_REDIS");
  if (socket == nullptr) return nullptr;
  RedisOptions options;
  options.unix_socket = socket;
  options.time_to_live = std::chrono::seconds(60);
  auto source = RedisSource::Create(options);
  if (!source.ok()) return nullptr;
  return *std::move(source);
}

// Puts pages as fast as they are taken. Counters: pages a second of the process's CPU time, its own
// threads alone; and the cores that an engine of 20,000 and of 200,000 tokens/s needs.
void TierPuts(benchmark::State& state, const std::string& kind) {
  const std::shared_ptr<wire::PageSource> source = SourceOf(kind);
  if (source == nullptr) {
    state.SkipWithError("WAYMARK_BENCH_REDIS (a socket) or WAYMARK_BENCH_FOLDER is not set");
    return;
  }
  wire::TierOptions options;
  options.get = source;
  options.space = std::to_string(DrawSeed());
  options.min_key_bytes = 8;
  const auto tier = *wire::Tier::Create(Shape(), options);
  Demand(tier->NameWeights(1, "w").ok(), "no name");
  std::vector<std::uint8_t> ids(Shape().page_bytes());
  const std::vector<std::uint64_t> steps(kBlock, 7);
  std::uint64_t number = 0;
  double processor = 0;
  std::timespec at{};
  const auto now = [&at] {
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return static_cast<double>(at.tv_sec) + static_cast<double>(at.tv_nsec) * 1e-9;
  };
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::uint8_t>(i % kTopK + i / kTopK % 200);
  for (auto _ : state) {
    const double begin = now();
    const double wall = Time([&] {
      for (int i = 0; i < 1000; ++i) {
        const BlockKey key = BlockKey::FromInteger(++number);
        tier->OnSealed({.key = key, .version = 1, .steps = steps, .ids = ids});
      }
      Demand(tier->WaitPut(std::chrono::seconds(60)), "pages were not put");
    });
    processor += now() - begin;
    state.SetIterationTime(wall * 1e-9);
  }
  Demand(tier->GetStats().pages_put == number, "pages were not put");
  const double pages = static_cast<double>(number) / processor;
  state.counters["pages_per_cpu_s"] = pages;
  state.counters["cores_at_20k"] = 20000.0 / kBlock / pages;
  state.counters["cores_at_200k"] = 200000.0 / kBlock / pages;
}

BENCHMARK(StepsWithTier)->UseManualTime()->Iterations(20000);
BENCHMARK_CAPTURE(TierPuts, memory, "memory")->UseManualTime()->Iterations(20);
BENCHMARK_CAPTURE(TierPuts, folder, "folder")->UseManualTime()->Iterations(20);
BENCHMARK_CAPTURE(TierPuts, redis, "redis")->UseManualTime()->Iterations(20);

}  // namespace
}  // namespace waymark::bench
