// Events as text, for what a test says of them.
#ifndef WAYMARK_TESTS_SUPPORT_DESCRIBE_EVENT_H_
#define WAYMARK_TESTS_SUPPORT_DESCRIBE_EVENT_H_

#include <iterator>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "blockstore/events.h"

namespace waymark {

// "Bind", "Seal", ...; "unknown event" for any other number.
[[nodiscard]] inline std::string_view EventName(EventType type) {
  static constexpr std::string_view kNames[] = {
      "unknown event", "Bind", "Retain", "Release", "Seal", "Copy", "Move", "Truncate", "Reset"};
  const auto number = static_cast<std::size_t>(type);
  return kNames[number < std::size(kNames) ? number : 0];
}

// One line of text, e.g. "Seal(block 7, key 0a1b..., step 12)".
[[nodiscard]] inline std::string DescribeEvent(const Event& event) {
  std::string text(EventName(event.type));
  if (event.type < EventType::kBind || event.type > EventType::kReset) {
    return absl::StrCat(text, " ", static_cast<int>(event.type));
  }
  if (event.type == EventType::kReset) return text;
  const bool two = event.type == EventType::kCopy || event.type == EventType::kMove;
  absl::StrAppend(&text, "(block ", two ? absl::StrCat(event.src, " -> ") : "", event.block);
  const BlockKey key = event.GetKey();
  const bool keyed = event.type == EventType::kBind || event.type == EventType::kSeal;
  if (keyed && !key.empty()) {
    const absl::string_view bytes(reinterpret_cast<const char*>(key.bytes.data()), key.size);
    absl::StrAppend(&text, ", key ", absl::BytesToHexString(bytes));
  }
  switch (event.type) {
    case EventType::kSeal:
      absl::StrAppend(&text, key.empty() ? ", no key" : "", ", step ", event.step);
      break;
    case EventType::kCopy:
      absl::StrAppend(&text, event.rows == Event::kAllRows
                                 ? ", all rows"
                                 : absl::StrCat(", ", event.rows, " rows"));
      break;
    case EventType::kMove:
      if (event.more != 0) absl::StrAppend(&text, ", with the next");
      break;
    case EventType::kTruncate:
      absl::StrAppend(&text, ", from row ", event.rows, ", step ", event.step);
      break;
    default:
      break;
  }
  return text + ")";
}

}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_DESCRIBE_EVENT_H_
