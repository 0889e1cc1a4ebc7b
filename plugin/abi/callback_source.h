// CallbackSource: a page source whose objects a program keeps behind C callbacks
// (wm_source_callbacks, plugin/waymark_wire.h). Internal: a C++ program derives wire::PageSource.
#ifndef WAYMARK_PLUGIN_ABI_CALLBACK_SOURCE_H_
#define WAYMARK_PLUGIN_ABI_CALLBACK_SOURCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "blockstore/digest.h"
#include "blockstore/wire/page_source.h"
#include "plugin/waymark_wire.h"

// The objects of one call of `get` or `get_ranges`, as the callback passes them. Lives as long as
// that call. One thread.
struct wm_reply {
  static constexpr std::uint64_t kTag = 0x776d207265706c79;  // "wm reply"

  // `ranges` has as many elements as `objects`, or none: whole objects.
  wm_reply(std::span<waymark::wire::Object> to, std::span<const waymark::wire::ObjectRange> of)
      : objects(to), ranges(of) {}
  ~wm_reply() { tag.store(0, std::memory_order_relaxed); }
  wm_reply(const wm_reply&) = delete;
  wm_reply& operator=(const wm_reply&) = delete;

  // Object `index` has these bytes, which are copied. InvalidArgument beyond the request, or when
  // a range has another length.
  [[nodiscard]] absl::Status Set(std::size_t index, std::span<const std::uint8_t> bytes);

  std::atomic<std::uint64_t> tag{kTag};  // as abi::RefCounted has (plugin/abi/types.h)
  const std::span<waymark::wire::Object> objects;
  const std::span<const waymark::wire::ObjectRange> ranges;
};

namespace waymark {

// Calls are passed on to the callbacks, on the thread that makes them. No callback is made after
// the deadline. What a callback throws becomes Internal; a status that is none becomes Unknown.
class CallbackSource final : public wire::PageSource {
 public:
  // REQUIRES: callbacks.get.
  explicit CallbackSource(const wm_source_callbacks& callbacks) : callbacks_(callbacks) {}
  // Calls `destroy`.
  ~CallbackSource() override;

  [[nodiscard]] absl::Status Get(std::span<const Digest128> digests, wire::Deadline deadline,
                                 std::span<wire::Object> objects) override;
  // Without `get_ranges`: Unimplemented, so that fetchers get whole objects, and compare them with
  // their digests.
  [[nodiscard]] absl::Status GetRanges(std::span<const wire::ObjectRange> ranges,
                                       wire::Deadline deadline,
                                       std::span<wire::Object> objects) override;
  // Without `put`: Unimplemented.
  [[nodiscard]] absl::Status Put(std::span<const wire::NamedObject> objects,
                                 wire::Deadline deadline) override;
  // Without `holds`: none.
  [[nodiscard]] absl::Status Holds(std::span<const Digest128> digests, wire::Deadline deadline,
                                   std::span<std::uint8_t> held) override;

 private:
  const wm_source_callbacks callbacks_;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_ABI_CALLBACK_SOURCE_H_
