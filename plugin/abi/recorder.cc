// The flight recorder of the C ABI.
#include <memory>
#include <string>

#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

wm_status RecorderCreate(const wm_capture_options* options, const wm_recorder_options* recorder,
                         wm_recorder** out, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_capture_options of_store = {};
    wm_ext_log log = {};
    StoreOptions store;
    if (absl::Status status = TakeStoreOptions(options, of_store, log, store); !status.ok()) {
      return status;
    }
    wm_recorder_options args = {};
    Arguments check;
    if (recorder != nullptr) check.Struct(recorder, args, "recorder");
    check.Flags(args.flags, WM_RECORDER_IDS, "recorder.flags").Chain(args.ext, "recorder.ext");
    check.Array(args.cpus, args.num_cpus, "recorder.cpus");
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    RecorderOptions of_recorder;
    if (args.ring_bytes != 0) of_recorder.ring_bytes = args.ring_bytes;
    if ((args.flags & WM_RECORDER_IDS) != 0) of_recorder.rows = FlightRows::kIds;
    if (args.num_cpus != 0) of_recorder.cpus.assign(args.cpus, args.cpus + args.num_cpus);
    auto object = std::make_unique<wm_recorder>();
    object->info = FlightInfo::Of(store);
    absl::StatusOr<std::unique_ptr<FlightRecorder>> made =
        FlightRecorder::Create(store, of_recorder);
    if (!made.ok()) return made.status();
    object->recorder = *std::move(made);
    *out = object.release();
    return absl::OkStatus();
  });
}

wm_status RecorderDump(wm_recorder* recorder, const char* path, wm_message* why) noexcept {
  Arguments check;
  check.Object(recorder, "recorder").Pointer(path, "path");
  return Guard(why, check, [&]() -> absl::Status {
    const std::lock_guard<std::mutex> lock(recorder->dumping);
    return recorder->recorder->Dump(path);
  });
}

wm_status RecorderStatus(const wm_recorder* recorder, wm_message* why) noexcept {
  return Guard(why, Arguments().Object(recorder, "recorder"), [&]() -> absl::Status {
    const std::string stopped = recorder->recorder->stopped();
    return stopped.empty() ? absl::OkStatus() : absl::DataLossError(stopped);
  });
}

}  // namespace

void FillRecorder(wm_api_v1& api) {
  api.recorder_create = &RecorderCreate;
  api.recorder_retain = &Retain<wm_recorder>;
  api.recorder_release = &Release<wm_recorder>;
  api.recorder_dump = &RecorderDump;
  api.recorder_status = &RecorderStatus;
}

}  // namespace waymark::abi
