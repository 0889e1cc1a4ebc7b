// Writes and reads plain little-endian values, for every format of blockstore: flights,
// checkpoints, the wire. Internal to blockstore.
//
// A plain value is a number, or a struct of numbers without padding (whose bytes would be
// anything). Needs no alignment. None of these objects owns memory.
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

// Appends to a string of the caller's, which must outlive it.
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
  // `data` may be null if `size` is 0; so below.
  void PutBytes(const void* data, std::size_t size) {
    if (size > 0) out_.append(static_cast<const char*>(data), size);
  }

 private:
  std::string& out_;
};

// Reads from the front of bytes, which must outlive it. Any bytes are safe. A read past the end
// returns zeros, as does every read after it, and ok() stays false. So a parser may read all of a
// record, and check ok() or done() once, before it uses what it read.
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
  // Reads past the next `count` items of `item_bytes` each and returns a pointer to them, into the
  // bytes; null, and not ok(), if there are fewer. No count is too large: nothing overflows.
  // Without items the pointer may be null all the same.
  const std::uint8_t* Take(std::size_t count, std::size_t item_bytes = 1) {
    if (!ok_ || (item_bytes != 0 && count > bytes_.size() / item_bytes)) {
      ok_ = false;
      return nullptr;
    }
    const std::uint8_t* at = bytes_.data();
    bytes_ = bytes_.subspan(count * item_bytes);
    return at;
  }
  // No read went past the end.
  [[nodiscard]] bool ok() const { return ok_; }
  // ok(), and all bytes were read.
  [[nodiscard]] bool done() const { return ok_ && bytes_.empty(); }
  // The number of bytes that were not read yet, and those bytes.
  [[nodiscard]] std::size_t left() const { return bytes_.size(); }
  [[nodiscard]] std::span<const std::uint8_t>& rest() { return bytes_; }

 private:
  std::span<const std::uint8_t> bytes_;
  bool ok_ = true;
};

// Writes into memory of the caller, one value behind the other. REQUIRES: there is room for all
// that is written; nothing is checked.
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
  // Skips `size` bytes, which the caller fills, and returns a pointer to them.
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
