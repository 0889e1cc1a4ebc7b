// `waymark selftest`: shows that the capture self-test names a layer that does not report.
#ifndef WAYMARK_ADAPTERS_CLI_SELFTEST_H_
#define WAYMARK_ADAPTERS_CLI_SELFTEST_H_

#include <memory>

#include "adapters/cli/command.h"

namespace waymark::cli {

// Runs the self-test on a sound embedded engine and on one with a layer that was silenced. Exit
// code 1 unless the first is clean and the second names that layer and nothing else.
[[nodiscard]] std::unique_ptr<Command> MakeSelftestCommand();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_SELFTEST_H_
