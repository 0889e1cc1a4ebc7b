#include "adapters/cli/json_table.h"

#include <algorithm>
#include <cstdio>

#include "adapters/cli/console.h"

namespace waymark::cli {
namespace {

bool IsZero(const Json& value) {
  return value.is_number() && value == 0;
}

std::string Shown(const std::string& key, const Json& value) {
  if (key.ends_with("share")) return Percent(double{value});
  if (value.is_boolean()) return value ? "yes" : "no";
  if (value.is_string()) return value;
  if (value.is_number_float()) return FixedDigits(value, value < 10 ? 3 : 1);
  return value < 0 ? value.dump() : WithCommas(value);
}

void AddLines(const std::string& indent, const Json& object, Table& table) {
  for (const auto& [key, value] : object.items()) {
    std::string name = indent + key;
    std::replace(name.begin(), name.end(), '_', ' ');
    if (value.is_object()) {
      if (std::all_of(value.begin(), value.end(), IsZero)) continue;
      table.Add(name, "");
      AddLines(indent + "  ", value, table);
    } else if (!value.is_array() && !value.is_null() && value != "") {
      table.Add(name, Shown(key, value));
    }
  }
}

}  // namespace

void PrintJson(const Json& json) {
  std::printf("%s\n", json.dump(1).c_str());
}

std::string JsonTable(const Json& object) {
  Table table;
  AddLines("", object, table);
  return table.ToString();
}

}  // namespace waymark::cli
