// The calls of the C ABI that append to the log: their rules, and a second thread inside one.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
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
    const wm_option log_bytes = {"log_bytes", "1048576"};
    wm_capture_options options = {sizeof(options)};
    options.num_layers = 1;
    options.top_k = 1;
    options.num_experts = 8;
    options.num_blocks = kBlocks;
    options.page_tokens = kBlockTokens;
    options.options = &log_bytes;
    options.num_options = 1;
    ASSERT_EQ(Api().capture_create(&options, &capture_, nullptr), WM_OK);
    batch_.struct_size = sizeof(batch_);
    batch_.step = 1;
    batch_.version = 1;
  }
  void TearDown() override { Api().capture_release(capture_); }

  // A step that writes the rows of block 1: all have `id`.
  void Step(std::uint64_t step, std::int16_t id) {
    static constexpr std::int64_t kSlots[] = {4, 5, 6, 7};
    batch_.step = step;
    batch_.slots = kSlots;
    batch_.num_slots = kBlockTokens;
    ASSERT_EQ(Api().capture_tell(capture_, &batch_, nullptr), WM_OK);
    ids_.assign(kBlockTokens, id);
    const wm_ids ids = wm_token_major(ids_.data(), WM_ID_INT16, kBlockTokens, 1, 1);
    ASSERT_EQ(Api().capture_set_ids(capture_, step, &ids, {nullptr, nullptr}, nullptr), WM_OK);
    ASSERT_EQ(Api().capture_wait_idle(capture_, -1, nullptr), WM_OK);
  }
  // The ids of the rows of `block`; of a missing row its reason, negated.
  std::vector<int> RowsOf(std::int32_t block) {
    wm_taken* taken = nullptr;
    wm_rows* read = nullptr;
    EXPECT_EQ(Api().capture_take(capture_, &block, 1, 0, kBlockTokens, &taken, nullptr), WM_OK);
    EXPECT_EQ(Api().taken_wait(taken, -1, nullptr), WM_OK);
    EXPECT_EQ(Api().taken_rows(taken, &read, nullptr), WM_OK);
    wm_rows_view view = {sizeof(view)};
    EXPECT_EQ(Api().rows_view(read, &view), WM_OK);
    std::vector<int> rows;
    for (int row = 0; row < kBlockTokens; ++row) {
      const int reason = view.infos[row].reason;
      rows.push_back(reason == WM_REASON_NONE ? view.ids[row] : -reason);
    }
    Api().rows_release(read);
    Api().taken_release(taken);
    return rows;
  }
  double Counter(const std::string& name) const {
    wm_counter counters[100];
    std::size_t count = 0;
    EXPECT_EQ(Api().capture_stats(capture_, counters, 100, &count), WM_OK);
    for (std::size_t i = 0; i < count; ++i) {
      if (counters[i].name == name) return counters[i].value;
    }
    ADD_FAILURE() << "no counter " << name;
    return -1;
  }
  // What describe_code writes about `code`.
  static std::string Text(const wm_code& code) {
    char text[512] = {};
    wm_message to = {text, sizeof(text), 0};
    EXPECT_EQ(Api().describe_code(&code, &to), WM_OK);
    return text;
  }

  wm_capture* capture_ = nullptr;
  std::vector<std::int16_t> ids_;
  wm_step_batch batch_ = {};
};

TEST_F(Log, ASnapshotReadsWhatWasReportedBeforeIt) {
  const wm_event bind = wm_bind(1, nullptr, 0);
  ASSERT_EQ(Api().capture_report(capture_, &bind, 1, nullptr), WM_OK);
  Step(1, 3);
  EXPECT_EQ(RowsOf(1), (std::vector<int>{3, 3, 3, 3}));
  const wm_event copy = wm_copy(1, 2, 2);
  ASSERT_EQ(Api().capture_report(capture_, &copy, 1, nullptr), WM_OK);
  EXPECT_EQ(RowsOf(2),
            (std::vector<int>{3, 3, -WM_REASON_NEVER_WRITTEN, -WM_REASON_NEVER_WRITTEN}));
  ASSERT_EQ(Api().capture_report(capture_, &bind, 1, nullptr), WM_OK);
  EXPECT_EQ(RowsOf(1), (std::vector<int>(4, -WM_REASON_NEVER_WRITTEN)));
}

// Step 1 is sealed without its number; step 2 of the same version does not write over it.
TEST_F(Log, ASealOfStepZeroIsOfTheStepThatIsBegunNext) {
  const wm_event events[] = {wm_bind(1, nullptr, 0), wm_seal(1, "key", 3, 0)};
  ASSERT_EQ(Api().capture_report(capture_, events, 2, nullptr), WM_OK);
  Step(1, 3);
  Step(2, 3);
  EXPECT_EQ(Counter("rows_landed"), 4);
  EXPECT_EQ(Counter("rows_ignored"), 4);
}

TEST_F(Log, RulesOfSchedules) {
  wm_code code = {};
  EXPECT_EQ(Api().capture_schedule(capture_, 0, 1, &code), WM_INVALID_ARGUMENT);
  EXPECT_NE(Text(code).find("step"), std::string::npos) << Text(code);
  EXPECT_EQ(Api().capture_schedule(capture_, std::uint64_t{1} << 62, 1, &code),
            WM_INVALID_ARGUMENT);
  EXPECT_EQ(Api().capture_schedule(capture_, 5, 1, &code), WM_OK);
  EXPECT_EQ(Api().capture_schedule(capture_, 4, 1, &code), WM_INVALID_ARGUMENT);
  EXPECT_EQ(code.value, 4);
  batch_.step = 4;
  EXPECT_EQ(Api().capture_tell(capture_, &batch_, &code), WM_FAILED_PRECONDITION);
  EXPECT_EQ(code.rule, WM_RULE_SCHEDULE_AHEAD);
  EXPECT_EQ(code.value, 5);
  EXPECT_NE(Text(code).find("open schedule"), std::string::npos) << Text(code);
  batch_.step = 5;
  EXPECT_EQ(Api().capture_tell(capture_, &batch_, &code), WM_OK);
  EXPECT_EQ(code.rule, WM_RULE_NONE);
}

TEST_F(Log, RulesOfEvents) {
  const struct {
    wm_event event;
    const char* says;
  } cases[] = {{wm_make_event(99, 1, 1, 1, 1, nullptr, 0), "type"},
               {wm_bind(kBlocks, nullptr, 0), "block"},
               {wm_copy(kBlocks, 1, 1), "src"},
               {wm_bind(1, "", 33), "key"},
               {wm_copy(1, 2, kBlockTokens + 1), "rows"},
               {wm_copy(1, 1, 1), "block"},
               {wm_seal(1, "key", 3, 1), "step"}};
  for (const auto& [event, says] : cases) {
    const wm_event events[] = {wm_bind(2, nullptr, 0), event};
    wm_code code = {};
    EXPECT_EQ(Api().capture_report(capture_, events, 2, &code), WM_INVALID_ARGUMENT) << says;
    EXPECT_EQ(code.index, 1u);
    EXPECT_NE(Text(code).find(says), std::string::npos) << Text(code);
  }
  EXPECT_EQ(Api().capture_report(capture_, nullptr, 1, nullptr), WM_INVALID_ARGUMENT);
  EXPECT_EQ(Api().capture_report(capture_, nullptr, 0, nullptr), WM_OK);
  EXPECT_EQ(Counter("events"), 0);
}

TEST_F(Log, RulesOfRows) {
  const std::int64_t slots[] = {4, 5};
  const std::int32_t blocks[] = {1, 2}, wrong_blocks[] = {1, kBlocks};
  const std::int32_t positions[] = {0, 3}, wrong_positions[] = {0, kBlockTokens};
  wm_pair_rows of_pairs = {sizeof(of_pairs), 4, blocks, positions, 2, kBlockTokens};
  wm_pair_rows pairs = {};
  const struct {
    std::uint64_t index;
    std::int64_t value;
    std::function<void()> spoil;
  } cases[] = {
      {0, 2, [&] { batch_.slots = slots, batch_.num_slots = 2; }},
      {0, 2, [&] { pairs.index_bytes = 2; }},
      {0, 1, [&] { pairs.position_bytes = 1; }},
      {0, 3, [&] { pairs.block_tokens = 3; }},
      {1, kBlocks, [&] { pairs.block_idx = wrong_blocks; }},
      {1, kBlockTokens, [&] { pairs.local_position = wrong_positions; }},
  };
  for (const auto& [index, value, spoil] : cases) {
    pairs = of_pairs;
    batch_.slots = nullptr;
    batch_.num_slots = 0;
    batch_.pairs = &pairs;
    spoil();
    wm_code code = {};
    EXPECT_EQ(Api().capture_tell(capture_, &batch_, &code), WM_INVALID_ARGUMENT);
    EXPECT_EQ(code.index, index);
    EXPECT_EQ(code.value, value);
    EXPECT_NE(Text(code).find(std::to_string(value)), std::string::npos) << Text(code);
  }
  std::uint64_t last = 7;
  EXPECT_EQ(Api().capture_last_step(capture_, &last), WM_OK);
  EXPECT_EQ(last, 0u);
  EXPECT_NE(Text({WM_RESOURCE_EXHAUSTED, WM_RULE_LOG_FULL, 0, 3}).find("log is full"),
            std::string::npos);
}

TEST_F(Log, AFullLogCostsRowsAndTheEngineGoesOn) {
  const auto step = [&](std::uint64_t number, std::int16_t id) {
    const wm_event bind = wm_bind(1, nullptr, 0);
    ASSERT_EQ(Api().capture_report(capture_, &bind, 1, nullptr), WM_OK);
    Step(number, id);
    EXPECT_EQ(RowsOf(1), std::vector<int>(4, id));
  };
  step(1, 3);
  // More than the log and its overflow hold.
  const std::vector<wm_event> events(250'000, wm_retain(1));
  wm_code code = {};
  EXPECT_EQ(Api().capture_report(capture_, events.data(), events.size(), &code),
            WM_RESOURCE_EXHAUSTED);
  EXPECT_EQ(code.rule, WM_RULE_LOG_FULL);
  EXPECT_EQ(code.value, 1);
  EXPECT_EQ(RowsOf(1), std::vector<int>(4, -WM_REASON_CAPACITY));
  EXPECT_EQ(Counter("log_losses"), 1);
  step(2, 5);
}

// The child exits with the number of the first check that fails.
TEST_F(Log, AForkedChildIsRefused) {
  ASSERT_EQ(Api().capture_tell(capture_, &batch_, nullptr), WM_OK);
  const std::int32_t of_taken = 1;
  wm_taken* taken = nullptr;  // waits for the step
  ASSERT_EQ(Api().capture_take(capture_, &of_taken, 1, 0, 1, &taken, nullptr), WM_OK);
  // A sanitizer's allocator has a lock that a thread which starts may hold at the fork, for ever in
  // the child: both threads wait by then.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const pid_t child = fork();
  if (child == 0) {
    int checks = 0;
    const auto expect = [&checks](bool right) {
      ++checks;
      if (!right) _exit(checks);
    };
    const wm_event retain = wm_retain(1);
    wm_code code = {};
    wm_counter counter = {};
    wm_finding finding = {sizeof(finding)};
    wm_taken* none = nullptr;
    wm_rows* rows = nullptr;
    std::uint64_t number = 0;
    std::int64_t covered = 0;
    std::size_t count = 0;
    char text[200] = {};
    wm_message why = {text, sizeof(text), 0};
    const std::int32_t block = 1;
    const auto refused = [](wm_status status) { return status == WM_FAILED_PRECONDITION; };
    expect(refused(Api().capture_report(capture_, &retain, 1, &code)) &&
           code.rule == WM_RULE_FORKED);
    expect(Text(code).find("forked child") != std::string::npos);
    batch_.step = 2;
    expect(refused(Api().capture_tell(capture_, &batch_, &code)));
    expect(code.rule == WM_RULE_FORKED);
    expect(refused(Api().capture_step(capture_, &batch_, nullptr, {nullptr, nullptr}, nullptr)));
    expect(refused(Api().capture_lose(capture_, 1, nullptr)));
    expect(refused(Api().capture_lose_rows(capture_, nullptr)));
    expect(refused(Api().capture_schedule(capture_, 9, 1, nullptr)));
    expect(refused(Api().capture_take(capture_, &block, 1, 0, 1, &none, nullptr)));
    expect(Api().taken_done(taken) == WM_OK);  // with the error of taken_rows
    expect(Api().taken_wait(taken, -1, &why) == WM_OK);
    expect(refused(Api().taken_rows(taken, &rows, nullptr)));
    expect(refused(Api().capture_covered_prefix(capture_, &block, 1, 4, &covered)));
    expect(refused(Api().capture_wait_idle(capture_, -1, nullptr)));
    expect(refused(Api().capture_last_step(capture_, &number)));
    expect(refused(Api().capture_stats(capture_, &counter, 1, &count)));
    expect(refused(Api().capture_next_finding(capture_, &finding, nullptr)));
    expect(refused(Api().capture_status(capture_, &why)));
    expect(std::string(text).find("forked child") != std::string::npos);
    Api().taken_release(taken);
    Api().capture_release(capture_);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(Api().capture_status(capture_, nullptr), WM_OK);
  EXPECT_EQ(Api().capture_lose(capture_, 1, nullptr), WM_OK);
  EXPECT_EQ(Api().taken_wait(taken, -1, nullptr), WM_OK);
  Api().taken_release(taken);
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
      if (Api().capture_report(capture_, events.data(), events.size(), &code) ==
          WM_FAILED_PRECONDITION) {
        EXPECT_EQ(code.rule, WM_RULE_BUSY);
      } else {
        EXPECT_EQ(code.index, events.size() - 1);
      }
    }
  });
  // Of each call: the code of the first one that was refused.
  const std::function<wm_status(wm_code*)> calls[] = {
      [&](wm_code* code) { return Api().capture_schedule(capture_, 1, 1, code); },
      [&](wm_code* code) { return Api().capture_report(capture_, events.data(), 1, code); },
      [&](wm_code* code) {
        const wm_status status = Api().capture_tell(capture_, &batch_, code);
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
