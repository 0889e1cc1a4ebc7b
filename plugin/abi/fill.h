// The parts of the C ABI's tables, each filled in by the file of its name, and what they share.
// Included by plugin/abi/ only.
#ifndef WAYMARK_PLUGIN_ABI_FILL_H_
#define WAYMARK_PLUGIN_ABI_FILL_H_

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/log.h"
#include "blockstore/step_code.h"
#include "plugin/abi/arguments.h"
#include "plugin/capture/capture_session.h"
#include "plugin/capture/collective.h"
#include "plugin/capture/ids_tensor.h"
#include "plugin/waymark.h"
#include "plugin/waymark_graph.h"
#include "plugin/waymark_wire.h"

namespace waymark::abi {

void FillCapture(wm_api_v1& api);          // capture.cc
void FillTaken(wm_api_v1& api);            // taken.cc
void FillRows(wm_api_v1& api);             // rows.cc
void FillCounters(wm_api_v1& api);         // counters.cc
void FillNames(wm_api_v1& api);            // code.cc
void FillSession(wm_graph_api_v1& graph);  // session.cc
void FillDocuments(wm_wire_api_v1& wire);  // document.cc

// What was made becomes an object of the caller's.
template <class H, class T>
absl::Status Give(absl::StatusOr<T> made, H** out) {
  if (!made.ok()) return made.status();
  *out = new H(*std::move(made));
  return absl::OkStatus();
}

// ---- code.cc

// Codes of the step path, with the numbers of the ABI. Allocate nothing.
[[nodiscard]] wm_code ToCode(const StepCode& code);

// A call of the step path on `object`, its first argument: `body` returns a code, or nothing.
template <class H, class F>
wm_status StepCall(wm_code* code, const H* object, F&& body) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    if (!IsA(object)) return BadArgument(0);
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return {};
    } else if constexpr (std::is_same_v<decltype(body()), wm_code>) {
      return body();
    } else {
      return ToCode(body());
    }
  });
}

// ---- batch.cc

// `given` as a batch that borrows its arrays, and `pairs`. Argument `index` of the call. Allocates
// nothing.
[[nodiscard]] wm_code TakeBatch(const wm_step_batch* given, std::uint64_t index, PairRows& pairs,
                                StepBatch& to);
// The same for an array of events.
[[nodiscard]] wm_code TakeEvents(const wm_event* events, std::size_t num_events,
                                 std::uint64_t index, std::span<const Event>& to);

// False, with a code, when `given` cannot be read. Rows and columns are the session's to judge.
[[nodiscard]] bool TakeIds(const wm_ids* given, std::uint64_t index, StepIds& to, wm_code& bad);

// ---- capture.cc

// Calls the function of `log`; null: stderr.
[[nodiscard]] LogCallback LogTo(const wm_log& log);
// Fails in a forked child, where the functions that return no status return nothing.
[[nodiscard]] absl::Status OfThisProcess(const wm_capture& capture);

// ---- counters.cc

// The counters of a session.
void AddCounters(const CaptureStats& stats, std::vector<wm_counter>& to);
// Writes the first `capacity` elements, and how many there are. Both arrays were checked.
template <class T>
void GiveAll(const std::vector<T>& from, T* to, std::size_t capacity, std::size_t* count) {
  std::copy_n(from.begin(), std::min(capacity, from.size()), to);
  *count = from.size();
}
// What is known of `layer` (layer_stats); `mutex` guards the names.
[[nodiscard]] absl::Status GiveLayerStats(const CaptureSession& session, std::mutex& mutex,
                                          std::int32_t layer, wm_layer_stats* out);

// ---- rows.cc

// `given`, named `name`, checked. Call it before the first other check that may fail, so that its
// owner releases it whatever the call returns.
[[nodiscard]] Collective TakeCollective(const wm_collective* given, const char* name,
                                        Arguments& check);
// The shape of rows of `given`.
[[nodiscard]] absl::StatusOr<RoutingShape> TakeShape(const wm_shape* given);

}  // namespace waymark::abi

#endif  // WAYMARK_PLUGIN_ABI_FILL_H_
