#include "adapters/reference/tokens.h"

#include <algorithm>
#include <cmath>

namespace waymark::reference {

std::vector<int32_t> Encode(std::string_view text) {
  std::vector<int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text)
    tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options,
                    int64_t position) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options.temperature <= 0) return static_cast<int32_t>(best - logits.begin());
  const double scale = 1.0 / options.temperature;
  double total = 0;
  for (const float logit : logits)
    total += std::exp((logit - *best) * scale);
  const uint64_t bits = Mix64(Mix64(options.seed) + static_cast<uint64_t>(position));
  double left = static_cast<double>(bits >> 11) * 0x1.0p-53 * total;
  for (size_t token = 0; token < logits.size(); ++token) {
    left -= std::exp((logits[token] - *best) * scale);
    if (left < 0) return static_cast<int32_t>(token);
  }
  // Rounding may leave a sliver of `left`; the likeliest token takes it.
  return static_cast<int32_t>(best - logits.begin());
}

uint64_t Mix64(uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

}  // namespace waymark::reference
