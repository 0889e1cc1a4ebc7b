// Sequence parallelism: ranks that are processes share the rows of each forward, and exchange them
// over shared memory. What one rank has with tp 1, every rank must have with tp 4, bit for bit; and
// what a rank fails to deliver must be missing on every rank, with its reason, without anybody
// waiting for it on the engine's thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "blockstore/store/slot_code.h"
#include "plugin/capture/capture_session.h"
#include "plugin/capture/staged_transport.h"
#include "tests/conformance/parallel/known_routes.h"
#include "tests/conformance/schedules.h"
#include "tests/support/emulated_device.h"
#include "tests/support/rank_processes.h"
#include "tests/support/test_seed.h"

namespace waymark::conformance {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int32_t kRanks = 4;
constexpr std::int32_t kGraphRows = 48;    // that a CUDA graph writes on each rank,
constexpr std::int32_t kGraphBuffers = 4;  // into so many buffers

// How the ids of a rank's rows get into its session.
// kGraph: as kView, by a CUDA graph that writes more rows than the batch has, into few buffers.
enum class Way { kView, kHandOver, kIds, kDevice, kGraph };

// One rank of an engine: all its steps, then what its store has.
struct RankEngine {
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  Collective collective = {};
  Way way = Way::kView;
  std::int32_t num_buffers = KnownRoutes::kSteps;
  std::int32_t fault_pad_to = 8;   // of which the rows of kFaultStep are a multiple,
  std::int32_t silent_layer = -1;  // and a layer that its forward does not write
  // Called instead of Submit; false: it has ended the step.
  std::function<bool(CaptureSession&, StepId, const CaptureView&)> before_submit = {};
  std::chrono::nanoseconds longest_call{0};
  std::shared_ptr<EmulatedDevice> device = {};  // of Way::kDevice

  void Timed(const std::function<void()>& call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    longest_call =
        std::max<std::chrono::nanoseconds>(longest_call, std::chrono::steady_clock::now() - start);
  }

  // JudgeAll, the counters and the status of the session.
  std::string Run() {
    const std::unique_ptr<RoutingStore> store = KnownRoutes::MakeStore(KnownRoutes::OptionsOf());
    CaptureOptions options;
    options.store = store.get();
    options.max_rows = 64;
    options.num_buffers = num_buffers;
    options.row_gather = collective;
    if (way == Way::kDevice) {
      device = std::make_shared<EmulatedDevice>(static_cast<std::uint64_t>(rank) + 1);
      options.transport = StagedTransport::Factory({device});
    }
    std::unique_ptr<CaptureSession> session = CaptureSession::Create(options).value();
    std::vector<std::vector<std::int16_t>> ids;  // of all steps
    for (std::uint64_t step = 1; step <= KnownRoutes::kSteps; ++step) {
      ids.push_back(RunStep(*session, step));
      // There are few buffers: it waits for them.
      if (way == Way::kGraph) (void)KnownRoutes::Read(*store, 0);
    }
    std::string text = KnownRoutes::JudgeAll(*store);
    const CaptureStats stats = session->GetStats();
    text += "gathers=" + std::to_string(stats.gathers) +
            " failed=" + std::to_string(stats.gathers_failed) +
            " parts=" + std::to_string(stats.parts_missing) +
            " overflows=" + std::to_string(stats.steps_without_buffer) +
            " longest_ms=" + std::to_string(longest_call.count() / 1'000'000) + "\n" +
            std::string(session->status().ToString()) + "\n";
    return text;
  }

  // The forward writes when the device pleases.
  void WriteOnDevice(const CaptureView& view, const std::vector<std::int16_t>& ids,
                     std::int32_t rows) const {
    device->Enqueue(nullptr, [view, ids, rows] {
      for (std::int32_t at = 0; at < rows * KnownRoutes::kLayers; ++at) {
        std::copy_n(
            ids.data() + at * KnownRoutes::kTopK, KnownRoutes::kTopK,
            view.layer(at % KnownRoutes::kLayers) + at / KnownRoutes::kLayers * KnownRoutes::kTopK);
      }
    });
  }

  // Returns the ids that the landing thread may read until the end.
  std::vector<std::int16_t> RunStep(CaptureSession& session, std::uint64_t step) {
    const std::vector<Token> tokens = KnownRoutes::TokensOf(step);
    const std::vector<std::int64_t> slots = KnownRoutes::SlotsOf(
        tokens, static_cast<std::size_t>(step == kFaultStep ? fault_pad_to : 8));
    const StepBatch batch = KnownRoutes::BatchOf(step, slots);
    const auto rows = static_cast<std::int32_t>(slots.size()) / ranks;

    // What the routers of this rank choose: for padding, too.
    std::vector<std::int16_t> ids;
    for (std::int32_t i = 0; i < rows; ++i) {
      const auto at = static_cast<std::size_t>(rank * rows + i);
      const Token token = at < tokens.size() ? tokens[at] : Token{99, static_cast<int>(at)};
      for (std::int32_t layer = 0; layer < KnownRoutes::kLayers; ++layer) {
        std::int16_t chosen[KnownRoutes::kTopK];
        KnownRoutes::Ids(token, layer, chosen);
        ids.insert(ids.end(), chosen, chosen + KnownRoutes::kTopK);
      }
    }
    StepCode begun;
    Timed(
        [&] { begun = way == Way::kIds ? session.BeginIdsStep(batch) : session.BeginStep(batch); });
    if (!begun.ok()) return ids;
    CaptureView view;
    if (way != Way::kIds) {
      view = session.view(StepId(step));
      if (way == Way::kDevice) WriteOnDevice(view, ids, rows);
      for (std::int32_t layer = 0; layer < KnownRoutes::kLayers && way != Way::kDevice; ++layer) {
        if (step == kFaultStep && layer == silent_layer) continue;
        StepIds of_layer = StepIds::OfLayer(ids.data() + layer * KnownRoutes::kTopK, IdType::kInt16,
                                            rows, KnownRoutes::kTopK);
        of_layer.row_stride *= KnownRoutes::kLayers;
        if (way == Way::kHandOver) {
          // Two micro-batches, the second one first.
          StepIds second = of_layer;
          second.first_row = rows / 2;
          second.rows -= second.first_row;
          second.data = ids.data() + layer * KnownRoutes::kTopK +
                        second.first_row * KnownRoutes::kLayers * KnownRoutes::kTopK;
          of_layer.rows = rows / 2;
          Must(session.HandOver(view, layer, second).ok(), "HandOver");
          Must(session.HandOver(view, layer, of_layer).ok(), "HandOver");
          continue;
        }
        for (std::int32_t row = 0; row < rows; ++row) {
          std::copy_n(ids.data() + (row * KnownRoutes::kLayers + layer) * KnownRoutes::kTopK,
                      KnownRoutes::kTopK, view.layer(layer) + row * KnownRoutes::kTopK);
        }
        // Behind the rows of the batch the graph routes what lies in its buffers.
        for (std::int32_t row = rows; row < (way == Way::kGraph ? kGraphRows : 0); ++row) {
          KnownRoutes::Ids({98, row}, layer, view.layer(layer) + row * KnownRoutes::kTopK);
        }
      }
    }
    if (before_submit && !before_submit(session, StepId(step), view)) return ids;
    Timed([&] {
      if (way == Way::kIds) {
        (void)session.SubmitIds(
            StepId(step), StepIds::TokenMajor(ids.data(), IdType::kInt16, rows, session.shape()));
      } else {
        (void)session.Submit(StepId(step), way == Way::kGraph ? kGraphRows : 0);
      }
    });
    return ids;
  }
};

// The lines of Judge of every rank.
std::vector<std::string> Lines(const std::string& report) {
  return absl::StrSplit(report, '\n');
}
std::string Digest(const std::string& report) {
  for (const std::string& line : Lines(report)) {
    if (line.starts_with("digest=")) return line;
  }
  return "no digest in: " + report;
}
// What `report` says of the row of `sequence` that `step` computed.
char RowOf(const std::string& report, std::int32_t sequence, std::uint64_t step) {
  const std::vector<std::string> lines = Lines(report);
  const auto line = static_cast<std::size_t>(sequence);
  const std::size_t position = static_cast<std::size_t>(KnownRoutes::kPrompt) + step - 2;
  if (line >= lines.size() || position >= lines[line].size()) return '?';
  return lines[line][position];
}
std::string AllRight() {
  return Times(KnownRoutes::kSequences, std::string(KnownRoutes::kTokens, '.') + "\n");
}

std::string OneRank() {
  const auto reports = RunRanks(1, seconds(60), [](std::int32_t) { return RankEngine().Run(); });
  EXPECT_TRUE(reports[0].ended);
  return reports[0].text;
}

using Setup = std::function<void(RankEngine&, SharedGather&)>;
std::vector<RankReport> RunEngines(SharedGather& group, const Setup& setup) {
  auto reports = RunRanks(kRanks, seconds(90), [&](std::int32_t rank) {
    RankEngine engine;
    engine.rank = rank;
    engine.ranks = kRanks;
    engine.collective = group.Of(rank);
    group.Meet();
    if (setup) setup(engine, group);
    return engine.Run();
  });
  ExpectNothingHangs(reports);
  for (std::size_t rank = 0; rank < reports.size(); ++rank)
    EXPECT_THAT(reports[rank].text, Not(HasSubstr("W"))) << "rank " << rank;
  return reports;
}
// Of a collective of its own.
std::vector<RankReport> RunEngines(const Setup& setup, seconds deadline = seconds(30)) {
  SharedGather group(kRanks, kMostBytes, deadline);
  return RunEngines(group, setup);
}

class SequenceParallelWays : public ::testing::TestWithParam<Way> {};

TEST_P(SequenceParallelWays, Tp4WithPaddedBuffersHasTheRowsOfTp1BitForBit) {
  const std::string alone = OneRank();
  ASSERT_THAT(alone, HasSubstr(AllRight()));
  SharedGather group(kRanks, kMostBytes, seconds(30));
  const auto reports = RunEngines(group, [](RankEngine& engine, SharedGather&) {
    engine.way = GetParam();
    if (engine.way == Way::kGraph) engine.num_buffers = kGraphBuffers;
  });
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    const std::string& report = reports[static_cast<std::size_t>(rank)].text;
    EXPECT_THAT(report, HasSubstr(AllRight()));
    EXPECT_EQ(Digest(report), Digest(alone));
    EXPECT_THAT(report, HasSubstr("failed=0 parts=0 overflows=0"));
    // One call a step, of a header, and a verdict and a packed row for each row of this rank.
    EXPECT_EQ(group.Calls(rank), static_cast<std::uint64_t>(KnownRoutes::kSteps));
    std::uint64_t bytes = 0;
    for (std::uint64_t step = 1; step <= KnownRoutes::kSteps; ++step) {
      const std::size_t padded = (KnownRoutes::TokensOf(step).size() + 7) / 8 * 8;
      bytes += 72 + padded / kRanks * (1 + KnownRoutes::kLayers * KnownRoutes::kTopK);
    }
    EXPECT_EQ(group.BytesSent(rank), bytes);
  }
}
INSTANTIATE_TEST_SUITE_P(All, SequenceParallelWays,
                         ::testing::Values(Way::kView, Way::kHandOver, Way::kIds, Way::kDevice,
                                           Way::kGraph));

TEST(SequenceParallel, WhatAGraphLeftBehindItsRowsIsNoRow) {
  // A buffer that had 2 rows of a batch, and 46 of a graph, gets a batch of 8 rows a rank: all
  // sequences on rank 0. One layer is not written there.
  const auto reports = RunEngines([](RankEngine& engine, SharedGather&) {
    engine.way = Way::kGraph;
    engine.num_buffers = kGraphBuffers;
    engine.fault_pad_to = 32;
    if (engine.rank == 0) engine.silent_layer = 1;
  });
  for (const RankReport& report : reports) {
    for (std::int32_t sequence = 0; sequence < KnownRoutes::kSequences; ++sequence) {
      const std::size_t before = KnownRoutes::kPrompt + kFaultStep - 2;
      EXPECT_EQ(
          Lines(report.text)[static_cast<std::size_t>(sequence)],
          std::string(before, '.') + '2' + std::string(KnownRoutes::kTokens - before - 1, '.'));
    }
  }
}

TEST(SequenceParallel, ALateRankDelaysNobodysEngineAndLosesNothing) {
  const auto reports = RunEngines([](RankEngine& engine, SharedGather&) {
    if (engine.rank != 1) return;
    engine.before_submit = [](CaptureSession&, StepId step, const CaptureView&) {
      if (step.value() == kFaultStep) std::this_thread::sleep_for(milliseconds(1500));
      return true;
    };
  });
  for (const RankReport& report : reports) {
    EXPECT_THAT(report.text, HasSubstr(AllRight()));
    const std::size_t at = report.text.find("longest_ms=");
    ASSERT_NE(at, std::string::npos);
    EXPECT_LT(std::stoi(report.text.substr(at + 11)), 1000);
  }
}

// Rank 2 of four has rows 4 and 5 of each padded batch of 8: sequences 4 and 5.
// `fault` happens there in kFaultStep; false: it has ended the step.
void ExpectFault(const std::function<bool(CaptureSession&, StepId, const CaptureView&)>& fault,
                 char on_rank_2, char of_others_there, char elsewhere) {
  const auto reports = RunEngines([&](RankEngine& engine, SharedGather&) {
    if (engine.rank != 2) return;
    engine.before_submit = [&](CaptureSession& session, StepId step, const CaptureView& view) {
      return step.value() != kFaultStep || fault(session, step, view);
    };
  });
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const std::string& report = reports[rank].text;
    for (std::int32_t sequence = 0; sequence < KnownRoutes::kSequences; ++sequence) {
      const bool part_of_2 = sequence == 4 || sequence == 5;
      const char want =
          rank == 2 ? (part_of_2 ? on_rank_2 : of_others_there) : (part_of_2 ? elsewhere : '.');
      EXPECT_EQ(RowOf(report, sequence, kFaultStep), want)
          << "rank " << rank << ", sequence " << sequence << ":\n"
          << report;
      EXPECT_EQ(RowOf(report, sequence, kFaultStep - 1), '.') << report;
      EXPECT_EQ(RowOf(report, sequence, kFaultStep + 1), '.') << report;
    }
  }
}

TEST(SequenceParallel, ADroppedStepHasNoRowsThereAndMissesItsPartElsewhere) {
  const auto drop = [](CaptureSession& session, StepId step, const CaptureView&) {
    Must(session.Drop(step).ok(), "Drop");
    return false;
  };
  ExpectFault(drop, '4', '4', '4');
}

TEST(SequenceParallel, ACancelledStepIsNeverWrittenThereAndItsPartNotCapturedElsewhere) {
  const auto cancel = [](CaptureSession& session, StepId step, const CaptureView&) {
    Must(session.Cancel(step).ok(), "Cancel");
    return false;
  };
  ExpectFault(cancel, '1', '1', '2');
}

TEST(SequenceParallel, ASilentLayerIsNotCapturedAndAnInvalidIdInvalidOnEveryRank) {
  struct Written {
    std::int32_t layer;
    std::int16_t id;
    char reason;
  };
  for (const Written& of : {Written{3, -1, '2'}, Written{1, KnownRoutes::kExperts, '5'}}) {
    const auto write = [&](CaptureSession&, StepId, const CaptureView& view) {
      std::fill_n(view.layer(of.layer), 2 * KnownRoutes::kTopK, of.id);
      return true;
    };
    ExpectFault(write, of.reason, '.', of.reason);
  }
}

TEST(SequenceParallel, TooFewBuffersLoseRowsButNeverTheOrder) {
  const auto reports = RunEngines([](RankEngine& engine, SharedGather&) {
    // Rank 1 begins its steps without a pause, the others pause.
    engine.num_buffers = engine.rank == 1 ? 1 : KnownRoutes::kSteps;
    if (engine.rank == 1) return;
    engine.before_submit = [](CaptureSession&, StepId, const CaptureView&) {
      std::this_thread::sleep_for(milliseconds(5));
      return true;
    };
  });
  // Rank 1 has rows 2 and 3: of a step that it dropped they are missing everywhere, for capacity.
  for (std::uint64_t step = 2; step <= KnownRoutes::kSteps; ++step) {
    const char there = RowOf(reports[1].text, 0, step);
    EXPECT_THAT((std::string{'.', '4'}), HasSubstr(std::string(1, there)));
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      for (std::int32_t sequence = 0; sequence < KnownRoutes::kSequences; ++sequence) {
        const bool lost = there == '4' && (rank == 1 || sequence == 2 || sequence == 3);
        EXPECT_EQ(RowOf(reports[rank].text, sequence, step), lost ? '4' : '.')
            << "rank " << rank << " step " << step << "\n"
            << reports[rank].text;
      }
    }
  }
  EXPECT_THAT(reports[1].text, Not(HasSubstr("overflows=0")));
}

TEST(SequenceParallel, APartOfAnotherStepIsNotTaken) {
  // Rank 0 has called once more than the others: its parts belong to other steps.
  const auto reports = RunEngines(
      [](RankEngine& engine, SharedGather&) {
        if (engine.rank != 0) return;
        std::vector<std::uint8_t> bytes(16), received(16 * kRanks);
        (void)AllGather(engine.collective, "nothing", bytes.data(), received.data(), bytes.size());
      },
      seconds(1));
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    // Step 1 has other rows than step 2, so that two calls had different sizes.
    for (std::uint64_t step = 3; step < KnownRoutes::kSteps; ++step) {
      // Sequences 0 and 1 are rows of rank 0, which takes its own alone.
      EXPECT_EQ(RowOf(reports[rank].text, 0, step), rank == 0 ? '.' : '2') << reports[rank].text;
      EXPECT_EQ(RowOf(reports[rank].text, 1, step), rank == 0 ? '.' : '2') << reports[rank].text;
      EXPECT_EQ(RowOf(reports[rank].text, 4, step), rank == 0 ? '2' : '.') << reports[rank].text;
    }
  }
}

// ---- a simulated engine

// Every rank runs the same engine; the forward of each has its part of the rows.
class SequenceParallelFeed final : public sim::StepFeed {
 public:
  SequenceParallelFeed(RoutingStore& store, const Collective& collective)
      : store_(store), collective_(collective) {
    CaptureOptions options;
    options.store = &store;
    options.max_rows = static_cast<std::int32_t>(store.options().max_step_rows);
    options.num_buffers = static_cast<std::int32_t>(store.options().max_steps_in_flight);
    options.row_gather = collective;
    session_ = CaptureSession::Create(options).value();
  }

  StepCode Begin(const StepBatch& batch) override {
    const StoreOptions& of = store_.options();
    const SlotLimits limits = {of.num_blocks, of.block_tokens, of.max_step_rows};
    std::vector<std::uint8_t> bytes(MaxEncodedBytes(NumRows(batch), limits));
    std::size_t size = 0;
    if (const StepCode bad = EncodeSlots(batch, limits, bytes.data(), &size); !bad.ok()) return bad;
    std::vector<std::int64_t> slots(NumRows(batch));
    DecodeSlots({bytes.data(), size}, slots.data());
    const auto ranks = static_cast<std::size_t>(collective_.ranks);
    while (slots.size() % ranks != 0)
      slots.push_back(kPaddingSlot);
    StepBatch padded = batch;
    padded.pairs = nullptr;
    padded.slots = slots.data();
    padded.num_slots = slots.size();
    const StepCode code = session_->BeginStep(padded);
    if (code.ok()) rows_.push_back({batch.step, NumRows(batch)});
    return code;
  }

  StepCode Submit(StepId step, sim::OracleRows* step_rows) override {
    const auto open = std::find_if(rows_.begin(), rows_.end(),
                                   [&](const auto& of) { return of.first == step.value(); });
    const std::size_t rows = open->second;
    rows_.erase(open);
    const auto ranks = static_cast<std::size_t>(collective_.ranks);
    const std::size_t of_rank = (rows + ranks - 1) / ranks;
    const std::size_t first = of_rank * static_cast<std::size_t>(collective_.rank);
    Write(step_rows, session_->view(step), first, std::min(rows, first + of_rank));
    step_rows->Done();
    return session_->Submit(step);
  }
  StepCode Drop(StepId step) override { return session_->Drop(step); }
  StepCode Cancel(StepId step) override { return session_->Cancel(step); }

 private:
  // Rows [first, last) of the step to the view. A layer of a row with a fault fails.
  void Write(sim::OracleRows* step_rows, const CaptureView& view, std::size_t first,
             std::size_t last) const {
    const RoutingShape& shape = store_.options().shape;
    std::vector<std::uint8_t> bytes(shape.row_bytes());
    std::vector<std::uint8_t> written(static_cast<std::size_t>(shape.num_layers));
    for (std::size_t row = first; row < last; ++row) {
      std::uint8_t* destination = bytes.data();
      Reason verdict = Reason::kNone;
      step_rows->Land(static_cast<std::uint32_t>(row), {&destination, 1}, {&verdict, 1});
      if (verdict != Reason::kNone) {
        (void)step_rows->LandLayers(static_cast<std::uint32_t>(row), destination, written);
      }
      for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
        const bool fails =
            verdict != Reason::kNone && static_cast<std::size_t>(layer) == row % written.size();
        for (std::int32_t k = 0; k < shape.top_k; ++k) {
          const auto at = static_cast<std::size_t>(layer * shape.top_k + k);
          std::int16_t id = bytes[at];
          if (fails) id = verdict == Reason::kNotCaptured ? std::int16_t{-1} : std::int16_t{999};
          view.layer(layer)[(row - first) * static_cast<std::size_t>(shape.top_k) +
                            static_cast<std::size_t>(k)] = id;
        }
      }
    }
  }

  RoutingStore& store_;
  const Collective collective_;
  std::unique_ptr<CaptureSession> session_;
  std::vector<std::pair<std::uint64_t, std::size_t>> rows_;  // of the steps that are open
};

// A schedule whose stores have threads, so that a rank never waits for another on its engine's.
Schedule DrawThreaded(std::uint64_t seed) {
  Schedule schedule = DrawSchedule(seed);
  sim::EngineOptions& options = schedule.options;
  options.features.clip = false;  // what is covered depends on what has landed
  options.features.no_memory = 0;
  options.features.stream = 0;
  options.timing.landing = Landing::kThread;
  options.timing.lag = 0;
  options.timing.lost = 0;
  options.log_bytes = 0;
  options.max_pages = 0;
  options.max_steps_in_flight = 512;
  options.collect_digests = true;
  return schedule;
}

// Counts, then a digest of the rows of each request.
std::string Report(const Schedule& schedule, const Outcome& outcome) {
  std::string text = outcome.clean(schedule) ? "clean " : "NOT CLEAN " + outcome.Describe(schedule);
  // A row that is read before it is marked as kept counts as exact.
  const sim::CheckCounts& checks = outcome.checks;
  text += " right=" + std::to_string(checks.exact + checks.kept + checks.by_key);
  std::vector<std::string> digests;
  for (const auto& digest : outcome.checks.digests) {
    digests.push_back(std::to_string(digest.request) + ":" + std::to_string(digest.rows));
  }
  std::sort(digests.begin(), digests.end());  // reads become ready in any order
  for (const std::string& digest : digests)
    text += " " + digest;
  return text;
}

TEST(SequenceParallel, SimulatedEnginesHaveTheRowsOfOneRank) {
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  const std::uint64_t count = FromEnvironment("WAYMARK_RANK_SCHEDULES", 60);
  int failed = 0;
  std::int64_t bytes = 0;
  for (std::uint64_t seed = first; seed < first + count && failed < 3; ++seed) {
    constexpr std::int32_t kMostStages = 4;
    std::vector<std::unique_ptr<SharedGather>> groups;
    for (std::int32_t stage = 0; stage < kMostStages; ++stage)
      groups.push_back(std::make_unique<SharedGather>(kRanks, kMostBytes, seconds(60)));
    // The last process is tp 1.
    const auto reports = RunRanks(kRanks + 1, seconds(120), [&](std::int32_t rank) {
      Schedule schedule = DrawThreaded(seed);
      std::size_t stage = 0;
      if (rank < kRanks) {
        schedule.options.feed = [&](RoutingStore& store) {
          return std::make_unique<SequenceParallelFeed>(store, groups.at(stage++)->Of(rank));
        };
      }
      return Report(schedule, RunSchedule(schedule));
    });
    bool equal = true;
    for (const RankReport& report : reports) {
      equal = equal && report.ended && report.text == reports.back().text &&
              report.text.starts_with("clean");
    }
    bytes += static_cast<std::int64_t>(reports.back().text.size());
    if (equal) continue;
    ++failed;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      ADD_FAILURE() << "seed " << seed << ", "
                    << (rank == kRanks ? "tp 1" : "rank " + std::to_string(rank))
                    << (reports[rank].hung ? " hangs" : "") << ": "
                    << reports[rank].text.substr(0, 3000);
    }
  }
  std::printf("seeds %llu ... %llu, %d ranks each, %lld bytes of digests\n",
              static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1), kRanks,
              static_cast<long long>(bytes));
}

}  // namespace
}  // namespace waymark::conformance
