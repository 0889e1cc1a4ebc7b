// Rows that are taken, in the C ABI.
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
                                       first, last, {args.last_step, keys}),
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

}  // namespace

void FillTaken(wm_api_v1& api) {
  api.capture_take = &CaptureTake;
  api.capture_take_of = &CaptureTakeOf;
  api.taken_done = &TakenDone;
  api.taken_wait = &TakenWait;
  api.taken_rows = &TakenRowsOf;
  api.taken_when_done = &TakenWhenDone;
  api.taken_release = &Release<wm_taken>;
}

}  // namespace waymark::abi
