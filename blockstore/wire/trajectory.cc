#include "blockstore/wire/trajectory.h"

#include <algorithm>
#include <span>
#include <utility>

#include "blockstore/invalid.h"
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/node.h"
#include "blockstore/wire/tail.h"

namespace waymark::wire {

absl::StatusOr<Trajectory> MakeTrajectory(const Rows& rows, const ChunkCode& code,
                                          std::string store) {
  if (absl::Status status = CheckRows("rows", rows); !status.ok()) return status;
  if (rows.first != 0) {
    return Invalid("rows: a trajectory must begin at row 0; it begins at ", rows.first);
  }
  const absl::StatusOr<ChunkCodec> codec = ChunkCodec::Create({rows.shape, code.For(rows)});
  if (!codec.ok()) return codec.status();
  const std::int32_t page_tokens = rows.shape.page_tokens;
  const auto page_rows = static_cast<std::size_t>(page_tokens);
  const std::size_t row_bytes = rows.shape.row_bytes();
  const std::span<const RowInfo> infos(rows.infos);
  const std::span<const std::uint8_t> ids(rows.ids);

  Trajectory made;
  Handle& handle = made.handle;
  handle.shape = codec->shape();
  handle.store = std::move(store);
  handle.rows = rows.size();
  for (const RowInfo& info : infos)
    handle.provenance.push_back(info.provenance);

  const std::int64_t pages = rows.size() / page_tokens;
  std::vector<std::uint8_t> chunk(codec->ChunkBytes(page_tokens));
  for (std::int64_t first_page = 0; first_page < pages; first_page += kNodeChunks) {
    const std::int64_t end = std::min(pages, first_page + kNodeChunks);
    std::vector<Digest128> chunks;
    for (std::int64_t page = first_page; page < end; ++page) {
      const std::size_t at = static_cast<std::size_t>(page) * page_rows;
      const absl::Status status = codec->Encode(
          infos.subspan(at, page_rows), ids.subspan(at * row_bytes, page_rows * row_bytes), chunk);
      if (!status.ok()) return status;
      chunks.push_back(codec->Digest(page_tokens, chunk));
    }
    absl::StatusOr<std::vector<std::uint8_t>> node = EncodeNode(
        codec->shape_digest(), first_page, handle.head, chunks, page_tokens,
        infos.subspan(static_cast<std::size_t>(first_page) * page_rows, chunks.size() * page_rows));
    if (!node.ok()) return node.status();
    handle.head = ContentDigest(*node);
    made.nodes.push_back(*std::move(node));
  }
  const std::size_t tail = static_cast<std::size_t>(pages) * page_rows;
  if (tail < infos.size()) {
    const absl::StatusOr<std::vector<std::uint8_t>> segment =
        EncodeTailSegment(*codec, static_cast<std::int64_t>(tail), infos.subspan(tail),
                          ids.subspan(tail * row_bytes));
    if (!segment.ok()) return segment.status();
    handle.tail.push_back(ContentDigest(*segment));
  }
  return made;
}

}  // namespace waymark::wire
