// AuditReplay: proves from the router's own choices that replayed ids belong to the rows they are
// given for, and names the likely error if they do not.
//
// The ids of a token identify it: computed again with the same weights, it chooses more than 0.9 of
// them; other tokens share near K / E. So the ids that a router was given are compared with those
// that it would have chosen itself, for a sample of rows. Where they disagree, the rows are
// compared as the usual mistakes would have moved them, and the mistake that explains them is
// named.
#ifndef WAYMARK_ADAPTERS_TRAINER_REPLAY_AUDIT_H_
#define WAYMARK_ADAPTERS_TRAINER_REPLAY_AUDIT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "adapters/trainer/layout.h"
#include "blockstore/rows.h"

namespace waymark {

// What can be wrong with ids that a router replays.
enum class ReplayError : std::uint8_t {
  kShifted,        // they are those of the token `by` positions later (< 0: earlier)
  kLayers,         // layer `layer` has the ids of layer `by`; -1: of none of these
  kOtherSequence,  // the ids of sequence `sequence` are in the rows of sequence `by`; -1: of none
  kBatchMajor,     // they are in batch-major order, and the router's rows are not
  kSequenceMajor,  // they are in sequence-major order, and the router's rows are not
  kStaleWeights,   // they are those of these tokens, chosen by other weights, or other arithmetic
};
inline constexpr int kNumReplayErrors = 6;
// E.g. "shifted". Static storage.
[[nodiscard]] std::string_view ReplayErrorName(ReplayError error);

// One error, and what speaks for it.
struct ReplayAlarm {
  ReplayError error = ReplayError::kStaleWeights;
  std::int32_t sequence = -1;  // the first sequence that has it; -1: all
  std::int32_t layer = -1;     // the first layer that has it, by its place in the tensors; -1: all
  std::int64_t by = 0;         // see ReplayError
  std::int64_t count = 1;      // sequences, or layers, that have it
  double agreement = 0;        // of the rows and layers meant, as they were given
  double explained = 0;        // and as the error says that they should have been
  // One sentence for people.
  [[nodiscard]] std::string Describe() const;
};

// The ids that were given and the router's own, of one micro-batch on one rank.
struct ReplayedIds {
  const RowPlan* plan = nullptr;
  std::int32_t num_layers = 0;  // tensors
  std::int32_t top_k = 0;
  std::int32_t num_experts = 0;
  // As FillRouterTensors wrote them: [layers][plan rows][K], and [plan rows] with 1 for replayed
  // rows.
  IdType given_type = IdType::kInt64;
  std::span<const std::uint8_t> given;
  std::span<const std::uint8_t> mask;
  // What the router would have chosen, [layers][rows][K]: of local rows `rows`, or of all if it is
  // empty. Some hundred rows are enough; they may be any, also in order.
  IdType own_type = IdType::kInt64;
  std::span<const std::uint8_t> own;
  std::span<const std::int64_t> rows;
};

struct ReplayAuditOptions {
  // Agreement below it is an alarm; of few ids, below it by two standard deviations. Between that
  // of the same tokens with the weights in use (more than 0.9) and that of stale weights that are
  // worth an alarm.
  double least_agreement = 0.8;
  // How many rows are compared, evenly spread over those that were replayed.
  std::int64_t max_rows = 256;
};

// Agreements are shares, in [0, 1], of the given ids that are also the router's own.
struct ReplayAudit {
  double agreement = 1;             // of all rows and layers that were compared
  double chance = 0;                // of the ids of different tokens, measured on these rows
  std::int64_t rows = 0;            // compared
  std::vector<double> layers;       // [layers]
  std::vector<double> sequences;    // [sequences]; -1: no row of it was compared
  std::vector<double> positions;    // [plan rows], by local row; -1: not compared
  std::vector<ReplayAlarm> alarms;  // the one that explains most rows first; empty: all is well
};

// Compares them. An error in some rows of a sequence only, such as those behind a prompt that two
// swapped sequences share, is found if layers * K is at least 16. O(compared rows * layers * K * K)
// if all is well; some hundred times that otherwise.
// InvalidArgument, naming the argument, the rule and the value, for sizes that do not match and for
// ids that are not in [0, num_experts) in a row that was compared. Any thread.
[[nodiscard]] absl::StatusOr<ReplayAudit> AuditReplay(const ReplayedIds& ids,
                                                      const ReplayAuditOptions& options = {});

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_TRAINER_REPLAY_AUDIT_H_
