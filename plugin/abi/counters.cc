// The counters of captures and sessions in the C ABI.
#include <array>
#include <string>
#include <vector>

#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

CaptureStats SessionStatsOf(const wm_capture& capture) {
  const std::lock_guard<std::mutex> lock(capture.mutex);
  return capture.capture->session().GetStats();
}

void AddStoreCounters(const Stats& stats, std::vector<wm_counter>& to) {
  const auto add = [&to](const char* name, const char* meaning, auto value) {
    to.push_back({name, meaning, static_cast<double>(value)});
  };
#define WAYMARK_COUNTER(name, meaning) add(#name, meaning, stats.name);
  WAYMARK_STORE_COUNTERS(WAYMARK_COUNTER)
#undef WAYMARK_COUNTER
  static const auto kMissing = [] {
    std::array<std::string, kNumStoreReasons> names;
    for (int i = 0; i < kNumStoreReasons; ++i)
      names[static_cast<std::size_t>(i)] =
          "rows_missing." + std::string(ReasonName(static_cast<Reason>(i)));
    return names;
  }();
  for (std::size_t i = 1; i < kMissing.size(); ++i)
    add(kMissing[i].c_str(), "rows that became missing for this reason", stats.rows_missing[i]);
#define WAYMARK_MEASURE(name, value, meaning) add(#name, meaning, stats.value);
  WAYMARK_STORE_MEASURES(WAYMARK_MEASURE)
#undef WAYMARK_MEASURE
}

wm_status CaptureStatsOf(const wm_capture* capture, wm_counter* out, std::size_t capacity,
                         std::size_t* count) noexcept {
  Arguments check;
  check.Object(capture, "capture").Array(out, capacity, "out").Pointer(count, "count");
  return Guard(nullptr, check, [&]() -> absl::Status {
    if (absl::Status status = OfThisProcess(*capture); !status.ok()) return status;
    std::vector<wm_counter> counters;
    AddStoreCounters(capture->capture->store().GetStats(), counters);
    std::vector<wm_counter> of_session;
    AddCounters(SessionStatsOf(*capture), of_session);
    // Those of the exchange between ranks; what else it counts is above.
    counters.insert(counters.end(), of_session.end() - 3, of_session.end());
    GiveAll(counters, out, capacity, count);
    return absl::OkStatus();
  });
}

wm_status CaptureLayerStats(const wm_capture* capture, std::int32_t layer,
                            wm_layer_stats* out) noexcept {
  return Guard(nullptr, Arguments().Object(capture, "capture").OutStruct(out, "out"), [&] {
    return GiveLayerStats(capture->capture->session(), capture->mutex, layer, out);
  });
}

}  // namespace

void AddCounters(const CaptureStats& stats, std::vector<wm_counter>& to) {
#define WAYMARK_COUNTER(name, meaning) \
  to.push_back({#name, meaning, static_cast<double>(stats.name)});
  WAYMARK_SESSION_COUNTERS(WAYMARK_COUNTER)
#undef WAYMARK_COUNTER
}

absl::Status GiveLayerStats(const CaptureSession& session, std::mutex& mutex, std::int32_t layer,
                            wm_layer_stats* out) {
  Arguments check;
  check.InRange(layer, 0, session.shape().num_layers - 1, "layer");
  if (!check.ok()) return check.status();
  const std::lock_guard<std::mutex> lock(mutex);
  const auto at = static_cast<std::size_t>(layer);
  const LayerStats of = session.GetStats().layers[at];
  wm_layer_stats to = {};
  to.layer_id = of.layer_id;
  // A name that is there stays as it is: a layer is named once.
  to.module = of.module.empty() ? "" : session.modules()[at].c_str();
  to.rows_silent = of.rows_silent;
  to.rows_invalid = of.rows_invalid;
  CopyOut(to, out);
  return absl::OkStatus();
}

void FillCounters(wm_api_v1& api) {
  api.capture_stats = &CaptureStatsOf;
  api.capture_layer_stats = &CaptureLayerStats;
}

}  // namespace waymark::abi
