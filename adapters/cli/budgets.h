// The budgets of Waymark, and what this machine makes of them.
#ifndef WAYMARK_ADAPTERS_CLI_BUDGETS_H_
#define WAYMARK_ADAPTERS_CLI_BUDGETS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace waymark::cli {

// What a budget limits.
enum class Limit {
  kMicros,      // the median of a call, in microseconds: at most
  kMillis,      // the lower decile of a call, in milliseconds: at most
  kTimes,       // times the baseline: at most
  kSpeed,       // of the baseline's speed: at least
  kMegabytes,   // bytes, in units of 10^6: at most
  kTimesBytes,  // times the bytes of the baseline: at most
  kOwed,        // not measured by this program
};

// How the calls of a row are timed and judged, the baseline's likewise. Calls of a millisecond and
// more are seldom left undisturbed on a machine that others use.
enum class Judge {
  kMedian,       // calls of microseconds: the clock on the wall, the median
  kLowerDecile,  // calls of milliseconds: the thread's processor time, the lower decile
};

struct Budget {
  std::string_view name;  // what --only takes
  std::string_view what;
  Limit limit;
  double value;
  Judge judge;
  std::string_view baseline;  // "": none
  std::string_view owed;      // kOwed: the budget in words
};

// In the order of the table.
[[nodiscard]] std::span<const Budget> Budgets();

// The median and the lower decile of calls that were timed one by one, in microseconds.
struct Quantiles {
  double median = 0;
  double lower_decile = 0;
};

// Fields that do not apply are empty.
struct BudgetResult {
  Budget budget;
  std::size_t turns = 0;
  std::optional<Quantiles> time;
  std::optional<Quantiles> baseline;  // timed in turns with `time`
  std::optional<std::uint64_t> bytes;
  std::optional<double> ratio;  // to the baseline; of kSpeed, baseline to time
  std::optional<bool> met;      // empty: owed
};

struct BudgetOptions {
  std::string only;     // budgets whose name begins so
  double seconds = 20;  // of measuring, in equal shares; filling stores comes on top
  std::int64_t store_rows = 0;
};

// Measures on the calling thread. `progress` gets rows done, rows in all and the name of the next.
// Throws std::runtime_error when a store refuses its work, std::bad_alloc when memory is short.
[[nodiscard]] std::vector<BudgetResult> MeasureBudgets(
    const BudgetOptions& options,
    const std::function<void(std::size_t, std::size_t, std::string_view)>& progress);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_BUDGETS_H_
