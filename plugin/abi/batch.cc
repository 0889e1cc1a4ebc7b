// Batches of the C ABI.
#include <memory>
#include <string>

#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

static_assert(static_cast<int>(EventType::kBind) == WM_EVENT_BIND &&
              static_cast<int>(EventType::kRetain) == WM_EVENT_RETAIN &&
              static_cast<int>(EventType::kRelease) == WM_EVENT_RELEASE &&
              static_cast<int>(EventType::kSeal) == WM_EVENT_SEAL &&
              static_cast<int>(EventType::kCopy) == WM_EVENT_COPY &&
              static_cast<int>(EventType::kMove) == WM_EVENT_MOVE &&
              static_cast<int>(EventType::kTruncate) == WM_EVENT_TRUNCATE &&
              static_cast<int>(EventType::kReset) == WM_EVENT_RESET);
static_assert(kPaddingSlot == WM_PADDING_SLOT && NotAsked(5) == WM_NOT_ASKED(5));
static_assert(BlockKey::kMaxBytes == WM_KEY_BYTES && Event::kAllRows == WM_ALL_ROWS);

absl::Status TakeBatchOrSay(const wm_step_batch* given, StepBatch& to) {
  const wm_code code = TakeBatch(given, 0, to);
  if (code.code == WM_OK) return absl::OkStatus();
  wm_step_batch args = {};
  Arguments check;
  check.Struct(given, args, "batch").Flags(args.flags, WM_BATCH_DEVICE_SLOTS, "batch.flags");
  check.Chain(args.ext, "batch.ext").Array(args.events, args.num_events, "batch.events");
  check.Array(args.slots, args.num_slots, "batch.slots");
  return check.status();
}

std::uint64_t BatchSize(const wm_step_batch* given) noexcept {
  StepBatch batch;
  if (TakeBatch(given, 0, batch).code != WM_OK) return 0;
  return SerializedSize(batch);
}

wm_status BatchSerialize(const wm_step_batch* given, std::uint8_t* out, std::size_t capacity,
                         std::size_t* size, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    StepBatch batch;
    if (absl::Status status = TakeBatchOrSay(given, batch); !status.ok()) return status;
    Arguments check;
    check.Pointer(size, "size")
        .That(out != nullptr || capacity == 0, "out", "must not be null with a capacity");
    if (!check.ok()) return check.status();
    const std::size_t bytes = SerializedSize(batch);
    if (bytes > capacity) {
      *size = bytes;
      return absl::OutOfRangeError("capacity: must be at least " + std::to_string(bytes) +
                                   "; it is " + std::to_string(capacity));
    }
    std::string written;
    SerializeBatch(batch, written);
    // Bytes that batch_parse would refuse are not written.
    std::span<const std::uint8_t> read(reinterpret_cast<const std::uint8_t*>(written.data()),
                                       written.size());
    if (const auto parsed = ParseBatch(read); !parsed.ok()) return parsed.status();
    std::memcpy(out, written.data(), written.size());
    *size = written.size();
    return absl::OkStatus();
  });
}

wm_status BatchParse(const std::uint8_t* bytes, std::size_t size, std::size_t* used, wm_batch** out,
                     wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.That(bytes != nullptr || size == 0, "bytes", "must not be null with a size");
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    std::span<const std::uint8_t> rest(bytes, size);
    absl::StatusOr<OwnedStepBatch> batch = ParseBatch(rest);
    if (!batch.ok()) return batch.status();
    auto object = std::make_unique<wm_batch>();
    object->batch = *std::move(batch);
    if (used != nullptr) *used = size - rest.size();
    *out = object.release();
    return absl::OkStatus();
  });
}

wm_status BatchView(const wm_batch* batch, wm_step_batch* view) noexcept {
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Object(batch, "batch").OutStruct(view, "view");
    if (!check.ok()) return check.status();
    const OwnedStepBatch& of = batch->batch;
    wm_step_batch lent = {};
    lent.flags = of.device_slots ? WM_BATCH_DEVICE_SLOTS : 0;
    lent.step = of.step;
    lent.version = of.version;
    lent.events = reinterpret_cast<const wm_event*>(of.events.data());
    lent.num_events = of.events.size();
    lent.slots = of.slots.data();
    lent.num_slots = of.slots.size();
    CopyOut(lent, view);
    return absl::OkStatus();
  });
}

}  // namespace

wm_code TakeBatch(const wm_step_batch* given, std::uint64_t index, StepBatch& to) {
  wm_step_batch args = {};
  if (!CopyIn(given, args)) return BadArgument(index, args.struct_size);
  if ((args.flags & ~WM_BATCH_DEVICE_SLOTS) != 0) return BadArgument(index, args.flags);
  if (const ChainFault fault = WalkChain(args.ext, nullptr); fault.code != WM_OK) {
    wm_code code = BadArgument(index, static_cast<std::int64_t>(fault.value));
    code.code = fault.code;
    return code;
  }
  if (args.num_events > kMostElements || (args.events == nullptr && args.num_events > 0)) {
    return BadArgument(index, static_cast<std::int64_t>(args.num_events));
  }
  if (args.num_slots > kMostElements || (args.slots == nullptr && args.num_slots > 0)) {
    return BadArgument(index, static_cast<std::int64_t>(args.num_slots));
  }
  to.step = args.step;
  to.version = args.version;
  to.events = reinterpret_cast<const Event*>(args.events);
  to.num_events = args.num_events;
  to.slots = args.slots;
  to.num_slots = args.num_slots;
  to.device_slots = (args.flags & WM_BATCH_DEVICE_SLOTS) != 0;
  return {};
}

void FillBatches(wm_api_v1& api) {
  api.batch_size = &BatchSize;
  api.batch_serialize = &BatchSerialize;
  api.batch_parse = &BatchParse;
  api.batch_retain = &Retain<wm_batch>;
  api.batch_release = &Release<wm_batch>;
  api.batch_view = &BatchView;
}

}  // namespace waymark::abi
