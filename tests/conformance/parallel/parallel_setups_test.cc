// Every parallel setup but sequence parallelism, between ranks that are processes: pipeline stages,
// data-parallel ranks, expert parallelism, context parallelism, prefill and decode apart, and
// micro-batches of one step. Each runs right, and with a rank that is late, missing, or dies: what
// fails is missing, with its reason, and nobody hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "blockstore/wire/document.h"
#include "blockstore/wire/document_writer.h"
#include "plugin/capture/capture_session.h"
#include "plugin/capture/collective.h"
#include "tests/conformance/parallel/known_routes.h"
#include "tests/support/rank_processes.h"

namespace waymark::conformance {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// What goes wrong, on the last rank.
enum class Fault { kNone, kLate, kMissing, kDies, kDrops };

// Of the collective.
milliseconds DeadlineOf(Fault fault) {
  return fault == Fault::kMissing || fault == Fault::kDies ? seconds(2) : seconds(30);
}

// What a rank does in kFaultStep whose fault is here.
void BeLateOrDie(Fault fault) {
  if (fault == Fault::kLate) std::this_thread::sleep_for(milliseconds(500));
  if (fault == Fault::kDies) (void)raise(SIGKILL);
}

bool All(const Token&) {
  return true;
}

// An engine's rank with a store: which tokens its store has, and which rows its forward has.
struct Engine {
  // `row_gather`: of ranks that share the rows of each forward.
  explicit Engine(const StoreOptions& options, const Collective& row_gather = {})
      : store(KnownRoutes::MakeStore(options)) {
    CaptureOptions capture;
    capture.store = store.get();
    capture.row_gather = row_gather;
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

  // For `end`: the fault at its step.
  std::function<bool(StepId)> With(Fault fault, bool here) {
    return [this, fault, here](StepId step) {
      if (!here || step.value() != kFaultStep) return false;
      if (fault == Fault::kLate) std::this_thread::sleep_for(milliseconds(500));
      if (fault == Fault::kDrops) Must(session->Drop(step).ok(), "Drop");
      return fault == Fault::kDrops;
    };
  }

  std::unique_ptr<RoutingStore> store;
  std::unique_ptr<CaptureSession> session;
};

using JoinFunction = absl::StatusOr<Rows> (*)(std::span<const Rows* const>);

// What docs/integrating.md tells engines whose ranks have rows of one sequence to do: they exchange
// documents, by a collective of their own, and join what they got.
absl::StatusOr<Rows> GatherDocuments(const Rows& mine, JoinFunction join,
                                     const Collective& collective) {
  const auto ranks = static_cast<std::size_t>(collective.ranks);
  std::vector<std::uint8_t> sent = wire::WriteDocument(mine).value();
  const std::uint64_t size = sent.size();
  std::vector<std::uint64_t> sizes(ranks);
  if (absl::Status status = AllGather(collective, "sizes", &size, sizes.data(), sizeof(size));
      !status.ok()) {
    return status;
  }
  const std::size_t longest = *std::max_element(sizes.begin(), sizes.end());
  sent.resize(longest);
  std::vector<std::uint8_t> received(ranks * longest);
  if (absl::Status status =
          AllGather(collective, "documents", sent.data(), received.data(), longest);
      !status.ok()) {
    return status;
  }
  std::vector<Rows> rows;
  std::vector<const Rows*> pointers;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::span<const std::uint8_t> all(received);
    const wire::Document document =
        wire::Document::Open(all.subspan(rank * longest, sizes[rank])).value();
    rows.push_back(document.ReadRows(document.All()).value());
  }
  for (const Rows& of : rows)
    pointers.push_back(&of);
  return join(pointers);
}

// What a rank has of every sequence after its gather: Judge, or the error, a line each.
std::string GatherAll(RoutingStore& store, JoinFunction join, const Collective& collective) {
  std::string text;
  for (std::int32_t sequence = 0; sequence < KnownRoutes::kSequences; ++sequence) {
    const absl::StatusOr<Rows> rows =
        GatherDocuments(KnownRoutes::Read(store, sequence), join, collective);
    text += rows.ok() ? KnownRoutes::Judge(*rows, sequence)
                      : std::string(absl::StatusCodeToString(rows.status().code()));
    text += "\n";
    if (!rows.ok()) break;
  }
  return text;
}

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

// Processes of `ranks` that have met, each with its collective. A missing rank goes then; `faulty` is
// the one that is missing.
std::vector<RankReport> RunMet(
    std::int32_t ranks, Fault fault, std::int32_t faulty,
    const std::function<std::string(std::int32_t, const Collective&, SharedGather&)>& run) {
  SharedGather group(ranks, kMostBytes, DeadlineOf(fault));
  auto reports = RunRanks(ranks, seconds(60), [&](std::int32_t rank) {
    const Collective collective = group.Of(rank);
    group.Meet();
    if (rank == faulty && fault == Fault::kMissing) return std::string("not there");
    return run(rank, collective, group);
  });
  ExpectNothingHangs(reports);
  return reports;
}

// ---- rows that ranks have of the same sequences, gathered at the end

struct GatheredSetup {
  const char* name;
  JoinFunction join;
  std::int32_t ranks;
  StoreOptions (*options)(std::int32_t rank);
  bool (*stored)(std::int32_t rank, const Token& token);
  // Of the tokens of a step that the last rank dropped: those that are missing.
  bool (*lost)(const Token& token);
};

const GatheredSetup kPipeline = {
    "pipeline stages",
    &JoinLayers,
    2,
    [](std::int32_t rank) { return KnownRoutes::OptionsOf(2 * rank, 2 * rank + 2); },
    [](std::int32_t, const Token&) { return true; },
    &All};
// Each rank has the KV, and routes the tokens, of every third pair of positions of a sequence. The
// slots are logical: the same token has the same slot on every rank.
bool OfContextRank(std::int32_t rank, const Token& token) {
  return token.position / 2 % 3 == rank;
}
const GatheredSetup kContext = {"context parallel",
                                &Join,
                                3,
                                [](std::int32_t) { return KnownRoutes::OptionsOf(); },
                                &OfContextRank,
                                [](const Token& token) { return OfContextRank(2, token); }};

// The collective of a rank that dies in its `call`-th call.
struct DyingCollective {
  Collective inner;
  std::uint64_t call = 0;
  std::uint64_t calls = 0;

  static std::int32_t AllGather(void* context, const void* send, void* receive, std::size_t bytes) {
    auto& self = *static_cast<DyingCollective*>(context);
    if (self.calls++ == self.call) (void)raise(SIGKILL);
    return self.inner.all_gather(self.inner.context, send, receive, bytes);
  }
};

std::vector<RankReport> RunGathered(const GatheredSetup& setup, Fault fault,
                                    std::uint64_t dies_in_call = 0) {
  SharedGather group(setup.ranks, kMostBytes, DeadlineOf(fault));
  auto reports = RunRanks(setup.ranks, seconds(60), [&](std::int32_t rank) {
    const bool here = rank == setup.ranks - 1;
    Engine engine(setup.options(rank));
    engine.Run(
        1, KnownRoutes::kSteps, [&](const Token& token) { return setup.stored(rank, token); }, {},
        engine.With(fault, here));
    Collective collective = group.Of(rank);
    group.Meet();
    if (here && fault == Fault::kMissing) return std::string("not there");
    DyingCollective dying{collective, dies_in_call};
    if (here && fault == Fault::kDies) {
      collective.all_gather = &DyingCollective::AllGather;
      collective.context = &dying;
    }
    return GatherAll(*engine.store, setup.join, collective);
  });
  ExpectNothingHangs(reports);
  return reports;
}

class GatheredRows : public ::testing::TestWithParam<const GatheredSetup*> {};

TEST_P(GatheredRows, EveryRankHasAllRowsAlsoOfALateRank) {
  for (const Fault fault : {Fault::kNone, Fault::kLate}) {
    for (const RankReport& report : RunGathered(*GetParam(), fault))
      EXPECT_EQ(report.text, Lines());
  }
}

TEST_P(GatheredRows, WhatOneRankDroppedIsMissingOnAll) {
  for (const RankReport& report : RunGathered(*GetParam(), Fault::kDrops))
    EXPECT_EQ(report.text, Lines('4', GetParam()->lost));
}

TEST_P(GatheredRows, WithoutARankTheOthersGetTheErrorOfTheCollective) {
  const auto reports = RunGathered(*GetParam(), Fault::kMissing);
  for (std::size_t rank = 0; rank + 1 < reports.size(); ++rank)
    EXPECT_EQ(reports[rank].text, "DEADLINE_EXCEEDED\n");
}

TEST_P(GatheredRows, ARankThatDiesInTheMiddleLeavesWhatWasGathered) {
  // In the first or second exchange of the third sequence.
  for (std::uint64_t call = 4; call < 6; ++call) {
    const auto reports = RunGathered(*GetParam(), Fault::kDies, call);
    EXPECT_TRUE(reports.back().killed);
    const std::string line = std::string(KnownRoutes::kTokens, '.') + "\n";
    for (std::size_t rank = 0; rank + 1 < reports.size(); ++rank)
      EXPECT_EQ(reports[rank].text, line + line + "DEADLINE_EXCEEDED\n");
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, GatheredRows, ::testing::Values(&kPipeline, &kContext),
                         [](const auto& setup) {
                           return setup.param == &kPipeline ? "Pipeline" : "Context";
                         });

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
// own. The engine's gather of the batch is the collective here: if it fails, the engine drops the
// step.
std::vector<RankReport> RunDataRanks(Fault fault) {
  return RunMet(2, fault, 1, [&](std::int32_t rank, const Collective& collective, SharedGather&) {
    const bool here = rank == 1;
    Engine engine(KnownRoutes::OptionsOf());
    engine.Run(
        1, KnownRoutes::kSteps, [&](const Token& token) { return OfDataRank(rank, token); },
        [&](const Token& token) { return rank == 1 && OfDataRank(0, token); },
        [&](StepId step) {
          if (here && step.value() == kFaultStep) BeLateOrDie(fault);
          std::uint64_t number = step.value();
          std::uint64_t numbers[2];
          if (AllGather(collective, "batch", &number, numbers, sizeof(number)).ok()) return false;
          Must(engine.session->Drop(step).ok(), "Drop");
          return true;
        });
    return JudgeOwn(*engine.store, rank);
  });
}

TEST(DataParallel, EachRankHasItsOwnRowsAndNoOthers) {
  for (const Fault fault : {Fault::kNone, Fault::kLate}) {
    const auto reports = RunDataRanks(fault);
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(reports[static_cast<std::size_t>(rank)].text,
                OwnLines(rank, std::string(KnownRoutes::kTokens, '.')));
    }
  }
}

TEST(DataParallel, WithoutTheOtherRankTheStepsAreDropped) {
  EXPECT_EQ(RunDataRanks(Fault::kMissing)[0].text,
            OwnLines(0, std::string(KnownRoutes::kTokens, '4')));
  const auto died = RunDataRanks(Fault::kDies);
  EXPECT_TRUE(died[1].killed);
  EXPECT_EQ(died[0].text, OwnLines(0, LineFrom(kFaultStep, '4')));
}

// Each rank routes its own tokens over all experts, and computes half of the experts. While a rank
// has no tokens it runs dummy batches. `local`: the trap: ids as the rank's experts number them.
std::vector<RankReport> RunExperts(Fault fault, bool local) {
  return RunMet(2, fault, 1, [&](std::int32_t rank, const Collective& collective, SharedGather&) {
    const bool here = rank == 1;
    Engine engine(KnownRoutes::OptionsOf());
    for (std::uint64_t step = 1; step <= KnownRoutes::kSteps; ++step) {
      if (here && step == kFaultStep) BeLateOrDie(fault);
      std::uint64_t number = step;
      std::uint64_t numbers[2];
      // The ranks dispatch tokens to the experts before a layer is over.
      const bool dispatched =
          AllGather(collective, "tokens", &number, numbers, sizeof(number)).ok();
      if (here && step > kFaultStep) {  // idle: a dummy batch, of other tokens
        engine.Write(engine.session->scratch_view(), KnownRoutes::TokensOf(step));
        engine.session->Discard(KnownRoutes::kSequences);
        continue;
      }
      engine.Run(
          step, step, [&](const Token& token) { return OfDataRank(rank, token); }, {},
          [&](StepId id) {
            if (local) {
              const CaptureView view = engine.session->view(id);
              for (std::ptrdiff_t i = 0; i < view.layer_stride * view.num_layers; ++i)
                view.data[i] =
                    view.data[i] < 0 ? view.data[i] : static_cast<std::int16_t>(view.data[i] % 32);
            }
            if (dispatched) return false;
            Must(engine.session->Cancel(id).ok(), "Cancel");  // its forward did not end
            return true;
          });
    }
    return JudgeOwn(*engine.store, rank);
  });
}

TEST(ExpertParallel, IdsAreThoseOfAllExpertsAndDummyBatchesLeaveNothing) {
  const std::string all(KnownRoutes::kTokens, '.');
  for (const Fault fault : {Fault::kNone, Fault::kLate}) {
    const auto reports = RunExperts(fault, false);
    EXPECT_EQ(reports[0].text, OwnLines(0, all));
    EXPECT_EQ(reports[1].text, OwnLines(1, LineFrom(kFaultStep + 1, '1')));
  }
  // What this test would say of ids that a rank numbers itself.
  EXPECT_THAT(RunExperts(Fault::kNone, true)[0].text, HasSubstr("W"));
}

TEST(ExpertParallel, WithoutTheOtherRankNothingIsWritten) {
  EXPECT_EQ(RunExperts(Fault::kMissing, false)[0].text,
            OwnLines(0, std::string(KnownRoutes::kTokens, '1')));
  const auto died = RunExperts(Fault::kDies, false);
  EXPECT_TRUE(died[1].killed);
  EXPECT_EQ(died[0].text, OwnLines(0, LineFrom(kFaultStep, '1')));
}

// ---- prefill and decode in two processes

// Rank 0 computes the prompts and sends their rows; rank 1 gets the KV of the prompts, generates,
// and joins. With a fault it generates all the same: the rows of the prompts are missing.
std::vector<RankReport> RunApart(Fault fault, bool prefill_drops = false) {
  return RunMet(2, fault, 0, [&](std::int32_t rank, const Collective& collective, SharedGather&) {
    std::vector<std::uint8_t> sent(8192), received(2 * 8192);
    StoreOptions options = KnownRoutes::OptionsOf();
    Engine engine(options);
    if (rank == 0) {
      engine.Run(1, 1, All, {}, [&](StepId step) {
        if (prefill_drops) Must(engine.session->Drop(step).ok(), "Drop");
        return prefill_drops;
      });
      if (fault == Fault::kLate) std::this_thread::sleep_for(milliseconds(500));
      for (std::int32_t sequence = 0; sequence < KnownRoutes::kSequences; ++sequence) {
        if (fault == Fault::kDies && sequence == 3) (void)raise(SIGKILL);
        const Rows rows = KnownRoutes::Read(*engine.store, sequence);
        const auto document = wire::WriteDocument(rows);
        Must(document.ok() && document->size() + 8 <= sent.size(), "WriteDocument");
        const std::uint64_t size = document->size();
        std::memcpy(sent.data(), &size, sizeof(size));
        std::copy(document->begin(), document->end(), sent.begin() + sizeof(size));
        (void)AllGather(collective, "rows", sent.data(), received.data(), sent.size());
      }
      return std::string("sent");
    }
    // The KV of the prompts comes from outside: no page of this store has their keys.
    std::vector<Event> events;
    for (std::int32_t sequence = 0; sequence < KnownRoutes::kSequences; ++sequence) {
      const std::vector<BlockId> blocks = KnownRoutes::BlocksOf(sequence);
      for (std::size_t i = 0; i * KnownRoutes::kPageTokens < KnownRoutes::kPrompt; ++i) {
        const std::uint64_t key = static_cast<std::uint64_t>(blocks[i].value()) + 1000;
        events.push_back(Event::Bind(blocks[i], BlockKey::FromInteger(key)));
      }
    }
    Must(engine.store->Report(events).ok(), "Report");
    engine.Run(2, KnownRoutes::kSteps);
    std::string text;
    for (std::int32_t sequence = 0; sequence < KnownRoutes::kSequences; ++sequence) {
      const Rows own = KnownRoutes::Read(*engine.store, sequence);
      std::vector<const Rows*> reads = {&own};
      Rows prompt;
      if (AllGather(collective, "rows", sent.data(), received.data(), sent.size()).ok()) {
        // Its own length in front of each document.
        std::uint64_t size = 0;
        std::memcpy(&size, received.data(), sizeof(size));
        const auto document =
            wire::Document::Open(std::span(received.data() + sizeof(size), size), {});
        Must(document.ok(), "Open: " + std::string(document.status().message()));
        prompt = document->ReadRows(document->All()).value();
        reads.insert(reads.begin(), &prompt);
      }
      text += KnownRoutes::Judge(Join(reads).value(), sequence) + "\n";
    }
    return text;
  });
}

std::string PromptLine(char of_prompt) {
  return std::string(KnownRoutes::kPrompt, of_prompt) +
         std::string(KnownRoutes::kTokens - KnownRoutes::kPrompt, '.') + "\n";
}

TEST(PrefillApart, TheJoinOfBothIsComplete) {
  for (const Fault fault : {Fault::kNone, Fault::kLate})
    EXPECT_EQ(RunApart(fault)[1].text, Times(KnownRoutes::kSequences, PromptLine('.')));
}

TEST(PrefillApart, WithoutItsRowsThePromptIsMissingAndTheRestThere) {
  EXPECT_EQ(RunApart(Fault::kMissing)[1].text, Times(KnownRoutes::kSequences, PromptLine('3')));
  const auto died = RunApart(Fault::kDies);
  EXPECT_TRUE(died[0].killed);
  EXPECT_EQ(died[1].text,
            Times(3, PromptLine('.')) + Times(KnownRoutes::kSequences - 3, PromptLine('3')));
  EXPECT_EQ(RunApart(Fault::kNone, true)[1].text, Times(KnownRoutes::kSequences, PromptLine('4')));
}

// ---- micro-batches

// Two threads write the rows of two halves of every batch at the same time. `silent`: the second one
// writes nothing in kFaultStep.
std::string RunMicroBatches(bool late, bool silent) {
  Engine engine(KnownRoutes::OptionsOf());
  for (std::uint64_t step = 1; step <= KnownRoutes::kSteps; ++step) {
    const std::vector<Token> tokens = KnownRoutes::TokensOf(step);
    const std::vector<std::int64_t> slots = KnownRoutes::SlotsOf(tokens);
    EXPECT_TRUE(engine.session->BeginStep(KnownRoutes::BatchOf(step, slots)).ok());
    const CaptureView view = engine.session->view(StepId(step));
    const auto half = static_cast<std::ptrdiff_t>(tokens.size() / 2);
    std::vector<std::thread> halves;
    halves.emplace_back([&] { engine.Write(view, {tokens.begin(), tokens.begin() + half}); });
    halves.emplace_back([&] {
      if (late && step == kFaultStep) std::this_thread::sleep_for(milliseconds(200));
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

// Two ranks share the rows of each forward, and each writes its part in two micro-batches at the same
// time. A fault is one of the second micro-batch of rank 1.
std::vector<RankReport> RunMicroBatchesOfRanks(Fault fault) {
  constexpr std::size_t kRanks = 2;
  return RunMet(
      kRanks, fault, 1, [&](std::int32_t rank, const Collective& collective, SharedGather& group) {
        const bool here = rank == 1;
        Engine engine(KnownRoutes::OptionsOf(), collective);
        for (std::uint64_t step = 1; step <= KnownRoutes::kSteps; ++step) {
          const std::vector<Token> tokens = KnownRoutes::TokensOf(step);
          const std::vector<std::int64_t> slots = KnownRoutes::SlotsOf(tokens, kRanks);
          Must(engine.session->BeginStep(KnownRoutes::BatchOf(step, slots)).ok(), "BeginStep");
          const std::size_t of_rank = slots.size() / kRanks;
          const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(here ? of_rank : 0);
          const auto last = here ? tokens.end() : first + static_cast<std::ptrdiff_t>(of_rank);
          const auto middle = first + (last - first) / 2;
          const CaptureView view = engine.session->view(StepId(step));
          std::thread one([&] { engine.Write(view, {first, middle}); });
          std::thread other([&] {
            if (here && step == kFaultStep) {
              while (fault == Fault::kDies && group.Calls(rank) < kFaultStep - 1)
                std::this_thread::sleep_for(milliseconds(1));
              BeLateOrDie(fault);
            }
            engine.Write(view, {middle, last}, static_cast<std::int32_t>(middle - first));
          });
          one.join();
          other.join();
          if (here && step == kFaultStep && fault == Fault::kDrops) {
            Must(engine.session->Drop(StepId(step)).ok(), "Drop");
          } else {
            Must(engine.session->Submit(StepId(step)).ok(), "Submit");
          }
        }
        return KnownRoutes::JudgeSequences(*engine.store);
      });
}

TEST(MicroBatches, EveryRankHasTheRowsOfAllMicroBatchesAlsoOfALateOne) {
  for (const Fault fault : {Fault::kNone, Fault::kLate}) {
    for (const RankReport& report : RunMicroBatchesOfRanks(fault))
      EXPECT_EQ(report.text, Lines());
  }
}

TEST(MicroBatches, WithoutARankNoRowIsThere) {
  const std::string missing(KnownRoutes::kTokens, '2');
  EXPECT_EQ(RunMicroBatchesOfRanks(Fault::kMissing)[0].text,
            Times(KnownRoutes::kSequences, missing + "\n"));
}

TEST(MicroBatches, ARankThatDiesBetweenThemEndsTheRowsOfLaterSteps) {
  const auto reports = RunMicroBatchesOfRanks(Fault::kDies);
  EXPECT_TRUE(reports[1].killed);
  EXPECT_EQ(reports[0].text, Times(KnownRoutes::kSequences, LineFrom(kFaultStep, '2') + "\n"));
}

TEST(MicroBatches, WhatARankDropsIsMissingOnAll) {
  const auto reports = RunMicroBatchesOfRanks(Fault::kDrops);
  // Rank 1 has the rows of sequences 4 to 6; of its own dropped step a rank has nothing.
  EXPECT_EQ(reports[0].text, Lines('4', [](const Token& token) { return token.sequence >= 4; }));
  EXPECT_EQ(reports[1].text, Lines('4'));
}

}  // namespace
}  // namespace waymark::conformance
