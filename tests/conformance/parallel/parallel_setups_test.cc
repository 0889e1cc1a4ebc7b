// Every parallel setup but sequence parallelism: pipeline stages, context parallelism, data and
// expert parallelism, prefill and decode apart, and micro-batches of one step. The library
// exchanges nothing in them, so the ranks are engines of this process, one after the other; what
// they send each other, by means of their own, are documents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "blockstore/wire/document.h"
#include "blockstore/wire/document_writer.h"
#include "plugin/capture/capture_session.h"
#include "tests/conformance/parallel/known_routes.h"

namespace waymark::conformance {
namespace {

using ::testing::HasSubstr;

bool All(const Token&) {
  return true;
}

// An engine's rank with a store: which tokens its store has, and which rows its forward has.
struct Engine {
  explicit Engine(const StoreOptions& options = KnownRoutes::OptionsOf())
      : store(KnownRoutes::MakeStore(options)) {
    CaptureOptions capture;
    capture.store = store.get();
    capture.max_rows = 64;
    capture.num_buffers = KnownRoutes::kSteps;
    session = CaptureSession::Create(capture).value();
  }

  // Steps [first, last]. The forward of a step has the tokens that `padding` selects, and then
  // those of `stored`, each in their order; those of `padding` have no slots. `end` may end the
  // step in place of Submit.
  void Run(std::uint64_t first, std::uint64_t last,
           const std::function<bool(const Token&)>& stored = All,
           const std::function<bool(const Token&)>& padding = {},
           const std::function<bool(StepId)>& end = {}) {
    for (std::uint64_t step = first; step <= last; ++step) {
      std::vector<Token> forward;
      std::vector<std::int64_t> slots;
      for (const Token& token : KnownRoutes::TokensOf(step)) {
        if (padding && padding(token)) forward.push_back(token);
      }
      slots.assign(forward.size(), kPaddingSlot);
      for (const Token& token : KnownRoutes::TokensOf(step)) {
        if (!stored(token)) continue;
        forward.push_back(token);
        slots.push_back(KnownRoutes::SlotOf(token));
      }
      Must(session->BeginStep(KnownRoutes::BatchOf(step, slots)).ok(), "BeginStep");
      Write(session->view(StepId(step)), forward);
      if (end && end(StepId(step))) continue;
      Must(session->Submit(StepId(step)).ok(), "Submit");
    }
  }

  void Write(const CaptureView& view, const std::vector<Token>& tokens,
             std::int32_t first_row = 0) const {
    for (std::int32_t layer = 0; layer < view.num_layers; ++layer) {
      std::int16_t* row = view.layer(layer) + first_row * view.top_k;
      for (const Token& token : tokens) {
        KnownRoutes::Ids(token, store->options().shape.layer_id(layer), row);
        row += view.top_k;
      }
    }
  }

  // For `end`: drops `step`.
  std::function<bool(StepId)> Dropping(std::uint64_t step) {
    return [this, step](StepId id) {
      if (id.value() != step) return false;
      Must(session->Drop(id).ok(), "Drop");
      return true;
    };
  }

  // What it has of a sequence, as the one that it sends it to reads it from a document.
  [[nodiscard]] Rows Send(std::int32_t sequence) const {
    const auto sent = wire::WriteDocument(KnownRoutes::Read(*store, sequence)).value();
    const auto document = wire::Document::Open(sent).value();
    return document.ReadRows(document.All()).value();
  }

  std::unique_ptr<RoutingStore> store;
  std::unique_ptr<CaptureSession> session;
};

// A line for each sequence: `other` in the columns of `step`, '.' elsewhere.
std::string Lines(char other = '.', const std::function<bool(const Token&)>& of = All,
                  std::uint64_t step = kFaultStep) {
  std::string text;
  for (std::int32_t sequence = 0; sequence < KnownRoutes::kSequences; ++sequence) {
    std::string line(KnownRoutes::kTokens, '.');
    for (const Token& token : KnownRoutes::TokensOf(step)) {
      if (token.sequence == sequence && of(token)) {
        line[static_cast<std::size_t>(token.position)] = other;
      }
    }
    text += line + "\n";
  }
  return text;
}

using JoinFunction = absl::StatusOr<Rows> (*)(std::span<const Rows* const>);

// The join of what these have of every sequence: Judge, a line each.
std::string JoinAll(JoinFunction join, const std::vector<const Engine*>& engines) {
  std::string text;
  for (std::int32_t sequence = 0; sequence < KnownRoutes::kSequences; ++sequence) {
    std::vector<Rows> sent;
    for (const Engine* engine : engines)
      sent.push_back(engine->Send(sequence));
    std::vector<const Rows*> rows;
    for (const Rows& of : sent)
      rows.push_back(&of);
    text += KnownRoutes::Judge(join(rows).value(), sequence) + "\n";
  }
  return text;
}

// ---- rows that ranks have of the same sequences

// Each stage has two of the four layers.
std::string RunPipeline(bool drops) {
  Engine first(KnownRoutes::OptionsOf(0, 2)), last(KnownRoutes::OptionsOf(2, 4));
  first.Run(1, KnownRoutes::kSteps);
  last.Run(1, KnownRoutes::kSteps, All, {}, drops ? last.Dropping(kFaultStep) : nullptr);
  return JoinAll(&JoinLayers, {&first, &last});
}

TEST(PipelineStages, TheJoinHasAllLayersOrNone) {
  EXPECT_EQ(RunPipeline(false), Lines());
  EXPECT_EQ(RunPipeline(true), Lines('4'));
}

// Each rank has the KV, and routes the tokens, of every third pair of positions of a sequence. The
// slots are logical: the same token has the same slot on every rank.
bool OfContextRank(std::int32_t rank, const Token& token) {
  return token.position / 2 % 3 == rank;
}

std::string RunContext(bool drops) {
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<const Engine*> pointers;
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    Engine& engine = *engines.emplace_back(std::make_unique<Engine>());
    engine.Run(
        1, KnownRoutes::kSteps, [&](const Token& token) { return OfContextRank(rank, token); }, {},
        drops && rank == 2 ? engine.Dropping(kFaultStep) : nullptr);
    pointers.push_back(&engine);
  }
  return JoinAll(&Join, pointers);
}

TEST(ContextParallel, TheJoinHasTheRowsOfEveryRank) {
  EXPECT_EQ(RunContext(false), Lines());
  EXPECT_EQ(RunContext(true),
            Lines('4', [](const Token& token) { return OfContextRank(2, token); }));
}

// ---- data-parallel ranks, and expert parallelism

bool OfDataRank(std::int32_t rank, const Token& token) {
  return token.sequence % 2 == rank;
}
// What a rank has of its own sequences, a line each, and of the others: "-", if it has nothing.
std::string JudgeOwn(RoutingStore& store, std::int32_t rank) {
  std::string text;
  for (std::int32_t sequence = 0; sequence < KnownRoutes::kSequences; ++sequence) {
    const std::string line = KnownRoutes::Judge(KnownRoutes::Read(store, sequence), sequence);
    const bool nothing = line == std::string(KnownRoutes::kTokens, '1');
    text += nothing && sequence % 2 != rank ? "-" : line;
    text += "\n";
  }
  return text;
}
std::string OwnLines(std::int32_t rank, const std::string& line) {
  std::string text;
  for (std::int32_t sequence = 0; sequence < KnownRoutes::kSequences; ++sequence)
    text += (sequence % 2 == rank ? line : "-") + "\n";
  return text;
}

// The forward of each rank has the rows of both, those of rank 0 first; its step has slots for its
// own.
TEST(DataParallel, EachRankHasItsOwnRowsAndNoOthers) {
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    Engine engine;
    engine.Run(
        1, KnownRoutes::kSteps, [&](const Token& token) { return OfDataRank(rank, token); },
        [&](const Token& token) { return rank == 1 && OfDataRank(0, token); });
    EXPECT_EQ(JudgeOwn(*engine.store, rank),
              OwnLines(rank, std::string(KnownRoutes::kTokens, '.')));
  }
}

// A rank routes its own tokens over all experts, and computes half of the experts. From `idle` on
// it has no tokens, and runs dummy batches. `local`: the trap: ids as the rank's experts number
// them.
std::string RunExperts(std::uint64_t idle, bool local) {
  Engine engine;
  for (std::uint64_t step = 1; step <= KnownRoutes::kSteps; ++step) {
    if (step >= idle) {  // a dummy batch, of other tokens
      engine.Write(engine.session->scratch_view(), KnownRoutes::TokensOf(step));
      engine.session->Discard(KnownRoutes::kSequences);
      continue;
    }
    engine.Run(
        step, step, [&](const Token& token) { return OfDataRank(1, token); }, {},
        [&](StepId id) {
          const CaptureView view = engine.session->view(id);
          for (std::ptrdiff_t i = 0; local && i < view.layer_stride * view.num_layers; ++i) {
            if (view.data[i] >= 0) view.data[i] = static_cast<std::int16_t>(view.data[i] % 32);
          }
          return false;
        });
  }
  return JudgeOwn(*engine.store, 1);
}

TEST(ExpertParallel, IdsAreThoseOfAllExpertsAndDummyBatchesLeaveNothing) {
  EXPECT_EQ(RunExperts(kFaultStep, false), OwnLines(1, LineFrom(kFaultStep, '1')));
  // What this test would say of ids that a rank numbers itself.
  EXPECT_THAT(RunExperts(KnownRoutes::kSteps + 1, true), HasSubstr("W"));
}

// ---- prefill and decode apart

// One computes the prompts; the other gets their KV, generates, and joins the rows of both.
std::string RunApart(bool sends, bool drops) {
  Engine prefill, decode;
  prefill.Run(1, 1, All, {}, drops ? prefill.Dropping(1) : nullptr);
  // The KV of the prompts comes from outside: no page of this store has their keys.
  std::vector<Event> events;
  for (std::int32_t sequence = 0; sequence < KnownRoutes::kSequences; ++sequence) {
    const std::vector<BlockId> blocks = KnownRoutes::BlocksOf(sequence);
    for (std::size_t i = 0; i * KnownRoutes::kPageTokens < KnownRoutes::kPrompt; ++i) {
      const std::uint64_t key = static_cast<std::uint64_t>(blocks[i].value()) + 1000;
      events.push_back(Event::Bind(blocks[i], BlockKey::FromInteger(key)));
    }
  }
  Must(decode.store->Report(events).ok(), "Report");
  decode.Run(2, KnownRoutes::kSteps);
  return sends ? JoinAll(&Join, {&prefill, &decode}) : JoinAll(&Join, {&decode});
}

TEST(PrefillApart, WithoutItsRowsThePromptIsMissingAndTheRestThere) {
  const auto lines = [](char of_prompt) {
    const std::string generated(KnownRoutes::kTokens - KnownRoutes::kPrompt, '.');
    return Times(KnownRoutes::kSequences,
                 std::string(KnownRoutes::kPrompt, of_prompt) + generated + "\n");
  };
  EXPECT_EQ(RunApart(true, false), lines('.'));
  EXPECT_EQ(RunApart(false, false), lines('3'));
  EXPECT_EQ(RunApart(true, true), lines('4'));
}

// ---- micro-batches

// Two threads write the rows of two halves of every batch at the same time. `silent`: the second
// one writes nothing in kFaultStep.
std::string RunMicroBatches(bool late, bool silent) {
  Engine engine;
  for (std::uint64_t step = 1; step <= KnownRoutes::kSteps; ++step) {
    const std::vector<Token> tokens = KnownRoutes::TokensOf(step);
    const std::vector<std::int64_t> slots = KnownRoutes::SlotsOf(tokens);
    EXPECT_TRUE(engine.session->BeginStep(KnownRoutes::BatchOf(step, slots)).ok());
    const CaptureView view = engine.session->view(StepId(step));
    const auto half = static_cast<std::ptrdiff_t>(tokens.size() / 2);
    std::vector<std::thread> halves;
    halves.emplace_back([&] { engine.Write(view, {tokens.begin(), tokens.begin() + half}); });
    halves.emplace_back([&] {
      if (late && step == kFaultStep) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      if (silent && step == kFaultStep) return;
      engine.Write(view, {tokens.begin() + half, tokens.end()}, static_cast<std::int32_t>(half));
    });
    for (std::thread& of : halves)
      of.join();
    EXPECT_TRUE(engine.session->Submit(StepId(step)).ok());
  }
  return KnownRoutes::JudgeSequences(*engine.store);
}

TEST(MicroBatches, RangesOfOneViewAreWrittenAtTheSameTime) {
  EXPECT_EQ(RunMicroBatches(false, false), Lines());
  EXPECT_EQ(RunMicroBatches(true, false), Lines());
  EXPECT_EQ(RunMicroBatches(false, true),
            Lines('2', [](const Token& token) { return token.sequence >= 3; }));
}

}  // namespace
}  // namespace waymark::conformance
