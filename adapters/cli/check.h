// `waymark check FILE`: replays a recorded flight and reports whether every read was right.
#ifndef WAYMARK_ADAPTERS_CLI_CHECK_H_
#define WAYMARK_ADAPTERS_CLI_CHECK_H_

#include <memory>

#include "adapters/cli/command.h"

namespace waymark::cli {

[[nodiscard]] std::unique_ptr<Command> MakeCheckCommand();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_CHECK_H_
