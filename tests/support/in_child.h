// InChild: what happens in a forked child of the test.
#ifndef WAYMARK_TESTS_SUPPORT_IN_CHILD_H_
#define WAYMARK_TESTS_SUPPORT_IN_CHILD_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

namespace waymark {

// Runs `check` in a forked child, and returns what it returns; "-" if the child does not end by
// itself.
template <class Check>
std::string InChild(const Check& check) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string found = check();
    const ssize_t written = write(ends[1], found.data(), found.size());
    _exit(written == static_cast<ssize_t>(found.size()) ? 0 : 1);
  }
  close(ends[1]);
  for (int i = 0; i < 1000; ++i) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) {
      char text[4096];
      const ssize_t size = read(ends[0], text, sizeof(text));
      close(ends[0]);
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || size < 0) return "-";
      return std::string(text, static_cast<std::size_t>(size));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(child, SIGKILL);
  (void)waitpid(child, nullptr, 0);
  close(ends[0]);
  return "-";
}

}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_IN_CHILD_H_
