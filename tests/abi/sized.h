// Structs of the C ABI as callers of every age give them. Knows no header of it.
#ifndef WAYMARK_TESTS_ABI_SIZED_H_
#define WAYMARK_TESTS_ABI_SIZED_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace abi_test {

inline constexpr int kOk = 0, kInvalidArgument = 3;

// A struct of `size` bytes, in memory of just as many: what is read or written beyond shows under a
// sanitizer. Bytes that a T does not have are garbage.
template <class T>
class Sized {
 public:
  Sized(const T& value, std::uint32_t size) : size_(size), bytes_(new unsigned char[size + 1]) {
    std::memset(bytes_.get(), 0xee, size + 1);
    std::memcpy(bytes_.get(), &value, std::min<std::size_t>(size, sizeof(T)));
    if (size >= 4) std::memcpy(bytes_.get(), &size, 4);
  }
  [[nodiscard]] T* get() { return reinterpret_cast<T*>(bytes_.get()); }
  [[nodiscard]] const unsigned char* bytes() const { return bytes_.get(); }
  [[nodiscard]] std::uint32_t struct_size() const {
    std::uint32_t size = 0;
    std::memcpy(&size, bytes_.get(), sizeof(size));
    return size;
  }

 private:
  const std::uint32_t size_;
  const std::unique_ptr<unsigned char[]> bytes_;
};

// Every size that a caller of any age might give: as much as fits is written, and no more.
template <class T, class F>
void ExpectFills(const char* name, F&& fill) {
  SCOPED_TRACE(name);
  const T nothing = {};
  Sized<T> whole(nothing, sizeof(T));
  ASSERT_EQ(fill(whole.get()), kOk);
  ASSERT_EQ(whole.struct_size(), sizeof(T));
  for (std::uint32_t size = 0; size <= sizeof(T) + 80; ++size) {
    if (size < 4) continue;  // the size itself
    Sized<T> cut(nothing, size);
    const std::vector<unsigned char> before(cut.bytes(), cut.bytes() + size + 1);
    if (size < 8) {
      ASSERT_EQ(fill(cut.get()), kInvalidArgument) << size;
      ASSERT_EQ(std::memcmp(cut.bytes(), before.data(), size + 1), 0) << size;
      continue;
    }
    ASSERT_EQ(fill(cut.get()), kOk) << size;
    const std::uint32_t written = std::min<std::uint32_t>(size, sizeof(T));
    ASSERT_EQ(cut.struct_size(), written);
    ASSERT_EQ(std::memcmp(cut.bytes() + 4, whole.bytes() + 4, written - 4), 0) << size;
    ASSERT_EQ(std::memcmp(cut.bytes() + written, before.data() + written, size + 1 - written), 0)
        << size;
  }
  T garbage = {};
  for (const std::uint32_t size : {0u, 1u, 7u, 65537u, 0xffffffffu}) {
    garbage.struct_size = size;
    ASSERT_EQ(fill(&garbage), kInvalidArgument) << size;
  }
  ASSERT_EQ(fill(static_cast<T*>(nullptr)), kInvalidArgument);
}

// Every size that is too small, and those that are garbage, are refused.
template <class T, class F>
void ExpectRefuses(const char* name, std::uint32_t least, F&& call) {
  SCOPED_TRACE(name);
  for (std::uint32_t size = 4; size < least; ++size) {
    Sized<T> cut(T{}, size);
    ASSERT_EQ(call(static_cast<const T*>(cut.get())), kInvalidArgument) << size;
  }
  T garbage = {};
  for (const std::uint32_t size : {0u, 1u, 65537u, 0xffffffffu}) {
    garbage.struct_size = size;
    ASSERT_EQ(call(static_cast<const T*>(&garbage)), kInvalidArgument) << size;
  }
  ASSERT_EQ(call(static_cast<const T*>(nullptr)), kInvalidArgument);
}

}  // namespace abi_test

#endif  // WAYMARK_TESTS_ABI_SIZED_H_
