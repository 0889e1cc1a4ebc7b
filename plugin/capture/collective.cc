#include "plugin/capture/collective.h"

#include <string>

#include "blockstore/exception_status.h"

namespace waymark {
namespace {

constexpr std::int32_t kMostRanks = 4096;

}  // namespace

absl::Status CheckCollective(const Collective& collective) {
  if (collective.ranks < 1 || collective.ranks > kMostRanks) {
    return absl::InvalidArgumentError("collective.ranks must be in [1, " +
                                      std::to_string(kMostRanks) + "]; it is " +
                                      std::to_string(collective.ranks));
  }
  if (collective.rank < 0 || collective.rank >= collective.ranks) {
    return absl::InvalidArgumentError("collective.rank must be in [0, " +
                                      std::to_string(collective.ranks) + "); it is " +
                                      std::to_string(collective.rank));
  }
  if (collective.ranks > 1 && collective.all_gather == nullptr) {
    return absl::InvalidArgumentError("collective.all_gather must not be null");
  }
  return absl::OkStatus();
}

absl::Status AllGather(const Collective& collective, const char* what, const void* send,
                       void* receive, std::size_t bytes) noexcept {
  return Guarded("collective.all_gather", [&]() -> absl::Status {
    const std::int32_t code = collective.all_gather(collective.context, send, receive, bytes);
    if (code == 0) return absl::OkStatus();
    return absl::Status(
        static_cast<absl::StatusCode>(code),
        std::string("collective.all_gather of the ") + what + ": answered " + std::to_string(code));
  });
}

}  // namespace waymark
