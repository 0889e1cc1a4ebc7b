// GatherLayers: pipeline stages exchange the rows of their layers, and every rank gets all.
//
// Three exchanges, whatever any rank finds: headers (what each has), answers (whether each can go
// on, its memory for the rest included), then the payloads, if every answer was yes. So a rank with
// a problem keeps nobody waiting. Each rank sends rows x (row bytes + 18) bytes, padded to the most
// that any of them sends.
#ifndef WAYMARK_PLUGIN_CAPTURE_STAGE_GATHER_H_
#define WAYMARK_PLUGIN_CAPTURE_STAGE_GATHER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "blockstore/rows.h"

namespace waymark {

// How ranks exchange bytes; the engine supplies it, e.g. over its process group.
struct Collective {
  std::int32_t rank = 0;   // of this process, in [0, ranks)
  std::int32_t ranks = 1;  // 1 ... 4096
  // Gives every rank `bytes` bytes at `send` of each rank, in order of rank, at `receive` ([ranks *
  // bytes]). All ranks call it, with the same `bytes`, in the same order. May wait; must not throw.
  // Answers 0, or why it failed as an absl::StatusCode. Not called when ranks == 1.
  std::int32_t (*all_gather)(void* context, const void* send, void* receive,
                             std::size_t bytes) = nullptr;
  void* context = nullptr;
};

// JoinLayers of the stages of all ranks, ranks in order of layers; every rank gets the same rows.
// Pages are those of rank 0. Any thread, off the step path: it waits in the collective as long as
// that does, allocates, and takes no lock. All ranks must call it, and for the same range: also a
// rank whose rows could not be read, with Rows{}, which is an InvalidArgument there.
//
// Errors. InvalidArgument: `collective` (then nothing was exchanged, and the other ranks wait), or
// this rank's stage; or ranks that contradict one another in range, K or E, or layers that do not
// increase from rank to rank: on every rank, naming rank, field and values. Aborted: another rank
// could not take part, named. ResourceExhausted: no memory here, or payloads above 64 GiB in all.
// DataLoss: bytes that are not what the named rank sent. The collective's own answer when that
// failed; how the others fare is then the collective's to say.
[[nodiscard]] absl::StatusOr<Rows> GatherLayers(const Rows& stage, const Collective& collective);

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_STAGE_GATHER_H_
