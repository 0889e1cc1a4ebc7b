// Batches and ids of the C ABI.

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

}  // namespace

wm_code TakeEvents(const wm_event* events, std::size_t num_events, std::uint64_t index,
                   std::span<const Event>& to) {
  if (num_events > kMostElements || (events == nullptr && num_events > 0)) {
    return BadArgument(index, static_cast<std::int64_t>(num_events));
  }
  to = {reinterpret_cast<const Event*>(events), num_events};
  return {};
}

wm_code TakeBatch(const wm_step_batch* given, std::uint64_t index, PairRows& rows, StepBatch& to) {
  wm_step_batch args = {};
  if (!CopyIn(given, args)) return BadArgument(index, args.struct_size);
  if (args.flags != 0) return BadArgument(index, args.flags);
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
  if (args.pairs != nullptr) {
    wm_pair_rows pairs = {};
    if (!CopyIn(args.pairs, pairs)) return BadArgument(index, pairs.struct_size);
    if (pairs.num_rows > kMostElements ||
        (pairs.num_rows > 0 && (pairs.block_idx == nullptr || pairs.local_position == nullptr))) {
      return BadArgument(index, static_cast<std::int64_t>(pairs.num_rows));
    }
    rows = {pairs.block_idx,   pairs.local_position, pairs.asked,         pairs.num_rows,
            pairs.index_bytes, pairs.block_tokens,   pairs.position_bytes};
    to.pairs = &rows;
  }
  return {};
}

bool TakeIds(const wm_ids* given, std::uint64_t index, StepIds& to, wm_code& bad) {
  wm_ids args = {};
  if (!CopyIn(given, args)) {
    bad = BadArgument(index, args.struct_size);
  } else if (args.reserved != 0 || args.reserved_2 != 0) {
    bad = BadArgument(index, args.reserved != 0 ? args.reserved : args.reserved_2);
  } else if (args.type < WM_ID_UINT8 || args.type > WM_ID_INT64) {
    bad = ToCode({WM_INVALID_ARGUMENT, StepRule::kIdsType, 0, args.type});
  } else {
    to = {args.data,
          static_cast<IdType>(args.type),
          args.rows,
          args.layers,
          args.columns,
          static_cast<std::ptrdiff_t>(args.row_stride),
          static_cast<std::ptrdiff_t>(args.layer_stride),
          static_cast<std::ptrdiff_t>(args.k_stride),
          args.first_row};
    return true;
  }
  return false;
}

}  // namespace waymark::abi
