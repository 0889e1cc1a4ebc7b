// Random records: a small store driven by seed, record by record, in any order that the interface
// allows. Events are reported in batches and outside them; snapshots are taken and prefixes asked
// for between them; schedules are given up; steps end and land in any order; records are lost.
// Unlike the simulators it imitates no engine.
#ifndef WAYMARK_TESTS_CONFORMANCE_RANDOM_RECORDS_H_
#define WAYMARK_TESTS_CONFORMANCE_RANDOM_RECORDS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "blockstore/store/store.h"

namespace waymark::conformance {

// How the events of a schedule reach the store.
enum class Reporting {
  kMixed,     // some in the batch, some outside it, with snapshots in between
  kBatches,   // all in the batch
  kOneByOne,  // Schedule, each by itself, then a batch without events
};

// The options of the store of a seed. Its pages suffice. The rows are random, so that an audit
// voids most of what it compares.
[[nodiscard]] StoreOptions RecordsOptions(std::uint64_t seed, bool audit = false);
// The same with 3 to 10 pages and as many spare ones at most.
[[nodiscard]] StoreOptions FewPages(std::uint64_t seed);
// What looks on; each may be null.
struct RecordsHooks {
  std::shared_ptr<FlightSink> sink;
  std::function<void()> between_schedules;
  bool audit = false;       // of the store
  bool few_pages = false;   // FewPages
  bool equal_rows = false;  // all rows have the same ids: no audit finds fault with random records
};

// Runs the records of a seed. Returns one text per row that was read, in order.
[[nodiscard]] std::vector<std::string> RunRecords(std::uint64_t seed, Reporting reporting,
                                                  const RecordsHooks& hooks = {});

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_RANDOM_RECORDS_H_
