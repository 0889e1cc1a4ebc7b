// Documents in the C ABI, and the bytes that the library gives out.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "blockstore/huge_pages.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/document_writer.h"
#include "blockstore/wire/file_source.h"
#include "blockstore/wire/publisher.h"
#include "blockstore/wire/shape_block.h"
#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

static_assert(static_cast<int>(wire::Codec::kRaw) == WM_CODEC_RAW &&
              static_cast<int>(wire::Codec::kSetCode) == WM_CODEC_SET);

// How rows of `shape` are to be coded. Null is the default.
absl::StatusOr<wire::ChunkCode> TakeChunkCode(const wm_chunk_code* given,
                                              const RoutingShape& shape) {
  wire::ChunkCode code;
  if (given == nullptr) return code;
  wm_chunk_code args = {};
  Arguments check;
  check.Struct(given, args, "code");
  check.Flags(args.flags, WM_CHUNK_SORTED, "code.flags");
  check.InRange(args.codec, WM_CODEC_RAW, WM_CODEC_SET, "code.codec");
  if (!check.ok()) return check.status();
  if (args.codec == WM_CODEC_SET) {
    code = wire::ChunkCode::SetCodeFor(shape);
  } else {
    code.ordered = (args.flags & WM_CHUNK_SORTED) == 0;
  }
  code.crc_layers = args.crc_layers;
  if (absl::Status status = wire::WireShape{shape, code}.Validate(); !status.ok()) return status;
  return code;
}

// How a document is read, from memory or a file.
struct Reading {
  wire::ReadLimits limits;
  wire::FileAccess access = wire::FileAccess::kRead;
};

// Null is the default.
absl::StatusOr<Reading> TakeLimits(const wm_read_limits* given) {
  Reading reading;
  if (given == nullptr) return reading;
  wm_read_limits args = {};
  Arguments check;
  check.Struct(given, args, "limits").Flags(args.flags, WM_READ_MAP, "limits.flags");
  if (!check.ok()) return check.status();
  constexpr std::uint64_t kMost = 0x7fffffffffffffff;
  if (args.max_rows != 0) {
    reading.limits.max_rows = static_cast<std::int64_t>(std::min(args.max_rows, kMost));
  }
  if (args.max_bytes != 0) reading.limits.max_bytes = args.max_bytes;
  if ((args.flags & WM_READ_MAP) != 0) reading.access = wire::FileAccess::kMap;
  return reading;
}

// Null is `all`. Does not check that the part lies in `all`.
absl::StatusOr<RowsAndLayers> TakePart(const wm_part* given, const RowsAndLayers& all) {
  if (given == nullptr) return all;
  wm_part args = {};
  Arguments check;
  check.Struct(given, args, "part").Zero(args.reserved, "part.reserved");
  if (!check.ok()) return check.status();
  return RowsAndLayers{args.begin, args.end, args.layer_begin,
                       args.layer_end != 0 ? args.layer_end : all.layer_end};
}

// What a document of some rows is written with; `write` is given its writer.
template <class F>
absl::Status WithWriter(const wm_rows* object, const wm_document_options* given, F&& write) {
  wm_document_options args = {};
  Arguments check;
  check.Object(object, "rows");
  if (given != nullptr) check.Struct(given, args, "options");
  check.Flags(args.flags, WM_DOCUMENT_WITHOUT_STEPS | WM_DOCUMENT_WITH_NODES, "options.flags");
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

using MaybeBytes = absl::StatusOr<std::span<const std::uint8_t>>;

// Reads the part of a document; `open` returns its bytes.
template <class F>
wm_status ReadDocument(Arguments& check, const wm_read_limits* limits, const wm_part* given,
                       wm_rows** out, wm_read_damage* damage, wm_message* why, F open) noexcept {
  check.Pointer(out, "out");
  if (damage != nullptr) check.OutStruct(damage, "damage");
  return Guard(why, check, [&]() -> absl::Status {
    const absl::StatusOr<Reading> reading = TakeLimits(limits);
    if (!reading.ok()) return reading.status();
    const MaybeBytes bytes = open(*reading);
    if (!bytes.ok()) return bytes.status();
    const absl::StatusOr<wire::Document> document = wire::Document::Open(*bytes, reading->limits);
    if (!document.ok()) return document.status();
    const absl::StatusOr<RowsAndLayers> part = TakePart(given, document->All());
    if (!part.ok()) return part.status();
    wire::ReadDamage found;
    if (absl::Status status = Give(document->ReadRows(*part, &found), out); !status.ok()) {
      return status;
    }
    const auto count = [](auto n) { return static_cast<std::uint64_t>(n); };
    if (damage != nullptr) {
      CopyOut(wm_read_damage{0, 0, count(found.damaged_chunks), count(found.absent_chunks),
                             count(found.invalid_rows)},
              damage);
    }
    return absl::OkStatus();
  });
}

wm_status DocumentRead(const std::uint8_t* data, std::size_t size, const wm_read_limits* limits,
                       const wm_part* part, wm_rows** out, wm_read_damage* damage,
                       wm_message* why) noexcept {
  Arguments check;
  check.That(data != nullptr || size == 0, "data", "must not be null with a size");
  return ReadDocument(check, limits, part, out, damage, why,
                      [&](const Reading&) -> MaybeBytes { return std::span(data, size); });
}

wm_status DocumentReadFile(const char* path, const wm_read_limits* limits, const wm_part* part,
                           wm_rows** out, wm_read_damage* damage, wm_message* why) noexcept {
  std::shared_ptr<const wire::FileBytes> file;
  return ReadDocument(Arguments().Pointer(path, "path"), limits, part, out, damage, why,
                      [&](const Reading& of) -> MaybeBytes {
                        auto opened = wire::FileBytes::Open(path, of.access, of.limits.max_bytes);
                        if (!opened.ok()) return opened.status();
                        file = *std::move(opened);
                        return file->bytes();
                      });
}

}  // namespace

void FillDocuments(wm_wire_api_v1& wire) {
  wire.rows_document = &RowsDocument;
  wire.rows_write_document = &RowsWriteDocument;
  wire.bytes_release = &Release<wm_bytes>;
  wire.bytes_view = &BytesView;
  wire.document_read = &DocumentRead;
  wire.document_read_file = &DocumentReadFile;
}

}  // namespace waymark::abi
