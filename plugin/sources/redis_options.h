// The check of RedisOptions, which is the same whether or not the build has hiredis. Internal to
// this folder.
#ifndef WAYMARK_PLUGIN_SOURCES_REDIS_OPTIONS_H_
#define WAYMARK_PLUGIN_SOURCES_REDIS_OPTIONS_H_

#include "absl/status/status.h"
#include "plugin/sources/redis_source.h"

namespace waymark {

// InvalidArgument naming the option, the rule and the value. No message contains user or password.
[[nodiscard]] absl::Status CheckRedisOptions(const RedisOptions& options);

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_SOURCES_REDIS_OPTIONS_H_
