// `waymark trace FILE`: schedules a real block trace through an engine simulator and a real store.
#ifndef WAYMARK_ADAPTERS_CLI_TRACE_H_
#define WAYMARK_ADAPTERS_CLI_TRACE_H_

#include <memory>

#include "adapters/cli/command.h"

namespace waymark::cli {

[[nodiscard]] std::unique_ptr<Command> MakeTraceCommand();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_TRACE_H_
