// LoadRouting: reads routing from a file, for `inspect`, `diff` and `convert`. The file is a
// Waymark document, or an array in another format, with options for what its bytes do not contain.
#ifndef WAYMARK_ADAPTERS_CLI_ROUTING_INPUT_H_
#define WAYMARK_ADAPTERS_CLI_ROUTING_INPUT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "adapters/cli/command.h"
#include "adapters/formats/formats.h"
#include "blockstore/rows.h"

namespace waymark::cli {

// The values of the command line. Empty, 0, and -1 for start: not given. formats::ReadRowsOptions
// documents them.
struct InputOptions {
  std::string format;        // the name of a format, or formats::kDocumentName
  std::string field;         // a JSON pointer
  std::string rows;          // "tokens" or "tokens-1"
  std::string layers;        // "moe" or "all"
  std::string sentinel;      // a formats::SentinelName
  std::string moe_layers;    // e.g. "3-60", "0,2,4" or "all"
  std::string dtype;         // a formats::DtypeName
  std::int64_t start = -1;   // position of the first row
  int num_layers = 0;        // number of all layers of the model
  int top_k = 0;             // K
  int experts = 0;           // E
  int max_memory_mb = 8192;  // the most memory that the file may take
};
// Adds the options to a command, bound to `options`. `format_option`: "--format" or "--from".
void AddInputOptions(CLI::App& app, const std::string& format_option, InputOptions& options);

// The routing of a file.
struct RoutingFile : formats::ReadRowsResult {
  std::string name;  // of its format
  std::string what;  // its contents in words, with dtype and shape
};
// Reads a file, and shows progress. `read` has what the command assumes; `options` are added to it.
// Errors name the file and the option.
[[nodiscard]] absl::StatusOr<RoutingFile> LoadRouting(const std::string& path,
                                                      const InputOptions& options,
                                                      formats::ReadRowsOptions read);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_ROUTING_INPUT_H_
