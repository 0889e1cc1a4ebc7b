// RowsByKey: the interface through which a simulated engine gets rows by key (Features::by_key,
// EngineOptions::rows_by_key). Its implementation has a tier for each store, says what other
// engines publish, and compares what comes.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_ROWS_BY_KEY_H_
#define WAYMARK_ADAPTERS_SIMULATORS_ROWS_BY_KEY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "adapters/simulators/cells.h"
#include "blockstore/events.h"
#include "blockstore/rows.h"
#include "blockstore/store/seal_sink.h"
#include "blockstore/store/snapshot.h"

namespace waymark::sim {

// What a read is asked for by key with, and what is there.
struct AskedByKey {
  std::vector<BlockKey> keys;  // of its full blocks; empty: the engine does not vouch for the KV
  std::uint32_t version = 0;   // the present one
  std::vector<KvCell> cells;   // of its rows; not present: the row is not the request's any more
};

// Called on the engine's thread.
class RowsByKey {
 public:
  virtual ~RowsByKey() = default;
  // Of the store of a stage, which the object outlives.
  [[nodiscard]] virtual std::shared_ptr<SealSink> sink(std::size_t stage) = 0;
  // Before the first step of a version.
  virtual void NameWeights(std::uint32_t version) = 0;
  // Another engine has computed a block in its step 1. `prefixes`: those that end with each of its
  // tokens.
  virtual void Publish(std::span<const PrefixHash> prefixes, std::uint32_t version) = 0;
  // Fills rows of a stage. `all_told`: every record has reached its store. `fail` receives what is
  // not as it must be.
  virtual void Fill(std::size_t stage, const Snapshot& snapshot, const AskedByKey& asked,
                    bool all_told, Rows& rows, const std::function<void(std::string)>& fail) = 0;
  // Replaces the step numbers that rows by key have for other stores by those of their publishers.
  virtual void Localize(Rows& rows) const = 0;
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_ROWS_BY_KEY_H_
