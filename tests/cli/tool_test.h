// Runs the tool as a person does: what the tests of this folder share.
#ifndef WAYMARK_TESTS_CLI_TOOL_TEST_H_
#define WAYMARK_TESTS_CLI_TOOL_TEST_H_

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace waymark {

using Json = nlohmann::json;

inline std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

struct Outcome {
  int code = -1;  // 128 + the signal, when it was killed by one
  std::string out;
  std::string err;
};

// Each test has a folder of its own: ctest runs them side by side.
class ToolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "waymark_cli_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    for (const std::string& file : files_)
      std::remove(file.c_str());
    rmdir(folder_.c_str());
  }

  std::string Path(const std::string& name) {
    files_.push_back(folder_ + "/" + name);
    return files_.back();
  }

  Outcome Run(std::vector<std::string> arguments) {
    const std::string out = Path("stdout");
    const std::string err = Path("stderr");
    arguments.insert(arguments.begin(), WAYMARK_TOOL);
    const pid_t child = fork();
    if (child == 0) {
      const int o = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      const int e = open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(o, STDOUT_FILENO);
      dup2(e, STDERR_FILENO);
      std::vector<char*> argv;
      for (std::string& argument : arguments)
        argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    Outcome outcome;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.out = Slurp(out);
    outcome.err = Slurp(err);
    return outcome;
  }
  // Runs it, and expects this exit code.
  Outcome RunTo(int code, const std::vector<std::string>& arguments) {
    Outcome outcome = Run(arguments);
    std::string line;
    for (const std::string& argument : arguments)
      line += argument + " ";
    EXPECT_EQ(outcome.code, code) << line << "\n" << outcome.out << outcome.err;
    return outcome;
  }
  // The same with --json: what it prints.
  Json RunJson(std::vector<std::string> arguments, int code = 0) {
    arguments.push_back("--json");
    const Outcome outcome = RunTo(code, arguments);
    Json json = Json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(json.is_object()) << outcome.out;
    return json.is_object() ? json : Json::object();
  }

 private:
  std::string folder_;
  std::vector<std::string> files_;
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_CLI_TOOL_TEST_H_
