// `waymark convert IN OUT --to FORMAT`: converts routing from one format to another.
#ifndef WAYMARK_ADAPTERS_CLI_CONVERT_H_
#define WAYMARK_ADAPTERS_CLI_CONVERT_H_

#include <memory>

#include "adapters/cli/command.h"

namespace waymark::cli {

[[nodiscard]] std::unique_ptr<Command> MakeConvertCommand();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_CONVERT_H_
