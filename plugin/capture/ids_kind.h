// The kernels' names for what the store and its readers call shape and id type, and what follows.
// Included by this folder only.
//
// kernels/ knows nothing of blockstore/, so each has its own plain types for one thing; these are
// the only places where one becomes the other. Pure functions of values: any thread, no errors.
#ifndef WAYMARK_PLUGIN_CAPTURE_IDS_KIND_H_
#define WAYMARK_PLUGIN_CAPTURE_IDS_KIND_H_

#include "blockstore/row_info.h"
#include "blockstore/rows.h"
#include "blockstore/shape.h"
#include "kernels/ids_view.h"
#include "kernels/pack_rows.h"

namespace waymark {

// The integer type of a tensor's ids. Only its name changes: same width, same signedness,
// little-endian on both sides.
inline kernels::IdKind ToKind(IdType type) {
  switch (type) {
    case IdType::kUint8:
      return kernels::IdKind::kUint8;
    case IdType::kUint16:
      return kernels::IdKind::kUint16;
    case IdType::kInt16:
      return kernels::IdKind::kInt16;
    case IdType::kInt32:
      return kernels::IdKind::kInt32;
    case IdType::kInt64:
      return kernels::IdKind::kInt64;
  }
  return kernels::IdKind::kInt16;
}

// L, K and E: all that a kernel needs to pack a row. Page size and layer ids stay behind.
// REQUIRES: shape.Validate() is ok; kernels do not check it again.
inline kernels::RowShape ToRowShape(const RoutingShape& shape) {
  return {shape.num_layers, shape.top_k, shape.num_experts};
}

// What the store records of a row that a kernel has judged. kNone: the row is there, every id of it
// in range and distinct within its layer. Otherwise its first layer with a fault decides.
inline Reason ToReason(kernels::RowVerdict verdict) {
  switch (verdict) {
    case kernels::RowVerdict::kOk:
      return Reason::kNone;
    case kernels::RowVerdict::kNotWritten:
      return Reason::kNotCaptured;
    case kernels::RowVerdict::kInvalidId:
      return Reason::kInvalidId;
  }
  return Reason::kNotCaptured;
}

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_IDS_KIND_H_
