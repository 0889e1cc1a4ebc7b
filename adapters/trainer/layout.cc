#include "adapters/trainer/layout.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "adapters/trainer/invalid.h"

namespace waymark {
namespace {

using Steps = internal::LayoutSteps;
using Window = internal::LayoutWindow;

constexpr std::int64_t kMostTokens = (std::int64_t{1} << 31) - 1;

std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

absl::Status CheckRank(const char* name, std::int32_t size, std::int32_t rank) {
  if (size < 1) return Invalid("layout.", name, "_size: must be at least 1, got ", size);
  if (rank >= 0 && rank < size) return absl::OkStatus();
  return Invalid("layout.", name, "_rank: must be in [0, ", size, "), got ", rank);
}

absl::Status CheckMultiple(const char* name, std::int64_t multiple) {
  if (multiple >= 1 && multiple <= kMostTokens) return absl::OkStatus();
  return Invalid("layout.", name, ": must be in [1, 2^31), got ", multiple);
}

absl::Status CheckLayout(const TrainerLayout& layout) {
  if (layout.order > TokenOrder::kBatchMajor) {
    return Invalid("layout.order: must be a TokenOrder, got ", static_cast<int>(layout.order));
  }
  if (layout.context_cut > ContextCut::kStream) {
    return Invalid("layout.context_cut: must be a ContextCut, got ",
                   static_cast<int>(layout.context_cut));
  }
  for (const absl::Status& status : {CheckRank("context", layout.context_size, layout.context_rank),
                                     CheckRank("tensor", layout.tensor_size, layout.tensor_rank),
                                     CheckMultiple("sequence_multiple", layout.sequence_multiple),
                                     CheckMultiple("total_multiple", layout.total_multiple),
                                     CheckMultiple("local_multiple", layout.local_multiple)}) {
    if (!status.ok()) return status;
  }
  if (layout.order == TokenOrder::kPacked) return absl::OkStatus();
  if (layout.context_cut == ContextCut::kStream) {
    return Invalid("layout.context_cut: kStream is of packed sequences alone");
  }
  if (layout.total_multiple != 1 || layout.local_multiple != 1) {
    return Invalid("layout.total_multiple, layout.local_multiple: must be 1 unless packed, got ",
                   layout.total_multiple, " and ", layout.local_multiple);
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(std::span<const std::int64_t> lengths,
                          std::span<const std::int64_t> padded) {
  if (!padded.empty() && padded.size() != lengths.size()) {
    return Invalid("padded_lengths: must be empty or one of each of ", lengths.size(),
                   " sequences, got ", padded.size());
  }
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > kMostTokens) {
      return Invalid("lengths[", i, "]: must be in [0, 2^31), got ", lengths[i]);
    }
    if (!padded.empty() && (padded[i] < lengths[i] || padded[i] > kMostTokens)) {
      return Invalid("padded_lengths[", i, "]: must be in [lengths[", i, "] = ", lengths[i],
                     ", 2^31), got ", padded[i]);
    }
  }
  return absl::OkStatus();
}

// What a context rank has of a padded sequence, first to last. REQUIRES: `padded` can be cut.
std::vector<Steps> Cut(const TrainerLayout& layout, std::int64_t padded) {
  const std::int64_t rank = layout.context_rank;
  const std::int64_t size = layout.context_size;
  if (size == 1) return {{0, padded, 0}};
  if (layout.context_cut == ContextCut::kContiguous) {
    const std::int64_t chunk = padded / size;
    return {{rank * chunk, (rank + 1) * chunk, 0}};
  }
  const std::int64_t chunk = padded / (2 * size);
  const std::int64_t back = 2 * size - 1 - rank;
  return {{rank * chunk, (rank + 1) * chunk, 0}, {back * chunk, (back + 1) * chunk, chunk}};
}

// Whether a padded length can be cut between the context ranks.
absl::Status CheckCut(const TrainerLayout& layout, const std::string& name, std::int64_t padded) {
  if (layout.context_size == 1) return absl::OkStatus();
  const std::int64_t parts =
      std::int64_t{layout.context_size} * (layout.context_cut == ContextCut::kZigzag ? 2 : 1);
  if (padded % parts == 0) return absl::OkStatus();
  return Invalid(name, ": must be a multiple of ", parts,
                 " to be cut between the context ranks, got ", padded);
}

// The steps of `steps` that a tensor rank has.
absl::StatusOr<Window> WindowOf(const TrainerLayout& layout, const char* what, std::int64_t steps) {
  if (!layout.sequence_parallel) return Window{0, steps};
  const std::int64_t size = layout.tensor_size;
  if (steps % size != 0) {
    return Invalid(what, " of a context rank: must be a multiple of layout.tensor_size = ", size,
                   " with sequence_parallel, got ", steps);
  }
  const std::int64_t part = steps / size;
  return Window{layout.tensor_rank * part, (layout.tensor_rank + 1) * part};
}

}  // namespace

// Keeps those tokens of the window that are no padding.
void RowPlan::Add(std::int64_t sequence, const Steps& steps, const Window& window,
                  std::int64_t first_row, std::int64_t stride) {
  const std::int64_t end = std::min(steps.end, lengths_[static_cast<std::size_t>(sequence)]);
  const std::int64_t from = std::max<std::int64_t>(0, window.begin - steps.to);
  const std::int64_t to = std::min(end - steps.begin, window.end - steps.to);
  if (from >= to) return;
  segments_.push_back({.sequence = static_cast<std::int32_t>(sequence),
                       .position = steps.begin + from,
                       .count = to - from,
                       .row = first_row + (steps.to + from - window.begin) * stride,
                       .row_stride = stride});
}

absl::Status RowPlan::AddPacked(const TrainerLayout& layout, std::vector<std::int64_t> padded) {
  std::int64_t total = 0;
  for (const std::int64_t length : padded)
    total += length;
  if (!padded.empty()) padded.back() += RoundUp(total, layout.total_multiple) - total;
  total = RoundUp(total, layout.total_multiple);
  if (total > kMostTokens) {
    return Invalid("lengths: must be fewer than 2^31 tokens when padded, got ", total);
  }
  const bool stream = layout.context_cut == ContextCut::kStream;
  if (stream) {
    if (absl::Status status = CheckCut(layout, "the padded micro-batch", total); !status.ok()) {
      return status;
    }
  } else {
    for (std::size_t i = 0; i < padded.size(); ++i) {
      const std::string name = absl::StrCat("lengths[", i, "], padded");
      if (absl::Status status = CheckCut(layout, name, padded[i]); !status.ok()) return status;
    }
  }
  const std::int64_t own = total / layout.context_size;
  const absl::StatusOr<Window> window =
      WindowOf(layout, "rows", RoundUp(own, layout.local_multiple));
  if (!window.ok()) return window.status();
  rows_ = window->end - window->begin;
  std::int64_t start = 0;  // of the sequence: in the stream, or in what the context rank has
  for (std::size_t i = 0; i < padded.size(); ++i) {
    const auto sequence = static_cast<std::int64_t>(i);
    const std::int64_t size = padded[i];
    if (stream) {
      const std::int64_t chunk = layout.context_rank * own;
      const std::int64_t begin = std::clamp(chunk - start, std::int64_t{0}, size);
      const std::int64_t end = std::clamp(chunk + own - start, std::int64_t{0}, size);
      Add(sequence, {begin, end, start + begin - chunk}, *window, 0, 1);
      start += size;
    } else {
      for (const Steps& piece : Cut(layout, size))
        Add(sequence, {piece.begin, piece.end, start + piece.to}, *window, 0, 1);
      start += size / layout.context_size;
    }
  }
  return absl::OkStatus();
}

absl::Status RowPlan::AddBatch(const TrainerLayout& layout, std::span<const std::int64_t> padded,
                               bool given) {
  const auto count = static_cast<std::int64_t>(padded.size());
  const std::int64_t steps = padded.empty() ? 0 : *std::max_element(padded.begin(), padded.end());
  if (given &&
      std::any_of(padded.begin(), padded.end(), [&](std::int64_t p) { return p != steps; })) {
    return Invalid("padded_lengths: must be equal unless packed, got ", padded.front(), " and ",
                   *std::find_if(padded.begin(), padded.end(),
                                 [&](std::int64_t p) { return p != padded.front(); }));
  }
  if (absl::Status status = CheckCut(layout, "the padded length", steps); !status.ok()) {
    return status;
  }
  const absl::StatusOr<Window> window = WindowOf(layout, "positions", steps / layout.context_size);
  if (!window.ok()) return window.status();
  const std::int64_t own = window->end - window->begin;
  if (count != 0 && own > kMostTokens / count) {
    return Invalid("lengths: must be fewer than 2^31 rows when padded, got ", count,
                   " sequences of ", own);
  }
  rows_ = own * count;
  const bool sequence_major = layout.order == TokenOrder::kSequenceMajor;
  for (std::int64_t i = 0; i < count; ++i) {
    for (const Steps& piece : Cut(layout, steps)) {
      Add(i, piece, *window, sequence_major ? i : i * own, sequence_major ? count : 1);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RowPlan> RowPlan::Make(const TrainerLayout& layout,
                                      std::span<const std::int64_t> lengths,
                                      std::span<const std::int64_t> padded_lengths) {
  if (absl::Status status = CheckLayout(layout); !status.ok()) return status;
  if (absl::Status status = CheckLengths(lengths, padded_lengths); !status.ok()) return status;
  if (lengths.size() > static_cast<std::size_t>(kMostTokens)) {
    return Invalid("lengths: must be fewer than 2^31, got ", lengths.size());
  }
  std::vector<std::int64_t> padded(padded_lengths.begin(), padded_lengths.end());
  if (padded.empty()) {
    for (const std::int64_t length : lengths)
      padded.push_back(RoundUp(length, layout.sequence_multiple));
  }
  RowPlan plan;
  plan.lengths_.assign(lengths.begin(), lengths.end());
  const absl::Status status =
      layout.order == TokenOrder::kPacked
          ? plan.AddPacked(layout, std::move(padded))
          : plan.AddBatch(layout, padded, /*given=*/!padded_lengths.empty());
  if (!status.ok()) return status;
  return plan;
}

void RowPlan::Places(std::span<TokenPlace> places) const {
  std::fill(places.begin(), places.end(), TokenPlace{});
  for (const RowSegment& segment : segments_) {
    for (std::int64_t i = 0; i < segment.count; ++i) {
      places[static_cast<std::size_t>(segment.row + i * segment.row_stride)] = {
          segment.sequence, segment.position + i};
    }
  }
}

}  // namespace waymark
