// Real routing through the store: the routes that a 16B model's requests took (27 layers, 64
// experts, top-6; three builds of one prompt) go through paging, prefix sharing and reassembly, and
// the audit is shown its two populations. The arrays lie in the folder that WAYMARK_DATA names;
// without it, skipped.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "adapters/formats/formats.h"
#include "blockstore/flight/check.h"
#include "blockstore/flight/writer.h"
#include "blockstore/store/agreement.h"
#include "blockstore/store/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kPromptTokens = 88;
constexpr std::int32_t kBlockTokens = 16;

RoutingShape RealShape(std::int32_t page_tokens) {
  return {.num_layers = 27, .top_k = 6, .num_experts = 64, .page_tokens = page_tokens};
}

// One build's routes, a row a token.
struct Build {
  std::string name;
  std::vector<std::uint8_t> ids;
  std::size_t row_bytes = 0;

  [[nodiscard]] std::int64_t tokens() const {
    return static_cast<std::int64_t>(ids.size() / row_bytes);
  }
  [[nodiscard]] const std::uint8_t* row(std::int64_t token) const {
    return ids.data() + static_cast<std::size_t>(token) * row_bytes;
  }
};

// Rows of a build, in the order of a step's slots.
class BuildRows final : public StepRows {
 public:
  BuildRows(const Build& build, std::vector<std::int64_t> tokens)
      : build_(build), tokens_(std::move(tokens)) {}
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      verdicts[i] = Reason::kNone;
      std::copy_n(build_.row(tokens_[first + i]), build_.row_bytes, destinations[i]);
    }
  }
  void Done() override {}

 private:
  const Build& build_;
  const std::vector<std::int64_t> tokens_;
};

class RealRouting : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("WAYMARK_DATA");
    if (folder == nullptr || *folder == '\0') {
      GTEST_SKIP() << "WAYMARK_DATA is not set: no recorded routing to feed through the store";
    }
    for (const char* name :
         {"build_2026_03_eager", "build_2026_04_cudagraph", "build_2026_04_eager"}) {
      const std::string path = std::string(folder) + "/megatron_16b_routing/" + name + ".npy";
      std::ifstream file(path, std::ios::binary);
      if (!file) {
        GTEST_SKIP() << path << " is not there: no recorded routing to feed through the store";
      }
      const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
      const formats::RoutingArray array = formats::ReadArray(bytes, {}).value().array;
      ASSERT_EQ(array.dtype, formats::Dtype::kUint8);
      ASSERT_EQ(array.rows, 117);
      ASSERT_EQ(array.row_ids(), std::size_t{27} * 6);
      builds_.push_back({name, array.ids, array.row_ids()});
    }
  }

  std::vector<Build> builds_;
};

// A store, steps numbered by themselves, and blocks that lie where the test says.
class Driver {
 public:
  static StoreOptions Options(std::int32_t page_tokens, bool audit = true) {
    return {.shape = RealShape(page_tokens),
            .num_blocks = 64,
            .block_tokens = kBlockTokens,
            .landing = Landing::kCaller,
            .audit = audit};
  }
  explicit Driver(std::int32_t page_tokens) : Driver(Options(page_tokens)) {}
  explicit Driver(const StoreOptions& options) : store_(RoutingStore::Create(options).value()) {}
  RoutingStore& store() { return *store_; }
  [[nodiscard]] std::uint64_t last() const { return step_; }

  // Runs tokens [from, to) of a sequence in `blocks` through one forward, on `build`.
  void Forward(const Build& build, std::vector<Event> events, const std::vector<int>& blocks,
               std::int64_t from, std::int64_t to) {
    std::vector<std::int64_t> slots;
    std::vector<std::int64_t> tokens;
    for (std::int64_t token = from; token < to; ++token) {
      slots.push_back(Slot(blocks, token));
      tokens.push_back(token);
    }
    Run(build, std::move(events), slots, std::move(tokens));
  }
  void Run(const Build& build, std::vector<Event> events, const std::vector<std::int64_t>& slots,
           std::vector<std::int64_t> tokens) {
    ++step_;
    for (Event& event : events) {
      if (event.type == EventType::kSeal) event.step = step_;
    }
    BuildRows step_rows(build, std::move(tokens));
    const StepCode code =
        store_->BeginStep({step_, 1, events.data(), events.size(), slots.data(), slots.size()});
    ASSERT_TRUE(code.ok()) << code.ToStatus();
    ASSERT_TRUE(store_->Submit(StepId(step_), &step_rows).ok());
    ASSERT_TRUE(store_->Land(StepId(step_)));
  }
  static std::int64_t Slot(const std::vector<int>& blocks, std::int64_t token) {
    return std::int64_t{blocks[static_cast<std::size_t>(token / kBlockTokens)]} * kBlockTokens +
           token % kBlockTokens;
  }
  Rows Read(const std::vector<int>& blocks, std::int64_t first, std::int64_t last) {
    std::vector<BlockId> ids;
    for (const int block : blocks)
      ids.emplace_back(block);
    const Snapshot snapshot = store_->TakeSnapshot(ids, first, last).value();
    EXPECT_TRUE(store_->WaitIdle(std::chrono::seconds(1)).ok());
    return snapshot.ReadRows().value();
  }

 private:
  std::unique_ptr<RoutingStore> store_;
  std::uint64_t step_ = 0;
};

BlockKey KeyOf(std::int64_t block) {
  return BlockKey::FromInteger(1000 + static_cast<std::uint64_t>(block));
}
Event SealNow(int block, std::int64_t nth) {
  return Event::Seal(BlockId(block), KeyOf(nth), StepId(1));  // Run sets the step
}

// Runs the first 80 tokens, in blocks that it seals and returns.
std::vector<int> SealedPrompt(Driver& driver, const Build& build) {
  const std::vector<int> blocks = {7, 3, 9, 1, 5};
  std::vector<Event> events;
  for (std::size_t nth = 0; nth < blocks.size(); ++nth) {
    events.push_back(Event::Bind(BlockId(blocks[nth])));
    events.push_back(SealNow(blocks[nth], static_cast<std::int64_t>(nth)));
  }
  driver.Forward(build, events, blocks, 0, 80);
  return blocks;
}

// Fills a block with the tokens from `first` on, without a Bind.
void WriteOver(Driver& driver, const Build& build, int block, std::int64_t first) {
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < kBlockTokens; ++i) {
    slots.push_back(std::int64_t{block} * kBlockTokens + i);
    tokens.push_back(first + i);
  }
  driver.Run(build, {}, slots, tokens);
}

// The same set of experts in every layer of every row.
void ExpectSameSets(const Rows& rows, const Build& build) {
  const RoutingShape shape = RealShape(rows.shape.page_tokens);
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    ASSERT_TRUE(rows.infos[static_cast<std::size_t>(i)].valid()) << "row " << rows.first + i;
    const std::uint8_t* want = build.row(rows.first + i);
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      const auto begin = static_cast<std::size_t>(layer * shape.top_k);
      const auto got = rows.row(i).subspan(begin, static_cast<std::size_t>(shape.top_k));
      ASSERT_THAT(std::vector<int>(got.begin(), got.end()),
                  ::testing::UnorderedElementsAreArray(want + begin, want + begin + shape.top_k))
          << "row " << rows.first + i << ", layer " << layer;
    }
  }
}

TEST_F(RealRouting, RequestsThatShareTheirPromptGetTheSameSetsBack) {
  for (const std::int32_t page_tokens : {4, 16}) {
    const Build& build = builds_[0];
    const std::int64_t tokens = build.tokens();
    Driver driver(page_tokens);

    // The first request: its prompt in two chunks that cut a block, then token by token.
    const std::vector<int> a = {7, 3, 9, 1, 5, 11, 20, 21};
    std::vector<Event> events;
    for (const int block : {7, 3, 9})
      events.push_back(Event::Bind(BlockId(block)));
    events.push_back(SealNow(7, 0));
    events.push_back(SealNow(3, 1));
    driver.Forward(build, events, a, 0, 40);
    events.clear();
    for (const int block : {1, 5, 11})
      events.push_back(Event::Bind(BlockId(block)));
    for (std::int64_t nth = 2; nth < 5; ++nth) {
      events.push_back(SealNow(a[static_cast<std::size_t>(nth)], nth));
    }
    driver.Forward(build, events, a, 40, kPromptTokens);
    for (std::int64_t token = kPromptTokens; token < tokens; ++token) {
      events.clear();
      const int block = a[static_cast<std::size_t>(token / kBlockTokens)];
      if (token % kBlockTokens == 0) events.push_back(Event::Bind(BlockId(block)));
      if (token % kBlockTokens == kBlockTokens - 1) {
        events.push_back(SealNow(block, token / kBlockTokens));
      }
      driver.Forward(build, events, a, token, token + 1);
    }

    // The second and third: hits on the five full blocks of the prompt, own blocks behind them.
    const std::vector<int> b = {7, 3, 9, 1, 5, 30, 31, 32};
    const std::vector<int> c = {7, 3, 9, 1, 5, 40, 41, 42};
    for (const std::vector<int>& blocks : {b, c}) {
      std::vector<BlockId> ids;
      for (const int block : blocks)
        ids.emplace_back(block);
      EXPECT_EQ(driver.store().CoveredPrefix(ids, 80), 80);
      events.clear();
      for (int nth = 0; nth < 5; ++nth) {
        events.push_back(Event::Retain(BlockId(blocks[static_cast<std::size_t>(nth)])));
      }
      for (int nth = 5; nth < 8; ++nth) {
        events.push_back(Event::Bind(BlockId(blocks[static_cast<std::size_t>(nth)])));
      }
      driver.Forward(build, events, blocks, 80, tokens);
    }

    const Rows first = driver.Read(a, 0, tokens);
    ExpectSameSets(first, build);
    ExpectSameSets(driver.Read(b, 0, tokens), build);
    ExpectSameSets(driver.Read(c, 0, tokens), build);
    // In two turns, put together again.
    const Rows turns[] = {driver.Read(c, 0, 50), driver.Read(c, 50, tokens)};
    const Rows* const reads[] = {&turns[0], &turns[1]};
    const auto joined = Join(reads).value();
    ExpectSameSets(joined, build);
    EXPECT_EQ(joined.ids, first.ids);

    // All are done; their KV went to a tier and comes back into other blocks, by key.
    events.clear();
    for (const std::vector<int>& blocks : {a, b, c}) {
      for (const int block : blocks)
        events.push_back(Event::Release(BlockId(block)));
    }
    const std::vector<int> d = {50, 51, 52, 53, 54, 55, 56, 57};
    for (std::int64_t nth = 0; nth < 5; ++nth) {
      events.push_back(Event::Bind(BlockId(d[static_cast<std::size_t>(nth)]), KeyOf(nth)));
    }
    for (std::size_t nth = 5; nth < 8; ++nth)
      events.push_back(Event::Bind(BlockId(d[nth])));
    driver.Forward(build, events, d, 80, tokens);
    const Rows restored = driver.Read(d, 0, tokens);
    ExpectSameSets(restored, build);
    EXPECT_EQ(restored.infos[0].provenance, Provenance::kByKey);
    EXPECT_EQ(restored.infos[100].provenance, Provenance::kHere);
    const Stats stats = driver.store().GetStats();
    EXPECT_EQ(stats.audit_voided_pages, 0u);
    EXPECT_EQ(stats.hits_by_key, 5u * static_cast<std::uint64_t>(kBlockTokens / page_tokens));
  }
}

// The two populations that the audit's threshold lies between.
TEST_F(RealRouting, ARouteIsAFingerprintOfItsToken) {
  const RoutingShape shape = RealShape(16);
  for (const auto& [x, y] : {std::pair<std::size_t, std::size_t>{0, 1}, {0, 2}, {1, 2}}) {
    double sum = 0;
    double least = 1;
    for (std::int64_t token = 0; token < builds_[x].tokens(); ++token) {
      const double agreement = Agreement(shape, builds_[x].row(token), builds_[y].row(token));
      sum += agreement;
      least = std::min(least, agreement);
      EXPECT_TRUE(TiesExplain(shape, builds_[x].row(token), builds_[y].row(token))) << token;
    }
    const double mean = sum / static_cast<double>(builds_[x].tokens());
    std::printf("same token, %s and %s: mean %.3f, least %.3f\n", builds_[x].name.c_str(),
                builds_[y].name.c_str(), mean, least);
    EXPECT_GE(mean, 0.94);
  }
  double sum = 0;
  double most = 0;
  std::int64_t pairs = 0;
  for (std::int64_t a = 0; a < builds_[0].tokens(); ++a) {
    for (std::int64_t b = 0; b < a; ++b) {
      const double agreement = Agreement(shape, builds_[0].row(a), builds_[0].row(b));
      sum += agreement;
      most = std::max(most, agreement);
      ++pairs;
      EXPECT_FALSE(TiesExplain(shape, builds_[0].row(a), builds_[0].row(b))) << a << " and " << b;
    }
  }
  const double mean = sum / static_cast<double>(pairs);
  std::printf("different tokens of one build: mean %.3f, most %.3f of %d pairs\n", mean, most,
              static_cast<int>(pairs));
  EXPECT_LT(mean, 0.15);
  EXPECT_GT(mean, 0.09);
  EXPECT_LE(most, 0.87);
}

// A sealed prompt whose blocks are written again by another build: the same tokens. Nothing is
// voided.
TEST_F(RealRouting, ARunOnAnotherBuildIsNotVoided) {
  for (const std::int32_t page_tokens : {4, 16}) {
    for (std::size_t other = 1; other < builds_.size(); ++other) {
      Driver driver(page_tokens);
      const std::vector<int> blocks = SealedPrompt(driver, builds_[0]);
      driver.Forward(builds_[other], {}, blocks, 0, 80);
      const Stats stats = driver.store().GetStats();
      ASSERT_EQ(stats.audited_rows, 80u);
      EXPECT_EQ(stats.audit_voided_rows, 0u);
      EXPECT_GT(stats.audit_disagreements, 0u);
      const double mean = stats.audit_agreement_sum / static_cast<double>(stats.audited_rows);
      EXPECT_GE(mean, 0.94) << builds_[other].name;
      EXPECT_LT(mean, 1.0) << builds_[other].name;
      const Rows rows = driver.Read(blocks, 0, 80);
      ExpectSameSets(rows, builds_[0]);
      EXPECT_EQ(rows.infos[0].provenance, Provenance::kKept);
    }
  }
}

// A sealed block that gets another sequence's tokens, and no Bind: whichever block and tokens.
TEST_F(RealRouting, AMissedBindIsVoidedAndNamed) {
  const Build& build = builds_[0];
  std::int64_t tried = 0;
  double highest = 0;
  for (std::int64_t kept = 0; kept < 5; ++kept) {
    for (std::int64_t shift = 0; shift + kBlockTokens <= build.tokens(); shift += 7) {
      if (shift < (kept + 1) * kBlockTokens && shift + kBlockTokens > kept * kBlockTokens) continue;
      Driver driver(kBlockTokens);
      const std::vector<int> blocks = SealedPrompt(driver, build);
      const int block = blocks[static_cast<std::size_t>(kept)];
      WriteOver(driver, build, block, shift);
      ++tried;
      const std::vector<AuditFinding> findings = driver.store().TakeFindings();
      ASSERT_EQ(findings.size(), 1u) << "block " << kept << ", tokens from " << shift;
      EXPECT_EQ(findings[0].block, block);
      EXPECT_EQ(findings[0].step, 2u);
      EXPECT_EQ(findings[0].kept_step, 1u);
      EXPECT_TRUE(findings[0].voided);
      EXPECT_THAT(findings[0].ToString(), HasSubstr("Bind"));
      highest = std::max(highest, findings[0].agreement);
      const Rows rows = driver.Read(blocks, 0, 80);
      for (std::int64_t row = 0; row < 80; ++row) {
        const RowInfo& info = rows.infos[static_cast<std::size_t>(row)];
        EXPECT_EQ(info.reason, row / kBlockTokens == kept ? Reason::kAudit : Reason::kNone);
      }
    }
  }
  std::printf("missed Binds: %d tried, the most that a block agreed in: %.3f\n",
              static_cast<int>(tried), highest);
  EXPECT_GT(tried, 40);
  EXPECT_LT(highest, 0.45);
}

// A flight keeps 16 bytes a row by default. They must tell the two populations apart, too.
TEST_F(RealRouting, FlightsOfDigestsTellTheTwoPopulationsApart) {
  for (const FlightRows rows : {FlightRows::kDigests, FlightRows::kIds}) {
    for (const bool missed_bind : {false, true}) {
      StoreOptions options = Driver::Options(16, /*audit=*/false);
      const auto writer = FlightWriter::InMemory(FlightInfo::Of(options, rows));
      options.flight = writer->sink();
      {
        Driver driver(options);
        const std::vector<int> blocks = SealedPrompt(driver, builds_[0]);
        driver.Forward(builds_[1], {}, blocks, 0, 80);  // a recomputation on another build
        driver.Forward(builds_[2], {}, blocks, 0, 80);
        if (missed_bind) {  // block 9 gets the tokens of the block behind it
          WriteOver(driver, builds_[0], 9, 48);
        }
        ExpectSameSets(driver.Read(blocks, 0, 80), builds_[0]);
      }
      ASSERT_TRUE(writer->Close().ok());
      auto reader = FlightReader::FromBytes(writer->bytes()).value();
      const auto verdict = CheckFlight(reader).value();
      EXPECT_EQ(verdict.has_missed_event(), missed_bind);
      EXPECT_EQ(verdict.rows_read, 80u);
      EXPECT_EQ(verdict.audited_rows, missed_bind ? 176u : 160u);
      if (!missed_bind) continue;
      ASSERT_EQ(verdict.missed_events.size(), 1u);
      EXPECT_EQ(verdict.missed_events[0].block, 9);
      EXPECT_EQ(verdict.missed_events[0].step, 4u);
    }
  }
}

}  // namespace
}  // namespace waymark
