// The whole host path: a capture session on host memory, a forward that writes layer views, the
// store's landing, which checks, packs, and makes the views -1 again.
#include <cstring>
#include <memory>
#include <utility>

#include "plugin/capture/capture_session.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

std::unique_ptr<CaptureSession> MakeSession(RoutingStore& store) {
  CaptureOptions options;
  options.store = &store;
  options.max_rows = kDecodeRows;
  options.num_buffers = 4;
  auto session = CaptureSession::Create(options);
  Demand(session.ok(), "no session");
  return *std::move(session);
}

// Engine's thread, and landing against a row-wise memcpy of packed rows to as many other rows.
void SessionStep(benchmark::State& state) {
  FilledStore& filled = SharedStore(16, Landing::kManual);
  const std::unique_ptr<CaptureSession> session = MakeSession(filled.store());
  const std::vector<std::uint8_t> bytes = TokenMajorBytes(kDecodeRows, 6);
  const std::vector<std::int16_t> shorts = LayerMajorShorts(bytes, kDecodeRows);
  const std::size_t row_bytes = static_cast<std::size_t>(kLayers) * kTopK;
  const std::size_t layer_bytes = static_cast<std::size_t>(kDecodeRows) * kTopK * 2;

  // Where a store of one's own would have the same 256 x 16 rows: pages apart, in this order.
  std::vector<std::uint8_t> pages(std::size_t{kDecodeRows} * 16 * row_bytes);
  std::vector<std::int64_t> slots(kDecodeRows);
  const auto iterations = static_cast<std::size_t>(state.max_iterations);
  Times engine(iterations);
  Times landing(iterations);
  Times copies(iterations);
  std::size_t at = 0;
  for (auto _ : state) {
    const std::size_t offset = at++ % 16;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i] =
          std::int64_t{filled.shuffled()[i].value()} * 16 + static_cast<std::int64_t>(offset);
    }
    const StepId step(filled.NextStep());
    StepCode code;
    double on_thread = Time([&] {
      code = session->BeginStep({step.value(), 1, nullptr, 0, slots.data(), 256});
    });
    Demand(code.ok(), "a step was refused");
    const CaptureView view = session->view(step);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      std::memcpy(view.layer(layer), shorts.data() + std::size_t(layer) * layer_bytes / 2,
                  layer_bytes);
    }
    on_thread += Time([&] { code = session->Submit(step); });
    Demand(code.ok(), "a step was refused");
    filled.ApplyLog();
    const double landed = Time([&] { filled.Settle(); });
    const double copied = Time([&] {
      for (std::size_t i = 0; i < slots.size(); ++i) {
        Copy(pages.data() + (i * 16 + (offset + 8) % 16) * row_bytes, bytes.data() + i * row_bytes,
             row_bytes);
      }
      benchmark::ClobberMemory();
    });
    engine.Add(on_thread);
    landing.Add(landed);
    copies.Add(copied);
    state.SetIterationTime(on_thread / 1e9);
  }
  const CaptureStats stats = session->GetStats();
  for (const LayerStats& layer : stats.layers)
    Demand(layer.rows_silent == 0 && layer.rows_invalid == 0, "rows did not land");
  Report(state, engine);
  state.counters["landing_us"] = landing.Micros(0.5);
  state.counters["memcpy_us"] = copies.Micros(0.5);
  state.counters["ratio"] = landing.Micros(0.5) / copies.Micros(0.5);
}

// What a step costs the engine's thread, the view not written, with caches that something else has
// used since the last step.
void SessionStepAfter(benchmark::State& state, Caches caches) {
  FilledStore& filled = SharedStore(16, Landing::kManual);
  const std::unique_ptr<CaptureSession> session = MakeSession(filled.store());
  DecodeSteps steps(filled, Blocks::kOthers);
  CacheWalk& walk = SharedWalk();
  Times engine(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    walk.Make(caches);
    const StepBatch batch = steps.Next();
    StepCode code;
    const double taken = Time([&] {
      code = session->BeginStep(batch);
      if (code.ok()) code = session->Submit(StepId(batch.step));
    });
    Demand(code.ok(), "a step was refused");
    filled.ApplyLog();
    filled.Settle();
    engine.Add(taken);
    state.SetIterationTime(taken / 1e9);
  }
  Report(state, engine);
}

WAYMARK_BENCH(cold_own, SessionStepAfter, 400, Caches::kColdOwn);
WAYMARK_BENCH(cold, SessionStepAfter, 40, Caches::kCold);
BENCHMARK(SessionStep)->UseManualTime()->Iterations(4000);

}  // namespace
}  // namespace waymark::bench
