#include "blockstore/store/log_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "blockstore/store/ticket_state.h"
#include "blockstore/store/wake_flag.h"
#include "tests/unit/blockstore/test_seed.h"

namespace waymark {
namespace {

// 64-byte aligned memory of `size` bytes.
struct Memory {
  explicit Memory(std::size_t size) : lines(size / 64) {}
  [[nodiscard]] std::span<std::uint8_t> bytes() { return {lines[0].data(), lines.size() * 64}; }
  struct alignas(64) Line : std::array<std::uint8_t, 64> {};
  std::vector<Line> lines;
};

// Appends a record of `bytes` whose payload is `first`, `first` + 1, ...
bool Append(LogRing& ring, std::uint32_t bytes, std::uint8_t first, std::size_t spare = 0) {
  std::uint8_t* record = ring.Reserve(bytes + spare);
  if (record == nullptr) return false;
  for (std::uint32_t i = 4; i < bytes; ++i)
    record[i] = static_cast<std::uint8_t>(first + i);
  ring.Commit(bytes);
  return true;
}

// The size of the record, after a comparison of its payload.
std::uint32_t Check(const std::uint8_t* record, std::uint8_t first, std::uint32_t bytes) {
  for (std::uint32_t i = 4; i < bytes; ++i)
    EXPECT_EQ(record[i], static_cast<std::uint8_t>(first + i)) << "byte " << i;
  return StdAtomics::Read32(record);
}

TEST(LogRing, RecordsAreSeenInOrderAndOnlyWhenPublished) {
  Memory memory(256);
  LogRing ring(memory.bytes());
  EXPECT_TRUE(ring.Drained());
  EXPECT_EQ(ring.Front(ring.LoadTail()), nullptr);
  ASSERT_TRUE(Append(ring, 16, 1));
  ASSERT_TRUE(Append(ring, 13, 2, 50));
  EXPECT_EQ(ring.Front(ring.LoadTail()), nullptr);
  EXPECT_TRUE(ring.Drained());
  ring.Publish();
  EXPECT_FALSE(ring.Drained());
  const LogRing::Tail upto = ring.LoadTail();
  ASSERT_TRUE(Append(ring, 8, 3));
  ring.Publish();

  ASSERT_NE(ring.Front(upto), nullptr);
  EXPECT_EQ(Check(ring.Front(upto), 1, 16), 16);
  ring.Pop();
  ASSERT_NE(ring.Front(upto), nullptr);
  EXPECT_EQ(Check(ring.Front(upto), 2, 13), 16);
  ring.Pop();
  EXPECT_EQ(ring.Front(upto), nullptr);
  ASSERT_NE(ring.Front(ring.LoadTail()), nullptr);
  EXPECT_FALSE(ring.Drained());
  ring.Pop();
  EXPECT_FALSE(ring.Drained());
  ring.Retire();
  EXPECT_TRUE(ring.Drained());
  EXPECT_EQ(ring.Front(upto), nullptr);
}

}  // namespace
}  // namespace waymark
