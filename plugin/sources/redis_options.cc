#include "plugin/sources/redis_options.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace waymark {
namespace {

absl::Status Bad(const std::string& option, const std::string& rule, std::int64_t value) {
  return absl::InvalidArgumentError(
      absl::StrCat("options.", option, " must be ", rule, "; it is ", value));
}

}  // namespace

absl::Status CheckRedisOptions(const RedisOptions& options) {
  if (options.unix_socket.empty()) {
    if (options.host.empty()) {
      return absl::InvalidArgumentError("options.host must be a name or an address; it is empty");
    }
    if (options.port < 1 || options.port > 65535) {
      return Bad("port", "in [1, 65535]", options.port);
    }
  }
  if (!options.user.empty() && options.password.empty()) {
    return absl::InvalidArgumentError("options.password must be given with options.user");
  }
  if (options.database < 0) return Bad("database", "0 or more", options.database);
  if (options.time_to_live.count() < 0) {
    return Bad("time_to_live", "0 s or more", options.time_to_live.count());
  }
  if (options.connect_timeout.count() < 1) {
    return Bad("connect_timeout", "1 ms or more", options.connect_timeout.count());
  }
  if (options.command_timeout.count() < 1) {
    return Bad("command_timeout", "1 ms or more", options.command_timeout.count());
  }
  if (options.initial_back_off.count() < 1) {
    return Bad("initial_back_off", "1 ms or more", options.initial_back_off.count());
  }
  if (options.max_back_off < options.initial_back_off) {
    return Bad("max_back_off", "initial_back_off or more", options.max_back_off.count());
  }
  if (options.presence_cache.count() < 0) {
    return Bad("presence_cache", "0 ms or more", options.presence_cache.count());
  }
  if (options.tls.key_file.empty() != options.tls.certificate_file.empty()) {
    return absl::InvalidArgumentError(
        "options.tls.key_file and options.tls.certificate_file must be given together");
  }
  if (!options.tls.use && !(options.tls.ca_file.empty() && options.tls.certificate_file.empty() &&
                            options.tls.key_file.empty() && options.tls.server_name.empty())) {
    return absl::InvalidArgumentError("options.tls.use must be set if another option of TLS is");
  }
  return absl::OkStatus();
}

}  // namespace waymark
