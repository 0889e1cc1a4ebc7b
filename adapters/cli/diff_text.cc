#include "adapters/cli/diff_text.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "adapters/cli/console.h"

namespace waymark::cli {
namespace {

std::vector<std::int32_t> IdsOf(const Rows& rows, std::int64_t row, std::int32_t layer) {
  const RoutingShape& shape = rows.shape;
  const std::uint8_t* from = rows.row(row - rows.first).data();
  std::vector<std::int32_t> ids;
  for (std::int32_t k = 0; k < shape.top_k; ++k) {
    const std::size_t at = static_cast<std::size_t>(layer) * static_cast<std::size_t>(shape.top_k) +
                           static_cast<std::size_t>(k);
    std::uint16_t id = shape.id_bytes() == 1 ? from[at] : 0;
    if (shape.id_bytes() == 2) std::memcpy(&id, from + 2 * at, 2);
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? ' ' : c;
    }
  }
  return out;
}

std::string ShortName(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  if (const std::size_t dot = name.find_last_of('.'); dot != std::string::npos && dot > 0) {
    name.resize(dot);
  }
  return Escaped(name.substr(0, 64));
}

double Share(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

std::string PercentText(double share) {
  if (share < 1 && share >= 0.9995) return "&gt; 99.9 %";
  if (share > 0 && share < 0.0005) return "&lt; 0.1 %";
  return FixedDigits(100 * share, 1) + " %";
}

std::string CountText(std::int64_t value) {
  return WithCommas(static_cast<std::uint64_t>(value));
}

std::string OnlyIn(const Rows& a, const Rows& b, std::int64_t row, std::int32_t layer) {
  const std::vector<std::int32_t> ids = IdsOf(a, row, layer);
  const std::vector<std::int32_t> others = IdsOf(b, row, layer);
  std::string list;
  for (const std::int32_t id : ids) {
    if (std::binary_search(others.begin(), others.end(), id)) continue;
    absl::StrAppend(&list, list.empty() ? "" : ", ", id);
  }
  return list;
}

}  // namespace waymark::cli
