// `waymark inspect FILE`: describes a file of routing.
#ifndef WAYMARK_ADAPTERS_CLI_INSPECT_H_
#define WAYMARK_ADAPTERS_CLI_INSPECT_H_

#include <memory>

#include "adapters/cli/command.h"

namespace waymark::cli {

[[nodiscard]] std::unique_ptr<Command> MakeInspectCommand();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_INSPECT_H_
