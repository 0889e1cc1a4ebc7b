#include "blockstore/wire/published_sequence.h"

#include <algorithm>

#include "blockstore/wire/node.h"

namespace waymark::wire {

absl::Status PublishInput::Read(std::int64_t begin, std::int64_t end, std::span<RowInfo> infos,
                                std::span<std::uint8_t> ids) const {
  if (pinned()) {
    const IdType type = shape().id_bytes() == 1 ? IdType::kUint8 : IdType::kUint16;
    return snapshot.Read(begin, end, {Layout::kTokensLayersK, type, Fill::kZeros}, ids, infos);
  }
  const auto at = static_cast<std::size_t>(begin - rows.first);
  std::copy_n(rows.infos.begin() + static_cast<std::ptrdiff_t>(at), infos.size(), infos.begin());
  std::copy_n(rows.ids.begin() + static_cast<std::ptrdiff_t>(at * rows.shape.row_bytes()),
              ids.size(), ids.begin());
  return absl::OkStatus();
}

absl::Status PublishInput::ReadInfos(std::int64_t begin, std::int64_t end,
                                     std::span<RowInfo> infos) const {
  if (pinned()) return snapshot.ReadInfos(begin, end, infos);
  std::copy_n(rows.infos.begin() + (begin - rows.first), infos.size(), infos.begin());
  return absl::OkStatus();
}

absl::StatusOr<bool> IsOtherRequest(const PublishInput& input, const PublishedSequence& known,
                                    std::uint64_t shape_digest, std::int64_t page_tokens) {
  if (input.last() < known.handle.rows) return true;
  std::int64_t first = known.tail.first;
  std::vector<RowInfo> before;
  if (!known.node.empty()) {
    const absl::StatusOr<Node> node =
        ParseNode(known.node, shape_digest, static_cast<std::int32_t>(page_tokens));
    if (!node.ok()) return node.status();
    first = node->first_page * page_tokens;
    before.resize(static_cast<std::size_t>(node->known.rows()));
    node->known.Infos(0, before);
  }
  before.insert(before.end(), known.tail.infos.begin(), known.tail.infos.end());
  std::vector<RowInfo> now(before.size());
  absl::Status status = input.ReadInfos(first, first + static_cast<std::int64_t>(now.size()), now);
  if (!status.ok()) return status;
  const auto same = [](const RowInfo& a, const RowInfo& b) {
    return !a.valid() || !b.valid() || (a.step == b.step && a.version == b.version);
  };
  return !std::equal(before.begin(), before.end(), now.begin(), same);
}

}  // namespace waymark::wire
