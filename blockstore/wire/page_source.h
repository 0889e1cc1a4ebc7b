// PageSource: where the objects of trajectories lie (chunks, nodes, tail segments), by their
// digest.
//
// Objects never change: whoever has a digest may keep the bytes for ever, and whoever lost them has
// lost no more than them. A lost object is absent, and costs the reader rows; it is never an error
// of the engine.
#ifndef WAYMARK_BLOCKSTORE_WIRE_PAGE_SOURCE_H_
#define WAYMARK_BLOCKSTORE_WIRE_PAGE_SOURCE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "blockstore/digest.h"

namespace waymark::wire {

// The moment after which a call waits for nothing any more.
using Deadline = std::chrono::steady_clock::time_point;
[[nodiscard]] inline Deadline After(std::chrono::nanoseconds timeout) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(timeout);
}

// The bytes of one object, or of a range of it, and what keeps them; or that it is absent. Copies
// share the bytes. A value.
struct Object {
  std::shared_ptr<const void> owner;  // null: absent
  std::span<const std::uint8_t> bytes;

  [[nodiscard]] bool present() const { return owner != nullptr; }
  // The object of these bytes.
  [[nodiscard]] static Object Of(std::vector<std::uint8_t> bytes) {
    auto owner = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
    const std::span<const std::uint8_t> all(*owner);
    return {std::move(owner), all};
  }
};

// Bytes [begin, end) of an object.
struct ObjectRange {
  Digest128 digest;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// An object and its name.
struct NamedObject {
  Digest128 digest;
  Object object;
};

// Any thread, in all of these. Bytes are given as they were put, or as somebody damaged them: the
// reader compares digests. A status other than ok says why objects may be absent that are there
// (Unavailable: the source cannot be reached; DeadlineExceeded; Unimplemented: it does not do
// this); what was had until then is given all the same.
class PageSource {
 public:
  virtual ~PageSource() = default;

  // objects[i] is that of digests[i]. REQUIRES: as many objects as digests.
  [[nodiscard]] virtual absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                                         std::span<Object> objects) = 0;
  // The same of ranges; one that reaches beyond its object is absent. REQUIRES: as many parts as
  // ranges, and no range is empty.
  [[nodiscard]] virtual absl::Status GetRanges(std::span<const ObjectRange> ranges,
                                               Deadline deadline, std::span<Object> parts) = 0;
  // Keeps objects, as long as the source can. The names are believed.
  [[nodiscard]] virtual absl::Status Put(std::span<const NamedObject> objects,
                                         Deadline deadline) = 0;
  // held[i] = 1 where the object of digests[i] is there as far as the source knows, which counts as
  // a use of it; else 0. What it says may be old by as much as the source says where it is made.
  // REQUIRES: as many bytes as digests.
  [[nodiscard]] virtual absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                                           std::span<std::uint8_t> held) = 0;

 protected:
  PageSource() = default;
  PageSource(const PageSource&) = delete;
  PageSource& operator=(const PageSource&) = delete;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_PAGE_SOURCE_H_
