// BundleSource: a page source on top of another one, for stores that want few large objects.
//
// The chunks of the nodes in one call of Put are packed into larger objects, the bundles. The node
// is an object under its own digest, and says where each of its chunks is: so a reader that has got
// the node finds them. Everything else is an object under its own digest. Readers and publishers of
// a store must all use it, or none.
#ifndef WAYMARK_BLOCKSTORE_WIRE_BUNDLE_SOURCE_H_
#define WAYMARK_BLOCKSTORE_WIRE_BUNDLE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "blockstore/mutex.h"
#include "blockstore/wire/object_cache.h"
#include "blockstore/wire/page_source.h"

namespace waymark::wire {

struct BundleOptions {
  std::size_t bundle_bytes = std::size_t{1} << 21;  // a bundle has one chunk, or at most so much
  // How many chunks, and as many nodes, it remembers the places of, about 150 bytes each. A chunk
  // whose place is forgotten is found again when its node is got.
  std::size_t max_places = std::size_t{1} << 18;
};

// Any thread. Get of a chunk reads its whole bundle.
class BundleSource final : public PageSource {
 public:
  explicit BundleSource(std::shared_ptr<PageSource> store, const BundleOptions& options = {})
      : store_(std::move(store)), options_(options) {}

  [[nodiscard]] absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                                 std::span<Object> objects) override;
  // Replaces nodes whose chunks are elsewhere now: the store's Put must replace objects.
  [[nodiscard]] absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override;
  // Of a chunk: whether its bundle is there. Of a node: whether it and its bundles are.
  [[nodiscard]] absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                                   std::span<std::uint8_t> held) override {
    return Ask(digests, {}, deadline, held);
  }
  // Does not ask for a chunk that nothing but its node can place: it is not under its digest.
  [[nodiscard]] absl::Status HoldsOf(std::span<const NamedObject> objects, Deadline deadline,
                                     std::span<std::uint8_t> held) override;
  [[nodiscard]] bool read_only() const override { return store_->read_only(); }
  [[nodiscard]] absl::Status Check(Deadline deadline) override { return store_->Check(deadline); }

 private:
  // Where a chunk is. So it is stored in front of a node, little-endian.
  struct Place {
    Digest128 bundle;
    std::uint32_t offset = 0;
    std::uint32_t size = 0;  // 0: nowhere
  };
  static_assert(sizeof(Place) == 24);
  // In front of the places.
  struct Head {
    std::uint32_t count = 0;
    Digest128 digest;  // of the name of the node and of the places, which its own does not cover
  };
  static_assert(sizeof(Head) == 20);
  template <typename Value>
  using ByDigest = LruMap<Digest128, Value, DigestHash>;
  using Indices = std::vector<std::size_t>;

  using Places = std::unordered_map<Digest128, Place, DigestHash>;
  using There = std::unordered_map<Digest128, std::uint8_t, DigestHash>;

  template <typename Value>
  void Keep(ByDigest<Value>& map, const Digest128& name, Value value);
  [[nodiscard]] Object Unwrap(const Digest128& name, const Object& stored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  [[nodiscard]] NamedObject Wrap(const NamedObject& named) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  [[nodiscard]] std::vector<Digest128> NeedsOf(const Digest128& digest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  [[nodiscard]] std::vector<NamedObject> Pack(std::span<const NamedObject> objects,
                                              Places& places) const;
  [[nodiscard]] std::vector<Place> GetWhole(std::span<const Digest128> digests, Deadline deadline,
                                            std::span<Object> objects, absl::Status& status);
  [[nodiscard]] absl::Status Ask(std::span<const Digest128> digests, There there, Deadline deadline,
                                 std::span<std::uint8_t> held);
  static void Cut(const Object& stored, std::span<const Place> places, const Indices& indices,
                  std::span<Object> objects);

  const std::shared_ptr<PageSource> store_;
  const BundleOptions options_;
  Mutex mutex_;
  ByDigest<Place> places_ ABSL_GUARDED_BY(mutex_);                    // of chunks
  ByDigest<std::vector<Digest128>> bundles_ ABSL_GUARDED_BY(mutex_);  // of whole objects
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_BUNDLE_SOURCE_H_
