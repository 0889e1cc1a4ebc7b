#include "blockstore/wire/shape_block.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/invalid.h"
#include "xxhash.h"

namespace waymark::wire {
namespace {

constexpr std::uint16_t kLogicalIds = 0;
constexpr std::uint16_t kOrdered = 1;
constexpr std::int32_t kMostLayers = 1024;

absl::Status Unknown(const char* what, std::int64_t value) {
  return absl::UnimplementedError(
      absl::StrCat("shape block: ", what, " ", value, " is not known to this version"));
}

}  // namespace

ChunkCode ChunkCode::SetCodeFor(const RoutingShape& shape) {
  const SetCodeParams params = SetCodeParams::Default(shape.num_experts, shape.top_k);
  ChunkCode code;
  code.codec = Codec::kSetCode;
  code.ordered = false;
  code.low_bits = params.low_bits;
  code.high_bits = params.high_bits;
  return code;
}

absl::Status WireShape::Validate() const {
  if (absl::Status status = rows.Validate(); !status.ok()) return status;
  if (code.crc_layers < 0 || code.crc_layers > rows.num_layers) {
    return Invalid("code.crc_layers must be in [0, ", rows.num_layers, "]; it is ",
                   code.crc_layers);
  }
  switch (code.codec) {
    case Codec::kRaw:
      if (code.low_bits != 0 || code.high_bits != HighBits::kRanked) {
        return Invalid("code.low_bits and code.high_bits must be 0 under the raw codec; they are ",
                       code.low_bits, " and ", static_cast<int>(code.high_bits));
      }
      return absl::OkStatus();
    case Codec::kSetCode:
      if (code.ordered) {
        return Invalid(
            "code.ordered must be false under the set code, which keeps no order; it is true");
      }
      return set_code().Validate();
  }
  return absl::UnimplementedError(
      absl::StrCat("code.codec ", static_cast<int>(code.codec), " is not known to this version"));
}

std::vector<std::uint8_t> EncodeShapeBlock(const WireShape& shape) {
  const auto layers = static_cast<std::size_t>(shape.rows.num_layers);
  std::vector<std::uint8_t> bytes(ShapeBlockBytes(layers));
  RawWriter writer(bytes.data());
  writer.Put(shape.rows.num_layers);
  writer.Put(shape.rows.top_k);
  writer.Put(shape.rows.num_experts);
  writer.Put(shape.rows.page_tokens);
  writer.Put(kLogicalIds);
  writer.Put(static_cast<std::uint16_t>(shape.code.ordered ? kOrdered : 0));
  writer.Put(shape.code.codec);
  writer.Put(static_cast<std::uint8_t>(shape.code.low_bits));
  writer.Put(shape.code.high_bits);
  writer.Put(shape.crc_layers());
  for (std::int32_t layer = 0; layer < shape.rows.num_layers; ++layer)
    writer.Put(shape.rows.layer_id(layer));
  return bytes;
}

absl::StatusOr<WireShape> DecodeShapeBlock(std::span<const std::uint8_t> bytes) {
  ByteReader reader(bytes);
  const auto layers = reader.Get<std::uint32_t>();
  if (!reader.ok() || layers < 1 || layers > kMostLayers ||
      bytes.size() != ShapeBlockBytes(layers)) {
    return Invalid("shape block: it must have 28 bytes and 4 for each of 1 to ", kMostLayers,
                   " layers; it has ", bytes.size(), " bytes for ", layers, " layers");
  }
  // Numbers that do not fit int32 become negative, and Validate refuses those.
  WireShape shape;
  shape.rows.num_layers = static_cast<std::int32_t>(layers);
  shape.rows.top_k = reader.Get<std::int32_t>();
  shape.rows.num_experts = reader.Get<std::int32_t>();
  shape.rows.page_tokens = reader.Get<std::int32_t>();
  const auto id_space = reader.Get<std::uint16_t>();
  const auto flags = reader.Get<std::uint16_t>();
  const auto codec = reader.Get<std::uint16_t>();
  shape.code.low_bits = reader.Get<std::uint8_t>();
  shape.code.high_bits = reader.Get<HighBits>();
  shape.code.crc_layers = reader.Get<std::int32_t>();
  if (id_space != kLogicalIds) return Unknown("id space", id_space);
  if ((flags & ~kOrdered) != 0) return Unknown("a flag of", flags);
  if (codec > static_cast<std::uint16_t>(Codec::kSetCode)) return Unknown("codec", codec);
  if (shape.code.crc_layers < 1) {
    return Invalid("shape block: layers a crc must be in [1, L]; it is ", shape.code.crc_layers);
  }
  shape.code.ordered = flags == kOrdered;
  shape.code.codec = static_cast<Codec>(codec);
  shape.rows.layer_ids.resize(layers);
  bool counted = true;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    shape.rows.layer_ids[layer] = reader.Get<std::int32_t>();
    counted &= shape.rows.layer_ids[layer] == static_cast<std::int32_t>(layer);
  }
  if (counted) shape.rows.layer_ids.clear();
  if (absl::Status status = shape.Validate(); !status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("shape block: ", std::string(status.message())));
  }
  return shape;
}

std::uint64_t ShapeDigest(const WireShape& shape) {
  const std::vector<std::uint8_t> block = EncodeShapeBlock(shape);
  return XXH3_64bits(block.data(), block.size());
}

}  // namespace waymark::wire
