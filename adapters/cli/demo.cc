#include "adapters/cli/demo.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "adapters/cli/console.h"
#include "adapters/reference/moe_model.h"
#include "adapters/reference/tokens.h"
#include "blockstore/thread.h"

namespace waymark::cli {
namespace {

using reference::Engine;
using reference::EngineOptions;
using reference::FinishedRequest;
using reference::MoeModel;
using reference::MoeModelConfig;
using reference::Request;

constexpr int kNewTokens = 48;

// What the conversations are about: an opening that all share, a question for each group of
// samples, and the user's texts in later turns. Plain ASCII, written for this tool. The model's
// tokens are bytes, so other texts mean other prompt lengths, and other figures of the demo
// (README.md).

// Every conversation begins with it: a prefix that the cache shares across groups.
constexpr std::string_view kDemoOpening =
    "You are the keeper of a small library on a cold coast. People walk a long way to ask you "
    "things. Answer in few words, say what you do not know, and never send anybody home with a "
    "wrong map.\n\n";

// Group i asks question i % 8. From group 8 on, i / 8 + 1 stands before it ("2. "), so that no two
// groups ask the same.
constexpr std::array<std::string_view, 8> kDemoQuestions = {
    "Why do old paths over the fell have heaps of stones beside them, and who still adds to the "
    "heaps? My grandmother told me to put one stone on each and to take none away.",
    "The harbour light goes dark for one breath in every nine. A sailor told me that each light on "
    "this coast has a rhythm of its own. How would I learn them without going to sea?",
    "I found a letter in the wall of my house. It has two dates on it, eleven days apart, for the "
    "same afternoon. How can one afternoon have two dates, and which of them should I believe?",
    "The miller wants to know how much grain a wheel of twelve feet can grind in a winter's day "
    "when the brook is half frozen. He has a ladle, a rope of known length and a good clock.",
    "My brother keeps bees. This spring one hive is silent and full of honey, and the one next to "
    "it is loud and starving. What should he look at first, and what must he leave alone?",
    "We are seven at the table and have one pot of soup, a spoon that holds too little, and a rule "
    "that the youngest eats first. In which order should we sit so that nobody waits in vain?",
    "The tide book for this year was printed before the new breakwater. Every evening the water "
    "comes a little earlier than it says. Can I mend the book, or do I have to measure it all?",
    "A map of the marsh, made by my uncle, marks a dry road that nobody has ever seen. He was an "
    "honest man and he could not swim. Where did he walk, and at what time of the year?",
};

// What the user says after each completion but the last, in this order, then from the start again.
constexpr std::array<std::string_view, 4> kDemoFollowUps = {
    "\n\nI have written that down. Now tell it again for a child who has never seen the sea.\n",
    "\n\nSomebody at the inn says the opposite. What would you have to see to change your mind?\n",
    "\n\nGood. And what was the mistake that people made before they knew this?\n",
    "\n\nOne more thing before the ferry leaves: what should I ask the next keeper?\n",
};

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One rollout: a conversation that goes on for several turns.
struct Conversation {
  int turn = 1;
  int64_t rows_delivered = 0;
};

// Why a row may be missing here: the store ran out of pages, or a step was dropped for want of
// room. Nothing else in this scenario loses rows.
bool Explained(Reason reason, const Stats& store) {
  return reason == Reason::kCapacity && store.no_page + store.steps_dropped > 0;
}

// Compares a finished request with the routes of its tokens computed from scratch, and counts it.
absl::Status Compare(const FinishedRequest& request, const std::vector<int32_t>& routes,
                     DemoResult& result) {
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
      if (!Explained(info.reason, result.store)) ++result.rows_unexplained;
      continue;
    }
    for (size_t i = 0; i < row_ids; ++i) {
      const int32_t truth = routes[static_cast<size_t>(row) * row_ids + i];
      if (rows.shape.id_at(rows.row(row).data(), i) == truth) continue;
      ++result.rows_wrong;
      break;
    }
  }
  ++result.requests;
  result.tokens += request.tokens.size();
  result.rows += static_cast<uint64_t>(expected);
  result.rows_reused += static_cast<uint64_t>(request.prefix_hit_tokens);
  return absl::OkStatus();
}

Request FirstTurn(const DemoOptions& options, int group) {
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
  request.samples = options.samples;
  request.sampling = {1.0f, reference::Mix64(options.seed + static_cast<uint64_t>(group) * 1000)};
  return request;
}

// Rows of the longest conversation, when no turn ends early.
int LongestConversation(const DemoOptions& options) {
  size_t longest = 0;
  for (int group = 0; group < options.groups; ++group) {
    longest = std::max(longest, FirstTurn(options, group).prompt.size());
  }
  for (int turn = 1; turn < options.turns; ++turn) {
    longest += kDemoFollowUps[static_cast<size_t>(turn - 1) % kDemoFollowUps.size()].size();
  }
  return static_cast<int>(longest) + options.turns * kNewTokens;
}

absl::StatusOr<std::vector<FinishedRequest>> Rollouts(const DemoOptions& options,
                                                      const MoeModel& model, DemoResult& result) {
  EngineOptions engine_options;
  engine_options.block_tokens = kDemoBlockTokens;
  engine_options.num_blocks = options.blocks;
  // Room for the snapshots of finished requests beside the pool.
  engine_options.num_pages = 4 * static_cast<uint32_t>(options.blocks);
  engine_options.max_running = 32;
  engine_options.seed = options.seed;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(&model, engine_options);
  if (!engine.ok()) return engine.status();

  std::map<uint64_t, Conversation> conversations;  // by the id of the request that runs
  for (int group = 0; group < options.groups; ++group) {
    absl::StatusOr<uint64_t> id = (*engine)->Add(FirstTurn(options, group));
    if (!id.ok()) return id.status();
    for (int i = 0; i < options.samples; ++i)
      conversations[*id + static_cast<uint64_t>(i)] = {};
  }
  const auto total = static_cast<uint64_t>(options.groups) *
                     static_cast<uint64_t>(options.samples) * static_cast<uint64_t>(options.turns);
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
      if (conversation.turn < options.turns) {
        Request next;
        next.prompt = finished.tokens;
        const std::vector<int32_t> more_text = reference::Encode(
            kDemoFollowUps[static_cast<size_t>(conversation.turn - 1) % kDemoFollowUps.size()]);
        next.prompt.insert(next.prompt.end(), more_text.begin(), more_text.end());
        next.max_new_tokens = kNewTokens;
        next.sampling = {1.0f, reference::Mix64(options.seed) + finished.id};
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
  result.store = (*engine)->capture().store().GetStats();
  return requests;
}

absl::Status CheckAll(const MoeModel& model, const std::vector<FinishedRequest>& requests,
                      DemoResult& result) {
  const size_t threads = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 16);
  result.threads = static_cast<int>(threads);
  const auto start = std::chrono::steady_clock::now();
  Progress progress("recomputed from scratch");
  std::atomic<size_t> next{0};
  std::mutex mutex;  // of the result, the progress and the status
  absl::Status status;
  const auto work = [&] {
    for (size_t i = next++; i < requests.size(); i = next++) {
      const auto routes = RecomputeRoutes(model, requests[i].tokens);
      const std::lock_guard<std::mutex> lock(mutex);
      status.Update(routes.ok() ? Compare(requests[i], *routes, result) : routes.status());
      progress.Show(result.requests, requests.size());
    }
  };
  std::vector<LibraryThread> workers;
  for (size_t t = 1; t < threads; ++t) {
    absl::StatusOr<LibraryThread> worker = LibraryThread::Start("wm-demo", {}, nullptr, work);
    if (worker.ok()) workers.push_back(*std::move(worker));
  }
  work();
  workers.clear();  // waits for them
  result.check_seconds = SecondsSince(start);
  return status;
}

std::string Microseconds(uint64_t nanoseconds) {
  return FixedDigits(static_cast<double>(nanoseconds) / 1000.0, 1) + " us";
}

}  // namespace

absl::StatusOr<DemoResult> RunDemo(const DemoOptions& options) {
  const int needed = (LongestConversation(options) + kDemoBlockTokens - 1) / kDemoBlockTokens;
  if (options.blocks < needed) {
    return absl::InvalidArgumentError("--blocks must be at least " + std::to_string(needed) +
                                      ", for the longest conversation, got " +
                                      std::to_string(options.blocks));
  }
  DemoResult result;
  MoeModelConfig config;
  config.weight_seed = options.seed;
  const MoeModel model(config);
  absl::StatusOr<std::vector<FinishedRequest>> requests = Rollouts(options, model, result);
  if (!requests.ok()) return requests.status();
  if (absl::Status status = CheckAll(model, *requests, result); !status.ok()) return status;
  return result;
}

void PrintDemo(const DemoOptions& options, const DemoResult& r) {
  const reference::EngineStats& engine = r.engine;
  Table table;
  table.Add("requests", WithCommas(r.requests));
  table.Add("tokens in them", WithCommas(r.tokens));
  table.Add("tokens computed", WithCommas(engine.computed_tokens));
  table.Add("prefix-hit tokens", WithCommas(engine.prefix_hit_tokens));
  table.Add("preemptions", WithCommas(engine.preemptions));
  table.Add("blocks evicted", WithCommas(engine.evictions));
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
  table.Add("bytes of the new rows of all turns", WithCommas(r.row_bytes));
  table.Add("", "");
  table.Add("steps", WithCommas(engine.steps));
  table.Add("capture on the engine's thread, p50 a step",
            Microseconds(engine.capture_time.Quantile(0.5)));
  table.Add("  p99", Microseconds(engine.capture_time.Quantile(0.99)));
  const auto capture_seconds = static_cast<double>(engine.capture_nanoseconds) / 1e9;
  table.Add("  of the run", Percent(capture_seconds / r.rollout_seconds));

  const MoeModelConfig model;
  std::printf("%d groups x %d samples x %d turns; %d MoE layers, top %d of %d experts\n\n%s\n",
              options.groups, options.samples, options.turns, model.num_moe_layers(), model.top_k,
              model.num_experts, table.ToString().c_str());
  std::printf(
      "Rollouts took %.1f s. Every finished sequence was then computed again from scratch,\n"
      "without a cache, in %.1f s on %d threads: ",
      r.rollout_seconds, r.check_seconds, r.threads);
  if (r.proved()) {
    std::printf("%s of %s rows are the same%s.\n", WithCommas(r.rows - r.rows_missing()).c_str(),
                WithCommas(r.rows).c_str(),
                r.rows_missing() == 0 ? "" : ", the missing ones are explained");
  } else {
    std::printf("%s ROWS ARE WRONG, %s are missing without an explanation.\n",
                WithCommas(r.rows_wrong).c_str(), WithCommas(r.rows_unexplained).c_str());
  }
}

}  // namespace waymark::cli
