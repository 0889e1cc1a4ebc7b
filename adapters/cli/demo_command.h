// `waymark demo`: demo.h with options, and as JSON.
#ifndef WAYMARK_ADAPTERS_CLI_DEMO_COMMAND_H_
#define WAYMARK_ADAPTERS_CLI_DEMO_COMMAND_H_

#include <memory>

#include "adapters/cli/command.h"

namespace waymark::cli {

// Exit code 1 when a row is wrong, or missing without an explanation.
[[nodiscard]] std::unique_ptr<Command> MakeDemoCommand();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_DEMO_COMMAND_H_
