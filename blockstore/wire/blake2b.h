// BLAKE2b (RFC 7693), with and without a key.
#ifndef WAYMARK_BLOCKSTORE_WIRE_BLAKE2B_H_
#define WAYMARK_BLOCKSTORE_WIRE_BLAKE2B_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace waymark::wire {

// The hash of up to 64 bytes of output, of a message that is passed piece by piece. A value. One
// thread at a time.
class Blake2b {
 public:
  // REQUIRES: 1 <= out_bytes <= 64; key.size() <= 64 (0: without a key).
  Blake2b(std::size_t out_bytes, std::span<const std::uint8_t> key);
  void Update(std::span<const std::uint8_t> bytes);
  // Writes the hash of all pieces. Call it once, and nothing after it. REQUIRES: out.size() is
  // out_bytes.
  void Finish(std::span<std::uint8_t> out);

 private:
  static constexpr std::size_t kBlock = 128;
  void Compress(const std::uint8_t* block, bool last);

  std::array<std::uint64_t, 8> state_;
  std::array<std::uint8_t, kBlock> block_ = {};
  std::size_t filled_ = 0;   // bytes of block_
  std::uint64_t count_ = 0;  // bytes that were compressed: below 2^64
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_BLAKE2B_H_
