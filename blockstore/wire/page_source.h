// PageSource: the interface of a store of objects, which are the chunks, nodes and tail segments of
// trajectories. An object is named by the digest of its content.
//
// Objects are immutable, so a cached object is never stale. A store may lose or evict any object:
// the reader then misses the rows in it, which is no error.
#ifndef WAYMARK_BLOCKSTORE_WIRE_PAGE_SOURCE_H_
#define WAYMARK_BLOCKSTORE_WIRE_PAGE_SOURCE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "blockstore/digest.h"
#include "blockstore/log.h"
#include "blockstore/timeout.h"

namespace waymark::wire {

// The time at which a call stops blocking and returns what it has.
using Deadline = std::chrono::steady_clock::time_point;
// The deadline `timeout` from now. A negative one counts as 0, one of more than a year as a year.
[[nodiscard]] inline Deadline After(std::chrono::nanoseconds timeout) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(Clamped(timeout));
}

// The bytes of an object or of a range of it, or none if it is absent. A value; copies share the
// bytes, which live as long as any copy of `owner`.
struct Object {
  std::shared_ptr<const void> owner;    // keeps `bytes` alive; null: the object is absent
  std::span<const std::uint8_t> bytes;  // must not be written

  [[nodiscard]] bool present() const { return owner != nullptr; }
  // An object that owns `bytes`.
  [[nodiscard]] static Object Of(std::vector<std::uint8_t> bytes) {
    auto owner = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
    const std::span<const std::uint8_t> all(*owner);
    return {std::move(owner), all};
  }
};

// Bytes [begin, end) of the object with this digest.
struct ObjectRange {
  Digest128 digest;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// An object and the digest that names it: ChunkCodec::Digest for a chunk, ContentDigest of the
// bytes for a node or a tail segment.
struct NamedObject {
  Digest128 digest;
  Object object;
};

// An implementation allows every call from any thread, returns by the deadline (if it blocks at
// all), and does not throw. It need not check digests, in either direction: readers compare them
// (but see Fetcher on what digests do not protect against).
//
// A call with a status other than OK may have found only some of its objects; those are returned
// all the same. Codes: Unavailable (the store cannot be reached), DeadlineExceeded, Unimplemented
// (the implementation has no such call).
class PageSource {
 public:
  virtual ~PageSource() = default;

  // Sets objects[i] to the object of digests[i], or to an absent object.
  // REQUIRES: objects.size() == digests.size().
  [[nodiscard]] virtual absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                                         std::span<Object> objects) = 0;
  // Sets objects[i] to the bytes of ranges[i]; a range that exceeds its object is absent. Here: of
  // the objects that Get returns, for sources where whole ones cost no more.
  // REQUIRES: objects.size() == ranges.size(), and no range is empty.
  [[nodiscard]] virtual absl::Status GetRanges(std::span<const ObjectRange> ranges,
                                               Deadline deadline, std::span<Object> objects) {
    std::vector<Digest128> digests;
    for (const ObjectRange& range : ranges)
      digests.push_back(range.digest);
    absl::Status status = Get(digests, deadline, objects);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].end <= objects[i].bytes.size()) {
        objects[i].bytes =
            objects[i].bytes.subspan(ranges[i].begin, ranges[i].end - ranges[i].begin);
      } else {
        objects[i] = {};
      }
    }
    return status;
  }
  // Stores objects under their digests, which it may trust, for as long as it can. It copies or
  // shares their bytes, so the caller may destroy `objects` afterwards. What shares them keeps the
  // memory of their owner, which may have the bytes of other objects, too.
  [[nodiscard]] virtual absl::Status Put(std::span<const NamedObject> objects,
                                         Deadline deadline) = 0;
  // Sets held[i] to 1 if the store has the object of digests[i] (this counts as a use of it), else
  // to 0. An implementation may return a cached result; its header states how old that can be.
  // Here: whether Get returns it. REQUIRES: held.size() == digests.size().
  [[nodiscard]] virtual absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                                           std::span<std::uint8_t> held) {
    std::vector<Object> objects(digests.size());
    absl::Status status = Get(digests, deadline, objects);
    for (std::size_t i = 0; i < held.size(); ++i)
      held[i] = objects[i].present() ? 1 : 0;
    return status;
  }
  // Holds, of objects that will be put if they are not held. Here: Holds of their digests, for
  // sources that need not look into the objects.
  // REQUIRES: held.size() == objects.size().
  [[nodiscard]] virtual absl::Status HoldsOf(std::span<const NamedObject> objects,
                                             Deadline deadline, std::span<std::uint8_t> held) {
    std::vector<Digest128> digests;
    for (const NamedObject& named : objects)
      digests.push_back(named.digest);
    return Holds(digests, deadline, held);
  }

  // Whether Put always fails: publishers refuse such a source.
  [[nodiscard]] virtual bool read_only() const { return false; }
  // Why the store cannot be used, as far as that shows without an object. Here: OK.
  [[nodiscard]] virtual absl::Status Check(Deadline) { return absl::OkStatus(); }

 protected:
  PageSource() = default;
  PageSource(const PageSource&) = delete;
  PageSource& operator=(const PageSource&) = delete;
};

// Logs `what` and the text of `status`, which is not OK, if `logged` is false until then.
inline void LogOnce(const LogCallback& log, std::atomic<bool>& logged, LogLevel level,
                    const char* what, const absl::Status& status) noexcept {
  if (!log || logged.exchange(true)) return;
  try {
    log(level, what + std::string(": ") + std::string(status.message()));
  } catch (...) {  // no memory for the line
  }
}
// Logs if PageSource::Check fails. For publishers and fetchers, at their first use. `logs`: if not
// null, made false behind the check, and nothing is logged if it was.
inline void CheckAndLog(PageSource& source, Deadline deadline, const LogCallback& log,
                        std::atomic<bool>* logs = nullptr) noexcept {
  std::atomic<bool> logged{false};
  absl::Status status;
  try {
    status = source.Check(deadline);
  } catch (...) {  // of the source
  }
  if ((logs == nullptr || logs->exchange(false)) && !status.ok())
    LogOnce(log, logged, LogLevel::kWarning, "the page source cannot be used now", status);
}

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_PAGE_SOURCE_H_
