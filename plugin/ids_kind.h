// The kernels' names for what the store and its readers call shape and id type, and what follows.
// Included by this folder only.
#ifndef WAYMARK_PLUGIN_IDS_KIND_H_
#define WAYMARK_PLUGIN_IDS_KIND_H_

#include "blockstore/row_info.h"
#include "blockstore/rows.h"
#include "blockstore/shape.h"
#include "kernels/ids_view.h"
#include "kernels/pack_rows.h"

namespace waymark {

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

inline kernels::RowShape ToRowShape(const RoutingShape& shape) {
  return {shape.num_layers, shape.top_k, shape.num_experts};
}

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

#endif  // WAYMARK_PLUGIN_IDS_KIND_H_
