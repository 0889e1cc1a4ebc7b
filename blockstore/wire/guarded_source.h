// GuardedSource: a page source whose exceptions are statuses. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_WIRE_GUARDED_SOURCE_H_
#define WAYMARK_BLOCKSTORE_WIRE_GUARDED_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <span>

#include "blockstore/exception_status.h"
#include "blockstore/wire/page_source.h"

namespace waymark::wire {

// Calls another source. An implementation must not throw, but those of others do: such a call
// returns ExceptionStatus (Internal, or ResourceExhausted without memory), whose text names the
// call. What it had written to `objects` or `held` by then stays, so callers initialise them. Any
// thread, as the source itself.
class GuardedSource final : public PageSource {
 public:
  // `source` is not owned and must outlive the object.
  explicit GuardedSource(PageSource* source) : source_(source) {}

  [[nodiscard]] absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                                 std::span<Object> objects) override {
    return Call("the page source's Get", [&] { return source_->Get(digests, deadline, objects); });
  }
  [[nodiscard]] absl::Status GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                                       std::span<Object> objects) override {
    return Call("the page source's GetRanges",
                [&] { return source_->GetRanges(ranges, deadline, objects); });
  }
  [[nodiscard]] absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override {
    return Call("the page source's Put", [&] { return source_->Put(objects, deadline); });
  }
  [[nodiscard]] absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                                   std::span<std::uint8_t> held) override {
    return Call("the page source's Holds", [&] { return source_->Holds(digests, deadline, held); });
  }
  // How many calls threw, since this object was made. Any thread.
  [[nodiscard]] std::uint64_t exceptions() const {
    return exceptions_.load(std::memory_order_relaxed);
  }

 private:
  // `doing`: static storage.
  template <class Body>
  absl::Status Call(const char* doing, const Body& body) noexcept {
    try {
      return body();
    } catch (...) {
      exceptions_.fetch_add(1, std::memory_order_relaxed);
      return ExceptionStatus(doing);
    }
  }

  PageSource* const source_;
  std::atomic<std::uint64_t> exceptions_{0};
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_GUARDED_SOURCE_H_
