// RouteOracle: computes the right row of every token, as a hash of its prefix, the layer and the
// weights version.
//
// The last layer of every pipeline stage depends on the step, too, as batch-variant arithmetic
// does, so that another pass over the same prefix has another row. Takes about 100 ns per row at L
// = 4, K = 8. The K ids of a layer are distinct: [0, E) is cut into K strata, and the k-th id comes
// from the k-th.
//
// OracleRows: the rows of one simulated step, which the oracle computes when they land.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_ORACLE_H_
#define WAYMARK_ADAPTERS_SIMULATORS_ORACLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "adapters/simulators/hash.h"
#include "blockstore/mutex.h"
#include "blockstore/shape.h"
#include "blockstore/store/step_rows.h"
#include "blockstore/store/store.h"

namespace waymark::sim {

// Immutable: const access from any thread.
class RouteOracle {
 public:
  // Each of `stages` pipeline stages has a run of consecutive layers; the lengths differ by at most
  // one. REQUIRES: 1 <= stages <= num_layers, 1 <= top_k <= num_experts <= 65535.
  RouteOracle(std::int32_t num_layers, std::int32_t top_k, std::int32_t num_experts,
              std::int32_t stages = 1);

  [[nodiscard]] std::int32_t stages() const {
    return static_cast<std::int32_t>(first_layer_.size()) - 1;
  }
  // The shape of the rows of one stage, with the model's layer numbers.
  [[nodiscard]] RoutingShape StageShape(std::int32_t stage, std::int32_t page_tokens) const;
  // The shape of rows with all layers, as JoinLayers returns it.
  [[nodiscard]] RoutingShape WholeShape(std::int32_t page_tokens) const;
  // Bytes of a row with all layers.
  [[nodiscard]] std::size_t row_bytes() const;

  // Writes the row of one stage, as the store keeps rows, to `out` (StageShape().row_bytes()).
  void StageRow(std::int32_t stage, const PrefixHash& prefix, std::uint64_t version,
                std::uint64_t step, std::uint8_t* out) const;
  // Writes the row with all layers to `out` (row_bytes()).
  void Row(const PrefixHash& prefix, std::uint64_t version, std::uint64_t step,
           std::uint8_t* out) const;

 private:
  template <class Id>
  void Layers(std::int32_t first, std::int32_t last, const PrefixHash& prefix,
              std::uint64_t version, std::uint64_t step, std::uint8_t* out) const;

  std::int32_t top_k_;
  std::int32_t num_experts_;
  std::vector<std::int32_t> first_layer_;  // first layer of each stage, then num_layers
  std::vector<std::uint32_t> base_;        // first id of stratum k
  std::vector<std::uint32_t> width_;       // ids in stratum k
};

class OracleRows;

// Owns every OracleRows and reuses them between steps. Any thread. Must outlive the stores to which
// they are submitted.
class OracleRowsPool {
 public:
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
  std::int64_t silent_ = -1;
  Reason verdict_ = Reason::kNotCaptured;
};

// StepFeed: the interface through which a simulated engine calls its store for a step
// (EngineOptions::feed), e.g. by a capture session.
//
// One per store; called on the engine's thread. Returns what RoutingStore's calls return.
class StepFeed {
 public:
  virtual ~StepFeed() = default;
  [[nodiscard]] virtual StepCode Begin(const StepBatch& batch) = 0;
  // `rows` has the rows of the step's forward. rows->Done() is called exactly once, in this call or
  // later.
  [[nodiscard]] virtual StepCode Submit(StepId step, OracleRows* rows) = 0;
  [[nodiscard]] virtual StepCode Drop(StepId step) = 0;
  [[nodiscard]] virtual StepCode Cancel(StepId step) = 0;
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_ORACLE_H_
