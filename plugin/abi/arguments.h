// Arguments of the C ABI: structs in and out, and which of them have the layout of the library's
// own types; texts; and a guard against exceptions.
// Included by plugin/abi/ only.
#ifndef WAYMARK_PLUGIN_ABI_ARGUMENTS_H_
#define WAYMARK_PLUGIN_ABI_ARGUMENTS_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/row_info.h"
#include "blockstore/timeout.h"
#include "plugin/abi/types.h"
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
WM_LAST_REQUIRED(wm_rows_view, infos);
WM_LAST_REQUIRED(wm_collective, all_gather);
WM_LAST_REQUIRED(wm_session_options, max_rows);
WM_LAST_REQUIRED(wm_ids, k_stride);
WM_LAST_REQUIRED(wm_part, end);
#undef WM_LAST_REQUIRED

// Arrays of these and of block ids are passed on without a copy: the library's own
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

// No array of a call is longer: counts above are garbage, and sums of theirs would overflow.
inline constexpr std::uint64_t kMostElements = 0x7fffffff;

// Copies what `from` has of a T to `to`, which is 0 behind it. False, with to.struct_size set, when
// its size is garbage or ends before the last required field; false when `from` is null. Allocates
// nothing.
template <class T>
bool CopyIn(const T* from, T& to) {
  static_assert(kLeastBytes<T> >= 8 && kLeastBytes<T> <= sizeof(T));
  std::memset(&to, 0, sizeof(to));
  if (from == nullptr) return false;
  std::uint32_t size = 0;
  std::memcpy(&size, from, sizeof(size));
  if (size < kLeastBytes<T> || size > kMostStructBytes) {
    std::memcpy(&to, &size, sizeof(size));
    return false;
  }
  std::memcpy(&to, from, std::min<std::size_t>(size, sizeof(T)));
  return true;
}

// Whether `to` can take a T.
template <class T>
bool CanCopyOut(const T* to) {
  if (to == nullptr) return false;
  std::uint32_t size = 0;
  std::memcpy(&size, to, sizeof(size));
  return size >= kLeastOutBytes && size <= kMostStructBytes;
}
// Writes as much of `from` as `to` has room for. REQUIRES: CanCopyOut(to).
template <class T>
void CopyOut(T from, T* to) {
  std::uint32_t size = 0;
  std::memcpy(&size, to, sizeof(size));
  from.struct_size = static_cast<std::uint32_t>(std::min<std::size_t>(size, sizeof(T)));
  std::memcpy(to, &from, from.struct_size);
}

// A wm_message that texts may be written to; null may, always.
[[nodiscard]] inline bool CanTake(const wm_message* message) {
  return message == nullptr || message->text != nullptr || message->capacity == 0;
}
// Writes what fits. REQUIRES: CanTake(to).
void WriteText(std::string_view text, wm_message* to);

// The checks of one call, in order. The first that fails gives the status, with a text that names
// argument, rule and value. Off the step path only: a failure allocates. Throws nothing.
//
//   return Guard(why, Arguments().Object(rows, "rows").Pointer(out, "out"), [&] { ... });
class Arguments {
 public:
  template <class H>
  Arguments& Object(const H* object, const char* name) {
    return That(IsA(object), name,
                object == nullptr ? "must not be null" : "must be an object of this type");
  }
  template <class T>
  Arguments& Struct(const T* from, T& to, const char* name) {
    if (!ok() || CopyIn(from, to)) return *this;
    return Size(name, from, kLeastBytes<T>, to.struct_size);
  }
  template <class T>
  Arguments& OutStruct(const T* to, const char* name) {
    if (!ok() || CanCopyOut(to)) return *this;
    return Size(name, to, kLeastOutBytes, to != nullptr ? to->struct_size : 0);
  }
  Arguments& Pointer(const void* pointer, const char* name);
  // `count` elements lie at `pointer`.
  Arguments& Array(const void* pointer, std::uint64_t count, const char* name);
  Arguments& Flags(std::uint32_t flags, std::uint32_t known, const char* name);
  // A field that has no meaning yet.
  Arguments& Zero(std::uint64_t value, const char* name);
  Arguments& InRange(std::int64_t value, std::int64_t least, std::int64_t most, const char* name);
  Arguments& That(bool holds, const char* name, const char* rule);

  [[nodiscard]] bool ok() const { return status_.ok(); }
  [[nodiscard]] const absl::Status& status() const { return status_; }

 private:
  // `more`: numbers, and texts between them. Without memory the status has no text.
  template <class... T>
  Arguments& Fail(const char* name, const char* rule, const T&... more) noexcept;
  Arguments& Size(const char* name, const void* given, std::uint32_t least, std::uint32_t size);

  absl::Status status_;
};

// Runs `body`, which returns an absl::Status or nothing, and writes its text to `why`. A body that
// returns OK may write to `why` itself. Nothing is thrown.
template <class F>
wm_status Guard(wm_message* why, F&& body) noexcept {
  if (!CanTake(why)) return WM_INVALID_ARGUMENT;
  const auto fail = [why](wm_status code, std::string_view text) {
    WriteText(text, why);
    return code;
  };
  WriteText({}, why);
  try {
    absl::Status status;
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
    } else {
      status = body();
    }
    if (status.ok()) return WM_OK;
    return fail(static_cast<wm_status>(status.code()),
                {status.message().data(), status.message().size()});
  } catch (const std::bad_alloc&) {
    return fail(WM_RESOURCE_EXHAUSTED, "out of memory");
  } catch (const std::length_error&) {
    return fail(WM_RESOURCE_EXHAUSTED, "out of memory: an array would be too long");
  } catch (const std::exception& error) {
    return fail(WM_INTERNAL, error.what());
  } catch (...) {
    return fail(WM_INTERNAL, "an exception that is no std::exception");
  }
}

// The same of a call whose arguments are checked first.
template <class F>
wm_status Guard(wm_message* why, const Arguments& check, F&& body) noexcept {
  if (check.ok()) return Guard(why, body);
  return Guard(why, [&check] { return check.status(); });
}

// The same for calls of the step path: `body` returns a wm_code. Out of memory is INTERNAL here,
// because RESOURCE_EXHAUSTED means that a step was dropped.
template <class F>
wm_status GuardStep(wm_code* code, F&& body) noexcept {
  wm_code result = {};
  try {
    result = body();
  } catch (...) {
    result = {};
    result.code = WM_INTERNAL;
  }
  if (code != nullptr) *code = result;
  return result.code;
}

// Argument `index` of a call of the step path is null, garbage or too short.
[[nodiscard]] inline wm_code BadArgument(std::uint64_t index, std::int64_t value = 0) {
  wm_code code = {};
  code.code = WM_INVALID_ARGUMENT;
  code.rule = WM_RULE_ARGUMENT;
  code.index = index;
  code.value = value;
  return code;
}

// A text that may be null.
[[nodiscard]] inline const char* OrEmpty(const char* text) {
  return text != nullptr ? text : "";
}

// A timeout that can be added to any clock; a negative timeout never expires.
[[nodiscard]] inline std::chrono::nanoseconds Bounded(std::int64_t ns) {
  return ns < 0 ? kLongestTimeout : Clamped(std::chrono::nanoseconds(ns));
}

}  // namespace waymark::abi

#endif  // WAYMARK_PLUGIN_ABI_ARGUMENTS_H_
