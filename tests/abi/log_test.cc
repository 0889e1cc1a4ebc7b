// The calls of the C ABI that append to the log: their rules, and a second thread inside one.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "plugin/waymark.h"

namespace {

constexpr std::int32_t kBlocks = 8, kBlockTokens = 4;

const wm_api_v1& Api() {
  return *wm_get_api_v1();
}

class Log : public ::testing::Test {
 protected:
  void SetUp() override {
    wm_store_options options = {sizeof(options)};
    options.num_layers = 1;
    options.top_k = 1;
    options.num_experts = 8;
    options.num_blocks = kBlocks;
    options.page_tokens = kBlockTokens;
    options.landing = WM_LANDING_CALLER;
    options.log_bytes = 1 << 20;
    ASSERT_EQ(Api().store_create(&options, &store_, nullptr), WM_OK);
    wm_session_options of_session = {sizeof(of_session)};
    of_session.store = store_;
    of_session.max_rows = 8;
    ASSERT_EQ(Api().session_create(&of_session, &session_, nullptr), WM_OK);
    batch_.struct_size = sizeof(batch_);
    batch_.step = 1;
    batch_.version = 1;
  }
  void TearDown() override {
    Api().session_release(session_);
    Api().store_release(store_);
  }

  // Submits `step`, all rows with `id`, and lands it.
  void Land(std::uint64_t step, std::int16_t id) {
    wm_view view = {};
    ASSERT_EQ(Api().session_view(session_, step, &view), WM_OK);
    for (int row = 0; row < 8; ++row)
      view.data[row] = id;
    ASSERT_EQ(Api().session_submit(session_, step, 0, nullptr), WM_OK);
    ASSERT_EQ(Api().store_land(store_, step), WM_OK);
  }
  // The ids of the rows of `block`; of a missing row its reason, negated.
  std::vector<int> RowsOf(std::int32_t block) {
    wm_snapshot_args args = {sizeof(args)};
    args.blocks = &block;
    args.num_blocks = 1;
    args.last = kBlockTokens;
    wm_snapshot* snapshot = nullptr;
    EXPECT_EQ(Api().store_snapshot(store_, &args, &snapshot, nullptr), WM_OK);
    EXPECT_EQ(Api().store_wait_idle(store_, 0, nullptr), WM_OK);
    std::int32_t ids[kBlockTokens] = {};
    wm_row_info infos[kBlockTokens] = {};
    wm_read_args read = {sizeof(read)};
    read.end = kBlockTokens;
    read.id_type = WM_ID_INT32;
    read.out = ids;
    read.out_bytes = sizeof(ids);
    read.infos = infos;
    read.num_infos = kBlockTokens;
    EXPECT_EQ(Api().snapshot_read(snapshot, &read, nullptr), WM_OK);
    Api().snapshot_release(snapshot);
    std::vector<int> rows;
    for (int row = 0; row < kBlockTokens; ++row)
      rows.push_back(infos[row].reason == WM_REASON_NONE ? ids[row] : -infos[row].reason);
    return rows;
  }
  // What describe_code writes about `code`.
  static std::string Text(const wm_code& code) {
    char text[512] = {};
    wm_message to = {text, sizeof(text), 0};
    EXPECT_EQ(Api().describe_code(&code, &to), WM_OK);
    return text;
  }

  wm_store* store_ = nullptr;
  wm_session* session_ = nullptr;
  wm_step_batch batch_ = {};
};

TEST_F(Log, ASnapshotReadsWhatWasReportedBeforeIt) {
  const wm_event bind = wm_bind(1, nullptr, 0);
  const std::int64_t slots[] = {4, 5, 6, 7};
  ASSERT_EQ(Api().store_report(store_, &bind, 1, nullptr), WM_OK);
  batch_.slots = slots;
  batch_.num_slots = 4;
  ASSERT_EQ(Api().session_begin_step(session_, &batch_, 0, nullptr), WM_OK);
  Land(1, 3);
  EXPECT_EQ(RowsOf(1), (std::vector<int>{3, 3, 3, 3}));
  const wm_event copy = wm_copy(1, 2, 2);
  ASSERT_EQ(Api().store_report(store_, &copy, 1, nullptr), WM_OK);
  EXPECT_EQ(RowsOf(2),
            (std::vector<int>{3, 3, -WM_REASON_NEVER_WRITTEN, -WM_REASON_NEVER_WRITTEN}));
  ASSERT_EQ(Api().store_report(store_, &bind, 1, nullptr), WM_OK);
  EXPECT_EQ(RowsOf(1), (std::vector<int>(4, -WM_REASON_NEVER_WRITTEN)));
}

// Step 1 is sealed without its number; step 2 of the same version does not write over it.
TEST_F(Log, ASealOfStepZeroIsOfTheStepThatIsBegunNext) {
  const wm_event events[] = {wm_bind(1, nullptr, 0), wm_seal(1, "key", 3, 0)};
  const std::int64_t slots[] = {4, 5, 6, 7};
  ASSERT_EQ(Api().store_report(store_, events, 2, nullptr), WM_OK);
  batch_.slots = slots;
  batch_.num_slots = 4;
  ASSERT_EQ(Api().session_begin_step(session_, &batch_, 0, nullptr), WM_OK);
  Land(1, 3);
  batch_.step = 2;
  ASSERT_EQ(Api().session_begin_step(session_, &batch_, 0, nullptr), WM_OK);
  Land(2, 3);
  wm_store_stats stats = {sizeof(stats)};
  ASSERT_EQ(Api().store_stats(store_, &stats), WM_OK);
  EXPECT_EQ(stats.rows_landed, 4u);
  EXPECT_EQ(stats.rows_ignored, 4u);
}

TEST_F(Log, RulesOfSchedules) {
  wm_code code = {};
  EXPECT_EQ(Api().store_schedule(store_, 0, 1, &code), WM_INVALID_ARGUMENT);
  EXPECT_EQ(code.rule, WM_RULE_STEP_NOT_INCREASING);
  EXPECT_EQ(Api().store_schedule(store_, std::uint64_t{1} << 62, 1, &code), WM_INVALID_ARGUMENT);
  EXPECT_EQ(Api().store_schedule(store_, 5, 1, &code), WM_OK);
  EXPECT_EQ(Api().store_schedule(store_, 4, 1, &code), WM_INVALID_ARGUMENT);
  EXPECT_EQ(code.rule, WM_RULE_STEP_NOT_INCREASING);
  EXPECT_EQ(code.value, 4);
  batch_.step = 4;
  EXPECT_EQ(Api().session_begin_step(session_, &batch_, 0, &code), WM_FAILED_PRECONDITION);
  EXPECT_EQ(code.rule, WM_RULE_SCHEDULE_AHEAD);
  EXPECT_EQ(code.value, 5);
  EXPECT_NE(Text(code).find("open schedule"), std::string::npos) << Text(code);
  batch_.step = 5;
  EXPECT_EQ(Api().session_begin_step(session_, &batch_, 0, &code), WM_OK);
  EXPECT_EQ(code.rule, WM_RULE_NONE);
}

TEST_F(Log, RulesOfEvents) {
  const struct {
    wm_event event;
    std::int32_t rule;
  } cases[] = {{wm_make_event(99, 1, 1, 1, 1, nullptr, 0), WM_RULE_UNKNOWN_EVENT},
               {wm_bind(kBlocks, nullptr, 0), WM_RULE_BLOCK_OUT_OF_RANGE},
               {wm_copy(kBlocks, 1, 1), WM_RULE_SRC_OUT_OF_RANGE},
               {wm_bind(1, "", 33), WM_RULE_KEY_TOO_LONG},
               {wm_copy(1, 2, kBlockTokens + 1), WM_RULE_ROWS_OUT_OF_RANGE},
               {wm_copy(1, 1, 1), WM_RULE_SELF_COPY},
               {wm_seal(1, "key", 3, 1), WM_RULE_SEAL_STEP}};
  for (const auto& [event, rule] : cases) {
    const wm_event events[] = {wm_bind(2, nullptr, 0), event};
    wm_code code = {};
    EXPECT_EQ(Api().store_report(store_, events, 2, &code), WM_INVALID_ARGUMENT) << rule;
    EXPECT_EQ(code.rule, rule);
    EXPECT_EQ(code.index, 1u);
  }
  EXPECT_EQ(Api().store_report(store_, nullptr, 1, nullptr), WM_INVALID_ARGUMENT);
  EXPECT_EQ(Api().store_report(store_, nullptr, 0, nullptr), WM_OK);
  wm_store_stats stats = {sizeof(stats)};
  ASSERT_EQ(Api().store_stats(store_, &stats), WM_OK);
  EXPECT_EQ(stats.events, 0u);
}

TEST_F(Log, RulesOfRows) {
  const std::int64_t slots[] = {4, 5};
  const std::int32_t blocks[] = {1, 2}, wrong_blocks[] = {1, kBlocks};
  const std::int32_t positions[] = {0, 3}, wrong_positions[] = {0, kBlockTokens};
  wm_pair_rows of_pairs = {sizeof(of_pairs), 4, blocks, positions, 2, kBlockTokens};
  wm_pair_rows pairs = {};
  const struct {
    std::int32_t rule;
    std::uint64_t index;
    std::int64_t value;
    std::function<void()> spoil;
  } cases[] = {
      {WM_RULE_ROW_FORMS, 0, 2, [&] { batch_.slots = slots, batch_.num_slots = 2; }},
      {WM_RULE_INDEX_BYTES, 0, 2, [&] { pairs.index_bytes = 2; }},
      {WM_RULE_INDEX_BYTES, 0, 1, [&] { pairs.position_bytes = 1; }},
      {WM_RULE_BLOCK_TOKENS, 0, 3, [&] { pairs.block_tokens = 3; }},
      {WM_RULE_ROW_BLOCK, 1, kBlocks, [&] { pairs.block_idx = wrong_blocks; }},
      {WM_RULE_ROW_OFFSET, 1, kBlockTokens, [&] { pairs.local_position = wrong_positions; }},
  };
  for (const auto& [rule, index, value, spoil] : cases) {
    SCOPED_TRACE(rule);
    pairs = of_pairs;
    batch_.slots = nullptr;
    batch_.num_slots = 0;
    batch_.pairs = &pairs;
    spoil();
    wm_code code = {};
    EXPECT_EQ(Api().session_begin_step(session_, &batch_, 0, &code), WM_INVALID_ARGUMENT);
    EXPECT_EQ(code.rule, rule);
    EXPECT_EQ(code.index, index);
    EXPECT_EQ(code.value, value);
    EXPECT_NE(Text(code).find(std::to_string(value)), std::string::npos) << Text(code);
  }
  std::uint64_t last = 7;
  EXPECT_EQ(Api().store_last_step(store_, &last), WM_OK);
  EXPECT_EQ(last, 0u);
  EXPECT_NE(Text({WM_RESOURCE_EXHAUSTED, WM_RULE_LOG_FULL, 0, 3, 0}).find("log is full"),
            std::string::npos);
}

TEST_F(Log, AFullLogCostsRowsAndTheEngineGoesOn) {
  const auto step = [&](std::uint64_t number, std::int16_t id) {
    const wm_event bind = wm_bind(1, nullptr, 0);
    const std::int64_t slots[] = {4, 5, 6, 7};
    ASSERT_EQ(Api().store_report(store_, &bind, 1, nullptr), WM_OK);
    batch_.step = number;
    batch_.slots = slots;
    batch_.num_slots = 4;
    ASSERT_EQ(Api().session_begin_step(session_, &batch_, 0, nullptr), WM_OK);
    Land(number, id);
    EXPECT_EQ(RowsOf(1), std::vector<int>(4, id));
  };
  step(1, 3);
  // More than the log and its overflow hold.
  const std::vector<wm_event> events(250'000, wm_retain(1));
  wm_code code = {};
  EXPECT_EQ(Api().store_report(store_, events.data(), events.size(), &code), WM_RESOURCE_EXHAUSTED);
  EXPECT_EQ(code.rule, WM_RULE_LOG_FULL);
  EXPECT_EQ(code.value, 1);
  EXPECT_EQ(RowsOf(1), std::vector<int>(4, -WM_REASON_CAPACITY));
  wm_store_stats stats = {sizeof(stats)};
  EXPECT_EQ(Api().store_stats(store_, &stats), WM_OK);
  EXPECT_EQ(stats.log_losses, 1u);
  step(2, 5);
}

// The child exits with the number of the first check that fails.
TEST_F(Log, AForkedChildIsRefused) {
  ASSERT_EQ(Api().session_begin_step(session_, &batch_, 0, nullptr), WM_OK);
  const pid_t child = fork();
  if (child == 0) {
    int checks = 0;
    const auto expect = [&checks](bool right) {
      ++checks;
      if (!right) _exit(checks);
    };
    const wm_event retain = wm_retain(1);
    wm_code code = {};
    wm_store_stats stats = {sizeof(stats)};
    wm_finding finding = {sizeof(finding)};
    wm_snapshot_args args = {sizeof(args)};
    wm_snapshot* snapshot = nullptr;
    std::uint64_t number = 0;
    std::int64_t covered = 0;
    char text[200] = {};
    wm_message why = {text, sizeof(text), 0};
    const std::int32_t block = 1;
    const auto refused = [](wm_status status) { return status == WM_FAILED_PRECONDITION; };
    expect(refused(Api().store_report(store_, &retain, 1, &code)) && code.rule == WM_RULE_FORKED);
    expect(Text(code).find("forked child") != std::string::npos);
    batch_.step = 2;
    expect(refused(Api().session_begin_step(session_, &batch_, 0, &code)));
    expect(code.rule == WM_RULE_FORKED);
    expect(refused(Api().session_submit(session_, 1, 0, nullptr)));
    expect(refused(Api().store_schedule(store_, 9, 1, nullptr)));
    expect(refused(Api().store_snapshot(store_, &args, &snapshot, nullptr)));
    expect(refused(Api().store_take_tagged(store_, 1, &snapshot, nullptr)));
    expect(refused(Api().store_forget_tag(store_, 1)));
    expect(refused(Api().store_covered_prefix(store_, &block, 1, 4, &covered)));
    expect(refused(Api().store_wait_idle(store_, -1, nullptr)));
    expect(refused(Api().store_land_one(store_)));
    expect(refused(Api().store_last_step(store_, &number)));
    expect(refused(Api().store_stats(store_, &stats)));
    expect(refused(Api().store_stats_text(store_, &why)));
    expect(refused(Api().store_next_finding(store_, &finding, nullptr)));
    expect(refused(Api().store_status(store_, &why)));
    expect(std::string(text).find("forked child") != std::string::npos);
    Api().session_release(session_);
    Api().store_release(store_);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(Api().store_status(store_, nullptr), WM_OK);
  EXPECT_EQ(Api().session_drop(session_, 1, nullptr), WM_OK);
}

// One thread validates long arrays of events, the last of which is invalid, so that nothing
// changes, until another one was refused.
TEST_F(Log, ASecondThreadInACallIsRefused) {
  std::vector<wm_event> events(1 << 18, wm_retain(1));
  events.back().type = 99;
  std::atomic<bool> stop{false};
  std::thread engine([&] {
    while (!stop.load()) {
      wm_code code = {};
      if (Api().store_report(store_, events.data(), events.size(), &code) ==
          WM_FAILED_PRECONDITION) {
        EXPECT_EQ(code.rule, WM_RULE_BUSY);
      } else {
        EXPECT_EQ(code.rule, WM_RULE_UNKNOWN_EVENT);
      }
    }
  });
  // Of each call: the code of the first one that was refused.
  const std::function<wm_status(wm_code*)> calls[] = {
      [&](wm_code* code) { return Api().store_schedule(store_, 1, 1, code); },
      [&](wm_code* code) { return Api().store_report(store_, events.data(), 1, code); },
      [&](wm_code* code) {
        const wm_status status = Api().session_begin_step(session_, &batch_, 0, code);
        if (status == WM_OK) ++batch_.step;
        return status;
      }};
  for (const auto& call : calls) {
    wm_code code = {};
    while (call(&code) != WM_FAILED_PRECONDITION)
      std::this_thread::yield();
    EXPECT_EQ(code.rule, WM_RULE_BUSY);
    EXPECT_NE(Text(code).find("one thread at a time"), std::string::npos) << Text(code);
  }
  stop = true;
  engine.join();
}

}  // namespace
