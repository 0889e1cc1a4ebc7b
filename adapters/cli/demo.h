// `waymark demo`: rollouts on the embedded engine, and the proof that every row is right.
#ifndef WAYMARK_ADAPTERS_CLI_DEMO_H_
#define WAYMARK_ADAPTERS_CLI_DEMO_H_

#include <memory>

#include "adapters/cli/command.h"

namespace waymark::cli {

// Groups of samples share a prompt and go on for several turns; the routes of all their tokens are
// captured, then every finished sequence is computed again from scratch and compared row by row.
// Exit code 1 when a row is wrong, or missing without an explanation.
[[nodiscard]] std::unique_ptr<Command> MakeDemoCommand();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_DEMO_H_
