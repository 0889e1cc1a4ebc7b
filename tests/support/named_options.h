// Options of the simulated engines by name, as text, and the named scenarios of the executable
// specification (tests/conformance/model/), whose names they are.
#ifndef WAYMARK_TESTS_SUPPORT_NAMED_OPTIONS_H_
#define WAYMARK_TESTS_SUPPORT_NAMED_OPTIONS_H_

#include <span>
#include <string>
#include <string_view>

#include "adapters/simulators/options.h"

namespace waymark::sim {

// Sets the feature with this name ("draft", "late", ...); false if there is none.
bool SetFeature(Features& features, std::string_view name, double value);
// Whether there is a feature with this name, and it is on.
[[nodiscard]] bool IsOn(const Features& features, std::string_view name);
// The features that are on, as "name=value name=value".
[[nodiscard]] std::string ToString(const Features& features);

// A named scenario of the executable specification.
struct Scenario {
  const char* name;
  const char* features;  // for SetOptions
};
[[nodiscard]] std::span<const Scenario> Scenarios();
// Sets the option with this name of the features, the timing or the sizes; false if there is none.
bool SetOption(EngineOptions& options, std::string_view name, double value);
// Sets options from "name=value name=value"; false at the first that does not exist or whose value
// is not a number.
bool SetOptions(EngineOptions& options, std::string_view text);

}  // namespace waymark::sim

#endif  // WAYMARK_TESTS_SUPPORT_NAMED_OPTIONS_H_
