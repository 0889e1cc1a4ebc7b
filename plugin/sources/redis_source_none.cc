// RedisSource in a build without hiredis.
#include <utility>

#include "plugin/sources/redis_options.h"
#include "plugin/sources/redis_source.h"

namespace waymark {
namespace {

absl::Status None() {
  return absl::UnimplementedError(
      "RedisSource: this build has no hiredis (WAYMARK_REDIS; package libhiredis-dev)");
}

}  // namespace

const char* RedisClient() {
  return "none";
}

class RedisSource::Impl {};

RedisSource::RedisSource(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RedisSource::~RedisSource() = default;

absl::StatusOr<std::unique_ptr<RedisSource>> RedisSource::Create(const RedisOptions& options) {
  if (absl::Status status = CheckRedisOptions(options); !status.ok()) return status;
  return None();
}

absl::Status RedisSource::Get(std::span<const Digest128>, wire::Deadline, std::span<wire::Object>) {
  return None();
}
absl::Status RedisSource::GetRanges(std::span<const wire::ObjectRange>, wire::Deadline,
                                    std::span<wire::Object>) {
  return None();
}
absl::Status RedisSource::Put(std::span<const wire::NamedObject>, wire::Deadline) {
  return None();
}
absl::Status RedisSource::Holds(std::span<const Digest128>, wire::Deadline,
                                std::span<std::uint8_t>) {
  return None();
}

RedisSource::Stats RedisSource::GetStats() const {
  return {};
}

}  // namespace waymark
