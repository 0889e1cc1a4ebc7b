// `waymark selftest`: shows that the capture self-test names a silent layer.
#ifndef WAYMARK_ADAPTERS_CLI_SELFTEST_H_
#define WAYMARK_ADAPTERS_CLI_SELFTEST_H_

#include <memory>

#include "adapters/cli/command.h"

namespace waymark::cli {

// Runs the self-test on the embedded engine, and again with one layer silenced. Exit code 1 unless
// the first run finds nothing and the second finds that layer alone.
[[nodiscard]] std::unique_ptr<Command> MakeSelftestCommand();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_SELFTEST_H_
