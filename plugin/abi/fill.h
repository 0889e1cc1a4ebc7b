// The parts of the C ABI's tables, each filled in by the file of its name, and what they share.
// Included by plugin/abi/ only.
#ifndef WAYMARK_PLUGIN_ABI_FILL_H_
#define WAYMARK_PLUGIN_ABI_FILL_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/log.h"
#include "blockstore/row_info.h"
#include "blockstore/rows.h"
#include "blockstore/step_code.h"
#include "blockstore/store/store.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/shape_block.h"
#include "kernels/routing.h"
#include "plugin/abi/arguments.h"
#include "plugin/capture/capture_code.h"
#include "plugin/capture/collective.h"
#include "plugin/waymark.h"
#include "plugin/waymark_wire.h"

namespace waymark::abi {

void FillScheduleWriter(wm_api_v1& api);    // schedule_writer.cc
void FillRecorder(wm_api_v1& api);          // recorder.cc
void FillStore(wm_api_v1& api);             // store.cc
void FillSnapshots(wm_api_v1& api);         // snapshot.cc
void FillRows(wm_api_v1& api);              // rows.cc
void FillSession(wm_api_v1& api);           // session.cc
void FillRouting(wm_api_v1& api);           // route.cc
void FillDocuments(wm_wire_api_v1& wire);   // document.cc
void FillSources(wm_wire_api_v1& wire);     // source.cc
void FillPublishing(wm_wire_api_v1& wire);  // publishing.cc
void FillFetching(wm_wire_api_v1& wire);    // fetching.cc

// ---- code.cc

// Codes of the step path, with the numbers of the ABI. Allocate nothing.
[[nodiscard]] wm_code ToCode(const StepCode& code);
[[nodiscard]] wm_code ToCode(const CaptureCode& code);
[[nodiscard]] wm_code ToCode(wm_status status, const kernels::RoutingCode& code);
void FillNames(wm_api_v1& api);

// ---- batch.cc

// `given` as a batch that borrows its arrays, and `pairs`. Argument `index` of the call. Allocates
// nothing.
[[nodiscard]] wm_code TakeBatch(const wm_step_batch* given, std::uint64_t index, PairRows& pairs,
                                StepBatch& to);
// The same for an array of events.
[[nodiscard]] wm_code TakeEvents(const wm_event* events, std::size_t num_events,
                                 std::uint64_t index, std::span<const Event>& to);

// ---- store.cc

// Checks `given` and makes store options of it, without a recorder and a log. `args` is the copy.
[[nodiscard]] absl::Status TakeStoreOptions(const wm_store_options* given, wm_store_options& args,
                                            wm_ext_log& log, StoreOptions& to);

// Passes log lines to `log`, if it has a function. The copy of `log` that this needs lives as long
// as the store, because steps may land after their session is released.
[[nodiscard]] LogCallback LogOf(wm_store& store, const wm_ext_log& log);
// Calls the function of `log`, which must outlive the callback.
[[nodiscard]] LogCallback LogTo(wm_ext_log& log);

// ---- snapshot.cc

// The copy of `given`, checked but for the range and the ids of the blocks.
[[nodiscard]] absl::Status TakeSnapshotArgs(const wm_snapshot_args* given, wm_snapshot_args& args);
[[nodiscard]] std::span<const BlockId> BlocksOf(const wm_snapshot_args& args);

// ---- rows.cc

// `given`, named `name`, checked. The checks of `check` go on; before the first other one that may
// fail, so that its owner releases it whatever the call returns.
[[nodiscard]] Collective TakeCollective(const wm_collective* given, const char* name,
                                        Arguments& check);
// The shape of rows of `given`.
[[nodiscard]] absl::StatusOr<RoutingShape> TakeShape(const wm_shape* given);
// The copy of `given`, checked by itself, not against the rows that are read: their range, and the
// sizes of `out` and `infos`.
[[nodiscard]] absl::Status TakeReadArgs(const wm_read_args* given, wm_read_args& args);
[[nodiscard]] ReadSpec SpecOf(const wm_read_args& args);
[[nodiscard]] std::span<std::uint8_t> OutOf(const wm_read_args& args);
[[nodiscard]] std::span<RowInfo> InfosOf(const wm_read_args& args);
// Writes the first `capacity` runs, and how many there are. `runs` and `count` were checked.
void GiveRuns(const std::vector<CoverageRun>& from, wm_coverage_run* runs, std::size_t capacity,
              std::size_t* count);

// ---- document.cc

// How rows of `shape` are to be coded. Null is the default.
[[nodiscard]] absl::StatusOr<wire::ChunkCode> TakeChunkCode(const wm_chunk_code* given,
                                                            const RoutingShape& shape);
// How a document is read, from memory or a file.
struct Reading {
  wire::ReadLimits limits;
  wire::FileAccess access = wire::FileAccess::kRead;
};
// Null is the default.
[[nodiscard]] absl::StatusOr<Reading> TakeLimits(const wm_read_limits* given);
// Null is `all`. Does not check that the part lies in `all`.
[[nodiscard]] absl::StatusOr<RowsAndLayers> TakePart(const wm_part* given,
                                                     const RowsAndLayers& all);
[[nodiscard]] inline std::int64_t ToCount(std::uint64_t count) {
  return static_cast<std::int64_t>(std::min<std::uint64_t>(count, 0x7fffffffffffffff));
}

}  // namespace waymark::abi

#endif  // WAYMARK_PLUGIN_ABI_FILL_H_
