// Snapshots of the C ABI.
#include <chrono>
#include <memory>

#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

wm_status SnapshotRange(const wm_snapshot* snapshot, std::int64_t* first,
                        std::int64_t* last) noexcept {
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Object(snapshot, "snapshot").Pointer(first, "first").Pointer(last, "last");
    if (!check.ok()) return check.status();
    *first = snapshot->snapshot.first();
    *last = snapshot->snapshot.last();
    return absl::OkStatus();
  });
}

wm_status SnapshotShape(const wm_snapshot* snapshot, wm_shape* out) noexcept {
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Object(snapshot, "snapshot").OutStruct(out, "out");
    if (check.ok()) CopyOut(snapshot->shape->View(), out);
    return check.status();
  });
}

// Readers ask until it is: it costs no text.
wm_status SnapshotReady(const wm_snapshot* snapshot) noexcept {
  return GuardStep(nullptr, [&]() -> wm_code {
    if (!IsA(snapshot)) return BadArgument(0);
    return {snapshot->snapshot.Ready() ? WM_OK : WM_UNAVAILABLE};
  });
}

wm_status SnapshotWait(const wm_snapshot* snapshot, std::int64_t timeout_ns,
                       wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(snapshot, "snapshot");
    if (!check.ok()) return check.status();
    return WaitFor(timeout_ns, [snapshot](std::int64_t piece) {
      return snapshot->snapshot.Wait(std::chrono::nanoseconds(piece));
    });
  });
}

wm_status SnapshotRead(const wm_snapshot* snapshot, const wm_read_args* given,
                       wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(snapshot, "snapshot");
    if (!check.ok()) return check.status();
    wm_read_args args = {};
    if (absl::Status status = TakeReadArgs(given, args); !status.ok()) return status;
    return snapshot->snapshot.Read(args.begin, args.end, SpecOf(args), OutOf(args), InfosOf(args));
  });
}

wm_status SnapshotCoverage(const wm_snapshot* snapshot, wm_coverage_run* runs, std::size_t capacity,
                           std::size_t* count, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(snapshot, "snapshot").Array(runs, capacity, "runs").Pointer(count, "count");
    if (!check.ok()) return check.status();
    const absl::StatusOr<std::vector<CoverageRun>> found = snapshot->snapshot.Coverage();
    if (!found.ok()) return found.status();
    GiveRuns(*found, runs, capacity, count);
    return absl::OkStatus();
  });
}

wm_status SnapshotRows(const wm_snapshot* snapshot, wm_rows** out, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(snapshot, "snapshot").Pointer(out, "out");
    if (!check.ok()) return check.status();
    absl::StatusOr<Rows> rows = snapshot->snapshot.ReadRows();
    if (!rows.ok()) return rows.status();
    *out = new wm_rows(*std::move(rows));
    return absl::OkStatus();
  });
}

}  // namespace

absl::Status TakeSnapshotArgs(const wm_snapshot_args* given, wm_snapshot_args& args) {
  Arguments check;
  check.Struct(given, args, "args").Flags(args.flags, 0, "args.flags");
  check.Chain(args.ext, "args.ext").Array(args.blocks, args.num_blocks, "args.blocks");
  return check.status();
}

std::span<const BlockId> BlocksOf(const wm_snapshot_args& args) {
  return {reinterpret_cast<const BlockId*>(args.blocks), args.num_blocks};
}

void FillSnapshots(wm_api_v1& api) {
  api.snapshot_retain = &Retain<wm_snapshot>;
  api.snapshot_release = &Release<wm_snapshot>;
  api.snapshot_range = &SnapshotRange;
  api.snapshot_shape = &SnapshotShape;
  api.snapshot_ready = &SnapshotReady;
  api.snapshot_wait = &SnapshotWait;
  api.snapshot_read = &SnapshotRead;
  api.snapshot_coverage = &SnapshotCoverage;
  api.snapshot_rows = &SnapshotRows;
}

}  // namespace waymark::abi
