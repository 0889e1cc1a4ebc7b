// Conversions between the plain types of kernels/ and of blockstore/, which do not know each
// other. Every conversion is here. Included by this folder, plugin/python and adapters/trainer.
//
// Pure functions of values: any thread, no errors.
#ifndef WAYMARK_PLUGIN_CAPTURE_IDS_KIND_H_
#define WAYMARK_PLUGIN_CAPTURE_IDS_KIND_H_

#include "blockstore/row_info.h"
#include "blockstore/rows.h"
#include "blockstore/shape.h"
#include "kernels/ids_view.h"
#include "kernels/pack_rows.h"

namespace waymark {

// The integer type of a tensor's ids: the same width and signedness, little-endian on both sides.
inline kernels::IdKind ToKind(IdType type) {
  static_assert(static_cast<int>(kernels::IdKind::kUint8) == static_cast<int>(IdType::kUint8) &&
                static_cast<int>(kernels::IdKind::kUint16) == static_cast<int>(IdType::kUint16) &&
                static_cast<int>(kernels::IdKind::kInt16) == static_cast<int>(IdType::kInt16) &&
                static_cast<int>(kernels::IdKind::kInt32) == static_cast<int>(IdType::kInt32) &&
                static_cast<int>(kernels::IdKind::kInt64) == static_cast<int>(IdType::kInt64));
  return static_cast<kernels::IdKind>(type);
}

// L, K and E, without page size and layer ids, which kernels do not need.
// REQUIRES: shape.Validate() is OK; kernels do not check it again.
inline kernels::RowShape ToRowShape(const RoutingShape& shape) {
  return {shape.num_layers, shape.top_k, shape.num_experts};
}

// The reason that the store records for a row with this verdict. kNone: every id of the row is in
// range, and the ids of each layer are distinct. Otherwise the verdict is the first faulty
// layer's.
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
