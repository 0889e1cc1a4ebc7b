// Routing from a file, as `inspect`, `diff` and `convert` take it: a Waymark document, or an array
// of another format with the options that say what it does not.
#ifndef WAYMARK_ADAPTERS_CLI_ROUTING_INPUT_H_
#define WAYMARK_ADAPTERS_CLI_ROUTING_INPUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/rows.h"
#include "plugin/formats/conversion.h"

namespace CLI {
class App;
}  // namespace CLI

namespace waymark::cli {

// Values as they stand on the command line; empty or 0: not given.
struct InputOptions {
  std::string format;      // a format's name, or formats::kDocumentName
  std::string field;       // a JSON pointer
  std::string rows;        // "tokens", "tokens-1"
  std::string layers;      // "moe", "all"
  std::string sentinel;    // as formats::SentinelName
  std::string moe_layers;  // "3-60", "0,2,4", "all"
  std::string dtype;
  std::int64_t start = -1;
  int num_layers = 0;
  int top_k = 0;
  int experts = 0;
  int max_memory_mb = 8192;
};
// `format_option`: "--format" or "--from".
void AddInputOptions(CLI::App& app, const std::string& format_option, InputOptions& options);

// A file that was read.
struct RoutingFile {
  std::string format;  // its name
  std::string what;    // in words, with dtype and shape
  Rows rows;
  bool experts_known = true;            // false: rows.shape.num_experts is the least that could be
  std::optional<formats::Dtype> dtype;  // of an array
  std::vector<std::string> notes;       // what a person should know, one sentence each
};
// `read`: what may be assumed; the options are added to it. Errors name the file and the option.
// Shows progress.
[[nodiscard]] absl::StatusOr<RoutingFile> LoadRouting(const std::string& path,
                                                      const InputOptions& options,
                                                      formats::ReadRowsOptions read);

// Writes a file beside `path` that then takes its place. Unavailable with the system's words.
[[nodiscard]] absl::Status WriteWholeFile(const std::string& path, std::string_view bytes);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_ROUTING_INPUT_H_
