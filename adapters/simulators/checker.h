// Checker: compares the rows that the store returns with the KV that the requests attended to. Each
// row is right or one of these:
//
//   wrong        The row is of no acceptable pass for the request and position. Acceptable
//                are: the first pass whose KV the request attended to there; a later one if the
//                rows of all earlier ones were destroyed; and, for a row marked "by key" or "kept",
//                another pass over the same prefix and version. A row whose ids are not from the
//                step and version that it names is always wrong.
//   missing      There is no row, and the engine destroyed it: its step was dropped or cancelled,
//                one of its layers was silent, the request did not ask, the KV came from another
//                engine without routing, the cache was reset, or its page was evicted, could not be
//                allocated or could not be indexed.
//   unexplained  There is no row, and none of that happened to any pass that the request attended
//                to there; or something did, but the store gives a reason of something else.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_CHECKER_H_
#define WAYMARK_ADAPTERS_SIMULATORS_CHECKER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "adapters/simulators/cells.h"
#include "adapters/simulators/oracle.h"
#include "adapters/simulators/request.h"
#include "blockstore/row_info.h"
#include "blockstore/rows.h"

namespace waymark::sim {

// The rows of a request to be checked when its snapshots are readable.
struct ReadJob {
  RequestPtr request;              // for its number alone; its stream may have changed since
  std::int64_t rows = 0;           // check positions [0, rows)
  SeenCells seen;                  // what the request attended to
  std::vector<PrefixHash> prefix;  // as Request::prefix
  Reads reads;                     // the reads, to be joined in order
  bool finished = true;            // false: the request is still running
  std::uint32_t due = 0;  // of one that is still running: the step from which on it is read
};

// The results of all checks. `rows` is the sum of exact, kept, by_key, wrong and missing.
struct CheckCounts {
  std::int64_t requests = 0;                     // finished requests
  std::int64_t rows = 0;                         // rows checked
  std::int64_t exact = 0, kept = 0, by_key = 0;  // right rows: of a pass attended to, or of another
  std::int64_t wrong = 0;
  // `missing` rows without an explanation, or with a reason that no explanation has.
  std::int64_t unexplained = 0;
  std::array<std::int64_t, kNumReasons> missing{};  // by the reason that the store returned
  std::vector<std::string> findings;  // the first 20 wrong or unexplained rows, one line each
  // A digest of the valid rows of each finished request, in the order in which they were read, if
  // EngineOptions::collect_digests is set.
  struct Digest {
    std::uint32_t request = 0;
    std::uint64_t rows = 0;
  };
  std::vector<Digest> digests;
};

// Not thread safe.
class Checker {
 public:
  // `oracle` and `excuses` are not owned and must outlive the checker. `scarce` returns whether any
  // store has lost rows so far because pages were short or its stamps wrapped.
  Checker(const RouteOracle* oracle, const ExcuseBook* excuses, std::int32_t block_tokens,
          std::int32_t page_tokens, bool collect_digests, std::function<bool()> scarce);

  // Whether all snapshots of `job` are readable.
  [[nodiscard]] static bool Ready(const ReadJob& job);
  // Reads and compares all rows of `job`, and releases its snapshots. REQUIRES: Ready(job).
  void Check(ReadJob& job);
  // Reads the snapshots into rows, and releases them. REQUIRES: they are readable.
  void FinishRead(Read& read);
  // Counts a failure that must not happen, e.g. of a read, as a wrong row. `what` is one line.
  void Fail(std::string what);

  // Fills all reads by key. `records_lost`: whether some did not reach a store. Both must outlive
  // the checker.
  void FillByKey(RowsByKey* by_key, const bool* records_lost) {
    by_key_ = by_key;
    records_lost_ = records_lost;
  }
  [[nodiscard]] const CheckCounts& counts() const { return counts_; }

 private:
  void CheckRow(const ReadJob& job, std::int64_t position, const RowInfo& info,
                const std::uint8_t* row);
  void CheckValid(const ReadJob& job, std::int64_t position, const RowInfo& info,
                  const std::uint8_t* row);
  void CheckMissing(const ReadJob& job, std::int64_t position, const RowInfo& info);
  // Whether a missing row has a cause that its reason may have.
  [[nodiscard]] static bool CauseFits(const RowInfo& info, bool scarce, bool evicted);
  // Why the row of `cell` may be missing.
  [[nodiscard]] ExcuseSet Why(const SeenCell& cell, const PrefixHash& prefix,
                              const PrefixHash& block_start) const;
  void Report(const char* what, const ReadJob& job, std::int64_t position, const RowInfo& info);

  const RouteOracle* oracle_;
  const ExcuseBook* excuses_;
  const std::int32_t block_tokens_;
  const std::int32_t page_tokens_;
  const bool collect_digests_;
  const std::function<bool()> scarce_;
  RowsByKey* by_key_ = nullptr;
  const bool* records_lost_ = nullptr;
  CheckCounts counts_;
  std::uint64_t digest_ = 0;
  std::vector<std::uint8_t> expected_;
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_CHECKER_H_
