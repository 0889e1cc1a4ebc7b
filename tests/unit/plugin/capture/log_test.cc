// Where lines go when nobody asks for them: stderr, and how they are silenced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <thread>

#include "blockstore/log.h"
#include "plugin/capture/capture.h"
#include "tests/support/in_child.h"
#include "tests/support/log_lines.h"

namespace waymark {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// What `body` writes on stderr in a process with WAYMARK_LOG=`level`.
template <class Body>
std::string Stderr(const char* level, const Body& body) {
  return InChild([&] {
    std::array<int, 2> ends;
    EXPECT_EQ(pipe(ends.data()), 0);
    dup2(ends[1], STDERR_FILENO);
    setenv("WAYMARK_LOG", level, 1);
    body();
    close(STDERR_FILENO);
    close(ends[1]);
    std::array<char, 4096> text;
    const ssize_t size = read(ends[0], text.data(), text.size());
    return std::string(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  });
}

void LogOfEachLevel(const LogCallback& log = {}) {
  log(LogLevel::kInfo, "one");
  log(LogLevel::kWarning, "two");
  log(LogLevel::kError, "three");
}

TEST(LogToStderr, LinesHaveTheirLevel) {
  const std::string warnings = "waymark: WARNING: two\nwaymark: ERROR: three\n";
  EXPECT_EQ(Stderr("", [] { LogOfEachLevel(); }), warnings);
  EXPECT_EQ(Stderr("warning", [] { LogOfEachLevel(); }), warnings);
  EXPECT_EQ(Stderr("info", [] { LogOfEachLevel(); }), "waymark: INFO: one\n" + warnings);
  EXPECT_EQ(Stderr("error", [] { LogOfEachLevel(); }), "waymark: ERROR: three\n");
  EXPECT_EQ(Stderr("off", [] { LogOfEachLevel(); }), "");
}

TEST(LogToStderr, NothingIsWrittenToWhatDiscards) {
  EXPECT_TRUE(LogCallback());
  EXPECT_FALSE(LogCallback::Discard());
  EXPECT_EQ(Stderr("info", [] { LogOfEachLevel(LogCallback::Discard()); }), "");
}

TEST(LogToStderr, AtMostTwentyLinesInTenSeconds) {
  const std::string said = Stderr("", [] {
    for (int line = 1; line <= 50; ++line)
      LogCallback()(LogLevel::kWarning, std::to_string(line));
  });
  EXPECT_THAT(said, HasSubstr("WARNING: 20\n"));
  EXPECT_THAT(said,
              EndsWith("\nwaymark: WARNING: more than 20 lines in 10 s: lines are left out\n"));
  EXPECT_THAT(said, Not(HasSubstr("WARNING: 21\n")));
}

// A capture of which nobody set a log, that releases a block twice.
void ReleaseTwice(Capture::Options options) {
  options.store.shape = {.num_layers = 2, .top_k = 1, .num_experts = 4};
  options.store.num_blocks = 8;
  const auto capture = Capture::Create(options).value();
  const std::array events = {Event::Bind(BlockId(1)), Event::Release(BlockId(1)),
                             Event::Release(BlockId(1))};
  EXPECT_TRUE(capture->Report(events).ok());
  EXPECT_TRUE(capture->store().WaitIdle(std::chrono::seconds(20)).ok());
}

TEST(CaptureLog, GoesToStderrUnlessSomebodySetsIt) {
  const std::string said = Stderr("info", [] { ReleaseTwice({.engine = "an engine"}); });
  EXPECT_THAT(said, StartsWith("waymark: INFO: the capture is on for an engine: 2 layers, top 1 of "
                               "4 experts, 8 blocks of 16 tokens, 0 MB of address space; "));
  EXPECT_THAT(said, HasSubstr("\nwaymark: WARNING: a block without users was released"));
  EXPECT_THAT(Stderr("info", [] { ReleaseTwice({.engine = std::nullopt}); }),
              StartsWith("waymark: WARNING: a block"));
  EXPECT_EQ(Stderr("info", [] { ReleaseTwice({.store = {.log = LogCallback::Discard()}}); }), "");
}

TEST(CaptureLog, IsNotWrittenByTheThreadOfTheEngine) {
  LogLines lines;
  ReleaseTwice({.store = {.log = lines.callback()}});
  ASSERT_EQ(lines.lines().size(), 1u);
  EXPECT_NE(lines.lines()[0].thread, std::this_thread::get_id());
}

}  // namespace
}  // namespace waymark
