// What a CaptureSession refuses, binds, counts and says; capturing itself is in tests/contract.
#include "plugin/capture/capture_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/capture/host_transport.h"
#include "tests/support/log_lines.h"

namespace waymark {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<RoutingStore> MakeStore(std::int32_t num_experts = 16,
                                        std::uint32_t max_steps_in_flight = 16) {
  StoreOptions options = {.shape = {.num_layers = 3,
                                    .top_k = 2,
                                    .num_experts = num_experts,
                                    .page_tokens = 4,
                                    .layer_ids = {1, 5, 6}},
                          .num_blocks = 8,
                          .max_steps_in_flight = max_steps_in_flight,
                          .max_step_rows = 32,
                          .landing = Landing::kCaller};
  return RoutingStore::Create(options).value();
}

// A session over such a store.
struct Made {
  explicit Made(std::int32_t num_buffers = CaptureOptions().num_buffers,
                std::uint32_t max_steps_in_flight = 16)
      : store(MakeStore(16, max_steps_in_flight)),
        session(CaptureSession::Create({.store = store.get(),
                                        .max_rows = 8,
                                        .num_buffers = num_buffers,
                                        .log = logged.callback()})
                    .value()) {}

  LogLines logged;
  std::unique_ptr<RoutingStore> store;
  std::unique_ptr<CaptureSession> session;
};

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

TEST(CaptureSessionCreate, NamesTheFieldTheRuleAndTheValue) {
  const std::unique_ptr<RoutingStore> store = MakeStore();
  const auto refused = [&](CaptureOptions options, const char* field, const char* value) {
    const auto session = CaptureSession::Create(options);
    EXPECT_EQ(session.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(session.status()), AllOf(HasSubstr(field), HasSubstr(value)));
  };
  const CaptureOptions good{.store = store.get(), .max_rows = 8};
  CaptureOptions bad = good;
  bad.store = nullptr;
  refused(bad, "store", "null");
  bad = good;
  bad.max_rows = 0;
  refused(bad, "max_rows", "0");
  bad.max_rows = (1 << 20) + 1;
  refused(bad, "max_rows", "1048577");
  bad = good;
  bad.num_buffers = 0;
  refused(bad, "num_buffers", "0");
  bad.num_buffers = 4097;
  refused(bad, "num_buffers", "4097");
  const std::unique_ptr<RoutingStore> wide = MakeStore(32769);
  bad = good;
  bad.store = wide.get();
  refused(bad, "num_experts", "32769");
  EXPECT_TRUE(CaptureSession::Create(good).ok());
}

TEST(CaptureSessionCreate, PassesOnWhatTheTransportSays) {
  const std::unique_ptr<RoutingStore> store = MakeStore();
  CaptureOptions options{.store = store.get(), .max_rows = 8, .num_buffers = 3};
  TransportOptions seen;
  LogLines logged;
  options.log = logged.callback();
  options.transport = [&](const TransportOptions& given) {
    seen = given;
    return absl::StatusOr<std::shared_ptr<Transport>>(absl::UnavailableError("no device"));
  };
  const auto session = CaptureSession::Create(options);
  EXPECT_EQ(session.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(seen.shape, store->options().shape);
  EXPECT_EQ(seen.max_rows, 8);
  EXPECT_EQ(seen.num_buffers, 3);
  EXPECT_NE(seen.counters, nullptr);
  EXPECT_EQ(seen.log.context, &logged);
}

TEST(CaptureSessionBindLayer, BindsEachLayerAndModuleOnceBeforeTheFirstStep) {
  const Made made;
  CaptureSession& session = *made.session;
  EXPECT_EQ(session.BindLayer(-1, "a").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session.BindLayer(3, "a").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session.BindLayer(0, "").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(session.BindLayer(1, "m.1").ok());
  const absl::Status layer_again = session.BindLayer(1, "m.2");
  EXPECT_EQ(layer_again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Message(layer_again), AllOf(HasSubstr("1"), HasSubstr("m.1")));
  const absl::Status module_again = session.BindLayer(2, "m.1");
  EXPECT_EQ(module_again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Message(module_again), AllOf(HasSubstr("m.1"), HasSubstr("layer 1")));
  EXPECT_THAT(session.modules(), ElementsAre("", "m.1", ""));

  ASSERT_TRUE(session.BeginStep({.step = 1}).ok());
  EXPECT_EQ(session.BindLayer(2, "m.2").code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(session.Submit(StepId(1)).ok());
}

TEST(CaptureSessionStats, NameLayersByModuleAndModelNumber) {
  const Made made;
  CaptureSession& session = *made.session;
  ASSERT_TRUE(session.BindLayer(0, "m.1.gate").ok());
  const Event bind = Event::Bind(BlockId(2));
  const std::int64_t slots[] = {8, 9, 10};
  ASSERT_TRUE(
      session
          .BeginStep({.step = 1, .events = &bind, .num_events = 1, .slots = slots, .num_slots = 3},
                     6)
          .ok());
  const CaptureView view = session.view(StepId(1));
  for (std::int32_t row = 0; row < 3; ++row) {
    for (std::int32_t k = 0; k < 2; ++k) {
      view.layer(1)[row * 2 + k] = static_cast<std::int16_t>(row == 1 ? 3 : k);
    }
  }
  ASSERT_TRUE(session.Submit(StepId(1)).ok());
  ASSERT_TRUE(made.store->LandOne());
  const CaptureStats stats = session.GetStats();
  ASSERT_EQ(stats.layers.size(), 3u);
  EXPECT_EQ(stats.layers[0].rows_silent, 3u);
  EXPECT_EQ(stats.layers[0].layer_id, 1);
  EXPECT_EQ(stats.layers[1].rows_silent, 0u);
  EXPECT_EQ(stats.layers[1].rows_invalid, 1u);
  EXPECT_EQ(stats.layers[2].rows_silent, 3u);
  EXPECT_EQ(stats.layers[2].layer_id, 6);
}

TEST(CaptureSessionLog, TellsTheFirstSilenceOfEachLayer) {
  Made made;
  LogLines& logged = made.logged;
  CaptureSession& session = *made.session;
  ASSERT_TRUE(session.BindLayer(0, "m.1.gate").ok());
  logged.meanwhile = [&] { (void)made.store->GetStats(); };  // no lock is held
  // Three rows in block 2, of a forward of `batch_rows`.
  const auto step = [&](std::uint64_t number, std::int32_t batch_rows,
                        const std::vector<std::int32_t>& written) {
    const Event bind = Event::Bind(BlockId(2));
    const std::int64_t slots[] = {8, 9, 10};
    StepBatch batch{.step = number, .events = &bind, .num_events = 1};
    batch.slots = slots;
    batch.num_slots = 3;
    ASSERT_TRUE(session.BeginStep(batch, batch_rows).ok());
    for (const std::int32_t layer : written) {
      for (std::int16_t i = 0; i < 2 * batch_rows; ++i) {
        session.view(StepId(number)).layer(layer)[i] = static_cast<std::int16_t>(i % 2);
      }
    }
    ASSERT_TRUE(session.Submit(StepId(number)).ok());
    ASSERT_TRUE(made.store->LandOne());
  };
  step(1, 4, {0, 1, 2});
  EXPECT_EQ(logged.lines().size(), 0u);
  step(2, 6, {1, 2});
  step(3, 8, {1});
  step(4, 7, {});
  step(5, 7, {});
  const std::vector<LogLines::Line> lines = logged.lines();
  ASSERT_EQ(lines.size(), 3u);
  for (const LogLines::Line& line : lines)
    EXPECT_EQ(line.level, LogLevel::kWarning);
  EXPECT_EQ(lines[0].text,
            "layer 0 (m.1.gate): silent for the first time, at batch size 6; its rows are missing "
            "(not captured)");
  EXPECT_THAT(lines[1].text,
              AllOf(HasSubstr("layer 2 (model layer 6): silent"), HasSubstr("at batch size 8;")));
  EXPECT_THAT(lines[2].text,
              AllOf(HasSubstr("layer 1 (model layer 5): silent"), HasSubstr("at batch size 7;")));
}

// A step that was submitted lands after its session has gone, and its layers are named all the
// same.
TEST(CaptureSessionLog, TellsOfStepsThatOutliveTheSession) {
  Made made;
  const std::int64_t slot = 8;
  ASSERT_TRUE(made.session->BeginStep({.step = 1, .slots = &slot, .num_slots = 1}).ok());
  ASSERT_TRUE(made.session->Submit(StepId(1)).ok());
  made.session.reset();
  EXPECT_EQ(made.logged.lines().size(), 0u);
  ASSERT_TRUE(made.store->LandOne());
  ASSERT_EQ(made.logged.lines().size(), 3u);
  EXPECT_THAT(made.logged.lines()[1].text, HasSubstr("layer 1 (model layer 5)"));
}

TEST(CaptureSession, SubmitIdsWithoutAFreeEntryDropsTheStep) {
  const Made made(CaptureOptions().num_buffers, 1);
  CaptureSession& session = *made.session;
  const StepIds none = StepIds::TokenMajor(nullptr, IdType::kInt16, 0, session.shape());
  int done = 0;
  const DoneCallback count{[](void* context) { ++*static_cast<int*>(context); }, &done};
  const auto begin = [&session](std::uint64_t step) {
    const std::int64_t slot = static_cast<std::int64_t>(step) * 4;
    return session.BeginIdsStep({.step = step, .slots = &slot, .num_slots = 1}).ok();
  };
  ASSERT_TRUE(begin(1));
  ASSERT_TRUE(session.SubmitIds(StepId(1), none, count).ok());
  ASSERT_TRUE(begin(2));
  const StepCode full = session.SubmitIds(StepId(2), none, count);
  EXPECT_TRUE(full.dropped());
  EXPECT_EQ(full.rule, StepRule::kRingFull);
  EXPECT_EQ(full.value, 1);
  EXPECT_EQ(done, 1);  // of the dropped one
  EXPECT_EQ(session.Drop(StepId(2)).rule, StepRule::kStepNotInFlight) << "it has ended";
  EXPECT_EQ(session.SubmitIds(StepId(7), none).rule, StepRule::kStepNotInFlight);
  const std::vector<BlockId> blocks = {BlockId(2)};
  auto snapshot = made.store->TakeSnapshot(blocks, 0, 1);
  ASSERT_TRUE(made.store->LandOne());
  EXPECT_FALSE(made.store->LandOne());
  EXPECT_EQ(done, 2);
  ASSERT_TRUE(snapshot.ok());
  ASSERT_TRUE(snapshot->Ready());
  EXPECT_EQ(snapshot->ReadRows()->infos[0].reason, Reason::kCapacity);
  ASSERT_TRUE(begin(3));
  ASSERT_TRUE(session.Lose(StepId(3)).ok());
  ASSERT_TRUE(made.store->LandOne());
  EXPECT_EQ(session.GetStats().steps_lost, 1u);
  EXPECT_EQ(session.GetStats().steps_dropped, 1u);
  EXPECT_EQ(made.store->GetStats().steps_dropped, 1u);
  EXPECT_EQ(made.store->GetStats().steps_without_room, 1u) << "it was in none of the counts";
}

TEST(CaptureSession, HandOverRefusesAStepThatWasNeverBegun) {
  const Made made(1);
  CaptureSession& session = *made.session;
  const auto hand_over = [&](std::uint64_t step, const StepIds& ids) {
    return session.HandOver(session.view(StepId(step)), 0, ids);
  };
  const std::vector<std::int32_t> ids = {1, 2};
  const StepIds row = StepIds::OfLayer(ids.data(), IdType::kInt32, 1, 2);
  const StepCode before = hand_over(1, row);
  EXPECT_EQ(before.rule, StepRule::kStepNotInFlight);
  EXPECT_EQ(before.value, 1);
  const CaptureView early = session.view(StepId(1));
  EXPECT_EQ(early.buffer, kScratchBuffer) << "safe to write";
  EXPECT_EQ(session.HandOver(early, 0, row).rule, StepRule::kStepNotInFlight);
  ASSERT_TRUE(session.BeginStep({.step = 1}).ok());
  EXPECT_TRUE(hand_over(1, row).ok());
  EXPECT_EQ(hand_over(2, row).rule, StepRule::kStepNotInFlight);
  // The forward of a dropped step runs unchanged, and so does one that is no step.
  ASSERT_TRUE(session.BeginStep({.step = 2}).dropped());
  EXPECT_TRUE(hand_over(2, row).ok());
  EXPECT_TRUE(session.HandOver(session.scratch_view(), 0, row).ok());
}

// A transport that has failed: steps are dropped at their begin, and nothing hangs.
class BrokenTransport : public Transport {
 public:
  static absl::StatusOr<std::shared_ptr<Transport>> Make(const TransportOptions& options) {
    auto host = HostTransport::Create(options);
    if (!host.ok()) return host.status();
    return std::make_shared<BrokenTransport>(*std::move(host));
  }
  explicit BrokenTransport(std::shared_ptr<Transport> inner) : inner_(std::move(inner)) {}
  BufferId Acquire() override { return inner_->Acquire(); }
  std::int32_t in_use() const override { return inner_->in_use(); }
  CaptureView View(BufferId buffer) override { return inner_->View(buffer); }
  void HandOver(BufferId buffer, std::int32_t layer, const StepIds& ids) override {
    inner_->HandOver(buffer, layer, ids);
  }
  StepRows* Seal(BufferId buffer, std::int32_t rows, std::int32_t written_rows) override {
    return inner_->Seal(buffer, rows, written_rows);
  }
  void Release(BufferId buffer, std::int32_t written_rows) override {
    inner_->Release(buffer, written_rows);
  }
  absl::Status ReadBack(BufferId, std::int32_t, std::int16_t*) override { return status(); }
  absl::Status status() const override { return absl::InternalError("device lost"); }
  bool healthy() const override { return false; }

 private:
  const std::shared_ptr<Transport> inner_;
};

TEST(CaptureSession, StepsOfAFailedTransportAreDropped) {
  const std::unique_ptr<RoutingStore> store = MakeStore();
  auto session = CaptureSession::Create(
                     {.store = store.get(), .max_rows = 8, .transport = &BrokenTransport::Make})
                     .value();
  EXPECT_EQ(session->status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(session->BeginStep({.step = 1}).dropped());
  EXPECT_EQ(session->view(StepId(1)).buffer, kScratchBuffer);
  EXPECT_EQ(session->transport().in_use(), 0);
  EXPECT_EQ(store->GetStats().steps_dropped, 1u);
}

}  // namespace
}  // namespace waymark
