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

absl::Status TakeBatchOrSay(const wm_step_batch* given, BatchRows& rows, StepBatch& to) {
  const wm_code code = TakeBatch(given, 0, rows, to);
  if (code.code == WM_OK) return absl::OkStatus();
  wm_step_batch args = {};
  wm_pair_rows pairs = {};
  wm_table_rows table = {};
  Arguments check;
  check.Struct(given, args, "batch").Flags(args.flags, WM_BATCH_DEVICE_SLOTS, "batch.flags");
  check.Chain(args.ext, "batch.ext").Array(args.events, args.num_events, "batch.events");
  check.Array(args.slots, args.num_slots, "batch.slots");
  if (args.pairs != nullptr) {
    check.Struct(args.pairs, pairs, "batch.pairs");
    check.Array(pairs.block_idx, pairs.num_rows, "batch.pairs.block_idx");
    check.Array(pairs.local_position, pairs.num_rows, "batch.pairs.local_position");
  }
  if (args.table != nullptr) {
    check.Struct(args.table, table, "batch.table");
    check.Array(table.block_table, table.num_requests, "batch.table.block_table");
    check.Array(table.num_computed_tokens, table.num_requests, "batch.table.num_computed_tokens");
    check.Array(table.num_scheduled_tokens, table.num_requests, "batch.table.num_scheduled_tokens");
    check.That(table.table_stride <= kMostElements, "batch.table.table_stride",
               "must be at most 2147483647");
    check.That(table.num_padding <= kMostElements, "batch.table.num_padding",
               "must be at most 2147483647");
  }
  return check.status();
}

std::uint64_t BatchSize(const wm_step_batch* given) noexcept {
  BatchRows rows;
  StepBatch batch;
  if (TakeBatch(given, 0, rows, batch).code != WM_OK) return 0;
  return SerializedSize(batch);
}

wm_status BatchSerialize(const wm_step_batch* given, std::uint8_t* out, std::size_t capacity,
                         std::size_t* size, wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    BatchRows rows;
    StepBatch batch;
    if (absl::Status status = TakeBatchOrSay(given, rows, batch); !status.ok()) return status;
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

wm_code TakeEvents(const wm_event* events, std::size_t num_events, std::uint64_t index,
                   std::span<const Event>& to) {
  if (num_events > kMostElements || (events == nullptr && num_events > 0)) {
    return BadArgument(index, static_cast<std::int64_t>(num_events));
  }
  to = {reinterpret_cast<const Event*>(events), num_events};
  return {};
}

wm_code TakeBatch(const wm_step_batch* given, std::uint64_t index, BatchRows& rows, StepBatch& to) {
  wm_step_batch args = {};
  if (!CopyIn(given, args)) return BadArgument(index, args.struct_size);
  if ((args.flags & ~WM_BATCH_DEVICE_SLOTS) != 0) return BadArgument(index, args.flags);
  if (const ChainFault fault = WalkChain(args.ext, nullptr); fault.code != WM_OK) {
    wm_code code = BadArgument(index, static_cast<std::int64_t>(fault.value));
    code.code = fault.code;
    return code;
  }
  std::span<const Event> events;
  if (const wm_code bad = TakeEvents(args.events, args.num_events, index, events);
      bad.code != WM_OK) {
    return bad;
  }
  if (args.num_slots > kMostElements || (args.slots == nullptr && args.num_slots > 0)) {
    return BadArgument(index, static_cast<std::int64_t>(args.num_slots));
  }
  to.step = args.step;
  to.version = args.version;
  to.events = events.data();
  to.num_events = events.size();
  to.slots = args.slots;
  to.num_slots = args.num_slots;
  to.device_slots = (args.flags & WM_BATCH_DEVICE_SLOTS) != 0;
  if (args.pairs != nullptr) {
    wm_pair_rows pairs = {};
    if (!CopyIn(args.pairs, pairs)) return BadArgument(index, pairs.struct_size);
    if (pairs.num_rows > kMostElements ||
        (pairs.num_rows > 0 && (pairs.block_idx == nullptr || pairs.local_position == nullptr))) {
      return BadArgument(index, static_cast<std::int64_t>(pairs.num_rows));
    }
    rows.pairs = {pairs.block_idx,   pairs.local_position, pairs.asked,         pairs.num_rows,
                  pairs.index_bytes, pairs.block_tokens,   pairs.position_bytes};
    to.pairs = &rows.pairs;
  }
  if (args.table != nullptr) {
    wm_table_rows table = {};
    if (!CopyIn(args.table, table)) return BadArgument(index, table.struct_size);
    const bool any = table.num_requests > 0;
    if (std::max({table.num_requests, table.table_stride, table.num_padding}) > kMostElements ||
        (any && (table.block_table == nullptr || table.num_computed_tokens == nullptr ||
                 table.num_scheduled_tokens == nullptr))) {
      return BadArgument(index, static_cast<std::int64_t>(table.num_requests));
    }
    rows.table.block_table = table.block_table;
    rows.table.table_stride = table.table_stride;
    rows.table.num_requests = table.num_requests;
    rows.table.num_computed_tokens = table.num_computed_tokens;
    rows.table.num_scheduled_tokens = table.num_scheduled_tokens;
    rows.table.asked = table.asked;
    rows.table.num_padding = table.num_padding;
    rows.table.block_tokens = table.block_tokens;
    to.table = &rows.table;
  }
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
