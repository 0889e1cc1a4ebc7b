// Reading block traces: JSON lines, one request each.
#include <fstream>
#include <string>

#include "adapters/simulators/trace.h"
#include "nlohmann/json.hpp"

namespace waymark::sim {
namespace {

constexpr std::int64_t kTokensPerHash = 512;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;

absl::Status Bad(const std::string& path, std::int64_t line, const std::string& what) {
  return absl::InvalidArgumentError(path + " line " + std::to_string(line) + ": " + what);
}

absl::Status ReadLength(const std::string& path, std::int64_t line, const nlohmann::json& object,
                        const char* field, std::int64_t& out) {
  const auto found = object.find(field);
  if (found == object.end()) return Bad(path, line, std::string("field ") + field + " is missing");
  if (!found->is_number_integer() || *found < 1 || *found > kMaxTokens) {
    return Bad(path, line,
               std::string("field ") + field + " must be a whole number in [1, " +
                   std::to_string(kMaxTokens) + "], is " + found->dump());
  }
  out = found->get<std::int64_t>();
  return absl::OkStatus();
}

absl::Status ReadLine(const std::string& path, std::int64_t line, const std::string& text,
                      TraceRequest& out) {
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
  if (!object.is_object()) {
    return Bad(path, line, "must be a JSON object, is " + text.substr(0, 40));
  }
  absl::Status status = ReadLength(path, line, object, "input_length", out.input_tokens);
  if (status.ok()) status = ReadLength(path, line, object, "output_length", out.output_tokens);
  if (!status.ok()) return status;
  const auto ids = object.find("hash_ids");
  if (ids == object.end()) return Bad(path, line, "field hash_ids is missing");
  const std::int64_t want = (out.input_tokens + kTokensPerHash - 1) / kTokensPerHash;
  if (!ids->is_array() || static_cast<std::int64_t>(ids->size()) != want) {
    return Bad(path, line,
               "field hash_ids must be an array of " + std::to_string(want) +
                   " ids (input_length / 512, rounded up), is " +
                   (ids->is_array() ? "an array of " + std::to_string(ids->size())
                                    : ids->dump().substr(0, 40)));
  }
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_integer() || id < 0) {
      return Bad(path, line,
                 "field hash_ids must hold whole numbers >= 0, holds " + id.dump().substr(0, 40));
    }
    out.hash_ids.push_back(id.get<std::int64_t>());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TraceRequest>> ReadTraceFile(const std::string& path,
                                                        std::int64_t limit) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError("trace file cannot be opened: " + path);
  std::vector<TraceRequest> requests;
  std::string text;
  for (std::int64_t line = 1; std::getline(file, text); ++line) {
    if (limit > 0 && static_cast<std::int64_t>(requests.size()) == limit) break;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    TraceRequest request;
    const absl::Status status = ReadLine(path, line, text, request);
    if (!status.ok()) return status;
    requests.push_back(std::move(request));
  }
  if (file.bad()) return absl::DataLossError("trace file cannot be read: " + path);
  if (requests.empty()) return absl::InvalidArgumentError(path + ": holds no request");
  return requests;
}

}  // namespace waymark::sim
