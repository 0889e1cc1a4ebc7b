#include "adapters/simulators/trace.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "adapters/formats/json_value.h"

namespace waymark::sim {
namespace {

constexpr std::int64_t kTokensPerHash = 512;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;

absl::Status Bad(const std::string& path, std::int64_t line, const std::string& what) {
  return absl::InvalidArgumentError(path + " line " + std::to_string(line) + ": " + what);
}

absl::Status ReadLength(const std::string& path, std::int64_t line, const formats::Json& object,
                        const char* field, std::int64_t& out) {
  const formats::Json* const value = formats::Find(&object, field);
  const std::optional<std::int64_t> length = formats::Integer(value);
  if (!length.has_value() || *length < 1 || *length > kMaxTokens) {
    return Bad(
        path, line,
        absl::StrCat("field ", field, " must be a whole number in [1, ", kMaxTokens, "]; it is ",
                     value == nullptr     ? "missing"
                     : length.has_value() ? std::to_string(*length)
                                          : std::string(formats::KindName(*value))));
  }
  out = *length;
  return absl::OkStatus();
}

absl::Status ReadLine(const std::string& path, std::int64_t line, const std::string& text,
                      TraceRequest& out) {
  const absl::StatusOr<formats::Json> object = formats::ParseJson(
      {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, formats::Limits());
  if (!object.ok()) return Bad(path, line, std::string(object.status().message()));
  absl::Status status = ReadLength(path, line, *object, "input_length", out.input_tokens);
  if (status.ok()) status = ReadLength(path, line, *object, "output_length", out.output_tokens);
  if (!status.ok()) return status;
  const auto ids = formats::Integers(formats::Find(&*object, "hash_ids"));
  const std::int64_t want = (out.input_tokens + kTokensPerHash - 1) / kTokensPerHash;
  const char* wrong = nullptr;
  if (!ids.has_value()) {
    wrong = "is missing, or holds something else";
  } else if (static_cast<std::int64_t>(ids->size()) != want) {
    wrong = "has another number of them";
  } else if (std::any_of(ids->begin(), ids->end(), [](std::int64_t id) { return id < 0; })) {
    wrong = "has one below 0";
  }
  if (wrong != nullptr) {
    return Bad(path, line,
               absl::StrCat("field hash_ids must be a list of ", want,
                            " whole numbers >= 0 (input_length / 512, rounded up); it ", wrong));
  }
  out.hash_ids = *ids;
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
  if (!file) return absl::NotFoundError("trace file '" + path + "' cannot be opened");
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
