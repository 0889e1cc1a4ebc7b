// Varints: unsigned LEB128 in the shortest form, at most ten bytes. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_WIRE_VARINT_H_
#define WAYMARK_BLOCKSTORE_WIRE_VARINT_H_

#include <cstdint>
#include <vector>

#include "blockstore/byte_io.h"

namespace waymark::wire {

// Appends the varint of `value`.
inline void PutVarint(std::vector<std::uint8_t>& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7)
    out.push_back(static_cast<std::uint8_t>(value | 0x80));
  out.push_back(static_cast<std::uint8_t>(value));
}

// Reads a varint. Returns false if the bytes end inside it, it is not in the shortest form, or its
// value exceeds 64 bits; `value` is then unspecified.
[[nodiscard]] inline bool GetVarint(ByteReader& reader, std::uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = reader.Get<std::uint8_t>();
    if (!reader.ok()) return false;
    if (shift == 63 && byte > 1) return false;
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return byte != 0 || shift == 0;
  }
  return false;
}

// Maps signed numbers to unsigned ones so that small numbers of either sign stay small, and back:
// 0, -1, 1, -2 become 0, 1, 2, 3.
[[nodiscard]] inline std::uint64_t Zigzag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63);
}
[[nodiscard]] inline std::int64_t Unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_VARINT_H_
