// DigestKey: names the objects of the wire by their content, with a secret key or without.
#ifndef WAYMARK_BLOCKSTORE_WIRE_DIGEST_KEY_H_
#define WAYMARK_BLOCKSTORE_WIRE_DIGEST_KEY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "blockstore/digest.h"

namespace waymark::wire {

// Without a key, digests are XXH3-128: they find damage. With a key they are keyed BLAKE2b of 16
// bytes, a message authentication code: who does not have the key cannot make an object and its
// digest. A value; const access from any thread. No text of the library contains the key.
class DigestKey {
 public:
  static constexpr std::size_t kLeastBytes = 16;
  static constexpr std::size_t kMostBytes = 64;

  // No key.
  DigestKey() = default;
  // Copies the key: kLeastBytes to kMostBytes bytes, which should be random. InvalidArgument naming
  // the argument (`name`), the rule and the number of bytes.
  [[nodiscard]] static absl::StatusOr<DigestKey> Create(std::string_view name,
                                                        std::span<const std::uint8_t> key);

  // Whether there is no key.
  [[nodiscard]] bool empty() const { return size_ == 0; }
  // The digest of `front` followed by `bytes`.
  [[nodiscard]] Digest128 Digest(std::span<const std::uint8_t> front,
                                 std::span<const std::uint8_t> bytes) const;
  [[nodiscard]] Digest128 Digest(std::span<const std::uint8_t> bytes) const {
    return Digest({}, bytes);
  }

 private:
  std::array<std::uint8_t, kMostBytes> key_ = {};
  std::size_t size_ = 0;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_DIGEST_KEY_H_
