#include "adapters/formats/nested_lists.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace waymark::formats {
namespace {

std::string Describe(const JsonValue& value) {
  if (const auto* grid = value.As<JsonGrid>(); grid != nullptr) {
    return absl::StrCat("lists of shape [", absl::StrJoin(grid->shape, ", "), "]");
  }
  return std::string(value.KindName());
}

// The error for lists that are not a grid: names the first element that differs from the one
// before.
absl::Status Irregular(const JsonValue& lists) {
  std::string where;
  const JsonValue* value = &lists;
  while (const auto* list = value->As<JsonValue::List>()) {
    const JsonValue* odd = nullptr;
    for (std::size_t i = 0; i < list->size() && odd == nullptr; ++i) {
      const JsonValue& item = (*list)[i];
      if (item.As<JsonValue::List>() != nullptr) {
        absl::StrAppend(&where, "[", i, "]");
        odd = &item;
      } else if (i > 0 && Describe(item) != Describe((*list)[i - 1])) {
        return absl::InvalidArgumentError(absl::StrCat(
            "lists", where, "[", i, "]: ", Describe(item), ", after ", Describe((*list)[i - 1])));
      }
    }
    if (odd == nullptr) break;
    value = odd;
  }
  return absl::InvalidArgumentError(absl::StrCat("lists", where,
                                                 ": must be whole numbers of 32 "
                                                 "bits, in three levels; it is ",
                                                 Describe(*value)));
}

}  // namespace

absl::StatusOr<RoutingArray> ReadLists(const JsonValue& lists, Dtype dtype, const Limits& limits) {
  const auto* grid = lists.As<JsonGrid>();
  if (grid == nullptr) return Irregular(lists);
  RoutingArray array;
  if (absl::Status status = MakeArray("lists", grid->shape, dtype, limits, array); !status.ok()) {
    return status;
  }
  const std::size_t row_ids = array.row_ids();
  std::vector<std::int64_t> row(row_ids);
  for (std::int64_t i = 0; i < array.rows; ++i) {
    const std::int32_t* numbers = grid->numbers.data() + static_cast<std::size_t>(i) * row_ids;
    for (std::size_t n = 0; n < row_ids; ++n) {
      row[n] = numbers[n];
      if (!Holds(dtype, row[n])) {
        return absl::InvalidArgumentError(absl::StrCat("lists[", i, "]: a number must be one that ",
                                                       std::string(DtypeName(dtype)),
                                                       " has; it is ", row[n]));
      }
    }
    StoreRow(array, i, row);
  }
  return array;
}

void AppendLists(const RoutingArray& array, std::string& text) {
  const std::size_t top_k = static_cast<std::size_t>(array.top_k);
  std::vector<std::int64_t> row(array.row_ids());
  std::array<char, 24> digits;
  text += '[';
  for (std::int64_t i = 0; i < array.rows; ++i) {
    LoadRow(array, i, row);
    text += i == 0 ? "[" : ",[";
    for (std::size_t n = 0; n < row.size(); ++n) {
      if (n % top_k == 0) {
        text += n == 0 ? "[" : ",[";
      } else {
        text += ',';
      }
      const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), row[n]).ptr;
      text.append(digits.data(), end);
      if (n % top_k == top_k - 1) text += ']';
    }
    text += ']';
  }
  text += ']';
}

}  // namespace waymark::formats
