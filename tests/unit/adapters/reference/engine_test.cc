// The embedded engine against its own model: every row of every finished request equals a
// recomputation from scratch, through prefix hits, eviction, preemption and new weights.
#include "adapters/reference/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "blockstore/flight/check.h"
#include "blockstore/flight/reader.h"
#include "blockstore/flight/writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"

namespace waymark::reference {
namespace {

using ::testing::HasSubstr;

// A model small enough that thousands of requests fit into a test.
MoeModel TinyModel(uint64_t seed = 1) {
  MoeModelConfig config;
  config.num_layers = 4;
  config.num_dense_layers = 1;
  config.model_width = 32;
  config.num_heads = 2;
  config.num_experts = 12;
  config.top_k = 3;
  config.expert_width = 8;
  config.dense_width = 16;
  config.max_positions = 256;
  config.weight_seed = seed;
  return MoeModel(config);
}

EngineOptions SmallOptions() {
  return {.block_tokens = 8, .num_blocks = 256, .max_batched_tokens = 64};
}

// What a comparison of finished requests with recomputation found.
struct Verdict {
  int64_t rows = 0;
  int64_t wrong = 0;
  std::array<int64_t, kNumReasons> missing{};
  int64_t hits = 0;
  int preemptions = 0;
  std::string first_wrong;

  int64_t all_missing() const {
    int64_t sum = 0;
    for (const int64_t count : missing)
      sum += count;
    return sum;
  }
};

// `models[v - 1]` has the weights of version v.
Verdict Compare(const std::vector<const MoeModel*>& models,
                const std::vector<FinishedRequest>& requests) {
  Verdict verdict;
  for (const FinishedRequest& request : requests) {
    const auto rows = static_cast<int64_t>(request.tokens.size()) - 1;
    EXPECT_EQ(request.rows.first, 0);
    EXPECT_EQ(request.rows.size(), rows) << "request " << request.id;
    std::map<uint64_t, std::vector<int32_t>> truth;
    const size_t row_ids = request.rows.shape.row_ids();
    for (int64_t row = 0; row < std::min(rows, request.rows.size()); ++row) {
      ++verdict.rows;
      const RowInfo& info = request.rows.infos[static_cast<size_t>(row)];
      if (!info.valid()) {
        ++verdict.missing[static_cast<size_t>(info.reason)];
        continue;
      }
      std::vector<int32_t>& routes = truth[info.version];
      if (routes.empty()) routes = *RecomputeRoutes(*models.at(info.version - 1), request.tokens);
      const std::span<const uint8_t> ids = request.rows.row(row);
      bool same = true;
      for (size_t i = 0; i < row_ids; ++i) {
        same = same && ids[i] == routes[static_cast<size_t>(row) * row_ids + i];
      }
      if (same) continue;
      if (verdict.wrong++ == 0) {
        verdict.first_wrong = "request " + std::to_string(request.id) + " row " +
                              std::to_string(row) + " of " + std::to_string(rows);
      }
    }
    verdict.hits += request.prefix_hit_tokens;
    verdict.preemptions += request.preemptions;
  }
  return verdict;
}

// Groups of samples over a few shared openings, then further turns of every conversation.
class Workload {
 public:
  Workload(uint64_t seed, int groups, int samples, int turns)
      : seed_(seed), groups_(groups), samples_(samples), turns_(turns) {}

  // Runs everything; finished requests of all turns in the order in which they finished.
  std::vector<FinishedRequest> Run(Engine& engine) {
    std::vector<FinishedRequest> all;
    for (int g = 0; g < groups_; ++g) {
      Request request = Continue(Text(Draw() % 2, 24), Draw() % 20);
      request.samples = samples_;
      AddTo(engine, request, 1);
    }
    for (bool more = true; more;) {
      absl::StatusOr<bool> stepped = engine.Step();
      EXPECT_TRUE(stepped.ok()) << stepped.status().ToString();
      if (!stepped.ok()) return all;
      more = *stepped;
      if (on_step) on_step(engine);
      if (!more) {
        const absl::Status status = engine.RunAll();
        EXPECT_TRUE(status.ok()) << status.ToString();
      }
      for (FinishedRequest& finished : engine.TakeFinished()) {
        const int turn = turns_of_[finished.id];
        if (turn < turns_) {
          AddTo(engine, Continue(finished.tokens, 1 + Draw() % 20), turn + 1);
          more = true;
        }
        all.push_back(std::move(finished));
      }
    }
    return all;
  }

  std::function<void(Engine&)> on_step;

 private:
  uint64_t Draw() { return Mix64(seed_ * 1000003 + draws_++); }

  static std::vector<int32_t> Text(uint64_t topic, size_t size) {
    std::vector<int32_t> tokens = {kBeginToken};
    for (size_t i = 0; i < size; ++i) {
      tokens.push_back(static_cast<int32_t>(Mix64(topic * 77 + i) % 256));
    }
    return tokens;
  }

  Request Continue(std::vector<int32_t> tokens, uint64_t size) {
    Request request;
    request.prompt = std::move(tokens);
    for (uint64_t i = 0; i < size; ++i)
      request.prompt.push_back(static_cast<int32_t>(Draw() % 256));
    request.max_new_tokens = 1 + static_cast<int>(Draw() % 24);
    request.sampling = {1.0f, Draw()};
    return request;
  }

  void AddTo(Engine& engine, const Request& request, int turn) {
    auto id = engine.Add(request).value();
    for (int i = 0; i < request.samples; ++i)
      turns_of_[id + static_cast<uint64_t>(i)] = turn;
  }

  uint64_t seed_;
  int groups_, samples_, turns_;
  uint64_t draws_ = 0;
  std::map<uint64_t, int> turns_of_;
};

std::string DescribeOptions(const EngineOptions& o) {
  std::ostringstream out;
  out << "block_tokens " << o.block_tokens << " page_tokens " << o.page_tokens << " num_blocks "
      << o.num_blocks << " max_batched_tokens " << o.max_batched_tokens << " max_running "
      << o.max_running << " prefix_caching " << o.prefix_caching << " preempt " << o.preempt_rate
      << "\n";
  return out.str();
}

std::unique_ptr<Engine> MakeEngine(const MoeModel& model, const EngineOptions& options) {
  return Engine::Create(&model, options).value();
}

TEST(Engine, EveryRowEqualsRecomputation) {
  const MoeModel model = TinyModel();
  const std::unique_ptr<Engine> engine = MakeEngine(model, SmallOptions());
  const std::vector<FinishedRequest> requests = Workload(1, 6, 4, 3).Run(*engine);
  ASSERT_EQ(requests.size(), 72u);
  const Verdict verdict = Compare({&model}, requests);
  EXPECT_EQ(verdict.wrong, 0) << verdict.first_wrong;
  EXPECT_EQ(verdict.all_missing(), 0);
  EXPECT_GT(verdict.rows, 2000);
  EXPECT_GT(verdict.hits, verdict.rows / 2);
  EXPECT_EQ(engine->stats().requests_finished, 72u);
}

TEST(Engine, TheComparisonSeesOneWrongToken) {
  const MoeModel model = TinyModel();
  const std::unique_ptr<Engine> engine = MakeEngine(model, SmallOptions());
  std::vector<FinishedRequest> requests = Workload(1, 2, 2, 1).Run(*engine);
  // As if its first block had been shared with a prompt that differs in one byte.
  requests[0].tokens[3] ^= 1;
  const Verdict verdict = Compare({&model}, requests);
  EXPECT_GT(verdict.wrong, static_cast<int64_t>(requests[0].tokens.size()) / 2);
}

// Randomly drawn engines and workloads. WAYMARK_SEED starts elsewhere, WAYMARK_ENGINE_RUNS runs
// more.
TEST(Engine, RandomSchedulesAreNeverWrong) {
  const uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  const uint64_t runs = FromEnvironment("WAYMARK_ENGINE_RUNS", PlainOr(40, 6));
  const MoeModel model = TinyModel();
  const MoeModel second = TinyModel(2);
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    SCOPED_TRACE("WAYMARK_SEED=" + std::to_string(seed));
    uint64_t draws = 0;
    const auto draw = [&](uint64_t limit) { return Mix64(seed * 31337 + draws++) % limit; };
    EngineOptions options = SmallOptions();
    options.seed = seed;
    options.block_tokens = draw(2) != 0 ? 8 : 4;
    options.page_tokens = draw(2) != 0 ? 0 : 4;
    options.num_blocks = 176 / options.block_tokens + static_cast<int>(draw(64));
    options.max_batched_tokens = 8 + static_cast<int>(draw(100));
    options.max_running = 1 + static_cast<int>(draw(20));
    options.pad_to = 1 + static_cast<int>(draw(9));
    options.prefix_caching = draw(8) != 0;
    options.preempt_rate = draw(2) != 0 ? 0.1 : 0;
    const bool few_pages = draw(4) == 0;
    // Snapshots pin pages until they have been read, a whole pool each step in the worst case, and
    // the reader may get no core for many steps.
    const auto pages = static_cast<uint32_t>(
        options.num_blocks * options.block_tokens /
        (options.page_tokens > 0 ? options.page_tokens : options.block_tokens));
    options.num_pages = few_pages ? pages * 3 / 4 : pages * 64;
    const bool new_weights = draw(3) == 0;
    const std::unique_ptr<Engine> engine = MakeEngine(model, options);
    Workload workload(seed, 1 + static_cast<int>(draw(6)), 1 + static_cast<int>(draw(4)),
                      1 + static_cast<int>(draw(3)));
    workload.on_step = [&](Engine& e) {
      if (new_weights && e.version() == 1 && e.stats().steps == 20) {
        EXPECT_TRUE(e.UpdateWeights(&second).ok());
      }
    };
    const std::vector<FinishedRequest> requests = workload.Run(*engine);
    const Verdict verdict = Compare({&model, &second}, requests);
    EXPECT_EQ(verdict.wrong, 0) << verdict.first_wrong;
    const int64_t capacity = verdict.missing[static_cast<size_t>(Reason::kCapacity)];
    EXPECT_EQ(verdict.all_missing(), capacity) << "only few pages lose rows";
    EXPECT_TRUE(few_pages || capacity == 0)
        << capacity << " rows\n"
        << engine->capture().store().GetStats().ToString() << DescribeOptions(options);
    if (HasFailure()) break;
  }
}

TEST(Engine, SamplesShareTheirPromptInOneStep) {
  const MoeModel model = TinyModel();
  const std::unique_ptr<Engine> engine = MakeEngine(model, SmallOptions());
  Request request;
  request.prompt.assign(33, 'a');  // four full blocks and one token
  request.max_new_tokens = 4;
  request.samples = 4;
  ASSERT_TRUE(engine->Add(request).ok());
  ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(engine->stats().computed_tokens, 33u + 3u) << "the first computes, the others hit";
  EXPECT_EQ(engine->stats().prefix_hit_tokens, 3u * 32u);
  ASSERT_TRUE(engine->RunAll().ok());
  const Verdict verdict = Compare({&model}, engine->TakeFinished());
  EXPECT_EQ(verdict.wrong + verdict.all_missing(), 0) << verdict.first_wrong;
}

TEST(Engine, ASilentLayerIsNamedAndItsRowsAreMissing) {
  const MoeModel model = TinyModel();
  for (const int silent : {0, 1}) {
    EngineOptions options = SmallOptions();
    options.silent_layers = {silent};
    const std::unique_ptr<Engine> engine = MakeEngine(model, options);
    auto report = engine->SelfTest(16).value();
    ASSERT_EQ(report.findings.size(), 1u) << report.ToString();
    EXPECT_EQ(report.findings[0].module, RouterName(model.config(), silent));
    EXPECT_EQ(report.findings[0].layer_id, silent + 1);
    EXPECT_EQ(report.findings[0].fault, LayerFault::kSilent);
    const std::vector<FinishedRequest> requests = Workload(4, 1, 2, 1).Run(*engine);
    const Verdict verdict = Compare({&model}, requests);
    EXPECT_EQ(verdict.missing[static_cast<size_t>(Reason::kNotCaptured)], verdict.rows);
    const CaptureStats stats = engine->capture().session().GetStats();
    EXPECT_GT(stats.layers[static_cast<size_t>(silent)].rows_silent, 0u);
    EXPECT_EQ(stats.layers[static_cast<size_t>(1 - silent)].rows_silent, 0u);
  }
}

TEST(Engine, ASoundEnginePassesTheSelfTestAndServesAfterwards) {
  const MoeModel model = TinyModel();
  const std::unique_ptr<Engine> engine = MakeEngine(model, SmallOptions());
  auto report = engine->SelfTest(16).value();
  EXPECT_TRUE(report.ok()) << report.ToString();
  const Verdict verdict = Compare({&model}, Workload(5, 2, 2, 1).Run(*engine));
  EXPECT_EQ(verdict.wrong + verdict.all_missing(), 0) << verdict.first_wrong;
}

TEST(Engine, ImpossibleOptionsAndRequestsAreNamed) {
  const MoeModel model = TinyModel();
  EngineOptions options = SmallOptions();
  options.page_tokens = 3;
  EXPECT_THAT(Engine::Create(&model, options).status().message(),
              HasSubstr("must be a multiple of page_tokens (3), got 8"));
  options = SmallOptions();
  options.silent_layers = {3};
  EXPECT_THAT(Engine::Create(&model, options).status().message(), HasSubstr("silent_layers"));
  options = SmallOptions();
  for (const double rate : {-0.1, 1.5, std::nan("")}) {
    options.preempt_rate = rate;
    EXPECT_THAT(Engine::Create(&model, options).status().message(),
                HasSubstr("preempt_rate must be in [0, 1], got"));
  }
  MoeModelConfig sizes = model.config();
  sizes.model_width = 30;
  EXPECT_THAT(sizes.Validate().message(), HasSubstr("model_width must be a multiple"));
  sizes.num_heads = 0;
  const MoeModel headless(sizes);
  EXPECT_THAT(Engine::Create(&headless, SmallOptions()).status().message(),
              HasSubstr("MoeModelConfig.num_heads must be in [1, 1048576], got 0"));
  options = SmallOptions();
  options.num_blocks = 4;
  const std::unique_ptr<Engine> engine = MakeEngine(model, options);
  Request request;
  EXPECT_THAT(engine->Add(request).status().message(), HasSubstr("prompt"));
  request.prompt = {258};
  EXPECT_THAT(engine->Add(request).status().message(), HasSubstr("prompt[0]"));
  request.prompt.assign(30, 'e');
  request.max_new_tokens = 4;
  EXPECT_THAT(engine->Add(request).status().message(), HasSubstr("32 rows, got 33"));
  request.max_new_tokens = 3;  // fills the pool to its last row
  ASSERT_TRUE(engine->Add(request).ok());
  ASSERT_TRUE(engine->RunAll().ok());
  const Verdict verdict = Compare({&model}, engine->TakeFinished());
  EXPECT_EQ(verdict.rows, 32);
  EXPECT_EQ(verdict.wrong + verdict.all_missing(), 0) << verdict.first_wrong;
  MoeModelConfig other = model.config();
  other.top_k = 2;
  const MoeModel narrow(other);
  EXPECT_FALSE(engine->UpdateWeights(&narrow).ok());
}

}  // namespace
}  // namespace waymark::reference
