// `waymark bench`: what Waymark costs on this machine, against its budgets.
#ifndef WAYMARK_ADAPTERS_CLI_BENCH_H_
#define WAYMARK_ADAPTERS_CLI_BENCH_H_

#include <memory>

#include "adapters/cli/command.h"

namespace waymark::cli {

[[nodiscard]] std::unique_ptr<Command> MakeBenchCommand();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_BENCH_H_
