#include "adapters/simulators/trace.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "nlohmann/json.hpp"

namespace waymark::sim {
namespace {

constexpr std::int64_t kTokensPerHash = 512;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;

absl::Status Bad(const std::string& path, std::int64_t line, const std::string& what) {
  return absl::InvalidArgumentError(path + " line " + std::to_string(line) + ": " + what);
}

// A value for an error message. Arrays and objects appear by their kind alone, because
// nlohmann::json writes them recursively, and a file may nest them without limit.
std::string Shown(const nlohmann::json& value) {
  if (value.is_structured()) return std::string("an ") + value.type_name();
  return value.dump().substr(0, 40);
}

absl::Status ReadLength(const std::string& path, std::int64_t line, const nlohmann::json& object,
                        const char* field, std::int64_t& out) {
  const auto found = object.find(field);
  if (found == object.end()) return Bad(path, line, std::string("field ") + field + " is missing");
  if (!found->is_number_integer() || *found < 1 || *found > kMaxTokens) {
    return Bad(path, line,
               std::string("field ") + field + " must be a whole number in [1, " +
                   std::to_string(kMaxTokens) + "]; it is " + Shown(*found));
  }
  out = found->get<std::int64_t>();
  return absl::OkStatus();
}

absl::Status ReadLine(const std::string& path, std::int64_t line, const std::string& text,
                      TraceRequest& out) {
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
  if (!object.is_object()) {
    return Bad(path, line, "must be a JSON object; it is " + text.substr(0, 40));
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
                   " ids (input_length / 512, rounded up); it is " +
                   (ids->is_array() ? "an array of " + std::to_string(ids->size()) : Shown(*ids)));
  }
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_integer() || id < 0) {
      return Bad(path, line, "field hash_ids must have whole numbers >= 0; it has " + Shown(id));
    }
    out.hash_ids.push_back(id.get<std::int64_t>());
  }
  return absl::OkStatus();
}

class TraceArrivals final : public Arrivals {
 public:
  explicit TraceArrivals(std::vector<TraceRequest> requests) : requests_(std::move(requests)) {}

  bool Next(Rng&, std::int64_t spare, Request& request) override {
    if (next_ == requests_.size()) return false;
    const TraceRequest& trace = requests_[next_++];
    request.known = trace.input_tokens;
    request.goal = trace.input_tokens + trace.output_tokens;
    request.stream.reserve(static_cast<std::size_t>(request.goal + spare));
    for (std::int64_t i = 0; i < trace.input_tokens; ++i) {
      const auto id =
          static_cast<std::uint64_t>(trace.hash_ids[static_cast<std::size_t>(i / kTokensPerHash)]);
      request.stream.push_back(id << 10 | static_cast<std::uint64_t>(i % kTokensPerHash));
    }
    for (std::int64_t i = trace.input_tokens; i < request.goal + spare; ++i) {
      request.stream.push_back(std::uint64_t{1} << 62 | static_cast<std::uint64_t>(next_) << 31 |
                               static_cast<std::uint64_t>(i));
    }
    return true;
  }

 private:
  std::vector<TraceRequest> requests_;
  std::size_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<TraceRequest>> ReadTraceFile(const std::string& path,
                                                        std::int64_t limit) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError("'" + path + "' cannot be read: " + std::strerror(errno));
  return ReadTrace(file, path, limit);
}

absl::StatusOr<std::vector<TraceRequest>> ReadTrace(std::istream& in, const std::string& name,
                                                    std::int64_t limit) {
  std::vector<TraceRequest> requests;
  std::string text;
  for (std::int64_t line = 1; std::getline(in, text); ++line) {
    if (limit > 0 && static_cast<std::int64_t>(requests.size()) == limit) break;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    TraceRequest request;
    const absl::Status status = ReadLine(name, line, text, request);
    if (!status.ok()) return status;
    requests.push_back(std::move(request));
  }
  if (in.bad()) return absl::DataLossError("trace file '" + name + "' cannot be read");
  if (requests.empty()) return absl::InvalidArgumentError(name + ": has no request");
  return requests;
}

std::unique_ptr<Arrivals> ArrivalsOf(std::vector<TraceRequest> requests) {
  return std::make_unique<TraceArrivals>(std::move(requests));
}

}  // namespace waymark::sim
