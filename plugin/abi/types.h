// The objects behind the C ABI: what each owns, and what it keeps alive.
// Included by plugin/abi/ only.
//
// Members are destroyed from the last to the first, so what the C++ object of a handle uses is
// declared before it. Which threads may call the functions of an object: the C headers.
#ifndef WAYMARK_PLUGIN_ABI_TYPES_H_
#define WAYMARK_PLUGIN_ABI_TYPES_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "blockstore/flight/recorder.h"
#include "blockstore/rows.h"
#include "blockstore/shape.h"
#include "blockstore/store/stats.h"
#include "plugin/capture/capture.h"
#include "plugin/capture/capture_session.h"
#include "plugin/capture/row_reader.h"
#include "plugin/waymark.h"
#include "plugin/waymark_graph.h"
#include "plugin/waymark_wire.h"

namespace waymark::abi {

// What every object of the ABI begins with: a tag of its type as long as it lives, 8 characters of
// its own as a big-endian number.
template <std::uint64_t kTypeTag>
struct Tagged {
  static constexpr std::uint64_t kTag = kTypeTag;
  std::atomic<std::uint64_t> tag{kTypeTag};
};

// Whether `object` is an H. It is not if it is null, or an object of another type of the ABI. For
// one that was destroyed, a mistake of the caller, the result means nothing.
template <class H>
[[nodiscard]] bool IsA(const H* object) {
  return object != nullptr && object->tag.load(std::memory_order_relaxed) == H::kTag;
}
// Destroys the object on the caller's thread, which waits for what the destructors wait for.
// Ignores what is not an H.
template <class H>
void Release(H* object) noexcept {
  if (!IsA(object)) return;
  object->tag.store(0, std::memory_order_relaxed);
  delete object;
}

// A capture and its recorder.
struct OwnedCapture {
  std::unique_ptr<FlightRecorder> recorder;  // or null
  std::unique_ptr<Capture> capture;
};

// A shape with what wm_shape lends: all layer ids, also where the shape itself has none (then 0, 1,
// ..., L - 1).
class LentShape {
 public:
  // `block_tokens`, `num_blocks`: of a capture; 0 for rows, which have no blocks.
  explicit LentShape(const RoutingShape& shape, std::int32_t block_tokens = 0,
                     std::int32_t num_blocks = 0);
  LentShape(const LentShape&) = delete;
  LentShape& operator=(const LentShape&) = delete;
  // Its pointers are valid as long as this object. struct_size is left to CopyOut.
  [[nodiscard]] const wm_shape& get() const { return shape_; }

 private:
  std::vector<std::int32_t> layer_ids_;
  wm_shape shape_ = {};
};

}  // namespace waymark::abi

struct wm_capture : waymark::abi::Tagged<0x776d206361707475> {  // "wm captu"
  std::mutex dumping;  // capture_dump: one thread at a time writes a file
  // Over the names of layers, which one thread gives and any thread reads, and the findings.
  mutable std::mutex mutex;
  // Taken from `capture`, which gives all that it has, and not returned yet.
  std::deque<waymark::AuditFinding> findings;
  waymark::FlightRecorder* recorder = nullptr;
  std::shared_ptr<waymark::Capture> capture;  // keeps its OwnedCapture; sessions have it, too
  std::unique_ptr<const waymark::abi::LentShape> shape;
};

struct wm_taken : waymark::abi::Tagged<0x776d2074616b656e> {  // "wm taken"
  explicit wm_taken(waymark::TakenRows of) : rows(std::move(of)) {}

  const waymark::TakenRows rows;
};

// Immutable: rows_view lends what is in it.
struct wm_rows : waymark::abi::Tagged<0x776d20726f777320> {  // "wm rows "
  explicit wm_rows(std::shared_ptr<const waymark::Rows> of)
      : kept(std::move(of)), rows(*kept), shape(rows.shape) {}
  explicit wm_rows(waymark::Rows of)
      : wm_rows(std::make_shared<const waymark::Rows>(std::move(of))) {}

  const std::shared_ptr<const waymark::Rows> kept;
  const waymark::Rows& rows;
  const waymark::abi::LentShape shape;
};

struct wm_session : waymark::abi::Tagged<0x776d207365737369> {  // "wm sessi"
  explicit wm_session(const wm_capture& of) : capture(of.capture) {}

  const std::shared_ptr<waymark::Capture> capture;  // outlives `session`
  // Over the bindings of the layers: one thread binds, any thread reads. Not taken on the step
  // path, whose thread is the one that binds.
  mutable std::mutex bindings;
  std::unique_ptr<waymark::CaptureSession> session;
};

struct wm_bytes : waymark::abi::Tagged<0x776d206279746573> {  // "wm bytes"
  explicit wm_bytes(std::vector<std::uint8_t> of) : bytes(std::move(of)) {}

  const std::vector<std::uint8_t> bytes;
};

#endif  // WAYMARK_PLUGIN_ABI_TYPES_H_
