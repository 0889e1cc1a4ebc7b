#include "blockstore/store/page_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockstore/huge_pages.h"

namespace waymark {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// The bytes of [data, data + bytes) that are in memory, in whole pages of the system.
std::size_t Resident(void* data, std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + kPage - 1) / kPage * kPage;
  std::vector<unsigned char> pages(bytes / kPage);
  EXPECT_EQ(mincore(reinterpret_cast<void*>(begin), (pages.size() - 1) * kPage, pages.data()), 0);
  return kPage *
         static_cast<std::size_t>(std::count_if(
             pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

// A huge page may be committed where a small one is touched.
TEST(PageMemory, PrefaultCommitsNothingBeyondTheEnd) {
  auto memory = PageMemory::Map(64 * kMiB);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(Resident(memory->data(), memory->size()), 0u);
  EXPECT_TRUE(memory->Prefault(8 * kMiB + 1, 32 * kMiB));
  EXPECT_FALSE(memory->Prefault(8 * kMiB + 1, 32 * kMiB));
  const std::size_t resident = Resident(memory->data(), memory->size());
  EXPECT_GE(resident, 8 * kMiB + 1);
  EXPECT_LE(resident, 10 * kMiB);
  EXPECT_TRUE(memory->Prefault(9 * kMiB, 32 * kMiB));
}

TEST(ReservedArray, TouchesWhatItHasGrownTo) {
  ReservedArray<std::uint64_t> array(64 * kMiB / 8);
  EXPECT_EQ(array.size(), 0u);
  array.Grow(8 * kMiB / 8);
  array.Grow(kMiB / 8);
  ASSERT_EQ(array.size(), 8 * kMiB / 8);
  EXPECT_EQ(array[array.size() - 1], 0u);
  const std::size_t resident = Resident(&array[0], 64 * kMiB);
  EXPECT_GE(resident, 7 * kMiB);
  EXPECT_LE(resident, 10 * kMiB);
  std::uint64_t* const first = &array[0];
  array.Grow(64 * kMiB / 8);
  EXPECT_EQ(&array[0], first) << "elements do not move";
}

}  // namespace
}  // namespace waymark
