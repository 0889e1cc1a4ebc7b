// `waymark diff A B`: compares two captures of the same tokens.
#ifndef WAYMARK_ADAPTERS_CLI_DIFF_H_
#define WAYMARK_ADAPTERS_CLI_DIFF_H_

#include <memory>

#include "adapters/cli/command.h"

namespace waymark::cli {

[[nodiscard]] std::unique_ptr<Command> MakeDiffCommand();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_DIFF_H_
