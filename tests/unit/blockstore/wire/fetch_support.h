// Sources that misbehave on purpose, and what fetched rows are compared with.
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_WIRE_FETCH_SUPPORT_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_WIRE_FETCH_SUPPORT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
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

// What another source gives, after `change` has had its way with each object (it may damage the
// bytes; false: the object is gone).
class ChangingSource final : public PageSource {
 public:
  using Change = std::function<bool(const Digest128&, std::vector<std::uint8_t>&)>;
  ChangingSource(PageSource* source, Change change) : source_(source), change_(std::move(change)) {}

  absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                   std::span<Object> objects) override {
    const absl::Status status = source_->Get(digests, deadline, objects);
    for (std::size_t i = 0; i < objects.size(); ++i)
      Apply(digests[i], objects[i]);
    return status;
  }
  absl::Status GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                         std::span<Object> objects) override {
    const absl::Status status = source_->GetRanges(ranges, deadline, objects);
    for (std::size_t i = 0; i < objects.size(); ++i)
      Apply(ranges[i].digest, objects[i]);
    return status;
  }
  absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override {
    return source_->Put(objects, deadline);
  }
  absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                     std::span<std::uint8_t> held) override {
    return source_->Holds(digests, deadline, held);
  }

 private:
  void Apply(const Digest128& digest, Object& object) {
    if (!object.present()) return;
    std::vector<std::uint8_t> bytes(object.bytes.begin(), object.bytes.end());
    object = change_(digest, bytes) ? Object::Of(std::move(bytes)) : Object{};
  }

  PageSource* const source_;
  const Change change_;
};

// Answers one digest with the object of another.
class OtherNames final : public PageSource {
 public:
  OtherNames(PageSource* source, const Digest128& asked, const Digest128& answered)
      : source_(source), asked_(asked), answered_(answered) {}

  absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                   std::span<Object> objects) override {
    std::vector<Digest128> names(digests.begin(), digests.end());
    std::replace(names.begin(), names.end(), asked_, answered_);
    return source_->Get(names, deadline, objects);
  }
  absl::Status GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                         std::span<Object> objects) override {
    std::vector<ObjectRange> named(ranges.begin(), ranges.end());
    for (ObjectRange& range : named) {
      if (range.digest == asked_) range.digest = answered_;
    }
    return source_->GetRanges(named, deadline, objects);
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
  const Digest128 asked_;
  const Digest128 answered_;
};

// Counts the calls that a fetcher makes of another source: each is a round trip.
class CountingSource final : public PageSource {
 public:
  explicit CountingSource(PageSource* source) : source_(source) {}

  absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                   std::span<Object> objects) override {
    ++calls;
    return source_->Get(digests, deadline, objects);
  }
  absl::Status GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                         std::span<Object> objects) override {
    ++calls;
    return source_->GetRanges(ranges, deadline, objects);
  }
  absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override {
    return source_->Put(objects, deadline);
  }
  absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                     std::span<std::uint8_t> held) override {
    return source_->Holds(digests, deadline, held);
  }

  int calls = 0;

 private:
  PageSource* const source_;
};

// The part as a document of the rows gives it: the same code, without handles.
inline Rows ByDocument(const Rows& rows, const ChunkCode& code, const RowsAndLayers& part) {
  const auto bytes = WriteDocument(rows, {.code = code});
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  const auto document = Document::Open(*bytes);
  EXPECT_TRUE(document.ok()) << document.status();
  return document->ReadRows(part).value();
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
  return publisher.Publish(std::move(name), std::move(rows)).get();
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

}  // namespace waymark::wire

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_WIRE_FETCH_SUPPORT_H_
