// Byte-level tokens and the sampler of the embedded engine: 256 bytes, a begin and an end mark.
#ifndef WAYMARK_ADAPTERS_REFERENCE_TOKENS_H_
#define WAYMARK_ADAPTERS_REFERENCE_TOKENS_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace waymark::reference {

inline constexpr int32_t kBeginToken = 256;  // first token of every conversation
inline constexpr int32_t kEndToken = 257;    // a sampled one ends its request
inline constexpr int kVocabulary = 258;      // bytes 0..255 and the two marks

// The bytes of `text` as tokens, no mark added.
std::vector<int32_t> Encode(std::string_view text);

// How one request samples.
struct SamplingOptions {
  float temperature = 1.0f;  // 0 takes the greatest logit, the lowest token among equals
  uint64_t seed = 0;         // the request's own
};

// The next token after position `position` (0-based, of the row whose logits are given). Random
// numbers come from (seed, position) alone, so that neither the batch nor a preemption changes the
// tokens of a request. logits: [kVocabulary], finite.
int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options,
                    int64_t position);

// A 64-bit mixing function (a bijection with good avalanche), from which all randomness here comes.
uint64_t Mix64(uint64_t value);

}  // namespace waymark::reference

#endif  // WAYMARK_ADAPTERS_REFERENCE_TOKENS_H_
