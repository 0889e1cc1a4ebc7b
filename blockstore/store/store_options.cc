#include "blockstore/store/store_options.h"

#include <array>
#include <string>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "blockstore/timeout.h"

namespace waymark {
namespace {

using Seconds = std::chrono::nanoseconds;

// The field of an option; its type is the option's rule.
using Field =
    std::variant<std::uint32_t StoreOptions::*, std::uint64_t StoreOptions::*, bool StoreOptions::*,
                 Seconds StoreOptions::*, std::optional<std::uint32_t> StoreOptions::*,
                 std::optional<double> StoreOptions::*>;

struct Option {
  const char* name;
  Field field;
};

static_assert(std::is_same_v<std::size_t, std::uint64_t>);

constexpr std::array kOptions = std::to_array<Option>({
    {"num_pages", &StoreOptions::num_pages},
    {"spare_pages", &StoreOptions::spare_pages},
    {"max_steps_in_flight", &StoreOptions::max_steps_in_flight},
    {"max_step_rows", &StoreOptions::max_step_rows},
    {"ahead_bytes", &StoreOptions::ahead_bytes},
    {"teardown_timeout", &StoreOptions::teardown_timeout},
    {"overdue_after", &StoreOptions::overdue_after},
    {"ids_timeout", &StoreOptions::ids_timeout},
    {"log_bytes", &StoreOptions::log_bytes},
    {"audit", &StoreOptions::audit},
    {"audit_threshold", &StoreOptions::audit_threshold},
    {"key_seed", &StoreOptions::key_seed},
});

// Sets a field to what `text` says. Returns the rule that `text` breaks, or null.
struct Setter {
  template <typename T>
  const char* operator()(T StoreOptions::*field) const {
    T value = 0;
    if (!absl::SimpleAtoi(text, &value)) {
      return sizeof(T) == 4 ? "an integer in [0, 2^32)" : "an integer in [0, 2^64)";
    }
    to.*field = value;
    return nullptr;
  }
  const char* operator()(bool StoreOptions::*field) const {
    return absl::SimpleAtob(text, &(to.*field)) ? nullptr : "true or false";
  }
  const char* operator()(std::optional<std::uint32_t> StoreOptions::*field) const {
    std::uint32_t value = 0;
    if (text == "none") {
      (to.*field).reset();
    } else if (absl::SimpleAtoi(text, &value)) {
      to.*field = value;
    } else {
      return "an integer in [0, 2^32), or none";
    }
    return nullptr;
  }
  const char* operator()(std::optional<double> StoreOptions::*field) const {
    double value = 0;
    if (text == "none") {
      (to.*field).reset();
    } else if (absl::SimpleAtod(text, &value) && value > 0 && value <= 1) {
      to.*field = value;
    } else {
      return "a number in (0, 1], or none";
    }
    return nullptr;
  }
  const char* operator()(Seconds StoreOptions::*field) const {
    double value = 0;
    if (text == "none") {
      // 0 is never, but the end of a store cannot wait for ever.
      to.*field = field == &StoreOptions::teardown_timeout ? Seconds(kLongestTimeout) : Seconds(0);
      return nullptr;
    }
    if (!absl::SimpleAtod(text, &value) || !(value >= 0)) return "seconds, at least 0, or none";
    constexpr double kYear = std::chrono::duration<double>(kLongestTimeout).count();
    const auto ns = std::chrono::duration_cast<Seconds>(
        std::chrono::duration<double>(value < kYear ? value : kYear));
    // A wait of nothing is one of 1 ns where 0 is never.
    to.*field = field == &StoreOptions::teardown_timeout || ns.count() != 0 ? ns : Seconds(1);
    return nullptr;
  }

  StoreOptions& to;
  absl::string_view text;
};

}  // namespace

absl::Status SetStoreOption(StoreOptions& to, std::string_view name, std::string_view text) {
  std::string names;
  for (const Option& option : kOptions) {
    if (option.name != name) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", option.name);
      continue;
    }
    const absl::string_view given(text.data(), text.size());
    const char* const rule = std::visit(Setter{to, given}, option.field);
    if (rule == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(option.name, ": ", rule, ", got ", given));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("options: one of ", names, "; got ", std::string(name)));
}

}  // namespace waymark
