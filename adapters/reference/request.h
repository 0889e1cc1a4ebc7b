// The requests of the embedded engine and their results. Plain values.
#ifndef WAYMARK_ADAPTERS_REFERENCE_REQUEST_H_
#define WAYMARK_ADAPTERS_REFERENCE_REQUEST_H_

#include <cstdint>
#include <vector>

#include "adapters/reference/tokens.h"
#include "blockstore/rows.h"

namespace waymark::reference {

// A prompt, and how many continuations of it are wanted.
struct Request {
  std::vector<int32_t> prompt;  // at least one token, 0 .. kVocabulary - 1
  int max_new_tokens = 16;      // >= 1; a sampled kEndToken ends a sequence earlier
  SamplingOptions sampling;     // sample i of the group uses seed + i
  int samples = 1;              // >= 1; a group shares its prompt's blocks
};

// One finished sample.
struct FinishedRequest {
  uint64_t id = 0;
  std::vector<int32_t> tokens;  // [T] the prompt, then what was generated
  // Rows [0, T - 1) with their infos: the last token was sampled and never an input.
  Rows rows;
  int64_t prefix_hit_tokens = 0;  // found in the cache when it was admitted
  int preemptions = 0;            // times it lost its blocks and began again
};

}  // namespace waymark::reference

#endif  // WAYMARK_ADAPTERS_REFERENCE_REQUEST_H_
