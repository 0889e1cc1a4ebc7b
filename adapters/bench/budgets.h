// The budgets of Waymark on the host, and what this machine makes of them (docs/benchmarks.md).
#ifndef WAYMARK_ADAPTERS_BENCH_BUDGETS_H_
#define WAYMARK_ADAPTERS_BENCH_BUDGETS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace waymark::bench {

// What a budget limits.
enum class Limit : std::uint8_t {
  kMicros,      // a call, in microseconds: at most
  kMillis,      // a call, in milliseconds: at most
  kTimes,       // a call's time in its baseline's: at most
  kSpeed,       // of the baseline's speed: at least
  kMegabytes,   // bytes, in units of 10^6: at most
  kTimesBytes,  // bytes in the baseline's: at most
};

struct Budget {
  std::string_view name;  // what BudgetOptions::only takes
  std::string_view what;
  Limit limit;
  double value;
  std::string_view baseline = "";  // "": none
  // Calls of milliseconds are seldom left undisturbed on a machine that others use. They and their
  // baseline are judged by the lower decile of the thread's processor time; other calls by the
  // median of the time on the clock.
  bool slow = false;
};

// In the order of the table.
[[nodiscard]] std::span<const Budget> Budgets();

// Zero: does not apply.
struct BudgetResult {
  Budget budget;
  std::size_t turns = 0;
  double median_us = 0;    // of calls that were timed one by one
  double decile_us = 0;    // the lower one
  double baseline_us = 0;  // timed in turns with the calls, and judged as they are
  std::uint64_t bytes = 0;
  double ratio = 0;  // to the baseline; of kSpeed, of the baseline to the call
  bool met = false;
};

struct BudgetOptions {
  std::string only;             // budgets whose name begins so
  double seconds = 20;          // of measuring, in equal shares; filling stores comes on top
  std::int64_t store_rows = 0;  // rows of each store, a multiple of kPrefillRows
};

// Measures on the calling thread. `progress` gets rows done, rows in all and the name of the next.
// Throws std::runtime_error when a store refuses its work, std::bad_alloc when memory is short.
[[nodiscard]] std::vector<BudgetResult> MeasureBudgets(
    const BudgetOptions& options,
    const std::function<void(std::size_t, std::size_t, std::string_view)>& progress);

}  // namespace waymark::bench

#endif  // WAYMARK_ADAPTERS_BENCH_BUDGETS_H_
