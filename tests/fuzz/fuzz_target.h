// What a fuzz target is: bytes in, no crash, and whatever else it requires. Each *_target.cc of
// this folder defines these two functions; fuzz_test.cc runs them as an ordinary test, and
// libfuzzer_main.cc under libFuzzer.
#ifndef WAYMARK_TESTS_FUZZ_FUZZ_TARGET_H_
#define WAYMARK_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace waymark::fuzz {

// Parses `input`, and uses what it made of it as its callers would. Ends the process where
// something is wrong; that the bytes are refused is right.
void RunOne(std::span<const std::uint8_t> input);

// Inputs to begin with: right ones, and those that once broke something.
[[nodiscard]] std::vector<std::string> Corpus();

// What RunOne ends the process with.
inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz target: not so: %s\n", what);
  std::abort();
}

// Of input that was refused.
inline void RequireReadable(const absl::Status& refusal, std::size_t longest = 299) {
  Require(!refusal.message().empty() && refusal.message().size() <= longest,
          "a refusal is a line that can be read");
}

[[nodiscard]] inline std::span<const std::uint8_t> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}
[[nodiscard]] inline std::string AsText(std::span<const std::uint8_t> bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace waymark::fuzz

#endif  // WAYMARK_TESTS_FUZZ_FUZZ_TARGET_H_
