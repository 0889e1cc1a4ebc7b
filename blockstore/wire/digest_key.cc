#include "blockstore/wire/digest_key.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "blockstore/invalid.h"
#include "blockstore/wire/blake2b.h"

namespace waymark::wire {

absl::StatusOr<DigestKey> DigestKey::Create(std::string_view name,
                                            std::span<const std::uint8_t> key) {
  if (key.size() < kLeastBytes || key.size() > kMostBytes) {
    return Invalid(name, " must have ", kLeastBytes, " to ", kMostBytes, " bytes; it has ",
                   key.size());
  }
  DigestKey made;
  std::copy(key.begin(), key.end(), made.key_.begin());
  made.size_ = key.size();
  return made;
}

Digest128 DigestKey::Digest(std::span<const std::uint8_t> front,
                            std::span<const std::uint8_t> bytes) const {
  if (empty()) return ContentDigest(front, bytes);
  Blake2b hash(sizeof(Digest128), std::span(key_).first(size_));
  hash.Update(front);
  hash.Update(bytes);
  std::array<std::uint8_t, sizeof(Digest128)> out;
  hash.Finish(out);
  Digest128 digest;
  std::memcpy(&digest, out.data(), sizeof(digest));
  return digest;
}

}  // namespace waymark::wire
