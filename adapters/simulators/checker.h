// Checker: compares what the store gives with what the requests attended to.
//
//   wrong        the row is not that of a pass that is acceptable for (request, position).
//   Acceptable is
//                the first pass whose KV the request attended to there; a later one only if every
//                earlier one was destroyed; and, for a row marked "by key" or "kept", another pass
//                of the same prefix and version. A row that names a false step or version is wrong,
//                whatever it holds.
//   missing      no row, and something destroyed it: its step was dropped or cancelled, its layer
//   was
//                silent, the request did not ask, the KV came from outside without routing, a
//                reset, its page was evicted or there was none, or could have no key.
//   unexplained  no row, and nothing of that happened to any pass that the request attended to
//   there.
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

// A read that waits until its snapshots are ready.
struct ReadJob {
  RequestPtr request;  // for its name; its stream may have changed since
  std::int64_t rows = 0;
  SeenCells seen;
  std::vector<PrefixHash> prefix;  // as Request::prefix
  Parts parts;
  bool finished = true;  // of a finished request; else of one that is read while it runs
};

// What the checks have found.
struct CheckCounts {
  std::int64_t requests = 0;
  std::int64_t rows = 0;
  std::int64_t exact = 0, kept = 0, by_key = 0;
  std::int64_t wrong = 0;
  std::int64_t unexplained = 0;
  std::array<std::int64_t, kNumReasons> missing{};  // by reason, unexplained ones included
  // Missing rows with one cell: by its excuse (first) and the reason that the store gave (second).
  std::array<std::array<std::int64_t, kNumReasons>, kNumExcuses> reasons{};
  std::vector<std::string> findings;  // the first 20
  // One of the valid rows of each request, in the order in which they were read; see
  // EngineOptions::collect_digests.
  struct Digest {
    std::uint32_t request = 0;
    std::uint64_t rows = 0;
  };
  std::vector<Digest> digests;
};

class Checker {
 public:
  // `scarce`: whether any store has lost rows for want of pages (or base) so far. Both outlive
  // this.
  Checker(const RouteOracle* oracle, const ExcuseBook* excuses, std::int32_t block_tokens,
          std::int32_t page_tokens, bool collect_digests, std::function<bool()> scarce);

  [[nodiscard]] static bool Ready(const ReadJob& job);
  // Reads and compares all rows of `job`, and gives its snapshots back. REQUIRES: Ready(job).
  void Check(ReadJob& job);
  // Reads a part's snapshots into rows, and gives them back. REQUIRES: they are ready.
  void ReadPart(Part& part);
  // Something that must not happen: counted as a wrong row.
  void Fail(std::string what);

  [[nodiscard]] const CheckCounts& counts() const { return counts_; }

 private:
  void CheckRow(const ReadJob& job, std::int64_t position, const RowInfo& info,
                const std::uint8_t* row);
  void CheckValid(const ReadJob& job, std::int64_t position, const RowInfo& info,
                  const std::uint8_t* row);
  void CheckMissing(const ReadJob& job, std::int64_t position, const RowInfo& info);
  // The infos of the page that holds this row of `infos`, as far as they were read.
  [[nodiscard]] std::span<const RowInfo> PageOf(std::span<const RowInfo> infos,
                                                std::size_t row) const;
  // Whether the page that is attached there may stand in for the one that `cell` was attended to
  // in.
  [[nodiscard]] bool StandsInRightly(const ReadJob& job, std::int64_t position,
                                     const SeenCell& cell);
  [[nodiscard]] Excuse Why(const SeenCell& cell, const PrefixHash& prefix,
                           const PrefixHash& block_start) const;
  void Report(const char* what, const ReadJob& job, std::int64_t position, const RowInfo& info);

  const RouteOracle* oracle_;
  const ExcuseBook* excuses_;
  const std::int32_t block_tokens_;
  const std::int32_t page_tokens_;
  const bool collect_digests_;
  const std::function<bool()> scarce_;
  CheckCounts counts_;
  std::uint64_t digest_ = 0;
  std::vector<std::uint8_t> expected_, buffer_;
  std::vector<RowInfo> infos_;
  std::span<const RowInfo> page_;     // of the row at hand
  std::vector<SeenCell> cells_;       // of the row at hand
  std::vector<SeenCell> page_cells_;  // of another row of its page
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_CHECKER_H_
