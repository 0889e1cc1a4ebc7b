// CRC-32C against the definition: a shift register, a bit at a time.
#include "blockstore/wire/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string_view>
#include <vector>

namespace waymark::wire {
namespace {

std::uint32_t BitByBit(std::span<const std::uint8_t> bytes) {
  std::uint32_t state = 0xffffffff;
  for (const std::uint8_t byte : bytes) {
    state ^= byte;
    for (int bit = 0; bit < 8; ++bit)
      state = (state >> 1) ^ ((state & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~state;
}

TEST(Crc32c, OfTheCheckString) {
  constexpr std::string_view kText = "123456789";
  const std::vector<std::uint8_t> bytes(kText.begin(), kText.end());
  EXPECT_EQ(Crc32c(bytes), 0xe3069283u);
  // RFC 3720, B.4: 32 bytes of zeros, of ones.
  EXPECT_EQ(Crc32c(std::vector<std::uint8_t>(32, 0)), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::vector<std::uint8_t>(32, 0xff)), 0x62a8ab43u);
}

TEST(Crc32c, OfEveryLengthAtEveryAddress) {
  std::vector<std::uint8_t> bytes(7000);
  std::uint32_t x = 1;
  for (std::uint8_t& byte : bytes)
    byte = static_cast<std::uint8_t>((x = x * 1664525 + 1013904223) >> 24);
  for (std::size_t size = 0; size < 6900; size = size < 300 ? size + 1 : size + 97) {
    const auto part = std::span(bytes).subspan(size % 9, size);
    const std::uint32_t right = BitByBit(part);
    ASSERT_EQ(Crc32c(part), right) << size;
    for (const Crc32cOps& ops : SupportedCrc32cOps())
      ASSERT_EQ(~ops.extend(~0u, part.data(), size), right) << ops.name << ", " << size;
  }
}

TEST(Crc32c, GoesOn) {
  std::vector<std::uint8_t> bytes(3000);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{3});
  const std::uint32_t whole = BitByBit(bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 41) {
    const auto front = std::span(bytes).first(cut);
    const auto behind = std::span(bytes).subspan(cut);
    ASSERT_EQ(ExtendCrc32c(Crc32c(front), behind), whole) << cut;
    for (const Crc32cOps& ops : SupportedCrc32cOps()) {
      const std::uint32_t state = ops.extend(~0u, front.data(), cut);
      ASSERT_EQ(~ops.extend(state, behind.data(), behind.size()), whole) << ops.name << ", " << cut;
    }
  }
}

}  // namespace
}  // namespace waymark::wire
