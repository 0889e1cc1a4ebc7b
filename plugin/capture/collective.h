// Collective: the all-gather between ranks that the engine supplies. What exchanges rows between
// processes within a step (RowGather) uses it and nothing else.
#ifndef WAYMARK_PLUGIN_CAPTURE_COLLECTIVE_H_
#define WAYMARK_PLUGIN_CAPTURE_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"

namespace waymark {

// An all-gather that the engine supplies, e.g. over its process group.
//
// It should have a deadline: if a rank is late or gone, the others wait in it, and only the
// collective can end that wait. After an error it may be called again.
struct Collective {
  std::int32_t rank = 0;   // rank of this process, in [0, ranks)
  std::int32_t ranks = 1;  // number of ranks, 1 ... 4096
  // All-gather: copies `bytes` bytes at `send` of every rank, in order of rank, to `receive` of
  // every rank, which has ranks * bytes bytes (host memory). All ranks call it with the same
  // `bytes`, in the same order. May block; must not throw. Returns 0, or an absl::StatusCode on
  // failure. Not called if ranks is 1.
  std::int32_t (*all_gather)(void* context, const void* send, void* receive,
                             std::size_t bytes) = nullptr;
  void* context = nullptr;  // passed to all_gather
  // What all_gather needs, if it need not outlive the session: released behind the last call, on
  // any thread but the store's. A call that outlasts the session keeps it.
  std::shared_ptr<void> owner = nullptr;
};

// OK if rank and ranks are in their ranges and all_gather is there where it is needed; otherwise
// InvalidArgument naming the field ("collective.rank"), the rule and the value.
[[nodiscard]] absl::Status CheckCollective(const Collective& collective);

// Calls all_gather. A failure has its code, and a message that names `what` (static) was gathered.
// A number that is no code counts as kUnknown, an exception as kInternal. REQUIRES: ranks > 1.
[[nodiscard]] absl::Status AllGather(const Collective& collective, const char* what,
                                     const void* send, void* receive, std::size_t bytes) noexcept;

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_COLLECTIVE_H_
