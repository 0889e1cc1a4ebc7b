// Capture, over a Block: what the kernel runs on a device, and tests run on the host. Internal to
// kernels.
//
// Ids without gaps: a thread makes one vector of the view, 8 ids. Others: 32 rows per block, an id
// per thread, neighbours with neighbours; 256 rows are 8 blocks, so that all of it is on its way at
// once: the call is one of many small ones in a graph, and takes what a load and a store take.
// There is one phase, and no shared memory.
#ifndef WAYMARK_KERNELS_CAPTURE_KERNEL_H_
#define WAYMARK_KERNELS_CAPTURE_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "kernels/capture_ids.h"
#include "kernels/pack_cuda.h"
#include "kernels/row_tile.h"

namespace waymark::kernels::device {

// A checked call of CaptureIdsOnCuda, and what follows from it. Plain data, an argument of the
// kernel; owns nothing.
struct CapturePlan {
  IdsView ids;                   // layer_stride is ignored
  std::int64_t rows = 0;         // of `ids` and of the view
  unsigned top_k = 0;            // K: columns that are copied
  std::int16_t* view = nullptr;  // [rows, top_k], C order
  Divider by_top_k;
  std::uint64_t blocks = 0;  // of kThreads threads; 0: nothing to do
  bool aligned = false;      // every id lies at a multiple of its size
  bool vectors = false;      // ids without gaps, and `ids` and `view` begin at multiples of kVector
};

// Rows of a block of a call that is not made of vectors.
inline constexpr unsigned kCaptureRows = 32;
// Ids of the view in one vector.
inline constexpr unsigned kVectorIds = kVector / sizeof(std::int16_t);

// False if an argument breaks a rule of CaptureIdsOnCuda, except the overlap of input and view,
// which is not checked. Without rows, the pointers are not looked at.
[[nodiscard]] inline bool CheckCapture(const IdsView& ids, std::int64_t rows, std::int32_t top_k,
                                       const std::int16_t* view) {
  if (ids.kind != IdKind::kInt16 && ids.kind != IdKind::kInt32 && ids.kind != IdKind::kInt64) {
    return false;
  }
  if (!CheckRows(rows) || top_k < 1 || top_k > kMaxTopK) return false;
  return rows == 0 || (ids.data != nullptr && view != nullptr &&
                       reinterpret_cast<std::uintptr_t>(view) % sizeof(*view) == 0);
}

// REQUIRES: CheckCapture of the same.
[[nodiscard]] inline CapturePlan PlanCapture(const IdsView& ids, std::int64_t rows,
                                             std::int32_t top_k, std::int16_t* view) {
  CapturePlan plan;
  plan.ids = ids;
  plan.rows = rows;
  plan.top_k = static_cast<unsigned>(top_k);
  plan.view = view;
  plan.by_top_k = Divider::Of(plan.top_k);
  const auto id = static_cast<std::ptrdiff_t>(IdKindBytes(ids.kind));
  const std::uintptr_t data = reinterpret_cast<std::uintptr_t>(ids.data);
  const auto addresses = static_cast<std::ptrdiff_t>(data) | ids.row_stride | ids.k_stride;
  plan.aligned = (addresses & (id - 1)) == 0;
  plan.vectors = (top_k == 1 || ids.k_stride == id) && ids.row_stride == id * top_k &&
                 (data | reinterpret_cast<std::uintptr_t>(view)) % kVector == 0;
  const auto work = static_cast<std::uint64_t>(rows) * (plan.vectors ? plan.top_k : 1);
  const std::uint64_t of_block = plan.vectors ? kThreads * kVectorIds : kCaptureRows;
  plan.blocks = (work + of_block - 1) / of_block;
  return plan;
}

// The integer at `at`; `aligned`: at a multiple of its size. Else a byte at a time, and by hand: a
// compiler that sees one load twice, once of any alignment, makes both of bytes.
template <class T>
WAYMARK_DEVICE T LoadAnywhere(const std::uint8_t* at, bool aligned) {
  if (aligned) return Load<T>(at);
  std::uint64_t value = 0;
  for (unsigned i = 0; i < sizeof(T); ++i)
    value |= std::uint64_t{at[i]} << (8 * i);
  return static_cast<T>(value);
}

// The id as the view has it. A wider type's ids below -1 and above 32767 become
// kUnrepresentableId; int16 ids stay as they are.
template <class Input>
WAYMARK_DEVICE std::int16_t ToView(Input id) {
  if constexpr (sizeof(Input) > sizeof(std::int16_t)) {
    if (id < -1 || id > 32767) return kUnrepresentableId;
  }
  return static_cast<std::int16_t>(id);
}

// The work of block.index(), one of plan.blocks. Input: the integer type of plan.ids.kind.
// kVectors: plan.vectors.
template <class Input, bool kVectors, class Block>
WAYMARK_DEVICE void CaptureTile(const Block& block, const CapturePlan& plan) {
  const auto* const data = static_cast<const std::uint8_t*>(plan.ids.data);
  auto* const view = reinterpret_cast<std::uint8_t*>(plan.view);
  block.ForEachThread([&](unsigned thread) {
    if constexpr (kVectors) {
      const std::uint64_t count = static_cast<std::uint64_t>(plan.rows) * plan.top_k;
      const std::uint64_t first = (block.index() * kThreads + thread) * kVectorIds;
      if (first >= count) return;
      const std::uint8_t* const from = data + first * sizeof(Input);
      std::uint8_t* const to = view + first * sizeof(std::int16_t);
      if (count - first < kVectorIds) {
        for (unsigned i = 0; i < count - first; ++i) {
          Store(to + i * sizeof(std::int16_t), ToView(Load<Input>(from + i * sizeof(Input))));
        }
        return;
      }
      alignas(kVector) Input ids[kVectorIds];
      alignas(kVector) std::int16_t narrow[kVectorIds];
      CopyParts<sizeof(ids)>(ids, from);
      for (unsigned i = 0; i < kVectorIds; ++i)
        narrow[i] = ToView(ids[i]);
      CopyParts<sizeof(narrow)>(to, narrow);
    } else {
      const auto begin = static_cast<std::int64_t>(block.index() * kCaptureRows);
      const auto rows = static_cast<unsigned>(plan.rows - begin < kCaptureRows ? plan.rows - begin
                                                                               : kCaptureRows);
      const std::uint8_t* const from = data + begin * plan.ids.row_stride;
      std::uint8_t* const to =
          view + static_cast<std::uint64_t>(begin) * plan.top_k * sizeof(std::int16_t);
      for (unsigned i = thread; i < rows * plan.top_k; i += kThreads) {
        const unsigned row = plan.by_top_k.Quotient(i);
        const unsigned k = i - row * plan.top_k;
        const auto id =
            LoadAnywhere<Input>(from + static_cast<std::ptrdiff_t>(row) * plan.ids.row_stride +
                                    static_cast<std::ptrdiff_t>(k) * plan.ids.k_stride,
                                plan.aligned);
        Store(to + i * sizeof(std::int16_t), ToView(id));
      }
    }
  });
}

// Calls visit.operator()<Input, kVectors>() with what CaptureTile is to be instantiated with.
template <class Visitor>
void VisitCapture(const CapturePlan& plan, Visitor&& visit) {
  const auto with_input = [&]<class Input>() {
    if (plan.vectors) return visit.template operator()<Input, true>();
    return visit.template operator()<Input, false>();
  };
  switch (plan.ids.kind) {
    case IdKind::kInt32:
      return with_input.template operator()<std::int32_t>();
    case IdKind::kInt64:
      return with_input.template operator()<std::int64_t>();
    default:
      return with_input.template operator()<std::int16_t>();
  }
}

}  // namespace waymark::kernels::device

#endif  // WAYMARK_KERNELS_CAPTURE_KERNEL_H_
