// How few bytes of each struct of the C headers a caller may give, and which structs have the
// layout of the library's own types.
// Included by plugin/abi/ only.
#ifndef WAYMARK_PLUGIN_ABI_LAYOUT_H_
#define WAYMARK_PLUGIN_ABI_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "blockstore/digest.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/row_info.h"
#include "plugin/waymark.h"
#include "plugin/waymark_graph.h"
#include "plugin/waymark_wire.h"

namespace waymark::abi {

static_assert(sizeof(void*) == 8 && sizeof(std::size_t) == 8, "the ABI is for 64-bit machines");

// A struct_size above this is garbage: memory that was not initialised.
inline constexpr std::uint32_t kMostStructBytes = 65536;

// The least struct_size of a struct that a call fills. It may end anywhere from there on, also
// within a field: CopyOut writes that many bytes.
inline constexpr std::uint32_t kLeastOutBytes = 8;

// The least struct_size of a struct that a call reads: the end of its last required field. Never
// changes, or callers that were compiled against an older header would be refused. Where nothing
// else is said, 8: no field but the first two is required.
template <class T>
inline constexpr std::uint32_t kLeastBytes = 8;

#define WM_LAST_REQUIRED(type, field) \
  template <>                         \
  inline constexpr std::uint32_t kLeastBytes<type> = offsetof(type, field) + sizeof(type::field)
WM_LAST_REQUIRED(wm_pair_rows, block_tokens);
WM_LAST_REQUIRED(wm_step_batch, num_slots);
WM_LAST_REQUIRED(wm_capture_options, num_blocks);
WM_LAST_REQUIRED(wm_schedule_options, block_tokens);
WM_LAST_REQUIRED(wm_rows_view, infos);
WM_LAST_REQUIRED(wm_collective, all_gather);
WM_LAST_REQUIRED(wm_session_options, max_rows);
WM_LAST_REQUIRED(wm_ids, k_stride);
WM_LAST_REQUIRED(wm_part, end);
WM_LAST_REQUIRED(wm_source_callbacks, get);
WM_LAST_REQUIRED(wm_publisher_options, shape);
WM_LAST_REQUIRED(wm_fetcher_options, source);
#undef WM_LAST_REQUIRED

// Arrays of these, of block ids and of digests are passed on without a copy: the library's own
// types have the same layout.
#define WM_FIELD(type, field, own)                               \
  static_assert(offsetof(type, field) == offsetof(own, field) && \
                sizeof(type::field) == sizeof(own::field))
static_assert(sizeof(wm_event) == sizeof(Event) && alignof(wm_event) == alignof(Event));
WM_FIELD(wm_event, type, Event);
WM_FIELD(wm_event, key_size, Event);
WM_FIELD(wm_event, more, Event);
WM_FIELD(wm_event, block, Event);
WM_FIELD(wm_event, src, Event);
WM_FIELD(wm_event, rows, Event);
WM_FIELD(wm_event, step, Event);
WM_FIELD(wm_event, key, Event);
static_assert(sizeof(wm_row_info) == sizeof(RowInfo) && alignof(wm_row_info) == alignof(RowInfo));
WM_FIELD(wm_row_info, step, RowInfo);
WM_FIELD(wm_row_info, version, RowInfo);
WM_FIELD(wm_row_info, reason, RowInfo);
WM_FIELD(wm_row_info, provenance, RowInfo);
WM_FIELD(wm_row_info, reserved, RowInfo);
#undef WM_FIELD
static_assert(sizeof(BlockId) == sizeof(std::int32_t) && alignof(BlockId) == alignof(std::int32_t));
static_assert(sizeof(wm_digest) == sizeof(Digest128));

}  // namespace waymark::abi

#endif  // WAYMARK_PLUGIN_ABI_LAYOUT_H_
