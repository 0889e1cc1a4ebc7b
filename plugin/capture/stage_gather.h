// GatherLayers, GatherRows: ranks exchange the rows that they have of one sequence, so that every
// rank gets them all: pipeline stages the rows of their layers, context-parallel ranks the rows of
// their tokens.
//
// There are three exchanges: headers (the range and shape that each rank has), readiness (whether
// each rank can go on and has allocated the memory for the rest), and payloads. Every rank takes
// part in the first two, also if it has a problem; the third takes place only if every rank is
// ready. So a rank with a problem does not make the others wait. Each rank sends rows x (row bytes
// + 18) bytes, padded to the largest payload of any rank.
#ifndef WAYMARK_PLUGIN_CAPTURE_STAGE_GATHER_H_
#define WAYMARK_PLUGIN_CAPTURE_STAGE_GATHER_H_

#include "absl/status/statusor.h"
#include "blockstore/rows.h"
#include "plugin/capture/collective.h"

namespace waymark {

// JoinLayers of the stages of all ranks, where higher ranks have higher layers. Every rank gets the
// same rows, with the page size of rank 0. Any thread, off the step path: blocks as long as the
// collective does, allocates, takes no lock. Every rank must call it, for the same range. A rank
// that could not read its rows passes Rows{}: it gets InvalidArgument, and the others Aborted.
//
// Errors:
//   InvalidArgument    a bad `collective`; then nothing is exchanged, and the other ranks block
//   InvalidArgument    this rank's `stage` is bad; on every rank, if the ranks disagree on range, K
//                      or E, or on the function called, or their layers do not increase; names
//                      rank, field and values
//   Aborted            another rank has a problem; names it
//   ResourceExhausted  this rank cannot allocate, or all payloads together exceed 64 GiB
//   DataLoss           bytes arrived that the named rank did not send
//   any other code     the code that all_gather returned; what the other ranks get is then up to
//                      the collective
[[nodiscard]] absl::StatusOr<Rows> GatherLayers(const Rows& stage, const Collective& collective);
// Join of the rows of all ranks, in order of rank: at each position the first rank that has a valid
// row. Ranks that hold different tokens of a sequence (context parallelism) read the same range of
// the same blocks. Otherwise as GatherLayers; InvalidArgument also if the ranks' layers differ.
[[nodiscard]] absl::StatusOr<Rows> GatherRows(const Rows& rows, const Collective& collective);

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_STAGE_GATHER_H_
