// What RedisSource demands of its options, whether the build has hiredis or not. Internal.
#ifndef WAYMARK_PLUGIN_SOURCES_REDIS_OPTIONS_H_
#define WAYMARK_PLUGIN_SOURCES_REDIS_OPTIONS_H_

#include "absl/status/status.h"
#include "plugin/sources/redis_source.h"

namespace waymark {

// InvalidArgument naming the option, its rule and its value.
[[nodiscard]] absl::Status CheckRedisOptions(const RedisOptions& options);

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_SOURCES_REDIS_OPTIONS_H_
