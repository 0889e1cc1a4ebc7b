// Plain little-endian values into and out of bytes that somebody else owns: what the formats of
// flights and of the wire are written and read with. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_BYTE_IO_H_
#define WAYMARK_BLOCKSTORE_BYTE_IO_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

namespace waymark {

static_assert(std::endian::native == std::endian::little, "values are written as memory lies");

// Appends plain values to a string that the caller owns; it grows as strings do.
class ByteWriter {
 public:
  explicit ByteWriter(std::string& out) : out_(out) {}
  template <class T>
  void Put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    out_.append(raw, sizeof(T));
  }
  void PutBytes(const void* data, std::size_t size) {
    if (size > 0) out_.append(static_cast<const char*>(data), size);
  }

 private:
  std::string& out_;
};

// Takes plain values from the front; past the end it gives zeros and ok() is false for good.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  template <class T>
  T Get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (const std::uint8_t* at = Take(sizeof(T))) std::memcpy(&value, at, sizeof(T));
    return value;
  }
  // The next `count` items of `item_bytes` each, in the bytes that the reader was given; null (and
  // not ok) when there are fewer. Never multiplies a count it has not checked.
  const std::uint8_t* Take(std::size_t count, std::size_t item_bytes = 1) {
    if (!ok_ || (item_bytes != 0 && count > bytes_.size() / item_bytes)) {
      ok_ = false;
      return nullptr;
    }
    const std::uint8_t* at = bytes_.data();
    bytes_ = bytes_.subspan(count * item_bytes);
    return at;
  }
  // Nothing was asked for that is not there.
  [[nodiscard]] bool ok() const { return ok_; }
  // Everything was taken, and nothing more.
  [[nodiscard]] bool done() const { return ok_ && bytes_.empty(); }
  // Bytes not taken yet; left() of them in rest().
  [[nodiscard]] std::size_t left() const { return bytes_.size(); }
  [[nodiscard]] std::span<const std::uint8_t>& rest() { return bytes_; }

 private:
  std::span<const std::uint8_t> bytes_;
  bool ok_ = true;
};

// Writes plain values into memory that is known to be large enough: the caller has worked out the
// record's size before. No alignment is needed.
class RawWriter {
 public:
  explicit RawWriter(std::uint8_t* at) : at_(at) {}
  template <class T>
  void Put(T value) {
    std::memcpy(at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  void PutBytes(const void* data, std::size_t size) {
    if (size > 0) std::memcpy(at_, data, size);
    at_ += size;
  }
  // The next `size` bytes, to be filled by the caller.
  [[nodiscard]] std::uint8_t* Skip(std::size_t size) {
    std::uint8_t* at = at_;
    at_ += size;
    return at;
  }

 private:
  std::uint8_t* at_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_BYTE_IO_H_
