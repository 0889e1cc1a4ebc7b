// Block traces (adapters/simulators/trace.h): JSON lines from a file.
#include <sstream>

#include "adapters/simulators/trace.h"
#include "tests/fuzz/fuzz_target.h"

namespace waymark::fuzz {

void RunOne(std::span<const std::uint8_t> input) {
  for (const std::int64_t limit : {0, 2}) {
    std::istringstream stream(AsText(input));
    const auto requests = sim::ReadTrace(stream, "trace", limit);
    if (!requests.ok()) {
      Require(requests.status().message().substr(0, 5) == "trace", "a refusal names the file");
      RequireReadable(requests.status());
      continue;
    }
    Require(!requests->empty() && (limit == 0 || requests->size() <= 2), "as many as asked for");
    for (const sim::TraceRequest& request : *requests) {
      Require(request.input_tokens >= 1 && request.output_tokens >= 1, "a request has tokens");
      Require(
          static_cast<std::int64_t>(request.hash_ids.size()) == (request.input_tokens + 511) / 512,
          "an id for each 512 tokens");
      for (const std::int64_t id : request.hash_ids)
        Require(id >= 0, "an id is not negative");
    }
  }
}

std::vector<std::string> Corpus() {
  const std::string line =
      R"({"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 20]})"
      "\n";
  const std::string short_line =
      R"({"input_length":1,"output_length":1,"hash_ids":[9223372036854775807]})"
      "\n";
  return {
      line,
      line + "\n  \r\n" + short_line + line,
      R"({"input_length": 1e3, "output_length": -1, "hash_ids": null})",
      R"({"input_length": 1, "output_length": 1, "hash_ids": [18446744073709551615]})",
      // A value that was written into the refusal whole, level by level, on the stack.
      R"({"input_length": )" + std::string(100000, '[') + std::string(100000, ']') + "}",
  };
}

}  // namespace waymark::fuzz
