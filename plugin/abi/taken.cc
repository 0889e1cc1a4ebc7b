// Rows that are taken, by a call or by a message, in the C ABI.
#include <map>
#include <utility>
#include <vector>

#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

wm_status CaptureTake(wm_capture* capture, const std::int32_t* blocks, std::size_t num_blocks,
                      std::int64_t first, std::int64_t last, wm_taken** out,
                      wm_message* why) noexcept {
  Arguments check;
  check.Object(capture, "capture").Array(blocks, num_blocks, "blocks").Pointer(out, "out");
  return Guard(why, check, [&] {
    return Give(
        capture->capture->Take({reinterpret_cast<const BlockId*>(blocks), num_blocks}, first, last),
        out);
  });
}

std::vector<BlockKey> KeysOf(const wm_owner& owner) {
  std::vector<BlockKey> keys(owner.num_keys);
  for (std::size_t i = 0; i < keys.size(); ++i)
    keys[i] = BlockKey::FromBytes({owner.keys + i * owner.key_size, owner.key_size});
  return keys;
}

wm_status CaptureTakeOf(wm_capture* capture, const wm_owner* owner, const std::int32_t* blocks,
                        std::size_t num_blocks, std::int64_t first, std::int64_t last,
                        wm_taken** out, wm_message* why) noexcept {
  Arguments check;
  wm_owner args = {};
  check.Object(capture, "capture").Struct(owner, args, "owner");
  check.Array(blocks, num_blocks, "blocks").Pointer(out, "out");
  check.InRange(args.key_size, args.num_keys == 0 ? 0 : 1, WM_KEY_BYTES, "owner.key_size");
  check.InRange(args.num_keys, 0, num_blocks, "owner.num_keys");
  check.Array(args.keys, args.num_keys, "owner.keys");
  check.That(args.num_keys == 0 || args.last_step != 0, "owner.last_step",
             "must not be 0 with keys");
  return Guard(why, check, [&] {
    const std::vector<BlockKey> keys = KeysOf(args);
    return Give(capture->capture->Take({reinterpret_cast<const BlockId*>(blocks), num_blocks},
                                       first, last, {args.last_step, keys}, args.version),
                out);
  });
}

// Readers ask until it is: it costs no text.
wm_status TakenDone(const wm_taken* taken) noexcept {
  return StepCall(nullptr, taken,
                  [&]() -> wm_code { return {taken->rows.done() ? WM_OK : WM_UNAVAILABLE}; });
}

wm_status TakenWait(const wm_taken* taken, std::int64_t timeout_ns, wm_message* why) noexcept {
  return Guard(why, Arguments().Object(taken, "taken"),
               [&] { return taken->rows.Wait(Bounded(timeout_ns)); });
}

wm_status TakenRowsOf(const wm_taken* taken, wm_rows** out, wm_message* why) noexcept {
  return Guard(why, Arguments().Object(taken, "taken").Pointer(out, "out"), [&] {
    if (!taken->rows.done()) return absl::UnavailableError("taken: must be done; it is not yet");
    return Give(taken->rows.rows(), out);
  });
}

wm_status TakenWhenDone(wm_taken* taken, wm_done call, wm_message* why) noexcept {
  Arguments check;
  check.Object(taken, "taken");
  check.That(call.function != nullptr, "call.function", "must not be null");
  return Guard(why, check, [&] {
    taken->rows.WhenDone([call] { call.function(call.context); });
    return absl::OkStatus();
  });
}

wm_status CaptureReportMessage(wm_capture* capture, const std::uint8_t* bytes, std::size_t size,
                               wm_message* why) noexcept {
  return Guard(why, Arguments().Object(capture, "capture").Array(bytes, size, "bytes"), [&] {
    return capture->capture->ReportMessage({bytes, size});
  });
}

wm_status CaptureReportMessageOf(wm_capture* capture, const std::uint8_t* bytes, std::size_t size,
                                 const wm_tag_keys* given, std::size_t num_keys,
                                 wm_message* why) noexcept {
  Arguments check;
  check.Object(capture, "capture").Array(bytes, size, "bytes").Array(given, num_keys, "keys");
  return Guard(why, check, [&]() -> absl::Status {
    std::map<std::uint64_t, RowKeys> keys;
    for (std::size_t i = 0; i < num_keys; ++i) {
      Arguments of;
      wm_owner args = {};
      of.Struct(given[i].owner, args, "keys.owner");
      of.InRange(args.key_size, args.num_keys == 0 ? 0 : 1, WM_KEY_BYTES, "keys.owner.key_size");
      of.Array(args.keys, args.num_keys, "keys.owner.keys");
      if (!of.ok()) return of.status();
      keys[given[i].tag] = {KeysOf(args), args.version};
    }
    return capture->capture->ReportMessage({bytes, size}, nullptr, std::move(keys));
  });
}

wm_status CaptureNameWeights(wm_capture* capture, std::uint64_t version, const char* name,
                             wm_message* why) noexcept {
  return Guard(why, Arguments().Object(capture, "capture").Pointer(name, "name"),
               [&] { return capture->capture->NameWeights(version, name); });
}

wm_status CaptureNextResult(wm_capture* capture, std::uint64_t* tag, wm_rows** out,
                            wm_message* why) noexcept {
  Arguments check;
  check.Object(capture, "capture").Pointer(tag, "tag").Pointer(out, "out");
  return Guard(why, check, [&]() -> absl::Status {
    if (absl::Status status = OfThisProcess(*capture); !status.ok()) return status;
    const std::lock_guard<std::mutex> lock(capture->mutex);
    for (Capture::Result& result : capture->capture->Results())
      capture->results.push_back(std::move(result));
    if (capture->results.empty()) return absl::NotFoundError("no rows have been read");
    const Capture::Result& result = capture->results.front();
    absl::Status status = Give(result.rows.rows(), out);
    *tag = result.tag;
    capture->results.pop_front();
    return status;
  });
}

wm_status CaptureWaitResults(const wm_capture* capture, std::int64_t timeout_ns,
                             wm_message* why) noexcept {
  return Guard(why, Arguments().Object(capture, "capture"), [&] {
    absl::Status status = OfThisProcess(*capture);
    return status.ok() ? capture->capture->WaitResults(Bounded(timeout_ns)) : status;
  });
}

}  // namespace

void FillTaken(wm_api_v1& api) {
  api.capture_take = &CaptureTake;
  api.capture_take_of = &CaptureTakeOf;
  api.taken_done = &TakenDone;
  api.taken_wait = &TakenWait;
  api.taken_rows = &TakenRowsOf;
  api.taken_when_done = &TakenWhenDone;
  api.taken_release = &Release<wm_taken>;
  api.capture_report_message = &CaptureReportMessage;
  api.capture_report_message_of = &CaptureReportMessageOf;
  api.capture_name_weights = &CaptureNameWeights;
  api.capture_next_result = &CaptureNextResult;
  api.capture_wait_results = &CaptureWaitResults;
}

}  // namespace waymark::abi
