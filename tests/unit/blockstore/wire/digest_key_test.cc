// Keyed digests: BLAKE2b is that of its specification, every changed bit of a handle or an object
// is refused, and a writer without the key makes nothing that a fetcher with the key accepts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "blockstore/wire/digest_key.h"
#include "tests/support/test_seed.h"
#include "tests/support/wire_golden.h"
#include "tests/support/wire_samples.h"
#include "tests/unit/blockstore/wire/fetch_support.h"

namespace waymark::wire {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kPlenty = std::size_t{1} << 30;

Bytes Counting(std::size_t size) {
  Bytes bytes(size);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  return bytes;
}
DigestKey KeyOf(std::uint8_t byte) {
  return DigestKey::Create("key", Bytes(16, byte)).value();
}

std::string Hex(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::string Hex(const Digest128& digest) {
  return Hex({reinterpret_cast<const std::uint8_t*>(&digest), sizeof(digest)});
}

// Against hashlib.blake2b of Python: keys and messages of many lengths, cut at every place in two.
TEST(DigestKey, IsBlake2b) {
  Bytes all;
  for (const std::size_t key_size : {16, 17, 63, 64}) {
    const auto key = DigestKey::Create("key", Counting(key_size)).value();
    for (const std::size_t size : {0, 1, 3, 127, 128, 129, 255, 256, 257, 1024}) {
      const Bytes message = Counting(size);
      const std::span<const std::uint8_t> whole(message);
      const Digest128 digest = key.Digest(whole);
      for (std::size_t cut = 0; cut <= size; ++cut)
        ASSERT_EQ(key.Digest(whole.first(cut), whole.subspan(cut)), digest) << size << " " << cut;
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(&digest);
      all.insert(all.end(), bytes, bytes + sizeof(digest));
    }
  }
  EXPECT_EQ(Hex(DigestKey::Create("key", Counting(16))->Digest(all)),
            "01d58a88ccdc4a65cb24104227222a71");
}

TEST(DigestKey, NamesByKeyOrWithout) {
  const std::string text = "front and bytes";
  const Bytes bytes(text.begin(), text.end());
  const std::span<const std::uint8_t> all(bytes);
  EXPECT_TRUE(DigestKey().empty());
  EXPECT_EQ(DigestKey().Digest(all.first(5), all.subspan(5)), ContentDigest(all));
  const auto key = DigestKey::Create("key", Counting(16)).value();
  const Digest128 digest = key.Digest(all.first(5), all.subspan(5));
  EXPECT_EQ(Hex(digest),
            "23fe48675c54ac14b82ae37ec65b48e8");  // hashlib.blake2b of Python
  EXPECT_NE(DigestKey::Create("key", Counting(17))->Digest(all), key.Digest(all));
  for (const std::size_t size : {0, 15, 65}) {
    const absl::Status refused = DigestKey::Create("key", Counting(size)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.message(), "key must have 16 to 64 bytes; it has " + std::to_string(size));
  }
}

// Remembers what is put.
class Objects final : public PageSource {
 public:
  absl::Status Get(std::span<const Digest128> digests, Deadline,
                   std::span<Object> objects) override {
    for (std::size_t i = 0; i < digests.size(); ++i) {
      const auto found = std::find(names.begin(), names.end(), digests[i]);
      const auto at = static_cast<std::size_t>(found - names.begin());
      objects[i] = found == names.end() ? Object{} : Object::Of(Bytes(contents[at]));
    }
    return absl::OkStatus();
  }
  absl::Status GetRanges(std::span<const ObjectRange>, Deadline, std::span<Object>) override {
    ADD_FAILURE() << "a range cannot be compared with a keyed digest";
    return absl::UnimplementedError("ranges");
  }
  absl::Status Put(std::span<const NamedObject> objects, Deadline) override {
    for (const NamedObject& named : objects) {
      names.push_back(named.digest);
      contents.emplace_back(named.object.bytes.begin(), named.object.bytes.end());
    }
    return absl::OkStatus();
  }
  absl::Status Holds(std::span<const Digest128> digests, Deadline,
                     std::span<std::uint8_t> held) override {
    for (std::size_t i = 0; i < digests.size(); ++i)
      held[i] = std::find(names.begin(), names.end(), digests[i]) != names.end() ? 1 : 0;
    return absl::OkStatus();
  }

  std::vector<Digest128> names;
  std::vector<Bytes> contents;
};

Rows SmallRows(std::int64_t size, std::uint64_t step = 1) {
  const RoutingShape shape = wire_samples::GoldenShape(3, 2, 256, 4);
  return wire_samples::RowsOf(
      shape, 0, std::vector<RowInfo>(static_cast<std::size_t>(size), {step, 1, Reason::kNone, {}}));
}
std::unique_ptr<Publisher> MakePublisher(PageSource* source, const DigestKey& key,
                                         const ChunkCode& code = {}) {
  return Publisher::Create(source, {.shape = {wire_samples::GoldenShape(3, 2, 256, 4), code},
                                    .store = "here",
                                    .key = key})
      .value();
}

TEST(KeyedHandle, RowsThereAndBack) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 50; ++round) {
    const RoutingShape shape = wire_samples::RandomShape(random);
    const ChunkCode code = wire_samples::RandomCode(random, shape);
    Rows rows = wire_samples::RandomRows(random, shape, random() % 400);
    rows.first = 0;
    Objects source;
    const auto publisher =
        Publisher::Create(&source, {.shape = {shape, code}, .key = KeyOf(1)}).value();
    auto handle = PublishRows(*publisher, "s", rows);
    ASSERT_TRUE(handle.ok()) << handle.status();
    handle = ParseHandle(*EncodeHandle(*handle));  // as it is sent
    Fetcher fetcher(&source, {.key = KeyOf(1)});
    const RowsAndLayers part{rows.size() / 3, rows.size(), shape.num_layers / 2, shape.num_layers};
    for (int again = 0; again < 2; ++again) {
      FetchReport report;
      const auto got = fetcher.Fetch(*handle, part, Soon(), &report).value();
      ExpectSame(got, ByDocument(rows, code, part));
      EXPECT_EQ(report.counts.damaged, 0u);
    }
  }
}

// The attack on a source that others can write to: change the rows, and make everything that names
// them anew. Without a key it succeeds.
TEST(KeyedHandle, AWriterWithoutTheKeyMakesNothingThatIsAccepted) {
  const Rows rows = SmallRows(11);
  Rows forged = rows;
  for (std::uint8_t& id : forged.ids)
    id ^= 1;
  const auto forge = [&](PageSource* source, const DigestKey& key) {
    return PublishRows(*MakePublisher(source, key), "s", forged).value();
  };

  MemorySource open(kPlenty);
  const Handle taken = forge(&open, {});
  const auto accepted = Fetcher(&open).Fetch(taken, Soon()).value();
  ExpectSame(accepted, forged);  // what a key protects against

  Objects source;
  const Handle right = PublishRows(*MakePublisher(&source, KeyOf(1)), "s", rows).value();
  Fetcher fetcher(&source, {.key = KeyOf(1)});
  const auto refused = [&](const Handle& handle, const std::string& why) {
    const absl::Status status = fetcher.Fetch(handle, Soon()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(status.message(), HasSubstr(why));
  };
  for (const DigestKey& key : {DigestKey(), KeyOf(2)}) {
    Objects theirs;
    Handle handle = forge(&theirs, key);
    refused(handle,
            key.empty() ? "it must be keyed, because the fetcher has a key" : "another key");
    // With the right handle's code, and with their rows under the right handle's other fields.
    handle.mac = right.mac;
    refused(handle, "another key");
    Handle mixed = right;
    mixed.head = handle.head;
    refused(mixed, "another key");
    mixed = right;
    mixed.tail = handle.tail;
    refused(mixed, "another key");
    // Their objects under the names of the right ones.
    Objects replaced;
    ASSERT_EQ(theirs.contents.size(), source.contents.size());
    replaced.names = source.names;
    replaced.contents = theirs.contents;
    FetchReport report;
    const auto got = Fetcher(&replaced, {.key = KeyOf(1)}).Fetch(right, Soon(), &report).value();
    EXPECT_EQ(ExpectRightOrLost(got, rows, Reason::kCapacity), rows.size());
    EXPECT_EQ(report.counts.damaged, 2u);  // the node and the tail; chunks are not asked for
  }
}

// A chunk of the trajectory in the place of another: a fetch of some layers finds it, too.
TEST(KeyedHandle, LayersAreFetchedAsWholeChunks) {
  Objects source;
  const Rows rows = SmallRows(8);
  const Handle handle = PublishRows(*MakePublisher(&source, KeyOf(1)), "s", rows).value();
  ASSERT_EQ(source.contents[0].size(), source.contents[1].size());
  std::swap(source.contents[0], source.contents[1]);
  FetchReport report;
  const auto got =
      Fetcher(&source, {.key = KeyOf(1)}).Fetch(handle, {0, 8, 1, 2}, Soon(), &report).value();
  EXPECT_EQ(report.counts.damaged, 2u);
  for (const RowInfo& info : got.infos)
    EXPECT_EQ(info.reason, Reason::kCapacity);
}

TEST(KeyedHandle, AFetcherWithoutAKeyReportsThatOneIsNeeded) {
  Objects source;
  const Handle handle = PublishRows(*MakePublisher(&source, KeyOf(1)), "s", SmallRows(5)).value();
  const absl::Status status = Fetcher(&source).Fetch(handle, Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("only with the key of its publisher"));
}

TEST(KeyedHandle, AnUnknownFlagIsRefused) {
  Objects source;
  const Handle handle = PublishRows(*MakePublisher(&source, KeyOf(1)), "s", SmallRows(5)).value();
  Bytes bytes = EncodeHandle(handle).value();
  EXPECT_EQ(bytes[5], 1);
  EXPECT_EQ(ParseHandle(bytes)->mac, handle.mac);
  for (int flag = 1; flag < 8; ++flag) {
    Bytes changed = bytes;
    changed[5] |= static_cast<std::uint8_t>(1 << flag);
    wire_samples::MakeHandleCrcRight(changed);
    const absl::Status status = ParseHandle(changed).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(), HasSubstr("flags must be 0 or 1"));
  }
}

// What was published and what continues it, object by object, equals what is published at once.
TEST(KeyedHandle, ContinuedSequencesAreKeyed) {
  Objects source;
  const auto publisher = MakePublisher(&source, KeyOf(1));
  const Rows rows = SmallRows(400);
  const Rows first = Slice(rows, 0, 150);
  const Handle earlier = PublishRows(*publisher, "s", first).value();
  const Handle later = PublishRows(*publisher, "s", Slice(rows, 150, 400)).value();
  EXPECT_EQ(later, PublishRows(*publisher, "", rows).value());
  EXPECT_NE(later.mac, earlier.mac);
  Fetcher fetcher(&source, {.key = KeyOf(1)});
  ExpectSame(*fetcher.Fetch(later, Soon()), rows);
  ExpectSame(*fetcher.Fetch(earlier, Soon()), first);
}

}  // namespace
}  // namespace waymark::wire
