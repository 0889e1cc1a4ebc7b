// TierCodec: the names and the bytes of pages in a tier, a page source in which rows are found by
// what their KV is found by. docs/internals/format.md defines the bytes.
//
// A page is named by everything that decides its rows: the namespace and the name of the weights
// (together the *space*), shape and layers, the key of its block and its place there. So a
// process that has the same KV, another one or the same after a restart, finds its rows. An entry
// repeats all of that, with its publisher, the steps of its rows and the digest of its chunk, under
// a message authentication code if there is a secret key: then who can write to the page source can
// remove pages, but cannot make one, nor serve one in the place of another. Without a key the page
// source is trusted.
#ifndef WAYMARK_BLOCKSTORE_WIRE_TIER_ENTRY_H_
#define WAYMARK_BLOCKSTORE_WIRE_TIER_ENTRY_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/digest.h"
#include "blockstore/events.h"
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/digest_key.h"

namespace waymark::wire {

// A page of the sequences that begin with the tokens of `key`.
struct TierPage {
  BlockKey key;               // of its block; not empty
  std::uint32_t ordinal = 0;  // of the page in the block

  friend bool operator==(const TierPage&, const TierPage&) = default;
};

// What the bytes under a name are.
enum class TierEntryState : std::uint8_t {
  kGood,
  kDamaged,  // no entry, or not as it was published, or with impossible ids
  kRefused,  // an authentic entry, of another page
};

// Immutable: const access from any thread.
class TierCodec {
 public:
  // Of the complete pages of stores with `shape`. `space` is the namespace: tenants, models and
  // revisions of a model whose keys may be equal need different ones. Errors of
  // RoutingShape::Validate. Throws std::bad_alloc.
  [[nodiscard]] static absl::StatusOr<TierCodec> Create(const RoutingShape& shape,
                                                        std::string space, const DigestKey& key);

  [[nodiscard]] const RoutingShape& shape() const { return chunks_.shape().rows; }
  // The digest of the namespace and the name of the weights.
  [[nodiscard]] Digest128 Space(std::string_view weights) const;
  // The digest under which the page is put.
  [[nodiscard]] Digest128 Name(const Digest128& space, const TierPage& page) const;

  // The entry of a page whose rows are valid. `publisher`: the engine, the same number on all its
  // pipeline stages. `steps`: [B], below 2^56. `ids`: [B, L, K], as the store keeps them. Throws
  // std::bad_alloc. REQUIRES: these sizes.
  [[nodiscard]] std::vector<std::uint8_t> Encode(const Digest128& space, const TierPage& page,
                                                 std::uint64_t publisher,
                                                 std::span<const std::uint64_t> steps,
                                                 std::span<const std::uint8_t> ids) const;
  // Reads the entry of the page with this name; any bytes are safe. kGood: `ids` has its rows, and
  // steps[i] is the number of its step for other stores, 2^63 or more: equal for rows of one
  // publisher and step alone. Otherwise both are unspecified. REQUIRES: sizes as Encode's.
  [[nodiscard]] TierEntryState Decode(std::span<const std::uint8_t> bytes, const Digest128& name,
                                      std::span<std::uint64_t> steps,
                                      std::span<std::uint8_t> ids) const;

 private:
  TierCodec(ChunkCodec chunks, std::string space)
      : chunks_(std::move(chunks)), space_(std::move(space)) {}

  ChunkCodec chunks_;
  std::string space_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_TIER_ENTRY_H_
