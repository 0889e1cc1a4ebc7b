// SetCode: encodes the K ids of one row and layer as a set, without their order, in a fixed number
// of bits. docs/internals/format-set-code.md defines the code.
#ifndef WAYMARK_BLOCKSTORE_WIRE_SET_CODE_H_
#define WAYMARK_BLOCKSTORE_WIRE_SET_CODE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "blockstore/row_info.h"

namespace waymark {

namespace internal {
struct SetCodeBackend;
struct SetCodePlan;
}  // namespace internal

// How a code stores the bits of its ids above the low_bits, their high bits. The numbers are part
// of the formats.
enum class HighBits : std::uint8_t {
  kRanked = 0,  // the rank of their multiset among all such multisets: the fewest bits
  kUnary = 1,   // a bitmap (Elias-Fano): a few bits more, and no tables
};

// The parameters of a code. Plain data; every format that carries codes carries them.
struct SetCodeParams {
  std::int32_t num_experts = 0;  // E, 1 ... 65535. Ids lie in [0, E).
  std::int32_t top_k = 0;        // K, 1 ... 64, at most E. A set has K distinct ids.
  std::int32_t low_bits = 0;     // l, 0 ... 16. The low bits of every id that are stored unchanged.
  HighBits high_bits = HighBits::kRanked;  // how the other bits of the ids are stored

  // The parameters that docs/internals/format-set-code.md recommends for E and K. If E or K
  // is out of bounds, the parameters fail Validate.
  [[nodiscard]] static SetCodeParams Default(std::int32_t num_experts, std::int32_t top_k);
  // InvalidArgument naming the field, the rule and the value, unless every bound above holds, a
  // code has at most 1024 bits, and a rank at most 64.
  [[nodiscard]] absl::Status Validate() const;

  friend bool operator==(const SetCodeParams&, const SetCodeParams&) = default;
};

// A rectangle of a chunk: rows [row_begin, row_end) and layers [layer_begin, layer_end).
struct RowsAndLayers {
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int32_t layer_begin = 0;
  std::int32_t layer_end = 0;
};

// Encoder and decoder for one set of parameters. Immutable: const access from any thread. Copies
// share their tables, which take at most 2 MB, and less than 64 KB with the recommended parameters.
//
// Ids are as the store keeps them: [rows][L][K], uint8 if E <= 256, else little-endian uint16.
// Codes are [L][rows]: the codes of one layer follow each other without padding, lowest bit first,
// and each layer begins at a byte. So layers [a, b) of a chunk are the bytes
// [a * LayerBytes(rows), b * LayerBytes(rows)), and these are a chunk of b - a layers.
class SetCode {
 public:
  // The fastest implementation that the processor can run; all give the same bits. REQUIRES:
  // params.Validate() is OK. Throws std::bad_alloc.
  explicit SetCode(const SetCodeParams& params);
  // With a given implementation, one of internal::SetCodeBackends(). For tests.
  SetCode(const SetCodeParams& params, const internal::SetCodeBackend& backend);

  // Bytes of the codes of one layer: ceil(rows * bits of a code / 8). REQUIRES: rows >= 0.
  [[nodiscard]] std::size_t LayerBytes(std::int64_t rows) const;

  // Encodes the rows of `infos`, `num_layers` (0 ... 1024) layers each, to `codes`. The code of a
  // missing row is all zero bits, whatever its ids are; so are the unused bits of a layer's last
  // byte. InvalidArgument naming row and layer if the ids of a valid row are out of range or
  // repeat; all of `codes` is then zero. REQUIRES: `ids` and `codes` are of these rows and layers.
  [[nodiscard]] absl::Status Encode(std::span<const RowInfo> infos, std::int32_t num_layers,
                                    std::span<const std::uint8_t> ids,
                                    std::span<std::uint8_t> codes) const;

  // Decodes the rectangle `part` of the chunk `codes`, which has infos.size() rows, to `ids`:
  // [row_end - row_begin][layer_end - layer_begin][K], the ids of each set ascending. Rows that are
  // missing by `infos` are zeros, and their codes are ignored.
  //
  // Any bytes are safe. A code that is not the code of any set is corrupt: its K ids are zeros, and
  // corrupt[i] is 1 if row i of the rectangle has such a code, else 0. Returns the number of rows
  // that have one. REQUIRES: `part` lies in the chunk; `codes` is of all of it, `ids` of `part`,
  // and `corrupt` has one byte per row of `part`.
  [[nodiscard]] std::int64_t Decode(std::span<const std::uint8_t> codes,
                                    std::span<const RowInfo> infos, const RowsAndLayers& part,
                                    std::span<std::uint8_t> ids,
                                    std::span<std::uint8_t> corrupt) const;

 private:
  std::shared_ptr<const internal::SetCodePlan> plan_;
  const internal::SetCodeBackend* backend_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_WIRE_SET_CODE_H_
