#include "adapters/formats/json_value.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "adapters/formats/long_strings.h"
#include "nlohmann/json.hpp"

namespace waymark::formats {
namespace {

using Sax = nlohmann::json_sax<nlohmann::json>;

constexpr std::size_t kMostDepth = 64;
// Bytes that one value takes as a node, its element of a growing vector included.
constexpr std::size_t kNodeBytes = 2 * (sizeof(JsonValue) + sizeof(std::string));
// Bytes that a number of a grid takes: vectors grow by doubling, and are copied from level to
// level.
constexpr std::size_t kNumberBytes = 3 * sizeof(std::int32_t);

// The beginning of a text from outside, escaped, for an error message of one line.
std::string Shown(std::string_view text) {
  constexpr std::size_t kShown = 40;
  return absl::StrCat("'", absl::CHexEscape(std::string(text.substr(0, kShown))), "'");
}

bool FitsGrid(std::int64_t number) {
  return number >= std::numeric_limits<std::int32_t>::min() &&
         number <= std::numeric_limits<std::int32_t>::max();
}

// A list or object that is not closed yet. Reused for the next one of the same depth, so that a
// million inner lists allocate nothing.
struct Frame {
  bool is_object = false;
  std::string key;                  // key of the next member
  JsonValue::Object members;        // of an object
  JsonValue::List items;            // of a list that is not a grid
  bool is_grid = true;              // of a list: its elements are in `numbers`
  std::int64_t count = 0;           // number of elements of a grid
  std::vector<std::int64_t> inner;  // shape of each element; empty: numbers
  std::vector<std::int32_t> numbers;
};

class Builder final : public Sax {
 public:
  Builder(const LongStrings& strings, const Limits& limits) : strings_(strings), limits_(limits) {
    frames_.resize(kMostDepth + 1);
  }

  [[nodiscard]] const absl::Status& status() const { return status_; }
  JsonValue TakeRoot() { return std::move(root_); }

  bool null() override { return Add(JsonValue::Null{}); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return AddInteger(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return Add(static_cast<double>(value));
    }
    return AddInteger(static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override {
    RestoreCutString(value);
    if (!Charge(value.size())) return false;
    return Add(std::move(value));
  }
  bool binary(binary_t&) override { return Fail(absl::InvalidArgumentError("JSON: binary")); }

  bool start_object(std::size_t) override {
    if (!Push()) return false;
    frames_[depth_].is_object = true;
    return true;
  }
  bool key(string_t& value) override {
    RestoreCutString(value);
    if (!Charge(value.size())) return false;
    Frame& frame = frames_[depth_];
    for (const auto& [key, member] : frame.members) {
      if (key != value) continue;
      return Fail(absl::InvalidArgumentError(
          absl::StrCat("JSON: key ", Shown(value), " is twice in one object")));
    }
    // Keys are compared one by one, since objects of routing have few.
    if (frame.members.size() == kMostMembers) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat("JSON: an object must have at most ", kMostMembers, " members")));
    }
    frame.key = std::move(value);
    return true;
  }
  bool end_object() override {
    Frame& frame = frames_[depth_--];
    return Add(std::move(frame.members));
  }
  bool start_array(std::size_t) override { return Push(); }
  bool end_array() override {
    Frame& frame = frames_[depth_--];
    if (!frame.is_grid) return Add(std::move(frame.items));
    return AddGrid(frame);
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "JSON: byte ", strings_.PositionOf(position), ": not JSON, or the text is incomplete")));
  }

 private:
  static constexpr std::size_t kMostMembers = 4096;

  bool Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  bool Charge(std::size_t bytes) {
    if (bytes > limits_.max_bytes - used_) {
      return Fail(absl::ResourceExhaustedError(absl::StrCat(
          "JSON: its values take more than the limit of ", limits_.max_bytes, " bytes")));
    }
    used_ += bytes;
    return true;
  }

  // Replaces `value`, the string that the parser has reached, by the one that was cut out there.
  void RestoreCutString(std::string& value) {
    const std::string_view taken = strings_.Taken(index_++);
    if (!taken.empty()) value = taken;
  }

  bool Push() {
    if (depth_ == kMostDepth) {
      return Fail(
          absl::InvalidArgumentError(absl::StrCat("JSON: nested deeper than ", kMostDepth)));
    }
    Frame& frame = frames_[++depth_];
    frame.is_object = false;
    frame.is_grid = true;
    frame.members.clear();
    frame.items.clear();
    frame.count = 0;
    frame.inner.clear();
    frame.numbers.clear();
    return true;
  }

  bool AddInteger(std::int64_t number) {
    Frame& frame = frames_[depth_];
    if (depth_ == 0 || frame.is_object || !frame.is_grid || !FitsGrid(number) ||
        (frame.count > 0 && !frame.inner.empty())) {
      return Add(number);
    }
    if (!Charge(kNumberBytes)) return false;
    frame.numbers.push_back(static_cast<std::int32_t>(number));
    ++frame.count;
    return true;
  }

  // A list that was closed and is a grid: joins the grid of the list around it, or is a value.
  bool AddGrid(Frame& child) {
    Frame& frame = frames_[depth_];
    const bool same =
        frame.count == 0 ||
        (frame.inner.size() == child.inner.size() + 1 && frame.inner[0] == child.count &&
         std::equal(child.inner.begin(), child.inner.end(), frame.inner.begin() + 1));
    if (depth_ > 0 && !frame.is_object && frame.is_grid && same) {
      if (frame.count == 0) {
        frame.inner.assign(1, child.count);
        frame.inner.insert(frame.inner.end(), child.inner.begin(), child.inner.end());
      }
      // Charged, because empty lists have no numbers that would bound how many there are.
      if (child.numbers.empty() && !Charge(kNumberBytes)) return false;
      frame.numbers.insert(frame.numbers.end(), child.numbers.begin(), child.numbers.end());
      ++frame.count;
      return true;
    }
    JsonGrid grid;
    grid.shape.assign(1, child.count);
    grid.shape.insert(grid.shape.end(), child.inner.begin(), child.inner.end());
    grid.numbers = std::move(child.numbers);
    child.numbers.clear();
    return Add(std::move(grid));
  }

  // Turns a grid into a list of its elements, because the next element does not fit a grid.
  bool GridToList(Frame& frame) {
    if (!Charge(static_cast<std::size_t>(frame.count) * kNodeBytes)) return false;
    const std::size_t width =
        frame.count == 0 ? 0 : frame.numbers.size() / static_cast<std::size_t>(frame.count);
    for (std::int64_t i = 0; i < frame.count; ++i) {
      const auto begin = frame.numbers.begin() + static_cast<std::ptrdiff_t>(width) * i;
      if (frame.inner.empty()) {
        frame.items.emplace_back().value.emplace<std::int64_t>(*begin);
      } else {
        JsonGrid& grid = frame.items.emplace_back().value.emplace<JsonGrid>();
        grid.shape = frame.inner;
        grid.numbers.assign(begin, begin + static_cast<std::ptrdiff_t>(width));
      }
    }
    frame.is_grid = false;
    frame.numbers = {};
    return true;
  }

  // Adds a value where the parser is: as the root, a member, or an element of a list.
  template <class T>
  bool Add(T value) {
    if (!Charge(kNodeBytes)) return false;
    JsonValue* target = &root_;
    Frame& frame = frames_[depth_];
    if (depth_ > 0 && frame.is_object) {
      auto& [key, member] = frame.members.emplace_back();
      key = std::move(frame.key);
      target = &member;
    } else if (depth_ > 0) {
      if (frame.is_grid && !GridToList(frame)) return false;
      target = &frame.items.emplace_back();
    }
    target->value.template emplace<T>(std::move(value));
    return true;
  }

  const LongStrings& strings_;
  std::size_t index_ = 0;  // number of the next string
  const Limits limits_;
  std::size_t used_ = 0;
  std::size_t depth_ = 0;  // frames_[1 ... depth_] are open
  std::vector<Frame> frames_;
  JsonValue root_;
  absl::Status status_;
};

}  // namespace

const JsonValue* JsonValue::Find(std::string_view key) const {
  const Object* object = As<Object>();
  if (object == nullptr) return nullptr;
  for (const auto& [name, member] : *object) {
    if (name == key) return &member;
  }
  return nullptr;
}

std::string_view JsonValue::KindName() const {
  static constexpr std::string_view kNames[] = {"null",     "a truth value", "a whole number",
                                                "a number", "a string",      "a list of numbers",
                                                "a list",   "an object"};
  return kNames[value.index()];
}

absl::StatusOr<JsonValue> ParseJson(std::span<const std::uint8_t> bytes, const Limits& limits) {
  // Checked first, because the parser copies a string of any length.
  if (bytes.size() > limits.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("JSON: the text has ", bytes.size(),
                                                     " bytes; the limit is ", limits.max_bytes));
  }
  const LongStrings strings({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  Builder builder(strings, limits);
  const std::string_view text = strings.text();
  const bool parsed = nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &builder);
  if (!builder.status().ok()) return builder.status();
  if (!parsed) return absl::InvalidArgumentError("JSON: not JSON");
  return builder.TakeRoot();
}

absl::StatusOr<const JsonValue*> AtPointer(const JsonValue& root, std::string_view pointer,
                                           const JsonValue** parent) {
  const JsonValue* value = &root;
  const JsonValue* above = nullptr;
  const auto missing = [&](std::string_view part) {
    return absl::NotFoundError(
        absl::StrCat("JSON: there is no ", Shown(part), " of ", Shown(pointer)));
  };
  if (!pointer.empty() && pointer[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON: a pointer must begin with '/'; it is ", Shown(pointer)));
  }
  for (std::size_t at = 0; at < pointer.size();) {
    const std::size_t end = std::min(pointer.find('/', at + 1), pointer.size());
    const std::string_view part = pointer.substr(at + 1, end - at - 1);
    at = end;
    above = value;
    value = nullptr;
    if (const auto* list = above->As<JsonValue::List>(); list != nullptr) {
      std::size_t index = 0;
      const bool digits =
          !part.empty() && part.size() < 10 &&
          std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
      for (const char c : digits ? part : std::string_view())
        index = index * 10 + static_cast<std::size_t>(c - '0');
      if (digits && index < list->size()) value = &(*list)[index];
    } else {
      std::string key;
      for (std::size_t i = 0; i < part.size(); ++i) {
        const bool escaped = part[i] == '~' && i + 1 < part.size();
        key += !escaped ? part[i] : part[++i] == '1' ? '/' : '~';
      }
      value = above->Find(key);
    }
    if (value == nullptr) return missing(part);
  }
  if (parent != nullptr) *parent = above;
  return value;
}

}  // namespace waymark::formats
