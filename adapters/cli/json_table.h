// What a command prints for people, from the JSON object that it prints for programs.
#ifndef WAYMARK_ADAPTERS_CLI_JSON_TABLE_H_
#define WAYMARK_ADAPTERS_CLI_JSON_TABLE_H_

#include <array>
#include <string>

#include "blockstore/row_info.h"
#include "nlohmann/json.hpp"

namespace waymark::cli {

using Json = nlohmann::ordered_json;

// The numbers, words and switches of `object` as a table, one line each: "rows_wrong": 0 is the
// line "rows wrong", and "..._share" is in percent. Objects in it are indented under their name, if
// any of their numbers is not 0.
// Arrays, empty strings and null are left out.
[[nodiscard]] std::string JsonTable(const Json& object);

// Prints `json` on stdout, as programs read it.
void PrintJson(const Json& json);

// The number of rows that are missing, by the name of the reason. `counts`: one for each Reason.
template <class Count>
[[nodiscard]] Json MissingByReason(const std::array<Count, kNumReasons>& counts) {
  Json missing = Json::object();
  for (int reason = 1; reason < kNumReasons; ++reason) {
    missing[std::string(ReasonName(static_cast<Reason>(reason)))] =
        counts[static_cast<std::size_t>(reason)];
  }
  return missing;
}

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_JSON_TABLE_H_
