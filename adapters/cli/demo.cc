#include "adapters/cli/demo.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "adapters/cli/console.h"
#include "adapters/cli/demo_text.h"
#include "adapters/reference/engine.h"
#include "adapters/reference/moe_model.h"
#include "nlohmann/json.hpp"

namespace waymark::cli {
namespace {

using reference::Engine;
using reference::EngineOptions;
using reference::FinishedRequest;
using reference::MoeModel;
using reference::MoeModelConfig;
using reference::Request;

constexpr int kNewTokens = 48;
constexpr int kBlockTokens = 16;

struct DemoOptions {
  int groups = 8;
  int samples = 4;
  int turns = 3;
  uint64_t seed = 1;
  int blocks = 448;
  bool json = false;
};

// What came of it. Rows: of all finished requests, each turn for itself.
struct DemoResult {
  uint64_t requests = 0;
  uint64_t tokens = 0;
  uint64_t rows = 0;         // tokens - 1 a request
  uint64_t rows_reused = 0;  // of them: found in the cache when the request came
  uint64_t rows_wrong = 0;
  uint64_t rows_unexplained = 0;
  std::array<uint64_t, kNumReasons> missing{};
  uint64_t json_bytes = 0;  // every turn's whole array as compact nested lists
  uint64_t row_bytes = 0;   // the rows that are new in each turn, as the store keeps them
  double rollout_seconds = 0;
  double check_seconds = 0;
  int threads = 1;
  reference::EngineStats engine;
  Stats store;
  uint64_t evictions = 0;

  uint64_t rows_missing() const {
    uint64_t sum = 0;
    for (const uint64_t count : missing)
      sum += count;
    return sum;
  }
};

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One rollout: a conversation that goes on for several turns.
struct Conversation {
  int turn = 1;
  int64_t rows_delivered = 0;
};

// Digits of an expert id in JSON.
uint64_t Digits(uint32_t id) {
  return id < 10 ? 1 : id < 100 ? 2 : id < 1000 ? 3 : id < 10000 ? 4 : 5;
}

// Length of [[[1,2],[3,4]], ...] without blanks.
uint64_t JsonBytes(const std::vector<int32_t>& routes, uint64_t rows, const RoutingShape& shape) {
  const auto layers = static_cast<uint64_t>(shape.num_layers);
  const auto top_k = static_cast<uint64_t>(shape.top_k);
  // Brackets and the commas between: the ids of a layer, the layers of a row, the rows.
  uint64_t bytes =
      rows * (layers * (2 + top_k - 1) + 2 + layers - 1) + 2 + (rows > 0 ? rows - 1 : 0);
  for (uint64_t i = 0; i < rows * shape.row_ids(); ++i) {
    bytes += Digits(static_cast<uint32_t>(routes[i]));
  }
  return bytes;
}

// Ids of row `row` as integers, whatever the store's id type.
uint32_t StoredId(const Rows& rows, int64_t row, size_t index) {
  const std::span<const uint8_t> bytes = rows.row(row);
  if (rows.shape.id_bytes() == 1) return bytes[index];
  return static_cast<uint32_t>(bytes[2 * index] | bytes[2 * index + 1] << 8);
}

// Why a row may be missing here: the store ran out of pages, or a step was dropped for want of
// room. Nothing else in this scenario loses rows.
bool Explained(Reason reason, const Stats& store) {
  return reason == Reason::kCapacity && store.no_page + store.steps_dropped + store.rebases > 0;
}

// Computes one finished sequence from scratch and compares.
absl::Status Check(const MoeModel& model, const FinishedRequest& request, const Stats& store,
                   DemoResult& result) {
  absl::StatusOr<std::vector<int32_t>> routes = RecomputeRoutes(model, request.tokens);
  if (!routes.ok()) return routes.status();
  const Rows& rows = request.rows;
  const auto expected = static_cast<int64_t>(request.tokens.size()) - 1;
  if (rows.first != 0 || rows.size() != expected) {
    return absl::InternalError("a request came back with rows of another range");
  }
  const size_t row_ids = rows.shape.row_ids();
  for (int64_t row = 0; row < expected; ++row) {
    const RowInfo& info = rows.infos[static_cast<size_t>(row)];
    if (!info.valid()) {
      ++result.missing[static_cast<size_t>(info.reason)];
      if (!Explained(info.reason, store)) ++result.rows_unexplained;
      continue;
    }
    for (size_t i = 0; i < row_ids; ++i) {
      const int32_t truth = (*routes)[static_cast<size_t>(row) * row_ids + i];
      if (StoredId(rows, row, i) == static_cast<uint32_t>(truth)) continue;
      ++result.rows_wrong;
      break;
    }
  }
  result.json_bytes += JsonBytes(*routes, static_cast<uint64_t>(expected), rows.shape);
  return absl::OkStatus();
}

class DemoCommand : public Command {
 public:
  std::string name() const override { return "demo"; }
  std::string summary() const override {
    return "run rollouts on the embedded engine and prove every route";
  }
  void AddOptions(CLI::App& app) override;
  ExitCode Run() override;

 private:
  absl::StatusOr<MoeModel> MakeModel() const;
  absl::StatusOr<std::vector<FinishedRequest>> Rollouts(const MoeModel& model, DemoResult& result);
  Request FirstTurn(int group) const;
  int LongestConversation() const;
  absl::Status CheckAll(const MoeModel& model, const std::vector<FinishedRequest>& requests,
                        DemoResult& result);
  void Print(const DemoResult& result) const;
  void PrintJson(const DemoResult& result) const;

  DemoOptions options_;
};

void DemoCommand::AddOptions(CLI::App& app) {
  app.add_option("--groups", options_.groups, "Groups of samples that share a prompt")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--samples", options_.samples, "Samples a group")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--turns", options_.turns, "Turns of each conversation")
      ->check(CLI::Range(1, 12))
      ->capture_default_str();
  app.add_option("--seed", options_.seed, "Seed of the weights and of the sampling")
      ->capture_default_str();
  app.add_option(
         "--blocks", options_.blocks,
         "KV blocks of " + std::to_string(kBlockTokens) + " tokens; fewer evict and preempt more")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_flag("--json", options_.json, "Print one JSON object instead of the table");
}

absl::StatusOr<MoeModel> DemoCommand::MakeModel() const {
  MoeModelConfig config;
  config.weight_seed = options_.seed;
  return MoeModel::Create(config);
}

Request DemoCommand::FirstTurn(int group) const {
  const auto question = static_cast<size_t>(group) % kDemoQuestions.size();
  std::string text(kDemoOpening);
  if (group >= static_cast<int>(kDemoQuestions.size())) {
    text += std::to_string(static_cast<size_t>(group) / kDemoQuestions.size() + 1) + ". ";
  }
  text += kDemoQuestions[question];
  text += "\n\n";
  Request request;
  request.prompt = {reference::kBeginToken};
  const std::vector<int32_t> bytes = reference::Encode(text);
  request.prompt.insert(request.prompt.end(), bytes.begin(), bytes.end());
  request.max_new_tokens = kNewTokens;
  request.samples = options_.samples;
  request.sampling = {1.0f, reference::Mix64(options_.seed + static_cast<uint64_t>(group) * 1000)};
  return request;
}

// Rows of the longest conversation, when nobody ends a turn early.
int DemoCommand::LongestConversation() const {
  size_t longest = 0;
  for (int group = 0; group < options_.groups; ++group) {
    longest = std::max(longest, FirstTurn(group).prompt.size());
  }
  for (int turn = 1; turn < options_.turns; ++turn) {
    longest += kDemoFollowUps[static_cast<size_t>(turn - 1) % kDemoFollowUps.size()].size();
  }
  return static_cast<int>(longest) + options_.turns * kNewTokens;
}

absl::StatusOr<std::vector<FinishedRequest>> DemoCommand::Rollouts(const MoeModel& model,
                                                                   DemoResult& result) {
  EngineOptions options;
  options.block_tokens = kBlockTokens;
  options.num_blocks = options_.blocks;
  // Room for the snapshots of finished requests beside the pool.
  options.num_pages = 4 * static_cast<uint32_t>(options_.blocks);
  options.max_running = 32;
  options.seed = options_.seed;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(&model, options);
  if (!engine.ok()) return engine.status();

  std::map<uint64_t, Conversation> conversations;  // by the id of the request that runs
  for (int group = 0; group < options_.groups; ++group) {
    absl::StatusOr<uint64_t> id = (*engine)->Add(FirstTurn(group));
    if (!id.ok()) return id.status();
    for (int i = 0; i < options_.samples; ++i)
      conversations[*id + static_cast<uint64_t>(i)] = {};
  }
  const auto total = static_cast<uint64_t>(options_.groups) *
                     static_cast<uint64_t>(options_.samples) *
                     static_cast<uint64_t>(options_.turns);
  std::vector<FinishedRequest> requests;
  Progress progress("rollouts");
  const auto start = std::chrono::steady_clock::now();
  while (requests.size() < total) {
    absl::StatusOr<bool> more = (*engine)->Step();
    if (!more.ok()) return more.status();
    if (!*more) {
      // Nothing to compute: what is left has only to be read.
      if (absl::Status status = (*engine)->RunAll(); !status.ok()) return status;
    }
    for (FinishedRequest& finished : (*engine)->TakeFinished()) {
      Conversation conversation = conversations[finished.id];
      conversations.erase(finished.id);
      const int64_t rows = finished.rows.size();
      result.row_bytes += static_cast<uint64_t>(rows - conversation.rows_delivered) *
                          finished.rows.shape.row_bytes();
      conversation.rows_delivered = rows;
      if (conversation.turn < options_.turns) {
        Request next;
        next.prompt = finished.tokens;
        const std::vector<int32_t> more_text = reference::Encode(
            kDemoFollowUps[static_cast<size_t>(conversation.turn - 1) % kDemoFollowUps.size()]);
        next.prompt.insert(next.prompt.end(), more_text.begin(), more_text.end());
        next.max_new_tokens = kNewTokens;
        next.sampling = {1.0f, reference::Mix64(options_.seed) + finished.id};
        absl::StatusOr<uint64_t> id = (*engine)->Add(next);
        if (!id.ok()) return id.status();
        ++conversation.turn;
        conversations[*id] = conversation;
      }
      requests.push_back(std::move(finished));
    }
    progress.Show(requests.size(), total,
                  WithCommas((*engine)->stats().computed_tokens) + " tokens computed");
  }
  result.rollout_seconds = SecondsSince(start);
  result.engine = (*engine)->stats();
  result.store = (*engine)->pool().store().GetStats();
  result.evictions = (*engine)->pool().evictions();
  return requests;
}

absl::Status DemoCommand::CheckAll(const MoeModel& model,
                                   const std::vector<FinishedRequest>& requests,
                                   DemoResult& result) {
  const size_t threads = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 16);
  result.threads = static_cast<int>(threads);
  std::vector<DemoResult> parts(threads);
  std::vector<absl::Status> statuses(threads);
  std::atomic<size_t> next{0};
  std::atomic<size_t> done{0};
  const auto start = std::chrono::steady_clock::now();
  const auto work = [&](size_t thread) {
    for (size_t i = next++; i < requests.size() && statuses[thread].ok(); i = next++) {
      statuses[thread] = Check(model, requests[i], result.store, parts[thread]);
      ++done;
    }
  };
  {
    Progress progress("recomputed from scratch");
    std::vector<std::thread> workers;
    for (size_t t = 1; t < threads; ++t)
      workers.emplace_back(work, t);
    for (size_t i = next++; i < requests.size() && statuses[0].ok(); i = next++) {
      statuses[0] = Check(model, requests[i], result.store, parts[0]);
      progress.Show(++done, requests.size());
    }
    for (std::thread& worker : workers)
      worker.join();
  }
  result.check_seconds = SecondsSince(start);
  for (size_t t = 0; t < threads; ++t) {
    if (!statuses[t].ok()) return statuses[t];
    result.rows_wrong += parts[t].rows_wrong;
    result.rows_unexplained += parts[t].rows_unexplained;
    result.json_bytes += parts[t].json_bytes;
    for (size_t r = 0; r < result.missing.size(); ++r)
      result.missing[r] += parts[t].missing[r];
  }
  for (const FinishedRequest& request : requests) {
    ++result.requests;
    result.tokens += request.tokens.size();
    result.rows += request.tokens.size() - 1;
    result.rows_reused += static_cast<uint64_t>(request.prefix_hit_tokens);
  }
  return absl::OkStatus();
}

std::string Percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "0 %";
  return FixedDigits(100.0 * static_cast<double>(part) / static_cast<double>(whole), 1) + " %";
}

std::string Microseconds(uint64_t nanoseconds) {
  return FixedDigits(static_cast<double>(nanoseconds) / 1000.0, 1) + " us";
}

void DemoCommand::Print(const DemoResult& r) const {
  const reference::EngineStats& engine = r.engine;
  Table table;
  table.Add("requests", WithCommas(r.requests));
  table.Add("tokens in them", WithCommas(r.tokens));
  table.Add("tokens computed", WithCommas(engine.computed_tokens));
  table.Add("prefix-hit tokens", WithCommas(engine.prefix_hit_tokens));
  table.Add("preemptions", WithCommas(engine.preemptions));
  table.Add("blocks evicted", WithCommas(r.evictions));
  table.Add("", "");
  table.Add("rows captured", WithCommas(r.store.rows_landed));
  table.Add("rows delivered", WithCommas(r.rows));
  table.Add("  reused from the cache", WithCommas(r.rows_reused));
  table.Add("  missing", WithCommas(r.rows_missing()));
  for (int reason = 0; reason < kNumReasons; ++reason) {
    const uint64_t count = r.missing[static_cast<size_t>(reason)];
    if (count == 0) continue;
    table.Add("    " + std::string(ReasonName(static_cast<Reason>(reason))), WithCommas(count));
  }
  table.Add("  wrong", WithCommas(r.rows_wrong));
  table.Add("", "");
  table.Add("new rows of each turn", HumanBytes(r.row_bytes));
  table.Add("whole arrays as JSON lists", HumanBytes(r.json_bytes));
  if (r.row_bytes > 0) {
    const double ratio = static_cast<double>(r.json_bytes) / static_cast<double>(r.row_bytes);
    table.Add("  larger by", FixedDigits(ratio, 1) + " x");
  }
  table.Add("", "");
  table.Add("steps", WithCommas(engine.steps));
  table.Add("capture on the engine's thread, p50 a step",
            Microseconds(engine.capture_time.Quantile(0.5)));
  table.Add("  p99", Microseconds(engine.capture_time.Quantile(0.99)));
  const auto run = static_cast<uint64_t>(r.rollout_seconds * 1e9);
  table.Add("  of the run", Percent(engine.capture_nanoseconds, run));

  const MoeModelConfig model;
  std::printf("%d groups x %d samples x %d turns; %d MoE layers, top %d of %d experts\n\n%s\n",
              options_.groups, options_.samples, options_.turns, model.num_moe_layers(),
              model.top_k, model.num_experts, table.ToString().c_str());
  std::printf(
      "Rollouts took %.1f s. Every finished sequence was then computed again from scratch,\n"
      "without a cache, in %.1f s on %d threads: ",
      r.rollout_seconds, r.check_seconds, r.threads);
  if (r.rows_wrong == 0 && r.rows_unexplained == 0) {
    std::printf("%s of %s rows are the same%s.\n", WithCommas(r.rows - r.rows_missing()).c_str(),
                WithCommas(r.rows).c_str(),
                r.rows_missing() == 0 ? "" : ", the missing ones are explained");
  } else {
    std::printf("%s ROWS ARE WRONG, %s are missing without an explanation.\n",
                WithCommas(r.rows_wrong).c_str(), WithCommas(r.rows_unexplained).c_str());
  }
}

void DemoCommand::PrintJson(const DemoResult& r) const {
  nlohmann::ordered_json missing = nlohmann::ordered_json::object();
  for (int reason = 1; reason < kNumReasons; ++reason) {
    missing[std::string(ReasonName(static_cast<Reason>(reason)))] =
        r.missing[static_cast<size_t>(reason)];
  }
  const LatencyHistogram& capture = r.engine.capture_time;
  const nlohmann::ordered_json object = {
      {"groups", options_.groups},
      {"samples", options_.samples},
      {"turns", options_.turns},
      {"seed", options_.seed},
      {"blocks", options_.blocks},
      {"requests_finished", r.requests},
      {"tokens", r.tokens},
      {"computed_tokens", r.engine.computed_tokens},
      {"prefix_hit_tokens", r.engine.prefix_hit_tokens},
      {"preemptions", r.engine.preemptions},
      {"evictions", r.evictions},
      {"steps", r.engine.steps},
      {"rows_captured", r.store.rows_landed},
      {"rows_checked", r.rows},
      {"rows_reused", r.rows_reused},
      {"rows_wrong", r.rows_wrong},
      {"rows_unexplained", r.rows_unexplained},
      {"rows_missing", missing},
      {"row_bytes", r.row_bytes},
      {"json_bytes", r.json_bytes},
      {"step_us",
       {{"p50", static_cast<double>(capture.Quantile(0.5)) / 1e3},
        {"p99", static_cast<double>(capture.Quantile(0.99)) / 1e3}}},
      {"rollout_seconds", r.rollout_seconds},
      {"check_seconds", r.check_seconds}};
  std::printf("%s\n", object.dump(2).c_str());
}

ExitCode DemoCommand::Run() {
  const int needed = (LongestConversation() + kBlockTokens - 1) / kBlockTokens;
  if (options_.blocks < needed) {
    return Fail(name(), "--blocks must be at least " + std::to_string(needed) +
                            ", for the longest conversation, got " +
                            std::to_string(options_.blocks));
  }
  DemoResult result;
  absl::StatusOr<MoeModel> model = MakeModel();
  if (!model.ok()) return Fail(name(), std::string(model.status().message()));
  absl::StatusOr<std::vector<FinishedRequest>> requests = Rollouts(*model, result);
  if (!requests.ok()) return Fail(name(), std::string(requests.status().message()));
  if (absl::Status status = CheckAll(*model, *requests, result); !status.ok()) {
    return Fail(name(), std::string(status.message()));
  }
  if (options_.json) {
    PrintJson(result);
  } else {
    Print(result);
  }
  return result.rows_wrong + result.rows_unexplained == 0 ? kExitOk : kExitFoundWrong;
}

}  // namespace

std::unique_ptr<Command> MakeDemoCommand() {
  return std::make_unique<DemoCommand>();
}

}  // namespace waymark::cli
