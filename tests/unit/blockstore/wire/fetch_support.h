// Sources that misbehave on purpose, and what fetched rows are compared with.
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_WIRE_FETCH_SUPPORT_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_WIRE_FETCH_SUPPORT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "blockstore/wire/document.h"
#include "blockstore/wire/document_writer.h"
#include "blockstore/wire/fetcher.h"
#include "blockstore/wire/memory_source.h"
#include "blockstore/wire/objects.h"
#include "blockstore/wire/publisher.h"

namespace waymark::wire {

inline Deadline Soon() {
  return After(std::chrono::seconds(20));
}

// Another source: a test's overrides what it misbehaves in.
class OverSource : public PageSource {
 public:
  explicit OverSource(PageSource* source) : source_(source) {}

  absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                   std::span<Object> objects) override {
    return source_->Get(digests, deadline, objects);
  }
  absl::Status GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                         std::span<Object> objects) override {
    return source_->GetRanges(ranges, deadline, objects);
  }
  absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override {
    return source_->Put(objects, deadline);
  }
  absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                     std::span<std::uint8_t> held) override {
    return source_->Holds(digests, deadline, held);
  }

 private:
  PageSource* const source_;
};

// What another source gives, after `change` has had its way with each object (it may damage the
// bytes; false: the object is gone).
class ChangingSource final : public OverSource {
 public:
  using Change = std::function<bool(const Digest128&, std::vector<std::uint8_t>&)>;
  ChangingSource(PageSource* source, Change change)
      : OverSource(source), change_(std::move(change)) {}

  absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                   std::span<Object> objects) override {
    const absl::Status status = OverSource::Get(digests, deadline, objects);
    for (std::size_t i = 0; i < objects.size(); ++i)
      Apply(digests[i], objects[i]);
    return status;
  }
  absl::Status GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                         std::span<Object> objects) override {
    const absl::Status status = OverSource::GetRanges(ranges, deadline, objects);
    for (std::size_t i = 0; i < objects.size(); ++i)
      Apply(ranges[i].digest, objects[i]);
    return status;
  }

 private:
  void Apply(const Digest128& digest, Object& object) {
    if (!object.present()) return;
    std::vector<std::uint8_t> bytes(object.bytes.begin(), object.bytes.end());
    object = change_(digest, bytes) ? Object::Of(std::move(bytes)) : Object{};
  }

  const Change change_;
};

// The part as a document of the rows gives it: the same code, without handles.
inline Rows ByDocument(const Rows& rows, const ChunkCode& code, const RowsAndLayers& part) {
  const auto bytes = WriteDocument(rows, {.code = code}).value();
  return Document::Open(bytes)->ReadRows(part).value();
}

inline void ExpectSame(const Rows& got, const Rows& right, const std::string& where = "") {
  ASSERT_EQ(got.first, right.first) << where;
  ASSERT_EQ(got.shape, right.shape) << where;
  ASSERT_EQ(got.ordered, right.ordered) << where;
  ASSERT_EQ(got.infos.size(), right.infos.size()) << where;
  for (std::size_t i = 0; i < got.infos.size(); ++i)
    ASSERT_EQ(got.infos[i], right.infos[i]) << where << " row " << i;
  ASSERT_EQ(got.ids, right.ids) << where;
}

// A conversation: 58 x 8 ids of 256, 16 rows a page.
inline RoutingShape LongShape() {
  return {.num_layers = 58, .top_k = 8, .num_experts = 256, .page_tokens = 16};
}
inline Rows LongRows(const RoutingShape& shape, std::int64_t size) {
  Rows rows;
  rows.shape = shape;
  rows.infos.assign(static_cast<std::size_t>(size), {1, 1, Reason::kNone, {}});
  rows.ids.resize(rows.infos.size() * rows.shape.row_bytes());
  std::mt19937_64 random(1);                           // longer ones begin with shorter ones
  for (std::size_t i = 0; i < rows.ids.size(); ++i) {  // distinct in a layer
    rows.ids[i] = i % static_cast<std::size_t>(shape.top_k) == 0
                      ? static_cast<std::uint8_t>(random())
                      : static_cast<std::uint8_t>(rows.ids[i - 1] + 31);
  }
  return rows;
}
inline Rows LongRows(std::int64_t size) {
  return LongRows(LongShape(), size);
}

// Rows [begin, end) of `rows`, which begin at 0.
inline Rows Slice(const Rows& rows, std::int64_t begin, std::int64_t end) {
  Rows slice = rows;
  const auto bytes = static_cast<std::ptrdiff_t>(rows.shape.row_bytes());
  slice.first = begin;
  slice.infos.assign(rows.infos.begin() + begin, rows.infos.begin() + end);
  slice.ids.assign(rows.ids.begin() + begin * bytes, rows.ids.begin() + end * bytes);
  return slice;
}

// Each row is right, or missing for `reason`, its ids zero. How many rows are lost that way.
inline std::int64_t ExpectRightOrLost(const Rows& got, const Rows& right, Reason reason,
                                      const std::string& where = "") {
  std::int64_t lost = 0;
  EXPECT_EQ(got.infos.size(), right.infos.size()) << where;
  const std::size_t row_bytes = right.shape.row_bytes();
  const std::vector<std::uint8_t> zeros(row_bytes);
  for (std::size_t i = 0; i < right.infos.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const bool same = got.infos[i] == right.infos[i] &&
                      std::equal(got.row(row).begin(), got.row(row).end(), right.row(row).begin());
    if (same) continue;
    ++lost;
    EXPECT_EQ(got.infos[i].reason, reason) << where << " row " << i;
    EXPECT_EQ(got.infos[i].step, 0u) << where << " row " << i;
    EXPECT_TRUE(std::equal(zeros.begin(), zeros.end(), got.row(row).begin())) << where;
    if (::testing::Test::HasFailure()) break;
  }
  return lost;
}

inline absl::StatusOr<Handle> PublishRows(Publisher& publisher, std::string name, Rows rows) {
  absl::StatusOr<Published> made = publisher.Publish(std::move(name), std::move(rows)).get();
  if (!made.ok()) return made.status();
  return made->handle;
}

// The nodes of a trajectory, first to last, as DocumentOptions wants them.
inline std::vector<std::vector<std::uint8_t>> NodesOf(PageSource& source, const Handle& handle) {
  std::vector<std::vector<std::uint8_t>> nodes;
  const auto codec = ChunkCodec::Create(handle.shape);
  for (Digest128 digest = handle.head; digest != Digest128{};) {
    Object object;
    EXPECT_TRUE(source.Get({&digest, 1}, Soon(), {&object, 1}).ok());
    EXPECT_TRUE(object.present());
    if (!object.present()) break;
    nodes.emplace_back(object.bytes.begin(), object.bytes.end());
    digest = ParseNode(object.bytes, codec->shape_digest(), handle.shape.rows.page_tokens)->before;
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

// A source with what was published into it, of such rows or those of another shape.
struct SourceOfRows {
  explicit SourceOfRows(const RoutingShape& shape = LongShape(), const ChunkCode& code = {})
      : publisher(Publisher::Create(&source, {.shape = {shape, code}}).value()) {}
  absl::StatusOr<Handle> Publish(const std::string& name, const Rows& rows) {
    return PublishRows(*publisher, name, rows);
  }
  // Of a trajectory with one node.
  std::vector<Digest128> ChunksOf(const Handle& handle) {
    return ParseNode(NodesOf(source, handle)[0], ShapeDigest(handle.shape), 16).value().chunks;
  }

  MemorySource source{std::size_t{1} << 30};
  const std::unique_ptr<Publisher> publisher;
};

}  // namespace waymark::wire

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_WIRE_FETCH_SUPPORT_H_
