// Random schedules: one seed, one engine, features drawn from the seed. Shared by the test, the
// long runs (waymark_schedules) and the differential test.
#ifndef WAYMARK_TESTS_CONFORMANCE_SCHEDULES_H_
#define WAYMARK_TESTS_CONFORMANCE_SCHEDULES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapters/simulators/engine.h"
#include "adapters/simulators/options.h"
#include "tests/conformance/by_key.h"
#include "tests/support/named_options.h"

namespace waymark::conformance {

// Two features of random mixtures, by their names.
struct FeaturePair {
  std::string_view first, second;
};

struct Schedule {
  sim::EngineOptions options;
  std::int64_t steps = 200;
  std::string features;             // for people: engine, scenario or mixture, timing
  std::optional<FeaturePair> pair;  // that a mixture has by its seed
};

// The schedule of a seed: every named scenario in turn on both engines, and as many random
// mixtures. Half of them land deterministically in shuffled order, the others at once or with a
// landing thread.
//
// Each mixture of an engine has the next pair of FeaturePairs, whatever else is drawn: so
// SeedsOfAllPairs() seeds in a row have every pair on both engines.
[[nodiscard]] Schedule DrawSchedule(std::uint64_t seed);

// The names of the features of mixtures.
[[nodiscard]] std::vector<std::string_view> MixtureFeatures();
// Whether an engine can have both of two features.
[[nodiscard]] bool GoTogether(std::string_view first, std::string_view second);
// The pairs that an engine can have, in the order in which mixtures get them.
[[nodiscard]] std::span<const FeaturePair> FeaturePairs();
// Whether a schedule has a feature, as its engine will run it.
[[nodiscard]] bool HasFeature(const sim::EngineOptions& options, std::string_view feature);
[[nodiscard]] std::uint64_t SeedsOfAllPairs();

// What a schedule came to.
struct Outcome {
  sim::CheckCounts checks;
  ByKey::Counts by_key;
  std::uint64_t voided_rows = 0;  // by the audit
  bool scarce = false;  // some store lost rows for want of pages, or because its log was full
  std::uint64_t releases_below_zero = 0;
  std::uint64_t log_losses = 0;  // times that records were lost because a log was full
  std::string error;             // the engine could not be made

  // Nothing wrong, nothing unexplained, nothing voided, and pages enough where they were given.
  [[nodiscard]] bool clean(const Schedule& schedule) const;
  // Several lines for people.
  [[nodiscard]] std::string Describe(const Schedule& schedule) const;
};
[[nodiscard]] Outcome RunSchedule(const Schedule& schedule);

// Sums over many schedules.
struct Totals {
  std::int64_t schedules = 0;
  std::int64_t failed = 0;
  std::int64_t with_log_losses = 0;  // schedules
  sim::CheckCounts checks;
  ByKey::Counts by_key;

  void Add(const Outcome& outcome);
  [[nodiscard]] std::string ToString() const;
};

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_SCHEDULES_H_
