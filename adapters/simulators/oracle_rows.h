// OracleRows: the rows of one simulated step, which the oracle computes when they land.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_ORACLE_ROWS_H_
#define WAYMARK_ADAPTERS_SIMULATORS_ORACLE_ROWS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "adapters/simulators/hash.h"
#include "adapters/simulators/oracle.h"
#include "blockstore/mutex.h"
#include "blockstore/store/step_rows.h"

namespace waymark::sim {

class OracleRows;

// Owns every OracleRows and reuses them between steps. Any thread. Must outlive the stores to which
// they are submitted.
class OracleRowsPool {
 public:
  OracleRowsPool();
  ~OracleRowsPool();
  // Returns an empty one. Fill it, then submit it (Done returns it) or call Return.
  [[nodiscard]] OracleRows* Take();
  void Return(OracleRows* rows);
  // The number of those that were taken and not returned.
  [[nodiscard]] std::int64_t out() const;
  // The number of returns of rows that had been returned already.
  [[nodiscard]] std::int64_t returned_twice() const;

 private:
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<OracleRows>> all_ ABSL_GUARDED_BY(mutex_);
  std::vector<OracleRows*> free_ ABSL_GUARDED_BY(mutex_);
  std::int64_t returned_twice_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Filled on the engine's thread, read on the landing thread, and returned to its pool by Done.
class OracleRows final : public StepRows {
 public:
  explicit OracleRows(OracleRowsPool* pool) : pool_(pool) {}

  // Sets the rows of a step of one stage. `prefixes`: one per row. `silent` (-1: none) is the row
  // that a layer (row % L) did not write; its verdict is `verdict`.
  void Fill(const RouteOracle* oracle, std::int32_t stage, std::uint64_t step,
            std::uint64_t version, std::span<const PrefixHash> prefixes, std::int64_t silent,
            Reason verdict);

  // Sets the KV slot of each row, for a device step.
  void FillSlots(std::span<const std::int64_t> slots) { slots_.assign(slots.begin(), slots.end()); }
  [[nodiscard]] std::span<const std::int64_t> slots() const { return slots_; }
  // Makes Slots return that they are lost.
  void LoseSlots() { slots_lost_ = true; }

  std::optional<std::span<const std::int64_t>> Slots() override {
    if (slots_lost_) return std::nullopt;
    return slots_;
  }
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override;
  // Writes every layer, also the faulty one.
  bool LandLayers(std::uint32_t row, std::uint8_t* destination,
                  std::span<std::uint8_t> written) override;
  void Done() override { pool_->Return(this); }

 private:
  friend class OracleRowsPool;
  OracleRowsPool* pool_;
  bool taken_ = false;  // guarded by the pool's mutex
  const RouteOracle* oracle_ = nullptr;
  std::int32_t stage_ = 0;
  std::uint64_t step_ = 0;
  std::uint64_t version_ = 0;
  std::vector<PrefixHash> prefixes_;
  std::vector<std::int64_t> slots_;  // empty except for a device step
  bool slots_lost_ = false;
  std::int64_t silent_ = -1;
  Reason verdict_ = Reason::kNotCaptured;
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_ORACLE_ROWS_H_
