// CRC-32C (Castagnoli): what finds damaged bytes in chunks, documents and handles.
#ifndef WAYMARK_BLOCKSTORE_WIRE_CRC32C_H_
#define WAYMARK_BLOCKSTORE_WIRE_CRC32C_H_

#include <cstdint>
#include <span>

namespace waymark::wire {

// The crc of bytes whose front has the crc `crc` (0: nothing) and which go on with `bytes`:
// ExtendCrc32c(Crc32c(a), b) is that of a, then b. Any thread. Uses the machine's own instruction
// where it has one.
[[nodiscard]] std::uint32_t ExtendCrc32c(std::uint32_t crc, std::span<const std::uint8_t> bytes);
// Of "123456789": 0xe3069283.
[[nodiscard]] inline std::uint32_t Crc32c(std::span<const std::uint8_t> bytes) {
  return ExtendCrc32c(0, bytes);
}
// The same without the machine's instruction: what other machines do. For tests.
[[nodiscard]] std::uint32_t ExtendCrc32cPortable(std::uint32_t crc,
                                                 std::span<const std::uint8_t> bytes);

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_CRC32C_H_
