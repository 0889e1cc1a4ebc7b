// Block traces: real requests for a simulated engine.
//
// A file is JSON lines of {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids":
// [...]}. Each hash id stands for 512 prompt tokens; equal ids stand for equal tokens. Requests
// queue in the order of the file, timestamps are ignored.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_TRACE_H_
#define WAYMARK_ADAPTERS_SIMULATORS_TRACE_H_

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "adapters/simulators/request.h"

namespace waymark::sim {

// One request of a trace file.
struct TraceRequest {
  std::int64_t input_tokens = 0;       // >= 1
  std::int64_t output_tokens = 0;      // >= 1
  std::vector<std::int64_t> hash_ids;  // ceil(input_tokens / 512) of them
};

// Reads the first `limit` requests of the file at `path` (0 = all). NotFound if it cannot be
// opened; InvalidArgument naming line number, field, rule and value if it is not such a file.
[[nodiscard]] absl::StatusOr<std::vector<TraceRequest>> ReadTraceFile(const std::string& path,
                                                                      std::int64_t limit);
// Reads the same from a stream, which errors call `name`. Any bytes are safe.
[[nodiscard]] absl::StatusOr<std::vector<TraceRequest>> ReadTrace(std::istream& in,
                                                                  const std::string& name,
                                                                  std::int64_t limit);

// The requests in their order. A prompt token is a function of its hash id and its position in the
// 512 tokens; generated tokens are unique to the request.
[[nodiscard]] std::unique_ptr<Arrivals> ArrivalsOf(std::vector<TraceRequest> requests);

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_TRACE_H_
