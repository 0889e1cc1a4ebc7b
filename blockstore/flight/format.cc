#include "blockstore/flight/format.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "blockstore/digest.h"
#include "blockstore/store/agreement.h"
#include "xxhash.h"

namespace waymark {

FlightInfo FlightInfo::Of(const StoreOptions& options, FlightRows rows) {
  FlightInfo info;
  info.shape = options.shape;
  info.num_blocks = options.num_blocks;
  info.block_tokens = options.block_tokens != 0 ? options.block_tokens : options.shape.page_tokens;
  const std::int64_t pages_per_block =
      std::max(1, info.block_tokens / std::max(1, info.shape.page_tokens));
  info.num_pages = options.num_pages != 0
                       ? options.num_pages
                       : static_cast<std::uint32_t>(pages_per_block * options.num_blocks);
  info.spare_pages = options.spare_pages.value_or(info.num_pages);
  info.max_steps_in_flight = options.max_steps_in_flight;
  info.max_step_rows = options.max_step_rows;
  info.null_blocks = options.null_blocks;
  info.audit = options.audit;
  info.audit_threshold = options.audit_threshold.value_or(DefaultAuditThreshold(options.shape));
  info.key_seed = options.key_seed != 0 ? options.key_seed : DrawSeed();
  info.rows = rows;
  return info;
}

StoreOptions FlightInfo::ReplayOptions() const {
  StoreOptions options;
  options.shape = rows == FlightRows::kIds ? shape : flight::DigestShape(shape);
  options.num_blocks = num_blocks;
  options.block_tokens = block_tokens;
  options.num_pages = num_pages;
  options.spare_pages = spare_pages;
  options.null_blocks = null_blocks;
  options.max_steps_in_flight = max_steps_in_flight;
  options.max_step_rows = max_step_rows;
  options.device_slots = true;
  options.landing = Landing::kCaller;
  options.audit = true;
  const double threshold = rows == FlightRows::kIds ? audit_threshold : audit_threshold / 2;
  // A store of an earlier version may have had one that chance reaches.
  if (threshold == 0 || threshold > ChanceAgreement(options.shape)) {
    options.audit_threshold = threshold;
  }
  options.key_seed = key_seed;
  return options;
}

namespace flight {
namespace {

std::uint32_t LowHalf(std::uint64_t hash) {
  return static_cast<std::uint32_t>(hash);
}

std::uint32_t HeadingCheck(const Heading& heading) {
  return LowHalf(XXH3_64bits(&heading, offsetof(Heading, heading_check)));
}

// A bijection of 32-bit words, different for each sketch byte.
std::uint32_t MixId(std::uint32_t id, std::uint32_t which) {
  std::uint32_t x = (id + 1) * 0x9e3779b1u + which * 0x85ebca6bu;
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 13;
  return x;
}

}  // namespace

Heading MakeHeading(FlightRecordKind kind, std::uint16_t flags,
                    std::span<const std::uint8_t> payload) {
  Heading heading;
  heading.size = static_cast<std::uint32_t>(payload.size());
  heading.kind = static_cast<std::uint16_t>(kind);
  heading.flags = flags;
  heading.payload_check = LowHalf(XXH3_64bits(payload.data(), payload.size()));
  heading.heading_check = HeadingCheck(heading);
  return heading;
}

bool HeadingIntact(const Heading& heading) {
  return heading.heading_check == HeadingCheck(heading);
}

bool PayloadIntact(const Heading& heading, std::span<const std::uint8_t> payload) {
  return heading.size == payload.size() &&
         heading.payload_check == LowHalf(XXH3_64bits(payload.data(), payload.size()));
}

std::size_t RecordedRowBytes(const FlightInfo& info) {
  return info.rows == FlightRows::kIds ? info.shape.row_bytes() : kDigestRowBytes;
}

void DigestRow(const RoutingShape& shape, const std::uint8_t* row, std::uint8_t* out) {
  const std::uint64_t digest = RowDigest({row, shape.row_bytes()});
  std::memcpy(out, &digest, sizeof digest);
  const auto k = static_cast<std::size_t>(shape.top_k);
  const std::size_t id_bytes = shape.id_bytes();
  for (std::uint32_t j = 0; j < kSketchBytes; ++j) {
    const std::size_t layer = j * static_cast<std::size_t>(shape.num_layers) / kSketchBytes;
    const std::uint8_t* ids = row + layer * k * id_bytes;
    std::uint32_t least = std::numeric_limits<std::uint32_t>::max();
    for (std::size_t i = 0; i < k; ++i) {
      const std::uint32_t id =
          id_bytes == 1 ? ids[i] : static_cast<std::uint32_t>(ids[2 * i] | (ids[2 * i + 1] << 8));
      least = std::min(least, MixId(id, j));
    }
    // The low byte: the high bytes of a minimum are small numbers, equal too often by chance.
    out[sizeof digest + j] = static_cast<std::uint8_t>(least);
  }
}

RoutingShape DigestShape(const RoutingShape& shape) {
  RoutingShape digests;
  digests.num_layers = kDigestRowBytes;
  digests.top_k = 1;
  digests.num_experts = 256;
  digests.page_tokens = shape.page_tokens;
  return digests;
}

std::string EncodeInfo(const FlightInfo& info) {
  std::string out;
  ByteWriter writer(out);
  writer.Put(info.shape.num_layers);
  writer.Put(info.shape.top_k);
  writer.Put(info.shape.num_experts);
  writer.Put(info.shape.page_tokens);
  writer.Put(info.num_blocks);
  writer.Put(info.block_tokens);
  writer.Put(info.num_pages);
  writer.Put(info.spare_pages);
  writer.Put(info.max_steps_in_flight);
  writer.Put(info.max_step_rows);
  writer.Put(static_cast<std::uint8_t>(info.rows));
  writer.Put(static_cast<std::uint8_t>(info.audit ? 1 : 0));
  writer.Put(std::uint16_t{0});
  writer.Put(info.audit_threshold);
  writer.Put(info.key_seed);
  writer.Put(static_cast<std::uint32_t>(info.shape.layer_ids.size()));
  writer.Put(static_cast<std::uint32_t>(info.null_blocks.size()));
  for (const std::int32_t layer : info.shape.layer_ids)
    writer.Put(layer);
  for (const BlockId block : info.null_blocks)
    writer.Put(block.value());
  return out;
}

absl::StatusOr<FlightInfo> DecodeInfo(std::span<const std::uint8_t> payload) {
  ByteReader reader(payload);
  FlightInfo info;
  info.shape.num_layers = reader.Get<std::int32_t>();
  info.shape.top_k = reader.Get<std::int32_t>();
  info.shape.num_experts = reader.Get<std::int32_t>();
  info.shape.page_tokens = reader.Get<std::int32_t>();
  info.num_blocks = reader.Get<std::int32_t>();
  info.block_tokens = reader.Get<std::int32_t>();
  info.num_pages = reader.Get<std::uint32_t>();
  info.spare_pages = reader.Get<std::uint32_t>();
  info.max_steps_in_flight = reader.Get<std::uint32_t>();
  info.max_step_rows = reader.Get<std::uint32_t>();
  const auto rows = reader.Get<std::uint8_t>();
  const auto audit = reader.Get<std::uint8_t>();
  const auto zero = reader.Get<std::uint16_t>();
  info.audit_threshold = reader.Get<double>();
  info.key_seed = reader.Get<std::uint64_t>();
  const auto layers = reader.Get<std::uint32_t>();
  const auto nulls = reader.Get<std::uint32_t>();
  if (const std::uint8_t* at = reader.Take(layers, sizeof(std::int32_t)); at != nullptr) {
    info.shape.layer_ids.resize(layers);
    if (layers > 0) std::memcpy(info.shape.layer_ids.data(), at, layers * sizeof(std::int32_t));
  }
  if (const std::uint8_t* at = reader.Take(nulls, sizeof(std::int32_t)); at != nullptr) {
    for (std::uint32_t i = 0; i < nulls; ++i) {
      std::int32_t block = 0;
      std::memcpy(&block, at + i * sizeof block, sizeof block);
      info.null_blocks.emplace_back(block);
    }
  }
  if (!reader.done()) return absl::InvalidArgumentError("flight head: its length is wrong");
  if (const absl::Status status = info.shape.Validate(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("flight head: ", std::string(status.message())));
  }
  const auto bad = [](const char* what, std::uint64_t value) {
    return absl::InvalidArgumentError(absl::StrCat("flight head: ", what, " is ", value));
  };
  if (rows != static_cast<std::uint8_t>(FlightRows::kDigests) &&
      rows != static_cast<std::uint8_t>(FlightRows::kIds)) {
    return bad("kind of rows", rows);
  }
  info.rows = static_cast<FlightRows>(rows);
  if (audit > 1) return bad("audit", audit);
  if (zero != 0) return bad("a field that must be 0", zero);
  info.audit = audit == 1;
  if (!(info.audit_threshold >= 0 && info.audit_threshold <= 1)) {
    return absl::InvalidArgumentError("flight head: audit_threshold is not in [0, 1]");
  }
  if (info.key_seed == 0) return bad("key_seed", 0);
  if (info.num_pages == 0) return bad("num_pages", 0);
  if (info.block_tokens <= 0 || info.block_tokens % info.shape.page_tokens != 0) {
    return bad("block_tokens", static_cast<std::uint64_t>(info.block_tokens));
  }
  return info;
}

std::string EncodeHead(const FlightInfo& info) {
  const std::string payload = EncodeInfo(info);
  const Heading heading =
      MakeHeading(FlightRecordKind::kInfo, kFormatVersion,
                  {reinterpret_cast<const std::uint8_t*>(payload.data()), payload.size()});
  std::string head;
  ByteWriter writer(head);
  writer.PutBytes(kMagic, sizeof kMagic);
  writer.Put(heading);
  head += payload;
  return head;
}

}  // namespace flight
}  // namespace waymark
