// TrainerLayout, RowPlan: which tokens the rows of one rank's MoE layers belong to.
//
// A trainer flattens a micro-batch to rows, pads it and cuts it between ranks; its routers see
// [local rows, H]. Replay needs the expert ids of exactly these rows, in this order. The rules are
// those of Megatron-Core's packed (THD) and padded (BSHD) batches and of the trainers around it.
// Data parallelism has other micro-batches; expert parallelism changes nothing; a pipeline stage
// has other layers and the same rows.
#ifndef WAYMARK_ADAPTERS_TRAINER_LAYOUT_H_
#define WAYMARK_ADAPTERS_TRAINER_LAYOUT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace waymark {

// How the tokens of a micro-batch become rows, before they are cut for tensor parallelism.
enum class TokenOrder : std::uint8_t {
  kPacked,         // THD: sequence after sequence, each padded and cut between context ranks alone
  kSequenceMajor,  // BSHD, [S, B, H] flattened: row s * B + b. Megatron-Core
  kBatchMajor,     // BSHD, [B, S, H] flattened: row b * S + s. Hugging Face
};

// How context parallelism cuts a padded sequence of P tokens between C ranks.
enum class ContextCut : std::uint8_t {
  kZigzag,      // 2 C equal chunks; rank r has chunks r and 2 C - 1 - r. P is a multiple of 2 C
  kContiguous,  // C equal chunks; rank r has chunk r. P is a multiple of C
  kStream,      // kPacked only: C equal chunks of all padded sequences together; rank r has chunk r
};

// The place of a rank, and what is padded. Sizes and multiples are at least 1.
struct TrainerLayout {
  TokenOrder order = TokenOrder::kPacked;
  ContextCut context_cut = ContextCut::kZigzag;
  std::int32_t context_size = 1;  // C
  std::int32_t context_rank = 0;  // in [0, C)
  std::int32_t tensor_size = 1;
  std::int32_t tensor_rank = 0;
  // Whether tensor ranks cut the rows of their context rank into equal contiguous parts: of rows
  // (kPacked), or of positions (BSHD: all sequences of a position stay together). False: every
  // tensor rank has all of them.
  bool sequence_parallel = false;
  // Each sequence is padded to a multiple of it; a BSHD batch is the longest sequence, padded.
  std::int64_t sequence_multiple = 1;
  // kPacked: the sum of the padded sequences is padded to a multiple of it, behind the last one.
  std::int64_t total_multiple = 1;
  // kPacked: the rows of each context rank are padded to a multiple of it, behind the last one.
  std::int64_t local_multiple = 1;
};

// Tokens of one sequence whose rows are equally far apart: position + i is in row + i * row_stride.
struct RowSegment {
  std::int32_t sequence = 0;  // index in the lengths that the plan was made of
  std::int64_t position = 0;  // of the first token in its sequence
  std::int64_t count = 0;     // tokens, at least 1
  std::int64_t row = 0;       // local row of the first token
  std::int64_t row_stride = 1;
};

// The token of a local row.
struct TokenPlace {
  std::int32_t sequence = -1;  // -1: the row is padding
  std::int64_t position = -1;
  friend bool operator==(const TokenPlace&, const TokenPlace&) = default;
};

namespace internal {
// Positions [begin, end) of a padded sequence, of which the first is step `to` of what the context
// rank has of it.
struct LayoutSteps {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t to;
};
// Steps [begin, end) that a tensor rank has.
struct LayoutWindow {
  std::int64_t begin;
  std::int64_t end;
};
}  // namespace internal

// The local rows of one rank for one micro-batch. A value; any thread may read it.
class RowPlan {
 public:
  // `lengths`: the tokens of each sequence of the micro-batch, in the trainer's order, each in
  // [0, 2^31). `padded_lengths`: those after padding, for a trainer with rules of its own; empty:
  // by layout.sequence_multiple. total_multiple and local_multiple apply to both.
  //
  // InvalidArgument, naming the field, the rule and the value, unless the layout is valid and the
  // rows can be cut into equal parts: between context ranks and, with sequence_parallel, between
  // tensor ranks.
  [[nodiscard]] static absl::StatusOr<RowPlan> Make(
      const TrainerLayout& layout, std::span<const std::int64_t> lengths,
      std::span<const std::int64_t> padded_lengths = {});

  // Rows of this rank, padding included.
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  // Sequences of the micro-batch; length(i): the tokens of sequence i.
  [[nodiscard]] std::int32_t sequences() const {
    return static_cast<std::int32_t>(lengths_.size());
  }
  [[nodiscard]] std::int64_t length(std::int32_t sequence) const {
    return lengths_[static_cast<std::size_t>(sequence)];
  }
  // The tokens of this rank, by sequence and then by position. Rows in no segment are padding.
  [[nodiscard]] std::span<const RowSegment> segments() const { return segments_; }
  // The token of every row. REQUIRES: places.size() == rows().
  void Places(std::span<TokenPlace> places) const;

 private:
  RowPlan() = default;
  absl::Status AddPacked(const TrainerLayout& layout, std::vector<std::int64_t> padded);
  absl::Status AddBatch(const TrainerLayout& layout, std::span<const std::int64_t> padded,
                        bool given);
  void Add(std::int64_t sequence, const internal::LayoutSteps& steps,
           const internal::LayoutWindow& window, std::int64_t first_row, std::int64_t stride);

  std::int64_t rows_ = 0;
  std::vector<std::int64_t> lengths_;
  std::vector<RowSegment> segments_;
};

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_TRAINER_LAYOUT_H_
