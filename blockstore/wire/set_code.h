// SetCode: the ids of a row and layer as a set, in a fixed number of bits. docs/format-set-code.md
// states the code itself.
#ifndef WAYMARK_BLOCKSTORE_WIRE_SET_CODE_H_
#define WAYMARK_BLOCKSTORE_WIRE_SET_CODE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/row_info.h"

namespace waymark {

namespace internal {
struct SetCodeBackend;
struct SetCodePlan;
}  // namespace internal

// How the high parts of the ids are written.
enum class HighParts : std::uint8_t {
  kRanked = 0,  // the number of their set among all such sets: the fewest bits
  kUnary = 1,   // a bitmap (Elias-Fano): a few bits more, and no tables
};

// What a code is told by. Plain data; the numbers are part of every format that carries codes.
struct SetCodeParams {
  std::int32_t num_experts = 0;  // E. 1 ... 65535. Ids are in [0, E).
  std::int32_t top_k = 0;        // K. 1 ... 64, <= num_experts. Ids of a set, all distinct.
  std::int32_t low_bits = 0;     // l. 0 ... 16. Low bits of every id that are written as they are.
  HighParts high_parts = HighParts::kRanked;

  // What the documentation recommends for ids of this kind. For E and K out of bounds it returns
  // parameters that Validate refuses.
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

// Encoder and decoder of one set of parameters. Immutable: const access from any thread. Cheap to
// move; its tables take at most 2 MB, with the recommended parameters less than 64 KB.
//
// Ids are as the store keeps them: [rows][L][K] token-major, uint8 where E <= 256, else
// little-endian uint16. Codes are [L][rows]: those of one layer stand bit after bit, each layer
// begins at a byte, so that layers [a, b) of a chunk are the bytes
// [a * LayerBytes(rows), b * LayerBytes(rows)) and make a chunk of b - a layers.
class SetCode {
 public:
  // InvalidArgument as Validate says.
  [[nodiscard]] static absl::StatusOr<SetCode> Create(const SetCodeParams& params);
  // The same by a chosen implementation, one of internal::SetCodeBackends(): for tests.
  [[nodiscard]] static absl::StatusOr<SetCode> CreateWith(const SetCodeParams& params,
                                                          const internal::SetCodeBackend& backend);

  [[nodiscard]] const SetCodeParams& params() const;
  // Bits of every code.
  [[nodiscard]] std::int32_t bits() const;
  // Bytes of the codes of one layer: ceil(rows * bits() / 8). REQUIRES: rows >= 0.
  [[nodiscard]] std::size_t LayerBytes(std::int64_t rows) const;

  // Encodes the rows of `infos`, `num_layers` (0 ... 1024) layers each, to `codes`. The code of a
  // row that is missing is zero, whatever its bytes are, and so are the bits that fill a layer's
  // last byte. InvalidArgument when num_layers, ids.size() or codes.size() is not what the others
  // make it, or naming the first row and layer of a valid row whose ids are out of range or not
  // distinct; `codes` is then all zero.
  [[nodiscard]] absl::Status Encode(std::span<const RowInfo> infos, std::int32_t num_layers,
                                    std::span<const std::uint8_t> ids,
                                    std::span<std::uint8_t> codes) const;

  // Decodes the rectangle `part` of the chunk `codes` (infos.size() rows of num_layers layers) to
  // `ids`, [row_end - row_begin][layer_end - layer_begin][K], the ids of each set ascending. Rows
  // that are missing by `infos` are zeros; their codes are not looked at.
  //
  // Any bytes may be given. A code that no set has is corrupt: its K ids are zeros, corrupt[i] is 1
  // for its row (the i-th of the rectangle) and 0 for the others; returns the number of such rows.
  // InvalidArgument, and nothing is written, when `part` does not lie in the chunk, or
  // codes.size(), ids.size() or corrupt.size() (one byte a row of the rectangle) is not what the
  // others make it.
  [[nodiscard]] absl::StatusOr<std::int64_t> Decode(std::span<const std::uint8_t> codes,
                                                    std::span<const RowInfo> infos,
                                                    std::int32_t num_layers,
                                                    const RowsAndLayers& part,
                                                    std::span<std::uint8_t> ids,
                                                    std::span<std::uint8_t> corrupt) const;

 private:
  SetCode(std::shared_ptr<const internal::SetCodePlan> plan,
          const internal::SetCodeBackend& backend)
      : plan_(std::move(plan)), backend_(&backend) {}

  std::shared_ptr<const internal::SetCodePlan> plan_;
  const internal::SetCodeBackend* backend_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_WIRE_SET_CODE_H_
