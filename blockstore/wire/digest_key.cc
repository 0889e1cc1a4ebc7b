#include "blockstore/wire/digest_key.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "blockstore/invalid.h"

namespace waymark::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "BLAKE2b reads words as they lie");

constexpr std::array<std::uint64_t, 8> kStart = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

constexpr std::size_t kRounds = 12;
// The order of the message words in each round; rounds 10 and 11 are rounds 0 and 1 again.
constexpr std::uint8_t kWordOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

inline void Mix(std::uint64_t& a, std::uint64_t& b, std::uint64_t& c, std::uint64_t& d,
                std::uint64_t x, std::uint64_t y) {
  a += b + x;
  d = std::rotr(d ^ a, 32);
  c += d;
  b = std::rotr(b ^ c, 24);
  a += b + y;
  d = std::rotr(d ^ a, 16);
  c += d;
  b = std::rotr(b ^ c, 63);
}

// The round is a template parameter so that the order of the words costs nothing at run time.
template <std::size_t kRound>
inline void Round(std::uint64_t (&v)[16], const std::uint64_t (&m)[16]) {
  constexpr const std::uint8_t(&order)[16] = kWordOrder[kRound % 10];
  Mix(v[0], v[4], v[8], v[12], m[order[0]], m[order[1]]);
  Mix(v[1], v[5], v[9], v[13], m[order[2]], m[order[3]]);
  Mix(v[2], v[6], v[10], v[14], m[order[4]], m[order[5]]);
  Mix(v[3], v[7], v[11], v[15], m[order[6]], m[order[7]]);
  Mix(v[0], v[5], v[10], v[15], m[order[8]], m[order[9]]);
  Mix(v[1], v[6], v[11], v[12], m[order[10]], m[order[11]]);
  Mix(v[2], v[7], v[8], v[13], m[order[12]], m[order[13]]);
  Mix(v[3], v[4], v[9], v[14], m[order[14]], m[order[15]]);
}

// Keyed BLAKE2b (RFC 7693) with 16 bytes of output, of bytes that come piece by piece.
class KeyedHash {
 public:
  explicit KeyedHash(std::span<const std::uint8_t> key) {
    state_[0] ^= 0x01010000 ^ (key.size() << 8) ^ sizeof(Digest128);
    std::copy(key.begin(), key.end(), block_.begin());
  }
  void Update(std::span<const std::uint8_t> bytes) {
    while (!bytes.empty()) {
      // A full block is compressed only when more follows: the last one is marked as such.
      if (filled_ == kBlock) {
        Compress(block_.data(), kBlock, false);
        filled_ = 0;
        for (; bytes.size() > kBlock; bytes = bytes.subspan(kBlock))
          Compress(bytes.data(), kBlock, false);
      }
      const std::size_t size = std::min(bytes.size(), kBlock - filled_);
      std::memcpy(block_.data() + filled_, bytes.data(), size);
      filled_ += size;
      bytes = bytes.subspan(size);
    }
  }
  // Once, and nothing after it.
  Digest128 Finish() {
    std::fill(block_.begin() + static_cast<std::ptrdiff_t>(filled_), block_.end(), std::uint8_t{0});
    Compress(block_.data(), filled_, true);
    return std::bit_cast<Digest128>(std::array{state_[0], state_[1]});
  }

 private:
  static constexpr std::size_t kBlock = 128;
  void Compress(const std::uint8_t* block, std::size_t bytes, bool last) {
    count_ += bytes;
    std::uint64_t m[16];
    std::memcpy(m, block, sizeof(m));
    std::uint64_t v[16];
    std::copy(state_.begin(), state_.end(), v);
    std::copy(kStart.begin(), kStart.end(), v + 8);
    v[12] ^= count_;
    if (last) v[14] = ~v[14];
    [&]<std::size_t... kRound>(std::index_sequence<kRound...>) {
      (Round<kRound>(v, m), ...);
    }
    (std::make_index_sequence<kRounds>());
    for (std::size_t i = 0; i < 8; ++i)
      state_[i] ^= v[i] ^ v[i + 8];
  }

  std::array<std::uint64_t, 8> state_ = kStart;
  std::array<std::uint8_t, kBlock> block_ = {};  // at first the key, which is a block of its own
  std::size_t filled_ = kBlock;
  std::uint64_t count_ = 0;  // bytes that were compressed: below 2^64
};

}  // namespace

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
  KeyedHash hash{std::span(key_).first(size_)};
  hash.Update(front);
  hash.Update(bytes);
  return hash.Finish();
}

}  // namespace waymark::wire
