// CRC-32C (Castagnoli): finds damaged bytes in chunks, document headers and handles. It does not
// protect against a writer who damages bytes on purpose.
#ifndef WAYMARK_BLOCKSTORE_WIRE_CRC32C_H_
#define WAYMARK_BLOCKSTORE_WIRE_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace waymark::wire {

// Continues a crc: with `crc` the crc of some bytes a (0 for no bytes), returns the crc of a
// followed by `bytes`. So ExtendCrc32c(Crc32c(a), b) is the crc of a and b together. Any thread.
// Uses the processor's crc instruction if it has one.
[[nodiscard]] std::uint32_t ExtendCrc32c(std::uint32_t crc, std::span<const std::uint8_t> bytes);
// The crc of `bytes`; 0xe3069283 for "123456789". Any thread.
[[nodiscard]] inline std::uint32_t Crc32c(std::span<const std::uint8_t> bytes) {
  return ExtendCrc32c(0, bytes);
}

// A crc by one set of instructions; all have the same result. For tests.
struct Crc32cOps {
  const char* name;  // "portable", "sse4.2", "avx512"
  // Extends a crc that lacks its two inversions: ~ExtendCrc32c(~state, ...).
  std::uint32_t (*extend)(std::uint32_t state, const std::uint8_t* bytes, std::size_t size);
};
// Those that this machine can run, the portable one first and the best last. Static storage; any
// thread.
[[nodiscard]] std::span<const Crc32cOps> SupportedCrc32cOps();

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_CRC32C_H_
