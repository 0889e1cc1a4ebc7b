// Bytes: the numbers that an input of the target `abi` stands for.
#ifndef WAYMARK_TESTS_FUZZ_INPUT_BYTES_H_
#define WAYMARK_TESTS_FUZZ_INPUT_BYTES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

namespace waymark::fuzz {

inline constexpr std::size_t kItems = 64;  // of every array that is given

// Reads an input from its front; beyond its end every byte is 0.
class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  std::uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }
  std::uint32_t Below(std::uint32_t end) { return Byte() % end; }
  bool Once(std::uint32_t in) { return Below(in) == 0; }
  // Small as a rule; at the edge of its type now and then.
  std::int64_t Number() {
    static constexpr std::int64_t kEdges[] = {INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, -1,
                                              -2,        65535,     65536,     1ll << 40, 0};
    const std::uint8_t byte = Byte();
    return byte < 216 ? byte % 24 : kEdges[byte % std::size(kEdges)];
  }
  std::int32_t Small() { return static_cast<std::int32_t>(Number()); }
  std::int32_t Negative() {
    const std::int32_t number = Small();
    return number < 0 ? number : -number;
  }
  std::uint32_t Size(std::size_t right) {
    const std::uint8_t byte = Byte();
    if (byte < 232) return static_cast<std::uint32_t>(right);
    static constexpr std::uint32_t kSizes[] = {0, 7, 8, 16, 24, 28, 32, 40, 48, 65537, ~0u};
    const std::uint32_t size = kSizes[byte % std::size(kSizes)];
    // What it says is there must be there.
    return size > 65536 ? size : std::min(size, static_cast<std::uint32_t>(right));
  }
  std::uint32_t Flags() { return Once(3) ? 1u << Below(4) : 0; }
  std::size_t Count() {
    static constexpr std::size_t kEdges[] = {std::size_t{1} << 31, ~std::size_t{0}};
    const std::uint8_t byte = Byte();
    return byte < 250 ? byte % (kItems + 1) : kEdges[byte % 2];
  }
  std::span<const std::uint8_t> Take(std::size_t count) {
    const auto taken = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace waymark::fuzz

#endif  // WAYMARK_TESTS_FUZZ_INPUT_BYTES_H_
