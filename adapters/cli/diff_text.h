// What the page of `waymark diff --html` says things with.
#ifndef WAYMARK_ADAPTERS_CLI_DIFF_TEXT_H_
#define WAYMARK_ADAPTERS_CLI_DIFF_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "blockstore/rows.h"

namespace waymark::cli {

// One side of the comparison.
struct DiffSide {
  std::string name;  // any text; the page escapes it
  const Rows* rows = nullptr;
};

// `text` as HTML shows it, in elements and attributes; control characters become spaces.
[[nodiscard]] std::string Escaped(std::string_view text);
// At most 64 bytes of a path's last part, without its extension, escaped: what headings call a
// file.
[[nodiscard]] std::string ShortName(const std::string& path);
// `part` of `whole` > 0, in [0, 1].
[[nodiscard]] double Share(std::int64_t part, std::int64_t whole);
// One digit after the point; never "100 %" of what is not all, nor "0 %" of what is not nothing.
// Escaped.
[[nodiscard]] std::string PercentText(double share);
// 1234567 -> "1,234,567".
[[nodiscard]] std::string CountText(std::int64_t value);
// The ids that `a` has in that row and layer and `b` has not, ascending: "12, 40". REQUIRES: both
// have the row.
[[nodiscard]] std::string OnlyIn(const Rows& a, const Rows& b, std::int64_t row,
                                 std::int32_t layer);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_DIFF_TEXT_H_
