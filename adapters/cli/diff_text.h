// Text and numbers of the page of `waymark diff --html`.
#ifndef WAYMARK_ADAPTERS_CLI_DIFF_TEXT_H_
#define WAYMARK_ADAPTERS_CLI_DIFF_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "blockstore/rows.h"

namespace waymark::cli {

// One of the two files that are compared.
struct DiffSide {
  std::string name;            // any text, usually the path; not escaped
  const Rows* rows = nullptr;  // not owned
};

// `text` escaped for HTML elements and attributes; control characters become spaces.
[[nodiscard]] std::string Escaped(std::string_view text);
// The name of a file in headings: at most 64 bytes of the last component of its path, without the
// extension, escaped.
[[nodiscard]] std::string ShortName(const std::string& path);
// part / whole, in [0, 1]. REQUIRES: whole > 0.
[[nodiscard]] double Share(std::int64_t part, std::int64_t whole);
// A share as percent with one digit after the point. A share that is not 1 is never rounded to
// "100.0 %", nor one that is not 0 to "0.0 %". Escaped.
[[nodiscard]] std::string PercentText(double share);
// 1234567 -> "1,234,567".
[[nodiscard]] std::string CountText(std::int64_t value);
// The ids of a row and layer that are in `a` but not in `b`, ascending: "12, 40".
// REQUIRES: both have the row.
[[nodiscard]] std::string OnlyIn(const Rows& a, const Rows& b, std::int64_t row,
                                 std::int32_t layer);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_DIFF_TEXT_H_
