// Varints, coverage and steps: bytes that are pinned, random infos there and back, every bad run.
#include "blockstore/wire/coverage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "blockstore/wire/varint.h"
#include "tests/support/test_seed.h"
#include "tests/support/wire_samples.h"

namespace waymark::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kPlenty = std::size_t{1} << 20;

RowInfo Valid(std::uint64_t step, std::uint64_t version = 1) {
  return {step, version, Reason::kNone, Provenance::kHere};
}

TEST(Varint, ThereAndBack) {
  for (const std::uint64_t value :
       {std::uint64_t{0}, std::uint64_t{127}, std::uint64_t{128}, std::uint64_t{16383},
        std::uint64_t{16384}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    Bytes bytes;
    PutVarint(bytes, value);
    ByteReader reader(bytes);
    std::uint64_t back = 1;
    EXPECT_TRUE(GetVarint(reader, back) && reader.done()) << value;
    EXPECT_EQ(back, value);
  }
  for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1},
                                   std::int64_t{-12345}, INT64_MIN, INT64_MAX}) {
    EXPECT_EQ(Unzigzag(Zigzag(value)), value);
  }
  EXPECT_EQ(Zigzag(-1), 1u);
  EXPECT_EQ(Zigzag(1), 2u);
}

TEST(Varint, OfAnotherFormIsRefused) {
  const Bytes cases[] = {{},
                         {0x80},
                         {0x80, 0x00},        // longer than needed
                         {0xff, 0x80, 0x00},  // the same
                         {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02},  // 2^64
                         {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}};
  for (const Bytes& bytes : cases) {
    ByteReader reader(bytes);
    std::uint64_t value = 0;
    EXPECT_FALSE(GetVarint(reader, value)) << bytes.size();
  }
}

TEST(Coverage, BytesOfAPrefillThatIsDecodedOn) {
  std::vector<RowInfo> infos(3, Valid(5, 300));
  for (const std::uint64_t step : {6, 7, 8})
    infos.push_back(Valid(step, 300));
  infos.push_back({0, 0, Reason::kCapacity, Provenance::kKept});
  infos.push_back(Valid(4, 300));
  Bytes coverage;
  AppendCoverage(infos, WithProvenance::kYes, coverage);
  EXPECT_THAT(coverage, ElementsAre(6, 0, 0, 0xac, 0x02, 1, 4, 1, 1, 0, 0, 0xac, 0x02));
  Bytes without;
  AppendCoverage(infos, WithProvenance::kNo, without);
  EXPECT_THAT(without, ElementsAre(6, 0, 0, 0xac, 0x02, 1, 4, 0, 1, 0, 0, 0xac, 0x02));
  Bytes steps;
  AppendSteps(infos, steps);
  // 3 rows from 0 + 5 by 0; 3 rows from 5 + 1 by 1; 1 row from 8 - 4.
  EXPECT_THAT(steps, ElementsAre(3, 10, 0, 3, 2, 2, 1, 7));
}

TEST(Coverage, BadRunsAreRefused) {
  const auto refused = [](const Bytes& coverage, const Bytes& steps, std::int64_t rows) {
    const auto known = RowRuns::Parse(coverage, steps, rows, kPlenty);
    return known.ok() ? std::string() : std::string(known.status().message());
  };
  EXPECT_THAT(refused({2, 0, 0, 1, 2, 1, 0}, {2, 2, 0}, 4), "") << "the twin of those below";
  EXPECT_THAT(refused({0, 1, 0}, {}, 0), HasSubstr("bytes after the last row"));
  EXPECT_THAT(refused({0, 1, 0, 1, 1, 0}, {}, 1), HasSubstr("1 row or more"));
  EXPECT_THAT(refused({5, 1, 0}, {}, 4), HasSubstr("no more than are left"));
  EXPECT_THAT(refused({3, 1, 0}, {}, 4), HasSubstr("1 row or more"));
  EXPECT_THAT(refused({4, 1}, {}, 4), HasSubstr("ends before"));
  EXPECT_THAT(refused({4, 8, 3}, {}, 4), "");
  EXPECT_THAT(refused({4, 9, 0}, {}, 4), HasSubstr("cause"));
  EXPECT_THAT(refused({4, 16, 0}, {}, 4), HasSubstr("cause"));
  EXPECT_THAT(refused({4, 1, 4}, {}, 4), HasSubstr("provenance"));
  EXPECT_THAT(refused({4, 0, 0, 0x80, 0}, {}, 4), HasSubstr("version"));
  EXPECT_THAT(refused({4, 0, 0, 1}, {}, 4), HasSubstr("steps: a run"));
  EXPECT_THAT(refused({4, 0, 0, 1}, {3, 2, 0}, 4), HasSubstr("steps: a run"));
  EXPECT_THAT(refused({4, 0, 0, 1}, {5, 2, 0}, 4), HasSubstr("steps: a run"));
  EXPECT_THAT(refused({4, 0, 0, 1}, {4, 2}, 4), HasSubstr("stride"));
  EXPECT_THAT(refused({4, 0, 0, 1}, {4, 2, 0, 1, 1}, 4), HasSubstr("bytes after the last valid"));
  // A run of 2^64 - 1 rows, as a wrapped count would be.
  EXPECT_THAT(refused({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 1, 0}, {}, 4),
              HasSubstr("1 row or more"));
}

TEST(Coverage, ManyRowsInFewBytesTakeLittleMemory) {
  Bytes coverage;
  PutVarint(coverage, (std::uint64_t{1} << 31) - 1);
  coverage.insert(coverage.end(), {2, 0});
  const auto known =
      RowRuns::Parse(coverage, std::nullopt, (std::int64_t{1} << 31) - 1, 64).value();
  std::vector<RowInfo> infos(1);
  known.Infos((std::int64_t{1} << 31) - 2, infos);
  EXPECT_EQ(infos[0].reason, Reason::kNotCaptured);
}

TEST(Coverage, RunsBeyondTheLimitAreRefused) {
  Bytes coverage;
  for (int i = 0; i < 100; ++i)
    coverage.insert(coverage.end(), {1, static_cast<std::uint8_t>(1 + i % 2), 0});
  EXPECT_TRUE(RowRuns::Parse(coverage, std::nullopt, 100, 100 * 32).ok());
  EXPECT_EQ(RowRuns::Parse(coverage, std::nullopt, 100, 99 * 32).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(Provenance, ThereAndBack) {
  const std::vector<Provenance> rows = {Provenance::kByKey, Provenance::kByKey, Provenance::kHere};
  Bytes bytes;
  AppendProvenance(rows, bytes);
  EXPECT_THAT(bytes, ElementsAre(2, 2, 1, 0));
  EXPECT_EQ(*ParseProvenance(bytes, 3, kPlenty), rows);
  EXPECT_FALSE(ParseProvenance(bytes, 2, kPlenty).ok());
  EXPECT_FALSE(ParseProvenance(bytes, 4, kPlenty).ok());
  EXPECT_FALSE(ParseProvenance(Bytes{3, 4}, 3, kPlenty).ok());
  EXPECT_EQ(ParseProvenance(bytes, 3, 2).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace waymark::wire
