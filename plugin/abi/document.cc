// Documents in the C ABI, and the bytes that the library gives out.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "blockstore/huge_pages.h"
#include "blockstore/wire/document_writer.h"
#include "blockstore/wire/trajectory.h"
#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

static_assert(static_cast<int>(wire::Codec::kRaw) == WM_CODEC_RAW &&
              static_cast<int>(wire::Codec::kSetCode) == WM_CODEC_SET &&
              static_cast<int>(HighBits::kRanked) == WM_HIGH_BITS_RANKED &&
              static_cast<int>(HighBits::kUnary) == WM_HIGH_BITS_UNARY);

// What a document of some rows is written with; `write` is given its writer.
template <class F>
absl::Status WithWriter(const wm_rows* object, const wm_document_options* given, F&& write) {
  wm_document_options args = {};
  Arguments check;
  check.Object(object, "rows");
  if (given != nullptr) check.Struct(given, args, "options");
  check.Flags(args.flags, WM_DOCUMENT_WITHOUT_STEPS | WM_DOCUMENT_WITH_NODES, "options.flags");
  check.Chain(args.ext, "options.ext");
  if (!check.ok()) return check.status();
  const Rows& rows = object->rows;
  const absl::StatusOr<wire::ChunkCode> code = TakeChunkCode(args.code, rows.shape);
  if (!code.ok()) return code.status();
  wire::DocumentOptions options;
  options.code = *code;
  options.steps = (args.flags & WM_DOCUMENT_WITHOUT_STEPS) == 0;
  wire::Trajectory trajectory;
  if ((args.flags & WM_DOCUMENT_WITH_NODES) != 0) {
    absl::StatusOr<wire::Trajectory> made = wire::MakeTrajectory(rows, *code);
    if (!made.ok()) return made.status();
    trajectory = *std::move(made);
    options.trajectory = trajectory.handle.head;
    options.nodes = trajectory.nodes;
  }
  const absl::StatusOr<wire::DocumentWriter> writer = wire::DocumentWriter::Create(rows, options);
  return writer.ok() ? write(*writer) : writer.status();
}

wm_status RowsDocument(const wm_rows* rows, const wm_document_options* options, wm_bytes** out,
                       wm_message* why) noexcept {
  return Guard(why, Arguments().Object(rows, "rows").Pointer(out, "out"), [&]() -> absl::Status {
    return WithWriter(rows, options, [out](const wire::DocumentWriter& writer) {
      std::vector<std::uint8_t> bytes;
      ResizeForWriting(writer.bytes(), bytes);
      absl::Status status = writer.WriteTo(bytes);
      if (status.ok()) *out = new wm_bytes(std::move(bytes));
      return status;
    });
  });
}

wm_status RowsWriteDocument(const wm_rows* rows, const wm_document_options* options,
                            const char* path, wm_message* why) noexcept {
  return Guard(why, Arguments().Object(rows, "rows").Pointer(path, "path"), [&]() -> absl::Status {
    return WithWriter(rows, options, [path](const wire::DocumentWriter& writer) {
      return writer.WriteFile(path);
    });
  });
}

wm_status BytesView(const wm_bytes* bytes, const std::uint8_t** data, std::size_t* size) noexcept {
  Arguments check;
  check.Object(bytes, "bytes").Pointer(data, "data").Pointer(size, "size");
  return Guard(nullptr, check, [&]() -> absl::Status {
    *data = bytes->bytes.data();
    *size = bytes->bytes.size();
    return absl::OkStatus();
  });
}

absl::Status OpenDocument(std::span<const std::uint8_t> bytes, const wire::ReadLimits& limits,
                          std::shared_ptr<const wire::FileBytes> file, wm_document** out) {
  absl::StatusOr<wire::Document> document = wire::Document::Open(bytes, limits);
  if (!document.ok()) return document.status();
  *out = new wm_document(*std::move(document), std::move(file));
  return absl::OkStatus();
}

wm_status DocumentOpen(const std::uint8_t* data, std::size_t size, const wm_read_limits* limits,
                       wm_document** out, wm_message* why) noexcept {
  Arguments check;
  check.That(data != nullptr || size == 0, "data", "must not be null with a size");
  check.Pointer(out, "out");
  return Guard(why, check, [&]() -> absl::Status {
    const absl::StatusOr<Reading> reading = TakeLimits(limits);
    if (!reading.ok()) return reading.status();
    return OpenDocument({data, size}, reading->limits, nullptr, out);
  });
}

wm_status DocumentOpenFile(const char* path, const wm_read_limits* limits, wm_document** out,
                           wm_message* why) noexcept {
  return Guard(why, Arguments().Pointer(path, "path").Pointer(out, "out"), [&]() -> absl::Status {
    const absl::StatusOr<Reading> reading = TakeLimits(limits);
    if (!reading.ok()) return reading.status();
    absl::StatusOr<std::shared_ptr<const wire::FileBytes>> file =
        wire::FileBytes::Open(path, reading->access, reading->limits.max_bytes);
    if (!file.ok()) return file.status();
    const std::span<const std::uint8_t> bytes = (*file)->bytes();
    return OpenDocument(bytes, reading->limits, *std::move(file), out);
  });
}

wm_status DocumentInfo(const wm_document* object, wm_document_info* out) noexcept {
  Arguments check;
  check.Object(object, "document").OutStruct(out, "out");
  return Guard(nullptr, check, [&]() -> absl::Status {
    const wire::Document& document = object->document;
    wm_document_info info = {};
    info.flags = (document.has_steps() ? WM_DOCUMENT_HAS_STEPS : 0) |
                 (document.truncated() ? WM_DOCUMENT_TRUNCATED : 0) |
                 (document.has_places() ? WM_DOCUMENT_HAS_PLACES : 0);
    info.first = document.first();
    info.count = document.size();
    info.bytes = document.bytes();
    info.minor_version = document.minor_version();
    info.num_nodes = static_cast<std::uint32_t>(document.nodes().size());
    static_assert(sizeof(info.trajectory) == sizeof(Digest128));
    std::memcpy(&info.trajectory, &document.trajectory(), sizeof(info.trajectory));
    CopyOut(info, out);
    return absl::OkStatus();
  });
}

wm_status DocumentShape(const wm_document* document, wm_shape* out) noexcept {
  return Guard(nullptr, Arguments().Object(document, "document").OutStruct(out, "out"),
               [&] { CopyOut(document->shape.View(), out); });
}

wm_status DocumentCode(const wm_document* document, wm_chunk_code* out) noexcept {
  Arguments check;
  check.Object(document, "document").OutStruct(out, "out");
  return Guard(nullptr, check, [&]() -> absl::Status {
    const wire::WireShape& shape = document->document.shape();
    wm_chunk_code code = {};
    const bool set = shape.code.codec == wire::Codec::kSetCode;
    code.flags = set ? WM_CHUNK_PARAMETERS : shape.code.ordered ? 0 : WM_CHUNK_SORTED;
    code.codec = static_cast<std::int32_t>(shape.code.codec);
    code.low_bits = shape.code.low_bits;
    code.high_bits = static_cast<std::int32_t>(shape.code.high_bits);
    code.crc_layers = shape.crc_layers();
    CopyOut(code, out);
    return absl::OkStatus();
  });
}

wm_status DocumentCoverage(const wm_document* document, wm_coverage_run* runs, std::size_t capacity,
                           std::size_t* count, wm_message* why) noexcept {
  return Guard(why,
               Arguments()
                   .Object(document, "document")
                   .Array(runs, capacity, "runs")
                   .Pointer(count, "count"),
               [&] { GiveRuns(document->document.Coverage(), runs, capacity, count); });
}

void GiveDamage(const wire::ReadDamage& from, wm_read_damage* to) {
  if (to == nullptr) return;
  wm_read_damage damage = {};
  damage.damaged_chunks = static_cast<std::uint64_t>(from.damaged_chunks);
  damage.absent_chunks = static_cast<std::uint64_t>(from.absent_chunks);
  damage.invalid_rows = static_cast<std::uint64_t>(from.invalid_rows);
  CopyOut(damage, to);
}

wm_status DocumentRows(const wm_document* object, const wm_part* given, wm_rows** out,
                       wm_read_damage* damage, wm_message* why) noexcept {
  Arguments check;
  check.Object(object, "document").Pointer(out, "out");
  if (damage != nullptr) check.OutStruct(damage, "damage");
  return Guard(why, check, [&]() -> absl::Status {
    const absl::StatusOr<RowsAndLayers> part = TakePart(given, object->document.All());
    if (!part.ok()) return part.status();
    wire::ReadDamage found;
    absl::StatusOr<Rows> rows = object->document.ReadRows(*part, &found);
    if (!rows.ok()) return rows.status();
    *out = new wm_rows(*std::move(rows));
    GiveDamage(found, damage);
    return absl::OkStatus();
  });
}

}  // namespace

absl::StatusOr<wire::ChunkCode> TakeChunkCode(const wm_chunk_code* given,
                                              const RoutingShape& shape) {
  wire::ChunkCode code;
  if (given == nullptr) return code;
  wm_chunk_code args = {};
  Arguments check;
  check.Struct(given, args, "code");
  check.Flags(args.flags, WM_CHUNK_SORTED | WM_CHUNK_PARAMETERS, "code.flags");
  check.InRange(args.codec, WM_CODEC_RAW, WM_CODEC_SET, "code.codec");
  if ((args.flags & WM_CHUNK_PARAMETERS) == 0) {
    check.InRange(args.low_bits, 0, 0, "code.low_bits")
        .InRange(args.high_bits, 0, 0, "code.high_bits");
  }
  check.InRange(args.high_bits, WM_HIGH_BITS_RANKED, WM_HIGH_BITS_UNARY, "code.high_bits");
  if (!check.ok()) return check.status();
  if (args.codec == WM_CODEC_SET && (args.flags & WM_CHUNK_PARAMETERS) == 0) {
    code = wire::ChunkCode::SetCodeFor(shape);
  } else {
    code.codec = static_cast<wire::Codec>(args.codec);
    code.ordered = args.codec == WM_CODEC_RAW && (args.flags & WM_CHUNK_SORTED) == 0;
    code.low_bits = args.low_bits;
    code.high_bits = static_cast<HighBits>(args.high_bits);
  }
  code.crc_layers = args.crc_layers;
  if (absl::Status status = wire::WireShape{shape, code}.Validate(); !status.ok()) return status;
  return code;
}

absl::StatusOr<Reading> TakeLimits(const wm_read_limits* given) {
  Reading reading;
  if (given == nullptr) return reading;
  wm_read_limits args = {};
  Arguments check;
  check.Struct(given, args, "limits").Flags(args.flags, WM_READ_MAP, "limits.flags");
  if (!check.ok()) return check.status();
  if (args.max_rows != 0) reading.limits.max_rows = ToCount(args.max_rows);
  if (args.max_bytes != 0) reading.limits.max_bytes = args.max_bytes;
  if ((args.flags & WM_READ_MAP) != 0) reading.access = wire::FileAccess::kMap;
  return reading;
}

absl::StatusOr<RowsAndLayers> TakePart(const wm_part* given, const RowsAndLayers& all) {
  if (given == nullptr) return all;
  wm_part args = {};
  Arguments check;
  check.Struct(given, args, "part").Zero(args.reserved, "part.reserved");
  if (!check.ok()) return check.status();
  return RowsAndLayers{args.begin, args.end, args.layer_begin,
                       args.layer_end != 0 ? args.layer_end : all.layer_end};
}

void FillDocuments(wm_wire_api_v1& wire) {
  wire.rows_document = &RowsDocument;
  wire.rows_write_document = &RowsWriteDocument;
  wire.bytes_retain = &Retain<wm_bytes>;
  wire.bytes_release = &Release<wm_bytes>;
  wire.bytes_view = &BytesView;
  wire.document_open = &DocumentOpen;
  wire.document_open_file = &DocumentOpenFile;
  wire.document_retain = &Retain<wm_document>;
  wire.document_release = &Release<wm_document>;
  wire.document_info = &DocumentInfo;
  wire.document_shape = &DocumentShape;
  wire.document_code = &DocumentCode;
  wire.document_coverage = &DocumentCoverage;
  wire.document_rows = &DocumentRows;
}

}  // namespace waymark::abi
