// IdsRowSource: the rows of a step straight from a tensor that the engine owns. No buffer, no copy
// but the one into the page.
#ifndef WAYMARK_PLUGIN_CAPTURE_IDS_ROW_SOURCE_H_
#define WAYMARK_PLUGIN_CAPTURE_IDS_ROW_SOURCE_H_

#include <cstdint>
#include <memory>
#include <span>

#include "blockstore/shape.h"
#include "blockstore/store/row_source.h"
#include "plugin/capture/ids_tensor.h"
#include "plugin/capture/layer_counters.h"

namespace waymark {

class RowLander;  // internal

// Called when nobody reads a step's tensor any more: on the landing thread, or on the engine's
// thread when the step was refused. Must not throw, and must not call the store or the session.
struct DoneCallback {
  void (*function)(void* context) = nullptr;  // null: nobody wants to know
  void* context = nullptr;

  void operator()() const {
    if (function != nullptr) function(context);
  }
};

// Packs rows out of one StepIds, checked like captured ones. Reusable: Set, submit, Done, Set, ...
// Set: the engine's thread, before the source is submitted. The rest: the landing thread.
class IdsRowSource : public RowSource {
 public:
  // `counters` may be null. `max_rows`: the most rows that Set will see.
  IdsRowSource(const RoutingShape& shape, std::int32_t max_rows,
               std::shared_ptr<LayerCounters> counters);
  ~IdsRowSource() override;
  IdsRowSource(const IdsRowSource&) = delete;
  IdsRowSource& operator=(const IdsRowSource&) = delete;

  // REQUIRES: ids.layers == L, ids.columns >= K, 0 <= ids.rows <= max_rows. Does not allocate.
  // `ids` stays the caller's and must not change until `done` is called, which is once.
  void Set(const StepIds& ids, DoneCallback done);

  // As RowSource says: row first + i of the tensor goes to destinations[i], packed, unless that is
  // null. Rows at or beyond ids.rows are missing (not captured).
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override;
  // Forgets the tensor, then calls `done`: the engine may free or reuse it from then on.
  void Done() override;

 private:
  const std::unique_ptr<RowLander> lander_;
  StepIds ids_;
  DoneCallback done_;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_IDS_ROW_SOURCE_H_
