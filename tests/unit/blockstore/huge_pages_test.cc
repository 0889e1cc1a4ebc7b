// Huge pages are asked for where whole ones fit, and bytes are what the contract says.
#include "blockstore/huge_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace waymark {
namespace {

// Whether the kernel says of the mapping with `address` that huge pages were asked for: "hg" among
// its flags in /proc/self/smaps. False, too, where there is no such file.
bool Asked(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2) {
      inside = begin <= wanted && wanted < end;
    } else if (inside && line.rfind("VmFlags:", 0) == 0) {
      std::istringstream flags(line.substr(8));
      for (std::string flag; flags >> flag;) {
        if (flag == "hg") return true;
      }
    }
  }
  return false;
}

// An anonymous mapping.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Mapping() { munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  // The first byte of the first huge page that lies in it.
  [[nodiscard]] char* huge() const {
    const auto begin = reinterpret_cast<std::uintptr_t>(data_);
    return static_cast<char*>(data_) + (kHugePage - begin % kHugePage) % kHugePage;
  }
  [[nodiscard]] bool ok() const { return data_ != MAP_FAILED; }

 private:
  const std::size_t bytes_;
  void* const data_;
};

// Whether this system takes the hint at all.
bool Supported() {
#ifdef MADV_HUGEPAGE
  const Mapping mapping(2 * kHugePage);
  return mapping.ok() && madvise(mapping.huge(), kHugePage, MADV_HUGEPAGE) == 0 &&
         Asked(mapping.huge());
#else
  return false;
#endif
}

TEST(AskForHugePages, OfWholeOnesOnly) {
  if (!Supported()) GTEST_SKIP() << "this system has no transparent huge pages";
  const Mapping mapping(8 * kHugePage);
  ASSERT_TRUE(mapping.ok());
  char* const at = mapping.huge();
  AskForHugePages(at + 1, 2 * kHugePage - 2);  // one byte short at either end
  AskForHugePages(at, kHugePage - 1);
  AskForHugePages(at, 0);
  AskForHugePages(nullptr, 0);
  EXPECT_FALSE(Asked(at));
  EXPECT_FALSE(Asked(at + kHugePage));
  AskForHugePages(at + kHugePage - 1, 3 * kHugePage);
  EXPECT_FALSE(Asked(at + kHugePage - 1));
  EXPECT_TRUE(Asked(at + kHugePage));
  EXPECT_TRUE(Asked(at + 3 * kHugePage - 1));
  EXPECT_FALSE(Asked(at + 3 * kHugePage));
}

TEST(ResizeForWriting, AnEmptyVectorGetsZeros) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, 3 * kHugePage + 5}) {
    std::vector<std::uint8_t> bytes;
    ResizeForWriting(size, bytes);
    EXPECT_EQ(bytes.size(), size);
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](auto byte) { return byte == 0; }));
  }
}

TEST(ResizeForWriting, NewMemoryAsksMemoryThatIsThereIsUsedAgain) {
  std::vector<std::uint8_t> bytes(10, 7);
  ResizeForWriting(4 * kHugePage, bytes);
  ASSERT_EQ(bytes.size(), 4 * kHugePage);
  if (Supported()) {
    EXPECT_TRUE(Asked(bytes.data() + 2 * kHugePage));
  }
  const std::uint8_t* const there = bytes.data();
  ResizeForWriting(100, bytes);
  EXPECT_EQ(bytes.size(), 100U);
  ResizeForWriting(3 * kHugePage, bytes);
  EXPECT_EQ(bytes.size(), 3 * kHugePage);
  EXPECT_EQ(bytes.data(), there);
}

}  // namespace
}  // namespace waymark
